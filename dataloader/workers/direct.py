"""Batches that the thread that calls ``next()`` loads itself.

Without workers that is every batch. With workers it is the batches that cost less than
handing them over would, see `policy`.

Two ways lead through ``next()``: the short way of `ShortWay`, which only fetches, for a
number of batches; and the long way, `BatchIterator._go_long`, for whatever else there
is to do, and for every batch that is timed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from time import perf_counter
from typing import Any

from dataloader._fast import local
from dataloader._marks import END
from dataloader.fetch import note_place
from dataloader.worker_info import Scope, Task
from dataloader.workers.base import EMPTY, BatchIterator, EpochPlan, place_note
from dataloader.workers.feed import IndexFeed

__all__ = ["DirectIterator"]


class DirectIterator(BatchIterator):
    """An iterator that can load batches in the calling thread.

    A batch that Ctrl-C broke off stays pending in the feed and is loaded again by the
    next call. Subclasses set the fields of
    `ShortWay` in `_begin`.
    """

    __slots__ = ("_cost_s", "_feed", "_fetched_at", "_made", "_watch")

    _feed: IndexFeed

    def _begin(self, plan: EpochPlan) -> None:
        super()._begin(plan)
        self._probe = None
        # Called when user code asks which worker it is in.
        self._watch: Callable[[], None] | None = None
        self._feed = plan.feed
        self._slot = plan.feed.slot
        self._tasks = iter(())
        # A batch that was fetched and is not handed over yet.
        self._made: Any = EMPTY
        # When its samples were there, and what it cost.
        self._fetched_at = self._cost_s = 0.0
        self._scope = Scope(plan.seed, plan.epoch, 0 if plan.iterable else None)

    def _load(self, task: Task) -> Any:
        """Fetch a task and pin the batch.

        The task stays pending and the batch is kept, until `_made` and the slot's
        `pending` are reset.
        """
        scope = self._scope
        outer = local.scope
        try:
            if outer is not scope:
                self._enter(outer)
            scope.is_active = True
            if self._made is EMPTY:
                # An interrupt may have broken off the same batch: the same numbers.
                scope.drawn_at = None
                self._made = self._fetch(self._source, self._collate, task, scope)
            if self._made is END:
                self._stop()
            return self._made if self._plan.pin is None else self._plan.pin(self._made)
        finally:
            scope.is_active = False
            if outer is not None and outer.is_active is not False:
                local.scope = outer

    def _collate(self, samples: Any) -> Any:
        """Call ``collate_fn``, with a note of when."""
        self._fetched_at = perf_counter()
        return self._collate_fn(samples)

    def _load_pending(self) -> Any:
        """Load the feed's next task and take down what it cost.

        The batch is handed over by resetting `_made` and the slot's `pending`.

        Raises:
            StopIteration: there is none.
        """
        task = self._feed.peek()
        started = self._fetched_at = perf_counter()
        try:
            batch = self._load(task)
        except Exception as error:
            self._account(error)
            raise
        ended = perf_counter()
        # A coarse clock may not have moved.
        self._cost_s = max(ended - started, 1e-7)
        fetch_s, collate_s = self._fetched_at - started, ended - self._fetched_at
        self._tally.add(self._cost_s, fetch_s, collate_s)
        return batch

    def _go_short(self, most: int) -> None:
        """Let the short way take up to ``most`` batches before the next timed one."""
        self._tasks = itertools.islice(self._feed.tasks, most)

    def _enter(self, outer: Scope | None) -> None:
        """Make this iterator's scope the thread's."""
        scope = self._scope
        scope.info, scope.torch_seed, scope.watch = None, None, self._watch
        if outer is not None and outer.is_active is not False:
            # A loader inside a worker's dataset: the worker is still the worker.
            scope.info, scope.torch_seed = outer.info, outer.torch_seed
            if outer.is_active:
                scope.watch = outer.watch
        local.scope = scope

    def _account(self, error: Exception) -> None:
        """Let a failed batch go, with a note of where it failed."""
        task = self._slot.pending
        if task is None or isinstance(error, StopIteration):
            return
        note = place_note("the main thread", self._plan, task[0], task[2])
        note_place(error, note)
        # Last, and without a call: if Ctrl-C comes first, the batch is loaded again.
        self._made = EMPTY
        self._slot.pending = None

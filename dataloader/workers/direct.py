"""Batches that the thread that calls ``next()`` loads itself, as fast as Python can.

Without workers that is every batch. With workers it is the batches that cost less than
handing them over would, see `policy`.

Two ways lead through ``next()``. The *short way* only fetches. It is open to the thread
that came last, for a number of batches (`_tasks`); whatever else there is to do, and
every batch that is timed, takes the long way, `BatchIterator.__next__`.

Guards: the short way takes no lock. A thread may go it while the iterator's `_scope` is
the thread's own; another thread takes the long way, and there (`_arrive`) first puts
another scope in its place and then looks whether the first thread is on its way, while
that one says that it is and then looks whether its scope is still the iterator's. As
attribute stores lock the object on free-threaded builds, one of the two sees the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from threading import get_ident
from time import perf_counter
from typing import Any

from dataloader._guard import FORKS
from dataloader.errors import ConcurrentNextError
from dataloader.fetch import END, Collate, Fetch, note_place
from dataloader.worker_info import NotInWorker, Scope, Task, local
from dataloader.workers.base import EMPTY, BatchIterator, EpochPlan, place_note
from dataloader.workers.feed import IndexFeed, Slot

__all__ = ["DirectIterator"]


class DirectIterator(BatchIterator):
    """An iterator that can load batches in the calling thread.

    A batch that Ctrl-C broke off stays pending in the feed and is loaded again by the
    next call. Subclasses set the fields below in `_begin`.

    Attributes:
        _probe: asked before each batch whether it has to take the long way; None for
            no.
        _feed: the index batches.
        _slot: the one that is pending, and whether the short way is open.
        _tasks: where the short way takes tasks from, a part of those of the feed.
        _scope, _source, _fetch, _collate_fn: what is called for a batch.
    """

    __slots__ = (
        "_collate_fn",
        "_cost_s",
        "_feed",
        "_fetch",
        "_fetched_at",
        "_made",
        "_probe",
        "_scope",
        "_slot",
        "_source",
        "_tasks",
        "_watch",
    )

    _probe: Callable[[], bool] | None
    _feed: IndexFeed
    _slot: Slot
    _tasks: Iterator[Task]
    _scope: Scope
    _source: Any
    _fetch: Fetch
    _collate_fn: Collate

    def __next__(self) -> Any:
        # `BatchIterator.__next__` and `_load` in one function: where a batch costs a
        # microsecond, the calls between them would be the loader's own cost.
        scope = self._scope
        slot = self._slot
        if (
            local.scope is not scope
            or scope.is_active is not False
            or slot.short_mark != FORKS.count
            or slot.pending is not None
            or (self._probe is not None and self._probe())
        ):
            return super().__next__()
        task: Any = None
        try:
            # Not yet true: the sampler is no part of a batch.
            scope.is_active = None
            # Look again after the announcement, see `_arrive`.
            if self._scope is not scope:
                raise ConcurrentNextError
            for slot.pending in self._tasks:
                task = slot.pending
                scope.is_active = True
                batch = self._fetch(self._source, self._collate_fn, task, scope)
                if batch is END:
                    self._stop()
                # No call from here on, so that Ctrl-C cannot strike before the batch is
                # handed over.
                slot.pending = None
                return batch
        except Exception as error:
            # Not even a call for an error of the sampler, which Ctrl-C could replace.
            if task is not None:
                self._account(error)
            raise
        except NotInWorker:
            pass  # the long way hands it to a worker
        finally:
            scope.is_active = False
        return super().__next__()

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

    def _arrive(self) -> None:
        """Make this thread the one to which the short way is open.

        Raises:
            ConcurrentNextError: another thread, or a call further up, is on it.
        """
        scope = self._scope
        if scope.owner == get_ident():
            if scope.is_active is not False:
                raise ConcurrentNextError
            return
        own = scope.copy()
        # No call from here on, so that Ctrl-C cannot leave half of it.
        self._scope = own
        if scope.is_active is not False:
            # It stays the other thread's.
            self._scope = scope
            raise ConcurrentNextError
        # Again, since that thread may have come round in between.
        own.task = scope.task
        row = self._tally.row
        if row is not None:
            self._tally.row = (row[0], own, row[2])

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

    def _stop(self) -> None:
        """Raise StopIteration, now and whenever asked again."""
        raise StopIteration

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

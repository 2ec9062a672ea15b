"""Batches that the thread that calls ``next()`` loads itself, as fast as Python can.

Without workers that is every batch. With workers it is the batches that cost less than
handing them over would, see `policy`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dataloader._guard import FORKS
from dataloader.errors import ConcurrentNextError
from dataloader.fetch import END, Collate, Fetch, note_place
from dataloader.worker_info import Scope, Task, local
from dataloader.workers.base import EMPTY, BatchIterator, EpochPlan, place_note
from dataloader.workers.feed import IndexFeed

__all__ = ["DirectIterator"]


class DirectIterator(BatchIterator):
    """An iterator that can load batches in the calling thread.

    A batch that Ctrl-C broke off stays pending in the feed and is loaded again by the
    next call. Subclasses set the fields below in `_begin`.

    Attributes:
        _plain_mark: ``next()`` may take the short way, which only fetches, while this
            is the number of forks so far; -1 never.
        _feed: the index batches.
        _tasks: where the short way takes tasks from: those of the feed, or a part.
        _scope, _source, _fetch, _collate_fn: what is called for a batch.
    """

    _plain_mark: int
    _feed: IndexFeed
    _tasks: Iterator[Task]
    _scope: Scope
    _source: Any
    _fetch: Fetch
    _collate_fn: Collate

    def __next__(self) -> Any:
        # `BatchIterator.__next__` and `_load` in one function: where a batch costs a
        # microsecond, the calls between them would be the loader's own cost.
        if self._plain_mark != FORKS.count:
            return super().__next__()
        free = self._free
        try:
            del free[0]
        except KeyError:
            raise ConcurrentNextError from None
        scope = self._scope
        outer = local.scope
        try:
            feed = self._feed
            if feed.pending is None:
                for feed.pending in self._tasks:
                    break
                else:
                    return self._out_of_tasks()
            task: Any = feed.pending
            if outer is not scope:
                self._enter(outer)
            scope.is_active = True
            batch = self._fetch(self._source, self._collate_fn, task, scope)
            if batch is END:
                self._stop()
            # No call from here on, so that Ctrl-C cannot strike before the batch is
            # handed over.
            feed.pending = None
            self._yielded += 1
            return batch
        except Exception as error:
            # Not even a call for an error of the sampler, which Ctrl-C could replace.
            if self._feed.pending is not None:
                self._account(error)
            raise
        finally:
            scope.is_active = False
            if outer is not scope and outer is not None and outer.is_active:
                local.scope = outer
            free[0] = None

    def _begin(self, plan: EpochPlan) -> None:
        super()._begin(plan)
        # A batch that was fetched and is not handed over yet.
        self._made: Any = EMPTY

    def _load(self, task: Task) -> Any:
        """Fetch a task and pin the batch.

        The task stays pending and the batch is kept, until `_made` and the feed's
        `pending` are reset.
        """
        scope = self._scope
        outer = local.scope
        try:
            if outer is not scope:
                self._enter(outer)
            scope.is_active = True
            if self._made is EMPTY:
                self._made = self._fetch(self._source, self._collate_fn, task, scope)
            if self._made is END:
                self._stop()
            return self._made if self._plan.pin is None else self._plan.pin(self._made)
        finally:
            scope.is_active = False
            if outer is not scope and outer is not None and outer.is_active:
                local.scope = outer

    def _enter(self, outer: Scope | None) -> None:
        """Make this iterator's scope the thread's."""
        # A loader inside a worker's dataset: the worker is still the worker.
        is_inside = outer is not None and outer.is_active
        self._scope.info = outer.info if outer is not None and is_inside else None
        local.scope = self._scope

    def _out_of_tasks(self) -> Any:
        """Return the batch after the last task, or stop."""
        self._stop()

    def _stop(self) -> None:
        """Raise StopIteration, now and whenever asked again."""
        raise StopIteration

    def _account(self, error: Exception) -> None:
        """Let a failed batch go, with a note of where it failed."""
        task = self._feed.pending
        if task is None or isinstance(error, StopIteration):
            return
        note = place_note("the main thread", self._plan, task[0], task[2])
        note_place(error, note)
        # Last, and without a call: if Ctrl-C comes first, the batch is loaded again.
        self._made = EMPTY
        self._feed.pending = None
        self._yielded += 1

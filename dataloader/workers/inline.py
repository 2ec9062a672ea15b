"""num_workers=0: the thread that calls ``next()`` loads each batch itself."""

from __future__ import annotations

from typing import Any

from dataloader._guard import FORKS
from dataloader.fetch import Stream, choose_fetch, fetch_stream
from dataloader.worker_info import Scope
from dataloader.workers.base import EMPTY, BatchIterator, EpochPlan
from dataloader.workers.direct import DirectIterator

__all__ = ["InlineBackend", "InlineIterator"]


class InlineIterator(DirectIterator):
    """Loads batch after batch from the loader's own dataset object."""

    def _begin(self, plan: EpochPlan) -> None:
        super()._begin(plan)
        self._feed = plan.feed
        self._tasks = plan.feed.tasks
        self._scope = Scope(plan.seed, plan.epoch, 0 if plan.iterable else None)
        self._collate_fn = plan.collate_fn
        # Whatever needs more than fetching takes the way that looks after it.
        is_plain = plan.pin is None and self._is_traced is None
        is_plain = is_plain and plan.len_called is None
        self._plain_mark = FORKS.count if is_plain else -1
        if plan.iterable:
            self._source = Stream(plan.dataset, plan.auto_collation, plan.drop_last)
            self._fetch = fetch_stream
        else:
            self._source = plan.dataset
            batched = plan.auto_collation
            self._fetch = choose_fetch(plan.dataset, batched, plan.check)

    def _next(self) -> Any:
        feed = self._feed
        task = feed.peek()
        try:
            batch = self._load(task)
        except Exception as error:
            self._account(error)
            raise
        if self._plan.iterable:
            self._warn_if_longer()
        # No call from here on, see `DirectIterator.__next__`.
        self._made = EMPTY
        feed.pending = None
        self._yielded += 1
        return batch


class InlineBackend:
    """Satisfies `Backend` without any thread.

    Args:
        iterator: class of its iterators.
    """

    def __init__(self, iterator: type[InlineIterator] = InlineIterator) -> None:
        self._iterator = iterator

    def start(self, plan: EpochPlan, previous: BatchIterator | None) -> BatchIterator:
        """Return the epoch's iterator; an iterable dataset is iterated at once."""
        return self._iterator(plan)

    def close(self) -> None:
        """Do nothing: there is nothing to end."""

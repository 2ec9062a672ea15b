"""num_workers=0: the thread that calls ``next()`` loads each batch itself."""

from __future__ import annotations

from typing import Any

from dataloader._guard import FORKS
from dataloader.fetch import Stream, choose_fetch, fetch_stream
from dataloader.workers.base import EMPTY, BatchIterator, EpochPlan
from dataloader.workers.direct import DirectIterator
from dataloader.workers.policy import untimed

__all__ = ["InlineBackend", "InlineIterator"]


class InlineIterator(DirectIterator):
    """Loads batch after batch from the loader's own dataset object."""

    __slots__ = ()

    def _begin(self, plan: EpochPlan) -> None:
        super()._begin(plan)
        self._collate_fn = plan.collate_fn
        self._tally.begin_row(self._slot, self._scope, 0)
        # Whatever needs more than fetching takes the way that looks after it.
        if plan.pin is None and plan.len_called is None:
            self._slot.short_mark = FORKS.count
        self._probe = self._is_traced
        if plan.iterable:
            self._source = Stream(plan.dataset, plan.auto_collation, plan.drop_last)
            self._fetch = fetch_stream
        else:
            self._source = plan.dataset
            batched = plan.auto_collation
            self._fetch = choose_fetch(plan.dataset, batched, plan.check)

    def _next(self) -> Any:
        batch = self._load_pending()
        if self._plan.iterable:
            self._warn_if_longer()
        self._go_short(untimed(self._cost_s))
        # No call from here on, see `DirectIterator.__next__`.
        self._made = EMPTY
        self._slot.pending = None
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

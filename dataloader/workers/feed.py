"""Index batches of one epoch, made lazily by the consumer, none lost to an interrupt.

Ctrl-C raises KeyboardInterrupt between two steps of the main thread, in particular
after a call returned and before its result is stored. What the feed has taken from the
sampler is therefore stored by statements that hold no call, and stays *pending* in the
feed's `Slot` until the one who asked for it commits it by setting `pending` to None,
also without a call.

Where the order is our own and a function of position, nobody can tell when it is made,
and many batches are made at once (`_Chunks`): the way of a task from there to the
consumer is built-in iterators alone. A user's sampler is asked for one batch at a time.

Guards: everything here belongs to the thread inside the iterator's ``next()``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any

from dataloader._fast import Slot
from dataloader.errors import InterruptedSamplerError
from dataloader.samplers import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from dataloader.samplers.batches import (
    BatchIterator,
    is_complete,
    is_settled,
    survives_interrupt,
)
from dataloader.samplers.iterators import OrderIterator
from dataloader.worker_info import Task

__all__ = ["IndexFeed"]


class _Nothing:
    """The absence of something taken from the sampler."""


class IndexFeed:
    """Numbered index batches of an epoch.

    Args:
        sampler: the batch sampler, or the sampler when samples are not batched. Its
            ``iter()`` is called here, once.
        batched: the sampler yields batches of keys, not keys.

    Attributes:
        tasks: the iterator over the epoch's tasks, or over those that have been made;
            `peek` makes more.
        slot: the task that was taken from it last and is not committed.
        is_settled: nobody can tell when tasks after the first one are asked for.
    """

    tasks: Iterator[Task]
    # What makes further tasks, and where these start.
    _chunks: _Chunks | None = None
    _start = 0

    def __init__(self, sampler: Iterable[Any], batched: bool) -> None:
        self._sampler = sampler
        tasks, self._chunks = _tasks(sampler, batched)
        self.tasks = tasks
        # The others' orders are functions of position.
        # Asked of the type, as isinstance would look into abstract classes.
        self.is_settled: bool = type(tasks) is not _Numbered or tasks.is_settled
        self.slot: Slot = Slot()

    def __len__(self) -> int:
        if isinstance(self._sampler, Sized):
            return len(self._sampler)
        raise TypeError(
            f"object of type {type(self._sampler).__name__!r} has no len(), so the "
            "number of batches is not known; give the sampler a __len__"
        )

    def peek(self) -> Task:
        """Return the next batch without taking it.

        Raises:
            StopIteration: the sampler is exhausted.
            InterruptedSamplerError: Ctrl-C ended the sampler before its time.
            Exception: whatever the sampler raises; asking again asks it again.
        """
        slot = self.slot
        while slot.pending is None:
            # A for statement stores what it gets without a step in between.
            for slot.pending in self.tasks:
                break
            else:
                self._make_more()
        assert slot.pending is not None
        return slot.pending

    def _make_more(self) -> None:
        """Replace the tasks, which have come to their end, by those that follow.

        Raises:
            StopIteration: there are none.
        """
        if self._chunks is None:
            raise StopIteration
        tasks, end = self._chunks.at(self._start)
        # From here on no call: all or nothing.
        self.tasks = tasks
        self._start = end


class _Chunks:
    """The tasks of an order that is a function of position, many at a time.

    Args:
        order: the order; it is not advanced.
        batch_size: keys in a batch, None for single keys.
        drop_last: leave out a last batch that is short.
    """

    def __init__(
        self, order: OrderIterator[Any, Any], batch_size: int | None, drop_last: bool
    ) -> None:
        self._order = order
        self._batch_size = batch_size
        self._size = batch_size or 1
        self._end = order.total - (order.total % self._size if drop_last else 0)

    def at(self, start: int) -> tuple[Iterator[Task], int]:
        """Return tasks from a position on, and where those behind them start.

        Args:
            start: 0 or what was returned before; the same gives the same again.

        Raises:
            StopIteration: there are none.
        """
        size = self._size
        end = min(self._order.block_end(start, size), self._end)
        if end < self._end:
            end -= (end - start) % size
        # Also when there are none: in PyTorch an epoch without a batch draws as well.
        keys = self._order.slice(start, end)
        if start == end:
            raise StopIteration
        cut = keys if self._batch_size is None else _cut(keys, size)
        numbers = itertools.count(start // size)
        return zip(numbers, range(start, end, size), cut, strict=False), end


def _cut(keys: list[Any], size: int) -> Iterator[list[Any]]:
    """Return a list in pieces, which are made when asked for, by built-in iterators."""
    starts = range(0, len(keys), size)
    stops = range(size, len(keys) + size, size)
    return map(keys.__getitem__, map(slice, starts, stops))


class _Numbered(Iterator[Task]):
    """Numbers what a sampler yields, and loses none of it to an interrupt."""

    def __init__(
        self, sampler: Iterable[Any], iterator: Iterator[Any], batched: bool
    ) -> None:
        self._sampler = sampler
        # A for statement asks for iter() of what it loops over, and iter() of a user's
        # iterator may begin it anew; iter() of a map is that map.
        self._source = map(next, itertools.repeat(iterator))
        self._batched = batched
        self._taken: Any = _Nothing
        self._number = 0
        self._start = 0
        self._suspect = False
        self._ended = False
        # Settled here: after an interrupt there must be no call before it is noted.
        self._is_mortal = not survives_interrupt(iterator)
        self.is_settled: bool = is_settled(iterator)
        self._partial: list[Any] = []
        # A batch that is a generator was ended by an interrupt.
        self._is_cut = False

    def __next__(self) -> Task:
        if self._taken is _Nothing:
            self._take()
        indices = self._taken
        count = 1
        if self._batched:
            if not isinstance(indices, (list, tuple)):
                indices = self._sized(indices)
            count = len(indices)
        task = (self._number, self._start, indices)
        # From here on no call: all or nothing.
        self._number += 1
        self._start += count
        self._taken = _Nothing
        return task

    def _take(self) -> None:
        if self._ended:
            raise StopIteration
        try:
            for self._taken in self._source:  # noqa: B020
                self._suspect = False
                return
        except KeyboardInterrupt:
            self._suspect = self._is_mortal
            raise
        end: Exception = StopIteration()
        if self._suspect and not is_complete(self._sampler, self._number):
            end = InterruptedSamplerError()
        # From here on no call: an interrupt before must not look like the end.
        self._ended = True
        self._suspect = False
        raise end

    def _sized(self, indices: Any) -> Any:
        """Return a batch of keys as something that has a length."""
        if isinstance(indices, Sized):
            return indices
        is_mortal = not survives_interrupt(indices)
        try:
            # Kept, since what is iterated over here cannot be iterated over again.
            self._partial.extend(indices)
            if self._is_cut:
                raise InterruptedSamplerError
        except KeyboardInterrupt:
            self._is_cut = is_mortal
            raise
        except Exception:
            self._is_cut = False
            self._taken, self._partial = _Nothing, []
            raise
        self._taken, self._partial = self._partial, []
        return self._taken


def _tasks(
    sampler: Iterable[Any], batched: bool
) -> tuple[Iterator[Task], _Chunks | None]:
    """Return an epoch's first tasks, and what makes further ones if that is not all."""
    sequential = _sequential(sampler)
    if sequential is not None:
        return sequential, None
    iterator = iter(sampler)
    chunks = _chunks(sampler, iterator, batched)
    if chunks is not None:
        return iter(()), chunks
    return _Numbered(sampler, iterator, batched), None


def _sequential(sampler: Iterable[Any]) -> Iterator[Task] | None:
    """Return the tasks of an order from 0 to n - 1, None for other orders.

    Made by built-in iterators alone. A range costs next to nothing, and its integers
    are made where they are used, by the thread that uses them.
    """
    if type(sampler) is not BatchSampler or type(sampler.sampler) is not (
        SequentialSampler
    ):
        return None
    length, size = len(sampler.sampler), sampler.batch_size
    whole = length - length % size
    starts = range(0, whole if sampler.drop_last else length, size)
    stops = itertools.chain(range(size, whole + 1, size), (length,))
    return zip(itertools.count(), starts, map(range, starts, stops), strict=False)


# Each iter() of these is a new iterator over an order of ours.
_ORDERS = (
    RandomSampler.__iter__,
    SubsetRandomSampler.__iter__,
    WeightedRandomSampler.__iter__,
    DistributedSampler.__iter__,
)


def _chunks(sampler: Any, iterator: Any, batched: bool) -> _Chunks | None:
    """Return the chunks of an epoch if its order may be made ahead, else None.

    Args:
        sampler: the feed's.
        iterator: what ``iter()`` of it is, and of which nothing is taken then.
        batched: the sampler yields batches of keys.
    """
    size, drop_last = None, False
    if batched:
        if _iter_of(sampler) is not BatchSampler.__iter__:
            return None
        assert isinstance(iterator, BatchIterator)
        size, drop_last = iterator.batch_size, iterator.drop_last
        sampler, iterator = sampler.sampler, iterator.source
    # Draws of torch are made at the moments at which PyTorch makes them.
    if _iter_of(sampler) in _ORDERS and type(iterator) is OrderIterator:
        return _Chunks(iterator, size, drop_last)
    return None


def _iter_of(sampler: Any) -> Any:
    # Whatever has a __getitem__ can do without.
    return getattr(type(sampler), "__iter__", None)

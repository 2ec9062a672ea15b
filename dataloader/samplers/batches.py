"""Batches of indices from any iterator of indices, none lost to an interrupt.

`iterators` says how: what was taken stays in a list of the iterator's own until plain
assignments hand it out.

They have no locks: one thread at a time may advance an iterator.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, repeat, starmap
from types import FunctionType
from typing import TypeVar

from dataloader.errors import InterruptedSamplerError
from dataloader.samplers.iterators import IndexIterator

__all__ = [
    "BatchIterator",
    "PulledIterator",
    "is_complete",
    "is_settled",
    "survives_interrupt",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class PulledIterator(IndexIterator[T_co]):
    """Takes from any iterator, keeping what it has pulled until it is handed out.

    So an error or an interrupt in the midst of a batch loses none of the indices pulled
    before, and the next call goes on pulling. If the interrupt has ended the source, as
    it ends generators, that is an error and not the end of the epoch.

    Args:
        source: yields the indices; not asked again once it has ended.
        sampler: what the source came from; its ``len`` tells whether an end is genuine.
    """

    __slots__ = (
        "_ended",
        "_given",
        "_is_mortal",
        "_is_settled",
        "_pending",
        "_pulled",
        "_sampler",
        "_suspect",
    )

    def __init__(self, source: Iterator[T_co], sampler: object = None) -> None:
        self._sampler = sampler
        self._given = 0
        # iter() of a user's iterator may begin it anew; iter() of a map is that map.
        self._pulled = map(next, repeat(source))
        self._pending: list[T_co] = []
        self._ended = False
        self._suspect = False
        # Settled here: after an interrupt there must be no call before it is noted.
        self._is_mortal = not survives_interrupt(source)
        self._is_settled = is_settled(source)

    @property
    def is_settled(self) -> bool:  # type: ignore[override]
        """Whether the source's order is settled."""
        return self._is_settled

    def __next__(self) -> T_co:
        taken = self._pull(1)
        if not taken:
            raise StopIteration
        index, rest = taken[0], taken[1:]
        self._pending = rest
        self._given += 1
        return index

    def take(self, n: int) -> list[T_co]:
        """Return the next ``n`` indices: fewer at the end, none past it."""
        pending = self._pull(n)
        taken, rest = pending[:n], pending[n:]
        count = len(taken)
        self._pending = rest
        self._given += count
        return taken

    def _pull(self, n: int) -> list[T_co]:
        pending = self._pending
        if len(pending) < n and not self._ended:
            before = len(pending)
            try:
                # One C call, which appends item by item.
                pending.extend(islice(self._pulled, n - before))
            except KeyboardInterrupt:
                self._suspect = self._is_mortal
                raise
            if len(pending) < n:
                self._end(len(pending) == before)
            self._suspect = False
        return pending

    def _end(self, came_to_nothing: bool) -> None:
        """Take it that the source has ended, unless an interrupt has ended it."""
        error = None
        if self._suspect and came_to_nothing:
            count = self._given + len(self._pending)
            if not is_complete(self._sampler, count):
                error = InterruptedSamplerError()
        # From here on no call: an interrupt before must not look like the end.
        self._ended = True
        self._suspect = False
        if error is not None:
            raise error


def survives_interrupt(iterator: object) -> bool:
    """Return whether an interrupt that passes through ``iterator`` leaves it usable.

    A generator is finished by it, and so may be what a built-in iterator such as a
    ``map`` takes from. Iterators over lists and ranges can be asked again; of classes
    written in Python it is assumed.
    """
    if type(iterator) in _OF_CONTAINERS:
        return True
    return isinstance(getattr(type(iterator), "__next__", None), FunctionType)


def is_settled(iterator: object) -> bool:
    """Return whether the order of ``iterator`` is settled with its first index.

    Then nobody can tell when the rest is asked for. Else it may draw from a generator,
    or do something else that can be noticed, at every step.
    """
    if type(iterator) in _OF_CONTAINERS:
        return True
    return isinstance(iterator, (IndexIterator, BatchIterator)) and iterator.is_settled


def is_complete(sampler: object, count: int) -> bool:
    """Return whether ``count`` is all that a sampler yields, False if unknown."""
    try:
        return count >= len(sampler)  # type: ignore[arg-type]
    except Exception:
        return False


_OF_CONTAINERS: tuple[type, ...] = (
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
)


class BatchIterator(Iterator[list[T]]):
    """Cuts an iterator of indices into lists.

    Args:
        source: yields the indices; an `IndexIterator` is asked for whole batches.
        batch_size: indices in a list.
        drop_last: leave out a last list that is shorter.
        sampler: what the source came from.

    Attributes:
        source: yields the indices, many at a time.
        batch_size: as given.
        drop_last: as given.
    """

    __slots__ = ("_ready", "_request", "_take", "batch_size", "drop_last", "source")
    survives_interrupt = True

    def __init__(
        self,
        source: Iterator[T],
        batch_size: int,
        drop_last: bool,
        sampler: object = None,
    ) -> None:
        if not isinstance(source, IndexIterator):
            source = PulledIterator(source, sampler)
        self.source: IndexIterator[T] = source
        self.batch_size: int = batch_size
        self.drop_last: bool = drop_last
        self._take = source.take
        self._request = ((batch_size,),)
        # The batch that was taken and has not been returned, if any. A short one that
        # is dropped stays here for good, as the end.
        self._ready: list[list[T]] = []

    def __next__(self) -> list[T]:
        ready = self._ready
        if not ready:
            ready.extend(starmap(self._take, self._request))
        batch = ready[0]
        if not batch or (self.drop_last and len(batch) < self.batch_size):
            raise StopIteration
        self._ready = []
        return batch

    @property
    def is_settled(self) -> bool:
        """Whether the source's order is settled."""
        return self.source.is_settled

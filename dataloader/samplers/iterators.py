"""The iterators that samplers return: places in an order, as classes.

A ``KeyboardInterrupt`` inside a generator function ends it for good, and the rest of
the epoch is lost without a word. So these iterators are classes. ``__next__`` and
``take`` first find what to return, then advance in plain assignments, and return with
no call in between (the interpreter looks for interrupts at calls, loops and function
starts): if they are interrupted, calling them again returns the same indices.

What cannot be repeated, a draw from a generator, goes straight from one C function into
a list that the iterator owns, see `_ONCE`.

They have no locks: one thread at a time may advance an iterator.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice, repeat, starmap
from types import FunctionType
from typing import TYPE_CHECKING, Generic, TypeVar

from dataloader._fast import SORTED_LIMIT
from dataloader.errors import InterruptedSamplerError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "BatchIterator",
    "IndexIterator",
    "OrderIterator",
    "PulledIterator",
    "RangeIterator",
    "RoundsIterator",
    "is_complete",
    "is_settled",
    "survives_interrupt",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Drawn = TypeVar("Drawn")

# `kept.extend(starmap(draw, _ONCE))` is `kept.append(draw())` within one C call: no
# interrupt can come between the draw and its being kept.
_ONCE: tuple[tuple[()]] = ((),)

# The first block is small so that the first batch comes at once; later ones are long
# enough for NumPy's cost per call to count little, and short enough not to be noticed.
_FIRST_BLOCK = 256
_LONGEST_BLOCK = 8192
_GROWTH = 4


class IndexIterator(Iterator[T_co]):
    """An iterator over indices that also hands them out many at a time.

    Attributes:
        survives_interrupt: after a ``KeyboardInterrupt`` the same call can be made
            again and nothing is lost.
        is_settled: the order is settled with its first index, see `is_settled`.
    """

    __slots__ = ()
    survives_interrupt = True
    is_settled = False

    @abstractmethod
    def take(self, n: int) -> list[T_co]:
        """Return the next ``n`` indices: fewer at the end, none past it.

        Args:
            n: how many, at least 0.
        """


class RangeIterator(IndexIterator[int]):
    """Yields 0, 1, ..., ``stop - 1``.

    Args:
        stop: number of indices.
    """

    __slots__ = ("_position", "_stop")
    is_settled = True

    def __init__(self, stop: int) -> None:
        self._position = 0
        self._stop = stop

    def __next__(self) -> int:
        position = self._position
        if position >= self._stop:
            raise StopIteration
        self._position = position + 1
        return position

    def take(self, n: int) -> list[int]:
        """Return the next ``n`` indices: fewer at the end, none past it."""
        start = self._position
        stop = start + n
        if stop > self._stop:
            stop = self._stop
        indices = list(range(start, stop))
        self._position = stop
        return indices


class _BlockIterator(IndexIterator[T_co]):
    """Makes its indices a block at a time, as a function of their position.

    Args:
        total: number of indices.
        unit: after how many indices the order begins anew; a short unit is made whole.
    """

    __slots__ = ("_block", "_first", "_position", "_total")

    def __init__(self, total: int, unit: int) -> None:
        self._total = total
        self._position = 0
        self._block: tuple[int, list[T_co]] = (0, [])
        self._first = unit if unit <= SORTED_LIMIT else _FIRST_BLOCK

    @abstractmethod
    def _make(self, start: int, stop: int) -> list[T_co]:
        """Return the indices of positions from ``start``, at most up to ``stop``.

        There may be fewer, but none only if ``start`` is the end. May be called again
        for the same positions, as long as they have not been handed out.
        """

    def __next__(self) -> T_co:
        position = self._position
        start, indices = self._block
        if position - start >= len(indices):
            start, indices = self._next_block(position, 1)
            if not indices:
                raise StopIteration
            self._block = (start, indices)
        index = indices[position - start]
        self._position = position + 1
        return index

    def take(self, n: int) -> list[T_co]:
        """Return the next ``n`` indices: fewer at the end, none past it."""
        position = self._position
        block = self._block
        offset = position - block[0]
        taken = block[1][offset : offset + n]
        while len(taken) < n:
            missing = n - len(taken)
            block = self._next_block(position + len(taken), missing)
            if not block[1]:
                break
            taken += block[1][:missing]
        self._position = position + len(taken)
        self._block = block
        return taken

    def _next_block(self, start: int, wanted: int) -> tuple[int, list[T_co]]:
        before = len(self._block[1])
        grown = min(before * _GROWTH, _LONGEST_BLOCK) if before else self._first
        stop = min(start + max(grown, wanted), self._total)
        return start, self._make(start, stop)


class OrderIterator(_BlockIterator[T_co], Generic[T_co, Drawn]):
    """An order that one draw settles.

    Args:
        total: number of indices.
        draw: called once, when the first index is asked for; an interrupt cannot lose
            the result if it is a function written in C.
        slice_order: called as ``slice_order(drawn, start, stop)``; returns the indices
            of these positions, or the first few of them.
        unit: after how many indices the order begins anew; a short unit is made whole.
    """

    __slots__ = ("_draw", "_drawn", "_slice")
    is_settled = True

    def __init__(
        self,
        total: int,
        draw: Callable[[], Drawn],
        slice_order: Callable[[Drawn, int, int], list[T_co]],
        unit: int,
    ) -> None:
        super().__init__(total, unit)
        self._draw = draw
        self._drawn: list[Drawn] = []
        self._slice = slice_order

    def _make(self, start: int, stop: int) -> list[T_co]:
        if not self._drawn:
            self._drawn.extend(starmap(self._draw, _ONCE))
        return self._slice(self._drawn[0], start, stop) if start < stop else []


class RoundsIterator(_BlockIterator[int]):
    """Indices drawn round by round from a generator, each round when it is needed.

    Who shares the generator sees it advance at the same moments as with PyTorch: the
    last round is drawn when its first index is asked for, also when it has none left to
    give.

    Args:
        total: number of indices.
        length: number of indices of a full round.
        draw: draws a full round, a tensor of int64. Like ``draw_last`` a function
            written in C, so that an interrupt cannot lose the result.
        draw_last: draws what the remaining ``total % length`` indices are the head of.
    """

    __slots__ = ("_draw", "_draw_last", "_length", "_rounds")

    def __init__(
        self,
        total: int,
        length: int,
        draw: Callable[[], Tensor],
        draw_last: Callable[[], Tensor],
    ) -> None:
        super().__init__(total, length)
        self._length = length
        self._draw = draw
        self._draw_last = draw_last
        # Number of the oldest round that is kept, and the rounds from there on.
        self._rounds: tuple[int, list[Tensor]] = (0, [])

    def _make(self, start: int, stop: int) -> list[int]:
        number, begin = divmod(start, self._length)
        row = self._round(number)
        indices: list[int] = row[begin : begin + stop - start].tolist()
        return indices

    def _round(self, number: int) -> Tensor:
        self._forget()
        first, kept = self._rounds
        while first + len(kept) <= number:
            is_full = first + len(kept) < self._total // self._length
            kept.extend(starmap(self._draw if is_full else self._draw_last, _ONCE))
        return kept[number - first]

    def _forget(self) -> None:
        """Drop the rounds that have been handed out whole."""
        first, kept = self._rounds
        current = min(self._position // self._length, first + len(kept))
        if current > first:
            self._rounds = (current, kept[current - first :])


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
    """

    __slots__ = (
        "_batch_size",
        "_drop_last",
        "_ready",
        "_request",
        "_take",
        "is_settled",
    )
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
        self._take = source.take
        self.is_settled: bool = source.is_settled
        self._request = ((batch_size,),)
        self._batch_size = batch_size
        self._drop_last = drop_last
        # The batch that was taken and has not been returned, if any. A short one that
        # is dropped stays here for good, as the end.
        self._ready: list[list[T]] = []

    def __next__(self) -> list[T]:
        ready = self._ready
        if not ready:
            ready.extend(starmap(self._take, self._request))
        batch = ready[0]
        if not batch or (self._drop_last and len(batch) < self._batch_size):
            raise StopIteration
        self._ready = []
        return batch

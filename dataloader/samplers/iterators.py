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
from itertools import starmap
from typing import TYPE_CHECKING, Generic, TypeVar

from dataloader._fast import SORTED_LIMIT

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "IndexIterator",
    "OrderIterator",
    "RangeIterator",
    "RoundsIterator",
]

T_co = TypeVar("T_co", covariant=True)
Drawn = TypeVar("Drawn")

# `kept.extend(starmap(draw, _ONCE))` is `kept.append(draw())` within one C call: no
# interrupt can come between the draw and its being kept.
_ONCE: tuple[tuple[()]] = ((),)

# The first block is small so that the first batch comes at once; later ones are long
# enough for NumPy's cost per call to count little, and short enough not to be noticed.
_FIRST_BLOCK = 256
_LONGEST_BLOCK = 8192
_GROWTH = 8


class IndexIterator(Iterator[T_co]):
    """An iterator over indices that also hands them out many at a time.

    Attributes:
        survives_interrupt: after a ``KeyboardInterrupt`` the same call can be made
            again and nothing is lost.
        is_settled: the order is settled with its first index, see `batches.is_settled`.
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

    Attributes:
        total: number of indices.
    """

    __slots__ = ("_block", "_first", "_position", "total")

    def __init__(self, total: int, unit: int) -> None:
        self.total: int = total
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

    def block_end(self, start: int, wanted: int) -> int:
        """Return where a block ends that begins at a position.

        Args:
            start: its first position.
            wanted: how many indices it has to have, while there are that many.
        """
        grown = min(max(self._first, start * _GROWTH), _LONGEST_BLOCK)
        return min(start + max(grown, wanted), self.total)

    def _next_block(self, start: int, wanted: int) -> tuple[int, list[T_co]]:
        return start, self._make(start, self.block_end(start, wanted))


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

    def slice(self, start: int, stop: int) -> list[T_co]:
        """Return the indices of any positions, without advancing.

        Args:
            start: first position, at least 0.
            stop: position after the last, at most ``total``.
        """
        indices = self._make(start, stop)
        while start + len(indices) < stop:
            indices += self._make(start + len(indices), stop)
        return indices


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
            is_full = first + len(kept) < self.total // self._length
            kept.extend(starmap(self._draw if is_full else self._draw_last, _ONCE))
        return kept[number - first]

    def _forget(self) -> None:
        """Drop the rounds that have been handed out whole."""
        first, kept = self._rounds
        current = min(self._position // self._length, first + len(kept))
        if current > first:
            self._rounds = (current, kept[current - first :])

"""What kernels take, and how they refuse the rest.

A kernel divides by its arguments and fills memory by them, so nothing reaches it
unchecked; and as both twins ask here, they refuse the same in the same words.
"""

from __future__ import annotations

from operator import index

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "checked_draws",
    "checked_position",
    "checked_positions",
    "checked_size",
    "checked_slice",
    "word_of",
]

_LARGEST = (1 << 63) - 1


def word_of(number: int) -> int:
    """Return the low 64 bits of any integer.

    Raises:
        TypeError: ``number`` is no integer.
    """
    return int(index(number)) & 0xFFFFFFFFFFFFFFFF


def checked_size(n: int) -> int:
    """Return the size of a range that has values.

    Raises:
        TypeError: ``n`` is no integer.
        ValueError: ``n`` is not in ``[1, 2**63)``.
    """
    size = int(index(n))
    if not 1 <= size <= _LARGEST:
        raise ValueError(f"n must be in [1, 2**63), got {size}")
    return size


def checked_slice(start: int, stop: int, n: int) -> tuple[int, int, int]:
    """Return ends of a slice and the size of what it is cut from.

    Raises:
        TypeError: one is no integer.
        ValueError: not ``0 <= start <= stop <= n < 2**63``.
    """
    start, stop, n = int(index(start)), int(index(stop)), int(index(n))
    if not 0 <= start <= stop <= n <= _LARGEST:
        raise ValueError(
            "a slice must have 0 <= start <= stop <= n < 2**63, "
            f"got start={start}, stop={stop}, n={n}"
        )
    return start, stop, n


def checked_draws(counter_start: int, count: int) -> tuple[int, int]:
    """Return the number of the first of some draws, and how many there are.

    Raises:
        TypeError: one is no integer.
        ValueError: one is negative, or their sum not below 2**63.
    """
    first, count = int(index(counter_start)), int(index(count))
    if first < 0 or count < 0 or first + count > _LARGEST:
        raise ValueError(
            "counter_start and count must be at least 0, and their sum below 2**63, "
            f"got {first} and {count}"
        )
    return first, count


def checked_position(position: int, n: int) -> tuple[int, int]:
    """Return a position and the size.

    Raises:
        TypeError: one is no integer.
        ValueError: not ``0 <= position < n < 2**63``.
    """
    position, n = int(index(position)), checked_size(n)
    if not 0 <= position < n:
        raise ValueError(f"index must be in [0, n={n}), got {position}")
    return position, n


def checked_positions(indices: ArrayLike, n: int) -> tuple[NDArray[np.uint64], int]:
    """Return positions as an array of their own, without gaps, and the size.

    Raises:
        TypeError: ``indices`` are not all integers, or ``n`` is none.
        ValueError: not ``0 <= index < n < 2**63`` for each of them.
    """
    _, _, n = checked_slice(0, 0, n)
    positions = np.asarray(indices)
    if positions.size:
        # A list without items is one of floats to NumPy.
        if positions.dtype.kind not in "iu":
            raise TypeError(f"indices must be integers, got {positions.dtype}")
        lowest, highest = int(positions.min()), int(positions.max())
        if lowest < 0 or highest >= n:
            raise ValueError(
                f"indices must be in [0, n={n}), got {lowest} to {highest}"
            )
    return np.array(positions, dtype=np.uint64, order="C"), n

"""What the random samplers agree on: where an order comes from, and its slices.

Which order a sampler gives:

* ``seed``: ours, a function of (seed, epoch, repetition) and nothing else.
* a ``torch.Generator``: PyTorch's own, drawn from it at the moments that PyTorch draws.
* a ``numpy.random.Generator``: ours, with a seed drawn from it at the first index.
* neither: as PyTorch draws from its global generator while torch is loaded; else ours,
  with a seed from the operating system.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dataloader._fast import derive_key, permute_range, random_below
from dataloader._torch import draw_int64, loaded_torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "checked_seed",
    "draws_of",
    "global_torch",
    "seed_draw",
    "shuffle_of",
    "tensor_slice",
    "torch_of",
]

SliceOrder = Callable[[int, int, int], list[int]]
"""``slice_order(seed, start, stop)`` returns the indices of a slice of an order."""


def checked_seed(seed: object, generator: object) -> int | None:
    """Return ``seed`` if it may be given with this ``generator``.

    Raises:
        ValueError: both are given.
        TypeError: ``seed`` is not an int, or is a bool.
        OverflowError: ``seed`` does not fit into 64 bits.
    """
    if seed is None:
        return None
    if generator is not None:
        raise ValueError(
            "seed and generator exclude each other, got both: leave one of them out"
        )
    if isinstance(seed, bool) or not hasattr(type(seed), "__index__"):
        raise TypeError(f"seed must be an int, got {seed!r}: use int(seed)")
    number = operator.index(seed)  # type: ignore[arg-type]
    if not 0 <= number < 1 << 64:
        raise OverflowError(f"seed must be in [0, 2**64), got {seed}")
    return number


def torch_of(generator: object) -> Any:
    """Return torch if an order is to be drawn from ``generator`` by torch itself.

    Raises:
        TypeError: ``generator`` can be no ``torch.Generator`` as torch is not loaded,
            and is no ``numpy.random.Generator`` either.
    """
    if generator is None or isinstance(generator, np.random.Generator):
        return None
    torch = loaded_torch()
    if torch is None:
        raise TypeError(
            "generator must be a torch.Generator or a numpy.random.Generator, "
            f"got {type(generator).__name__}"
        )
    return torch


def global_torch(seed: int | None, generator: object) -> Any:
    """Return torch if it draws the order, with None for its global generator."""
    if seed is None and generator is None:
        return loaded_torch()
    return torch_of(generator)


def seed_draw(seed: int | None, generator: object) -> Callable[[], int]:
    """Return the function that yields the seed of an order when it is needed."""
    return partial(draw_int64, generator) if seed is None else partial(int, seed)


def shuffle_of(n: int, epoch: int) -> SliceOrder:
    """Return the slices of shuffled ``range(n)``, shuffled anew at each repetition.

    Args:
        n: size of the range, at least 1.
        epoch: mixed into the key.
    """

    def slice_order(seed: int, start: int, stop: int) -> list[int]:
        repetition, first = divmod(start, n)
        last = min(n, first + stop - start)
        key = derive_key(seed, epoch, repetition)
        indices: list[int] = permute_range(first, last, n, key).tolist()
        return indices

    return slice_order


def draws_of(n: int, epoch: int) -> SliceOrder:
    """Return the slices of an endless series of draws from ``range(n)``.

    Args:
        n: size of the range, at least 1.
        epoch: mixed into the key.
    """

    def slice_order(seed: int, start: int, stop: int) -> list[int]:
        key = derive_key(seed, epoch, 0)
        indices: list[int] = random_below(start, stop - start, n, key).tolist()
        return indices

    return slice_order


def tensor_slice(tensor: Tensor, start: int, stop: int) -> list[int]:
    """Return a slice of a tensor of int64 as Python's integers."""
    indices: list[Any] = tensor[start:stop].tolist()
    return indices

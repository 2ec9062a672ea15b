"""Splitting a dataset at random, into training and validation data for example."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable
from operator import index
from typing import Any, TypeVar

from dataloader._fast import derive_key, permute_range
from dataloader._torch import draw_int64
from dataloader.datasets.base import Indexable
from dataloader.datasets.wrappers import Subset
from dataloader.samplers.orders import global_torch

__all__ = ["random_split"]

T = TypeVar("T")


def random_split(
    dataset: Indexable[T],
    lengths: Iterable[int | float],
    generator: Any | None = None,
) -> list[Subset[T]]:
    """Split a dataset at random into parts that do not overlap.

    Args:
        dataset: a map-style dataset with a length.
        lengths: numbers of samples that add up to ``len(dataset)``, or fractions that
            add up to 1. Fractions are rounded down, and what is left over is dealt out
            one by one, from the first part on.
        generator: a ``torch.Generator`` gives PyTorch's exact parts, a
            ``numpy.random.Generator`` is asked for a seed. None means PyTorch's parts
            from torch's global generator while torch is loaded, else a seed from the
            operating system.

    Returns:
        one `Subset` for each length, with a list of indices.

    Raises:
        ValueError: the lengths do not add up, or one is negative or above 1.
        TypeError: a length is no whole number, or ``generator`` is no generator.

    Warns:
        UserWarning: a fraction is so small that its part is empty.

    Example:
        >>> parts = random_split(range(10), [0.8, 0.2])
        >>> [len(part) for part in parts]
        [8, 2]
    """
    n = len(dataset)  # type: ignore[arg-type]  # TypeError if it has none
    parts = list(lengths)
    if _are_fractions(parts):
        sizes = _sizes_of_fractions(n, parts)
        for i, size in enumerate(sizes):
            if size == 0:
                warnings.warn(
                    f"part {i} of the split is empty: {parts[i]} of {n} samples "
                    "rounds down to none",
                    stacklevel=2,
                )
    else:
        sizes = _checked_sizes(n, parts)
    order = _random_order(n, generator)
    stops = itertools.accumulate(sizes)
    return [
        Subset(dataset, order[stop - size : stop])
        for stop, size in zip(stops, sizes, strict=True)
    ]


def _are_fractions(lengths: list[int | float]) -> bool:
    total = sum(lengths)
    return math.isclose(total, 1) and total <= 1


def _sizes_of_fractions(n: int, fractions: list[int | float]) -> list[int]:
    for i, fraction in enumerate(fractions):
        if not 0 <= fraction <= 1:
            raise ValueError(
                f"lengths as fractions must be in [0, 1], got {fraction} at index {i}"
            )
    sizes = [math.floor(n * fraction) for fraction in fractions]
    for i in range(n - sum(sizes)):
        sizes[i % len(sizes)] += 1
    return sizes


def _checked_sizes(n: int, lengths: list[int | float]) -> list[int]:
    if sum(lengths) != n:
        raise ValueError(
            f"lengths must add up to the {n} samples of the dataset, or to 1 as "
            f"fractions, got {lengths}, which is {sum(lengths)} together"
        )
    sizes = [_whole(length) for length in lengths]
    if min(sizes, default=0) < 0:
        raise ValueError(f"lengths must not be negative, got {lengths}")
    return sizes


def _whole(length: Any) -> int:
    try:
        return index(length)
    except TypeError:
        raise TypeError(
            f"lengths that do not add up to 1 must be whole numbers, got {length!r}"
        ) from None


def _random_order(n: int, generator: Any) -> list[int]:
    torch = global_torch(None, generator)
    if torch is not None:
        order: list[int] = torch.randperm(n, generator=generator).tolist()
    else:
        key = derive_key(draw_int64(generator), 0, 0)
        order = permute_range(0, n, n, key).tolist()
    return order

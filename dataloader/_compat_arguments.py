"""The checks of `PyDataloader`'s arguments: dataloader-rs's order and exception types.

An argument of the wrong type or size is reported before one that breaks a rule.
"""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

import numpy as np

from dataloader.datasets import is_iterable_dataset

__all__ = [
    "check_order",
    "flag",
    "items_at_once",
    "require_map_style",
    "require_positive",
    "unsigned",
]


def require_map_style(dataset: Any) -> None:
    """Check that a dataset has samples by index; no base class is asked for.

    Raises:
        TypeError: it is iterable, or has no ``__getitem__``.
    """
    if is_iterable_dataset(dataset):
        raise TypeError(
            "dataset must be map-style, with __len__ and __getitem__, got the iterable "
            f"{type(dataset).__name__}: dataloader.DataLoader loads it"
        )
    if not hasattr(type(dataset), "__getitem__"):
        raise TypeError(
            "dataset must have __len__ and __getitem__, as a PyDataset has, got "
            f"{dataset!r} of type {type(dataset).__name__}"
        )


def unsigned(name: str, value: SupportsIndex) -> int:
    """Return an argument as an int that fits into 64 bits without a sign.

    Raises:
        TypeError: not a whole number.
        OverflowError: negative, or too large.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None
    if not 0 <= number < 1 << 64:
        raise OverflowError(f"{name} must be at least 0 and below 2**64, got {number}")
    return number


def flag(name: str, value: bool | np.bool_) -> bool:
    """Return an argument that is true or false.

    Raises:
        TypeError: anything else, such as what PyTorch has in the same position.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(
            f"{name} must be True or False, got {value!r}; positions are other than "
            "PyTorch's, so pass arguments by keyword"
        )
    return bool(value)


def items_at_once(items_in_parallel: int, item_concurrency: int | None) -> int:
    """Return how many samples are fetched at once, by either of its two names.

    Raises:
        ValueError: both are given.
        TypeError: not a whole number.
        OverflowError: negative, or too large.
    """
    items = unsigned("items_in_parallel", items_in_parallel)
    if item_concurrency is None:
        return items
    if items != 1:
        raise ValueError(
            f"items_in_parallel={items} and item_concurrency={item_concurrency} are "
            "mutually exclusive: they are names of the same; give one"
        )
    return unsigned("item_concurrency", item_concurrency)


def require_positive(name: str, value: int) -> None:
    """Check that an unsigned argument is not 0.

    Raises:
        ValueError: it is 0.
    """
    if value == 0:
        raise ValueError(f"{name} must be > 0, got 0")


def check_order(shuffle: bool, sampler: object, seed: int | None) -> None:
    """Check that the order is decided once, and that a seed has something to decide.

    Raises:
        ValueError: ``shuffle`` with ``sampler``, or ``seed`` without ``shuffle``.
    """
    if shuffle and sampler is not None:
        raise ValueError(
            "sampler and shuffle are mutually exclusive: both decide the order; leave "
            "shuffle at False or let the sampler go"
        )
    if seed is not None and not shuffle:
        raise ValueError(
            f"seed only applies when shuffle=True, got seed={seed}; set shuffle, or "
            "leave seed at None"
        )

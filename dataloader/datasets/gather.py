"""Rows of arrays and tensors, many at a time.

Asking an array for one row makes an object; asking for many by one indexing operation
costs little more. The rows are then views of the block that it made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader._torch import loaded_torch

__all__ = ["Rows", "can_gather", "gather", "is_plain", "row_numbers"]

Rows = NDArray[np.intp] | slice
"""Which rows: their numbers, not negative, or a slice if they follow one another."""

_PLAIN = (list, tuple, str, bytes, range)


def can_gather(column: Any) -> bool:
    """Return whether rows of ``column`` can be had by one indexing operation.

    Subclasses may mean something else by it, and rows of a tensor that requires grad
    are no plain views.
    """
    if type(column) in (np.ndarray, np.memmap):
        return True
    torch = loaded_torch()
    return (
        torch is not None
        and type(column) is torch.Tensor
        and column.layout is torch.strided
        and not column.requires_grad
        and not column.is_quantized
    )


def is_plain(column: Any) -> bool:
    """Return whether ``column`` is a container, whose indexing runs no user's code."""
    return type(column) in _PLAIN


def row_numbers(keys: list[Any], length: int) -> Rows | None:
    """Return the rows that some keys mean; None if not all are integers and in range.

    Args:
        keys: indices, which count from the end if negative.
        length: number of rows.
    """
    if not keys or not all(map(_is_integer, set(map(type, keys)))):
        return None
    try:
        rows = np.array(keys, dtype=np.intp)
    except OverflowError:
        return None
    rows[rows < 0] += length
    first, last = int(rows[0]), int(rows[-1])
    if rows.min() < 0 or rows.max() >= length:
        return None
    if last - first == len(rows) - 1 and bool(np.all(rows[1:] - rows[:-1] == 1)):
        return slice(first, last + 1)
    return rows


def _is_integer(kind: type) -> bool:
    return kind is int or issubclass(kind, np.integer)


def gather(column: Any, keys: list[Any], rows: Rows | None) -> Any:
    """Return the entries of a column for some keys, as a sequence.

    Args:
        column: an array, tensor or sequence.
        keys: what it would be asked for one by one.
        rows: the same as numbers of rows; None asks one by one.
    """
    if rows is None or not can_gather(column):
        return [column[key] for key in keys]
    if isinstance(column, np.ndarray):
        return list(_copied_rows(column, rows))
    return _tensor_rows(column, rows)


def _copied_rows(array: NDArray[Any], rows: Rows) -> NDArray[Any]:
    if isinstance(rows, slice):
        return np.array(array[rows])
    return np.take(array, rows, axis=0)


def _tensor_rows(tensor: Any, rows: Rows) -> Any:
    # Through NumPy where it can be, see the module `_collate_torch`.
    torch: Any = loaded_torch()
    try:
        block = torch.from_numpy(_copied_rows(tensor.numpy(), rows))
    except (TypeError, RuntimeError):
        # On a device, or a dtype that NumPy lacks.
        found = tensor[rows if isinstance(rows, slice) else torch.from_numpy(rows)]
        block = found.clone() if isinstance(rows, slice) else found
    return block.unbind(0)

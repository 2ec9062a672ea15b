"""Collation of token ids: rows of any lengths become one array of int64."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dataloader._fast import number_vector
from dataloader.collate import as_default

__all__ = ["token_collate"]

_INT64 = range(-(2**63), 2**63)


def token_collate(
    batch: Sequence[Any],
    *,
    pad_id: int | None = None,
    pad_to: int | None = None,
    pad_to_multiple_of: int | None = None,
    side: Literal["right", "left"] = "right",
    return_mask: bool = False,
) -> Any:
    """Make one int64 batch of rows of token ids.

    Give it to a loader with ``functools.partial(token_collate, pad_id=0)``.

    Args:
        batch: at least one row: a list, tuple, array or CPU tensor of whole numbers in
            one dimension.
        pad_id: fills up the shorter rows. Without it all rows must have one length.
        pad_to: length of the batch's rows; default that of its longest row.
        pad_to_multiple_of: rounds the length up to a multiple.
        side: where the padding goes.
        return_mask: return ``(ids, mask)``, where ``mask`` is 1 for each token and 0
            for padding, also where ``pad_id`` is an id of the text.

    Returns:
        int64 of shape ``(rows, length)``, or a pair of them. Tensors where torch is
        installed and NumPy arrays where not, as from `default_collate`.

    Raises:
        ValueError: an option is out of range, a row is longer than ``pad_to``, has
            another number of dimensions than one, or an id is beyond int64; rows differ
            in length without a ``pad_id``.
        TypeError: an id, of padding too, is not a whole number.
        IndexError: the batch is empty.

    Example:
        >>> token_collate([[5, 6, 7], [8]], pad_id=0)
        tensor([[5, 6, 7],
                [8, 0, 0]])
    """
    if side not in ("right", "left"):
        raise ValueError(f"side must be 'right' or 'left', got {side!r}")
    rows = [_row(tokens, position) for position, tokens in enumerate(batch)]
    if not rows:
        raise IndexError("token_collate: batch must have at least one row, got none")
    length = _length(rows, pad_id, pad_to, pad_to_multiple_of)
    ids = np.full((len(rows), length), _id(pad_id), np.int64)
    mask = np.zeros_like(ids) if return_mask else None
    for number, row in enumerate(rows):
        start = length - len(row) if side == "left" else 0
        place = slice(start, start + len(row))
        ids[number, place] = row
        if mask is not None:
            mask[number, place] = 1
    return as_default(ids) if mask is None else (as_default(ids), as_default(mask))


def _row(tokens: Any, position: int) -> NDArray[Any]:
    row = number_vector(tokens) if type(tokens) is list and tokens else None
    try:
        # Arrays and tensors are read where they lie.
        row = np.asarray(tokens) if row is None else row
    except (ValueError, OverflowError) as error:
        raise _row_error(ValueError, position, f"of one dimension: {error}") from error
    if row.ndim != 1:
        raise _row_error(
            ValueError, position, f"of one dimension, got shape {row.shape}"
        )
    if row.size and row.dtype.kind not in "iu":
        raise _row_error(TypeError, position, f"of whole numbers, got {row.dtype}")
    if row.dtype == np.uint64 and row.size and int(row.max()) not in _INT64:
        raise _row_error(ValueError, position, f"of int64 numbers, got {row.max()}")
    return row


def _row_error(kind: type[Exception], position: int, rest: str) -> Exception:
    return kind(
        f"token_collate: sample {position} must be a row {rest}; fix it in the "
        "dataset, or pass another collate_fn"
    )


def _length(
    rows: list[NDArray[Any]],
    pad_id: int | None,
    pad_to: int | None,
    pad_to_multiple_of: int | None,
) -> int:
    """Return the length of the batch's rows, which suits the options."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    length = longest if pad_to is None else _positive("pad_to", pad_to)
    if longest > length:
        raise ValueError(
            f"token_collate: pad_to must be at least the longest row's length, got "
            f"{length} for {longest} tokens in sample {lengths.index(longest)}; cut "
            "rows in the dataset, or raise pad_to"
        )
    if pad_to_multiple_of is not None:
        multiple = _positive("pad_to_multiple_of", pad_to_multiple_of)
        length = -(-length // multiple) * multiple
    if pad_id is None and min(lengths) < length:
        shortest = lengths.index(min(lengths))
        raise ValueError(
            f"token_collate: rows must have {length} tokens without pad_id, got "
            f"{lengths[shortest]} in sample {shortest}; pass pad_id "
            "to pad them"
        )
    return length


def _id(pad_id: int | None) -> int:
    number = 0 if pad_id is None else index(pad_id)
    if number not in _INT64:
        raise ValueError(f"pad_id must fit in int64, got {number}")
    return number


def _positive(name: str, value: int) -> int:
    try:
        number = index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{name} must be a positive int or None, got {value!r}")
    return number

"""Batches of a `TensorDataset`, taken from each tensor by one call.

Its samples are rows, which collation would put together again: a thousand rows are
taken apart and joined in milliseconds, and gathered in microseconds. Only where nobody
can tell the difference: for plain numbers in the CPU's memory, ordinary indices, and
`default_collate` with its own rules. All else goes row by row, errors too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataloader._collate_torch import functions_replaced
from dataloader._fast import number_vector
from dataloader._torch import loaded_torch, torch_class
from dataloader.collate import Collated, as_default, has_own_rules

__all__ = ["gather", "is_table"]


def is_table(dataset: Any) -> bool:
    """Return whether a dataset is exactly a `TensorDataset`, ours or torch's."""
    from dataloader.datasets import TensorDataset  # which imports this module

    return type(dataset) in (TensorDataset, torch_class("TensorDataset"))


def gather(dataset: Any, indices: Sequence[Any]) -> Collated | None:
    """Return the batch of some rows; None if they have to be collated.

    Args:
        dataset: for which `is_table` holds.
        indices: of the rows.
    """
    if set(map(type, indices)) != {int}:
        return None
    try:
        tables = [_plain(table) for table in dataset.tensors]
        if any(table is None for table in tables) or not has_own_rules(dataset[0]):
            return None
        rows = number_vector(indices)
        return Collated([as_default(table.take(rows, axis=0)) for table in tables])
    except Exception:  # is raised again by the row that it is about
        return None


def _plain(table: Any) -> Any:
    """Return a table of numbers as an array on its memory; None if it is none."""
    torch = loaded_torch()
    if torch is not None and type(table) is torch.Tensor:
        return None if functions_replaced(torch) else table.numpy()
    if type(table) is not np.ndarray or table.dtype.kind not in "biufc":
        return None
    # torch reads uint64 arrays but no uint64 scalars.
    return None if table.dtype == np.uint64 else table

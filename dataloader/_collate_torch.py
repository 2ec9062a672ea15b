"""Collation into torch tensors: what each kind of leaf becomes.

Plain CPU data is joined by NumPy and handed to torch without a copy. torch.stack splits
the copy of a large sample over its OpenMP threads, and several loader threads that do
so at once, each with its own set, wait for one another far longer than the copy takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dataloader._collate_errors import (
    ByteOrderError,
    MixedBatchError,
    UnsupportedDtypeError,
    explain_numbers,
    explain_stack,
    raise_explained,
    refuse_unbatchable,
)
from dataloader._collate_map import CollateFn, Entries, Rule
from dataloader._fast import number_vector, scalar_vector, stack_arrays

__all__ = [
    "collate_arrays",
    "collate_floats",
    "collate_ints",
    "collate_scalars",
    "collate_tensors",
    "convert_leaf",
    "functions_replaced",
]

# torch copies a sample of up to so many elements without its OpenMP threads
# (at::internal::GRAIN_SIZE), and faster than a NumPy view of each sample is made.
_SERIAL_NUMEL = 32768
_TEXT_OR_OBJECT = "SUO"
_UINT64 = np.dtype(np.uint64)
_DTYPE_FIX = "torch has no such dtype: convert it with array.astype"
_ERRORS = (TypeError, ValueError, RuntimeError)


def collate_tensors(batch: Any, *, collate_fn_map: Entries | None = None) -> Any:
    """Stack tensors of one shape on a new first axis, always into new memory.

    Mixed dtypes are promoted and autograd is kept, in every thread alike.
    """
    refuse_unbatchable(batch[0])
    stacked = _stack_views(batch)
    return _stack(batch) if stacked is None else stacked


def collate_arrays(batch: Any, *, collate_fn_map: Entries | None = None) -> Any:
    """Stack NumPy arrays of one shape into a tensor of their dtype, always a copy.

    Args:
        batch: the samples, the first of them an array.
        collate_fn_map: where the user put another function for tensors, that one gets
            the arrays as tensors.
    """
    import torch

    _refuse_text(batch[0])
    collate_fn: CollateFn = (collate_fn_map or {}).get(torch.Tensor, collate_tensors)
    stock = collate_fn is collate_tensors or isinstance(collate_fn, Rule)
    stacked = stack_arrays(batch) if stock and not functions_replaced(torch) else None
    if stacked is not None:
        return _tensor(torch, stacked)
    tensors = [_sample_tensor(batch, *numbered) for numbered in enumerate(batch)]
    return (
        _stack(tensors) if stock else collate_fn(tensors, collate_fn_map=collate_fn_map)
    )


def collate_scalars(batch: Any, *, collate_fn_map: Entries | None = None) -> Any:
    """Make a vector of NumPy scalars; their dtype is kept."""
    import torch

    # torch reads uint64 arrays but no uint64 scalars, here as there.
    if batch[0].dtype != _UINT64 and not functions_replaced(torch):
        vector = scalar_vector(batch)
        if vector is not None:
            return _tensor(torch, vector)
    try:
        return torch.as_tensor(batch)
    except _ERRORS as error:
        if len(set(map(type, batch))) == 1:
            raise UnsupportedDtypeError(batch[0].dtype, _DTYPE_FIX) from error
        raise_explained(explain_numbers(error, batch), error)


def collate_floats(batch: Any, *, collate_fn_map: Entries | None = None) -> Any:
    """Make a float64 vector of numbers."""
    import torch

    return _number_tensor(batch, (np.float64,), torch.float64)


def collate_ints(batch: Any, *, collate_fn_map: Entries | None = None) -> Any:
    """Make an int64 vector of ints, a bool vector of bools."""
    return _number_tensor(batch, (np.int64, np.bool_), None)


def convert_leaf(data: Any) -> Any:
    """Return an array or NumPy scalar as a tensor, all else as it is.

    The tensor shares the array's memory, unless it has negative strides. Arrays of
    strings or objects stay arrays.
    """
    kind = type(data)
    # Subclasses of the array that other packages define are left alone, as torch does.
    if kind.__module__ != "numpy" or kind.__name__ in ("str_", "string_"):
        return data
    if kind is np.ndarray and data.dtype.kind in _TEXT_OR_OBJECT:
        return data
    return _as_tensor(data)


def _stack_views(batch: Any) -> Any:
    """Stack large plain CPU tensors through NumPy; None where torch must do it."""
    import torch

    first = batch[0]
    if (
        not isinstance(batch, (list, tuple))
        or first.numel() <= _SERIAL_NUMEL
        or set(map(type, batch)) != {torch.Tensor}
        or functions_replaced(torch)
    ):
        return None
    try:
        arrays = [tensor.numpy() for tensor in batch]
    except (TypeError, RuntimeError):
        # Autograd, another device or layout, functorch, a dtype that NumPy lacks.
        return None
    stacked = stack_arrays(arrays)
    return None if stacked is None else torch.from_numpy(stacked)


def _stack(batch: Any) -> Any:
    import torch

    try:
        return torch.stack(batch, 0)
    except _ERRORS as error:
        raise_explained(explain_stack(error, batch), error)


def _number_tensor(batch: Any, dtypes: tuple[type, ...], dtype: Any) -> Any:
    """Make a vector, with NumPy if it reads the numbers as torch does.

    Args:
        batch: the numbers.
        dtypes: the NumPy dtypes that show that both agree.
        dtype: of the tensor; None for what torch infers.
    """
    import torch

    vector = None if functions_replaced(torch) else number_vector(batch)
    if vector is not None and vector.dtype in dtypes:
        return torch.from_numpy(vector)
    try:
        return torch.tensor(batch, dtype=dtype)
    except _ERRORS as error:
        raise_explained(explain_numbers(error, batch), error)


def functions_replaced(torch: Any) -> bool:
    """Return whether this thread has a mode, such as a default device, for functions.

    Then torch's own factories must run: torch.from_numpy would not go by the mode.

    Args:
        torch: the module.
    """
    depth = getattr(torch._C, "_len_torch_function_stack", None)
    return depth is not None and depth() > 0


def _refuse_text(array: Any) -> None:
    if array.dtype.kind in _TEXT_OR_OBJECT:
        raise UnsupportedDtypeError(array.dtype, _DTYPE_FIX)


def _tensor(torch: Any, array: Any) -> Any:
    """Return a tensor on the memory of a new array."""
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise _dtype_error(array.dtype) from error


def _sample_tensor(batch: Any, position: int, sample: Any) -> Any:
    """Return one sample, whose batch begins with an array, as a tensor to copy from."""
    if isinstance(sample, np.ndarray) and not sample.flags.writeable:
        sample = sample.copy()  # torch would warn of writing, which nobody does here
    try:
        return _as_tensor(sample)
    except _ERRORS as error:
        if isinstance(sample, np.ndarray):
            raise
        raise_explained(MixedBatchError(position, batch[0], sample), error)


def _as_tensor(data: Any) -> Any:
    import torch

    try:
        if isinstance(data, np.ndarray) and any(stride < 0 for stride in data.strides):
            data = np.ascontiguousarray(data)  # torch has no negative strides
        return torch.as_tensor(data)
    except (TypeError, ValueError) as error:
        if isinstance(data, (np.ndarray, np.generic)):
            raise _dtype_error(data.dtype) from error
        raise


def _dtype_error(dtype: np.dtype[Any]) -> Exception:
    if not dtype.isnative:
        return ByteOrderError(dtype)
    return UnsupportedDtypeError(dtype, _DTYPE_FIX)

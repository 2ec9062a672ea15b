"""Collation into NumPy arrays: what each kind of leaf becomes.

The dtypes are those that torch gives (float64 for floats, int64 for ints, float32 for
ints mixed with floats), so that a dataset makes equal batches with and without torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloader._collate_errors import (
    MixedBatchError,
    UnsupportedDtypeError,
    explain_numbers,
    explain_stack,
    raise_explained,
)
from dataloader._collate_map import Entries
from dataloader._fast import number_vector, scalar_vector, stack_arrays
from dataloader._torch import loaded_torch

__all__ = [
    "collate_arrays",
    "collate_floats",
    "collate_ints",
    "collate_scalars",
    "collate_tensors",
    "convert_leaf",
]

_Array = npt.NDArray[Any]
_shape_of = attrgetter("shape")
# What a Python number among other numbers counts as: torch's default dtypes.
_PYTHON_DTYPES: dict[type, npt.DTypeLike] = {
    bool: np.bool_,
    int: np.int64,
    float: np.float32,
    complex: np.complex64,
}


def collate_tensors(batch: Any, *, collate_fn_map: Entries | None = None) -> Any:
    """Stack torch tensors into one array in the CPU's memory, without autograd."""
    from dataloader import _collate_torch  # which imports this module

    return _tensor_array(_collate_torch.collate_tensors(batch))


def collate_arrays(batch: Any, *, collate_fn_map: Entries | None = None) -> Any:
    """Stack arrays of one shape on a new first axis, always into a new array."""
    if batch[0].dtype.hasobject:
        raise UnsupportedDtypeError(
            batch[0].dtype, "convert it with array.astype to a number or string dtype"
        )
    stacked = stack_arrays(batch)
    if stacked is not None:
        return stacked
    return _stack_mixed([_as_array(sample, batch) for sample in batch])


def collate_scalars(batch: Any, *, collate_fn_map: Entries | None = None) -> Any:
    """Make a vector of NumPy scalars; their dtype is kept."""
    vector = scalar_vector(batch)
    if vector is not None:
        return vector
    return _numbers(batch, _promoted([_scalar_dtype(batch, n) for n in batch]))


def collate_floats(batch: Any, *, collate_fn_map: Entries | None = None) -> Any:
    """Make a float64 vector of numbers."""
    vector = number_vector(batch)
    if vector is not None and vector.dtype == np.float64:
        return vector
    for sample in batch:
        _scalar_dtype(batch, sample)
    return _numbers(batch, np.dtype(np.float64))


def collate_ints(batch: Any, *, collate_fn_map: Entries | None = None) -> Any:
    """Make an int64 vector of ints, a bool vector of bools."""
    vector = number_vector(batch)
    if vector is not None and vector.dtype in (np.int64, np.bool_):
        return vector
    return _numbers(batch, _promoted([_scalar_dtype(batch, n) for n in batch]))


def convert_leaf(data: Any) -> Any:
    """Return a NumPy scalar as an array without dimensions, all else as it is."""
    if isinstance(data, np.generic) and not isinstance(data, (str, bytes)):
        return np.asarray(data)
    return data


def _as_array(sample: Any, batch: Any) -> _Array:
    torch = loaded_torch()
    if torch is not None and isinstance(sample, torch.Tensor):
        return _tensor_array(sample)
    array = np.asarray(sample)
    if array.dtype.kind in "OUS" and not isinstance(sample, np.ndarray):
        raise _mixed(batch, sample)
    return array


def _tensor_array(tensor: Any) -> _Array:
    try:
        array: _Array = tensor.numpy(force=True)
    except TypeError as error:
        raise UnsupportedDtypeError(
            tensor.dtype, "NumPy has no such dtype: convert it with tensor.float()"
        ) from error
    return array


def _stack_mixed(arrays: list[_Array]) -> _Array:
    """Stack arrays whose dtypes may differ, promoted as torch promotes."""
    if len(set(map(_shape_of, arrays))) != 1:
        raise explain_stack(RuntimeError("shapes differ"), arrays)
    dtype = _promoted([array.dtype for array in arrays])
    stacked = np.empty((len(arrays), *arrays[0].shape), dtype)
    np.stack(arrays, out=stacked)
    return stacked


def _promoted(dtypes: Iterable[np.dtype[Any]]) -> np.dtype[Any]:
    """Return torch's common dtype: an int beside a float does not widen the float."""
    distinct = set(dtypes)
    inexact = {dtype for dtype in distinct if dtype.kind in "fc"}
    return np.result_type(*(inexact or distinct))


def _scalar_dtype(batch: Any, number: Any) -> np.dtype[Any]:
    if isinstance(number, (np.generic, np.ndarray)) and number.ndim == 0:
        return number.dtype
    for kind, dtype in _PYTHON_DTYPES.items():
        if isinstance(number, kind):
            return np.dtype(dtype)
    raise _mixed(batch, number)


def _numbers(batch: Any, dtype: np.dtype[Any]) -> _Array:
    try:
        return np.array(batch, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise_explained(explain_numbers(error, batch), error)


def _mixed(batch: Any, sample: object) -> MixedBatchError:
    position = next(at for at, other in enumerate(batch) if other is sample)
    return MixedBatchError(position, batch[0], sample)

"""Collation into NumPy arrays: what each kind of leaf becomes.

The dtypes are those that torch gives (float64 for floats, int64 for ints, float32 for
ints mixed with floats), so that a dataset makes equal batches with and without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from dataloader._torch import loaded_torch

__all__ = [
    "collate_arrays",
    "collate_floats",
    "collate_ints",
    "collate_scalars",
    "collate_tensors",
    "convert_leaf",
    "number_vector",
    "plain_arrays",
    "stack_uniform",
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
    arrays = plain_arrays(batch)
    stacked = None if arrays is None else stack_uniform(arrays)
    if stacked is not None:
        return stacked
    return _stack_mixed([_as_array(sample, batch) for sample in batch])


def collate_scalars(batch: Any, *, collate_fn_map: Entries | None = None) -> Any:
    """Make a vector of NumPy scalars; their dtype is kept."""
    if len(set(map(type, batch))) == 1:
        return np.array(batch, dtype=batch[0].dtype)
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


def plain_arrays(batch: Any) -> Sequence[_Array] | None:
    """Return the samples as arrays of exactly the type ndarray, without copies.

    Args:
        batch: the samples; None is returned unless all are arrays. Of subclasses
            (memmap, masked array, matrix) the data is taken.
    """
    kinds = set(map(type, batch))
    if kinds == {np.ndarray}:
        return batch if isinstance(batch, (list, tuple)) else list(batch)
    if all(issubclass(kind, np.ndarray) for kind in kinds):
        return [np.asarray(sample) for sample in batch]
    return None


def stack_uniform(arrays: Sequence[_Array]) -> _Array | None:
    """Return the arrays stacked in a new C-ordered one; None if shape or dtype differ.

    Joining the arrays on their own first axis does the same as np.stack with one call
    for the whole batch instead of a view for every sample.

    Args:
        arrays: at least one, of exactly the type ndarray.
    """
    shape, dtype = arrays[0].shape, arrays[0].dtype
    if len(set(map(_shape_of, arrays))) != 1:
        return None
    stacked = np.empty((len(arrays), *shape), dtype)
    try:
        if shape:
            joined = stacked.reshape(len(arrays) * shape[0], *shape[1:])
            np.concatenate(arrays, out=joined, casting="no")
        else:
            np.stack(arrays, out=stacked, casting="no")
    except TypeError:  # a dtype differs, if only in byte order
        return None
    return stacked


def number_vector(batch: Any) -> _Array | None:
    """Return NumPy's own reading of a list of numbers; None if it is not a vector."""
    try:
        vector = np.array(batch)
    except Exception:  # whatever an odd sample's own conversion raises
        return None
    return vector if vector.ndim == 1 else None


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

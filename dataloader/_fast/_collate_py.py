"""Samples of one kind into one block of memory: the inner loops of collation.

Which samples go together, and what becomes of those that do not, is the affair of the
modules `_collate_numpy` and `_collate_torch`: here None says that this is no such
batch. What is returned is always new memory, in C order.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["number_vector", "scalar_vector", "stack_arrays", "take_values"]

_Array = NDArray[Any]
_shape_of = attrgetter("shape")


def stack_arrays(samples: Sequence[Any]) -> _Array | None:
    """Return arrays stacked on a new first axis, as an array of exactly that type.

    Joining the arrays on their own first axis does the same as np.stack with one call
    for the whole batch instead of a view for every sample.

    Args:
        samples: at least one, of any types. Of subclasses of the array (memmap, masked
            array, matrix) the data is taken.

    Returns:
        The stack, or None unless all samples are arrays of one shape and one dtype,
        byte order included.
    """
    arrays = _plain_arrays(samples)
    if arrays is None or len(set(map(_shape_of, arrays))) != 1:
        return None
    shape, dtype = arrays[0].shape, arrays[0].dtype
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


def _plain_arrays(samples: Sequence[Any]) -> Sequence[_Array] | None:
    """Return samples as arrays of exactly the type ndarray; None unless all are."""
    samples = tuple(samples)  # our own, in case that the list changes meanwhile
    kinds = set(map(type, samples))
    if kinds == {np.ndarray}:
        return samples
    if all(issubclass(kind, np.ndarray) for kind in kinds):
        return [np.asarray(sample) for sample in samples]
    return None


def scalar_vector(samples: Sequence[Any]) -> _Array | None:
    """Return a vector of NumPy scalars, in their dtype.

    Args:
        samples: at least one, the first of them a NumPy scalar.

    Returns:
        The vector, or None if the samples are of several types.
    """
    if len(set(map(type, samples))) != 1:
        return None
    return np.array(samples, dtype=samples[0].dtype)


def number_vector(samples: Sequence[Any]) -> _Array | None:
    """Return NumPy's own reading of a list of numbers.

    Args:
        samples: at least one, of any types.

    Returns:
        What NumPy makes of it, or None if that is not a vector.
    """
    try:
        vector = np.array(samples)
    except Exception:  # whatever an odd sample's own conversion raises
        return None
    return vector if vector.ndim == 1 else None


def take_values(samples: Sequence[Any], key: Any) -> list[Any]:
    """Return ``sample[key]`` of each sample; what that raises is raised here.

    Args:
        samples: mappings, or whatever else takes keys.
        key: the key.
    """
    return [sample[key] for sample in samples]

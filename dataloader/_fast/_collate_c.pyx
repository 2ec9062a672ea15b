"""Samples of one kind into one block of memory, compiled: the twin of `_collate_py`.

What is frequent is done here: arrays that lie in memory in one piece, NumPy's plain
scalars, Python's own numbers. All else is handed to the twin.

Samples are read through the head of their C structures. These are NumPy's binary
interface, on which every extension relies that was ever compiled against NumPy, so no
header of it is needed to build this; `_check_layouts` tries them out on import. An array
of 8 floats is copied in 15 ns this way; asking it for its buffer alone would take 67.

Threads: a batch is held by a tuple of our own while it is copied, so no sample can be
freed, nor resized without ``refcheck=False``. Samples that others write to meanwhile
are copied half-way, as by NumPy.
"""

from cpython.bool cimport PyBool_Check
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.string cimport memcmp, memcpy

import numpy as np

from dataloader._fast import _collate_py

__all__ = ["number_vector", "scalar_vector", "stack_arrays", "take_values"]

cdef extern from *:
    """
    typedef struct {
        PyObject_HEAD
        char *data;
        int axes;
        Py_ssize_t *shape;
        Py_ssize_t *strides;
        PyObject *base;
        PyObject *dtype;
        int flags;
    } dl_array;

    /* The value of a scalar stands behind its head, where 8 bytes are aligned. */
    typedef struct {
        PyObject_HEAD
        char value[16];
    } dl_scalar;
    """
    ctypedef struct dl_array:
        char *data
        int axes
        Py_ssize_t *shape
        PyObject *dtype
        int flags
    ctypedef struct dl_scalar:
        char *value
    const int DATALOADER_IS_CHECKED

cdef extern from "Python.h":
    PyObject *PyTuple_GET_ITEM(PyObject *items, Py_ssize_t index) noexcept nogil
    void *Py_TYPE(PyObject *obj) noexcept nogil
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1

cdef enum:
    C_CONTIGUOUS = 1
    # A shorter copy is over before another thread could make use of the GIL, which may
    # then keep us waiting for milliseconds.
    RELEASE_FROM_BYTES = 1 << 17

IS_CHECKED = bool(DATALOADER_IS_CHECKED)
"""Whether the kernels check their indices; they were built for debugging then."""

cdef object _ndarray = np.ndarray
cdef object _empty = np.empty
cdef object _bool = np.dtype(np.bool_)
cdef object _int64 = np.dtype(np.int64)
cdef object _float64 = np.dtype(np.float64)
# What NumPy reads Python's ints as: not so on Windows, before NumPy 2.
cdef bint _ints_are_int64 = np.array(0).dtype == _int64

_SCALARS = {
    kind: np.dtype(kind)
    for kind in (np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16,
                 np.uint32, np.uint64, np.float16, np.float32, np.float64,
                 np.complex64, np.complex128)
}
# NumPy's numbers of the dtypes whose elements are no more than their bytes.
_PLAIN_DTYPES = frozenset(np.dtype(code).num for code in "?bBhHiIlLqQefdgFDGSUmM")


def stack_arrays(samples):
    """Return arrays stacked on a new first axis, as an array of exactly that type."""
    cdef tuple arrays = tuple(samples)
    if not _are_blocks(arrays):
        return _collate_py.stack_arrays(arrays)
    first = arrays[0]
    stacked = _empty((len(arrays), *first.shape), first.dtype)
    _join(arrays, (<dl_array *>(<PyObject *>stacked)).data, first.nbytes)
    return stacked


cdef bint _are_blocks(tuple arrays) except -1:
    """Tell whether all are arrays of one kind, each of them in one piece."""
    if not arrays or type(arrays[0]) is not _ndarray:
        return False
    cdef dl_array *first = <dl_array *>PyTuple_GET_ITEM(<PyObject *>arrays, 0)
    cdef dl_array *other
    cdef Py_ssize_t i
    dtype = arrays[0].dtype
    if dtype.num not in _PLAIN_DTYPES or not dtype.itemsize:
        return False
    for i in range(len(arrays)):
        other = <dl_array *>PyTuple_GET_ITEM(<PyObject *>arrays, i)
        if not _is_like(other, first):
            return False
        if other.dtype != first.dtype and <object>other.dtype != dtype:
            return False
    return True


cdef inline bint _is_like(dl_array *array, dl_array *first) noexcept:
    return (
        Py_TYPE(<PyObject *>array) == <void *>_ndarray
        and array.flags & C_CONTIGUOUS
        and array.axes == first.axes
        and not memcmp(array.shape, first.shape, array.axes * sizeof(Py_ssize_t))
    )


cdef _join(tuple arrays, char *target, Py_ssize_t size):
    cdef PyObject *held = <PyObject *>arrays
    cdef Py_ssize_t count = len(arrays)
    if count * size < RELEASE_FROM_BYTES:
        _copy(held, count, target, size)
    else:
        with nogil:
            _copy(held, count, target, size)


cdef void _copy(
    PyObject *arrays, Py_ssize_t count, char *target, Py_ssize_t size
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(count):
        memcpy(
            target + i * size, (<dl_array *>PyTuple_GET_ITEM(arrays, i)).data, size
        )


def scalar_vector(samples):
    """Return a vector of NumPy scalars, in their dtype."""
    if type(samples) is not list and type(samples) is not tuple:
        return _collate_py.scalar_vector(samples)
    cdef tuple scalars = tuple(samples)
    kind = type(scalars[0]) if scalars else None
    dtype = _SCALARS.get(kind)
    cdef PyObject *scalar
    cdef Py_ssize_t i, size
    if dtype is None:
        return _collate_py.scalar_vector(samples)
    vector = _empty(len(scalars), dtype)
    size = dtype.itemsize
    cdef char *target = (<dl_array *>(<PyObject *>vector)).data
    for i in range(len(scalars)):
        scalar = PyTuple_GET_ITEM(<PyObject *>scalars, i)
        if Py_TYPE(scalar) != <void *>kind:
            return None
        memcpy(target + i * size, (<dl_scalar *>scalar).value, size)
    return vector


def number_vector(samples):
    """Return NumPy's own reading of a list of numbers."""
    # A dictionary, say, is no list of its keys.
    if type(samples) is not list and type(samples) is not tuple:
        return _collate_py.number_vector(samples)
    cdef tuple numbers = tuple(samples)
    first = numbers[0] if numbers else None
    vector = None
    if PyFloat_CheckExact(first):
        vector = _floats(numbers)
    elif PyLong_CheckExact(first):
        vector = _ints(numbers) if _ints_are_int64 else None
    elif PyBool_Check(first):
        vector = _bools(numbers)
    return _collate_py.number_vector(samples) if vector is None else vector


cdef _floats(tuple numbers):
    vector = _empty(len(numbers), _float64)
    cdef double *values = <double *>(<dl_array *>(<PyObject *>vector)).data
    cdef Py_ssize_t i
    for i in range(len(numbers)):
        if not PyFloat_CheckExact(numbers[i]):
            return None
        values[i] = PyFloat_AS_DOUBLE(numbers[i])
    return vector


cdef _ints(tuple numbers):
    vector = _empty(len(numbers), _int64)
    cdef int64_t *values = <int64_t *>(<dl_array *>(<PyObject *>vector)).data
    cdef Py_ssize_t i
    cdef int overflow = 0
    for i in range(len(numbers)):
        if not PyLong_CheckExact(numbers[i]):
            return None
        values[i] = PyLong_AsLongLongAndOverflow(numbers[i], &overflow)
        if overflow:
            return None
    return vector


cdef _bools(tuple numbers):
    vector = _empty(len(numbers), _bool)
    cdef char *values = (<dl_array *>(<PyObject *>vector)).data
    cdef Py_ssize_t i
    for i in range(len(numbers)):
        if not PyBool_Check(numbers[i]):
            return None
        values[i] = numbers[i] is True
    return vector


def take_values(samples, key):
    """Return ``sample[key]`` of each sample; what that raises is raised here."""
    return [sample[key] for sample in samples]


def _check_layouts():
    """Refuse to be imported with a NumPy whose objects are laid out in another way."""
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    cdef dl_array *head = <dl_array *>(<PyObject *>array)
    known = (
        <size_t>head.data == array.ctypes.data
        and head.axes == 2
        and (head.shape[0], head.shape[1]) == (2, 3)
        and <object>head.dtype is array.dtype
        and head.flags & C_CONTIGUOUS
    )
    for kind in _SCALARS:
        scalar = kind(1)
        value = (<dl_scalar *>(<PyObject *>scalar)).value
        known = known and value[:scalar.nbytes] == scalar.tobytes()
    if not known:
        raise ImportError(f"NumPy {np.__version__} lays its objects out in another way")


_check_layouts()

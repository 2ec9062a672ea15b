"""The inputs on which our collation and PyTorch's are held side by side."""

from __future__ import annotations

import array
import collections
import copy
import datetime
import decimal
import types
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from sameness import (
    Color,
    FrozenMapping,
    FrozenSequence,
    Point,
    StubbornDict,
    TaggedDict,
    TaggedList,
    TensorLike,
    floats,
    tagged,
)

torch = pytest.importorskip("torch")

Cases = dict[str, Callable[[], Any]]

NUMERIC = [*"?bBhHiIlL", "f2", "f4", "f8", "c8", "c16"]


def repeated(sample: Any) -> list[Any]:
    """Return a batch of two."""
    return [sample, copy.deepcopy(sample)]


TENSORS: Cases = {
    "tensors": lambda: [torch.ones(2, 3), torch.zeros(2, 3)],
    "one tensor": lambda: [torch.ones(3)],
    "tensors in a tuple": lambda: (torch.ones(3), torch.zeros(3)),
    "0-d tensors": lambda: [torch.tensor(1), torch.tensor(2)],
    "empty tensors": lambda: [torch.ones(0, 3), torch.ones(0, 3)],
    "large tensors": lambda: [torch.arange(40000.0), torch.ones(40000)],
    "large int tensors": lambda: [torch.arange(40000), torch.arange(40000) * 2],
    "large bfloat16": lambda: [torch.ones(40000, dtype=torch.bfloat16)] * 2,
    "large transposed": lambda: [torch.arange(40000.0).view(200, 200).T] * 2,
    "large mixed dtypes": lambda: [torch.ones(40000), torch.ones(40000).double()],
    "large autograd": lambda: [torch.ones(40000, requires_grad=True)] * 2,
    "large ragged": lambda: [torch.ones(40000), torch.ones(40001)],
    "large conjugates": lambda: [torch.ones(40000, dtype=torch.complex64).conj()] * 2,
    "large subclass": lambda: [torch.ones(40000).as_subclass(TensorLike)] * 2,
    "large and subclass": lambda: [torch.ones(40000), TensorLike(40000).fill_(1)],
    "large then none": lambda: [torch.ones(40000), None],
    "mixed float tensors": lambda: [torch.ones(2), torch.ones(2).double()],
    "mixed int and float": lambda: [torch.ones(2, dtype=torch.int64), torch.ones(2)],
    "uint16 and int64": lambda: [torch.ones(2).to(torch.uint16), torch.ones(2).long()],
    "autograd": lambda: [torch.ones(2, requires_grad=True), torch.ones(2)],
    "parameters": lambda: [torch.nn.Parameter(torch.ones(2))] * 2,
    "channels last": lambda: [torch.arange(48).view(4, 4, 3).permute(2, 0, 1)] * 2,
    "ragged tensors": lambda: [torch.ones(2), torch.ones(3)],
    "ragged ranks": lambda: [torch.ones(2), torch.ones(2, 1)],
    "sparse coo": lambda: [torch.eye(2).to_sparse()] * 2,
    "sparse csr": lambda: [torch.eye(2).to_sparse_csr()] * 2,
    "sparse csc": lambda: [torch.eye(2).to_sparse_csc()] * 2,
    "sparse bsr": lambda: [torch.eye(2).to_sparse_bsr((1, 1))] * 2,
    "sparse bsc": lambda: [torch.eye(2).to_sparse_bsc((1, 1))] * 2,
    "dense then sparse": lambda: [torch.eye(2), torch.eye(2).to_sparse()],
    "nested": lambda: [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])] * 2,
    "jagged": lambda: (
        [
            torch.nested.nested_tensor(
                [torch.ones(2), torch.ones(3)], layout=torch.jagged
            )
        ]
        * 2
    ),
    "tensor then none": lambda: [torch.ones(2), None],
    "tensor then array": lambda: [torch.ones(2), floats(2)],
    "tensor then int": lambda: [torch.ones(2), 3],
    "a tensor as batch": lambda: torch.ones(3),
    "a large tensor as batch": lambda: torch.ones(2, 40000),
}

ARRAYS: Cases = {
    **{
        f"arrays of {dtype}": partial(repeated, floats(2, 3, dtype=dtype))
        for dtype in NUMERIC
    },
    "one array": lambda: [floats(3)],
    "0-d arrays": lambda: [np.array(1.5), np.array(2.5)],
    "empty arrays": lambda: [floats(0, 3), floats(0, 3)],
    "large arrays": lambda: [floats(40000), floats(40000)],
    "transposed arrays": lambda: [floats(3, 4).T, floats(3, 4).T],
    "Fortran order": lambda: [np.asfortranarray(floats(3, 4))] * 2,
    "strided arrays": lambda: [floats(8)[::2], floats(8)[1::2]],
    "broadcast arrays": lambda: [np.broadcast_to(floats(1), (4,)).copy()] * 2,
    "matrices": lambda: [np.asmatrix(floats(2, 2))] * 2,
    "masked arrays": lambda: [np.ma.masked_array(floats(2), mask=[False, True])] * 2,
    "record arrays": lambda: [np.rec.array([(1, 2.0)], dtype="i4,f4")] * 2,
    "mixed float arrays": lambda: [floats(2), floats(2, dtype="f8")],
    "int and float arrays": lambda: [floats(2, dtype="i8"), floats(2)],
    "float and int arrays": lambda: [floats(2), floats(2, dtype="i8")],
    "uint8 and int8 arrays": lambda: [floats(2, dtype="u1"), floats(2, dtype="i1")],
    "uint64 and uint8 arrays": lambda: [floats(2, dtype="u8"), floats(2, dtype="u1")],
    "array then list": lambda: [floats(2, dtype="f8"), [3, 4]],
    "array then tensor": lambda: [floats(2), torch.ones(2)],
    "array then number": lambda: [np.array(1.0), 2],
    "array then none": lambda: [floats(2), None],
    "array then string": lambda: [floats(2), "ab"],
    "array then objects": lambda: [floats(1), np.array([None])],
    "ragged arrays": lambda: [floats(2), floats(3)],
    "ragged first axis": lambda: [floats(3), floats(5), floats(4)],
    "ragged array ranks": lambda: [floats(3), floats(3, 1)],
    "big-endian": lambda: [floats(2, dtype=">f4")] * 2,
    "native then big-endian": lambda: [floats(2, dtype="f4"), floats(2, dtype=">f4")],
    "datetime64 arrays": lambda: [np.zeros(2, "M8[s]")] * 2,
    "longdouble arrays": lambda: [np.zeros(2, np.longdouble)] * 2,
    "structured arrays": lambda: [np.zeros(2, [("a", "f4")])] * 2,
    "string arrays": lambda: [np.array(["a", "b"])] * 2,
    "bytes arrays": lambda: [np.array([b"a", b"b"])] * 2,
    "object arrays": lambda: [np.array([None, 1])] * 2,
    "a vector as batch": lambda: np.arange(3),
    "a matrix as batch": lambda: floats(2, 3),
}

SCALARS: Cases = {
    **{
        f"scalars of {dtype}": partial(repeated, np.dtype(dtype).type(1))
        for dtype in NUMERIC
    },
    "float64 and float32 scalars": lambda: [np.float64(1.5), np.float32(2.5)],
    "float32 and float64 scalars": lambda: [np.float32(1.5), np.float64(2.5)],
    "float32 scalar then float": lambda: [np.float32(1.5), 2.5],
    "int32 scalar then float": lambda: [np.int32(1), 2.5],
    "int32 scalar then int": lambda: [np.int32(1), 2],
    "uint8 and int8 scalars": lambda: [np.uint8(1), np.int8(-1)],
    "uint16 and uint8 scalars": lambda: [np.uint16(1), np.uint8(1)],
    "bool scalar then int": lambda: [np.bool_(True), 1],
    "longdouble scalars": lambda: [np.longdouble(1)] * 2,
    "timedelta64 scalars": lambda: [np.timedelta64(1, "s")] * 2,
    "datetime64 scalars": lambda: [np.datetime64("2020-01-01")] * 2,
    "void scalars": lambda: [np.zeros(1, "V3")[0]] * 2,
    "str_ scalars": lambda: [np.str_("a"), np.str_("b")],
    "bytes_ scalars": lambda: [np.bytes_(b"a")],
    "int64 scalar then none": lambda: [np.int64(1), None],
    "int64 scalar then string": lambda: [np.int64(1), "a"],
    "float64 scalar then vector": lambda: [np.float64(1), floats(1)],
}

NUMBERS: Cases = {
    "floats": lambda: [1.5, 2.5],
    "one float": lambda: [1.5],
    "special floats": lambda: [float("nan"), float("inf"), -0.0],
    "float then int": lambda: [1.5, 2],
    "float then bool": lambda: [1.5, True],
    "float then huge int": lambda: [1.5, 2**70],
    "float then float32 scalar": lambda: [1.5, np.float32(2.5)],
    "float then tensor": lambda: [1.5, torch.tensor(2.5)],
    "float then string": lambda: [1.5, "2.5"],
    "float then none": lambda: [1.5, None],
    "float then complex": lambda: [1.5, 2j],
    "ints": lambda: [1, -2, 2**63 - 1, -(2**63)],
    "int then float": lambda: [1, 2.5],
    "int then bool": lambda: [1, True],
    "int then complex": lambda: [1, 1j],
    "int then float64 scalar": lambda: [1, np.float64(2.5)],
    "int then float32 scalar": lambda: [1, np.float32(2.5)],
    "int then uint8 scalar": lambda: [1, np.uint8(2)],
    "int then uint64 scalar": lambda: [1, np.uint64(2)],
    "int then tensor": lambda: [1, torch.tensor(2)],
    "int then vector": lambda: [1, torch.tensor([2, 3])],
    "int then float vector": lambda: [1, torch.tensor([2.0, 3.0])],
    "int then none": lambda: [1, None],
    "int then string": lambda: [1, "2"],
    "int then list": lambda: [1, [2]],
    "int beyond int64": lambda: [1, 2**63],
    "int below int64": lambda: [-(2**63) - 1],
    "int beyond uint64": lambda: [2**64],
    "bools": lambda: [True, False],
    "bool then int": lambda: [True, 2],
    "bool then float": lambda: [True, 2.5],
    "int enum": lambda: [Color.RED, Color.BLUE],
}

STRINGS: Cases = {
    "strings": lambda: ["a", "bc"],
    "bytes": lambda: [b"a", b"bc"],
    "string then int": lambda: ["a", 1],
    "a string as batch": lambda: "abc",
    "nested strings": lambda: [("a", 1), ("b", 2)],
}

WITHOUT_RULE: Cases = {
    "none": lambda: [None, None],
    "none then int": lambda: [None, 1],
    "none in a dict": lambda: [{"a": 1, "b": None}] * 2,
    "none in a tuple": lambda: [(1, None)] * 2,
    "complex": lambda: [1j, 2j],
    "decimals": lambda: [decimal.Decimal(1)],
    "fractions": lambda: [Fraction(1, 2)],
    "datetimes": lambda: [datetime.datetime(2020, 1, 1)],
    "sets": lambda: [{1}, {2}],
    "slices": lambda: [slice(1)],
    "objects": lambda: [object()],
    "generator as batch": lambda: (i for i in range(2)),
    "set as batch": lambda: {1, 2},
    "dict as batch": lambda: {0: 1, 1: 2},
    "empty batch": list,
}

MAPPINGS: Cases = {
    "dicts": lambda: [{"a": 1, "b": 1.5}, {"a": 2, "b": 2.5}],
    "reordered keys": lambda: [{"a": 1, "b": 2}, {"b": 3, "a": 4}],
    "empty dicts": lambda: [{}, {}],
    "missing key": lambda: [{"a": 1, "b": 2}, {"a": 1}],
    "extra key": lambda: [{"a": 1}, {"a": 1, "b": 2}],
    "odd keys": lambda: [{(1, 2): 1, None: 2}] * 2,
    "dict then int": lambda: [{"a": 1}, 2],
    "dict then list": lambda: [{"a": 1}, [2]],
    "dict then none": lambda: [{"a": 1}, None],
    "ordered dicts": lambda: [collections.OrderedDict(b=1, a=2)] * 2,
    "default dicts": lambda: [collections.defaultdict(list, a=1)] * 2,
    "user dicts": lambda: [collections.UserDict(a=1)] * 2,
    "chain maps": lambda: [collections.ChainMap({"a": 1}, {"b": 2})] * 2,
    "dict subclass": lambda: [tagged(TaggedDict(a=1), t) for t in ("first", "second")],
    "stubborn dict": lambda: [StubbornDict(a=1)] * 2,
    "frozen mapping": lambda: [FrozenMapping({"a": 1})] * 2,
    "mapping proxy": lambda: [types.MappingProxyType({"a": 1})] * 2,
}

SEQUENCES: Cases = {
    "tuples": lambda: [(1, 2.5), (3, 4.5)],
    "lists": lambda: [[1, 2.5], [3, 4.5]],
    "list then tuple": lambda: [[1], (2,)],
    "tuple then string": lambda: [(1, 2), "ab"],
    "list then int": lambda: [[1], 2],
    "unequal lists": lambda: [[1, 2], [3]],
    "unequal tuples": lambda: [(1, 2), (3,)],
    "empty tuples": lambda: [(), ()],
    "empty lists": lambda: [[], []],
    "named tuples": lambda: [Point(1, 2.5), Point(3, 4.5)],
    "named tuple then short": lambda: [Point(1, 2), (3,)],
    "named tuple then long": lambda: [Point(1, 2), (3, 4, 5)],
    "named tuple then int": lambda: [Point(1, 2), 3],
    "torch sizes": lambda: [torch.Size([1, 2])] * 2,
    "list subclass": lambda: [tagged(TaggedList([1]), t) for t in ("first", "second")],
    "user lists": lambda: [collections.UserList([1, 2])] * 2,
    "deques": lambda: [collections.deque([1, 2])] * 2,
    "frozen sequence": lambda: [FrozenSequence([1, 2])] * 2,
    "ranges": lambda: [range(3), range(3)],
    "typed arrays": lambda: [array.array("i", [1, 2])] * 2,
    "one typed array": lambda: [array.array("i", [1, 2])],
    "bytearrays": lambda: [bytearray(b"ab")] * 2,
    "one bytearray": lambda: [bytearray(b"ab")],
    "memoryviews": lambda: [memoryview(b"ab")] * 2,
    "deep": lambda: [
        {"a": [Point(floats(2), "s"), (1, {"b": torch.ones(1)})], "c": {}}
        for _ in range(3)
    ],
}


BATCHES: dict[str, Cases] = {
    "tensors": TENSORS,
    "arrays": ARRAYS,
    "scalars": SCALARS,
    "numbers": NUMBERS,
    "strings": STRINGS,
    "without rule": WITHOUT_RULE,
    "mappings": MAPPINGS,
    "sequences": SEQUENCES,
}

SAMPLES: Cases = {
    "tensor": lambda: torch.ones(2),
    "array": lambda: floats(2, 3),
    "0-d array": lambda: np.array(1.5),
    "int64 scalar": lambda: np.int64(3),
    "float32 scalar": lambda: np.float32(3),
    "bool scalar": lambda: np.bool_(True),
    "uint64 scalar": lambda: np.uint64(3),
    "longdouble scalar": lambda: np.longdouble(3),
    "str_": lambda: np.str_("a"),
    "bytes_": lambda: np.bytes_(b"a"),
    "datetime64": lambda: np.datetime64("2020-01-01"),
    "void": lambda: np.zeros(1, "V3")[0],
    "string array": lambda: np.array(["a"]),
    "object array": lambda: np.array([None]),
    "datetime64 array": lambda: np.zeros(2, "M8[s]"),
    "structured array": lambda: np.zeros(2, [("a", "f4")]),
    "big-endian array": lambda: floats(2, dtype=">f4"),
    "masked array": lambda: np.ma.masked_array(floats(2), mask=[False, True]),
    "matrix": lambda: np.asmatrix(floats(2, 2)),
    "ufunc": lambda: np.add,
    "dtype": lambda: np.dtype("f4"),
    "string": lambda: "ab",
    "bytes": lambda: b"ab",
    "int": lambda: 3,
    "none": lambda: None,
    "set": lambda: {1, 2},
    "dict": lambda: {"a": floats(2), "b": "s", "c": 1},
    "ordered dict": lambda: collections.OrderedDict(b=floats(1), a=floats(2)),
    "default dict": lambda: collections.defaultdict(list, a=floats(1)),
    "user dict": lambda: collections.UserDict(a=floats(1)),
    "dict subclass": lambda: tagged(TaggedDict(a=floats(1)), "kept"),
    "stubborn dict": lambda: StubbornDict(a=floats(1)),
    "frozen mapping": lambda: FrozenMapping({"a": floats(1)}),
    "mapping proxy": lambda: types.MappingProxyType({"a": 1}),
    "named tuple": lambda: Point(floats(1), "s"),
    "tuple": lambda: (floats(1), "s", None),
    "list": lambda: [floats(1), [floats(2)]],
    "list subclass": lambda: tagged(TaggedList([floats(1)]), "kept"),
    "user list": lambda: collections.UserList([floats(1)]),
    "deque": lambda: collections.deque([floats(1)]),
    "frozen sequence": lambda: FrozenSequence([floats(1)]),
    "range": lambda: range(3),
    "bytearray": lambda: bytearray(b"ab"),
    "typed array": lambda: array.array("i", [1, 2]),
    "memoryview": lambda: memoryview(b"ab"),
    "empty": lambda: [{}, (), []],
}

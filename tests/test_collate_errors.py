"""What the errors of collation say: the place, the samples, what differs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from collate_forms import Point, both_forms, needs_torch

import dataloader

ACCEPTED = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts "


def image(width: int) -> Any:
    return np.zeros((3, 32, width), np.float32)


@both_forms
@pytest.mark.parametrize(
    ("batch", "kind", "texts"),
    [
        (
            [{"image": image(w)} for w in (32, 32, 32, 31)],
            RuntimeError,
            [
                "default_collate: samples 0 and 3 differ at ['image']: "
                "shapes (3, 32, 32) and (3, 32, 31); pad or crop"
            ],
        ),
        ([np.zeros(2), np.zeros(3)], RuntimeError, ["samples 0 and 1 differ: shapes"]),
        (
            [{"a": [(1, Point(np.zeros(2), 0))]}, {"a": [(1, Point(np.zeros(3), 0))]}],
            RuntimeError,
            ["differ at ['a'][0][1].x: shapes (2,) and (3,)"],
        ),
        (
            [{"boxes": [1]}, {"boxes": [1]}, {"boxes": [1, 2]}],
            RuntimeError,
            [
                "samples 0 and 2 differ at ['boxes']: lengths 1 and 2",
                "each element in list of batch should be of equal size",
            ],
        ),
        (
            [{"label": None}] * 2,
            TypeError,
            [ACCEPTED, "found <class 'NoneType'> at ['label']", "collate_fn"],
        ),
        ([object()], TypeError, [ACCEPTED, "<class 'object'>"]),
        (
            [{"n": 1}, {"n": 2}, {"n": None}],
            TypeError,
            ["samples 0 and 2 differ at ['n']: types int and NoneType"],
        ),
        ([1, True, 2.5, "a"], TypeError, ["samples 0 and 3 differ: types int and str"]),
        ([1.5, None], TypeError, ["samples 0 and 1 differ: types float and NoneType"]),
        (
            [np.float32(1), "a"],
            TypeError,
            ["samples 0 and 1 differ: types float32 and str"],
        ),
        (
            [np.zeros(1), np.zeros(1), None],
            RuntimeError,
            ["samples 0 and 2 differ: types ndarray and NoneType"],
        ),
        (
            [{"a": {"b": 1}}, {"a": 1}],
            TypeError,
            ["samples 0 and 1 differ at ['a']: types dict and int"],
        ),
        (
            [({"b": 1},), ({},)],
            KeyError,
            ["sample 1 has no key 'b', which sample 0 has at [0]; give every"],
        ),
        ([[1], (1,), 1], TypeError, ["samples 0 and 2 differ: types list and int"]),
        ([Point(1, 2), 1], TypeError, ["samples 0 and 1 differ: types Point and int"]),
        (
            [{"n": 1}, {"n": 2**63}],
            ValueError,
            ["ints must fit in int64, got 9223372036854775808 in sample 1 at ['n']"],
        ),
        (
            [{"o": np.array([None])}],
            TypeError,
            [ACCEPTED, "found dtype object at ['o']; ", "array.astype"],
        ),
        ([], IndexError, ["batch must have at least one sample"]),
    ],
)
def test_error_says_what_differs_and_where(
    collate_as: Callable[[Any], Any], batch: Any, kind: type[Exception], texts: Any
) -> None:
    with pytest.raises(kind) as caught:
        collate_as(batch)
    for text in texts:
        assert text in str(caught.value)


@needs_torch
@pytest.mark.parametrize(
    ("array", "kind", "text"),
    [
        (np.zeros(1, ">f4"), ValueError, "found dtype >f4 at ['a']; convert it with"),
        (np.zeros(1, "M8[s]"), TypeError, "found dtype datetime64[s] at ['a']"),
        (
            np.zeros(1, np.longdouble),
            TypeError,
            f"found dtype {np.dtype(np.longdouble)} at ['a']",
        ),
        (np.zeros(1, [("f", "f4")]), TypeError, "('f', '<f4')"),
        (np.array(["a"]), TypeError, "found dtype <U1 at ['a']"),
        (
            np.longdouble(1),
            TypeError,
            f"found dtype {np.dtype(np.longdouble)} at ['a']",
        ),
        (np.uint64(1), TypeError, "found dtype uint64 at ['a']"),
    ],
)
def test_dtype_that_torch_lacks_is_named(
    array: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        dataloader.torch_collate([{"a": array}])
    assert text in str(caught.value)
    assert "astype" in str(caught.value)


@both_forms
def test_error_survives_pickling(collate_as: Callable[[Any], Any]) -> None:
    for batch in (
        [{"a": np.zeros(1)}, {"a": np.zeros(2)}],
        [{"a": 1}, {}],
        [{"a": None}],
        [{"a": 2**63}],
        [{"a": 1}, {"a": "b"}],
    ):
        with pytest.raises(Exception, match="default_collate: ") as caught:
            collate_as(batch)
        revived = pickle.loads(pickle.dumps(caught.value))
        assert type(revived) is type(caught.value)
        assert str(revived) == str(caught.value)


class Stubborn(dict[Any, Any]):
    """A mapping whose copies fail with an exception of the user's."""

    error: Exception = RuntimeError("no copies")

    def __copy__(self) -> Stubborn:
        raise self.error


@both_forms
def test_users_own_exception_keeps_its_identity_and_names_the_place(
    collate_as: Callable[[Any], Any],
) -> None:
    error = OSError(5, "disk")
    Stubborn.error = error
    with pytest.raises(OSError, match="disk") as caught:
        collate_as([{"a": [Stubborn(b=1)]}])
    assert caught.value is error
    assert caught.value.args == (5, "disk")
    assert error.__notes__ == ["default_collate: at ['a'][0] of the samples"]
    assert pickle.loads(pickle.dumps(error)).__notes__ == error.__notes__


@both_forms
def test_type_error_while_copying_gives_a_plain_dict(
    collate_as: Callable[[Any], Any],
) -> None:
    Stubborn.error = TypeError("no copies")
    assert type(collate_as([Stubborn(b="x")])) is dict


@needs_torch
@pytest.mark.parametrize(
    "collate", [dataloader.torch_collate, dataloader.numpy_collate]
)
def test_sparse_and_nested_tensors_are_refused(collate: Callable[[Any], Any]) -> None:
    torch = pytest.importorskip("torch")
    parts = [torch.ones(1), torch.ones(2)]
    for tensor, kind in [
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.nested.nested_tensor(parts, layout=torch.jagged), "nested"),
    ]:
        with pytest.raises(RuntimeError) as caught:
            collate([{"a": tensor}] * 2)
        assert f"{kind} tensors at ['a'] are not" in str(caught.value)
        assert "not currently supported by the default collate_fn" in str(caught.value)

"""Collation with and without torch: what becomes of samples."""

from __future__ import annotations

import collections
import importlib.machinery
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from collate_forms import Point, both_forms

import dataloader
from dataloader import _torch_probe


class TaggedDict(dict[Any, Any]):
    tag = ""


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package believe that torch is not installed."""
    monkeypatch.setattr(_torch_probe, "torch_installed", lambda: False)


# Without torch


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize(
    ("batch", "dtype", "shape"),
    [
        ([1.5, 2.5], "f8", (2,)),
        ([1.5, 2], "f8", (2,)),
        ([1.5, 2**70], "f8", (2,)),
        ([1, 2], "i8", (2,)),
        ([1, True], "i8", (2,)),
        ([True, False], "?", (2,)),
        ([True, 2], "i8", (2,)),
        ([1, 2.5], "f4", (2,)),
        ([1, 2j], "c8", (2,)),
        ([np.float32(1), np.float32(2)], "f4", (2,)),
        ([np.float32(1), 2.5], "f4", (2,)),
        ([np.float32(1), np.float64(2)], "f8", (2,)),
        ([np.int16(1), 2.5], "f4", (2,)),
        ([np.uint64(1)], "u8", (1,)),
        ([np.zeros((2, 3), "f2")] * 4, "f2", (4, 2, 3)),
        ([np.zeros(3, "u2")] * 2, "u2", (2, 3)),
        ([np.zeros((0, 3), "f4")] * 2, "f4", (2, 0, 3)),
        ([np.array(1.5)] * 2, "f8", (2,)),
        ([np.zeros(2, "f4"), np.zeros(2, "i8")], "f4", (2, 2)),
        ([np.zeros(2, "u1"), np.zeros(2, "i1")], "i2", (2, 2)),
        ([np.zeros(2, "f4"), np.zeros(2, "f8")], "f8", (2, 2)),
        ([np.zeros(2), [1, 2]], "f8", (2, 2)),
        ([np.zeros(2, "M8[s]")] * 2, "M8[s]", (2, 2)),
        ([np.zeros(2, ">f4")] * 2, ">f4", (2, 2)),
        ([np.array(["a", "bc"])] * 2, "<U2", (2, 2)),
        (np.arange(3), "i8", (3,)),
        (np.zeros((3, 2), "f4"), "f4", (3, 2)),
    ],
)
def test_without_torch_batches_are_arrays(batch: Any, dtype: str, shape: Any) -> None:
    collated = dataloader.default_collate(batch)
    assert type(collated) is np.ndarray
    assert collated.dtype == np.dtype(dtype)
    assert collated.shape == shape
    np.testing.assert_array_equal(collated, np.stack([np.asarray(b) for b in batch]))


@pytest.mark.usefixtures("without_torch")
def test_without_torch_samples_convert_to_arrays() -> None:
    array = np.zeros(2)
    sample = {"a": array, "b": np.float32(1), "c": (1, "s", np.str_("t")), "d": None}
    converted = dataloader.default_convert(sample)
    assert converted["a"] is array
    assert type(converted["b"]) is np.ndarray
    assert converted["b"].dtype == np.float32
    assert converted["b"].shape == ()
    assert converted["c"] == [1, "s", "t"]
    assert converted["d"] is None


@pytest.mark.usefixtures("without_torch")
def test_torch_collate_without_torch_names_the_way_out() -> None:
    with pytest.raises(ImportError, match="numpy_collate"):
        dataloader.torch_collate(["a"])


def test_strings_import_nothing() -> None:
    code = (
        "import sys, dataloader; batch = dataloader.default_collate([{'a': 'b'}]);"
        "assert batch == {'a': ['b']}, batch;"
        "assert dataloader.default_convert(['a', 1]) == ['a', 1];"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_folder_called_torch_is_not_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = importlib.machinery.ModuleSpec("torch", None, is_package=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: folder)
    assert not _torch_probe.torch_installed.__wrapped__()


def test_stand_in_module_counts_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", type(sys)("torch"))
    assert _torch_probe.torch_installed.__wrapped__()


# Both forms


@both_forms
def test_containers_keep_their_types(collate_as: Callable[[Any], Any]) -> None:
    first = TaggedDict(p=Point(1, ["a", 2.5]), q=(1, b"s"), r=collections.deque([1]))
    first.tag = "kept"
    batch = collate_as([first, dict(first)])
    assert type(batch) is TaggedDict
    assert batch.tag == "kept"
    assert type(batch["p"]) is Point
    assert batch["p"].x.tolist() == [1, 1]
    assert batch["p"].y[0] == ("a", "a")
    assert type(batch["q"]) is list
    assert batch["q"][1] == (b"s", b"s")
    assert type(batch["r"]) is collections.deque
    assert first == {
        "p": Point(1, ["a", 2.5]),
        "q": (1, b"s"),
        "r": batch["r"].__class__([1]),
    }


@both_forms
def test_counters_are_not_added_up(collate_as: Callable[[Any], Any]) -> None:
    batch = collate_as([collections.Counter(a=2), collections.Counter(a=3)])
    assert type(batch) is collections.Counter
    assert batch["a"].tolist() == [2, 3]  # type: ignore[attr-defined]


@both_forms
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (40000,)])
def test_batch_of_one_array_is_a_writable_copy(
    collate_as: Callable[[Any], Any], shape: Any
) -> None:
    array = np.zeros(shape)
    batch = collate_as([array])
    batch[...] = 1
    assert not array.any()
    assert batch.shape == (1, *shape)


@both_forms
def test_array_as_batch_is_copied(collate_as: Callable[[Any], Any]) -> None:
    for array in (np.zeros(3), np.zeros((3, 2))):
        collate_as(array)[...] = 1
        assert not array.any()


@both_forms
def test_odd_layouts_collate_without_a_warning(
    collate_as: Callable[[Any], Any],
) -> None:
    base = np.arange(12.0).reshape(3, 4)
    frozen = base.copy()
    frozen.flags.writeable = False
    for array in (base[::-1], base[:, ::-1], frozen, base.T, base[::2, 1::2]):
        for other in (array, array.astype(np.float32), array.tolist()):
            batch = np.asarray(collate_as([array, other]))
            assert batch.flags.c_contiguous
            assert batch.flags.writeable
            np.testing.assert_array_equal(batch, np.stack([array, array]))


def test_negative_strides_convert() -> None:
    converted = np.asarray(dataloader.default_convert(np.arange(3)[::-1]))
    assert converted.tolist() == [2, 1, 0]


# With torch


def test_default_collate_gives_tensors_where_torch_is_installed() -> None:
    torch = pytest.importorskip("torch")
    batch = dataloader.default_collate([{"a": np.zeros(2), "b": 1, "c": "s"}] * 2)
    assert isinstance(batch["a"], torch.Tensor)
    assert isinstance(batch["b"], torch.Tensor)
    assert batch["c"] == ["s", "s"]


def test_numpy_collate_turns_tensors_into_arrays() -> None:
    torch = pytest.importorskip("torch")
    batch = dataloader.numpy_collate(
        [{"a": torch.ones(2, requires_grad=True), "b": (np.zeros(1), torch.ones(1))}]
        * 2
    )
    assert type(batch["a"]) is np.ndarray
    assert batch["a"].dtype == np.float32
    assert type(batch["b"][1]) is np.ndarray
    mixed = dataloader.numpy_collate([np.zeros(2), torch.ones(2)])
    assert mixed.tolist() == [[0, 0], [1, 1]]


def test_numpy_collate_refuses_a_dtype_that_numpy_lacks() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"bfloat16 at \['a'\]; .*tensor\.float\(\)"):
        dataloader.numpy_collate([{"a": torch.ones(1, dtype=torch.bfloat16)}])


def test_large_plain_tensors_are_not_stacked_by_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    batch = [torch.arange(40000), torch.ones(40000, dtype=torch.int64)]
    expected = torch.stack(batch)

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("torch.stack uses every core, in every worker")

    monkeypatch.setattr(torch, "stack", refuse)
    stacked = dataloader.default_collate(batch)
    assert torch.equal(stacked, expected)
    assert stacked.is_contiguous()
    stacked[0] = 7
    assert batch[0][1] == 1

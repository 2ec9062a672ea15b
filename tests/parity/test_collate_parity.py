"""Collation, conversion and pinning beside PyTorch's, on the same input."""

from __future__ import annotations

import collections
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from collate_cases import BATCHES, NUMERIC, SAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st
from sameness import (
    Point,
    TaggedDict,
    TaggedList,
    TensorLike,
    assert_parity,
    assert_same,
    case,
    floats,
    outcome,
    quiet,
)

import dataloader
from dataloader._containers import map_container
from dataloader.device import pin_memory

torch = pytest.importorskip("torch")
torch_data = pytest.importorskip("torch.utils.data")
torch_collate_module = pytest.importorskip("torch.utils.data._utils.collate")
torch_pin_module = pytest.importorskip("torch.utils.data._utils.pin_memory")


# NumPy has no bfloat16; arrays cannot be assigned to the items of the other two.
WITHOUT_ARRAYS = ("large bfloat16", "one bytearray", "one typed array")


@pytest.mark.parametrize("group", BATCHES)
def test_collate_matches_torch(group: str) -> None:
    for name, make in BATCHES[group].items():
        with case(name):
            assert_parity(dataloader.default_collate, torch_data.default_collate, make)


def itself(value: Any) -> Any:
    return value


def as_arrays(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.numpy(force=True)
    return map_container(as_arrays, batch, keep_tuples=True)


@pytest.mark.parametrize("group", BATCHES)
def test_numpy_collate_gives_arrays_where_torch_gives_tensors(group: str) -> None:
    for name, make in BATCHES[group].items():
        with quiet():
            expected, error = outcome(torch_data.default_collate, make())
            batch = make()
        if error is None and name not in WITHOUT_ARRAYS:
            with case(name):
                assert_same(dataloader.numpy_collate(batch), as_arrays(expected))


@pytest.mark.parametrize("group", ["mappings", "sequences"])
def test_collate_leaves_its_samples_as_they_were(group: str) -> None:
    for name, make in BATCHES[group].items():
        with case(name):
            batch = make()
            outcome(dataloader.default_collate, batch)
            assert_same(batch, make())


def test_convert_matches_torch() -> None:
    for name, make in SAMPLES.items():
        with case(name):
            assert_parity(dataloader.default_convert, torch_data.default_convert, make)


def test_convert_shares_memory_with_the_array() -> None:
    sample = floats(3)
    dataloader.default_convert([sample])[0][0] = 7
    assert sample[0] == 7


def test_pinning_matches_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    # Pinning proper needs an accelerator: here a pinned tensor is one twice as large.
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self * 2)
    for name, make in SAMPLES.items():
        sample, _ = outcome(lambda make: torch_data.default_convert(make()), make)
        with case(name):
            assert_parity(
                pin_memory, torch_pin_module.pin_memory, partial(itself, sample)
            )


@pytest.mark.parametrize("group", BATCHES)
def test_types_survive_collation_and_pinning(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self * 2)

    def ours(batch: Any) -> Any:
        return pin_memory(dataloader.default_collate(batch))

    def theirs(batch: Any) -> Any:
        return torch_pin_module.pin_memory(torch_data.default_collate(batch))

    for name, make in BATCHES[group].items():
        with case(name):
            assert_parity(ours, theirs, make)


# Leaves of one sample position: the values that the samples of a batch have there.
SIZES = st.integers(1, 4)
DTYPES = st.sampled_from(NUMERIC)


def leaf(size: int) -> st.SearchStrategy[list[Any]]:
    """Return a strategy for ``size`` leaves, mostly of one kind."""

    def column(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(values, min_size=size, max_size=size)

    number = st.one_of(
        st.floats(allow_nan=False), st.integers(-(2**64), 2**64), st.booleans()
    )
    scalar = DTYPES.map(lambda dtype: np.dtype(dtype).type(1))
    shape = st.sampled_from([(), (1,), (2,), (2, 3), (0, 2)])
    any_array = st.builds(lambda s, d: floats(*s, dtype=d), shape, DTYPES)
    return st.one_of(
        column(st.floats(allow_nan=False)),
        column(st.integers(-(2**63), 2**63 - 1)),
        column(st.booleans()),
        column(st.text(max_size=2)),
        column(number),
        column(st.sampled_from([np.float32(1), np.float64(2), 3.0, np.int16(4)])),
        scalar.map(lambda value: [value] * size),
        any_array.map(lambda value: [value] * size),
        any_array.map(lambda value: [torch.from_numpy(value)] * size),
        column(any_array),
        column(any_array.map(torch.from_numpy)),
        column(st.sampled_from([1, 1.5, "a", None, floats(2), torch.ones(2), [1]])),
    )


def transposed(columns: list[list[Any]], make: Callable[[Any], Any]) -> list[Any]:
    return [make(parts) for parts in zip(*columns, strict=True)]


def batches(size: int) -> st.SearchStrategy[list[Any]]:
    """Return a strategy for a batch of ``size`` nested samples of one structure."""

    def containers(
        inner: st.SearchStrategy[list[Any]],
    ) -> st.SearchStrategy[list[Any]]:
        columns = st.lists(inner, min_size=1, max_size=3)
        return st.one_of(
            columns.map(lambda c: transposed(c, tuple)),
            columns.map(lambda c: transposed(c, list)),
            columns.map(lambda c: transposed(c, TaggedList)),
            columns.map(lambda c: transposed(c, collections.deque)),
            columns.map(lambda c: transposed(c, lambda p: dict(enumerate(p)))),
            columns.map(lambda c: transposed(c, lambda p: TaggedDict(enumerate(p)))),
            st.lists(inner, min_size=2, max_size=2).map(
                lambda c: transposed(c, Point._make)
            ),
        )

    return st.recursive(leaf(size), containers, max_leaves=5)


@settings(max_examples=150, deadline=None)
@given(SIZES.flatmap(batches))
def test_any_nested_batch_matches_torch(batch: list[Any]) -> None:
    assert_parity(dataloader.default_collate, torch_data.default_collate, lambda: batch)


@settings(max_examples=50, deadline=None)
@given(SIZES.flatmap(batches))
def test_any_nested_sample_is_converted_as_torch_does(batch: list[Any]) -> None:
    assert_parity(dataloader.default_convert, torch_data.default_convert, lambda: batch)


# Both tables of functions


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value


class SpecialBox(Box):
    pass


def collate_boxes(batch: Any, *, collate_fn_map: Any = None) -> Any:
    values = [box.value for box in batch]
    return Box(dataloader.collate(values, collate_fn_map=collate_fn_map))


@pytest.fixture
def torch_table(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """PyTorch's own table, put back after the test."""
    table: dict[Any, Any] = dict(torch_collate_module.default_collate_fn_map)
    monkeypatch.setattr(torch_collate_module, "default_collate_fn_map", table)
    return table


def test_type_registered_with_torch_is_collated(torch_table: dict[Any, Any]) -> None:
    with pytest.raises(TypeError, match="Box"):
        dataloader.default_collate([Box(1), Box(2)])
    torch_table[Box] = collate_boxes
    batch = dataloader.default_collate([{"box": Box(1)}, {"box": SpecialBox(2)}])
    assert_same(batch["box"].value, torch.tensor([1, 2]))
    del torch_table[Box]
    with pytest.raises(TypeError, match="Box"):
        dataloader.default_collate([Box(1), Box(2)])


def test_tensor_subclass_registered_with_torch_comes_before_tensors(
    torch_table: dict[Any, Any],
) -> None:
    torch_table[TensorLike] = lambda batch, *, collate_fn_map=None: len(batch)
    assert dataloader.default_collate([TensorLike(2)] * 3) == 3


def test_stock_type_overridden_with_torch_is_overridden_here(
    torch_table: dict[Any, Any],
) -> None:
    torch_table[float] = lambda batch, *, collate_fn_map=None: torch.tensor(batch)
    assert dataloader.default_collate([1.5, 2.5]).dtype == torch.float32


def test_own_table_wins_over_that_of_torch(
    torch_table: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_table[Box] = lambda batch, *, collate_fn_map=None: "torch's"
    monkeypatch.setitem(
        dataloader.default_collate_fn_map,
        Box,
        lambda batch, *, collate_fn_map=None: "ours",
    )
    assert dataloader.default_collate([Box(1)]) == "ours"


def test_numpy_collate_goes_by_its_own_table_alone(torch_table: dict[Any, Any]) -> None:
    torch_table[float] = lambda batch, *, collate_fn_map=None: torch.tensor(batch)
    torch_table[Box] = collate_boxes
    assert isinstance(dataloader.numpy_collate([1.5, 2.5]), np.ndarray)
    with pytest.raises(TypeError, match="Box"):
        dataloader.numpy_collate([Box(1)])


def test_torchs_collate_works_by_our_table() -> None:
    batch = [{"a": floats(2), "b": 1, "c": "s", "d": torch.ones(1)}] * 2
    assert_same(
        torch_collate_module.collate(
            batch, collate_fn_map=dataloader.default_collate_fn_map
        ),
        torch_data.default_collate(batch),
    )


def test_our_collate_works_by_torchs_table() -> None:
    batch = [{"a": floats(2), "b": 1, "c": "s", "d": torch.ones(1)}] * 2
    assert_same(
        dataloader.collate(
            batch, collate_fn_map=torch_collate_module.default_collate_fn_map
        ),
        torch_data.default_collate(batch),
    )


def pad(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return torch.nn.utils.rnn.pad_sequence(list(batch), batch_first=True)


@pytest.mark.parametrize(
    "table_of",
    [
        lambda table: {**table, torch.Tensor: pad},
        lambda table: table | {torch.Tensor: pad},
        lambda table: {torch.Tensor: pad} | dict(table) | {torch.Tensor: pad},
    ],
)
def test_function_for_tensors_gets_arrays_too(table_of: Callable[[Any], Any]) -> None:
    batch = [(floats(2), torch.ones(3)), (floats(3), torch.ones(1))]
    assert_same(
        dataloader.collate(
            batch, collate_fn_map=table_of(dataloader.default_collate_fn_map)
        ),
        torch_collate_module.collate(
            batch, collate_fn_map=table_of(torch_collate_module.default_collate_fn_map)
        ),
    )


def test_tables_list_the_same_types_once_torch_is_loaded() -> None:
    ours = list(dataloader.default_collate_fn_map)
    assert ours == list(torch_collate_module.default_collate_fn_map)
    assert len(dataloader.default_collate_fn_map) == len(ours)


@pytest.mark.parametrize("table", [None, {}])
@pytest.mark.parametrize(
    "batch",
    [[torch.ones(2)], [floats(2)], [1], [{"a": 1}], [None], [{}], [[]]],
    ids=repr,
)
def test_collate_without_a_table_matches_torch(batch: Any, table: Any) -> None:
    assert_parity(
        lambda batch: dataloader.collate(batch, collate_fn_map=table),
        lambda batch: torch_collate_module.collate(batch, collate_fn_map=table),
        lambda: batch,
    )


# Modes and threads


def test_collate_inside_inference_mode_gives_inference_tensors() -> None:
    with torch.inference_mode():
        batch = dataloader.default_collate([(torch.ones(40000), floats(2), 1)] * 2)
    assert all(tensor.is_inference() for tensor in batch)


def test_collate_keeps_autograd() -> None:
    leaf_tensor = torch.ones(3, requires_grad=True)
    dataloader.default_collate([leaf_tensor, leaf_tensor * 2]).sum().backward()
    assert leaf_tensor.grad.tolist() == [3, 3, 3]


@pytest.mark.parametrize("numel", [2, 32768, 32769])
def test_collate_in_vmap_stacks_what_vmap_sees(numel: int) -> None:
    def double(row: Any) -> Any:
        return dataloader.default_collate([row, row * 2])

    rows = torch.arange(2.0 * numel).view(2, numel)
    assert_same(torch.func.vmap(double)(rows), torch.stack([rows, rows * 2], 1))


@pytest.mark.parametrize("numel", [3, 40000])
def test_collate_never_uses_shared_memory(
    numel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = pytest.importorskip("torch.utils.data._utils.worker")
    info = worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=None)
    monkeypatch.setattr(worker, "_worker_info", info)
    batch = [(torch.ones(numel), np.ones(numel), 1, torch.ones(1, requires_grad=True))]
    collated = dataloader.default_collate(batch * 2)
    assert not any(tensor.is_shared() for tensor in collated)
    assert collated[-1].requires_grad


def test_default_device_applies_to_new_tensors() -> None:
    batch = [(floats(2), 1, 1.5, np.float32(1), torch.ones(2, device="cpu"))] * 2
    # The device "meta" is one that every machine has.
    with torch.device("meta"):
        ours = dataloader.default_collate(batch)
        theirs = torch_data.default_collate(batch)
    assert [t.device for t in ours] == [t.device for t in theirs]
    assert [t.dtype for t in ours] == [t.dtype for t in theirs]


def test_devices_that_differ_match_torch() -> None:
    batch = [torch.ones(3), torch.ones(3, device="meta")]
    assert_parity(dataloader.default_collate, torch_data.default_collate, lambda: batch)

"""Batches of a TensorDataset: gathered at once, and nobody can tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dataloader
from dataloader import DataLoader, TensorDataset, _gather, default_collate

ROWS = 10
TABLES: list[Any] = [
    np.arange(30, dtype="f4").reshape(ROWS, 3),
    np.arange(ROWS),
    np.arange(ROWS) % 2 == 0,
    np.arange(ROWS, dtype="u1"),
    np.arange(20, dtype="i2").reshape(2, ROWS).T,
    np.arange(ROWS * 8.0).reshape(ROWS, 2, 2, 2),
]


def row_by_row(samples: Any) -> Any:
    return default_collate(samples)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other) is list
    for x, y in zip(one, other, strict=True):
        assert type(x) is type(y)
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize("workers", [0, 2])
def test_gathered_batches_are_those_of_the_rows(workers: int) -> None:
    options: Any = {"batch_size": 4, "shuffle": True, "seed": 1, "num_workers": workers}
    dataset = TensorDataset(*TABLES)
    gathered = list(DataLoader(dataset, **options))
    collated = list(DataLoader(dataset, collate_fn=row_by_row, **options))
    assert len(gathered) == len(collated) == 3
    for one, other in zip(gathered, collated, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("indices", [[3, 1, 3], (0, -1), range(2, 8, 3), [9]])
def test_rows_are_gathered_in_the_order_of_indices(indices: Any) -> None:
    dataset = TensorDataset(*TABLES)
    batch: Any = _gather.gather(dataset, indices)
    assert batch is not None
    assert_same(default_collate(batch), default_collate([dataset[i] for i in indices]))


def test_gathered_batches_are_the_users_own() -> None:
    table = np.zeros((4, 2))
    (batch,) = next(iter(DataLoader(TensorDataset(table), batch_size=4)))
    batch[...] = 1
    assert not table.any()


@pytest.mark.parametrize("indices", [[], [True, False], [np.int64(1)], [0, 10], [None]])
def test_odd_indices_go_row_by_row(indices: list[Any]) -> None:
    assert _gather.gather(TensorDataset(*TABLES), indices) is None


@pytest.mark.parametrize(
    "table",
    [
        list(range(ROWS)),
        np.array(["a"] * ROWS),
        np.zeros(ROWS, object),
        np.zeros(ROWS, "u8"),
        np.ma.masked_array(np.zeros(ROWS)),
    ],
    ids=["list", "text", "object", "uint64", "masked"],
)
def test_odd_tables_go_row_by_row(table: Any) -> None:
    assert _gather.gather(TensorDataset(TABLES[0], table), [0, 1]) is None


def test_an_index_out_of_bounds_is_named_by_its_row() -> None:
    loader = DataLoader(TensorDataset(*TABLES), batch_sampler=[[1, 99]])
    with pytest.raises(IndexError) as caught:
        next(iter(loader))
    assert "99" in "".join(caught.value.__notes__)


def test_functions_of_the_user_are_given_every_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def count(batch: Any, *, collate_fn_map: Any = None) -> int:
        return len(batch)

    table = dataloader.default_collate_fn_map
    dataset = TensorDataset(TABLES[0])
    monkeypatch.setitem(table, np.ndarray, count)
    assert next(iter(DataLoader(dataset, batch_size=4))) == [4]
    monkeypatch.setitem(table, tuple, count)
    assert next(iter(DataLoader(dataset, batch_size=4))) == 4


def test_a_dataset_that_overrides_a_method_is_asked_row_by_row() -> None:
    class Doubled(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)[0] * 2

    batch = next(iter(DataLoader(Doubled(TABLES[1]), batch_size=3)))
    assert batch.tolist() == [0, 2, 4]


def test_torchs_own_tables_and_tensors_are_gathered_too() -> None:
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch.utils.data")
    tensors = [torch.from_numpy(table) for table in TABLES]
    for dataset in (TensorDataset(*tensors), data.TensorDataset(*tensors)):
        assert _gather.is_table(dataset)
        batch: Any = _gather.gather(dataset, [3, 1])
        assert_same(default_collate(batch), default_collate([dataset[3], dataset[1]]))


def test_tensors_that_numpy_cannot_read_go_row_by_row() -> None:
    torch = pytest.importorskip("torch")
    for tensor in (
        torch.ones(4, 2, requires_grad=True),
        torch.ones(4, 2, dtype=torch.bfloat16),
        torch.nn.Parameter(torch.ones(4, 2)),
        torch.ones(4, dtype=torch.complex64).conj(),
    ):
        assert _gather.gather(TensorDataset(tensor), [0, 1]) is None
    with torch.device("meta"):
        assert _gather.gather(TensorDataset(torch.ones(4)), [0, 1]) is None

"""loader.set_epoch: who is told the epoch, and when workers' copies know it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import MakeLoader

from dataloader import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
)


class Told:
    """Something that notes the epochs that it is told."""

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.calls = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.calls += 1


class ToldSampler(Told):
    def __init__(self, keys: list[Any]) -> None:
        super().__init__()
        self.keys = keys

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys)


class ToldDataset(Told, Dataset[Any]):
    """Its samples are the epoch that it was told."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return self.epoch


class ToldStream(Told, IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([self.epoch] * 3)


def test_the_sampler_is_told() -> None:
    sampler = ToldSampler([0, 1])
    DataLoader(range(2), sampler=sampler).set_epoch(5)
    assert sampler.epoch == 5


def test_the_batch_sampler_is_told() -> None:
    sampler = ToldSampler([[0, 1]])
    DataLoader(range(2), batch_sampler=sampler).set_epoch(5)
    assert sampler.epoch == 5


def test_what_a_batch_sampler_samples_from_is_told() -> None:
    inner = ToldSampler([0, 1])
    DataLoader(range(2), batch_sampler=BatchSampler(inner, 2, False)).set_epoch(5)
    assert inner.epoch == 5

    class Foreign:
        """A batch sampler without a set_epoch of its own."""

        def __init__(self, sampler: Any) -> None:
            self.sampler = sampler

        def __iter__(self) -> Iterator[list[int]]:
            return iter([[0]])

    inner = ToldSampler([0, 1])
    DataLoader(range(2), batch_sampler=Foreign(inner)).set_epoch(6)
    assert inner.epoch == 6


def test_the_dataset_is_told(make_loader: MakeLoader) -> None:
    dataset = ToldDataset()
    loader = make_loader(dataset, batch_size=4, collate_fn=list)
    assert list(loader) == [[None] * 4, [None] * 2]
    for epoch in (7, 3):
        loader.set_epoch(epoch)
        assert dataset.epoch == epoch
        assert list(loader) == [[epoch] * 4, [epoch] * 2]


def test_a_stream_is_told(make_loader: MakeLoader) -> None:
    loader = make_loader(ToldStream(), batch_size=3, collate_fn=list)
    loader.set_epoch(7)
    assert list(loader) == [[7] * 3] * max(loader.num_workers, 1)


class Meeting(ToldDataset):
    """Every thread loads one sample of an epoch, which has as many as threads."""

    def __init__(self, threads: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(threads)

    def __getitem__(self, index: int) -> Any:
        self.barrier.wait(20)
        return self.epoch


@pytest.mark.parametrize("items_in_parallel", [1, 3])
def test_kept_copies_are_told(items_in_parallel: int) -> None:
    loader = DataLoader(
        Meeting(threads=2 * items_in_parallel),
        num_workers=2,
        batch_size=3,
        persistent_workers=True,
        items_in_parallel=items_in_parallel,
        collate_fn=list,
    )
    assert list(loader) == [[None] * 3] * 2
    for epoch in (7, 3):
        loader.set_epoch(epoch)
        assert list(loader) == [[epoch] * 3] * 2
    assert list(loader) == [[3] * 3] * 2


def test_kept_copies_of_a_stream_are_told() -> None:
    loader = DataLoader(
        ToldStream(), 3, num_workers=2, persistent_workers=True, collate_fn=list
    )
    for epoch in (4, 9):
        loader.set_epoch(epoch)
        assert list(loader) == [[epoch] * 3] * 2


def test_kept_copies_are_told_after_an_epoch_that_was_abandoned() -> None:
    loader = DataLoader(
        ToldDataset(), 3, num_workers=2, persistent_workers=True, collate_fn=list
    )
    for epoch in range(1, 20):
        list(loader)
        loader.set_epoch(epoch)
        iter(loader)
        assert list(loader) == [[epoch] * 3] * 2


def test_a_shared_dataset_is_told_once_by_each_worker_at_most() -> None:
    dataset = ToldDataset()
    loader = DataLoader(
        dataset,
        num_workers=2,
        replicate="none",
        persistent_workers=True,
        collate_fn=list,
    )
    list(loader)
    loader.set_epoch(2)
    assert list(loader) == [[2]] * 6
    assert dataset.calls <= 3


@pytest.mark.parametrize(
    "wrap",
    [
        lambda dataset: Subset(dataset, range(6)),
        lambda dataset: ConcatDataset([dataset]),
        lambda dataset: Subset(ConcatDataset([range(0), dataset]), range(6)),
    ],
    ids=["Subset", "ConcatDataset", "both"],
)
@pytest.mark.parametrize("persistent", [False, True])
def test_a_wrapped_dataset_is_told(wrap: Any, persistent: bool) -> None:
    dataset = ToldDataset()
    loader = DataLoader(
        wrap(dataset), num_workers=2, persistent_workers=persistent, collate_fn=list
    )
    list(loader)
    loader.set_epoch(8)
    assert dataset.epoch == 8
    assert list(loader) == [[8]] * 6


def test_an_epoch_in_progress_is_left_alone() -> None:
    loader = DataLoader(ToldDataset(), num_workers=1, collate_fn=list)
    loader.set_epoch(1)
    running = iter(loader)
    loader.set_epoch(2)
    assert list(running) == [[1]] * 6
    assert list(loader) == [[2]] * 6


def test_a_distributed_sampler_moves_with_the_epoch() -> None:
    def order(epoch: int) -> list[Any]:
        sampler: Any = DistributedSampler(range(40), num_replicas=2, rank=1)
        sampler.set_epoch(epoch)
        return list(sampler)

    sampler: Any = DistributedSampler(range(40), num_replicas=2, rank=1)
    loader = DataLoader(range(40), 20, sampler=sampler, collate_fn=list)
    for epoch in (0, 3, 1):
        loader.set_epoch(epoch)
        assert list(loader) == [order(epoch)]
    assert order(0) != order(3)


def distributed(**options: Any) -> DataLoader[Any]:
    sampler: Any = DistributedSampler(range(8), num_replicas=2, rank=0, **options)
    return DataLoader(range(8), sampler=sampler, collate_fn=list)


def test_a_distributed_sampler_that_is_not_moved_is_warned_of_once() -> None:
    loader = distributed()
    first = list(loader)
    with pytest.warns(UserWarning, match="set_epoch") as caught:
        assert list(loader) == first
    assert len(caught) == 1
    assert list(loader) == first  # a second warning would be an error


def test_a_distributed_sampler_is_not_warned_of_needlessly() -> None:
    loader = distributed()
    for epoch in range(3):
        loader.set_epoch(epoch)
        list(loader)
    unshuffled = distributed(shuffle=False)
    assert list(unshuffled) == list(unshuffled)

"""in_order=False: every batch once, in the order in which they are ready."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import MakeLoader

from dataloader import DataLoader, IterableDataset, get_worker_info


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that is set at the end of the test, whatever happens."""
    event = threading.Event()
    yield event
    event.set()


class OneSlow:
    """A dataset one of whose samples waits for a gate."""

    def __init__(self, gate: threading.Event, slow: int, size: int) -> None:
        self.gate = gate
        self.slow = slow
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if index == self.slow:
            assert self.gate.wait(20)
        return index


def test_every_batch_comes_once(make_loader: MakeLoader) -> None:
    loader = make_loader(range(101), batch_size=2, in_order=False, collate_fn=tuple)
    expected = {(i, i + 1) for i in range(0, 100, 2)} | {(100,)}
    for _ in range(3):
        batches = list(loader)
        assert len(batches) == len(expected)
        assert set(batches) == expected


def test_without_workers_batches_come_in_order() -> None:
    loader = DataLoader(range(5), 2, in_order=False, collate_fn=list)
    assert list(loader) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(
    "options",
    [
        # A consumer that helps might itself be the one whose batch waits.
        {"num_workers": 2, "help": False},
        {"num_workers": 2, "items_in_parallel": 2},
    ],
)
def test_fast_batches_overtake_a_slow_one(
    gate: threading.Event, options: dict[str, Any]
) -> None:
    loader = DataLoader(
        OneSlow(gate, slow=0, size=12), in_order=False, collate_fn=list, **options
    )
    iterator = iter(loader)
    # All others come while the gate is closed: one worker is enough for them.
    overtaking = [next(iterator) for _ in range(11)]
    assert sorted(overtaking) == [[i] for i in range(1, 12)]
    assert not gate.is_set()
    gate.set()
    assert list(iterator) == [[0]]


def test_a_slow_batch_does_not_hold_up_other_workers_in_order_either(
    gate: threading.Event,
) -> None:
    loaded = threading.Event()

    class Watched(OneSlow):
        def __getitem__(self, index: int) -> int:
            sample = super().__getitem__(index)
            if index == 3:
                loaded.set()
            return sample

    loader = DataLoader(Watched(gate, 0, 6), num_workers=2, collate_fn=list)
    iterator = iter(loader)
    # Dealt out in turn, batch 2 would wait behind batch 0.
    assert loaded.wait(20)
    assert not gate.is_set()
    gate.set()
    assert list(iterator) == [[i] for i in range(6)]


def test_errors_come_as_they_are_raised(gate: threading.Event) -> None:
    class Failing(OneSlow):
        def __getitem__(self, index: int) -> int:
            if index == 1:
                raise KeyError("one")
            return super().__getitem__(index)

    options: dict[str, Any] = {"num_workers": 2, "in_order": False, "help": False}
    loader = DataLoader(Failing(gate, 0, 3), collate_fn=list, **options)
    iterator = iter(loader)
    with pytest.raises(KeyError, match="one"):
        next(iterator)
    assert next(iterator) == [2]
    gate.set()
    assert next(iterator) == [0]
    assert next(iterator, None) is None


class Shards(IterableDataset[int]):
    """Worker 0 yields 0 to 9, worker 1 yields 10 to 14; samples of ``slow`` wait."""

    def __init__(self, gate: threading.Event, slow: int | None = None) -> None:
        self.gate = gate
        self.slow = slow

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        if info.id == self.slow:
            assert self.gate.wait(20)
        yield from range(10) if info.id == 0 else range(10, 15)


def test_an_iterable_dataset_comes_whole(gate: threading.Event) -> None:
    loader = DataLoader(
        Shards(gate), 3, num_workers=2, in_order=False, collate_fn=tuple
    )
    for _ in range(3):
        batches = list(loader)
        assert sorted(batches) == [
            (0, 1, 2),
            (3, 4, 5),
            (6, 7, 8),
            (9,),
            (10, 11, 12),
            (13, 14),
        ]


def test_a_slow_worker_of_an_iterable_dataset_is_overtaken(
    gate: threading.Event,
) -> None:
    loader = DataLoader(
        Shards(gate, slow=1), 5, num_workers=2, in_order=False, collate_fn=tuple
    )
    iterator = iter(loader)
    assert next(iterator) == (0, 1, 2, 3, 4)
    assert next(iterator) == (5, 6, 7, 8, 9)
    assert not gate.is_set()
    gate.set()
    assert list(iterator) == [(10, 11, 12, 13, 14)]

"""The bound on what is in flight and waiting: indices, samples, batches in memory."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import wait_until
from policies import MODES, use

from dataloader import DataLoader, IterableDataset

# Options, and the window that they make. A consumer that loads inline leaves it empty.
WINDOWS: list[tuple[dict[str, Any], int]] = [
    ({"num_workers": 2, "help": False}, 4),
    ({"num_workers": 3, "prefetch_factor": 1, "help": False}, 3),
    ({"num_workers": 1, "prefetch_factor": 5, "help": False}, 5),
    ({"num_workers": 2, "prefetch_depth": 1, "help": False}, 3),
    ({"num_workers": 2, "prefetch_depth": 6, "help": False}, 8),
    ({"num_workers": 2, "items_in_parallel": 3}, 4),
    ({"num_workers": 0, "items_in_parallel": 3}, 0),
    ({"num_workers": 0}, 0),
]
BATCHES = 30


@pytest.fixture(params=WINDOWS, ids=lambda case: f"{case[0]}")
def case(request: pytest.FixtureRequest) -> tuple[dict[str, Any], int]:
    options, window = request.param
    return dict(options), window


class CountedBatches:
    """A batch sampler that counts the batches that were taken from it."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, 2 * BATCHES, 2):
            self.taken += 1
            yield [start, start + 1]


@pytest.mark.parametrize("in_order", [True, False])
def test_index_batches_are_taken_as_the_window_moves(
    case: tuple[dict[str, Any], int], in_order: bool
) -> None:
    options, window = case
    sampler = CountedBatches()
    loader = DataLoader(
        range(2 * BATCHES),
        batch_sampler=sampler,
        collate_fn=list,
        in_order=in_order,
        **options,
    )
    iterator = iter(loader)
    assert sampler.taken == window
    for delivered in range(1, 11):
        next(iterator)
        assert sampler.taken == window + delivered


def test_persistent_workers_keep_to_the_window_in_every_epoch() -> None:
    sampler = CountedBatches()
    loader = DataLoader(
        range(2 * BATCHES),
        batch_sampler=sampler,
        num_workers=2,
        persistent_workers=True,
        collate_fn=list,
        help=False,
    )
    for _ in range(3):
        sampler.taken = 0
        iterator = iter(loader)
        assert sampler.taken == 4
        for delivered in range(1, 6):
            next(iterator)
            assert sampler.taken == 4 + delivered


class CountedSamples:
    """A dataset that counts samples, and remembers the most there were too many."""

    def __init__(self, window: int, batch_size: int) -> None:
        self.window = window
        self.batch_size = batch_size
        self.tally = {"asked": 0, "started": 0, "excess": 0}
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return self.batch_size * BATCHES

    def allowed(self) -> int:
        """Return how many samples may have been started until now."""
        return (self.tally["asked"] + self.window) * self.batch_size

    def __getitem__(self, index: int) -> int:
        with self.lock:
            self.tally["started"] += 1
            excess = self.tally["started"] - self.allowed()
            self.tally["excess"] = max(self.tally["excess"], excess)
        return index


def test_no_more_samples_are_started_than_the_window_holds(
    case: tuple[dict[str, Any], int],
) -> None:
    options, window = case
    dataset = CountedSamples(window, batch_size=3)
    tally = dataset.tally
    iterator = iter(DataLoader(dataset, 3, collate_fn=list, **options))
    for asked in range(1, 8):
        # The consumer stalls until the window is full.
        assert wait_until(lambda: tally["started"] == dataset.allowed())
        tally["asked"] = asked
        next(iterator)
    assert wait_until(lambda: tally["started"] == dataset.allowed())
    for _ in range(7, BATCHES):
        tally["asked"] += 1
        next(iterator)
    assert next(iterator, None) is None
    assert tally["started"] == len(dataset)
    assert tally["excess"] == 0


class Batch:
    """A batch that a weak reference can watch."""


class WatchedCollate:
    """A collate function that knows which of its batches are alive."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Batch]] = []

    def __call__(self, samples: list[Any]) -> Batch:
        batch = Batch()
        self.made.append(weakref.ref(batch))
        return batch

    def alive(self) -> int:
        return sum(ref() is not None for ref in self.made)


@pytest.mark.parametrize("in_order", [True, False])
def test_batches_alive_are_those_of_the_window(
    case: tuple[dict[str, Any], int], in_order: bool
) -> None:
    options, window = case
    collate = WatchedCollate()
    loader = DataLoader(
        range(BATCHES), collate_fn=collate, in_order=in_order, **options
    )
    iterator = iter(loader)
    for delivered in range(1, 9):
        next(iterator)
        made = collate.made
        assert wait_until(lambda: len(made) == delivered + window)  # noqa: B023
    assert wait_until(lambda: collate.alive() == window)
    kept = [next(iterator) for _ in range(3)]
    assert wait_until(lambda: collate.alive() == window + len(kept))


class Stream(IterableDataset[int]):
    """An endless stream, whose workers note in one list what they started."""

    def __init__(self) -> None:
        self.started: list[int] = []

    def __iter__(self) -> Iterator[int]:
        number = 0
        while True:
            self.started.append(number)
            yield number
            number += 1


def test_an_endless_stream_is_read_only_as_far_as_the_window(
    case: tuple[dict[str, Any], int],
) -> None:
    options, window = case
    dataset = Stream()
    iterator = iter(DataLoader(dataset, 3, collate_fn=list, **options))
    for delivered in range(1, 5):
        next(iterator)
        expected = 3 * (window + delivered)
        assert wait_until(lambda: len(dataset.started) == expected)  # noqa: B023


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("in_order", [True, False])
def test_a_consumer_that_loads_keeps_to_the_window(mode: str, in_order: bool) -> None:
    sampler = CountedBatches()
    dataset = CountedSamples(window=4, batch_size=2)
    loader = DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=2,
        in_order=in_order,
        collate_fn=list,
        replicate="none",
    )
    use(loader, MODES[mode]())
    iterator = iter(loader)
    for delivered in range(1, BATCHES + 1):
        dataset.tally["asked"] = delivered
        next(iterator)
        # Also with a policy of inline, since this sampler can tell.
        assert sampler.taken == min(4 + delivered, BATCHES)
    assert dataset.tally["excess"] == 0
    assert dataset.tally["started"] == len(dataset)


def test_a_held_iterator_stays_within_the_window() -> None:
    dataset = CountedSamples(window=4, batch_size=1)
    held = iter(DataLoader(dataset, num_workers=2, collate_fn=list))
    assert wait_until(lambda: dataset.tally["started"] == 4)
    other = DataLoader(range(50), num_workers=2, collate_fn=list)
    assert len(list(other)) == 50
    assert dataset.tally["started"] == 4
    assert len(held) == BATCHES

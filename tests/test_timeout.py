"""timeout: bounds the wait of one next(), says what is slow, and loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import wait_until

from dataloader import DataLoader, IterableDataset

SHORT = 0.05
"""Seconds; every wait for longer than that in this file is for a gate."""


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that is set at the end of the test, whatever happens."""
    event = threading.Event()
    yield event
    event.set()


class Gated:
    """A dataset whose samples from ``first`` on wait for a gate."""

    def __init__(self, gate: threading.Event, size: int = 6, first: int = 0) -> None:
        self.gate = gate
        self.size = size
        self.first = first
        self.entered: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.entered.append(index)
        if index >= self.first:
            self.wait_for_the_gate()
        return index

    def wait_for_the_gate(self) -> None:
        assert self.gate.wait(20)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"in_order": False},
    {"items_in_parallel": 2},
    {"persistent_workers": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_timeout_is_an_error_and_next_may_be_called_again(
    gate: threading.Event, options: dict[str, Any]
) -> None:
    loader = DataLoader(
        Gated(gate), num_workers=2, timeout=SHORT, collate_fn=list, **options
    )
    iterator = iter(loader)
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"timed out after 0.05 seconds"):
            next(iterator)
    gate.set()
    # The gate is open, but the machine may be slow.
    batches: list[Any] = []
    while len(batches) < 6:
        try:
            batches.append(next(iterator))
        except RuntimeError as error:
            assert "timed out" in str(error)  # noqa: PT017
    assert sorted(batches) == [[i] for i in range(6)]
    assert next(iterator, None) is None


def test_batches_that_are_ready_come_whatever_the_timeout(
    gate: threading.Event,
) -> None:
    dataset = Gated(gate, first=2)
    loader = DataLoader(
        dataset, num_workers=1, prefetch_factor=3, timeout=SHORT, collate_fn=list
    )
    iterator = iter(loader)
    assert wait_until(lambda: dataset.entered == [0, 1, 2])
    assert [next(iterator), next(iterator)] == [[0], [1]]
    with pytest.raises(RuntimeError, match="batch 2"):
        next(iterator)


def test_the_message_names_worker_samples_and_the_place_in_the_code(
    gate: threading.Event,
) -> None:
    dataset = Gated(gate)
    loader = DataLoader(
        dataset, 2, sampler=[5, 4, 1], num_workers=1, timeout=SHORT, collate_fn=list
    )
    iterator = iter(loader)
    assert wait_until(lambda: dataset.entered == [5])
    with pytest.raises(RuntimeError, match="timed out") as caught:
        next(iterator)
    message = str(caught.value)
    assert "batch 0" in message
    assert "worker 0" in message
    assert "[5, 4]" in message
    assert "wait_for_the_gate" in message
    assert "test_timeout.py" in message


def test_the_message_says_when_no_worker_has_come_to_the_batch(
    gate: threading.Event,
) -> None:
    dataset = Gated(gate, first=0)
    loader = DataLoader(
        dataset, num_workers=1, timeout=SHORT, collate_fn=list, replicate="none"
    )
    other = iter(loader)
    assert wait_until(lambda: dataset.entered == [0])
    # The only worker is inside a sample of the other iterator.
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match=r"timed out.*\[0\]"):
        next(iterator)
    assert len(other) == 6  # it is still alive


def test_a_stream_may_time_out_too(gate: threading.Event) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 0
            assert gate.wait(20)
            yield 1

    loader = DataLoader(Stream(), num_workers=1, timeout=SHORT, collate_fn=list)
    iterator = iter(loader)
    received: list[Any] = []
    timeouts = 0
    while len(received) < 2:
        try:
            received.append(next(iterator))
        except RuntimeError as error:
            assert "timed out" in str(error)  # noqa: PT017
            timeouts += 1
            if received:
                gate.set()
    assert received == [[0], [1]]
    assert timeouts > 0
    assert next(iterator, None) is None


def test_a_new_epoch_may_follow_a_timeout(gate: threading.Event) -> None:
    dataset = Gated(gate)
    loader = DataLoader(
        dataset, num_workers=2, timeout=SHORT, collate_fn=list, replicate="none"
    )
    iterator = iter(loader)
    assert wait_until(lambda: sorted(dataset.entered) == [0, 1])
    with pytest.raises(RuntimeError, match="timed out"):
        next(iterator)
    del iterator
    gate.set()
    loader.timeout = 20
    assert list(loader) == [[i] for i in range(6)]


def test_timeout_may_be_any_number_of_seconds() -> None:
    for timeout in (0, 20, 20.5, 1e9, float("inf")):
        loader = DataLoader(range(4), num_workers=2, timeout=timeout, collate_fn=list)
        assert list(loader) == [[0], [1], [2], [3]]

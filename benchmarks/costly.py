"""Batches that cost what they are asked to: Python code that touches nothing shared.

The cost is a number of loops, found once in a run (`calibrate`) and the same for all
loaders that are compared: were each process to find its own, the noise of that would
stand in the ratios.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["Costly", "Indices", "Work", "burn", "calibrate", "keep"]

Work = tuple[int, int, int]
"""How often each of three nested loops runs, see `burn`."""

_IMMORTAL = 256
"""Largest integer whose references are not counted."""


def burn(outer: int, middle: int, inner: int) -> None:
    """Keep a core busy.

    Three loops instead of one over a larger number, since that number would be an
    object of all threads, whose reference count they would contend for.
    """
    for _ in range(outer):
        for _ in range(middle):
            for _ in range(inner):
                pass


class Indices:
    """Each sample is its index.

    Args:
        length: number of samples.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Costly(Indices):
    """Each sample is its index, and costs so much work.

    Args:
        length: number of samples.
        work: what ``__getitem__`` does.
    """

    def __init__(self, length: int, work: Work) -> None:
        super().__init__(length)
        self.outer, self.middle, self.inner = work

    def __getitem__(self, index: int) -> int:
        burn(self.outer, self.middle, self.inner)
        return index


def keep(samples: list[Any]) -> list[Any]:
    """Return a batch as it is (a ``collate_fn``)."""
    return samples


def calibrate(cost_us: float) -> Work:
    """Return the work with which a batch of one sample costs so much.

    What is timed is fetching and collating without any loader. The least of many
    timings counts, as other programs can only add to them.

    Args:
        cost_us: what the batch shall cost, in microseconds.
    """

    def cost_of(count: int) -> float:
        dataset = Costly(1, _split(count))
        return _least_us(lambda: keep([dataset[0]]), cost_us)

    count = 1
    each = (cost_of(250) - cost_of(50)) / 200
    for _ in range(4):
        count = max(1, round(count + (cost_us - cost_of(count)) / each))
    return _split(count)


def _split(count: int) -> Work:
    """Return three factors, none above `_IMMORTAL`, with about this product."""
    outer = middle = 1
    inner = count
    if inner > _IMMORTAL:
        middle = -(-count // _IMMORTAL)
        inner = round(count / middle)
    if middle > _IMMORTAL:
        outer = -(-middle // _IMMORTAL)
        middle = round(middle / outer)
    return outer, middle, inner


def _least_us(call: Callable[[], object], expected_us: float) -> float:
    """Return what a call takes at least, of 50 ms of calls."""
    calls = range(max(1, int(200 / expected_us)))
    found = []
    until = time.perf_counter() + 0.05
    while (start := time.perf_counter()) < until:
        for _ in calls:
            call()
        found.append((time.perf_counter() - start) / len(calls))
    return min(found) * 1e6

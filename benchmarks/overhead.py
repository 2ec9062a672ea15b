"""What `bench_overhead` measures: the lines of its tables, and the process behind one.

A child process holds one loader at a time, made anew for each line.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.costly import Costly, Indices, Work, burn, calibrate, keep
from benchmarks.harness import Epoch, run_epoch
from benchmarks.loaders import dataset_class, make_loader

__all__ = ["Cell", "Server"]

EPOCH_S = 0.15
FEWEST_BATCHES = 24
CALLS = 21
"""How many calls the figure of a cell that times calls is the median of."""


@dataclass(frozen=True)
class Cell:
    """One line of a table: batches of one kind for a consumer of one kind.

    Attributes:
        part: the table that it stands in.
        batch_size: samples a batch.
        cost_us: what fetching and collating a batch costs; 0 for returning indices.
        step_us: what the consumer does with each.
        calls: the call that is timed, instead of whole epochs: ``first`` and ``new``
            for that of the first batch of an epoch and of a new loader, ``iter``.
        record: the loader keeps the statistics that it always keeps.
    """

    part: str
    batch_size: int = 1
    cost_us: float = 0
    step_us: float = 0
    calls: str = ""
    record: bool = True

    @property
    def name(self) -> str:
        """The cell's name in JSON."""
        kind = f"{self.cost_us} us" if self.cost_us else f"{self.batch_size} items"
        return f"{self.part} {kind}"

    @property
    def batches(self) -> int:
        """Batches an epoch, so that it takes about `EPOCH_S`."""
        if self.calls:
            return 64
        least_us = 0.5 + 0.025 * self.batch_size
        seconds = (max(self.cost_us, least_us) + self.step_us) * 1e-6
        return max(FEWEST_BATCHES, round(EPOCH_S / seconds))

    def request(self) -> dict[str, Any]:
        """Return what a `Server` is asked for."""
        return {
            "batches": self.batches,
            "batch_size": self.batch_size,
            "work": _work_of(self.cost_us),
            "step": _work_of(self.step_us),
            "calls": self.calls,
            "record": self.record,
        }


@cache
def _work_of(cost_us: float) -> Work | None:
    """Return the work that costs so much in this run."""
    return calibrate(cost_us) if cost_us else None


class Server:
    """The loader of a child process.

    Args:
        name: one of `LOADERS`.
        workers: their number.
    """

    def __init__(self, name: str, workers: int) -> None:
        self._name = name
        self._workers = workers
        self._made_for: Any = None
        self._loader: Any = None

    def epoch(self, request: dict[str, Any]) -> Epoch:
        """Measure an epoch, or calls, for a cell's request."""
        wanted = {**request, "record": None}
        if wanted != self._made_for:
            self._loader = self._make(request)
            self._made_for = wanted
        if request["calls"]:
            seconds = self._time_calls(request)
            return Epoch(1, seconds, seconds)
        with nullcontext() if request["record"] else _unrecorded():
            return self._drain(request["batches"], request["step"])

    def _make(self, request: dict[str, Any]) -> Any:
        size, work = request["batch_size"], request["work"]
        length = request["batches"] * size
        if work is None:
            dataset = dataset_class(self._name, Indices)(length)
        else:
            dataset = dataset_class(self._name, Costly)(length, work)
        return make_loader(self._name, dataset, size, keep, self._workers)

    def _drain(self, batches: int, step: Work | None) -> Epoch:
        """Measure an epoch in batches a second."""

        def take(_: Any, rest: Iterable[Any]) -> int:
            for _ in rest:
                pass
            return batches

        def work(_: Any, rest: Iterable[Any]) -> int:
            assert step is not None
            burn(*step)
            for _ in rest:
                burn(*step)
            return batches

        return run_epoch(self._loader, take if step is None else work)

    def _time_calls(self, request: dict[str, Any]) -> float:
        """Return the median duration of the call that a request names."""
        found = []
        for _ in range(CALLS):
            if request["calls"] == "new":
                self._loader = self._make(request)
            start = time.perf_counter()
            batches = iter(self._loader)
            if request["calls"] != "iter":
                next(batches)
            found.append(time.perf_counter() - start)
            for _ in batches:
                pass
        return statistics.median(found)


@contextmanager
def _unrecorded() -> Iterator[None]:
    """Leave out what our loader does for ``stats()`` alone.

    That is keeping the times of a batch, counting the finished batches that wait, and
    noting when the samples were there. What a batch costs is still taken down, since
    who loads the next ones depends on it.
    """
    from dataloader.stats import Tally
    from dataloader.workers.direct import DirectIterator
    from dataloader.workers.reorder import InOrder
    from dataloader.workers.seat import Seat

    collate = property(lambda owner: owner._collate_fn)
    changes: list[tuple[type, str, Any]] = [
        (Tally, "add", lambda *_: None),
        (InOrder, "ready", lambda _: 0),
        (Seat, "_collate", collate),
        (DirectIterator, "_collate", collate),
    ]
    before = [(kind, name, vars(kind)[name]) for kind, name, _ in changes]
    try:
        for kind, name, value in changes:
            setattr(kind, name, value)
        yield
    finally:
        for kind, name, value in before:
            setattr(kind, name, value)

"""Measuring loaders against each other: one process each, epochs in turn.

Allocator settings, loaded libraries and warm caches are the process's, so every
configuration runs in a process of its own. The processes live as long as the run and
take turns epoch by epoch, so that a machine whose speed drifts slows all of them alike;
ratios are quoted, pair by pair within a round. Where the system tells how busy it is
(Linux), an epoch during which other programs took a part of the processors is measured
again.
"""

from __future__ import annotations

import importlib.metadata
import json
import operator
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

__all__ = [
    "Child",
    "Epoch",
    "Row",
    "Turn",
    "answer",
    "environment",
    "ratio",
    "read_rows",
    "run_epoch",
    "run_in_turn",
    "run_turns",
    "write_json",
]

MOST_FOREIGN = 0.25
"""An epoch during which other programs took more of one processor is repeated."""

TRIES = 10


@dataclass(frozen=True)
class Epoch:
    """What one epoch took.

    Attributes:
        items: samples delivered.
        total_s: from ``iter()`` to the end of the epoch.
        first_s: from ``iter()`` to the first batch.
        foreign: processors that other programs took meanwhile.
    """

    items: int
    total_s: float
    first_s: float
    foreign: float = 0.0


@dataclass(frozen=True)
class Row:
    """One configuration over all rounds: medians, and the spread of the throughput."""

    name: str
    items_per_s: float
    slowest: float
    fastest: float
    first_ms: float
    foreign: float
    epochs: list[float]


class Child:
    """A process that runs one epoch whenever it is told to.

    Args:
        module: a module whose ``main`` calls `answer` if there is ``--child``.
        name: the configuration's name in the report.
        spec: what the child is to run, handed over as JSON.
        env: environment variables to add.
    """

    def __init__(self, module: str, name: str, spec: Any, env: dict[str, str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--child", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )

    def epoch(self, request: Any = None) -> Epoch:
        """Run one epoch in the child.

        Args:
            request: what the child's function is given, handed over as JSON.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: the measured process ended")
        return Epoch(**json.loads(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def answer(epoch: Callable[[Any], Epoch]) -> None:
    """Run epochs in a child: one for each line on standard input, given its JSON."""
    for line in sys.stdin:
        request = json.loads(line)
        before = _foreign_s()
        start = time.perf_counter()
        found = epoch(request)
        elapsed_s = time.perf_counter() - start
        foreign = max(0.0, (_foreign_s() - before) / elapsed_s)
        print(json.dumps(asdict(replace(found, foreign=foreign))), flush=True)


def _foreign_s() -> float:
    """Return processor time that this process has not used; 0 if it is not known.

    The counters of the system go by steps of 10 ms.
    """
    try:
        fields = Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, fields)
    busy = user + nice + system + irq + softirq + steal
    return busy / os.sysconf("SC_CLK_TCK") - time.process_time()


def run_epoch(
    loader: Iterable[Any], consume: Callable[[Any, Iterable[Any]], int]
) -> Epoch:
    """Run one epoch of a loader, with a stop-watch.

    Args:
        loader: its ``iter()`` is part of what is measured.
        consume: given the first batch and the others, takes them all and returns how
            many items they had.
    """
    start = time.perf_counter()
    batches = iter(loader)
    first = next(batches)
    first_s = time.perf_counter() - start
    items = consume(first, batches)
    return Epoch(items, time.perf_counter() - start, first_s)


@dataclass(frozen=True)
class Turn:
    """What is measured once in every round.

    Attributes:
        name: the row's name.
        child: the process that it runs in.
        request: what that is asked for.
    """

    name: str
    child: Child
    request: Any = None


def run_in_turn(children: list[Child], rounds: int, warm_up: int = 1) -> list[Row]:
    """Let the children run their epochs in turn.

    Args:
        children: one for each configuration.
        rounds: epochs that count.
        warm_up: epochs before, which do not.
    """
    return run_turns([Turn(child.name, child) for child in children], rounds, warm_up)


def run_turns(turns: list[Turn], rounds: int, warm_up: int = 1) -> list[Row]:
    """Let turns follow each other, `run_in_turn` with requests.

    Args:
        turns: one for each row.
        rounds: epochs that count.
        warm_up: epochs before, which do not.
    """
    epochs: dict[str, list[Epoch]] = {turn.name: [] for turn in turns}
    for number in range(warm_up + rounds):
        for turn in turns:
            if number < warm_up:
                turn.child.epoch(turn.request)
            else:
                epochs[turn.name].append(_undisturbed(turn))
    return [_row(name, found) for name, found in epochs.items()]


def _undisturbed(turn: Turn) -> Epoch:
    """Return an epoch that the machine had time for, or after `TRIES` the best one."""
    tried = []
    for number in range(TRIES):
        tried.append(turn.child.epoch(turn.request))
        if tried[-1].foreign <= MOST_FOREIGN:
            break
        time.sleep(0.02 * number)
    return min(tried, key=operator.attrgetter("foreign"))


def _row(name: str, epochs: list[Epoch]) -> Row:
    speeds = [epoch.items / epoch.total_s for epoch in epochs]
    return Row(
        name=name,
        items_per_s=statistics.median(speeds),
        slowest=min(speeds),
        fastest=max(speeds),
        first_ms=statistics.median(epoch.first_s for epoch in epochs) * 1e3,
        foreign=max(epoch.foreign for epoch in epochs),
        epochs=speeds,
    )


def ratio(row: Row, other: Row) -> float:
    """Return the median, over rounds, of how much faster ``row`` was than ``other``."""
    pairs = zip(row.epochs, other.epochs, strict=True)
    return statistics.median(a / b for a, b in pairs)


def environment() -> dict[str, Any]:
    """Return what a figure depends on besides the code."""
    is_gil_enabled = getattr(sys, "_is_gil_enabled", lambda: True)()
    config = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return {
        "python": platform.python_version(),
        "free_threaded_build": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "gil_enabled": is_gil_enabled,
        "optimised_build": "--enable-optimizations" in config
        and "--with-lto" in config,
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "machine": platform.machine(),
        "allocator": os.environ.get("GLIBC_TUNABLES", "default"),
        "versions": {name: _version(name) for name in _COMPARED},
    }


_COMPARED = ("numpy", "torch", "dataloader-rs", "dataloader-ft")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def write_json(path: Path, rows: dict[str, list[Row]]) -> None:
    """Write rows by workload, with the environment, as JSON."""
    report = {
        "environment": environment(),
        "rows": {name: [asdict(row) for row in found] for name, found in rows.items()},
    }
    path.write_text(json.dumps(report, indent=1))


def read_rows(path: Path) -> dict[str, list[Row]]:
    """Return the rows that `write_json` wrote."""
    rows = json.loads(path.read_text())["rows"]
    return {name: [Row(**row) for row in found] for name, found in rows.items()}

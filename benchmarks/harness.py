"""Measuring loaders against each other: one process each, epochs in turn.

Allocator settings, loaded libraries and warm caches are the process's, so every
configuration runs in a process of its own. The processes live as long as the run and
take turns epoch by epoch, so that a machine whose speed drifts slows all of them alike;
ratios are quoted, pair by pair within a round.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

__all__ = ["Child", "Epoch", "Row", "environment", "run_in_turn", "write_json"]


@dataclass(frozen=True)
class Epoch:
    """What one epoch took.

    Attributes:
        items: samples delivered.
        total_s: from ``iter()`` to the end of the epoch.
        first_s: from ``iter()`` to the first batch.
    """

    items: int
    total_s: float
    first_s: float


@dataclass(frozen=True)
class Row:
    """One configuration over all rounds: medians, and the spread of the throughput."""

    name: str
    items_per_s: float
    slowest: float
    fastest: float
    first_ms: float
    epochs: list[float]


class Child:
    """A process that runs one epoch whenever it is told to.

    Args:
        module: a module with ``serve(spec)``, see `benchmarks.bench_workloads`.
        name: the configuration's name in the report.
        spec: what the child is to run, handed over as JSON.
        env: environment variables to add.
    """

    def __init__(
        self, module: str, name: str, spec: dict[str, Any], env: dict[str, str]
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--child", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )

    def epoch(self) -> Epoch:
        """Run one epoch in the child."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("epoch\n")
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


def run_in_turn(children: list[Child], rounds: int, warm_up: int = 1) -> list[Row]:
    """Let the children run their epochs in turn.

    Args:
        children: one for each configuration.
        rounds: epochs that count.
        warm_up: epochs before, which do not.
    """
    epochs: dict[str, list[Epoch]] = {child.name: [] for child in children}
    for number in range(warm_up + rounds):
        for child in children:
            epoch = child.epoch()
            if number >= warm_up:
                epochs[child.name].append(epoch)
    return [_row(name, found) for name, found in epochs.items()]


def _row(name: str, epochs: list[Epoch]) -> Row:
    speeds = [epoch.items / epoch.total_s for epoch in epochs]
    return Row(
        name=name,
        items_per_s=statistics.median(speeds),
        slowest=min(speeds),
        fastest=max(speeds),
        first_ms=statistics.median(epoch.first_s for epoch in epochs) * 1e3,
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

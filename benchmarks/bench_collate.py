"""Collation: arrays, mappings and tensors into batches, against memcpy and torch.

    scripts/bench --with-torch collate         # or, in an environment that has torch:
    python -X gil=0 -m benchmarks.bench_collate --json out.json

CPython 3.14.7t (PGO and LTO), two shared cores, NumPy 2.5, torch 2.14.1. Microseconds a
batch, medians of 15 rounds (of 3 for the loader); in brackets "ours / it", the median
of the ratios within a round.

=============  =====  ============  ============  ============  =============
case            ours         numpy         fresh         stack          torch
=============  =====  ============  ============  ============  =============
32 x 147 KB    139.3  123.0 (0.90)  112.9 (0.85)  155.9 (1.09)   2207 (15.24)
64 x 256         4.9    3.4 (0.62)                 11.0 (2.12)   79.9 (16.43)
256 x 8          4.9    3.3 (0.66)                 30.6 (6.19)  269.0 (53.85)
64 dicts of 6   28.3   19.5 (0.68)                 63.4 (2.27)  436.5 (15.59)
loader         129.4                                             2993 (22.30)
=============  =====  ============  ============  ============  =============

*reused* takes 114.1 us (0.81). Where we lose: a large batch takes a fifth longer than
the copy of its bytes alone. torch's row of large batches is noisy; it was 404 us in
another run.

How it is measured. Everything runs in one process, in turns of 20 ms, with one thread
of torch's own, as in the workers of its loader. *stack* is ``torch.stack`` of tensors
that exist already, which for mappings includes taking them out of these; *torch* is
torch's ``default_collate`` of the arrays. *fresh* and *reused* copy the bytes of a
batch from one array to another, new or not; their "batches" are the limit for large
samples. *loader* is a whole epoch of `TensorDataset`, shuffled, without workers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dataloader
from benchmarks.harness import (
    Child,
    Epoch,
    Row,
    Turn,
    answer,
    ratio,
    run_turns,
    write_json,
)
from benchmarks.loaders import is_installed

MODULE = "benchmarks.bench_collate"
TURN_S = 0.02
ROWS, COLUMNS, BATCH = 1_000_000, 10, 1024

Side = Callable[[], Any]
"""What is timed: makes one batch, or an epoch of them."""


def arrays(count: int, *shape: int) -> list[Any]:
    """Return float32 samples."""
    return [np.random.default_rng(n).random(shape, np.float32) for n in range(count)]


def mappings(count: int) -> list[Any]:
    """Return samples that are dicts of six arrays of 8 floats."""
    columns = [arrays(count, 8) for _ in "abcdef"]
    return [dict(zip("abcdef", row, strict=True)) for row in zip(*columns, strict=True)]


CASES: dict[str, Callable[[], list[Any]]] = {
    "32 x 147 KB": lambda: arrays(32, 3, 112, 112),
    "64 x 256": lambda: arrays(64, 256),
    "256 x 8": lambda: arrays(256, 8),
    "64 dicts of 6": lambda: mappings(64),
}
LARGE, LOADER = "32 x 147 KB", "loader"


def sides(case: str) -> dict[str, Side]:
    """Return what is compared in a case, by name."""
    if case == LOADER:
        return loader_sides()
    batch = CASES[case]()
    found: dict[str, Side] = {
        "ours": lambda: dataloader.default_collate(batch),
        "numpy": lambda: dataloader.numpy_collate(batch),
    }
    if case == LARGE:
        found |= copy_sides(batch)
    return found | torch_sides(batch) if is_installed("torch") else found


def copy_sides(batch: list[Any]) -> dict[str, Side]:
    """Return plain copies of as many bytes as the batch has."""
    source = np.stack(batch)
    target = source.copy()
    return {"fresh": source.copy, "reused": lambda: np.copyto(target, source)}


def torch_sides(batch: list[Any]) -> dict[str, Side]:
    """Return what torch has for the same batch."""
    import torch
    from torch.utils.data import default_collate

    def tensors(sample: Any) -> Any:
        if isinstance(sample, dict):
            return {key: torch.from_numpy(array) for key, array in sample.items()}
        return torch.from_numpy(sample)

    samples = [tensors(sample) for sample in batch]

    def stack() -> Any:
        if isinstance(samples[0], dict):
            return {key: torch.stack([s[key] for s in samples]) for key in samples[0]}
        return torch.stack(samples)

    return {"stack": stack, "torch": lambda: default_collate(batch)}


def loader_sides() -> dict[str, Side]:
    """Return an epoch of each loader over a table."""
    table = np.random.default_rng(0).random((ROWS, COLUMNS), np.float32)
    labels = np.arange(ROWS)
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True}

    def epoch(loader: Any) -> Side:
        return lambda: sum(1 for _ in loader)

    if not is_installed("torch"):
        own = dataloader.TensorDataset(table, labels)
        return {"ours": epoch(dataloader.DataLoader(own, **options))}
    import torch
    from torch.utils import data

    tensors = [torch.from_numpy(column) for column in (table, labels)]
    ours = dataloader.DataLoader(dataloader.TensorDataset(*tensors), **options)
    theirs = data.DataLoader(data.TensorDataset(*tensors), **options)
    return {"ours": epoch(ours), "torch": epoch(theirs)}


def serve() -> None:
    """Run turns of whatever side of whatever case is asked for."""
    if is_installed("torch"):
        import torch

        torch.set_num_threads(1)
    made: dict[str, dict[str, Side]] = {}

    def turn(request: list[str]) -> Epoch:
        case, name = request
        if case not in made:
            made[case] = sides(case)
        return timed(made[case][name])

    answer(turn)


def timed(side: Side) -> Epoch:
    """Call a side for `TURN_S`, once at least; an item is a call."""
    calls, start = 0, time.perf_counter()
    while True:
        side()
        calls += 1
        elapsed_s = time.perf_counter() - start
        if elapsed_s >= TURN_S:
            return Epoch(calls, elapsed_s, 0)


def names(case: str) -> list[str]:
    """Return the names of a case's sides."""
    theirs = ["torch"] if is_installed("torch") else []
    if case == LOADER:
        return ["ours", *theirs]
    copies = ["fresh", "reused"] if case == LARGE else []
    return ["ours", "numpy", *copies, *(["stack", *theirs] if theirs else [])]


def print_case(case: str, rows: list[Row]) -> None:
    """Print microseconds a batch, and how many times faster ours is."""
    ours = rows[0]
    batches = -(-ROWS // BATCH) if case == LOADER else 1
    print(f"\n{case:<16}{'us / batch':>12}{'ours / it':>12}")
    for row in rows:
        cost_us = 1e6 / row.items_per_s / batches
        print(f"  {row.name:<14}{cost_us:>12.1f}{ratio(ours, row):>12.2f}")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--cases", nargs="+", default=[*CASES, LOADER])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    if options.child:
        serve()
        return
    found: dict[str, list[Row]] = {}
    with Child(MODULE, "all", json.dumps(None), {}) as child:
        for case in options.cases:
            turns = [Turn(name, child, [case, name]) for name in names(case)]
            rounds = min(options.rounds, 3) if case == LOADER else options.rounds
            found[case] = run_turns(turns, rounds)
            print_case(case, found[case])
    if options.json:
        write_json(options.json, found)


if __name__ == "__main__":
    main()

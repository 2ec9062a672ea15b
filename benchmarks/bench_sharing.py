"""Reference counts of what all threads read: what `share` gains, and on what.

    scripts/bench sharing                      # or, in an environment that has them:
    python -X gil=0 -m benchmarks.bench_sharing --workers 2 4 --json out.json

CPython 3.14.7t (PGO and LTO), two shared cores, NumPy 2.5, torch 2.14.1, dataloader-rs
0.2.0. Thousands of items per second over all threads, medians of 5 rounds in which all
configurations take turns, each in a process of its own. "2 / 1" is the median of the
ratios within a round.

==========  ============  =======  =======  =======  =======  =====
body        mode            1 thr    2 thr    4 thr    8 thr  2 / 1
==========  ============  =======  =======  =======  =======  =====
tokens      shared           22.1     14.0     12.5     12.8   0.65
            interned         23.9     23.1     23.2     24.7   0.99
            deferred         23.5     27.3     27.0     27.7   1.15
            share            27.0     52.1     51.1     49.7   1.96
            immortal         27.2     52.0     51.0     49.7   1.89
            per-thread       24.9     45.4     48.3     48.0   1.88
samples     shared         11,421   11,619   13,756   15,267   1.02
            interned       11,357   13,334   14,828   15,845   1.16
            deferred        9,589   10,619   12,716   14,116   1.08
            share          10,034   11,786   12,845   14,148   1.17
            immortal       10,523   16,086   16,800   16,026   1.57
            per-thread     12,265   23,437   22,973   22,765   1.92
==========  ============  =======  =======  =======  =======  =====

The whole loader on the same tokens, medians of 9 rounds; "ours / it" compares with ours
on the same workload with as many workers:

==================  ===========  =========  =========
workload            loader         items/s  ours / it
==================  ===========  =========  =========
python_cpu          ours w=2        13,245
                    ours w=4        14,473
                    rs w=2          12,568       1.06
                    rs w=4          11,845       1.25
                    torch w=2       28,009       0.47
                    torch w=4       27,239       0.53
python_cpu_share    ours w=2        41,252
                    ours w=4        43,921
                    rs w=2          46,315       0.90
                    rs w=4          41,726       0.98
                    torch w=2       28,073       1.39
                    torch w=4       26,741       1.62
python_cpu_local    ours w=2        42,838
                    ours w=4        40,658
                    rs w=2          44,784       0.97
                    rs w=4          42,742       0.98
                    torch w=2       30,484       1.40
                    torch w=4       29,627       1.42
==================  ===========  =========  =========

How to read it. *tokens* looks 360 words up in one dict; *samples* takes rows of a text
and a weight from ``self.data[i]``. *shared* is what happens by itself, *interned* has
its strings interned and nothing else, *deferred* is ``share(obj, strings=False)``,
*share* and *immortal* are `share` without and with ``immortal=True``, and with
*per-thread* each thread builds the data for itself. Strings and containers both
contend: in *tokens* either remedy alone gains little, and both together scale with the
cores. What is shared is the process's, so dataloader-rs gains by `share` too.

Where we lose. Rows of *samples* are tuples with a number in them, which `share` leaves
counted unless they are to be immortal, and separate copies are faster than either. With
2 workers the whole loader is 3 to 10 percent behind dataloader-rs on the last two
workloads, whose epochs take 50 ms: that is hand-over, not sharing. The rows *deferred*,
*share* and *immortal* of *samples* were measured when `share` still asked objects for
their ``__dict__``, which slows the reading of their attributes down and which it no
longer does; they are lower than what is to be expected now. The machine is shared and
noisy: runs in which other programs took over 6 percent of a core were thrown away for
the first table.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import bench_workloads
from benchmarks.harness import (
    Child,
    Epoch,
    Row,
    answer,
    ratio,
    run_in_turn,
    write_json,
)
from benchmarks.workloads import BATCH_SIZE, VOCABULARY, WORDS, WORKLOADS
from dataloader import share
from dataloader.fetch import fetch_items
from dataloader.worker_info import Scope

MODULE = "benchmarks.bench_sharing"
MODES = ("shared", "interned", "deferred", "share", "immortal", "per-thread")
LOADED = ("python_cpu", "python_cpu_share", "python_cpu_local")


class Samples:
    """Rows of a text and a weight in a list, each read and used."""

    length = 4096

    def __init__(self) -> None:
        self.data = [(f"sample {i}", i / 7) for i in range(self.length)]

    def __getitem__(self, index: int) -> float:
        text, weight = self.data[index]
        return len(text) * weight


def make_tokens(mode: str) -> Any:
    """Return the dataset of python_cpu, its tables prepared as ``mode`` says."""
    if mode == "per-thread":
        return WORKLOADS["python_cpu_local"]()
    if mode == "interned":
        WORDS[:] = map(sys.intern, WORDS)
        table = {sys.intern(word): number for word, number in VOCABULARY.items()}
        VOCABULARY.clear()
        VOCABULARY.update(table)
    else:
        apply([WORDS, VOCABULARY], mode)
    return WORKLOADS["python_cpu"]()


def make_samples(mode: str) -> Any:
    """Return a list of samples, prepared as ``mode`` says."""
    dataset = Samples()
    if mode == "interned":
        dataset.data = [(sys.intern(text), weight) for text, weight in dataset.data]
    else:
        apply(dataset, mode)
    return dataset


def apply(obj: Any, mode: str) -> None:
    """Apply `share` with the options that a mode stands for."""
    if mode == "deferred":
        share(obj, strings=False)
    elif mode in ("share", "immortal"):
        share(obj, immortal=mode == "immortal")


BODIES = {"tokens": make_tokens, "samples": make_samples}
REPEATS = {"tokens": 4, "samples": 1000}


def run_threads(make: Any, threads: int, repeats: int) -> float:
    """Let threads fetch all batches between them; return the seconds it took.

    Args:
        make: called in each thread for the dataset that it reads.
        threads: how many.
        repeats: passes over the dataset.
    """
    together = threading.Barrier(threads)
    spans: list[tuple[float, float]] = []

    def work(number: int) -> None:
        dataset, scope = make(), Scope(0, 0)
        batches = range(number, dataset.length // BATCH_SIZE, threads)
        together.wait()
        start = time.perf_counter()
        for _ in range(repeats):
            for batch in batches:
                indices = range(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE)
                fetch_items(dataset, len, (batch, 0, indices), scope)
        spans.append((start, time.perf_counter()))

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(end for _, end in spans) - min(start for start, _ in spans)


def serve(spec: dict[str, Any]) -> None:
    """Run epochs of one configuration: one for each line on standard input."""
    body, mode, repeats = spec["body"], spec["mode"], REPEATS[spec["body"]]
    dataset = BODIES[body](mode)
    is_own = mode == "per-thread" and body == "samples"
    make = Samples if is_own else lambda: dataset
    items = dataset.length * repeats
    answer(lambda _: Epoch(items, run_threads(make, spec["threads"], repeats), 0))


def measure(body: str, threads: list[int], rounds: int) -> list[Row]:
    """Measure all modes at all numbers of threads, their epochs in turn."""
    specs = [
        {"body": body, "mode": mode, "threads": count}
        for mode in MODES
        for count in threads
    ]
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(MODULE, f"{s['mode']} {s['threads']}", s, {}))
            for s in specs
        ]
        return run_in_turn(children, rounds)


def print_table(body: str, threads: list[int], rows: list[Row]) -> None:
    """Print thousands of items per second, and what the last threads add to one."""
    by_name = {row.name: row for row in rows}
    heads = "".join(f"{f'{count} thr':>10}" for count in threads)
    pair = f"{threads[1]} / {threads[0]}" if len(threads) > 1 else ""
    print(f"\n{body + ', k items/s':<22}{heads}{pair:>10}")
    for mode in MODES:
        found = [by_name[f"{mode} {count}"] for count in threads]
        speeds = "".join(f"{row.items_per_s / 1e3:>10,.1f}" for row in found)
        scaling = f"{ratio(found[1], found[0]):>10.2f}" if pair else ""
        print(f"  {mode:<20}{speeds}{scaling}")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--parts", nargs="+", default=[*BODIES, *LOADED])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--workers", nargs="+", type=int, default=[2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    if options.child:
        serve(json.loads(options.child))
        return
    found: dict[str, list[Row]] = {}
    for part in options.parts:
        if part in BODIES:
            found[part] = measure(part, options.threads, options.rounds)
            print_table(part, options.threads, found[part])
        else:
            found[part] = bench_workloads.measure(
                part, options.workers, options.rounds, {}
            )
            bench_workloads.print_table(part, found[part])
    if options.json:
        write_json(options.json, found)


if __name__ == "__main__":
    main()

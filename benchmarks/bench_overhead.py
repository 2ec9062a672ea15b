"""What the loader itself costs a batch, over batches of any size and cost.

    scripts/bench overhead [--quick]           # or, in an environment that has both:
    python -X gil=0 -m benchmarks.bench_overhead --part drain --json out.json

Parts: `sizes` has batches that cost nothing, of 1 to 512 samples; `drain`, `50us` and
`1ms` go over the cost of a batch, for a consumer that only drains and for two that work
so long on each. `stats` is what statistics cost; `first`, `new` and `iter` time the
first batch of an epoch, that of a new loader, and ``iter()`` alone. Parts that are
measured one by one come together in one file of JSON.

How it is measured. A sample costs loops of pure Python that touch nothing of another
thread's; how many, is found once in a run (`benchmarks.costly`). Each loader has a
process of its own, epochs take about 0.15 s and turns. A column is the median over the
rounds, in microseconds a batch. "worth" is ours with workers against the better of ours
without and dataloader-rs with as many, each the median of the ratios within a round; it
should not fall below 0.95 for a consumer that drains, nor below 0.85, from 10 us on
0.95, for one that works. For `stats`, each process runs its epochs with and without
what is done for ``loader.stats()`` alone; the figure is what that adds.

torch is not loaded in these processes. Where it is, a consumer that may load batches
also asks before each of them whether one of torch's modes is active.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import (
    Child,
    Row,
    Turn,
    answer,
    ratio,
    read_rows,
    run_turns,
    write_json,
)
from benchmarks.loaders import is_installed
from benchmarks.overhead import Cell, Server

MODULE = "benchmarks.bench_overhead"
SIZES = (1, 8, 32, 128, 512)
COSTS_US = (1, 2, 5, 10, 20, 30, 50, 100, 200, 500, 1000, 10000)
QUICK_COSTS_US = (1, 5, 20, 100, 1000)
SWEEPS_US = {"drain": 0, "50us": 50, "1ms": 1000}
"""The parts that go over the costs, by what their consumer does for each batch."""

CALLS = ("first", "new", "iter")
STATS_COSTS_US = (5, 20, 100)
PARTS = ("sizes", *SWEEPS_US, "stats", *CALLS)

Report = dict[str, list[Row]]
"""Rows by the name of their cell."""


def cells(part: str, is_quick: bool) -> list[Cell]:
    """Return the lines of a part's table."""
    if part == "sizes":
        return [Cell(part, size) for size in SIZES]
    if part == "stats":
        idle = [Cell(part, size) for size in (1, 32)]
        return [*idle, *(Cell(part, 1, cost) for cost in STATS_COSTS_US)]
    if part in SWEEPS_US:
        costs = QUICK_COSTS_US if is_quick else COSTS_US
        return [Cell(part, 1, cost, SWEEPS_US[part]) for cost in costs]
    return [Cell(part, 32, calls=part), Cell(part, 1, 100, calls=part)]


def configurations(part: str, workers: list[int]) -> list[tuple[str, int]]:
    """Return the loaders of a part, with their numbers of workers."""
    if part == "stats":
        return [("ours", count) for count in (0, *workers)]
    counts = (0, *workers, 8) if part == "iter" else (0, *workers)
    names = [name for name in ("ours", "rs") if is_installed(name)]
    return [(name, count) for name in names for count in counts]


def turns(cell: Cell, children: list[Child]) -> list[Turn]:
    """Return what is measured in a round of a cell."""
    request = cell.request()
    found = [Turn(child.name, child, request) for child in children]
    if cell.part == "stats":
        without = {**request, "record": False}
        off = [Turn(f"{child.name} off", child, without) for child in children]
        # One after the other in the same process, as the difference is small.
        return [turn for pair in zip(found, off, strict=True) for turn in pair]
    return found


def measure(part: str, workers: list[int], rounds: int, is_quick: bool) -> Report:
    """Measure a part, the epochs of its loaders in turn."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(MODULE, f"{name} w={count}", [name, count], {}))
            for name, count in configurations(part, workers)
        ]
        return {
            cell.name: run_turns(turns(cell, children), rounds)
            for cell in cells(part, is_quick)
        }


def by_name(rows: list[Row]) -> dict[str, Row]:
    """Return rows by the names of their loaders."""
    return {row.name: row for row in rows}


def worth(rows: dict[str, Row], workers: int) -> float:
    """Return how fast ours is with workers, against the better of two others.

    They are ours without workers, and dataloader-rs with as many.
    """
    ours = rows[f"ours w={workers}"]
    others = [rows[n] for n in ("ours w=0", f"rs w={workers}") if n in rows]
    return min(ratio(ours, other) for other in others)


def line(rows: dict[str, Row], workers: list[int]) -> str:
    """Return the figures of a cell of a sweep, in microseconds."""

    def each(name: str) -> str:
        return f"{1e6 / rows[name].items_per_s:>8.2f}" if name in rows else " " * 8

    text = each("ours w=0") + each("rs w=0")
    for count in workers:
        text += each(f"ours w={count}") + each(f"rs w={count}")
        text += f"{worth(rows, count):>6.2f}"
    firsts = [rows[f"ours w={count}"].first_ms * 1e3 for count in (0, *workers)]
    return text + "".join(f"{first:>7.0f}" for first in firsts)


def print_sweep(part: str, report: Report, workers: list[int]) -> None:
    """Print microseconds a batch, and to the first one."""
    pairs = "".join(f"{f'{count} workers':>22}" for count in workers)
    counts = "".join(f"{count:>7}" for count in (0, *workers))
    columns = f"{'ours':>8}{'rs':>8}{'worth':>6}" * len(workers)
    print(f"\n{part:<10}{'no workers':>16}{pairs}   first with")
    print(f"{'':<10}{'ours':>8}{'rs':>8}{columns}{counts}")
    for name, rows in report.items():
        print(f"{name.partition(' ')[2]:<10}{line(by_name(rows), workers)}")


def print_calls(part: str, report: Report) -> None:
    """Print what the timed call took, in microseconds."""
    names = [row.name for row in next(iter(report.values()))]
    print(f"\n{part:<10}" + "".join(f"{name:>10}" for name in names))
    for name, rows in report.items():
        values = "".join(f"{row.first_ms * 1e3:>10.1f}" for row in rows)
        print(f"{name.partition(' ')[2]:<10}{values}")


def print_stats(report: Report, workers: list[int]) -> None:
    """Print which part of an epoch goes into statistics."""
    print(f"\n{'stats':<10}" + "".join(f"{f'w={n}':>10}" for n in (0, *workers)))
    for name, rows in report.items():
        found = by_name(rows)
        losses = [
            1 - ratio(found[f"ours w={count}"], found[f"ours w={count} off"])
            for count in (0, *workers)
        ]
        text = "".join(f"{loss:>10.1%}" for loss in losses)
        print(f"{name.partition(' ')[2]:<10}{text}")


def print_part(part: str, report: Report, workers: list[int]) -> None:
    """Print the table of a part."""
    if part == "stats":
        print_stats(report, workers)
    elif part in CALLS:
        print_calls(part, report)
    else:
        print_sweep(part, report, workers)


def part_of(report: Report, part: str) -> Report:
    """Return the cells of a part."""
    return {n: rows for n, rows in report.items() if n.partition(" ")[0] == part}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--part", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="fewer costs and rounds")
    parser.add_argument("--show", action="store_true", help="print --json's figures")
    parser.add_argument("--json", type=Path, help="add all figures to this file")
    options = parser.parse_args()
    if options.child:
        answer(Server(*json.loads(options.child)).epoch)
        return
    report = read_rows(options.json) if options.json and options.json.exists() else {}
    for part in options.part:
        if not options.show:
            rounds = 3 if options.quick else options.rounds
            report |= measure(part, options.workers, rounds, options.quick)
        print_part(part, part_of(report, part), options.workers)
        if options.json and not options.show:
            write_json(options.json, report)


if __name__ == "__main__":
    main()

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

Two shared cores, CPython 3.14.7t (PGO and LTO), dataloader-rs 0.2.0, 5 rounds, in
microseconds a batch, before the limit of the inline mode was raised from 4 to 6 us:

=========  ================  ======================  ======================
sizes            no workers               2 workers               4 workers
               ours      rs      ours      rs worth      ours      rs worth
=========  ================  ======================  ======================
1 items        0.37    0.21      0.39    1.69  0.98      0.40    3.13  0.93
8 items        0.61    0.49      0.63    0.93  0.97      0.63    3.17  0.98
32 items       1.63    1.75      1.59    3.80  1.01      1.60    2.92  1.09
128 items      5.62    6.36      6.33    9.86  0.90      5.47    9.95  0.97
512 items     20.72   26.22     15.51   29.84  1.31     15.83   33.62  1.41
=========  ================  ======================  ======================

=========  ================  ======================  ======================
drain            no workers               2 workers               4 workers
               ours      rs      ours      rs worth      ours      rs worth
=========  ================  ======================  ======================
1 us           1.36    1.11      1.38    1.67  1.00      1.45    1.57  1.00
2 us           2.26    1.93      2.27    2.39  0.99      2.34    2.37  0.97
5 us           4.05    3.62      4.82    4.46  0.86      5.08    3.95  0.81
10 us         11.11    9.78      7.83    7.43  0.92      8.08    6.42  0.80
20 us         20.80   19.54     14.09   13.57  0.97     14.66   12.57  0.84
30 us         29.59   28.80     17.83   27.10  1.49     18.09   18.94  1.06
50 us         66.62   50.84     36.41   33.88  0.93     38.49   27.38  0.83
100 us        94.05   92.04     52.82   50.51  0.97     53.76   50.42  0.94
200 us       189.10  191.00    106.66  104.24  0.95    106.57   98.51  0.92
500 us       461.65  458.09    252.17  245.70  0.96    255.88  246.24  0.97
1000 us      938.72  952.37    502.39  504.51  1.00    506.33  507.55  1.02
10000 us    9002.90 9140.43   4870.12 4840.41  1.03   4841.12 4729.44  1.00
=========  ================  ======================  ======================

=========  ================  ======================  ======================
50us             no workers               2 workers               4 workers
               ours      rs      ours      rs worth      ours      rs worth
=========  ================  ======================  ======================
1 us          54.26   51.81     55.38   60.15  0.98     53.31   55.61  1.03
2 us          54.86   53.19     56.92   57.33  0.96     56.15   54.31  0.97
5 us          60.41   61.19     56.68   56.03  0.99     58.83   53.63  0.92
10 us         64.32   61.30     57.79   55.86  0.97     59.45   53.51  0.92
20 us         65.17   63.15     55.54   58.47  1.01     57.78   53.61  0.93
30 us         87.25   83.17     60.15   59.95  0.95     61.23   53.91  0.86
50 us        112.31  104.70     61.43   55.55  0.89     64.93   53.18  0.89
100 us       159.78  155.42     86.98   89.25  0.97     82.84   85.54  1.03
200 us       279.96  271.22    151.40  165.65  1.10    152.87  155.97  0.95
500 us       622.78  616.41    333.09  359.13  1.07    348.75  410.80  1.01
1000 us     1118.95 1101.66    584.32  608.97  1.06    613.49  599.20  0.97
10000 us   10996.0610860.46   5791.85 6117.92  0.95   5585.01 5482.82  0.98
=========  ================  ======================  ======================

=========  ================  ======================  ======================
1ms              no workers               2 workers               4 workers
               ours      rs      ours      rs worth      ours      rs worth
=========  ================  ======================  ======================
1 us        1165.96 1449.67   1193.59 1381.73  1.03   1177.04 1564.49  0.99
2 us        1165.25 1096.30   1051.16 1121.63  1.01   1109.76 1065.99  0.96
5 us        1097.05 1208.06   1219.15 1071.37  0.87   1314.30 1307.34  0.84
10 us       1102.64 1069.81   1116.05 1110.14  0.98   1281.72 1042.98  0.81
20 us       1107.63 1181.60   1107.36 1109.98  0.95   1107.84 1144.30  1.04
30 us       1099.10 1041.02   1056.44 1133.23  1.00   1151.52 1144.34  0.95
50 us       1145.98 1061.40   1144.05 1146.86  0.97   1098.89 1180.36  1.00
100 us      1240.69 1244.07   1111.03 1224.98  1.10   1108.13 1158.67  1.02
200 us      1298.23 1242.79   1198.71 1265.54  1.04   1167.44 1166.72  1.00
500 us      1623.96 1846.71   1123.52 1427.63  1.29   1189.97 1157.83  1.04
1000 us     2350.57 2651.78   1303.16 1469.06  1.01   1278.34 1306.04  0.96
10000 us   12802.0411705.75   6857.74 6809.46  0.99   6017.06 6465.12  1.04
=========  ================  ======================  ======================

First batch of an epoch, in microseconds: 18 without workers, 58 with 2 and 57 with 4
(dataloader-rs 4, 16 and 12); of a new loader 21, 170 and 172 (5, 174 and 271). iter()
alone: 15, 48 and 45, and 50 with 8 workers (3, 10, 10 and 12). These are of cells that
follow each other; the first epoch after a pause, with cold caches, has its first batch
after 160 without and 350 with workers. Statistics cost between -4 and 4 %, which is the
noise.

How to read it. Batches that cost less than 4 us here, and those of many samples, are
level with no workers or better. From 200 us on, and for a consumer that works, handing
over costs as good as nothing.

Where we lose. From 5 to 50 us a batch, what hands it over is Python code on both sides,
2 to 3 us of it, and with 4 workers on 2 cores dataloader-rs is faster by up to a fifth;
so for a consumer that works 50 us beside batches of 10 to 50 us, by up to a seventh. An
empty batch of one sample costs 0.16 us more than its. Rows of `1ms` are noisy: the
consumer's own work varied by a tenth.
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

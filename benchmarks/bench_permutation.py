"""How fast random orders are made: indices per second, compiled and not.

    scripts/bench permutation                  # or, in an environment that has them:
    python -X gil=0 -m benchmarks.bench_permutation --json out.json

CPython 3.14.7t (PGO and LTO), two shared cores, NumPy 2.5, torch 2.14.1 with one
thread. Millions of indices per second, medians of 5 rounds in which all take turns,
each in a process of its own:

====================  ======  ======  =====  =====
what one call makes   cython  python  numpy  torch
====================  ======  ======  =====  =====
one, n=10**9             2.6    0.12
32, n=10**9               19    0.45
256, n=10**9              50     2.2
8192, n=10**5             73      20
8192, n=10**9             82      31
8192, n=2**63-1           76      34
8192 places, n=10**9      72      28
whole, n=4096             95      18     90    173
whole, n=10**6            72      16     54    149
whole, n=10**7            48      12     14     20
====================  ======  ======  =====  =====

How to read it. *cython* and *python* are the twins. "32" to "8192" are slices in a row
of one order, and 8192 is what a loader makes at a time; "one" is a single position, and
"places" is a slice of random positions. NumPy and torch make an order whole
(``Generator.permutation`` and ``randperm``), which is for scale: they cannot begin
before the end, and of 10**9 indices hold 8 GB. Ours has the first 256 of any order
after 4 us compiled, and 70 us in Python.

Where we lose. torch shuffles what fits into the processor's caches two times faster. A
call costs 1 us compiled (0.3 for one position), and 70 in Python, where NumPy takes
some hundred small steps: ask for slices.

The machine is shared. During the last three rows other programs kept both cores busy;
the fastest rounds made 102, 22, 91 and 181; 79, 28, 87 and 168; 80, 18, 27 and 33.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Child, Epoch, Row, Turn, answer, run_turns, write_json

MODULE = "benchmarks.bench_permutation"
TWINS = {"cython": "_permutation_c", "python": "_permutation_py"}
SHUFFLES = ("numpy", "torch")
EPOCH_S = 0.1


@dataclass(frozen=True)
class Cell:
    """One line of the table.

    Attributes:
        call: a key of `CALLS`.
        n: size of the range that is shuffled.
        length: indices that one call makes.
    """

    call: str
    n: int
    length: int


CELLS = {
    "one, n=10**9": Cell("one", 10**9, 1),
    "32, n=10**9": Cell("slice", 10**9, 32),
    "256, n=10**9": Cell("slice", 10**9, 256),
    "8192, n=10**5": Cell("slice", 10**5, 8192),
    "8192, n=10**9": Cell("slice", 10**9, 8192),
    "8192, n=2**63-1": Cell("slice", 2**63 - 1, 8192),
    "8192 places, n=10**9": Cell("places", 10**9, 8192),
    "whole, n=4096": Cell("whole", 4096, 4096),
    "whole, n=10**6": Cell("whole", 10**6, 10**6),
    "whole, n=10**7": Cell("whole", 10**7, 10**7),
}

Make = Callable[[int], object]
"""Makes a call's indices; the argument is the number of the call."""


def _one(twin: Any, cell: Cell) -> Make:
    return lambda number: twin.permute(number, cell.n, 1)


def _slice(twin: Any, cell: Cell) -> Make:
    slices = cell.n // cell.length

    def make(number: int) -> object:
        start = number % slices * cell.length
        return twin.permute_range(start, start + cell.length, cell.n, 1)

    return make


def _places(twin: Any, cell: Cell) -> Make:
    places = np.random.default_rng(1).integers(cell.n, size=cell.length)
    return lambda number: twin.permute_array(places, cell.n, number)


def _whole(twin: Any, cell: Cell) -> Make:
    return lambda number: twin.permute_range(0, cell.n, cell.n, number)


CALLS = {"one": _one, "slice": _slice, "places": _places, "whole": _whole}


def maker(who: str, cell: Cell) -> Make:
    """Return how one of the contenders makes the indices of a cell."""
    if who == "numpy":
        generator = np.random.default_rng(1)
        return lambda number: generator.permutation(cell.n)
    if who == "torch":
        torch = import_module("torch")
        torch.set_num_threads(1)
        return lambda number: torch.randperm(cell.n)
    return CALLS[cell.call](import_module(f"dataloader._fast.{TWINS[who]}"), cell)


def run(make: Make, length: int) -> Epoch:
    """Make indices for about `EPOCH_S`."""
    calls = 0
    start = time.perf_counter()
    first_s = elapsed_s = 0.0
    while elapsed_s < EPOCH_S:
        # Many at a time where one takes less than a look at the clock.
        for number in range(calls, calls + max(1, 1000 // length)):
            make(number)
        calls = number + 1
        elapsed_s = time.perf_counter() - start
        first_s = first_s or elapsed_s
    return Epoch(calls * length, elapsed_s, first_s)


def serve(who: str) -> None:
    """Make the indices of the cells that standard input names."""

    def epoch(name: str) -> Epoch:
        return run(maker(who, CELLS[name]), CELLS[name].length)

    answer(epoch)


def contenders() -> list[str]:
    """Return who is installed."""
    twins = [who for who in TWINS if find_spec(f"dataloader._fast.{TWINS[who]}")]
    return twins + [who for who in SHUFFLES if find_spec(who)]


def measure(names: list[str], rounds: int) -> dict[str, list[Row]]:
    """Measure all contenders at the cells with these names, in turn.

    Those that can only shuffle a whole range take part where that is asked for.
    """
    with ExitStack() as stack:
        children = {
            who: stack.enter_context(Child(MODULE, who, who, {}))
            for who in contenders()
        }
        return {
            name: run_turns(
                [
                    Turn(who, child, name)
                    for who, child in children.items()
                    if who in TWINS or CELLS[name].call == "whole"
                ],
                rounds,
            )
            for name in names
        }


def print_table(found: dict[str, list[Row]]) -> None:
    """Print millions of indices per second."""
    whos = contenders()
    print(f"{'M indices/s':<22}" + "".join(f"{who:>10}" for who in whos))
    for name, rows in found.items():
        speeds = {row.name: f"{row.items_per_s / 1e6:.3g}" for row in rows}
        print(f"{name:<22}" + "".join(f"{speeds.get(who, ''):>10}" for who in whos))


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    if options.child:
        serve(json.loads(options.child))
        return
    found = measure(options.cells, options.rounds)
    print_table(found)
    if options.json:
        write_json(options.json, found)


if __name__ == "__main__":
    main()

"""How random our orders are: statistics of them, beside those of a true shuffle.

    scripts/bench shuffle                      # or, in an environment that has them:
    python -X gil=0 -m benchmarks.bench_shuffle --json out.json

Ours are the orders of the epochs of one seed, compiled or not: they are the same. A
true shuffle is ``numpy.random.Generator.permutation``. "expected" is what the mean over
all orders there are would be, and "sigmas" how far off that is, in standard deviations:

================================  ========  ========  ======  ========  ======
10,000 orders, n=4097             expected      ours  sigmas      true  sigmas
================================  ========  ========  ======  ========  ======
values at 16 places, chi-square        240     233.3    -0.3     221.8    -0.8
pairs of neighbours, chi-square       1008    1019.6    +0.3    1092.4    +1.9
cycles                               8.895     8.885    -0.4     8.868    -1.0
values left in place                     1    0.9988    -0.1    0.9944    -0.6
even orders                            0.5    0.5001    +0.0    0.5065    +1.3
ascents                               2048    2048.4    +1.9    2047.7    -1.7
correlation of neighbours         -0.00024  -0.00024    +0.1  -0.00037    -0.8
================================  ========  ========  ======  ========  ======

================================  ========  ========  ======  ========  ======
400 orders, n=100003              expected      ours  sigmas      true  sigmas
================================  ========  ========  ======  ========  ======
values at 16 places, chi-square        240     228.3    -0.5     254.0    +0.6
pairs of neighbours, chi-square       1008    1010.6    +0.1     966.1    -0.9
cycles                               12.09     12.38    +1.8     11.98    -0.7
values left in place                     1      1.13    +2.6    1.0025    +0.0
even orders                            0.5     0.515    +0.6    0.5075    +0.3
ascents                              50001     50003    +0.3     50006    +1.0
correlation of neighbours         -0.00001  -0.00007    -0.4   0.00006    +0.5
================================  ========  ========  ======  ========  ======

How to read it. Of 28 figures one beyond 2.5 sigmas is nothing unusual; the one here is
chance: 20,000 further orders of another seed left 1.0027 values in place (+0.4 sigmas).
The tests ask the same and more of both twins, up to the largest ``n``
(``tests/test_permutation.py``). Chi-squares near 0 would be as bad as large ones.

Where we lose. A key has 64 bits, so of the orders of more than 20 values only a part
can come up. A shuffle whose generator is seeded with 64 bits, as torch's is, shares
that, but NumPy's takes longer seeds. Nothing here is meant for cryptography.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import environment
from dataloader._fast import derive_key, permute_range

Order = NDArray[np.int64]

# Of so many orders of so many values. 4097 is the least that the bijection makes.
SIZES = {4097: 10_000, 100_003: 400}
PLACES = 16


@dataclass(frozen=True)
class Finding:
    """What one statistic of many orders came to.

    Attributes:
        statistic: its name.
        expected: its mean over true random orders.
        found: what it was.
        deviation: by how many standard deviations the two differ.
    """

    statistic: str
    expected: float
    found: float
    deviation: float


def ours(n: int, count: int) -> Iterator[Order]:
    """Yield the orders of the first epochs of a seed."""
    for epoch in range(count):
        yield permute_range(0, n, n, derive_key(2024, epoch, 0))


def true_shuffles(n: int, count: int) -> Iterator[Order]:
    """Yield NumPy's shuffles, by Fisher and Yates, from PCG64."""
    generator = np.random.default_rng(2024)
    for _ in range(count):
        yield generator.permutation(n)


KINDS: dict[str, Callable[[int, int], Iterator[Order]]] = {
    "ours": ours,
    "true": true_shuffles,
}


def cycles(order: Order) -> int:
    """Return the number of cycles of a permutation."""
    following = order.tolist()
    count = 0
    for start in range(len(following)):
        if following[start] >= 0:
            count += 1
            while following[start] >= 0:
                following[start], start = -1, following[start]
    return count


class Statistics:
    """What is counted of orders of one size.

    Args:
        n: the size.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._positions = np.zeros((PLACES, 16))
        self._pairs = np.zeros((PLACES, 64))
        self._cycles: list[int] = []
        self._fixed: list[int] = []
        self._ascents: list[int] = []
        self._correlations: list[float] = []

    def add(self, order: Order) -> None:
        """Count one order."""
        n = self._n
        places = np.arange(PLACES) * (n // PLACES)
        rows = np.arange(PLACES)
        self._positions[rows, order[places] * 16 // n] += 1
        pairs = order[places] * 8 // n * 8 + order[places + 1] * 8 // n
        self._pairs[rows, pairs] += 1
        self._cycles.append(cycles(order))
        self._fixed.append(int(np.count_nonzero(order == np.arange(n))))
        self._ascents.append(int(np.count_nonzero(order[1:] > order[:-1])))
        self._correlations.append(float(np.corrcoef(order[1:], order[:-1])[0, 1]))

    def findings(self) -> list[Finding]:
        """Return the statistics."""
        n = self._n
        reciprocals = 1 / np.arange(1, n + 1)
        mean = float(reciprocals.sum())
        even = [(n - count) % 2 == 0 for count in self._cycles]
        return [
            _chi_square("values at 16 places, chi-square", self._positions),
            _chi_square("pairs of neighbours, chi-square", self._pairs),
            _mean("cycles", self._cycles, mean, mean - float((reciprocals**2).sum())),
            _mean("values left in place", self._fixed, 1, 1),
            _mean("even orders", even, 0.5, 0.25),
            _mean("ascents", self._ascents, (n - 1) / 2, (n + 1) / 12),
            _mean("correlation of neighbours", self._correlations, -1 / n, 1 / n),
        ]


def _chi_square(name: str, table: NDArray[np.float64]) -> Finding:
    """Return the sum over rows whose cells are equally likely."""
    expected = table.sum(axis=1, keepdims=True) / table.shape[1]
    statistic = float((np.square(table - expected) / expected).sum())
    freedom = table.shape[0] * (table.shape[1] - 1)
    deviation = (statistic - freedom) / math.sqrt(2 * freedom)
    return Finding(name, freedom, statistic, deviation)


def _mean(
    name: str, values: list[int] | list[bool] | list[float], mean: float, var: float
) -> Finding:
    found = float(np.mean(values))
    deviation = (found - mean) / math.sqrt(var / len(values))
    return Finding(name, mean, found, deviation)


def measure(n: int, count: int) -> dict[str, list[Finding]]:
    """Return the statistics of orders of both kinds."""
    found = {}
    for kind, orders in KINDS.items():
        statistics = Statistics(n)
        for order in orders(n, count):
            statistics.add(order)
        found[kind] = statistics.findings()
    return found


def print_table(n: int, count: int, found: dict[str, list[Finding]]) -> None:
    """Print what was expected and found, and how far off that is."""
    print(f"\n{f'{count} orders, n={n}':<33}{'expected':>10}", end="")
    print("".join(f"{kind:>11}{'sigmas':>8}" for kind in found))
    for findings in zip(*found.values(), strict=True):
        print(f"{findings[0].statistic:<33}{findings[0].expected:>10.4g}", end="")
        print("".join(f"{f.found:>11.4g}{f.deviation:>+8.1f}" for f in findings))


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--count", type=int, help="orders of each size")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    report = {}
    for n in options.sizes:
        count = options.count or SIZES.get(n, 400)
        found = measure(n, count)
        print_table(n, count, found)
        report[n] = {kind: [asdict(f) for f in found[kind]] for kind in found}
    if options.json:
        text = json.dumps({"environment": environment(), "findings": report}, indent=1)
        options.json.write_text(text)


if __name__ == "__main__":
    main()

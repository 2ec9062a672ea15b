"""Draws the figure of a benchmark from the JSON that it wrote.

    scripts/bench plot overhead docs/overhead.svg

The figure of `bench_overhead`: how fast a loader with workers is, against the better of
ours without workers and dataloader-rs with as many, over what a batch costs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.bench_overhead import COSTS_US, SWEEPS_US, by_name, worth
from benchmarks.harness import Row, read_rows

RESULTS = Path(__file__).parent / "results"
COLOURS = {"drain": "#1b6ca8", "50us": "#d1751e", "1ms": "#4b8b3b"}
STYLES = ("-", "--", ":")
CONSUMERS = {"drain": "only drains", "50us": "works 50 µs", "1ms": "works 1 ms"}


def draw_overhead(axes: Axes, report: dict[str, list[Row]]) -> None:
    """Draw the sweep over costs: a line for each consumer and number of workers."""
    for part in SWEEPS_US:
        cells = {c: report.get(f"{part} {c} us") for c in COSTS_US}
        found = {cost: by_name(rows) for cost, rows in cells.items() if rows}
        names = {name for rows in found.values() for name in rows}
        counts = sorted(int(n[7:]) for n in names if n.startswith("ours w="))[1:]
        for count, style in zip(counts, STYLES, strict=False):
            label = f"{count} workers, the consumer {CONSUMERS[part]}"
            values = [worth(rows, count) for rows in found.values()]
            axes.plot(list(found), values, style, color=COLOURS[part], label=label)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.axhline(0.95, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", xlabel="cost of a batch, µs", ylim=(0.7, None))
    axes.set_ylabel("speed / better of (ours with 0, dataloader-rs)")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)


FIGURES: dict[str, Callable[[Axes, dict[str, list[Row]]], None]] = {
    "overhead": draw_overhead,
}


def main() -> None:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=FIGURES)
    parser.add_argument("output", type=Path, help="a file; its ending sets the format")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/NAME")
    options = parser.parse_args()
    report = read_rows(options.json or RESULTS / f"{options.name}.json")
    # Text as text: a tenth of the size, and it can be searched.
    matplotlib.use("agg")
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": options.name})
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    FIGURES[options.name](axes, report)
    # Without a date, so that the same figures make the same file.
    figure.savefig(options.output, metadata={"Date": None})


if __name__ == "__main__":
    main()

"""Six typical workloads: this loader, torch's and dataloader-rs.

    scripts/bench workloads                    # or, in an environment that has them:
    python -X gil=0 -m benchmarks.bench_workloads --workers 2 --json out.json

Two workers on two shared cores, CPython 3.14.7t (PGO and LTO), NumPy 2.5, torch 2.14.1,
dataloader-rs 0.2.0, default allocator settings, medians of 7 epochs. Each loader has a
process of its own; the processes take turns, epoch by epoch. "ours / it" is the median
of the ratios within a round, ours with as many workers. The table is from before the
consumer loaded cheap batches; what has changed since stands below it.

================  ==============  ============  ========  =========
workload          loader          items/s       first ms  ours / it
================  ==============  ============  ========  =========
in_memory         ours w=0          14,472,066      0.16
                  ours w=2             989,950      0.46
                  rs w=0            18,459,202      0.07       0.77
                  rs w=2             9,602,316      0.13       0.10
                  torch w=0          3,138,608      0.37       3.98
                  torch w=2            293,624      0.96       3.24
local_files       ours w=0              38,710      2.11
                  ours w=2              62,184      2.14
                  rs w=0                21,960      1.30       1.64
                  rs w=2                48,115      3.14       1.24
                  torch w=0             36,583      1.77       1.18
                  torch w=2             11,489      8.85       5.40
image_augment     ours w=0              15,089      2.85
                  ours w=2              24,325      3.47
                  rs w=0                10,400      4.22       1.05
                  rs w=2                22,675      4.24       1.06
                  torch w=0             12,630      3.85       1.19
                  torch w=2              6,431     21.38       3.97
remote            ours w=2 items=16      2,879     23.06
                  rs w=2 items=16        2,782     21.01       1.03
                  torch w=32             1,499    339.48       1.94
python_cpu        ours w=0              22,352      1.65
                  ours w=2              13,101      6.27
                  rs w=0                24,323      1.46       0.92
                  rs w=2                14,197      5.70       0.97
                  torch w=0             23,200      1.79       0.92
                  torch w=2             25,438      5.64       0.53
================  ==============  ============  ========  =========

How to read it. In local_files and image_augment the arrays are what costs; there the
threads win by not copying batches between processes, and over dataloader-rs by keeping
freed memory with the process. In remote only the number of requests in flight counts.

What has changed since. in_memory returns the index, so what was measured there was the
hand-over of an empty batch from a thread that sleeps. Now the consumer loads such
batches: 1.0 to 1.2 of dataloader-rs with 2 workers, 1.4 with 4, and 33 times torch's
workers. Without workers it is 0.81: an epoch lasts a millisecond here, and a fifth of
that is its beginning with cold caches; from 32 samples a batch on, long epochs are
level (`bench_overhead --part sizes`). local_files came to 1.35 and 4.8, image_augment
to 1.12 and 3.9, remote to 96 % of what 32 requests of 10 ms allow, and python_cpu_share
to 1.39 times torch's workers (1.62 with 4).

Where we lose. python_cpu reads one list and one dictionary from all threads, and on
free-threaded builds their reference counts are what the threads fight over; PyTorch's
processes share nothing. The machine is shared and noisy: single figures vary by a fifth
between runs, the ratios by a tenth.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    Child,
    Row,
    answer,
    ratio,
    run_epoch,
    run_in_turn,
    write_json,
)
from benchmarks.loaders import LOADERS, dataset_class, is_installed, make_loader
from benchmarks.workloads import BATCH_SIZE, WORKLOADS, stack_collate, write_files

MODULE = "benchmarks.bench_workloads"
TUNED = {
    "GLIBC_TUNABLES": "glibc.malloc.trim_threshold=67108864"
    ":glibc.malloc.mmap_threshold=33554432",
    "MIMALLOC_PURGE_DELAY": "-1",
}


def count_items(first: Any, rest: Iterable[Any]) -> int:
    """Take all batches; return the number of their samples."""
    return len(first) + sum(len(batch) for batch in rest)


def serve(spec: dict[str, Any]) -> None:
    """Run epochs of one configuration: one for each line on standard input."""
    name, workload = spec["loader"], spec["workload"]
    is_array = workload in ("local_files", "image_augment")
    loader = make_loader(
        name,
        dataset_class(name, WORKLOADS[workload])(),
        BATCH_SIZE,
        # torch stacks arrays in memory that its processes share.
        None if is_array and name == "torch" else stack_collate,
        spec["workers"],
        spec["items"],
    )
    answer(lambda _: run_epoch(loader, count_items))


def configurations(workload: str, workers: list[int]) -> Iterator[dict[str, Any]]:
    """Yield what is measured on a workload, for the loaders that are installed."""
    for loader in LOADERS:
        if not is_installed(loader):
            continue
        for count in (0, *workers):
            yield {"workload": workload, "loader": loader, "workers": count, "items": 1}
        if workload == "remote":
            for count in workers:
                items = 16
                yield {
                    "workload": workload,
                    "loader": loader,
                    "workers": count,
                    "items": items,
                }


def label(spec: dict[str, Any]) -> str:
    """Return a configuration's name in the table."""
    parallel = f" items={spec['items']}" if spec["items"] > 1 else ""
    return f"{spec['loader']} w={spec['workers']}{parallel}"


def measure(
    workload: str, workers: list[int], rounds: int, env: dict[str, str]
) -> list[Row]:
    """Measure all configurations of a workload, their epochs in turn."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(MODULE, label(spec), spec, env))
            for spec in configurations(workload, workers)
        ]
        return run_in_turn(children, rounds)


def print_table(workload: str, rows: list[Row]) -> None:
    """Print a workload's rows, each with ours (same workers) divided by it."""
    by_name = {row.name: row for row in rows}
    print(f"\n{workload:<28}{'items/s':>12}{'first ms':>10}{'ours / it':>11}")
    for row in rows:
        ours = by_name[f"ours {row.name.partition(' ')[2]}"]
        print(
            f"  {row.name:<26}{row.items_per_s:>12,.0f}{row.first_ms:>10.2f}"
            f"{ratio(ours, row):>11.2f}"
        )


@contextmanager
def file_folder() -> Iterator[dict[str, str]]:
    """Write the files of local_files to memory-backed storage where there is any."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        write_files(Path(folder))
        yield {"DATALOADER_BENCH_FILES": folder}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--workers", nargs="+", type=int, default=[2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tuned", action="store_true", help="pin glibc's thresholds")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    if options.child:
        serve(json.loads(options.child))
        return
    found: dict[str, list[Row]] = {}
    with file_folder() as env:
        env |= TUNED if options.tuned else {}
        for workload in options.workloads:
            found[workload] = measure(workload, options.workers, options.rounds, env)
            print_table(workload, found[workload])
    if options.json:
        write_json(options.json, found)


if __name__ == "__main__":
    main()

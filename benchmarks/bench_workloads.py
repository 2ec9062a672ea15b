"""Six typical workloads: this loader, torch's and dataloader-rs.

    scripts/bench workloads                    # or, in an environment that has them:
    python -X gil=0 -m benchmarks.bench_workloads --workers 2 --json out.json

Two workers on two shared cores, CPython 3.14.7t (PGO and LTO), NumPy 2.5, torch 2.14.1,
dataloader-rs 0.2.0, default allocator settings, medians of 7 epochs. Each loader has a
process of its own; the processes take turns, epoch by epoch. "ours / it" is the median
of the ratios within a round, ours with as many workers.

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

Where we lose. in_memory returns the index, so what is measured is the hand-over of an
empty batch from a thread that sleeps: it costs more than the batch, with two workers
most of all. python_cpu reads one list and one dictionary from all threads, and on
free-threaded builds their reference counts are what the threads fight over; PyTorch's
processes share nothing. The machine is shared and noisy: single figures vary by a fifth
between runs, the ratios by a tenth.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness import Child, Row, ratio, run_in_turn, write_json
from benchmarks.workloads import BATCH_SIZE, WORKLOADS, stack_collate, write_files

MODULE = "benchmarks.bench_workloads"
TUNED = {
    "GLIBC_TUNABLES": "glibc.malloc.trim_threshold=67108864"
    ":glibc.malloc.mmap_threshold=33554432",
    "MIMALLOC_PURGE_DELAY": "-1",
}


def make_ours(dataset: Any, workers: int, items: int) -> Any:
    """Make this package's loader."""
    from dataloader import DataLoader

    return DataLoader(
        dataset,
        BATCH_SIZE,
        num_workers=workers,
        items_in_parallel=items,
        collate_fn=stack_collate,
    )


def make_rs(dataset: Any, workers: int, items: int) -> Any:
    """Make dataloader-rs's loader; its datasets need a base class."""
    from dataloader_rs import PyDataloader, PyDataset

    kind = type(dataset)
    dataset = type(kind.__name__, (kind, PyDataset), {})()
    return PyDataloader(
        dataset,
        BATCH_SIZE,
        num_workers=workers,
        items_in_parallel=items,
        collate_fn=stack_collate,
    )


def make_torch(dataset: Any, workers: int, items: int) -> Any:
    """Make torch's loader, with persistent workers and its own collation of arrays."""
    from torch.utils.data import DataLoader

    is_array = type(dataset).__name__ in ("LocalFiles", "ImageAugment")
    return DataLoader(
        dataset,
        BATCH_SIZE,
        num_workers=workers * items,
        persistent_workers=workers > 0,
        collate_fn=None if is_array else stack_collate,
    )


LOADERS = {"ours": make_ours, "rs": make_rs, "torch": make_torch}
NEEDS = {"ours": "dataloader", "rs": "dataloader_rs", "torch": "torch"}


def serve(spec: dict[str, Any]) -> None:
    """Run epochs of one configuration: one for each line on standard input."""
    dataset = WORKLOADS[spec["workload"]]()
    loader = LOADERS[spec["loader"]](dataset, spec["workers"], spec["items"])
    for _ in sys.stdin:
        start = time.perf_counter()
        batches = iter(loader)
        first = next(batches)
        first_s = time.perf_counter() - start
        items = len(first) + sum(len(batch) for batch in batches)
        total_s = time.perf_counter() - start
        print(json.dumps({"items": items, "total_s": total_s, "first_s": first_s}))
        sys.stdout.flush()


def configurations(workload: str, workers: list[int]) -> Iterator[dict[str, Any]]:
    """Yield what is measured on a workload, for the loaders that are installed."""
    for loader in LOADERS:
        if find_spec(NEEDS[loader]) is None:
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

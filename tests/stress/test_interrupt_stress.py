"""Real signals at random instants: hundreds of Ctrl-C in an epoch lose nothing.

Each case is a program of its own, since a signal that comes a moment late must not hit
the test runner. Python itself drops an interrupt that strikes in a callback (a weak
reference's, a finaliser) with a word on stderr; so the signals go on until enough of
them were caught. ``DATALOADER_STRESS=10`` makes the epochs ten times as long.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dataloader

pytestmark = [
    pytest.mark.stress,
    pytest.mark.skipif(
        not hasattr(signal, "setitimer"), reason="needs the timers of POSIX"
    ),
]

SCALE = float(os.environ.get("DATALOADER_STRESS", "1"))

PROGRAM = """
import itertools, json, random, signal, sys
from dataloader import DataLoader, IterableDataset

options, kind, size, seed = json.loads(sys.argv[1])

class Counter:
    # Counts when it is about to return, so an interrupt inside it does no harm.
    def __init__(self, stop):
        self._next, self._stop = 0, stop
    def __iter__(self):
        return self
    def __next__(self):
        number = self._next
        if number == self._stop:
            raise StopIteration
        self._next = number + 1
        return number

class Stream(IterableDataset):
    def __iter__(self):
        return Counter(size)

class Sampler:
    def __iter__(self):
        return Counter(size)

class Slow:
    def __len__(self):
        return size
    def __getitem__(self, index):
        for _ in range(index % 60):
            pass
        return index

def same(sample):
    return sample

dataset = {"range": range(size), "stream": Stream(), "slow": Slow()}[kind]
if options.pop("own_sampler", False):
    options["sampler"] = Sampler()
if options.pop("own_batches", False):
    options["batch_sampler"] = [list(range(i, i + 3)) for i in range(0, size - 2, 3)]
options.setdefault("collate_fn", same if options.get("batch_size", 4) is None else list)
loader = DataLoader(dataset, **options)
loader.set_epoch(0)
expected = list(loader)

is_armed, idle = False, 0
def strike(*_):
    global is_armed, idle
    if is_armed:
        is_armed, idle = False, 0
        raise KeyboardInterrupt
    idle += 1
    # The last one was dropped, in a callback.
    is_armed = idle > 20
signal.signal(signal.SIGALRM, strike)
dice = random.Random(seed)

loader.set_epoch(0)
iterator = iter(loader)
seen, struck = [], 0
signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.00071)
while True:
    try:
        is_armed = True
        # One C call takes a batch from next() and records it: what is missing was lost.
        for _ in map(seen.append, iterator):
            pass
        is_armed = False
        break
    except KeyboardInterrupt:
        struck += 1
        signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.0002, 0.0015), 0.00071)
signal.setitimer(signal.ITIMER_REAL, 0)
if not options.get("in_order", True):
    seen, expected = sorted(seen), sorted(expected)
flat = [tuple(batch) if isinstance(batch, list) else batch for batch in seen]
print(json.dumps([
    struck, len(expected), seen == expected, len(flat) - len(set(flat)),
]))
loader.close()
"""

CASES: dict[str, tuple[dict[str, Any], str, int]] = {
    "inline": ({"batch_size": 4}, "range", 300_000),
    "inline-shuffle": ({"batch_size": 4, "shuffle": True, "seed": 1}, "range", 100_000),
    "inline-sampler": ({"batch_size": 4, "own_sampler": True}, "range", 60_000),
    "inline-batches": ({"own_batches": True}, "range", 200_000),
    "inline-single": ({"batch_size": None}, "range", 100_000),
    "inline-stream": ({"batch_size": 4}, "stream", 60_000),
    "inline-single-stream": ({"batch_size": None}, "stream", 40_000),
    "thread": ({"batch_size": 4, "help": False, "num_workers": 2}, "slow", 36_000),
    "thread-shuffle": (
        {"batch_size": 4, "help": False, "num_workers": 3, "shuffle": True, "seed": 1},
        "slow",
        36_000,
    ),
    "thread-sampler": (
        {"batch_size": 4, "help": False, "num_workers": 2, "own_sampler": True},
        "range",
        36_000,
    ),
    "thread-batches": (
        {"own_batches": True, "help": False, "num_workers": 2},
        "range",
        36_000,
    ),
    "thread-single": (
        {"batch_size": None, "help": False, "num_workers": 2},
        "range",
        9_000,
    ),
    "unordered": (
        {"batch_size": 4, "help": False, "num_workers": 3, "in_order": False},
        "slow",
        36_000,
    ),
    "persistent": (
        {"batch_size": 4, "help": False, "num_workers": 2, "persistent_workers": True},
        "slow",
        36_000,
    ),
    "narrow": (
        {"batch_size": 4, "help": False, "num_workers": 1, "prefetch_factor": 1},
        "range",
        24_000,
    ),
    "thread-stream": ({"batch_size": 4, "num_workers": 1}, "stream", 12_000),
    "unordered-stream": (
        {"batch_size": 4, "num_workers": 1, "in_order": False},
        "stream",
        12_000,
    ),
    "lanes": (
        {"batch_size": 4, "num_workers": 2, "items_in_parallel": 3},
        "slow",
        6_000,
    ),
    "inline-lanes": ({"batch_size": 4, "items_in_parallel": 3}, "slow", 4_000),
}

# The consumer loads too, and most of the batches if they are cheap: longer epochs.
CASES |= {
    name.replace("thread", "helping") + ("" if "thread" in name else "-helping"): (
        {key: value for key, value in options.items() if key != "help"},
        kind,
        size * 10,
    )
    for name, (options, kind, size) in CASES.items()
    if "help" in options
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [1, 2])
def test_signals_at_random_instants_lose_and_double_nothing(
    name: str, seed: int
) -> None:
    options, kind, size = CASES[name]
    arguments = json.dumps([options, kind, int(size * SCALE), seed])
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    done = subprocess.run(
        [sys.executable, *([] if gil else ["-X", "gil=0"]), "-c", PROGRAM, arguments],
        env={**os.environ, "PYTHONPATH": str(Path(dataloader.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=100 * max(SCALE, 1),
    )
    assert done.returncode == 0, done.stderr
    struck, batches, is_equal, doubled = json.loads(done.stdout)
    assert (is_equal, doubled) == (True, 0), f"{struck} interrupts, {batches} batches"
    assert struck > 20

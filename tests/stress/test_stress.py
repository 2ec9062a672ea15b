"""Thousands of epochs that are broken off, fail, fork and share threads.

Ten thousand epochs take about a minute on two cores. ``DATALOADER_STRESS=10`` does ten
times as much. What is delivered is compared with what the order says, batch by batch;
at the end nothing may be left: no thread, no descriptor, no memory.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import threading
import warnings
from functools import partial
from typing import Any

import pytest
from conftest import run_in_threads

from dataloader import DataLoader, IterableDataset, get_worker_info

pytestmark = pytest.mark.stress

SCALE = float(os.environ.get("DATALOADER_STRESS", "1"))
SIZE = 60
BAD = frozenset({7, 23, 44})
"""Indices at which the dataset raises."""


class Wild:
    """Raises at some indices, yields the processor or sleeps a little at others."""

    def __init__(self, *, is_bad: bool) -> None:
        self.is_bad = is_bad

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        if self.is_bad and index in BAD:
            raise ValueError(index)
        if index % 11 == 3:
            os.sched_yield()
        if index % 29 == 5:
            threading.Event().wait(0.0002)
        return index


class WildStream(IterableDataset[int]):
    """Each worker yields its share of the numbers."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(start, SIZE, step))


def random_options(dice: random.Random) -> dict[str, Any]:
    """Return options of a loader with 1 to 8 threads."""
    options: dict[str, Any] = {
        "batch_size": dice.choice([1, 3, 8]),
        "num_workers": dice.choice([1, 2, 3, 8]),
        "in_order": dice.random() < 0.7,
        "persistent_workers": dice.random() < 0.3,
        "prefetch_factor": dice.choice([1, 2, 5]),
        "collate_fn": list,
    }
    if dice.random() < 0.2:
        options |= {"num_workers": 2, "items_in_parallel": 3}
    return options


def expected_batches(order: list[int], size: int) -> list[list[int]]:
    return [order[i : i + size] for i in range(0, len(order), size)]


def take(iterator: Any, count: int) -> list[Any]:
    """Return up to ``count`` batches; an error stands for its batch by its index."""
    taken: list[Any] = []
    while len(taken) < count:
        try:
            taken.append(next(iterator))
        except StopIteration:
            break
        except ValueError as error:
            taken.append(error.args[0])
    return taken


def check(taken: list[Any], batches: list[list[int]], in_order: bool) -> None:
    """Check that each batch came once, as itself or as the first error in it."""
    expected = [next((i for i in batch if i in BAD), batch) for batch in batches]
    if in_order:
        assert taken == expected[: len(taken)]
        return
    left = list(expected)
    for batch in taken:
        left.remove(batch)


def rss_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / (1 << 20)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def iterate_in_a_child(loader: DataLoader[Any]) -> None:
    """Fork; the child goes through an epoch of the loader and reports by its exit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if take(iter(loader), SIZE) else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def wild_epochs(seed: int, epochs: int) -> None:
    """Go through epochs of random loaders, most of them broken off."""
    dice = random.Random(seed)
    done = 0
    while done < epochs:
        options = random_options(dice)
        is_seeded = dice.random() < 0.5
        dataset = Wild(is_bad=dice.random() < 0.5)
        order: dict[str, Any] = {"shuffle": True, "seed": seed} if is_seeded else {}
        with DataLoader(dataset, **options, **order) as loader:
            for _ in range(dice.randrange(1, 40)):
                one_epoch(loader, dataset, dice, is_seeded)
                done += 1
            if dice.random() < 0.02 and threading.active_count() < 30:
                iterate_in_a_child(loader)


def one_epoch(
    loader: DataLoader[Any], dataset: Wild, dice: random.Random, is_seeded: bool
) -> None:
    size = loader.batch_size
    assert size is not None
    if is_seeded:
        epoch = loader._epoch
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        keys = list(loader.sampler)
    else:
        keys = list(range(SIZE))
    batches = expected_batches(keys, size)
    stop = dice.choice([0, 1, dice.randrange(len(batches) + 1), len(batches) + 1])
    iterator = iter(loader)
    taken = take(iterator, stop)
    if not dataset.is_bad:
        assert all(isinstance(batch, list) for batch in taken)
        in_order = sorted(taken) if not loader.in_order else taken
        wanted = sorted(batches) if not loader.in_order else batches
        if loader.in_order or stop > len(batches):
            assert in_order == wanted[: len(taken)]
    else:
        check(taken, batches, loader.in_order)
    if stop > len(batches):
        assert len(taken) == len(batches)
    if dice.random() < 0.3:
        del iterator


def test_ten_thousand_epochs_that_are_broken_off() -> None:
    wild_epochs(seed=1, epochs=int(500 * SCALE))
    gc.collect()
    before = rss_mib(), descriptors()
    wild_epochs(seed=2, epochs=int(10_000 * SCALE))
    gc.collect()
    assert descriptors() <= before[1]
    # 10,000 epochs that kept 4 KiB each would be 40 MiB.
    assert rss_mib() - before[0] < 30


def test_many_threads_with_a_loader_each() -> None:
    count = int(300 * SCALE)
    run_in_threads(
        *(partial(wild_epochs_without_forks, seed, count) for seed in range(6))
    )


def wild_epochs_without_forks(seed: int, epochs: int) -> None:
    dice = random.Random(seed)
    done = 0
    while done < epochs:
        dataset = Wild(is_bad=dice.random() < 0.5)
        with DataLoader(dataset, **random_options(dice)) as loader:
            for _ in range(20):
                one_epoch(loader, dataset, dice, is_seeded=False)
                done += 1


def test_many_iterators_of_one_loader_in_many_threads() -> None:
    expected = expected_batches(list(range(SIZE)), 4)

    def run() -> None:
        for _ in range(int(60 * SCALE)):
            assert list(loader) == expected
            next(iter(loader))

    with DataLoader(Wild(is_bad=False), 4, num_workers=3, collate_fn=list) as loader:
        run_in_threads(*[run] * 6)


@pytest.mark.parametrize("persistent", [False, True])
def test_streams_that_are_broken_off(persistent: bool) -> None:
    dice = random.Random(3)
    for _ in range(int(40 * SCALE)):
        workers = dice.choice([1, 2, 5])
        loader = DataLoader(
            WildStream(),
            3,
            num_workers=workers,
            persistent_workers=persistent,
            in_order=dice.random() < 0.5,
            collate_fn=list,
        )
        with loader:
            for _ in range(20):
                iterator = iter(loader)
                taken = take(iterator, dice.choice([0, 1, 5, 1000]))
                numbers = [number for batch in taken for number in batch]
                assert len(set(numbers)) == len(numbers)
                if len(taken) not in (0, 1, 5):
                    assert sorted(numbers) == list(range(SIZE))


def test_loaders_that_are_made_and_dropped() -> None:
    for seed in range(int(300 * SCALE)):
        dice = random.Random(seed)
        loader = DataLoader(Wild(is_bad=False), **random_options(dice))
        iterator = iter(loader)
        take(iterator, dice.randrange(4))
        if dice.random() < 0.5:
            del loader
            take(iterator, 2)
        else:
            del iterator

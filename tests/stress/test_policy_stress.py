"""Thousands of epochs in which who loads changes at random, and inside torch's modes.

``DATALOADER_STRESS=10`` does ten times as much.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
from conftest import run_in_threads
from policies import Scripted, use

from dataloader import DataLoader, rng

pytestmark = pytest.mark.stress

SCALE = float(os.environ.get("DATALOADER_STRESS", "1"))
SIZE = 30
STATES = ("inline", "help", "workers")


def at_random(dice: random.Random) -> Scripted:
    """Return a policy that goes from state to state, and stays in some for a while."""

    def states() -> Iterator[str]:
        while True:
            yield from itertools.repeat(dice.choice(STATES), dice.choice((1, 1, 2, 5)))

    return Scripted(states())


def random_options(dice: random.Random) -> dict[str, Any]:
    return {
        "batch_size": dice.choice((1, 3, 8)),
        "num_workers": dice.choice((1, 2, 3, 8)),
        "in_order": dice.random() < 0.7,
        "persistent_workers": dice.random() < 0.4,
        "prefetch_factor": dice.choice((1, 2, 5)),
        "help": dice.random() < 0.9,
    }


class Wild:
    """Raises or yields the processor at some indices; each sample has its own number.

    Args:
        bad: indices at which it raises.
    """

    def __init__(self, bad: frozenset[int]) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, float]:
        if index in self.bad:
            raise LookupError(index)
        if index % 11 == 3:
            os.sched_yield()
        return index, rng().random()


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    """Return up to ``count`` batches; an error stands for its batch by its index."""
    taken: list[Any] = []
    while len(taken) < count:
        try:
            taken.append(next(iterator))
        except StopIteration:
            break
        except LookupError as error:
            taken.append(error.args[0])
    return taken


def check(taken: list[Any], expected: list[Any], in_order: bool) -> None:
    """Check that each batch came once at most, and in the order that was asked for."""
    if in_order:
        assert taken == expected[: len(taken)]
        return
    left = list(expected)
    for batch in taken:
        left.remove(batch)


def wild_epochs(seed: int, epochs: int) -> None:
    """Go through epochs of random loaders, most of them broken off."""
    dice = random.Random(seed)
    done = 0
    while done < epochs:
        bad = frozenset(dice.sample(range(SIZE), dice.choice((0, 0, 1, 4))))
        options: dict[str, Any] = {"collate_fn": list, "seed": seed}
        if dice.random() < 0.5:
            options["shuffle"] = True
        workers = random_options(dice)
        plain = DataLoader(Wild(bad), workers["batch_size"], **options)
        with DataLoader(Wild(bad), **workers, **options) as loader:
            use(loader, at_random(dice))
            delivered = 0
            for epoch in range(dice.randrange(10, 60)):
                done += 1
                if epoch < 3 or dice.random() < 0.2:
                    loader.set_epoch(epoch % 3)
                    plain.set_epoch(epoch % 3)
                    expected = take(iter(plain), SIZE + 1)
                else:
                    loader.set_epoch(plain._epoch - 1)
                count = dice.choice((0, 1, dice.randrange(len(expected)), SIZE + 1))
                iterator = iter(loader)
                taken = take(iterator, count)
                assert len(taken) == min(count, len(expected))
                check(taken, expected, loader.in_order)
                delivered += len(taken)
                assert loader.stats().batches == delivered
                if dice.random() < 0.5:
                    del iterator


def test_ten_thousand_epochs_whose_mode_changes_at_random() -> None:
    wild_epochs(seed=1, epochs=int(10_000 * SCALE))


def test_modes_that_change_at_random_in_many_threads() -> None:
    count = int(400 * SCALE)
    run_in_threads(*(partial(wild_epochs, seed, count) for seed in range(5)))


def test_iterators_in_many_threads_that_share_a_policy() -> None:
    """One consumer's batches change the mode of another between any two steps."""
    expected = take(iter(DataLoader(Wild(frozenset()), 3, seed=1)), SIZE)
    numbers_of = [numbers.tolist() for numbers, _ in expected]
    dice = random.Random(1)

    def run() -> None:
        for _ in range(int(100 * SCALE)):
            batches = list(loader)
            assert [numbers.tolist() for numbers, _ in batches] == numbers_of
            next(iter(loader))

    with DataLoader(Wild(frozenset()), 3, num_workers=3, seed=1) as loader:
        # No generator: several threads call it.
        use(loader, Scripted(iter(lambda: dice.choice(STATES), None)))
        run_in_threads(*[run] * 4)
        batches = 4 * int(100 * SCALE) * (len(expected) + 1)
        assert loader.stats().batches == batches


# The modes of torch.


def modes(torch: Any) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    return {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "none": nullcontext,
    }


class Graph:
    """A dataset whose samples show the mode in which they are made."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.weight = torch.full((1, 2), 2.0, requires_grad=True)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        torch = self.torch
        noise = float(rng().random())
        # Autocast would make it a bfloat16; both factors are exact as such.
        product = self.weight @ torch.full((2, 1), float(index))
        return product, torch.tensor([index, noise], dtype=torch.float64)


def steps(
    loader: DataLoader[Any], enter: Callable[[], AbstractContextManager[Any]]
) -> Iterator[Any]:
    """Yield an epoch's batches, each of them taken in a mode of its own."""
    with enter():
        iterator = iter(loader)
    while True:
        with enter():
            try:
                batch = next(iterator)
            except StopIteration:
                return
        yield batch


@pytest.mark.parametrize("name", ["no_grad", "inference_mode", "autocast", "at random"])
def test_batches_in_modes_of_torch_are_those_of_no_workers(name: str) -> None:
    torch = pytest.importorskip("torch")
    every = modes(torch)
    dice = random.Random(name)

    def enter() -> AbstractContextManager[Any]:
        return every[dice.choice(list(every)) if name == "at random" else name]()

    done = 0
    while done < int(400 * SCALE):
        options = random_options(dice)
        size, in_order = options["batch_size"], options["in_order"]
        plain = DataLoader(Graph(torch), size, seed=1)
        with DataLoader(Graph(torch), seed=1, **options) as loader:
            use(loader, at_random(dice))
            for epoch in range(20):
                done += 1
                # Without workers, in the mode and outside of any.
                plain.set_epoch(epoch)
                inside = list(steps(plain, enter))
                plain.set_epoch(epoch)
                outside = list(plain)
                batches = list(steps(loader, enter))
                if not in_order:
                    batches.sort(key=lambda batch: float(batch[1][0, 0]))
                assert len(batches) == len(inside) == len(outside)
                for batch, within, without in zip(
                    batches, inside, outside, strict=True
                ):
                    check_tensors(torch, batch, within, without)


def check_tensors(torch: Any, batch: Any, inside: Any, outside: Any) -> None:
    """Check a batch against those that are loaded without workers."""
    for tensor, within, without in zip(batch, inside, outside, strict=True):
        assert torch.equal(tensor, without)
        assert torch.equal(tensor.to(within.dtype), within)
        # As outside of any mode, so no inference tensor more than without workers.
        assert tensor.dtype == without.dtype
        assert tensor.requires_grad == without.requires_grad
        assert not tensor.is_inference()

"""Order of the samples, and draws from random generators, beside PyTorch's."""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import MakeLoader
from side_by_side import DATA, LIBRARIES, MAKERS, Squares, epochs, output_of, theirs

torch = pytest.importorskip("torch")
torch_data = pytest.importorskip("torch.utils.data")

# --- Order and draws ------------------------------------------------------------------


class Dice:
    """A user's sampler: one draw for each key, so it shows how far it is advanced."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        for _ in range(12):
            yield int(torch.randint(10, (1,), generator=self.generator))


Plan = Callable[[Any, Any], dict[str, Any]]
PLANS: dict[str, Plan] = {
    "in order": lambda lib, g: {},
    "shuffled": lambda lib, g: {"shuffle": True},
    "dropping": lambda lib, g: {"shuffle": True, "batch_size": 4, "drop_last": True},
    "single samples": lambda lib, g: {"shuffle": True, "batch_size": None},
    "several rounds": lambda lib, g: {
        "sampler": lib.RandomSampler(DATA, num_samples=25, generator=g)
    },
    "replacement": lambda lib, g: {
        "sampler": lib.RandomSampler(DATA, True, num_samples=70, generator=g)
    },
    "subset": lambda lib, g: {"sampler": lib.SubsetRandomSampler(DATA[3:], g)},
    "weighted": lambda lib, g: {
        "sampler": lib.WeightedRandomSampler([1, 0, 3, 1, 9], 12, generator=g),
        "batch_size": 5,
    },
    "batch sampler": lambda lib, g: {
        "batch_sampler": lib.BatchSampler(
            lib.RandomSampler(DATA, generator=g), 3, drop_last=False
        )
    },
    "dice": lambda lib, g: {"sampler": Dice(g), "batch_size": 2},
    "distributed": lambda lib, g: {
        "sampler": lib.DistributedSampler(DATA, 3, rank=1, shuffle=False)
    },
}


def planned(library: str, plan: str, generator: Any) -> dict[str, Any]:
    return {"generator": generator, **PLANS[plan](LIBRARIES[library], generator)}


def draws(loader: Any, generator: Any) -> list[list[str]]:
    """Return digests of both generators' states at each moment of three epochs.

    The second epoch is broken off.
    """

    def state() -> list[str]:
        states = [torch.get_rng_state()]
        if generator is not None:
            states.append(generator.get_state())
        return [hashlib.sha1(s.numpy().tobytes()).hexdigest()[:12] for s in states]

    seen = [state()]
    for stop in (None, 1, None):
        iterator = iter(loader)
        seen.append(state())
        next(iterator)
        seen.append(state())
        for _ in itertools.islice(iterator, stop):
            pass
        seen.append(state())
    return seen


def draws_of(library: str, plan: str, given: bool, **options: Any) -> list[list[str]]:
    torch.manual_seed(7)
    generator = torch.Generator().manual_seed(3) if given else None
    options = {"collate_fn": list, **planned(library, plan, generator), **options}
    if options.get("batch_size", 1) is None:
        options["collate_fn"] = int
    loader = MAKERS[library](DATA, **options)
    seen = draws(loader, generator)
    del loader, options
    gc.collect()
    return seen


@pytest.mark.parametrize("given", [False, True], ids=["global", "generator"])
@pytest.mark.parametrize("plan", PLANS)
def test_generators_advance_when_torchs_loader_advances_them(
    plan: str, given: bool
) -> None:
    assert draws_of("ours", plan, given) == draws_of("torch", plan, given)


FEW = ("shuffled", "single samples", "subset", "batch sampler", "dice")
WITH_WORKERS = [{"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


def keys_with_workers() -> Iterator[tuple[str, tuple[str, bool, int]]]:
    for key in itertools.product(FEW, (False, True), range(len(WITH_WORKERS))):
        yield repr(key), key


def draws_of_processes() -> dict[str, list[list[str]]]:
    """Return the draws of PyTorch's loader with two worker processes."""
    return {
        name: draws_of(
            "torch", plan, given, multiprocessing_context="fork", **WITH_WORKERS[i]
        )
        for name, (plan, given, i) in keys_with_workers()
    }


@pytest.fixture(scope="module")
def process_draws() -> Any:
    """What `draws_of_processes` returns in an interpreter that has no other threads."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("the reference forks its workers")
    return json.loads(output_of(__file__))


@pytest.mark.parametrize("name", [name for name, _ in keys_with_workers()])
def test_with_workers_generators_advance_as_with_torchs_processes(
    process_draws: Any, name: str
) -> None:
    plan, given, index = dict(keys_with_workers())[name]
    got = draws_of("ours", plan, given, **WITH_WORKERS[index])
    assert got == process_draws[name]


def torchs_epochs(plan: str) -> list[Any]:
    generator = torch.Generator().manual_seed(11)
    return epochs(theirs(Squares(), **planned("torch", plan, generator)))


@pytest.mark.parametrize("plan", PLANS)
def test_a_generator_gives_torchs_batches_over_several_epochs(
    plan: str, make_loader: MakeLoader
) -> None:
    options = planned("ours", plan, torch.Generator().manual_seed(11))
    assert epochs(make_loader(Squares(), **options)) == torchs_epochs(plan)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("loader", "samplers"), [("ours", "torch"), ("torch", "ours")])
def test_samplers_of_one_library_work_in_the_loader_of_the_other(
    loader: str, samplers: str, plan: str
) -> None:
    options = planned(samplers, plan, torch.Generator().manual_seed(11))
    assert epochs(MAKERS[loader](Squares(), **options)) == torchs_epochs(plan)


def test_two_orders_of_one_global_seed_are_equal_and_the_next_is_not(
    make_loader: MakeLoader,
) -> None:
    loader = make_loader(range(100), batch_size=10, shuffle=True, collate_fn=list)
    runs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        runs.append(list(loader))
    assert runs[0] == runs[1] != runs[2]


if __name__ == "__main__":
    print(json.dumps(draws_of_processes()))

"""Frameworks take our loader for PyTorch's: its type, its copies, making it again."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dataloader
from dataloader import BatchSampler, DataLoader, RandomSampler, get_worker_info, rng

torch = pytest.importorskip("torch")
torch_data = pytest.importorskip("torch.utils.data")


class Noisy:
    """Samples that depend on the seed, the epoch and the place in the order."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(rng().random())


class Stream(torch_data.IterableDataset):  # type: ignore[misc, name-defined]
    def __iter__(self) -> Any:
        info = get_worker_info()
        step, first = (1, 0) if info is None else (info.num_workers, info.id)
        return iter(range(first, 20, step))


class Mine(DataLoader[Any]):
    """A user's loader that hands all its arguments on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


def unchanged(batch: Any) -> Any:
    return batch


# --- The type -------------------------------------------------------------------------


def test_torch_is_not_loaded_by_us_and_known_once_it_is() -> None:
    code = """
        import sys
        import dataloader

        class Mine(dataloader.DataLoader):
            pass

        loaders = [
            cls(range(6), 3, shuffle=True, num_workers=workers, collate_fn=list)
            for cls in (dataloader.DataLoader, Mine) for workers in (0, 2)
        ]
        sampler = dataloader.RandomSampler(range(3))
        for loader in loaders:
            assert sorted(sum(loader, [])) == list(range(6))
            assert isinstance(loader, dataloader.DataLoader)
        assert not [name for name in sys.modules if name.startswith("torch")]

        import torch.utils.data as data

        for loader in loaders:
            assert isinstance(loader, data.DataLoader)
            assert isinstance(loader, dataloader.DataLoader)
            assert isinstance(loader.sampler, data.RandomSampler)
            assert isinstance(loader.batch_sampler, data.BatchSampler)
            assert sorted(sum(loader, [])) == list(range(6))
        assert isinstance(sampler, data.Sampler)
        assert not isinstance(sampler, data.DataLoader)
    """
    root = str(Path(dataloader.__file__).parents[1])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": paths},
        check=True,
        timeout=100,
    )


@pytest.mark.parametrize("make", [DataLoader, Mine, DataLoader[int]])
def test_a_loader_is_an_instance_of_torchs_class(make: Any) -> None:
    loader = make(range(4), batch_size=2)
    assert isinstance(loader, torch_data.DataLoader)
    assert isinstance(loader, (str, torch_data.dataloader.DataLoader))
    assert isinstance(loader, DataLoader)
    assert issubclass(loader.__class__, torch_data.DataLoader)
    assert not isinstance(loader, torch_data.Dataset)
    assert loader.__class__.__name__ == type(loader).__name__


def test_match_and_singledispatch_take_it_for_torchs() -> None:
    @functools.singledispatch
    def kind(value: object) -> str:
        return "unknown"

    kind.register(torch_data.DataLoader, lambda value: "loader")
    loader = Mine(range(4), batch_size=2)
    assert kind(loader) == "loader"
    match loader:
        case torch_data.DataLoader(batch_size=size, num_workers=0):
            assert size == 2
        case _:
            pytest.fail("not matched")


def test_a_users_class_may_derive_from_both() -> None:
    class Both(DataLoader[int], torch_data.DataLoader):  # type: ignore[misc, name-defined]
        pass

    loader = Both(range(4), batch_size=2, num_workers=2, collate_fn=list)
    assert isinstance(loader, torch_data.DataLoader)
    assert list(loader) == [[0, 1], [2, 3]]
    loader.close()


def test_methods_are_ours_though_the_class_is_torchs() -> None:
    loader = Mine(range(4))
    for name in ("__init__", "__iter__", "__len__", "__setattr__"):
        method = getattr(type(loader), name)
        assert method.__module__.partition(".")[0] in ("dataloader", __name__)
    assert type(loader) is Mine
    assert type(iter(loader)).__module__.startswith("dataloader.")


# --- Copies and pickles ---------------------------------------------------------------


def through_pickle(protocol: int) -> Callable[[Any], Any]:
    return lambda value: pickle.loads(pickle.dumps(value, protocol))


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {p}": through_pickle(p) for p in range(pickle.HIGHEST_PROTOCOL + 1)},
}


@pytest.mark.parametrize("make", [DataLoader, Mine])
@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_a_copy_is_a_loader_of_its_own_with_equal_batches(
    duplicate: Callable[[Any], Any], make: Any
) -> None:
    options = {"shuffle": True, "seed": 3, "num_workers": 2, "prefetch_depth": 1}
    with make(Noisy(), 6, collate_fn=sorted, **options) as loader:
        loader.extra = ["kept"]
        loader.set_epoch(4)
        second = duplicate(loader)
        assert type(second) is make
        assert second.extra == ["kept"]
        assert isinstance(second, torch_data.DataLoader)
        with pytest.raises(ValueError, match="batch_size"):
            second.batch_size = 5
        with second:
            batches = list(second)
        assert batches == list(loader)


def test_a_loader_is_copied_in_the_midst_of_an_epoch() -> None:
    with DataLoader(range(9), 3, num_workers=2, collate_fn=list) as loader:
        iterator = iter(loader)
        first = next(iterator)
        with copy.deepcopy(loader) as second:
            assert list(second) == [first, *iterator]


def test_a_generator_is_copied_along() -> None:
    generator = torch.Generator().manual_seed(8)
    loader = DataLoader(range(30), 30, shuffle=True, generator=generator)
    second = copy.deepcopy(loader)
    assert second.generator is not generator
    assert second.sampler.generator is second.generator  # type: ignore[attr-defined]
    (batch,) = loader
    assert torch.equal(next(iter(second)), batch)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_cannot_be_copied_or_pickled(workers: int) -> None:
    with DataLoader(range(4), num_workers=workers) as loader:
        iterator = iter(loader)
        for duplicate in COPIES.values():
            with pytest.raises(NotImplementedError, match="cannot be pickled"):
                duplicate(iterator)


# --- Re-creation by introspection -----------------------------------------------------


def rebuilt(loader: Any, sampler: Any = None) -> Any:
    """Make a loader again from its attributes and its signature, as Lightning does.

    Args:
        loader: passes for torch's.
        sampler: takes the place of the loader's.
    """
    assert isinstance(loader, torch_data.DataLoader)
    parameters = dict(inspect.signature(loader.__init__).parameters)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        parameters.update(inspect.signature(torch_data.DataLoader).parameters)
    found = {k: v for k, v in vars(loader).items() if not k.startswith("_")}
    found["multiprocessing_context"] = loader.multiprocessing_context
    arguments = {
        name: found[name]
        for name, parameter in parameters.items()
        if name in found and found[name] is not parameter.default
    }
    arguments["dataset"] = loader.dataset
    if isinstance(loader.dataset, torch_data.IterableDataset):
        arguments.update(sampler=None, batch_sampler=None)
    elif loader.batch_sampler is None:
        arguments.update(sampler=sampler or loader.sampler)
    else:
        old = loader.batch_sampler
        new = type(old)(
            sampler or old.sampler, batch_size=old.batch_size, drop_last=old.drop_last
        )
        arguments.update(batch_sampler=new, sampler=None, batch_size=1, drop_last=False)
    return type(loader)(**arguments)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"batch_size": 6, "drop_last": True},
    {"batch_size": 3, "shuffle": True, "seed": 5},
    {"batch_size": None, "shuffle": True, "seed": 6},
    {"batch_size": 3, "sampler": [4, 2, 19]},
    {"num_workers": 2, "batch_size": 3, "seed": 1, "shuffle": True},
    {"num_workers": 2, "batch_size": 3, "prefetch_depth": 1, "seed": 1},
    {"num_workers": 2, "batch_size": 6, "items_in_parallel": 3, "seed": 1},
    {"num_workers": 2, "batch_size": 6, "replicate": "none", "seed": 1},
    {"num_workers": 2, "prefetch_factor": 1, "persistent_workers": True, "seed": 2},
    {"num_workers": 2, "timeout": 60, "in_order": False, "seed": 2},
    {"num_workers": 1, "worker_init_fn": print, "collate_fn": list, "seed": 2},
]
KEPT = (
    "collate_fn",
    "dataset",
    "generator",
    "in_order",
    "items_in_parallel",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "prefetch_depth",
    "prefetch_factor",
    "replicate",
    "seed",
    "timeout",
    "worker_init_fn",
    "worker_method",
)


def two_epochs(loader: Any) -> list[Any]:
    with loader:
        return [sorted(map(repr, loader)) for _ in range(2)]


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_a_loader_made_again_yields_the_same_batches(options: dict[str, Any]) -> None:
    options = {"seed": 0, **options}
    expected = two_epochs(DataLoader(Noisy(), **options))
    loader = DataLoader(Noisy(), **options)
    again = rebuilt(loader)
    for name in KEPT:
        value = options.get(name, getattr(loader, name))
        assert getattr(loader, name) is value, name
        assert getattr(again, name) is value, name
    assert len(again) == len(loader)
    assert two_epochs(again) == expected


def test_a_loader_with_a_generator_is_made_again_with_the_same_one() -> None:
    generator = torch.Generator()
    loader = DataLoader(range(20), 6, shuffle=True, generator=generator)
    runs = []
    for each in (loader, rebuilt(loader)):
        generator.manual_seed(9)
        runs.append(two_epochs(each))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("options", [{"batch_size": 3}, {"batch_size": None}])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_a_stream_is_made_again(
    workers: int, options: dict[str, Any]
) -> None:
    options = {"num_workers": workers, "seed": 1, **options}
    again = rebuilt(DataLoader(Stream(), **options))
    assert two_epochs(again) == two_epochs(DataLoader(Stream(), **options))


def test_loaders_of_users_classes_are_made_again() -> None:
    loader = Mine(range(20), batch_size=7, shuffle=True, seed=4, collate_fn=list)
    expected = list(Mine(range(20), 7, True, seed=4, collate_fn=list))
    again = rebuilt(loader)
    assert type(again) is Mine
    # The order is the sampler's, which has the seed.
    assert list(again) == expected


def test_a_users_own_argument_is_found_under_its_name() -> None:
    class Stepping(DataLoader[int]):
        def __init__(self, step: int, *, batch_size: int | None = 1) -> None:
            self.step = step
            super().__init__(range(0, 20, step), batch_size=batch_size)

    loader = Stepping(5, batch_size=None)
    names = inspect.signature(loader.__init__).parameters  # type: ignore[misc]
    assert {name: getattr(loader, name) for name in names} == {
        "step": 5,
        "batch_size": None,
    }
    assert vars(loader)["step"] == 5


@pytest.mark.parametrize("library", [torch_data, dataloader], ids=["torch", "ours"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": None}])
def test_an_injected_distributed_sampler_shares_the_data_out(
    library: Any, shuffle: bool, options: dict[str, Any]
) -> None:
    loader = DataLoader(range(20), shuffle=shuffle, collate_fn=unchanged, **options)
    shares = []
    for epoch in (0, 1):
        for rank in (0, 1):
            sampler = library.DistributedSampler(
                range(20), num_replicas=2, rank=rank, shuffle=shuffle
            )
            again = rebuilt(loader, sampler)
            inner = getattr(again.batch_sampler, "sampler", again.sampler)
            assert inner is sampler
            inner.set_epoch(epoch)
            shares.append(list(again))
    if options["batch_size"] is not None:
        shares = [list(itertools.chain(*share)) for share in shares]
    assert sorted(shares[0] + shares[1]) == sorted(shares[2] + shares[3])
    assert sorted(shares[0] + shares[1]) == list(range(20))
    assert (shares[0] != shares[2]) is shuffle


def test_an_init_function_may_be_set_after_construction() -> None:
    calls: list[int] = []
    with DataLoader(range(4), num_workers=2) as loader:
        list(loader)
        loader.worker_init_fn = calls.append
        list(loader)
    assert sorted(calls) == [0, 1]


# What Accelerate hands on from a loader to the one that it makes.
HANDED_ON = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)


@pytest.mark.parametrize("prefetch", [{}, {"prefetch_depth": 4}])
def test_torchs_loader_takes_over_from_ours(prefetch: dict[str, int]) -> None:
    def make(**options: Any) -> DataLoader[Any]:
        options.update(seed=2, shuffle=True, collate_fn=sorted)
        return DataLoader(range(20), 3, **options)

    loader = make(**prefetch)
    taken = {name: getattr(loader, name) for name in HANDED_ON}
    second = torch_data.DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, **taken
    )
    assert list(second) == list(make())


def test_the_samplers_are_those_that_frameworks_look_for() -> None:
    loader = DataLoader(range(20), 3, shuffle=True)
    assert isinstance(loader.sampler, torch_data.RandomSampler)
    assert isinstance(loader.batch_sampler, torch_data.BatchSampler)
    assert type(loader.sampler) is RandomSampler
    assert type(loader.batch_sampler) is BatchSampler
    plain = DataLoader(range(20), 3)
    assert isinstance(plain.sampler, torch_data.SequentialSampler)
    assert not isinstance(plain.sampler, torch_data.RandomSampler)

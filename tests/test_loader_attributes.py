"""DataLoader's attributes: named as its arguments, frozen or re-assignable, copied."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from conftest import MakeLoader, wait_until, worker_threads

from dataloader import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
    get_worker_info,
)

OPTIONS = [
    name
    for name in inspect.signature(DataLoader).parameters
    if name not in ("shuffle", "multiprocessing_context")
]
"""Arguments that stand in ``vars(loader)`` under their name."""


class Squares:
    """A dataset that can be pickled."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index * index


class Stream(IterableDataset[int]):
    """A stream that can be pickled, of worker 0 alone."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        return iter(range(4) if info is None or info.id == 0 else ())


def test_every_option_is_an_attribute_under_its_name() -> None:
    collate = list
    values: dict[str, Any] = {
        "dataset": Squares(),
        "num_workers": 3,
        "collate_fn": collate,
        "pin_memory": False,
        "drop_last": True,
        "timeout": 2,
        "worker_init_fn": print,
        "prefetch_factor": 4,
        "persistent_workers": True,
        "in_order": False,
        "batch_size": 5,
        "seed": 6,
        "items_in_parallel": 2,
        "replicate": "none",
        "worker_method": "thread",
        "executor": None,
        "help": False,
        "pin_memory_device": "",
    }
    loader = DataLoader(**values)
    assert {name: vars(loader)[name] for name in values} == values
    assert set(OPTIONS) <= set(vars(loader))
    assert loader.multiprocessing_context is None


def test_defaults() -> None:
    loader = DataLoader(Squares())
    found = {name: vars(loader)[name] for name in OPTIONS}
    assert type(found.pop("sampler")) is SequentialSampler
    assert type(found.pop("batch_sampler")) is BatchSampler
    assert isinstance(found.pop("dataset"), Squares)
    assert found == {
        "batch_size": 1,
        "num_workers": 0,
        "help": True,
        "collate_fn": default_collate,
        "pin_memory": False,
        "drop_last": False,
        "timeout": 0,
        "worker_init_fn": None,
        "generator": None,
        "prefetch_factor": None,
        "persistent_workers": False,
        "pin_memory_device": "",
        "in_order": True,
        "seed": None,
        "prefetch_depth": None,
        "items_in_parallel": 1,
        "replicate": "shallow",
        "worker_method": "thread",
        "executor": None,
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"num_workers": 0}, None),
        ({"num_workers": 1}, 2),
        ({"num_workers": 1, "prefetch_factor": 5}, 5),
        ({"num_workers": 1, "prefetch_depth": 5}, None),
    ],
)
def test_prefetch_factor_is_derived(options: Any, expected: int | None) -> None:
    assert DataLoader(Squares(), **options).prefetch_factor == expected


def test_samplers_are_derived() -> None:
    shuffled = DataLoader(Squares(), 3, shuffle=True, drop_last=True)
    assert type(shuffled.sampler) is RandomSampler
    batches = shuffled.batch_sampler
    assert type(batches) is BatchSampler
    assert batches.sampler is shuffled.sampler
    assert (batches.batch_size, batches.drop_last) == (3, True)
    assert DataLoader(Squares(), batch_size=None).batch_sampler is None


def test_a_batch_sampler_replaces_size_and_drop_last() -> None:
    own = [[0], [1]]
    loader = DataLoader(Squares(), batch_sampler=own)
    assert loader.batch_sampler is own
    assert (loader.batch_size, loader.drop_last) == (None, False)
    assert type(loader.sampler) is SequentialSampler


def test_an_iterable_dataset_has_an_endless_sampler_of_none() -> None:
    loader = DataLoader(Stream(), 2)
    keys = iter(loader.sampler)
    assert [next(keys), next(keys)] == [None, None]
    assert loader.batch_sampler is not None
    assert next(iter(loader.batch_sampler)) == [None, None]
    assert DataLoader(Stream(), batch_size=None).batch_sampler is None


def test_collate_fn_is_derived_from_batching() -> None:
    assert DataLoader(Squares()).collate_fn is default_collate
    assert DataLoader(Squares(), batch_size=None).collate_fn is default_convert
    assert DataLoader(Squares(), batch_sampler=[[0]]).collate_fn is default_collate


# Re-assignment.


@pytest.mark.parametrize(
    "name",
    [
        "dataset",
        "batch_size",
        "sampler",
        "batch_sampler",
        "drop_last",
        "persistent_workers",
    ],
)
def test_six_attributes_are_frozen(name: str) -> None:
    class Mine(DataLoader[int]):
        pass

    loader = Mine(Squares())
    before = getattr(loader, name)
    with pytest.raises(ValueError, match=rf"{name}.*Mine"):
        setattr(loader, name, before)
    assert getattr(loader, name) is before


def test_a_subclass_may_set_anything_before_init_and_new_names_after() -> None:
    class Mine(DataLoader[int]):
        def __init__(self) -> None:
            self.dataset = "later"
            self.extra = 1
            super().__init__(Squares(), collate_fn=list)

    loader = Mine()
    loader.more = 2
    assert (loader.extra, len(loader)) == (1, 10)


def test_collate_fn_may_be_re_assigned(make_loader: MakeLoader) -> None:
    loader = make_loader(Squares(), batch_size=5, collate_fn=list)
    running = iter(loader)
    loader.collate_fn = sum
    assert list(running) == [[0, 1, 4, 9, 16], [25, 36, 49, 64, 81]]
    assert list(loader) == [30, 255]


def test_num_workers_may_be_re_assigned() -> None:
    loader = DataLoader(Squares(), 5, collate_fn=lambda batch: get_worker_info())
    assert list(loader) == [None, None]
    loader.num_workers = 2
    infos = list(loader)
    assert all(info is not None and info.num_workers == 2 for info in infos)
    loader.num_workers = 4
    assert {info.num_workers for info in loader} == {4}
    loader.num_workers = 0
    assert list(loader) == [None, None]


def test_options_that_count_from_the_next_epoch() -> None:
    called: list[int] = []
    gate = threading.Event()

    class Gated(Squares):
        def __getitem__(self, index: int) -> int:
            if index == 0:
                assert gate.wait(20)
            return index

    loader = DataLoader(Gated(), num_workers=2, collate_fn=list)
    loader.worker_init_fn = called.append
    loader.in_order = False
    loader.timeout = 20
    iterator = iter(loader)
    try:
        assert next(iterator) != [0]
        assert sorted(called) == [0, 1]
    finally:
        gate.set()
    assert len(list(iterator)) == 9


def test_items_in_parallel_and_seed_may_be_re_assigned() -> None:
    loader = DataLoader(Squares(), 5, collate_fn=list)
    loader.items_in_parallel = 3
    expected = [[0, 1, 4, 9, 16], [25, 36, 49, 64, 81]]
    assert list(loader) == expected
    assert wait_until(lambda: len(worker_threads()) == 3)
    loader.items_in_parallel = 1
    loader.num_workers = 1
    assert list(loader) == expected


def test_a_multiprocessing_context_is_checked_when_assigned() -> None:
    loader = DataLoader(Squares(), num_workers=1)
    loader.multiprocessing_context = "spawn"
    expected = multiprocessing.get_context("spawn")
    assert loader.multiprocessing_context is expected
    loader.multiprocessing_context = None
    with pytest.raises(ValueError, match="nope"):
        loader.multiprocessing_context = "nope"
    with pytest.raises(TypeError, match="multiprocessing_context"):
        loader.multiprocessing_context = 5  # type: ignore[assignment]


# What a loader is.


def test_a_loader_is_subscriptable_and_true_by_its_length() -> None:
    assert DataLoader[int] is not None
    assert DataLoader(Squares())
    assert not DataLoader([])
    assert not hasattr(DataLoader, "__getitem__")


def test_names_that_libraries_read() -> None:
    mapped, stream = DataLoader(Squares()), DataLoader(Stream(), batch_size=None)
    assert (mapped._dataset_kind, stream._dataset_kind) == (0, 1)
    assert (mapped._auto_collation, stream._auto_collation) == (True, False)
    assert mapped._index_sampler is mapped.batch_sampler
    assert stream._index_sampler is stream.sampler
    assert mapped._iterator is None
    assert mapped._IterableDataset_len_called is None
    assert mapped.check_worker_number_rationality() is None  # type: ignore[func-returns-value]


def test_a_loader_can_be_made_again_from_its_attributes() -> None:
    """As frameworks do that replace the sampler."""
    loader = DataLoader(
        Squares(), num_workers=2, seed=1, items_in_parallel=2, collate_fn=list
    )
    parameters = inspect.signature(DataLoader).parameters
    options = {
        name: value
        for name, value in vars(loader).items()
        if name in parameters and value is not parameters[name].default
    }
    options["batch_sampler"] = [[3, 1], [2]]
    for name in ("batch_size", "shuffle", "sampler", "drop_last"):
        options.pop(name, None)
    again = DataLoader(**options)
    assert list(again) == [[9, 1], [4]]
    assert (again.num_workers, again.seed, again.items_in_parallel) == (2, 1, 2)


# Copies.


def by_pickle(obj: Any) -> Any:
    return pickle.loads(pickle.dumps(obj))


COPIERS: list[Callable[[Any], Any]] = [by_pickle, copy.deepcopy, copy.copy]


@pytest.mark.parametrize("copier", COPIERS)
@pytest.mark.parametrize("moment", ["fresh", "used", "in use"])
def test_loaders_can_be_pickled_and_copied(
    make_loader: MakeLoader, copier: Callable[[Any], Any], moment: str
) -> None:
    loader = make_loader(Squares(), batch_size=4, shuffle=True, seed=2, collate_fn=list)
    iterator = None
    if moment != "fresh":
        list(loader)
    if moment == "in use":
        iterator = iter(loader)
        next(iterator)
    copied = copier(loader)
    assert type(copied) is DataLoader
    assert {name: type(vars(copied)[name]) for name in OPTIONS} == {
        name: type(vars(loader)[name]) for name in OPTIONS
    }
    # It goes on with the same epoch as the original, on its own.
    copied_epoch = list(copied)
    assert copied_epoch == list(loader)
    with pytest.raises(ValueError, match="batch_size"):
        copied.batch_size = 3
    if iterator is not None:
        assert len(list(iterator)) == 2


@pytest.mark.parametrize("copier", COPIERS)
def test_loaders_of_streams_can_be_pickled_and_copied(
    make_loader: MakeLoader, copier: Callable[[Any], Any]
) -> None:
    loader = make_loader(Stream(), batch_size=3, collate_fn=list)
    list(loader)
    assert list(copier(loader)) == [[0, 1, 2], [3]]


@pytest.mark.parametrize("copier", COPIERS)
def test_persistent_loaders_can_be_pickled_and_copied(
    copier: Callable[[Any], Any],
) -> None:
    loader = DataLoader(
        Squares(), 5, num_workers=2, persistent_workers=True, collate_fn=list
    )
    iterator = iter(loader)
    next(iterator)
    copied = copier(loader)
    assert iter(copied) is not iterator
    assert list(copied) == list(loader)


def test_a_loader_with_a_torch_generator_can_be_copied() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(Squares(), shuffle=True, generator=generator, collate_fn=list)
    copied = copy.deepcopy(loader)
    assert list(copied) == list(loader)
    assert list(copied) == list(loader)


@pytest.mark.parametrize("copier", [pickle.dumps, copy.copy, copy.deepcopy])
def test_iterators_refuse_to_be_pickled_and_copied(
    make_loader: MakeLoader, copier: Callable[[Any], Any]
) -> None:
    iterator = iter(make_loader(Squares(), collate_fn=list))
    with pytest.raises(NotImplementedError, match=type(iterator).__name__):
        copier(iterator)

"""Arguments and attributes of `DataLoader` beside those of PyTorch's."""

from __future__ import annotations

import inspect
import itertools
import multiprocessing
from typing import Any

import numpy as np
import pytest
from side_by_side import (
    DATA,
    LIBRARIES,
    MAKERS,
    NoLength,
    Squares,
    Stream,
    length_of,
    theirs,
)

import dataloader
from dataloader import DataLoader

torch = pytest.importorskip("torch")
torch_data = pytest.importorskip("torch.utils.data")

# --- Arguments ------------------------------------------------------------------------

# Of several wrong arguments the one to be named first, and the exception's exact type.
WRONG: list[tuple[type[Exception], str | None, Any, dict[str, Any]]] = [
    (ValueError, "num_workers", DATA, {"num_workers": -1}),
    (ValueError, "num_workers", DATA, {"num_workers": -1, "timeout": -1}),
    (ValueError, "num_workers", DATA, {"num_workers": -0.5}),
    (TypeError, None, DATA, {"num_workers": None}),
    (TypeError, None, DATA, {"num_workers": "2"}),
    (ValueError, "timeout", DATA, {"timeout": -1}),
    (ValueError, "timeout", DATA, {"timeout": -1, "prefetch_factor": 2}),
    (ValueError, "timeout", DATA, {"num_workers": 2.5, "timeout": -1}),
    (TypeError, None, DATA, {"timeout": None}),
    (ValueError, "prefetch_factor", DATA, {"prefetch_factor": 2}),
    (ValueError, "prefetch_factor", DATA, {"prefetch_factor": 0}),
    (
        ValueError,
        "prefetch_factor",
        DATA,
        {"prefetch_factor": 2, "persistent_workers": True},
    ),
    (ValueError, "prefetch_factor", DATA, {"num_workers": 1, "prefetch_factor": -1}),
    (ValueError, "persistent_workers", DATA, {"persistent_workers": True}),
    (
        ValueError,
        "persistent_workers",
        DATA,
        {"persistent_workers": True, "multiprocessing_context": object()},
    ),
    (
        ValueError,
        "multiprocessing_context",
        DATA,
        {"multiprocessing_context": "fork"},
    ),
    (
        ValueError,
        "multiprocessing_context",
        DATA,
        {"num_workers": 1, "multiprocessing_context": "bad"},
    ),
    (
        TypeError,
        "multiprocessing_context",
        DATA,
        {"num_workers": 1, "multiprocessing_context": object()},
    ),
    (
        TypeError,
        "multiprocessing_context",
        DATA,
        {"num_workers": 1, "multiprocessing_context": multiprocessing},
    ),
    (
        TypeError,
        "multiprocessing_context",
        Stream(),
        {"num_workers": 1, "multiprocessing_context": 5, "shuffle": True},
    ),
    (ValueError, "shuffle", Stream(), {"shuffle": True}),
    (ValueError, "shuffle", Stream(), {"shuffle": "yes", "sampler": [0]}),
    (TypeError, "unhashable", Stream(), {"shuffle": []}),
    (ValueError, "sampler", Stream(), {"sampler": [0]}),
    (ValueError, " sampler", Stream(), {"sampler": [0], "batch_sampler": [[0]]}),
    (ValueError, "batch_sampler", Stream(), {"batch_sampler": [[0]]}),
    (ValueError, "batch_sampler", Stream(), {"batch_sampler": 3, "batch_size": 0}),
    (ValueError, "batch_size", Stream(), {"batch_size": 0}),
    (ValueError, "drop_last", Stream(), {"batch_size": None, "drop_last": True}),
    (ValueError, "shuffle", DATA, {"sampler": [0], "shuffle": True}),
    (ValueError, "shuffle", DATA, {"sampler": 3, "shuffle": True}),
    (
        ValueError,
        "sampler option is mutually exclusive with shuffle",
        DATA,
        {"sampler": [0], "shuffle": 2, "batch_sampler": [[0]]},
    ),
    (ValueError, "batch_sampler", DATA, {"batch_sampler": [[0]], "batch_size": 2}),
    (ValueError, "batch_sampler", DATA, {"batch_sampler": [[0]], "batch_size": None}),
    (ValueError, "batch_sampler", DATA, {"batch_sampler": [[0]], "shuffle": True}),
    (ValueError, "batch_sampler", DATA, {"batch_sampler": [[0]], "sampler": [0]}),
    (ValueError, "batch_sampler", DATA, {"batch_sampler": [[0]], "sampler": 3}),
    (ValueError, "batch_sampler", DATA, {"batch_sampler": [[0]], "drop_last": True}),
    (ValueError, "drop_last", DATA, {"batch_size": None, "drop_last": True}),
    (ValueError, "drop_last", [], {"batch_size": None, "drop_last": 1, "shuffle": 1}),
    (ValueError, "0", [], {"shuffle": True}),
    (ValueError, "0", [], {"shuffle": True, "batch_size": 2.5}),
    (TypeError, "len", NoLength(), {"shuffle": True, "batch_size": 0}),
    (ValueError, "batch_size", DATA, {"batch_size": 0}),
    (ValueError, "batch_size", DATA, {"batch_size": -2}),
    (ValueError, "batch_size", DATA, {"batch_size": True}),
    (ValueError, "batch_size", DATA, {"batch_size": 2.0}),
    (ValueError, "batch_size", DATA, {"batch_size": "2"}),
    (ValueError, "batch_size", DATA, {"batch_size": np.int64(2)}),
    (ValueError, "batch_size", DATA, {"batch_size": 0, "drop_last": 1}),
    (ValueError, "drop_last", DATA, {"drop_last": 1}),
    (ValueError, "drop_last", DATA, {"drop_last": None}),
    (TypeError, "unknown", DATA, {"unknown": 1}),
]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("error", "words", "dataset", "options"), WRONG)
def test_wrong_arguments_are_refused_with_torchs_type(
    library: str,
    error: type[Exception],
    words: str | None,
    dataset: Any,
    options: dict[str, Any],
) -> None:
    with pytest.raises(error, match=words) as caught:
        MAKERS[library](dataset, **options)
    assert caught.type is error


# Known to be wrong at construction, where PyTorch takes them and fails in its epoch.
EARLIER: list[tuple[type[Exception], dict[str, Any]]] = [
    (ValueError, {"num_workers": 1, "prefetch_factor": 0}),
    (ValueError, {"timeout": 1}),
    (TypeError, {"num_workers": 2.5}),
    (TypeError, {"sampler": 3}),
    (TypeError, {"batch_sampler": 3}),
]


@pytest.mark.parametrize(("error", "options"), EARLIER)
def test_what_torch_refuses_in_its_epoch_is_refused_at_construction(
    error: type[Exception], options: dict[str, Any]
) -> None:
    theirs(DATA, **options)
    with pytest.raises(error, match=list(options)[-1]):
        DataLoader(DATA, **options)


def test_process_workers_are_not_in_this_version() -> None:
    theirs(DATA, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(NotImplementedError, match="multiprocessing_context"):
        DataLoader(DATA, num_workers=1, multiprocessing_context="spawn")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_fourteenth_positional_argument_is_refused(library: str) -> None:
    thirteen = (DATA, 2, False, None, None, 0, None, False, False, 0, None, None, None)
    assert MAKERS[library](*thirteen).batch_size == 2
    with pytest.raises(TypeError, match="positional"):
        MAKERS[library](*thirteen, None)


def test_parameters_are_torchs_and_ours_come_after_them() -> None:
    def described(cls: Any) -> list[tuple[str, Any, Any]]:
        parameters = inspect.signature(cls.__init__).parameters.values()
        return [(p.name, p.kind, p.default) for p in parameters]

    reference = described(torch_data.DataLoader)
    assert described(DataLoader)[: len(reference)] == reference


# --- Attributes -----------------------------------------------------------------------

ACCEPTED: list[tuple[Any, dict[str, Any]]] = [
    (DATA, {}),
    (DATA, {"batch_size": 3, "drop_last": True}),
    (DATA, {"batch_size": None}),
    (DATA, {"batch_size": 1000, "shuffle": True}),
    (DATA, {"shuffle": "yes"}),
    (DATA, {"shuffle": 0, "sampler": []}),
    (DATA, {"batch_size": 2, "sampler": [1, 2, 3] * 10}),
    (DATA, {"batch_size": 1, "shuffle": False, "batch_sampler": [[1], [2, 3]]}),
    (DATA, {"batch_sampler": [], "drop_last": False}),
    (DATA, {"batch_sampler": iter([[0]])}),
    (DATA, {"num_workers": 1}),
    (DATA, {"num_workers": True}),
    (DATA, {"num_workers": 2, "prefetch_factor": 1.5, "timeout": 0.5}),
    (DATA, {"num_workers": 2, "persistent_workers": True, "in_order": False}),
    (DATA, {"pin_memory": True, "pin_memory_device": "x", "worker_init_fn": print}),
    (DATA, {"collate_fn": list, "generator": torch.Generator()}),
    ([], {}),
    (NoLength(), {"batch_size": 2}),
    ((x for x in DATA), {}),
    (Stream(length=10), {"batch_size": 3}),
    (Stream(length=10), {"batch_size": 3, "drop_last": True, "shuffle": 0}),
    (Stream(length=10), {"batch_size": None, "shuffle": False}),
    (Stream(), {"num_workers": 2}),
]
DERIVED = (
    "batch_size",
    "dataset",
    "drop_last",
    "generator",
    "in_order",
    "multiprocessing_context",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "pin_memory_device",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
    "_auto_collation",
    "_dataset_kind",
    "_iterator",
)


@pytest.mark.parametrize(("dataset", "options"), ACCEPTED)
def test_attributes_are_derived_as_torch_derives_them(
    dataset: Any, options: dict[str, Any]
) -> None:
    reference, loader = theirs(dataset, **options), DataLoader(dataset, **options)
    for name in DERIVED:
        assert getattr(loader, name) == getattr(reference, name), name
    assert length_of(loader) == length_of(reference)
    assert loader._IterableDataset_len_called == reference._IterableDataset_len_called
    for name in ("sampler", "batch_sampler"):
        expected, got = getattr(reference, name), getattr(loader, name)
        if type(expected).__name__ == "_InfiniteConstantSampler":
            assert list(itertools.islice(got, 3)) == [None] * 3
        elif isinstance(expected, torch_data.Sampler):
            assert isinstance(got, type(expected))
        else:
            assert got is expected


def test_every_public_attribute_of_torchs_is_there() -> None:
    def public(loader: Any) -> set[str]:
        return {name for name in vars(loader) if not name.startswith("_")}

    assert public(theirs(DATA)) <= public(DataLoader(DATA))


def test_default_functions_are_chosen_as_torch_chooses_them() -> None:
    utils = torch_data._utils.collate
    choices: list[dict[str, Any]] = [{}, {"batch_size": None}, {"batch_sampler": [[0]]}]
    for options in choices:
        batched = theirs(DATA, **options).collate_fn is utils.default_collate
        expected = dataloader.default_collate if batched else dataloader.default_convert
        assert DataLoader(DATA, **options).collate_fn is expected


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    "name",
    [
        "batch_sampler",
        "batch_size",
        "dataset",
        "drop_last",
        "persistent_workers",
        "sampler",
    ],
)
def test_what_decides_the_batches_is_frozen(library: str, name: str) -> None:
    base = LIBRARIES[library].DataLoader

    class Mine(base):  # type: ignore[misc, valid-type]
        pass

    loader = Mine(DATA)
    with pytest.raises(ValueError, match=f"{name}.* Mine "):
        setattr(loader, name, getattr(loader, name))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_subclass_may_set_anything_before_and_new_names_after(library: str) -> None:
    base = LIBRARIES[library].DataLoader

    class Mine(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            self.batch_size = 7
            super().__init__(DATA, batch_size=5)
            self.extra = "x"

    loader = Mine()
    assert (loader.batch_size, loader.extra, len(list(loader))) == (5, "x", 2)


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_attribute_set_later_counts_from_the_next_epoch(library: str) -> None:
    loader = MAKERS[library](DATA, batch_size=5, collate_fn=list)
    iterator = iter(loader)
    loader.collate_fn = sum
    assert list(iterator) == [DATA[:5], DATA[5:]]
    assert list(loader) == [10, 35]


def test_the_number_of_workers_can_be_set_later() -> None:
    loader = DataLoader(Squares(), batch_size=4, collate_fn=list)
    expected = list(loader)
    for workers in (2, 0, 3):
        loader.num_workers = workers
        assert list(loader) == expected
    loader.close()


def test_length_of_an_iterator_is_torchs() -> None:
    for dataset, options in ACCEPTED[:9]:
        expected = length_of(iter(theirs(dataset, **options)))
        assert length_of(iter(DataLoader(dataset, **options))) == expected
    assert length_of(iter(theirs(Stream(length=3)))) == "TypeError"
    assert length_of(iter(DataLoader(Stream(length=3)))) == "TypeError"

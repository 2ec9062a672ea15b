"""DataLoader's arguments: which are accepted, which rule is reported first, and how."""

from __future__ import annotations

import inspect
import itertools
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np
import pytest

from dataloader import DataLoader, IterableDataset


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Rule(NamedTuple):
    """Arguments that break a rule, and the error that says so."""

    arguments: dict[str, Any]
    error: type[Exception]
    match: str


STREAM = Stream()

# PyTorch's rules in PyTorch's order.
RULES = [
    Rule({"num_workers": -1}, ValueError, r"num_workers.*non-negative"),
    Rule({"timeout": -1}, ValueError, r"timeout.*non-negative"),
    Rule({"num_workers": 0, "prefetch_factor": 2}, ValueError, "prefetch_factor"),
    Rule({"num_workers": 2, "prefetch_factor": -1}, ValueError, "prefetch_factor"),
    Rule(
        {"num_workers": 0, "persistent_workers": True}, ValueError, "persistent_workers"
    ),
    Rule(
        {"num_workers": 0, "multiprocessing_context": "spawn"},
        ValueError,
        "multiprocessing_context",
    ),
    Rule(
        {"num_workers": 2, "multiprocessing_context": "nope"},
        ValueError,
        r"multiprocessing_context.*spawn",
    ),
    Rule(
        {"num_workers": 2, "multiprocessing_context": multiprocessing},
        TypeError,
        "multiprocessing_context",
    ),
    Rule({"dataset": STREAM, "shuffle": True}, ValueError, "unspecified shuffle"),
    Rule({"dataset": STREAM, "sampler": [0]}, ValueError, "unspecified sampler"),
    Rule(
        {"dataset": STREAM, "batch_sampler": [[0]]},
        ValueError,
        "unspecified batch_sampler",
    ),
    Rule(
        {"sampler": [0], "shuffle": True},
        ValueError,
        r"sampler.*mutually exclusive.*shuffle",
    ),
    Rule(
        {"batch_sampler": [[0]], "batch_size": 2},
        ValueError,
        "batch_sampler.*exclusive",
    ),
    Rule({"batch_size": None, "drop_last": True}, ValueError, r"drop_last"),
    Rule({"dataset": [], "shuffle": True}, ValueError, r"num_samples|data_source"),
    Rule({"batch_size": 0}, ValueError, r"batch_size.*0"),
    Rule({"drop_last": "no"}, ValueError, "drop_last"),
]


def make(arguments: dict[str, Any]) -> DataLoader[Any]:
    return DataLoader(**{"dataset": range(3), **arguments})


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.arguments))
def test_arguments_that_break_a_rule(rule: Rule) -> None:
    with pytest.raises(rule.error, match=rule.match) as caught:
        make(rule.arguments)
    assert type(caught.value) is rule.error


def first_broken(arguments: dict[str, Any]) -> Rule:
    """Return the first rule all of whose arguments are among ``arguments``."""
    missing = object()
    return next(
        rule
        for rule in RULES
        if all(arguments.get(k, missing) == v for k, v in rule.arguments.items())
    )


def test_the_first_rule_that_is_broken_is_reported() -> None:
    for earlier, later in itertools.combinations(RULES, 2):
        arguments = {**later.arguments, **earlier.arguments}
        rule = first_broken(arguments)
        with pytest.raises(rule.error, match=rule.match):
            make(arguments)


@pytest.mark.parametrize(
    "also",
    [
        {"batch_size": 2},
        {"batch_size": None},
        {"shuffle": True},
        {"sampler": [0]},
        {"drop_last": True},
    ],
    ids=str,
)
def test_a_batch_sampler_excludes_what_it_replaces(also: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"batch_sampler.*mutually exclusive"):
        make({"batch_sampler": [[0]], **also})


@pytest.mark.parametrize(
    "batch_size", [0, -1, 1.0, True, "2", np.int64(2), (2,)], ids=repr
)
def test_batch_size_must_be_a_positive_plain_int(batch_size: Any) -> None:
    with pytest.raises(ValueError, match="batch_size"):
        make({"batch_size": batch_size})


@pytest.mark.parametrize("drop_last", [0, 1, None, "yes"])
def test_drop_last_must_be_a_bool(drop_last: Any) -> None:
    with pytest.raises(ValueError, match="drop_last"):
        make({"drop_last": drop_last})


@pytest.mark.parametrize("num_workers", ["2", None, [2]])
def test_num_workers_must_be_a_number(num_workers: Any) -> None:
    with pytest.raises(TypeError):
        make({"num_workers": num_workers})


def test_shuffling_needs_a_length() -> None:
    with pytest.raises(TypeError):
        make({"dataset": iter([1]), "shuffle": True})


def test_a_14th_positional_argument_is_refused() -> None:
    positional: list[Any] = [None] * 12
    with pytest.raises(TypeError):
        DataLoader(range(3), 1, *positional)


@pytest.mark.parametrize(
    "arguments",
    [
        {"dataset": []},
        {"dataset": STREAM, "shuffle": False},
        {"dataset": STREAM, "shuffle": 0},
        {"dataset": STREAM, "batch_size": None},
        {"dataset": iter([1])},
        {"batch_sampler": [[0]], "shuffle": False, "batch_size": 1},
        {"batch_size": None, "shuffle": True},
        {"batch_size": None, "sampler": ["a"]},
        {"shuffle": "yes"},
        {"shuffle": 2},
        {"num_workers": 0, "timeout": 0},
        {"num_workers": 1, "timeout": 0.5},
        {"num_workers": 1, "persistent_workers": True},
        {"num_workers": 0, "worker_init_fn": print},
        {"num_workers": 0, "in_order": False},
    ],
    ids=str,
)
def test_arguments_that_go_together(arguments: dict[str, Any]) -> None:
    make(arguments)


# Where we go beyond PyTorch: known at construction, so refused there; or our own.
OUR_RULES = [
    Rule({"timeout": 5}, ValueError, r"timeout=5 needs num_workers"),
    Rule({"num_workers": 2, "prefetch_factor": 0}, ValueError, r"prefetch_factor.*0"),
    Rule({"num_workers": 1.5}, TypeError, r"num_workers.*1\.5"),
    Rule({"sampler": 5}, TypeError, r"sampler.*5"),
    Rule({"batch_sampler": 5}, TypeError, r"batch_sampler.*5"),
    Rule({"seed": -1}, OverflowError, r"seed.*-1"),
    Rule({"seed": 2**64}, OverflowError, "seed"),
    Rule({"seed": 1.5}, TypeError, r"seed.*1\.5"),
    Rule({"seed": "1"}, TypeError, "seed"),
    Rule({"seed": 1, "generator": object()}, ValueError, "seed.*generator"),
    Rule({"prefetch_depth": 0}, ValueError, r"prefetch_depth.*0"),
    Rule({"num_workers": 1, "prefetch_depth": -2}, ValueError, r"prefetch_depth.*-2"),
    Rule({"prefetch_depth": 1.5}, TypeError, "prefetch_depth"),
    Rule(
        {"num_workers": 2, "prefetch_depth": 1, "prefetch_factor": 1},
        ValueError,
        "prefetch_depth.*prefetch_factor",
    ),
    Rule({"items_in_parallel": 0}, ValueError, r"items_in_parallel.*0"),
    Rule({"items_in_parallel": -1}, ValueError, r"items_in_parallel.*-1"),
    Rule({"items_in_parallel": 1.5}, TypeError, "items_in_parallel"),
    Rule({"num_workers": 2**63, "items_in_parallel": 4}, ValueError, "too large"),
    Rule({"replicate": "often"}, ValueError, r"replicate.*often"),
    Rule({"worker_method": "fork"}, ValueError, r"worker_method.*fork"),
    Rule(
        {"num_workers": 1, "worker_method": "multiprocessing"},
        NotImplementedError,
        "worker_method.*multiprocessing",
    ),
    Rule(
        {"num_workers": 1, "multiprocessing_context": "spawn"},
        NotImplementedError,
        "multiprocessing_context",
    ),
    Rule({"num_workers": 1, "executor": Executor()}, NotImplementedError, "executor"),
]


@pytest.mark.parametrize("rule", OUR_RULES, ids=lambda rule: str(rule.arguments))
def test_arguments_that_break_a_rule_of_ours(rule: Rule) -> None:
    with pytest.raises(rule.error, match=rule.match):
        make(rule.arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": 0},
        {"seed": 2**64 - 1, "shuffle": True},
        {"seed": np.int64(3), "shuffle": True},
        {"seed": 3, "sampler": [0]},
        {"num_workers": np.int64(2)},
        {"num_workers": 0, "prefetch_depth": 5},
        {"num_workers": 16, "prefetch_depth": 1000},
        {"prefetch_depth": 2**64 - 1},
        {"items_in_parallel": 3},
        {"replicate": "none"},
        {"replicate": "deep", "num_workers": 2},
    ],
    ids=str,
)
def test_arguments_of_ours_that_go_together(arguments: dict[str, Any]) -> None:
    loader = make({"collate_fn": list, **arguments})
    assert list(loader) != []


def test_more_workers_than_cores_are_no_warning() -> None:
    DataLoader(range(3), num_workers=1000)


def test_the_signature_begins_as_pytorchs() -> None:
    parameters = inspect.signature(DataLoader).parameters
    positional = [
        ("dataset", inspect.Parameter.empty),
        ("batch_size", 1),
        ("shuffle", None),
        ("sampler", None),
        ("batch_sampler", None),
        ("num_workers", 0),
        ("collate_fn", None),
        ("pin_memory", False),
        ("drop_last", False),
        ("timeout", 0),
        ("worker_init_fn", None),
        ("multiprocessing_context", None),
        ("generator", None),
    ]
    keyword_only = [
        ("prefetch_factor", None),
        ("persistent_workers", False),
        ("pin_memory_device", ""),
        ("in_order", True),
    ]
    found = [(p.name, p.default) for p in parameters.values()]
    assert found[:13] == positional
    assert found[13:17] == keyword_only
    kinds = [p.kind for p in parameters.values()]
    assert set(kinds[:13]) == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert set(kinds[13:]) == {inspect.Parameter.KEYWORD_ONLY}


def test_a_dataset_needs_no_base_class() -> None:
    class Squares:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return index * index

    assert list(make({"dataset": Squares(), "collate_fn": list})) == [
        [0],
        [1],
        [4],
    ]

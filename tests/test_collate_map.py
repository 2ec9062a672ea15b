"""The table of collate functions, as users extend it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from collate_forms import Box, Point, both_forms, collate_boxes

import dataloader


@pytest.fixture
def table() -> Iterator[Any]:
    """The table that `default_collate` uses, put back after the test."""
    table = dataloader.default_collate_fn_map
    before = table.copy()
    yield table
    for key in set(table) - set(before):
        del table[key]
    table.update(before)


@both_forms
def test_registered_type_is_collated_at_any_depth(
    table: Any, collate_as: Callable[[Any], Any]
) -> None:
    table[Box] = collate_boxes
    batch = collate_as([{"a": (Box(Box(1)),)}, {"a": (Box(Box(2)),)}])
    assert batch["a"][0].value.value.tolist() == [1, 2]
    del table[Box]
    with pytest.raises(TypeError, match="Box"):
        collate_as([Box(1)])


@both_forms
def test_place_inside_a_registered_type_joins_the_place_outside(
    table: Any, collate_as: Callable[[Any], Any]
) -> None:
    table[Box] = collate_boxes
    with pytest.raises(RuntimeError, match=r"differ at \['a'\]\['b'\]: shapes"):
        collate_as([{"a": Box({"b": np.zeros(n)})} for n in (1, 2)])


@both_forms
def test_types_are_tried_exactly_and_then_in_order(
    table: Any, collate_as: Callable[[Any], Any]
) -> None:
    class Special(Box):
        pass

    table[(Point, Box)] = lambda batch, *, collate_fn_map=None: "either"
    table[object] = lambda batch, *, collate_fn_map=None: "any"
    table[list] = lambda batch, *, collate_fn_map=None: "list"
    assert collate_as([Special(1)]) == "either"
    assert collate_as([Point(1, 2)]) == "either"
    assert collate_as([[1]]) == "list"
    assert collate_as([{1: 2}]) == "any"
    assert collate_as([1]).tolist() == [1]


def test_table_changed_during_a_batch_counts_from_the_next_on(table: Any) -> None:
    def replace_itself(batch: Any, *, collate_fn_map: Any = None) -> Any:
        table[Box] = lambda batch, *, collate_fn_map=None: "second"
        return "first"

    table[Box] = replace_itself
    batch = [(Box(1), Box(2))]
    assert dataloader.default_collate(batch) == ["first", "first"]
    assert dataloader.default_collate(batch) == ["second", "second"]


def test_table_behaves_as_a_dict(table: Any) -> None:
    size = len(table)
    merged = table | {Box: collate_boxes}
    assert type(merged) is dict
    assert list(merged) == [*table, Box]
    assert {**table, Box: collate_boxes} == merged
    assert {Box: collate_boxes} | table == merged
    assert Box not in table
    assert len(table) == size
    table.update({Box: collate_boxes})
    assert table[Box] is collate_boxes
    assert repr(Box) in repr(table)
    with pytest.raises(KeyError):
        del table[Point]


def test_copy_of_the_table_serves_collate() -> None:
    table = {**dataloader.default_collate_fn_map, Box: collate_boxes}
    batch = dataloader.collate([(Box(1), 1.5)] * 2, collate_fn_map=table)
    assert batch[0].value.tolist() == [1, 1]
    assert batch[1].tolist() == [1.5, 1.5]


def test_strings_without_a_rule_are_refused() -> None:
    for batch in (["ab"], [b"ab"]):
        with pytest.raises(TypeError, match="batch must contain"):
            dataloader.collate(batch)


def test_threads_collate_while_the_table_grows(table: Any) -> None:
    threads, rounds = 4, 200
    barrier = threading.Barrier(threads + 1)
    failures: list[BaseException] = []

    def collate_all() -> None:
        barrier.wait()
        try:
            for number in range(rounds):
                batch = dataloader.default_collate([{"a": (number, "s")}] * 3)
                assert batch["a"][0].tolist() == [number] * 3
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=collate_all) for _ in range(threads)]
    for worker in workers:
        worker.start()
    barrier.wait()
    for number in range(rounds):
        kind = type(f"Kind{number}", (), {})
        table[kind] = collate_boxes
        del table[kind]
    for worker in workers:
        worker.join()
    assert not failures


def test_table_copied_before_torch_was_loaded_knows_tensors() -> None:
    pytest.importorskip("torch")
    code = (
        "import dataloader; table = {**dataloader.default_collate_fn_map};"
        "import torch; batch = [torch.ones(2)] * 3;"
        "assert dataloader.collate(batch, collate_fn_map=table).shape == (3, 2);"
        "assert torch.Tensor in dataloader.default_collate_fn_map;"
        "assert list(dataloader.default_collate_fn_map)[0] is torch.Tensor"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""How a map-style dataset is asked: by key, by batch, and without batching."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from conftest import MakeLoader

from dataloader import DataLoader, Subset, default_collate

PLAIN: list[dict[str, Any]] = [{"num_workers": 0}, {"num_workers": 2}]


@pytest.fixture(params=PLAIN, ids=["inline", "thread"])
def plain(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of the backends in which a batch is loaded by one thread."""
    return dict(request.param)


class Bulk:
    """A dataset that loads a batch in one call, and notes what it was asked."""

    def __init__(self, answer: Callable[[list[int]], Any] = list) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        raise AssertionError("asked for a single sample")

    def __getitems__(self, indices: list[int]) -> Any:
        self.asked.append(indices)
        return self.answer(indices)


def test_getitems_is_called_once_a_batch_with_a_list(plain: dict[str, Any]) -> None:
    dataset = Bulk()
    assert list(DataLoader(dataset, 3, collate_fn=list, **plain)) == [
        [0, 1, 2],
        [3, 4, 5],
        [6],
    ]
    assert sorted(dataset.asked) == [[0, 1, 2], [3, 4, 5], [6]]
    assert {type(indices) for indices in dataset.asked} == {list}


def test_getitems_is_given_the_samplers_order(plain: dict[str, Any]) -> None:
    loader = DataLoader(Bulk(), 2, sampler=[6, 1, 4], collate_fn=list, **plain)
    assert list(loader) == [[6, 1], [4]]


def test_what_getitems_returns_goes_to_collate_fn_as_it_is(
    plain: dict[str, Any],
) -> None:
    loader = DataLoader(
        Bulk(tuple), 3, collate_fn=lambda batch: (type(batch), sum(batch)), **plain
    )
    assert list(loader) == [(tuple, 3), (tuple, 12), (tuple, 6)]
    # With a function of the user's own any result will do.
    loader = DataLoader(Bulk(len), 3, collate_fn=str, **plain)
    assert list(loader) == ["3", "3", "1"]


ANSWERS: dict[str, Callable[[list[int]], Iterable[int]]] = {
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "generator": lambda indices: (i for i in indices),
    "array": np.array,
    "dict": lambda indices: dict.fromkeys(indices).keys(),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_getitems_may_return_any_iterable(plain: dict[str, Any], kind: str) -> None:
    batches = list(DataLoader(Bulk(ANSWERS[kind]), 3, **plain))
    assert [np.asarray(batch).tolist() for batch in batches] == [
        [0, 1, 2],
        [3, 4, 5],
        [6],
    ]


@pytest.mark.parametrize("collate_fn", [None, default_collate])
@pytest.mark.parametrize("answer", [lambda i: i[:1], lambda i: [*i, 9]])
def test_a_wrong_number_of_samples_is_an_error(
    plain: dict[str, Any], collate_fn: Any, answer: Any
) -> None:
    loader = DataLoader(Bulk(answer), 3, collate_fn=collate_fn, **plain)
    iterator = iter(loader)
    with pytest.raises(
        ValueError, match=r"__getitems__ returned (1|4) samples for 3 indices"
    ):
        next(iterator)


def test_an_error_of_getitems_is_raised_by_next(plain: dict[str, Any]) -> None:
    def answer(indices: list[int]) -> list[int]:
        if 3 in indices:
            raise LookupError("three")
        return indices

    iterator = iter(DataLoader(Bulk(answer), 3, collate_fn=list, **plain))
    assert next(iterator) == [0, 1, 2]
    with pytest.raises(LookupError, match="three"):
        next(iterator)
    assert list(iterator) == [[6]]


def test_stop_iteration_of_getitems_does_not_shorten_the_epoch(
    plain: dict[str, Any],
) -> None:
    loader = DataLoader(Bulk(lambda indices: next(iter(()))), 3, **plain)
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(loader)


@pytest.mark.parametrize("value", [None, False, 0])
def test_a_false_getitems_is_none(make_loader: MakeLoader, value: object) -> None:
    class Declined:
        __getitems__ = value

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return index

    assert list(make_loader(Declined(), batch_size=2, collate_fn=list)) == [[0, 1], [2]]


def test_getitems_is_found_on_the_object_too(plain: dict[str, Any]) -> None:
    class Rows:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return index

    dataset = Rows()
    dataset.__getitems__ = lambda indices: [-i for i in indices]  # type: ignore[attr-defined]
    assert list(DataLoader(dataset, 2, collate_fn=list, **plain)) == [[0, -1], [-2]]


def test_getitems_is_not_called_without_batching(make_loader: MakeLoader) -> None:
    class Both(Bulk):
        def __getitem__(self, index: int) -> int:
            return index

    dataset = Both()
    assert list(make_loader(dataset, batch_size=None, collate_fn=int)) == list(range(7))
    assert dataset.asked == []


def test_a_subset_passes_getitems_on(plain: dict[str, Any]) -> None:
    dataset = Bulk()
    loader = DataLoader(Subset(dataset, [6, 5, 0]), 2, collate_fn=list, **plain)
    assert list(loader) == [[6, 5], [0]]
    assert sorted(dataset.asked) == [[0], [6, 5]]


# Without batching.


def test_without_batching_keys_are_passed_unchanged(make_loader: MakeLoader) -> None:
    class Keys:
        def __getitem__(self, key: Any) -> Any:
            return key

    keys = [[3, 1], "a", (0, 2), None, 7]
    loader = make_loader(Keys(), batch_size=None, sampler=keys, collate_fn=lambda k: k)
    received = list(loader)
    assert received == keys
    assert all(a is b for a, b in zip(received, keys, strict=True))
    assert len(loader) == 5


def test_without_batching_collate_fn_is_given_one_sample(
    make_loader: MakeLoader,
) -> None:
    loader = make_loader(["a", "b"], batch_size=None, collate_fn=str.upper)
    assert list(loader) == ["A", "B"]


def test_without_batching_arrays_are_converted_and_numbers_kept(
    make_loader: MakeLoader,
) -> None:
    dataset = [{"x": np.arange(3), "y": 1.5, "z": "word"}]
    ((sample),) = make_loader(dataset, batch_size=None)
    assert np.asarray(sample["x"]).tolist() == [0, 1, 2]
    assert (sample["y"], sample["z"]) == (1.5, "word")

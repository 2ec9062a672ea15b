"""Samplers are lazy: what they raise comes from the next() whose batch is due."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from conftest import MakeLoader

from dataloader import DataLoader


class Moody:
    """A sampler of 0, 1, 2, ... that raises instead of some of its keys and goes on."""

    def __init__(self, size: int, moods: set[int]) -> None:
        self.size = size
        self.moods = moods

    def __iter__(self) -> Iterator[Any]:
        return MoodyIterator(self)

    def __len__(self) -> int:
        return self.size


class MoodyIterator(Iterator[Any]):
    def __init__(self, sampler: Moody) -> None:
        self.sampler = sampler
        self.position = 0

    def key(self, position: int) -> Any:
        return position

    def __next__(self) -> Any:
        position = self.position
        if position == self.sampler.size:
            raise StopIteration
        self.position += 1
        if position in self.sampler.moods:
            raise LookupError(f"key {position}")
        return self.key(position)


class MoodyBatches(Moody):
    """The same as a batch sampler of pairs."""

    def __iter__(self) -> Iterator[Any]:
        return MoodyBatchIterator(self)


class MoodyBatchIterator(MoodyIterator):
    def key(self, position: int) -> Any:
        return [2 * position, 2 * position + 1]


def outcomes(iterator: Iterator[Any]) -> list[Any]:
    """Return batches and messages of errors, in order, up to the end."""
    results: list[Any] = []
    while True:
        try:
            results.append(next(iterator))
        except StopIteration:
            return results
        except LookupError as error:
            results.append(error.args[0])


def test_an_error_comes_where_its_batch_is_due(make_loader: MakeLoader) -> None:
    loader = make_loader(
        range(20), batch_sampler=MoodyBatches(10, {3}), collate_fn=list
    )
    iterator = iter(loader)
    for i in range(3):
        assert next(iterator) == [2 * i, 2 * i + 1]
    with pytest.raises(LookupError, match="key 3"):
        next(iterator)
    assert list(iterator) == [[2 * i, 2 * i + 1] for i in range(4, 10)]


@pytest.mark.parametrize("moods", [{0}, {9}, {3, 4, 5}, set(range(10))])
def test_a_sampler_that_recovers_is_asked_again(
    make_loader: MakeLoader, moods: set[int]
) -> None:
    sampler = MoodyBatches(10, moods)
    loader = make_loader(range(20), batch_sampler=sampler, collate_fn=list)
    expected = [f"key {i}" if i in moods else [2 * i, 2 * i + 1] for i in range(10)]
    for _ in range(2):
        assert outcomes(iter(loader)) == expected


def test_keys_before_the_error_are_not_lost(make_loader: MakeLoader) -> None:
    loader = make_loader(range(8), batch_size=3, sampler=Moody(8, {4}), collate_fn=list)
    results = outcomes(iter(loader))
    assert results == [[0, 1, 2], "key 4", [3, 5, 6], [7]]


def test_a_generator_ends_with_its_error(make_loader: MakeLoader) -> None:
    class Sampler:
        def __iter__(self) -> Iterator[int]:
            yield from [0, 1, 2]
            raise LookupError("generator")

    loader = make_loader(range(9), sampler=Sampler(), collate_fn=list)
    for _ in range(2):
        assert outcomes(iter(loader)) == [[0], [1], [2], "generator"]


def test_without_workers_order_or_batches_make_no_difference() -> None:
    expected = [0, 1, "key 2", 3]
    for options in ({}, {"num_workers": 2}):
        loader = DataLoader(
            range(4),
            batch_size=None,
            sampler=Moody(4, {2}),
            collate_fn=int,
            **options,  # type: ignore[arg-type]
        )
        assert outcomes(iter(loader)) == expected


def test_an_epoch_follows_one_that_a_sampler_ended(make_loader: MakeLoader) -> None:
    sampler = Moody(4, {1})
    loader = make_loader(range(4), sampler=sampler, collate_fn=list)
    with pytest.raises(LookupError):
        list(loader)
    sampler.moods = set()
    assert list(loader) == [[0], [1], [2], [3]]


def test_in_arrival_order_no_batch_is_lost_either(make_loader: MakeLoader) -> None:
    loader = make_loader(
        range(20),
        batch_sampler=MoodyBatches(10, {2, 6}),
        collate_fn=tuple,
        in_order=False,
    )
    results = outcomes(iter(loader))
    batches = [result for result in results if isinstance(result, tuple)]
    assert sorted(batches) == [(2 * i, 2 * i + 1) for i in range(10) if i not in (2, 6)]
    assert sorted(set(results) - set(batches)) == ["key 2", "key 6"]


def test_an_error_of_a_samplers_iter_comes_from_iter(make_loader: MakeLoader) -> None:
    class Sampler:
        def __iter__(self) -> Iterator[int]:
            raise LookupError("no order")

    with pytest.raises(LookupError, match="no order"):
        next(iter(make_loader(range(3), sampler=Sampler(), collate_fn=list)))


@pytest.mark.parametrize("key", ["x", -4, 3.5, None])
def test_a_key_that_the_dataset_refuses_is_the_datasets_error(
    make_loader: MakeLoader, key: Any
) -> None:
    dataset = [5, 6, 7]
    loader = make_loader(dataset, sampler=[0, key, 2], collate_fn=list)
    iterator = iter(loader)
    assert next(iterator) == [5]
    with pytest.raises((TypeError, IndexError)):
        next(iterator)
    assert list(iterator) == [[7]]


def test_a_batch_that_is_no_collection_of_keys_is_an_error_of_its_next(
    make_loader: MakeLoader,
) -> None:
    loader = make_loader(range(9), batch_sampler=[[0], 5, [1]], collate_fn=list)
    iterator = iter(loader)
    assert next(iterator) == [0]
    with pytest.raises(TypeError):
        next(iterator)
    assert list(iterator) == [[1]]


def test_len_of_a_sampler_may_raise_without_harm_to_the_epoch(
    make_loader: MakeLoader,
) -> None:
    class Sampler(Moody):
        def __len__(self) -> int:
            raise LookupError("no length")

    loader = make_loader(range(3), sampler=Sampler(3, set()), collate_fn=list)
    with pytest.raises(LookupError, match="no length"):
        len(loader)
    assert outcomes(iter(loader)) == [[0], [1], [2]]

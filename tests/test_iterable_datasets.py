"""Iterable datasets: each worker iterates its own copy, batches are made within it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import MakeLoader

from dataloader import DataLoader, IterableDataset, get_worker_info


class Sharded(IterableDataset[tuple[int, int]]):
    """Worker w yields (w, 0), (w, 1), ... up to its size."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[tuple[int, int]]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        return ((worker, i) for i in range(self.sizes[worker]))


class Stream(IterableDataset[Any]):
    """Yields what a function returns."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())


@pytest.fixture
def few(backend: dict[str, Any]) -> dict[str, Any]:
    """Options of a backend with one worker at most."""
    return {**backend, "num_workers": min(backend["num_workers"], 1)}


def cycle(sizes: Iterable[int], batch_size: int, **options: Any) -> list[list[Any]]:
    sizes = list(sizes)
    loader = DataLoader(
        Sharded(*sizes), batch_size, num_workers=len(sizes), collate_fn=list, **options
    )
    first = list(loader)
    assert list(loader) == first
    return first


def test_batches_come_from_the_workers_in_turn() -> None:
    assert cycle([4, 4], 2) == [
        [(0, 0), (0, 1)],
        [(1, 0), (1, 1)],
        [(0, 2), (0, 3)],
        [(1, 2), (1, 3)],
    ]


def test_each_worker_ends_with_a_short_batch_and_is_left_out_then() -> None:
    assert cycle([5, 3, 0], 2) == [
        [(0, 0), (0, 1)],
        [(1, 0), (1, 1)],
        [(0, 2), (0, 3)],
        [(1, 2)],
        [(0, 4)],
    ]


def test_drop_last_drops_the_short_batch_of_each_worker() -> None:
    assert cycle([5, 3, 1], 2, drop_last=True) == [
        [(0, 0), (0, 1)],
        [(1, 0), (1, 1)],
        [(0, 2), (0, 3)],
    ]


@pytest.mark.parametrize("persistent", [False, True])
def test_every_epoch_iterates_anew(persistent: bool) -> None:
    batches = cycle([3, 1], 2, persistent_workers=persistent, prefetch_factor=1)
    assert batches == [[(0, 0), (0, 1)], [(1, 0)], [(0, 2)]]


def test_a_dataset_that_is_not_sharded_comes_once_from_each_worker() -> None:
    loader = DataLoader(Stream(lambda: range(3)), 2, num_workers=3, collate_fn=list)
    assert list(loader) == [[0, 1]] * 3 + [[2]] * 3


def test_one_worker_or_none_give_the_dataset_as_it_is(few: dict[str, Any]) -> None:
    loader = DataLoader(Sharded(7), 3, collate_fn=list, **few)
    samples = [(0, i) for i in range(7)]
    for _ in range(2):
        assert list(loader) == [samples[:3], samples[3:6], samples[6:]]


def test_an_empty_dataset_gives_no_batch(make_loader: MakeLoader) -> None:
    assert list(make_loader(Stream(list), batch_size=3, collate_fn=list)) == []
    assert list(make_loader(Stream(list), batch_size=None)) == []


def test_without_batching_samples_come_one_by_one() -> None:
    loader = DataLoader(Sharded(2, 1), batch_size=None, num_workers=2)
    assert [tuple(sample) for sample in loader] == [(0, 0), (1, 0), (0, 1)]


def test_without_batching_collate_fn_is_given_one_sample(few: dict[str, Any]) -> None:
    loader = DataLoader(
        Stream(lambda: ["a", "b"]), batch_size=None, collate_fn=str.upper, **few
    )
    assert list(loader) == ["A", "B"]


def test_without_batching_arrays_are_converted_and_strings_kept() -> None:
    loader = DataLoader(Stream(lambda: [np.arange(2), "a", 1]), batch_size=None)
    array, string, number = loader
    assert np.asarray(array).tolist() == [0, 1]
    assert (string, number) == ("a", 1)


def test_without_workers_iter_of_the_dataset_is_called_at_once() -> None:
    called: list[int] = []

    def make() -> list[int]:
        called.append(threading.get_ident())
        return [1, 2]

    iterator = iter(DataLoader(Stream(make), collate_fn=list))
    assert called == [threading.get_ident()]
    assert list(iterator) == [[1], [2]]


def test_the_sharding_recipe_in_iter() -> None:
    class Range(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            info = get_worker_info()
            assert info is not None
            return iter(range(info.id, 10, info.num_workers))

    loader = DataLoader(Range(), 2, num_workers=3, collate_fn=list)
    batches = list(loader)
    assert batches == [[0, 3], [1, 4], [2, 5], [6, 9], [7], [8]]


def test_a_dataset_needs_a_base_class_to_be_iterated() -> None:
    with pytest.raises(TypeError):
        list(DataLoader((i for i in range(3)), batch_size=2))


def test_torchs_iterable_dataset_is_iterated(make_loader: MakeLoader) -> None:
    torch_data = pytest.importorskip("torch.utils.data")

    class Theirs(torch_data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2, 3])

    loader = make_loader(Theirs(), batch_size=2, collate_fn=list)
    workers = max(loader.num_workers, 1)
    assert list(loader) == [[1, 2]] * workers + [[3]] * workers


# The end.


class Restless:
    """An iterator that would yield again after its end."""

    def __init__(self, ends: list[int]) -> None:
        self.ends = ends
        self.position = 0

    def __iter__(self) -> Restless:
        return self

    def __next__(self) -> int:
        self.position += 1
        if self.position % 4 == 0:
            self.ends.append(self.position)
            raise StopIteration
        return self.position


@pytest.mark.parametrize("batch_size", [2, 3, None])
def test_an_iterator_that_has_ended_is_not_asked_again(
    make_loader: MakeLoader, batch_size: int | None
) -> None:
    ends: list[int] = []
    loader = make_loader(
        Stream(lambda: Restless(ends)),
        batch_size=batch_size,
        collate_fn=list if batch_size else int,
    )
    workers = max(loader.num_workers, 1)
    samples = [
        sample
        for batch in loader
        for sample in (batch if isinstance(batch, list) else [batch])
    ]
    assert sorted(samples) == sorted([1, 2, 3] * workers)
    assert ends == [4] * workers


# Exceptions.


class Reader:
    """An iterator, as a class, that raises at some of its samples and goes on."""

    def __init__(self, size: int, broken: set[int]) -> None:
        self.numbers = iter(range(size))
        self.broken = broken

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> int:
        number = next(self.numbers)
        if number in self.broken:
            raise OSError(f"sample {number}")
        return number


def outcomes(iterator: Iterator[Any]) -> list[Any]:
    """Return batches and the messages of errors, in order, up to the end."""
    results: list[Any] = []
    while True:
        try:
            results.append(next(iterator))
        except StopIteration:
            return results
        except (OSError, ValueError) as error:
            results.append(str(error))


def test_an_iterator_class_goes_on_after_an_exception(few: dict[str, Any]) -> None:
    loader = DataLoader(Stream(lambda: Reader(8, {3, 6})), 2, collate_fn=list, **few)
    expected = [[0, 1], "sample 3", [4, 5], "sample 6", [7]]
    for _ in range(2):
        assert outcomes(iter(loader)) == expected


def test_a_generator_ends_with_an_exception(few: dict[str, Any]) -> None:
    def numbers() -> Iterator[int]:
        yield from [0, 1, 2]
        raise OSError("sample 3")
        yield 4

    loader = DataLoader(Stream(numbers), 2, collate_fn=list, **few)
    for _ in range(2):
        assert outcomes(iter(loader)) == [[0, 1], "sample 3"]


def test_one_workers_exception_leaves_the_others_alone() -> None:
    class Two(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            assert info is not None
            yield info.id
            if info.id == 1:
                raise OSError("worker 1")
            yield info.id

    loader = DataLoader(Two(), num_workers=2, collate_fn=list)
    assert outcomes(iter(loader)) == [[0], [1], [0], "worker 1"]


def test_an_error_of_collate_fn_loses_only_its_batch(few: dict[str, Any]) -> None:
    def collate(samples: list[int]) -> list[int]:
        if 2 in samples:
            raise ValueError("two")
        return samples

    loader = DataLoader(Stream(lambda: range(6)), 2, collate_fn=collate, **few)
    assert outcomes(iter(loader)) == [[0, 1], "two", [4, 5]]


def test_an_error_of_iter_comes_once_from_each_worker() -> None:
    def make() -> list[int]:
        raise OSError("no such shard")

    loader = DataLoader(Stream(make), num_workers=3, collate_fn=list)
    for _ in range(2):
        assert outcomes(iter(loader)) == ["no such shard"] * 3


def test_an_error_of_iter_comes_at_once_without_workers() -> None:
    def make() -> list[int]:
        raise OSError("no such shard")

    with pytest.raises(OSError, match="no such shard"):
        iter(DataLoader(Stream(make)))

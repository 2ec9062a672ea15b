"""Datasets and combinators without torch; `parity` compares them with PyTorch's."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dataloader._torch
from dataloader import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from dataloader.datasets import is_iterable_dataset


class Numbers(Dataset[int]):
    """Ten times the index; remembers the epoch and how it was asked."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.epoch = -1
        self.asked: list[Any] = []

    def __getitem__(self, index: Any) -> int:
        self.asked.append(index)
        return int(index) * 10

    def __len__(self) -> int:
        return self.n

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class ManyNumbers(Numbers):
    """The same, many at a time."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(list(indices))
        return [index * 10 for index in indices]


class Stream(IterableDataset[int]):
    """Yields a range."""

    def __init__(self, start: int, stop: int) -> None:
        self.range = range(start, stop)
        self.epoch = -1

    def __iter__(self) -> Iterator[int]:
        return iter(self.range)

    def __len__(self) -> int:
        return len(self.range)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package believe that torch has not been loaded."""
    monkeypatch.setattr(dataloader._torch, "loaded", lambda name: None)


# --- base classes ---------------------------------------------------------------------


def test_a_dataset_without_methods_says_what_is_missing() -> None:
    class Bare(Dataset[int]):
        pass

    with pytest.raises(NotImplementedError, match="Bare must define __getitem__"):
        Bare()[0]
    with pytest.raises(TypeError):
        len(Bare())  # type: ignore[arg-type]
    assert not hasattr(Bare(), "__getitems__")
    with pytest.raises(TypeError, match="__iter__"):
        IterableDataset()  # type: ignore[abstract]


def test_adding_datasets_joins_them() -> None:
    joined = Numbers(2) + Numbers(3)
    assert isinstance(joined, ConcatDataset)
    assert [joined[i] for i in range(5)] == [0, 10, 0, 10, 20]
    chained = Stream(0, 2) + Stream(5, 7)
    assert isinstance(chained, ChainDataset)
    assert list(chained) == [0, 1, 5, 6]
    assert list(chained + Stream(9, 10)) == [0, 1, 5, 6, 9]


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Stream(0, 1), True),
        (ChainDataset([]), True),
        (Numbers(1), False),
        ([1, 2], False),
        (iter([1, 2]), False),
        (Stream, False),
    ],
)
def test_only_iterable_datasets_are_iterable_datasets(
    dataset: Any, expected: bool
) -> None:
    assert is_iterable_dataset(dataset) is expected


@pytest.mark.parametrize(
    "dataset",
    [
        Subset([4, 5, 6], [2, 0]),
        ConcatDataset([[1], [2, 3]]),
        StackDataset([1, 2], [3, 4]),
        StackDataset(a=[1, 2], b=[3, 4]),
        TensorDataset(np.arange(3), [7, 8, 9]),
    ],
)
def test_datasets_can_be_copied_and_pickled(dataset: Any) -> None:
    expected = [dataset[i] for i in range(len(dataset))]
    for twin in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert [twin[i] for i in range(len(twin))] == expected


def test_streams_can_be_copied_and_pickled() -> None:
    chained = Stream(0, 2) + Stream(5, 7)
    assert list(copy.deepcopy(chained)) == [0, 1, 5, 6]
    assert list(pickle.loads(pickle.dumps(chained))) == [0, 1, 5, 6]


# --- TensorDataset --------------------------------------------------------------------


def test_tensors_are_taken_apart_along_their_first_dimension() -> None:
    matrix, labels = np.arange(6).reshape(3, 2), ["a", "b", "c"]
    dataset = TensorDataset(matrix, labels)
    assert len(dataset) == 3
    row, label = dataset[1]
    assert row.tolist() == [2, 3]
    assert np.shares_memory(row, matrix)
    assert label == "b"
    assert dataset.tensors[0] is matrix


def test_tensors_of_unequal_lengths_are_refused() -> None:
    with pytest.raises(AssertionError, match=r"lengths \[2, 3\]"):
        TensorDataset(np.zeros(2), np.zeros((3, 2)))
    with pytest.raises(IndexError):
        TensorDataset(np.array(1))


def test_no_tensors_at_all_are_accepted_but_have_no_length() -> None:
    dataset = TensorDataset()
    assert dataset.tensors == ()
    with pytest.raises(IndexError):
        len(dataset)


# --- Subset ---------------------------------------------------------------------------


def test_a_subset_maps_its_indices() -> None:
    subset = Subset(Numbers(10), [7, 2, 7])
    assert len(subset) == 3
    assert [subset[i] for i in range(3)] == [70, 20, 70]
    assert subset[-1] == 70
    with pytest.raises(IndexError):
        subset[3]


def test_a_subset_passes_a_list_of_indices_on_as_a_list() -> None:
    subset = Subset(np.arange(10) * 10, [7, 2, 5])
    assert subset[[0, 2]].tolist() == [70, 50]


def test_a_subset_loads_many_at_once_if_its_dataset_can() -> None:
    many = ManyNumbers(10)
    assert Subset(many, [7, 2, 5]).__getitems__([2, 0]) == [50, 70]
    assert many.asked == [[5, 7]]
    one = Numbers(10)
    assert Subset(one, [7, 2, 5]).__getitems__([2, 0]) == [50, 70]
    assert one.asked == [5, 7]
    nested = Subset(Subset(many, [9, 8, 7]), [2, 1])
    assert nested.__getitems__([0, 1]) == [70, 80]
    assert many.asked[-1] == [7, 8]


def test_a_subset_ignores_getitems_that_is_no_method() -> None:
    numbers = Numbers(5)
    numbers.__getitems__ = None  # type: ignore[attr-defined]
    assert Subset(numbers, [3, 1]).__getitems__([0, 1]) == [30, 10]


def test_a_subset_that_would_be_passed_by_is_refused() -> None:
    class Half(Subset[int]):
        def __getitem__(self, index: Any) -> int:
            return 1

    class Whole(Half):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [self[i] for i in indices]

    class Renamed(Subset[int]):
        pass

    with pytest.raises(NotImplementedError, match=r"Half overrides __getitem__"):
        Half([1, 2], [0])
    assert Whole([5, 6], [0])[0] == 1
    assert Renamed([5, 6], [1])[0] == 6


# --- ConcatDataset --------------------------------------------------------------------


def test_joined_datasets_are_indexed_from_both_ends() -> None:
    joined: ConcatDataset[int] = ConcatDataset([range(3), [], range(10, 12)])
    assert len(joined) == 5
    assert joined.cumulative_sizes == [3, 3, 5]
    assert [joined[i] for i in range(-5, 5)] == [0, 1, 2, 10, 11] * 2
    assert joined[np.int64(3)] == 10
    with pytest.raises(ValueError, match="at least -5"):
        joined[-6]
    with pytest.raises(IndexError, match="less than len=5, got 5"):
        joined[5]


def test_joining_takes_any_iterable_but_not_none_and_no_stream() -> None:
    joined: ConcatDataset[int] = ConcatDataset(d for d in ([1], [2]))
    assert joined.datasets == [[1], [2]]
    assert ConcatDataset.cumsum([[1], [2, 3]]) == [1, 3]
    with pytest.raises(AssertionError, match="must not be empty"):
        ConcatDataset([])
    mixed: list[Any] = [[1], Stream(0, 1)]
    with pytest.raises(AssertionError, match="Stream at index 1: use ChainDataset"):
        ConcatDataset(mixed)
    endless: Any = object()
    with pytest.raises(TypeError):
        ConcatDataset([endless])


def test_the_old_name_of_cumulative_sizes_warns() -> None:
    joined: ConcatDataset[int] = ConcatDataset([[1], [2]])
    with pytest.warns(FutureWarning, match="cumulative_sizes"):
        assert joined.cummulative_sizes == [1, 2]


# --- ChainDataset ---------------------------------------------------------------------


def test_chained_streams_follow_one_another() -> None:
    chained: ChainDataset[int] = ChainDataset([Stream(0, 2), Stream(5, 7)])
    assert len(chained) == 4
    assert list(chained) == list(chained) == [0, 1, 5, 6]


def test_a_chain_looks_at_a_dataset_only_when_it_is_its_turn() -> None:
    chained: ChainDataset[int] = ChainDataset([Stream(0, 2), [5, 6]])
    iterator = iter(chained)
    assert [next(iterator), next(iterator)] == [0, 1]
    with pytest.raises(AssertionError, match="map-style list: use ConcatDataset"):
        next(iterator)
    with pytest.raises(AssertionError, match="map-style list"):
        len(chained)
    with pytest.raises(TypeError):
        len(ChainDataset([OnlyIter()]))


class OnlyIter(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


def test_a_chain_goes_on_after_an_error_of_a_stream() -> None:
    class Stumbling(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return self

        position = 0

        def __next__(self) -> int:
            self.position += 1
            if self.position == 2:
                raise KeyboardInterrupt
            if self.position > 3:
                raise StopIteration
            return self.position

    iterator = iter(Stumbling() + Stream(7, 9))
    assert next(iterator) == 1
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert list(iterator) == [3, 7, 8]


# --- StackDataset ---------------------------------------------------------------------


def test_stacked_datasets_give_tuples_or_dicts() -> None:
    stacked = StackDataset(Numbers(3), "abc")
    assert len(stacked) == 3
    assert stacked[1] == (10, "b")
    assert stacked.__getitems__([2, 0]) == [(20, "c"), (0, "a")]
    named = StackDataset(number=Numbers(3), letter="abc")
    assert named[1] == {"number": 10, "letter": "b"}
    assert named.__getitems__([2, 0]) == [
        {"number": 20, "letter": "c"},
        {"number": 0, "letter": "a"},
    ]
    assert named.__getitems__([]) == stacked.__getitems__([]) == []


def test_stacked_datasets_load_many_at_once_if_they_can() -> None:
    many, one = ManyNumbers(5), Numbers(5)
    assert StackDataset(many, one).__getitems__([4, 1]) == [(40, 40), (10, 10)]
    assert many.asked == [[4, 1]]
    assert one.asked == [4, 1]


def test_a_stacked_dataset_that_returns_too_few_is_an_error() -> None:
    class Short(ManyNumbers):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [0]

    for stacked in (StackDataset(Short(5)), StackDataset(a=Numbers(5), b=Short(5))):
        with pytest.raises(ValueError, match="2 samples, one for each index, got 1"):
            stacked.__getitems__([0, 1])


def test_stacking_needs_datasets_of_one_kind_and_length() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StackDataset()
    with pytest.raises(ValueError, match="all positional"):
        StackDataset([1], a=[1])
    with pytest.raises(ValueError, match=r"equal lengths, got \[1, 2\]"):
        StackDataset([1], [1, 2])
    with pytest.raises(ValueError, match=r"equal lengths, got \[1, 2\]"):
        StackDataset(a=[1], b=[1, 2])


# --- set_epoch ------------------------------------------------------------------------


def test_combinators_hand_the_epoch_on_to_all_that_want_it() -> None:
    one, two, three = Numbers(4), Numbers(4), Numbers(4)
    dataset = Subset(
        ConcatDataset([StackDataset(one, [1, 2, 3, 4]), StackDataset(a=two), three]),
        [0],
    )
    dataset.set_epoch(3)
    assert [one.epoch, two.epoch, three.epoch] == [3, 3, 3]
    stream = Stream(0, 1)
    (stream + Stream(1, 2)).set_epoch(5)
    assert stream.epoch == 5


def test_handing_the_epoch_on_does_not_use_up_a_chain_of_an_iterator() -> None:
    chained: ChainDataset[int] = ChainDataset(iter([Stream(0, 2)]))
    chained.set_epoch(1)
    # Not list(), which asks for the length first.
    assert next(iter(chained)) == 0


# --- random_split ---------------------------------------------------------------------


def split(dataset: Any, lengths: Any) -> list[list[int]]:
    parts = random_split(dataset, lengths, np.random.default_rng(0))
    assert all(type(part) is Subset and part.dataset is dataset for part in parts)
    assert all(type(i) is int for part in parts for i in part.indices)
    return [list(part.indices) for part in parts]


@pytest.mark.parametrize(
    ("n", "lengths", "sizes"),
    [
        (10, [3, 7], [3, 7]),
        (10, [0, 10], [0, 10]),
        (10, (n for n in (4, 6)), [4, 6]),
        (10, [np.int64(4), 6], [4, 6]),
        (10, [0.5, 0.5], [5, 5]),
        (10, [1 / 3, 1 / 3, 1 / 3], [4, 3, 3]),
        (11, [0.25, 0.75], [3, 8]),
        (7, [1.0], [7]),
        (1, [1], [1]),
        (0, [], []),
        (0, [0], [0]),
    ],
)
def test_a_split_has_each_sample_once(n: int, lengths: Any, sizes: list[int]) -> None:
    parts = split(range(n), lengths)
    assert [len(part) for part in parts] == sizes
    assert sorted(i for part in parts for i in part) == list(range(n))


def test_a_split_is_random_and_decided_by_the_generator() -> None:
    assert split(range(100), [50, 50]) == split(range(100), [50, 50])
    generator = np.random.default_rng(0)
    first, second = (random_split(range(100), [100], generator) for _ in range(2))
    assert first[0].indices != second[0].indices


@pytest.mark.usefixtures("without_torch")
def test_without_torch_and_generator_each_split_is_another() -> None:
    first, second = (random_split(range(50), [50])[0].indices for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    with pytest.raises(TypeError, match="generator must be"):
        random_split(range(50), [50], generator=42)


@pytest.mark.parametrize(
    ("lengths", "error", "words"),
    [
        ([3, 3], ValueError, "which is 6 together"),
        ([0.5, 0.6], ValueError, "must add up"),
        ([], ValueError, "must add up"),
        ([12, -2], ValueError, "must not be negative"),
        ([5.0, 5.0], TypeError, "must be whole numbers, got 5.0"),
        ([1.25, -0.25], ValueError, r"in \[0, 1\], got 1.25 at index 0"),
        ([-0.25, 1.25], ValueError, r"in \[0, 1\], got -0.25 at index 0"),
    ],
)
def test_lengths_that_do_not_add_up_are_refused(
    lengths: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        split(range(10), lengths)


def test_an_empty_part_of_fractions_warns_where_the_split_was_asked_for() -> None:
    with pytest.warns(UserWarning, match="part 1 of the split is empty") as caught:
        random_split(range(3), [0.9, 0.1], np.random.default_rng(0))
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        random_split(range(3), [3, 0], np.random.default_rng(0))

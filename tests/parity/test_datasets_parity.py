"""Datasets and combinators beside PyTorch's: results, errors, and mixing the two."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dataloader
from dataloader.datasets import is_iterable_dataset

torch = pytest.importorskip("torch")
torch_data = pytest.importorskip("torch.utils.data")

OURS: Any = dataloader
LIBRARIES = {"torch": torch_data, "ours": OURS}


def outcome(call: Callable[[], Any]) -> Any:
    """Return what ``call`` returns, its warnings, or the type of error it raises."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call()
        except Exception as error:
            result = type(error)
    return result, [warning.category for warning in caught]


def streams(library: Any) -> tuple[type, type]:
    class Stream(library.IterableDataset):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, *samples: int) -> None:
            self.samples = samples

        def __iter__(self) -> Iterator[int]:
            return iter(self.samples)

        def __len__(self) -> int:
            return len(self.samples)

    class Numbers(library.Dataset):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, n: int) -> None:
            self.n = n

        def __getitem__(self, index: int) -> int:
            return index * 10

        def __len__(self) -> int:
            return self.n

    return Stream, Numbers


def half_overridden(library: Any) -> Any:
    class Half(library.Subset):  # type: ignore[misc, name-defined, unused-ignore]
        def __getitem__(self, index: int) -> int:
            return index

    return Half([1], [0])


def short_stack(library: Any) -> Any:
    class Short(library.Dataset):  # type: ignore[misc, name-defined, unused-ignore]
        def __len__(self) -> int:
            return 3

        def __getitems__(self, indices: list[int]) -> list[int]:
            return [0]

    return library.StackDataset(a=Short()).__getitems__([0, 1])


def items(dataset: Any) -> list[Any]:
    return [dataset[i] for i in range(len(dataset))]


CASES: dict[str, Callable[[Any], Any]] = {
    "no getitem": lambda lib: lib.Dataset()[0],
    "no len": lambda lib: len(lib.Dataset()),
    "no iter": lambda lib: lib.IterableDataset(),
    "add": lambda lib: items(streams(lib)[1](2) + streams(lib)[1](1)),
    "add streams": lambda lib: list(streams(lib)[0](1, 2) + streams(lib)[0](3)),
    "add list to stream": lambda lib: list(streams(lib)[0](1).__add__([3])),
    "add stream to map": lambda lib: streams(lib)[1](1) + streams(lib)[0](3),
    "tensors": lambda lib: items(lib.TensorDataset(torch.arange(3), torch.ones(3))),
    "slice of tensors": lambda lib: [
        t.tolist() for t in lib.TensorDataset(torch.arange(5))[1:3]
    ],
    "list of tensors": lambda lib: [
        t.tolist() for t in lib.TensorDataset(torch.arange(5))[[1, 4]]
    ],
    "no tensors": lambda lib: lib.TensorDataset().tensors,
    "len of no tensors": lambda lib: len(lib.TensorDataset()),
    "scalar tensor": lambda lib: lib.TensorDataset(torch.tensor(1)),
    "unequal tensors": lambda lib: lib.TensorDataset(torch.ones(2), torch.ones(3)),
    "tensor past end": lambda lib: lib.TensorDataset(torch.ones(2))[2],
    "subset": lambda lib: items(lib.Subset("abcd", [3, 0])),
    "subset negative": lambda lib: lib.Subset("abcd", [3, 0])[-1],
    "subset past end": lambda lib: lib.Subset("abcd", [3, 0])[2],
    "subset list": lambda lib: lib.Subset(np.arange(9), [3, 0, 8])[[2, 1]].tolist(),
    "subset list of list": lambda lib: lib.Subset([1, 2], [0])[[0]],
    "subset getitems": lambda lib: lib.Subset("abcd", [3, 0]).__getitems__([1, 0]),
    "subset of subset": lambda lib: lib.Subset(
        lib.Subset("abcd", [3, 0, 1]), [2, 0]
    ).__getitems__([0, 1]),
    "half overridden": half_overridden,
    "concat": lambda lib: items(lib.ConcatDataset(["ab", "", "cde"])),
    "concat sizes": lambda lib: lib.ConcatDataset(["ab", "", "cde"]).cumulative_sizes,
    "concat old name": lambda lib: lib.ConcatDataset(["ab"]).cummulative_sizes,
    "concat cumsum": lambda lib: lib.ConcatDataset.cumsum(["ab", "cde"]),
    "concat negative": lambda lib: [
        lib.ConcatDataset(["ab", "cde"])[i] for i in range(-5, 0)
    ],
    "concat too negative": lambda lib: lib.ConcatDataset(["ab", "c"])[-4],
    "concat past end": lambda lib: lib.ConcatDataset(["ab", "c"])[3],
    "concat key": lambda lib: lib.ConcatDataset(["ab", "c"])["a"],
    "concat slice": lambda lib: lib.ConcatDataset(["ab", "c"])[0:1],
    "concat tensor": lambda lib: lib.ConcatDataset(["ab", "c"])[torch.tensor(2)],
    "concat nothing": lambda lib: lib.ConcatDataset([]),
    "concat stream": lambda lib: lib.ConcatDataset([streams(lib)[0](1)]),
    "concat without len": lambda lib: lib.ConcatDataset([lib.Dataset()]),
    "chain": lambda lib: list(
        lib.ChainDataset([streams(lib)[0](1), streams(lib)[0]()])
    ),
    "chain len": lambda lib: len(lib.ChainDataset([streams(lib)[0](1, 2)])),
    "chain of maps": lambda lib: lib.ChainDataset([[1]]).datasets,
    "chain of maps iterated": lambda lib: list(lib.ChainDataset([[1]])),
    "chain of maps len": lambda lib: len(lib.ChainDataset([[1]])),
    "chain nothing": lambda lib: list(lib.ChainDataset([])),
    "stack": lambda lib: items(lib.StackDataset("ab", [1, 2])),
    "stack named": lambda lib: items(lib.StackDataset(x="ab", y=[1, 2])),
    "stack getitems": lambda lib: lib.StackDataset("ab", [1, 2]).__getitems__([1, 0]),
    "stack named getitems": lambda lib: lib.StackDataset(
        x="ab", y=lib.Subset([1, 2], [1, 0])
    ).__getitems__([1, 0]),
    "stack members": lambda lib: (
        lib.StackDataset("ab", "cd").datasets,
        lib.StackDataset(x="ab").datasets,
        len(lib.StackDataset(x="ab")),
    ),
    "stack nothing": lambda lib: lib.StackDataset(),
    "stack mixed": lambda lib: lib.StackDataset("a", x="a"),
    "stack unequal": lambda lib: lib.StackDataset("a", "ab"),
    "stack named unequal": lambda lib: lib.StackDataset(x="a", y="ab"),
    "stack short": short_stack,
    "stack past end": lambda lib: lib.StackDataset("ab", [1, 2])[2],
}


def plain(result: Any) -> Any:
    """Turn tensors inside a result into numbers, which can be compared."""
    if isinstance(result, (list, tuple)):
        return type(result)(plain(part) for part in result)
    return result.item() if isinstance(result, torch.Tensor) else result


@pytest.mark.parametrize("case", CASES)
def test_results_errors_and_warnings_are_those_of_torch(case: str) -> None:
    theirs, ours = (
        outcome(functools.partial(CASES[case], library))
        for library in LIBRARIES.values()
    )
    assert plain(ours) == plain(theirs)


def indices_of(parts: list[Any]) -> list[list[int]]:
    return [part.indices for part in parts]


SPLITS: list[tuple[int, Any]] = [
    (10, [3, 7]),
    (10, [10, 0]),
    (10, [0.3, 0.7]),
    (10, [1 / 3, 1 / 3, 1 / 3]),
    (11, [0.1] * 10),
    (10, [0.1] * 10),
    (3, [0.9, 0.1]),
    (10, [1, 0]),
    (1, [1]),
    (1000, [0.7, 0.2, 0.1]),
    (0, []),
    (10, []),
    (10, [3, 3]),
    (10, [0.5, 0.6]),
    (10, [0.5, 0.4]),
    (10, [5.0, 5.0]),
    (10, [1.25, -0.25]),
    (10, [-0.25, 1.25]),
    (10, [np.int64(5), 5]),
]


@pytest.mark.parametrize(("n", "lengths"), SPLITS)
@pytest.mark.parametrize("own_generator", [True, False])
def test_splits_are_those_of_torch(n: int, lengths: Any, own_generator: bool) -> None:
    def run(library: Any) -> Any:
        torch.manual_seed(7)
        generator = torch.Generator().manual_seed(5)
        options = {"generator": generator} if own_generator else {}
        result = outcome(
            lambda: indices_of(library.random_split(range(n), lengths, **options))
        )
        states = (torch.get_rng_state(), generator.get_state())
        return result, [state.tolist() for state in states]

    assert run(OURS) == run(torch_data)


def test_a_bad_generator_is_an_error_of_the_same_type() -> None:
    for library in LIBRARIES.values():
        with pytest.raises(TypeError):
            library.random_split([1, 2], [2], generator=42)


def test_streams_of_both_libraries_are_recognised() -> None:
    for library in LIBRARIES.values():
        stream, numbers = streams(library)
        assert is_iterable_dataset(stream(1))
        assert is_iterable_dataset(library.ChainDataset([]))
        assert not is_iterable_dataset(numbers(1))
        assert not is_iterable_dataset(stream)


def test_our_streams_are_torch_streams_too() -> None:
    stream = streams(OURS)[0](1)
    assert isinstance(stream, torch_data.IterableDataset)
    assert isinstance(stream + stream, torch_data.ChainDataset)
    assert not isinstance(stream, torch_data.ChainDataset)


@pytest.mark.parametrize("outer", LIBRARIES)
@pytest.mark.parametrize("inner", LIBRARIES)
def test_combinators_of_either_library_take_datasets_of_the_other(
    outer: str, inner: str
) -> None:
    wrap = LIBRARIES[outer]
    stream, numbers = streams(LIBRARIES[inner])
    subset = wrap.Subset(LIBRARIES[inner].Subset(numbers(9), [8, 7, 6]), [2, 0])
    assert items(subset) == subset.__getitems__([0, 1]) == [60, 80]
    assert items(wrap.ConcatDataset([numbers(2), subset])) == [0, 10, 60, 80]
    assert items(wrap.StackDataset(numbers(2), subset)) == [(0, 60), (10, 80)]
    assert wrap.StackDataset(numbers(2), subset).__getitems__([1]) == [(10, 80)]
    assert list(wrap.ChainDataset([stream(1, 2), stream(3)])) == [1, 2, 3]
    assert len(wrap.ChainDataset([stream(1, 2), stream(3)])) == 3
    with pytest.raises(AssertionError):
        wrap.ConcatDataset([stream(1)])
    parts = wrap.random_split(numbers(9), [4, 5])
    assert sorted(items(parts[0]) + items(parts[1])) == list(range(0, 90, 10))


@pytest.mark.parametrize("left", LIBRARIES)
@pytest.mark.parametrize("right", LIBRARIES)
def test_datasets_of_both_libraries_can_be_added(left: str, right: str) -> None:
    one, other = streams(LIBRARIES[left]), streams(LIBRARIES[right])
    assert list(one[0](1, 2) + other[0](3)) == [1, 2, 3]
    assert items(one[1](2) + other[1](1)) == [0, 10, 0]


def test_torch_loader_loads_our_datasets() -> None:
    stream, numbers = streams(OURS)
    for dataset, expected in (
        (stream(1, 2, 3), [1, 2, 3]),
        (stream(1) + stream(2), [1, 2]),
        (numbers(2) + numbers(1), [0, 10, 0]),
        (OURS.Subset(numbers(9), [3, 1]), [30, 10]),
    ):
        loader = torch_data.DataLoader(dataset, batch_size=2)
        assert [int(i) for batch in loader for i in batch] == expected

"""What an epoch yields, raises and warns of, beside PyTorch's loader."""

from __future__ import annotations

import gc
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import MakeLoader, wait_until
from side_by_side import (
    DATA,
    LIBRARIES,
    MAKERS,
    Squares,
    Stream,
    epochs,
    plain,
    theirs,
)

import dataloader
from dataloader import DataLoader

torch = pytest.importorskip("torch")
torch_data = pytest.importorskip("torch.utils.data")

# --- Datasets of either library -------------------------------------------------------


def squares_of(lib: Any) -> Any:
    class MySquares(lib.Dataset):  # type: ignore[misc]
        __len__ = Squares.__len__
        __getitem__ = Squares.__getitem__

    return MySquares()


def stream_of(lib: Any, count: int = 10) -> Any:
    class MyStream(lib.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            return iter([{"x": i, "y": (i, str(i))} for i in range(count)])

    return MyStream()


def split_of(lib: Any) -> Any:
    generator = torch.Generator().manual_seed(2)
    return lib.random_split(Squares(), [0.7, 0.3], generator=generator)[0]


DATASETS: dict[str, Callable[[Any], Any]] = {
    "derived": squares_of,
    "sum of two": lambda lib: squares_of(lib) + squares_of(lib),
    "tensors": lambda lib: lib.TensorDataset(
        torch.arange(10.0), torch.arange(20).reshape(10, 2)
    ),
    "subset": lambda lib: lib.Subset(squares_of(lib), [7, 2, 2, 9]),
    "subset of tensors": lambda lib: lib.Subset(
        lib.TensorDataset(torch.arange(9.0)), [1, 8, 3]
    ),
    "split": split_of,
    "concatenated": lambda lib: lib.ConcatDataset([squares_of(lib), DATA, [1, 2]]),
    "stacked": lambda lib: lib.StackDataset(squares_of(lib), torch.arange(10)),
    "stacked by name": lambda lib: lib.StackDataset(a=squares_of(lib), b=DATA),
    "stream": stream_of,
    "chained": lambda lib: lib.ChainDataset([stream_of(lib, 3), stream_of(lib, 2)]),
    "sum of streams": lambda lib: stream_of(lib, 3) + stream_of(lib, 4),
}


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": None}])
@pytest.mark.parametrize(
    ("loader", "datasets"), [("ours", "ours"), ("ours", "torch"), ("torch", "ours")]
)
def test_datasets_of_either_library_work_in_either_loader(
    loader: str, datasets: str, options: dict[str, Any], name: str
) -> None:
    expected = epochs(theirs(DATASETS[name](torch_data), **options), 2)
    dataset = DATASETS[name](LIBRARIES[datasets])
    assert epochs(MAKERS[loader](dataset, **options), 2) == expected
    if loader == "ours":
        # One worker, since two would each have all of a stream.
        with DataLoader(dataset, num_workers=1, **options) as threaded:
            assert epochs(threaded, 2) == expected


def test_members_of_the_two_libraries_mix() -> None:
    for lib, other in itertools.permutations((torch_data, dataloader)):
        mixed = lib.ConcatDataset([other.Subset(squares_of(lib), [1, 2]), DATA])
        assert list(DataLoader(mixed, batch_size=None)) == [1, 4, *DATA]
        chained = lib.ChainDataset([stream_of(other, 2), stream_of(lib, 1)])
        assert [s["x"] for s in theirs(chained, batch_size=None)] == [0, 1, 0]


# --- Exceptions -----------------------------------------------------------------------


class TwoArguments(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(a, b)


# Made anew each time: a kept exception would keep the frames that it passed through.
ERRORS: dict[int, Callable[[], Exception]] = {
    1: lambda: IndexError("one"),
    4: lambda: KeyError("four"),
    5: lambda: TwoArguments(5, 5),
    11: lambda: ValueError("eleven"),
}


class Faulty:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index in ERRORS:
            raise ERRORS[index]()
        return index


class FaultyWhole(Faulty):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class FaultyIterator:
    """An iterator that can be asked on after an error."""

    def __init__(self) -> None:
        self.index = -1

    def __iter__(self) -> FaultyIterator:
        return self

    def __next__(self) -> int:
        self.index += 1
        if self.index == 12:
            raise StopIteration
        return Faulty()[self.index]


class FaultyStream(torch_data.IterableDataset):  # type: ignore[misc, name-defined]
    def __iter__(self) -> Iterator[int]:
        return FaultyIterator()


class FaultyGenerator(torch_data.IterableDataset):  # type: ignore[misc, name-defined]
    def __iter__(self) -> Iterator[int]:
        yield from map(Faulty().__getitem__, range(12))


def refuse_even(batch: Any) -> Any:
    values = batch if isinstance(batch, list) else [batch]
    if values[0] % 2 == 0:
        raise LookupError(f"even: {values}")
    return values


def events(loader: Any) -> list[Any]:
    """Return what each ``next()`` gives until the end: a batch, or type and words."""
    seen: list[Any] = []
    iterator = iter(loader)
    while len(seen) < 100:
        try:
            seen.append(plain(next(iterator)))
        except StopIteration:
            break
        except Exception as error:
            seen.append((type(error), str(error)))
    return seen


FAULTS: list[dict[str, Any]] = [
    {"batch_size": 1},
    {"batch_size": 3},
    {"batch_size": 3, "collate_fn": refuse_even},
    {"batch_size": 12},
    {"batch_size": None},
    {"batch_size": None, "collate_fn": refuse_even},
    {"batch_size": 5, "drop_last": True},
]


@pytest.mark.parametrize("options", FAULTS)
@pytest.mark.parametrize("dataset", [Faulty(), FaultyWhole()])
def test_the_epoch_goes_on_after_an_error_as_in_torch(
    make_loader: MakeLoader, dataset: Any, options: dict[str, Any]
) -> None:
    expected = events(theirs(dataset, **options))
    assert any(isinstance(event[0], type) for event in expected if event)
    loader = make_loader(dataset, **options)
    assert events(loader) == expected
    assert events(loader) == expected


@pytest.mark.parametrize("options", FAULTS)
@pytest.mark.parametrize("dataset", [FaultyStream(), FaultyGenerator()])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_goes_on_after_an_error_as_in_torch(
    dataset: Any, options: dict[str, Any], workers: int
) -> None:
    expected = events(theirs(dataset, **options))
    loader = DataLoader(dataset, num_workers=workers, **options)
    assert events(loader) == expected


@pytest.mark.parametrize("error", [ValueError, KeyError])
def test_an_error_keeps_nothing_alive(
    make_loader: MakeLoader, error: type[Exception]
) -> None:
    def iterate(make: Any, **options: Any) -> Any:
        loader = make(Faulty(), **options)
        iterator = iter(loader)
        for _ in range(100):
            try:
                next(iterator)
            except StopIteration:
                break
            except Exception:
                pass
        return weakref.ref(loader), weakref.ref(iterator)

    def fails(batch: Any) -> Any:
        raise error

    each: list[dict[str, Any]] = [{}, {"batch_size": 5}, {"collate_fn": fails}]
    gc.disable()
    try:
        for options in each:
            loader, iterator = iterate(theirs, **options)
            assert (loader(), iterator()) == (None, None)
        refs = [ref for options in each for ref in iterate(make_loader, **options)]
        assert wait_until(lambda: not any(ref() for ref in refs))
    finally:
        gc.enable()


# --- Length ---------------------------------------------------------------------------


def steps_that_warn(loader: Any, len_first: bool) -> list[list[str]]:
    """Return for each ``next()`` what it warned of."""
    if len_first:
        len(loader)
    iterator = iter(loader)
    if not len_first:
        len(loader)
    steps: list[list[str]] = []
    while len(steps) < 100:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            done = next(iterator, None) is None
        steps.append([f"{w.category.__name__}" for w in caught])
        if done:
            break
    return steps


@pytest.mark.parametrize("len_first", [True, False])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [None, 1, 3])
@pytest.mark.parametrize("length", [0, 2, 9, 10, 11])
def test_a_stream_longer_than_its_length_warns_when_torch_warns(
    length: int, batch_size: int | None, workers: int, len_first: bool
) -> None:
    options: dict[str, Any] = {"batch_size": batch_size}
    expected = steps_that_warn(theirs(Stream(10, length), **options), len_first)
    loader = DataLoader(Stream(10, length), num_workers=workers, **options)
    assert steps_that_warn(loader, len_first) == expected


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_late_warning_tells_both_numbers(library: str) -> None:
    loader = MAKERS[library](Stream(3, 2), batch_size=None)
    assert len(loader) == 2
    words = r"reported to be 2\b.* 3 samples have been fetched"
    with pytest.warns(UserWarning, match=words):
        assert list(loader) == [0, 1, 2]


# --- Batches --------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"batch_size": None}])
def test_pinning_without_an_accelerator_warns_at_each_epoch(
    make_loader: MakeLoader, options: dict[str, Any]
) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    data = [{"a": np.arange(3) + i, "b": "x"} for i in range(4)]
    expected = [plain(b) for b in theirs(data, **options)]
    loader = make_loader(data, pin_memory=True, **options)
    for each in (theirs(data, pin_memory=True, **options), loader, loader):
        with pytest.warns(UserWarning, match="'pin_memory' argument is set as true"):
            assert [plain(b) for b in each] == expected


def test_single_samples_are_converted_as_in_torch(make_loader: MakeLoader) -> None:
    samples = [1, 2.5, "s", b"b", None, np.ones(2), np.float32(3), torch.ones(1)]
    data = [*samples, tuple(samples), {"k": samples}, [np.int8(1), ["x"]], {1, 2}]
    expected = [plain(s) for s in theirs(data, batch_size=None)]
    assert [plain(s) for s in make_loader(data, batch_size=None)] == expected
    bulk = {"batch_size": None, "sampler": [[0, 3], [5]]}
    array = np.arange(12).reshape(6, 2)
    assert [plain(b) for b in make_loader(array, **bulk)] == [
        plain(b) for b in theirs(array, **bulk)
    ]


class NeedsGrad:
    """Samples that carry a graph, when the thread that loads records one."""

    def __init__(self) -> None:
        self.weight = torch.ones(2, requires_grad=True)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.weight * index


@pytest.mark.parametrize(
    "mode", [torch.enable_grad, torch.no_grad, torch.inference_mode]
)
def test_without_workers_the_callers_grad_mode_counts(mode: Any) -> None:
    with mode():
        expected = [b.requires_grad for b in theirs(NeedsGrad())]
        batches = list(DataLoader(NeedsGrad()))
    assert [b.requires_grad for b in batches] == expected
    assert [b.is_inference() for b in batches] == [mode is torch.inference_mode] * 4


# --- Iterators ------------------------------------------------------------------------


def test_persistent_workers_have_one_iterator_that_begins_anew() -> None:
    with DataLoader(
        DATA, 4, num_workers=1, persistent_workers=True, collate_fn=list
    ) as loader:
        iterator = iter(loader)
        assert iter(iterator) is iterator
        assert next(iterator) == [0, 1, 2, 3]
        assert iter(loader) is iterator is loader._iterator
        assert list(iterator) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert next(iterator, "end") == "end"
        assert iter(loader) is iterator
        assert next(iterator) == [0, 1, 2, 3]
        del iterator


def test_without_persistent_workers_iterators_are_independent(
    make_loader: MakeLoader,
) -> None:
    loader = make_loader(DATA, batch_size=5, collate_fn=list)
    first, second = iter(loader), iter(loader)
    assert first is not second
    assert next(first) == next(second) == DATA[:5]
    assert next(second) == next(first) == DATA[5:]


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_next_is_a_range_of_the_profiler(library: str) -> None:
    loader = MAKERS[library](DATA, batch_size=5)
    with torch.autograd.profiler.profile() as profile:
        iterator = iter(loader)
        label = f"enumerate(DataLoader)#{type(iterator).__name__}.__next__"
        list(iterator)
    assert sum(event.name == label for event in profile.function_events) == 3


def test_the_profiler_sees_the_loader_with_workers_too() -> None:
    with DataLoader(DATA, batch_size=5, num_workers=2) as loader:
        iterator = iter(loader)
        label = f"enumerate(DataLoader)#{type(iterator).__name__}.__next__"
        with torch.autograd.profiler.profile() as profile:
            list(iterator)
    assert sum(event.name == label for event in profile.function_events) == 3

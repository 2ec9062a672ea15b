"""dataloader.compat: dataloader-rs's names, and the rules that are its own."""

from __future__ import annotations

import copy
import gc
import inspect
import itertools
import pickle
import random
import signal
import threading
import weakref
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from test_interrupts import Strike, drain

from dataloader import DataLoader, IterableDataset, RandomSampler, compat
from dataloader.compat import PyDataloader, PyDataloaderIter, PyDataset

WORKERS = pytest.mark.parametrize("workers", [0, 2])
WAYS = pytest.mark.parametrize(
    "way",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 0, "items_in_parallel": 3},
        {"num_workers": 2, "items_in_parallel": 3},
    ],
    ids=["inline", "thread", "inline-lanes", "lanes"],
)


class Values(PyDataset):
    """A dataset of the items of a list."""

    def __init__(self, values: Iterable[Any]) -> None:
        super().__init__()
        self.values = list(values)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return self.values[index]


class Broken(Values):
    """A dataset whose sample 5 cannot be loaded."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise KeyError("five")
        return self.values[index]


class Whole(Values):
    """A dataset that loads a batch at once and knows what it was asked for."""

    def __init__(self, values: Iterable[Any]) -> None:
        super().__init__(values)
        self.calls: list[Any] = []

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("__getitem__ must not be called")

    def __getitems__(self, indices: list[int]) -> Any:
        self.calls.append(indices)
        return self.answer([self.values[index] for index in indices])

    def answer(self, samples: list[Any]) -> Any:
        return samples


def flat(batches: Iterable[list[Any]]) -> list[Any]:
    """Return the samples of some batches."""
    return [sample for batch in batches for sample in batch]


# Arguments.


def test_arguments_have_the_other_librarys_order_and_defaults() -> None:
    parameters = list(inspect.signature(PyDataloader).parameters.values())
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [(p.name, p.default) for p in positional[1:]] == [
        ("batch_size", 1),
        ("prefetch_depth", 2),
        ("shuffle", False),
        ("sampler", None),
        ("num_workers", 0),
        ("collate_fn", None),
        ("drop_last", False),
        ("seed", None),
        ("items_in_parallel", 1),
    ]
    assert positional[0].name == "dataset"


def test_all_arguments_can_be_given_by_position() -> None:
    loader = PyDataloader(Values("abcde"), 2, 3, True, None, 2, sorted, True, 7, 2)
    assert (loader.batch_size, loader.prefetch_depth, loader.num_workers) == (2, 3, 2)
    assert (loader.drop_last, loader.seed, loader.items_in_parallel) == (True, 7, 2)
    assert [len(batch) for batch in loader] == [2, 2]


ZERO = "{} must be > 0"


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"batch_size": 0}, ValueError, ZERO.format("batch_size")),
        ({"prefetch_depth": 0}, ValueError, ZERO.format("prefetch_depth")),
        ({"items_in_parallel": 0}, ValueError, ZERO.format("items_in_parallel")),
        ({"shuffle": True, "sampler": [0]}, ValueError, "are mutually exclusive"),
        ({"seed": 1}, ValueError, "seed only applies when shuffle=True"),
        ({"num_workers": 2**63, "items_in_parallel": 4}, ValueError, "too large"),
        ({"batch_size": -1}, OverflowError, "batch_size"),
        ({"prefetch_depth": 2**64}, OverflowError, "prefetch_depth"),
        ({"num_workers": -1}, OverflowError, "num_workers"),
        ({"items_in_parallel": -1}, OverflowError, "items_in_parallel"),
        ({"seed": -1, "shuffle": True}, OverflowError, "seed"),
        ({"seed": 2**64, "shuffle": True}, OverflowError, "seed"),
        ({"seed": 1.5, "shuffle": True}, TypeError, "seed"),
        ({"batch_size": 2.0}, TypeError, "batch_size"),
        ({"batch_size": None}, TypeError, "batch_size"),
        ({"num_workers": None}, TypeError, "num_workers"),
        ({"shuffle": None}, TypeError, "shuffle"),
        ({"shuffle": [3, 1]}, TypeError, "by keyword"),
        ({"drop_last": 1}, TypeError, "drop_last"),
        ({"sampler": 42}, TypeError, "sampler"),
        ({"items_in_parallel": 2, "item_concurrency": 2}, ValueError, "give one"),
        ({"batch_sampler": [[0]]}, TypeError, "batch_sampler"),
    ],
)
def test_wrong_arguments_are_refused(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        PyDataloader(Values("abc"), **options)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        # What has the wrong type or size comes before what breaks a rule.
        ({"batch_size": 0, "seed": -1}, OverflowError, "seed"),
        ({"batch_size": 0, "prefetch_depth": 0}, ValueError, "batch_size"),
        (
            {"prefetch_depth": 0, "shuffle": True, "sampler": [0]},
            ValueError,
            "prefetch_depth",
        ),
        ({"seed": 1, "items_in_parallel": 0}, ValueError, "seed"),
    ],
)
def test_of_several_wrong_arguments_the_same_is_reported(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        PyDataloader(Values("abc"), **options)


def test_whole_numbers_and_flags_of_numpy_are_taken() -> None:
    loader = PyDataloader(
        Values("abc"),
        np.int64(2),  # type: ignore[arg-type]
        drop_last=np.True_,  # type: ignore[arg-type]
    )
    assert list(loader) == [["a", "b"]]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"sampler": [0, 1, 2]}])
def test_the_largest_numbers_are_taken(options: dict[str, Any]) -> None:
    largest = 2**64 - 1
    loader = PyDataloader(
        Values(range(3)), largest, largest, num_workers=1, seed=None, **options
    )
    (batch,) = loader
    assert sorted(batch) == [0, 1, 2]


def test_the_later_name_of_items_in_parallel_is_taken() -> None:
    loader = PyDataloader(Values(range(9)), 4, item_concurrency=3)
    assert loader.items_in_parallel == 3
    assert list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


# Datasets.


def test_a_plain_object_is_a_dataset() -> None:
    assert list(PyDataloader("abc", batch_size=2)) == [["a", "b"], ["c"]]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize("dataset", [5, PyDataset, Stream(), iter([1])])
def test_what_has_no_samples_by_index_is_no_dataset(dataset: Any) -> None:
    with pytest.raises(TypeError, match="dataset must"):
        PyDataloader(dataset)


def test_the_base_class_leaves_its_methods_to_subclasses() -> None:
    with pytest.raises(NotImplementedError, match="__len__"):
        len(PyDataset())
    with pytest.raises(NotImplementedError, match="__getitem__"):
        PyDataset()[0]
    assert not hasattr(PyDataset, "__getitems__")


@WAYS
def test_all_workers_share_the_one_dataset(way: dict[str, Any]) -> None:
    class Identity(Values):
        def __getitem__(self, index: int) -> int:
            return id(self)

    dataset = Identity(range(40))
    assert set(flat(PyDataloader(dataset, 4, **way))) == {id(dataset)}


@WORKERS
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_error_of_the_datasets_length_comes_from_iter(
    workers: int, shuffle: bool
) -> None:
    class Lost(Values):
        def __len__(self) -> int:
            raise OSError("index file missing")

    loader = PyDataloader(Lost("abc"), shuffle=shuffle, num_workers=workers)
    with pytest.raises(OSError, match="index file missing"):
        iter(loader)
    with pytest.raises(OSError, match="index file missing"):
        len(loader)


# Batches.


@WAYS
def test_a_batch_is_a_list(way: dict[str, Any]) -> None:
    batches = list(PyDataloader(Values(range(7)), 3, **way))
    assert batches == [[0, 1, 2], [3, 4, 5], [6]]
    assert {type(batch) for batch in batches} == {list}


@WAYS
def test_samples_are_handed_over_as_they_are(way: dict[str, Any]) -> None:
    dataset = Values([np.zeros(2), {"a": 1}, None])
    (batch,) = PyDataloader(dataset, 3, **way)
    assert all(a is b for a, b in zip(batch, dataset.values, strict=True))


@WAYS
def test_collate_fn_is_given_a_list(way: dict[str, Any]) -> None:
    def collate(samples: Any) -> Any:
        return type(samples), sum(samples)

    batches = list(PyDataloader(Values(range(7)), 3, collate_fn=collate, **way))
    assert batches == [(list, 3), (list, 12), (list, 6)]


@WORKERS
def test_getitems_is_called_once_a_batch_with_a_list(workers: int) -> None:
    dataset = Whole(range(5))
    loader = PyDataloader(dataset, 2, num_workers=workers, sampler=[4, 3, 0])
    assert list(loader) == [[4, 3], [0]]
    assert sorted(dataset.calls) == [[0], [4, 3]]
    assert {type(call) for call in dataset.calls} == {list}


@WORKERS
@pytest.mark.parametrize("kind", [tuple, iter, np.array])
def test_getitems_may_return_any_iterable(workers: int, kind: Any) -> None:
    class Other(Whole):
        def answer(self, samples: list[Any]) -> Any:
            return kind(samples)

    batches = list(PyDataloader(Other(range(5)), 2, num_workers=workers))
    assert batches == [[0, 1], [2, 3], [4]]
    assert {type(batch) for batch in batches} == {list}
    types = list(PyDataloader(Other(range(2)), num_workers=workers, collate_fn=type))
    assert types == [list, list]


@WORKERS
@pytest.mark.parametrize("collate", [None, sum])
def test_getitems_must_return_a_sample_for_each_index(
    workers: int, collate: Any
) -> None:
    class Short(Whole):
        def answer(self, samples: list[Any]) -> Any:
            return samples[1:]

    loader = PyDataloader(Short(range(4)), 2, num_workers=workers, collate_fn=collate)
    with pytest.raises(ValueError, match="returned 1 samples for 2 indices"):
        next(iter(loader))


@WORKERS
def test_getitems_is_not_called_for_items_in_parallel(workers: int) -> None:
    class Both(Values):
        def __getitems__(self, indices: list[int]) -> Any:
            raise AssertionError("__getitems__ must not be called")

    loader = PyDataloader(Both(range(3)), 2, num_workers=workers, items_in_parallel=2)
    assert list(loader) == [[0, 1], [2]]


@WORKERS
def test_getitems_that_is_none_counts_as_missing(workers: int) -> None:
    class Without(Values):
        __getitems__ = None

    loader = PyDataloader(Without(range(3)), 2, num_workers=workers)
    assert list(loader) == [[0, 1], [2]]


# Iterators.


@WAYS
def test_the_length_of_an_iterator_is_what_is_left(way: dict[str, Any]) -> None:
    iterator = iter(PyDataloader(Values(range(7)), 3, **way))
    assert len(iterator) == 3
    assert [len(iterator) for _ in iterator] == [2, 1, 0]
    assert next(iterator, None) is None
    assert len(iterator) == 0


@WAYS
def test_a_batch_that_failed_is_not_left(way: dict[str, Any]) -> None:
    iterator = iter(PyDataloader(Broken(range(12)), 4, **way))
    assert next(iterator) == [0, 1, 2, 3]
    with pytest.raises(KeyError, match="five"):
        next(iterator)
    assert len(iterator) == 1
    assert next(iterator) == [8, 9, 10, 11]
    assert next(iterator, None) is None


@WORKERS
def test_what_is_left_does_not_change_with_the_dataset(workers: int) -> None:
    dataset = Values(range(4))
    iterator = iter(PyDataloader(dataset, num_workers=workers))
    dataset.values.append(4)
    assert len(iterator) == 4
    assert len(list(iterator)) == 4


@WORKERS
def test_the_sampler_decides_what_is_left(workers: int) -> None:
    class Dishonest:
        def __iter__(self) -> Iterator[int]:
            return iter([0, 1, 2])

        def __len__(self) -> int:
            return 100

    sampled = PyDataloader(Values("abc"), 2, sampler=Dishonest(), num_workers=workers)
    assert len(sampled) == 50
    iterator = iter(sampled)
    assert len(iterator) == 2
    assert list(iterator) == [["a", "b"], ["c"]]


@WORKERS
def test_iterators_have_the_public_type_and_are_independent(workers: int) -> None:
    loader = PyDataloader(Values(range(6)), 2, num_workers=workers)
    first, second = iter(loader), iter(loader)
    assert isinstance(first, PyDataloaderIter)
    assert iter(first) is first
    assert list(first) == [[0, 1], [2, 3], [4, 5]]
    assert len(second) == 3
    assert list(second) == [[0, 1], [2, 3], [4, 5]]


def test_our_own_loaders_iterators_do_not_count_down() -> None:
    iterator = iter(DataLoader(range(3), collate_fn=list))
    next(iterator)
    assert len(iterator) == 3


@pytest.mark.parametrize("orderly", [True, False], ids=["sampler", "sequential"])
def test_an_interrupt_anywhere_leaves_batches_and_length_right(orderly: bool) -> None:
    sampler = list(range(8)) if orderly else None
    loader = PyDataloader(Broken(range(8)), 2, sampler=sampler)
    for place in itertools.count():
        strike = Strike(place)
        iterator = iter(loader)
        seen: list[Any] = []
        with pytest.raises(KeyError):
            drain(iterator, strike, seen)
        assert len(iterator) == 1, strike.struck
        drain(iterator, strike, seen)
        assert seen == [[0, 1], [2, 3], [6, 7]], strike.struck
        assert len(iterator) == 0, strike.struck
        if not strike.struck:
            break
    assert place > 10, "the places where an interrupt can strike were not found"


# Samplers.


class Recorded:
    """A sampler that knows how often it was asked, and how far it was read."""

    def __init__(self, indices: Iterable[Any]) -> None:
        self.indices = list(indices)
        self.begun = 0
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        for index in self.indices:
            self.read += 1
            yield index


@WORKERS
def test_a_sampler_is_read_to_its_end_in_iter(workers: int) -> None:
    sampler = Recorded([4, 2, 0])
    loader = PyDataloader(Values("abcde"), 2, sampler=sampler, num_workers=workers)
    iterator = iter(loader)
    assert (sampler.begun, sampler.read) == (1, 3)
    assert len(iterator) == 2
    assert list(iterator) == [["e", "c"], ["a"]]
    assert (sampler.begun, sampler.read) == (1, 3)


class Restarting:
    """An iterator that begins anew whenever it is asked for iter()."""

    def __init__(self, stop: int) -> None:
        self.stop = stop

    def __iter__(self) -> Iterator[int]:
        self.position = 0
        return self

    def __next__(self) -> int:
        if self.position == self.stop:
            raise StopIteration
        self.position += 1
        return self.position - 1


@pytest.mark.parametrize("size", [0, 1, 3, 4, 8, 11])
def test_a_sampler_that_is_read_in_pieces_is_read_once(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "_READ_AT_ONCE", 4)
    loader = PyDataloader(Values(range(11)), 3, sampler=Restarting(size))
    assert flat(loader) == list(range(size))


@pytest.mark.parametrize(
    "sampler",
    [
        [4, 0, 3],
        (4, 0, 3),
        {4: "a", 0: "b", 3: "c"},
        np.array([4, 0, 3]),
        b"\x04\x00\x03",
        list(np.array([4, 0, 3])),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_any_iterable_of_indices_is_a_sampler(sampler: Any) -> None:
    class Keys(Values):
        def __getitem__(self, index: int) -> Any:
            return type(index), index

    (batch,) = PyDataloader(Keys(range(5)), 3, sampler=sampler)
    assert batch == [(int, 4), (int, 0), (int, 3)]


def test_a_tensor_is_a_sampler() -> None:
    torch = pytest.importorskip("torch")
    loader = PyDataloader(Values(range(5)), 3, sampler=torch.tensor([4, 0, 3]))
    assert list(loader) == [[4, 0, 3]]


def test_a_generator_serves_one_epoch() -> None:
    loader = PyDataloader(Values(range(3)), 2, sampler=(i for i in range(3)))
    assert list(iter(loader)) == [[0, 1], [2]]
    assert list(iter(loader)) == []


@WORKERS
@pytest.mark.parametrize("drop_last", [False, True])
def test_lengths_follow_the_sampler(workers: int, drop_last: bool) -> None:
    loader = PyDataloader(
        Values(range(9)),
        2,
        sampler=[0, 1, 2],
        drop_last=drop_last,
        num_workers=workers,
    )
    expected = [[0, 1]] if drop_last else [[0, 1], [2]]
    assert len(loader) == len(iter(loader)) == len(expected)
    assert list(loader) == expected


@WORKERS
def test_a_sampler_without_a_length_can_be_iterated_over(workers: int) -> None:
    loader = PyDataloader(
        Values(range(9)), 2, sampler=Recorded(range(3)), num_workers=workers
    )
    with pytest.raises(TypeError):
        len(loader)
    assert list(loader) == [[0, 1], [2]]


def test_the_error_of_a_samplers_length_is_raised() -> None:
    class Unreadable(Recorded):
        def __len__(self) -> int:
            raise OSError("sampler index missing")

    loader = PyDataloader(Values("abc"), sampler=Unreadable([0]))
    with pytest.raises(OSError, match="sampler index missing"):
        len(loader)


@WORKERS
@pytest.mark.parametrize(
    ("indices", "error"),
    [
        ([0, "x", 2], TypeError),
        ([0, 1.0], TypeError),
        ([None], TypeError),
        ([[0, 1]], TypeError),
        ([0, -1, 2], OverflowError),
        ([np.int64(-1)], OverflowError),
        ([0, 2**64], OverflowError),
        ([0, -1, "x"], OverflowError),
        ([0, "x", -1], TypeError),
    ],
)
@pytest.mark.parametrize("kind", [list, Recorded])
def test_what_is_no_index_is_an_error_of_iter(
    workers: int, indices: list[Any], error: type[Exception], kind: Any
) -> None:
    loader = PyDataloader(Values("abc"), sampler=kind(indices), num_workers=workers)
    with pytest.raises(error, match="sampler must yield whole numbers") as caught:
        iter(loader)
    shown = next(repr(i) for i in indices if not isinstance(i, int) or i not in (0, 1))
    assert str(caught.value).endswith(f"got {shown}")


@WORKERS
def test_the_error_of_a_sampler_comes_from_iter_and_leaves_the_loader_usable(
    workers: int,
) -> None:
    class Flaky:
        fails = True

        def __iter__(self) -> Iterator[int]:
            yield 0
            if self.fails:
                raise ValueError("this epoch fails")
            yield 1

    sampler = Flaky()
    loader = PyDataloader(Values("ab"), sampler=sampler, num_workers=workers)
    with pytest.raises(ValueError, match="this epoch fails"):
        iter(loader)
    sampler.fails = False
    assert list(loader) == [["a"], ["b"]]


def begin_interrupted(seconds: float, loader: PyDataloader) -> None:
    """Begin an epoch that a signal interrupts."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    iter(loader)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a POSIX timer")
def test_ctrl_c_stops_the_reading_of_a_sampler_written_in_c() -> None:
    limit = 1 << 22
    counter = itertools.count()
    loader = PyDataloader(Values("ab"), sampler=itertools.islice(counter, limit))

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    outer = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            begin_interrupted(0.001, loader)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, outer)
    assert next(counter) < limit, "the interrupt had to wait for the sampler's end"


# Order.


@WORKERS
def test_loaders_with_the_same_seed_give_the_same_orders(workers: int) -> None:
    def orders(seed: int, workers: int) -> list[list[int]]:
        loader = PyDataloader(
            Values(range(50)), 8, shuffle=True, seed=seed, num_workers=workers
        )
        return [flat(loader) for _ in range(3)]

    three = orders(7, workers)
    assert three == orders(7, 0)
    assert three != orders(8, workers)
    assert all(sorted(order) == list(range(50)) for order in three)
    assert len({tuple(order) for order in three}) == 3


def test_without_a_seed_orders_differ_and_the_attribute_tells_the_seed() -> None:
    first = PyDataloader(Values(range(50)), 50, shuffle=True)
    second = PyDataloader(Values(range(50)), 50, shuffle=True)
    again = PyDataloader(Values(range(50)), 50, shuffle=True, seed=first.seed)
    order = list(first)
    assert list(second) != order
    assert list(again) == order


@WORKERS
@pytest.mark.parametrize("shuffle", [False, True])
def test_nothing_is_drawn_from_global_generators(workers: int, shuffle: bool) -> None:
    torch = pytest.importorskip("torch")
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    before_torch = torch.get_rng_state()
    for _ in PyDataloader(Values(range(9)), shuffle=shuffle, num_workers=workers):
        pass
    after = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    assert before == after
    assert torch.equal(before_torch, torch.get_rng_state())


@WORKERS
def test_a_shuffled_dataset_may_be_empty(workers: int) -> None:
    assert list(PyDataloader(Values([]), shuffle=True, num_workers=workers)) == []


def test_a_sampler_of_ours_is_told_the_epoch() -> None:
    sampler = RandomSampler(range(50), seed=1)
    loader = PyDataloader(Values(range(50)), 50, sampler=sampler)
    assert list(loader) != list(loader)
    loader.set_epoch(0)
    assert list(loader) == [list(RandomSampler(range(50), seed=1))]


# Life.


@WORKERS
def test_a_loader_in_a_cycle_with_its_iterator_is_collected(workers: int) -> None:
    class Pipeline:
        def __init__(self) -> None:
            self.loader = PyDataloader(
                Values(range(8)), 4, num_workers=workers, collate_fn=self.collate
            )

        def collate(self, samples: list[Any]) -> list[Any]:
            return samples

    pipeline = Pipeline()
    pipeline.iterator = iter(pipeline.loader)  # type: ignore[attr-defined]
    assert next(pipeline.iterator) == [0, 1, 2, 3]  # type: ignore[attr-defined]
    reference = weakref.ref(pipeline)
    del pipeline
    gc.collect()
    assert reference() is None


@WORKERS
def test_a_loader_can_be_used_on_another_thread(workers: int) -> None:
    loader = PyDataloader(Values(range(8)), 4, num_workers=workers)
    batches: list[Any] = []
    thread = threading.Thread(target=lambda: batches.extend(loader))
    thread.start()
    thread.join()
    iterators = [iter(loader)]
    assert next(iterators[0]) == [0, 1, 2, 3]
    thread = threading.Thread(target=iterators.clear)
    thread.start()
    thread.join()
    assert batches == list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    "duplicate", [copy.copy, lambda loader: pickle.loads(pickle.dumps(loader))]
)
@pytest.mark.parametrize("options", [{"sampler": [2, 0]}, {"shuffle": True, "seed": 1}])
def test_a_copied_loader_keeps_its_rules(duplicate: Any, options: Any) -> None:
    loader = PyDataloader(Values("abc"), 2, **options)
    assert list(duplicate(loader)) == list(loader)

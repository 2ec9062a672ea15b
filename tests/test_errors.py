"""Exceptions: type and identity kept, a note added, the next next() goes on."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import MakeLoader

from dataloader import DataLoader, IterableDataset


class Broken:
    """A dataset some of whose samples raise."""

    def __init__(self, size: int, errors: dict[int, BaseException]) -> None:
        self.size = size
        self.errors = errors

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if index in self.errors:
            raise self.errors[index]
        return index


def outcomes(iterator: Iterator[Any]) -> list[Any]:
    """Return batches and exceptions, in order, up to the end."""
    results: list[Any] = []
    while True:
        try:
            results.append(next(iterator))
        except StopIteration:
            return results
        except BaseException as error:
            results.append(error.with_traceback(None))


class PickyError(Exception):
    """Needs two arguments, which makes it hard to rebuild."""

    def __init__(self, code: int, path: str) -> None:
        super().__init__(code, path)
        self.code = code
        self.path = path


KINDS: list[tuple[type[Exception], tuple[Any, ...]]] = [
    (ValueError, ("bad sample",)),
    (KeyError, ("a\nb",)),
    (IndexError, ("out",)),
    (FileNotFoundError, (2, "no such file")),
    (UnicodeDecodeError, ("utf-8", b"\xff", 0, 1, "bad byte")),
    (PickyError, (7, "x.bin")),
    (AttributeError, ("no such attribute",)),
]


each_kind = pytest.mark.parametrize(
    ("kind", "arguments"), KINDS, ids=[kind.__name__ for kind, _ in KINDS]
)


# Errors are made within the tests: raised ones refer to the frames they went through.


@each_kind
def test_an_error_of_the_dataset_is_raised_by_next_as_it_is(
    make_loader: MakeLoader, kind: type[Exception], arguments: tuple[Any, ...]
) -> None:
    error = kind(*arguments)
    loader = make_loader(Broken(5, {2: error}), batch_size=2, collate_fn=list)
    iterator = iter(loader)
    assert next(iterator) == [0, 1]
    with pytest.raises(kind) as caught:
        next(iterator)
    assert caught.value is error
    assert caught.value.args == arguments
    assert next(iterator) == [4]
    assert next(iterator, None) is None


@each_kind
def test_an_error_of_collate_fn_is_raised_by_next_as_it_is(
    make_loader: MakeLoader, kind: type[Exception], arguments: tuple[Any, ...]
) -> None:
    error = kind(*arguments)

    def collate(samples: list[int]) -> list[int]:
        if 2 in samples:
            raise error
        return samples

    loader = make_loader(range(5), batch_size=2, collate_fn=collate)
    assert outcomes(iter(loader)) == [[0, 1], error, [4]]


def test_the_traceback_leads_to_the_line_that_raised(make_loader: MakeLoader) -> None:
    loader = make_loader(Broken(3, {0: ValueError("x")}), collate_fn=list)
    with pytest.raises(ValueError, match="x") as caught:
        next(iter(loader))
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "__getitem__" in names


def test_one_exception_object_may_be_raised_by_several_samples(
    make_loader: MakeLoader,
) -> None:
    error = ValueError("always")
    loader = make_loader(Broken(30, dict.fromkeys(range(30), error)), collate_fn=list)
    assert outcomes(iter(loader)) == [error] * 30
    assert len(error.__notes__) == len(set(error.__notes__)) == 30


def test_all_batches_but_the_failed_ones_come_once_and_in_order(
    make_loader: MakeLoader,
) -> None:
    errors: dict[int, BaseException] = {i: ValueError(i) for i in (0, 7, 8, 31, 59)}
    loader = make_loader(Broken(60, errors), batch_size=3, collate_fn=list)
    expected: list[Any] = [[i, i + 1, i + 2] for i in range(0, 60, 3)]
    for index, error in errors.items():
        if index != 8:  # in one batch with 7, which comes first
            expected[index // 3] = error
    for _ in range(3):
        assert outcomes(iter(loader)) == expected


def test_every_batch_may_fail(make_loader: MakeLoader) -> None:
    errors: dict[int, BaseException] = {i: ValueError(i) for i in range(12)}
    loader = make_loader(Broken(12, errors), batch_size=2, collate_fn=list)
    assert outcomes(iter(loader)) == [errors[i] for i in range(0, 12, 2)]


def test_an_epoch_follows_one_that_an_error_ended(make_loader: MakeLoader) -> None:
    dataset = Broken(6, {2: ValueError("once")})
    loader = make_loader(dataset, batch_size=2, collate_fn=list)
    with pytest.raises(ValueError, match="once"):
        list(loader)
    dataset.errors.clear()
    assert list(loader) == [[0, 1], [2, 3], [4, 5]]


# The note.


def note_of(loader: DataLoader[Any], epoch: int = 0) -> str:
    """Return the note of the first error of an epoch."""
    loader.set_epoch(epoch)
    for outcome in outcomes(iter(loader)):
        if isinstance(outcome, BaseException):
            (note,) = outcome.__notes__
            assert isinstance(note, str)
            return note
    raise AssertionError("nothing was raised")


def loading_names(loader: DataLoader[Any]) -> list[str]:
    """Return what the note may call the thread that loaded the batch."""
    names = []
    if loader.items_in_parallel == 1 and (loader.num_workers == 0 or loader.help):
        names.append("main thread")
    if loader.num_workers > 0 or loader.items_in_parallel > 1:
        names.append("worker")
    return names


def test_the_note_names_worker_epoch_batch_and_indices(make_loader: MakeLoader) -> None:
    dataset = Broken(9, {7: ValueError("x")})
    loader = make_loader(dataset, sampler=[1, 2, 7, 8], batch_size=2, collate_fn=list)
    note = note_of(loader, epoch=4)
    assert any(name in note for name in loading_names(loader))
    assert "epoch 4" in note
    assert "batch 1" in note
    assert "[7, 8]" in note


def test_the_note_of_an_error_in_collate_fn_names_the_same(
    make_loader: MakeLoader,
) -> None:
    def collate(samples: list[int]) -> None:
        raise ValueError("x")

    note = note_of(make_loader(range(3), batch_size=2, collate_fn=collate))
    assert "batch 0" in note
    assert "[0, 1]" in note


def test_the_note_names_a_key_that_is_not_in_a_batch(make_loader: MakeLoader) -> None:
    loader = make_loader({"a": 1}, batch_size=None, sampler=["a", "nope"])
    note = note_of(loader)
    assert "batch 1" in note
    assert "'nope'" in note


def test_the_note_of_a_large_batch_is_short(make_loader: MakeLoader) -> None:
    dataset = Broken(10_000, {5: ValueError("x")})
    note = note_of(make_loader(dataset, batch_size=10_000, collate_fn=list))
    assert len(note) < 200
    assert "10000" in note


def test_the_note_of_an_iterable_dataset_names_worker_epoch_and_batch(
    backend: dict[str, Any],
) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 0
            raise ValueError("x")

    options = {**backend, "num_workers": min(backend["num_workers"], 1)}
    note = note_of(DataLoader(Stream(), collate_fn=list, **options), epoch=2)
    is_inline = options["num_workers"] == 0 and "items_in_parallel" not in options
    assert ("main thread" if is_inline else "worker 0") in note
    assert "epoch 2" in note
    assert "batch 1" in note


@dataclasses.dataclass(frozen=True)
class ShardError(Exception):
    """Cannot be changed any more, so that it takes no notes."""

    shard: int


def test_an_error_that_takes_no_notes_is_raised_all_the_same(
    make_loader: MakeLoader,
) -> None:
    error = ShardError(3)
    loader = make_loader(Broken(2, {0: error}), collate_fn=list)
    assert outcomes(iter(loader)) == [error, [1]]


# StopIteration and exceptions that are no Exception.


def test_stop_iteration_of_the_dataset_does_not_shorten_the_epoch(
    make_loader: MakeLoader,
) -> None:
    error = StopIteration("done")
    loader = make_loader(Broken(6, {2: error}), collate_fn=list)
    results = outcomes(iter(loader))
    assert [r for i, r in enumerate(results) if i != 2] == [[0], [1], [3], [4], [5]]
    assert type(results[2]) is RuntimeError
    assert results[2].__cause__ is error
    assert "StopIteration" in str(results[2])
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(loader)


def test_stop_iteration_of_collate_fn_does_not_shorten_the_epoch(
    make_loader: MakeLoader,
) -> None:
    loader = make_loader(range(4), collate_fn=lambda samples: next(iter(())))
    assert [type(result) for result in outcomes(iter(loader))] == [RuntimeError] * 4


def test_stop_iteration_of_collate_fn_does_not_shorten_a_stream(
    make_loader: MakeLoader,
) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    def collate(samples: list[int]) -> list[int]:
        if samples == [1]:
            raise StopIteration
        return samples

    loader = make_loader(Stream(), collate_fn=collate)
    workers = max(loader.num_workers, 1)
    results = outcomes(iter(loader))
    assert len(results) == 4 * workers
    assert sum(isinstance(result, RuntimeError) for result in results) == workers


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_exceptions_that_end_a_program_reach_the_consumer(
    make_loader: MakeLoader, kind: type[BaseException]
) -> None:
    error = kind("from a dataset")
    dataset = Broken(6, {2: error})
    # A consumer that helps is interrupted at once, whichever batch is due.
    loader = make_loader(dataset, collate_fn=list, help=False)
    iterator = iter(loader)
    assert [next(iterator), next(iterator)] == [[0], [1]]
    with pytest.raises(kind) as caught:
        next(iterator)
    assert caught.value is error
    dataset.errors.clear()
    rest = list(iterator)
    # Without workers an interrupted batch is loaded again.
    assert rest in ([[3], [4], [5]], [[2], [3], [4], [5]])
    assert list(loader) == [[i] for i in range(6)]


# Where else errors come from.


def test_an_error_of_worker_init_fn_takes_the_place_of_its_workers_batches() -> None:
    errors: list[Exception] = []

    def init(worker_id: int) -> None:
        errors.append(ValueError(f"init {worker_id}"))
        raise errors[-1]

    loader = DataLoader(range(6), num_workers=2, worker_init_fn=init, collate_fn=list)
    results = outcomes(iter(loader))
    assert len(results) == 6
    assert all(result in errors for result in results)
    assert all("worker" in result.__notes__[0] for result in results)


def test_an_error_that_is_raised_many_times_does_not_grow() -> None:
    def init(worker_id: int) -> None:
        raise ValueError("init")

    loader = DataLoader(range(30), num_workers=1, worker_init_fn=init)
    iterator = iter(loader)
    depths = set()
    for _ in range(30):
        with pytest.raises(ValueError, match="init") as caught:
            next(iterator)
        depths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(depths) == 1
    assert len(caught.value.__notes__) == 1


def test_an_error_of_worker_init_fn_in_one_worker_leaves_the_other_alone() -> None:
    def init(worker_id: int) -> None:
        if worker_id == 0:
            raise ValueError("init 0")

    loader = DataLoader(range(40), num_workers=2, worker_init_fn=init, collate_fn=list)
    results = outcomes(iter(loader))
    assert len(results) == 40
    for i, result in enumerate(results):
        assert result == [i] or str(result) == "init 0"


def test_an_error_of_worker_init_fn_ends_that_workers_stream() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    def init(worker_id: int) -> None:
        if worker_id == 0:
            raise ValueError("init 0")

    loader = DataLoader(Stream(), num_workers=2, worker_init_fn=init, collate_fn=list)
    first, *rest = outcomes(iter(loader))
    assert str(first) == "init 0"
    assert rest == [[0], [1], [2]]


def test_an_error_of_len_comes_from_len_and_from_the_epoch(
    make_loader: MakeLoader,
) -> None:
    class NoLength:
        def __len__(self) -> int:
            raise OSError("the index is gone")

        def __getitem__(self, index: int) -> int:
            return index

    loader = make_loader(NoLength(), collate_fn=list)
    with pytest.raises(OSError, match="the index is gone"):
        len(loader)
    with pytest.raises(OSError, match="the index is gone"):
        next(iter(loader))

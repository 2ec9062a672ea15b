"""Epochs that are broken off, dropped, abandoned or iterated side by side."""

from __future__ import annotations

import gc
import hashlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from conftest import MakeLoader, wait_until, worker_threads

from dataloader import DataLoader


def flat(batches: Iterable[list[Any]]) -> list[Any]:
    """Return the samples of some batches."""
    return [sample for batch in batches for sample in batch]


class Slow:
    """A dataset whose samples cost some work, so that epochs are broken off within."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        digest = b""
        for _ in range(50):
            digest = hashlib.sha256(digest).digest()
        return index


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that is set at the end of the test, whatever happens."""
    event = threading.Event()
    yield event
    event.set()


class Gated:
    """A dataset whose low samples wait for a gate; high ones come at once."""

    def __init__(self, gate: threading.Event, blocked: int, size: int = 8) -> None:
        self.gate = gate
        self.blocked = blocked
        self.size = size
        self.entered: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.entered.append(index)
        if index < self.blocked:
            assert self.gate.wait(20)
        return index


def in_thread(function: Callable[[], Any]) -> Any:
    """Return what ``function`` returns when another thread calls it."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join(20)
    assert results, "the thread did not end, or raised"
    return results[0]


@pytest.mark.parametrize("consumed", [0, 1, 3])
def test_a_full_epoch_follows_one_that_was_broken_off(
    make_loader: MakeLoader, consumed: int
) -> None:
    loader = make_loader(Slow(), batch_size=4, collate_fn=list)
    iterator = iter(loader)
    for _ in range(consumed):
        next(iterator)
    del iterator
    assert flat(loader) == list(range(40))


def test_many_epochs_of_which_some_are_broken_off(make_loader: MakeLoader) -> None:
    loader = make_loader(Slow(), batch_size=4, collate_fn=list)
    for epoch in range(20):
        if epoch % 3 == 2:
            assert next(iter(loader)) == [0, 1, 2, 3]
        else:
            assert flat(loader) == list(range(40))


def test_many_epochs_that_nobody_consumes(make_loader: MakeLoader) -> None:
    loader = make_loader(Slow(), batch_size=4, collate_fn=list)
    for _ in range(20):
        iter(loader)
    assert flat(loader) == list(range(40))


@pytest.mark.parametrize("consumed", [0, 1])
def test_an_iterator_may_be_dropped_by_the_garbage_collector(
    make_loader: MakeLoader, consumed: int
) -> None:
    loader = make_loader(Slow(), batch_size=4, collate_fn=list)
    iterator = iter(loader)
    for _ in range(consumed):
        next(iterator)
    cycle: list[Any] = [iterator]
    cycle.append(cycle)
    dead = weakref.ref(iterator)
    del iterator, cycle
    gc.collect()
    assert dead() is None
    assert flat(loader) == list(range(40))


def test_breaking_off_with_the_least_prefetch() -> None:
    loader = DataLoader(Slow(), 4, num_workers=2, prefetch_depth=1, collate_fn=list)
    for _ in range(5):
        assert next(iter(loader)) == [0, 1, 2, 3]


def test_breaking_off_with_more_workers_than_batches() -> None:
    loader = DataLoader(Slow(), 20, num_workers=8, collate_fn=list)
    for _ in range(5):
        assert next(iter(loader)) == list(range(20))
    assert flat(loader) == list(range(40))


def test_any_thread_may_make_iterate_and_drop(make_loader: MakeLoader) -> None:
    loader = in_thread(lambda: make_loader(Slow(), batch_size=4, collate_fn=list))
    assert in_thread(lambda: flat(loader)) == list(range(40))
    kept = [iter(loader)]
    assert next(kept[0]) == [0, 1, 2, 3]
    assert in_thread(lambda: next(kept[0])) == [4, 5, 6, 7]
    in_thread(kept.clear)
    assert flat(loader) == list(range(40))


class Trainer:
    """A user's object that holds a loader which refers back to it."""

    def __init__(self, make_loader: MakeLoader) -> None:
        self.loader = make_loader(range(40), batch_size=4, collate_fn=self.collate)
        self.batches = iter(self.loader)

    def collate(self, samples: list[int]) -> list[int]:
        return samples


@pytest.mark.parametrize("consumed", [0, 1])
def test_a_cycle_through_loader_and_live_iterator_is_collected(
    make_loader: MakeLoader, consumed: int
) -> None:
    trainer = Trainer(make_loader)
    for _ in range(consumed):
        next(trainer.batches)
    dead = weakref.ref(trainer), weakref.ref(trainer.loader)
    del trainer
    # A worker that is inside a batch holds the collate function until that ends.
    assert wait_until(lambda: gc.collect() >= 0 and not any(r() for r in dead))


class Sample:
    """Something that a weak reference can watch."""


def test_what_a_dropped_epoch_prefetched_is_freed(make_loader: MakeLoader) -> None:
    made: list[weakref.ref[Sample]] = []

    class Watched:
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Sample:
            sample = Sample()
            made.append(weakref.ref(sample))
            return sample

    loader = make_loader(Watched(), batch_size=2, collate_fn=list)
    iterator = iter(loader)
    batch = next(iterator)
    del iterator
    assert wait_until(lambda: sum(ref() is not None for ref in made) == len(batch))
    assert len(batch) == 2
    assert len(loader) == 10  # the loader is still alive


def test_break_returns_while_workers_still_load(gate: threading.Event) -> None:
    dataset = Gated(gate, blocked=2)
    loader = DataLoader(
        dataset, num_workers=2, sampler=[5, 0, 1, 6], collate_fn=list, help=False
    )
    for batch in loader:
        assert batch == [5]
        assert wait_until(lambda: sorted(dataset.entered) == [0, 1, 5])
        break
    assert not gate.is_set()


def test_an_epoch_goes_on_after_one_whose_samples_are_stuck(
    gate: threading.Event,
) -> None:
    stuck = Gated(gate, blocked=2)
    loader = DataLoader(
        stuck, num_workers=2, sampler=[0, 1, 2], collate_fn=list, replicate="none"
    )
    iterator = iter(loader)
    assert wait_until(lambda: sorted(stuck.entered) == [0, 1])
    del iterator
    stuck.blocked = 0
    assert list(loader) == [[0], [1], [2]]
    assert not gate.is_set()


def test_an_iterator_that_is_stuck_does_not_stop_another(gate: threading.Event) -> None:
    dataset = Gated(gate, blocked=2, size=6)
    loader = DataLoader(dataset, num_workers=2, collate_fn=list, replicate="none")
    waiting = iter(loader)
    assert wait_until(lambda: sorted(dataset.entered) == [0, 1])
    dataset.blocked = 0
    assert list(loader) == [[i] for i in range(6)]
    assert list(loader) == [[i] for i in range(6)]
    assert not gate.is_set()
    gate.set()
    assert list(waiting) == [[i] for i in range(6)]


def test_live_iterators_share_the_workers_of_the_loader() -> None:
    idents: set[int] = set()

    class Watched:
        def __len__(self) -> int:
            return 60

        def __getitem__(self, index: int) -> int:
            idents.add(threading.get_ident())
            return index

    loader = DataLoader(Watched(), 2, num_workers=3, collate_fn=list, help=False)
    others = set(worker_threads())
    for batches in zip(loader, loader, loader, strict=True):
        assert batches[0] == batches[1] == batches[2]
        assert len(set(worker_threads()) - others) <= 3
    assert len(idents) <= 3


def test_threads_live_on_from_epoch_to_epoch() -> None:
    loader = DataLoader(range(6), num_workers=3, collate_fn=list)
    assert worker_threads() == []
    list(loader)
    assert wait_until(lambda: len(worker_idents()) == 3)
    first = worker_idents()
    list(loader)
    assert worker_idents() == first


def worker_idents() -> set[int]:
    """Return the identifiers of worker threads; one that is only starting has none."""
    return {t.ident for t in worker_threads() if t.ident is not None}


def test_threads_carry_names_that_a_profiler_shows() -> None:
    loader = DataLoader(range(3), num_workers=2, items_in_parallel=2, collate_fn=list)
    list(loader)
    assert wait_until(lambda: len(worker_threads()) == 4)
    names = sorted(thread.name for thread in worker_threads())
    assert names == [
        "dataloader-0",
        "dataloader-0.1",
        "dataloader-1",
        "dataloader-1.1",
    ]
    assert all(thread.daemon for thread in worker_threads())


# close() and with.


def test_close_ends_the_threads_and_the_iterators(make_loader: MakeLoader) -> None:
    loader = make_loader(range(40), batch_size=2, collate_fn=list)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    loader.close()
    assert worker_threads() == []
    assert flat(loader) == list(range(40))


def test_an_iterator_of_a_closed_loader_says_so() -> None:
    loader = DataLoader(range(40), num_workers=2, collate_fn=list)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="close"):
            next(iterator)


def test_close_wakes_a_next_that_waits(gate: threading.Event) -> None:
    dataset = Gated(gate, blocked=8)
    # A consumer that loads a batch, or helps to, finds out when it has done so.
    loader = DataLoader(dataset, num_workers=2, collate_fn=list, help=False)
    iterator = iter(loader)
    caught: list[BaseException] = []

    def consume() -> None:
        try:
            next(iterator)
        except RuntimeError as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert wait_until(lambda: len(dataset.entered) == 2)
    loader.close()
    consumer.join(20)
    assert "close" in str(caught[0])
    assert not gate.is_set()


def test_with_closes_the_loader() -> None:
    with DataLoader(range(4), num_workers=2, collate_fn=list) as loader:
        assert list(loader) == [[0], [1], [2], [3]]
        assert wait_until(lambda: len(worker_threads()) == 2)
    assert worker_threads() == []

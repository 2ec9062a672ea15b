"""The short way through next(): one thread at a time, one batch at a time, its scope.

Whatever is here holds without workers and for a consumer that loads inline beside them.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import wait_until
from policies import Inline, use

from dataloader import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    get_worker_info,
    rng,
)
from dataloader._fast import IMPLEMENTATION, Slot
from dataloader._guard import FORKS
from dataloader.errors import ConcurrentNextError
from dataloader.workers.direct import DirectIterator

BACKENDS: dict[str, dict[str, Any]] = {
    "no-workers": {"num_workers": 0},
    "inline": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}

Make = Callable[..., DataLoader[Any]]


@pytest.fixture(params=list(BACKENDS))
def make(request: pytest.FixtureRequest) -> Make:
    """`DataLoader` whose consumer loads, by the short way most of the time."""
    options = BACKENDS[request.param]

    def make(dataset: Any, *args: Any, untimed: int = 3, **more: Any) -> Any:
        loader = DataLoader(dataset, *args, **{**options, **more})
        if loader.num_workers > 0:
            use(loader, Inline(untimed))
        return loader

    return make


def slot_of(iterator: Any) -> Slot:
    """Return what holds the task that an iterator is at."""
    assert isinstance(iterator, DirectIterator)
    return iterator._slot


def is_short(iterator: Any) -> bool:
    """Whether the next call of the thread that came last goes the short way."""
    slot = slot_of(iterator)
    return slot.short_mark == FORKS.count and slot.pending is None


class Samples:
    """A dataset that calls a function before each sample."""

    def __init__(self, call: Callable[[int], Any], size: int = 12) -> None:
        self.call = call
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.call(index)
        return index


# Two threads.


@pytest.mark.parametrize("stuck", [1, 2, 5])
def test_a_thread_that_comes_again_and_again_does_not_get_into_the_batch_of_another(
    make: Make, stuck: int
) -> None:
    entered, gate = threading.Event(), threading.Event()

    def stop(index: int) -> None:
        if index == stuck:
            entered.set()
            assert gate.wait(60)

    iterator = iter(make(Samples(stop), collate_fn=list))
    first: list[Any] = []

    def consume() -> None:
        first.extend(next(iterator) for _ in range(stuck + 1))

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        assert entered.wait(60)
        assert slot_of(iterator).pending is not None
        for _ in range(3):
            with pytest.raises(ConcurrentNextError):
                next(iterator)
    finally:
        gate.set()
        thread.join(60)
    assert first == [[i] for i in range(stuck + 1)]
    assert list(iterator) == [[i] for i in range(stuck + 1, 12)]


def test_a_batch_that_fails_while_another_thread_is_refused_is_accounted_for(
    make: Make,
) -> None:
    entered, gate = threading.Event(), threading.Event()

    def fail(index: int) -> None:
        if index == 2:
            entered.set()
            assert gate.wait(60)
            raise LookupError(index)

    iterator = iter(make(Samples(fail), collate_fn=list))
    seen: list[Any] = []

    def consume() -> None:
        for _ in range(3):
            try:
                seen.append(next(iterator))
            except LookupError as error:
                seen.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    assert entered.wait(60)
    with pytest.raises(ConcurrentNextError) as caught:
        next(iterator)
    gate.set()
    thread.join(60)
    # It is nobody's batch that the second thread did not get.
    assert not hasattr(caught.value, "__notes__")
    assert seen[:2] == [[0], [1]]
    assert "batch 2, indices [2]" in seen[2].__notes__[0]
    assert list(iterator) == [[i] for i in range(3, 12)]


@pytest.mark.parametrize("size", [40, 1])
def test_an_iterator_goes_on_in_whichever_thread_it_is_moved_to(
    make: Make, size: int
) -> None:
    loader = make(
        range(size), collate_fn=lambda batch: [*batch, rng().random()], seed=3
    )
    expected = list(make(range(size), collate_fn=loader.collate_fn, seed=3))
    iterator = iter(loader)
    seen: list[Any] = []

    def consume() -> None:
        # Long enough to come to the short way, and to leave it in the midst.
        seen.extend(itertools.islice(iterator, 5))

    for _ in range(4):
        thread = threading.Thread(target=consume)
        thread.start()
        thread.join(60)
        consume()
    assert seen == expected
    assert loader.stats().batches == size


def test_a_thread_that_comes_back_has_no_right_left_to_the_short_way(
    make: Make,
) -> None:
    """Both threads know a scope of the iterator's; only the last one's counts."""
    iterator = iter(make(range(60), collate_fn=list, untimed=50))
    seen: list[Any] = []
    steps = [threading.Semaphore(0) for _ in range(2)]

    def consume(me: int) -> None:
        for _ in range(10):
            assert steps[me].acquire(timeout=60)
            seen.extend(itertools.islice(iterator, 3))
            steps[1 - me].release()

    threads = [threading.Thread(target=consume, args=(me,)) for me in range(2)]
    for thread in threads:
        thread.start()
    steps[0].release()
    for thread in threads:
        thread.join(60)
    assert seen == [[i] for i in range(60)]


def hammer(iterator: Iterator[Any], threads: int) -> tuple[list[Any], int]:
    """Let threads call next() as fast as they can; return batches and refusals."""
    received: list[list[Any]] = [[] for _ in range(threads)]
    refused = [0] * threads
    errors: list[BaseException] = []
    barrier = threading.Barrier(threads)

    def consume(me: int) -> None:
        barrier.wait(60)
        try:
            while True:
                try:
                    received[me].append(next(iterator))
                except ConcurrentNextError:
                    refused[me] += 1
        except StopIteration:
            pass
        except BaseException as error:
            errors.append(error)

    runs = [threading.Thread(target=consume, args=(me,)) for me in range(threads)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(100)
        assert not run.is_alive(), "next() hangs"
    assert not errors, errors
    return [batch for batches in received for batch in batches], sum(refused)


def check_hammered(loader: DataLoader[Any], threads: int) -> int:
    before = loader.stats().batches
    batches, refused = hammer(iter(loader), threads)
    counts = Counter(batch[0] for batch in batches)
    assert counts == Counter(range(len(loader)))
    assert loader.stats().batches - before == len(loader)
    return refused


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_that_hammer_an_iterator_get_each_batch_once(
    make: Make, threads: int
) -> None:
    with make(range(300), collate_fn=list, untimed=7) as loader:
        for _ in range(5):
            check_hammered(loader, threads)


@pytest.mark.stress
@pytest.mark.parametrize("untimed", [0, 1, 60])
def test_thousands_of_rounds_of_hammering(make: Make, untimed: int) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with make(range(400), collate_fn=list, untimed=untimed) as loader:
            refused = sum(check_hammered(loader, 2 + i % 2) for i in range(300))
    finally:
        sys.setswitchinterval(interval)
    assert refused > 0, "the threads never met"


# A next() inside a next().


@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_next_inside_its_own_sample_is_refused(make: Make, at: int) -> None:
    refusals: list[BaseException] = []

    def call(index: int) -> None:
        if index == at:
            for _ in range(2):
                with pytest.raises(ConcurrentNextError) as caught:
                    next(iterator)
                refusals.append(caught.value)

    loader = make(Samples(call), collate_fn=list)
    iterator = iter(loader)
    assert list(iterator) == [[i] for i in range(12)]
    assert len(refusals) == 2
    assert loader.stats().batches == 12


def test_a_refusal_that_the_sample_lets_pass_is_the_error_of_its_batch(
    make: Make,
) -> None:
    def call(index: int) -> None:
        if index == 5:
            next(iterator)

    iterator = iter(make(Samples(call), collate_fn=list))
    assert list(itertools.islice(iterator, 5)) == [[i] for i in range(5)]
    with pytest.raises(ConcurrentNextError) as caught:
        next(iterator)
    assert "batch 5" in caught.value.__notes__[0]
    assert list(iterator) == [[i] for i in range(6, 12)]


def test_a_next_inside_the_sampler_is_refused() -> None:
    seen: list[type[BaseException]] = []

    class Asking:
        def __iter__(self) -> Iterator[int]:
            for number in range(8):
                if number in (0, 5):
                    with pytest.raises(ConcurrentNextError) as caught:
                        next(iterator)
                    seen.append(caught.type)
                yield number

    iterator = iter(DataLoader(range(8), sampler=Asking(), collate_fn=list))
    assert list(iterator) == [[i] for i in range(8)]
    assert len(seen) == 2


# What belongs to a batch, and what does not.


def test_the_sampler_is_asked_outside_of_any_batch() -> None:
    """Its numbers of rng() are nobody's, and its questions are no worker's."""
    draws: list[float] = []

    class Drawing:
        def __iter__(self) -> Iterator[int]:
            for number in range(20):
                draws.append(rng().random())
                assert get_worker_info() is None
                yield number

    for _ in range(2):
        loader = DataLoader(range(20), sampler=Drawing(), collate_fn=list, seed=1)
        assert list(loader) == [[i] for i in range(20)]
    # Keyed by seed and place they would repeat.
    assert len(set(draws)) == 40


def test_a_sampler_that_iterates_over_a_loader_leaves_each_its_numbers() -> None:
    def draws(sampler: Any) -> list[float]:
        loader = DataLoader(Drawn(), sampler=sampler, seed=5, collate_fn=list)
        return [number for batch in loader for number in batch]

    class Drawn:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> float:
            return float(rng().random())

    class Nested:
        def __iter__(self) -> Iterator[int]:
            for (number,) in DataLoader(range(12), collate_fn=list):
                yield number

    assert draws(Nested()) == draws(range(12))


def keyed(seed: int, size: int = 12) -> DataLoader[Any]:
    """Return a loader without workers whose samples are numbers of rng()."""

    class Drawn:
        def __len__(self) -> int:
            return size

        def __getitem__(self, index: int) -> float:
            return float(rng().random())

    return DataLoader(Drawn(), 2, seed=seed, collate_fn=list)


def test_two_loaders_in_turn_in_one_thread_keep_to_their_own_numbers(
    make: Make,
) -> None:
    expected = [list(keyed(1)), list(keyed(2))]
    one, other = (
        make(loader.dataset, 2, seed=seed, collate_fn=list, replicate="none")
        if make(range(1)).num_workers
        else loader
        for seed, loader in ((1, keyed(1)), (2, keyed(2)))
    )
    pairs = list(zip(one, other, strict=True))
    assert [list(batches) for batches in zip(*pairs, strict=True)] == expected


def test_a_loader_inside_a_sample_leaves_the_sample_its_numbers(make: Make) -> None:
    inner_numbers = list(keyed(9, size=4))
    seen: list[Any] = []

    class Outer:
        nested = False

        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> list[float]:
            before = rng().random()
            if self.nested:
                seen.append(list(keyed(9, size=4)))
            return [before, rng().random()]

    plain = list(make(Outer(), 2, seed=4, collate_fn=list, replicate="none"))
    dataset = Outer()
    dataset.nested = True
    assert list(make(dataset, 2, seed=4, collate_fn=list, replicate="none")) == plain
    assert seen == [inner_numbers] * 10


def test_an_iterator_that_is_kept_inside_a_dataset_is_advanced_by_its_samples(
    make: Make,
) -> None:
    inner = iter(DataLoader(range(40), collate_fn=list))
    loader = make(Samples(lambda index: seen.append(next(inner))), collate_fn=list)
    seen: list[Any] = []
    assert list(loader) == [[i] for i in range(12)]
    assert seen == [[i] for i in range(12)]
    # Outside of the samples it goes on, and on the short way again.
    assert list(itertools.islice(inner, 9)) == [[i] for i in range(12, 21)]


def test_between_two_batches_a_thread_is_in_no_batch(make: Make) -> None:
    loader = make(range(20), collate_fn=list, seed=1)
    numbers = []
    for _ in loader:
        numbers.append(rng().random())
        assert get_worker_info() is None
    assert len(set(numbers)) == 20


@pytest.mark.parametrize("inner_workers", [0, 1])
def test_a_loader_in_worker_init_fn_leaves_the_worker_what_it_is(
    inner_workers: int,
) -> None:
    infos: list[Any] = []

    def init(worker: int) -> None:
        inner = DataLoader(range(6), num_workers=inner_workers, collate_fn=list)
        with inner:
            assert list(inner) == [[i] for i in range(6)]
        infos.append(get_worker_info())

    loader = DataLoader(range(4), num_workers=2, worker_init_fn=init, collate_fn=list)
    assert list(loader) == [[i] for i in range(4)]
    assert sorted(info.id for info in infos) == [0, 1]


def test_a_loader_inside_a_workers_sample_answers_for_the_worker() -> None:
    torch = pytest.importorskip("torch")

    class Inner:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> tuple[Any, int]:
            return get_worker_info(), torch.initial_seed()

    class Outer:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> list[tuple[Any, int]]:
            [batch] = DataLoader(Inner(), 2, collate_fn=list)
            return [(get_worker_info(), torch.initial_seed()), *batch]

    loader = DataLoader(Outer(), num_workers=2, collate_fn=lambda batch: batch[0])
    for answers in loader:
        assert answers[0][0] is not None
        assert answers == [answers[0]] * 3


# Tasks that are made many at a time.


@pytest.mark.parametrize("batch_size", [None, 1, 7, 300, 9000])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("untimed", [0, 1, 64])
def test_the_short_way_goes_on_behind_the_tasks_that_were_made(
    make: Make,
    batch_size: int | None,
    drop_last: bool,
    untimed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dataloader.workers.inline.untimed", lambda cost_s: untimed)
    timed: list[None] = []

    def counting(iterator: DirectIterator) -> Any:
        timed.append(None)
        return load_pending(iterator)

    load_pending = DirectIterator._load_pending
    monkeypatch.setattr(DirectIterator, "_load_pending", counting)
    order: Any = RandomSampler(range(5000), num_samples=12_001, seed=1)
    options: dict[str, Any] = {"batch_size": None, "sampler": order}
    if batch_size is not None:
        order = BatchSampler(order, batch_size, drop_last)
        options = {"batch_sampler": order, "collate_fn": list}
    loader = make(range(5000), untimed=untimed, **options)
    whole = list(order)
    assert list(loader) == whole
    assert loader.stats().by_consumer == len(whole)
    if IMPLEMENTATION == "python":
        # And one in each of the four or five chunks, and one that is the end. Compiled,
        # batches that took long are followed by one that is timed.
        assert len(timed) <= len(whole) / (untimed + 1) + 7


# Errors on the short way.


def test_errors_on_the_short_way_are_placed_and_the_next_batch_comes(
    make: Make,
) -> None:
    def fail(index: int) -> None:
        if index % 3 == 2:
            raise LookupError(index)

    loader = make(Samples(fail), collate_fn=list)
    iterator = iter(loader)
    seen: list[Any] = []
    notes: list[str] = []
    contexts: list[object] = []
    while True:
        try:
            seen.append(next(iterator))
        except StopIteration:
            break
        except LookupError as error:
            seen.append(error.args[0])
            notes += error.__notes__
            contexts.append(error.__context__)
    assert seen == [i if i % 3 == 2 else [i] for i in range(12)]
    places = zip((2, 5, 8, 11), notes, strict=True)
    assert all(f"batch {i}, indices [{i}]" in note for i, note in places)
    assert contexts == [None] * 4
    assert loader.stats().batches == loader.stats().by_consumer == 12


def test_an_error_of_the_sampler_on_the_short_way_has_no_place(make: Make) -> None:
    class Failing:
        def __init__(self) -> None:
            self.failed = False
            self.number = 0

        def __iter__(self) -> Failing:
            return self

        def __next__(self) -> int:
            if self.number == 6 and not self.failed:
                self.failed = True
                raise LookupError("sampler")
            if self.number == 9:
                raise StopIteration
            self.number += 1
            return self.number - 1

    iterator = iter(make(range(20), sampler=Failing(), collate_fn=list))
    assert list(itertools.islice(iterator, 6)) == [[i] for i in range(6)]
    with pytest.raises(LookupError, match="sampler") as caught:
        next(iterator)
    assert not hasattr(caught.value, "__notes__")
    assert list(iterator) == [[6], [7], [8]]


def test_the_end_stays_the_end(make: Make) -> None:
    iterator = iter(make(range(9), collate_fn=list))
    assert len(list(iterator)) == 9
    for _ in range(3):
        assert next(iterator, None) is None


def test_the_end_of_a_stream_stays_the_end() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(9))

    loader = DataLoader(Stream(), 2, collate_fn=list)
    iterator = iter(loader)
    assert list(iterator) == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]
    for _ in range(3):
        assert next(iterator, None) is None
    assert loader.stats().batches == 5


# What is freed.


def test_a_dropped_iterator_lets_its_sampler_go(make: Make) -> None:
    closed: list[bool] = []

    def keys() -> Iterator[int]:
        try:
            yield from range(20)
        finally:
            closed.append(True)

    class Sampler:
        def __iter__(self) -> Iterator[int]:
            return keys()

    loader = make(
        range(20), sampler=Sampler(), collate_fn=list, persistent_workers=False
    )
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    assert not closed
    del iterator
    # A worker that has just been started may be looking at the epoch.
    assert wait_until(lambda: bool(closed))
    assert loader.stats().batches == 6


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_the_short_way_is_closed_in_a_forked_child() -> None:
    iterator = iter(DataLoader(range(30), collate_fn=list))
    for _ in range(5):
        next(iterator)
    assert is_short(iterator)
    FORKS.add()
    try:
        assert not is_short(iterator)
        assert [next(iterator), next(iterator)] == [[5], [6]]
    finally:
        FORKS.count -= 1

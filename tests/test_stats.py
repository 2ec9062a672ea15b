"""loader.stats(): counters that add up in every mode, and figures of known data."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import MakeLoader
from policies import MODES, ByWorkers, Inline, Scripted, use

from dataloader import DataLoader, IterableDataset
from dataloader.stats import (
    MOST_RECORDS,
    NOT_COUNTED,
    OCCUPANCY_EVERY,
    LoaderStats,
    Meter,
    Occupancy,
    Timing,
)

SIZE = 50
STATES = ("inline", "help", "workers", "inline", "inline", "workers", "help")
"""Every change from one to another."""


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(SIZE))


class Stand:
    """Stands in for an iterator, whose end a meter notices."""


def check_sums(stats: LoaderStats, epochs: int, batches: int) -> None:
    """Check the counters, and that the figures are of no more than was loaded."""
    assert stats.epochs == epochs
    assert stats.batches == batches
    assert stats.by_consumer + sum(stats.by_worker) == batches
    timed = {stats.fetch.count, stats.collate.count, stats.wait.count}
    assert len(timed) == 1
    assert timed.pop() <= batches
    for timing in (stats.fetch, stats.collate, stats.wait):
        figures = (timing.p50_s, timing.p90_s, timing.p99_s, timing.max_s)
        assert figures == tuple(sorted(figures))
        assert 0 <= timing.mean_s <= timing.max_s


# Counters.


def test_a_loader_that_has_loaded_nothing_says_so(make_loader: MakeLoader) -> None:
    stats = make_loader(range(9)).stats()
    nothing = Timing(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert stats == LoaderStats(0, 0, 0, (), nothing, nothing, nothing, None)


@pytest.mark.parametrize("persistent", [False, True])
def test_counters_add_up_over_epochs(backend: dict[str, Any], persistent: bool) -> None:
    backend["persistent_workers"] = persistent and backend["num_workers"] > 0
    loader = DataLoader(range(SIZE), 4, collate_fn=list, **backend)
    with loader:
        for epoch in range(1, 4):
            assert len(list(loader)) == 13
            stats = loader.stats()
            check_sums(stats, epoch, epoch * 13)
            assert len(stats.by_worker) == loader.num_workers


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("name", MODES)
def test_who_loaded_a_batch_is_counted(name: str, in_order: bool) -> None:
    def collate(samples: list[int]) -> str:
        return threading.current_thread().name

    options: dict[str, Any] = {"num_workers": 2, "in_order": in_order}
    with DataLoader(range(SIZE), collate_fn=collate, **options) as loader:
        use(loader, MODES[name]())
        names = Counter(itertools.chain(loader, loader))
        stats = loader.stats()
    check_sums(stats, 2, 2 * SIZE)
    workers = names["dataloader-0"], names["dataloader-1"]
    assert stats.by_worker == workers
    assert stats.by_consumer == 2 * SIZE - sum(workers)


def test_batches_are_counted_when_they_are_delivered() -> None:
    policies = [Inline(0), Inline(7), ByWorkers(), Scripted(itertools.cycle(STATES))]
    for policy in policies:
        with DataLoader(range(SIZE), num_workers=2, collate_fn=list) as loader:
            use(loader, policy)
            for number, _ in enumerate(loader, 1):
                assert loader.stats().batches == number


def test_batches_without_workers_are_counted_when_they_are_delivered() -> None:
    for dataset in (range(SIZE), Stream()):
        loader = DataLoader(dataset, collate_fn=list)
        for number, _ in enumerate(loader, 1):
            assert loader.stats().batches == loader.stats().by_consumer == number


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_is_being_loaded_does_not_count_yet(workers: int) -> None:
    counts: list[int] = []

    class Asking:
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> int:
            counts.append(loader.stats().batches)
            return index

    options: dict[str, Any] = {"replicate": "none", "collate_fn": list}
    loader = DataLoader(Asking(), num_workers=workers, **options)
    if workers:
        use(loader, Inline())
    assert len(list(loader)) == 20
    assert counts == list(range(20))
    loader.close()


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_of_a_stream_are_counted(workers: int) -> None:
    loader = DataLoader(Stream(), 4, num_workers=workers, collate_fn=list)
    assert len(list(loader)) == 13 * max(workers, 1)
    stats = loader.stats()
    check_sums(stats, 1, 13 * max(workers, 1))
    # Each worker has the whole stream.
    assert stats.by_worker == (13,) * workers


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_of_an_epoch_that_is_broken_off_the_delivered_batches_count(
    make_loader: MakeLoader, taken: int
) -> None:
    loader = make_loader(range(SIZE), collate_fn=list)
    for epoch in range(1, 4):
        iterator = iter(loader)
        assert len(list(itertools.islice(iterator, taken))) == taken
        check_sums(loader.stats(), epoch, epoch * taken)
        del iterator
        gc.collect()
        check_sums(loader.stats(), epoch, epoch * taken)
    loader.close()
    check_sums(loader.stats(), 3, 3 * taken)


@pytest.mark.parametrize("mode", ["inline", "helping", "workers"])
def test_of_a_persistent_iterator_that_is_begun_anew_in_the_midst_none_is_lost(
    mode: str,
) -> None:
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    with DataLoader(range(SIZE), collate_fn=list, **options) as loader:
        use(loader, MODES[mode]())
        for epoch in range(1, 5):
            assert len(list(itertools.islice(loader, 7))) == 7
            check_sums(loader.stats(), epoch, 7 * epoch)
        assert len(list(loader)) == SIZE
        check_sums(loader.stats(), 5, 28 + SIZE)


def test_batches_in_whose_place_an_exception_came_count(
    make_loader: MakeLoader,
) -> None:
    class Broken:
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> int:
            if index % 3 == 0:
                raise LookupError(index)
            return index

    iterator = iter(loader := make_loader(Broken(), collate_fn=list))
    for number in range(20):
        if number % 3 == 0:
            with pytest.raises(LookupError):
                next(iterator)
        else:
            assert next(iterator) == [number]
        assert loader.stats().batches == number + 1
    assert next(iterator, None) is None
    assert loader.stats().batches == 20


def test_the_counters_of_iterators_that_live_at_the_same_time_add_up(
    make_loader: MakeLoader,
) -> None:
    loader = make_loader(range(SIZE), collate_fn=list)
    pairs = zip(loader, loader, strict=True)
    assert len(list(itertools.islice(pairs, 5))) == 5
    check_sums(loader.stats(), 2, 10)
    assert len(list(pairs)) == SIZE - 5
    check_sums(loader.stats(), 2, 2 * SIZE)


def test_a_number_of_workers_that_was_changed_leaves_the_counters() -> None:
    loader = DataLoader(range(20), collate_fn=list)
    list(loader)
    for workers in (3, 1):
        loader.num_workers = workers
        use(loader, ByWorkers())
        list(loader)
    stats = loader.stats()
    check_sums(stats, 3, 60)
    assert stats.by_consumer == 20
    assert len(stats.by_worker) == 3
    loader.close()


def test_a_copied_loader_begins_to_count_anew() -> None:
    import copy

    loader = DataLoader(range(20), collate_fn=list)
    list(loader)
    other = copy.copy(loader)
    assert other.stats().batches == 0
    list(other)
    assert (loader.stats().batches, other.stats().batches) == (20, 20)


# Figures.


def test_percentiles_are_of_the_nearest_rank() -> None:
    values = [i / 100 for i in range(200, 0, -1)]
    timing = Timing.of(values)
    assert timing.count == 200
    assert timing.mean_s == pytest.approx(1.005)
    assert (timing.p50_s, timing.p90_s, timing.p99_s) == (1.0, 1.8, 1.98)
    assert timing.max_s == 2.0


@pytest.mark.parametrize(
    ("values", "p50", "p90", "p99"),
    [
        ([3.0], 3.0, 3.0, 3.0),
        ([2.0, 1.0], 1.0, 2.0, 2.0),
        ([3.0, 1.0, 2.0], 2.0, 3.0, 3.0),
        ([float(i) for i in range(10)], 4.0, 8.0, 9.0),
        ([float(i) for i in range(100)], 49.0, 89.0, 98.0),
        ([float(i) for i in range(101)], 50.0, 90.0, 99.0),
    ],
)
def test_percentiles_of_a_few_values(
    values: list[float], p50: float, p90: float, p99: float
) -> None:
    timing = Timing.of(values)
    assert (timing.p50_s, timing.p90_s, timing.p99_s) == (p50, p90, p99)
    assert timing.max_s == max(values)


def test_each_figure_is_of_its_own_times() -> None:
    meter, stand = Meter(), Stand()
    tally = meter.open(stand, 1)
    for i in range(1, 11):
        tally.add(i, 10.0 * i, 100.0 * i)
    stats = meter.read(4)
    assert [t.max_s for t in (stats.wait, stats.fetch, stats.collate)] == [10, 100, 1e3]
    assert [t.p50_s for t in (stats.wait, stats.fetch, stats.collate)] == [5, 50, 500]
    assert stats.occupancy is None


def test_the_figures_are_of_the_last_batches_that_were_timed() -> None:
    meter, stand = Meter(), Stand()
    tally = meter.open(stand, 1)
    for i in range(MOST_RECORDS + 10):
        tally.add(float(i), 0.0, 0.0)
    stats = meter.read(4)
    assert stats.wait.count == MOST_RECORDS
    assert stats.wait.max_s == MOST_RECORDS + 9
    assert stats.wait.mean_s == pytest.approx(10 + (MOST_RECORDS - 1) / 2)


class Clock(threading.local):
    """A clock for each thread, which moves when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("name", [*MODES, "without workers"])
def test_fetching_and_collating_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    class Slow:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> int:
            clock.now += 2
            return index

    def collate(samples: list[int]) -> list[int]:
        clock.now += 5
        return samples

    clock = Clock()
    for module in ("direct", "helping", "seat"):
        monkeypatch.setattr(f"dataloader.workers.{module}.perf_counter", clock)
    workers = 0 if name == "without workers" else 2
    with DataLoader(Slow(), 4, num_workers=workers, collate_fn=collate) as loader:
        if workers:
            use(loader, MODES[name]())
        list(loader)
        stats = loader.stats()
    assert stats.fetch == Timing(stats.fetch.count, 8.0, 8.0, 8.0, 8.0, 8.0)
    assert stats.collate == Timing(stats.fetch.count, 5.0, 5.0, 5.0, 5.0, 5.0)
    if name in ("inline", "without workers"):
        # As long as it loads a batch itself, it waits for it.
        assert stats.wait == Timing(stats.wait.count, 13.0, 13.0, 13.0, 13.0, 13.0)
    # Between two batches that are timed `Inline` leaves out three.
    assert stats.fetch.count == (3 if name == "inline" else 10)


def test_the_window_is_as_full_as_was_counted() -> None:
    meter, stand = Meter(), Stand()
    tally = meter.open(stand, 1)
    for ready in (0, 3, NOT_COUNTED, 1, 0):
        tally.add(0.0, 0.0, 0.0, ready)
    assert meter.read(4).occupancy == Occupancy(window=4, mean=1.0, empty_share=0.5)


def test_a_window_that_is_full_at_each_call_is_said_to_be() -> None:
    options: dict[str, Any] = {"num_workers": 2, "prefetch_factor": 3}
    with DataLoader(range(8 * OCCUPANCY_EVERY), collate_fn=list, **options) as loader:
        use(loader, ByWorkers())
        iterator: Any = iter(loader)
        for _ in range(7 * OCCUPANCY_EVERY):
            # All that were dispatched are ready.
            while iterator._delivery.ready() < 6:
                threading.Event().wait(0.0005)
            next(iterator)
        assert loader.stats().occupancy == Occupancy(6, 6.0, 0.0)


def test_a_window_that_is_empty_at_each_call_is_said_to_be() -> None:
    class Waited:
        """A dataset whose samples are made when the consumer waits for them."""

        def __len__(self) -> int:
            return 4 * OCCUPANCY_EVERY

        def __getitem__(self, index: int) -> int:
            assert calls.acquire(timeout=60)
            return index

    calls = threading.Semaphore(0)
    options: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 1}
    with DataLoader(Waited(), collate_fn=list, replicate="none", **options) as loader:
        use(loader, ByWorkers())
        iterator: Any = iter(loader)
        sleep = iterator._delivery.wait

        def wait(timeout_s: float) -> Any:
            calls.release()
            return sleep(60)

        iterator._delivery.wait = wait
        assert len(list(iterator)) == 4 * OCCUPANCY_EVERY
        assert loader.stats().occupancy == Occupancy(1, 0.0, 1.0)
        assert loader.stats().wait.count == 4 * OCCUPANCY_EVERY


@pytest.mark.parametrize("workers", [0, 2])
def test_a_consumer_that_loads_everything_has_no_window(workers: int) -> None:
    with DataLoader(range(100), num_workers=workers, collate_fn=list) as loader:
        if workers:
            use(loader, Inline())
        list(loader)
        assert loader.stats().occupancy is None


# Reading.


@pytest.mark.parametrize("name", [*MODES, "all in turn", "without workers"])
def test_another_thread_may_read_while_an_epoch_runs(name: str) -> None:
    workers = 0 if name == "without workers" else 2
    errors: list[BaseException] = []
    has_ended = threading.Event()

    def read() -> None:
        try:
            last = 0
            while not has_ended.is_set():
                stats = loader.stats()
                assert stats.batches >= last, "a counter goes back"
                # One that is being handed over may be counted already.
                assert stats.batches <= 10 * 200 + 1
                assert stats.by_consumer + sum(stats.by_worker) == stats.batches
                assert str(stats)
                last = stats.batches
        except BaseException as error:
            errors.append(error)

    with DataLoader(range(200), num_workers=workers, collate_fn=list) as loader:
        if name in MODES:
            use(loader, MODES[name]())
        elif workers:
            use(loader, Scripted(itertools.cycle(STATES)))
        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(10):
            assert len(list(loader)) == 200
        has_ended.set()
        reader.join(60)
        assert not errors, errors
        assert loader.stats().batches == 2000


def test_what_was_read_stays_as_it_is() -> None:
    loader = DataLoader(range(20), collate_fn=list)
    list(loader)
    stats = loader.stats()
    before = dataclasses.asdict(stats)
    list(loader)
    assert dataclasses.asdict(stats) == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.batches = 0  # type: ignore[misc]


def test_the_table_names_every_figure() -> None:
    second = Timing(3, 1e-6, 2e-6, 3e-6, 4e-6, 5e-6)
    stats = LoaderStats(
        2, 9, 4, (3, 2), second, second, second, Occupancy(6, 1.25, 0.5)
    )
    first, head, *rows, window = str(stats).splitlines()
    assert first == "9 batches in 2 epochs: 4 by the consumer, [3, 2] by the workers"
    assert head.split() == ["us", "mean", "p50", "p90", "p99", "max"]
    values = ["1.0", "2.0", "3.0", "4.0", "5.0"]
    assert [row.split() for row in rows] == [
        [name, *values] for name in ("fetch", "collate", "wait")
    ]
    assert window == "window of 6: 1.2 finished batches wait, 50% of calls find none"
    # No window, no line of it.
    plain = dataclasses.replace(stats, occupancy=None)
    assert str(plain).splitlines() == str(stats).splitlines()[:-1]


def test_repr_is_of_numbers_alone_and_can_be_read_back() -> None:
    with DataLoader(range(5000), num_workers=1, collate_fn=list) as loader:
        list(loader)
        stats = loader.stats()
    # However much was loaded.
    assert len(repr(stats)) < 700
    assert eval(repr(stats)) == stats


def test_a_tally_does_not_keep_its_iterator() -> None:
    meter = Meter()
    for _ in range(100):
        tally = meter.open(Stand(), 2)
        tally.epochs += 1
        tally.by_worker[1] += 2
    stats = meter.read(4)
    assert (stats.epochs, stats.by_worker) == (100, (0, 200))
    assert not meter._tallies

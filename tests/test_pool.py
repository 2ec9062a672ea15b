"""The worker threads: what starts, wakes, replaces and ends them, and what kills them.

`Fault` kills a worker at the n-th place where an exception from outside can strike its
thread, so that one test can try every place there is. Whatever dies, an epoch neither
hangs nor comes out short without an error, and the next one is whole.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import gc
import itertools
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from conftest import wait_until, worker_threads

import dataloader
from dataloader import DataLoader, IterableDataset
from dataloader.errors import ConcurrentNextError, WorkerDiedError
from dataloader.workers import pool as pool_module
from dataloader.workers.base import EMPTY
from dataloader.workers.policy import Policy
from dataloader.workers.pool import Pool
from dataloader.workers.reorder import Ticket
from dataloader.workers.seat import Seat
from dataloader.workers.sleeper import Sleeper
from dataloader.workers.starting import Starter, start_thread
from dataloader.workers.threads import ThreadIterator

PACKAGE = str(Path(dataloader.__file__).parent)
PAIRS = [[0, 1], [2, 3], [4, 5], [6]]


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that is set at the end of the test, whatever happens."""
    event = threading.Event()
    yield event
    event.set()


# Workers that die.


class Death(BaseException):
    """What kills a worker."""


class Fault:
    """Raises `Death` once, at the n-th place where it can strike a worker's thread.

    Those are the entries of Python functions and the returns from calls of C.

    Args:
        kills_lanes: strike a lane thread instead of a worker.
    """

    def __init__(self, kills_lanes: bool) -> None:
        self.struck = ""
        self._kills_lanes = kills_lanes
        self._left = -1
        # Lanes and workers run at the same time.
        self._lock = threading.Lock()

    def arm(self, places: int) -> None:
        """Let so many places pass before the next strike."""
        with self._lock:
            self.struck = ""
            self._left = places

    def disarm(self) -> None:
        # Not while a thread counts down, which would arm it again.
        with self._lock:
            self._left = -1

    def start_thread(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``start`` for threads that may be struck."""

        def start_watched(run: Callable[[], None], name: str) -> Any:
            def run_watched() -> None:
                if ("." in name) == self._kills_lanes:
                    sys.setprofile(self._on_event)
                run()

            return start(run_watched, name)

        return start_watched

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._left < 0 or event not in ("call", "c_return"):
            return
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        with self._lock:
            if self._left < 0:
                return
            self._left -= 1
            if self._left >= 0:
                return
            called = getattr(argument, "__qualname__", "")
            self.struck = f"{code.co_name}:{frame.f_lineno} {event} {called}"
        raise Death


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


KILLED: dict[str, dict[str, Any]] = {
    "one": {"num_workers": 1},
    "two": {"num_workers": 2},
    "unordered": {"num_workers": 2, "in_order": False},
    "persistent": {"num_workers": 1, "persistent_workers": True},
    "init": {"num_workers": 1, "worker_init_fn": lambda worker: None},
    "stream": {"num_workers": 1, "dataset": Stream()},
    "lanes": {"num_workers": 1, "items_in_parallel": 2},
}


def consume(iterator: Iterator[Any]) -> tuple[list[Any], list[BaseException]]:
    """Return all batches and all errors of an epoch, which must come to an end."""
    seen: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        while len(errors) < 20:
            try:
                seen.extend(iterator)
                return
            except BaseException as error:
                errors.append(error)

    consumer = threading.Thread(target=run, daemon=True)
    consumer.start()
    consumer.join(30)
    assert not consumer.is_alive(), "the epoch hangs"
    assert len(errors) < 20, errors[-1]
    return seen, errors


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Keep the garbage collector out of the threads that are struck.

    What it finds has nothing to do with them, and CPython 3.11 does not survive an
    exception of a profile function in a finaliser.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.stress
@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    ("kind", "kills_lanes"),
    [*((kind, False) for kind in KILLED), ("lanes", True)],
    ids=[*KILLED, "lane-thread"],
)
def test_a_worker_that_dies_anywhere_is_replaced_and_nothing_is_lost_in_silence(
    kind: str, kills_lanes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(kills_lanes)
    start = fault.start_thread(start_thread)
    monkeypatch.setattr(pool_module, "start_thread", start)
    # A dead worker is looked for after two slices.
    monkeypatch.setattr("dataloader.workers.threads.WAIT_SLICE_S", 0.002)
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    options = {"dataset": range(7), "batch_size": 2, "collate_fn": list, **KILLED[kind]}
    places, missed = itertools.count(), 0
    # How far a thread gets in an epoch varies: one that is not struck is not the last.
    while missed < 8:
        place = next(places)
        with DataLoader(**options) as loader:
            assert sorted(loader) == PAIRS
            fault.arm(place)
            seen, errors = consume(iter(loader))
            fault.disarm()
            where = f"{place}: {fault.struck} {seen} {errors}"
            assert all(batch in PAIRS for batch in seen), where
            if kind == "stream":
                # The rest of a stream may end with the generator that was struck.
                assert seen == PAIRS[: len(seen)] or errors, where
                assert len(seen) == len(PAIRS) or errors, where
            else:
                # One that dies before it has a dataset answers so for each batch.
                assert len(seen) + len(errors) == len(PAIRS), where
            again, no_errors = consume(iter(loader))
            assert (sorted(again), no_errors) == (PAIRS, []), where
        assert wait_until(lambda: not worker_threads()), where
        missed = 0 if fault.struck else missed + 1
    assert place - missed > 5, "the places where a worker can be struck were not found"


@pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="needs PyThreadState_SetAsyncExc"
)
# Python drops an exception that strikes in a weak reference's callback.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_exceptions_from_outside_do_not_stop_the_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dataloader.workers.threads.WAIT_SLICE_S", 0.002)
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    # Those that are in our code: `threading` itself is not made for such exceptions.
    alive: deque[int] = deque()

    def start_listed(run: Callable[[], None], name: str) -> threading.Thread:
        def run_listed() -> None:
            ident = threading.get_ident()
            alive.append(ident)
            run()
            # Ended in peace: its number may soon be another thread's.
            with contextlib.suppress(ValueError):
                alive.remove(ident)

        return start_thread(run_listed, name)

    monkeypatch.setattr(pool_module, "start_thread", start_listed)
    make = partial(DataLoader, range(64), 2, num_workers=3, collate_fn=list)
    loader = make()
    expected = [[i, i + 1] for i in range(0, 64, 2)]
    stop = threading.Event()
    strikes = 0

    def strike() -> None:
        nonlocal strikes
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        while not stop.wait(0.01):
            if alive:
                # Each is struck once, lest the second one come as it leaves.
                ident = alive.popleft()
                strikes += raise_in(ctypes.c_ulong(ident), ctypes.py_object(Death))

    striker = threading.Thread(target=strike)
    striker.start()
    try:
        while strikes < 12:
            if not alive:
                # Who is struck inside a sample lives on, and while one worker does all
                # that is to do, nobody replaces the others.
                loader = make()
            seen, errors = consume(iter(loader))
            assert len(seen) + len(errors) == len(expected)
            assert seen == [batch for batch in expected if batch in seen]
    finally:
        stop.set()
        striker.join()
    # An exception may still be on its way to a thread.
    assert wait_until(lambda: consume(iter(loader)) == (expected, []))
    loader.close()
    # Before threads that die are reported again.
    assert wait_until(lambda: gc.collect() >= 0 and not worker_threads())


def test_a_reinforcement_that_died_is_replaced(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gated:
        is_open = False

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            if not self.is_open:
                entered.set()
                assert gate.wait(60)
            return index

    entered = threading.Event()
    deaths: list[int] = []
    dataset = Gated()
    load = Seat.load

    def die_first(seat: Seat, ticket: Any) -> Any:
        if dataset.is_open and len(deaths) < 2:
            deaths.append(threading.get_ident())
            raise Death
        return load(seat, ticket)

    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    monkeypatch.setattr(Seat, "load", die_first)
    loader = DataLoader(
        dataset, num_workers=1, collate_fn=list, replicate="none", help=False
    )
    stuck = iter(loader)
    assert entered.wait(60)
    dataset.is_open = True
    seen, errors = consume(iter(loader))
    assert len(deaths) == 2
    assert [type(error) for error in errors] == [WorkerDiedError] * 2
    assert seen == [[2], [3]]
    assert not gate.is_set()
    gate.set()
    assert list(stuck) == [[0], [1], [2], [3]]


# Starting.


class Endless:
    """A sampler whose first order has no end, so that no epoch is over too soon."""

    def __init__(self) -> None:
        self._first: Iterator[Iterator[int]] = iter([itertools.repeat(3)])

    def __iter__(self) -> Iterator[int]:
        return next(self._first, iter(range(7)))


@pytest.mark.parametrize("started", range(5))
def test_threads_that_cannot_be_started_end_the_epoch_and_leave_none_behind(
    started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = itertools.count(started, -1)

    def start_some(run: Callable[[], None], name: str) -> threading.Thread:
        if next(left) <= 0:
            raise RuntimeError("can't start new thread")
        return start_thread(run, name)

    monkeypatch.setattr(pool_module, "start_thread", start_some)
    options: dict[str, Any] = {"num_workers": 2, "items_in_parallel": 3}
    loader = DataLoader(range(7), 2, sampler=Endless(), collate_fn=list, **options)
    with pytest.raises(RuntimeError, match="lower num_workers"):
        deque(loader, maxlen=0)
    del loader
    gc.collect()
    assert wait_until(lambda: not worker_threads())


def test_a_later_iter_starts_the_threads_that_could_not_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    def refuse(run: Callable[[], None], name: str) -> threading.Thread:
        if name == "dataloader-1":
            raise RuntimeError("can't start new thread")
        return start_thread(run, name)

    loader = DataLoader(range(7), 2, sampler=Endless(), num_workers=3, collate_fn=list)
    with monkeypatch.context() as patch:
        patch.setattr(pool_module, "start_thread", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            deque(loader, maxlen=0)
    assert list(loader) == PAIRS
    names = {"dataloader-0", "dataloader-1", "dataloader-2"}
    assert wait_until(lambda: {thread.name for thread in worker_threads()} == names)


def test_iter_says_when_not_even_the_thread_that_starts_others_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(run: Callable[[], None], arguments: tuple[()]) -> None:
        raise RuntimeError("can't start new thread")

    loader = DataLoader(range(7), 2, num_workers=2, collate_fn=list)
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            iter(loader)
    assert list(loader) == PAIRS


@pytest.mark.parametrize("options", [{}, {"items_in_parallel": 2}], ids=str)
def test_close_waits_for_a_thread_that_is_being_started(
    options: dict[str, Any], gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    wait = Starter.wait

    def start_late(run: Callable[[], None], name: str) -> threading.Thread:
        begun.set()
        assert gate.wait(60)
        return start_thread(run, name)

    def open_and_wait(starter: Starter, deadline: float) -> None:
        gate.set()
        wait(starter, deadline)

    monkeypatch.setattr(pool_module, "start_thread", start_late)
    monkeypatch.setattr(Starter, "wait", open_and_wait)
    loader = DataLoader(range(4), num_workers=2, **options)
    iterator = iter(loader)
    assert begun.wait(60)
    loader.close()
    assert worker_threads() == []
    with pytest.raises(RuntimeError, match="close"):
        next(iterator)


def test_garbage_may_be_collected_in_a_thread_that_is_being_started(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gated:
        is_open = True

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            if not self.is_open:
                entered.set()
                assert gate.wait(60)
            return index

    entered = threading.Event()
    collected = threading.Event()
    dataset = Gated()
    loader = DataLoader(
        dataset, num_workers=1, collate_fn=list, replicate="none", help=False
    )
    garbage: list[Any] = [iter(loader)]
    garbage.append(garbage)
    dataset.is_open = False
    stuck = iter(loader)
    assert entered.wait(60)
    dataset.is_open = True
    set_ident = threading.Thread._set_ident  # type: ignore[attr-defined]

    def set_ident_and_collect(thread: threading.Thread) -> None:
        set_ident(thread)
        if thread.name.startswith("dataloader-"):
            gc.collect()
            collected.set()

    monkeypatch.setattr(threading.Thread, "_set_ident", set_ident_and_collect)
    gc.disable()
    try:
        del garbage
        # The only worker is stuck, so this epoch is given a thread of its own.
        assert consume(iter(loader)) == ([[0], [1], [2], [3]], [])
    finally:
        gc.enable()
    assert collected.is_set()
    del stuck


def test_a_worker_recurses_as_deep_as_the_main_thread() -> None:
    depth = 20_000
    text = "[" * depth + "]" * depth

    def parse(samples: Any) -> str:
        try:
            json.loads(text)
        except RecursionError:
            return "too deep"
        return "parsed"

    def descend(samples: Any) -> int:
        def down(n: int) -> int:
            return n if n == 0 else 1 + down(n - 1)

        return down(sys.getrecursionlimit() - 200)

    for function in (parse, descend):
        here = list(DataLoader(range(1), collate_fn=function))
        there = list(DataLoader(range(1), num_workers=1, collate_fn=function))
        assert here == there


# Waking.


def test_waking_all_ends_although_the_woken_lie_down_again() -> None:
    pool = Pool(3, 0, Policy())
    woken = []

    class Restless:
        """A sleeper that is on the list again as soon as it is woken."""

        @property
        def sleeper(self) -> Restless:
            return self

        def wake(self) -> None:
            woken.append(self)
            assert len(woken) < 100, "woken for ever"
            pool.sleeping.append(self)

        __call__ = wake

    sleepers: list[Any] = [Restless() for _ in range(3)]
    pool.sleeping.extend(sleepers)
    pool._workers.extend(sleepers)
    pool.wake_all()
    assert set(woken) == set(sleepers)


@pytest.fixture
def no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody look again by itself: a lost wake-up is a hang, not a delay."""
    monkeypatch.setattr("dataloader.workers.threads.WAIT_SLICE_S", 1000)
    monkeypatch.setattr(Sleeper.sleep, "__defaults__", (1000,))


class Numbers:
    """A dataset whose samples take no time, a little or some."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        if index % 7 == 3:
            time.sleep(0)
        elif index % 23 == 5:
            time.sleep(0.0003)
        return index


@pytest.mark.usefixtures("no_safety_net")
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1, "prefetch_factor": 1},
        {"num_workers": 2},
        {"num_workers": 5, "prefetch_factor": 1},
        {"num_workers": 2, "in_order": False},
        {"num_workers": 2, "worker_init_fn": lambda worker: None},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "items_in_parallel": 3},
        {"num_workers": 0, "items_in_parallel": 3},
    ],
    ids=str,
)
def test_no_wake_up_is_lost(options: dict[str, Any]) -> None:
    expected = [[i, i + 1, i + 2] for i in range(0, 60, 3)]
    with DataLoader(Numbers(), 3, collate_fn=list, **options) as loader:
        for _ in range(40):
            seen, errors = consume(iter(loader))
            assert (sorted(seen), errors) == (expected, [])


@pytest.mark.usefixtures("no_safety_net")
def test_no_wake_up_is_lost_between_consumers() -> None:
    expected = [[i, i + 1, i + 2] for i in range(0, 60, 3)]
    loader = DataLoader(Numbers(), 3, num_workers=2, collate_fn=list)
    batches: deque[Any] = deque()

    def iterate() -> None:
        for _ in range(30):
            batches.extend(loader)

    consumers = [threading.Thread(target=iterate, daemon=True) for _ in range(3)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(60)
        assert not consumer.is_alive(), "an epoch hangs"
    assert sorted(batches) == sorted(expected * 90)


def test_what_a_lane_began_after_its_worker_left_is_loaded() -> None:
    with DataLoader(range(4), 2, num_workers=1, items_in_parallel=2) as loader:
        iterator = iter(loader)
        assert isinstance(iterator, ThreadIterator)
        seat = iterator._epoch.seats[0]
        plan = iterator._plan
        assert wait_until(lambda: seat.is_prepared_for(plan) and bool(seat.vacant))
        ticket = Ticket(9, 0, [1, 3])
        seat.ahead.append(ticket)
        iterator._pool.wake_all()
        assert wait_until(lambda: ticket.result is not EMPTY)
        assert list(ticket.result) == [1, 3]
        assert ticket.worker is iterator._pool._workers[0]
        assert len(list(iterator)) == 2


# One iterator at a time, and the end.


def test_a_persistent_iterator_is_not_begun_anew_under_a_next_that_waits(
    gate: threading.Event,
) -> None:
    entered = threading.Event()

    class Gated:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            entered.set()
            assert gate.wait(60)
            return index

    loader = DataLoader(
        Gated(), num_workers=2, persistent_workers=True, collate_fn=list
    )
    iterator = iter(loader)
    results: list[Any] = []
    waiting = threading.Thread(target=lambda: results.append(next(iterator)))
    waiting.start()
    assert entered.wait(60)
    assert wait_until(lambda: not iterator._free)
    with pytest.raises(ConcurrentNextError):
        iter(loader)
    gate.set()
    waiting.join(60)
    assert results == [[0]]
    assert list(iterator) == [[1], [2], [3]]
    assert list(loader) == [[0], [1], [2], [3]]


def test_a_pool_that_is_closed_while_an_epoch_begins_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enter = Pool.enter

    def close_and_enter(pool: Pool, epoch: Any) -> None:
        pool.close()
        enter(pool, epoch)

    loader = DataLoader(range(4), num_workers=2, collate_fn=list)
    with monkeypatch.context() as patch:
        patch.setattr(Pool, "enter", close_and_enter)
        iterator = iter(loader)
    with pytest.raises(RuntimeError, match="close"):
        next(iterator)
    assert list(loader) == [[0], [1], [2], [3]]


def test_lanes_end_although_a_batch_is_begun_after_they_were_closed(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    closed = threading.Event()
    load = Seat.load

    def load_late(seat: Seat, ticket: Any) -> Any:
        begun.set()
        assert closed.wait(60)
        return load(seat, ticket)

    monkeypatch.setattr(Seat, "load", load_late)
    loader = DataLoader(range(8), 4, num_workers=1, items_in_parallel=3)
    iterator = iter(loader)
    assert begun.wait(60)
    loader.close()
    closed.set()
    del iterator
    assert wait_until(lambda: not worker_threads())

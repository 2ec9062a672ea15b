"""Forked children: a loader works in them, an iterator of the parent says no.

A child runs a function and leaves by `os._exit`, as `multiprocessing` does.
A child that hangs is killed by its own alarm, and shows as a signal in its status.
"""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeLoader, wait_until, worker_threads

import dataloader
from dataloader import DataLoader, get_worker_info, rng

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()"),
    # From 3.12 on fork warns of a process that has threads, which is the point here.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

ALARM_S = 30

Child = Callable[[], object]


def in_child(function: Child) -> tuple[int, str]:
    """Run ``function`` in a forked child; return its exit code and what it wrote.

    A negative code is the signal that killed it. Warnings are silenced for the fork
    itself, since those of a worker thread are not subject to the test's filters.
    """
    with tempfile.TemporaryFile() as written:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
            if pid == 0:
                # Inside the block: leaving it takes CPython's lock of the warnings,
                # which another thread may have held at the fork.
                _be_child(function, written.fileno())
        _, status = os.waitpid(pid, 0)
        written.seek(0)
        return os.waitstatus_to_exitcode(status), written.read().decode()


def _be_child(function: Child, descriptor: int) -> None:
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(ALARM_S)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        function()
        code = 0
    except BaseException:
        os.write(descriptor, traceback.format_exc().encode())
    finally:
        os._exit(code)


def assert_child(function: Child) -> None:
    """Require that ``function`` ends well in a forked child, without a word."""
    assert in_child(function) == (0, "")


def loads(loader: DataLoader[Any], expected: list[Any]) -> Child:
    def load() -> None:
        for _ in range(2):
            got = sorted(loader)
            assert got == expected, got

    return load


def says_so(iterator: Iterator[Any]) -> Child:
    def ask() -> None:
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"fork\(\)"):
                next(iterator)

    return ask


@pytest.fixture(
    params=[
        {"num_workers": 2},
        {"num_workers": 2, "in_order": False},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 0, "items_in_parallel": 2},
    ],
    ids=["thread", "unordered", "persistent", "inline-lanes"],
)
def with_threads(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of loaders that have threads."""
    return dict(request.param)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that is set at the end of the test, whatever happens."""
    event = threading.Event()
    yield event
    event.set()


TEN = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_a_child_iterates_a_loader_that_its_parent_iterated(
    make_loader: MakeLoader,
) -> None:
    loader = make_loader(range(10), batch_size=2, collate_fn=list)
    assert list(loader) == TEN
    assert_child(loads(loader, TEN))
    assert list(loader) == TEN


def test_a_child_iterates_a_loader_with_live_threads_of_every_kind(
    with_threads: dict[str, Any],
) -> None:
    loader = DataLoader(range(10), 2, collate_fn=list, **with_threads)
    first = next(iter(loader))
    assert first in TEN
    assert_child(loads(loader, TEN))
    assert sorted(loader) == TEN


def test_an_iterator_of_the_parent_raises_in_the_child(
    with_threads: dict[str, Any],
) -> None:
    loader = DataLoader(range(10), 2, collate_fn=list, **with_threads)
    iterator = iter(loader)
    got = [next(iterator)]
    assert_child(says_so(iterator))
    got += iterator  # the parent goes on unharmed
    assert sorted(got) == TEN


def test_an_iterator_without_threads_goes_on_in_the_child() -> None:
    iterator = iter(DataLoader(range(4), collate_fn=list))
    assert next(iterator) == [0]

    def go_on() -> None:
        assert list(iterator) == [[1], [2], [3]]

    assert_child(go_on)
    assert list(iterator) == [[1], [2], [3]]


def test_a_child_may_fork_again(with_threads: dict[str, Any]) -> None:
    loader = DataLoader(range(10), 2, collate_fn=list, **with_threads)

    def generation() -> None:
        iterator = iter(loader)
        next(iterator)
        assert_child(says_so(iterator))
        assert_child(loads(loader, TEN))
        rest = list(iterator)
        assert len(rest) == len(TEN) - 1

    assert_child(generation)
    generation()


def test_an_iterator_is_dropped_or_closed_in_the_child_without_harm(
    with_threads: dict[str, Any],
) -> None:
    loaders = [DataLoader(range(10), 2, collate_fn=list, **with_threads)]
    iterators = [iter(loaders[0])]

    def drop() -> None:
        iterators.clear()
        loaders[0].close()
        assert sorted(loaders[0]) == TEN
        loaders[0].close()
        loaders.clear()

    assert_child(drop)
    assert sorted(iterators[0]) == TEN


def test_a_child_is_forked_while_samples_sleep(
    with_threads: dict[str, Any], gate: threading.Event
) -> None:
    entered = threading.Event()

    class Gated:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            entered.set()
            assert gate.wait(60)
            return index

    loader = DataLoader(Gated(), 2, collate_fn=list, **with_threads)
    iterator = iter(loader)
    consumer = threading.Thread(target=lambda: results.append(next(iterator)))
    results: list[Any] = []
    consumer.start()
    assert entered.wait(60)

    def load_there() -> None:
        gate.set()  # the child's copy of it
        loads(loader, TEN)()

    assert_child(load_there)
    assert not gate.is_set()
    gate.set()
    consumer.join(60)
    assert sorted([*results, *iterator]) == TEN


# Locks that another thread holds at the moment of the fork.


def test_a_child_is_forked_while_worker_init_fn_runs(gate: threading.Event) -> None:
    entered = threading.Event()

    def init(worker: int) -> None:
        entered.set()
        assert gate.wait(60)

    loader = DataLoader(
        range(10), 2, num_workers=2, worker_init_fn=init, collate_fn=list
    )
    iterator = iter(loader)
    assert entered.wait(60)

    def load_there() -> None:
        gate.set()
        loads(loader, TEN)()

    assert_child(load_there)
    assert not gate.is_set()
    gate.set()
    assert list(iterator) == TEN


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_child_is_forked_while_another_thread_begins_an_epoch(
    gate: threading.Event, num_workers: int
) -> None:
    asked = threading.Event()

    class Sampler:
        def __iter__(self) -> Iterator[int]:
            asked.set()
            assert gate.wait(60)
            return iter(range(10))

    loader = DataLoader(
        range(10), 2, sampler=Sampler(), num_workers=num_workers, collate_fn=list
    )
    results: list[Any] = []
    beginner = threading.Thread(target=lambda: results.extend(loader))
    beginner.start()
    assert asked.wait(60)

    def load_there() -> None:
        gate.set()
        loads(loader, TEN)()
        loader.set_epoch(3)
        loader.close()

    assert_child(load_there)
    assert not gate.is_set()
    gate.set()
    beginner.join(60)
    assert results == TEN


@pytest.mark.skipif(
    sys.version_info < (3, 14) and bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="on 3.13t a child of a busy process may hang in the import system",
)
def test_children_are_forked_while_threads_use_loaders_all_the_time() -> None:
    shared = DataLoader(range(10), 2, num_workers=2, collate_fn=list)
    stop = threading.Event()
    failures: list[Any] = []

    def use() -> None:
        while not stop.is_set():
            own = DataLoader(range(10), 2, num_workers=2, collate_fn=list)
            failures.extend(ldr for ldr in (shared, own) if list(ldr) != TEN)
            own.close()

    users = [threading.Thread(target=use) for _ in range(2)]
    for user in users:
        user.start()
    try:
        for _ in range(12):
            assert_child(loads(shared, TEN))
    finally:
        stop.set()
        for user in users:
            user.join(60)
    assert not failures


# Who forks.


def test_a_worker_may_fork(make_loader: MakeLoader) -> None:
    inner = DataLoader(range(10), 2, num_workers=2, collate_fn=list)
    assert list(inner) == TEN

    class Forking:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return in_child(loads(inner, TEN))

    loader = make_loader(Forking(), batch_size=2, collate_fn=list)
    assert list(loader) == [[(0, "")] * 2] * 2
    assert list(inner) == TEN
    # The method refers to it, and 3.13t never frees a function once a thread began.
    inner.close()


def test_the_thread_that_forks_need_not_be_the_main_thread() -> None:
    loader = DataLoader(range(10), 2, num_workers=2, collate_fn=list)
    iterator = iter(loader)
    outcome: list[Any] = []

    def fork() -> None:
        outcome.append(in_child(says_so(iterator)))
        outcome.append(in_child(loads(loader, TEN)))

    forker = threading.Thread(target=fork)
    forker.start()
    forker.join(60)
    assert outcome == [(0, ""), (0, "")]
    assert list(iterator) == TEN


def test_a_child_has_no_threads_until_it_iterates() -> None:
    loader = DataLoader(range(10), 2, num_workers=2, collate_fn=list)
    list(loader)

    def look() -> None:
        assert worker_threads() == []
        list(loader)
        assert wait_until(lambda: len(worker_threads()) == 2)
        loader.close()
        assert wait_until(lambda: not worker_threads())

    assert_child(look)
    assert wait_until(lambda: len(worker_threads()) == 2)


# A child that ends as programs do, with exit handlers and all.


@pytest.mark.parametrize(
    "options", ["num_workers=2", "num_workers=0, items_in_parallel=2"]
)
@pytest.mark.parametrize("use", ["pass", "list(loader)", "kept.append(iter(loader))"])
def test_a_child_ends_by_sys_exit_without_noise(options: str, use: str) -> None:
    script = f"""
    import os, sys, warnings
    from dataloader import DataLoader, get_worker_info, rng
    warnings.simplefilter("ignore", DeprecationWarning)
    loader = DataLoader(range(10), 2, collate_fn=list, {options})
    kept = [iter(loader)]
    next(kept[0])
    pid = os.fork()
    if pid == 0:
        {use}
        sys.exit(5)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(list(kept[0])))
    """
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    done = subprocess.run(
        [sys.executable, *([] if gil else ["-X", "gil=0"]), "-"],
        input=textwrap.dedent(script),
        env={**os.environ, "PYTHONPATH": str(Path(dataloader.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "5 4\n", "")


def test_processes_of_multiprocessing_iterate_the_loader() -> None:
    import multiprocessing

    context = multiprocessing.get_context("fork")
    loader = DataLoader(range(10), 2, num_workers=2, collate_fn=list)
    list(loader)
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put(list(loader)))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert queue.get() == TEN
    with contextlib.closing(queue):
        process.close()


@pytest.mark.parametrize("workers", [0, 3])
def test_a_sample_that_forks_is_still_loaded_in_the_child(workers: int) -> None:
    class Forking:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            drawn = copy.deepcopy(rng()).random()
            info = get_worker_info()

            def load() -> None:
                assert get_worker_info() is info
                assert rng().random() == drawn

            return in_child(load) if index == 3 else (0, "")

    def consume() -> None:
        list(DataLoader(range(2)))
        over.wait(ALARM_S)

    over = threading.Event()
    # The child lets go what these threads have been loading.
    others = [threading.Thread(target=consume) for _ in range(3)]
    for other in others:
        other.start()
    options: dict[str, Any] = {"num_workers": workers, "help": False, "seed": 1}
    try:
        ended = list(DataLoader(Forking(), collate_fn=list, **options))
    finally:
        over.set()
        for other in others:
            other.join()
    assert ended == [[(0, "")]] * 6

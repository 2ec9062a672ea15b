"""The end: of an interpreter, of a loader by `close`, of either while samples sleep."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeLoader, wait_until, worker_threads

import dataloader
from dataloader import DataLoader

WITH_THREADS: dict[str, str] = {
    "thread": "num_workers=2",
    "inline-lanes": "num_workers=0, items_in_parallel=3",
}
"""How loaders that have threads of their own are asked for in a script."""

ANY_KIND = {"inline": "num_workers=0", **WITH_THREADS}

PRELUDE = """
import atexit, sys, threading, time
from dataloader import DataLoader

class Numbers:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return index

class Stuck(Numbers):
    entered = threading.Event()
    def __getitem__(self, index):
        self.entered.set()
        time.sleep(3600)

def make(dataset, **more):
    return DataLoader(dataset, batch_size=2, collate_fn=list, OPTIONS, **more)
"""


def run_script(options: str, body: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a new interpreter of the kind that runs the tests.

    The time-out is how a hang shows: samples of these scripts sleep for an hour.
    """
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    script = PRELUDE.replace("OPTIONS", options) + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, *([] if gil else ["-X", "gil=0"]), "-W", "error", "-"],
        input=script,
        env={**os.environ, "PYTHONPATH": str(Path(dataloader.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
    )


def assert_silent(done: subprocess.CompletedProcess[str], output: str = "") -> None:
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == output


@pytest.fixture(params=list(ANY_KIND.values()), ids=list(ANY_KIND))
def options(request: pytest.FixtureRequest) -> str:
    """Options of `DataLoader` as they stand in a script."""
    return str(request.param)


@pytest.fixture(params=list(WITH_THREADS.values()), ids=list(WITH_THREADS))
def thread_options(request: pytest.FixtureRequest) -> str:
    """Options of a loader that has threads, as they stand in a script."""
    return str(request.param)


# The interpreter ends without a word.


def test_exit_with_a_loader_that_was_never_iterated(options: str) -> None:
    assert_silent(run_script(options, "loader = make(Numbers())"))


def test_exit_with_used_loaders_and_an_unfinished_epoch(options: str) -> None:
    body = """
    loaders = make(Numbers()), make(Numbers())
    for loader in loaders:
        assert sum(loader, []) == list(range(40))
    for batch in loaders[0]:
        break
    """
    assert_silent(run_script(options, body))


def test_exit_with_an_iterator_in_a_global(options: str) -> None:
    body = """
    iterator = iter(make(Numbers()))
    print(next(iterator))
    """
    assert_silent(run_script(options, body), "[0, 1]")


def test_exit_with_an_iterator_in_a_reference_cycle(options: str) -> None:
    body = """
    cycle = [iter(make(Numbers()))]
    cycle.append(cycle)
    print(next(cycle[0]))
    del cycle
    """
    assert_silent(run_script(options, body), "[0, 1]")


def test_exit_while_workers_are_inside_samples(thread_options: str) -> None:
    body = """
    iterator = iter(make(Stuck()))
    if OPTIONS_HAVE_WORKERS:
        Stuck.entered.wait()
    """
    body = body.replace("OPTIONS_HAVE_WORKERS", str("num_workers=2" in thread_options))
    assert_silent(run_script(thread_options, body))


def test_exit_while_another_thread_waits_for_a_batch(thread_options: str) -> None:
    body = """
    loader = make(Stuck())
    threading.Thread(target=lambda: list(loader), daemon=True).start()
    Stuck.entered.wait()
    """
    done = run_script(thread_options, body)
    assert done.returncode == 0
    # That thread's own ClosedError may still be shown, if it comes to that.
    assert not done.stderr or "ClosedError" in done.stderr.splitlines()[-1]


def test_exit_with_persistent_workers() -> None:
    body = """
    loader = make(Numbers(), persistent_workers=True)
    for _ in range(2):
        assert sum(loader, []) == list(range(40))
    print(next(iter(loader)))
    """
    assert_silent(run_script("num_workers=2", body), "[0, 1]")


@pytest.mark.parametrize("is_used", [False, True], ids=["new", "used"])
@pytest.mark.parametrize("is_first", [False, True], ids=["late", "early"])
def test_a_loader_works_in_an_exit_handler(
    options: str, is_used: bool, is_first: bool
) -> None:
    needs_new_threads = options != ANY_KIND["inline"] and (is_first or not is_used)
    if needs_new_threads and sys.version_info[:2] == (3, 12):
        pytest.skip("Python 3.12 starts no thread in an exit handler")
    use = "sum(loader, [])"
    register = "atexit.register(lambda: print(sum(loader, []) == list(range(40))))"
    steps = [register, use] if is_first else [use, register]
    if not is_used:
        steps.remove(use)
    body = "\n".join(["loader = make(Numbers())", *steps])
    assert_silent(run_script(options, body), "True")


def test_an_iterator_goes_on_in_an_exit_handler(options: str) -> None:
    body = """
    iterator = iter(make(Numbers()))
    print(next(iterator))
    atexit.register(lambda: print(next(iterator)))
    """
    assert_silent(run_script(options, body), "[0, 1]\n[2, 3]")


def test_exit_by_sys_exit_inside_the_loop(options: str) -> None:
    body = """
    for batch in make(Numbers()):
        sys.exit(7)
    """
    done = run_script(options, body)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_exit_by_an_exception_shows_its_own_traceback_alone(options: str) -> None:
    body = """
    for batch in make(Numbers()):
        raise LookupError("mine")
    """
    done = run_script(options, body)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "LookupError: mine"
    assert done.stderr.count("Traceback") == 1
    assert "dataloader" not in done.stderr


def test_exit_by_an_exception_of_the_dataset(options: str) -> None:
    body = """
    class Broken(Numbers):
        def __getitem__(self, index):
            raise LookupError("mine")
    list(make(Broken()))
    """
    done = run_script(options, body)
    assert done.returncode == 1
    assert "LookupError: mine" in done.stderr
    assert done.stderr.count("Traceback") == 1


def test_exit_of_a_thread_that_is_no_daemon_and_iterates(options: str) -> None:
    body = """
    def work():
        time.sleep(0.1)  # the main thread is at its end by now, or nearly
        print(sum(loader, []) == list(range(40)))
    loader = make(Numbers())
    sum(loader, [])
    threading.Thread(target=work).start()
    """
    assert_silent(run_script(options, body), "True")


def test_many_loaders_at_exit(options: str) -> None:
    body = """
    loaders = [make(Numbers()) for _ in range(20)]
    iterators = [iter(loader) for loader in loaders]
    print(sum(next(iterator)[1] for iterator in iterators))
    """
    assert_silent(run_script(options, body), "20")


# close() while samples sleep.


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that is set at the end of the test, whatever happens."""
    event = threading.Event()
    yield event
    event.set()


class Gated:
    """A dataset whose samples wait for a gate."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate
        self.entered: list[int] = []

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        self.entered.append(index)
        assert self.gate.wait(60)
        return index


@pytest.fixture(
    params=[
        {"num_workers": 2},
        {"num_workers": 2, "in_order": False},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 1, "items_in_parallel": 3},
        {"num_workers": 0, "items_in_parallel": 3},
    ],
    ids=["thread", "unordered", "persistent", "lanes", "inline-lanes"],
)
def with_threads(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of loaders whose samples are all loaded by threads."""
    return {**request.param, "help": False}


def started(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Call ``function`` in a new thread; its result or exception is put in the list."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(function())
        except RuntimeError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_close_returns_while_samples_still_sleep(
    with_threads: dict[str, Any], gate: threading.Event
) -> None:
    dataset = Gated(gate)
    loader = DataLoader(dataset, 2, collate_fn=list, **with_threads)
    consumer, outcome = started(lambda: next(iter(loader)))
    assert wait_until(lambda: bool(dataset.entered))
    loader.close()
    loader.close()
    assert not gate.is_set()
    consumer.join(60)
    assert "close" in str(outcome[0])


def test_leaving_with_by_an_exception_returns_while_samples_sleep(
    gate: threading.Event,
) -> None:
    dataset = Gated(gate)
    loader = DataLoader(dataset, num_workers=2, collate_fn=list)
    iterator = iter(loader)
    assert wait_until(lambda: len(dataset.entered) == 2)
    with pytest.raises(LookupError), loader:
        raise LookupError
    assert not gate.is_set()
    with pytest.raises(RuntimeError, match="close"):
        next(iterator)


def test_a_closed_loader_is_usable_while_old_samples_still_sleep(
    with_threads: dict[str, Any], gate: threading.Event
) -> None:
    dataset = Gated(gate)
    loader = DataLoader(dataset, 2, collate_fn=list, replicate="none", **with_threads)
    consumer, outcome = started(lambda: next(iter(loader)))
    assert wait_until(lambda: bool(dataset.entered))
    loader.close()
    consumer.join(60)
    assert isinstance(outcome[0], RuntimeError)
    old, dataset.gate = dataset.gate, threading.Event()
    dataset.gate.set()
    assert sorted(itertools.chain(*loader)) == list(range(40))
    assert not old.is_set()


def test_close_ends_every_live_iterator(with_threads: dict[str, Any]) -> None:
    loader = DataLoader(range(40), 2, collate_fn=list, **with_threads)
    iterators = [iter(loader) for _ in range(3)]
    for iterator in iterators:
        next(iterator)
    loader.close()
    for iterator in iterators:
        with pytest.raises(RuntimeError, match="close"):
            next(iterator)
    assert sorted(itertools.chain(*loader)) == list(range(40))


def test_close_leaves_an_exhausted_iterator_exhausted(make_loader: MakeLoader) -> None:
    loader = make_loader(range(4), batch_size=2, collate_fn=list)
    iterator = iter(loader)
    assert list(iterator) == [[0, 1], [2, 3]]
    loader.close()
    assert list(iterator) == []


def test_close_of_a_loader_that_was_never_iterated(make_loader: MakeLoader) -> None:
    loader = make_loader(range(4), collate_fn=list)
    loader.close()
    loader.close()
    assert list(loader) == [[0], [1], [2], [3]]


def test_close_by_many_threads_at_once(with_threads: dict[str, Any]) -> None:
    loader = DataLoader(range(40), 2, collate_fn=list, **with_threads)
    iterator = iter(loader)
    next(iterator)
    closers = [started(loader.close) for _ in range(6)]
    for thread, outcome in closers:
        thread.join(60)
        assert outcome == [None]
    with pytest.raises(RuntimeError, match="close"):
        next(iterator)
    assert wait_until(lambda: not worker_threads())


def test_close_while_another_thread_begins_epochs(with_threads: dict[str, Any]) -> None:
    loader = DataLoader(range(8), 2, collate_fn=list, **with_threads)
    stop = threading.Event()
    whole = [[0, 1], [2, 3], [4, 5], [6, 7]]

    def iterate() -> int:
        epochs = 0
        while not stop.is_set():
            seen = []
            try:
                seen = sorted(loader)
            except RuntimeError as error:
                assert "close" in str(error)  # noqa: PT017
            else:
                epochs += 1
                assert seen == whole
        return epochs

    thread, outcome = started(iterate)
    for _ in range(50):
        loader.close()
    stop.set()
    thread.join(60)
    assert isinstance(outcome[0], int), outcome[0]
    assert sorted(loader) == whole


def test_close_in_the_middle_of_iter(gate: threading.Event) -> None:
    asked = threading.Event()

    class Sampler:
        def __iter__(self) -> Iterator[int]:
            yield 0
            asked.set()
            assert gate.wait(60)
            yield 1

    loader = DataLoader(range(2), sampler=Sampler(), num_workers=2, collate_fn=list)
    beginner, begun = started(lambda: iter(loader))
    assert asked.wait(60)
    closer, closed = started(loader.close)
    gate.set()
    beginner.join(60)
    closer.join(60)
    assert closed == [None]
    try:
        rest = list(begun[0])
    except RuntimeError as error:
        assert "close" in str(error)  # noqa: PT017
    else:
        assert rest == [[0], [1]]


def test_a_sample_may_close_its_own_loader(with_threads: dict[str, Any]) -> None:
    loaders: list[DataLoader[Any]] = []

    class Closing:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            if index == 3:
                loaders[0].close()
            return index

    loaders.append(DataLoader(Closing(), 2, collate_fn=list, **with_threads))
    with pytest.raises(RuntimeError, match="close"):
        list(loaders[0])
    loaders[0].close()
    loaders.clear()


def test_the_last_reference_may_be_dropped_inside_a_sample(
    with_threads: dict[str, Any],
) -> None:
    kept: list[Any] = []
    was_dropped = threading.Event()
    may_drop = threading.Event()

    class Dropping:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            assert may_drop.wait(60)
            kept.clear()
            was_dropped.set()
            return index

    options = {**with_threads, "collate_fn": list}
    if options["num_workers"] == 0:
        options["num_workers"] = 1
    loader = DataLoader(Dropping(), 4, **options)
    kept += [iter(loader), loader]
    del loader
    may_drop.set()
    assert was_dropped.wait(60)
    assert wait_until(lambda: not worker_threads())

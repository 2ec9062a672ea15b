"""Ctrl-C: it acts at once, and what it strikes is neither lost nor doubled.

Python raises KeyboardInterrupt where the interpreter looks for signals: at the entry of
a Python function and after a call of anything else. `Strike` raises it at the n-th such
place, so that one test can try every place there is; the tests at the end and those
marked `stress` use real signals.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from conftest import wait_until, worker_threads
from policies import Inline, use

import dataloader
from dataloader import DataLoader, IterableDataset, RandomSampler
from dataloader.errors import InterruptedSamplerError

PACKAGE = str(Path(dataloader.__file__).parent)

# Python functions called through C code, which is left with a check for signals.
CALLED_FROM_C = frozenset({"__call__", "__init__", "__enter__", "__exit__"})


class Strike:
    """Raises KeyboardInterrupt at some of the places where Ctrl-C can, in this thread.

    Args:
        at: how many places to let pass before each interrupt; after the last one no
            more comes.

    Attributes:
        files: with what the names of the files begin that have such places.
        struck: where it was raised.
    """

    files: tuple[str, ...] = (PACKAGE, __file__)

    def __init__(self, *at: int) -> None:
        self.struck: list[str] = []
        self._left = list(at)

    def __enter__(self) -> Strike:
        # CPython 3.11 does not survive an exception of a profile function in a
        # finaliser that the garbage collector runs.
        gc.disable()
        if self._left:
            sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self._is_place(frame, event):
            return
        if self._left[0]:
            self._left[0] -= 1
            return
        sys.setprofile(None)
        del self._left[0]
        called = getattr(argument, "__qualname__", "")
        code = frame.f_code
        self.struck.append(f"{code.co_name}:{frame.f_lineno} {event} {called}")
        raise KeyboardInterrupt

    def _is_place(self, frame: FrameType, event: str) -> bool:
        code = frame.f_code
        if not code.co_filename.startswith(self.files) or code in _EXEMPT:
            return False
        if event == "return" and code.co_name not in CALLED_FROM_C:
            return False
        # Python reports what is raised in a finaliser and goes on.
        return event in ("call", "return", "c_return") and not _is_in_del(frame)


def _is_in_del(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def drain(iterator: Iterator[Any], strike: Strike, seen: list[Any]) -> None:
    """Take all batches, going on after each interrupt.

    A batch that ``next()`` has returned is recorded by the same C call, so one that is
    missing was lost by the loader.
    """
    while True:
        try:
            with strike:
                for _ in map(seen.append, iterator):
                    pass
            return
        except KeyboardInterrupt:
            continue


_EXEMPT = {function.__code__ for function in (Strike.__enter__, Strike.__exit__, drain)}


class Counter:
    """An iterator that Ctrl-C does no harm: it counts when it is about to return."""

    def __init__(self, stop: int) -> None:
        self._next = 0
        self._stop = stop

    def __iter__(self) -> Counter:
        return self

    def __next__(self) -> int:
        number = self._next
        if number == self._stop:
            raise StopIteration
        self._next = number + 1
        return number


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return Counter(7)


class Sampler:
    def __iter__(self) -> Iterator[int]:
        return Counter(7)


class BatchSampler:
    def __iter__(self) -> Iterator[list[int]]:
        return map(list, [[0, 1], [2, 3], [4, 5], [6]])

    def __len__(self) -> int:
        return 4


class Whole:
    """A dataset that loads a batch at once."""

    def __len__(self) -> int:
        return 7

    def __getitems__(self, indices: list[int]) -> list[int]:
        return list(indices)

    def __getitem__(self, index: int) -> int:
        return index


def same(sample: Any) -> Any:
    return sample


PAIRS = [[0, 1], [2, 3], [4, 5], [6]]

MAPS: dict[str, dict[str, Any]] = {
    "sequential": {},
    "shuffle": {"shuffle": True, "seed": 5},
    # In several chunks of tasks.
    "oversampling": {"sampler": RandomSampler(range(3), num_samples=7, seed=5)},
    "sampler": {"sampler": Sampler()},
    "list-sampler": {"sampler": list(range(7))},
    "batch-sampler": {"batch_size": 1, "batch_sampler": BatchSampler()},
    "batch-list": {"batch_size": 1, "batch_sampler": PAIRS},
    "single": {"batch_size": None, "collate_fn": same},
    "getitems": {"dataset": Whole()},
    "drop-last": {"drop_last": True},
}
STREAMS: dict[str, dict[str, Any]] = {
    "stream": {"dataset": Stream()},
    "single-stream": {"dataset": Stream(), "batch_size": None, "collate_fn": same},
}
# Little is loaded ahead, so that most of the sampler is asked by next() and not iter().
AHEAD: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 1}
BACKENDS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "thread": {**AHEAD, "num_workers": 2},
    "unordered": {**AHEAD, "in_order": False},
    "persistent": {**AHEAD, "persistent_workers": True},
    "lanes": {**AHEAD, "items_in_parallel": 2},
    "inline-lanes": {"num_workers": 0, "items_in_parallel": 2},
}
ALL_CASES: list[tuple[str, str]] = [
    *((order, backend) for order in MAPS for backend in BACKENDS),
    *((order, backend) for order in STREAMS for backend in list(BACKENDS)[:3]),
]
# Each goes through some hundred places; the others are left to the stress run.
QUICK = {("shuffle", "thread"), ("sampler", "unordered"), ("stream", "thread")}
CASES = [
    pytest.param(
        *case, marks=() if "inline" in case or case in QUICK else pytest.mark.stress
    )
    for case in ALL_CASES
]
SOME_BACKENDS = [
    pytest.param(name, marks=() if name in ("inline", "thread") else pytest.mark.stress)
    for name in BACKENDS
]


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a wait notice at once that nobody was woken, since an interrupt came between.

    The only effect of such an interrupt is that the next call waits for two slices.
    """
    monkeypatch.setattr("dataloader.workers.threads.WAIT_SLICE_S", 0.002)


def make(order: str, backend: str, **more: Any) -> DataLoader[Any]:
    """Return a loader of seven samples."""
    options: dict[str, Any] = {
        "dataset": range(7),
        "batch_size": 2,
        "collate_fn": list,
    }
    options |= (MAPS | STREAMS)[order] | BACKENDS[backend] | more
    if order in STREAMS and options["num_workers"]:
        options["num_workers"] = 1  # each worker would yield the whole stream
    return DataLoader(**options)


def check(seen: list[Any], expected: list[Any], backend: str, where: object) -> None:
    if backend == "unordered":
        seen, expected = sorted(seen, key=repr), sorted(expected, key=repr)
    assert seen == expected, where


@pytest.mark.parametrize(("order", "backend"), CASES)
def test_an_interrupt_anywhere_in_next_loses_and_doubles_nothing(
    order: str, backend: str
) -> None:
    with make(order, backend) as loader:
        strike_everywhere(loader, backend)


@pytest.mark.parametrize("untimed", [1, 64])
@pytest.mark.parametrize("order", ["sequential", "shuffle", "oversampling", "single"])
def test_an_interrupt_anywhere_in_an_inline_consumer_loses_and_doubles_nothing(
    order: str, untimed: int
) -> None:
    with make(order, "thread") as loader:
        use(loader, Inline(untimed))
        strike_everywhere(loader, "thread")
        assert loader.stats().by_worker == (0, 0)


def strike_everywhere(loader: DataLoader[Any], backend: str) -> None:
    """Run one epoch for each place of it, and one without an interrupt."""
    loader.set_epoch(0)
    expected = list(loader)
    for place in itertools.count():
        loader.set_epoch(0)
        strike = Strike(place)
        seen: list[Any] = []
        drain(iter(loader), strike, seen)
        check(seen, expected, backend, strike.struck)
        if not strike.struck:
            break
    assert place > 10, "the places where an interrupt can strike were not found"


@pytest.mark.parametrize(
    ("order", "backend"),
    [case for case in CASES if case.values[0] in ("shuffle", "sampler", *STREAMS)],
)
def test_a_second_interrupt_that_soon_follows_loses_and_doubles_nothing(
    order: str, backend: str
) -> None:
    with make(order, backend) as loader:
        loader.set_epoch(0)
        expected = list(loader)
        for place in itertools.count():
            loader.set_epoch(0)
            # In the first case the second one strikes while the first is on its way.
            strike = Strike(3 * place, place % 4, place % 3)
            seen: list[Any] = []
            drain(iter(loader), strike, seen)
            check(seen, expected, backend, strike.struck)
            if not strike.struck:
                break


@pytest.mark.parametrize("backend", ["inline", "thread"])
def test_an_interrupt_loses_nothing_while_the_length_of_a_stream_is_watched(
    backend: str,
) -> None:
    class Sized(Stream):
        def __len__(self) -> int:
            return 100

    for place in itertools.count():
        with make("stream", backend, dataset=Sized()) as loader:
            len(loader)
            strike = Strike(place)
            seen: list[Any] = []
            drain(iter(loader), strike, seen)
        check(seen, PAIRS, backend, strike.struck)
        if not strike.struck:
            break


class Broken:
    """A dataset of which one sample raises."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise LookupError(index)
        return index


@pytest.mark.parametrize("backend", SOME_BACKENDS)
def test_an_interrupt_does_not_swallow_the_error_of_a_sample(backend: str) -> None:
    with make("sequential", backend, dataset=Broken()) as loader:
        for place in itertools.count():
            strike = Strike(place)
            seen: list[Any] = []
            iterator = iter(loader)
            while True:
                try:
                    drain(iterator, strike, seen)
                    break
                except LookupError as error:
                    seen.append(error.args)
            expected = [[0, 1], (3,), [4, 5], [6]]
            check(seen, expected, backend, strike.struck)
            if not strike.struck:
                break


@pytest.mark.parametrize("backend", SOME_BACKENDS)
def test_an_interrupt_does_not_swallow_the_error_of_a_sampler(backend: str) -> None:
    class Failing(Counter):
        def __next__(self) -> int:
            number = super().__next__()
            if number == 3:
                raise LookupError(number)
            return number

    class FailingSampler:
        def __iter__(self) -> Iterator[int]:
            return Failing(7)

    loader = make("sequential", backend, batch_size=1, sampler=FailingSampler())
    with loader:
        for place in itertools.count():
            strike = Strike(place)
            seen: list[Any] = []
            iterator = iter(loader)
            while True:
                try:
                    drain(iterator, strike, seen)
                    break
                except LookupError as error:
                    seen.append(error.args)
            expected = [[0], [1], [2], (3,), [4], [5], [6]]
            if backend == "unordered":
                assert sorted(seen, key=str) == sorted(expected, key=str)
            elif "call __next__" not in str(strike.struck):
                # Interrupted in the user's own iterator: its business.
                assert [s for s in seen if s in expected] == seen
            if not strike.struck:
                break


# iter().


@pytest.mark.parametrize("backend", SOME_BACKENDS)
def test_an_interrupt_anywhere_in_the_first_iter_leaves_nothing_behind(
    backend: str,
) -> None:
    reference = make("shuffle", "inline")
    epochs = [list(reference) for _ in range(3)]
    for place in itertools.count():
        strike = Strike(place)
        loader = make("shuffle", backend)
        begin(loader, strike)
        # It works in every thread: no lock was left locked.
        seen: list[Any] = []
        user = threading.Thread(target=seen.extend, args=(loader,))
        user.start()
        user.join(30)
        assert not user.is_alive(), strike.struck
        # An epoch that had begun when it was interrupted counts.
        number = number_of(seen, epochs, strike.struck)
        assert number in ((0, 1) if strike.struck else (1,)), strike.struck
        del loader, user
        assert wait_until(no_worker_threads), strike.struck
        if not strike.struck:
            break


@pytest.mark.parametrize("backend", SOME_BACKENDS)
def test_an_interrupt_anywhere_in_a_later_iter_keeps_the_count_of_epochs(
    backend: str,
) -> None:
    reference = make("shuffle", "inline")
    epochs = [list(reference) for _ in range(4)]
    for place in itertools.count():
        strike = Strike(place)
        with make("shuffle", backend) as loader:
            assert number_of(list(loader), epochs, None) == 0
            begin(loader, strike)
            number = number_of(list(loader), epochs, strike.struck)
            assert number in ((1, 2) if strike.struck else (2,)), strike.struck
            assert number_of(list(loader), epochs, strike.struck) == number + 1
        if not strike.struck:
            break


@pytest.mark.parametrize("backend", ["thread", "persistent"])
def test_an_interrupt_anywhere_in_iter_keeps_what_set_epoch_was_told(
    backend: str,
) -> None:
    class Told:
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            return self.epoch

    for place in itertools.count():
        strike = Strike(place)
        with make("sequential", backend, dataset=Told(), num_workers=1) as loader:
            assert list(loader) == [[0, 0]]
            loader.set_epoch(7)
            begin(loader, strike)
            assert list(loader) == [[7, 7]], strike.struck
        if not strike.struck:
            break


def no_worker_threads() -> bool:
    # The frames that an interrupt broke off may refer to themselves.
    gc.collect()
    return not worker_threads()


def begin(loader: DataLoader[Any], strike: Strike) -> None:
    try:
        with strike:
            iter(loader)
    except KeyboardInterrupt:
        pass


def number_of(seen: list[Any], epochs: list[Any], where: object) -> int:
    """Return which of the epochs this is, by its batches in whatever order."""
    found = [n for n, epoch in enumerate(epochs) if sorted(seen) == sorted(epoch)]
    assert found, where
    return found[0]


# Samplers and datasets that an interrupt ends.


def generate(stop: int) -> Iterator[int]:
    yield from range(stop)


def generate_slowly(stop: int) -> Iterator[int]:
    for number in range(stop):
        same(number)
        yield number


class GeneratorSampler:
    def __iter__(self) -> Iterator[int]:
        return generate_slowly(7)


def flat(batches: list[Any]) -> list[Any]:
    return [key for b in batches for key in (b if isinstance(b, list) else [b])]


def outcome(iterator: Iterator[Any], strike: Strike) -> tuple[list[Any], list[str]]:
    """Return what came, and the names of the errors that were raised meanwhile."""
    seen: list[Any] = []
    errors: list[str] = []
    while True:
        try:
            drain(iterator, strike, seen)
            return seen, errors
        except RuntimeError as error:
            errors.append(type(error).__name__)
            assert len(errors) < 5


@pytest.mark.parametrize("backend", SOME_BACKENDS)
@pytest.mark.parametrize(
    "more",
    [
        {"sampler": GeneratorSampler()},
        {"batch_size": None, "collate_fn": same, "sampler": GeneratorSampler()},
    ],
    ids=["batched", "single"],
)
@pytest.mark.parametrize("again", [(), (0,), (1,), (2,)], ids=str)
def test_an_epoch_whose_sampler_an_interrupt_ended_is_not_silently_short(
    backend: str, more: dict[str, Any], again: tuple[int, ...]
) -> None:
    ended = 0
    with make("sequential", backend, **more) as loader:
        expected = list(loader)
        for place in itertools.count():
            strike = Strike(place, *again)
            seen, errors = outcome(iter(loader), strike)
            if errors:
                ended += 1
                assert errors == [InterruptedSamplerError.__name__]
                # What it had yielded before may still come, in a batch that is short.
                keys, whole = flat(seen), flat(expected)
                if backend != "unordered":
                    assert keys == whole[: len(keys)], strike.struck
                assert sorted(keys) == whole[: len(keys)], strike.struck
            else:
                check(seen, expected, backend, strike.struck)
            if not strike.struck:
                break
    assert ended >= 1


@pytest.mark.parametrize("again", [(), (0,), (1,), (2,)], ids=str)
@pytest.mark.parametrize("batch_size", [2, None])
def test_an_epoch_whose_dataset_an_interrupt_ended_is_not_silently_short(
    batch_size: int | None, again: tuple[int, ...]
) -> None:
    class Generated(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return generate_slowly(7)

    collate = same if batch_size is None else list
    loader = DataLoader(Generated(), batch_size, collate_fn=collate)
    expected = list(loader)
    ended = 0
    for place in itertools.count():
        strike = Strike(place, *again)
        seen, errors = outcome(iter(loader), strike)
        ended += len(errors)
        if not errors:
            assert seen == expected, strike.struck
        if not strike.struck:
            break
    assert ended >= 1


@pytest.mark.parametrize("backend", SOME_BACKENDS)
def test_batches_of_keys_that_can_be_iterated_once_survive_an_interrupt(
    backend: str,
) -> None:
    class Batches:
        def __iter__(self) -> Iterator[Iterable[int]]:
            return map(iter, PAIRS)

    with make("batch-sampler", backend, batch_sampler=Batches()) as loader:
        assert sorted(loader) == PAIRS
        for place in itertools.count():
            strike = Strike(place)
            seen, errors = outcome(iter(loader), strike)
            check(seen, PAIRS, backend, strike.struck)
            assert not errors
            if not strike.struck:
                break


# Waiting.


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that is set at the end of the test, whatever happens."""
    event = threading.Event()
    yield event
    event.set()


def is_waiting(ident: int) -> bool:
    """Whether a thread is inside the package."""
    frame = sys._current_frames()[ident]
    return frame.f_code.co_filename.startswith(PACKAGE)


def interrupter() -> threading.Thread:
    """Start a thread that interrupts the main thread once that waits in ``next()``."""
    main = threading.main_thread().ident
    assert main is not None

    def watch() -> None:
        if wait_until(lambda: is_waiting(main), 60):
            signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


needs_kill = pytest.mark.skipif(
    not hasattr(signal, "pthread_kill"), reason="needs signals of POSIX"
)


@needs_kill
@pytest.mark.parametrize(
    "more",
    [
        {"num_workers": 2},
        {"num_workers": 2, "in_order": False},
        {"num_workers": 2, "timeout": 1000},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 1, "items_in_parallel": 2},
        {"num_workers": 0, "items_in_parallel": 2},
    ],
    ids=str,
)
def test_an_interrupt_ends_a_wait_and_the_batch_comes_later(
    gate: threading.Event, more: dict[str, Any]
) -> None:

    class Gated:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            assert gate.wait(60)
            return index

    loader = DataLoader(Gated(), 2, collate_fn=list, help=False, **more)
    iterator = iter(loader)
    for _ in range(3):
        killer = interrupter()
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        killer.join()
    assert not gate.is_set()
    gate.set()
    assert sorted(iterator) == [[0, 1], [2, 3]]


# Whole programs, and real signals.


def run_script(body: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a new interpreter of the kind that runs the tests."""
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return subprocess.run(
        [sys.executable, *([] if gil else ["-X", "gil=0"]), "-W", "error", "-"],
        input=textwrap.dedent(body),
        env={**os.environ, "PYTHONPATH": str(Path(PACKAGE).parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_an_interrupt_anywhere_in_the_first_iter_leaves_threading_usable() -> None:
    # In a process of its own: a lock of `threading` that is left locked stops all.
    done = run_script(f"""
        import itertools, sys, threading
        sys.path.append({str(Path(__file__).parent)!r})
        from test_interrupts import PAIRS, Strike, begin, make
        Strike.files += (threading.__file__,)
        for place in itertools.count():
            strike = Strike(place)
            loader = make("sequential", "lanes")
            begin(loader, strike)
            seen = []
            user = threading.Thread(target=seen.extend, args=(loader,), daemon=True)
            user.start()
            user.join(30)
            if seen != PAIRS or not strike.struck:
                break
            loader.close()
        print(seen, strike.struck, place > 10)
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{PAIRS} [] True\n"


@needs_kill
def test_a_program_that_waits_for_a_sample_ends_by_an_interrupt() -> None:
    done = run_script("""
        import os, signal, threading, time
        from dataloader import DataLoader
        entered = threading.Event()
        class Sleeping:
            def __len__(self):
                return 4
            def __getitem__(self, index):
                entered.set()
                time.sleep(3600)
        def interrupt():
            entered.wait()
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt, daemon=True).start()
        # A signal that comes just before sleep() is not noticed until that is over, so
        # the sample must not be slept in by the main thread.
        next(iter(DataLoader(Sleeping(), num_workers=2, help=False)))
    """)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert done.stderr.count("Traceback") == 1


@needs_kill
@pytest.mark.parametrize("num_workers", [0, 2])
def test_iter_and_next_work_and_end_on_an_endless_sampler(num_workers: int) -> None:
    done = run_script(f"""
        import itertools, signal
        from dataloader import DataLoader
        loader = DataLoader(
            range(9), 2, sampler=itertools.repeat(3), collate_fn=list,
            num_workers={num_workers},
        )
        iterator = iter(loader)
        print(next(iterator), next(iterator))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            for batch in iterator:
                pass
        except KeyboardInterrupt:
            print(next(iterator))
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[3, 3] [3, 3]\n[3, 3]\n"


@needs_kill
@pytest.mark.parametrize(
    "options", ["num_workers=2", "num_workers=0, items_in_parallel=2"]
)
def test_signals_at_random_do_not_keep_other_threads_from_loading(options: str) -> None:
    done = run_script(f"""
        import random, signal, threading
        from dataloader import DataLoader
        is_armed = False
        def strike(*_):
            if is_armed:
                raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, strike)
        make = lambda: DataLoader(range(6), 2, collate_fn=list, {options})
        loaders = [make() for _ in range(40)]
        struck = 0
        for loader in loaders:
            list(loader)
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.002), 0.001)
            try:
                is_armed = True
                while True:
                    for batch in loader:
                        pass
            except KeyboardInterrupt:
                is_armed = False
                struck += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        seen = []
        def load():
            for loader in loaders:
                seen.append(list(loader))
                loader.close()
        thread = threading.Thread(target=load, daemon=True)
        thread.start()
        thread.join(40)
        print(struck, len(seen), seen == [[[0, 1], [2, 3], [4, 5]]] * 40)
    """)
    # Python may have written of interrupts that it dropped in some callback.
    assert (done.returncode, done.stdout) == (0, "40 40 True\n")

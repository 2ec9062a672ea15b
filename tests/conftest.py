"""What all tests share: backends, and the check that nothing is left behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from twins import SUFFIXES, twin

from dataloader import DataLoader, _fast

# How each backend is asked for. A behaviour is written once and runs over all of them.
BACKENDS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "thread": {"num_workers": 2},
    # The consumer loads nothing, so that either way of loading is covered.
    "thread-many": {"num_workers": 5, "prefetch_factor": 1, "help": False},
    "lanes": {"num_workers": 2, "items_in_parallel": 3},
    "inline-lanes": {"num_workers": 0, "items_in_parallel": 3},
}

MakeLoader = Callable[..., DataLoader[Any]]


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of `DataLoader` that choose a backend."""
    return dict(BACKENDS[request.param])


@pytest.fixture
def make_loader(backend: dict[str, Any]) -> MakeLoader:
    """`DataLoader` with the options of a backend filled in."""

    def make(dataset: Any, *args: Any, **options: Any) -> DataLoader[Any]:
        return DataLoader(dataset, *args, **{**backend, **options})

    return make


@pytest.fixture(params=list(SUFFIXES))
def impl(request: pytest.FixtureRequest) -> ModuleType:
    """The twins of the kernel that a test module names in ``KERNEL``."""
    # With DATALOADER_REQUIRE_EXT the package cannot be imported without them.
    if request.param == "cython" and _fast.IMPLEMENTATION != "cython":
        pytest.skip(_fast.REASON)
    return twin(request.module.KERNEL, request.param)


def worker_threads() -> list[threading.Thread]:
    """Return the threads of this process that loaders have started."""
    return [t for t in threading.enumerate() if t.name.startswith("dataloader-")]


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Wait until a condition holds; False if it does not within a generous time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def run_in_threads(*functions: Callable[[], object]) -> None:
    """Run each function in a thread of its own, all at once; none may raise."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(functions))

    def run(function: Callable[[], object]) -> None:
        try:
            barrier.wait()
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def pytest_collection_finish() -> None:
    """Take what was imported by now out of the collections that follow every test."""
    gc.collect()
    gc.freeze()


def _no_worker_threads() -> bool:
    # Again and again: a worker on its way out still refers to what it loaded.
    gc.collect()
    return not worker_threads()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail a test after which a worker thread or a file descriptor is left."""
    before = _descriptors()
    yield
    assert wait_until(_no_worker_threads), worker_threads()
    assert _descriptors() <= before

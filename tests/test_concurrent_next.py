"""One iterator and several threads: an error at once, or turns that lose nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from conftest import MakeLoader, wait_until


def run_aside(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start ``function`` in a thread; return it and the list that gets its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    return thread, results


def test_a_second_thread_inside_next_is_an_error(make_loader: MakeLoader) -> None:
    gate = threading.Event()

    class Gated:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            entered.append(index)
            assert gate.wait(20)
            return index

    entered: list[int] = []
    iterator = iter(make_loader(Gated(), collate_fn=list))
    thread, results = run_aside(lambda: next(iterator))
    try:
        assert wait_until(lambda: entered != [] and is_waiting(thread))
        for _ in range(3):
            with pytest.raises(RuntimeError, match="another thread"):
                next(iterator)
    finally:
        gate.set()
        thread.join(20)
    assert results == [[0]]
    assert list(iterator) == [[1], [2], [3]]


def is_waiting(thread: threading.Thread) -> bool:
    """Return whether a thread waits: for the gate, or for a worker that does."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_name in ("sleep", "wait")


def test_threads_that_take_turns_share_an_iterator(make_loader: MakeLoader) -> None:
    iterator = iter(make_loader(range(200), batch_size=2, collate_fn=list))
    turn = threading.Lock()

    def consume() -> list[Any]:
        received: list[Any] = []
        while True:
            with turn:
                batch = next(iterator, None)
            if batch is None:
                return received
            received.append(batch)

    runs = [run_aside(consume) for _ in range(3)]
    for thread, _ in runs:
        thread.join(20)
    batches = [batch for _, results in runs for batch in results[0]]
    assert sorted(batches) == [[i, i + 1] for i in range(0, 200, 2)]

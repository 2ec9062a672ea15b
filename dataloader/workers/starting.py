"""Threads of a pool, started where Ctrl-C cannot strike.

An interrupt inside ``threading.Thread.start()`` may leave a lock of the standard
library locked, and every thread that is started later would hang. KeyboardInterrupt is
raised in the main thread only; so a raw thread, which takes one call of C to start,
starts the others. Nobody waits for it except who closes the pool.

Guards: a `Starter` runs one call at a time. The size of stacks is one number for the
whole process, and `_STACK_GUARD` is held while it is ours.

Shutdown: `Starter.wait`; a call that takes longer than that sees by itself that the
pool is closing.
"""

from __future__ import annotations

import _thread
import contextlib
import contextvars
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, ParamSpec

from dataloader._guard import Guard
from dataloader.workers.sleeper import Sleeper

__all__ = ["Starter", "start_thread"]

P = ParamSpec("P")

STACK_BYTES = 8 << 20
"""A worker's stack: a main thread's usual size, for recursion as deep."""

_STACK_GUARD = Guard()


class Starter:
    """Calls functions that start threads, one at a time, in the background.

    Args:
        fail: called with the exception that ended such a function, in its thread.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._guard = Guard()
        # What each call wakes at its end. The oldest are over if there are so many.
        self._calls: deque[Sleeper] = deque(maxlen=8)

    def call(
        self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Let ``function(*args, **kwargs)`` be called soon.

        Raises:
            RuntimeError: not even a thread for the call can be started.
        """
        end = Sleeper()

        def run() -> None:
            try:
                self._guard.run(function, *args, **kwargs)
            except BaseException as error:
                self._fail(error)
            finally:
                end.wake()

        _thread.start_new_thread(run, ())
        self._calls.append(end)

    def wait(self, deadline: float) -> None:
        """Wait until all calls are over, or a moment of ``time.monotonic()``."""
        # Each is taken off the list, since a sleeper is woken once.
        with contextlib.suppress(IndexError):
            while True:
                end = self._calls.popleft()
                end.sleep(max(deadline - time.monotonic(), 0))


def start_thread(run: Callable[[], None], name: str) -> threading.Thread:
    """Start a daemon thread with a main thread's stack and an empty context.

    Args:
        run: the thread's main function.
        name: shown by debuggers and profilers.
    """
    options: dict[str, Any] = {}
    if sys.version_info >= (3, 14):
        # Else a free-threaded build keeps the starter's context alive in the thread.
        options["context"] = contextvars.Context()
    thread = threading.Thread(target=run, name=name, daemon=True, **options)
    _STACK_GUARD.run(_start_with_stack, thread)
    return thread


def _start_with_stack(thread: threading.Thread) -> None:
    before = threading.stack_size(STACK_BYTES)
    try:
        thread.start()
    finally:
        threading.stack_size(before)

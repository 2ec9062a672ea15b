"""Sleeping and being woken, with early wake-ups remembered, by one lock."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

__all__ = ["IDLE_S", "Sleeper"]

IDLE_S = 1.0
"""Longest sleep of an idle thread. On free-threaded builds memory that a thread
allocated and another one dropped comes back when its owner next runs, so idle threads
run now and then."""


class Sleeper:
    """One thread sleeps, any thread wakes it.

    The lock is locked as long as nobody has woken the sleeper.

    A lock rather than ``threading.Event``, which takes two locks and allocates a third
    for each wait.
    """

    __slots__ = ("_lock", "release")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        #: What `wake` does, as a function of C; RuntimeError if woken already.
        self.release: Callable[[], None] = self._lock.release

    def sleep(self, timeout_s: float = IDLE_S) -> bool:
        """Wait for `wake`; return whether it came within ``timeout_s``."""
        return self._lock.acquire(timeout=timeout_s)

    def wake(self) -> None:
        """End the present or else the next `sleep`. Any thread, any number of times."""
        # Unlocked already: an earlier wake-up has not been noticed yet, which will do.
        with contextlib.suppress(RuntimeError):
            self.release()

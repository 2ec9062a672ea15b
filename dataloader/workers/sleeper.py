"""Sleeping and being woken, with early wake-ups remembered, by one queue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

__all__ = ["IDLE_S", "Sleeper"]

IDLE_S = 1.0
"""Longest sleep of an idle thread. On free-threaded builds memory that a thread
allocated and another one dropped comes back when its owner next runs, so idle threads
run now and then."""


class Sleeper:
    """One thread sleeps, any thread wakes it.

    The queue holds wake-ups that the sleeper has not noticed yet.

    A queue rather than a lock: free-threaded builds try a lock 40 times, with a yield
    of the time slice in between, before they let its thread sleep. Where all cores have
    workers to run, the first of these yields gives the core away until a worker runs
    out of tickets. A consumer that waited so came back when the window was empty, which
    cost a tenth of the throughput at 0.5 ms a batch.
    """

    __slots__ = ("_wakes", "release")

    def __init__(self) -> None:
        self._wakes: SimpleQueue[None] = SimpleQueue()
        #: What `wake` does, as a function of C.
        self.release: Callable[[], None] = partial(self._wakes.put, None)

    def sleep(self, timeout_s: float = IDLE_S) -> bool:
        """Wait for `wake`; return whether it came within ``timeout_s``.

        Rarely it returns early, when several threads woke it at once the last time.
        """
        try:
            self._wakes.get(timeout=timeout_s)
        except Empty:
            return False
        return True

    def wake(self) -> None:
        """End the present or else the next `sleep`. Any thread, any number of times."""
        if self._wakes.empty():
            self.release()

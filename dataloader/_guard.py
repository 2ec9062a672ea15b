"""Locks that neither Ctrl-C nor ``fork()`` can leave locked.

``with lock:`` is not enough: Python 3.14 may raise KeyboardInterrupt after the lock was
taken and before the block is entered, and a child process finds locked for ever what
another thread of its parent held at the fork.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import starmap
from typing import Any, ParamSpec, TypeVar

__all__ = ["FORKS", "ONCE", "Guard"]

P = ParamSpec("P")
T = TypeVar("T")

ONCE: tuple[tuple[()]] = ((),)
"""``kept.extend(starmap(f, ONCE))`` is ``kept.append(f())`` in one call of C: no
interrupt can come between the call and its result being kept."""


class _Forks:
    """How many forks lie between this process and the one that imported this.

    Compared with the number at an earlier moment it tells, without a system call, that
    an object came from a parent process. Written only in a new child, which has one
    thread.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        self.count += 1


FORKS = _Forks()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=FORKS.add)


class Guard:
    """A re-entrant lock; a forked child has one of its own.

    Re-entrant, since the garbage collector may run the finaliser of another object in
    the thread that holds it.
    """

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        # By number of forks. setdefault is atomic.
        self._locks: dict[int, Any] = {}

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return ``function(*args, **kwargs)``, called while the lock is held."""
        number = FORKS.count
        lock = self._locks.get(number)
        if lock is None:
            lock = self._locks.setdefault(number, threading.RLock())
        held: list[bool] = []
        try:
            held.extend(starmap(lock.acquire, ONCE))
            return function(*args, **kwargs)
        finally:
            if held:
                lock.release()

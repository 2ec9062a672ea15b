"""The exceptions of this package, each of which builds its own message from facts.

All of them derive from the type that PyTorch's loader raises in the same situation, so
that code written for PyTorch catches them. Errors of the user's dataset are not in this
list: they keep their own type and identity and only gain a note.

    RuntimeError
     +-- WorkerTimeoutError     no batch within ``timeout`` seconds
     +-- WorkerDiedError        a worker thread ended in the middle of a batch
     +-- ForkedIteratorError    an iterator used in a child made by ``fork()``
     +-- ConcurrentNextError    two threads inside ``next()`` of one iterator
     +-- ClosedError            an iterator whose loader was closed
     +-- InterruptedSamplerError  a sampler that Ctrl-C ended before its time
     +-- InterruptedDatasetError  the same of an iterable dataset
    NotImplementedError
     +-- BackendUnavailableError  a kind of worker that this version does not have

Each can also be built from one string, as pickle and PyTorch do when an exception
crosses a process boundary.
"""

from __future__ import annotations

import sys
from typing import Self

__all__ = [
    "BackendUnavailableError",
    "ClosedError",
    "ConcurrentNextError",
    "ForkedIteratorError",
    "InterruptedDatasetError",
    "InterruptedSamplerError",
    "WorkerDiedError",
    "WorkerTimeoutError",
    "describe_indices",
    "users_level",
]

_SHOWN = 8


def describe_indices(indices: object) -> str:
    """Return the keys of one batch as text, shortened to the first few.

    Args:
        indices: the key or the sequence of keys of one batch.
    """
    if not isinstance(indices, (list, tuple, range)):
        return repr(indices)
    if len(indices) <= _SHOWN:
        return repr(list(indices))
    head = ", ".join(repr(index) for index in indices[:_SHOWN])
    return f"[{head}, ... {len(indices)} in all]"


def users_level() -> int:
    """Return the ``stacklevel`` with which a warning of the caller names user code.

    That is the innermost frame outside this package, however the call came about.
    """
    level, frame = 0, sys._getframe()
    while frame.f_back and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    return level


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __package__


class WorkerTimeoutError(RuntimeError):
    """Raised by ``next()`` when no batch came within ``timeout`` seconds.

    Nothing is lost: calling ``next()`` again waits for the same batch again.
    """

    @classmethod
    def after(cls, timeout_s: float, batch: int, report: str) -> Self:
        """Build the error from the time waited and what is known of the worker."""
        return cls(
            f"DataLoader timed out after {timeout_s:g} seconds waiting for batch "
            f"{batch}. {report}"
        )


class WorkerDiedError(RuntimeError):
    """Raised in the place of a batch whose worker thread ended while loading it."""

    @classmethod
    def during(cls, worker: str, batch: int, indices: object) -> Self:
        """Build the error from the worker's name and the batch that it was loading."""
        return cls(
            f"DataLoader {worker} exited unexpectedly while it was loading batch "
            f"{batch} (indices {describe_indices(indices)}); that batch is lost, the "
            "next next() goes on with the following one"
        )


class ForkedIteratorError(RuntimeError):
    """Raised when an iterator made before a ``fork()`` is used in the child."""

    def __init__(
        self,
        message: str = (
            "this DataLoader iterator was created before fork() and its worker "
            "threads do not exist in the child process; call iter() on the loader "
            "here to start an epoch of this process"
        ),
    ) -> None:
        super().__init__(message)


class ConcurrentNextError(RuntimeError):
    """Raised when a second thread enters ``next()`` of an iterator."""

    def __init__(
        self,
        message: str = (
            "this DataLoader iterator is already executing next() in another thread; "
            "give each thread its own iterator, or put a lock around next()"
        ),
    ) -> None:
        super().__init__(message)


class ClosedError(RuntimeError):
    """Raised by ``next()`` on an iterator whose loader was closed.

    That is by ``close()``, or because a thread that it needs cannot be started.
    """

    def __init__(
        self,
        message: str = (
            "this DataLoader iterator was ended by close(); call iter() on the loader "
            "for a new epoch"
        ),
    ) -> None:
        super().__init__(message)

    @classmethod
    def for_want_of_threads(cls, reason: BaseException) -> Self:
        """Build the error from the exception that the start of a thread raised."""
        error = cls(
            f"the threads of this DataLoader cannot be started: {reason}; lower "
            "num_workers or items_in_parallel, or raise the limit of threads, and "
            "call iter() for a new epoch"
        )
        error.__cause__ = reason
        return error


class InterruptedSamplerError(RuntimeError):
    """Raised when a sampler ended right after KeyboardInterrupt was raised inside it.

    A generator that an exception passes through is finished, so what looks like the
    end of the epoch would silently leave out the rest of it.
    """

    def __init__(
        self,
        message: str = (
            "the sampler was interrupted by Ctrl-C while it made its next indices and "
            "cannot go on, so the rest of this epoch is unknown; call iter() for a new "
            "epoch (a sampler whose iterator is a class instead of a generator can be "
            "interrupted safely)"
        ),
    ) -> None:
        super().__init__(message)


class InterruptedDatasetError(RuntimeError):
    """Raised when an iterable dataset ended right after Ctrl-C struck inside it.

    As with samplers: a generator that an exception passes through is finished, and what
    looks like the end of the epoch would silently leave out the rest of it.
    """

    def __init__(
        self,
        message: str = (
            "the dataset was interrupted by Ctrl-C while it made its next sample and "
            "cannot go on, so the rest of this epoch is unknown; call iter() for a new "
            "epoch (a dataset whose iterator is a class instead of a generator can be "
            "interrupted safely)"
        ),
    ) -> None:
        super().__init__(message)


class BackendUnavailableError(NotImplementedError):
    """Raised for a kind of worker that this version of the package does not have."""

    @classmethod
    def asked_by(cls, argument: str, value: object) -> Self:
        """Build the error from the argument that asks for such workers."""
        return cls(
            f"{argument}={value!r} asks for workers that this version does not have "
            'yet: it loads with threads (worker_method="thread", the default) or in '
            "the calling thread (num_workers=0)"
        )

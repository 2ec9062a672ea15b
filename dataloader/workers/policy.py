"""Who loads a batch: the worker threads, or the consumer while it would only wait.

A sleeping partner costs 10 to 30 microseconds a direction, so below some cost of a
batch the cheapest hand-over is none. Measured on two cores with 2 and 4 workers, see
``benchmarks/bench_overhead.py``:

==========  ==========================================================================
cost        what happens
==========  ==========================================================================
< 6 us      *inline*: the consumer loads every batch itself, workers sleep
< 300 us    *help*: while its batch is not ready, the consumer claims another one
< 200 us    before it sleeps, the consumer yields its time slice up to 100 times
< 60 us     at most one worker fewer than there are cores is awake
otherwise   workers are woken as there are batches to load and cores to load them on
==========  ==========================================================================

The limit below which a batch is not worth handing over depends on how fast the
interpreter loads it and whether threads can run beside each other at all.

Guards: the numbers are written by whichever consumer of the loader is in ``next()``.
Two of them at once may lose an update of an average, which decides nothing but speed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from dataloader._marks import NotInWorker
from dataloader._torch import loaded_torch

__all__ = [
    "HELP_BELOW_S",
    "SPINS",
    "SPIN_BELOW_S",
    "Policy",
    "is_gil_enabled",
    "mode_probe",
    "sched_yield",
    "untimed",
]

HELP_BELOW_S = 300e-6
SPIN_BELOW_S = 200e-6
SPARE_CORE_BELOW_S = 60e-6

INLINE_BELOW_S = 6e-6
"""Enter the inline mode after `CHEAP_CHECKS` batches in a row below this."""

INLINE_LEAVE_S = 7.5e-6
INLINE_LEAVE_AT_ONCE_S = 100e-6
CHEAP_CHECKS = 3

MOST_UNTIMED = 64
UNTIMED_S = 100e-6
"""One batch in ``min(64, 100 us / cost) + 1`` that the consumer loads by itself is
timed: often enough to notice within a few dozen batches that they have become dear, and
seldom enough to cost a few percent. Compiled, the short way notices within 8 if they
have become very dear."""

SPINS = 100
"""How often a thread yields its time slice before it goes to sleep."""

sched_yield: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


def is_gil_enabled() -> bool:
    """Whether threads take turns in running Python code."""
    probe: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return probe()


def untimed(cost_s: float) -> int:
    """Return how many batches of a cost to load before the next one that is timed."""
    return min(MOST_UNTIMED, int(UNTIMED_S / max(cost_s, 1e-7)))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Policy:
    """What a loader's batches cost and what follows from it, kept over epochs.

    Attributes:
        cost_s: moving average of what a batch costs, infinite while unknown.
        is_inline: the consumer loads everything itself.
        info_was_asked: user code called ``get_worker_info`` or ``torch.initial_seed``,
            so it must be a worker that loads.
    """

    def __init__(self) -> None:
        self.cost_s: float = float("inf")
        self.is_inline: bool = False
        self.info_was_asked: bool = False
        self.cores: int = _cores()
        # Handing over costs more where the interpreter is slower or threads take turns.
        factor = 1.0
        if is_gil_enabled():
            factor = 5.0
        elif sys.version_info < (3, 14):
            factor = 2.5
        self._inline_below_s = INLINE_BELOW_S * factor
        self._inline_leave_s = INLINE_LEAVE_S * factor
        self._cheap = 0
        self._dear = 0

    def note_asked(self) -> None:
        """User code asks a worker who it is, so no batch is loaded elsewhere again."""
        self.info_was_asked = True

    def send_to_worker(self) -> None:
        """User code asks the consumer which worker it is.

        Raises:
            NotInWorker: always.
        """
        self.info_was_asked = True
        raise NotInWorker

    def note(self, cost_s: float) -> None:
        """Take note of what a batch cost."""
        if self.cost_s == float("inf"):
            self.cost_s = cost_s
        else:
            self.cost_s += (cost_s - self.cost_s) / 4
        self._decide(cost_s)

    def _decide(self, cost_s: float) -> None:
        if self.is_inline:
            self._dear = self._dear + 1 if cost_s > self._inline_leave_s else 0
            if self._dear >= 2 or cost_s > INLINE_LEAVE_AT_ONCE_S:
                self.is_inline = False
                self._cheap = 0
                self.cost_s = cost_s
        else:
            self._cheap = self._cheap + 1 if cost_s < self._inline_below_s else 0
            if self._cheap >= CHEAP_CHECKS:
                self.is_inline = True
                self._dear = 0

    def untimed(self) -> int:
        """Return how many batches to load inline before the next one that is timed."""
        return untimed(self.cost_s)

    def wants_worker(self, awake: int) -> bool:
        """Whether a new batch is worth waking another worker for.

        Args:
            awake: number of workers that are awake, see `Pool.awake`.
        """
        if awake <= 0 or self.cost_s >= HELP_BELOW_S:
            return True
        return self.cost_s > SPARE_CORE_BELOW_S and awake < self.cores

    def allows_worker(self, awake: int) -> bool:
        """Whether a consumer that lacks its batch may wake another worker."""
        if self.cost_s < SPARE_CORE_BELOW_S:
            return awake < max(self.cores - 1, 1)
        return True


def mode_probe(
    is_traced: Callable[[], bool] | None = None,
) -> Callable[[], bool] | None:
    """Return what tells whether a mode of torch is active in the calling thread.

    What is loaded under ``no_grad``, ``inference_mode``, autocast, a default device or
    another function mode would differ from what a worker loads. None while torch is not
    loaded.

    Args:
        is_traced: asked as well, where each ``next()`` has to be a range of its own in
            torch's profiler.
    """
    torch = loaded_torch()
    if torch is None:
        return None
    # Calling int() is the quickest way to zero.
    no_less: Callable[[], int] = int
    traced = no_less if is_traced is None else is_traced
    grad = torch.is_grad_enabled
    inference = torch.is_inference_mode_enabled
    inner = torch._C
    autocast = getattr(inner, "_is_any_autocast_enabled", torch.is_autocast_enabled)
    functions = getattr(inner, "_len_torch_function_stack", no_less)
    dispatch = getattr(inner, "_len_torch_dispatch_stack", no_less)

    def probe() -> bool:
        return bool(
            not grad()
            or inference()
            or autocast()
            or functions()
            or dispatch()
            or traced()
        )

    return probe

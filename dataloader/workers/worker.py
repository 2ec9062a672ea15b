"""One worker thread: it looks for an epoch that wants it, serves it, or sleeps.

Guards: `thread` is set once, by who starts it; `Pool` says what the threads share.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING

from dataloader.workers.policy import SPIN_BELOW_S, SPINS, sched_yield
from dataloader.workers.sleeper import Sleeper

if TYPE_CHECKING:
    from dataloader.workers.epoch import Epoch
    from dataloader.workers.lanes import Lanes
    from dataloader.workers.pool import Pool

__all__ = ["Worker"]


class Worker:
    """One worker thread.

    Args:
        pool: whose epochs it serves.
        index: its id, and the number of its seat in every epoch.
        lanes: threads that fetch samples of one batch beside it, or None.
        only: the one epoch that it serves, for a reinforcement.
    """

    def __init__(
        self,
        pool: Pool,
        index: int,
        lanes: Lanes | None,
        only: weakref.ref[Epoch] | None = None,
    ) -> None:
        self.index = index
        self.lanes = lanes
        self.sleeper: Sleeper = Sleeper()
        self._pool = pool
        self._only = only
        self.thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """The worker in words."""
        return f"worker {self.index} (thread)"

    @property
    def ident(self) -> int | None:
        """The thread's identifier."""
        return None if self.thread is None else self.thread.ident

    def is_alive(self) -> bool:
        """Whether the thread runs, or is about to."""
        return self.thread is None or self.thread.is_alive()

    def run(self) -> None:
        """Serve epochs until the pool is closed (the thread's main function)."""
        pool = self._pool
        turn = 0
        while not pool.is_closing:
            turn += 1
            epoch = self._find(turn)
            if epoch is not None:
                epoch.serve(self, pool)
                del epoch
            elif self._only is not None and self._is_released():
                return
            else:
                self._rest()

    def _find(self, turn: int) -> Epoch | None:
        """Return an epoch that wants this worker; ``turn`` varies which comes first."""
        refs = self._pool.epochs if self._only is None else [self._only]
        for offset in range(len(refs)):
            epoch = refs[(turn + offset) % len(refs)]()
            if epoch is not None and epoch.wants(self.index):
                return epoch
        return None

    def _spin(self) -> bool:
        """Look for work a little longer; return whether there is some.

        Being woken costs more than a batch, so one worker of the pool stays at hand.
        """
        pool = self._pool
        if pool.policy.cost_s > SPIN_BELOW_S or not pool.may_spin:
            return False
        try:
            del pool.spinner[0]
        except KeyError:
            return False
        try:
            for _ in range(SPINS):
                sched_yield()
                if self._find(0) is not None:
                    return True
            return False
        finally:
            pool.spinner[0] = None

    def _is_released(self) -> bool:
        assert self._only is not None
        epoch = self._only()
        return epoch is None or epoch.over

    def _rest(self) -> None:
        """Sleep until there may be something to do."""
        if self._only is not None:
            self.sleeper.sleep()
            return
        pool = self._pool
        pool.held_up.pop(self.index, None)
        if self._spin():
            return
        sleeping = pool.sleeping
        sleeping.append(self.sleeper.release)
        # Look again after the announcement, or a ticket that came in between is missed.
        if self._find(0) is None and not pool.is_closing:
            self.sleeper.sleep()
        # Not there: whoever woke it has taken it off the list.
        with contextlib.suppress(ValueError):
            sleeping.remove(self.sleeper.release)

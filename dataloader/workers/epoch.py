"""One epoch, as its consumer and the workers share it.

    consumer                                worker thread
    --------                                -------------
    dispatch(ticket)                        sit down on the seat of its index
      append to a queue                     claim tickets and load them until the queue
    ...                                     is empty; leave the seat

Guards: `seats` says how nobody sits on a seat that is taken; queues are deques, whose
single operations are atomic; `over` is set once.

Shutdown: `end` empties the queues; workers turn away after the batch that they are at.
"""

from __future__ import annotations

import contextvars
import os
import time
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from dataloader.workers.base import EpochPlan
from dataloader.workers.reorder import Arrivals, Delivery, InOrder, Ticket
from dataloader.workers.seat import Seat
from dataloader.workers.sleeper import Sleeper

if TYPE_CHECKING:
    from dataloader.workers.pool import Pool
    from dataloader.workers.worker import Worker

__all__ = ["Epoch", "WorkerHandle"]


class Epoch:
    """One epoch, as its consumer and the workers share it.

    Args:
        plan: what to load.
        seats: one for each worker.

    Attributes:
        queues: for each worker the tickets that it may claim; with an indexed dataset
            one deque for all.
        over: no ticket is of interest any more.
        served: a worker has loaded something for it.
    """

    def __init__(self, plan: EpochPlan, seats: list[Seat]) -> None:
        self.plan = plan
        self.seats = seats
        self.delivery: Delivery = InOrder() if plan.in_order else Arrivals()
        self.over: bool = False
        self.served: bool = False
        self.number = -1
        self.reinforcements: list[Worker] = []
        self.queues: list[deque[Ticket]]
        if plan.iterable:
            self.queues = [deque() for _ in seats]
        else:
            self.queues = [deque()] * len(seats)
        # A worker_init_fn is called in every worker, also in one that gets no batch.
        self._all_attend = plan.worker_init_fn is not None
        self.attendance: Sleeper = Sleeper()
        context = contextvars.copy_context()
        self._contexts = [context.copy() for _ in seats]

    def wants(self, index: int) -> bool:
        """Whether worker ``index`` has something to do here."""
        seat = self.seats[index]
        if self.over or not seat.vacant:
            return False
        # Something ahead: a lane was still inside a job that its worker had to leave.
        if self.queues[index] or seat.ahead:
            return True
        return self._all_attend and not seat.is_prepared_for(self.plan)

    def absent(self) -> list[int]:
        """Return the workers that have to attend and have not yet."""
        if not self._all_attend or self.over:
            return []
        return [s.index for s in self.seats if not s.is_prepared_for(self.plan)]

    def serve(self, worker: Worker, pool: Pool) -> None:
        """Load what is queued for a worker, in its thread and the epoch's context.

        Args:
            worker: the thread.
            pool: whose epochs the worker serves in turn.
        """
        seat = self.seats[worker.index]
        if not seat.occupy(worker):
            return
        try:
            context = self._contexts[worker.index]
            context.run(self._serve, worker, seat, pool)
        finally:
            if self.over:
                seat.forget_ahead()
            seat.occupant = None
            seat.vacant[0] = None

    def _serve(self, worker: Worker, seat: Seat, pool: Pool) -> None:
        self.served = True
        if not seat.is_prepared_for(self.plan):
            seat.prepare(self.plan, worker.lanes, pool.policy)
            self.attendance.wake()
        queue = self.queues[seat.index]
        seat.look_ahead(partial(_claim_alone, queue, worker, pool))
        while not self.over:
            # What lanes began with may have been claimed for who sat here before.
            ticket = _claim(seat.ahead, worker) if seat.ahead else None
            ticket = ticket or _claim(queue, worker)
            if ticket is None:
                return
            self.delivery.finish(ticket, seat.load(ticket))
            if pool.is_shared() and not seat.ahead:
                return

    def end(self) -> None:
        """Let the workers turn away from it; what they still load is dropped."""
        self.over = True
        # The consumer may be on the short way, where it does not look for `over`.
        self.plan.feed.slot.short_mark = -1
        for queue in self.queues:
            queue.clear()
        self.delivery.wake()
        for worker in self.reinforcements:
            worker.sleeper.wake()


def _claim(queue: deque[Ticket], worker: Worker) -> Ticket | None:
    """Claim the next ticket for a worker, None if there is none."""
    try:
        # A for statement, since nothing can strike between its claim and the next line:
        # a ticket that was claimed always says by whom, and is missed if that thread
        # dies.
        for ticket in iter(queue.popleft, None):
            ticket.worker = worker
            return ticket
    except IndexError:
        pass
    return None


def _claim_alone(queue: deque[Ticket], worker: Worker, pool: Pool) -> Ticket | None:
    """Claim a ticket ahead of time, unless other epochs wait for their turn."""
    return None if pool.is_shared() else _claim(queue, worker)


class WorkerHandle:
    """A worker of one epoch, with the members that PyTorch's processes have."""

    def __init__(self, epoch: Epoch, seat: Seat) -> None:
        # Weakly, as the epoch ends when its iterator is dropped.
        self._epoch = weakref.ref(epoch)
        self._seat = seat

    def is_alive(self) -> bool:
        """Whether the worker may still load something for the epoch."""
        epoch = self._epoch()
        is_over = epoch is None or epoch.over
        return not (is_over and self._seat.vacant)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the worker has left the epoch, at most ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (deadline is None or time.monotonic() < deadline):
            time.sleep(0.001)

    @property
    def pid(self) -> int:
        """The process that the worker runs in: this one."""
        return os.getpid()

    @property
    def exitcode(self) -> int | None:
        """0 once the worker has left the epoch, None before."""
        return None if self.is_alive() else 0

    def terminate(self) -> None:
        """End the epoch; a thread cannot be stopped inside a sample."""
        epoch = self._epoch()
        if epoch is not None:
            epoch.end()

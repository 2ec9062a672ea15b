"""The worker threads of a loader, made once and used by every epoch.

    consumer                                worker thread
    --------                                -------------
    epoch = Epoch(...); pool.enter(epoch)   find an epoch that has something to do
    epoch.dispatch(ticket)                  sit down on the seat of its index there
      append to a queue, wake a sleeper     claim tickets and load them until the queue
    ...                                     is empty; leave the seat pool.leave(epoch)
    nothing to do: announce it, look again, sleep

A worker serves every live epoch of the loader in turn. Idle workers refer to no epoch
but weakly. If an epoch waits for a batch that nobody can take, because all workers are
inside samples of other epochs that take long, `reinforce` gives it threads of its own
until it is over: two live iterators never block each other, nor does one that was
abandoned.

Guards: threads are started by `_starter`, one call at a time, which alone changes
`_workers` and `_extra`; they are read by all. A worker is in them before it runs.
`_epochs` and `held_up` are dictionaries and `sleeping` is a deque, whose single
operations are atomic. An epoch's queues are deques too; `over` and `is_closing` are set
once.

Shutdown: `close` says so to all epochs, wakes all threads and waits a bounded time for
them. Threads are daemons: one that is stuck in a sample does not hold up the
interpreter's exit.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import itertools
import operator
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from dataloader._guard import FORKS
from dataloader.errors import ClosedError, WorkerDiedError
from dataloader.workers.base import EMPTY, EpochPlan, Failure
from dataloader.workers.lanes import Lanes
from dataloader.workers.policy import (
    SPIN_BELOW_S,
    SPINS,
    Policy,
    is_gil_enabled,
    sched_yield,
)
from dataloader.workers.reorder import Arrivals, Delivery, InOrder, Ticket
from dataloader.workers.seat import Seat
from dataloader.workers.sleeper import Sleeper
from dataloader.workers.starting import Starter, start_thread

__all__ = ["Epoch", "Pool", "Worker"]

JOIN_S = 0.5
"""Longest that closing a loader waits for its threads, all together."""


class Epoch:
    """One epoch, as its consumer and the workers share it.

    Args:
        plan: what to load.
        seats: one for each worker.

    Attributes:
        queues: for each worker the tickets that it may claim; with an indexed dataset
        one
            deque for all.
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
            ticket = seat.taken_ahead(worker) or _claim(queue, worker)
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

    def start(self) -> None:
        """Start the thread."""
        self.thread = start_thread(self._run, f"dataloader-{self.index}")

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

    def _run(self) -> None:
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


class Pool:
    """The threads of one loader. Holds nothing of the user's.

    Args:
        size: number of workers.
        lanes: threads that each worker has beside it for the samples of one batch.
        policy: what batches cost, and so when to wake whom.
    """

    def __init__(self, size: int, lanes: int, policy: Policy) -> None:
        self.size = size
        self.policy = policy
        # The right to spin: whoever deletes the key has it.
        self.spinner: dict[int, None] = {0: None}
        # Where threads take turns, spinning keeps the others from theirs.
        self.may_spin: bool = not is_gil_enabled()
        self.fork_mark: int = FORKS.count
        # Kept for `close`, which a finaliser may call when the modules' names are gone.
        self._is_finalizing = sys.is_finalizing
        self.is_closing: bool = False
        # What wakes each worker that sleeps, the last to lie down at the end.
        self.sleeping: deque[Callable[[], None]] = deque()
        # Indices of workers that neither sleep nor come, until they look for work.
        self.held_up: dict[int, None] = {}
        self._starter = Starter(self._fail)
        self._is_started = False
        # A dictionary, whose single operations are atomic, and no lock: `leave` may be
        # called by the garbage collector in a thread that holds one.
        self._epochs: dict[int, weakref.ref[Epoch]] = {}
        self._numbers = itertools.count()
        # All that there will be, so that who wakes them misses none that starts later.
        self._workers = [
            Worker(self, index, Lanes(lanes) if lanes else None)
            for index in range(size)
        ]
        self._extra: list[Worker] = []
        self._lane_threads: list[threading.Thread] = []
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Start the threads, in the background; nothing if that was done before."""
        if not self._is_started:
            atexit.unregister(self.close)
            atexit.register(self.close)
            self._starter.call(self._start)
            # If Ctrl-C comes before this, the next call starts what is missing.
            self._is_started = True

    def _start(self) -> None:
        for worker in self._workers:
            if worker.thread is None and not self.is_closing:
                self._start_lanes(worker)
                worker.start()

    def _start_lanes(self, worker: Worker) -> None:
        def start(number: int, run: Callable[[], None]) -> None:
            name = f"dataloader-{worker.index}.{number + 1}"
            self._lane_threads.append(start_thread(run, name))

        if worker.lanes is not None:
            worker.lanes.start(start)

    def _fail(self, error: BaseException) -> None:
        """End all epochs, since a thread cannot be started."""
        self._failure = error
        self.close(0)

    def closed_error(self) -> ClosedError:
        """Return the error of an epoch that its consumer did not end."""
        if self._failure is None:
            return ClosedError()
        return ClosedError.for_want_of_threads(self._failure)

    @property
    def epochs(self) -> list[weakref.ref[Epoch]]:
        """The live epochs."""
        # list() of a dictionary's values is atomic, unlike tuple() of them.
        return list(self._epochs.values())

    def is_shared(self) -> bool:
        """Whether more than one epoch is live."""
        return len(self._epochs) > 1

    def enter(self, epoch: Epoch) -> None:
        """Let the workers serve an epoch."""
        for number, ref in list(self._epochs.items()):
            if ref() is None:
                self._epochs.pop(number, None)
        epoch.number = next(self._numbers)
        self._epochs[epoch.number] = weakref.ref(epoch)
        # Look again after the announcement: `close` may have looked before it.
        if self.is_closing:
            epoch.end()
        if epoch.plan.worker_init_fn is not None:
            self.wake_all()

    def leave(self, epoch: Epoch) -> None:
        """Forget an epoch that is over.

        All sleepers are woken if it was theirs, so that memory that they own and the
        consumer dropped comes back at once.
        """
        self._epochs.pop(epoch.number, None)
        if epoch.served:
            self.wake_all()

    def announce(self, epoch: Epoch, index: int | None) -> None:
        """Let the workers know of a new ticket: ``index``, or whoever is free.

        A worker that is awake looks for tickets by itself, so one is woken only if
        that pays.
        """
        if index is not None:
            self._workers[index].sleeper.wake()
        elif self.sleeping and self.policy.wants_worker(self.awake):
            self._wake_one()
        for worker in epoch.reinforcements:
            worker.sleeper.wake()

    @property
    def awake(self) -> int:
        """Number of workers that do not sleep and are not held up.

        A worker that is about to lie down may count as both, until it lies down again;
        so the number may be less than 0.
        """
        return self.size - len(self.sleeping) - len(self.held_up)

    def support(self, count: int) -> None:
        """Wake up to ``count`` workers for a consumer that lacks its batch."""
        while count > 0 and self.sleeping and self.policy.allows_worker(self.awake):
            self._wake_one()
            count -= 1

    def relieve(self) -> None:
        """Wake a sleeper in place of the workers that are awake and do not come.

        They are inside samples that take long, maybe of an epoch that was abandoned,
        and do not count as awake until they are back.
        """
        asleep = set(self.sleeping.copy())
        for worker in self._workers:
            if worker.sleeper.release not in asleep:
                self.held_up[worker.index] = None
        self._wake_one()

    def _wake_one(self) -> None:
        """Wake the worker that lay down last, if any sleeps."""
        try:  # noqa: SIM105  (a context manager would cost more than the rest)
            # Taken off the list and woken within one call of C: if Ctrl-C came in
            # between, the worker would sleep on and nobody would know.
            next(map(operator.call, iter(self.sleeping.pop, None)))
        except IndexError:
            pass  # nobody sleeps

    def wake_all(self) -> None:
        """Wake every worker, whether it sleeps or is about to."""
        for worker in [*self._workers, *self._extra]:
            worker.sleeper.wake()

    def tend(self, epoch: Epoch, due: Ticket | None, is_starving: bool) -> None:
        """See to an epoch whose consumer waits for long.

        Args:
            epoch: the epoch.
            due: the ticket that it waits for; None if it waits for workers to attend.
            is_starving: it has waited before, so waking sleepers did not help.
        """
        for seat in epoch.seats:
            seat.reclaim()
        if due is not None:
            self._replace_lost(epoch, due)
        if not all(worker.is_alive() for worker in self._workers):
            self._starter.call(self._revive)
        if due is None or due.worker is None:
            self.wake_all()
            if is_starving:
                wanted = epoch.absent() if due is None else _lanes_of(due, self.size)
                self._starter.call(self._reinforce, epoch, wanted)

    def _replace_lost(self, epoch: Epoch, due: Ticket) -> None:
        """Put an error in the place of a batch that died with its worker."""
        worker = due.worker
        if worker is not None and not worker.is_alive() and due.result is EMPTY:
            error = WorkerDiedError.during(worker.name, due.number, due.indices)
            epoch.delivery.finish(due, Failure(error))

    def _revive(self) -> None:
        """Replace threads that ended though nobody asked them to."""
        for index, worker in enumerate(self._workers):
            if not worker.is_alive() and not self.is_closing:
                self._workers[index] = Worker(self, index, worker.lanes)
                self._workers[index].start()

    def _reinforce(self, epoch: Epoch, wanted: Iterable[int]) -> None:
        """Give an epoch threads of its own for the seats on which nobody sits.

        Their regular workers are inside a sample of another epoch.
        """
        self._extra = [worker for worker in self._extra if worker.is_alive()]
        taken = {w.index for w in epoch.reinforcements if w.is_alive()}
        for index in wanted:
            if self.is_closing or epoch.over:
                return
            if index not in taken and epoch.seats[index].vacant:
                worker = Worker(self, index, None, weakref.ref(epoch))
                self._extra.append(worker)
                epoch.reinforcements.append(worker)
                worker.start()

    def close(self, join_s: float = JOIN_S) -> None:
        """End all epochs and threads, and wait for them at most ``join_s`` in all."""
        if self._is_finalizing() or self.fork_mark != FORKS.count:
            return
        self.is_closing = True
        for ref in self.epochs:
            epoch = ref()
            if epoch is not None:
                epoch.end()
        self.wake_all()
        for worker in self._workers:
            if worker.lanes is not None:
                worker.lanes.close()
        atexit.unregister(self.close)
        if join_s > 0:
            self._join(time.monotonic() + join_s)

    def _join(self, deadline: float) -> None:
        self._starter.wait(deadline)
        workers = [w.thread for w in [*self._workers, *self._extra]]
        for thread in [*workers, *self._lane_threads]:
            if thread is not None and thread is not threading.current_thread():
                # The interpreter may be past the point where threads can be joined.
                with contextlib.suppress(RuntimeError):
                    thread.join(max(deadline - time.monotonic(), 0))


def _lanes_of(ticket: Ticket, size: int) -> Iterable[int]:
    return range(size) if ticket.lane is None else (ticket.lane,)

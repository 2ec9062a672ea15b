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
import itertools
import operator
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable

from dataloader._guard import FORKS
from dataloader.errors import ClosedError, WorkerDiedError
from dataloader.workers.base import EMPTY, Failure
from dataloader.workers.epoch import Epoch
from dataloader.workers.lanes import Lanes
from dataloader.workers.policy import Policy, is_gil_enabled
from dataloader.workers.reorder import Ticket
from dataloader.workers.starting import Starter, start_thread
from dataloader.workers.worker import Worker

__all__ = ["Pool"]

JOIN_S = 0.5
"""Longest that closing a loader waits for its threads, all together."""


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
                _start_worker(worker)

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
        try:
            asleep = set(self.sleeping)
        except RuntimeError:
            return  # one has lain down or been woken just now
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
                _start_worker(self._workers[index])

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
                _start_worker(worker)

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


def _start_worker(worker: Worker) -> None:
    worker.thread = start_thread(worker.run, f"dataloader-{worker.index}")

"""Batches that worker threads load, handed to the one thread that calls ``next()``.

The consumer advances the sampler, one index batch for each free place of the window,
and takes finished batches out of a `Delivery`; `pool.Pool` has the picture. An indexed
dataset is served by whichever worker is free, so a slow batch never holds up the
others; the batches of an iterable dataset are dealt to the workers in a fixed cycle, as
in PyTorch, because each worker has an iterator of its own.

Interrupts: see `reorder` and `feed`; a batch that was not handed over is still there.

Guards: all fields belong to the thread inside ``next()``.

Shutdown: exhausting, closing or dropping the iterator ends its epoch; nothing is
joined.
"""

from __future__ import annotations

import dataclasses
import os
import time
import weakref
from typing import Any, NoReturn

from dataloader._guard import FORKS
from dataloader._torch import install_worker_hooks
from dataloader.errors import (
    ConcurrentNextError,
    ForkedIteratorError,
    WorkerTimeoutError,
)
from dataloader.fetch import END
from dataloader.stats import NOT_COUNTED, OCCUPANCY_EVERY
from dataloader.worker_info import Task
from dataloader.workers import watchdog
from dataloader.workers.base import BatchIterator, EpochPlan, Failure
from dataloader.workers.helping import HelpingIterator
from dataloader.workers.memory import keep_freed_memory
from dataloader.workers.policy import Policy
from dataloader.workers.pool import Epoch, Pool
from dataloader.workers.reorder import WAIT_SLICE_S, Ticket
from dataloader.workers.seat import Seat

__all__ = ["ThreadBackend", "ThreadIterator"]

PATIENCE_S = 0.001
"""How long a batch may wait for a worker that is awake while others sleep. The next
time twice as long, so that a wait which this does not help is not a busy one."""


class ThreadIterator(HelpingIterator):
    """Iterator over the batches of one epoch, loaded by the pool's threads.

    The consumer's thread loads too where that is cheaper than waiting, see `helping`.

    Args:
        plan: what to load.
        backend: kept alive, and with it the threads, as long as the iterator lives.
        pool: the threads.
    """

    __slots__ = (
        "_active",
        "_backend",
        "_exhausted",
        "_sampler_error",
        "_seats",
        "_snapshot",
        "_wait_s",
    )

    def __init__(self, plan: EpochPlan, backend: ThreadBackend, pool: Pool) -> None:
        self._backend = backend
        self._seats = [Seat(index, plan.times_set) for index in range(pool.size)]
        self._snapshot = plan.snapshot
        self._wait_s = 0.0
        super().__init__(plan, pool)

    def _begin(self, plan: EpochPlan) -> None:
        super()._begin(plan)
        self._active = list(range(self._pool.size)) if plan.iterable else []
        self._is_sealed = False
        self._exhausted = False
        self._sampler_error: Exception | None = None
        self._epoch = Epoch(plan, self._seats)
        self._delivery = self._epoch.delivery
        self._pool.enter(self._epoch)
        # The sampler is asked in any case: it may draw its order from a generator.
        if not (self._may_be_inline() and self._peek() and self._enter_inline()):
            self._top_up(plan.window)

    def restart(self, plan: EpochPlan) -> None:
        """Become the iterator of another epoch, with the same seats.

        Raises:
            ConcurrentNextError: another thread is in ``next()``.
        """
        try:
            del self._free[0]
        except KeyError:
            raise ConcurrentNextError from None
        try:
            self._arrive()
            if not self._epoch.over:
                self.end()
            if self._is_inline:
                self._leave_inline()
            # A worker that comes late takes the dataset that the others have taken.
            self._begin(dataclasses.replace(plan, snapshot=self._snapshot))
        finally:
            self._free[0] = None

    def _next(self) -> Any:
        if self._fork_mark != FORKS.count:
            raise ForkedIteratorError
        if self._exhausted:
            raise StopIteration
        if self._epoch.over:
            self.end()
            raise self._pool.closed_error()
        if self._is_inline:
            if self._may_be_inline():
                return self._load_inline()
            self._leave_inline()
        return self._take()

    def _take(self) -> Any:
        """Return the next batch that was handed over."""
        while True:
            # Not with a sampler's error that is due, nor after the last batch.
            is_between = self._delivery.outstanding == 0 and not self._is_sealed
            if is_between and self._enter_inline():
                return self._load_inline()
            self._wait_s = 0.0
            ticket = self._next_ticket()
            result = ticket.result
            if result is END:
                self._retire(ticket)
                continue
            if self._plan.len_called is not None:
                self._warn_if_longer()
            self._record(ticket)
            if not self._may_be_inline():
                # One more than the window: the batch that is handed over leaves it.
                self._top_up(self._plan.window + 1)
            error = result.exception() if isinstance(result, Failure) else None
            # From here to the end nothing may be interrupted by Ctrl-C: no calls.
            self._delivery.drop_head()
            self._yielded += 1
            worker = ticket.worker
            if worker is None or self._plan.num_workers == 0:
                self._tally.handed += 1
            else:
                self._tally.by_worker[worker.index] += 1
            if error is None:
                return result
            try:
                raise error
            finally:
                # Its traceback refers to this frame.
                del error, result, ticket

    def _record(self, ticket: Ticket) -> None:
        """Take down what a batch cost, and now and then how full the window is."""
        self._policy.note(ticket.cost_s)
        ready = NOT_COUNTED
        if ticket.number % OCCUPANCY_EVERY == 0:
            ready = self._delivery.ready() if self._wait_s == 0 else 0
        fetch_s = ticket.cost_s - ticket.collate_s
        self._tally.add(self._wait_s, fetch_s, ticket.collate_s, ready)

    def _next_ticket(self) -> Ticket:
        """Return the next ticket whose result is there."""
        if self._delivery.outstanding == 0:
            self._top_up(max(self._plan.window, 1))
            if self._delivery.outstanding == 0:
                self._finish()
        ticket = self._delivery.head()
        if ticket is None:
            started = time.perf_counter()
            ticket = self._await()
            self._wait_s = time.perf_counter() - started
        return ticket

    def _finish(self) -> NoReturn:
        """Raise the sampler's error that is due, or end the epoch."""
        error, self._sampler_error = self._sampler_error, None
        if error is not None:
            self._is_sealed = False
            try:
                raise error
            finally:
                # Its traceback refers to this frame.
                del error
        self._await_attendance()
        self._exhausted = True
        self.end()
        raise StopIteration

    def _await_attendance(self) -> None:
        """Let ``worker_init_fn`` run in every worker before the epoch ends."""
        slices = 0
        while self._epoch.absent():
            self._epoch.attendance.sleep(WAIT_SLICE_S)
            slices += 1
            if slices % 2 == 0:
                self._pool.tend(self._epoch, None, is_starving=slices > 2)

    def _await(self) -> Ticket:
        """Help or sleep until a result is there."""
        started = time.monotonic()
        patience_s = PATIENCE_S
        slices = 0
        due = self._delivery.due()
        if due.lane is not None and due.worker is None:
            # Ctrl-C may have come between its dispatch and the waking of a worker.
            self._pool.announce(self._epoch, due.lane)
        while True:
            ticket = None
            if self._may_load():
                ticket = self._help()
            elif self._claimed:
                self._give_back()
            if ticket is not None:
                return ticket
            self._pool.support(len(self._epoch.queues[0]))
            is_short = patience_s < WAIT_SLICE_S and self._lacks_worker()
            left = patience_s if is_short else WAIT_SLICE_S
            if self._plan.timeout_s > 0:
                left = min(left, started + self._plan.timeout_s - time.monotonic())
            ticket = self._delivery.wait(max(left, 0))
            if ticket is not None:
                return ticket
            self._check_wait(started)
            if is_short:
                patience_s *= 2
                self._pool.relieve()
                continue
            slices += 1
            if slices % 2 == 0:
                due = self._delivery.due()
                self._pool.tend(self._epoch, due, is_starving=slices > 2)

    def _check_wait(self, started: float) -> None:
        """Raise what ends a wait that began at a moment of ``time.monotonic()``."""
        if self._epoch.over:
            raise self._pool.closed_error()
        timeout_s = self._plan.timeout_s
        if timeout_s > 0 and time.monotonic() - started >= timeout_s:
            due = self._delivery.due()
            text = watchdog.report(due)
            raise WorkerTimeoutError.after(timeout_s, due.number, text)

    def _lacks_worker(self) -> bool:
        """Whether a batch is unclaimed though there are sleepers who could load it."""
        if not self._pool.sleeping or self._plan.iterable:
            return False
        return bool(self._epoch.queues[0])

    def _retire(self, ticket: Ticket) -> None:
        """Take a worker whose iterable dataset is exhausted out of the cycle."""
        if ticket.lane in self._active:
            self._active.remove(ticket.lane)
        self._delivery.drop_head()
        self._is_sealed = not self._active
        self._top_up(self._plan.window)

    def _top_up(self, limit: int) -> None:
        """Dispatch index batches until ``limit`` are outstanding."""
        while self._delivery.outstanding < limit:
            task = self._peek()
            if task is None:
                return
            number, start, indices = task
            ticket = Ticket(number, start, indices, self._next_lane())
            queue = self._epoch.queues[ticket.lane or 0]
            self._delivery.dispatch(ticket, self._feed, queue)
            self._pool.announce(self._epoch, ticket.lane)

    def _peek(self) -> Task | None:
        """Return the next index batch without taking it, None if there is none."""
        if self._is_sealed:
            return None
        try:
            return self._feed.peek()
        except StopIteration:
            self._is_sealed = True
        except Exception as error:
            # Raised where its batch is due: those before it come first.
            self._sampler_error = error
            self._is_sealed = True
        return None

    def _next_lane(self) -> int | None:
        """Return the worker whose turn it is, None if any may take the batch."""
        if not self._plan.iterable:
            return None
        active = self._active
        if not self._plan.in_order:
            # As in PyTorch: a slow worker must not fill the window with its batches.
            unfinished = self._delivery.unfinished_by_lane()
            share = -(-self._plan.window // len(active))
            active = [i for i in active if unfinished[i] < share]
        last = self._delivery.last.lane
        later = (i for i in active if last is None or i > last)
        return next(later, active[0])

    def end(self) -> None:
        """End the epoch: workers turn away from it and its memory comes back."""
        epoch = self._epoch
        epoch.end()
        if self._is_inline:
            self._leave_inline()
        self._claimed = []
        self._delivery.clear()
        self._pool.leave(epoch)

    def __del__(self) -> None:
        # Without an epoch: the constructor raised. In a forked child: not our threads.
        epoch = getattr(self, "_epoch", None)
        if epoch is None or epoch.over or self._is_finalizing():
            return
        if self._fork_mark == self._forks.count:
            self.end()

    @property
    def _workers(self) -> list[WorkerHandle]:
        """The epoch's workers, with the members of PyTorch's that are looked at."""
        epoch = weakref.ref(self._epoch)
        return [WorkerHandle(epoch, seat) for seat in self._seats]


class WorkerHandle:
    """A worker of one epoch, with the members that PyTorch's processes have."""

    def __init__(self, epoch: weakref.ref[Epoch], seat: Seat) -> None:
        self._epoch = epoch
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


class ThreadBackend:
    """Satisfies `Backend` with the threads of one `Pool`, made at the first epoch.

    Args:
        workers: number of workers.
        items_in_parallel: samples of one batch that are fetched at once.
        iterator: class of its iterators.
    """

    def __init__(
        self,
        workers: int,
        items_in_parallel: int,
        iterator: type[ThreadIterator] = ThreadIterator,
    ) -> None:
        self._size = workers
        self._lanes = items_in_parallel - 1
        # Outlives the pool, which close() ends.
        self._policy = Policy()
        self._iterator = iterator
        self._pool: Pool | None = None
        self._finalizer: weakref.finalize[[], ThreadBackend] | None = None

    def start(self, plan: EpochPlan, previous: BatchIterator | None) -> BatchIterator:
        """Return the iterator of an epoch, whose first batches are being loaded."""
        install_worker_hooks()
        keep_freed_memory()
        pool = self._living_pool()
        pool.start()
        if isinstance(previous, ThreadIterator) and previous._pool is pool:
            previous.restart(plan)
            return previous
        return self._iterator(plan, self, pool)

    def _living_pool(self) -> Pool:
        pool = self._pool
        if pool is None or pool.is_closing or pool.fork_mark != FORKS.count:
            if self._finalizer is not None:
                self._finalizer.detach()
            pool = Pool(self._size, self._lanes, self._policy)
            # Not joined: this may run in one of the pool's own threads. Made before the
            # pool has threads, so that none is left without somebody to end it.
            self._finalizer = weakref.finalize(self, pool.close, 0)
            self._finalizer.atexit = False
            self._pool = pool
        return pool

    def close(self) -> None:
        """End all epochs and threads, within a bounded time."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

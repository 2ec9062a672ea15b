"""items_in_parallel: the samples of one batch, fetched at once by several threads.

    worker                              lane threads of this worker
    ------                              ---------------------------
    job = _Job(task)
    offer the job to each lane  ---->   enter the job, unless it is over
    claim positions, fetch              claim positions, fetch
    whoever finds no position left claims the next batch and offers it to the lanes
    close the job, wait for lanes  <--  leave the job
    that are inside it
    raise the first error by position, or collate

An offer is only an offer: a lane that is late finds the job closed, and the worker
fetches on its own what nobody else claims. So a lane that is stuck in one epoch never
holds up another. The next batch is begun before the last samples of this one have come,
so that as many requests as there are threads stay under way.

Guards: positions are claimed by ``next()`` on an ``itertools.count``, which is atomic;
each result slot is written by the one that claimed it; `_Job.enter` says how nobody
stays in a closed job unseen. A lane's dataset copies are touched by that lane's thread
only.

Shutdown: `close` ends the lane threads after the item they are in.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dataloader._fast import local
from dataloader.errors import WorkerDiedError
from dataloader.fetch import Collate, explain_stop
from dataloader.replicate import make_snapshot, set_epoch
from dataloader.worker_info import COLLATE, SINGLE, Scope, Task, WorkerRng
from dataloader.workers.base import EMPTY
from dataloader.workers.sleeper import Sleeper

if TYPE_CHECKING:
    from dataloader.workers.reorder import Ticket

__all__ = ["Lanes", "Team"]

_WAIT_S = 0.1
"""Longest that a worker waits for its lanes before it looks whether they are alive."""


class _Job:
    """One batch that several threads fetch together."""

    def __init__(self, team: Team, task: Task, ahead: _Ahead) -> None:
        self.team = team
        self.task = task
        self.ahead = ahead
        self.results: list[Any] = [EMPTY] * len(task[2])
        self.errors: dict[int, BaseException] = {}
        self._positions = itertools.count()
        # The right to look ahead, for whoever is the first to delete it.
        self.right: dict[int, None] = {0: None}
        self._inside: dict[_Lane, None] = {}
        self._closed = False
        self._left = Sleeper()

    def enter(self, lane: _Lane) -> bool:
        """Let a lane take part in the job; False if it is over."""
        # Whoever comes last, the lane that enters or the worker that closes, sees the
        # other: each makes its mark and then looks.
        self._inside[lane] = None
        if not self._closed:
            return True
        self.leave(lane)
        return False

    def leave(self, lane: _Lane) -> None:
        """End a lane's part."""
        self._inside.pop(lane, None)
        self._left.wake()

    def close(self) -> None:
        """Let nobody in any more and wait for those inside."""
        self._closed = True
        while self._inside:
            self._left.sleep(_WAIT_S)
            for lane in list(self._inside):
                if not lane.is_alive():
                    name = f"lane {lane.number} (thread)"
                    error = WorkerDiedError.during(name, self.task[0], self.task[2])
                    self.errors[-1] = error
                    self._inside.pop(lane, None)

    def work(self, part: _Part) -> None:
        """Claim positions and fetch them until there is none left or one failed."""
        scope = part.scope
        outer = local.scope
        local.scope = scope
        scope.is_active = True
        scope.cursor = SINGLE
        number, start, indices = self.task
        try:
            for position in self._positions:
                if position >= len(indices) or self.errors:
                    self.team.begin_next(self)
                    return
                scope.task = (number, start + position, indices)
                self._fetch(part.dataset, position)
        finally:
            scope.is_active = False
            local.scope = outer

    def _fetch(self, dataset: Any, position: int) -> None:
        try:
            self.results[position] = dataset[self.task[2][position]]
        except BaseException as error:
            self.errors[position] = error

    def help(self, lane: _Lane) -> None:
        """Do a lane's part of the job, if it is not over (in the lane's thread)."""
        if not self.enter(lane):
            return
        try:
            part = self.team.part(lane.number)
            part.context.run(self.work, part)
        except BaseException as error:
            # Before all positions: no batch without every lane.
            self.errors[-1] = error
        finally:
            self.leave(lane)

    def samples(self) -> list[Any]:
        """Return the samples in order, or raise the first error by position.

        Positions are claimed in order, so those before a failed one were all claimed
        and have all ended.
        """
        errors, self.errors = self.errors, {}
        if errors:
            try:
                raise errors[min(errors)]
            finally:
                # The exception's traceback refers to this frame.
                del errors
        return self.results


class _Ahead:
    """What lanes begin ahead of time for a worker in one epoch.

    A lane that is late goes on with that of its job, whoever comes after them.

    Args:
        claim: claims the next ticket, or returns None.

    Attributes:
        tickets: those that were claimed.
        begun: the job of each, by the number of its batch.
    """

    def __init__(self, claim: Callable[[], Ticket | None]) -> None:
        self.claim = claim
        self.tickets: deque[Ticket] = deque()
        self.begun: dict[int, _Job] = {}


class _Part:
    """What one lane uses for one worker's dataset: a copy of it, a scope, a context."""

    def __init__(
        self, dataset: Any, scope: Scope, context: contextvars.Context
    ) -> None:
        self.dataset = dataset
        self.scope = scope
        self.context = context
        scope.by_item = True
        # Which call of `Team.set_epoch` the dataset was told of last.
        self.told = 0


class Team:
    """A worker and its lanes at work on the worker's dataset.

    Belongs to the worker's seat, so that idle lanes refer to nothing of the user's.

    Args:
        lanes: the lane threads.
        dataset: the worker's own dataset.
        mode: how the lanes copy it, see ``replicate``.
        scope: the worker's place in the epoch.
    """

    def __init__(
        self,
        lanes: Lanes,
        dataset: Any,
        mode: str,
        scope: Scope,
    ) -> None:
        self._ahead = _Ahead(lambda: None)
        self._lanes = lanes
        self._worker = _Part(dataset, scope, contextvars.copy_context())
        self._snapshot = make_snapshot(dataset, mode)
        self._mode = mode
        self._epoch = 0
        self._times_set = 0
        self._parts: list[_Part | None] = [None] * lanes.count

    def set_epoch(self, epoch: int) -> None:
        """Let the lanes tell their copies of the dataset the epoch."""
        if self._mode != "none":
            self._epoch = epoch
            self._times_set += 1

    def part(self, number: int) -> _Part:
        """Return the part of lane ``number``, made at its first use (in its thread)."""
        part = self._parts[number]
        if part is None:
            part = self._parts[number] = self._make_part()
        if part.told != self._times_set:
            part.told = self._times_set
            set_epoch(part.dataset, self._epoch)
        worker = self._worker.scope
        part.scope.begin(worker.seed, worker.epoch)
        return part

    def _make_part(self) -> _Part:
        worker = self._worker.scope
        scope = Scope(worker.seed, worker.epoch)
        scope.torch_seed = worker.torch_seed
        if worker.info is not None:
            scope.info = replace(worker.info, rng=WorkerRng(scope))
        dataset = self._snapshot.replicate().dataset
        return _Part(dataset, scope, self._worker.context.copy())

    def fetch(self, dataset: Any, collate_fn: Collate, task: Task, scope: Scope) -> Any:
        """Load a batch, fetched by the worker and its lanes (a `Fetch`)."""
        job = self._ahead.begun.pop(task[0], None)
        if job is None:
            job = self._begin(task, -1, self._ahead)
        try:
            job.work(self._worker)
        finally:
            job.close()
        scope.is_active = True
        try:
            samples = job.samples()
            scope.task = job.task
            scope.cursor = COLLATE
            return collate_fn(samples)
        except StopIteration as error:
            raise explain_stop() from error

    @property
    def tickets(self) -> deque[Ticket]:
        """Tickets that were claimed ahead of time."""
        return self._ahead.tickets

    def look_ahead(self, claim: Callable[[], Ticket | None]) -> None:
        """Let idle lanes begin with the next ticket, which ``claim`` returns."""
        self._ahead.claim = claim

    def forget(self) -> None:
        """Drop what was begun ahead of time, and what late lanes will begin."""
        self._ahead = _Ahead(lambda: None)

    def _begin(self, task: Task, spare: int, ahead: _Ahead) -> _Job:
        """Offer a batch to lanes, to as many as it has samples and ``spare`` more."""
        if not isinstance(task[2], (range, list, tuple)):
            task = (task[0], task[1], list(task[2]))
        job = _Job(self, task, ahead)
        self._lanes.offer(job, len(task[2]) + spare)
        return job

    def begin_next(self, job: _Job) -> None:
        """Claim the next ticket and let lanes begin with it, once for each job.

        Called by a thread that is inside the job, which is not closed before it has
        left; so the worker finds what was begun.
        """
        try:
            del job.right[0]
        except KeyError:
            return
        ahead = job.ahead
        ticket = ahead.claim()
        if ticket is None:
            # For the next one to look: there may be a ticket then.
            job.right[0] = None
        else:
            task = (ticket.number, ticket.start, ticket.indices)
            ahead.tickets.append(ticket)
            # What its keys raise is raised in its turn, when it is begun again.
            with contextlib.suppress(BaseException):
                ahead.begun[ticket.number] = self._begin(task, 0, ahead)


class Lanes:
    """The lane threads of one worker.

    Args:
        count: how many lanes beside the worker itself.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._lanes = [_Lane(number) for number in range(count)]

    def start(self, start: Callable[[int, Callable[[], None]], None]) -> None:
        """Start the threads.

        Args:
            start: starts a thread; called with the lane's number and main function.
        """
        for lane in self._lanes:
            start(lane.number, lane.run)

    def offer(self, job: _Job, count: int) -> None:
        """Offer a job to ``count`` lanes, or to all if there are fewer."""
        for lane in self._lanes[: max(count, 0)]:
            lane.offer(job)

    def close(self) -> None:
        """Let the lane threads end after the item they are in."""
        for lane in self._lanes:
            lane.close()


class _Lane:
    """One lane thread and the offer it has not looked at, if any."""

    def __init__(self, number: int) -> None:
        self.number = number
        # Only the newest job is of interest: its predecessors are over.
        self._offers: deque[_Job] = deque(maxlen=1)
        self._sleeper = Sleeper()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def offer(self, job: _Job) -> None:
        """Leave a job for the lane."""
        self._offers.append(job)
        self._sleeper.wake()

    def close(self) -> None:
        """Let the thread end after the item that it is in."""
        self._is_closing = True
        self._sleeper.wake()

    def run(self) -> None:
        """Help with one job after another (the thread's main function)."""
        self._thread = threading.current_thread()
        while not self._is_closing:
            try:
                job = self._offers.popleft()
            except IndexError:
                self._sleeper.sleep()
                continue
            job.help(self)
            del job

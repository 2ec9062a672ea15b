"""What one worker owns during an epoch: dataset, generators, fetch function.

A seat is taken (`occupy`) by one thread at a time, normally always the same one. What
is in it is made by that thread, so that it belongs to the thread that uses it: on
free-threaded builds only the owner of an object counts references without atomics.

Seats belong to the epoch, not to the threads: a parked thread refers to nothing of the
user's, so a loader in a reference cycle with its own iterator can be collected.

Guards: `vacant` makes a seat exclusive (deleting a key is atomic); all other fields
are touched by the occupant only. `run_seeded` runs ``worker_init_fn`` calls one
after another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dataloader._fast import local
from dataloader._marks import END
from dataloader._torch import run_seeded
from dataloader.errors import WorkerDiedError
from dataloader.fetch import (
    Collate,
    Fetch,
    Stream,
    choose_fetch,
    fetch_stream,
    note_place,
)
from dataloader.replicate import set_epoch
from dataloader.worker_info import Scope, WorkerInfo, WorkerRng
from dataloader.workers.base import EpochPlan, Failure, place_note
from dataloader.workers.lanes import Lanes, Team

if TYPE_CHECKING:
    from dataloader.replicate import Replica
    from dataloader.workers.policy import Policy
    from dataloader.workers.reorder import Ticket

__all__ = ["Seat"]


class Seat:
    """A worker's place in an epoch, or with persistent workers in several.

    Args:
        index: the worker's id.
        told: which call of ``set_epoch`` the dataset knows of that workers copy.
    """

    def __init__(self, index: int, told: int = 0) -> None:
        self.index = index
        # Empty while somebody sits here.
        self.vacant: dict[int, None] = {0: None}
        # Who sits here, or sat here last.
        self.occupant: Any = None
        # One of its own, as threads would contend for one that they share.
        self._none_ahead: deque[Ticket] = deque()
        self._plan: EpochPlan | None = None
        self._replica: Replica | None = None
        self._team: Team | None = None
        self._fetch: Fetch | None = None
        self._source: Any = None
        self._collate_fn: Collate
        self._error: Failure | None = None
        self._told = told
        self._scope: Scope
        # When the samples of the batch were there.
        self._fetched_at = 0.0

    def occupy(self, worker: Any) -> bool:
        """Try to take the seat; False if another thread sits on it.

        It is given back by setting ``vacant[0]``, a statement that nothing interrupts.
        """
        try:
            del self.vacant[0]
        except KeyError:
            return False
        self.occupant = worker
        return True

    def reclaim(self) -> None:
        """Take the seat from an occupant whose thread has died."""
        occupant = self.occupant
        if not self.vacant and occupant is not None and not occupant.is_alive():
            self.forget_ahead()
            self.occupant = None
            self.vacant[0] = None

    def is_prepared_for(self, plan: EpochPlan) -> bool:
        """Whether `prepare` was called for this epoch."""
        return self._plan is plan

    @property
    def name(self) -> str:
        """The worker in words."""
        return f"worker {self.index} (thread)"

    def prepare(self, plan: EpochPlan, lanes: Lanes | None, policy: Policy) -> None:
        """Make the worker's dataset and fetch function, in the worker's thread.

        An exception is kept: it takes the place of every batch that this worker claims.

        Args:
            plan: the epoch.
            lanes: threads that fetch samples of one batch beside the worker.
            policy: told when user code asks who is loading.
        """
        self._fetch = self._error = None
        self.forget_ahead()
        try:
            self._scope = self._next_scope(plan)
            self._scope.watch = policy.note_asked
            # A loader that the init function iterates over leaves the thread to it.
            self._scope.is_active = None
            local.scope = self._scope
            if self._replica is None:
                self._settle(plan, lanes)
            if self._told != plan.times_set:
                self._set_epoch(plan)
            self._told = plan.times_set
            self._fetch = self._choose_fetch(plan)
        except BaseException as error:
            note_place(error, f"raised in {self.name}, epoch {plan.epoch}")
            # Its traceback is kept as it is now: it grows whenever it is raised.
            self._error = Failure(error, error.__traceback__)
        finally:
            self._scope.is_active = False
            local.scope = None
        self._plan = plan

    def _set_epoch(self, plan: EpochPlan) -> None:
        """Tell the kept dataset, and the lanes' copies of it, the epoch's number."""
        assert self._replica is not None
        set_epoch(self._replica.dataset, plan.told_epoch)
        if self._team is not None:
            self._team.set_epoch(plan.told_epoch)

    @property
    def ahead(self) -> deque[Ticket]:
        """Tickets whose samples lanes fetch while the one before is finished."""
        return self._none_ahead if self._team is None else self._team.tickets

    def look_ahead(self, claim: Callable[[], Ticket | None]) -> None:
        """Let idle lanes begin with the next ticket, which ``claim`` returns."""
        if self._team is not None:
            self._team.look_ahead(claim)

    def forget_ahead(self) -> None:
        """Drop tickets that the lanes have begun with, and what they fetched."""
        if self._team is not None:
            self._team.forget()

    def load(self, ticket: Ticket) -> Any:
        """Return the ticket's batch, or the `Failure` in its place. Never raises."""
        plan = self._plan
        assert plan is not None
        if self._fetch is None:
            return self._failed(plan)
        scope = self._scope
        local.scope = scope
        scope.is_active = True
        started = self._fetched_at = perf_counter()
        try:
            task = (ticket.number, ticket.start, ticket.indices)
            batch = self._fetch(self._source, self._collate, task, scope)
            return batch if plan.pin is None or batch is END else plan.pin(batch)
        except BaseException as error:
            note_place(
                error, place_note(self.name, plan, ticket.number, ticket.indices)
            )
            return Failure(error, error.__traceback__)
        finally:
            scope.is_active = False
            local.scope = None
            ended = perf_counter()
            ticket.cost_s = ended - started
            ticket.collate_s = ended - self._fetched_at

    def _collate(self, samples: Any) -> Any:
        """Call ``collate_fn``, with a note of when."""
        self._fetched_at = perf_counter()
        return self._collate_fn(samples)

    def _failed(self, plan: EpochPlan) -> Any:
        """Return what a worker without a dataset answers.

        A stream says so once and is over then; of an indexed dataset each batch that
        this worker claims has to be accounted for.
        """
        failure = self._error
        if failure is None and plan.iterable:
            return END
        if plan.iterable:
            self._error = None
        return failure or Failure(WorkerDiedError(f"{self.name} has no dataset"))

    def _next_scope(self, plan: EpochPlan) -> Scope:
        """Return the epoch's scope: a kept one is moved, as `info.rng` reads it."""
        if self._replica is None:
            return Scope(plan.seed, plan.epoch, self.index if plan.iterable else None)
        self._scope.begin(plan.seed, plan.epoch)
        return self._scope

    def _settle(self, plan: EpochPlan, lanes: Lanes | None) -> None:
        """Take a dataset of the worker's own and run ``worker_init_fn``."""
        replica = plan.snapshot.replicate()
        if plan.num_workers > 0:
            self._introduce(plan, replica)
        if lanes is not None:
            # After the init function, so that lanes see what it did to the dataset.
            self._team = Team(lanes, replica.dataset, plan.replicate, self._scope)
        self._replica = replica

    def _introduce(self, plan: EpochPlan, replica: Replica) -> None:
        """Let the thread know that it is a worker, and run ``worker_init_fn``."""
        scope = self._scope
        seed = plan.base_seed + self.index
        scope.info = WorkerInfo(
            id=self.index,
            num_workers=plan.num_workers,
            seed=seed,
            dataset=replica.dataset,
            rng=WorkerRng(scope),
            worker_method="thread",
        )
        if plan.worker_init_fn is not None:
            # The global generators are seeded as in one of PyTorch's worker processes
            # while the init function runs, and torch.initial_seed() shows theirs.
            init = replica.bind(plan.worker_init_fn)
            state = run_seeded(seed, self.index, partial(init, self.index))
            scope.torch_seed = state.torch_seed
        if scope.torch_seed is None:
            scope.torch_seed = seed

    def _choose_fetch(self, plan: EpochPlan) -> Fetch:
        """Settle what is called for each batch, and on which object."""
        assert self._replica is not None
        dataset = self._source = self._replica.dataset
        self._collate_fn = self._replica.bind(plan.collate_fn)
        if plan.iterable:
            self._source = Stream(dataset, plan.auto_collation, plan.drop_last)
            return fetch_stream
        if self._team is not None and plan.auto_collation:
            return self._team.fetch
        return choose_fetch(dataset, plan.auto_collation, plan.check)

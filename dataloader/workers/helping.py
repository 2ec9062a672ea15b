"""The consumer loads too: while it would only wait, or all by itself.

Two modes, by what a batch costs (see `policy`). *Helping*: while the batch that is due
is not ready, the consumer claims tickets from the queue like a worker. *Inline*:
nothing is handed over at all, and ``next()`` takes the short way of `ShortWay`.
One batch in a few is timed, to notice when batches become dearer.

The consumer works on a dataset of its own, as each worker does, and only where nobody
can tell the difference: never with ``worker_init_fn``, ``timeout``, iterable datasets
or ``items_in_parallel``; not while a mode of torch is active that workers do not have;
and never again once user code has asked who is loading.

Interrupts: a claimed ticket stays in `_claimed` until its result is stored. If Ctrl-C
breaks the loading off, the next call loads it again.
"""

from __future__ import annotations

import contextvars
import itertools
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dataloader._fast import local
from dataloader._guard import FORKS, ONCE
from dataloader._marks import NotInWorker
from dataloader.fetch import choose_fetch, note_place
from dataloader.replicate import set_epoch
from dataloader.workers.base import EMPTY, EpochPlan, Failure, place_note
from dataloader.workers.direct import DirectIterator
from dataloader.workers.policy import (
    HELP_BELOW_S,
    SPIN_BELOW_S,
    SPINS,
    Policy,
    mode_probe,
    sched_yield,
)

if TYPE_CHECKING:
    from dataloader.replicate import Replica
    from dataloader.workers.epoch import Epoch
    from dataloader.workers.pool import Pool
    from dataloader.workers.reorder import Delivery, Ticket

__all__ = ["HelpingIterator"]


class HelpingIterator(DirectIterator):
    """What `ThreadIterator` does in the consumer's own thread.

    Args:
        plan: what to load.
        pool: the threads, and what is known of the cost of batches.
    """

    __slots__ = (
        "_can_help",
        "_claimed",
        "_context",
        "_delivery",
        "_epoch",
        "_following",
        "_has_modes",
        "_is_inline",
        "_is_prepared",
        "_is_sealed",
        "_policy",
        "_pool",
        "_replica",
        "_told",
    )

    _epoch: Epoch
    _delivery: Delivery
    _is_sealed: bool

    def __init__(self, plan: EpochPlan, pool: Pool) -> None:
        self._pool = pool
        self._policy: Policy = pool.policy
        self._replica: Replica | None = None
        # Which call of set_epoch the replica knows of, or what it will be copied from.
        self._told = plan.times_set
        super().__init__(plan)

    def _begin(self, plan: EpochPlan) -> None:
        super()._begin(plan)
        self._claimed: list[Ticket] = []
        self._is_prepared = False
        self._is_inline = False
        # Number of the batch after those that were loaded inline.
        self._following = 0
        self._can_help = (
            plan.help
            and plan.num_workers > 0
            and plan.items_in_parallel == 1
            and plan.timeout_s == 0
            and not plan.iterable
            and plan.worker_init_fn is None
        )
        self._watch = self._policy.send_to_worker
        self._has_modes = mode_probe()
        self._probe = mode_probe(self._is_traced)
        self._context = contextvars.copy_context()

    def _may_load(self) -> bool:
        """Whether a batch that is loaded here is the one that a worker would load."""
        if not self._can_help or self._policy.info_was_asked:
            return False
        outer = local.scope
        if outer is not None and outer.is_active:
            # Inside a sample of another loader, whose worker this thread may be.
            return False
        return self._has_modes is None or not self._has_modes()

    def _prepare(self) -> bool:
        """Take a dataset of the consumer's own, as each worker does.

        Returns False if that fails: workers fail too then, and report it.
        """
        if not self._is_prepared:
            try:
                self._settle()
            except Exception:
                self._can_help = False
        return self._is_prepared

    def _settle(self) -> None:
        plan = self._plan
        replica = self._replica
        if replica is None:
            replica = plan.snapshot.replicate()
            if plan.is_persistent:
                self._replica = replica
        if self._told != plan.times_set:
            set_epoch(replica.dataset, plan.told_epoch)
        self._told = plan.times_set
        self._source = replica.dataset
        self._collate_fn = replica.bind(plan.collate_fn)
        self._fetch = choose_fetch(self._source, plan.auto_collation, plan.check)
        self._is_prepared = True

    # Inline.

    def _may_be_inline(self) -> bool:
        """Whether to load everything here.

        Nothing is taken from the sampler ahead of time then, so not if it could notice.
        """
        return self._policy.is_inline and self._feed.is_settled and self._may_load()

    def _enter_inline(self) -> bool:
        """Load everything here from now on, if possible; nothing is outstanding."""
        if not (self._may_be_inline() and self._prepare()):
            return False
        tally = self._tally
        number = max(self._delivery.last.number + 1, self._following)
        # No call from here on: Ctrl-C must not come between the mode and its row.
        self._made = EMPTY
        self._scope.task = (number - 1, 0, ())
        tally.row = (self._slot, self._scope, tally.handed - number)
        self._is_inline = True
        if self._plan.pin is None:
            self._slot.short_mark = FORKS.count
        return True

    def _leave_inline(self) -> None:
        """Hand over from now on, beginning with what is pending."""
        tally = self._tally
        handed = tally.by_consumer
        # No call from here on, as above.
        assert tally.row is not None
        self._following = handed - tally.row[2]
        self._slot.short_mark = -1
        self._made = EMPTY
        tally.handed = handed
        tally.row = None
        self._is_inline = False

    def _load_inline(self) -> Any:
        """Load the next batch, timed, and see what it costs."""
        policy = self._policy
        try:
            batch = self._load_pending()
        except StopIteration:
            self._is_sealed = True
        except NotInWorker:
            pass
        else:
            policy.note(self._cost_s)
            # The next call leaves the mode if this batch was dear.
            self._go_short(policy.untimed() if policy.is_inline else 0)
            # No call from here on, see `DirectIterator.__next__`.
            self._made = EMPTY
            self._slot.pending = None
            self._yielded += 1
            return batch
        self._leave_inline()
        return self._take()

    def _take(self) -> Any:
        """Return the next batch that was handed over."""
        raise NotImplementedError  # an abstract method

    # Helping.

    def _help(self) -> Ticket | None:
        """Load other batches while the one that is due is not ready.

        Returns the ticket of a batch that is ready in the end, None if none is.
        """
        while self._is_worth_helping() and self._claim():
            self._load_claimed()
            if not self._may_load():
                return self._delivery.head()
            ticket = self._delivery.head()
            if ticket is not None:
                return ticket
            self._pool.support(1)
        return self._spin()

    def _is_worth_helping(self) -> bool:
        """Whether to load a batch rather than to sleep.

        While it is unknown what a batch costs, only one that is due and that nobody has
        claimed: it would have to be waited for in any case.
        """
        policy = self._policy
        if self._claimed or policy.cost_s < HELP_BELOW_S:
            return True
        if policy.cost_s < float("inf") or not self._plan.in_order:
            return False
        return self._delivery.due().worker is None

    def _claim(self) -> bool:
        """Claim the oldest ticket that nobody has claimed; False if there is none.

        One call of C takes and keeps it, so no interrupt comes in between.
        """
        if self._claimed:
            return True
        try:
            self._claimed.extend(itertools.starmap(self._epoch.queues[0].popleft, ONCE))
        except IndexError:
            return False
        return True

    def _load_claimed(self) -> None:
        """Load the claimed ticket; what Ctrl-C broke off is loaded by the next call."""
        ticket = self._claimed[0]
        if ticket.result is EMPTY:
            if not self._prepare():
                self._give_back()
                return
            try:
                # In no variable, since the traceback of a `Failure` refers to them.
                self._delivery.finish(ticket, self._result(ticket))
            except NotInWorker:
                self._give_back()
                return
        self._claimed = []

    def _result(self, ticket: Ticket) -> Any:
        """Return a ticket's batch, or the `Failure` in its place."""
        task = (ticket.number, ticket.start, ticket.indices)
        started = self._fetched_at = perf_counter()
        try:
            return self._context.run(self._load, task)
        except (KeyboardInterrupt, NotInWorker):
            raise
        except BaseException as error:
            note = place_note("the main thread", self._plan, task[0], task[2])
            note_place(error, note)
            return Failure(error, error.__traceback__)
        finally:
            ended = perf_counter()
            ticket.cost_s = ended - started
            ticket.collate_s = ended - self._fetched_at
            self._made = EMPTY

    def _give_back(self) -> None:
        """Let a worker load what is claimed: it goes back to where it was."""
        self._made = EMPTY
        if self._claimed and self._claimed[0].result is EMPTY:
            # Moved by one call of C, so that Ctrl-C cannot lose or double it.
            self._epoch.queues[0].extendleft(map(self._claimed.pop, (0,)))
        self._claimed = []

    def _spin(self) -> Ticket | None:
        """Yield the time slice a few times before going to sleep."""
        if self._policy.cost_s < SPIN_BELOW_S and self._pool.may_spin:
            for _ in range(SPINS):
                sched_yield()
                ticket = self._delivery.head()
                if ticket is not None:
                    return ticket
        return None

"""Results of workers, delivered in order or as they come, through a bounded buffer.

    consumer                        worker
    --------                        ------
    dispatch(ticket, ...)  ---->    ticket = queue.popleft()      (this is the claim)
                                    ticket.worker = itself
    head() or wait()       <----    finish(ticket, result)
    drop_head()

The buffer is bounded because the consumer dispatches a ticket only when one was
delivered. A ticket carries its own result: a late result of an abandoned epoch lands in
a ticket that nobody holds any more, and is freed with it.

Interrupts: Ctrl-C raises KeyboardInterrupt at calls and at the entry of Python
functions. `dispatch` and `drop_head` therefore change their fields by statements
without a call, the append to the worker's queue last, so that each of them happens
whole or not at all.

Guards: links and counts belong to the consumer; a ticket's `result` is stored once, by
the worker that claimed it. To wait, the consumer announces what it waits for and looks
again; a worker stores the result and then looks for the announcement. Attribute stores
and deque operations lock the object on free-threaded builds, so one of the two sees the
other; that the consumer waits in slices (`WAIT_SLICE_S`) is the safety net.

Shutdown: `wake` ends the consumer's wait at once; `clear` drops what has come.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, Protocol

from dataloader.workers.base import EMPTY
from dataloader.workers.feed import IndexFeed
from dataloader.workers.sleeper import Sleeper

__all__ = ["WAIT_SLICE_S", "Arrivals", "Delivery", "InOrder", "Ticket"]

WAIT_SLICE_S = 0.05
"""Longest sleep of the consumer in one go: half of the 100 ms in which Ctrl-C has to
act, where signals do not interrupt a sleeping main thread (Windows)."""


class Ticket:
    """One batch on its way.

    Attributes:
        number: number of the batch in the epoch.
        start: position of its first sample in the epoch.
        indices: its keys.
        lane: id of the worker that it is meant for, None for whoever is free.
        worker: the thread that claimed it, None while unclaimed.
        cost_s: what loading it took.
        collate_s: the part of it that was not fetching.
        result: the batch, a `Failure`, the end of a stream, or `EMPTY`.
        awaited: the consumer sleeps until it has the result.
        next: the ticket that was dispatched after it.
    """

    __slots__ = (
        "awaited",
        "collate_s",
        "cost_s",
        "indices",
        "lane",
        "next",
        "number",
        "result",
        "start",
        "worker",
    )

    def __init__(
        self, number: int, start: int, indices: Any, lane: int | None = None
    ) -> None:
        self.number: int = number
        self.start: int = start
        self.indices: Any = indices
        self.lane: int | None = lane
        self.worker: Any = None
        self.result: Any = EMPTY
        self.cost_s: float = 0.0
        self.collate_s: float = 0.0
        self.awaited: bool = False
        self.next: Ticket | None = None


class Delivery(Protocol):
    """Order in which results reach the consumer.

    Attributes:
        outstanding: number of tickets that were dispatched and not dropped.
        last: the ticket that was dispatched last.
    """

    outstanding: int
    last: Ticket

    def dispatch(self, ticket: Ticket, feed: IndexFeed, queue: deque[Ticket]) -> None:
        """Take the batch that is pending in ``feed`` and queue it for a worker."""

    def finish(self, ticket: Ticket, result: Any) -> None:
        """Store a result (the worker that claimed the ticket)."""

    def head(self) -> Ticket | None:
        """Return the next ticket to deliver if its result is there."""

    def drop_head(self) -> None:
        """Forget the ticket that `head` returned."""

    def wait(self, timeout_s: float) -> Ticket | None:
        """Sleep until `head` has something, at most ``timeout_s``.

        May return empty-handed before that, so callers ask again.
        """

    def due(self) -> Ticket:
        """Return the oldest ticket whose result is missing."""

    def ready(self) -> int:
        """Return how many results wait to be delivered."""

    def unfinished_by_lane(self) -> Counter[int | None]:
        """Return how many tickets each worker still has to load."""

    def wake(self) -> None:
        """End a `wait`, from any thread."""

    def clear(self) -> None:
        """Forget all tickets."""


class InOrder:
    """Delivers tickets in the order of their dispatch: a linked list, oldest first."""

    outstanding: int
    last: Ticket

    def __init__(self) -> None:
        self.outstanding = 0
        # The ticket before the oldest one that is outstanding.
        self._before = self.last = Ticket(-1, 0, None)
        self._sleeper = Sleeper()

    def dispatch(self, ticket: Ticket, feed: IndexFeed, queue: deque[Ticket]) -> None:
        """Take the pending batch and queue it."""
        feed.slot.pending = None
        self.last.next = ticket
        self.last = ticket
        self.outstanding += 1
        queue.append(ticket)

    def finish(self, ticket: Ticket, result: Any) -> None:
        """Store the result and wake the consumer if it waits for this ticket."""
        ticket.result = result
        if ticket.awaited:
            self._sleeper.wake()

    def head(self) -> Ticket | None:
        """Return the oldest ticket if its result is there."""
        ticket = self._before.next
        if ticket is None or ticket.result is EMPTY:
            return None
        return ticket

    def drop_head(self) -> None:
        """Forget the oldest ticket."""
        ticket = self._before.next
        assert ticket is not None
        ticket.result = None
        self._before = ticket
        self.outstanding -= 1

    def wait(self, timeout_s: float) -> Ticket | None:
        """Sleep until the oldest ticket's result is there."""
        ticket = self.due()
        ticket.awaited = True
        if ticket.result is EMPTY:
            self._sleeper.sleep(timeout_s)
        return self.head()

    def due(self) -> Ticket:
        """Return the oldest ticket."""
        assert self._before.next is not None
        return self._before.next

    def ready(self) -> int:
        """Return how many results wait to be delivered, in their turn or not yet."""
        count = 0
        ticket = self._before.next
        while ticket is not None:
            count += ticket.result is not EMPTY
            ticket = ticket.next
        return count

    def unfinished_by_lane(self) -> Counter[int | None]:
        """Return how many tickets each worker still has to load."""
        found: Counter[int | None] = Counter()
        ticket = self._before.next
        while ticket is not None:
            found[ticket.lane] += ticket.result is EMPTY
            ticket = ticket.next
        return found

    def wake(self) -> None:
        """End a `wait`."""
        self._sleeper.wake()

    def clear(self) -> None:
        """Unlink all tickets, since a busy worker still refers to the one it loads."""
        ticket: Ticket | None = self._before
        self._before = self.last = Ticket(-1, 0, None)
        self.outstanding = 0
        while ticket is not None:
            ticket.result = None
            ticket.next, ticket = None, ticket.next


class Arrivals:
    """Delivers tickets in the order in which their results come."""

    outstanding: int
    last: Ticket

    def __init__(self) -> None:
        self.outstanding = 0
        self.last = Ticket(-1, 0, None)
        self._open: dict[int, Ticket] = {}
        self._arrived: deque[Ticket] = deque()
        self._sleeper = Sleeper()
        self._is_awaited = False

    def dispatch(self, ticket: Ticket, feed: IndexFeed, queue: deque[Ticket]) -> None:
        """Take the pending batch and queue it."""
        feed.slot.pending = None
        self._open[ticket.number] = ticket
        self.last = ticket
        self.outstanding += 1
        queue.append(ticket)

    def finish(self, ticket: Ticket, result: Any) -> None:
        """Store the result and wake the consumer if it waits for any."""
        if ticket.result is not EMPTY:
            # Of a worker that was taken for dead.
            return
        ticket.result = result
        self._arrived.append(ticket)
        if self._is_awaited:
            self._sleeper.wake()

    def head(self) -> Ticket | None:
        """Return the ticket whose result came first."""
        arrived = self._arrived
        return arrived[0] if arrived else None

    def drop_head(self) -> None:
        """Forget the ticket whose result came first."""
        ticket = self._arrived[0]
        ticket.result = None
        del self._arrived[0]
        del self._open[ticket.number]
        self.outstanding -= 1

    def wait(self, timeout_s: float) -> Ticket | None:
        """Sleep until any result is there."""
        self._is_awaited = True
        if not self._arrived:
            self._sleeper.sleep(timeout_s)
        self._is_awaited = False
        return self.head()

    def due(self) -> Ticket:
        """Return the oldest ticket whose result is missing."""
        return next(iter(self._open.values()))

    def ready(self) -> int:
        """Return how many results wait to be delivered."""
        return len(self._arrived)

    def unfinished_by_lane(self) -> Counter[int | None]:
        """Return how many tickets each worker still has to load."""
        return Counter(t.lane for t in self._open.values() if t.result is EMPTY)

    def wake(self) -> None:
        """End a `wait`."""
        self._sleeper.wake()

    def clear(self) -> None:
        """Forget all tickets."""
        self.outstanding = 0
        self._open = {}
        # What comes late is not kept.
        self._arrived = deque(maxlen=0)

"""Results of workers, handed to the consumer in order or as they come."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections import Counter, deque
from typing import Any

import pytest
from conftest import wait_until
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dataloader.workers.base import EMPTY
from dataloader.workers.feed import IndexFeed
from dataloader.workers.reorder import Arrivals, Delivery, InOrder, Ticket

KINDS = [InOrder, Arrivals]


@pytest.fixture(params=KINDS)
def delivery(request: pytest.FixtureRequest) -> Delivery:
    """One that delivers in order, and one that delivers what comes first."""
    made: Delivery = request.param()
    return made


def feed_of(count: int) -> IndexFeed:
    return IndexFeed([[number] for number in range(count)], batched=True)


def dispatch(
    delivery: Delivery, feed: IndexFeed, queue: deque[Ticket], lane: int | None = None
) -> Ticket:
    number, start, indices = feed.peek()
    ticket = Ticket(number, start, indices, lane)
    delivery.dispatch(ticket, feed, queue)
    return ticket


def dispatched(delivery: Delivery, count: int) -> list[Ticket]:
    feed, queue = feed_of(count), deque[Ticket]()
    for _ in range(count):
        dispatch(delivery, feed, queue)
    return list(queue)


def take(delivery: Delivery) -> Any:
    """Take what is there, or None."""
    ticket = delivery.head()
    if ticket is None:
        return None
    result = ticket.result
    delivery.drop_head()
    return result


def test_dispatching_takes_the_pending_batch_and_queues_it(delivery: Delivery) -> None:
    feed, queue = feed_of(3), deque[Ticket]()
    first = dispatch(delivery, feed, queue)
    second = dispatch(delivery, feed, queue, lane=4)
    assert list(queue) == [first, second]
    assert (second.number, second.start, second.indices) == (1, 1, [1])
    assert (second.lane, second.worker, second.result) == (4, None, EMPTY)
    assert feed.slot.pending is None
    assert delivery.outstanding == 2
    assert delivery.last is second


def test_results_come_in_order_whatever_the_order_of_finishing() -> None:
    delivery = InOrder()
    first, second, third = dispatched(delivery, 3)
    delivery.finish(third, "c")
    delivery.finish(second, "b")
    assert take(delivery) is None
    delivery.finish(first, "a")
    assert [take(delivery) for _ in range(4)] == ["a", "b", "c", None]
    assert delivery.outstanding == 0


def test_results_come_as_they_are_finished() -> None:
    delivery = Arrivals()
    first, second, third = dispatched(delivery, 3)
    delivery.finish(third, "c")
    assert take(delivery) == "c"
    delivery.finish(first, "a")
    delivery.finish(second, "b")
    assert [take(delivery) for _ in range(3)] == ["a", "b", None]
    assert delivery.outstanding == 0


def test_any_result_is_delivered_as_it_is(delivery: Delivery) -> None:
    results: list[Any] = [None, False, 0, [], "", EMPTY.__name__]
    for ticket, result in zip(dispatched(delivery, 6), results, strict=True):
        delivery.finish(ticket, result)
    assert [take(delivery) for _ in range(6)] == results


def test_the_head_stays_until_it_is_dropped(delivery: Delivery) -> None:
    tickets = dispatched(delivery, 2)
    for ticket in tickets:
        delivery.finish(ticket, ticket.number)
    assert delivery.head() is tickets[0]
    assert delivery.head() is tickets[0]


def test_what_is_due_is_the_oldest(delivery: Delivery) -> None:
    first, second = dispatched(delivery, 2)
    assert delivery.due() is first
    delivery.finish(first, 1)
    take(delivery)
    assert delivery.due() is second


def test_what_each_worker_still_has_to_load_is_counted(delivery: Delivery) -> None:
    feed, queue = feed_of(4), deque[Ticket]()
    tickets = [dispatch(delivery, feed, queue, lane) for lane in (0, 1, 0, 1)]
    delivery.finish(tickets[0], "a")
    assert +delivery.unfinished_by_lane() == Counter({0: 1, 1: 2})
    take(delivery)
    assert +delivery.unfinished_by_lane() == Counter({0: 1, 1: 2})


class Batch:
    """Something that a weak reference can watch."""


def test_a_batch_is_not_kept_when_it_has_been_delivered(delivery: Delivery) -> None:
    ticket, *_ = dispatched(delivery, 2)
    batch = Batch()
    dead = weakref.ref(batch)
    delivery.finish(ticket, batch)
    del batch
    take(delivery)
    # The worker still refers to the ticket, and the delivery remembers the last one.
    assert wait_until(lambda: dead() is None)


def test_nothing_is_kept_when_all_is_forgotten(delivery: Delivery) -> None:
    tickets = dispatched(delivery, 4)
    batches = [Batch(), Batch()]
    dead = [weakref.ref(batch) for batch in batches]
    delivery.finish(tickets[0], batches[0])
    delivery.clear()
    delivery.finish(tickets[1], batches[1])  # too late
    delivery.finish(tickets[2], None)
    del tickets, batches
    assert wait_until(lambda: all(ref() is None for ref in dead))
    assert delivery.outstanding == 0
    assert delivery.head() is None


def test_tickets_that_are_forgotten_do_not_hold_each_other() -> None:
    delivery = InOrder()
    tickets = dispatched(delivery, 3)
    delivery.clear()
    assert [ticket.next for ticket in tickets] == [None] * 3


# Waiting.


def finish_in_thread(delivery: Delivery, tickets: list[Ticket]) -> threading.Thread:
    def finish() -> None:
        for ticket in tickets:
            delivery.finish(ticket, ticket.number)

    thread = threading.Thread(target=finish)
    thread.start()
    return thread


def test_a_wait_ends_when_the_result_comes(delivery: Delivery) -> None:
    for _ in range(300):
        (ticket,) = dispatched(delivery, 1)
        thread = finish_in_thread(delivery, [ticket])
        # A lost wake-up would end it after a minute, empty-handed. It may end early
        # too, by a wake-up that the last wait did without.
        assert (delivery.wait(60) or delivery.wait(60)) is ticket
        thread.join()
        delivery.drop_head()


def test_a_wait_does_not_end_for_a_later_batch() -> None:
    delivery = InOrder()
    first, second = dispatched(delivery, 2)
    delivery.finish(second, "b")
    assert delivery.wait(0.001) is None
    delivery.finish(first, "a")
    assert delivery.wait(60) is first


def test_a_wait_that_ran_out_is_no_harm(delivery: Delivery) -> None:
    (ticket,) = dispatched(delivery, 1)
    assert delivery.wait(0) is None
    assert delivery.wait(0.001) is None
    delivery.finish(ticket, "a")
    assert delivery.wait(60) is ticket


def test_waking_ends_a_wait_that_is_under_way_or_to_come(delivery: Delivery) -> None:
    dispatched(delivery, 1)
    delivery.wake()
    assert delivery.wait(60) is None
    waiting = threading.Thread(target=delivery.wait, args=(60,))
    waiting.start()
    delivery.wake()
    delivery.wake()
    waiting.join(30)
    assert not waiting.is_alive()


@pytest.mark.parametrize("workers", [1, 3])
def test_a_consumer_that_keeps_up_misses_nothing(
    delivery: Delivery, workers: int
) -> None:
    count, window = 1000, 5
    feed, queue = feed_of(count), deque[Ticket]()
    is_over = threading.Event()

    def work(seed: int) -> None:
        dice = random.Random(seed)
        while not is_over.is_set():
            try:
                ticket = queue.popleft()
            except IndexError:
                time.sleep(0)
                continue
            for _ in range(dice.randrange(30)):
                pass
            delivery.finish(ticket, ticket.number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(workers)]
    for thread in threads:
        thread.start()
    seen: list[Any] = []
    try:
        while len(seen) < count:
            while delivery.outstanding < window and len(seen) < count:
                try:
                    dispatch(delivery, feed, queue)
                except StopIteration:
                    break
            # A wake-up may be an old one, but one that is lost takes minutes here.
            while delivery.head() is None:
                delivery.wait(1000)
            seen.append(take(delivery))
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    if isinstance(delivery, InOrder):
        assert seen == list(range(count))
    assert sorted(seen) == list(range(count))
    assert delivery.outstanding == 0


# Any order of dispatching, claiming, finishing and taking.


class DeliveryMachine(RuleBasedStateMachine):
    """Compares both kinds with lists."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[Delivery] = [InOrder(), Arrivals()]
        self.feeds = [feed_of(10_000) for _ in KINDS]
        self.queues = [deque[Ticket]() for _ in KINDS]
        self.tickets: list[list[Ticket]] = [[] for _ in KINDS]
        self.open: list[int] = []
        self.finished: list[int] = []
        self.taken: list[set[int]] = [set() for _ in KINDS]

    @rule()
    def dispatch(self) -> None:
        for kind, delivery in enumerate(self.kinds):
            ticket = dispatch(delivery, self.feeds[kind], self.queues[kind])
            self.tickets[kind].append(ticket)
        self.open.append(len(self.tickets[0]) - 1)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.open))
        self.open.remove(number)
        self.finished.append(number)
        for kind, delivery in enumerate(self.kinds):
            delivery.finish(self.tickets[kind][number], number)

    @rule(count=st.integers(1, 3))
    def take_in_order(self, count: int) -> None:
        for _ in range(count):
            number = len(self.taken[0])
            is_there = number in self.finished
            assert take(self.kinds[0]) == (number if is_there else None)
            if is_there:
                self.taken[0].add(number)

    @rule()
    def take_what_came_first(self) -> None:
        left = [n for n in self.finished if n not in self.taken[1]]
        assert take(self.kinds[1]) == (left[0] if left else None)
        self.taken[1].update(left[:1])

    @rule()
    def look(self) -> None:
        for kind, delivery in enumerate(self.kinds):
            ticket = delivery.wait(0)
            if ticket is not None:
                assert ticket.number not in self.taken[kind]

    @invariant()
    def what_is_outstanding_is_counted(self) -> None:
        for kind, delivery in enumerate(self.kinds):
            untaken = len(self.tickets[kind]) - len(self.taken[kind])
            assert delivery.outstanding == untaken
            assert +delivery.unfinished_by_lane() == +Counter({None: len(self.open)})

    look = precondition(lambda self: all(d.outstanding for d in self.kinds))(look)


TestDeliveryMachine = DeliveryMachine.TestCase
TestDeliveryMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)

"""The index batches of an epoch: numbered, taken lazily, none lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader._fast import permute_range
from dataloader.errors import InterruptedSamplerError
from dataloader.samplers import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    orders,
)
from dataloader.workers.feed import IndexFeed


def taken(feed: IndexFeed, count: int | None = None) -> list[tuple[int, int, Any]]:
    """Take tasks from a feed as a consumer does: look, then commit."""
    tasks: list[Any] = []
    while count is None or len(tasks) < count:
        try:
            number, start, indices = feed.peek()
        except StopIteration:
            break
        feed.slot.pending = None
        tasks.append((number, start, list(indices) if _is_batch(indices) else indices))
    return tasks


def _is_batch(indices: Any) -> bool:
    return isinstance(indices, (list, tuple, range))


def test_batches_are_numbered_and_know_where_they_start() -> None:
    feed = IndexFeed([[4, 5, 6], [1], [], [2, 3]], batched=True)
    assert taken(feed) == [(0, 0, [4, 5, 6]), (1, 3, [1]), (2, 4, []), (3, 4, [2, 3])]


def test_single_keys_count_one_each_whatever_they_are() -> None:
    keys: list[Any] = ["ab", (1, 2), None, 7]
    feed = IndexFeed(keys, batched=False)
    expected = [(0, 0, "ab"), (1, 1, [1, 2]), (2, 2, None), (3, 3, 7)]
    assert taken(feed) == expected


@pytest.mark.parametrize("kind", [list, tuple, iter, lambda keys: (k for k in keys)])
def test_any_iterable_is_a_batch(kind: Any) -> None:
    feed = IndexFeed([kind([3, 4]), kind([5])], batched=True)
    assert taken(feed) == [(0, 0, [3, 4]), (1, 2, [5])]


def test_a_batch_stays_pending_until_it_is_committed() -> None:
    feed = IndexFeed([[1], [2]], batched=True)
    assert feed.peek() is feed.peek()
    feed.slot.pending = None
    assert feed.peek()[2] == [2]


def test_no_more_is_taken_than_was_asked_for() -> None:
    asked = itertools.count()
    feed = IndexFeed(([next(asked)] for _ in range(100)), batched=True)
    assert len(taken(feed, 3)) == 3
    assert next(asked) == 3


@given(
    length=st.integers(0, 50), batch_size=st.integers(1, 60), drop_last=st.booleans()
)
def test_the_quick_way_of_the_default_order_yields_what_the_sampler_yields(
    length: int, batch_size: int, drop_last: bool
) -> None:
    sampler = BatchSampler(SequentialSampler(range(length)), batch_size, drop_last)
    quick = IndexFeed(sampler, batched=True)
    slow = IndexFeed(list(sampler), batched=True)
    assert taken(quick) == taken(slow)
    assert len(quick) == len(slow)
    with pytest.raises(StopIteration):
        quick.peek()


OWN: dict[str, Any] = {
    "shuffle": lambda n, **o: RandomSampler(range(n), **o),
    "oversampling": lambda n, **o: RandomSampler(range(n), num_samples=3 * n + 1, **o),
    "replacement": lambda n, **o: RandomSampler(range(n), True, 2 * n, **o),
    "subset": lambda n, **o: SubsetRandomSampler([-i for i in range(n)], **o),
    "weighted": lambda n, **o: WeightedRandomSampler(np.ones(n), n, **o),
    "distributed": lambda n, **o: DistributedSampler(range(n), 3, 1, **o),
}


@pytest.mark.parametrize("name", OWN)
@settings(deadline=None)
@given(
    length=st.one_of(st.integers(1, 60), st.sampled_from([4096, 4097, 9000])),
    batch_size=st.one_of(st.none(), st.integers(1, 70), st.integers(200, 30_000)),
    drop_last=st.booleans(),
)
def test_batches_that_are_made_ahead_are_those_that_the_sampler_yields(
    name: str, length: int, batch_size: int | None, drop_last: bool
) -> None:
    sampler: Any = OWN[name](length, seed=7)
    if batch_size is not None:
        sampler = BatchSampler(sampler, batch_size, drop_last)
    batched = batch_size is not None
    ahead = IndexFeed(sampler, batched)
    slow = IndexFeed(list(sampler), batched)
    assert taken(ahead) == taken(slow)
    with pytest.raises(StopIteration):
        ahead.peek()


@pytest.mark.parametrize("batched", [False, True])
def test_of_a_huge_order_little_is_made_ahead(
    batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counting(start: int, stop: int, n: int, key: int) -> Any:
        made.append(stop - start)
        return permute_range(start, stop, n, key)

    monkeypatch.setattr(orders, "permute_range", counting)
    sampler: Any = RandomSampler(range(10**9), seed=0)
    if batched:
        sampler = BatchSampler(sampler, 32, drop_last=False)
    feed = IndexFeed(sampler, batched)
    assert made == []
    feed.peek()
    assert sum(made) == 256
    assert len(taken(feed, 10_000 // 32 if batched else 10_000)) > 300
    assert sum(made) < 20_000
    assert len(made) < 5


@pytest.mark.parametrize("name", sorted(set(OWN) - {"distributed"}))
@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_a_generator_is_asked_for_a_seed_at_the_first_batch_also_if_there_is_none(
    name: str, batch_size: int
) -> None:
    generator, same = np.random.default_rng(3), np.random.default_rng(3)
    sampler = BatchSampler(OWN[name](9, generator=generator), batch_size, True)
    feed = IndexFeed(sampler, batched=True)
    assert generator.bit_generator.state == same.bit_generator.state
    tasks = taken(feed)
    assert len(tasks) == len(sampler)
    next(iter(OWN[name](9, generator=same)))
    assert generator.bit_generator.state == same.bit_generator.state


def test_batches_of_an_iterator_are_not_made_ahead_of_who_else_takes_from_it() -> None:
    whole = list(BatchSampler(RandomSampler(range(20), seed=1), 3, drop_last=False))
    shared = iter(BatchSampler(RandomSampler(range(20), seed=1), 3, drop_last=False))
    first = taken(IndexFeed(shared, batched=True), 2)
    assert [task[2] for task in first] == whole[:2]
    assert list(shared) == whole[2:]


def test_a_subclass_with_another_iter_is_asked_for_one_batch_at_a_time() -> None:
    kept = []

    class Keeping(RandomSampler):
        def __iter__(self) -> Any:
            kept.append(super().__iter__())
            return kept[-1]

    sampler = BatchSampler(Keeping(range(20), seed=1), 3, drop_last=False)
    first = taken(IndexFeed(sampler, batched=True), 2)
    rest = list(kept[0])
    assert [*first[0][2], *first[1][2], *rest] == list(RandomSampler(range(20), seed=1))


def test_a_sampler_may_have_items_and_no_iter() -> None:
    class Items:
        def __getitem__(self, number: int) -> list[int]:
            return [[4, 5], [6]][number]

    items: Any = Items()
    assert taken(IndexFeed(items, batched=True)) == [(0, 0, [4, 5]), (1, 2, [6])]


def test_the_length_is_that_of_the_sampler() -> None:
    sampler = BatchSampler(SequentialSampler(range(7)), 3, drop_last=False)
    feed = IndexFeed(sampler, batched=True)
    taken(feed, 2)
    assert len(feed) == 3


def test_a_sampler_without_a_length_has_a_feed_without_one() -> None:
    with pytest.raises(TypeError, match="no len"):
        len(IndexFeed(iter([[1]]), batched=True))


# Iterators of all kinds.


class OwnIterator:
    """A sampler that is its own iterator and begins anew whenever iter() is called."""

    def __init__(self) -> None:
        self.begun = 0

    def __iter__(self) -> OwnIterator:
        self.begun += 1
        self._next = 0
        return self

    def __next__(self) -> list[int]:
        self._next += 1
        if self._next > 3:
            raise StopIteration
        return [self._next]


def test_iter_of_the_sampler_is_called_once() -> None:
    sampler = OwnIterator()
    assert taken(IndexFeed(sampler, batched=True)) == [
        (0, 0, [1]),
        (1, 1, [2]),
        (2, 2, [3]),
    ]
    assert sampler.begun == 1


def test_an_iterator_needs_no_iter() -> None:
    class Bare:
        left = 2

        def __next__(self) -> list[int]:
            if not self.left:
                raise StopIteration
            self.left -= 1
            return [self.left]

    class Sampler:
        def __iter__(self) -> Any:
            return Bare()

    tasks = taken(IndexFeed(Sampler(), batched=True))
    assert tasks == [(0, 0, [1]), (1, 1, [0])]


def test_an_iterator_that_ended_is_not_asked_again() -> None:
    class Forgetful:
        """Yields again after its end, as iterators should not."""

        turns = 0

        def __iter__(self) -> Forgetful:
            return self

        def __next__(self) -> list[int]:
            self.turns += 1
            if self.turns == 2:
                raise StopIteration
            return [self.turns]

    feed = IndexFeed(Forgetful(), batched=True)
    assert taken(feed) == [(0, 0, [1])]
    assert taken(feed) == []


@pytest.mark.parametrize("batched", [False, True])
def test_an_endless_sampler_is_asked_as_often_as_needed(batched: bool) -> None:
    keys: Any = [5, 6] if batched else 5
    feed = IndexFeed(itertools.repeat(keys), batched)
    assert [task[:2] for task in taken(feed, 4)] == [
        (n, n * (2 if batched else 1)) for n in range(4)
    ]


# Errors and interrupts.


class Flaky:
    """An iterator of batches 0 to 5 that raises when it is asked for some of them."""

    def __init__(self, *errors: tuple[int, BaseException]) -> None:
        self._next = 0
        self._errors = dict(errors)

    def __iter__(self) -> Flaky:
        return self

    def __next__(self) -> list[int]:
        if self._next in self._errors:
            raise self._errors.pop(self._next)
        if self._next == 6:
            raise StopIteration
        self._next += 1
        return [self._next - 1]


@pytest.mark.parametrize("error", [LookupError("no"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", range(6))
def test_after_an_error_of_the_sampler_it_is_asked_again(
    error: BaseException, at: int
) -> None:
    feed = IndexFeed(Flaky((at, error)), batched=True)
    before = taken(feed, at)
    with pytest.raises(type(error)):
        feed.peek()
    assert [*before, *taken(feed)] == [(n, n, [n]) for n in range(6)]


def generated() -> Iterator[list[int]]:
    yield [0]
    yield [1]
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "sampler",
    [
        generated,
        lambda: map(list, generated()),
        lambda: itertools.islice(generated(), 9),
    ],
    ids=["generator", "map", "islice"],
)
def test_a_sampler_that_an_interrupt_ended_is_not_trusted(sampler: Any) -> None:
    feed = IndexFeed(sampler(), batched=True)
    assert taken(feed, 2) == [(0, 0, [0]), (1, 1, [1])]
    with pytest.raises(KeyboardInterrupt):
        feed.peek()
    with pytest.raises(InterruptedSamplerError):
        feed.peek()
    with pytest.raises((StopIteration, InterruptedSamplerError)):
        feed.peek()


def test_a_sampler_that_had_yielded_all_when_it_was_interrupted_is_complete() -> None:
    class Two:
        def __iter__(self) -> Iterator[list[int]]:
            return generated()

        def __len__(self) -> int:
            return 2

    feed = IndexFeed(Two(), batched=True)
    assert len(taken(feed, 2)) == 2
    with pytest.raises(KeyboardInterrupt):
        feed.peek()
    with pytest.raises(StopIteration):
        feed.peek()


def test_a_sampler_is_not_trusted_though_its_length_is_interrupted_too() -> None:
    interrupts = [KeyboardInterrupt()]

    class Three:
        def __iter__(self) -> Iterator[list[int]]:
            return generated()

        def __len__(self) -> int:
            if interrupts:
                raise interrupts.pop()
            return 3

    feed = IndexFeed(Three(), batched=True)
    assert len(taken(feed, 2)) == 2
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            feed.peek()
    with pytest.raises(InterruptedSamplerError):
        feed.peek()


@pytest.mark.parametrize(
    "sampler",
    [
        [[0], [1]],
        ([0], [1]),
        BatchSampler(SequentialSampler(range(2)), 1, drop_last=False),
        BatchSampler(RandomSampler(range(2), seed=3), 1, drop_last=False),
    ],
    ids=["list", "tuple", "sequential", "random"],
)
def test_orders_that_survive_an_interrupt_are_trusted(sampler: Iterable[Any]) -> None:
    feed = IndexFeed(sampler, batched=True)
    assert len(taken(feed)) == 2
    with pytest.raises(StopIteration):
        feed.peek()


def test_a_batch_whose_keys_an_interrupt_ended_is_not_silently_short() -> None:
    def keys() -> Iterator[int]:
        yield 7
        raise KeyboardInterrupt

    feed = IndexFeed([keys(), [8]], batched=True)
    with pytest.raises(KeyboardInterrupt):
        feed.peek()
    with pytest.raises(InterruptedSamplerError):
        feed.peek()


def test_a_batch_whose_keys_raise_is_skipped() -> None:
    def keys() -> Iterator[int]:
        yield 7
        raise LookupError

    feed = IndexFeed([keys(), [8]], batched=True)
    with pytest.raises(LookupError):
        feed.peek()
    assert [task[2] for task in taken(feed)] == [[8]]

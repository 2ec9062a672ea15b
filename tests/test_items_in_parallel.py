"""items_in_parallel: samples of one batch fetched at once, with the same results."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from conftest import wait_until

from dataloader import DataLoader, get_worker_info, rng
from dataloader.worker_info import Scope
from dataloader.workers.lanes import Lanes, Team
from dataloader.workers.reorder import Ticket

WORKERS = [0, 1, 2]


def flat(batches: Iterable[list[Any]]) -> list[Any]:
    """Return the samples of some batches."""
    return [sample for batch in batches for sample in batch]


class Watched:
    """A dataset that knows how many of its samples are being loaded at once."""

    def __init__(self, size: int, parties: int = 1) -> None:
        self.size = size
        self.barrier = threading.Barrier(parties)
        self.lock = threading.Lock()
        self.counts = {"now": 0, "peak": 0}

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            self.counts["now"] += 1
            self.counts["peak"] = max(self.counts.values())
        self.barrier.wait(20)
        sample = self.sample(index)
        with self.lock:
            self.counts["now"] -= 1
        return sample

    def sample(self, index: int) -> Any:
        return index


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("items", [2, 4, 50])
def test_batches_are_those_of_loading_one_by_one(workers: int, items: int) -> None:
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 1}
    loader = DataLoader(
        range(40),
        num_workers=workers,
        items_in_parallel=items,
        collate_fn=list,
        **options,
    )
    expected = DataLoader(range(40), collate_fn=list, **options)
    for _ in range(2):
        assert list(loader) == list(expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_as_many_samples_are_fetched_at_once_as_asked_for(workers: int) -> None:
    # The barrier opens when four samples are inside it: fewer would wait for ever.
    dataset = Watched(24, parties=4)
    loader = DataLoader(
        dataset, 8, num_workers=workers, items_in_parallel=4, collate_fn=list
    )
    assert flat(loader) == list(range(24))
    assert dataset.counts == {"now": 0, "peak": 4}


def test_every_worker_has_lanes_of_its_own() -> None:
    dataset = Watched(12, parties=6)
    loader = DataLoader(dataset, 3, num_workers=2, items_in_parallel=3, collate_fn=list)
    assert flat(loader) == list(range(12))
    assert dataset.counts["peak"] == 6


@pytest.mark.parametrize("workers", [0, 1])
def test_by_default_samples_are_fetched_one_at_a_time(workers: int) -> None:
    dataset = Watched(12)
    list(DataLoader(dataset, 4, num_workers=workers, collate_fn=list))
    assert dataset.counts["peak"] == 1


class Draws(Watched):
    """Lanes that all take part draw random numbers."""

    def sample(self, index: int) -> Any:
        return index, float(rng().random()), float(rng().random())


@pytest.mark.parametrize("workers", [0, 1])
def test_lanes_draw_the_random_numbers_of_their_samples(workers: int) -> None:
    loader = DataLoader(
        Draws(16, parties=4),
        4,
        num_workers=workers,
        items_in_parallel=4,
        shuffle=True,
        seed=3,
        collate_fn=list,
    )
    expected = DataLoader(Draws(16), 4, shuffle=True, seed=3, collate_fn=list)
    for _ in range(2):
        assert list(loader) == list(expected)


class Private(Watched):
    """Samples are the object that loads them and what it knows of its worker."""

    tag: int | None = None

    def sample(self, index: int) -> Any:
        return self, self.tag, get_worker_info()


def test_lanes_have_copies_taken_from_their_workers() -> None:
    def init(worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.tag = worker_id

    dataset = Private(6, parties=6)
    loader = DataLoader(
        dataset,
        3,
        num_workers=2,
        items_in_parallel=3,
        worker_init_fn=init,
        collate_fn=list,
    )
    rows = flat(loader)
    assert len({id(copy) for copy, _, _ in rows}) == 6
    assert dataset not in [copy for copy, _, _ in rows]
    # A lane has what the init function set, and reports its worker's info.
    assert sorted(tag for _, tag, _ in rows) == [0, 0, 0, 1, 1, 1]
    assert all(info.id == tag for _, tag, info in rows)
    assert len({id(info.dataset) for _, _, info in rows}) == 2


def test_without_workers_lanes_have_copies_and_no_info() -> None:
    dataset = Private(4, parties=4)
    (rows,) = DataLoader(dataset, 4, items_in_parallel=4, collate_fn=list)
    assert len({id(copy) for copy, _, _ in rows}) == 4
    assert [info for _, _, info in rows] == [None] * 4


@pytest.mark.parametrize("workers", WORKERS)
def test_getitem_is_called_even_if_there_is_a_getitems(workers: int) -> None:
    class Bulk(Watched):
        def __getitems__(self, indices: list[int]) -> list[int]:
            raise AssertionError("asked for all samples in one call")

    loader = DataLoader(
        Bulk(7), 3, num_workers=workers, items_in_parallel=2, collate_fn=list
    )
    # The last batch is a single sample.
    assert list(loader) == [[0, 1, 2], [3, 4, 5], [6]]


class Failing(Watched):
    """Samples that raise, once all samples of their batch are being loaded."""

    def __init__(self, size: int, parties: int, errors: dict[int, Exception]) -> None:
        super().__init__(size, parties)
        self.errors = errors

    def sample(self, index: int) -> Any:
        if index in self.errors:
            raise self.errors[index]
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_the_first_error_by_position_is_raised(workers: int) -> None:
    errors: dict[int, Exception] = {5: KeyError("five"), 6: OSError("six")}
    loader = DataLoader(
        Failing(12, 4, errors),
        batch_sampler=[[0, 1, 2, 3], [4, 6, 5, 7], [8, 9, 10, 11]],
        num_workers=workers,
        items_in_parallel=4,
        collate_fn=list,
    )
    iterator = iter(loader)
    assert next(iterator) == [0, 1, 2, 3]
    with pytest.raises(OSError, match="six") as caught:
        next(iterator)
    assert caught.value is errors[6]
    assert "[4, 6, 5, 7]" in caught.value.__notes__[0]
    assert next(iterator) == [8, 9, 10, 11]
    assert next(iterator, None) is None


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("position", [0, 3, 6])
def test_an_error_at_any_position_is_raised(workers: int, position: int) -> None:
    errors: dict[int, Exception] = {position: LookupError(f"at {position}")}
    loader = DataLoader(
        Failing(14, 1, errors),
        7,
        num_workers=workers,
        items_in_parallel=3,
        collate_fn=list,
    )
    iterator = iter(loader)
    with pytest.raises(LookupError, match=f"at {position}"):
        next(iterator)
    assert list(iterator) == [[7, 8, 9, 10, 11, 12, 13]]


def test_stop_iteration_of_a_lane_does_not_shorten_the_epoch() -> None:
    errors: dict[int, Exception] = {2: StopIteration()}
    loader = DataLoader(Failing(8, 4, errors), 4, items_in_parallel=4, collate_fn=list)
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iterator)
    assert list(iterator) == [[4, 5, 6, 7]]


def test_samples_that_are_not_batched_are_loaded_by_the_workers() -> None:
    loader = DataLoader(
        range(5), batch_size=None, num_workers=2, items_in_parallel=3, collate_fn=int
    )
    assert list(loader) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("batch", [[], [3]])
def test_batches_too_short_to_share(batch: list[int]) -> None:
    loader = DataLoader(
        range(5),
        batch_sampler=[batch, [0, 1, 2]],
        items_in_parallel=4,
        collate_fn=list,
    )
    assert list(loader) == [batch, [0, 1, 2]]


# Looking ahead.


def test_idle_lanes_begin_with_the_next_batch_while_one_sample_is_awaited() -> None:
    dispatched, released = threading.Event(), threading.Event()
    begun: list[int] = []

    class Held:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            begun.append(index)
            assert dispatched.wait(60)
            if index == 1:
                assert released.wait(60)
            return index

    with DataLoader(
        Held(), batch_size=4, num_workers=1, items_in_parallel=4, collate_fn=list
    ) as loader:
        iterator = iter(loader)
        dispatched.set()
        # All of the second batch, but by the three threads that are not held up.
        assert wait_until(lambda: {4, 5, 6, 7} <= set(begun)), begun
        released.set()
        assert list(iterator) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_what_the_keys_of_the_next_batch_raise_is_raised_in_its_turn() -> None:
    class Keys:
        def __init__(self, keys: Sequence[int]) -> None:
            self.keys = keys

        def __len__(self) -> int:
            return len(self.keys)

        def __iter__(self) -> Iterator[int]:
            if self.keys[0] == 4:
                raise OSError("keys cannot be read")
            return iter(self.keys)

    loader = DataLoader(
        range(12),
        batch_sampler=[Keys(range(0, 4)), Keys(range(4, 8)), Keys(range(8, 12))],
        num_workers=1,
        items_in_parallel=4,
        collate_fn=list,
    )
    iterator = iter(loader)
    assert next(iterator) == [0, 1, 2, 3]
    with pytest.raises(OSError, match="cannot be read"):
        next(iterator)
    assert list(iterator) == [[8, 9, 10, 11]]


def test_a_second_iterator_is_served_although_a_batch_was_begun_ahead() -> None:
    released = threading.Event()

    class Held:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> int:
            if index == 1:
                assert released.wait(60)
            return index

    with DataLoader(
        Held(), batch_size=4, num_workers=1, items_in_parallel=4, collate_fn=sum
    ) as loader:
        first, second = iter(loader), iter(loader)
        # Both wait for the held sample; neither loses what was begun ahead for it.
        released.set()
        expected = [sum(range(k, k + 4)) for k in range(0, 40, 4)]
        taken = [(next(first), next(second)) for _ in expected]
        assert taken == [(value, value) for value in expected]


def test_a_lane_that_is_late_begins_nothing_for_the_next_epoch() -> None:
    ticket = Ticket(3, 6, [6, 7])
    lanes = Lanes(0)
    team = Team(lanes, range(9), "none", Scope(0, 0))

    def claim() -> Ticket:
        # The worker leaves the epoch meanwhile, and enters the next one.
        team.forget()
        team.look_ahead(lambda: None)
        return ticket

    team.look_ahead(claim)
    batch = team.fetch(range(9), list, (2, 4, [4, 5]), Scope(0, 0))
    assert batch == [4, 5]
    assert not team.tickets
    assert team.fetch(range(9), list, (3, 0, [0, 1]), Scope(0, 1)) == [0, 1]

"""An epoch: what comes, in which order, how often, and what an iterator promises."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import MakeLoader

from dataloader import DataLoader


def flat(batches: Any) -> list[Any]:
    return [sample for batch in batches for sample in batch]


@pytest.mark.parametrize(
    ("samples", "batch_size", "drop_last", "sizes"),
    [
        (20, 3, False, [3] * 6 + [2]),
        (0, 3, False, []),
        (1, 3, False, [1]),
        (1, 1, False, [1]),
        (3, 1, False, [1, 1, 1]),
        (4, 4, False, [4]),
        (4, 9, False, [4]),
        (4, 9, True, []),
        (9, 3, True, [3, 3, 3]),
        (10, 3, True, [3, 3, 3]),
        (100, 7, False, [7] * 14 + [2]),
    ],
)
def test_every_sample_comes_once_in_ascending_order(
    make_loader: MakeLoader,
    samples: int,
    batch_size: int,
    drop_last: bool,
    sizes: list[int],
) -> None:
    loader = make_loader(
        range(samples), batch_size=batch_size, drop_last=drop_last, collate_fn=list
    )
    batches = list(loader)
    assert [len(batch) for batch in batches] == sizes
    assert flat(batches) == list(range(sum(sizes)))
    assert len(loader) == len(sizes)


def test_epochs_are_equal_without_shuffle(make_loader: MakeLoader) -> None:
    loader = make_loader(range(7), batch_size=3, collate_fn=list)
    for _ in range(5):
        assert list(loader) == [[0, 1, 2], [3, 4, 5], [6]]


def test_samples_are_handed_over_as_they_are(make_loader: MakeLoader) -> None:
    dataset = [1, "a", 2.5, None, b"x", {"k": object()}, object()]
    received = flat(make_loader(dataset, batch_size=2, collate_fn=list))
    assert all(a is b for a, b in zip(received, dataset, strict=True))


def test_a_batch_is_what_collate_fn_returns(make_loader: MakeLoader) -> None:
    loader = make_loader(range(12), batch_size=4, collate_fn=sum)
    assert list(loader) == [6, 22, 38]


def test_collate_fn_is_given_a_list(make_loader: MakeLoader) -> None:
    assert list(make_loader(range(5), batch_size=2, collate_fn=type)) == [list] * 3


def test_default_collation_makes_one_array_for_each_field(
    make_loader: MakeLoader,
) -> None:
    rows = [{"x": i, "y": 2 * i} for i in range(4)]
    batches = list(make_loader(rows, batch_size=2))
    assert [np.asarray(batch["x"]).tolist() for batch in batches] == [[0, 1], [2, 3]]
    assert [np.asarray(batch["y"]).tolist() for batch in batches] == [[0, 2], [4, 6]]


def test_shuffle_covers_everything_and_epochs_differ(make_loader: MakeLoader) -> None:
    loader = make_loader(range(100), batch_size=7, shuffle=True, collate_fn=list)
    first, second = flat(loader), flat(loader)
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second


def test_seed_decides_the_order_of_every_epoch(make_loader: MakeLoader) -> None:
    def epochs(loader: DataLoader[Any]) -> list[Any]:
        return [flat(loader) for _ in range(3)]

    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "collate_fn": list}
    ours = epochs(make_loader(range(50), seed=7, **options))
    assert ours == epochs(DataLoader(range(50), seed=7, **options))
    assert all(sorted(epoch) == list(range(50)) for epoch in ours)
    assert len({tuple(epoch) for epoch in ours}) == 3
    assert ours[0] != flat(make_loader(range(50), seed=8, **options))


def test_order_holds_when_later_batches_are_ready_first() -> None:
    later_is_ready = threading.Event()

    class Reversed:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            if index == 0:
                assert later_is_ready.wait(20)
            if index == 3:
                later_is_ready.set()
            return index

    loader = DataLoader(Reversed(), num_workers=2, collate_fn=list)
    assert flat(loader) == list(range(6))


@pytest.mark.parametrize("workers", [4, 20])
def test_there_may_be_more_workers_than_batches(workers: int) -> None:
    loader = DataLoader(range(4), num_workers=workers, collate_fn=list)
    assert list(loader) == [[0], [1], [2], [3]]
    assert list(DataLoader([], num_workers=workers, collate_fn=list)) == []


@pytest.mark.parametrize("depth", [1, 100, 10**12, 2**64 - 1])
def test_any_prefetch_depth_gives_the_same_batches(depth: int) -> None:
    loader = DataLoader(
        range(9), batch_size=2, num_workers=2, prefetch_depth=depth, collate_fn=list
    )
    for _ in range(2):
        assert flat(loader) == list(range(9))


def test_a_dataset_that_grew_is_seen_by_the_next_epoch(make_loader: MakeLoader) -> None:
    dataset = [0, 1, 2]
    loader = make_loader(dataset, batch_size=2, collate_fn=list)
    assert len(loader) == 2
    assert list(loader) == [[0, 1], [2]]
    dataset += [3, 4]
    assert len(loader) == 3
    assert list(loader) == [[0, 1], [2, 3], [4]]


# Samplers.


def test_a_sampler_decides_the_order(make_loader: MakeLoader) -> None:
    loader = make_loader(
        range(10), batch_size=3, sampler=[9, 0, 4, 4, 2], collate_fn=list
    )
    for _ in range(2):
        assert list(loader) == [[9, 0, 4], [4, 2]]
    assert len(loader) == 2


def test_keys_may_be_anything_the_dataset_takes(make_loader: MakeLoader) -> None:
    by_name = make_loader({"a": 1, "b": 2}, sampler=["b", "a"], collate_fn=list)
    assert list(by_name) == [[2], [1]]
    from_the_end = make_loader([5, 6, 7], sampler=[-1, 0, np.int64(1)], collate_fn=list)
    assert list(from_the_end) == [[7], [5], [6]]


@pytest.mark.parametrize(
    "batches",
    [
        [[3, 1], [2]],
        [(3, 1), (2,)],
        [range(3, 0, -2), range(2, 3)],
        [np.array([3, 1]), np.array([2])],
    ],
    ids=["lists", "tuples", "ranges", "arrays"],
)
def test_a_batch_sampler_may_yield_any_iterable_of_keys(
    make_loader: MakeLoader, batches: list[Any]
) -> None:
    loader = make_loader(range(4), batch_sampler=batches, collate_fn=list)
    assert list(loader) == [[3, 1], [2]]
    one_shot = map(iter, batches)
    loader = make_loader(range(4), batch_sampler=one_shot, collate_fn=list)
    assert list(loader) == [[3, 1], [2]]


def test_an_endless_sampler_is_asked_only_for_what_is_due(
    make_loader: MakeLoader,
) -> None:
    loader = make_loader(
        range(3), batch_size=2, sampler=itertools.cycle([2, 0]), collate_fn=list
    )
    assert list(itertools.islice(loader, 10)) == [[2, 0]] * 10


def test_a_sampler_that_is_an_iterator_is_used_up_by_one_epoch(
    make_loader: MakeLoader,
) -> None:
    loader = make_loader(range(3), sampler=iter([2, 0]), collate_fn=list)
    assert list(loader) == [[2], [0]]
    assert list(loader) == []


class WatchedSampler:
    """A sampler, or a batch sampler, that notes who asks it."""

    def __init__(self, keys: list[Any]) -> None:
        self.keys = keys
        self.starts = 0
        self.threads: set[int] = set()

    def __iter__(self) -> Iterator[Any]:
        self.starts += 1
        self.threads.add(threading.get_ident())
        for key in self.keys:
            self.threads.add(threading.get_ident())
            yield key

    def __len__(self) -> int:
        return len(self.keys)


@pytest.mark.parametrize(
    ("option", "keys"),
    [("sampler", [2, 0, 1]), ("batch_sampler", [[2], [0], [1]])],
)
def test_a_sampler_is_started_once_an_epoch_and_advanced_by_the_consumer(
    make_loader: MakeLoader, option: str, keys: list[Any]
) -> None:
    watched = WatchedSampler(keys)
    loader = make_loader(range(3), collate_fn=list, **{option: watched})
    for epoch in (1, 2):
        assert list(loader) == [[2], [0], [1]]
        assert watched.starts == epoch
    assert watched.threads == {threading.get_ident()}


def test_a_single_key_sampler_is_started_once_without_batching(
    make_loader: MakeLoader,
) -> None:
    watched = WatchedSampler([2, 0])
    loader = make_loader(range(3), batch_size=None, sampler=watched)
    assert [int(sample) for sample in loader] == [2, 0]
    assert watched.starts == 1


# Iterators.


def test_len_of_an_iterator_is_the_number_of_batches_of_the_epoch(
    make_loader: MakeLoader,
) -> None:
    loader = make_loader(range(7), batch_size=3, collate_fn=list)
    iterator = iter(loader)
    for _ in range(3):
        assert len(iterator) == 3
        next(iterator)
    assert len(iterator) == 3


def test_an_iterator_over_a_sampler_without_a_length_has_none(
    make_loader: MakeLoader,
) -> None:
    loader = make_loader(range(3), sampler=(i for i in range(3)), collate_fn=list)
    iterator = iter(loader)
    with pytest.raises(TypeError):
        len(iterator)
    with pytest.raises(TypeError):
        len(loader)
    assert flat(iterator) == [0, 1, 2]


def test_an_exhausted_iterator_stays_exhausted(make_loader: MakeLoader) -> None:
    iterator = iter(make_loader(range(2), collate_fn=list))
    assert len(list(iterator)) == 2
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


def test_an_iterator_is_its_own_iterator(make_loader: MakeLoader) -> None:
    iterator = iter(make_loader(range(2), collate_fn=list))
    assert iter(iterator) is iterator


def test_a_second_iter_begins_a_new_epoch(make_loader: MakeLoader) -> None:
    loader = make_loader(range(6), batch_size=2, collate_fn=list)
    first = iter(loader)
    assert next(first) == [0, 1]
    second = iter(loader)
    assert second is not first
    assert next(second) == [0, 1]
    assert next(first) == [2, 3]


def test_two_iterators_can_be_zipped(make_loader: MakeLoader) -> None:
    loader = make_loader(range(20), batch_size=3, collate_fn=list)
    pairs = list(zip(loader, loader, strict=True))
    assert len(pairs) == 7
    assert all(a == b for a, b in pairs)


def test_two_live_iterators_are_two_epochs(make_loader: MakeLoader) -> None:
    options: dict[str, Any] = {
        "batch_size": 4,
        "shuffle": True,
        "seed": 1,
        "collate_fn": list,
    }
    loader = make_loader(range(40), **options)
    pairs = list(zip(loader, loader, strict=True))
    fresh = DataLoader(range(40), **options)
    assert [a for a, _ in pairs] == list(fresh)
    assert [b for _, b in pairs] == list(fresh)


def test_persistent_workers_give_the_same_iterator_begun_anew() -> None:
    loader = DataLoader(
        range(6), 2, num_workers=2, persistent_workers=True, collate_fn=list
    )
    first = iter(loader)
    assert next(first) == [0, 1]
    assert next(first) == [2, 3]
    assert iter(loader) is first
    assert list(first) == [[0, 1], [2, 3], [4, 5]]
    assert list(loader) == [[0, 1], [2, 3], [4, 5]]


def test_without_workers_every_iter_is_a_new_iterator() -> None:
    loader = DataLoader(range(3), collate_fn=list)
    assert iter(loader) is not iter(loader)


# The number of the epoch.


def test_iter_takes_the_epoch_and_advances_it(make_loader: MakeLoader) -> None:
    options: dict[str, Any] = {
        "batch_size": 4,
        "shuffle": True,
        "seed": 3,
        "collate_fn": list,
    }
    reference = DataLoader(range(30), **options)
    epochs = [list(reference) for _ in range(4)]
    loader = make_loader(range(30), **options)
    for _ in range(2):
        iter(loader)  # an epoch that is broken off counts as well
    assert list(loader) == epochs[2]
    assert list(loader) == epochs[3]


def test_set_epoch_decides_what_the_next_epoch_is(make_loader: MakeLoader) -> None:
    options: dict[str, Any] = {
        "batch_size": 4,
        "shuffle": True,
        "seed": 3,
        "collate_fn": list,
    }
    reference = DataLoader(range(30), **options)
    epochs = [list(reference) for _ in range(4)]
    loader = make_loader(range(30), **options)
    loader.set_epoch(3)
    assert list(loader) == epochs[3]
    loader.set_epoch(0)
    assert list(loader) == epochs[0]
    assert list(loader) == epochs[1]
    running = iter(loader)
    first = next(running)
    loader.set_epoch(0)
    assert [first, *running] == epochs[2]


@pytest.mark.parametrize("epoch", [1.5, "1", None])
def test_set_epoch_takes_whole_numbers_only(epoch: Any) -> None:
    with pytest.raises(TypeError, match="epoch"):
        DataLoader(range(3)).set_epoch(epoch)


def test_set_epoch_refuses_negative_numbers() -> None:
    with pytest.raises(ValueError, match=r"epoch.*-1"):
        DataLoader(range(3)).set_epoch(-1)

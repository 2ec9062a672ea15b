"""Samplers without torch's help: orders, laziness, lengths, checks, interrupts.

What PyTorch's samplers do on the same input is compared in `parity`.
"""

from __future__ import annotations

import copy
import dis
import functools
import itertools
import math
import pickle
import sys
import tracemalloc
import types
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dataloader._torch
from dataloader import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from dataloader._fast import derive_key, permute_range
from dataloader.errors import InterruptedSamplerError
from dataloader.samplers import IndexIterator, weighted

SEEDED: dict[str, Callable[..., Any]] = {
    "random": lambda **o: RandomSampler(range(50), **o),
    "replacement": lambda **o: RandomSampler(range(50), True, 70, **o),
    "oversampling": lambda **o: RandomSampler(range(50), num_samples=120, **o),
    "subset": lambda **o: SubsetRandomSampler(list(range(100, 150)), **o),
    "weighted": lambda **o: WeightedRandomSampler(np.arange(50), 70, **o),
    "weighted once": lambda **o: WeightedRandomSampler(
        np.arange(50), 40, replacement=False, **o
    ),
}

ALL: dict[str, Callable[[], Any]] = {
    **{name: functools.partial(make, seed=3) for name, make in SEEDED.items()},
    "sequential": lambda: SequentialSampler(range(50)),
    "distributed": lambda: DistributedSampler(range(50), 3, 1, seed=3),
    "in order": lambda: DistributedSampler(range(50), 3, 1, shuffle=False),
    "long": lambda: RandomSampler(range(10_000), seed=3),
}


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package believe that torch has not been loaded."""
    monkeypatch.setattr(dataloader._torch, "loaded", lambda name: None)


# --- lengths and contents -------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_the_length_is_the_number_of_indices(name: str) -> None:
    sampler = ALL[name]()
    assert len(list(sampler)) == len(sampler)


@pytest.mark.parametrize("name", ALL)
def test_indices_are_plain_integers(name: str) -> None:
    sampler = ALL[name]()
    assert {type(i) for i in sampler} == {int}
    assert {type(i) for i in iter(sampler).take(20)} == {int}


def test_sequential_indices_follow_the_length_of_growing_data() -> None:
    data = ["a", "b"]
    sampler = SequentialSampler(data)
    assert list(sampler) == [0, 1]
    data.append("c")
    assert len(sampler) == 3
    assert list(sampler) == [0, 1, 2]


def test_a_random_order_has_each_index_once_and_follows_growing_data() -> None:
    data = list(range(100))
    sampler = RandomSampler(data, seed=0)
    assert sorted(sampler) == list(range(100))
    assert list(sampler) != list(range(100))
    data.append(100)
    assert len(sampler) == sampler.num_samples == 101
    assert sorted(sampler) == list(range(101))


@pytest.mark.parametrize("n", [1, 3, 7, 300, 5000])
def test_oversampling_is_whole_shuffles_in_a_row_then_part_of_one(n: int) -> None:
    total = 3 * n + n // 2
    indices = list(RandomSampler(range(n), num_samples=total, seed=1))
    rounds = [indices[start : start + n] for start in range(0, total, n)]
    assert all(sorted(one) == list(range(n)) for one in rounds[:3])
    assert len(set(indices[3 * n :])) == n // 2
    assert len({tuple(one) for one in rounds[:3]}) == (
        3 if n > 3 else len({tuple(one) for one in rounds[:3]})
    )


def test_draws_with_replacement_repeat_and_stay_in_range() -> None:
    counts = Counter(RandomSampler(range(10), True, 20_000, seed=5))
    assert sorted(counts) == list(range(10))
    assert all(1800 < count < 2200 for count in counts.values())


def test_a_subset_is_shuffled_and_its_items_are_handed_out_as_they_are() -> None:
    items: list[Any] = ["x", ("y", 1), 2.5, 7]
    sampler = SubsetRandomSampler(items, seed=4)
    drawn = list(sampler)
    assert len(sampler) == 4
    assert {id(item) for item in drawn} == {id(item) for item in items}
    orders = set()
    for epoch in range(60):
        sampler.set_epoch(epoch)
        orders.add(tuple(map(str, sampler)))
    assert len(orders) > 15


def test_an_empty_subset_gives_nothing() -> None:
    sampler = SubsetRandomSampler([], seed=0)
    assert len(sampler) == 0
    assert list(sampler) == []


def test_sampling_from_no_data_is_an_error_unless_nothing_is_wanted() -> None:
    data = [1]
    sampler = RandomSampler(data, seed=0)
    data.clear()
    assert list(sampler) == []
    for replacement in (False, True):
        with pytest.raises(ValueError, match="num_samples=3"):
            iter(RandomSampler([], replacement, 3))


# --- seeds, epochs, generators --------------------------------------------------------


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_decides_the_order_of_each_epoch(name: str) -> None:
    make = SEEDED[name]
    sampler = make(seed=11)
    assert sampler.epoch == 0
    first = list(sampler)
    assert list(sampler) == first
    assert list(make(seed=11)) == first
    assert list(make(seed=12)) != first
    sampler.set_epoch(1)
    assert sampler.epoch == 1
    second = list(sampler)
    assert second != first
    # Neither a sum of the two nor their order.
    assert list(make(seed=12)) != second
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_an_order_is_the_keyed_permutation_of_seed_epoch_and_repetition() -> None:
    sampler = RandomSampler(range(20), num_samples=40, seed=9)
    sampler.set_epoch(4)
    expected = [
        permute_range(0, 20, 20, derive_key(9, 4, repetition)).tolist()
        for repetition in (0, 1)
    ]
    assert list(sampler) == expected[0] + expected[1]


@pytest.mark.parametrize("name", SEEDED)
def test_an_iterator_keeps_the_epoch_it_was_made_in(name: str) -> None:
    sampler = SEEDED[name](seed=1)
    expected = []
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        expected.append(list(sampler))
    sampler.set_epoch(0)
    first = iter(sampler)
    sampler.set_epoch(1)
    second = iter(sampler)
    sampler.set_epoch(7)
    interleaved = list(zip(first, second, strict=True))
    assert [list(column) for column in zip(*interleaved, strict=True)] == expected


@pytest.mark.parametrize("name", SEEDED)
def test_a_numpy_generator_is_asked_for_one_seed_at_the_first_index(name: str) -> None:
    generator = np.random.default_rng(0)
    sampler = SEEDED[name](generator=generator)
    before = generator.bit_generator.state
    iterator = iter(sampler)
    assert generator.bit_generator.state == before
    first = [next(iterator)]
    after = generator.bit_generator.state
    assert after != before
    first += iterator
    assert generator.bit_generator.state == after
    assert list(sampler) != first
    assert list(SEEDED[name](generator=np.random.default_rng(0))) == first


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("name", SEEDED)
def test_without_torch_seed_and_generator_each_epoch_is_another(name: str) -> None:
    sampler = SEEDED[name]()
    assert sampler.seed is None
    assert sampler.generator is None
    first = list(sampler)
    assert list(sampler) != first
    if name in ("random", "subset"):
        assert sorted(sampler) == sorted(first)


@pytest.mark.usefixtures("without_torch")
def test_without_torch_other_generators_are_refused() -> None:
    for sampler in (
        RandomSampler(range(3), generator=42),
        SubsetRandomSampler([1, 2], generator="mt19937"),
        WeightedRandomSampler([1.0], 1, generator=42),
    ):
        with pytest.raises(TypeError, match=r"generator must be a torch\.Generator"):
            next(iter(sampler))


@pytest.mark.parametrize("name", SEEDED)
@pytest.mark.parametrize(
    ("seed", "error"),
    [
        (1.0, TypeError),
        ("1", TypeError),
        (True, TypeError),
        (np.float64(1), TypeError),
        (-1, OverflowError),
        (2**64, OverflowError),
    ],
)
def test_impossible_seeds_are_refused(
    name: str, seed: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="seed"):
        SEEDED[name](seed=seed)


@pytest.mark.parametrize("name", SEEDED)
def test_the_largest_seed_works_and_a_generator_beside_it_is_refused(name: str) -> None:
    assert list(SEEDED[name](seed=2**64 - 1)) != list(SEEDED[name](seed=0))
    with pytest.raises(ValueError, match="exclude each other"):
        SEEDED[name](seed=1, generator=np.random.default_rng())


@pytest.mark.parametrize("name", ALL)
def test_samplers_can_be_copied_and_pickled(name: str) -> None:
    if name in SEEDED:
        sampler = SEEDED[name](seed=5)
        sampler.set_epoch(2)
    else:
        sampler = ALL[name]()
    expected = list(sampler)
    assert list(copy.deepcopy(sampler)) == expected
    assert list(pickle.loads(pickle.dumps(sampler))) == expected


# --- checks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: RandomSampler([1], replacement=1), TypeError, "replacement"),  # type: ignore[arg-type]
        (lambda: RandomSampler([1], num_samples=0), ValueError, "num_samples"),
        (lambda: RandomSampler([1], num_samples=-2), ValueError, "got -2"),
        (lambda: RandomSampler([1], num_samples=2.0), ValueError, "got 2.0"),  # type: ignore[arg-type]
        (lambda: RandomSampler([]), ValueError, "data_source must not be empty"),
        (lambda: RandomSampler(3), TypeError, "len"),  # type: ignore[arg-type]
        (lambda: BatchSampler([1], 0, False), ValueError, "batch_size"),
        (lambda: BatchSampler([1], True, False), ValueError, "batch_size"),
        (lambda: BatchSampler([1], 2.0, False), ValueError, "batch_size"),  # type: ignore[arg-type]
        (lambda: BatchSampler([1], 2, 0), ValueError, "drop_last"),  # type: ignore[arg-type]
        (lambda: WeightedRandomSampler([1.0], 0), ValueError, "num_samples"),
        (lambda: WeightedRandomSampler([1.0], True), ValueError, "num_samples"),
        (lambda: WeightedRandomSampler([1.0], 1, 1), ValueError, "replacement"),  # type: ignore[arg-type]
        (lambda: WeightedRandomSampler([[1.0]], 1), ValueError, r"shape \(1, 1\)"),  # type: ignore[list-item]
        (lambda: Sampler(1), TypeError, "takes no arguments"),  # type: ignore[call-arg]
        (lambda: iter(Sampler()), NotImplementedError, "__iter__"),
        (lambda: len(Sampler()), TypeError, "len"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_refused_by_name(
    make: Callable[[], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make()


# --- weights --------------------------------------------------------------------------


@pytest.mark.parametrize("replacement", [True, False])
def test_weights_decide_how_often_an_index_comes_first(replacement: bool) -> None:
    weights = [0.0, 1.0, 2.0, 0.0, 5.0, 0.0]
    counts: Counter[int] = Counter()
    sampler = WeightedRandomSampler(weights, 1, replacement, seed=0)
    for epoch in range(4000):
        sampler.set_epoch(epoch)
        counts.update(sampler)
    assert sorted(counts) == [1, 2, 4]
    statistic = sum(
        (counts[i] - 500 * weights[i]) ** 2 / (500 * weights[i]) for i in (1, 2, 4)
    )
    assert statistic < 18.4  # chi-square with 2 degrees of freedom, p = 1e-4


def test_later_draws_without_replacement_are_as_likely_as_drawing_in_turn() -> None:
    weights = [1.0, 2.0, 3.0]
    counts: Counter[tuple[int, ...]] = Counter()
    sampler = WeightedRandomSampler(weights, 3, replacement=False, seed=1)
    for epoch in range(6000):
        sampler.set_epoch(epoch)
        counts[tuple(sampler)] += 1
    statistic = 0.0
    for order in itertools.permutations(range(3)):
        first, second, _ = (weights[i] for i in order)
        expected = 6000 * first / 6 * second / (6 - first)
        statistic += (counts[order] - expected) ** 2 / expected
    assert statistic < 25.7  # 5 degrees of freedom, p = 1e-4


def test_weights_at_the_limits_of_floats_are_drawn_correctly() -> None:
    for weights in ([1e308] * 3, [5e-324] * 3, [1e-320, 0.0, 1e-320]):
        drawn = Counter(WeightedRandomSampler(weights, 900, seed=2))
        positive = [i for i, weight in enumerate(weights) if weight]
        assert sorted(drawn) == positive
        assert all(count > 600 / len(positive) for count in drawn.values())
        once = WeightedRandomSampler(weights, len(positive), False, seed=2)
        assert sorted(once) == positive


@given(
    weights=st.lists(
        st.one_of(st.just(0.0), st.floats(1e-300, 1e300)), min_size=1, max_size=40
    ).filter(any),
    seed=st.integers(0, 2**64 - 1),
)
def test_an_index_without_weight_never_comes(weights: list[float], seed: int) -> None:
    positive = {i for i, weight in enumerate(weights) if weight}
    assert set(WeightedRandomSampler(weights, 50, seed=seed)) <= positive
    once = list(WeightedRandomSampler(weights, len(positive), False, seed=seed))
    assert len(once) == len(positive)
    assert set(once) == positive


@pytest.mark.parametrize("replacement", [True, False])
def test_more_weights_than_torch_takes_are_drawn_from(replacement: bool) -> None:
    # Weight at both ends, next to zeros, and in the midst of them.
    n = 2**24 + 3
    weights = np.zeros(n)
    positive = [0, 2**23, n - 1]
    weights[positive] = [3.0, 1.0, 2.0]
    drawn = Counter(WeightedRandomSampler(weights, 3, replacement, seed=6))
    assert set(drawn) <= set(positive)
    if not replacement:
        assert sorted(drawn) == positive


def test_draws_are_the_same_for_ever() -> None:
    weights = [0.0, 0.5, 3.0, 0.0, 1e-300, 7.0, 1.0, 2.5, 0.1, 0.0]
    sampler = WeightedRandomSampler(weights, 12, seed=2026)
    once = WeightedRandomSampler(weights, 7, replacement=False, seed=2026)
    assert list(sampler) == [6, 5, 5, 5, 7, 5, 7, 2, 5, 5, 5, 5]
    assert list(once) == [7, 5, 2, 1, 6, 8, 4]
    sampler.set_epoch(3)
    once.set_epoch(3)
    assert list(sampler) == [5, 5, 8, 2, 2, 5, 7, 5, 7, 5, 2, 5]
    assert list(once) == [5, 7, 2, 1, 6, 8, 4]


def test_weights_as_far_apart_as_floats_can_be_are_ranked_by_weight() -> None:
    weights = [5e-324, 1.7e308, 0.0, 1e-160, 1e150]
    for seed in range(50):
        once = WeightedRandomSampler(weights, 4, replacement=False, seed=seed)
        assert list(once) == [1, 4, 3, 0]


def test_ratios_are_in_the_order_of_fractions() -> None:
    random = np.random.default_rng(0)
    numerators = np.exp(random.uniform(-37, 4, 300))
    weights = np.exp(random.uniform(-744, 709, 300))
    weights[:2] = 5e-324, 1.7e308
    order = np.argsort(weighted._ratios(numerators, weights), kind="stable")
    ratios = [
        Fraction(a) / Fraction(b) for a, b in zip(numerators, weights, strict=True)
    ]
    assert order.tolist() == sorted(range(300), key=ratios.__getitem__)


def test_our_logarithm_is_that_of_the_library_up_to_rounding() -> None:
    steps = np.arange(1, 2000) * 2.0**-53
    values = np.concatenate([steps, 1 - steps, np.linspace(0.001, 1, 5000), [0.5, 0.7]])
    np.testing.assert_allclose(weighted._log(values), np.log(values), rtol=1e-15)
    assert weighted._log(np.ones(1)) == 0


def test_a_race_of_many_is_that_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.arange(1000) % 7
    make = functools.partial(WeightedRandomSampler, weights, 600, False, seed=4)
    expected = list(make())
    monkeypatch.setattr(weighted, "_RUN_AT_ONCE", 64)
    assert list(make()) == expected


def test_the_whole_sum_of_weights_belongs_to_the_last_positive_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A uniform number that is rounded up to 1 must not point behind the weights.
    monkeypatch.setattr(weighted, "uniforms", lambda start, count, key: np.ones(count))
    assert list(WeightedRandomSampler([1.0, 3.0, 0.0], 3, seed=0)) == [1, 1, 1]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([0.0, 0.0], "all be zero"),
        ([1.0, -1.0], "-1.0 at index 1"),
        ([math.nan, 1.0], "nan at index 0"),
        ([1.0, math.inf], "inf at index 1"),
        ([], "all be zero"),
    ],
)
@pytest.mark.parametrize("replacement", [True, False])
def test_weights_that_are_no_distribution_are_an_error_at_the_first_index(
    weights: list[float], words: str, replacement: bool
) -> None:
    iterator = iter(WeightedRandomSampler(weights, 2, replacement, seed=0))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=words):
            next(iterator)


def test_too_few_positive_weights_without_replacement_name_both_numbers() -> None:
    sampler = WeightedRandomSampler([1.0, 0.0, 2.0], 3, replacement=False, seed=0)
    with pytest.raises(RuntimeError, match=r"num_samples=3 .* 2 are positive"):
        next(iter(sampler))


@pytest.mark.usefixtures("without_torch")
def test_without_torch_weights_are_an_array() -> None:
    sampler = WeightedRandomSampler([1, 0, 3], 5)
    assert isinstance(sampler.weights, np.ndarray)
    assert sampler.weights.dtype == np.float64
    assert set(sampler) <= {0, 2}


# --- distributed ----------------------------------------------------------------------

SHARES = [
    (n, world, drop_last)
    for n in (0, 1, 2, 5, 10, 11, 12, 5003)
    for world in (1, 2, 3, 5, 16)
    for drop_last in (False, True)
]


@pytest.mark.parametrize(("n", "world", "drop_last"), SHARES)
def test_processes_share_one_order_dealt_out_in_turn(
    n: int, world: int, drop_last: bool
) -> None:
    def make(rank: int, world: int) -> DistributedSampler[int]:
        sampler: DistributedSampler[int] = DistributedSampler(
            range(n), world, rank, seed=5, drop_last=drop_last
        )
        sampler.set_epoch(3)
        return sampler

    whole = list(make(0, 1))
    assert sorted(whole) == list(range(n))
    shares = [list(make(rank, world)) for rank in range(world)]
    total = n // world * world if drop_last else -(-n // world) * world
    assert {len(share) for share in shares} == {total // world}
    assert make(0, world).total_size == total
    dealt = list(itertools.chain.from_iterable(zip(*shares, strict=True)))
    repeats = -(-total // n) if n else 0
    assert dealt == (whole * repeats)[:total]


def test_the_shared_order_is_that_of_a_random_sampler_with_the_same_seed() -> None:
    for n in (100, 10_000):
        distributed: DistributedSampler[int] = DistributedSampler(
            range(n), 1, 0, seed=6
        )
        random = RandomSampler(range(n), seed=6)
        for epoch in (0, 1):
            distributed.set_epoch(epoch)
            random.set_epoch(epoch)
            assert list(distributed) == list(random)


def test_seed_and_epoch_of_the_shared_order_are_not_added_up() -> None:
    one: DistributedSampler[int] = DistributedSampler(range(100), 1, 0, seed=0)
    other: DistributedSampler[int] = DistributedSampler(range(100), 1, 0, seed=1)
    one.set_epoch(1)
    assert list(one) != list(other)


@pytest.mark.parametrize("rank", [-1, 2, 3])
def test_a_rank_outside_of_the_world_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"num_replicas=2.*got {rank}"):
        DistributedSampler(range(4), 2, rank)


def test_a_seed_that_is_no_integer_is_refused_at_once() -> None:
    with pytest.raises(TypeError):
        DistributedSampler(range(4), 2, 0, seed="a")  # type: ignore[arg-type]
    negative: DistributedSampler[int] = DistributedSampler(range(4), 2, 0, seed=-1)
    assert len(list(negative)) == 2


@pytest.mark.usefixtures("without_torch")
def test_without_torch_rank_and_world_must_be_given() -> None:
    with pytest.raises(RuntimeError, match="num_replicas=None"):
        DistributedSampler(range(4))
    with pytest.raises(RuntimeError, match="rank=None"):
        DistributedSampler(range(4), 2)


@pytest.mark.parametrize(
    ("drop_last", "change"), [(False, 7), (False, 0), (True, 3), (True, 0)]
)
def test_data_that_do_not_fit_the_shares_any_more_are_an_error(
    drop_last: bool, change: int
) -> None:
    data = list(range(5))
    sampler: DistributedSampler[int] = DistributedSampler(
        data, 2, 0, drop_last=drop_last
    )
    data[:] = range(change)
    with pytest.raises(AssertionError, match=f"dataset has {change} samples"):
        iter(sampler)


# --- batches --------------------------------------------------------------------------


class OnlyIterable:
    """A sampler like a user's: its iterator is a generator."""

    def __init__(self, indices: Any) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[Any]:
        yield from self.indices


@pytest.mark.parametrize("make", [OnlyIterable, list, SequentialSampler])
@pytest.mark.parametrize("batch_size", [1, 3, 4, 12, 100])
@pytest.mark.parametrize("n", [0, 1, 11, 12])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_consecutive_lists(
    make: Any, batch_size: int, n: int, drop_last: bool
) -> None:
    batches = list(BatchSampler(make(range(n)), batch_size, drop_last))
    whole = [list(range(n))[i : i + batch_size] for i in range(0, n, batch_size)]
    if drop_last:
        whole = [batch for batch in whole if len(batch) == batch_size]
    assert batches == whole
    assert all(type(batch) is list for batch in batches)
    if make is not OnlyIterable:
        sampler = BatchSampler(make(range(n)), batch_size, drop_last)
        assert len(sampler) == len(whole)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("batch_size", [1, 7, 64, 3000])
def test_batches_hold_what_the_sampler_gives(name: str, batch_size: int) -> None:
    indices = list(ALL[name]())
    batches = list(BatchSampler(ALL[name](), batch_size, False))
    assert [i for batch in batches for i in batch] == indices
    assert {len(batch) for batch in batches[:-1]} <= {batch_size}


def test_a_batch_sampler_has_no_length_if_its_sampler_has_none() -> None:
    with pytest.raises(TypeError):
        len(BatchSampler(OnlyIterable([1]), 2, False))


def test_batches_can_be_of_any_keys_and_of_batches() -> None:
    make: Any = BatchSampler
    assert list(make(["a", "b", "c"], 2, False)) == [["a", "b"], ["c"]]
    inner = make(SequentialSampler(range(5)), 2, False)
    assert list(make(inner, 2, False)) == [[[0, 1], [2, 3]], [[4]]]


def test_a_batch_sampler_hands_the_epoch_to_its_sampler() -> None:
    inner = RandomSampler(range(30), seed=2)
    sampler = BatchSampler(inner, 30, False)
    (first,) = sampler
    sampler.set_epoch(1)
    assert sampler.epoch == inner.epoch == 1
    assert list(sampler) == [list(inner)] != [first]
    BatchSampler([1, 2], 2, False).set_epoch(1)


def test_making_an_iterator_of_batches_pulls_nothing() -> None:
    pulled = []

    def source() -> Iterator[int]:
        for i in range(5):
            pulled.append(i)
            yield i

    class Source:
        def __iter__(self) -> Iterator[int]:
            return source()

    iterator = iter(BatchSampler(Source(), 2, False))
    assert pulled == []
    assert next(iterator) == [0, 1]
    assert pulled == [0, 1]


def test_an_endless_sampler_gives_batches_without_end() -> None:
    class Endless:
        def __iter__(self) -> Iterator[int]:
            return itertools.count()

    iterator = iter(BatchSampler(Endless(), 3, True))
    assert [next(iterator) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


class Stumbling:
    """An iterator that raises each of some errors once, at its position."""

    def __init__(self, n: int, errors: dict[int, BaseException]) -> None:
        self.position = 0
        self.n = n
        self.errors = errors

    def __iter__(self) -> Stumbling:
        return self

    def __next__(self) -> int:
        if self.position in self.errors:
            raise self.errors.pop(self.position)
        if self.position == self.n:
            raise StopIteration
        self.position += 1
        return self.position - 1


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", range(8))
def test_an_error_of_the_sampler_loses_no_index(error: BaseException, at: int) -> None:
    source = Stumbling(7, {at: error})
    source.survives_interrupt = True  # type: ignore[attr-defined]
    iterator = iter(BatchSampler(source, 3, False))
    batches, errors = [], []
    while True:
        try:
            batches.append(next(iterator))
        except StopIteration:
            break
        except BaseException as raised:
            errors.append(raised)
    assert errors == [error]
    assert batches == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("at", [0, 2, 3, 4])
def test_a_generator_that_an_interrupt_ended_is_no_end_of_the_epoch(at: int) -> None:
    iterator = iter(
        BatchSampler(OnlyIterable(Stumbling(9, {at: KeyboardInterrupt()})), 3, False)
    )
    batches = [next(iterator) for _ in range(at // 3)]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    with pytest.raises(InterruptedSamplerError):
        next(iterator)
    rest = list(iterator)
    assert [i for batch in batches + rest for i in batch] == list(range(at))


# --- iterators ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_taking_many_is_taking_one_by_one(name: str) -> None:
    expected = list(ALL[name]())
    sizes = itertools.cycle([1, 0, 5, 2, 300, 1000, 17])
    iterator = iter(ALL[name]())
    assert isinstance(iterator, IndexIterator)
    assert iterator.survives_interrupt
    taken: list[int] = []
    while len(taken) < len(expected):
        taken += iterator.take(next(sizes))
        taken += itertools.islice(iterator, 3)
    assert taken == expected
    assert iterator.take(5) == []
    assert next(iterator, "end") == "end"
    assert iterator.take(0) == []


@pytest.mark.parametrize("name", ALL)
def test_iterators_are_objects_of_classes(name: str) -> None:
    for sampler in (ALL[name](), BatchSampler(ALL[name](), 4, False)):
        iterator = iter(sampler)
        assert not isinstance(iterator, types.GeneratorType)
        assert iter(iterator) is iterator
        list(iterator)
        assert next(iterator, None) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda n: SequentialSampler(range(n)),
        lambda n: RandomSampler(range(n), seed=0),
        lambda n: RandomSampler(range(n), True, n, seed=0),
        lambda n: DistributedSampler(range(n), 8, 7),
        lambda n: DistributedSampler(range(n), 8, 7, shuffle=False),
        lambda n: SubsetRandomSampler(range(n), seed=0),
    ],
)
@pytest.mark.parametrize("n", [10**9, sys.maxsize])
def test_a_huge_epoch_starts_in_little_memory(make: Any, n: int) -> None:
    list(itertools.islice(make(10_000), 1000))
    tracemalloc.start()
    try:
        iterator = iter(BatchSampler(make(n), 256, False))
        batches = [next(iterator) for _ in range(100)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20
    # With replacement a few of 10**9 may come twice.
    assert len({i for batch in batches for i in batch}) > 25_590
    assert all(0 <= i < n for batch in batches for i in batch)


def test_the_first_index_of_a_huge_order_makes_few_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dataloader.samplers import orders

    made = []

    def counting(start: int, stop: int, n: int, key: int) -> Any:
        made.append(stop - start)
        return permute_range(start, stop, n, key)

    monkeypatch.setattr(orders, "permute_range", counting)
    iterator = iter(RandomSampler(range(10**9), seed=0))
    assert made == []
    next(iterator)
    assert sum(made) <= 256
    iterator.take(100_000)
    next(iterator)
    assert sum(made) <= 120_000
    assert len(made) < 20


# --- interrupts -----------------------------------------------------------------------


class InterruptAt:
    """Raises KeyboardInterrupt at the k-th place where the interpreter might.

    It looks for signals after calls, at the start of functions and where loops jump
    back; only frames of the samplers' modules are counted.
    """

    def __init__(self, place: int) -> None:
        self.place = place
        self.reached = 0
        self._before: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if "samplers" not in frame.f_code.co_filename.replace("test_samplers", ""):
            return None
        frame.f_trace_opcodes = True
        if event == "call":
            self._reach()
        elif event == "opcode":
            before, self._before[frame] = self._before.get(frame), frame.f_lasti
            if before is not None and _calls_or_jumps_back(frame, before):
                self._reach()
        return self

    def _reach(self) -> None:
        self.reached += 1
        if self.reached == self.place:
            raise KeyboardInterrupt


def _calls_or_jumps_back(frame: FrameType, offset: int) -> bool:
    name = dis.opname[frame.f_code.co_code[offset]]
    return name.startswith(("CALL", "JUMP_BACKWARD"))


def drain(
    iterator: Any, step: Callable[[Any], Any], place: int
) -> tuple[list[Any], bool]:
    """Return what ``step`` gives until the end, and whether it was interrupted."""
    results: list[Any] = []
    tracer = InterruptAt(place)
    interrupted = False
    while True:
        sys.settrace(None if interrupted else tracer)
        try:
            result = step(iterator)
        except KeyboardInterrupt:
            interrupted = True
            continue
        except StopIteration:
            break
        finally:
            sys.settrace(None)
        if result == []:
            break
        results.append(result)
    return results, interrupted


STEPS: dict[str, Callable[[Any], Any]] = {
    "next": lambda iterator: iterator.__next__(),
    "take": lambda iterator: iterator.take(3),
    # Over several rounds of a generator at once.
    "take many": lambda iterator: iterator.take(10),
}


def short_samplers(generator: Any = None) -> dict[str, Callable[[], Any]]:
    def options() -> dict[str, Any]:
        return {"seed": 1} if generator is None else {"generator": generator()}

    return {
        "random": lambda: RandomSampler(range(7), **options()),
        "oversampling": lambda: RandomSampler(range(4), num_samples=10, **options()),
        "replacement": lambda: RandomSampler(range(4), True, 70, **options()),
        "subset": lambda: SubsetRandomSampler([5, 6, 7, 8], **options()),
        "weighted": lambda: WeightedRandomSampler([1.0, 2.0], 5, **options()),
    }


def assert_interrupts_lose_nothing(make: Callable[[], Any], step: Any) -> None:
    expected = drain(iter(make()), step, 0)[0]
    for place in itertools.count(1):
        results, interrupted = drain(iter(make()), step, place)
        assert results == expected, place
        if not interrupted:
            break
    assert place > 5


@pytest.mark.parametrize("name", [*short_samplers(), "sequential", "distributed"])
@pytest.mark.parametrize("step", STEPS)
def test_an_interrupted_call_can_be_made_again(name: str, step: str) -> None:
    makers = {
        **short_samplers(),
        "sequential": lambda: SequentialSampler(range(7)),
        "distributed": lambda: DistributedSampler(range(7), 2, 1),
    }
    assert_interrupts_lose_nothing(makers[name], STEPS[step])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_an_interrupted_batch_is_made_again(own: bool, drop_last: bool) -> None:
    def make() -> Any:
        data = SequentialSampler(range(8)) if own else list(range(8))
        return BatchSampler(data, 3, drop_last)

    assert_interrupts_lose_nothing(make, STEPS["next"])


@pytest.mark.parametrize("name", short_samplers())
@pytest.mark.parametrize("step", STEPS)
def test_an_interrupt_loses_no_draw_of_a_torch_generator(name: str, step: str) -> None:
    torch = pytest.importorskip("torch")
    makers = short_samplers(lambda: torch.Generator().manual_seed(3))
    assert_interrupts_lose_nothing(makers[name], STEPS[step])

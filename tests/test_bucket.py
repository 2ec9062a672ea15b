"""BucketBatchSampler: similar lengths, budgets, exact lengths, epochs, processes."""

from __future__ import annotations

import copy
import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from conftest import MakeLoader
from hypothesis import given
from hypothesis import strategies as st

import dataloader._torch
from dataloader import BucketBatchSampler, DataLoader, Sampler
from dataloader.samplers import IndexIterator, bucket

# As skewed as lengths of texts are.
SKEWED = np.exp(np.random.default_rng(0).normal(4, 0.7, 3000)).astype(int) + 1

LENGTHS = st.lists(st.integers(0, 60), max_size=150)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "shuffle": st.booleans(),
        "bucket_width": st.sampled_from([0, 0.1, 0.5, 1]),
        "seed": st.integers(0, 2**64 - 1),
    },
)
LIMITS: st.SearchStrategy[dict[str, int]] = st.one_of(
    st.builds(dict, batch_size=st.integers(1, 40)),
    st.builds(dict, max_tokens=st.integers(60, 400)),
    st.builds(dict, batch_size=st.integers(1, 8), max_tokens=st.integers(60, 400)),
)


def padded_tokens(lengths: Any, batches: Iterable[list[int]]) -> int:
    """Return the size of all batches when each is padded to its longest sample."""
    return sum(max(int(lengths[i]) for i in batch) * len(batch) for batch in batches)


def flat(batches: Iterable[list[int]]) -> list[int]:
    """Return the indices of all batches."""
    return [index for batch in batches for index in batch]


# --- what an epoch holds --------------------------------------------------------------


@given(lengths=LENGTHS, limits=LIMITS, options=OPTIONS, epoch=st.integers(0, 5))
def test_every_index_comes_once_and_the_length_is_the_number_of_batches(
    lengths: list[int], limits: Any, options: Any, epoch: int
) -> None:
    sampler = BucketBatchSampler(lengths, **limits, **options)
    before = len(sampler)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler) == before
    assert sorted(flat(batches)) == list(range(len(lengths)))
    assert all(batches)


@given(lengths=LENGTHS, limits=LIMITS, options=OPTIONS)
def test_no_batch_is_over_a_limit(
    lengths: list[int], limits: Any, options: Any
) -> None:
    for batch in BucketBatchSampler(lengths, **limits, **options):
        assert len(batch) <= limits.get("batch_size", math.inf)
        assert padded_tokens(lengths, [batch]) <= limits.get("max_tokens", math.inf)


@given(lengths=LENGTHS, limits=LIMITS, options=OPTIONS)
def test_drop_last_leaves_out_less_than_a_batch_of_the_shortest(
    lengths: list[int], limits: Any, options: Any
) -> None:
    whole = BucketBatchSampler(lengths, **limits, **options)
    sampler = BucketBatchSampler(lengths, **limits, **options, drop_last=True)
    batches = list(sampler)
    assert len(batches) == len(sampler) in (len(whole), len(whole) - 1)
    kept = set(flat(batches))
    assert len(kept) == len(flat(batches))
    dropped = set(range(len(lengths))) - kept
    assert bool(dropped) == (len(sampler) < len(whole))
    full: Counter[int] = Counter()
    for one in sampler._layout.buckets:
        full[one.batch_size] += (one.stop - one.start) // one.batch_size
    assert Counter(map(len, batches)) == +full
    if dropped:
        assert len(dropped) < sampler._layout.buckets[-1].batch_size


@pytest.mark.parametrize("drop_last", [False, True])
def test_by_count_all_batches_are_full_but_one(drop_last: bool) -> None:
    sampler = BucketBatchSampler(SKEWED[:1003], 10, drop_last=drop_last, seed=1)
    sizes = Counter(len(batch) for batch in sampler)
    assert sizes == ({10: 100} if drop_last else {10: 100, 3: 1})


def test_a_budget_gives_long_samples_smaller_batches() -> None:
    lengths = [100] * 10 + [10] * 100
    sampler = BucketBatchSampler(lengths, max_tokens=200, seed=0)
    assert Counter(map(len, sampler)) == {2: 5, 20: 5}
    both = BucketBatchSampler(lengths, 8, max_tokens=200, seed=0)
    assert Counter(map(len, both)) == {2: 5, 8: 12, 4: 1}


def test_without_shuffling_batches_go_from_the_longest_to_the_shortest() -> None:
    sampler = BucketBatchSampler([5, 1, 5, 3, 2, 4, 0], 2, shuffle=False)
    assert list(sampler) == [[0, 2], [5, 3], [4, 1], [6]]


def test_empty_samples_count_as_one_token() -> None:
    sampler = BucketBatchSampler([0] * 10, max_tokens=4, shuffle=False)
    assert list(sampler) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_no_lengths_give_no_batches() -> None:
    for shuffle in (False, True):
        sampler = BucketBatchSampler([], 4, shuffle=shuffle)
        assert len(sampler) == 0
        assert list(sampler) == []


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint64])
def test_lengths_may_be_an_array_of_any_integers(dtype: Any) -> None:
    lengths = SKEWED % 200
    expected = list(BucketBatchSampler(lengths.tolist(), max_tokens=400, seed=3))
    given_array = lengths.astype(dtype)
    assert list(BucketBatchSampler(given_array, max_tokens=400, seed=3)) == expected
    assert given_array.tolist() == lengths.tolist()


def test_indices_are_plain_integers() -> None:
    for shuffle in (False, True):
        batches = list(BucketBatchSampler(SKEWED, 7, shuffle=shuffle))
        assert {type(index) for index in flat(batches)} == {int}
        assert {type(batch) for batch in batches} == {list}


# --- padding and buckets --------------------------------------------------------------


def test_padding_is_a_sixth_of_that_of_random_batches_or_less() -> None:
    order = np.random.default_rng(1).permutation(len(SKEWED)).tolist()
    random = padded_tokens(SKEWED, [order[i : i + 32] for i in range(0, 3000, 32)])
    batches = list(BucketBatchSampler(SKEWED, 32, seed=1))
    tokens = int(SKEWED.sum())
    assert padded_tokens(SKEWED, batches) - tokens < (random - tokens) / 6


def test_most_of_a_token_budget_is_used() -> None:
    budget = int(SKEWED.max()) * 3
    batches = list(BucketBatchSampler(SKEWED, max_tokens=budget, seed=1))
    assert SKEWED.sum() > 0.85 * budget * len(batches)


@given(lengths=st.lists(st.integers(1, 500), min_size=1, max_size=400))
def test_lengths_in_a_bucket_of_several_batches_are_similar(lengths: list[int]) -> None:
    layout = BucketBatchSampler(lengths, 4)._layout
    ordered = [lengths[i] for i in layout.order]
    for one in layout.buckets[:-1]:
        longest, shortest = ordered[one.start], ordered[one.stop - 1]
        assert one.stop - one.start == 4 or shortest >= longest * 0.9
        assert (one.stop - one.start) % 4 == 0


def test_the_width_decides_between_padding_and_shuffling() -> None:
    buckets = {
        width: BucketBatchSampler(SKEWED, 8, bucket_width=width)._layout.buckets
        for width in (0, 0.1, 0.5, 1)
    }
    counts = [len(found) for found in buckets.values()]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1


def test_equal_lengths_are_shuffled_freely() -> None:
    sampler = BucketBatchSampler([7] * 1000, 10, seed=0)
    neighbours = [max(batch) - min(batch) for batch in sampler]
    assert min(neighbours) > 200


# --- seeds and epochs -----------------------------------------------------------------

LARGE = np.full(6000, 9)  # a bucket that is not shuffled whole


@pytest.mark.parametrize("lengths", [SKEWED, LARGE], ids=["small", "large"])
def test_a_seed_decides_the_batches_of_each_epoch(lengths: Any) -> None:
    sampler = BucketBatchSampler(lengths, 8, seed=1)
    first = list(sampler)
    assert list(sampler) == first == list(BucketBatchSampler(lengths, 8, seed=1))
    assert list(BucketBatchSampler(lengths, 8, seed=2)) != first
    sampler.set_epoch(1)
    second = list(sampler)
    assert len(second) == len(first)
    # Other batches, not the same ones in another order.
    repeated = {frozenset(batch) for batch in first} & {frozenset(b) for b in second}
    assert len(repeated) < len(first) / 10
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_batches_of_all_lengths_are_mixed() -> None:
    lengths = np.sort(SKEWED)
    longest = [lengths[batch].max() for batch in BucketBatchSampler(lengths, 8, seed=0)]
    rank_correlation = np.corrcoef(np.argsort(np.argsort(longest)), range(len(longest)))
    assert abs(rank_correlation[0, 1]) < 0.2


def test_each_sample_of_a_bucket_is_as_likely_in_each_batch() -> None:
    sampler = BucketBatchSampler([3] * 12, 4, seed=0)
    counts: Counter[tuple[int, int]] = Counter()
    for epoch in range(3000):
        sampler.set_epoch(epoch)
        counts.update((k, i) for k, batch in enumerate(sampler) for i in batch)
    statistic = sum(
        (counts[k, i] - 1000) ** 2 / 1000 for k in range(3) for i in range(12)
    )
    assert statistic < 62  # 22 degrees of freedom, p = 1e-5


def test_an_iterator_keeps_the_epoch_it_was_made_in() -> None:
    sampler = BucketBatchSampler(SKEWED, 8, seed=1)
    expected = list(sampler)
    iterator = iter(sampler)
    sampler.set_epoch(1)
    assert list(iterator) == expected


def test_many_batches_at_a_time_are_the_same_batches() -> None:
    sampler = BucketBatchSampler(SKEWED, 2, seed=1)
    iterator = iter(sampler)
    assert isinstance(iterator, IndexIterator)
    assert [*iterator.take(3), next(iterator), *iterator.take(5000)] == list(sampler)


def test_without_a_seed_each_epoch_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataloader._torch, "loaded", lambda name: None)
    sampler = BucketBatchSampler(SKEWED, 8)
    assert list(sampler) != list(sampler)


def test_batches_are_the_same_for_ever() -> None:
    lengths = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
    sampler = BucketBatchSampler(lengths, max_tokens=18, bucket_width=0.3, seed=2026)
    assert list(sampler) == [
        [7, 13],
        [6, 15, 1, 3, 9],
        [11, 12],
        [5, 14],
        [10, 0, 2],
        [8, 4],
    ]
    sampler.set_epoch(1)
    assert list(sampler) == [
        [13, 8],
        [4, 7],
        [5, 11],
        [10, 2, 0],
        [6, 1, 9, 3, 15],
        [12, 14],
    ]


def test_a_first_batch_is_made_without_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    make = bucket._Batches._batch

    def note(self: Any, number: int, seed: int) -> list[int]:
        made.append(number)
        return make(self, number, seed)

    monkeypatch.setattr(bucket._Batches, "_batch", note)
    iterator = iter(BucketBatchSampler(LARGE, 1, seed=0))
    assert made == []
    next(iterator)
    assert len(made) < 100


# --- processes ------------------------------------------------------------------------


@given(
    lengths=LENGTHS,
    limits=LIMITS,
    options=OPTIONS,
    world=st.integers(1, 5),
    drop_last=st.booleans(),
)
def test_whole_batches_are_dealt_out_evenly(
    lengths: list[int], limits: Any, options: Any, world: int, drop_last: bool
) -> None:
    options = {"seed": 0, **limits, **options, "drop_last": drop_last}
    whole = BucketBatchSampler(lengths, **options)
    shares = [
        BucketBatchSampler(lengths, **options, num_replicas=world, rank=rank)
        for rank in range(world)
    ]
    batches = [list(share) for share in shares]
    size = {len(share) for share in shares} | {len(share) for share in batches}
    assert len(size) == 1
    counts = Counter(frozenset(batch) for share in batches for batch in share)
    expected = Counter(frozenset(batch) for batch in whole)
    missing, extra = expected - counts, counts - expected
    assert missing.total() == (len(whole) % world if drop_last else 0)
    assert extra.total() == (0 if drop_last else -len(whole) % world)


def test_processes_have_neighbours_in_length_in_a_step() -> None:
    lengths = np.arange(1, 1025)
    shares = [
        list(BucketBatchSampler(lengths, 4, num_replicas=4, rank=rank))
        for rank in range(4)
    ]
    apart = [
        max(lengths[b].max() for b in step) - min(lengths[b].min() for b in step)
        for step in zip(*shares, strict=True)
    ]
    # Four batches of buckets that are a tenth wide; one step joins the ends.
    assert sorted(apart)[-2] < 0.3 * 1024


def test_what_is_left_out_is_something_else_in_each_epoch() -> None:
    dropped: Counter[int] = Counter()
    for epoch in range(60):
        kept: set[int] = set()
        for rank in range(3):
            sampler = BucketBatchSampler(
                range(1, 21), 4, num_replicas=3, rank=rank, drop_last=True
            )
            sampler.set_epoch(epoch)
            kept.update(flat(sampler))
        assert len(kept) == 12
        dropped.update(set(range(20)) - kept)
    assert len(dropped) == 20


def test_processes_need_no_seed_to_agree() -> None:
    assert BucketBatchSampler([1], 1).seed is None
    assert BucketBatchSampler([1], 1, num_replicas=2).seed == 0


# --- checks ---------------------------------------------------------------------------


def test_a_sample_over_the_budget_is_named() -> None:
    words = r"max_tokens=10, got length 12 at index 2: raise max_tokens, truncate"
    with pytest.raises(ValueError, match=words):
        BucketBatchSampler([3, 10, 12, 11], max_tokens=10)
    assert len(BucketBatchSampler([3, 10, 10], max_tokens=10)) == 3


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: BucketBatchSampler([1]), ValueError, "batch_size, max_tokens or both"),
        (lambda: BucketBatchSampler([1], 0), ValueError, "batch_size .* got 0"),
        (lambda: BucketBatchSampler([1], True), ValueError, "batch_size .* got True"),
        (lambda: BucketBatchSampler([1], 2.0), ValueError, "batch_size"),  # type: ignore[arg-type]
        (lambda: BucketBatchSampler([1], max_tokens=-1), ValueError, "max_tokens"),
        (lambda: BucketBatchSampler([1, -2], 1), ValueError, "-2 at index 1"),
        (lambda: BucketBatchSampler([[1]], 1), ValueError, r"shape \(1, 1\)"),  # type: ignore[list-item]
        (lambda: BucketBatchSampler(iter([1]), 1), ValueError, "one dimension"),  # type: ignore[arg-type]
        (lambda: BucketBatchSampler([1.5], 1), TypeError, "whole numbers"),  # type: ignore[list-item]
        (lambda: BucketBatchSampler(["a"], 1), TypeError, "whole numbers"),  # type: ignore[list-item]
        (lambda: BucketBatchSampler([True], 1), TypeError, "whole numbers"),
        (lambda: BucketBatchSampler([1], 1, shuffle=1), ValueError, "shuffle"),  # type: ignore[arg-type]
        (lambda: BucketBatchSampler([1], 1, drop_last=0), ValueError, "drop_last"),  # type: ignore[arg-type]
        (lambda: BucketBatchSampler([1], 1, bucket_width=2), ValueError, "got 2"),
        (lambda: BucketBatchSampler([1], 1, rank=1), ValueError, "got 1"),
        (lambda: BucketBatchSampler([1], 1, num_replicas=0), ValueError, "rank"),
        (lambda: BucketBatchSampler([1], 1, seed=1.0), TypeError, "seed"),  # type: ignore[arg-type]
        (lambda: BucketBatchSampler([1], 1, seed=-1), OverflowError, "seed"),
    ],
)
def test_bad_arguments_are_refused_by_name(
    make: Callable[[], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make()


# --- with loaders ---------------------------------------------------------------------


def test_a_loader_takes_it_and_counts_its_epochs(make_loader: MakeLoader) -> None:
    sampler = BucketBatchSampler(SKEWED[:200], 8, seed=4)
    loader = make_loader(range(200), batch_sampler=sampler, collate_fn=list)
    epochs = [list(loader), list(loader)]
    assert len(loader) == len(epochs[0]) == 25
    assert epochs[0] != epochs[1]
    for epoch, batches in enumerate(epochs):
        expected = BucketBatchSampler(SKEWED[:200], 8, seed=4)
        expected.set_epoch(epoch)
        assert batches == list(expected)
    loader.set_epoch(0)
    assert sampler.epoch == 0
    assert list(loader) == epochs[0]


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_it_can_be_copied_and_pickled(copied: Any) -> None:
    sampler = BucketBatchSampler(SKEWED, 8, seed=4)
    sampler.set_epoch(2)
    assert list(copied(sampler)) == list(sampler)


def test_it_is_a_sampler_of_ours() -> None:
    assert isinstance(BucketBatchSampler([1], 1), Sampler)
    assert len(DataLoader([0], batch_sampler=BucketBatchSampler([1], 1))) == 1


def test_torch_loader_takes_it() -> None:
    torch = pytest.importorskip("torch")
    lengths = torch.tensor(SKEWED[:100])
    sampler = BucketBatchSampler(lengths, max_tokens=5000, seed=1)
    assert isinstance(sampler, torch.utils.data.Sampler)
    # Frameworks make batch samplers of torch's class anew, from a sampler and a size.
    assert not isinstance(sampler, torch.utils.data.BatchSampler)
    loader = torch.utils.data.DataLoader(range(100), batch_sampler=sampler)
    batches = [batch.tolist() for batch in loader]
    assert batches == list(BucketBatchSampler(SKEWED[:100], max_tokens=5000, seed=1))
    assert len(loader) == len(batches)


def test_torchs_global_generator_decides_where_there_is_no_seed() -> None:
    torch = pytest.importorskip("torch")
    sampler = BucketBatchSampler(SKEWED, 8)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    iterator = iter(sampler)
    ordered = list(BucketBatchSampler(SKEWED, 8, shuffle=False))
    assert torch.equal(torch.get_rng_state(), before)
    first = list(iterator)
    assert first != ordered
    assert first != list(sampler)
    torch.manual_seed(1)
    assert list(sampler) == first

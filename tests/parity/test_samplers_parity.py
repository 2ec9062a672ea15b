"""Samplers beside PyTorch's: order, draws from generators and their moment, errors."""

from __future__ import annotations

import functools
import itertools
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dataloader
from dataloader.samplers import weighted

torch = pytest.importorskip("torch")
torch_data = pytest.importorskip("torch.utils.data")

OURS: Any = dataloader
LIBRARIES = {"torch": torch_data, "ours": OURS}
WEIGHTS = [0.5, 0.0, 2.0, 1.0, 3.0, 0.25]

# Every case is made from a library and the options for a generator.
EXACT: dict[str, Callable[..., Any]] = {
    "random": lambda lib, **o: lib.RandomSampler(range(10), **o),
    "one sample": lambda lib, **o: lib.RandomSampler(range(1), **o),
    "long": lambda lib, **o: lib.RandomSampler(range(5003), **o),
    "undersampling": lambda lib, **o: lib.RandomSampler(range(10), num_samples=4, **o),
    "oversampling": lambda lib, **o: lib.RandomSampler(range(10), num_samples=37, **o),
    "whole rounds": lambda lib, **o: lib.RandomSampler(range(10), num_samples=30, **o),
    "true": lambda lib, **o: lib.RandomSampler(range(3), num_samples=True, **o),
    "replacement": lambda lib, **o: lib.RandomSampler(range(10), True, 100, **o),
    "replacement 64": lambda lib, **o: lib.RandomSampler(range(10), True, 64, **o),
    "replacement 5": lambda lib, **o: lib.RandomSampler(range(10), True, 5, **o),
    "subset": lambda lib, **o: lib.SubsetRandomSampler([5, 9, 7, 7], **o),
    "array subset": lambda lib, **o: lib.SubsetRandomSampler(np.arange(9) * 2, **o),
    "long subset": lambda lib, **o: lib.SubsetRandomSampler(range(3, 5003), **o),
    "empty subset": lambda lib, **o: lib.SubsetRandomSampler([], **o),
    "weighted": lambda lib, **o: lib.WeightedRandomSampler(WEIGHTS, 20, **o),
    "weighted once": lambda lib, **o: lib.WeightedRandomSampler(WEIGHTS, 5, False, **o),
    "weight tensor": lambda lib, **o: lib.WeightedRandomSampler(
        torch.tensor(WEIGHTS), 300, **o
    ),
}
# Without a generator these draw their order from the global one; `RandomSampler` draws
# one number and has an order of its own.
GLOBAL = [name for name in EXACT if "subset" in name or "weight" in name]
RANDOM = [name for name in EXACT if name not in GLOBAL]


def states(*generators: Any) -> list[bytes]:
    """Return where torch's global generator and some others are."""
    all_states = [torch.get_rng_state(), *(g.get_state() for g in generators)]
    return [bytes(state.numpy()) for state in all_states]


def progress(
    library: Any, case: str, own_generator: bool, batch_size: int, drop_last: bool
) -> list[tuple[Any, list[bytes]]]:
    """Return what two epochs give, and where the generators are after each step."""
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    options = {"generator": generator} if own_generator else {}
    sampler = EXACT[case](library, **options)
    seen: list[tuple[Any, list[bytes]]] = [(len(sampler), states(generator))]
    for _ in range(2):
        iterator = iter(
            library.BatchSampler(sampler, batch_size, drop_last)
            if batch_size
            else sampler
        )
        seen.append(("iter", states(generator)))
        for step in itertools.count():
            item = next(iterator, None)
            if step % 50 == 0 or step < 50 or item is None:
                seen.append((item, states(generator)))
            if item is None:
                break
    return seen


@pytest.mark.parametrize("case", EXACT)
@pytest.mark.parametrize(
    ("batch_size", "drop_last"),
    [(0, False), (1, False), (5, False), (5, True), (7, True), (64, False)],
)
def test_order_and_moments_of_draws_from_a_generator_are_those_of_torch(
    case: str, batch_size: int, drop_last: bool
) -> None:
    theirs, ours = (
        progress(library, case, True, batch_size, drop_last)
        for library in LIBRARIES.values()
    )
    assert ours == theirs


@pytest.mark.parametrize("case", GLOBAL)
@pytest.mark.parametrize("batch_size", [0, 4])
def test_order_from_the_global_generator_is_that_of_torch(
    case: str, batch_size: int
) -> None:
    theirs, ours = (
        progress(library, case, False, batch_size, False)
        for library in LIBRARIES.values()
    )
    assert ours == theirs


@pytest.mark.parametrize("case", RANDOM)
@pytest.mark.parametrize("batch_size", [0, 5])
def test_a_random_order_of_ours_moves_the_global_generator_as_torch_does(
    case: str, batch_size: int
) -> None:
    theirs, ours = (
        progress(library, case, False, batch_size, False)
        for library in LIBRARIES.values()
    )
    assert [state for _, state in ours] == [state for _, state in theirs]


@pytest.mark.parametrize("case", RANDOM)
def test_manual_seed_decides_a_random_order_of_ours(case: str) -> None:
    def epochs(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        sampler = EXACT[case](OURS)
        return [list(sampler), list(sampler)]

    first = epochs(1)
    assert epochs(1) == first
    if len(first[0]) >= 10:
        assert first[0] != first[1]
        assert epochs(2) != first


@pytest.mark.parametrize("case", EXACT)
def test_a_seed_leaves_the_global_generators_alone(case: str) -> None:
    before = states()
    numpy_before = np.random.get_state()
    sampler = EXACT[case](OURS, seed=3)
    first = list(sampler)
    sampler.set_epoch(1)
    list(sampler)
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert states() == before
    assert str(np.random.get_state()) == str(numpy_before)


@given(
    n=st.integers(1, 40),
    num_samples=st.none() | st.integers(1, 100),
    replacement=st.booleans(),
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 50)), min_size=1, max_size=12
    ),
)
def test_iterators_that_share_a_generator_draw_at_the_moments_of_torch(
    n: int, num_samples: int | None, replacement: bool, steps: list[tuple[int, int]]
) -> None:
    # What an iterator gives depends on when the others draw.
    def run(library: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(n)
        sampler = library.RandomSampler(range(n), replacement, num_samples, generator)
        iterators = [iter(sampler) for _ in range(3)]
        seen = []
        for which, count in steps:
            taken = list(itertools.islice(iterators[which], count))
            seen.append((taken, states(generator)))
        return seen

    def run_taking() -> list[Any]:
        generator = torch.Generator().manual_seed(n)
        sampler = OURS.RandomSampler(range(n), replacement, num_samples, generator)
        iterators: Any = [iter(sampler) for _ in range(3)]
        return [
            (iterators[which].take(count), states(generator)) for which, count in steps
        ]

    expected = run(torch_data)
    assert run(OURS) == expected
    assert run_taking() == expected


def test_an_exact_order_is_turned_into_integers_bit_by_bit() -> None:
    n = 2_000_000
    for sampler in (
        OURS.RandomSampler(range(n), generator=torch.Generator()),
        OURS.SubsetRandomSampler(range(n), generator=torch.Generator()),
        OURS.WeightedRandomSampler(np.ones(100), n, generator=torch.Generator()),
    ):
        tracemalloc.start()
        try:
            iterator = iter(OURS.BatchSampler(sampler, 100, False))
            for _ in range(200):
                next(iterator)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 4 * 2**20  # n Python integers would be 64 MB


# --- distributed ----------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 5, 10, 11, 12, 100])
@pytest.mark.parametrize("world", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("drop_last", [False, True])
def test_shares_in_order_are_those_of_torch(
    n: int, world: int, drop_last: bool
) -> None:
    def run(library: Any, rank: int) -> Any:
        sampler = library.DistributedSampler(
            range(n), world, rank, shuffle=False, drop_last=drop_last
        )
        return list(sampler), len(sampler), sampler.num_samples, sampler.total_size

    for rank in range(world):
        assert run(OURS, rank) == run(torch_data, rank)


@pytest.mark.parametrize("n", [1, 5, 100, 5003])
@pytest.mark.parametrize("world", [1, 3, 7])
@pytest.mark.parametrize("drop_last", [False, True])
def test_shuffled_shares_repeat_and_leave_out_as_much_as_those_of_torch(
    n: int, world: int, drop_last: bool
) -> None:
    def counts(library: Any) -> tuple[list[int], list[int]]:
        shares = [
            list(library.DistributedSampler(range(n), world, r, drop_last=drop_last))
            for r in range(world)
        ]
        times = np.bincount(list(itertools.chain(*shares)), minlength=n)
        return [len(share) for share in shares], sorted(times.tolist())

    assert counts(OURS) == counts(torch_data)


def test_rank_and_world_are_asked_of_torch_distributed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    for library in LIBRARIES.values():
        sampler = library.DistributedSampler(range(10), shuffle=False)
        assert (sampler.num_replicas, sampler.rank) == (4, 3)
        assert list(sampler) == [3, 7, 1]
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    for library in LIBRARIES.values():
        with pytest.raises(RuntimeError):
            library.DistributedSampler(range(10))


# --- errors ---------------------------------------------------------------------------


def no_length(library: Any) -> Any:
    class Endless(library.Sampler):  # type: ignore[misc, name-defined, unused-ignore]
        def __iter__(self) -> Iterator[int]:
            return itertools.count()

    return len(library.BatchSampler(Endless(), 2, False))


ERRORS: dict[str, Callable[[Any], Any]] = {
    "sampler argument": lambda lib: lib.Sampler([1]),
    "sampler iter": lambda lib: iter(lib.Sampler()),
    "sampler len": lambda lib: len(lib.Sampler()),
    "sequential len": lambda lib: list(lib.SequentialSampler(3)),
    "replacement int": lambda lib: lib.RandomSampler([1], 1),
    "replacement before num_samples": lambda lib: lib.RandomSampler([1], 1, 0),
    "num_samples 0": lambda lib: lib.RandomSampler([1], num_samples=0),
    "num_samples -1": lambda lib: lib.RandomSampler([1], num_samples=-1),
    "num_samples float": lambda lib: lib.RandomSampler([1], num_samples=2.0),
    "num_samples numpy": lambda lib: lib.RandomSampler([1], num_samples=np.int64(2)),
    "num_samples False": lambda lib: lib.RandomSampler([1], num_samples=False),
    "random no data": lambda lib: lib.RandomSampler([]),
    "random no data replacement": lambda lib: lib.RandomSampler([], True),
    "random no len": lambda lib: lib.RandomSampler(iter([1])),
    "random generator": lambda lib: next(iter(lib.RandomSampler([1], generator=42))),
    "draws generator": lambda lib: next(
        iter(lib.RandomSampler([1], True, generator="g"))
    ),
    "set num_samples": lambda lib: setattr(lib.RandomSampler([1]), "num_samples", 2),
    "subset set": lambda lib: list(lib.SubsetRandomSampler({1, 2})),
    "subset no len": lambda lib: list(lib.SubsetRandomSampler(iter([1]))),
    "subset generator": lambda lib: list(lib.SubsetRandomSampler([1], 42)),
    "weights 2d": lambda lib: lib.WeightedRandomSampler([[1.0]], 1),
    "weights 0d": lambda lib: lib.WeightedRandomSampler(1.0, 1),
    "weights str": lambda lib: lib.WeightedRandomSampler("ab", 1),
    "weighted num_samples": lambda lib: lib.WeightedRandomSampler([1.0], 0),
    "weighted num_samples bool": lambda lib: lib.WeightedRandomSampler([1.0], True),
    "weighted num_samples float": lambda lib: lib.WeightedRandomSampler([1.0], 1.0),
    "weighted replacement": lambda lib: lib.WeightedRandomSampler([1.0], 1, 1),
    "weighted generator": lambda lib: list(
        lib.WeightedRandomSampler([1.0], 1, True, 42)
    ),
    "batch_size 0": lambda lib: lib.BatchSampler([1], 0, False),
    "batch_size bool": lambda lib: lib.BatchSampler([1], True, False),
    "batch_size float": lambda lib: lib.BatchSampler([1], 1.0, False),
    "batch_size numpy": lambda lib: lib.BatchSampler([1], np.int64(2), False),
    "batch_size None": lambda lib: lib.BatchSampler([1], None, False),
    "drop_last int": lambda lib: lib.BatchSampler([1], 2, 0),
    "drop_last None": lambda lib: lib.BatchSampler([1], 2, None),
    "batch arguments": lambda lib: lib.BatchSampler([1], 2),
    "batch no iterable": lambda lib: list(lib.BatchSampler(3, 2, False)),
    "batch no len": no_length,
    "no process group": lambda lib: lib.DistributedSampler([1]),
    "no process group rank": lambda lib: lib.DistributedSampler([1], 1),
    "rank too large": lambda lib: lib.DistributedSampler([1], 2, 2),
    "rank negative": lambda lib: lib.DistributedSampler([1], 2, -1),
    "distributed no len": lambda lib: lib.DistributedSampler(iter([1]), 2, 1),
    "distributed seed": lambda lib: list(lib.DistributedSampler([1], 2, 1, seed="a")),
}
WRONG_WEIGHTS: dict[str, list[float]] = {
    "zero": [0.0, 0.0],
    "negative": [1.0, -1.0],
    "nan": [1.0, float("nan")],
    "infinite": [1.0, float("inf")],
    "none": [],
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_have_the_types_of_torch(case: str) -> None:
    types = []
    for library in LIBRARIES.values():
        with pytest.raises(Exception) as caught:  # noqa: PT011  # compared below
            ERRORS[case](library)
        types.append(caught.type)
    assert types[1] is types[0]


@pytest.mark.parametrize("weights", WRONG_WEIGHTS)
@pytest.mark.parametrize("options", [{}, {"seed": 1}], ids=["torch's order", "ours"])
def test_impossible_weights_are_an_error_at_the_first_index_as_in_torch(
    weights: str, options: dict[str, Any]
) -> None:
    theirs = torch_data.WeightedRandomSampler(WRONG_WEIGHTS[weights], 2)
    ours = OURS.WeightedRandomSampler(WRONG_WEIGHTS[weights], 2, **options)
    for iterator in (iter(theirs), iter(ours)):
        with pytest.raises(RuntimeError):
            next(iterator)


def test_too_many_draws_without_replacement_are_an_error_as_in_torch() -> None:
    for library, options in ((torch_data, {}), (OURS, {}), (OURS, {"seed": 1})):
        sampler = library.WeightedRandomSampler([1.0, 1.0], 3, False, **options)
        with pytest.raises(RuntimeError):
            next(iter(sampler))


def test_more_weights_than_torch_takes_are_drawn_with_a_seed_from_its_generator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def draws(limit: int, generator: Any = None) -> list[int]:
        monkeypatch.setattr(weighted, "_MOST_OF_TORCH", limit)
        torch.manual_seed(3)
        return list(OURS.WeightedRandomSampler(WEIGHTS, 40, generator=generator))

    # Up to the limit they are torch's, above it ours.
    torch.manual_seed(3)
    theirs = list(torch_data.WeightedRandomSampler(WEIGHTS, 40))
    assert draws(6) == theirs
    ours = draws(5)
    assert ours == draws(5) != theirs
    torch.manual_seed(3)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    assert ours == list(OURS.WeightedRandomSampler(WEIGHTS, 40, seed=seed))
    assert ours == draws(5, torch.Generator().manual_seed(3))


def test_torch_takes_as_many_weights_as_we_leave_to_it() -> None:
    weights = torch.ones(weighted._MOST_OF_TORCH + 1, dtype=torch.double)
    with pytest.raises(RuntimeError):
        next(iter(torch_data.WeightedRandomSampler(weights, 1)))
    ours = list(OURS.WeightedRandomSampler(weights, 3))
    assert all(0 <= index < len(weights) for index in ours)


# --- mixing ---------------------------------------------------------------------------

NAMES = {
    "SequentialSampler": (range(5),),
    "RandomSampler": (range(5),),
    "SubsetRandomSampler": ([1, 2],),
    "WeightedRandomSampler": ([1.0], 1),
    "BatchSampler": ([1], 1, False),
    "DistributedSampler": (range(5), 2, 1),
}


@pytest.mark.parametrize("name", NAMES)
def test_our_samplers_are_instances_of_their_counterparts(name: str) -> None:
    sampler = getattr(OURS, name)(*NAMES[name])
    assert isinstance(sampler, getattr(torch_data, name))
    assert isinstance(sampler, torch_data.Sampler)
    others = [getattr(torch_data, other) for other in NAMES if other != name]
    assert not isinstance(sampler, tuple(others))
    assert type(sampler) is getattr(OURS, name)


@pytest.mark.parametrize("name", NAMES)
def test_our_samplers_have_the_attributes_of_their_counterparts(name: str) -> None:
    ours = getattr(OURS, name)(*NAMES[name])
    theirs = getattr(torch_data, name)(*NAMES[name])
    for attribute, value in vars(theirs).items():
        assert type(getattr(ours, attribute)) is type(value), attribute


@pytest.mark.parametrize("outer", LIBRARIES)
@pytest.mark.parametrize("inner", LIBRARIES)
@pytest.mark.parametrize("drop_last", [False, True])
def test_batch_samplers_of_either_library_take_samplers_of_the_other(
    outer: str, inner: str, drop_last: bool
) -> None:
    def run(outer: str, inner: str) -> Any:
        generator = torch.Generator().manual_seed(0)
        sampler = LIBRARIES[inner].RandomSampler(range(11), generator=generator)
        batches = LIBRARIES[outer].BatchSampler(sampler, 3, drop_last)
        return len(batches), list(batches), states(generator)

    assert run(outer, inner) == run("torch", "torch")


def test_torch_loader_takes_our_samplers() -> None:
    sampler = OURS.BatchSampler(OURS.SequentialSampler(range(5)), 2, False)
    loader = torch_data.DataLoader(range(5), batch_sampler=sampler)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]


def test_weights_are_kept_as_torch_keeps_them() -> None:
    weights = torch.tensor(WEIGHTS, dtype=torch.double)
    for library in LIBRARIES.values():
        assert library.WeightedRandomSampler(weights, 2).weights is weights
        converted = library.WeightedRandomSampler([1, 2], 2).weights
        assert converted.dtype is torch.double
    seeded = OURS.WeightedRandomSampler(weights.requires_grad_(), 20, seed=0)
    assert set(seeded) <= {0, 2, 3, 4, 5}


def test_new_weights_count_from_the_next_epoch_as_in_torch() -> None:
    for library in LIBRARIES.values():
        sampler = library.WeightedRandomSampler([1.0, 0.0], 3)
        assert list(sampler) == [0, 0, 0]
        sampler.weights = torch.tensor([0.0, 1.0], dtype=torch.double)
        assert list(sampler) == [1, 1, 1]


def test_tensors_of_indices_are_handed_out_as_they_are() -> None:
    orders = []
    for library in LIBRARIES.values():
        torch.manual_seed(0)
        items = list(library.SubsetRandomSampler(torch.arange(5) + 10))
        assert all(isinstance(item, torch.Tensor) for item in items)
        orders.append([item.item() for item in items])
    assert orders[0] == orders[1]


def test_distributed_samplers_can_be_subscripted() -> None:
    for library in LIBRARIES.values():
        make = functools.partial(library.DistributedSampler[int], range(4), 2, 1)
        assert list(make(shuffle=False)) == [1, 3]

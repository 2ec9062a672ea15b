"""dataloader.rng: random numbers that depend on the place in the epoch alone."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import MakeLoader
from policies import MODES, use

from dataloader import DataLoader, IterableDataset, get_worker_info, rng

SIZE = 23


class Noise:
    """Samples are an index and a random number."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(rng().random())


def epochs(loader: DataLoader[Any], count: int = 2) -> list[list[Any]]:
    """Return the samples of some epochs."""
    return [[sample for batch in loader for sample in batch] for _ in range(count)]


def reference(dataset: Any, count: int = 2, **options: Any) -> list[list[Any]]:
    """Return the samples that a loader without workers gives."""
    return epochs(DataLoader(dataset, batch_size=4, collate_fn=list, **options), count)


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_same_numbers_for_every_backend(
    make_loader: MakeLoader, shuffle: bool
) -> None:
    loader = make_loader(
        Noise(), batch_size=4, shuffle=shuffle, seed=5, collate_fn=list
    )
    assert epochs(loader) == reference(Noise(), shuffle=shuffle, seed=5)


@pytest.mark.parametrize("batch_size", [1, 3, 8, SIZE + 1])
def test_the_same_numbers_for_every_batch_size(
    make_loader: MakeLoader, batch_size: int
) -> None:
    loader = make_loader(Noise(), batch_size=batch_size, seed=5, collate_fn=list)
    assert epochs(loader) == reference(Noise(), seed=5)


def test_the_same_numbers_without_batching(make_loader: MakeLoader) -> None:
    loader = make_loader(Noise(), batch_size=None, seed=5, collate_fn=tuple)
    assert [list(loader), list(loader)] == reference(Noise(), seed=5)


def test_the_same_numbers_for_batches_of_unequal_sizes(make_loader: MakeLoader) -> None:
    batches = [[0], [1, 2, 3], [], range(4, 10), tuple(range(10, SIZE))]
    loader = make_loader(Noise(), batch_sampler=batches, seed=5, collate_fn=list)
    assert epochs(loader) == reference(Noise(), seed=5)


def test_the_same_numbers_in_arrival_order(make_loader: MakeLoader) -> None:
    loader = make_loader(Noise(), 3, seed=5, in_order=False, collate_fn=list)
    assert [sorted(epoch) for epoch in epochs(loader)] == reference(Noise(), seed=5)


def test_the_same_numbers_after_an_epoch_that_was_broken_off(
    make_loader: MakeLoader,
) -> None:
    loader = make_loader(Noise(), batch_size=4, seed=5, collate_fn=list)
    next(iter(loader))
    assert epochs(loader, 1) == reference(Noise(), seed=5)[1:]


def test_the_same_numbers_with_persistent_workers() -> None:
    loader = DataLoader(
        Noise(), 4, num_workers=2, persistent_workers=True, seed=5, collate_fn=list
    )
    assert epochs(loader, 3) == reference(Noise(), 3, seed=5)


@pytest.mark.parametrize("place", ["sample", "collate_fn", "worker"])
@pytest.mark.parametrize("items_in_parallel", [1, 2])
def test_an_epoch_that_is_set_again_has_the_same_numbers(
    place: str, items_in_parallel: int
) -> None:
    """Also where a worker's first place is the one at which it drew last."""

    def draw(where: str) -> float:
        if place == "worker":
            info = get_worker_info()
            assert info is not None
            assert info.rng is not None
            return info.rng.random_generator.random()
        return float(rng().random()) if where == place else 0.0

    class Lone:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> float:
            return draw("sample")

    loader = DataLoader(
        Lone(),
        num_workers=1,
        persistent_workers=True,
        items_in_parallel=items_in_parallel,
        seed=2,
        collate_fn=lambda batch: (batch, draw("collate_fn")),
        help=False,
    )
    numbers: list[Any] = []
    with loader:
        for epoch in (3, 3, 4, 3, 3):
            loader.set_epoch(epoch)
            numbers += loader
    assert numbers[1] == numbers[3] == numbers[4] == numbers[0] != numbers[2]


@pytest.mark.parametrize("mode", ["no workers", "inline", "helping"])
def test_a_batch_that_an_interrupt_broke_off_has_the_same_numbers(mode: str) -> None:
    def collate(batch: list[Any]) -> Any:
        [(index, _)] = batch
        if index in left and threading.current_thread() is threading.main_thread():
            left.remove(index)
            raise KeyboardInterrupt
        return batch, rng().random()

    def make() -> DataLoader[Any]:
        workers = 0 if mode == "no workers" else 2
        loader = DataLoader(Noise(), num_workers=workers, seed=5, collate_fn=collate)
        if workers:
            use(loader, MODES[mode]())
        return loader

    left: set[int] = set()
    expected = list(make())
    left.update({0, 7, 8, SIZE - 1})
    iterator = iter(make())
    seen: list[Any] = []
    while True:
        try:
            seen.extend(iterator)
            break
        except KeyboardInterrupt:
            pass
    # A worker that has just started may be quicker than a consumer that helps.
    assert not left or mode == "helping"
    assert seen == expected


def test_numbers_differ_between_samples_epochs_and_seeds() -> None:
    rows = [*reference(Noise(), 3, seed=5), *reference(Noise(), 3, seed=6)]
    numbers = [number for row in rows for _, number in row]
    assert len(set(numbers)) == 6 * SIZE


def test_numbers_differ_between_loaders_without_a_seed(make_loader: MakeLoader) -> None:
    first, second = (
        epochs(make_loader(Noise(), batch_size=4, collate_fn=list)) for _ in range(2)
    )
    numbers = [number for row in first + second for _, number in row]
    assert len(set(numbers)) == 4 * SIZE


def test_repeated_draws_of_one_index_differ(make_loader: MakeLoader) -> None:
    loader = make_loader(Noise(), 2, sampler=[7] * 6, seed=5, collate_fn=list)
    ((*samples,),) = epochs(loader, 1)
    assert {index for index, _ in samples} == {7}
    assert len({number for _, number in samples}) == 6


def test_set_epoch_decides_the_numbers(make_loader: MakeLoader) -> None:
    expected = reference(Noise(), 4, seed=5)
    loader = make_loader(Noise(), batch_size=4, seed=5, collate_fn=list)
    loader.set_epoch(3)
    assert epochs(loader, 1) == expected[3:]
    loader.set_epoch(1)
    assert epochs(loader) == expected[1:3]


def test_a_seed_keys_the_numbers_of_a_users_sampler(make_loader: MakeLoader) -> None:
    order = list(range(SIZE))
    random.Random(0).shuffle(order)
    loader = make_loader(Noise(), 4, sampler=order, seed=5, collate_fn=list)
    for ours, expected in zip(epochs(loader), reference(Noise(), seed=5), strict=True):
        assert [index for index, _ in ours] == order
        assert [number for _, number in ours] == [number for _, number in expected]


def test_calls_for_one_sample_continue_one_stream(make_loader: MakeLoader) -> None:
    class Twice(Noise):
        def __getitem__(self, index: int) -> Any:
            return float(rng().random()), float(rng().random())

    class Once(Noise):
        def __getitem__(self, index: int) -> Any:
            generator = rng()
            assert rng() is generator
            return tuple(generator.random(2).tolist())

    loader = make_loader(Twice(), batch_size=4, seed=5, collate_fn=list)
    rows = epochs(loader)
    assert rows == reference(Once(), seed=5)
    assert all(a != b for row in rows for a, b in row)


def test_samples_that_draw_nothing_do_not_shift_the_numbers_of_others(
    make_loader: MakeLoader,
) -> None:
    class Sometimes(Noise):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index) if index % 3 == 0 else (index, None)

    loader = make_loader(Sometimes(), batch_size=4, seed=5, collate_fn=list)
    expected = [
        [(i, number if i % 3 == 0 else None) for i, number in row]
        for row in reference(Noise(), seed=5)
    ]
    assert epochs(loader) == expected


def test_an_error_does_not_disturb_the_numbers_of_others(
    make_loader: MakeLoader,
) -> None:
    class Broken(Noise):
        def __getitem__(self, index: int) -> Any:
            number = rng().random()
            if index == 5:
                raise OSError("broken")
            return index, float(number)

    loader = make_loader(Broken(), batch_size=4, seed=5, collate_fn=list)
    iterator = iter(loader)
    first = next(iterator)
    with pytest.raises(OSError, match="broken"):
        next(iterator)
    rest = [sample for batch in iterator for sample in batch]
    (expected,) = reference(Noise(), 1, seed=5)
    assert first + rest == expected[:4] + expected[8:]


# __getitems__ and collate_fn.


class Bulk(Noise):
    """Loads a batch in one call, with the generators of its samples."""

    def __getitems__(self, indices: list[int]) -> list[tuple[int, float]]:
        return [(j, float(rng(i).random())) for i, j in enumerate(indices)]


def test_getitems_gets_the_generator_of_its_ith_sample(make_loader: MakeLoader) -> None:
    loader = make_loader(Bulk(), batch_size=4, seed=5, collate_fn=list)
    assert epochs(loader) == reference(Noise(), seed=5)


def test_getitems_may_ask_in_any_order(make_loader: MakeLoader) -> None:
    class Backwards(Bulk):
        def __getitems__(self, indices: list[int]) -> list[tuple[int, float]]:
            numbers = {i: float(rng(i).random()) for i in reversed(range(len(indices)))}
            return [(j, numbers[i]) for i, j in enumerate(indices)]

    loader = make_loader(Backwards(), batch_size=4, seed=5, collate_fn=list)
    assert epochs(loader) == reference(Noise(), seed=5)


def test_collate_fn_gets_a_generator_for_each_batch(make_loader: MakeLoader) -> None:
    def collate(samples: list[Any]) -> list[float]:
        return [float(rng().random()), float(rng().random())]

    expected = list(DataLoader(range(SIZE), 4, seed=5, collate_fn=collate))
    loader = make_loader(range(SIZE), batch_size=4, seed=5, collate_fn=collate)
    first, second = list(loader), list(loader)
    assert first == expected
    assert len({number for pair in first + second for number in pair}) == 24


def test_collation_and_samples_do_not_share_streams() -> None:
    def collate(samples: list[Any]) -> list[float]:
        return [*(number for _, number in samples), float(rng().random())]

    (numbers,) = epochs(DataLoader(Noise(), 4, seed=5, collate_fn=collate), 1)
    assert len(set(numbers)) == SIZE + 6


# Iterable datasets.


class NoisyStream(IterableDataset[Any]):
    """Samples are worker, ordinal and a random number."""

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        for i in range(10):
            yield worker, i, float(rng().random())


def stream(workers: int, batch_size: int | None, seed: int = 5) -> list[Any]:
    """Return the sorted samples of two epochs."""
    loader = DataLoader(
        NoisyStream(), batch_size, num_workers=workers, seed=seed, collate_fn=list
    )
    if batch_size is None:
        return [sorted(map(tuple, loader)) for _ in range(2)]
    return [sorted(epoch) for epoch in epochs(loader)]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_a_streams_numbers_depend_on_worker_and_ordinal(
    workers: int, batch_size: int | None
) -> None:
    both = stream(workers, batch_size)
    assert both == stream(workers, 3)
    # A worker's numbers do not depend on how many others there are.
    assert [[s for s in epoch if s[0] == 0] for epoch in both] == stream(1, 2)
    numbers = [number for epoch in both for _, _, number in epoch]
    assert len(set(numbers)) == 2 * 10 * max(workers, 1)


class BrokenStream(IterableDataset[Any]):
    """An iterator that raises at one of its samples, after a draw, and goes on."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> BrokenStream:
        return self

    def __next__(self) -> tuple[int, float]:
        i = self.position
        if i == 10:
            raise StopIteration
        self.position += 1
        number = float(rng().random())
        if i == 4:
            raise OSError("broken")
        return i, number


def received(batch_size: int) -> dict[int, float]:
    """Return the numbers of the samples of a broken stream that come through."""
    loader = DataLoader(
        BrokenStream(), batch_size, num_workers=1, seed=5, collate_fn=list
    )
    iterator = iter(loader)
    samples: list[Any] = []
    while True:
        try:
            samples += next(iterator)
        except OSError:
            continue
        except StopIteration:
            return dict(samples)


def test_a_streams_numbers_after_an_exception_do_not_depend_on_batches() -> None:
    singly = received(1)
    assert sorted(singly) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert len(set(singly.values())) == 9
    for batch_size in (2, 3, 5):
        numbers = received(batch_size)
        assert len(numbers) >= 5
        assert numbers == {i: singly[i] for i in numbers}


# Elsewhere.


def test_with_a_seed_nothing_is_drawn_from_global_generators(
    make_loader: MakeLoader,
) -> None:
    torch = sys.modules.get("torch")

    def states() -> list[Any]:
        found = [random.getstate(), np.random.get_state(legacy=False)]
        if torch is not None:
            found.append(torch.random.get_rng_state().tolist())
        return found

    before = repr(states())
    list(make_loader(Noise(), 4, shuffle=True, seed=5, collate_fn=list))
    assert repr(states()) == before


def test_outside_a_loader_every_call_is_random(make_loader: MakeLoader) -> None:
    assert isinstance(rng(), np.random.Generator)
    assert rng().random() != rng().random()
    iterator = iter(make_loader(Noise(), batch_size=4, seed=5, collate_fn=list))
    next(iterator)
    assert rng().random() != rng().random()


def test_the_sampler_is_outside() -> None:
    class Sampler:
        def __iter__(self) -> Iterator[int]:
            while True:
                yield int(rng().integers(SIZE))

    def first() -> list[Any]:
        iterator = iter(
            DataLoader(Noise(), 20, sampler=Sampler(), seed=5, collate_fn=list)
        )
        return [index for index, _ in next(iterator)]

    assert first() != first()


def test_a_loader_inside_a_dataset_does_not_disturb_the_numbers(
    make_loader: MakeLoader,
) -> None:
    class Inner:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> float:
            return float(rng().random())

    class Outer(Noise):
        def __getitem__(self, index: int) -> Any:
            before = float(rng().random())
            inner = list(DataLoader(Inner(), 2, seed=index, collate_fn=list))
            return before, inner, float(rng().random())

    loader = make_loader(Outer(), batch_size=4, seed=5, collate_fn=list)
    rows = epochs(loader)
    assert rows == reference(Outer(), seed=5)

    class Plain(Noise):
        def __getitem__(self, index: int) -> Any:
            return tuple(rng().random(2).tolist())

    assert [[(a, b) for a, _, b in row] for row in rows] == reference(Plain(), seed=5)


def test_torchs_manual_seed_decides_the_numbers_without_a_seed(
    make_loader: MakeLoader,
) -> None:
    torch = pytest.importorskip("torch")

    def run() -> list[Any]:
        torch.manual_seed(3)
        return epochs(make_loader(Noise(), batch_size=4, shuffle=True, collate_fn=list))

    first = run()
    assert run() == first
    assert first[0] != first[1]

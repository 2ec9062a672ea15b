"""What a worker thread sees, beside what one of PyTorch's worker processes sees."""

from __future__ import annotations

import dataclasses
import itertools
import json
import multiprocessing
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import MakeLoader
from side_by_side import output_of

import dataloader
from dataloader import DataLoader, get_worker_info

torch = pytest.importorskip("torch")
torch_data = pytest.importorskip("torch.utils.data")

# Taken before any loader was made, as a program's own imports are.
EARLY = torch_data.get_worker_info

ASKS: dict[str, Callable[[], Any]] = {
    "ours": get_worker_info,
    "imported early": EARLY,
    "by module": lambda: torch.utils.data.get_worker_info(),
    "by private module": lambda: torch_data._utils.worker.get_worker_info(),
}


class Meet:
    """Lets the samples of ``count`` workers wait for each other, so each loads one."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count)

    def __deepcopy__(self, memo: Any) -> Meet:
        return self

    def wait(self) -> None:
        self.barrier.wait(30)


class PerWorker:
    """One batch for each worker: what ``look`` returns in it."""

    def __init__(self, count: int, look: Callable[[Any], Any]) -> None:
        self.count = count
        self.look = look
        self.meet = Meet(count)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.meet.wait()
        return self.look(self)


def seen_by_workers(
    look: Callable[[Any], Any], count: int = 3, **options: Any
) -> list[Any]:
    """Return what ``look(dataset)`` returns in each worker, in an order that varies."""
    dataset = PerWorker(count, look)
    # Without the consumer, who would be one more at the barrier.
    with DataLoader(
        dataset,
        batch_size=None,
        num_workers=count,
        collate_fn=lambda x: x,
        help=False,
        **options,
    ) as loader:
        return list(loader)


# --- get_worker_info ------------------------------------------------------------------


@pytest.mark.parametrize("name", ASKS)
def test_every_way_to_ask_answers_for_the_worker(name: str) -> None:
    ask = ASKS[name]
    assert ask() is None
    infos = seen_by_workers(lambda dataset: ask())
    assert sorted(info.id for info in infos) == [0, 1, 2]
    assert {info.num_workers for info in infos} == {3}
    assert all(info.worker_method == "thread" for info in infos)
    assert ask() is None


def test_the_info_has_torchs_fields_and_shows_them() -> None:
    expected = [f.name for f in dataclasses.fields(torch_data._utils.worker.WorkerInfo)]
    info = seen_by_workers(lambda dataset: get_worker_info(), 1)[0]
    assert [f.name for f in dataclasses.fields(info)] == expected
    assert all(f"{name}=" in repr(info) for name in expected)
    for name in (*expected, "other"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(info, name, 1)


def test_the_info_holds_the_workers_own_dataset() -> None:
    pairs = seen_by_workers(lambda dataset: (get_worker_info(), dataset))
    assert all(info.dataset is dataset for info, dataset in pairs)
    assert len({id(dataset) for _, dataset in pairs}) == 3


def test_without_workers_there_is_no_info() -> None:
    class Asks:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> list[Any]:
            return [ask() for ask in ASKS.values()]

    calls: list[int] = []
    loader = DataLoader(
        Asks(), batch_size=None, collate_fn=list, worker_init_fn=calls.append
    )
    assert list(loader) == [[None] * len(ASKS)]
    assert calls == []


class Sharded(torch_data.IterableDataset):  # type: ignore[misc, name-defined]
    """Each worker yields its share, as PyTorch's documentation has it done."""

    def __init__(self, ask: Callable[[], Any], end: int = 11) -> None:
        self.ask = ask
        self.start = 0
        self.end = end

    def __iter__(self) -> Iterator[int]:
        info = self.ask()
        share = -(-self.end // (1 if info is None else info.num_workers))
        first = 0 if info is None else info.id * share
        return iter(range(first, min(first + share, self.end)))


@pytest.mark.parametrize("name", ASKS)
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_stream_that_takes_its_share_comes_once(name: str, workers: int) -> None:
    with DataLoader(Sharded(ASKS[name]), 2, num_workers=workers) as loader:
        for _ in range(2):
            batches = [batch.tolist() for batch in loader]
            assert sorted(itertools.chain(*batches)) == list(range(11))


# PyTorch deals batches of a stream to its workers in turn; each has a short one.
DEALT = [[0, 1], [4, 5], [8, 9], [2, 3], [6, 7], [10]]


def test_batches_of_a_stream_come_in_torchs_order() -> None:
    with DataLoader(Sharded(EARLY), 2, num_workers=3) as loader:
        assert [batch.tolist() for batch in loader] == DEALT
    with DataLoader(Sharded(EARLY), 2, num_workers=3, drop_last=True) as loader:
        assert [batch.tolist() for batch in loader] == DEALT[:-1]


class Range(torch_data.IterableDataset):  # type: ignore[misc, name-defined]
    """Shares itself out in ``worker_init_fn``."""

    def __init__(self) -> None:
        self.start, self.end = 3, 10

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def take_a_share(worker_id: int) -> None:
    info = torch_data.get_worker_info()
    dataset = info.dataset
    share = -(-(dataset.end - dataset.start) // info.num_workers)
    dataset.start += worker_id * share
    dataset.end = min(dataset.start + share, dataset.end)


@pytest.mark.parametrize("workers", [1, 2, 12])
def test_a_dataset_may_be_shared_out_in_the_init_function(workers: int) -> None:
    dataset = Range()
    with DataLoader(
        dataset, num_workers=workers, worker_init_fn=take_a_share
    ) as loader:
        for _ in range(2):
            assert sorted(int(batch) for batch in loader) == list(range(3, 10))
    assert (dataset.start, dataset.end) == (3, 10)


# --- Seeds ----------------------------------------------------------------------------


def states() -> list[Any]:
    """Return what the process-wide generators yield next, and torch's seed."""
    numbers = [random.random(), np.random.rand(), torch.rand(2).tolist()]
    return [*numbers, torch.initial_seed(), torch_data.get_worker_info().seed]


class Inits(torch_data.Dataset):  # type: ignore[misc, name-defined]
    """Shows what ``worker_init_fn`` saw."""

    found: list[Any]

    def init(self, worker_id: int) -> None:
        self.found = [worker_id, *states()]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.found


def generators_of_processes() -> Any:
    """Return what two of PyTorch's worker processes find in their init function."""
    dataset = Inits()
    generator = torch.Generator().manual_seed(5)
    return list(
        torch_data.DataLoader(
            dataset,
            num_workers=2,
            collate_fn=lambda batch: batch[0],
            worker_init_fn=dataset.init,
            generator=generator,
            multiprocessing_context="fork",
        )
    )


@pytest.fixture(scope="module")
def process_generators() -> Any:
    """What `generators_of_processes` returns in an interpreter of its own."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("the reference forks its workers")
    return json.loads(output_of(__file__))


def test_the_init_function_finds_generators_seeded_as_in_a_process(
    process_generators: Any,
) -> None:
    found = {}

    def init(worker_id: int) -> None:
        found[worker_id] = [worker_id, *states()]

    generator = torch.Generator().manual_seed(5)
    with DataLoader(
        range(2), num_workers=2, worker_init_fn=init, generator=generator
    ) as loader:
        assert len(list(loader)) == 2
    assert [found[0], found[1]] == process_generators


def test_initial_seed_is_the_workers_in_samples_and_init_function() -> None:
    in_init: dict[int, int] = {}

    def init(worker_id: int) -> None:
        in_init[worker_id] = torch.initial_seed()

    outside = torch.initial_seed()
    found = seen_by_workers(
        lambda dataset: (get_worker_info(), torch.initial_seed()), worker_init_fn=init
    )
    assert {info.id: seed for info, seed in found} == in_init
    base = in_init[0]
    assert in_init == {0: base, 1: base + 1, 2: base + 2}
    assert all(info.seed == seed for info, seed in found)
    assert torch.initial_seed() == outside


def test_the_seeding_recipe_of_torchs_documentation_works() -> None:
    def init(worker_id: int) -> None:
        seed = torch.initial_seed() % 2**32
        np.random.seed(seed)
        random.seed(seed)
        torch_data.get_worker_info().dataset.rng = np.random.default_rng(seed)

    def draw(dataset: Any) -> tuple[int, float]:
        return torch_data.get_worker_info().id, dataset.rng.random()

    before = (random.getstate(), torch.get_rng_state().tolist())
    runs = []
    for seed in (1, 1, 2):
        generator = torch.Generator().manual_seed(seed)
        runs.append(
            sorted(seen_by_workers(draw, worker_init_fn=init, generator=generator))
        )
    assert runs[0] == runs[1] != runs[2]
    assert len({number for _, number in runs[0]}) == 3
    assert (random.getstate(), torch.get_rng_state().tolist()) == before


def test_a_seed_set_in_the_init_function_is_initial_seed_afterwards() -> None:
    def init(worker_id: int) -> None:
        torch.manual_seed(100 + worker_id)

    outside = torch.initial_seed()
    found = seen_by_workers(
        lambda dataset: torch.initial_seed(), worker_init_fn=init, count=2
    )
    assert sorted(found) == [100, 101]
    assert torch.initial_seed() == outside


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_are_seeded_anew_unless_they_persist(persistent: bool) -> None:
    class Seeds(PerWorker):
        pass

    dataset = Seeds(2, lambda dataset: torch.initial_seed())
    with DataLoader(
        dataset,
        batch_size=None,
        num_workers=2,
        persistent_workers=persistent,
        help=False,
    ) as loader:
        first, second = set(loader), set(loader)
    assert (first == second) is persistent


class SafeNoise:
    """Draws from torch's generator for thread workers."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        generator = torch.random.thread_safe_generator()
        return torch.rand(2, generator=generator).tolist()


@pytest.mark.skipif(
    not hasattr(torch.random, "thread_safe_generator"), reason="added in 2.12"
)
def test_thread_safe_generator_repeats_for_any_number_of_workers() -> None:
    runs = []
    for workers, seed in ((1, 0), (2, 0), (5, 0), (2, 1)):
        with DataLoader(
            SafeNoise(), 4, num_workers=workers, seed=seed, collate_fn=list
        ) as loader:
            runs.append([list(loader), list(loader)])
    assert runs[0] == runs[1] == runs[2] != runs[3]
    numbers = [tuple(n) for epoch in runs[0] for batch in epoch for n in batch]
    assert len(set(numbers)) == len(numbers) == 48


# --- Collation ------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["data", "collate"])
def test_torchs_default_collate_takes_no_shared_memory_in_threads(path: str) -> None:
    collate = {
        "data": torch_data.default_collate,
        "collate": torch_data._utils.collate.default_collate,
    }[path]
    data = [
        {"a": torch.full((3,), float(i)), "b": np.arange(i, i + 2), "c": i / 2}
        for i in range(8)
    ]
    expected = list(DataLoader(data, 4, collate_fn=collate))
    with DataLoader(data, 4, num_workers=2, collate_fn=collate) as loader:
        batches = list(loader)
    for batch, reference in zip(batches, expected, strict=True):
        for name, tensor in batch.items():
            assert not tensor.is_shared()
            assert tensor.dtype == reference[name].dtype
            assert torch.equal(tensor, reference[name])


def test_collation_does_the_same_in_threads_as_outside(make_loader: MakeLoader) -> None:
    mixed = [torch.ones(2), torch.ones(2, dtype=torch.float64)]
    for collate in (torch_data.default_collate, dataloader.default_collate):
        (batch,) = make_loader(mixed, 2, collate_fn=collate)
        assert batch.dtype == torch.float64
        (batch,) = make_loader([torch.ones(2, requires_grad=True)], collate_fn=collate)
        assert batch.requires_grad
        ragged = make_loader([torch.ones(2), torch.ones(3)], 2, collate_fn=collate)
        with pytest.raises(RuntimeError, match=r"\b2\b.*\b3\b"):
            list(ragged)


# --- Modes ----------------------------------------------------------------------------


def test_grad_mode_of_a_worker_is_its_own() -> None:
    def turn_off(dataset: Any) -> tuple[bool, bool]:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        return before, torch.is_grad_enabled()

    assert seen_by_workers(turn_off) == [(True, False)] * 3
    assert torch.is_grad_enabled()


def test_a_graph_recorded_in_a_worker_can_be_used_outside() -> None:
    weight = torch.ones(2, requires_grad=True)
    found = seen_by_workers(lambda dataset: (weight * 3).sum())
    sum(found).backward()
    assert weight.grad.tolist() == [9.0, 9.0]


# --- Errors at the start of a worker --------------------------------------------------


def test_an_error_in_the_init_function_comes_with_the_first_batch() -> None:
    def init(worker_id: int) -> None:
        raise LookupError(f"no luck in worker {worker_id}")

    with DataLoader(range(4), num_workers=2, worker_init_fn=init) as loader:
        iterator = iter(loader)
        with pytest.raises(LookupError, match="no luck in worker"):
            next(iterator)
        del iterator


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_where_a_stream_begins_comes_through(workers: int) -> None:
    class Broken(torch_data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[int]:
            raise LookupError("cannot begin")

    with (
        DataLoader(Broken(), num_workers=workers) as loader,
        pytest.raises(LookupError, match="cannot begin"),
    ):
        list(loader)


def test_more_workers_than_cores_bring_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with DataLoader(range(3), num_workers=64) as loader:
            loader.check_worker_number_rationality()
            assert len(list(loader)) == 3


if __name__ == "__main__":
    print(json.dumps(generators_of_processes()))

"""What a worker is told and may do: get_worker_info, worker_init_fn, its context."""

from __future__ import annotations

import contextvars
import copy
import dataclasses
import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import BACKENDS, MakeLoader, wait_until

from dataloader import DataLoader, IterableDataset, WorkerInfo, get_worker_info

WITH_WORKERS = {
    name: options for name, options in BACKENDS.items() if options["num_workers"] > 0
}


@pytest.fixture(params=list(WITH_WORKERS))
def workers(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of a backend with workers."""
    return dict(WITH_WORKERS[request.param])


class Calls:
    """A dataset whose samples are what a function returns."""

    def __init__(self, function: Any, size: int = 12) -> None:
        self.function = function
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.function()


def info() -> WorkerInfo:
    found = get_worker_info()
    assert found is not None
    return found


def flat(batches: Iterable[list[Any]]) -> list[Any]:
    """Return the samples of some batches."""
    return [sample for batch in batches for sample in batch]


# get_worker_info.


def test_a_worker_knows_its_place(workers: dict[str, Any]) -> None:
    loader = DataLoader(Calls(info, 40), 3, collate_fn=list, **workers)
    infos = flat(loader)
    assert {i.num_workers for i in infos} == {loader.num_workers}
    assert {i.id for i in infos} <= set(range(loader.num_workers))
    assert {i.worker_method for i in infos} == {"thread"}
    # The seeds are those of PyTorch: one base, plus the number of the worker.
    assert len({i.seed - i.id for i in infos}) == 1
    assert all(type(i.dataset) is Calls for i in infos)


def test_all_workers_are_numbered() -> None:
    barrier = threading.Barrier(4)

    def meet() -> int:
        barrier.wait(20)
        return info().id

    loader = DataLoader(Calls(meet, 4), num_workers=4, collate_fn=list, help=False)
    assert sorted(loader) == [[0], [1], [2], [3]]


def test_the_info_names_its_fields_and_is_frozen() -> None:
    (worker,) = next(iter(DataLoader(Calls(info), num_workers=1, collate_fn=list)))
    names = ["id", "num_workers", "seed", "dataset", "rng", "worker_method"]
    assert [field.name for field in dataclasses.fields(worker)] == names
    assert all(f"{name}=" in repr(worker) for name in names)
    with pytest.raises(AttributeError):
        worker.id = 3


def test_collate_fn_runs_in_the_worker_too(workers: dict[str, Any]) -> None:
    def collate(samples: list[int]) -> tuple[int, int]:
        return samples[0], info().id

    loader = DataLoader(Calls(lambda: info().id), collate_fn=collate, **workers)
    if loader.items_in_parallel == 1:
        assert all(a == b for a, b in loader)
    else:
        assert {b for _, b in loader} <= {0, 1}


def test_there_is_no_info_outside_workers(make_loader: MakeLoader) -> None:
    class Sampler:
        def __iter__(self) -> Iterator[int]:
            assert get_worker_info() is None
            yield 0
            assert get_worker_info() is None

    loader = make_loader(Calls(get_worker_info), sampler=Sampler(), collate_fn=list)
    ((found,),) = loader
    assert (found is not None) is (loader.num_workers > 0)
    assert get_worker_info() is None


def test_a_loader_inside_a_worker_leaves_the_info_alone(
    workers: dict[str, Any],
) -> None:
    def nested() -> tuple[Any, list[Any], Any]:
        before = get_worker_info()
        inside = list(DataLoader(Calls(get_worker_info, 2), collate_fn=list))
        return before, inside, get_worker_info()

    for batch in DataLoader(Calls(nested), 2, collate_fn=list, **workers):
        for before, inside, after in batch:
            assert before is after
            assert inside == [[before]] * 2


def test_the_infos_generators_depend_on_the_batch_and_not_on_the_worker() -> None:
    def draw() -> tuple[float, float]:
        generators = info().rng
        assert generators is not None
        return (
            generators.random_generator.random(),
            float(generators.numpy_generator.random()),
        )

    def epochs(workers: int) -> list[Any]:
        loader = DataLoader(
            Calls(draw), 3, num_workers=workers, seed=5, collate_fn=list
        )
        return [list(loader), list(loader)]

    first, second = epochs(1)
    assert epochs(4) == [first, second]
    values = [value for batch in first + second for pair in batch for value in pair]
    assert len(set(values)) == len(values)


def test_the_seed_of_a_worker_follows_the_loaders_seed() -> None:
    def seeds(seed: int | None) -> list[int]:
        loader = DataLoader(
            Calls(lambda: info().seed), num_workers=1, seed=seed, collate_fn=list
        )
        return [next(iter(loader))[0] for _ in range(2)]

    assert seeds(1) == seeds(1)
    assert seeds(1) != seeds(2)
    assert len(set(seeds(1))) == 2
    assert seeds(None) != seeds(None)


# worker_init_fn.


@pytest.mark.parametrize("size", [0, 1, 40])
def test_worker_init_fn_is_called_in_every_worker(
    workers: dict[str, Any], size: int
) -> None:
    called: list[tuple[int, int]] = []

    def init(worker_id: int) -> None:
        called.append((worker_id, info().id))

    loader = DataLoader(range(size), worker_init_fn=init, collate_fn=list, **workers)
    for epoch in (1, 2):
        assert list(loader) == [[i] for i in range(size)]
        expected = sorted([(i, i) for i in range(loader.num_workers)] * epoch)
        assert wait_until(lambda: sorted(called) == expected)  # noqa: B023


def test_worker_init_fn_is_called_once_in_persistent_workers() -> None:
    called: list[int] = []
    loader = DataLoader(
        range(8),
        num_workers=3,
        worker_init_fn=called.append,
        collate_fn=list,
        persistent_workers=True,
    )
    for _ in range(3):
        list(loader)
        assert wait_until(lambda: sorted(called) == [0, 1, 2])


def test_worker_init_fn_is_called_before_the_workers_first_sample() -> None:
    ready = threading.local()

    def init(worker_id: int) -> None:
        ready.worker = worker_id

    loader = DataLoader(
        Calls(lambda: getattr(ready, "worker", None) == info().id, 20),
        num_workers=3,
        worker_init_fn=init,
        collate_fn=list,
    )
    assert list(loader) == [[True]] * 20


def test_worker_init_fn_is_not_called_without_workers() -> None:
    called: list[int] = []
    assert list(DataLoader([1], worker_init_fn=called.append, collate_fn=list)) == [[1]]
    assert called == []


def test_init_functions_run_one_at_a_time() -> None:
    inside = threading.Lock()
    overlaps: list[int] = []

    def init(worker_id: int) -> None:
        if not inside.acquire(blocking=False):
            overlaps.append(worker_id)
            return
        for _ in range(20_000):
            random.random()
        inside.release()

    loaders = [
        DataLoader(range(8), num_workers=4, worker_init_fn=init, collate_fn=list)
        for _ in range(2)
    ]
    for _ in range(3):
        list(zip(*loaders, strict=True))
    assert overlaps == []


def test_init_functions_leave_the_global_generators_alone() -> None:
    done = threading.Barrier(3)

    def init(worker_id: int) -> None:
        random.seed(worker_id)
        np.random.seed(worker_id)
        random.random()
        np.random.random()

    def meet() -> None:
        done.wait(20)

    random.seed(123)
    np.random.seed(123)
    states = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    list(
        DataLoader(Calls(meet, 3), num_workers=3, worker_init_fn=init, collate_fn=list)
    )
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states  # type: ignore[index]


def test_init_functions_find_the_global_generators_seeded_for_their_worker() -> None:
    def draws(seed: int) -> dict[int, tuple[float, float]]:
        drawn: dict[int, tuple[float, float]] = {}

        def init(worker_id: int) -> None:
            drawn[worker_id] = random.random(), np.random.random()

        loader = DataLoader(range(9), num_workers=3, worker_init_fn=init, seed=seed)
        list(loader)
        assert wait_until(lambda: len(drawn) == 3)
        return drawn

    first = draws(1)
    assert draws(1) == first
    values = [*first.values(), *draws(2).values()]
    assert len({value for pair in values for value in pair}) == 12


# The context.

flavour: contextvars.ContextVar[str] = contextvars.ContextVar("flavour", default="none")


def test_workers_see_the_context_of_the_thread_that_called_iter(
    make_loader: MakeLoader,
) -> None:
    loader = make_loader(
        Calls(flavour.get), batch_size=5, collate_fn=lambda s: [*s, flavour.get()]
    )
    assert {value for batch in loader for value in batch} == {"none"}
    token = flavour.set("sweet")
    try:
        iterator = iter(loader)
        assert {value for batch in iterator for value in batch} == {"sweet"}
    finally:
        flavour.reset(token)
    assert {value for batch in loader for value in batch} == {"none"}


# What the consumer loads inline is loaded in its own context, as without workers.


def test_the_context_is_that_of_iter_and_not_of_next(workers: dict[str, Any]) -> None:
    options = {**workers, "help": False}
    loader = DataLoader(Calls(flavour.get, 30), collate_fn=list, **options)
    iterator = iter(loader)
    token = flavour.set("late")
    try:
        assert list(iterator) == [["none"]] * 30
    finally:
        flavour.reset(token)


def test_a_change_in_a_worker_stays_there(workers: dict[str, Any]) -> None:
    def change() -> str:
        before = flavour.get()
        flavour.set("changed")
        return before

    options = {**workers, "help": False}
    loader = DataLoader(Calls(change, 40), collate_fn=list, **options)
    for _ in range(2):
        values = flat(loader)
        assert flavour.get() == "none"
        # Each thread finds what it left, in this epoch and not in the next.
        threads = loader.num_workers * loader.items_in_parallel
        assert 1 <= values.count("none") <= threads
        assert set(values) == {"none", "changed"}


def test_an_iterable_dataset_keeps_its_context_from_batch_to_batch() -> None:
    class Stream(IterableDataset[str]):
        def __iter__(self) -> Iterator[str]:
            for number in range(4):
                yield flavour.get()
                flavour.set(f"after {number}")

    loader = DataLoader(Stream(), num_workers=1, collate_fn=list)
    assert flat(loader) == ["none", "after 0", "after 1", "after 2"]
    assert flavour.get() == "none"


# The stack.


def test_a_worker_recurses_as_deep_as_the_main_thread() -> None:
    nested = "[" * 20_000 + "]" * 20_000

    def parse() -> str:
        try:
            json.loads(nested)
        except RecursionError:
            return "too deep"
        return "parsed"

    before = threading.stack_size(256 << 10)
    try:
        loader = DataLoader(Calls(parse, 2), num_workers=1, collate_fn=list, help=False)
        assert list(loader) == [[parse()]] * 2
        # Threads are started in the background, and the size is put back there.
        assert wait_until(lambda: threading.stack_size() == 256 << 10)
    finally:
        threading.stack_size(before)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_what_a_worker_knows_can_be_copied(copied: Callable[[Any], Any]) -> None:
    def sample() -> Any:
        one = info().rng
        assert one is not None
        other = copied(one)
        return one.numpy_generator.random() == other.numpy_generator.random()

    with DataLoader(Calls(sample), num_workers=1, collate_fn=list) as loader:
        assert list(loader) == [[True]] * 12

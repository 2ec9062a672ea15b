"""A worker's dataset: its own copy, fresh or kept, and shared where it must be."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dataloader import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    get_worker_info,
    random_split,
)

WORKERS = 3


class Meeting(Dataset[Any]):
    """A dataset of which each worker loads exactly one sample in an epoch.

    A sample is returned only when all workers are inside one.
    """

    def __init__(self, size: int = WORKERS) -> None:
        self.barrier = threading.Barrier(WORKERS)
        self.size = size
        self.handle: object | None = None
        self.calls = 0
        self.shared: list[Any] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if self.handle is None:
            self.handle = object()
        self.calls += 1
        self.barrier.wait(20)
        return self, self.handle, self.calls


def load(dataset: Any, **options: Any) -> DataLoader[Any]:
    # By workers alone, as they meet in their samples.
    fixed: dict[str, Any] = {"batch_size": None, "num_workers": WORKERS, "help": False}
    return DataLoader(dataset, collate_fn=tuple, **fixed, **options)


def test_each_worker_has_a_copy_of_its_own() -> None:
    dataset = Meeting()
    copies = [copy for copy, _, _ in load(dataset)]
    assert len({id(copy) for copy in copies}) == WORKERS
    assert all(type(copy) is Meeting for copy in copies)
    assert dataset not in copies
    assert all(copy.shared is dataset.shared for copy in copies)


WRAPPED: dict[str, Callable[[], Any]] = {
    "plain": lambda: Meeting(),
    "Subset": lambda: Subset(Meeting(9), [4, 0, 8]),
    "Subset of Subset": lambda: Subset(Subset(Meeting(9), range(5)), [4, 0, 1]),
    "ConcatDataset": lambda: ConcatDataset([Meeting(), Meeting(0)]),
    "random_split": lambda: random_split(Meeting(9), [WORKERS, 6])[0],
}


def innermost(dataset: Any) -> Any:
    while not isinstance(dataset, Meeting):
        dataset = getattr(dataset, "dataset", None) or dataset.datasets[0]
    return dataset


@pytest.mark.parametrize("kind", WRAPPED)
def test_a_handle_opened_when_first_needed_belongs_to_one_worker(kind: str) -> None:
    dataset = WRAPPED[kind]()
    rows = list(load(dataset))
    assert len(rows) == WORKERS
    assert len({id(handle) for _, handle, _ in rows}) == WORKERS
    assert all(copy.handle is handle for copy, handle, _ in rows)
    assert innermost(dataset).handle is None


def test_copies_are_fresh_at_each_iter() -> None:
    dataset = Meeting()
    loader = load(dataset)
    first, second = list(loader), list(loader)
    assert {calls for _, _, calls in first + second} == {1}
    assert len({id(copy) for copy, _, _ in first + second}) == 2 * WORKERS
    assert dataset.calls == 0


def test_persistent_workers_keep_their_copies() -> None:
    loader = load(Meeting(), persistent_workers=True)
    first, second = list(loader), list(loader)
    assert {id(copy) for copy, _, _ in first} == {id(copy) for copy, _, _ in second}
    assert {calls for _, _, calls in first} == {1}
    assert {calls for _, _, calls in second} == {2}


class Echo:
    """A plain class whose samples are what it holds."""

    def __init__(self, value: Any, size: int = 4) -> None:
        self.value = value
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.value


def test_a_change_to_the_dataset_is_seen_by_the_next_epoch() -> None:
    dataset = Echo("old")
    loader = DataLoader(dataset, num_workers=2, collate_fn=list)
    kept = DataLoader(dataset, num_workers=2, collate_fn=list, persistent_workers=True)
    assert list(loader) == list(kept) == [["old"]] * 4
    dataset.value = "new"
    assert list(loader) == [["new"]] * 4
    assert list(kept) == [["old"]] * 4


def test_persistent_workers_take_the_dataset_of_the_first_epoch() -> None:
    class Meets(Echo):
        def __getitem__(self, index: int) -> Any:
            barrier.wait(20)
            return self.value

    barrier = threading.Barrier(1)
    keys = [0]
    dataset = Meets("old")
    loader = DataLoader(
        dataset,
        sampler=keys,
        num_workers=3,
        persistent_workers=True,
        collate_fn=list,
    )
    # One sample is loaded by one worker; the others have nothing to do.
    assert list(loader) == [["old"]]
    dataset.value = "new"
    barrier = threading.Barrier(3)
    keys += [0, 0]
    assert list(loader) == [["old"]] * 3


def test_a_change_during_an_epoch_is_not_seen_by_it() -> None:
    dataset = Echo("old", size=30)
    iterator = iter(DataLoader(dataset, num_workers=2, collate_fn=list))
    dataset.value = "new"
    assert list(iterator) == [["old"]] * 30


def test_without_workers_the_dataset_itself_is_loaded_from() -> None:
    class Counted(Echo):
        def __getitem__(self, index: int) -> Any:
            self.value += 1
            return self.value

    dataset = Counted(0)
    assert list(DataLoader(dataset, collate_fn=list)) == [[1], [2], [3], [4]]
    assert dataset.value == 4
    parallel = DataLoader(dataset, collate_fn=list, items_in_parallel=2)
    assert len(list(parallel)) == 4
    assert dataset.value == 4


# worker_init_fn and the worker's dataset.


def test_attributes_set_by_worker_init_fn_are_private() -> None:
    class Tagged(Meeting):
        tag: int | None = None

        def __getitem__(self, index: int) -> Any:
            info = get_worker_info()
            assert info is not None
            self.barrier.wait(20)
            return info.id, self.tag, info.dataset is self

    def init(worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.tag = worker_id

    dataset = Tagged()
    rows = sorted(load(dataset, worker_init_fn=init))
    assert rows == [(i, i, True) for i in range(WORKERS)]
    assert dataset.tag is None


class Methodical(Meeting):
    """A dataset whose methods are used as functions of the loader."""

    tag: int | None = None

    def init(self, worker_id: int) -> None:
        self.tag = worker_id

    def __getitem__(self, index: int) -> Any:
        self.barrier.wait(20)
        return self.tag

    def collate(self, sample: Any) -> Any:
        return self.tag, sample


def test_methods_of_the_dataset_become_those_of_the_workers_copy() -> None:
    dataset = Methodical()
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=WORKERS,
        worker_init_fn=dataset.init,
        collate_fn=dataset.collate,
    )
    assert sorted(loader) == [(i, i) for i in range(WORKERS)]
    assert dataset.tag is None
    assert loader.collate_fn == dataset.collate


class Shard(IterableDataset[int]):
    """A range that ``worker_init_fn`` cuts into shares, PyTorch's documented recipe."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def take_share(worker_id: int) -> None:
    info = get_worker_info()
    assert info is not None
    dataset = info.dataset
    share = -(-(dataset.end - dataset.start) // info.num_workers)
    dataset.start += worker_id * share
    dataset.end = min(dataset.start + share, dataset.end)


@pytest.mark.parametrize("persistent", [False, True])
def test_the_sharding_recipe_in_worker_init_fn(persistent: bool) -> None:
    dataset = Shard(3, 10)
    loader = DataLoader(
        dataset,
        num_workers=2,
        worker_init_fn=take_share,
        collate_fn=list,
        persistent_workers=persistent,
    )
    for _ in range(2):
        assert list(loader) == [[3], [7], [4], [8], [5], [9], [6]]
    assert (dataset.start, dataset.end) == (3, 10)


# replicate=


def test_replicate_none_shares_the_one_object() -> None:
    dataset = Meeting()
    copies = [copy for copy, _, _ in load(dataset, replicate="none")]
    assert all(copy is dataset for copy in copies)


class Words:
    """Picklable, with a container inside."""

    def __init__(self) -> None:
        self.words = ["a", "b", "c", "d"]

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> Any:
        return self.words


@pytest.mark.parametrize(
    ("replicate", "is_shared"), [("none", True), ("shallow", True), ("deep", False)]
)
def test_only_a_deep_copy_has_containers_of_its_own(
    replicate: Any, is_shared: bool
) -> None:
    dataset = Words()
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, collate_fn=id, replicate=replicate
    )
    places = set(loader)
    assert (places == {id(dataset.words)}) is is_shared


def test_a_deep_copy_of_what_cannot_be_pickled_names_the_attribute() -> None:
    loader = DataLoader(Echo(threading.Lock()), num_workers=2, replicate="deep")
    with pytest.raises(TypeError, match=r"deep.*value.*lock"):
        iter(loader)


def test_containers_are_not_copied() -> None:
    rows = [object(), object(), object()]
    loader = DataLoader(rows, num_workers=2, collate_fn=list)
    assert [batch[0] for batch in loader] == rows


# What is shared against its will.


class Owner(Echo):
    """A dataset with a finaliser, which must not run for copies."""

    def __del__(self) -> None:
        self.value.append("deleted")


def test_a_dataset_with_a_finaliser_is_shared_with_one_warning() -> None:
    dataset = Owner([])
    loader = DataLoader(dataset, num_workers=2, collate_fn=list)
    with pytest.warns(UserWarning, match=r"Owner.*__del__") as caught:
        list(loader)
    assert len(caught) == 1
    list(loader)  # a second warning would be an error
    assert dataset.value == []


def test_a_dataset_that_cannot_be_copied_is_shared_with_one_warning() -> None:
    class Uncopyable(Echo):
        def __copy__(self) -> Any:
            raise RuntimeError("there is only one")

    loader = DataLoader(Uncopyable(1), num_workers=2, collate_fn=list)
    with pytest.warns(UserWarning, match="there is only one") as caught:
        assert list(loader) == [[1]] * 4
    assert len(caught) == 1
    assert list(loader) == [[1]] * 4


def test_an_open_file_among_the_attributes_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x")
    with (tmp_path / "data").open("rb") as file:
        dataset = Echo(0)
        dataset.file = file  # type: ignore[attr-defined]
        loader = DataLoader(dataset, num_workers=2, collate_fn=list)
        with pytest.warns(UserWarning, match=r"'file'.*__getitem__") as caught:
            list(loader)
        assert len(caught) == 1
        list(loader)


def test_a_loader_without_workers_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(DataLoader(Owner([]), collate_fn=list))


def test_a_dataset_with_getattr_is_copied() -> None:
    class Lazy(Echo):
        def __getattr__(self, name: str) -> Any:
            # The usual trap: __getattr__ of a copy that has no attributes yet.
            return getattr(self.inner, name)

    dataset = Lazy(7)
    dataset.inner = Echo(8)  # type: ignore[attr-defined]
    assert list(DataLoader(dataset, num_workers=2, collate_fn=list)) == [[7]] * 4

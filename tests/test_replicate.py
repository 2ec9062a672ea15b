"""A worker's own dataset: what is copied and what is shared, rebinding, warnings."""

from __future__ import annotations

import array
import collections
import enum
import functools
import logging
import pickle
import sqlite3
import sys
import tarfile
import threading
import types
import warnings
import weakref
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from dataloader import ConcatDataset, Dataset, IterableDataset, StackDataset, Subset
from dataloader.datasets import random_split
from dataloader.replicate import Replica, make_snapshot, nested_datasets


def replicate(dataset: Any, mode: str = "shallow", *functions: Any) -> Replica:
    """Return a replica; no warning is wanted."""
    return make_snapshot(dataset, mode, functions, warned=set()).replicate()


class Lazy(Dataset[Any]):
    """Opens its handle when it is first asked, as is common."""

    def __init__(self, size: int = 4) -> None:
        self.handle: object | None = None
        self.items = list(range(size))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        if self.handle is None:
            self.handle = object()
        return self.handle

    def collate(self, batch: list[Any]) -> Any:
        return self, batch


class Plain:
    """A dataset without a base class."""

    handle = None

    def __getitem__(self, index: int) -> Any:
        if self.handle is None:
            self.handle = object()
        return self.handle


# --- Copies ---------------------------------------------------------------------------


def test_each_worker_has_its_own_object_and_the_original_is_untouched() -> None:
    dataset: Any = Lazy()
    snapshot = make_snapshot(dataset, "shallow")
    first, second = snapshot.replicate().dataset, snapshot.replicate().dataset
    assert type(first) is Lazy
    assert len({id(dataset), id(first), id(second)}) == 3
    assert first[0] is first[1]
    assert first[0] is not second[0]
    assert dataset.handle is None
    assert first.items is second.items is dataset.items


def test_a_snapshot_is_the_dataset_as_it_was() -> None:
    dataset: Any = Lazy()
    snapshot = make_snapshot(dataset, "shallow")
    dataset.handle = "later"
    assert snapshot.replicate().dataset.handle is None


def wrappers(inner: Any) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Wrappers of a dataset, each with the way to it."""
    deep: Any = Subset(Subset(inner, [0, 1]), [1])
    return {
        "Subset": (Subset(inner, [0]), lambda d: d.dataset),
        "Subset of Subset": (deep, lambda d: d.dataset.dataset),
        "random_split": (random_split(inner, [3, 1])[0], lambda d: d.dataset),
        "ConcatDataset": (ConcatDataset([inner]), lambda d: d.datasets[0]),
        "StackDataset": (StackDataset(inner), lambda d: d.datasets[0]),
        "StackDataset by name": (StackDataset(a=inner), lambda d: d.datasets["a"]),
        "second": (StackDataset([1, 2, 3, 4], inner), lambda d: d.datasets[1]),
    }


@pytest.mark.parametrize("name", wrappers(Lazy()))
def test_a_handle_opened_under_a_wrapper_is_the_workers(name: str) -> None:
    inner: Any = Lazy()
    dataset, find = wrappers(inner)[name]
    snapshot = make_snapshot(dataset, "shallow")
    first, second = snapshot.replicate().dataset, snapshot.replicate().dataset
    assert type(first) is type(dataset)
    assert len({id(find(d)) for d in (dataset, first, second)}) == 3
    assert find(first)[0] is not find(second)[0]
    assert find(dataset) is inner
    assert inner.handle is None
    # What is no dataset is shared.
    assert find(first).items is inner.items


def test_a_handle_opened_under_torchs_wrappers_is_the_workers() -> None:
    data = pytest.importorskip("torch.utils.data")

    class Inner(data.Dataset):  # type: ignore[misc, name-defined]
        __getitem__, __len__ = Lazy.__getitem__, Lazy.__len__

        def __init__(self) -> None:
            Lazy.__init__(self)

    torchs: Any = Inner
    for inner in (torchs(), Lazy()):
        cases: list[tuple[Any, Callable[[Any], Any]]] = [
            (data.Subset(inner, [0]), lambda d: d.dataset),
            (data.ConcatDataset([inner, inner]), lambda d: d.datasets[1]),
            (data.StackDataset(a=inner), lambda d: d.datasets["a"]),
            (data.random_split(inner, [3, 1])[1], lambda d: d.dataset),
        ]
        for dataset, find in cases:
            snapshot = make_snapshot(dataset, "shallow")
            copies = [snapshot.replicate().dataset for _ in range(2)]
            assert find(copies[0])[0] is not find(copies[1])[0]
            assert inner.handle is None


def test_an_object_found_twice_is_copied_once() -> None:
    inner: Any = Lazy()
    dataset: Any = ConcatDataset([inner, Subset(inner, [0]), inner])
    copied = replicate(dataset).dataset
    first, middle, last = copied.datasets
    assert first is last is middle.dataset
    assert first is not inner


def test_datasets_that_refer_to_each_other_are_copied_together() -> None:
    outer: Any = Lazy()
    inner: Any = Lazy()
    outer.inner, inner.outer = inner, outer
    copied = replicate(outer).dataset
    assert copied.inner.outer is copied
    assert copied.inner is not inner
    assert (outer.inner, inner.outer) == (inner, outer)


def test_plain_objects_are_copied_as_root_and_as_dataset_of_a_wrapper() -> None:
    plain = Plain()
    assert replicate(plain).dataset[0] is not replicate(plain).dataset[0]
    inner = replicate(Subset(plain, [0])).dataset.dataset
    assert type(inner) is Plain
    assert inner is not plain
    wrapped: Any = Plain()
    wrapped.helper = plain
    assert replicate(wrapped).dataset.helper is plain


def test_a_long_list_of_datasets_is_copied_and_a_long_list_of_names_is_shared() -> None:
    dataset: Any = Lazy()
    dataset.parts = [Lazy() for _ in range(100)]
    dataset.names = names = [str(i) for i in range(100)]
    copied = replicate(dataset).dataset
    assert len({id(p) for p in copied.parts + dataset.parts}) == 200
    assert copied.names is names


@dataclass(frozen=True)
class Frozen(Dataset[Any]):
    inner: Any
    size: int = 3


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    dataset: Any
    size: int = 3


class Slots(Dataset[Any]):
    __slots__ = ("__private", "dataset", "unset")

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.__private = [1]

    def private(self) -> list[int]:
        return self.__private


class Refuses(Dataset[Any]):
    def __init__(self, inner: Any) -> None:
        object.__setattr__(self, "inner", inner)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("nothing can be set here")


class Forwards(Dataset[Any]):
    """Loops for ever while it has no attribute ``inner``."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class HoldsLock(Dataset[Any]):
    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.lock = threading.Lock()
        self.lock.acquire()
        self.self_reference = weakref.ref(self)


class HasProperty(Dataset[Any]):
    def __init__(self, inner: Any) -> None:
        self.__dict__["inner"] = inner

    @property
    def inner(self) -> Any:
        return self.__dict__["inner"]


@pytest.mark.parametrize(
    "kind", [Frozen, FrozenSlots, Slots, Refuses, Forwards, HoldsLock, HasProperty]
)
def test_unusual_objects_are_copied_with_what_they_hold(kind: Any) -> None:
    inner: Any = Lazy()
    dataset = kind(inner)
    name = "dataset" if kind in (FrozenSlots, Slots) else "inner"
    snapshot = make_snapshot(dataset, "shallow", warned=set())
    found = [getattr(snapshot.replicate().dataset, name) for _ in range(2)]
    assert all(type(one) is Lazy for one in found)
    assert len({id(inner), *map(id, found)}) == 3
    assert getattr(dataset, name) is inner


def test_a_class_without_a_module_is_copied() -> None:
    dataset = type("Made", (), {"__module__": None, "size": 3})()
    copied = replicate(dataset).dataset
    assert copied is not dataset
    assert copied.size == 3


def test_private_slots_are_copied_and_unset_ones_stay_unset() -> None:
    copied = replicate(Slots(Lazy())).dataset
    assert copied.private() == [1]
    assert not hasattr(copied, "unset")


def test_copy_and_pickle_hooks_of_a_class_are_used() -> None:
    class Reopens(Dataset[Any]):
        def __init__(self) -> None:
            self.handle = object()

        def __getstate__(self) -> Any:
            return {}

        def __setstate__(self, state: Any) -> None:
            self.handle = object()

    class Copies(Dataset[Any]):
        def __copy__(self) -> Any:
            made: Any = Copies()
            made.mark = getattr(self, "mark", 0) + 1
            return made

        def __del__(self) -> None:
            """Harmless for those who know how to copy themselves."""

    snapshot = make_snapshot(Reopens(), "shallow", warned=set())
    handles = {snapshot.replicate().dataset.handle for _ in range(3)}
    assert len(handles) == 3
    assert replicate(Copies()).dataset.mark == 2


def test_attributes_bound_to_a_copied_dataset_are_bound_anew() -> None:
    class Own(Lazy):
        def __init__(self) -> None:
            super().__init__()
            self.load = self.collate
            self.part = functools.partial(self.collate, [1])
            self.of_other = weakref.WeakSet.copy

    copied = replicate(Own()).dataset
    assert copied.load([])[0] is copied
    assert copied.part()[0] is copied
    assert copied.of_other is weakref.WeakSet.copy


# --- What is shared -------------------------------------------------------------------


class Rows(list[int]):
    pass


class Pair(NamedTuple):
    first: int
    second: Any


class Color(enum.Enum):
    RED = 1


class Numbers(np.ndarray[Any, Any]):
    pass


class Local(threading.local):
    pass


SHARED = [
    [1, 2],
    (1, 2),
    {0: 1},
    range(3),
    "text",
    np.zeros(3),
    np.zeros(3).view(Numbers),
    array.array("i", [1]),
    collections.deque([1]),
    collections.UserList([1]),
    Rows([1]),
    Pair(1, 2),
    Color.RED,
    Local(),
    Lazy,
    np.random.default_rng(1),
    len,
    lambda: 1,
    types,
    iter([1]),
]


@pytest.mark.parametrize("obj", SHARED, ids=lambda obj: type(obj).__name__)
def test_data_and_other_than_ordinary_objects_are_shared_silently(obj: Any) -> None:
    assert replicate(obj).dataset is obj
    inside = replicate(Subset(obj, [0])).dataset
    assert inside.dataset is obj


def test_arrays_on_disk_are_shared(tmp_path: Path) -> None:
    stored = np.memmap(tmp_path / "a", np.uint8, "w+", shape=10)
    assert replicate(stored).dataset is stored


def test_tensors_are_shared() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(3)
    assert replicate(tensor).dataset is tensor
    both = torch.utils.data.TensorDataset(tensor)
    copied = replicate(both).dataset
    assert copied is not both
    assert copied.tensors[0] is tensor


def test_frames_and_hugging_face_datasets_are_shared_but_not_a_users_package() -> None:
    def kind(module: str) -> Any:
        body = {"__module__": module, "__del__": lambda self: None}
        return type("Dataset", (), body)

    for module in ("pandas.core.frame", "pyarrow.lib", "datasets.arrow_dataset"):
        obj = kind(module)()
        assert replicate(obj).dataset is obj
    users = type("Dataset", (), {"__module__": "datasets.mine"})()
    assert replicate(users).dataset is not users


# --- Warnings -------------------------------------------------------------------------


class Closes(Dataset[Any]):
    def __del__(self) -> None: ...


class NeedsArguments(Dataset[Any]):
    def __new__(cls, needed: int) -> NeedsArguments:
        return super().__new__(cls)


class CannotPickle(Dataset[Any]):
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("no pickles please")


class StateFails(Dataset[Any]):
    def __getstate__(self) -> Any:
        raise ValueError("no state")


class Borg(Dataset[Any]):
    together: ClassVar[dict[str, Any]] = {}

    def __new__(cls) -> Borg:
        made = super().__new__(cls)
        made.__dict__ = cls.together
        return made


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (Closes(), "__del__"),
        (NeedsArguments(1), "TypeError"),
        (CannotPickle(), "no pickles please"),
        (StateFails(), "ValueError: no state"),
        (Borg(), "__dict__"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_copied_is_shared_with_one_warning(
    dataset: Any, reason: str
) -> None:
    warned: set[tuple[str, str]] = set()
    name = type(dataset).__qualname__
    with pytest.warns(UserWarning, match=f"share one .*{name}.*{reason}") as said:
        snapshot = make_snapshot(Subset(dataset, [0]), "shallow", warned=warned)
    assert len(said) == 1
    assert said[0].filename == __file__
    text = str(said[0].message)
    assert "lock" in text
    assert 'replicate="none"' in text
    copied = snapshot.replicate().dataset
    assert copied.dataset is dataset
    # Once for each loader.
    again = make_snapshot(Subset(dataset, [0]), "shallow", warned=warned)
    assert again.replicate().dataset.dataset is dataset


def test_a_copy_that_fails_in_the_worker_is_shared_too() -> None:
    class Twice(Dataset[Any]):
        copies = 0

        def __copy__(self) -> Any:
            if self.copies:
                raise RuntimeError("a copy of a copy")
            made: Any = Twice()
            made.copies, made.inner = 1, Lazy()
            return made

    snapshot = make_snapshot(Twice(), "shallow", warned=set())
    with pytest.warns(UserWarning, match="a copy of a copy"):
        first = snapshot.replicate().dataset
    inner = first.inner
    assert snapshot.replicate().dataset is first
    assert first.inner is inner


def test_nobody_is_warned_where_nothing_is_wanted() -> None:
    make_snapshot(Closes(), "shallow").replicate()
    make_snapshot(Closes(), "none", warned=set()).replicate()


@pytest.fixture
def handles(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Open handles by name."""
    (tmp_path / "file").write_text("text")
    with (
        open(tmp_path / "file") as file,
        open(tmp_path / "file", "rb", buffering=0) as raw,
        zipfile.ZipFile(tmp_path / "zip", "w") as archive,
        tarfile.open(tmp_path / "tar", "w") as tar,
    ):
        database = sqlite3.connect(":memory:")
        yield {"f": file, "r": raw, "z": archive, "t": tar, "d": database}
        database.close()


@pytest.mark.parametrize("which", "frztd")
def test_an_open_handle_is_warned_of_once(handles: Any, which: str) -> None:
    inner: Any = Lazy()
    inner.handle = handles[which]
    warned: set[tuple[str, str]] = set()
    with pytest.warns(UserWarning, match=r"'handle' of .*Lazy.*__getitem__") as said:
        snapshot = make_snapshot(Subset(inner, [0]), "shallow", warned=warned)
    assert len(said) == 1
    copied = snapshot.replicate().dataset
    assert copied.dataset.handle is inner.handle
    make_snapshot(inner, "shallow", warned=warned)


def test_closed_handles_are_not_warned_of(handles: Any) -> None:
    for which in "frzt":
        inner = Lazy()
        inner.handle = handles[which]
        handles[which].close()
        make_snapshot(inner, "shallow", warned=set())


def test_handles_of_modules_that_are_not_installed_are_known_by_name() -> None:
    def handle(module: str, name: str, is_open: bool) -> Any:
        body = {"__module__": module, "__bool__": lambda self: is_open}
        return type(name, (), body)()

    inner: Any = Lazy()
    for name, module in (("File", "h5py._hl.files"), ("Environment", "lmdb.cpython")):
        inner.handle = handle(module, name, True)
        with pytest.warns(UserWarning, match=name):
            make_snapshot(inner, "shallow", warned=set())
    inner.handle = handle("h5py._hl.files", "File", False)
    make_snapshot(inner, "shallow", warned=set())


def test_a_handle_that_each_copy_opens_itself_is_not_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")

    class Reopens(Dataset[Any]):
        def __init__(self) -> None:
            self.file = path.open()

        def __getstate__(self) -> Any:
            return {}

        def __setstate__(self, state: Any) -> None:
            self.file = path.open()

    dataset = Reopens()
    snapshot: Any = make_snapshot(dataset, "shallow", warned=set())
    copied = snapshot.replicate().dataset
    assert copied.file is not dataset.file
    for opened in (dataset, copied, *snapshot._copies.values()):
        opened.file.close()


# --- Functions ------------------------------------------------------------------------


def test_functions_of_copied_datasets_are_bound_to_the_copy() -> None:
    inner: Any = Lazy()
    replica = replicate(Subset(inner, [0]))
    owner, batch = replica.bind(inner.collate)([1])
    assert owner is replica.dataset.dataset
    assert batch == [1]
    part = functools.partial(inner.collate, batch=[2])
    assert replica.bind(part)() == (owner, [2])
    given = functools.partial(max, inner, key=inner.collate)
    bound = replica.bind(given)
    assert bound.args == (owner,)
    assert bound.keywords["key"].__self__ is owner
    assert replica.bind(inner) is owner


def test_other_functions_are_returned_as_they_are() -> None:
    dataset, other = Lazy(), Lazy()
    replica = replicate(dataset)
    functions = [
        None,
        len,
        sorted,
        lambda batch: batch,
        Lazy.collate,
        other.collate,
        functools.partial(other.collate, [1]),
        [1].append,
        dict.fromkeys,
    ]
    for function in functions:
        assert replica.bind(function) is function


def test_a_dataset_that_only_a_function_knows_is_copied_for_it() -> None:
    owner = Lazy()
    for function in (owner.collate, functools.partial(owner.collate)):
        replica = replicate([1, 2, 3], "shallow", function)
        bound = replica.bind(function)
        assert bound([1])[0] is not owner
        assert bound([1])[0] is replica.bind(function)([2])[0]
        assert replica.dataset == [1, 2, 3]


def test_functions_are_bound_to_deep_copies_too() -> None:
    inner: Any = Lazy()
    replica = replicate(Subset(inner, [0]), "deep")
    assert replica.bind(inner.collate)([])[0] is replica.dataset.dataset


# --- Modes ----------------------------------------------------------------------------


def test_none_shares_the_object_itself() -> None:
    dataset: Any = Lazy()
    replica = replicate(dataset, "none")
    assert replica.dataset is dataset
    assert replica.bind(dataset.collate).__self__ is dataset


def test_another_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="'shallow', 'none', 'deep', got 'full'"):
        make_snapshot(Lazy(), "full")


def test_deep_copies_strings_and_numbers_and_shares_large_arrays() -> None:
    dataset: Any = Lazy()
    dataset.words = [f"word {i}" for i in range(10)]
    dataset.large = np.arange(20_000)
    dataset.small = np.arange(5)
    snapshot = make_snapshot(Subset(dataset, [0]), "deep")
    copies = [snapshot.replicate().dataset.dataset for _ in range(2)]
    for copied in copies:
        assert copied.words == dataset.words
        assert copied.words[0] is not dataset.words[0]
        assert np.shares_memory(copied.large, dataset.large)
        assert copied.large is not dataset.large
        assert copied.small.tolist() == [0, 1, 2, 3, 4]
        assert not np.shares_memory(copied.small, dataset.small)
    assert copies[0].words[0] is not copies[1].words[0]
    copies[0].small[0] = 9
    assert copies[1].small[0] == 0


def test_deep_shares_arrays_on_disk(tmp_path: Path) -> None:
    dataset: Any = Lazy()
    dataset.disk = np.memmap(tmp_path / "a", np.uint8, "w+", shape=(300, 300))
    copied = replicate(dataset, "deep").dataset
    assert type(copied.disk) is np.memmap
    dataset.disk[1, 2] = 7
    assert copied.disk[1, 2] == 7


def test_deep_shares_large_tensors() -> None:
    torch = pytest.importorskip("torch")
    dataset: Any = Lazy()
    kinds = (torch.float32, torch.bfloat16, torch.bool, torch.complex64)
    dataset.large = [torch.ones(50, 2000, dtype=kind) for kind in kinds]
    dataset.small = torch.ones(3)
    dataset.grad = torch.ones(50_000, requires_grad=True)
    dataset.turned = torch.ones(300, 200).t()
    copied = replicate(dataset, "deep").dataset
    for ours, theirs in zip(copied.large, dataset.large, strict=True):
        assert ours.data_ptr() == theirs.data_ptr()
        assert ours is not theirs
        assert torch.equal(ours, theirs)
    assert copied.small.data_ptr() != dataset.small.data_ptr()
    assert copied.grad.requires_grad
    assert torch.equal(copied.turned, dataset.turned)
    assert copied.turned.stride() == dataset.turned.stride()


class Transform:
    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.fine = [1, 2]


class DropsFile(Lazy):
    def __getstate__(self) -> Any:
        return {**self.__dict__, "handle": None}


def bad_parts() -> dict[str, tuple[Any, str]]:
    def nothing() -> None: ...

    lock, by_name, listed, plain = (Lazy() for _ in range(4))
    lock.handle = threading.Lock()
    by_name.handle = {"a": Transform(1), "b": Transform(nothing)}
    listed.handle = [*range(1000), Transform({3: (0, nothing)}), *range(1000)]
    plain.handle = Transform(functools.partial(nothing))
    dropped = DropsFile()
    dropped.handle = threading.Lock()
    dropped.items = [nothing]  # type: ignore[list-item]
    return {
        "lock": (lock, "dataset.handle (_thread.lock)"),
        "dict": (by_name, "dataset.handle['b'].fn (function)"),
        "list": (listed, "dataset.handle[1000].fn[3][1] (function)"),
        "partial": (plain, "dataset.handle.fn"),
        "nested": (Subset(lock, [0]), "dataset.dataset.handle"),
        "state": (dropped, "dataset.items[0]"),
        "slots": (Slots(nothing), "dataset.dataset (function)"),
        "itself": (CannotPickle(), "dataset (tests.test_replicate.CannotPickle)"),
    }


@pytest.mark.parametrize("which", bad_parts())
def test_deep_names_the_attribute_that_cannot_be_pickled(which: str) -> None:
    dataset, path = bad_parts()[which]
    path = path.replace("tests.test_replicate", __name__)
    with pytest.raises(TypeError) as caught:
        make_snapshot(dataset, "deep")
    assert path in str(caught.value)
    assert "__getstate__" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_deep_says_when_rebuilding_fails() -> None:
    snapshot = make_snapshot(FailsToLoad(), "deep")
    with pytest.raises(pickle.UnpicklingError, match="broken") as caught:
        snapshot.replicate()
    assert 'replicate="deep"' in caught.value.__notes__[0]


class FailsToLoad:
    def __reduce__(self) -> Any:
        return _fail, ()


def _fail() -> None:
    raise pickle.UnpicklingError("broken")


def test_deep_logs_steps_of_more_than_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = iter([0.0, 0.9, 2.0, 4.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(seconds))
    with caplog.at_level(logging.WARNING, "dataloader"):
        snapshot = make_snapshot(Lazy(), "deep")
        assert caplog.messages == []
        snapshot.replicate()
    assert caplog.messages == ['replicate="deep": rebuilding the dataset took 2.5 s']


# --- The graph ------------------------------------------------------------------------


def test_nested_datasets_come_once_and_outer_ones_first() -> None:
    inner, other = Lazy(), Plain()
    middle: Any = Subset(inner, [0])
    dataset: Any = ConcatDataset([middle, Subset(other, [0]), inner])
    found = list(nested_datasets(dataset))
    assert found[0] is dataset
    assert {id(d) for d in found[1:4]} == {id(d) for d in dataset.datasets}
    assert found[4] is other
    assert len(found) == 5


def test_nested_datasets_shared_ones_included() -> None:
    closes: Any = Closes()
    assert list(nested_datasets(Subset(closes, [0])))[1:] == [closes]
    assert list(nested_datasets([1, 2])) == [[1, 2]]


def test_a_very_deep_chain_of_wrappers_is_no_recursion() -> None:
    dataset: Any = Lazy()
    depth = sys.getrecursionlimit() * 2
    for _ in range(depth):
        outer = Lazy()
        outer.handle = dataset
        dataset = outer
    copied = replicate(dataset).dataset
    assert len(list(nested_datasets(copied))) == depth + 1


def test_iterable_datasets_of_ours_and_of_torch_are_followed() -> None:
    data = pytest.importorskip("torch.utils.data")

    class Ours(IterableDataset[Any]):
        def __init__(self, source: Any) -> None:
            self.source = source

        def __iter__(self) -> Iterator[Any]:
            return iter(self.source)

    class Torchs(data.IterableDataset):  # type: ignore[misc, name-defined]
        __init__, __iter__ = Ours.__init__, Ours.__iter__

    for dataset in (Ours(Torchs([1])), Torchs(Ours([1]))):
        copied = replicate(dataset).dataset
        assert type(copied) is type(dataset)
        assert type(copied.source) is type(dataset.source)
        assert copied.source is not dataset.source
        assert list(copied) == [1]


def test_torchs_data_pipes_are_copied_or_shared() -> None:
    pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.data.datapipes.iter import IterableWrapper

        pipe = IterableWrapper([1, 2, 3]).map(abs).batch(2)
        snapshot = make_snapshot(pipe, "shallow", warned=set())
        copies = [snapshot.replicate().dataset for _ in range(2)]
        assert [list(copied) for copied in copies] == [[[1, 2], [3]]] * 2


# --- Threads --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["shallow", "deep"])
def test_many_threads_make_replicas_of_one_snapshot(mode: str) -> None:
    threads, rounds = 8, 1000
    inner: Any = Lazy()
    inner.bound = inner.collate
    inner.large = np.arange(20_000)
    dataset: Any = ConcatDataset([Subset(inner, [0, 1]), inner])
    snapshot = make_snapshot(dataset, mode, warned=set())
    barrier = threading.Barrier(threads)
    found: list[set[int]] = []
    failures: list[BaseException] = []

    def work() -> None:
        kept = []
        barrier.wait(20)
        try:
            for _ in range(rounds):
                replica = snapshot.replicate()
                first, second = replica.dataset.datasets
                assert first.dataset is second is second.bound([])[0]
                assert replica.bind(inner.collate)([])[0] is second
                assert second.handle is None
                second.handle = second
                assert second.large[-1] == 19_999
                kept.append(second)
        except BaseException as error:
            failures.append(error)
        found.append({id(one) for one in kept})
        barrier.wait(60)  # nothing is freed before all ids are known

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    assert len(set.union(*found)) == threads * rounds
    assert inner.handle is None

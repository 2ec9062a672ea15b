"""Objects that pass for torch's: isinstance, copies, pickles, and the real class."""

from __future__ import annotations

import abc
import copy
import functools
import gc
import inspect
import itertools
import pickle
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from dataloader._twin import TorchTwin

T = TypeVar("T")

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


class Loader(TorchTwin, Generic[T], torch_name="DataLoader"):
    """Stands for our loader."""

    def __init__(self, dataset: Any, batch_size: int = 1) -> None:
        self.dataset = dataset
        self.batch_size = batch_size


class Stream(TorchTwin, Generic[T], torch_name="IterableDataset"):
    """Stands for our iterable dataset; torch's is abstract."""

    def __iter__(self) -> Iterator[int]:
        return iter([1])


class Mine(Loader[int]):
    """A user's loader with arguments of its own."""

    def __init__(self, size: int, *, extra: str = "x") -> None:
        super().__init__(range(size))
        self.extra = extra

    def where(self) -> Any:
        return super().__init__.__qualname__


class WithReduce(Loader[int]):
    def __reduce__(self) -> Any:
        return (self.__class__, (self.dataset,), {"batch_size": 9})


class WithOldReduceEx(Loader[int]):
    def __reduce_ex__(self, protocol: Any) -> Any:
        return (self.__class__, (self.dataset, 8))


class WithState(Loader[int]):
    def __getstate__(self) -> Any:
        return {"kept": self.dataset}

    def __setstate__(self, state: Any) -> None:
        self.dataset = state["kept"]
        self.batch_size = 7


class WithNewArgs(Loader[int]):
    def __new__(cls, dataset: Any, batch_size: int = 1) -> WithNewArgs:
        assert dataset is not None
        return super().__new__(cls)

    def __getnewargs__(self) -> Any:
        return (self.dataset,)


class WithNewArgsEx(WithNewArgs):
    def __getnewargs_ex__(self) -> Any:
        return (), {"dataset": self.dataset}


class WithSlots(Loader[int]):
    __slots__ = ("slot",)
    slot: int


class WithCopy(Loader[int]):
    """Copies itself in the way that is found everywhere."""

    def __copy__(self) -> WithCopy:
        cls = self.__class__
        made = cls.__new__(cls)
        made.__dict__.update(self.__dict__)
        return made


class KeepsItsClass(Loader[int]):
    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self.kind = self.__class__


@pytest.fixture(params=["torch", "no torch"])
def data(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``torch.utils.data``: torch's own, or a stand-in where there is no torch."""
    if request.param == "torch":
        return pytest.importorskip("torch.utils.data")
    return stand_in(monkeypatch)


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Dataset(Generic[T]):
        def __init__(self) -> None:
            raise AssertionError("torch's __init__ must not run")

    class IterableDataset(Dataset[T], metaclass=abc.ABCMeta):
        @abc.abstractmethod
        def __iter__(self) -> Iterator[T]: ...

    class DataLoader(Generic[T]):
        def __setattr__(self, name: str, value: object) -> None:
            raise AssertionError("torch's __setattr__ must not run")

    module: Any = types.ModuleType("torch.utils.data")
    module.Dataset = Dataset
    module.IterableDataset = IterableDataset
    module.DataLoader = DataLoader
    monkeypatch.setitem(sys.modules, "torch.utils.data", module)
    return module


def test_without_torch_the_class_is_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.data", raising=False)
    loader = Mine(3)
    assert loader.__class__ is Mine
    for protocol in PROTOCOLS:
        assert type(pickle.loads(pickle.dumps(loader, protocol))) is Mine


def test_a_half_imported_torch_gives_no_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    data = stand_in(monkeypatch)
    data.__spec__ = types.SimpleNamespace(_initializing=True)
    assert Mine(3).__class__ is Mine
    data.__spec__ = None
    assert isinstance(Mine(3), data.DataLoader)


@pytest.mark.parametrize("make", [lambda: Loader([1]), lambda: Mine(3)])
def test_isinstance_of_torchs_class(data: Any, make: Any) -> None:
    loader = make()
    assert isinstance(loader, data.DataLoader)
    assert isinstance(loader, Loader)
    assert not isinstance(loader, data.Dataset)
    assert not isinstance(object(), data.DataLoader)


def test_isinstance_of_torchs_abstract_class_and_its_bases(data: Any) -> None:
    assert isinstance(Stream(), data.IterableDataset)
    assert isinstance(Stream(), data.Dataset)
    assert not isinstance(Loader([1]), data.IterableDataset)


def test_objects_made_before_torch_is_loaded_pass_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.data", raising=False)
    early = Mine(3)
    assert early.__class__ is Mine
    data = stand_in(monkeypatch)
    assert isinstance(early, data.DataLoader)
    again = stand_in(monkeypatch)  # torch imported anew: the old twin does not do
    assert isinstance(early, again.DataLoader)
    assert not isinstance(early, data.DataLoader)


def test_match_and_singledispatch_see_torchs_class(data: Any) -> None:
    @functools.singledispatch
    def kind(obj: object) -> str:
        return "other"

    @kind.register(data.DataLoader)
    def _(obj: object) -> str:
        return "loader"

    assert kind(Mine(3)) == "loader"
    assert kind(Stream()) == "other"
    match Mine(3):
        case data.DataLoader(batch_size=1):
            pass
        case _:
            pytest.fail("no match")


def test_super_and_subscription_work(data: Any) -> None:
    loader = Mine(3)
    assert loader.where() == "Loader.__init__"
    assert type(Loader[int]([1])) is Loader
    assert type(Loader([1]).__class__[int]([2])) is Loader  # type: ignore[index]


@pytest.mark.parametrize("pickler", [pickle.dumps, pickle._dumps])  # type: ignore[attr-defined]
def test_pickles_are_of_the_real_class(data: Any, pickler: Any) -> None:
    for protocol in PROTOCOLS:
        check_pickles(pickler, protocol)


def check_pickles(pickler: Any, protocol: int) -> None:
    def there_and_back(obj: Any) -> Any:
        back = pickle.loads(pickler(obj, protocol))
        assert type(back) is type(obj)
        return back

    assert there_and_back(Mine(3, extra="y")).extra == "y"
    assert there_and_back(WithReduce([1])).batch_size == 9
    assert there_and_back(WithOldReduceEx([1])).batch_size == 8
    assert there_and_back(WithState([1])).batch_size == 7
    assert there_and_back(WithNewArgs([1], 6)).batch_size == 6
    assert there_and_back(WithNewArgsEx([1], 6)).batch_size == 6
    assert there_and_back(KeepsItsClass([1])).kind in (
        KeepsItsClass,
        KeepsItsClass([1]).__class__,
    )
    slotted = WithSlots([1])
    slotted.slot = 5
    assert there_and_back(slotted).slot == 5


def test_a_pickled_twin_is_the_real_class(data: Any) -> None:
    for obj, protocol in itertools.product((Mine(3), Stream()), PROTOCOLS):
        assert pickle.loads(pickle.dumps(obj.__class__, protocol)) is type(obj)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copies_are_of_the_real_class(data: Any, duplicate: Any) -> None:
    kinds = (WithReduce, WithState, WithNewArgs, WithNewArgsEx, WithCopy, Loader)
    for kind in kinds:
        made = duplicate(kind([1, 2]))
        assert type(made) is kind
        assert made.dataset == [1, 2]
    assert duplicate(Mine(3, extra="y")).extra == "y"


def test_calling_the_twin_builds_the_real_class(data: Any) -> None:
    loader = Mine(3)
    twin = loader.__class__
    assert twin is not Mine
    made = twin(4, extra="z")
    assert type(made) is Mine
    assert (made.dataset, made.extra) == (range(4), "z")
    with pytest.raises(TypeError):
        twin()  # type: ignore[call-arg]
    assert type(loader.__class__.__new__(twin)) is Mine


def test_the_twin_looks_like_the_real_class(data: Any) -> None:
    twin = Mine(3).__class__
    assert inspect.signature(twin) == inspect.signature(Mine)
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(twin, name) == getattr(Mine, name)
    assert repr(twin) == repr(Mine)
    assert twin.__init__ is Mine.__init__
    assert isinstance(Mine(3), twin)
    assert issubclass(twin, Mine)


def test_nothing_of_torchs_class_wins_over_ours(data: Any) -> None:
    loader: Loader[int] = Loader([1])
    assert isinstance(loader, data.DataLoader)
    loader.batch_size = 5  # torch's refuses
    loader.__class__([2]).batch_size = 6
    order = loader.__class__.__mro__
    assert order.index(Loader) < order.index(data.DataLoader)


def test_one_class_has_one_twin_and_its_subclass_another(data: Any) -> None:
    assert Mine(1).__class__ is Mine(2).__class__
    assert Loader([1]).__class__ is not Mine(1).__class__
    assert not isinstance(Loader([1]), Mine(1).__class__)


def test_threads_agree_on_the_twin(data: Any) -> None:
    for _ in range(50):

        class Fresh(Loader[int]):
            pass

        objects = [Fresh([1]) for _ in range(8)]
        found: list[type] = []
        barrier = threading.Barrier(8)

        def ask(
            obj: Fresh, barrier: threading.Barrier = barrier, found: list[type] = found
        ) -> None:
            barrier.wait(10)
            found.append(obj.__class__)

        threads = [threading.Thread(target=ask, args=(obj,)) for obj in objects]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert len(set(found)) == 1
        assert issubclass(found[0], data.DataLoader)


@pytest.mark.skipif(
    sys.version_info < (3, 14) and bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="3.13t keeps every class for ever once a thread was started",
)
def test_classes_and_twins_are_collected(data: Any) -> None:
    class Passing(Loader[int]):
        pass

    assert isinstance(Passing([1]), data.DataLoader)
    gone = [weakref.ref(Passing), weakref.ref(Passing([1]).__class__)]
    del Passing
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_init_subclass_runs_once(data: Any) -> None:
    class Registers(Loader[int]):
        made: ClassVar[list[type]] = []

        def __init_subclass__(cls, flag: int, **options: Any) -> None:
            super().__init_subclass__(**options)
            cls.made.append(cls)

    class Child(Registers, flag=1):
        pass

    assert isinstance(Child([1]), data.DataLoader)
    assert Registers.made == [Child]

    class OfTwin(Child([1]).__class__, flag=2):  # type: ignore[misc, call-arg]
        pass

    assert Registers.made == [Child, OfTwin]


def test_a_subclass_of_a_twin_is_a_class_like_any_other(data: Any) -> None:
    class Wrapper(Mine(1).__class__):  # type: ignore[misc]
        def __init__(self, size: int) -> None:
            super().__init__(size, extra="w")

    wrapper = Wrapper(2)
    assert type(wrapper) is wrapper.__class__ is Wrapper
    assert issubclass(Wrapper, (Mine, data.DataLoader))
    assert wrapper.extra == "w"
    assert list(inspect.signature(Wrapper).parameters) == ["size"]


def test_a_class_that_derives_from_torchs_already_has_no_twin(data: Any) -> None:
    class Both(Stream[int], data.IterableDataset):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

    assert Both().__class__ is Both


def test_a_class_of_two_kinds_is_both_of_torchs(data: Any) -> None:
    class Two(Loader[int], Stream[int]):
        pass

    two = Two([1])
    assert isinstance(two, data.DataLoader)
    assert isinstance(two, data.IterableDataset)


def test_an_odd_metaclass_keeps_its_objects_working(data: Any) -> None:
    class Final(type):
        def __new__(mcs, name: str, bases: Any, body: Any, **options: Any) -> Any:
            if any(isinstance(base, Final) for base in bases):
                raise TypeError("no subclasses")
            return super().__new__(mcs, name, bases, body, **options)

    class Sealed(Loader[int], metaclass=Final):
        pass

    sealed = Sealed([1])
    assert sealed.__class__ is Sealed
    assert sealed.batch_size == 1


def test_an_ordinary_metaclass_is_kept(data: Any) -> None:
    class Counting(type):
        calls = 0

        def __call__(cls, *args: Any, **options: Any) -> Any:
            Counting.calls += 1
            return super().__call__(*args, **options)

    class Counted(Loader[int], metaclass=Counting):
        pass

    made = Counted([1]).__class__([2])
    assert type(made) is Counted
    assert isinstance(made, data.DataLoader)
    assert Counting.calls == 2


def test_dataclasses_replace_makes_the_real_class(data: Any) -> None:
    @dataclass(frozen=True)
    class Options(Stream[int]):
        size: int = 1

    changed = replace(Options(), size=3)
    assert type(changed) is Options
    assert changed.size == 3
    assert isinstance(changed, data.IterableDataset)


def test_the_class_can_be_assigned(data: Any) -> None:
    loader: Any = Loader([1])
    loader.__class__ = Mine
    assert type(loader) is Mine
    twin: Any = Loader([1]).__class__
    loader.__class__ = twin
    assert type(loader) is Loader


def test_an_unknown_counterpart_gives_no_twin(data: Any) -> None:
    class Unknown(TorchTwin, torch_name="NoSuchClass"):
        pass

    assert Unknown().__class__ is Unknown

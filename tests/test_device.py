"""Pinning, on stand-ins for tensors and accelerators: no test here needs a device."""

from __future__ import annotations

import collections
import dataclasses
import sys
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from dataloader import _torch_probe
from dataloader.device import make_pinner, pin_memory


class Pinned(NamedTuple):
    content: Any


class Pinnable:
    """A tensor, as far as pinning can tell."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def pin_memory(self) -> Pinned:
        return Pinned(self.content)


class Point(NamedTuple):
    x: Any
    y: Any


class TaggedDict(dict[Any, Any]):
    tag = ""


class TaggedList(list[Any]):
    tag = ""


class StubbornList(list[Any]):
    def __copy__(self) -> StubbornList:
        raise TypeError("cannot be copied")


@dataclasses.dataclass
class Record:
    field: Any


# Recursion


def test_what_can_pin_itself_is_replaced_by_the_result() -> None:
    assert pin_memory(Pinnable(1)) == Pinned(1)
    assert pin_memory(Pinnable(1), "cuda") == Pinned(1)


@pytest.mark.parametrize(
    "make",
    [
        lambda leaf: {"a": leaf(1), "b": {"c": leaf(2)}},
        lambda leaf: collections.OrderedDict(b=leaf(1), a=leaf(2)),
        lambda leaf: collections.defaultdict(list, a=leaf(1)),
        lambda leaf: collections.UserDict(a=leaf(1)),
        lambda leaf: [leaf(1), [leaf(2)], "s"],
        lambda leaf: (leaf(1), (leaf(2),), b"s"),
        lambda leaf: Point(leaf(1), None),
        lambda leaf: collections.deque([leaf(1)]),
        lambda leaf: collections.UserList([leaf(1)]),
        lambda leaf: types.MappingProxyType({"a": leaf(1)}),
    ],
)
def test_containers_keep_their_types(make: Callable[[Any], Any]) -> None:
    data = make(Pinnable)
    pinned = pin_memory(data)
    assert type(pinned) is type(data)
    assert pinned == make(Pinned)
    assert pinned is not data


def test_subclasses_keep_their_attributes_and_the_originals_their_contents() -> None:
    for data in (TaggedDict(a=Pinnable(1)), TaggedList([Pinnable(1)])):
        data.tag = "kept"
        before = repr(data)
        pinned = pin_memory(data)
        assert type(pinned) is type(data)
        assert pinned.tag == "kept"
        assert repr(data) == before


def test_container_that_cannot_be_rebuilt_becomes_a_plain_one() -> None:
    assert type(pin_memory(StubbornList([Pinnable(1)]))) is list
    assert pin_memory(range(2)) == [0, 1]


@pytest.mark.parametrize("data", ["ab", b"ab", 1, None, {1, 2}, np.ones(2)], ids=repr)
def test_all_else_is_the_same_object(data: Any) -> None:
    assert pin_memory(data) is data


def test_dataclasses_are_not_looked_into() -> None:
    record = Record(Pinnable(1))
    assert pin_memory(record) is record
    assert type(record.field) is Pinnable


# Accelerators


class FakeAccelerator:
    """The part of ``torch.accelerator`` that pinning asks, in its present spelling."""

    def __init__(self, kind: str = "cuda", index: int = 0) -> None:
        self.kind = kind
        self.index = index
        self.selected: list[tuple[threading.Thread, int]] = []

    def is_available(self) -> bool:
        return self.kind != ""

    def current_accelerator(self) -> Any:
        return types.SimpleNamespace(type=self.kind)

    def current_device_index(self) -> int:
        return self.index

    def set_device_index(self, index: int) -> None:
        self.selected.append((threading.current_thread(), index))


class FirstAccelerator(FakeAccelerator):
    """The same as torch 2.6 spelled it."""

    current_device_idx = FakeAccelerator.current_device_index
    set_device_idx = FakeAccelerator.set_device_index
    current_device_index = None  # type: ignore[assignment]
    set_device_index = None  # type: ignore[assignment]


class OldDevices:
    """``torch.cuda`` and its like, of the torch versions before that."""

    def __init__(self, available: bool) -> None:
        self.available = available
        self.selected: list[tuple[threading.Thread, int]] = []

    def is_available(self) -> bool:
        return self.available

    def current_device(self) -> int:
        return 3

    def set_device(self, index: int) -> None:
        self.selected.append((threading.current_thread(), index))


InstallTorch = Callable[..., None]


@pytest.fixture
def install_torch(monkeypatch: pytest.MonkeyPatch) -> InstallTorch:
    """Put a stand-in for torch, with the given attributes, in its place."""

    def install(**attributes: Any) -> None:
        torch = types.ModuleType("torch")
        vars(torch).update(attributes)
        monkeypatch.setattr(_torch_probe, "torch_installed", lambda: True)
        monkeypatch.setitem(sys.modules, "torch", torch)

    return install


def in_thread(*calls: Callable[[], Any]) -> threading.Thread:
    """Run the calls one after another in one new thread, and return it."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for call in calls:
                call()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return thread


def test_nothing_asked_for_is_nothing_said() -> None:
    assert make_pinner(False) is None
    assert make_pinner(False, "cuda") is None


def test_absent_torch_warns_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch_probe, "torch_installed", lambda: False)
    for _ in range(2):
        with pytest.warns(UserWarning, match="no accelerator is found") as caught:
            assert make_pinner(True) is None
        assert len(caught) == 1
        assert caught[0].filename == __file__


def test_absent_accelerator_warns(install_torch: InstallTorch) -> None:
    install_torch(accelerator=FakeAccelerator(kind=""))
    with pytest.warns(UserWarning, match="'pin_memory' argument is set as true but no"):
        assert make_pinner(True) is None


def test_stacklevel_says_whose_line_is_shown(install_torch: InstallTorch) -> None:
    install_torch(accelerator=FakeAccelerator(kind=""))

    def loader() -> None:
        make_pinner(True, "cuda", stacklevel=3)

    with pytest.warns(UserWarning, match="pin_memory") as caught:
        loader()
    line = loader.__code__.co_firstlineno + 4
    assert [(w.filename, w.lineno) for w in caught] == [(__file__, line)] * 2


def test_mps_cannot_pin(install_torch: InstallTorch) -> None:
    install_torch(accelerator=FakeAccelerator(kind="mps"))
    with pytest.warns(UserWarning, match="MPS"):
        assert make_pinner(True) is None


def test_named_device_is_deprecated_and_ignored(install_torch: InstallTorch) -> None:
    install_torch(accelerator=FakeAccelerator(index=2))
    with pytest.warns(UserWarning, match="pin_memory_device is deprecated.*'cuda:1'"):
        pinner = make_pinner(True, "cuda:1")
    assert pinner is not None


def test_pinner_pins_without_a_warning(install_torch: InstallTorch) -> None:
    install_torch(accelerator=FakeAccelerator())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pinner = make_pinner(True)
    assert pinner is not None
    pinned: Any = pinner([Pinnable(1)])
    assert pinned == [Pinned(1)]


@pytest.mark.parametrize("kind", [FakeAccelerator, FirstAccelerator])
def test_each_worker_selects_the_creators_device_once(
    kind: type[FakeAccelerator], install_torch: InstallTorch
) -> None:
    accelerator = kind(index=2)
    install_torch(accelerator=accelerator)
    pinner = make_pinner(True)
    assert pinner is not None
    accelerator.index = 0  # what is current later, or in other threads, is not asked
    workers = [in_thread(lambda: pinner(1), lambda: pinner(2)) for _ in range(2)]
    assert accelerator.selected == [(worker, 2) for worker in workers]


def test_creators_own_thread_keeps_the_device_it_chose(
    install_torch: InstallTorch,
) -> None:
    accelerator = FakeAccelerator(index=2)
    install_torch(accelerator=accelerator)
    pinner = make_pinner(True)
    assert pinner is not None
    pinner(1)
    assert accelerator.selected == []


def test_worker_that_serves_two_epochs_selects_the_device_of_each(
    install_torch: InstallTorch,
) -> None:
    accelerator = FakeAccelerator(index=1)
    install_torch(accelerator=accelerator)
    first = make_pinner(True)
    accelerator.index = 2
    second = make_pinner(True)
    assert first is not None
    assert second is not None
    in_thread(lambda: first(1), lambda: second(1), lambda: second(1), lambda: first(1))
    assert [index for _, index in accelerator.selected] == [1, 2, 1]


def test_device_that_could_not_be_selected_is_tried_again(
    install_torch: InstallTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail_once(index: int) -> None:
        calls.append(index)
        if len(calls) == 1:
            raise RuntimeError("busy")

    accelerator = FakeAccelerator()
    monkeypatch.setattr(accelerator, "set_device_index", fail_once)
    install_torch(accelerator=accelerator)
    pinner = make_pinner(True)
    assert pinner is not None

    def first_try() -> None:
        with pytest.raises(RuntimeError, match="busy"):
            pinner(1)

    in_thread(first_try, lambda: pinner(1), lambda: pinner(1))
    assert calls == [0, 0]


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_older_torch_is_asked_by_kind(kind: str, install_torch: InstallTorch) -> None:
    devices = {name: OldDevices(name == kind) for name in ("cuda", "xpu")}
    install_torch(**devices)
    pinner = make_pinner(True)
    assert pinner is not None
    worker = in_thread(lambda: pinner(1))
    assert devices[kind].selected == [(worker, 3)]


@pytest.mark.parametrize(("mps", "text"), [(True, "MPS"), (False, "no accelerator")])
def test_older_torch_without_devices_warns(
    mps: bool, text: str, install_torch: InstallTorch
) -> None:
    install_torch(
        cuda=OldDevices(False), backends=types.SimpleNamespace(mps=OldDevices(mps))
    )
    with pytest.warns(UserWarning, match=text):
        assert make_pinner(True) is None


def test_warning_matches_that_of_torch_on_this_machine() -> None:
    torch = pytest.importorskip("torch")
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    from torch.utils.data import DataLoader

    with pytest.warns(UserWarning, match="pin_memory") as theirs:
        iter(DataLoader([1], pin_memory=True))
    with pytest.warns(UserWarning, match="pin_memory") as ours:
        make_pinner(True)
    beginning = str(theirs[0].message).partition(",")[0]
    assert str(ours[0].message).startswith(beginning)
    assert ours[0].category is theirs[0].category

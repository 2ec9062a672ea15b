"""What `share` changes and leaves alone, and that loaders give the same batches."""

from __future__ import annotations

import collections
import contextlib
import copy
import gc
import itertools
import math
import pathlib
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import MakeLoader
from hypothesis import given, settings
from hypothesis import strategies as st
from test_interrupts import Strike

from dataloader import DataLoader, Dataset, Subset, _refcounts, share, sharing
from dataloader._refcounts import are_contended, find_defer, find_immortalise
from dataloader.sharing import defer_datasets

contended = pytest.mark.skipif(not are_contended(), reason="share() has nothing to do")
deferring = pytest.mark.skipif(
    not are_contended() or find_defer() is None, reason="counts cannot be deferred"
)
# Later versions may decline.
immortalising = pytest.mark.skipif(
    not are_contended() or sys.version_info[:2] != (3, 14), reason="made for 3.14"
)


_numbers = itertools.count()


def copied(text: str) -> str:
    """Return an equal string that is another object, and not interned."""
    return (text + "-")[:-1]


def new() -> str:
    """Return a string that none is equal to. It is not interned, as literals are."""
    return f"text {next(_numbers)}"


def taken(text: str) -> str:
    """Return a string that cannot become the interned one: an equal one is that."""
    sys.intern(copied(text))
    return copied(text)


def is_interned(text: str) -> bool:
    return sys._is_interned(text)  # type: ignore[attr-defined,no-any-return]


def is_deferred(obj: object) -> bool:
    # A deferred count is the real one plus an eighth of what fits.
    return sys.getrefcount(obj) > sys.maxsize // 16


def is_immortal(obj: object) -> bool:
    return sys._is_immortal(obj)  # type: ignore[attr-defined,no-any-return]


def has_dict(obj: object) -> bool:
    """Whether an object has been asked for its ``__dict__``, which makes it slower."""
    return any(type(value) is dict for value in gc.get_referents(obj))


class Record:
    """An ordinary object with a ``__dict__``."""

    def __init__(self, name: Any, inner: Any = None) -> None:
        self.name = name
        self.inner = inner


class Slotted:
    __slots__ = ("inner", "name", "unset")

    def __init__(self, name: Any, inner: Any = None) -> None:
        self.name = name
        self.inner = inner


@dataclass(frozen=True)
class Frozen:
    name: Any
    inner: Any = None


class Point(NamedTuple):
    name: Any
    inner: Any = None


class Closing(Record):
    """An object that has something to do at its end."""

    def __del__(self) -> None:
        pass


# --- Strings --------------------------------------------------------------------------


@contended
def test_equal_strings_become_one_object() -> None:
    one, two = new(), new()
    words = [copied(one), copied(two), copied(one)]
    table = {copied(one): copied(two)}
    data = [words, table]
    assert share(data) is data
    assert words == [one, two, one]
    assert words[0] is words[2] is next(iter(table))
    assert table[one] is words[1]
    assert all(map(is_interned, words))


HOLDERS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "list": (lambda s: [0, s], lambda x: str(x[1])),
    "value": (lambda s: {0: s}, lambda x: str(x[0])),
    "key": (lambda s: {s: 0}, lambda x: str(*x)),
    "key of defaultdict": (
        lambda s: collections.defaultdict(int, {s: 0}),
        lambda x: str(*x),
    ),
    "key of Counter": (lambda s: collections.Counter({s: 2}), lambda x: str(*x)),
    "value of OrderedDict": (
        lambda s: collections.OrderedDict({0: s}),
        lambda x: str(x[0]),
    ),
    "UserList": (lambda s: collections.UserList([s]), lambda x: str(x.data[0])),
    "attribute": (Record, lambda x: str(x.name)),
    "slot": (Slotted, lambda x: str(x.name)),
    "frozen dataclass": (Frozen, lambda x: str(x.name)),
    "in an attribute": (lambda s: Record(1, [s]), lambda x: str(x.inner[0])),
    "in a tuple": (lambda s: ([s],), lambda x: str(x[0][0])),
    "in a named tuple": (lambda s: Point(1, [s]), lambda x: str(x.inner[0])),
    "UserDict": (
        lambda s: collections.UserDict({0: s}),
        lambda x: str(x.data[0]),
    ),
}


@contended
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("make", [copied, taken])
def test_strings_are_interned_wherever_they_can_be_exchanged(
    holder: str, make: Callable[[str], str]
) -> None:
    put, get = HOLDERS[holder]
    text = make(new())
    data = put(text)
    assert get(data) is text
    assert share(data) is data
    assert get(data) == text
    assert is_interned(get(data))


UNCHANGEABLE: dict[str, Callable[[str], Any]] = {
    "tuple": lambda s: (s,),
    "named tuple": Point,
    "set": lambda s: {s},
    "frozenset": lambda s: frozenset({s}),
    "key of OrderedDict": lambda s: collections.OrderedDict({s: 1}),
}


@contended
@pytest.mark.parametrize("holder", UNCHANGEABLE)
def test_what_cannot_take_another_string_keeps_its_own(holder: str) -> None:
    first, second = new(), taken(new())
    share([UNCHANGEABLE[holder](first), UNCHANGEABLE[holder](second)])
    # The first of its kind is interned where it is.
    assert is_interned(first)
    assert not is_interned(second)


@contended
def test_lists_take_the_strings_of_tuples_whichever_comes_first() -> None:
    kept = new()
    labels = [copied(kept)]
    share([labels, (kept,), [copied(kept)]])
    assert labels[0] is kept
    assert is_interned(kept)


@contended
def test_the_order_of_a_dict_stays() -> None:
    keys: list[Any] = ["c", 1, "a key", None, "b key", (2, "x"), math.inf, "d key"]
    table = {(taken(k) if isinstance(k, str) else k): i for i, k in enumerate(keys)}
    share(table)
    assert list(table) == keys
    assert list(table.values()) == list(range(len(keys)))
    assert all(is_interned(key) for key in table if isinstance(key, str))


@contended
def test_a_defaultdict_keeps_its_factory_and_a_counter_its_counts() -> None:
    table = collections.defaultdict(list, {taken("some key"): [1]})
    counts = collections.Counter([taken("some key"), taken("some key")])
    share([table, counts])
    assert table["missing"] == []
    assert counts == {"some key": 2}


@contended
def test_an_ordered_dict_keeps_its_keys() -> None:
    keys = [taken(new()) for _ in range(3)]
    table = collections.OrderedDict.fromkeys(keys, 0)
    share(table)
    # Its own order and what dict itself knows of it stay in step.
    for kept in (list(table), list(dict.keys(table))):
        assert [id(key) for key in kept] == [id(key) for key in keys]


@contended
def test_subclasses_of_str_stay_what_they_are() -> None:
    class Name(str):
        __slots__ = ()

    name = Name("a name")
    values: list[Any] = [name, {name: name}]
    share(values)
    assert values[0] is name
    assert next(iter(values[1])) is values[1][name] is name


@contended
def test_containers_are_read_and_changed_past_their_own_methods() -> None:
    class Strict(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("iterated")

        def __setitem__(self, index: Any, value: Any) -> None:
            raise AssertionError("assigned to")

    class Fixed(dict[Any, Any]):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("iterated")

        def __setitem__(self, key: Any, value: Any) -> None:
            raise AssertionError("assigned to")

        def items(self) -> Any:
            raise AssertionError("asked for items")

    values, table = Strict([taken("in a list")]), Fixed({1: taken("in a dict")})
    share([values, table])
    assert is_interned(list.__getitem__(values, 0))
    assert is_interned(dict.__getitem__(table, 1))


@contended
def test_objects_are_not_asked_for_their_dict() -> None:
    record, dataset = Record(new(), [1]), Subset([1], [0])
    share([record, dataset], immortal=True)
    assert is_interned(record.name)
    assert not has_dict(record)
    assert not has_dict(dataset)


@contended
def test_attributes_are_set_past_setattr_and_properties() -> None:
    class Careful:
        def __init__(self, name: str) -> None:
            vars(self)["name"] = name
            vars(self)["size"] = copied("as stored")

        def __setattr__(self, key: str, value: object) -> None:
            raise AssertionError("assigned to")

        def __getattr__(self, key: str) -> object:
            raise AssertionError("asked for an attribute")

        @property
        def size(self) -> str:
            raise AssertionError("asked for a property")

    careful = Careful(taken("a name"))
    share(careful)
    assert is_interned(vars(careful)["name"])
    assert is_interned(vars(careful)["size"])


# --- Nothing else changes -------------------------------------------------------------

texts = st.text(max_size=4).map(copied) | st.sampled_from(["ab", "cde"]).map(taken)
plain = texts | st.integers() | st.floats() | st.binary() | st.none() | st.booleans()
hashable = st.recursive(
    plain,
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)
nested = st.recursive(
    hashable,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(hashable, max_size=3)
        | st.builds(Frozen, texts, inner)
        | st.builds(Point, texts, inner)
    ),
    max_leaves=20,
)


@given(data=nested, strings=st.booleans(), immortal=st.booleans())
@settings(max_examples=300, deadline=None)
def test_values_order_and_types_stay(data: Any, strings: bool, immortal: bool) -> None:
    # repr shows order and types, and nan, which equals nothing.
    before = repr(data)
    assert share(data, strings=strings, immortal=immortal) is data
    assert repr(data) == before
    assert share(data) is data
    assert repr(data) == before


def strings_in_place(data: Any) -> Iterator[str]:
    """Yield the strings of lists and dicts, at any depth of lists, dicts and tuples."""
    if type(data) is dict:
        data = [*data, *data.values()]
    if isinstance(data, list | tuple):
        for value in data:
            if type(value) is str and type(data) is list:
                yield value
            yield from strings_in_place(value)


@contended
@given(data=nested)
@settings(max_examples=300, deadline=None)
def test_all_strings_of_lists_and_dicts_are_interned(data: Any) -> None:
    share(data)
    assert [s for s in strings_in_place(data) if not is_interned(s)] == []


def ids(data: Any) -> list[int]:
    """Return the identities of all objects in nested lists, dicts and tuples."""
    inner: Any = data if isinstance(data, list | tuple) else ()
    if isinstance(data, dict):
        inner = [*data, *data.values()]
    return [id(data), *(i for value in inner for i in ids(value))]


@given(data=nested, immortal=st.booleans())
@settings(max_examples=100, deadline=None)
def test_without_strings_no_object_is_exchanged(data: Any, immortal: bool) -> None:
    before = ids(data)
    share(data, strings=False, immortal=immortal)
    assert ids(data) == before


def test_without_strings_none_is_interned() -> None:
    text = new()
    share([text, {text: text}, Record(text), (text,)], strings=False)
    assert sys.intern(copied(text)) is not text


@pytest.mark.skipif(are_contended(), reason="for builds and runs with the GIL")
def test_with_the_gil_nothing_is_touched() -> None:
    text = new()
    data = [text, {text: text}, Record(text)]
    before = sys.getrefcount(data)
    assert share(data, immortal=True) is data
    assert sys.getrefcount(data) == before
    assert data[0] is text
    assert sys.intern(copied(text)) is not text


@pytest.mark.parametrize(
    "obj",
    [None, 3, 2.5, "text", b"bytes", np.arange(3), len, Record, math, iter("ab"), ...],
    ids=str,
)
def test_what_holds_nothing_is_returned_as_it_is(obj: Any) -> None:
    before = copy.copy(obj) if isinstance(obj, np.ndarray) else obj
    assert share(obj, immortal=True) is obj
    assert np.array_equal(obj, before) if isinstance(obj, np.ndarray) else True


@pytest.mark.parametrize("name", ["strings", "immortal"])
@pytest.mark.parametrize("value", [1, None, "yes", np.True_])
def test_flags_are_true_or_false(name: str, value: object) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(TypeError, match=f"{name} must be True or False, got "):
        share([], **options)


def module_of(text: str) -> types.ModuleType:
    module = types.ModuleType("made")
    vars(module)["text"] = text
    return module


def function_of(text: str) -> Callable[..., list[str]]:
    def function(values: list[str]) -> list[str]:
        return values

    function.__defaults__ = ([text],)
    return function


LEFT_ALONE: dict[str, tuple[Callable[[str], Any], Callable[[Any], Any]]] = {
    "module": (module_of, lambda x: x.text),
    "class": (lambda s: type("Made", (), {"text": s}), lambda x: x.text),
    "default of a function": (function_of, lambda x: x()[0]),
    "array of objects": (lambda s: np.array([s], object), lambda x: x[0]),
    "thread": (lambda s: threading.Thread(name=s), lambda x: x.name),
    "loader": (lambda s: DataLoader([s]), lambda x: x.dataset[0]),
    "weak dictionary": (
        lambda s: weakref.WeakValueDictionary({s: Record}),
        lambda x: next(iter(x.data)),
    ),
}


@pytest.mark.parametrize("kind", LEFT_ALONE)
def test_other_objects_are_left_alone(kind: str) -> None:
    make, get = LEFT_ALONE[kind]
    text = taken(new())
    holder = make(text)
    share([holder, Record(1, holder)], immortal=True)
    assert get(holder) is text


# --- Graphs ---------------------------------------------------------------------------


@contended
def test_cycles_end() -> None:
    first: list[Any] = [taken("in a cycle")]
    second = {"first": first, "own": Record(first)}
    second["second"] = second
    first += [second, first]
    share(first)
    assert is_interned(first[0])
    assert second["second"] is second
    assert first[2] is first


@contended
def test_any_depth_of_nesting() -> None:
    inner = data = [taken("at the bottom")]
    for _ in range(100_000 // 4):
        data = [{"inner": (Record(0, data),)}]  # type: ignore[list-item]
    share(data, immortal=True)
    assert is_interned(inner[0])


@contended
def test_what_is_shared_inside_is_visited_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visited: list[int] = []
    contents = sharing._contents

    def visit(obj: Any) -> Any:
        visited.append(id(obj))
        return contents(obj)

    monkeypatch.setattr(sharing, "_contents", visit)
    data: list[Any] = ["leaf"]
    for _ in range(60):  # 2**60 ways to the leaf
        data = [data, data]
    share(data)
    assert len(visited) == len(set(visited)) == 61


@contended
def test_what_was_added_later_is_shared_by_another_call() -> None:
    words = share([new()])
    words.append(taken("second"))
    assert share(words) is words
    assert is_interned(words[1])


@contended
def test_threads_may_share_the_same_at_once() -> None:
    for number in range(20):
        table = {taken(f"key {number} {i}"): taken(f"value {i}") for i in range(50)}
        expected = dict(table)
        data = [table, [table], Record(table)]
        together = threading.Barrier(6)

        def work(together: threading.Barrier = together, data: Any = data) -> None:
            together.wait()
            share(data, immortal=True)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for started in threads:
            started.start()
        for started in threads:
            started.join()
        assert list(table.items()) == list(expected.items())
        assert all(map(is_interned, table))


@contended
def test_an_interrupt_at_any_place_loses_nothing() -> None:
    for place in itertools.count():
        keys = [new() for _ in range(3)]
        table = {taken(key): [taken("value"), i] for i, key in enumerate(keys)}
        with contextlib.suppress(KeyboardInterrupt), Strike(place) as strike:
            share(table)
        assert list(table) == keys
        assert list(table.values()) == [["value", i] for i in range(3)]
        if not strike.struck:
            break
    assert place > 20


# --- Counts ---------------------------------------------------------------------------

DEFERRED: dict[str, Callable[[], Any]] = {
    "list": lambda: [1],
    "dict": lambda: {1: 2},
    "set": lambda: {1},
    "OrderedDict": lambda: collections.OrderedDict({1: 2}),
    "object": lambda: Record(1),
    "slots": lambda: Slotted(1),
    "dataset": lambda: Subset([1], [0]),
    "tuple of a list": lambda: ([1],),
    "named tuple": lambda: Point(1),
    "path": lambda: pathlib.Path("some/where"),
}


@deferring
@pytest.mark.parametrize("kind", DEFERRED)
@pytest.mark.parametrize("strings", [True, False])
def test_counts_are_deferred(kind: str, strings: bool) -> None:
    obj = DEFERRED[kind]()
    assert not is_deferred(obj)
    share([{"inner": obj}], strings=strings)
    assert is_deferred(obj)
    if kind == "dataset":
        assert is_deferred(obj.indices)


NOT_DEFERRED: dict[str, Callable[[], Any]] = {
    "object with __del__": lambda: Closing(1),
    "tuple of values": lambda: (1.5, new()),
    "tuple of tuples": lambda: ((1.5, new()), 2),
    "array": lambda: np.arange(3),
    "lock": threading.Lock,
    "generator": lambda: (i for i in [1]),
    "deque": lambda: collections.deque([1]),
    "text": lambda: taken("in nothing that could take another"),
    "thread": threading.Thread,
}


@deferring
@pytest.mark.parametrize("kind", NOT_DEFERRED)
def test_counts_are_not_deferred(kind: str) -> None:
    obj = NOT_DEFERRED[kind]()
    share(({"inner": (obj,)},))
    assert not is_deferred(obj)


@deferring
def test_what_an_object_with_a_del_holds_is_deferred() -> None:
    closing = Closing([1])
    share(closing)
    assert is_deferred(closing.name)


@deferring
def test_deferred_objects_are_freed_by_the_collector() -> None:
    record = share(Record([1], {2: (3, [4])}))
    died = weakref.ref(record)
    del record
    assert died() is not None
    gc.collect()
    assert died() is None


@deferring
def test_tuples_of_plain_values_do_not_stay_for_ever() -> None:
    value = np.zeros(1)
    assert not gc.is_tracked(value)
    died = weakref.ref(value)
    data = share([((value, 1.5), 2)])
    assert gc.is_tracked(data[0])
    gc.collect()
    assert not gc.is_tracked(data[0])
    del data, value
    gc.collect()
    assert died() is None


def test_nothing_is_immortal_unless_asked_for() -> None:
    value = np.zeros(1)
    died = weakref.ref(value)
    data = share([value, {1: value}, Record(value), 1.5, b"bytes"])
    del data, value
    gc.collect()
    assert died() is None


@immortalising
def test_plain_values_become_immortal_on_request() -> None:
    def values() -> list[Any]:
        base = float(len(sys.argv) + 1)
        return [base / 3, int(base) << 70, bytes([1, 2, 3]) * int(base), base * 1j]

    inside, keys, held = values(), values(), Record(values()[0])
    data = [inside, dict.fromkeys(keys), held, (values()[0],)]
    share(data)
    assert not any(map(is_immortal, [*inside, *keys, held.name, data[3]]))
    share(data, immortal=True)
    assert all(map(is_immortal, [*inside, *keys, held.name, data[3]]))
    assert inside == values()


@immortalising
def test_what_refers_to_something_does_not_become_immortal() -> None:
    value = np.zeros(1)
    died = weakref.ref(value)
    data = [value, (value,), [value], {1: (value, 2)}, Record(value)]
    share(data, immortal=True)
    del data, value
    gc.collect()
    assert died() is None


@immortalising
def test_strings_are_not_made_immortal_without_interning() -> None:
    text = new()
    share([text, (text,)], strings=False, immortal=True)
    assert not is_immortal(text)


def test_an_interpreter_that_offers_nothing_will_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    look_up = _refcounts._c_function.__wrapped__
    monkeypatch.setattr(_refcounts, "_c_function", look_up)
    assert find_defer() is None
    assert find_immortalise() is None
    words = [taken("without ctypes")]
    assert share(words, immortal=True) == ["without ctypes"]
    assert (words[0] is sys.intern("without ctypes")) == are_contended()


AT_EXIT = """
import sys, threading
from dataloader import share

class Record:
    def __init__(self):
        self.table = {("key %d" % i): [i / 7, b"x" * (i + 2)] for i in range(100)}
        self.own = self

class Closing(Record):
    def __del__(self):
        print("closed")

kept = share([Record(), Closing(), (1.5, "te" + "xt"), 2**70 + 1], immortal=True)
dropped = share([Record(), 2.5 ** 3, [1]], immortal=True)

def read():
    for _ in range(200):
        for record in kept[:2]:
            for key, (number, data) in record.table.items():
                assert record.table[key][0] == number

threads = [threading.Thread(target=read) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
del dropped
threading.Thread(target=lambda: [read() for _ in range(10**6)], daemon=True).start()
"""


@pytest.mark.parametrize("flags", [[], ["-X", "dev"]], ids=["plain", "dev"])
def test_the_interpreter_exits_cleanly_after_it(flags: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *flags, "-c", AT_EXIT],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- Loaders --------------------------------------------------------------------------


class Tokens(Dataset[Any]):
    """Looks words up in a dict, as tokenisers do."""

    def __init__(self, size: int = 40) -> None:
        words = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "."]
        self.vocabulary = {
            copied(word): i for i, word in enumerate(dict.fromkeys(words))
        }
        self.texts = [
            [copied(words[(i * k) % 9]) for k in range(9)] for i in range(size)
        ]
        self.scale = [0.5]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Any:
        ids = [self.vocabulary[word] for word in self.texts[index]]
        return np.array(ids) * self.scale[0], self.texts[index][0]


def batches(loader: DataLoader[Any]) -> list[Any]:
    return [(np.asarray(ids).tolist(), list(words)) for ids, words in loader]


@pytest.mark.parametrize("replicate", ["shallow", "none", "deep"])
@pytest.mark.parametrize("immortal", [False, True])
def test_batches_are_the_same(
    make_loader: MakeLoader, replicate: str, immortal: bool
) -> None:
    options: dict[str, Any] = {
        "batch_size": 7,
        "shuffle": True,
        "seed": 5,
        "replicate": replicate,
    }
    expected = batches(DataLoader(Tokens(), **{**options, "num_workers": 0}))
    loader = make_loader(share(Tokens(), immortal=immortal), **options)
    assert batches(loader) == expected


class Nested(Dataset[Any]):
    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.dataset = Subset(inner, [1, 0])
        self.closing = Closing(1)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def load(dataset: Any, **options: Any) -> None:
    list(DataLoader(dataset, collate_fn=list, **options))


@deferring
def test_one_dataset_for_all_workers_is_deferred_when_they_start() -> None:
    word, row = taken("stays"), [1]
    inner: Any = Tokens()
    inner.rows = [row, word]
    dataset = Nested(inner)
    load(dataset, num_workers=2, replicate="none")
    assert all(map(is_deferred, [dataset, dataset.dataset, inner]))
    assert not has_dict(dataset)
    assert all(map(is_deferred, [dataset.dataset.indices, inner.texts, inner.rows]))
    assert is_deferred(inner.vocabulary)
    # Attributes are as deep as it goes, and no value is changed.
    assert not is_deferred(row)
    assert not is_deferred(dataset.closing)
    assert inner.rows[1] is word


@deferring
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"num_workers": 2, "replicate": "shallow"},
        {"num_workers": 0, "replicate": "none"},
    ],
    ids=str,
)
def test_other_datasets_are_left_alone(options: dict[str, Any]) -> None:
    dataset = Tokens()
    load(dataset, **options)
    assert not any(map(is_deferred, [dataset, dataset.texts, dataset.vocabulary]))


@deferring
def test_a_list_for_all_workers_is_deferred() -> None:
    dataset = [1, 2, 3]
    load(dataset, num_workers=2, replicate="none")
    assert is_deferred(dataset)


@deferring
def test_datasets_with_a_del_are_not_deferred() -> None:
    class Open(Tokens):
        def __del__(self) -> None:
            pass

    dataset = Open()
    defer_datasets([dataset])
    assert not is_deferred(dataset)
    assert not is_deferred(dataset.texts)


def test_a_deferred_dataset_is_collected_after_its_loader() -> None:
    dataset = Tokens()
    died = weakref.ref(dataset)
    load(dataset, num_workers=2, replicate="none")
    del dataset
    deadline = time.monotonic() + 20
    while died() is not None and time.monotonic() < deadline:
        gc.collect()
    assert died() is None

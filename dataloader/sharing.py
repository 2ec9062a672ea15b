"""`share`: take the reference counts off what all workers read.

The walk over nested containers and objects collects each object once, without
recursion. Then, one pass each: strings are interned, counts are deferred and, on
request, the rest becomes immortal; `_refcounts` says what that is.

Guards: `_guard` lets one `share` at a time change strings; nobody else may be using the
objects then. `defer_datasets` changes no object's value and needs no guard.
"""

from __future__ import annotations

import contextlib
import gc
import operator
import sys
from collections import Counter, defaultdict
from itertools import starmap
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dataloader._copying import is_ordinary
from dataloader._graph import attributes, put
from dataloader._guard import Guard
from dataloader._refcounts import are_contended, find_defer, find_immortalise

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["defer_datasets", "share"]

T = TypeVar("T")

_guard = Guard()


def share(obj: T, *, strings: bool = True, immortal: bool = False) -> T:
    """Prepare an object for being read by many threads at once, and return it.

    On free-threaded Python a thread that touches an object writes the object's
    reference count, and threads that read one vocabulary, lookup table or list of
    samples slow each other down by that, often below the speed of a single thread. This
    takes the counts off. It looks into lists, tuples, dicts and sets and into the
    attributes of ordinary Python objects, however deeply nested. Arrays, tensors, data
    frames, functions, classes and modules are left alone, and so are locks, queues,
    loggers and their like.

    - Strings are interned: equal ones in lists, in dicts (keys and values) and in
      attributes are replaced by one object, in place. Order and equality stay.
      Instances of subclasses of ``str`` stay what they are. Tuples and sets cannot take
      another string; theirs are interned where no equal one was before.
    - Lists, dicts, sets and ordinary objects get deferred counts, from Python 3.14 on,
      and so do tuples with such an object in them. Not objects with a ``__del__``,
      which would run late.

    Call it in the thread that made the object, before a loader or another thread uses
    it: it changes the containers, and later is too late. Calling it again is harmless,
    and picks up what was added. With the GIL it does nothing.

    What it costs, measured on 3.14 with 10**6 of each: half a microsecond and 25 bytes
    for a string in a list, 1 to 2 us for a container, tuple or object; a second call
    takes a fifth of that for strings and as long for the others. Interned strings are
    never freed, and an object with a deferred count is freed by the garbage collector
    alone, some time after its last use or at ``gc.collect()``. Share what lives as long
    as the training.

    Args:
        obj: a container or an object; anything else is returned as it is.
        strings: intern strings. False changes nothing but reference counts.
        immortal: make numbers and ``bytes``, and tuples of nothing but those and
            strings, immortal: they are never freed. For hot values that are no strings,
            on Python 3.14; later versions may decline.

    Raises:
        TypeError: ``strings`` or ``immortal`` is neither True nor False.

    Example:
        >>> from dataloader import share
        >>> vocabulary = share({"the": 0, "quick": 1, "brown": 2})
        >>> vocabulary["quick"]
        1
    """
    _require_bool("strings", strings)
    _require_bool("immortal", immortal)
    if are_contended():
        _guard.run(_share, obj, strings, immortal)
    return obj


def _require_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def _share(obj: Any, strings: bool, immortal: bool) -> None:
    found = _reachable(obj)
    if strings:
        # Those first that cannot take another string: theirs become the ones that the
        # others take.
        for inner in sorted(found, key=_is_changeable):
            _intern_inside(inner)
    _defer(found)
    if immortal:
        _immortalise(found)


def defer_datasets(roots: Iterable[Any]) -> None:
    """Defer the counts of datasets that all workers use, and of their containers.

    Done once for a dataset, and no deeper than its attributes, since `DataLoader` asks
    at each ``iter()``. No value is changed.

    Args:
        roots: datasets. What their attributes ``dataset`` and ``datasets`` hold is one.
    """
    defer = find_defer()
    if defer is None or not are_contended():
        return
    bases = _Bases()
    pending = list(roots)
    while pending:
        dataset = pending.pop()
        is_known = bases[type(dataset)] is not None
        if is_known and _may_be_deferred(dataset) and defer(dataset):
            _defer(v for v in _held(dataset) if bases[type(v)] not in (None, object))
            pending += _wrapped(dataset)


def _held(dataset: Any) -> Iterator[Any]:
    """Yield the values of a dataset's attributes."""
    for value in gc.get_referents(dataset):
        yield value
        # Attributes are in a dict if somebody has asked for it.
        if type(value) is dict and len(value) <= _MOST_ATTRIBUTES:
            yield from value.values()


def _wrapped(dataset: Any) -> list[Any]:
    """Return the datasets that wrappers, ours and torch's, have inside."""
    found: list[Any] = []
    for name in ("dataset", "datasets"):
        # Past properties and __getattr__, and without asking for a __dict__.
        if not hasattr(type(dataset), name):
            with contextlib.suppress(AttributeError):
                value = object.__getattribute__(dataset, name)
                is_many = type(value) in (list, tuple, dict)
                found += _contents(value) if is_many else [value]
    return found


_MOST_ATTRIBUTES = 64


# The walk.

_CONTAINERS = (list, dict, tuple, set, frozenset)
_UNCHANGEABLE = (tuple, set, frozenset)

# The packages of objects that do the program's work: they are no data, and other
# threads may be using them.
_MACHINERY = (
    *("asyncio.", "concurrent.", "logging.", "multiprocessing.", "queue.", "socket."),
    *("subprocess.", "threading.", "weakref."),
    *("dataloader.loader.", "dataloader.workers."),
)


class _Bases(dict[type, "type | None"]):
    """By type: what kind of container it is, `object` for ordinary objects, or None.

    Objects of types that are None are left alone. Made for one walk, as it keeps the
    types alive.
    """

    def __missing__(self, cls: type) -> type | None:
        base = next(filter(_CONTAINERS.__contains__, cls.__mro__), None)
        is_object = base is None and is_ordinary(cls) and not _is_machinery(cls)
        self[cls] = object if is_object else base
        return self[cls]


def _is_machinery(cls: type) -> bool:
    return any(f"{base.__module__}.".startswith(_MACHINERY) for base in cls.__mro__)


def _is_changeable(obj: Any) -> bool:
    return not issubclass(type(obj), _UNCHANGEABLE)


def _reachable(root: Any) -> list[Any]:
    """Return ``root`` and the containers and objects inside it, each once."""
    bases = _Bases()
    if bases[type(root)] is None:
        return []
    found = {id(root): root}
    pending = [root]
    while pending:
        for inner in _contents(pending.pop()):
            if bases[type(inner)] is not None and id(inner) not in found:
                found[id(inner)] = inner
                pending.append(inner)
    return list(found.values())


def _contents(obj: Any) -> Iterable[Any]:
    """Return what ``obj`` refers to, whatever its class makes of iteration.

    Nothing is asked for its ``__dict__``: CPython makes that when it is first asked
    for, and reads the attributes of an object that has one more slowly.
    """
    cls = type(obj)
    if cls in (list, tuple, set, frozenset):
        return cast("Iterable[Any]", obj)
    if cls is dict:
        return [*obj, *obj.values()]
    return gc.get_referents(obj)


# Strings.


def _intern_inside(obj: Any) -> None:
    """Let the strings directly inside ``obj`` be interned ones, if they can be."""
    cls = type(obj)
    if issubclass(cls, list):
        _intern_list(obj)
    elif issubclass(cls, dict):
        _intern_dict(obj)
    if cls is list or cls is dict:
        return
    kept = [v for v in _contents(obj) if type(v) is str and sys.intern(v) is not v]
    if kept and cls not in _CONTAINERS:
        _intern_attributes(obj)


def _intern_list(values: list[Any]) -> None:
    for index, value in enumerate(list.__iter__(values)):
        if type(value) is str and (interned := sys.intern(value)) is not value:
            list.__setitem__(values, index, interned)


def _intern_dict(table: dict[Any, Any]) -> None:
    for key in dict.keys(table):
        if type(key) is str and sys.intern(key) is not key:
            _refill(table)
            break
    for key, value in dict.items(table):
        if type(value) is str and (interned := sys.intern(value)) is not value:
            dict.__setitem__(table, key, interned)


def _refill(table: dict[Any, Any]) -> None:
    """Put the interned keys in: a dict keeps those that it has as long as it can."""
    if type(table) not in _REFILLABLE:
        return
    fresh = {
        sys.intern(key) if type(key) is str else key: value
        for key, value in table.items()
    }
    # One call of C: Ctrl-C cannot come between and leave the dict empty.
    list(starmap(operator.call, ((dict.clear, table), (dict.update, table, fresh))))


# Other classes may keep track of their keys in a second place, as OrderedDict does.
_REFILLABLE = frozenset({dict, defaultdict, Counter})


def _intern_attributes(obj: Any) -> None:
    for key, value in attributes(obj):
        if type(value) is str and (interned := sys.intern(value)) is not value:
            put(obj, key, interned)


# Counts.

_TRACKED = 1 << 14  # the flag of types whose objects the garbage collector may track
_ATOMS = frozenset({bytes, complex, float, int})
_PLAIN = _ATOMS | {str, bool, NoneType}


def _defer(objects: Iterable[Any]) -> None:
    defer = find_defer()
    if defer is not None:
        for obj in objects:
            if _may_be_deferred(obj):
                defer(obj)


def _may_be_deferred(obj: Any) -> bool:
    cls: Any = type(obj)
    if cls is not tuple:
        return not hasattr(cls, "__del__")
    # The collector stops looking at tuples of plain values, and it alone frees what is
    # deferred: those would never be.
    return any(type(v).__flags__ & _TRACKED and type(v) is not tuple for v in obj)


def _immortalise(objects: Iterable[Any]) -> None:
    """Make plain values immortal: they refer to nothing that would live on with them.

    Strings are not among them, as only interning makes them so in every version.
    """
    immortalise = find_immortalise()
    if immortalise is None:
        return
    for obj in objects:
        values = _contents(obj)
        for value in values:
            if type(value) in _ATOMS:
                immortalise(value)
        if type(obj) is tuple and all(type(v) in _PLAIN for v in values):
            immortalise(obj)

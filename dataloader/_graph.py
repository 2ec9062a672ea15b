"""The datasets inside a dataset: found, and exchanged for others.

``Subset``, ``ConcatDataset`` and users' wrappers hold further datasets. What counts as
one is an attribute, or an element of a list, tuple or small dict that is an attribute,
if its class derives from our or torch's ``Dataset``, or if the attribute is called
``dataset`` or ``datasets`` and it can be indexed or iterated.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from types import (
    BuiltinFunctionType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import TYPE_CHECKING, Any

import numpy as np

from dataloader._torch import loaded, torch_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = [
    "Key",
    "attributes",
    "dataset_bases",
    "datasets_in",
    "namespace",
    "nested_datasets",
    "owners",
    "put",
    "references",
    "set_epoch",
    "swap",
    "takes_epoch",
]

Key = str | MemberDescriptorType
"""Where an object keeps an attribute: a key of its ``__dict__`` or a slot."""

# Types of attributes that are looked at no further, which is most of them.
_PLAIN = frozenset(
    {int, float, complex, str, bytes, bool, NoneType, range, set, frozenset, type}
    | {FunctionType, BuiltinFunctionType, ModuleType, np.ndarray}
)

# A list of file names may be long; one of datasets shows what it is at its beginning.
_GLANCE = 16

_ROLES = frozenset({"dataset", "datasets"})


def attributes(obj: Any) -> list[tuple[Key, Any]]:
    """Return the attributes that ``obj`` itself stores, past any ``__getattr__``."""
    found: list[tuple[Key, Any]] = list(namespace(obj).copy().items())
    for cls in type(obj).__mro__:
        if "__slots__" in cls.__dict__:
            found += _slots(cls, obj)
    return found


def references(obj: Any) -> list[tuple[Key, Any]]:
    """Return the attributes that may be, hold or use a dataset or a handle."""
    return [
        (key, value)
        for key, value in attributes(obj)
        if type(value) not in _PLAIN and not _holds_plain(value)
    ]


def _holds_plain(value: Any) -> bool:
    elements = _elements(value)
    if elements is None:
        return False
    return _PLAIN.issuperset(map(type, itertools.islice(elements, _GLANCE)))


def namespace(obj: Any) -> dict[str, Any]:
    """Return the ``__dict__`` of ``obj``, an empty one if it has none."""
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _slots(cls: type, obj: Any) -> Iterator[tuple[Key, Any]]:
    for member in list(cls.__dict__.values()):
        if isinstance(member, MemberDescriptorType):
            try:
                value = member.__get__(obj)
            except AttributeError:
                continue  # a slot that is not set
            yield member, value


def put(obj: Any, key: Key, value: Any) -> None:
    """Store an attribute past any ``__setattr__``: frozen dataclasses have one."""
    if not isinstance(key, str):
        key.__set__(obj, value)
    elif hasattr(type(getattr(type(obj), key, None)), "__set__"):
        namespace(obj)[key] = value  # past a property of the same name
    else:
        # Not by __dict__ either: an object whose __dict__ nobody has asked for keeps
        # its attributes in a form that is faster to read.
        object.__setattr__(obj, key, value)


def nested_datasets(
    dataset: Any, is_end: Callable[[Any], bool] | None = None
) -> Iterator[Any]:
    """Yield ``dataset`` and every dataset inside it, each once, outer ones first.

    Args:
        dataset: the outermost one.
        is_end: tells of which datasets those inside are not looked for.
    """
    bases = dataset_bases()
    seen = {id(dataset): dataset}
    queue = deque([dataset])
    while queue:
        outer = queue.popleft()
        yield outer
        if is_end is not None and is_end(outer):
            continue
        for key, value in references(outer):
            for inner in datasets_in(key, value, bases):
                if id(inner) not in seen:
                    seen[id(inner)] = inner
                    queue.append(inner)


def takes_epoch(obj: Any) -> bool:
    """Return whether an object has a ``set_epoch``."""
    return callable(getattr(obj, "set_epoch", None))


def set_epoch(dataset: Any, epoch: int) -> None:
    """Tell the datasets that take it the number of the epoch.

    They are the outermost ones with a ``set_epoch``, which hand it on to what they
    wrap.
    """
    for owner in nested_datasets(dataset, takes_epoch):
        if takes_epoch(owner):
            owner.set_epoch(epoch)


def datasets_in(key: Key, value: Any, bases: frozenset[type]) -> Iterable[Any]:
    """Return the datasets that an attribute is or holds.

    Args:
        key: the attribute's place.
        value: its value.
        bases: what `dataset_bases` returned.
    """
    by_role = (key if isinstance(key, str) else key.__name__) in _ROLES
    elements = _elements(value)
    if elements is None:
        return (value,) if _is_dataset(value, bases, by_role) else ()
    glance = itertools.islice(elements, _GLANCE)
    if not any(_is_dataset(element, bases, by_role) for element in glance):
        return ()
    return [v for v in elements if _is_dataset(v, bases, by_role)]


def _elements(value: Any) -> Iterable[Any] | None:
    kind = type(value)
    if kind is dict:
        return list(value.values()) if len(value) <= _GLANCE else ()
    return value if kind is list or kind is tuple else None


def _is_dataset(value: Any, bases: frozenset[type], by_role: bool) -> bool:
    # By the type's own bases: isinstance would ask a proxy object what it pretends.
    kind = type(value)
    if kind in _PLAIN:
        return False
    if not bases.isdisjoint(kind.__mro__):
        return True
    return (
        by_role
        and _elements(value) is None
        and (hasattr(kind, "__getitem__") or hasattr(kind, "__iter__"))
    )


def dataset_bases() -> frozenset[type]:
    """Return the classes whose subclasses are datasets; of loaded modules alone."""
    found = {torch_class("Dataset"), torch_class("IterableDataset")}
    ours = loaded("dataloader.datasets")
    found |= {getattr(ours, name, None) for name in ("Dataset", "IterableDataset")}
    return frozenset(base for base in found if base is not None)


def owners(function: Any) -> Iterator[Any]:
    """Yield the datasets whose methods ``function`` is or is made of."""
    if type(function) is MethodType:
        if _is_dataset(function.__self__, dataset_bases(), by_role=False):
            yield function.__self__
    elif type(function) is functools.partial:
        for part in (function.func, *function.args, *function.keywords.values()):
            yield from owners(part)


def swap(value: Any, copies: Mapping[int, Any]) -> Any:
    """Return ``value`` with every object exchanged that has a copy.

    Looks into bound methods, ``functools.partial`` and the lists, tuples and dicts that
    `datasets_in` looks into.

    Args:
        value: anything; returned itself if nothing is to be exchanged.
        copies: copy by ``id`` of the object that it takes the place of.
    """
    if id(value) in copies:
        return copies[id(value)]
    exchange = _EXCHANGES.get(type(value))
    return value if exchange is None else exchange(value, copies)


def _swap_method(method: Any, copies: Mapping[int, Any]) -> Any:
    owner = copies.get(id(method.__self__), method.__self__)
    return method if owner is method.__self__ else MethodType(method.__func__, owner)


def _swap_partial(part: Any, copies: Mapping[int, Any]) -> Any:
    old = (part.func, *part.args, *part.keywords.values())
    new = [swap(value, copies) for value in old]
    if all(a is b for a, b in zip(old, new, strict=True)):
        return part
    end = 1 + len(part.args)
    keywords = dict(zip(part.keywords, new[end:], strict=True))
    return functools.partial(new[0], *new[1:end], **keywords)


def _swap_sequence(values: Any, copies: Mapping[int, Any]) -> Any:
    glance = itertools.islice(values, _GLANCE)
    if not any(id(value) in copies for value in glance):
        return values
    return type(values)([copies.get(id(value), value) for value in values])


def _swap_dict(values: Any, copies: Mapping[int, Any]) -> Any:
    if len(values) > _GLANCE or not any(id(v) in copies for v in values.values()):
        return values
    return {key: copies.get(id(value), value) for key, value in values.items()}


_EXCHANGES: Mapping[type, Callable[[Any, Mapping[int, Any]], Any]] = {
    MethodType: _swap_method,
    functools.partial: _swap_partial,
    list: _swap_sequence,
    tuple: _swap_sequence,
    dict: _swap_dict,
}

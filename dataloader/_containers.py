"""Rebuilding a container around new contents, with its type and attributes kept.

Collation, conversion and pinning all walk nested samples and put results back into
containers of the same types; what "the same type" means is decided here alone.
"""

from __future__ import annotations

import copy
from collections.abc import (
    Callable,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
)
from typing import Any

__all__ = ["is_namedtuple", "like_mapping", "like_sequence", "map_container"]


def is_namedtuple(data: object) -> bool:
    """Return whether ``data`` is a tuple with named fields."""
    return isinstance(data, tuple) and hasattr(data, "_fields")


def like_mapping(template: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """Return a mapping of the type of ``template`` that holds ``values``.

    A mutable one is a shallow copy whose items were replaced, so that a subclass keeps
    its attributes; another one is built from the dict.

    Args:
        template: gives the type; left untouched.
        values: the contents, under the keys of ``template``. Returned as it is when
            the type cannot be copied, takes no such items or is not built from a dict.
    """
    if type(template) is dict:
        return values
    try:
        if not isinstance(template, MutableMapping):
            return type(template)(values)  # type: ignore[call-arg]
        clone = copy.copy(template)
        for key, value in values.items():
            clone[key] = value  # update() would add to what a Counter holds
        return clone
    except TypeError:
        return values


def like_sequence(template: Sequence[Any], values: list[Any]) -> Any:
    """Return a sequence of the type of ``template`` that holds ``values``.

    A mutable one is a shallow copy whose items were replaced, so that a subclass keeps
    its attributes; another one is built from the list.

    Args:
        template: gives the type; left untouched.
        values: the contents, as many as ``template`` has. Returned as they are when
            the type cannot be copied, takes no such items or is not built from a list
            (``range``).
    """
    if type(template) is list:
        return values
    try:
        if not isinstance(template, MutableSequence):
            return type(template)(values)  # type: ignore[call-arg]
        clone = copy.copy(template)
        for index, value in enumerate(values):
            clone[index] = value
        return clone
    except TypeError:
        return values


def map_container(
    function: Callable[[Any], Any], data: Any, *, keep_tuples: bool
) -> Any:
    """Return ``data`` rebuilt with ``function`` applied to each of its elements.

    Args:
        function: called with each value of a mapping, each item of a sequence.
        data: what is neither (strings and bytes included) is returned as it is.
        keep_tuples: whether an ordinary tuple keeps its type or becomes a list. One
            with named fields always keeps its type.
    """
    if isinstance(data, Mapping):
        return like_mapping(data, {key: function(data[key]) for key in data})
    if isinstance(data, tuple):
        values = [function(item) for item in data]
        if is_namedtuple(data):
            return type(data)(*values)
        return type(data)(values) if keep_tuples else values
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return like_sequence(data, [function(item) for item in data])
    return data

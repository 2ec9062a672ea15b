"""Shallow copies of datasets: what is copied, what is shared, what is warned of.

Only ordinary Python objects are copied, those whose state is attributes. For all else a
"shallow" copy either copies the data (lists, arrays) or cannot be made.
"""

from __future__ import annotations

import collections
import copy
import copyreg
import io
import warnings
from types import BuiltinFunctionType
from typing import Any

from dataloader._graph import attributes, namespace, put
from dataloader._twin import TorchTwin
from dataloader.errors import users_level

__all__ = [
    "Warned",
    "Warner",
    "clone",
    "clone_again",
    "is_open_handle",
    "is_ordinary",
    "type_name",
]

Warned = set[tuple[str, str]]
"""What a loader has warned of: name of a type, and the topic."""

_HEAP_TYPE = 1 << 9

_DATA_PACKAGES = frozenset({"numpy", "pandas", "polars", "pyarrow", "h5py"})

# Whole names: a user's own package may well be called "datasets".
_DATA_MODULES = frozenset(
    {"datasets.arrow_dataset", "datasets.dataset_dict", "datasets.iterable_dataset"}
)

_CONTAINERS = frozenset(
    {collections.UserDict, collections.UserList, collections.ChainMap}
)

_HANDLES = frozenset(
    {
        ("zipfile", "ZipFile"),
        ("tarfile", "TarFile"),
        ("h5py", "File"),
        ("h5py", "Group"),
        ("h5py", "Dataset"),
        ("lmdb", "Environment"),
        ("lmdb", "Transaction"),
        ("builtins", "Environment"),  # what lmdb's C extension calls itself
        ("builtins", "Transaction"),
        ("sqlite3", "Connection"),
        ("sqlite3", "Cursor"),
    }
)

_OPEN_LAZILY = (
    "Open it in __getitem__ or __iter__ when it is first needed, so that each worker "
    "has its own"
)
_SHARE_LMDB = (
    "That is how LMDB is meant to be used: one process must not open an environment "
    "twice. Begin a transaction in each __getitem__, as it belongs to one thread, and "
    "open the environment with lock=False or a max_readers that covers the workers"
)
_ADVICE = {
    ("lmdb", "Environment"): _SHARE_LMDB,
    ("builtins", "Environment"): _SHARE_LMDB,
}


def type_name(cls: type) -> str:
    """Return the name of a type as messages show it."""
    return cls.__qualname__ if cls.__module__ == "builtins" else _full_name(cls)


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


class Warner:
    """Warns once for each type and topic.

    Args:
        warned: what was warned of already, added to; None warns of nothing.
    """

    def __init__(self, warned: Warned | None) -> None:
        self._warned = warned

    def of_sharing(self, cls: type, reason: str) -> None:
        """Say that objects of ``cls`` are not copied, and why."""
        self._warn(
            cls,
            "sharing",
            f"all workers share one {type_name(cls)} object, because {reason}. If it "
            "keeps files or other state of its own, guard that with a lock or give the "
            'class a __copy__; if it does not, replicate="none" ends this warning',
        )

    def of_handle(self, cls: type, name: str, value: Any) -> None:
        """Say that an attribute is an open handle, which a copy has in common."""
        advice = _ADVICE.get(_short_names(type(value))[0], _OPEN_LAZILY)
        self._warn(
            cls,
            "handle",
            f"attribute {name!r} of {type_name(cls)} is an open "
            f"{type_name(type(value))}, which all workers share. {advice}",
        )

    def _warn(self, cls: type, topic: str, message: str) -> None:
        key = (_full_name(cls), topic)
        if self._warned is not None and key not in self._warned:
            self._warned.add(key)
            warnings.warn(message, UserWarning, stacklevel=users_level())


def clone(obj: Any, warn: Warner) -> Any:
    """Return a shallow copy of ``obj``, or ``obj`` itself if it is to be shared."""
    cls = type(obj)
    if _is_data(cls):
        return obj
    if hasattr(cls, "__del__") and not hasattr(cls, "__copy__"):
        reason = "its __del__ would run for each copy, on what the copies share"
        warn.of_sharing(cls, reason)
        return obj
    return clone_again(obj, warn)


def clone_again(obj: Any, warn: Warner) -> Any:
    """Do as `clone`, for an object that is a clone itself."""
    cls = type(obj)
    try:
        if _has_plain_copy(cls):
            return _plain_copy(obj)
        copied = copy.copy(obj)
    except Exception as error:
        warn.of_sharing(cls, f"copying it raised {type(error).__name__}: {error}")
        return obj
    if copied is not obj and namespace(copied) is namespace(obj):
        warn.of_sharing(cls, "its copies have one __dict__ in common")
        return obj
    return copied


def _is_data(cls: type) -> bool:
    """Return whether objects of ``cls`` are data, or no ordinary Python objects."""
    return not is_ordinary(cls) or not _CONTAINERS.isdisjoint(cls.__mro__)


def is_ordinary(cls: type) -> bool:
    """Return whether objects of ``cls`` are ordinary: their state is attributes."""
    if not cls.__flags__ & _HEAP_TYPE:
        return False
    for base in cls.__mro__[:-1]:
        # A type made in C that has data of its own has a constructor of its own.
        if isinstance(base.__dict__.get("__new__"), BuiltinFunctionType):
            return False
        module = str(base.__module__)
        if module in _DATA_MODULES or module.partition(".")[0] in _DATA_PACKAGES:
            return False
    return True


_PLAIN_REDUCERS = (object.__reduce_ex__, TorchTwin.__reduce_ex__)
_HOOKS = ("__copy__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")


def _has_plain_copy(cls: Any) -> bool:
    """Return whether nothing about ``cls`` says how it is to be copied."""
    return (
        cls.__new__ is object.__new__
        and cls.__reduce_ex__ in _PLAIN_REDUCERS
        and cls.__reduce__ is object.__reduce__
        and cls.__getstate__ is object.__getstate__
        and not any(hasattr(cls, hook) for hook in _HOOKS)
        and cls not in copyreg.dispatch_table
    )


def _plain_copy(obj: Any) -> Any:
    """Do what `copy.copy` does, past a ``__getattr__`` that needs attributes."""
    copied = object.__new__(type(obj))
    for key, value in attributes(obj):
        put(copied, key, value)
    return copied


def is_open_handle(value: Any) -> bool:
    """Return whether ``value`` is an open file, archive or database."""
    cls = type(value)
    if cls in (list, tuple, dict):
        return False
    if not issubclass(cls, io.IOBase) and _HANDLES.isdisjoint(_short_names(cls)):
        return False
    try:
        return not _is_closed(value)
    except Exception:
        return True


def _short_names(cls: type) -> list[tuple[str, str]]:
    return [(str(c.__module__).partition(".")[0], c.__name__) for c in cls.__mro__]


def _is_closed(value: Any) -> bool:
    if getattr(value, "closed", False) is True:  # files, tar archives
        return True
    if getattr(value, "fp", value) is None:  # zip archives
        return True
    # Handles of h5py are false when closed.
    return str(type(value).__module__).startswith("h5py") and not value

"""Objects that pass for torch's own once the program has loaded torch.

Frameworks recognise loaders, datasets and samplers by ``isinstance`` with torch's
classes. Deriving from those would import torch; so a class here derives from
`TorchTwin`, and its objects' ``__class__`` answers with a *twin*: a class made of
theirs and torch's, which only ``isinstance`` and its like ever see. Objects are never
of the twin's type, and calling the twin builds the real class, so neither torch's
methods nor torch's ``__init__`` come into play.

Limits: with torch loaded, ``obj.__class__ is DataLoader`` is false, and so is
``issubclass(type(obj), torch's)`` always. A metaclass that keeps a list of its classes
sees the twin as one more subclass; ``__init_subclass__`` does not see it.

Guards: `_making` guards the making of twins. A twin is kept by its class, which
it refers to, so both are collected together.
"""

from __future__ import annotations

import abc
import copyreg
import functools
import sys
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from dataloader._guard import Guard
from dataloader._torch import torch_class

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["TorchTwin"]


class _Made(NamedTuple):
    """A twin, and the ``torch.utils.data`` for which it was made."""

    data: ModuleType
    twin: type


# Reentrant: a user's metaclass may ask an object for its class.
_making = Guard()

_MADE = "_torch_twin_made"
_REAL = "_torch_twin_of"
_NAME = "_torch_twin_name"
_set_class = vars(object)["__class__"].__set__


class TorchTwin:
    """Mixin of classes whose objects are instances of torch's class too.

    A class names its counterpart in ``torch.utils.data`` as it derives::

        class Sampler(TorchTwin, Generic[T_co], torch_name="Sampler"): ...

    Subclasses inherit the name, users' classes included.
    """

    def __init_subclass__(cls, torch_name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if torch_name is not None:
            setattr(cls, _NAME, torch_name)

    if not TYPE_CHECKING:

        @property
        def __class__(self) -> type:
            return _twin(type(self))

        @__class__.setter
        def __class__(self, value: type) -> None:
            _set_class(self, _real(value))

    def __reduce_ex__(self, protocol: Any) -> Any:
        # From protocol 2 on; the older way names the class by `__class__`, which pickle
        # would not find under its name. For the same reason pickle must not see
        # copyreg.__newobj__, whose class it compares with `__class__`.
        reduced = super().__reduce_ex__(max(int(protocol), 2))
        if not isinstance(reduced, tuple):
            return reduced
        make, args, *rest = reduced
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]
            return (_new, (_real(args[0]), *args[1:]), *rest)
        if make is copyreg.__newobj_ex__:  # type: ignore[attr-defined]
            return (_new_ex, (_real(args[0]), *args[1:]), *rest)
        return reduced


def _new(cls: type, *args: Any) -> Any:
    """Make the bare object that pickle and copy then fill."""
    return cls.__new__(cls, *args)


def _new_ex(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make the bare object of a class with ``__getnewargs_ex__``."""
    return cls.__new__(cls, *args, **kwargs)


def _real(cls: Any) -> Any:
    """Return the class that ``cls`` is the twin of, or ``cls`` itself."""
    if isinstance(cls, _TwinType):
        return vars(cls).get(_REAL, cls)
    return cls


def _twin(cls: type) -> type:
    """Return the twin of ``cls``, or ``cls`` itself while there is none."""
    data = sys.modules.get("torch.utils.data")
    if data is None:
        return cls
    made: _Made | None = cls.__dict__.get(_MADE)
    if made is not None and made.data is data:
        return made.twin
    bases = _torch_bases(cls)
    return _make_once(cls, bases, data) if bases else cls


def _torch_bases(cls: type) -> tuple[type, ...]:
    """Return torch's counterparts of ``cls`` that it does not derive from already."""
    names = dict.fromkeys(vars(c)[_NAME] for c in cls.__mro__ if _NAME in vars(c))
    found = [c for c in map(torch_class, names) if c and c not in cls.__mro__]
    return tuple(
        c for c in found if not any(c is not d and c in d.__mro__ for d in found)
    )


def _make_once(cls: type, bases: tuple[type, ...], data: ModuleType) -> type:
    return _making.run(_make_if_missing, cls, bases, data)


def _make_if_missing(cls: type, bases: tuple[type, ...], data: ModuleType) -> type:
    made: _Made | None = cls.__dict__.get(_MADE)
    if made is None or made.data is not data:
        try:
            made = _Made(data, _make(cls, bases))
        except RecursionError:
            return cls
        except Exception:
            # An odd metaclass, say. The object matters more than its label.
            made = _Made(data, cls)
        type.__setattr__(cls, _MADE, made)
    return made.twin


def _make(cls: type, bases: tuple[type, ...]) -> type:
    namespace = {
        _REAL: cls,
        "__new__": _twin_new,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        **_inherited(cls, bases),
    }
    return types.new_class(
        cls.__name__,
        (_Label, cls, *bases),
        {"metaclass": _metaclass((cls, *bases))},
        lambda body: body.update(namespace),
    )


def _inherited(cls: type, bases: tuple[type, ...]) -> dict[str, Any]:
    """Return what ``cls`` has from ``object`` and a subclass of its twin from torch."""
    torchs = {name for base in bases for c in base.__mro__[:-1] for name in vars(c)}
    return {
        name: value
        for name, value in vars(object).items()
        if name in torchs and name in _KEPT and getattr(cls, name) is value
    }


_KEPT = frozenset(
    {"__init__", "__setattr__", "__delattr__", "__getattribute__", "__repr__"}
)


class _TwinType(type):
    """The type of twins: calling a twin builds the real class."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        real = _real(cls)
        if real is cls:  # a subclass of a twin is a class like any other
            return super().__call__(*args, **kwargs)
        return real(*args, **kwargs)

    @property
    def __signature__(cls) -> Any:
        import inspect  # slow to import and rarely asked for

        real = _real(cls)
        if real is not cls:
            return inspect.signature(real)
        signature = inspect.signature(cls.__init__)
        return signature.replace(parameters=[*signature.parameters.values()][1:])


class _TwinABC(_TwinType, abc.ABCMeta):
    """The same where a base is abstract, as torch's IterableDataset is."""


def _metaclass(bases: tuple[type, ...]) -> type:
    """Return a metaclass that is `_TwinType` and fits all ``bases``."""
    kinds = {type(base) for base in bases} - {type}
    if not kinds:
        return _TwinType
    if kinds == {abc.ABCMeta}:
        return _TwinABC
    return _combined(frozenset(k for k in kinds if not _is_base(k, kinds)))


def _is_base(kind: type, kinds: set[type]) -> bool:
    return any(kind in other.__mro__[1:] for other in kinds)


@functools.cache  # thread-safe; one entry a set of metaclasses, of which few exist
def _combined(needed: frozenset[type]) -> type:
    metaclass = type("_TwinType", (_TwinType, *needed), {})
    copyreg.pickle(metaclass, _reduce_class)
    return metaclass


class _Label:
    """First base of a twin: keeps users' ``__init_subclass__`` from running for it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if _REAL not in vars(cls):
            super().__init_subclass__(**kwargs)


def _twin_new(cls: type, *args: Any, **kwargs: Any) -> Any:
    """Make a bare object of the real class, as in ``cls.__new__(cls)``."""
    real = _real(cls)
    if real is not cls:
        return real.__new__(real, *args, **kwargs)
    # A subclass of a twin: go on with the next ``__new__`` as ``super()`` would.
    twin = next(base for base in cls.__mro__ if _REAL in vars(base))
    new: Any = super(twin, cls).__new__
    return new(cls) if new is object.__new__ else new(cls, *args, **kwargs)


def _reduce_class(cls: type) -> Any:
    """Pickle a twin as its real class, and a subclass of one by its name."""
    real = _real(cls)
    return cls.__qualname__ if real is cls else (_real, (real,))


copyreg.pickle(_TwinType, _reduce_class)
copyreg.pickle(_TwinABC, _reduce_class)

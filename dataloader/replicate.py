"""A worker's own dataset: ``replicate="shallow"``, ``"none"`` and ``"deep"``.

The consumer takes a `Snapshot` at ``iter()``; each worker makes a `Replica` of it in
its own thread. So a handle that ``__getitem__`` opens lazily belongs to one worker, and
the worker owns the object: on free-threaded builds only the owner counts references
cheaply.

    consumer                               worker
    dataset --copy--> Snapshot ----------> copy of the copy, functions bound to it

A shallow copy takes ordinary Python objects alone: the dataset, and the datasets inside
it. Arrays, containers, frames, functions are shared by all.

Guards: nothing in a snapshot changes after it is made, so workers read it together.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

from dataloader._copying import (
    Warned,
    Warner,
    clone,
    clone_again,
    is_open_handle,
    type_name,
)
from dataloader._graph import (
    Key,
    attributes,
    dataset_bases,
    datasets_in,
    nested_datasets,
    owners,
    put,
    references,
    set_epoch,
    swap,
    takes_epoch,
)
from dataloader._pickled import Pickled, find_unpicklable, is_picklable
from dataloader.sharing import defer_datasets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "Replica",
    "Snapshot",
    "make_snapshot",
    "nested_datasets",
    "set_epoch",
    "takes_epoch",
]

_logger = logging.getLogger("dataloader")


class Replica:
    """What one worker loads from.

    Args:
        dataset: the worker's dataset.
        copies: the worker's copy by ``id`` of the object that it takes the place of.
        snapshot: keeps those objects alive.
    """

    __slots__ = ("_copies", "_snapshot", "dataset")

    def __init__(self, dataset: Any, copies: Mapping[int, Any], snapshot: Any) -> None:
        self.dataset: Any = dataset
        self._copies = copies
        self._snapshot = snapshot

    def bind(self, function: Any) -> Any:
        """Return ``function`` for this worker.

        A bound method of a dataset that was copied becomes the copy's, also inside a
        ``functools.partial``. Anything else is returned as it is.
        """
        return swap(function, self._copies)


class Snapshot(Protocol):
    """The dataset as it was at ``iter()``, for any number of workers at once."""

    def replicate(self) -> Replica:
        """Make a worker's dataset, in the thread that calls."""


def make_snapshot(
    dataset: Any,
    mode: str,
    functions: Iterable[Any] = (),
    warned: Warned | None = None,
) -> Snapshot:
    """Take what workers will make their datasets from.

    Args:
        dataset: the loader's dataset.
        mode: ``"shallow"``, ``"none"`` or ``"deep"``.
        functions: functions that `Replica.bind` will be asked for; if they are methods
            of datasets that are not inside ``dataset``, those are copied too.
        warned: what was warned of before, added to; None warns of nothing.

    Raises:
        TypeError: ``mode`` is ``"deep"`` and the dataset cannot be pickled.
        ValueError: there is no such mode.
    """
    try:
        kind = _MODES[mode]
    except KeyError:
        raise ValueError(
            f"replicate must be one of {', '.join(map(repr, _MODES))}, got {mode!r}"
        ) from None
    roots = [dataset, *(owner for function in functions for owner in owners(function))]
    return kind(roots, Warner(warned))


class _Original:
    """``"none"``: all workers use the one object."""

    def __init__(self, roots: list[Any], warn: Warner) -> None:
        defer_datasets(roots)
        self._roots = roots

    def replicate(self) -> Replica:
        return Replica(self._roots[0], {}, self)


class _Deep:
    """``"deep"``: each worker rebuilds the dataset from its pickle."""

    def __init__(self, roots: list[Any], warn: Warner) -> None:
        found = {id(obj): obj for root in roots for obj in nested_datasets(root)}
        self._originals = list(found.values())
        with _Stopwatch("pickling"):
            try:
                self._pickled = Pickled(self._originals)
            except Exception as error:
                raise _unpicklable(self._originals, error) from error

    def replicate(self) -> Replica:
        with _Stopwatch("rebuilding"):
            try:
                copies = self._pickled.load()
            except Exception as error:
                error.add_note('raised by a worker of replicate="deep" in unpickling')
                raise
        by_id = {id(a): b for a, b in zip(self._originals, copies, strict=True)}
        return Replica(copies[0], by_id, self)


def _unpicklable(originals: list[Any], error: Exception) -> TypeError:
    # The first is the dataset; others may be what collate_fn is a method of.
    bad = next((o for o in originals if not is_picklable(o)), originals[0])
    name = "dataset" if bad is originals[0] else type(bad).__name__
    path, culprit = find_unpicklable(name, bad)
    return TypeError(
        f'replicate="deep" pickles the dataset, but {path} '
        f"({type_name(type(culprit))}) cannot be pickled: {error}; define it at the "
        'top of a module, leave it out in __getstate__, or use replicate="shallow"'
    )


class _Stopwatch:
    """Logs a step of ``"deep"`` that takes over a second, at each ``iter()``."""

    def __init__(self, step: str) -> None:
        self._step = step

    def __enter__(self) -> None:
        self._start_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._start_s
        if seconds > 1:
            _logger.warning(
                'replicate="deep": %s the dataset took %.1f s', self._step, seconds
            )


class _Node:
    """An object that workers copy.

    Attributes:
        original: the user's object.
        frozen: the snapshot's copy of it.
        links: the attributes of `frozen` that refer to other nodes' `frozen`; while
            the snapshot is being made, those that may.
    """

    __slots__ = ("frozen", "links", "original")

    def __init__(self, original: Any, frozen: Any) -> None:
        self.original = original
        self.frozen = frozen
        self.links = references(frozen)


class _Shallow:
    """``"shallow"``: each worker copies the ordinary objects of the graph."""

    def __init__(self, roots: list[Any], warn: Warner) -> None:
        self._roots = roots
        self._warn = warn
        self._copies: dict[int, Any] = {}
        self._nodes = self._copy_all(roots)
        for node in self._nodes:
            node.links = _relink(node.frozen, node.links, self._copies)

    def _copy_all(self, roots: list[Any]) -> list[_Node]:
        nodes = []
        bases = dataset_bases()
        pending = list(roots)
        while pending:
            original = pending.pop()
            if id(original) in self._copies:
                continue
            frozen = self._copies[id(original)] = clone(original, self._warn)
            if frozen is not original:
                node = _Node(original, frozen)
                nodes.append(node)
                for key, value in node.links:
                    pending += datasets_in(key, value, bases)
                    self._check_handle(original, key, value)
        return nodes

    def _check_handle(self, original: Any, key: Key, value: Any) -> None:
        """Warn of an open handle that the copies have in common with the original."""
        if not is_open_handle(value):
            return
        # A __setstate__ or __copy__ may have opened another one for the copy.
        if any(value is kept for k, kept in attributes(original) if k == key):
            name = key if isinstance(key, str) else key.__name__
            self._warn.of_handle(type(original), name, value)

    def replicate(self) -> Replica:
        fresh = {id(n.frozen): clone_again(n.frozen, self._warn) for n in self._nodes}
        for node in self._nodes:
            copied = fresh[id(node.frozen)]
            if node.links and copied is not node.frozen:
                _relink(copied, node.links, fresh)
        by_id = {id(n.original): fresh[id(n.frozen)] for n in self._nodes}
        dataset = self._roots[0]
        return Replica(by_id.get(id(dataset), dataset), by_id, self)


_MODES: Mapping[str, Callable[[list[Any], Warner], Snapshot]] = {
    "shallow": _Shallow,
    "none": _Original,
    "deep": _Deep,
}


def _relink(
    target: Any, links: Iterable[tuple[Key, Any]], copies: Mapping[int, Any]
) -> list[tuple[Key, Any]]:
    """Let attributes of ``target`` refer to the copies; return those that changed."""
    changed = []
    for key, value in links:
        swapped = swap(value, copies)
        if swapped is not value:
            put(target, key, swapped)
            changed.append((key, swapped))
    return changed

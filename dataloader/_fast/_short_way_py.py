"""The short way through ``next()``: fetch one batch, and nothing else.

It is open to the thread that came last, for the tasks that are in `ShortWay._tasks`,
while `Slot.short_mark` says so. Whatever else there is to do takes the long way.

Guards: the short way takes no lock. A thread may go it while the iterator's `_scope` is
the thread's own; another thread takes the long way, and there (`_arrive`) first puts
another scope in its place and then looks whether the first thread is on its way, while
that one says that it is and then looks whether its scope is still the iterator's. As
attribute stores lock the object on free-threaded builds, one of the two sees the other.
The compiled twin does the same with two atomic numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dataloader._guard import FORKS
from dataloader._marks import END, NotInWorker
from dataloader.errors import ConcurrentNextError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataloader.fetch import Collate, Fetch
    from dataloader.stats import Tally
    from dataloader.worker_info import Scope, Task

__all__ = ["Presence", "ShortWay", "Slot", "local"]


class Presence:
    """Whether a thread is loading: the part of its `Scope` that the short way changes.

    Attributes:
        is_active: a batch is being loaded; else `rng` is outside a loader. None, which
            is false too, while the thread is at something else that the scope must
            outlast: it asks the sampler for a batch to load, or becomes a worker.
    """

    __slots__ = ("is_active",)

    is_active: bool | None


class _Local(threading.local):
    """What the calling thread is loading, None while it loads nothing."""

    scope: Scope | None = None


local: _Local = _Local()


class Slot:
    """What was taken from a feed last, without the feed and its sampler.

    Attributes:
        pending: the task that is not committed yet, None if there is none. Whoever
            takes it over sets this to None.
        short_mark: the short way is open while this is the number of forks so far; -1
            never.
    """

    __slots__ = ("pending", "short_mark")

    def __init__(self) -> None:
        self.pending: Task | None = None
        self.short_mark: int = -1


class ShortWay:
    """What an iterator needs to load batches in the thread that calls ``next()``.

    Subclasses set the fields, and `_tally`, and write the methods that say so.

    Attributes:
        _probe: asked before each batch whether it has to take the long way; None for
            no.
        _slot: the task that is pending, and whether the short way is open.
        _tasks: where the short way takes tasks from, a part of those of the feed.
        _scope, _source, _fetch, _collate_fn: what is called for a batch.
    """

    __slots__ = (
        "_collate_fn",
        "_fetch",
        "_probe",
        "_scope",
        "_slot",
        "_source",
        "_tasks",
    )

    _probe: Callable[[], bool] | None
    _slot: Slot
    _tasks: Iterator[Task]
    _scope: Scope
    _source: Any
    _fetch: Fetch
    _collate_fn: Collate
    _tally: Tally

    def __next__(self) -> Any:
        # `_go_long` and `_load` in one function: where a batch costs a microsecond, the
        # calls between them would be the loader's own cost.
        scope = self._scope
        slot = self._slot
        if (
            local.scope is not scope
            or scope.is_active is not False
            or slot.short_mark != FORKS.count
            or slot.pending is not None
            or (self._probe is not None and self._probe())
        ):
            return self._go_long()
        task: Any = None
        try:
            # Not yet true: the sampler is no part of a batch.
            scope.is_active = None
            # Look again after the announcement, see `_arrive`.
            if self._scope is not scope:
                raise ConcurrentNextError
            for slot.pending in self._tasks:
                task = slot.pending
                scope.is_active = True
                batch = self._fetch(self._source, self._collate_fn, task, scope)
                if batch is END:
                    self._stop()
                # No call from here on, so that Ctrl-C cannot strike before the batch is
                # handed over.
                slot.pending = None
                return batch
        except Exception as error:
            # Not even a call for an error of the sampler, which Ctrl-C could replace.
            if task is not None:
                self._account(error)
            raise
        except NotInWorker:
            pass  # the long way hands it to a worker
        finally:
            scope.is_active = False
        return self._go_long()

    def _arrive(self) -> None:
        """Make this thread the one to which the short way is open.

        Raises:
            ConcurrentNextError: another thread, or a call further up, is on it.
        """
        scope = self._scope
        if scope.owner == threading.get_ident():
            if scope.is_active is not False:
                raise ConcurrentNextError
            return
        own = scope.copy()
        # No call from here on, so that Ctrl-C cannot leave half of it.
        self._scope = own
        if scope.is_active is not False:
            # It stays the other thread's.
            self._scope = scope
            raise ConcurrentNextError
        # Again, since that thread may have come round in between.
        own.task = scope.task
        row = self._tally.row
        if row is not None:
            self._tally.row = (row[0], own, row[2])

    def _go_long(self) -> Any:
        """Return the next batch by the long way."""
        raise NotImplementedError  # an abstract method

    def _stop(self) -> None:
        """Raise StopIteration, now and whenever asked again."""
        raise StopIteration

    def _account(self, error: Exception) -> None:
        """Let a failed batch go."""
        raise NotImplementedError  # an abstract method

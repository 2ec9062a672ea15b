"""What a loader has loaded, who did it and how long it took: ``loader.stats()``.

Counters are exact; times are kept of the last `MOST_RECORDS` batches that were timed.
Without workers, and while the consumer loads cheap batches itself, only one batch in a
few is timed, so that measuring costs a percent and can always be on.

Guards: a `Tally` is written by the thread inside ``next()`` of its iterator. The deque
of records is shared by the iterators of a loader; its appends are atomic.
`Meter._guard` guards the folding of old tallies.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from dataloader._guard import Guard

if TYPE_CHECKING:
    from dataloader.worker_info import Scope
    from dataloader.workers.feed import IndexFeed

__all__ = [
    "NOT_COUNTED",
    "OCCUPANCY_EVERY",
    "LoaderStats",
    "Meter",
    "Occupancy",
    "Tally",
    "Timing",
]

MOST_RECORDS = 4096
"""Batches whose times are remembered."""

OCCUPANCY_EVERY = 8
"""The finished batches in the window are counted at one batch in so many."""

_FOLD_AT = 64


@dataclass(frozen=True, slots=True)
class Timing:
    """How long something took, over the batches that were timed last.

    Attributes:
        count: number of timed batches that the figures are of.
        mean_s: their mean, in seconds; 0 where nothing was timed, as below.
        p50_s: median.
        p90_s: 90th percentile, of the nearest rank.
        p99_s: 99th percentile.
        max_s: the longest.
    """

    count: int
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Timing:
        """Summarise values in seconds, in any order."""
        if not values:
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0)
        ranked = sorted(values)
        count = len(ranked)
        p50, p90, p99 = (ranked[-(-count * p // 100) - 1] for p in (50, 90, 99))
        return cls(count, sum(ranked) / count, p50, p90, p99, ranked[-1])


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full the window was when ``next()`` was called.

    Attributes:
        window: most batches in flight and waiting together; 0 without workers.
        mean: mean number of finished batches that waited. Near 0 the consumer waits
            for the workers, near the window the workers wait for the consumer.
        empty_share: part of the calls that found none, 0 to 1.
    """

    window: int
    mean: float
    empty_share: float


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What ``loader.stats()`` returns; ``dataclasses.asdict`` makes it plain data.

    Attributes:
        epochs: iterators that were begun.
        batches: batches that were delivered in all epochs, those in whose place an
            exception was raised included.
        by_consumer: those that the thread that calls ``next()`` loaded itself.
        by_worker: those that each worker loaded, by its id.
        fetch: getting the samples of a batch.
        collate: making a batch of them, and pinning it.
        wait: what ``next()`` took until its batch was there, whoever loaded it.
        occupancy: finished batches that waited; None where no workers load.
    """

    epochs: int
    batches: int
    by_consumer: int
    by_worker: tuple[int, ...]
    fetch: Timing
    collate: Timing
    wait: Timing
    occupancy: Occupancy | None

    def __str__(self) -> str:
        """The figures as a small table, in microseconds."""
        lines = [
            f"{self.batches} batches in {self.epochs} epochs: {self.by_consumer} by "
            f"the consumer, {list(self.by_worker)} by the workers",
            f"{'us':8}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>12}",
        ]
        for name in ("fetch", "collate", "wait"):
            t: Timing = getattr(self, name)
            values = (t.mean_s, t.p50_s, t.p90_s, t.p99_s, t.max_s)
            mean, p50, p90, p99, most = (value * 1e6 for value in values)
            lines.append(
                f"{name:8}{mean:10.1f}{p50:10.1f}{p90:10.1f}{p99:10.1f}{most:12.1f}"
            )
        if self.occupancy is not None:
            lines.append(
                f"window of {self.occupancy.window}: {self.occupancy.mean:.1f} "
                f"finished batches wait, {self.occupancy.empty_share:.0%} of calls "
                "find none"
            )
        return "\n".join(lines)


_Record = tuple[float, float, float, int]
"""Wait, fetch and collate of one batch in seconds, and how many batches were ready."""

NOT_COUNTED = -1


class Tally:
    """The counters of one iterator.

    What the consumer loads without handing it over is not counted but read off the
    numbers of the batches, as counting would be a good part of what the cheapest ones
    cost: of the batches from `_first` on, all are delivered up to the one that is
    pending in the feed, or else the one in the scope.

    Attributes:
        epochs: how often it was begun; more than once with persistent workers.
        by_worker: delivered batches by the id of the worker that loaded them.
        handed: delivered batches that the consumer claimed among others, or loaded in a
            row that is over.
    """

    __slots__ = (
        "_first",
        "_following",
        "_iterator",
        "_keep",
        "_run",
        "by_worker",
        "epochs",
        "handed",
    )

    def __init__(self, iterator: object, workers: int, records: deque[_Record]) -> None:
        self.epochs: int = 0
        self.handed: int = 0
        self.by_worker: list[int] = [0] * workers
        self._run: tuple[IndexFeed, Scope] | None = None
        self._first = 0
        # Number of the batch after the last row.
        self._following = 0
        self._keep = records.append
        self._iterator = weakref.ref(iterator)

    @property
    def is_over(self) -> bool:
        """Whether the iterator is gone, so the counters will not change any more."""
        return self._iterator() is None

    @property
    def by_consumer(self) -> int:
        """Delivered batches that the consumer loaded."""
        run = self._run
        return self.handed + (0 if run is None else _following(*run) - self._first)

    @property
    def delivered(self) -> int:
        """Batches handed over, with those in whose place an exception was raised."""
        return self.by_consumer + sum(self.by_worker)

    def begin_epoch(self) -> None:
        """The numbers of batches begin anew."""
        self.end_row()
        self._following = 0
        self.epochs += 1

    def begin_row(self, feed: IndexFeed, scope: Scope, first: int) -> None:
        """From now on the consumer loads everything.

        Args:
            feed: where the batches come from.
            scope: where they are loaded.
            first: number after that of the last batch that was handed over.
        """
        self._first = max(first, self._following)
        scope.task = (self._first - 1, 0, ())
        self._run = (feed, scope)

    def go_on(self, scope: Scope) -> None:
        """Take another scope for the same row."""
        if self._run is not None:
            self._run = (self._run[0], scope)

    def end_row(self) -> None:
        """The consumer does not load everything any more."""
        if self._run is not None:
            self._following = _following(*self._run)
            self.handed += self._following - self._first
            self._run = None

    def add(
        self,
        wait_s: float,
        fetch_s: float,
        collate_s: float,
        ready: int = NOT_COUNTED,
    ) -> None:
        """Keep the times of a batch.

        Args:
            wait_s: what ``next()`` took until the batch was there.
            fetch_s: getting its samples.
            collate_s: making a batch of them.
            ready: number of finished batches that waited.
        """
        self._keep((wait_s, fetch_s, collate_s, ready))


def _following(feed: IndexFeed, scope: Scope) -> int:
    """Return the number of the batch that the consumer is to load next."""
    pending = feed.pending
    return scope.task[0] + 1 if pending is None else pending[0]


class Meter:
    """The counters and times of one loader, over all its epochs."""

    def __init__(self) -> None:
        self._guard = Guard()
        self._records: deque[_Record] = deque(maxlen=MOST_RECORDS)
        self._tallies: deque[Tally] = deque()
        # The sums over iterators that are gone.
        self._epochs = 0
        self._by_consumer = 0
        self._by_worker: list[int] = []

    def open(self, iterator: object, workers: int) -> Tally:
        """Return the tally of a new iterator, which is referred to but weakly.

        Args:
            iterator: the iterator.
            workers: number of its workers.
        """
        tally = Tally(iterator, workers, self._records)
        self._tallies.append(tally)
        if len(self._tallies) > _FOLD_AT:
            self._guard.run(self._fold)
        return tally

    def read(self, window: int) -> LoaderStats:
        """Return the figures of now.

        Args:
            window: most batches in flight and waiting together.
        """
        return self._guard.run(self._read, window)

    def _read(self, window: int) -> LoaderStats:
        self._fold()
        live = self._tallies.copy()
        by_consumer = self._by_consumer + sum(t.by_consumer for t in live)
        by_worker = self._by_worker
        for tally in live:
            by_worker = _sum(by_worker, tally.by_worker)
        # copy() is atomic, iterating while others append is an error.
        records = list(self._records.copy())
        return LoaderStats(
            epochs=self._epochs + sum(t.epochs for t in live),
            batches=by_consumer + sum(by_worker),
            by_consumer=by_consumer,
            by_worker=tuple(by_worker),
            fetch=Timing.of([fetch_s for _, fetch_s, _, _ in records]),
            collate=Timing.of([collate_s for _, _, collate_s, _ in records]),
            wait=Timing.of([wait_s for wait_s, _, _, _ in records]),
            occupancy=_occupancy(records, window),
        )

    def _fold(self) -> None:
        """Add up what iterators that are gone have counted."""
        for _ in range(len(self._tallies)):
            tally = self._tallies.popleft()
            if not tally.is_over:
                self._tallies.append(tally)
                continue
            self._epochs += tally.epochs
            self._by_consumer += tally.by_consumer
            self._by_worker = _sum(self._by_worker, tally.by_worker)


def _sum(some: list[int], more: list[int]) -> list[int]:
    """Add by position; the number of workers may have been changed in between."""
    return [a + b for a, b in zip_longest(some, more, fillvalue=0)]


def _occupancy(records: list[_Record], window: int) -> Occupancy | None:
    counted = [ready for _, _, _, ready in records if ready != NOT_COUNTED]
    if not counted:
        return None
    mean = sum(counted) / len(counted)
    return Occupancy(window, mean, counted.count(0) / len(counted))

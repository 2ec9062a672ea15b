"""What a loader has loaded, who did it and how long it took: ``loader.stats()``.

Counters are exact; times are kept of the last `MOST_RECORDS` batches that were timed.
Without workers, and while the consumer loads cheap batches itself, only one batch in a
few is timed, so that measuring costs a percent and can always be on.

Guards: a `Tally` is written by the thread inside ``next()`` of its iterator; whoever
reads it meanwhile may miss the batch that is being handed over. The deque of records is
shared by the iterators of a loader; its appends are atomic. `Meter._guard` guards the
list of tallies and the sums, which are replaced and never changed.

Interrupts: counters change by statements without a call, so each batch is counted once.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from dataloader._guard import Guard

if TYPE_CHECKING:
    from dataloader._fast import Slot
    from dataloader.worker_info import Scope

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

MOST_TALLIES = 16
"""Tallies of iterators that may be gone are kept before they are added up."""

OCCUPANCY_EVERY = 8
"""The finished batches in the window are counted at one batch in so many."""


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

    What the consumer loads in a *row*, without handing it over, is not counted but read
    off the numbers of the batches, as counting would be a good part of what the
    cheapest ones cost: all are delivered up to the one that is pending in the feed's
    slot, or else the one in the scope.

    Attributes:
        epochs: how often it was begun; more than once with persistent workers.
        by_worker: delivered batches by the id of the worker that loaded them.
        handed: delivered batches that the consumer claimed among others, or loaded in a
            row that is over.
        row: while the consumer loads everything: where the numbers are found, and what
            to add to the number of the next batch for `by_consumer`.
    """

    __slots__ = ("_iterator", "_keep", "by_worker", "epochs", "handed", "row")

    def __init__(self, iterator: object, workers: int, records: deque[_Record]) -> None:
        self.epochs: int = 0
        self.handed: int = 0
        self.by_worker: list[int] = [0] * workers
        self.row: tuple[Slot, Scope, int] | None = None
        self._keep = records.append
        self._iterator = weakref.ref(iterator)

    @property
    def is_over(self) -> bool:
        """Whether the iterator is gone, so the counters will not change any more."""
        return self._iterator() is None

    @property
    def by_consumer(self) -> int:
        """Delivered batches that the consumer loaded."""
        row = self.row
        if row is None:
            return self.handed
        slot, scope, offset = row
        pending = slot.pending
        return offset + (scope.task[0] + 1 if pending is None else pending[0])

    @property
    def delivered(self) -> int:
        """Batches handed over, with those in whose place an exception was raised."""
        return self.by_consumer + sum(self.by_worker)

    def begin_row(self, slot: Slot, scope: Scope, first: int) -> None:
        """From now on the consumer loads everything, beginning with batch ``first``."""
        scope.task = (first - 1, 0, ())
        self.row = (slot, scope, self.handed - first)

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


class Meter:
    """The counters and times of one loader, over all its epochs."""

    def __init__(self) -> None:
        self._guard = Guard()
        self._records: deque[_Record] = deque(maxlen=MOST_RECORDS)
        self._tallies: list[Tally] = []
        self._gone = _Sums(0, 0, ())

    def open(self, iterator: object, workers: int) -> Tally:
        """Return the tally of a new iterator, which is referred to but weakly.

        Args:
            iterator: the iterator.
            workers: number of its workers.
        """
        tally = Tally(iterator, workers, self._records)
        self._guard.run(self._add, tally)
        return tally

    def _add(self, tally: Tally) -> None:
        # Not each time, as that would be a good part of what iter() costs.
        if len(self._tallies) >= MOST_TALLIES:
            self._fold()
        self._tallies = [*self._tallies, tally]

    def read(self, window: int) -> LoaderStats:
        """Return the figures of now.

        Args:
            window: most batches in flight and waiting together.
        """
        return self._guard.run(self._read, window)

    def _read(self, window: int) -> LoaderStats:
        self._fold()
        sums = self._gone
        for tally in self._tallies:
            sums = sums.plus(tally)
        # One by one: to iterate while others append is an error, for copy() as well. At
        # worst a few are missed for others that came meanwhile.
        records = [self._records[i] for i in range(len(self._records))]
        return LoaderStats(
            epochs=sums.epochs,
            batches=sums.by_consumer + sum(sums.by_worker),
            by_consumer=sums.by_consumer,
            by_worker=sums.by_worker,
            fetch=Timing.of([fetch_s for _, fetch_s, _, _ in records]),
            collate=Timing.of([collate_s for _, _, collate_s, _ in records]),
            wait=Timing.of([wait_s for wait_s, _, _, _ in records]),
            occupancy=_occupancy(records, window),
        )

    def _fold(self) -> None:
        """Add up what iterators that are gone have counted."""
        live, gone = [], self._gone
        for tally in self._tallies:
            if tally.is_over:
                gone = gone.plus(tally)
            else:
                live.append(tally)
        # No call in between, so that Ctrl-C cannot lose a tally or count it twice.
        self._tallies, self._gone = live, gone


class _Sums(NamedTuple):
    """The counters of several tallies, added up."""

    epochs: int
    by_consumer: int
    by_worker: tuple[int, ...]

    def plus(self, tally: Tally) -> _Sums:
        # The number of workers may have been changed in between.
        pairs = zip_longest(self.by_worker, tally.by_worker, fillvalue=0)
        return _Sums(
            self.epochs + tally.epochs,
            self.by_consumer + tally.by_consumer,
            tuple(map(sum, pairs)),
        )


def _occupancy(records: list[_Record], window: int) -> Occupancy | None:
    counted = [ready for _, _, _, ready in records if ready != NOT_COUNTED]
    if not counted:
        return None
    mean = sum(counted) / len(counted)
    return Occupancy(window, mean, counted.count(0) / len(counted))

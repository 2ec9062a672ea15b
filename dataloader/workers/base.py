"""What every backend is given, what it gives back, and what all iterators share.

`loader.py` checks arguments and makes an `EpochPlan`; a `Backend` turns the plan into
an iterator over the batches of one epoch. Another kind of worker is another class that
satisfies `Backend`; nothing in `loader.py` depends on which.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from dataloader._fast import ShortWay
from dataloader._guard import FORKS
from dataloader._torch import loaded_torch
from dataloader.errors import ConcurrentNextError, describe_indices, users_level

if TYPE_CHECKING:
    from dataloader.fetch import Check
    from dataloader.replicate import Snapshot
    from dataloader.stats import Meter
    from dataloader.workers.feed import IndexFeed

__all__ = [
    "EMPTY",
    "Backend",
    "BatchIterator",
    "EpochPlan",
    "Failure",
    "place_note",
]


class EMPTY:
    """The absence of a result: a class, as comparing with one writes nothing."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that takes the place of a batch until ``next()`` raises it.

    Attributes:
        error: the exception, the user's own object.
        traceback: where it was raised in the worker. One object may be raised by
            several ``next()`` calls, and its traceback must not grow with each.
    """

    error: BaseException
    traceback: TracebackType | None = None

    def exception(self) -> BaseException:
        """Return the exception, ready to be raised in the consumer's thread."""
        return self.error.with_traceback(self.traceback)


# Never changed, but not frozen either: that would triple what ``iter()`` pays for it.
@dataclass(slots=True, eq=False)
class EpochPlan:
    """Everything about one epoch that is known when ``iter()`` is called.

    Attributes:
        snapshot: what workers take their own dataset from.
        dataset: the loader's dataset object itself.
        feed: the index batches, advanced by the consumer only.
        iterable: the dataset is iterated, not indexed.
        auto_collation: the feed yields batches of keys rather than single keys.
        collate_fn: makes a batch of a list of samples.
        drop_last: drop a worker's last short batch (iterable datasets).
        epoch: number of the epoch.
        seed: 64-bit key of all random numbers of the epoch.
        base_seed: ``WorkerInfo.seed`` is this plus the worker's id.
        num_workers: number of workers, 0 for the calling thread.
        window: most batches in flight and waiting together.
        items_in_parallel: samples of one batch that are fetched at once.
        in_order: deliver in the order of the feed, else as batches come.
        timeout_s: longest wait of one ``next()``; 0 for ever.
        worker_init_fn: called in each worker with its id.
        pin: copies a batch into pinned memory, in the worker; None to leave it.
        times_set: how often ``set_epoch`` was called, by which a worker that kept its
            dataset notices that it has to tell it.
        told_epoch: what it was called with last.
        meter: where the loader's counters and timings go.
        replicate: how a worker comes by its dataset.
        is_persistent: workers keep their datasets over epochs.
        help: the consumer may load batches while its own is not ready.
        check: what the samples that ``__getitems__`` returns pass through, if anything.
        len_called: number of samples that ``len()`` was told for an iterable dataset.
    """

    snapshot: Snapshot
    dataset: Any
    feed: IndexFeed
    iterable: bool
    auto_collation: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    epoch: int
    seed: int
    base_seed: int
    meter: Meter
    num_workers: int = 0
    window: int = 0
    items_in_parallel: int = 1
    in_order: bool = True
    timeout_s: float = 0
    worker_init_fn: Callable[[int], object] | None = None
    pin: Callable[[Any], Any] | None = None
    times_set: int = 0
    told_epoch: int = 0
    replicate: str = "shallow"
    is_persistent: bool = False
    help: bool = True
    check: Check | None = None
    len_called: int | None = None


class Backend(Protocol):
    """A kind of worker. One object serves all epochs of a loader."""

    def start(self, plan: EpochPlan, previous: BatchIterator | None) -> BatchIterator:
        """Begin an epoch and return its iterator.

        Args:
            plan: what to load.
            previous: with persistent workers the iterator of the epoch before, whose
                object is reset and returned; else None.
        """

    def close(self) -> None:
        """End every epoch and all workers, within a bounded time. Idempotent."""


class BatchIterator(ShortWay, Iterator[Any]):
    """Iterator over the batches of one epoch; subclasses write `_next`.

    One thread at a time may be in ``next()``. The mark of a free iterator is a key of a
    dictionary: deleting it is atomic with and without the GIL, and, unlike a call to a
    lock, neither deleting nor setting it is a place where Ctrl-C can strike between
    taking a batch and handing it over.
    """

    # Slots, since an object with this many attributes would keep them in a dictionary,
    # where each takes longer to find.
    __slots__ = (
        "__weakref__",
        "_fork_mark",
        "_forks",
        "_free",
        "_is_finalizing",
        "_is_traced",
        "_plan",
        "_tally",
        "_warned_at",
        "_yielded",
    )

    def __init__(self, plan: EpochPlan) -> None:
        self._free: dict[int, None] = {0: None}
        self._tally = plan.meter.open(self, plan.num_workers)
        self._begin(plan)

    def _begin(self, plan: EpochPlan) -> None:
        self._plan = plan
        self._tally.epochs += 1
        self._yielded = 0
        self._warned_at = -1
        self._fork_mark = FORKS.count
        # Kept here for __del__: at the interpreter's end the modules' names are gone.
        self._forks = FORKS
        self._is_finalizing = sys.is_finalizing
        self._is_traced = _profiler_probe()

    def __iter__(self) -> BatchIterator:
        return self

    def _go_long(self) -> Any:
        free = self._free
        try:
            del free[0]
        except KeyError:
            raise ConcurrentNextError from None
        try:
            self._arrive()
            if self._is_traced is None or not self._is_traced():
                return self._next()
            return self._traced_next()
        finally:
            free[0] = None

    def _next(self) -> Any:
        raise NotImplementedError  # an abstract method

    def _traced_next(self) -> Any:
        """``next()`` inside a range of torch's profiler, named as PyTorch does."""
        from torch.autograd.profiler import record_function

        with record_function(f"enumerate(DataLoader)#{type(self).__name__}.__next__"):
            return self._next()

    def __len__(self) -> int:
        """Number of batches of the whole epoch, as in PyTorch."""
        return len(self._plan.feed)

    def __reduce__(self) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled or copied")

    def _warn_if_longer(self) -> None:
        """Warn when an iterable dataset yields more than its ``len`` promised.

        As in PyTorch the number of batches is compared with the number of samples.
        """
        expected = self._plan.len_called
        if expected is None or self._yielded < expected:
            return
        if self._warned_at == self._yielded:
            return
        # Once for each batch: where warnings are errors, the next call delivers it.
        self._warned_at = self._yielded
        advice = ""
        if self._plan.num_workers > 0:
            advice = (
                # The first words are those that PyTorch's users filter by.
                " For multiprocessing data-loading, this happens, as with threads, "
                "when each worker iterates over the whole dataset: let its __iter__ "
                "take a share by get_worker_info()."
            )
        warnings.warn(
            f"Length of IterableDataset {self._plan.dataset} was reported to be "
            f"{expected} (by len() of the loader), but {self._yielded + 1} samples "
            f"have been fetched.{advice}",
            stacklevel=users_level(),
        )


def place_note(worker: str, plan: EpochPlan, number: int, indices: object) -> str:
    """Return the words that say where an exception was raised.

    Args:
        worker: who was loading.
        plan: the epoch.
        number: number of the batch.
        indices: its keys.
    """
    what = "" if plan.iterable else f", indices {describe_indices(indices)}"
    return f"raised in {worker}, epoch {plan.epoch}, batch {number}{what}"


def _profiler_probe() -> Callable[[], bool] | None:
    if loaded_torch() is None:
        return None
    autograd = sys.modules.get("torch.autograd")
    probe: Callable[[], bool] | None = getattr(autograd, "_profiler_enabled", None)
    return probe

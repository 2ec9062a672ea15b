"""`DataLoader`: PyTorch's arguments and semantics, joined to a backend that loads.

This module checks arguments and joins the steps of a batch; the steps themselves are in
`samplers`, `fetch`, `collate`, `workers` and `device`.

Guards: `_guard` makes ``iter()`` and `set_epoch` of one loader exclude each other; the
options are plain attributes that the user's threads may read at any time.
Shutdown: `close`, or the loader's collection, ends the backend, see `workers.pool`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal

from dataloader import _arguments as check
from dataloader._fast import derive_key
from dataloader._guard import Guard
from dataloader._torch import draw_int64
from dataloader._twin import TorchTwin
from dataloader.collate import default_collate, default_convert
from dataloader.datasets import is_iterable_dataset
from dataloader.device import Pinner, make_pinner
from dataloader.errors import users_level
from dataloader.fetch import Check, require_all
from dataloader.replicate import make_snapshot, set_epoch, takes_epoch
from dataloader.samplers import (
    BatchSampler,
    BucketBatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from dataloader.stats import LoaderStats, Meter
from dataloader.workers.base import Backend, BatchIterator, EpochPlan
from dataloader.workers.feed import IndexFeed
from dataloader.workers.inline import InlineBackend, InlineIterator
from dataloader.workers.threads import ThreadBackend, ThreadIterator

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from multiprocessing.context import BaseContext
    from typing import Self

    from typing_extensions import TypeVar  # part of every type checker

    # With a default, as what a batch is cannot be inferred from the dataset.
    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

__all__ = ["DataLoader"]

MAX_WINDOW = 1 << 16
"""Most batches that are prefetched, however far ahead the workers may load."""

_FROZEN = frozenset(
    (
        "batch_sampler",
        "batch_size",
        "dataset",
        "drop_last",
        "persistent_workers",
        "sampler",
    )
)
_OWN_SEEDED = (
    BucketBatchSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
_KEY_OF_BASE_SEED = 1


def is_shuffling_by_rank(sampler: Any) -> bool:
    """Whether a sampler is a `DistributedSampler` that shuffles, ours or another's."""
    is_by_rank = hasattr(sampler, "num_replicas") and hasattr(sampler, "rank")
    return is_by_rank and hasattr(sampler, "epoch") and bool(sampler.shuffle)


class _EndlessSampler:
    """Stands in for the keys of an iterable dataset: None for ever."""

    def __iter__(self) -> Iterator[None]:
        return _Endless()


class _Endless:
    survives_interrupt = True

    def __iter__(self) -> _Endless:
        return self

    def __next__(self) -> None:
        return None


class DataLoader(TorchTwin, Generic[T_co], torch_name="DataLoader"):
    """Loads batches of a dataset, with threads for workers.

    Arguments, defaults, errors, attributes and semantics are those of
    ``torch.utils.data.DataLoader``; ``docs/migration.md`` lists the differences. A
    dataset needs no base class: an object with ``__getitem__`` and ``__len__`` is
    map-style, an `IterableDataset` (ours or torch's) is iterated.

    Args:
        dataset: where the samples come from. With workers each has a copy of its own,
            see ``replicate``.
        batch_size: samples in a batch; None for single samples, not batched.
        shuffle: a new random order each epoch.
        sampler: any iterable of keys; decides the order instead of ``shuffle``.
        batch_sampler: any iterable of lists of keys; replaces ``batch_size``,
            ``shuffle``, ``sampler`` and ``drop_last``.
        num_workers: threads that load batches; 0 loads in the calling thread.
        collate_fn: makes a batch of a list of samples; default `default_collate`, or
            `default_convert` when samples are not batched.
        pin_memory: copy tensors into pinned memory, in the worker. Without an
            accelerator it warns and does nothing.
        drop_last: leave out a last batch that is short.
        timeout: longest wait of one ``next()`` in seconds, 0 for ever.
        worker_init_fn: called in each worker with its id before it loads.
        multiprocessing_context: start method or context of process workers.
        generator: a ``torch.Generator`` that decides order and seeds, exactly as in
            PyTorch.
        prefetch_factor: batches that are loaded ahead for each worker; default 2.
        persistent_workers: keep the workers' dataset objects over epochs, and return
            one iterator object from every ``iter()``.
        pin_memory_device: deprecated in PyTorch, ignored with a warning.
        in_order: deliver batches in order; False delivers them as they come.
        seed: makes order (with ``shuffle``) and `rng` reproducible: batch k of epoch e
            is a function of the dataset, the seed, e and k. 0 to 2**64 - 1.
        prefetch_depth: batches ahead in total, beyond the ``num_workers`` in progress;
            excludes ``prefetch_factor``.
        items_in_parallel: samples of one batch that are fetched at once, by as many
            threads for each worker. For datasets that wait for a network.
        replicate: what each worker calls: ``"shallow"`` a copy of the dataset of its
            own, ``"none"`` the one object, ``"deep"`` a true copy made in the worker.
        worker_method: ``"thread"``; ``"multiprocessing"`` is not in this version.
        executor: a ``concurrent.futures.Executor``; not in this version.
        help: the thread that calls ``next()`` may load batches itself while it would
            only wait; order, window and contents stay the same.

    Raises:
        ValueError: arguments out of range, or that exclude each other.
        TypeError: an argument of the wrong type.
        BackendUnavailableError: workers that this version does not have.

    Example:
        >>> from dataloader import DataLoader
        >>> with DataLoader(range(10), batch_size=4, num_workers=2) as loader:
        ...     [len(batch) for batch in loader]
        [4, 4, 2]
    """

    batch_size: int | None
    drop_last: bool
    _initialized = False
    # Classes of its iterators, without and with threads.
    _inline_iterator: type[InlineIterator] = InlineIterator
    _thread_iterator: type[ThreadIterator] = ThreadIterator

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        prefetch_depth: int | None = None,
        items_in_parallel: int = 1,
        replicate: Literal["shallow", "none", "deep"] = "shallow",
        worker_method: Literal["thread", "multiprocessing"] = "thread",
        executor: Executor | None = None,
        help: bool = True,
    ) -> None:
        check.check_workers(
            num_workers, timeout, prefetch_factor, prefetch_depth, persistent_workers
        )
        self.dataset = dataset
        self.num_workers = num_workers
        if num_workers > 0 and prefetch_factor is None and prefetch_depth is None:
            prefetch_factor = 2
        self.prefetch_factor = prefetch_factor
        self.prefetch_depth = prefetch_depth
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.in_order = in_order
        check.check_options(num_workers, items_in_parallel, replicate, worker_method)
        check.check_backend(worker_method, self.multiprocessing_context, executor)
        self.items_in_parallel = items_in_parallel
        self.replicate = replicate
        self.worker_method = worker_method
        self.executor = executor
        self.help = help
        self.seed = seed
        self.generator = generator
        self._is_iterable = is_iterable_dataset(dataset)
        self._set_order(batch_size, shuffle, sampler, batch_sampler, drop_last)
        if collate_fn is None:
            collate_fn = default_collate if self._auto_collation else default_convert
        self.collate_fn = collate_fn
        self.persistent_workers = persistent_workers
        self._epoch = 0
        self._times_set = 0
        self._told_epoch = 0
        self._IterableDataset_len_called: int | None = None
        self._begin_life()

    def _set_order(
        self,
        batch_size: int | None,
        shuffle: bool | None,
        sampler: Iterable[Any] | None,
        batch_sampler: Iterable[Any] | None,
        drop_last: bool,
    ) -> None:
        """Check what decides the order and make the samplers that are not given."""
        if self._is_iterable:
            check.check_iterable(shuffle, sampler, batch_sampler)
        is_random = bool(shuffle)
        check.check_order(sampler, is_random)
        check.check_batching(batch_size, is_random, sampler, batch_sampler, drop_last)
        check.check_seed(self.seed, self.generator)
        if batch_sampler is not None:
            batch_size = None
            drop_last = False
        if sampler is None:
            sampler = self._default_sampler(is_random)
        if batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler

    def _default_sampler(self, is_random: bool) -> Iterable[Any]:
        if self._is_iterable:
            return _EndlessSampler()
        if is_random:
            return RandomSampler(self.dataset, generator=self.generator, seed=self.seed)
        return SequentialSampler(self.dataset)

    def _begin_life(self) -> None:
        """Set what belongs to this object in this process; a copy has its own."""
        self._guard = Guard()
        self._backend: Backend | None = None
        self._backend_key: tuple[int, int] | None = None
        self._iterator: BatchIterator | None = None
        self._meter = Meter()
        self._warned: set[Any] = set()
        # The epoch in which a shuffling distributed sampler was iterated over last.
        self._rank_epoch: int | None = None
        self._entropy: int | None = None
        self._initialized = True

    # What PyTorch's users and frameworks read.

    @property
    def multiprocessing_context(self) -> BaseContext | None:
        """The context of process workers; a start method is stored as its context."""
        return self.__multiprocessing_context

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: str | BaseContext | None) -> None:
        self.__multiprocessing_context = check.check_context(context, self.num_workers)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._initialized and name in _FROZEN:
            raise ValueError(
                f"{name} attribute should not be set after {type(self).__name__} is "
                "initialized: make a new loader"
            )
        super().__setattr__(name, value)

    @property
    def _dataset_kind(self) -> int:
        return 1 if self._is_iterable else 0

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Iterable[Any]:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def check_worker_number_rationality(self) -> None:
        """Do nothing: more threads than cores are no mistake where threads wait."""

    def __len__(self) -> int:
        """Number of batches of an epoch.

        For an iterable dataset an estimate from ``len(dataset)``, as in PyTorch.

        Raises:
            TypeError: sampler or dataset has no length.
        """
        if not self._is_iterable:
            return len(self._index_sampler)  # type: ignore[arg-type]
        length = self._IterableDataset_len_called = len(self.dataset)
        if self.batch_size is None:
            return length
        if self.drop_last:
            return length // self.batch_size
        return -(-length // self.batch_size)

    # Epochs.

    def __iter__(self) -> BatchIterator:
        """Begin an epoch: an iterator over its batches, which workers start to load.

        With ``persistent_workers`` it is the same object each time, begun anew.
        """
        if not (self.persistent_workers and self.num_workers > 0):
            return self._get_iterator()
        return self._guard.run(self._persistent_iterator)

    def _persistent_iterator(self) -> BatchIterator:
        self._iterator = self._get_iterator()
        return self._iterator

    def _get_iterator(self) -> BatchIterator:
        return self._guard.run(self._start_epoch)

    def _start_epoch(self) -> BatchIterator:
        plan = self._plan()
        iterator = self._living_backend().start(plan, self._iterator)
        # Only now, so that an epoch that failed to begin is not counted.
        self._epoch = plan.epoch + 1
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``iter()`` epoch ``epoch``.

        Told are the sampler, the batch sampler, what it samples from, and the dataset,
        each if it has a ``set_epoch``; workers that keep their dataset tell their copy.

        Args:
            epoch: number of the epoch, from 0.

        Raises:
            TypeError: not a whole number.
            ValueError: negative.
        """
        check.require_epoch(epoch)
        self._guard.run(self._set_epoch, epoch)

    def _set_epoch(self, epoch: int) -> None:
        self._epoch = self._told_epoch = epoch
        self._times_set += 1
        inner = getattr(self.batch_sampler, "sampler", None)
        samplers: tuple[Any, ...] = (self.sampler, self.batch_sampler, inner)
        for sampler in {id(s): s for s in samplers}.values():
            if takes_epoch(sampler):
                sampler.set_epoch(epoch)
        set_epoch(self.dataset, epoch)

    def _plan(self) -> EpochPlan:
        """Settle everything about the epoch that begins now.

        Order and number of the draws from random generators are PyTorch's: ``iter()``
        of the sampler, then one draw for the base seed; the sampler draws at its first
        index.
        """
        epoch = self._next_epoch()
        feed = self._make_feed()
        pin = self._make_pinner() if self.pin_memory else None
        base_seed, seed = self._seeds(epoch)
        return EpochPlan(
            snapshot=self._snapshot(),
            dataset=self.dataset,
            feed=feed,
            iterable=self._is_iterable,
            auto_collation=self._auto_collation,
            collate_fn=self.collate_fn,
            drop_last=self.drop_last,
            epoch=epoch,
            seed=seed,
            base_seed=base_seed,
            num_workers=self.num_workers,
            window=self._window(),
            items_in_parallel=self.items_in_parallel,
            in_order=self.in_order or self.num_workers == 0,
            timeout_s=self.timeout,
            worker_init_fn=self.worker_init_fn,
            pin=pin,
            times_set=self._times_set,
            told_epoch=self._told_epoch,
            meter=self._meter,
            replicate=self.replicate,
            is_persistent=bool(self.persistent_workers),
            help=self.help,
            check=self._sample_check(),
            len_called=self._IterableDataset_len_called,
        )

    def _make_feed(self) -> IndexFeed:
        """Return the order of the epoch that begins now."""
        return IndexFeed(self._index_sampler, self._auto_collation)

    def _sample_check(self) -> Check | None:
        """Return what the samples that ``__getitems__`` returns pass through."""
        return require_all if self.collate_fn is default_collate else None

    def _make_pinner(self) -> Pinner | None:
        level = users_level() + 1
        return make_pinner(self.pin_memory, self.pin_memory_device, stacklevel=level)

    def _next_epoch(self) -> int:
        """Return the next epoch's number, and tell it to a seeded sampler of ours."""
        epoch = int(self._epoch)
        # What decides the order: the sampler itself, or what its batches are made of.
        sampler: Any = self.batch_sampler
        # Of the type, as isinstance would have torch's classes looked up.
        if not issubclass(type(sampler), BucketBatchSampler):
            sampler = getattr(sampler, "sampler", self.sampler)
        if issubclass(type(sampler), _OWN_SEEDED):
            if sampler.seed is not None:
                sampler.set_epoch(epoch)
        elif is_shuffling_by_rank(sampler):
            self._watch_epoch_of(sampler)
        return epoch

    def _watch_epoch_of(self, sampler: Any) -> None:
        """Warn once of a distributed order that is the same as in the epoch before."""
        if self._rank_epoch == sampler.epoch and "rank_epoch" not in self._warned:
            self._warned.add("rank_epoch")
            warnings.warn(
                f"{type(sampler).__name__} shuffles as in the epoch before, since its "
                f"epoch is still {sampler.epoch}: call loader.set_epoch(e) before each "
                "iter()",
                stacklevel=users_level(),
            )
        self._rank_epoch = sampler.epoch

    def _seeds(self, epoch: int) -> tuple[int, int]:
        """Return the base seed of the workers and the key of `rng`."""
        if self.seed is not None:
            seed = int(self.seed)
            return derive_key(_KEY_OF_BASE_SEED, seed, epoch) >> 1, seed
        if self._iterator is not None and self._entropy is not None:
            # Persistent workers are seeded once.
            return self._entropy, self._entropy
        self._entropy = draw_int64(self.generator)
        return self._entropy, self._entropy

    def _snapshot(self) -> Any:
        functions = (self.collate_fn, self.worker_init_fn)
        if self.num_workers == 0 and self.items_in_parallel == 1:
            return None
        return make_snapshot(
            self.dataset, self.replicate, functions=functions, warned=self._warned
        )

    def _window(self) -> int:
        """Return how many batches may be in flight and waiting together."""
        if self.num_workers == 0:
            return 0
        if self.prefetch_depth is not None:
            window = self.num_workers + self.prefetch_depth
        else:
            window = int((self.prefetch_factor or 2) * self.num_workers)
        return max(min(window, MAX_WINDOW), 1)

    def _living_backend(self) -> Backend:
        """Return the backend for the options, which may have been re-assigned."""
        key = (self.num_workers, self.items_in_parallel)
        # A local, since close() in another thread may take the attribute away.
        backend = self._backend
        if backend is None or self._backend_key != key:
            self._backend_key = key
            backend = self._backend = self._make_backend()
        return backend

    def _make_backend(self) -> Backend:
        if self.num_workers == 0 and self.items_in_parallel == 1:
            return InlineBackend(self._inline_iterator)
        return ThreadBackend(
            max(self.num_workers, 1), self.items_in_parallel, self._thread_iterator
        )

    def stats(self) -> LoaderStats:
        """What has been loaded so far, by whom, and how long it took.

        Costs a percent of the loading and is always on. Times are of the last 4096
        batches that were timed; counters are of all epochs of this object.

        >>> loader = DataLoader(range(10), batch_size=2)
        >>> for batch in loader:
        ...     pass
        >>> loader.stats().batches
        5
        """
        return self._meter.read(self._window())

    # The end.

    def close(self) -> None:
        """End all epochs of this loader and its threads, within a second. Idempotent.

        A thread that is inside a sample ends when the sample does. Iterating over the
        loader again starts new threads.
        """
        # Not under the guard: it may be held by an iter() that waits for the user's
        # code.
        backend, self._backend = self._backend, None
        self._iterator = None
        if backend is not None:
            backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        for name in _LIFE:
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin_life()


_LIFE = (
    "_backend",
    "_backend_key",
    "_entropy",
    "_guard",
    "_initialized",
    "_iterator",
    "_meter",
    "_rank_epoch",
    "_warned",
)

"""dataloader-rs's names and rules on our loader, so that its users change one import.

    from dataloader.compat import PyDataloader, PyDataset    # dataloader_rs before

Only the rules that differ from `DataLoader`'s are written here: a batch is a list, a
sampler is read whole and checked in ``iter()``, all workers share the one dataset, an
iterator counts down, and arguments have dataloader-rs's order, defaults and checks.
The iterators are the loader's own, with another ``len()``, so that all of this costs
nothing for a batch, except that the result of ``__getitems__`` is looked at.
"""

from __future__ import annotations

import itertools
import os
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from typing import Any, SupportsIndex

from dataloader import _compat_arguments as check
from dataloader._fast import Slot
from dataloader.datasets import Dataset
from dataloader.fetch import Check, require_all
from dataloader.loader import DataLoader
from dataloader.samplers import RandomSampler
from dataloader.workers.base import BatchIterator, EpochPlan
from dataloader.workers.feed import IndexFeed
from dataloader.workers.inline import InlineIterator
from dataloader.workers.threads import ThreadIterator

__all__ = ["PyDataloader", "PyDataloaderIter", "PyDataset"]

_READ_AT_ONCE = 1 << 16
"""Indices that are taken from a sampler in one call, in which Ctrl-C has to wait."""


class PyDataset(Dataset[Any]):
    """Base class of map-style datasets, which `PyDataloader` does not insist on.

    A subclass has ``__len__`` and ``__getitem__``, and may have ``__getitems__``, which
    is given the list of the indices of a batch and returns that many samples.

    Example:
        >>> class Squares(PyDataset):
        ...     def __init__(self, n):
        ...         super().__init__()
        ...         self.n = n
        ...
        ...     def __len__(self):
        ...         return self.n
        ...
        ...     def __getitem__(self, index):
        ...         return index * index
        >>> list(PyDataloader(Squares(5), batch_size=2))
        [[0, 1], [4, 9], [16]]
    """

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} must define __len__")


class PyDataloaderIter(BatchIterator):
    """Iterator over the batches of one epoch; ``len()`` is the number that are left."""

    def _begin(self, plan: EpochPlan) -> None:
        self._batches = len(plan.feed)
        super()._begin(plan)

    def __len__(self) -> int:
        return self._batches - self._tally.delivered


class _InlineIter(PyDataloaderIter, InlineIterator):
    pass


class _ThreadIter(PyDataloaderIter, ThreadIterator):
    pass


class PyDataloader(DataLoader[Any]):
    """Loads batches of a dataset by dataloader-rs's rules.

    It has the methods and attributes of `DataLoader` besides: ``close()``, ``with``,
    ``set_epoch(e)``. ``docs/migration.md`` lists what differs from dataloader-rs.

    Args:
        dataset: an object with ``__len__`` and ``__getitem__``, shared by all workers.
        batch_size: samples in a batch, at least 1.
        prefetch_depth: batches that workers load ahead in total, beyond the
            ``num_workers`` in progress, at least 1.
        shuffle: a new random order each epoch.
        sampler: any finite iterable of indices, instead of ``shuffle``. ``iter()``
            reads it to its end, so what it raises, and whatever is no index, is raised
            there.
        num_workers: threads that load batches; 0 loads in the calling thread.
        collate_fn: makes a batch of the list of its samples, in the worker; without it
            that list is the batch.
        drop_last: leave out a last batch that is short.
        seed: with ``shuffle``: loaders with the same seed give the same orders, epoch
            by epoch. 0 to 2**64 - 1; None draws one, which the attribute shows.
        items_in_parallel: samples of one batch that are fetched at once, by as many
            threads for each worker, each with a ``__getitem__`` call.
        item_concurrency: the name of ``items_in_parallel`` since dataloader-rs 0.3.

    Raises:
        ValueError: arguments out of range, or that exclude each other.
        TypeError: an argument of the wrong type.
        OverflowError: a number that is negative or does not fit into 64 bits.

    Example:
        >>> loader = PyDataloader(range(5), batch_size=2, sampler=[4, 3, 0])
        >>> batches = iter(loader)
        >>> len(batches), next(batches), len(batches)
        (2, [4, 3], 1)
    """

    _inline_iterator = _InlineIter
    _thread_iterator = _ThreadIter

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        prefetch_depth: int = 2,
        shuffle: bool = False,
        sampler: Iterable[SupportsIndex] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        seed: int | None = None,
        items_in_parallel: int = 1,
        *,
        item_concurrency: int | None = None,
    ) -> None:
        check.require_map_style(dataset)
        batch_size = check.unsigned("batch_size", batch_size)
        prefetch_depth = check.unsigned("prefetch_depth", prefetch_depth)
        shuffle = check.flag("shuffle", shuffle)
        num_workers = check.unsigned("num_workers", num_workers)
        drop_last = check.flag("drop_last", drop_last)
        if seed is not None:
            seed = check.unsigned("seed", seed)
        items = check.items_at_once(items_in_parallel, item_concurrency)
        check.require_positive("batch_size", batch_size)
        check.require_positive("prefetch_depth", prefetch_depth)
        check.check_order(shuffle, sampler, seed)
        check.require_positive("items_in_parallel", items)
        self._is_sampled = sampler is not None
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            num_workers=num_workers,
            collate_fn=_as_they_are if collate_fn is None else collate_fn,
            drop_last=drop_last,
            # Never None: without a seed numbers of torch's generator would be used up.
            seed=int.from_bytes(os.urandom(8), "little") if seed is None else seed,
            prefetch_depth=prefetch_depth,
            items_in_parallel=items,
            replicate="none",
        )

    def __iter__(self) -> PyDataloaderIter:
        """Begin an epoch: read the sampler and let workers load the first batches."""
        iterator = super().__iter__()
        assert isinstance(iterator, PyDataloaderIter)
        return iterator

    def _default_sampler(self, is_random: bool) -> Iterable[Any]:
        if is_random:
            return _Shuffle(self.dataset, self.seed)
        return super()._default_sampler(is_random)

    def _make_feed(self) -> IndexFeed:
        if not self._is_sampled:
            return super()._make_feed()
        assert self.batch_size is not None
        return _WholeFeed(self.sampler, self.batch_size, self.drop_last)

    def _sample_check(self) -> Check:
        return _all_in_a_list


class _Shuffle(RandomSampler):
    """A random order of data that may be empty and are not looked at before ``iter()``.

    Args:
        data_source: anything with a length.
        seed: decides the order, with the epoch.
    """

    def __init__(self, data_source: Sized, seed: int | None) -> None:
        # The constructor refuses empty data.
        super().__init__(range(1), seed=seed)
        self.data_source = data_source


class _WholeFeed(IndexFeed):
    """The index batches of a sampler that is read to its end here, and checked.

    Args:
        sampler: any iterable of indices.
        batch_size: indices in a batch.
        drop_last: leave out a last batch that is short.

    Raises:
        TypeError: the sampler yields something else.
        OverflowError: an index is negative or does not fit into 64 bits.
    """

    def __init__(
        self, sampler: Iterable[Any], batch_size: int, drop_last: bool
    ) -> None:
        indices = _read(sampler)
        end = len(indices)
        if drop_last:
            end -= end % batch_size
        starts = range(0, end, batch_size)
        stops = range(batch_size, end + batch_size, batch_size)
        # Of built-in functions alone: Ctrl-C cannot come between them and lose a batch.
        slices = map(indices.__getitem__, map(slice, starts, stops))
        batches = map(array.tolist, slices)
        self.tasks = zip(itertools.count(), starts, batches, strict=False)
        self.slot = Slot()
        self.is_settled = True
        self._length = len(starts)

    def __len__(self) -> int:
        return self._length


def _read(sampler: Iterable[Any]) -> array[int]:
    """Return all indices of a sampler as unsigned integers of 64 bits."""
    indices = array("Q")
    for piece in _pieces(sampler):
        try:
            indices += array("Q", piece)
        except (TypeError, OverflowError):
            for value in piece:
                _require_index(value)
            raise
    return indices


def _pieces(sampler: Iterable[Any]) -> Iterator[Collection[Any]]:
    """Yield what a sampler yields, many indices at a time."""
    if type(sampler) is list or type(sampler) is tuple:
        yield sampler
        return
    # A chain asks the sampler for iter() once; islice would ask its iterator each time.
    source = itertools.chain(sampler)
    # Ctrl-C is seen between the steps of this loop, not inside a function of C.
    while piece := list(itertools.islice(source, _READ_AT_ONCE)):
        yield piece


def _require_index(value: Any) -> None:
    try:
        array("Q", (value,))
    except (TypeError, OverflowError) as error:
        kind = OverflowError if isinstance(error, OverflowError) else TypeError
        raise kind(
            f"sampler must yield whole numbers from 0 to 2**64 - 1, got {value!r}"
        ) from error


def _as_they_are(samples: list[Any]) -> list[Any]:
    """Make a batch of the samples: the list that they come in."""
    return samples


def _all_in_a_list(samples: Any, indices: Any) -> Any:
    """Return a list of the samples, which any iterable may hold (a `Check`)."""
    listed = samples if type(samples) is list else list(samples)
    return listed if len(listed) == len(indices) else require_all(listed, indices)

"""The two kinds of datasets, and joining several of a kind one after the other."""

from __future__ import annotations

import bisect
import itertools
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dataloader._torch import torch_class
from dataloader._twin import TorchTwin
from dataloader.datasets.gather import row_numbers
from dataloader.fetch import fetch_one_by_one, fetch_part, require_all, uses_getitems

__all__ = [
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "Indexable",
    "IterableDataset",
    "is_iterable_dataset",
    "tell_epoch",
]

T_co = TypeVar("T_co", covariant=True)


class Indexable(Protocol[T_co]):
    """What a map-style dataset is to type checkers: samples of one type by key."""

    def __getitem__(self, index: Any, /) -> T_co: ...


class Dataset(Generic[T_co]):
    """Base class of map-style datasets: samples by key.

    A subclass has ``__getitem__``, mostly ``__len__``, and may have ``__getitems__``,
    which is given the list of keys of a batch and returns the list of samples.

    Example:
        >>> class Squares(Dataset[int]):
        ...     def __getitem__(self, index):
        ...         return index * index
        ...
        ...     def __len__(self):
        ...         return 4
        >>> len(Squares() + Squares())
        8
    """

    # Without a default __len__: len() must raise TypeError where there is none.

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__")

    def __add__(self, other: Any) -> ConcatDataset[T_co]:
        return ConcatDataset([self, other])


# Generic is named so that it comes after Iterable, as in torch's class: the two orders
# must agree, or `TorchTwin` cannot derive from both.
class IterableDataset(
    Dataset[T_co],
    TorchTwin,
    Iterable[T_co],
    Generic[T_co],
    torch_name="IterableDataset",
):
    """Base class of datasets that yield their samples in an order of their own.

    A subclass has ``__iter__``. Each worker iterates a copy of its own, so ``__iter__``
    asks `get_worker_info` which share of the data is this worker's.

    Example:
        >>> class Countdown(IterableDataset[int]):
        ...     def __iter__(self):
        ...         return iter([3, 2, 1])
        >>> list(Countdown() + Countdown())
        [3, 2, 1, 3, 2, 1]
    """

    def __add__(self, other: Any) -> ChainDataset[T_co]:  # type: ignore[override]
        return ChainDataset([self, other])


def is_iterable_dataset(dataset: object) -> bool:
    """Return whether a dataset is to be iterated and not asked by key.

    Args:
        dataset: anything; an object of our `IterableDataset` or of torch's is iterable.
    """
    if isinstance(dataset, IterableDataset):
        return True
    theirs = torch_class("IterableDataset")
    return theirs is not None and isinstance(dataset, theirs)


class ConcatDataset(Dataset[T_co]):
    """Some datasets, one after the other.

    Args:
        datasets: map-style datasets with a length.

    Attributes:
        datasets: list of them.
        cumulative_sizes: for each, the number of samples up to its end.

    Raises:
        AssertionError: there are none, or one of them is iterable.

    Example:
        >>> joined = ConcatDataset(["ab", "cde"])
        >>> len(joined), joined[2], joined[-1]
        (5, 'c', 'e')
    """

    def __init__(self, datasets: Iterable[Indexable[T_co]]) -> None:
        self.datasets: list[Any] = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets must not be empty, got none")
        for i, dataset in enumerate(self.datasets):
            if is_iterable_dataset(dataset):
                raise AssertionError(
                    f"datasets must be map-style, got the iterable "
                    f"{type(dataset).__name__} at index {i}: use ChainDataset"
                )
        self.cumulative_sizes: list[int] = self.cumsum(self.datasets)

    @staticmethod
    def cumsum(sequence: Iterable[Any]) -> list[int]:
        """Return the running sums of the lengths of ``sequence``'s items."""
        return list(itertools.accumulate(len(item) for item in sequence))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: Any) -> Any:
        """Return sample ``index``, counted from the end if negative.

        Raises:
            ValueError: ``index`` is less than ``-len``.
            IndexError: ``index`` is not less than ``len``.
        """
        if index < 0:
            if -index > len(self):
                raise ValueError(
                    f"index must be at least {-len(self)}, minus the length, "
                    f"got {index}"
                )
            index += len(self)
        member = bisect.bisect_right(self.cumulative_sizes, index)
        if member == len(self.datasets):
            raise IndexError(f"index must be less than len={len(self)}, got {index}")
        before = self.cumulative_sizes[member - 1] if member else 0
        return self.datasets[member][index - before]

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """Return the samples of a batch, asking each dataset once for all of its own.

        Args:
            indices: as for single samples.

        Raises:
            ValueError: a dataset returned another number of samples than were asked
                for; besides what single samples raise.
        """
        if type(self).__getitem__ is not ConcatDataset.__getitem__:
            return fetch_one_by_one(self, indices)
        rows = row_numbers(indices, len(self))
        if rows is None:
            return fetch_one_by_one(self, indices)
        if isinstance(rows, slice):
            rows = np.arange(rows.start, rows.stop)
        samples: list[Any] = [None] * len(indices)
        for member, places in self._by_member(rows):
            before = self.cumulative_sizes[member - 1] if member else 0
            keys = (rows[places] - before).tolist()
            part = fetch_part(self.datasets[member], keys, places.tolist())
            part = require_all(part, keys)
            for place, sample in zip(places.tolist(), part, strict=True):
                samples[place] = sample
        return samples

    def _by_member(self, rows: NDArray[np.intp]) -> Iterator[tuple[int, Any]]:
        """Yield each dataset's number and the places in ``rows`` that are its own."""
        members = np.searchsorted(self.cumulative_sizes, rows, side="right")
        order = np.argsort(members, kind="stable")
        found, starts = np.unique(members[order], return_index=True)
        return zip(found.tolist(), np.split(order, starts[1:]), strict=True)

    def _gathers(self) -> bool:
        """Return whether ``__getitems__`` is to be called, see `uses_getitems`."""
        return type(self).__getitem__ is ConcatDataset.__getitem__ and any(
            map(uses_getitems, self.datasets)
        )

    @property
    def cummulative_sizes(self) -> list[int]:
        """PyTorch's old, misspelt name of ``cumulative_sizes``."""
        warnings.warn(
            "cummulative_sizes is spelt cumulative_sizes now",
            FutureWarning,
            stacklevel=2,
        )
        return self.cumulative_sizes

    def set_epoch(self, epoch: int) -> None:
        """Tell the datasets the epoch that want to know it."""
        tell_epoch(self.datasets, epoch)


class ChainDataset(IterableDataset[T_co], torch_name="ChainDataset"):
    """Some iterable datasets, one after the other.

    Args:
        datasets: iterable datasets, ours or torch's; looked at only when it is their
            turn, or for ``len()``.

    Raises:
        AssertionError: during iteration or from ``len()``: one of them is map-style.
    """

    def __init__(self, datasets: Iterable[Iterable[T_co]]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[T_co]:
        # No generator: an error or Ctrl-C in a dataset would end that for good.
        return itertools.chain.from_iterable(map(_require_iterable, self.datasets))

    def __len__(self) -> int:
        return sum(len(_require_iterable(dataset)) for dataset in self.datasets)

    def set_epoch(self, epoch: int) -> None:
        """Tell the datasets the epoch that want to know it."""
        if not isinstance(self.datasets, Iterator):  # would be used up by a look
            tell_epoch(self.datasets, epoch)


def _require_iterable(dataset: Any) -> Any:
    if not is_iterable_dataset(dataset):
        raise AssertionError(
            "ChainDataset needs iterable datasets, got the map-style "
            f"{type(dataset).__name__}: use ConcatDataset"
        )
    return dataset


def tell_epoch(datasets: Iterable[Any], epoch: int) -> None:
    """Call ``set_epoch(epoch)`` of the datasets that have it."""
    for dataset in datasets:
        set_epoch = getattr(dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)

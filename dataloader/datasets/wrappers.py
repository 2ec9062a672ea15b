"""Datasets made of others: some of their samples, or samples side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from dataloader.datasets.base import Dataset, Indexable, tell_epoch
from dataloader.datasets.gather import can_gather, gather, is_plain, row_numbers
from dataloader.fetch import (
    fetch_columns,
    fetch_one_by_one,
    fetch_part,
    uses_getitems,
)

__all__ = ["StackDataset", "Subset", "TensorDataset"]

T_co = TypeVar("T_co", covariant=True)


class TensorDataset(Dataset[tuple[Any, ...]]):
    """Samples are the i-th entries of some tensors, arrays or sequences.

    Args:
        *tensors: of the same length in their first dimension.

    Raises:
        AssertionError: the lengths differ.
        IndexError: one of them has no dimension.

    Example:
        >>> import numpy as np
        >>> TensorDataset(np.eye(2), ["a", "b"])[1]
        (array([0., 1.]), 'b')
    """

    def __init__(self, *tensors: Any) -> None:
        lengths = [_first_dimension(tensor) for tensor in tensors]
        if len(set(lengths)) > 1:
            raise AssertionError(
                f"tensors must have equal first dimensions, got lengths {lengths}"
            )
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple([tensor[index] for tensor in self.tensors])

    def __getitems__(self, indices: list[Any]) -> list[tuple[Any, ...]]:
        """Return the samples of a batch, by one indexing operation for each tensor.

        What comes from arrays and tensors is a copy, not a view as in single samples.

        Args:
            indices: as for single samples.
        """
        if type(self).__getitem__ is not TensorDataset.__getitem__ or not self.tensors:
            return fetch_one_by_one(self, indices)
        rows = row_numbers(indices, len(self))
        columns = [gather(tensor, indices, rows) for tensor in self.tensors]
        return list(zip(*columns, strict=True))

    def _gathers(self) -> bool:
        """Return whether ``__getitems__`` is to be called, see `uses_getitems`."""
        return (
            type(self).__getitem__ is TensorDataset.__getitem__
            and any(map(can_gather, self.tensors))
            and all(can_gather(t) or is_plain(t) for t in self.tensors)
        )

    def __len__(self) -> int:
        return _first_dimension(self.tensors[0])


def _first_dimension(tensor: Any) -> int:
    shape = getattr(tensor, "shape", None)
    return len(tensor) if shape is None else int(shape[0])


class Subset(Dataset[T_co]):
    """The samples of a dataset at some of its indices.

    Args:
        dataset: a map-style dataset.
        indices: a sequence of its keys; the i-th of them is sample i.

    Raises:
        NotImplementedError: a subclass overrides ``__getitem__`` and not
            ``__getitems__``, which the loader would call and so pass it by.

    Example:
        >>> list(Subset("abcde", [4, 0]))
        ['e', 'a']
    """

    def __init__(self, dataset: Indexable[T_co], indices: Sequence[Any]) -> None:
        self.dataset: Any = dataset
        self.indices = indices
        cls = type(self)
        if (
            cls.__getitem__ is not Subset.__getitem__
            and cls.__getitems__ is Subset.__getitems__
        ):
            raise NotImplementedError(
                f"{cls.__name__} overrides __getitem__ and inherits __getitems__, "
                "which loads batches without it: define __getitems__(self, indices) "
                "too, as [self[i] for i in indices] for example"
            )

    def __getitem__(self, index: Any) -> Any:
        """Return sample ``index``; a list of indices goes to the dataset as a list."""
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: list[Any]) -> Any:
        """Return the samples of a batch, by the dataset's ``__getitems__`` if it can.

        Args:
            indices: indices into this subset.
        """
        keys = [self.indices[i] for i in indices]
        return fetch_part(self.dataset, keys)

    def _gathers(self) -> bool:
        """Return whether ``__getitems__`` is to be called, see `uses_getitems`."""
        return type(self).__getitem__ is Subset.__getitem__ and uses_getitems(
            self.dataset
        )

    def __len__(self) -> int:
        return len(self.indices)

    def set_epoch(self, epoch: int) -> None:
        """Tell the dataset the epoch if it wants to know it."""
        tell_epoch([self.dataset], epoch)


class StackDataset(Dataset[Any]):
    """Datasets side by side: a sample holds one sample of each.

    Args:
        *args: datasets of equal length; samples are tuples.
        **kwargs: datasets of equal length; samples are dicts with these keys.

    Attributes:
        datasets: the tuple or the dict of them.

    Raises:
        ValueError: none or both kinds are given, or the lengths differ.

    Example:
        >>> StackDataset("ab", [1, 2])[1]
        ('b', 2)
        >>> StackDataset(text="ab", label=[1, 2])[1]
        {'text': 'b', 'label': 2}
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise ValueError(
                "datasets must be all positional (samples are tuples) or all named "
                f"(dicts), got {len(args)} and {len(kwargs)}"
            )
        if not args and not kwargs:
            raise ValueError("datasets must not be empty, got none")
        self.datasets: tuple[Any, ...] | dict[str, Any] = args or kwargs
        lengths = [len(dataset) for dataset in self._members()]
        if len(set(lengths)) > 1:
            raise ValueError(f"datasets must have equal lengths, got {lengths}")
        self._length = lengths[0]

    def _members(self) -> Iterable[Any]:
        if isinstance(self.datasets, dict):
            return self.datasets.values()
        return self.datasets

    def __getitem__(self, index: Any) -> Any:
        return self._sample([dataset[index] for dataset in self._members()])

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """Return the samples of a batch, by the datasets' ``__getitems__`` if they can.

        Raises:
            ValueError: a dataset returned another number of samples than were asked
                for.
        """
        if type(self).__getitem__ is not StackDataset.__getitem__:
            return fetch_one_by_one(self, indices)
        columns = fetch_columns(self._members(), indices)
        for column in columns:
            if len(column) != len(indices):
                raise ValueError(
                    f"__getitems__ of a stacked dataset must return {len(indices)} "
                    f"samples, one for each index, got {len(column)}"
                )
        return [self._sample(parts) for parts in zip(*columns, strict=True)]

    def _gathers(self) -> bool:
        """Return whether ``__getitems__`` is to be called, see `uses_getitems`."""
        return type(self).__getitem__ is StackDataset.__getitem__ and any(
            map(uses_getitems, self._members())
        )

    def _sample(self, parts: Iterable[Any]) -> Any:
        if isinstance(self.datasets, dict):
            return dict(zip(self.datasets, parts, strict=True))
        return tuple(parts)

    def __len__(self) -> int:
        return self._length

    def set_epoch(self, epoch: int) -> None:
        """Tell the datasets the epoch that want to know it."""
        tell_epoch(self._members(), epoch)

"""The base class of samplers, and the two that are not random."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Generic, TypeVar

from dataloader._twin import TorchTwin
from dataloader.samplers.batches import BatchIterator
from dataloader.samplers.iterators import IndexIterator, RangeIterator

__all__ = ["BatchSampler", "Sampler", "SequentialSampler"]

T_co = TypeVar("T_co", covariant=True)


class Sampler(TorchTwin, Generic[T_co], torch_name="Sampler"):
    """Base class of samplers: iterables of the keys that a dataset is asked for.

    A subclass has ``__iter__``, and ``__len__`` if the loader's length is to be known.
    No base class is needed: any iterable of keys is a sampler to the loader.

    Attributes:
        epoch: what `set_epoch` was given last, 0 before.

    Example:
        >>> class EvenSampler(Sampler[int]):
        ...     def __init__(self, n: int) -> None:
        ...         self.n = n
        ...
        ...     def __iter__(self) -> Iterator[int]:
        ...         return iter(range(0, self.n, 2))
        >>> list(EvenSampler(7))
        [0, 2, 4, 6]
    """

    # Without a default __len__: len() must raise TypeError where there is none.

    epoch: int = 0

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__")

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of iterators made from now on.

        Args:
            epoch: mixed into the order by samplers with a ``seed``.
        """
        self.epoch = epoch


class SequentialSampler(Sampler[int], torch_name="SequentialSampler"):
    """Yields 0, 1, 2, ... up to the length of the data.

    Args:
        data_source: anything with a length, which is read at each ``iter()``.

    Example:
        >>> list(SequentialSampler("abc"))
        [0, 1, 2]
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> IndexIterator[int]:
        return RangeIterator(len(self.data_source))

    def __len__(self) -> int:
        return len(self.data_source)


class BatchSampler(Sampler[list[int]], torch_name="BatchSampler"):
    """Yields the keys of another sampler in lists.

    Args:
        sampler: any iterable of keys.
        batch_size: keys in a list.
        drop_last: leave out a last list that is shorter.

    Raises:
        ValueError: ``batch_size`` is not a positive int, or ``drop_last`` not a bool.

    Example:
        >>> list(BatchSampler(SequentialSampler("abcde"), 2, drop_last=False))
        [[0, 1], [2, 3], [4]]
        >>> list(BatchSampler(SequentialSampler("abcde"), 2, drop_last=True))
        [[0, 1], [2, 3]]
    """

    def __init__(
        self, sampler: Iterable[int], batch_size: int, drop_last: bool
    ) -> None:
        if type(batch_size) is bool or not isinstance(batch_size, int):
            raise ValueError(f"batch_size must be a positive int, got {batch_size!r}")
        if batch_size <= 0:
            raise ValueError(f"batch_size must be positive, got {batch_size}")
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last must be a bool, got {drop_last!r}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> BatchIterator[int]:
        source = iter(self.sampler)
        return BatchIterator(source, self.batch_size, self.drop_last, self.sampler)

    def __len__(self) -> int:
        length = len(self.sampler)  # type: ignore[arg-type]  # TypeError if it has none
        if self.drop_last:
            return length // self.batch_size
        return -(-length // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of iterators made from now on, here and in the inner sampler.

        Args:
            epoch: handed to ``sampler.set_epoch`` if there is one.
        """
        self.epoch = epoch
        inner = getattr(self.sampler, "set_epoch", None)
        if callable(inner):
            inner(epoch)

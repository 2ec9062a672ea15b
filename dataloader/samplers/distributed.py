"""The sampler that gives each process of a distributed run its share of the data."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from operator import index
from typing import Any, TypeVar, cast

import numpy as np

from dataloader._fast import derive_key, permute_array
from dataloader._torch import loaded_torch
from dataloader.samplers.base import Sampler
from dataloader.samplers.iterators import IndexIterator, OrderIterator

__all__ = ["DistributedSampler"]

T_co = TypeVar("T_co", covariant=True)


class DistributedSampler(Sampler[T_co], torch_name="DistributedSampler"):
    """Yields every ``num_replicas``-th index of one order that all processes share.

    The shared order is the data's own, or with ``shuffle`` the one that
    ``RandomSampler(seed=seed)`` has in the same epoch; it is never held in memory. All
    processes get equally many indices: the order is continued from its beginning until
    it can be dealt out evenly, or cut with ``drop_last``.

    Args:
        dataset: anything with a length.
        num_replicas: number of processes; None asks ``torch.distributed``.
        rank: number of this process; None asks ``torch.distributed``.
        shuffle: whether the order is random.
        seed: with the epoch decides the random order. Must be the same everywhere.
        drop_last: cut the order rather than continue it.

    Attributes:
        epoch: see `set_epoch`, to be called before each epoch, or the order repeats.
        num_samples: number of indices that each process gets.
        total_size: number of indices that all processes get together.

    Raises:
        RuntimeError: ``num_replicas`` or ``rank`` is None and ``torch.distributed`` is
            not there to be asked.
        ValueError: ``rank`` is not in ``[0, num_replicas)``, or is to be asked for and
            there is no process group.
        TypeError: ``seed`` is not an integer.
        AssertionError: at ``iter()``: the length of ``dataset`` has changed so that
            ``total_size`` does not fit any more.

    Example:
        >>> data = "abcde"
        >>> list(DistributedSampler(data, num_replicas=2, rank=0, shuffle=False))
        [0, 2, 4]
        >>> list(DistributedSampler(data, num_replicas=2, rank=1, shuffle=False))
        [1, 3, 0]
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None:
            num_replicas = int(_process_group("num_replicas").get_world_size())
        if rank is None:
            rank = int(_process_group("rank").get_rank())
        if not 0 <= rank < num_replicas:
            raise ValueError(
                f"rank must be in [0, num_replicas={num_replicas}), got {rank}"
            )
        index(seed)  # TypeError for what is no integer
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self.drop_last = drop_last
        self.num_samples: int = _share(len(dataset), self.num_replicas, drop_last)
        self.total_size: int = self.num_samples * self.num_replicas
        self.shuffle = shuffle
        self.seed = seed

    def __iter__(self) -> IndexIterator[T_co]:
        n = len(self.dataset)
        self._check_length(n)
        key = derive_key(index(self.seed), index(self.epoch), 0)
        order = _dealt(n, self.rank, self.num_replicas, self.shuffle)
        total = self.num_samples
        indices = OrderIterator(total, lambda: key, order, max(n, total))
        return cast("IndexIterator[T_co]", indices)

    def __len__(self) -> int:
        return self.num_samples

    def _check_length(self, n: int) -> None:
        fits = n >= self.total_size if self.drop_last else n <= self.total_size
        if not fits or (n == 0 and self.total_size > 0):
            raise AssertionError(
                f"dataset has {n} samples, which does not fit total_size="
                f"{self.total_size} from when the sampler was made: make a new one"
            )


def _process_group(argument: str) -> Any:
    """Return ``torch.distributed`` if it can be asked for ``argument``."""
    if loaded_torch() is not None:
        distributed = importlib.import_module("torch.distributed")
        if distributed.is_available():
            return distributed
    raise RuntimeError(
        f"{argument}=None asks torch.distributed, which is not available: give a number"
    )


def _share(n: int, replicas: int, drop_last: bool) -> int:
    """Return how many of ``n`` indices each replica gets."""
    return n // replicas if drop_last else -(-n // replicas)


def _dealt(
    n: int, rank: int, replicas: int, shuffle: bool
) -> Callable[[int, int, int], list[int]]:
    """Return the slices of what ``rank`` gets of an order of ``n``, repeated."""

    def slice_order(key: int, start: int, stop: int) -> list[int]:
        positions = np.arange(start, stop, dtype=np.int64) * replicas + rank
        positions %= n
        if shuffle:
            positions = permute_array(positions, n, key)
        indices: list[int] = positions.tolist()
        return indices

    return slice_order

"""Samplers of a random order: all of the data, or a subset of it."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any

from dataloader.samplers.base import Sampler
from dataloader.samplers.iterators import (
    IndexIterator,
    OrderIterator,
    RangeIterator,
    RoundsIterator,
)
from dataloader.samplers.orders import (
    checked_seed,
    draws_of,
    global_torch,
    seed_draw,
    shuffle_of,
    tensor_slice,
    torch_of,
)

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["RandomSampler", "SubsetRandomSampler"]

# With replacement PyTorch draws this many indices at a time.
_DRAWN_AT_ONCE = 32


class RandomSampler(Sampler[int], torch_name="RandomSampler"):
    """Yields indices of the data in random order, in memory that does not grow with it.

    Without replacement, more samples than there are data are that many independent
    shuffles in a row, the last one cut off. Each iterator takes seed and epoch along
    when it is made, and draws nothing before its first index.

    Args:
        data_source: anything with a length, which is read at each ``iter()``.
        replacement: draw each index from all of the data.
        num_samples: length of an epoch; None means the length of the data.
        generator: a ``torch.Generator`` gives PyTorch's exact order, a
            ``numpy.random.Generator`` is asked for a seed at each epoch's first index.
            None means a seed from torch's global generator while torch is loaded, from
            the operating system otherwise.
        seed: makes the order a function of (seed, epoch); excludes ``generator``.

    Attributes:
        epoch: see `set_epoch`; counts only with ``seed``.

    Raises:
        TypeError: ``replacement`` is not a bool or ``seed`` not an int; at ``iter()``
            or at the first index: ``generator`` is not a generator.
        ValueError: ``num_samples`` is not a positive int; ``seed`` and ``generator``
            are both given; at ``iter()``: samples are asked for and there are no data.
        OverflowError: ``seed`` does not fit into 64 bits.

    Example:
        >>> sampler = RandomSampler(range(10**9), seed=1)
        >>> first = next(iter(sampler))
        >>> first == next(iter(sampler))
        True
        >>> sampler.set_epoch(1)
        >>> first == next(iter(sampler))
        False
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Any | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement must be a bool, got {replacement!r}")
        _check_num_samples(self.num_samples, from_data=num_samples is None)
        self.seed: int | None = checked_seed(seed, generator)

    @property
    def num_samples(self) -> int:
        """Length of an epoch; follows data that grow unless it was given."""
        if self._num_samples is None:
            return len(self.data_source)
        return self._num_samples

    def __iter__(self) -> IndexIterator[int]:
        n, total = len(self.data_source), self.num_samples
        if n == 0:
            return self._no_data(total)
        torch = torch_of(self.generator)
        if torch is not None:
            return self._torch_rounds(torch, n, total)
        epoch = 0 if self.seed is None else index(self.epoch)
        order = (draws_of if self.replacement else shuffle_of)(n, epoch)
        unit = total if self.replacement else n
        return OrderIterator(
            total, seed_draw(self.seed, self.generator), order, min(unit, total)
        )

    def __len__(self) -> int:
        return self.num_samples

    def _no_data(self, total: int) -> IndexIterator[int]:
        if total > 0:
            raise ValueError(
                f"num_samples={total} cannot be drawn from a data_source of length 0"
            )
        return RangeIterator(0)

    def _torch_rounds(self, torch: ModuleType, n: int, total: int) -> RoundsIterator:
        if not self.replacement:
            permute = partial(torch.randperm, n, generator=self.generator)
            return RoundsIterator(total, n, permute, permute)
        draw = partial(
            torch.randint, high=n, dtype=torch.int64, generator=self.generator
        )
        return RoundsIterator(
            total,
            _DRAWN_AT_ONCE,
            partial(draw, size=(_DRAWN_AT_ONCE,)),
            partial(draw, size=(total % _DRAWN_AT_ONCE,)),
        )


def _check_num_samples(num_samples: object, from_data: bool) -> None:
    if isinstance(num_samples, int) and num_samples > 0:
        return
    if from_data:
        raise ValueError(
            "data_source must not be empty for a random order, got length 0"
        )
    raise ValueError(f"num_samples must be a positive int, got {num_samples!r}")


class SubsetRandomSampler(Sampler[int], torch_name="SubsetRandomSampler"):
    """Yields the given indices in random order, each once.

    Args:
        indices: a sequence; its items are handed out as they are.
        generator: a ``torch.Generator`` gives PyTorch's exact order, a
            ``numpy.random.Generator`` is asked for a seed at each epoch's first index.
            None means PyTorch's order from torch's global generator while torch is
            loaded, else a seed from the operating system.
        seed: makes the order a function of (seed, epoch); excludes ``generator``.

    Attributes:
        epoch: see `set_epoch`; counts only with ``seed``.

    Raises:
        TypeError: ``seed`` is not an int; at ``iter()`` or at the first index:
            ``generator`` is not a generator, or ``indices`` has no length or items.
        ValueError: ``seed`` and ``generator`` are both given.
        OverflowError: ``seed`` does not fit into 64 bits.

    Example:
        >>> sorted(SubsetRandomSampler([7, 3, 5], seed=0))
        [3, 5, 7]
    """

    def __init__(
        self,
        indices: Sequence[int],
        generator: Any | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        self.indices = indices
        self.generator = generator
        self.seed: int | None = checked_seed(seed, generator)

    def __iter__(self) -> IndexIterator[int]:
        indices = self.indices
        n = len(indices)
        torch = global_torch(self.seed, self.generator)
        if torch is not None:
            permute = partial(torch.randperm, n, generator=self.generator)
            return OrderIterator(n, permute, _picking(indices, tensor_slice), n)
        epoch = 0 if self.seed is None else index(self.epoch)
        draw = seed_draw(self.seed, self.generator)
        return OrderIterator(n, draw, _picking(indices, shuffle_of(n, epoch)), n)

    def __len__(self) -> int:
        return len(self.indices)


def _picking(indices: Sequence[Any], slice_order: Any) -> Any:
    """Return ``slice_order`` with each position replaced by the item of ``indices``."""

    def slice_items(drawn: Any, start: int, stop: int) -> list[Any]:
        return [indices[i] for i in slice_order(drawn, start, stop)]

    return slice_items

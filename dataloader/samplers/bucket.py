"""The batch sampler that puts samples of similar length into one batch.

A batch of sequences is padded to its longest, so lengths that differ are waste. Here
samples are sorted by length once, the longest first, and the sorted order is cut into
*buckets*, runs of whole batches of similar length. With a budget of 18 tokens:

    lengths       9 9 | 8 8  8 8 | 6 6 5 | 3 3 3 2 2 2  2 2 1
    batch size    2   | 2        | 3     | 6

Buckets and the number of batches do not depend on the epoch. An epoch shuffles the
samples inside each bucket, cuts them into batches and shuffles the batches. Every batch
is a function of (seed, epoch, position), and none is made before it is asked for.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from operator import attrgetter, index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataloader._fast import SORTED_LIMIT, derive_key, permute_range, random_below
from dataloader.samplers.base import Sampler
from dataloader.samplers.iterators import IndexIterator, OrderIterator
from dataloader.samplers.orders import checked_seed, seed_draw

__all__ = ["BucketBatchSampler"]

# So many batches are made at once: enough for the cost of a call to count little.
_MADE_AT_ONCE = 64

_Indices = NDArray[np.int64]


class BucketBatchSampler(Sampler[list[int]]):
    """Yields batches of indices of samples that are similar in length.

    Batches are as large as ``batch_size`` and ``max_tokens`` allow their bucket: where
    its longest sample has length L, that is ``max_tokens // L``. So no batch, padded to
    its longest, is over the budget. Every index comes once in an epoch, and only one
    batch can be short: one of the shortest samples.

    With ``num_replicas`` whole batches are dealt out, equally many to each process. In
    one step all processes have neighbours in length, so that none waits for another.
    Where the batches cannot be dealt out evenly, some come twice, or with ``drop_last``
    not at all: others in each epoch.

    Args:
        lengths: length of each sample in tokens (or frames, pixels, ...): whole
            numbers, a sequence, array or tensor of one dimension. 8 bytes are kept of
            each.
        batch_size: samples in a batch, at most if ``max_tokens`` is given too.
        max_tokens: token budget of a batch, padding included: its longest length times
            its number of samples is at most this.
        shuffle: another order in each epoch; False goes from the longest to the
            shortest.
        drop_last: leave out a batch that is short, and batches that cannot be dealt out
            evenly.
        seed: makes the order a function of (seed, epoch). None means one that is drawn
            at an epoch's first batch, from torch's global generator while torch is
            loaded, else from the operating system; with ``num_replicas`` it means 0.
        bucket_width: how far lengths in a bucket may be apart, as a share of the
            longest, unless they are needed to fill a batch. More is a better shuffle
            and more padding.
        num_replicas: number of processes that share the batches.
        rank: number of this process.

    Attributes:
        epoch: see `set_epoch`; counts only with ``seed``.

    Raises:
        ValueError: a sample is longer than ``max_tokens``; neither ``batch_size`` nor
            ``max_tokens`` is given, or one is not a positive int; ``lengths`` are
            negative or not of one dimension; ``shuffle`` or ``drop_last`` is not a
            bool; ``bucket_width`` is not in [0, 1], ``rank`` not in
            ``[0, num_replicas)``.
        TypeError: ``lengths`` are not whole numbers, or ``seed`` is not an int.
        OverflowError: ``seed`` does not fit into 64 bits.

    Example:
        >>> lengths = [2, 9, 3, 8, 2, 3]
        >>> sampler = BucketBatchSampler(lengths, max_tokens=18, shuffle=False)
        >>> list(sampler), len(sampler)
        ([[1, 3], [2, 5, 0, 4]], 2)
    """

    def __init__(
        self,
        lengths: Sequence[int] | NDArray[Any],
        batch_size: int | None = None,
        *,
        max_tokens: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int | None = None,
        bucket_width: float = 0.1,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        self.batch_size: int | None = _checked_size("batch_size", batch_size)
        self.max_tokens: int | None = _checked_size("max_tokens", max_tokens)
        if batch_size is None and max_tokens is None:
            raise ValueError("give batch_size, max_tokens or both, got neither")
        for name, value in (("shuffle", shuffle), ("drop_last", drop_last)):
            if not isinstance(value, bool):
                raise ValueError(f"{name} must be a bool, got {value!r}")
        if not 0 <= bucket_width <= 1:
            raise ValueError(f"bucket_width must be in [0, 1], got {bucket_width}")
        if not 0 <= rank < num_replicas:
            raise ValueError(
                f"rank must be in [0, num_replicas={num_replicas}), got {rank}"
            )
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed: int | None = checked_seed(seed, None)
        if self.seed is None and num_replicas > 1:
            self.seed = 0
        self.bucket_width = bucket_width
        self.num_replicas = num_replicas
        self.rank = rank
        self._layout = _make_layout(
            _checked_lengths(lengths, self.max_tokens),
            _BatchSizes(self.batch_size, self.max_tokens),
            bucket_width,
            drop_last,
        )

    def __iter__(self) -> IndexIterator[list[int]]:
        epoch = 0 if self.seed is None else index(self.epoch)
        share = _Share(len(self), self.num_replicas, self.rank)
        batches = _Batches(self._layout, share, epoch if self.shuffle else None)
        draw = seed_draw(self.seed, None) if self.shuffle else partial(int, 0)
        # As for a long order, since a short one would be made whole.
        return OrderIterator(len(self), draw, batches.slice, SORTED_LIMIT + 1)

    def __len__(self) -> int:
        batches, replicas = self._layout.num_batches, self.num_replicas
        return batches // replicas if self.drop_last else -(-batches // replicas)


def _checked_size(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(type(value), "__index__") or value <= 0:
        raise ValueError(f"{name} must be a positive int, got {value!r}")
    return index(value)


def _checked_lengths(lengths: Any, max_tokens: int | None) -> _Indices:
    """Return ``lengths`` as an array.

    Raises:
        TypeError: they are not whole numbers.
        ValueError: they have not one dimension, or one is negative or too long.
    """
    if hasattr(lengths, "detach"):
        lengths = lengths.detach().cpu()
    array = np.asarray(lengths)
    if array.ndim != 1:
        raise ValueError(f"lengths must have one dimension, got shape {array.shape}")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(
            f"lengths must be whole numbers, got dtype {array.dtype}: round them"
        )
    array = array.astype(np.int64, copy=False)
    if array.min(initial=0) < 0:
        wrong = int(array.argmin())
        raise ValueError(
            f"lengths must not be negative, got {array[wrong]} at index {wrong}"
        )
    if max_tokens is not None and array.max(initial=0) > max_tokens:
        wrong = int(array.argmax())
        raise ValueError(
            f"no sample may be longer than max_tokens={max_tokens}, got length "
            f"{array[wrong]} at index {wrong}: raise max_tokens, truncate such samples "
            "or leave them out"
        )
    return array


class _BatchSizes(NamedTuple):
    """The two limits of a batch, of which at least one is given."""

    batch_size: int | None
    max_tokens: int | None

    def of(self, longest: int) -> int:
        """Return how many samples of at most this length make a batch."""
        sizes = [] if self.batch_size is None else [self.batch_size]
        if self.max_tokens is not None:
            sizes.append(self.max_tokens // max(longest, 1))
        return min(sizes)


class _Bucket(NamedTuple):
    """A run of the order of lengths that is cut into batches of one size.

    Attributes:
        start: position of its first sample.
        stop: position after its last sample.
        batch_size: samples in a batch; only the last batch of all may have fewer.
        first_batch: number of its first batch.
    """

    start: int
    stop: int
    batch_size: int
    first_batch: int


class _Layout(NamedTuple):
    """What all epochs share.

    Attributes:
        order: the samples from the longest to the shortest.
        buckets: what it is cut into.
        num_batches: number of batches of all buckets.
    """

    order: _Indices
    buckets: list[_Bucket]
    num_batches: int

    def find(self, batch: int) -> tuple[int, _Bucket]:
        """Return the bucket that has a batch, and its number."""
        which = bisect_right(self.buckets, batch, key=_first_batch) - 1
        return which, self.buckets[which]


_first_batch = attrgetter("first_batch")


def _make_layout(
    lengths: _Indices, sizes: _BatchSizes, width: float, drop_last: bool
) -> _Layout:
    order = np.argsort(-lengths, kind="stable").astype(np.int64, copy=False)
    ascending = lengths[order[::-1]]
    start = num_batches = 0
    buckets = []
    while start < len(order):
        stop, size = _bucket_end(ascending, start, sizes, width)
        buckets.append(_Bucket(start, stop, size, num_batches))
        short = 0 if drop_last else -(stop - start) % size
        num_batches += (stop - start + short) // size
        start = stop
    return _Layout(order, buckets, num_batches)


def _bucket_end(
    ascending: _Indices, start: int, sizes: _BatchSizes, width: float
) -> tuple[int, int]:
    """Return where the bucket ends that begins at a position, and its batch size.

    A rest that is too small for a batch goes along with it. Alone it would be a batch
    of the same samples in each epoch, or never be seen with ``drop_last``.
    """
    n = len(ascending)
    longest = int(ascending[n - 1 - start])
    size = sizes.of(longest)
    least = math.ceil(longest * (1 - width))
    similar = n - start - int(np.searchsorted(ascending, least))
    stop = start + max(similar // size, 1) * size
    return (n if n - stop < size else stop), size


class _Share(NamedTuple):
    """The part of the batches that one process gets: one in each step."""

    num_steps: int
    num_replicas: int
    rank: int


class _Batches:
    """The batches that one process gets in an epoch, as a function of the step.

    Args:
        layout: the buckets.
        share: which of the batches.
        epoch: mixed into the keys; None leaves samples and batches in order.
    """

    def __init__(self, layout: _Layout, share: _Share, epoch: int | None) -> None:
        self._layout = layout
        self._share = share
        self._epoch = epoch
        # Small buckets are shuffled whole, whatever is wanted of them.
        self._small: dict[int, _Indices] = {}

    def slice(self, seed: int, start: int, stop: int) -> list[list[int]]:
        """Return the batches of steps from ``start``, at most up to ``stop``."""
        stop = min(stop, start + _MADE_AT_ONCE)
        return [
            self._batch(number, seed) for number in self._numbers(start, stop, seed)
        ]

    def _numbers(self, start: int, stop: int, seed: int) -> list[int]:
        """Return the numbers of the batches of some steps."""
        num_steps, replicas, rank = self._share
        num_batches = self._layout.num_batches
        if self._epoch is None:
            steps, rotation = np.arange(start, stop), 0
        else:
            key = derive_key(seed, self._epoch, 0)
            steps = permute_range(start, stop, num_steps, key)
            # What comes twice or not at all is something else in each epoch.
            rotation = int(random_below(0, 1, num_batches, key)[0])
        numbers: list[int] = (
            (steps * replicas + rank + rotation) % num_batches
        ).tolist()
        return numbers

    def _batch(self, number: int, seed: int) -> list[int]:
        which, bucket = self._layout.find(number)
        first = (number - bucket.first_batch) * bucket.batch_size
        last = min(first + bucket.batch_size, bucket.stop - bucket.start)
        places = self._places(which, bucket, first, last, seed) + bucket.start
        indices: list[int] = self._layout.order[places].tolist()
        return indices

    def _places(
        self, which: int, bucket: _Bucket, first: int, last: int, seed: int
    ) -> _Indices:
        """Return a slice of the order of a bucket's samples."""
        if self._epoch is None:
            return np.arange(first, last)
        count = bucket.stop - bucket.start
        key = derive_key(seed, self._epoch, which + 1)
        if count > SORTED_LIMIT:
            return permute_range(first, last, count, key)
        if which not in self._small:
            self._small[which] = permute_range(0, count, count, key)
        return self._small[which][first:last]

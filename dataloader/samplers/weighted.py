"""The sampler of weighted draws, by torch or by NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader._fast import derive_key, uniforms
from dataloader._torch import loaded_torch
from dataloader.samplers.base import Sampler
from dataloader.samplers.iterators import IndexIterator, OrderIterator
from dataloader.samplers.orders import (
    checked_seed,
    global_torch,
    seed_draw,
    tensor_slice,
)

__all__ = ["WeightedRandomSampler"]

# More weights torch.multinomial refuses.
_MOST_OF_TORCH = 1 << 24

# The race is run by so many at a time: what they need stays in a processor's cache, and
# blocks are small enough for malloc to keep.
_RUN_AT_ONCE = 1 << 12

_Words = NDArray[np.int64]


class WeightedRandomSampler(Sampler[int], torch_name="WeightedRandomSampler"):
    """Yields indices of ``weights``, each as likely as its weight says.

    With a ``torch.Generator``, or without any while torch is loaded, the draws are
    those of ``torch.multinomial``, its silence about too few positive weights included.
    Otherwise (``seed`` given, a ``numpy.random.Generator``, torch not loaded, or more
    than the 2**24 weights that ``torch.multinomial`` takes) they are made here, for any
    number of weights, and an index without weight never comes.

    A draw that is made here costs a binary search, and a weight 8 bytes on top of its
    own 8 while the iterator lives. Without replacement it is 16 bytes for each weight
    while the first index is made, and then 8 for each sample.

    Args:
        weights: numbers that need not add up to one, in one dimension. Kept as a
            float64 tensor while torch is loaded, else as a float64 array.
        num_samples: length of an epoch.
        replacement: whether an index can come again.
        generator: a ``torch.Generator`` gives PyTorch's exact order, a
            ``numpy.random.Generator`` is asked for a seed at each epoch's first index.
            None means torch's global generator while torch is loaded, else a seed from
            the operating system.
        seed: makes the order a function of (seed, epoch); excludes ``generator``.

    Attributes:
        epoch: see `set_epoch`; counts only with ``seed``.

    Raises:
        ValueError: ``num_samples`` is not a positive int, ``replacement`` not a bool,
            or ``weights`` has not one dimension; ``seed`` and ``generator`` are both
            given.
        TypeError: ``seed`` is not an int; at ``iter()`` or at the first index:
            ``generator`` is not a generator.
        OverflowError: ``seed`` does not fit into 64 bits.
        RuntimeError: at the first index: a weight is negative or not finite, all are
            zero, or without replacement fewer than ``num_samples`` are positive.

    Example:
        >>> list(WeightedRandomSampler([0.0, 1.0, 0.0], num_samples=3, seed=0))
        [1, 1, 1]
    """

    def __init__(
        self,
        weights: Sequence[float] | NDArray[Any],
        num_samples: int,
        replacement: bool = True,
        generator: Any | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        if type(num_samples) is bool or not isinstance(num_samples, int):
            raise ValueError(f"num_samples must be a positive int, got {num_samples!r}")
        if num_samples <= 0:
            raise ValueError(f"num_samples must be positive, got {num_samples}")
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement must be a bool, got {replacement!r}")
        self.weights: Any = _vector(weights)
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator
        self.seed: int | None = checked_seed(seed, generator)

    def __iter__(self) -> IndexIterator[int]:
        total = self.num_samples
        torch = global_torch(self.seed, self.generator)
        if torch is not None and len(self.weights) <= _MOST_OF_TORCH:
            draw = partial(
                torch.multinomial,
                torch.as_tensor(self.weights, dtype=torch.double),
                total,
                self.replacement,
                generator=self.generator,
            )
            return OrderIterator(total, draw, tensor_slice, total)
        epoch = 0 if self.seed is None else index(self.epoch)
        kind = _Draws if self.replacement else _Ranking
        order = kind(_as_array(self.weights), total, epoch)
        draw_seed = seed_draw(self.seed, self.generator)
        return OrderIterator(total, draw_seed, order.slice, total)

    def __len__(self) -> int:
        return self.num_samples


def _vector(weights: Any) -> Any:
    """Return ``weights`` in float64: a tensor while torch is loaded, else an array."""
    torch = loaded_torch()
    if torch is None:
        vector: Any = np.asarray(weights, dtype=np.float64)
    else:
        vector = torch.as_tensor(weights, dtype=torch.double)
    if len(vector.shape) != 1:
        shape = tuple(vector.shape)
        raise ValueError(f"weights must have one dimension, got shape {shape}")
    return vector


def _as_array(weights: Any) -> NDArray[np.float64]:
    """Return a tensor (of any device) or array of weights as an array."""
    if hasattr(weights, "detach"):
        weights = weights.detach().cpu()
    return np.asarray(weights, dtype=np.float64)


def _largest(weights: NDArray[np.float64]) -> float:
    """Return the largest weight.

    Raises:
        RuntimeError: a weight is negative or not finite, or all are zero.
    """
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if wrong.size:
        raise RuntimeError(
            "weights must be finite and not negative, "
            f"got {weights[wrong[0]]} at index {wrong[0]}"
        )
    largest = float(weights.max(initial=0.0))
    if largest == 0:
        raise RuntimeError(f"weights must not all be zero, got {weights.size} zeros")
    return largest


class _Draws:
    """Draws with replacement: a uniform number is looked up in the running sum."""

    def __init__(self, weights: NDArray[np.float64], total: int, epoch: int) -> None:
        self._weights = weights
        self._epoch = epoch
        self._sums: NDArray[np.float64] | None = None

    def slice(self, seed: int, start: int, stop: int) -> list[int]:
        if self._sums is None:
            # Over the largest of them, since the sum might overflow.
            shares = self._weights / _largest(self._weights)
            self._sums = np.cumsum(shares, out=shares)
        sums = self._sums
        key = derive_key(seed, self._epoch, 0)
        places = uniforms(start, stop - start, key) * sums[-1]
        # On the right of equal sums, so that no weight of zero is ever hit. Rounding up
        # to the whole sum would pass the last weight: it belongs to the first place
        # where the sum is complete, which has a weight.
        drawn = np.searchsorted(sums, places, side="right")
        last = np.searchsorted(sums, sums[-1], side="left")
        indices: list[int] = np.minimum(drawn, last).tolist()
        return indices


class _Ranking:
    """Draws without replacement, as the order of a race.

    The runner with weight w arrives after Exp(1) / w; the first k to arrive are k draws
    in turn (Efraimidis and Spirakis 2006, doi:10.1016/j.ipl.2005.11.003).
    """

    def __init__(self, weights: NDArray[np.float64], total: int, epoch: int) -> None:
        self._weights = weights
        self._total = total
        self._epoch = epoch
        self._order: _Words | None = None

    def slice(self, seed: int, start: int, stop: int) -> list[int]:
        if self._order is None:
            self._check()
            arrivals = _arrivals(self._weights, derive_key(seed, self._epoch, 0))
            self._order = _first(arrivals, self._total)
        indices: list[int] = self._order[start:stop].tolist()
        return indices

    def _check(self) -> None:
        _largest(self._weights)  # checks them
        runners = int(np.count_nonzero(self._weights))
        if runners < self._total:
            raise RuntimeError(
                f"num_samples={self._total} cannot be drawn without replacement from "
                f"weights of which {runners} are positive: lower num_samples or "
                "set replacement=True"
            )


def _arrivals(weights: NDArray[np.float64], key: int) -> _Words:
    """Return numbers in the order of Exp(1) / w, the largest of all for w = 0."""
    arrivals = np.empty(weights.size, np.int64)
    for start in range(0, weights.size, _RUN_AT_ONCE):
        part = weights[start : start + _RUN_AT_ONCE]
        waits = -_log(1.0 - uniforms(start, part.size, key))
        # For a uniform number of 0, which stands for all below the next.
        np.maximum(waits, 2.0**-54, out=waits)
        arrivals[start : start + part.size] = _ratios(waits, part)
    return arrivals


def _ratios(numerators: NDArray[np.float64], weights: NDArray[np.float64]) -> _Words:
    """Return whole numbers in the order of the ratios, which as floats may overflow.

    They are the bits of the ratio, which as whole numbers are in the order of positive
    floats, with an exponent that knows no bounds.
    """
    upper, upper_exponents = np.frexp(numerators)
    lower, lower_exponents = np.frexp(weights)
    has_weight = lower > 0
    lower += ~has_weight  # no division by zero
    exponents = (upper_exponents - lower_exponents).astype(np.int64)
    # Without the exponent of 1.0, so that the sum fits into 64 bits.
    bits = (upper / lower).view(np.int64) - _BITS_OF_ONE + (exponents << 52)
    return np.where(has_weight, bits, np.iinfo(np.int64).max)


_BITS_OF_ONE = np.float64(1.0).view(np.int64)


def _log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the natural logarithms of positive numbers, the same on every machine.

    Libraries' logarithms differ in the last bit, and with it the order of samples. This
    one only takes steps that IEEE 754 settles to the last bit: with
    ``values = m * 2**e`` and ``s = (m - 1) / (m + 1)`` it is
    ``e * log(2) + 2 * (s + s**3 / 3 + s**5 / 5 + ...)``.
    """
    mantissas, exponents = np.frexp(values)
    # Into [sqrt(1/2), sqrt(2)), where the series is short and 1 has exponent 0.
    is_low = mantissas < _SQRT_HALF
    mantissas += mantissas * is_low
    exponents -= is_low
    s = (mantissas - 1.0) / (mantissas + 1.0)
    square = s * s
    series = np.full_like(s, _SERIES[-1])
    for coefficient in _SERIES[-2::-1]:
        series *= square
        series += coefficient
    series *= s
    series += exponents * _LOG_2
    return series


_SQRT_HALF = 0.7071067811865476
_LOG_2 = 0.6931471805599453
# 2 / (2 * k + 1); the next term is below half of the last bit.
_SERIES = [2.0 / odd for odd in range(1, 23, 2)]


def _first(arrivals: _Words, count: int) -> _Words:
    """Return the indices of the ``count`` smallest, in their order, ties by index."""
    last = np.partition(arrivals, count - 1)[count - 1]
    runners = np.flatnonzero(arrivals <= last)
    order = np.argsort(arrivals[runners], kind="stable")[:count]
    return runners[order].astype(np.int64)

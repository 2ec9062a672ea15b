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


class WeightedRandomSampler(Sampler[int], torch_name="WeightedRandomSampler"):
    """Yields indices of ``weights``, each as likely as its weight says.

    With a ``torch.Generator``, or without any while torch is loaded, the draws are
    those of ``torch.multinomial``, its limit of 2**24 weights and its silence about too
    few positive weights included. Otherwise (``seed`` given, a
    ``numpy.random.Generator``, or torch not loaded) they are made here, for any number
    of weights.

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
        if torch is not None:
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
            self._sums = np.cumsum(self._weights / _largest(self._weights))
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
        self._order: NDArray[np.int64] | None = None

    def slice(self, seed: int, start: int, stop: int) -> list[int]:
        if self._order is None:
            self._order = self._race(derive_key(seed, self._epoch, 0))
        indices: list[int] = self._order[start:stop].tolist()
        return indices

    def _race(self, key: int) -> NDArray[np.int64]:
        weights = self._weights
        _largest(weights)  # checks them
        runners = np.flatnonzero(weights)
        if runners.size < self._total:
            raise RuntimeError(
                f"num_samples={self._total} cannot be drawn without replacement from "
                f"weights of which {runners.size} are positive: lower num_samples or "
                "set replacement=True"
            )
        # In logarithms, since Exp(1) / w overflows for tiny weights.
        with np.errstate(divide="ignore"):
            waits = np.log(-np.log1p(-uniforms(0, weights.size, key)))
        arrivals = waits[runners] - np.log(weights[runners])
        first = np.argsort(arrivals, kind="stable")[: self._total]
        return runners[first].astype(np.int64)

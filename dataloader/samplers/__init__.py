"""Samplers: which samples an epoch holds and in which order.

They take PyTorch's arguments and keep its semantics, without torch too, and their
iterators are lazy: nothing is drawn before the first index, and an order over 10**9
samples needs no more memory than one over 1,000.
"""

from __future__ import annotations

from dataloader.samplers.base import BatchSampler, Sampler, SequentialSampler
from dataloader.samplers.bucket import BucketBatchSampler
from dataloader.samplers.distributed import DistributedSampler
from dataloader.samplers.iterators import IndexIterator
from dataloader.samplers.random import RandomSampler, SubsetRandomSampler
from dataloader.samplers.weighted import WeightedRandomSampler

__all__ = [
    "BatchSampler",
    "BucketBatchSampler",
    "DistributedSampler",
    "IndexIterator",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]

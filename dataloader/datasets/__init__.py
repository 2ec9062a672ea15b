"""Datasets, and the small ones that wrap, cut, join or stack others.

PyTorch's classes with PyTorch's semantics, usable without torch. They mix with torch's:
torch's combinators take ours and ours take torch's. The loader asks for no base class:
a map-style dataset is whatever has ``[]`` and a length. Only what is to be iterated
says so, by deriving from `IterableDataset` or from torch's.

A combinator hands ``set_epoch(epoch)`` on to the datasets in it that have it.
"""

from __future__ import annotations

from dataloader.datasets.base import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    is_iterable_dataset,
)
from dataloader.datasets.split import random_split
from dataloader.datasets.wrappers import StackDataset, Subset, TensorDataset

__all__ = [
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "StackDataset",
    "Subset",
    "TensorDataset",
    "is_iterable_dataset",
    "random_split",
]

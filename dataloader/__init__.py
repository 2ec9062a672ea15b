"""A data loader with PyTorch's interface and threads for workers.

    from dataloader import DataLoader

The life of a batch, one module a step:

    samplers     the order of an epoch, as index batches (in the thread that iterates)
    fetch        in a worker: the samples of a batch, by index or from an iterator
    collate      in a worker: many samples become one batch
    device       in a worker: the batch is copied into pinned memory
    workers      who does that, and how batches come back in order
    loader       `DataLoader`: checks the arguments and joins the steps

Around it: `datasets`, `worker_info` (`get_worker_info`, `rng`), `sharing` (`share`),
`stats`, `errors`, and `compat`, which has dataloader-rs's names. `build_info()` says
whether compiled kernels run.
"""

from __future__ import annotations

from dataloader._build import BuildInfo, build_info
from dataloader._token_collate import token_collate
from dataloader.collate import (
    collate,
    default_collate,
    default_collate_fn_map,
    default_convert,
    numpy_collate,
    torch_collate,
)
from dataloader.datasets import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from dataloader.loader import DataLoader
from dataloader.samplers import (
    BatchSampler,
    BucketBatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from dataloader.sharing import share
from dataloader.stats import LoaderStats
from dataloader.worker_info import WorkerInfo, get_worker_info, rng

__version__ = "0.1.0"

__all__ = [
    "BatchSampler",
    "BucketBatchSampler",
    "BuildInfo",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "LoaderStats",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "build_info",
    "collate",
    "default_collate",
    "default_collate_fn_map",
    "default_convert",
    "get_worker_info",
    "numpy_collate",
    "random_split",
    "rng",
    "share",
    "token_collate",
    "torch_collate",
]

"""The loaders that are compared, made with the same few arguments.

Each is imported by the process that makes it: what a library does to a process (threads
of OpenMP, allocator settings) must not be measured in another one's figures.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

__all__ = ["LOADERS", "dataset_class", "is_installed", "make_loader"]

_NEEDS = {"ours": "dataloader", "rs": "dataloader_rs", "torch": "torch"}

LOADERS = tuple(_NEEDS)


def is_installed(name: str) -> bool:
    """Whether the package of a loader is there."""
    return find_spec(_NEEDS[name]) is not None


def dataset_class(name: str, kind: type) -> type:
    """Return ``kind`` as the loader wants it: dataloader-rs asks for a base class."""
    if name != "rs":
        return kind
    from dataloader_rs import PyDataset

    return type(kind.__name__, (kind, PyDataset), {})


def make_loader(
    name: str,
    dataset: Any,
    batch_size: int,
    collate_fn: Callable[[list[Any]], Any] | None,
    workers: int,
    items: int = 1,
) -> Any:
    """Make a loader.

    Args:
        name: one of `LOADERS`.
        dataset: of a class that `dataset_class` returned.
        batch_size: samples a batch.
        collate_fn: None for the loader's own.
        workers: number of workers; torch's are persistent.
        items: samples of one batch at once; torch has more workers instead.
    """
    if name == "torch":
        from torch.utils.data import DataLoader as TorchLoader

        return TorchLoader(
            dataset,
            batch_size,
            num_workers=workers * items,
            collate_fn=collate_fn,
            persistent_workers=workers > 0,
        )
    if name == "rs":
        from dataloader_rs import PyDataloader as Loader
    else:
        from dataloader import DataLoader as Loader
    return Loader(
        dataset,
        batch_size,
        num_workers=workers,
        collate_fn=collate_fn,
        items_in_parallel=items,
    )

"""PyTorch's loader and ours side by side: what all tests of parity share."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dataloader
from dataloader import DataLoader

torch = pytest.importorskip("torch")
torch_data = pytest.importorskip("torch.utils.data")

LIBRARIES = {"torch": torch_data, "ours": dataloader}
DATA = list(range(10))


def theirs(*args: Any, **options: Any) -> Any:
    """Return PyTorch's loader, without its warning of fewer cores than workers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch_data.DataLoader(*args, **options)


MAKERS: dict[str, Callable[..., Any]] = {"torch": theirs, "ours": DataLoader}


def plain(value: Any) -> Any:
    """Return a batch in a form that ``==`` compares, types and dtypes included."""
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return (type(value).__name__, {k: plain(v) for k, v in value.items()})
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [plain(v) for v in value])
    return value


class Squares:
    """A map-style dataset without a base class."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index * index


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


class Stream(torch_data.IterableDataset):  # type: ignore[misc, name-defined]
    """Yields ``count`` samples and says that they are ``length``."""

    def __init__(self, count: int = 10, length: int | None = None) -> None:
        self.count = count
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("no length")
        return self.length


def length_of(loader: Any) -> int | str:
    """Return the length of a loader or iterator, or that it has none."""
    try:
        return len(loader)
    except TypeError:
        return "TypeError"


def epochs(loader: Any, count: int = 3) -> list[Any]:
    """Return the batches of several epochs, in a form that ``==`` compares."""
    return [[plain(batch) for batch in loader] for _ in range(count)]


def output_of(script: str) -> str:
    """Return what a script of this folder prints in an interpreter of its own.

    There PyTorch's loader forks its worker processes, which is not safe in an
    interpreter that has had other threads.
    """
    paths = [*map(str, Path(__file__).parents[1:3]), os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-W", "ignore", script]
    return subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        timeout=100,
        text=True,
    ).stdout

"""The two forms of collation, for tests of what both must do."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import pytest

import dataloader

TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not TORCH, reason="torch is not installed")
both_forms = pytest.mark.parametrize(
    "collate_as",
    [
        pytest.param(dataloader.numpy_collate, id="numpy"),
        pytest.param(dataloader.torch_collate, id="torch", marks=needs_torch),
    ],
)


class Point(NamedTuple):
    x: Any
    y: Any


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value


def collate_boxes(batch: Any, *, collate_fn_map: Any = None) -> Any:
    values = [box.value for box in batch]
    return Box(dataloader.collate(values, collate_fn_map=collate_fn_map))

"""The twins of each kernel, for tests that compare or try them all."""

from __future__ import annotations

import importlib
from types import ModuleType

from dataloader import _fast

SUFFIXES = {"python": "py", "cython": "c"}


def twin(kernel: str, implementation: str) -> ModuleType:
    """Return one implementation of a kernel."""
    return importlib.import_module(
        f"dataloader._fast._{kernel}_{SUFFIXES[implementation]}"
    )


def twins(kernel: str) -> list[ModuleType]:
    """Return the implementations of a kernel that there are, the Python one first."""
    compiled = ["cython"] if _fast.IMPLEMENTATION == "cython" else []
    return [twin(kernel, name) for name in ["python", *compiled]]

"""Asking whether torch is installed, without importing it."""

from __future__ import annotations

import functools

__all__ = ["torch_installed"]


@functools.cache
def torch_installed() -> bool:
    """Return whether ``import torch`` would find PyTorch; looked up once.

    Callers reach this function through its module, so that one replacement of the
    attribute makes the whole package believe that torch is absent.
    """
    # Imported here: nothing else at start-up needs it.
    from importlib.util import find_spec

    try:
        spec = find_spec("torch")
    except ValueError:  # a stand-in in sys.modules that has no spec
        return True
    # A mere folder called torch on the path is a namespace package without an origin.
    return spec is not None and spec.origin is not None

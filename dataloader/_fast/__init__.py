"""Inner loops that have a compiled twin; this module alone chooses which one runs.

The pure-Python twin is the specification: it is complete, and the compiled one returns
the same results bit for bit.
"""

from __future__ import annotations

from dataloader._fast._permutation_py import (
    SORTED_LIMIT,
    derive_key,
    permute,
    permute_array,
    permute_range,
    random_below,
    uniforms,
)

__all__ = [
    "IMPLEMENTATION",
    "REASON",
    "SORTED_LIMIT",
    "derive_key",
    "permute",
    "permute_array",
    "permute_range",
    "random_below",
    "uniforms",
]

IMPLEMENTATION = "python"
"""Which twin runs: ``"python"`` or ``"cython"``."""

REASON = "this version has no compiled kernels"
"""Why that one runs, in one line."""

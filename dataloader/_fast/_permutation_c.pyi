"""Types of the compiled twin: those of the Python one."""

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
    "SORTED_LIMIT",
    "derive_key",
    "permute",
    "permute_array",
    "permute_range",
    "random_below",
    "uniforms",
]

IS_CHECKED: bool

"""Types of the compiled twin: those of the Python one."""

from dataloader._fast._collate_py import (
    number_vector,
    scalar_vector,
    stack_arrays,
    take_values,
)

__all__ = ["number_vector", "scalar_vector", "stack_arrays", "take_values"]

IS_CHECKED: bool

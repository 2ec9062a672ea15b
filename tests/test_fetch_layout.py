"""The loop over a dataset is laid out so that its reference count is not written.

The interpreter can lend a reference to an instruction instead of counting it, but not
where the compiler has fused the load with the store of the loop variable, which it does
when both stand on one line of the source. On free-threaded builds that is one write of
a count that all workers share for each sample. A formatter must not join the lines.
"""

from __future__ import annotations

import dis
import inspect
import re
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

import pytest

from dataloader import fetch

pytestmark = pytest.mark.skipif(
    sys.implementation.name != "cpython" or sys.version_info < (3, 13),
    reason="CPython fuses instructions from 3.13 on",
)

# What pushes the dataset without counting a reference to it, from 3.14 on.
BORROWING = {"LOAD_FAST_BORROW", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"}


def instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """Yield the instructions of a function and of the functions defined in it."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from instructions(constant)


def loads_of_dataset(function: Any) -> list[str]:
    """Return the names of all instructions that have to do with the dataset."""
    return [
        step.opname
        for step in instructions(function.__code__)
        if step.argval == "dataset"
        or (isinstance(step.argval, tuple) and "dataset" in step.argval)
    ]


def counted(loads: list[str]) -> list[str]:
    """Return the loads that write the reference count."""
    if sys.version_info < (3, 14):
        return [name for name in loads if name == "STORE_FAST_LOAD_FAST"]
    return [name for name in loads if name not in BORROWING]


def test_the_loop_does_not_count_references_to_the_dataset() -> None:
    loads = loads_of_dataset(fetch.fetch_items)
    assert loads
    assert counted(loads) == []


def test_joining_the_lines_of_the_loop_would_be_noticed() -> None:
    source = inspect.getsource(fetch.fetch_items)
    joined, times = re.subn(
        r"\[\s+(dataset\[index\])\s+(for .+)\s+\]", r"[\1 \2]", source
    )
    assert times == 1
    namespace = dict(vars(fetch))
    exec(compile(joined, "joined", "exec"), namespace)
    assert counted(loads_of_dataset(namespace["fetch_items"])) != []

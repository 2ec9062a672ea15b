"""What this installation of the package is: `build_info`."""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass

from dataloader._fast import IMPLEMENTATION, IS_CHECKED, KERNELS, REASON

__all__ = ["BuildInfo", "build_info"]


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """What `build_info` tells.

    Attributes:
        implementation: ``"cython"`` if compiled kernels run, ``"python"`` if their
            twins in Python do. Results are the same.
        reason: why, in one line.
        kernels: names of the kernels.
        is_checked: the compiled kernels check their indices, which is slower.
        python: version of the interpreter.
        is_free_threaded: the interpreter was built to run without the GIL.
        is_gil_enabled: the GIL is on at this moment.
    """

    implementation: str
    reason: str
    kernels: tuple[str, ...]
    is_checked: bool
    python: str
    is_free_threaded: bool
    is_gil_enabled: bool


def build_info() -> BuildInfo:
    """Tell whether compiled kernels run, why, and on what interpreter.

    Example:
        >>> build_info().implementation in ("cython", "python")
        True
    """
    return BuildInfo(
        implementation=IMPLEMENTATION,
        reason=REASON,
        kernels=KERNELS,
        is_checked=IS_CHECKED,
        python=".".join(map(str, sys.version_info[:3])),
        is_free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        is_gil_enabled=getattr(sys, "_is_gil_enabled", lambda: True)(),
    )

"""Inner loops that have a compiled twin; this module alone chooses which one runs.

A kernel ``NAME`` is two modules with the same functions: ``_NAME_py.py``, which is
complete and the specification, and ``_NAME_c.pyx``, which returns the same results bit
for bit. All kernels run compiled, or none does.

Three environment variables have a say, when the package is built (see setup.py) and
here; unset, empty and "0" mean off:

* ``DATALOADER_NO_EXT``: the Python twins run.
* ``DATALOADER_REQUIRE_EXT``: it is an error if the compiled ones do not.
* ``DATALOADER_DEBUG_EXT``: it is an error unless they check their indices as well.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

__all__ = [
    "IMPLEMENTATION",
    "IS_CHECKED",
    "KERNELS",
    "REASON",
    "SORTED_LIMIT",
    "Presence",
    "ShortWay",
    "Slot",
    "derive_key",
    "local",
    "number_vector",
    "permute",
    "permute_array",
    "permute_range",
    "random_below",
    "scalar_vector",
    "stack_arrays",
    "take_values",
    "uniforms",
]

KERNELS = ("collate", "permutation", "short_way")
"""The kernels; setup.py builds the same."""


def _is_on(switch: str) -> bool:
    return os.environ.get(f"DATALOADER_{switch}", "") not in ("", "0")


def _import_compiled() -> bool:
    """Import all compiled kernels and tell whether all of them check their indices.

    Raises:
        ImportError: one is missing, is broken, or lacks the checks that were asked for.
    """
    modules = [importlib.import_module(f"{__name__}._{name}_c") for name in KERNELS]
    is_checked = all(module.IS_CHECKED for module in modules)
    if _is_on("DEBUG_EXT") and not is_checked:
        raise ImportError("they were compiled without checks of indices")
    return is_checked


def _choose() -> tuple[str, str, bool]:
    """Return which twins run, why in one line, and whether they check their indices.

    Raises:
        ImportError: the compiled ones are required and cannot run.
    """
    is_required = _is_on("REQUIRE_EXT") or _is_on("DEBUG_EXT")
    if _is_on("NO_EXT"):
        if is_required:
            raise ImportError(
                "DATALOADER_NO_EXT excludes DATALOADER_REQUIRE_EXT and "
                "DATALOADER_DEBUG_EXT: unset one"
            )
        return "python", "DATALOADER_NO_EXT is set", False
    try:
        is_checked = _import_compiled()
    except ImportError as error:
        reason = _why_not(error)
        if is_required:
            raise ImportError(
                f"{reason}, but DATALOADER_REQUIRE_EXT or DATALOADER_DEBUG_EXT asks "
                "for them: install the package with this set and a C compiler, or "
                "unset it"
            ) from error
        return "python", reason, False
    return "cython", "compiled kernels are installed", is_checked


def _why_not(error: ImportError) -> str:
    # Another module that is missing means a broken kernel, as other errors do.
    if isinstance(error, ModuleNotFoundError) and str(error.name).startswith(__name__):
        return "the package was installed without compiled kernels"
    return f"compiled kernels cannot be used ({error})"


IMPLEMENTATION, REASON, IS_CHECKED = _choose()

# To type checkers the twins are one, and this way nobody can use what only one has.
if TYPE_CHECKING or IMPLEMENTATION == "python":
    from dataloader._fast._collate_py import (
        number_vector,
        scalar_vector,
        stack_arrays,
        take_values,
    )
    from dataloader._fast._permutation_py import (
        SORTED_LIMIT,
        derive_key,
        permute,
        permute_array,
        permute_range,
        random_below,
        uniforms,
    )
    from dataloader._fast._short_way_py import Presence, ShortWay, Slot, local
else:
    from dataloader._fast._collate_c import (
        number_vector,
        scalar_vector,
        stack_arrays,
        take_values,
    )
    from dataloader._fast._permutation_c import (
        SORTED_LIMIT,
        derive_key,
        permute,
        permute_array,
        permute_range,
        random_below,
        uniforms,
    )
    from dataloader._fast._short_way_c import Presence, ShortWay, Slot, local

"""Declares the optional compiled extensions; pyproject.toml holds everything else."""

from __future__ import annotations

import os

from setuptools import Extension, setup

# `NAME` stands for dataloader/_fast/_NAME_c.pyx, beside its twin _NAME_py.py.
KERNELS = ("collate", "permutation", "short_way")


def flag(name: str) -> bool:
    """Tell whether an environment switch is on; unset, empty and "0" mean off."""
    return os.environ.get(f"DATALOADER_{name}", "") not in ("", "0")


def extensions() -> list[Extension]:
    """One extension for each kernel, none when the user asked for pure Python."""
    without, required, checked = map(flag, ("NO_EXT", "REQUIRE_EXT", "DEBUG_EXT"))
    if without and (required or checked):
        raise SystemExit(
            "DATALOADER_NO_EXT excludes DATALOADER_REQUIRE_EXT and "
            "DATALOADER_DEBUG_EXT: unset one"
        )
    if without:
        return []
    return [_extension(name, required, checked) for name in KERNELS]


def _extension(name: str, required: bool, checked: bool) -> Extension:
    # `optional` turns a missing compiler into a warning; errors in the .pyx still fail.
    extension = Extension(
        f"dataloader._fast._{name}_c",
        [f"dataloader/_fast/_{name}_c.pyx"],
        define_macros=[("DATALOADER_IS_CHECKED", str(int(checked)))],
        optional=not required,
    )
    # setuptools hands these to Cython, so that no file repeats them.
    extension.cython_directives = {
        "language_level": 3,
        "freethreading_compatible": True,
        # Where it is wanted it is written: what Cython makes forgets subclasses' slots.
        "auto_pickle": False,
        "boundscheck": checked,
        "wraparound": False,
        "initializedcheck": checked,
        "cdivision": not checked,
    }
    return extension


setup(
    ext_modules=extensions(),
    # What was built with other switches looks up to date by its age.
    options={"build_ext": {"force": True}},
)

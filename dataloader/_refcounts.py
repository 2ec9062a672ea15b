"""Reference counts that threads need not fight over: what the interpreter offers.

On free-threaded CPython only the thread that made an object counts references to it
cheaply; all others write its shared count by atomic operations, and threads that use
one object at a time contend for that write. Two marks on an object end it:

    deferred   the interpreter's own loads are not counted; the object is freed by the
               garbage collector alone. Objects that the collector tracks, from 3.14 on.
    immortal   nothing is counted; the object is never freed. In 3.14 an internal
               function sets the mark, in 3.15 a public one that refuses what it cannot
               prove to be safe.

The functions of the C API are looked up by name when they are first asked for. One that
an interpreter lacks is None.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["are_contended", "find_defer", "find_immortalise"]

Mark = Callable[[Any], Any]
"""Sets a mark on an object, if it can be set; setting it again does nothing."""


def are_contended() -> bool:
    """Whether threads run at once here, so that they may contend for a count."""
    return not getattr(sys, "_is_gil_enabled", lambda: True)()


def find_defer() -> Mark | None:
    """Return what defers the count of an object that the collector tracks."""
    return _c_function("PyUnstable_Object_EnableDeferredRefcount")


def find_immortalise() -> Mark | None:
    """Return what makes an object immortal.

    In 3.14 no other thread may use the object meanwhile; later versions look after that
    themselves.
    """
    if sys.version_info < (3, 15):
        return _c_function("_Py_SetImmortal")
    return _c_function("PyUnstable_SetImmortal")


@functools.cache
def _c_function(name: str) -> Mark | None:
    """Return a function of CPython's C API that takes one object."""
    try:
        import ctypes  # some builds of Python come without it

        # A prototype of our own: attributes of `pythonapi` belong to the whole program.
        # The result is that of the second; of the first it is of no meaning, or unused.
        prototype = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object)
        return prototype((name, ctypes.pythonapi))
    except (ImportError, AttributeError):
        return None

"""Memory that glibc keeps instead of giving it back after every batch.

A batch of a few megabytes, and each temporary array that a dataset makes, is allocated
and freed again and again. By default glibc returns such blocks to the system at once,
and the next batch faults every page in anew, under a lock of the process. glibc raises
its thresholds by itself when it sees a large block freed, so one block that is
allocated and freed, untouched, when the first workers start does what users are else
told to do by environment variables. The cost is free memory that stays with the process
for later batches: up to a half of what was in use at the same time.

Left alone where the user has set glibc's parameters, and where ``DATALOADER_MALLOC=0``.

Guards: `_done` is a dictionary whose ``setdefault`` is atomic; that two threads
allocated the block would do no harm.
"""

from __future__ import annotations

import os

import numpy as np

__all__ = ["keep_freed_memory"]

# Just under 32 MiB, the most to which glibc raises its mmap threshold by itself; the
# trim threshold becomes twice that.
_BLOCK_BYTES = (32 << 20) - (64 << 10)

_done: dict[int, bool] = {}


def keep_freed_memory() -> bool:
    """Raise glibc's thresholds once; return whether they were raised here."""
    pid = os.getpid()
    if pid not in _done:
        wanted = _is_glibc() and not _is_set_by_user()
        if _done.setdefault(pid, wanted) and wanted:
            np.empty(_BLOCK_BYTES, np.uint8)
    return _done[pid]


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, OSError, ValueError):  # no such function, or no such name
        return False


def _is_set_by_user() -> bool:
    if os.environ.get("DATALOADER_MALLOC", "1") == "0":
        return True
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return True
    return any(name.startswith("MALLOC_") for name in os.environ)

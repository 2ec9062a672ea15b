"""What is said of a worker that keeps the consumer waiting: who, which samples, where.

Reads the frames of other threads for a message only; the interpreter stops the threads
while it collects them.
"""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING

from dataloader.errors import describe_indices

if TYPE_CHECKING:
    from dataloader.workers.reorder import Ticket

__all__ = ["report"]

_FRAMES = 4


def report(ticket: Ticket) -> str:
    """Return what is known of a ticket whose result does not come.

    Args:
        ticket: the ticket that the consumer waits for.
    """
    samples = f"indices {describe_indices(ticket.indices)}"
    worker = ticket.worker
    if worker is None:
        return (
            f"No worker has taken it yet ({samples}): all are busy with other batches. "
            "Raise timeout or num_workers."
        )
    return (
        f"It was being loaded by {worker.name} ({samples}), whose code stood at\n"
        f"{_stack(worker.ident)}\n"
        "Nothing is lost: next() waits for the same batch again. Raise timeout if "
        "samples may take that long."
    )


def _stack(ident: int | None) -> str:
    """Return the innermost frames of a thread, the innermost last."""
    frame = sys._current_frames().get(ident) if ident is not None else None
    if frame is None:
        return "  (the thread has ended)"
    stack = traceback.extract_stack(frame)[-_FRAMES:]
    return "".join(traceback.format_list(stack)).rstrip()

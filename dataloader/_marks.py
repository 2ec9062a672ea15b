"""What stands in place of a batch: marks that loading code returns or raises.

They stand apart from the code that they are about, as that imports `_fast`, whose
kernels know them.
"""

from __future__ import annotations

__all__ = ["END", "NotInWorker"]


class END:
    """Returned in place of a batch by a worker whose iterable dataset is exhausted.

    The class itself is the marker: comparing with a class costs no write to a shared
    reference count.
    """


class NotInWorker(BaseException):
    """Breaks off a batch that the consumer loads when its code asks for the worker.

    A worker loads it then. Like KeyboardInterrupt no subclass of Exception, so that
    user code lets it pass.
    """

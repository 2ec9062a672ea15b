"""Pinning: batches copied into page-locked memory, from where a device reads faster.

The thread that starts an epoch asks for a pinner, and is warned there if nothing can be
pinned. The workers call it on their batches: a pinner first selects, in the thread that
calls it, the device that was current where it was made, because the current device
belongs to a thread and a new thread would pin for device 0.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from dataloader import _torch_probe
from dataloader._containers import map_container

__all__ = ["Pinner", "make_pinner", "pin_memory"]

_T = TypeVar("_T")


def pin_memory(data: Any, device: object = None) -> Any:
    """Return ``data`` with its tensors in pinned memory, in containers like its own.

    What has a method ``pin_memory`` is replaced by its result. Mappings, tuples, named
    tuples and other sequences keep their types and attributes where these can be
    copied; strings, NumPy arrays and all else are returned as they are.

    Args:
        data: a batch.
        device: ignored, as in PyTorch: pinned memory serves the current accelerator.
    """
    pin = getattr(data, "pin_memory", None)
    if callable(pin):
        return pin()
    return map_container(pin_memory, data, keep_tuples=True)


@dataclass(frozen=True)
class _Accelerator:
    """The accelerator of this process, and which of its devices this thread uses."""

    kind: str
    index: int
    set_index: Callable[[int], object]


class _ThreadDevice(threading.local):
    """The device index that pinners selected last in this thread."""

    index: int | None = None


# Thread-local, so no two threads ever see the same value.
_thread_device = _ThreadDevice()


class Pinner:
    """Pins batches for the device that was current where it was made.

    Any thread may call it. In the thread that made it, the current device is left as
    the user sets it.

    Args:
        accelerator: what `_current_accelerator` returned.

    Example:
        >>> pinner = make_pinner(pin_memory=True)
        >>> batch = batch if pinner is None else pinner(batch)
    """

    def __init__(self, accelerator: _Accelerator) -> None:
        self._accelerator = accelerator
        self._creator = threading.current_thread()

    def __call__(self, data: _T) -> _T:
        """Return the batch with its tensors in pinned memory."""
        self._select_device()
        pinned: _T = pin_memory(data)
        return pinned

    def _select_device(self) -> None:
        if threading.current_thread() is self._creator:
            return
        if _thread_device.index != self._accelerator.index:
            self._accelerator.set_index(self._accelerator.index)
            _thread_device.index = self._accelerator.index


def make_pinner(
    pin_memory: bool, pin_memory_device: str = "", *, stacklevel: int = 2
) -> Pinner | None:
    """Return the pinner for one epoch; None if nothing is to be pinned.

    Call it in the thread whose current device counts. It warns if pinning was asked
    for and there is no accelerator (nor torch), if it is one that cannot pin (MPS), and
    if ``pin_memory_device`` is given.

    Args:
        pin_memory: the loader's argument.
        pin_memory_device: the loader's argument; PyTorch deprecated and ignores it.
        stacklevel: of the warnings, 1 being this function and 2 its caller.
    """
    if not pin_memory:
        return None
    if pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated: memory is pinned for the current "
            f"accelerator, and pin_memory_device={pin_memory_device!r} is ignored",
            stacklevel=stacklevel,
        )
    accelerator = _current_accelerator()
    if accelerator is not None and accelerator.kind != "mps":
        return Pinner(accelerator)
    problem = "no accelerator is found" if accelerator is None else "MPS cannot pin"
    warnings.warn(
        f"'pin_memory' argument is set as true but {problem}, so batches stay in "
        "ordinary memory; pass pin_memory=False to say so",
        stacklevel=stacklevel,
    )
    return None


def _current_accelerator() -> _Accelerator | None:
    if not _torch_probe.torch_installed():
        return None
    import torch

    api = getattr(torch, "accelerator", None)
    return _older_accelerator(torch) if api is None else _newer_accelerator(api)


def _newer_accelerator(api: Any) -> _Accelerator | None:
    """Ask ``torch.accelerator``, which torch has since 2.6."""
    device = api.current_accelerator() if api.is_available() else None
    if device is None:
        return None
    if device.type == "mps":
        return _Accelerator("mps", 0, _ignore)
    # 2.6 spelled both names with "idx", which later versions deprecate.
    index = getattr(api, "current_device_index", None) or api.current_device_idx
    set_index = getattr(api, "set_device_index", None) or api.set_device_idx
    return _Accelerator(device.type, index(), set_index)


def _older_accelerator(torch: Any) -> _Accelerator | None:
    """Ask the kinds of accelerator one by one."""
    for kind in ("cuda", "xpu"):
        api = getattr(torch, kind, None)
        if api is not None and api.is_available():
            return _Accelerator(kind, api.current_device(), api.set_device)
    if torch.backends.mps.is_available():
        return _Accelerator("mps", 0, _ignore)
    return None


def _ignore(index: int) -> None:
    """Select a device where there is only one."""

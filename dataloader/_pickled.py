"""True copies of an object graph: pickled once, rebuilt as often as wanted.

Strings, numbers and containers are new objects in every copy. The memory of NumPy
arrays and torch tensors of 64 KiB and more is not copied: all copies look at the
original's.
"""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from dataloader._torch import loaded_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Pickled", "find_unpicklable", "is_picklable"]

# Below this a copy costs less than it saves, and what a dataset counts or caches in a
# small array stays its own.
_SHARED_NBYTES = 1 << 16


class Pickled:
    """An object in pickled form, with its large buffers beside it.

    Nothing in it changes after construction, so threads may `load` at the same time.

    Args:
        obj: what to pickle.

    Raises:
        Exception: whatever pickling raises.
    """

    def __init__(self, obj: Any) -> None:
        self._buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        _Pickler(stream, self._set_apart).dump(obj)
        self._data = stream.getvalue()

    def _set_apart(self, buffer: pickle.PickleBuffer) -> bool:
        """Keep a large buffer out of the pickle; return whether it goes into it."""
        if memoryview(buffer).nbytes < _SHARED_NBYTES:
            return True
        self._buffers.append(buffer)
        return False

    def load(self) -> Any:
        """Build a copy."""
        return pickle.loads(self._data, buffers=self._buffers)


class _Pickler(pickle.Pickler):
    def __init__(
        self, stream: Any, set_apart: Callable[[pickle.PickleBuffer], bool]
    ) -> None:
        super().__init__(stream, protocol=5, buffer_callback=set_apart)

    def reducer_override(self, obj: Any) -> Any:
        """Hand over memory that its owner's own pickling would copy."""
        if type(obj) is np.memmap and obj.flags.forc:
            return _memmap, (np.asarray(obj),)
        torch = loaded_torch()
        if torch is not None and type(obj) is torch.Tensor and _is_plain(torch, obj):
            flat = obj.reshape(-1).view(torch.uint8).numpy()
            return _tensor, (flat, obj.dtype, tuple(obj.shape))
        return NotImplemented


def _memmap(array: Any) -> Any:
    return array.view(np.memmap)


def _is_plain(torch: Any, tensor: Any) -> bool:
    """Return whether a tensor is a large block of the CPU's memory and no more."""
    return bool(
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.is_contiguous()
        and tensor.nbytes >= _SHARED_NBYTES
    )


def _tensor(flat: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    torch: Any = loaded_torch()
    return torch.from_numpy(flat).view(dtype).view(shape)


def find_unpicklable(name: str, obj: Any) -> tuple[str, Any]:
    """Return the innermost part of ``obj`` that cannot be pickled, and where it is.

    Args:
        name: what to call ``obj`` in the answer, as in ``dataset.transform.fn``.
        obj: an object that cannot be pickled.
    """
    path: list[int] = []
    while id(obj) not in path:
        path.append(id(obj))
        bad = _first_bad(_parts(obj))
        if bad is None:
            break
        name, obj = f"{name}{bad[0]}", bad[1]
    return name, obj


def _first_bad(parts: list[tuple[str, Any]]) -> tuple[str, Any] | None:
    """Find the first part that cannot be pickled, by halving."""
    if is_picklable([part for _, part in parts]):
        return None
    while len(parts) > 1:
        half = parts[: len(parts) // 2]
        bad = not is_picklable([part for _, part in half])
        parts = half if bad else parts[len(half) :]
    return parts[0]


def is_picklable(obj: Any) -> bool:
    """Return whether ``obj`` can be pickled, without keeping what comes out."""
    try:
        _Pickler(_Nowhere(), lambda buffer: False).dump(obj)
    except Exception:
        return False
    return True


class _Nowhere:
    """A stream that forgets."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


def _parts(obj: Any) -> list[tuple[str, Any]]:
    """Return what pickle would write for ``obj``, each part with its way from it."""
    if isinstance(obj, dict):
        return [*_keys(obj), *_numbered(obj)]
    if isinstance(obj, (list, tuple, set, frozenset)):
        return _numbered(obj)
    if isinstance(obj, type) or not hasattr(type(obj), "__reduce_ex__"):
        return []
    try:
        reduced = obj.__reduce_ex__(5)
    except Exception:
        return []  # it is the object itself
    return [] if isinstance(reduced, str) else _reduced_parts(*reduced)


def _keys(obj: dict[Any, Any]) -> list[tuple[str, Any]]:
    return [(f"[{key!r}]", value) for key, value in obj.items()]


def _numbered(values: Iterable[Any]) -> list[tuple[str, Any]]:
    return [(f"[{number}]", value) for number, value in enumerate(values)]


def _reduced_parts(
    make: Any,
    args: Any,
    state: Any = None,
    items: Any = None,
    pairs: Any = None,
    *_: Any,
) -> list[tuple[str, Any]]:
    parts: list[tuple[str, Any]] = []
    # The slots stand beside the dictionary in a tuple.
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            parts += [(f".{key}", value) for key, value in part.items()]
        else:
            parts.append((".__getstate__()", part))
    parts += _numbered(items or ())
    parts += [(f"[{key!r}]", value) for key, value in pairs or ()]
    return [*parts, (".__reduce__()", args), (".__reduce__()", make)]

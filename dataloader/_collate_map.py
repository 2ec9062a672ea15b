"""The table of collate functions by sample type, which users extend.

It behaves as the dict of the same name in PyTorch does, with two differences inside.
The entry for ``torch.Tensor`` exists without torch being imported: until then a class
stands in for it that recognises tensors. And writers replace the table instead of
changing it, so a worker thread collates a whole batch by the table it started with.

Guards: ``CollateFnMap._lock`` guards the writing of ``_entries``. What ``_entries`` and
``_resolved`` refer to never changes, so both are read without it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dataloader import _torch_probe
from dataloader._torch import loaded_torch

__all__ = ["CollateFn", "CollateFnMap", "Entries", "Key", "Rule", "UnloadedTensor"]

Key = type | tuple[type, ...]
CollateFn = Callable[..., Any]
Entries = Mapping[Key, CollateFn]

_TORCH_COLLATE = "torch.utils.data._utils.collate"
# The functions under these names are the stock ones, so nobody's extension.
_STOCK = (_TORCH_COLLATE, __name__.partition(".")[0] + ".")


@dataclass(frozen=True)
class Rule:
    """A collate function of this package: one form gives tensors, the other arrays."""

    torch: CollateFn
    numpy: CollateFn

    def __call__(self, batch: Any, *, collate_fn_map: Entries | None = None) -> Any:
        """Collate with torch where it is installed, with NumPy where not."""
        collate_fn = self.torch if _torch_probe.torch_installed() else self.numpy
        return collate_fn(batch, collate_fn_map=collate_fn_map)


class _TensorCheck(type):
    def __instancecheck__(cls, instance: object) -> bool:
        torch = loaded_torch()
        return torch is not None and isinstance(instance, torch.Tensor)


class UnloadedTensor(metaclass=_TensorCheck):
    """Stands for ``torch.Tensor`` as a key while torch is not loaded.

    It stays in copies of the table that were taken before the import, and so matches
    tensors that come after it.
    """


class _Resolved(NamedTuple):
    source: dict[Key, CollateFn]
    torch_source: dict[Key, CollateFn]
    entries: dict[Key, CollateFn]


_UNRESOLVED = _Resolved({}, {}, {})


class CollateFnMap(MutableMapping[Key, CollateFn]):
    """Collate functions by type of sample: what ``default_collate`` goes by.

    Args:
        entries: the first contents, in the order in which types are tried.

    Example:
        >>> import pathlib
        >>> from dataloader import default_collate_fn_map
        >>> def collate_paths(batch, *, collate_fn_map=None):
        ...     return [str(path) for path in batch]
        >>> default_collate_fn_map[pathlib.Path] = collate_paths
    """

    def __init__(self, entries: Entries) -> None:
        self._lock = threading.Lock()
        self._entries = dict(entries)
        self._resolved = {"torch": _UNRESOLVED, "numpy": _UNRESOLVED}

    def snapshot(self) -> dict[Key, CollateFn]:
        """Return the present table, which the caller must not change."""
        if UnloadedTensor in self._entries:
            self._learn_tensor()
        return self._entries

    def resolved(self, form: Literal["torch", "numpy"]) -> dict[Key, CollateFn]:
        """Return the present table with one form of each rule, not to be changed.

        Args:
            form: "torch" for tensors, together with what libraries registered in
                PyTorch's own table; "numpy" for arrays.
        """
        source = self.snapshot()
        torch_source = _torch_entries() if form == "torch" else {}
        last = self._resolved[form]
        if last.source is source and last.torch_source == torch_source:
            return last.entries
        entries = _merge(source, torch_source)
        chosen: dict[Key, CollateFn] = {
            key: getattr(fn, form) if isinstance(fn, Rule) else fn
            for key, fn in entries.items()
        }
        self._resolved[form] = _Resolved(source, dict(torch_source), chosen)
        return chosen

    def copy(self) -> dict[Key, CollateFn]:
        """Return the present table as an ordinary dict."""
        return dict(self.snapshot())

    def __getitem__(self, key: Key) -> CollateFn:
        return self.snapshot()[key]

    def __setitem__(self, key: Key, collate_fn: CollateFn) -> None:
        with self._lock:
            self._entries = {**self._named_entries(), key: collate_fn}

    def __delitem__(self, key: Key) -> None:
        with self._lock:
            entries = dict(self._named_entries())
            del entries[key]
            self._entries = entries

    def __iter__(self) -> Iterator[Key]:
        return iter(self.snapshot())

    def __len__(self) -> int:
        return len(self._entries)

    def __or__(self, other: Entries) -> dict[Key, CollateFn]:
        return {**self.snapshot(), **other}

    def __ror__(self, other: Entries) -> dict[Key, CollateFn]:
        return {**other, **self.snapshot()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.snapshot()!r})"

    def _learn_tensor(self) -> None:
        with self._lock:
            self._entries = self._named_entries()

    def _named_entries(self) -> dict[Key, CollateFn]:
        """Return the table, with ``torch.Tensor`` for its stand-in if it is loaded."""
        torch = loaded_torch()
        if torch is None or UnloadedTensor not in self._entries:
            return self._entries
        return {
            torch.Tensor if key is UnloadedTensor else key: collate_fn
            for key, collate_fn in self._entries.items()
        }


def _torch_entries() -> dict[Key, CollateFn]:
    """Return PyTorch's own table as it is now; empty while torch is not loaded."""
    module = sys.modules.get(_TORCH_COLLATE)
    entries: dict[Key, CollateFn] = getattr(module, "default_collate_fn_map", {})
    return entries


def _merge(
    own: dict[Key, CollateFn], torch_entries: dict[Key, CollateFn]
) -> dict[Key, CollateFn]:
    """Return ``own`` and what was registered with PyTorch; the user's word in own wins.

    Libraries register their types in PyTorch's table because its loader looks there,
    some of them subclasses of ``torch.Tensor``: hence one table, in which an exact type
    is found before any base class.
    """
    merged = dict(own)
    for key, collate_fn in torch_entries.copy().items():
        stock = str(getattr(collate_fn, "__module__", "")).startswith(_STOCK)
        if not stock and isinstance(own.get(key), (Rule, type(None))):
            merged[key] = collate_fn
    return merged

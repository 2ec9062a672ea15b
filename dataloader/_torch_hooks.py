"""Torch's own functions made to answer for our worker threads.

Code and libraries call ``torch.utils.data.get_worker_info``, ``torch.initial_seed`` and
torch's ``default_collate``, which know of worker processes alone. The hooks change what
these do in our threads, at once or, if torch is loaded later, right after that, in
whichever thread. The code objects are replaced and not the functions, so references
that a ``from ... import`` took earlier keep working, and so does pickling by name.

Guards: `_guard` guards `sys.meta_path` and the patching.
"""

from __future__ import annotations

import logging
import sys
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from dataloader import worker_info
from dataloader._guard import Guard
from dataloader._torch import loaded, thread_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec

__all__ = ["install_worker_hooks"]

_logger = logging.getLogger("dataloader")


# Reentrant: an import inside a patch may come back to the finder.
_guard = Guard()


class _Hooks:
    """What the patched functions call; one object, reached from torch's modules."""

    def get_worker_info(self, own: Any) -> Any:
        """Answer ``get_worker_info``; ``own`` is what torch's worker process set."""
        if thread_state.masked:
            return None
        info = worker_info.get_worker_info()
        if info is None or (own is not None and thread_state.forked):
            return own
        return info

    def collate(self, original: Callable[..., Any], batch: Any, fn_map: Any) -> Any:
        """Collate tensors without shared memory, which serves processes alone."""
        # Not asked who loads: the answer would be the same batch for either.
        if thread_state.masked or not worker_info.is_loading():
            return original(batch, collate_fn_map=fn_map)
        thread_state.masked = True
        try:
            return original(batch, collate_fn_map=fn_map)
        finally:
            thread_state.masked = False

    def initial_seed(self, original: Callable[[], int]) -> int:
        """Answer ``torch.initial_seed`` with the seed of the worker that asks."""
        # While worker_init_fn runs, the process's generator is the worker's own; so it
        # is in a process that was forked off a worker thread.
        if thread_state.seeding is None and not thread_state.forked:
            seed = worker_info.current_torch_seed()
            if seed is not None:
                return int(seed)
        return original()


# The code of the three functions below goes to torch's modules and finds these names
# there, as `_patch` has put them; here they only stand for them.
_worker_info: Any = None
_dataloader_hooks: Any = None
_dataloader_collate_tensor_fn: Any = None
_dataloader_initial_seed: Any = None


def _get_worker_info() -> Any:
    return _dataloader_hooks.get_worker_info(_worker_info)


def _collate_tensor_fn(batch: Any, *, collate_fn_map: Any = None) -> Any:
    original = _dataloader_collate_tensor_fn
    return _dataloader_hooks.collate(original, batch, collate_fn_map)


def _initial_seed() -> Any:
    return _dataloader_hooks.initial_seed(_dataloader_initial_seed)


_PATCHES: dict[str, tuple[str, Callable[..., Any]]] = {
    "torch.random": ("initial_seed", _initial_seed),
    "torch.utils.data._utils.collate": ("collate_tensor_fn", _collate_tensor_fn),
    "torch.utils.data._utils.worker": ("get_worker_info", _get_worker_info),
}

_MARK = "_dataloader_hooks"
_hooks = _Hooks()


def install_worker_hooks() -> None:
    """Make torch's functions answer for our worker threads, now or once it is loaded.

    Idempotent and cheap when done before, so call it whenever worker threads start.
    """
    # Nothing is imported under the lock: another thread may hold an import's lock while
    # it waits in the finder.
    _guard.run(_install)


def _install() -> None:
    if not _patch_loaded() and not any(map(_is_finder, sys.meta_path)):
        sys.meta_path.insert(0, _Finder())


def _patch_loaded() -> bool:
    """Patch what is loaded by now; return whether nothing is left to do."""
    for name in _PATCHES:
        module = loaded(name)
        if module is not None:
            _patch(name, module)
    return all(map(_is_patched, map(sys.modules.get, _PATCHES)))


def _is_patched(module: ModuleType | None) -> bool:
    return module is not None and vars(module).get(_MARK) is _hooks


def _patch(name: str, module: ModuleType) -> None:
    """Replace the code of the one function of ``module`` that must know our threads."""
    if _is_patched(module):
        return
    namespace = vars(module)
    known = _MARK in namespace  # by a copy of this package that was imported earlier
    namespace[_MARK] = _hooks
    if not known:
        _replace_code(module, *_PATCHES[name])
    if name == "torch.random" and thread_state.seeding is not None:
        thread_state.seeding.seed_torch(namespace["default_generator"])


def _replace_code(
    module: ModuleType, name: str, replacement: Callable[..., Any]
) -> None:
    function = getattr(module, name, None)
    if not isinstance(function, FunctionType) or not _fits(function, replacement):
        _logger.warning(
            "%s.%s is another function than the one known here: in worker threads it "
            "answers as it does outside of them",
            module.__name__,
            name,
        )
        return
    setattr(module, f"_dataloader_{name}", _second(function))
    function.__code__ = replacement.__code__.replace(
        co_name=name, co_qualname=function.__qualname__
    )


def _fits(function: FunctionType, replacement: Callable[..., Any]) -> bool:
    return not function.__code__.co_freevars and _parameters(
        function.__code__
    ) == _parameters(replacement.__code__)


def _parameters(code: CodeType) -> tuple[int, Sequence[str], int]:
    count = code.co_argcount + code.co_kwonlyargcount
    return code.co_argcount, code.co_varnames[:count], code.co_flags & 0xC


def _second(function: FunctionType) -> FunctionType:
    """Return a function of its own with the code that ``function`` has now."""
    second = FunctionType(function.__code__, function.__globals__, function.__name__)
    second.__defaults__ = function.__defaults__
    second.__kwdefaults__ = function.__kwdefaults__
    return second


class _Finder:
    """Stands first on `sys.meta_path` until torch's three modules have been patched."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find ``name`` with the other finders if it is to be patched."""
        if name.startswith("torch"):
            # Catches a module that another thread was executing at the installation.
            self.patch()
        if name not in _PATCHES or name in thread_state.finding:
            return None
        spec = self._find_elsewhere(name, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _PatchingLoader(spec.loader, self)  # type: ignore[assignment]
        return spec

    def _find_elsewhere(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        # Another finder of this kind may ask all others in turn, this one included.
        before = thread_state.finding
        thread_state.finding = before | {name}
        try:
            for finder in list(sys.meta_path):
                find = None if finder is self else getattr(finder, "find_spec", None)
                spec = None if find is None else find(name, path, target)
                if spec is not None:
                    return spec  # type: ignore[no-any-return]
            return None
        finally:
            thread_state.finding = before

    def patch(self, name: str = "", executed: ModuleType | None = None) -> None:
        """Patch what can be without failing the import; leave when done."""
        try:
            _guard.run(self._patch, name, executed)
        except Exception:
            _logger.warning("torch cannot be told of worker threads", exc_info=True)

    def _patch(self, name: str, executed: ModuleType | None) -> None:
        if executed is not None:
            _patch(name, executed)
        if _patch_loaded():
            # A new list: an import in another thread that walks the old one would skip
            # a finder if an element vanished under it.
            sys.meta_path = [f for f in sys.meta_path if not _is_finder(f)]


def _is_finder(finder: object) -> bool:
    return type(finder) is _Finder


class _PatchingLoader:
    """Executes a module with its own loader, then patches it."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let the module's own loader create it."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute ``module`` and patch it, leaving no trace of this loader in it."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.patch(module.__name__, module)

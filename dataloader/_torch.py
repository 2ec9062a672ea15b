"""What we ask of torch when, and only when, the program has loaded it.

Nothing here imports torch, and everything works without it.

Guards: `_locks.seeding` guards the process-wide random generators in `seeded_globals`;
a forked child gets it anew, since its holder does not live on in it. `thread_state` is
per thread by nature.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
from contextvars import ContextVar
from itertools import starmap
from typing import TYPE_CHECKING, Any

import numpy as np

from dataloader._guard import ONCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

__all__ = [
    "SeededGlobals",
    "draw_int64",
    "install_worker_hooks",
    "loaded",
    "loaded_torch",
    "run_seeded",
    "seeded_globals",
    "thread_state",
    "torch_class",
]


class _Locks:
    """The lock of this module, made anew in a forked child."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.seeding = threading.Lock()


_locks = _Locks()


class _ThreadState(threading.local):
    """What the hooks in torch's functions must know of the calling thread.

    Attributes:
        masked: it is in a function that must not see that it is a worker.
        forked: it is the first thread of a process that was forked.
        seeding: the block of `seeded_globals` that it is in.
        finding: modules that it is looking for on behalf of the import system.
    """

    masked = False
    forked = False
    seeding: SeededGlobals | None = None
    finding: frozenset[str] = frozenset()


thread_state = _ThreadState()

# Seeded by the operating system, which is asked once in a process: a system call for
# each epoch would be a good part of what iter() costs. Its methods are atomic.
_seeds = random.Random()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_seeds.seed)

# Its stubs miss two public functions.
_np_random: Any = np.random


def loaded(name: str) -> ModuleType | None:
    """Return module ``name`` if its import has finished, in whichever thread."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


def loaded_torch() -> ModuleType | None:
    """Return torch if the program has imported it completely, else None."""
    return loaded("torch")


def torch_class(name: str) -> type | None:
    """Return class ``name`` of ``torch.utils.data`` if that is loaded, else None."""
    data = loaded("torch.utils.data")
    found = getattr(data, name, None)
    return found if isinstance(found, type) else None


def draw_int64(generator: Any | None = None) -> int:
    """Draw a seed of 63 bits, the way PyTorch's loader draws one.

    Args:
        generator: a ``torch.Generator`` or a ``numpy.random.Generator``; None means
            torch's global generator, or the operating system while torch is not loaded.

    Raises:
        TypeError: ``generator`` is neither of these.
    """
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(0, 1 << 63))
    torch = loaded_torch()
    if torch is not None:
        # The very call that PyTorch makes, so that a default device counts here too.
        empty = torch.empty((), dtype=torch.int64)
        return int(empty.random_(generator=generator).item())
    if generator is None:
        return _seeds.getrandbits(63)
    raise TypeError(
        "generator must be a torch.Generator or a numpy.random.Generator, "
        f"got {type(generator).__name__}"
    )


def install_worker_hooks() -> None:
    """Make torch's functions answer for our worker threads, now or once it is loaded.

    Idempotent and cheap when done before, so call it whenever worker threads start.
    """
    from dataloader import _torch_hooks  # which imports this module

    _torch_hooks.install_worker_hooks()


class SeededGlobals:
    """The process-wide generators while they play a worker's own.

    Attributes:
        torch_seed: after the block: what ``torch.initial_seed()`` was at its end, None
            if torch is not loaded.
    """

    def __init__(self, seed: int, worker_id: int) -> None:
        self.torch_seed: int | None = None
        self._seed = seed
        self._worker_id = worker_id
        self._restores = contextlib.ExitStack()
        self._torch_generator: Any = None

    def seed_torch(self, generator: Any) -> None:
        """Save and seed torch's generator, once: late if the block loads torch."""
        if self._torch_generator is None:
            self._torch_generator = generator
            self._restores.callback(generator.set_state, generator.get_state())
            # Not torch.manual_seed, which seeds the generators of all devices too.
            generator.manual_seed(self._seed)

    def _enter(self) -> None:
        self._restores.callback(random.setstate, random.getstate())
        random.seed(self._seed)
        self._seed_numpy()
        torch = loaded_torch()
        if torch is not None:
            self.seed_torch(torch.random.default_generator)

    def _seed_numpy(self) -> None:
        bits, state = _np_random.get_bit_generator(), np.random.get_state(legacy=False)
        self._restores.callback(_restore_numpy, bits, state)
        if isinstance(bits, np.random.MT19937):  # the only one that can be seeded anew
            np.random.seed(_numpy_words(self._seed - self._worker_id, self._worker_id))

    def _leave(self) -> None:
        with self._restores:
            if self._torch_generator is not None:
                self.torch_seed = int(self._torch_generator.initial_seed())


def _restore_numpy(bits: Any, state: Any) -> None:
    if _np_random.get_bit_generator() is not bits:
        _np_random.set_bit_generator(bits)
    np.random.set_state(state)


def _numpy_words(base: int, worker_id: int) -> Any:
    """Return the four words that PyTorch seeds NumPy with in worker ``worker_id``."""
    low, high = base & 0xFFFFFFFF, base >> 32 & 0xFFFFFFFF
    return np.random.SeedSequence([worker_id, low, high, 0]).generate_state(4)


# The lock that a block opened inside this context takes. A worker_init_fn may iterate a
# loader of its own, whose threads run in copies of its context: they must not wait for
# the lock that it holds while it waits for them.
_inner_lock: ContextVar[threading.Lock | None] = ContextVar("_inner_lock", default=None)


@contextlib.contextmanager
def seeded_globals(seed: int, worker_id: int) -> Iterator[SeededGlobals]:
    """Lend `random`, NumPy's and torch's global generators to a ``worker_init_fn``.

    They are seeded as in PyTorch's worker processes, and on leaving put back to where
    they were. One such block runs at a time.

    Args:
        seed: the worker's seed, the epoch's base seed plus ``worker_id``.
        worker_id: number of the worker.
    """
    lock = _inner_lock.get() or _locks.seeding
    with lock:
        token = _inner_lock.set(threading.Lock())
        before = thread_state.seeding
        state = thread_state.seeding = SeededGlobals(seed, worker_id)
        try:
            state._enter()
            yield state
        finally:
            thread_state.seeding = before
            _inner_lock.reset(token)
            state._leave()


def run_seeded(
    seed: int, worker_id: int, function: Callable[[], object]
) -> SeededGlobals:
    """Call ``function`` with the generators lent to it as by `seeded_globals`.

    Other than that, no exception from outside that strikes this thread, at whatever
    place, leaves the lock taken.
    """
    lock = _inner_lock.get() or _locks.seeding
    state = SeededGlobals(seed, worker_id)
    before = thread_state.seeding
    inner = threading.Lock()
    held: list[bool] = []
    try:
        held.extend(starmap(lock.acquire, ONCE))
        token = _inner_lock.set(inner)
        try:
            thread_state.seeding = state
            state._enter()
            function()
        finally:
            thread_state.seeding = before
            _inner_lock.reset(token)
            state._leave()
    finally:
        if held:
            lock.release()
    return state


def _after_fork_in_child() -> None:
    _locks.renew()
    thread_state.forked = True
    if _inner_lock.get() is not None:
        _inner_lock.set(threading.Lock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

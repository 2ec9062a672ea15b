"""Who is loading: `get_worker_info` and `rng`, answered for the calling thread.

A backend puts a `Scope` in place while one of its threads (or, without workers, the
thread that calls ``next()``) loads a batch. It says which worker, epoch, batch and
sample the thread is at, so that random numbers can be a function of the place of a
sample in the epoch and not of the thread that happens to load it.

Guards: a `Scope` belongs to one thread, the only one that reads or writes it; `_local`
is per thread by nature.
"""

from __future__ import annotations

import operator
import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dataloader._fast import Presence, local
from dataloader._torch import loaded_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "COLLATE",
    "SINGLE",
    "WHOLE",
    "Part",
    "Scope",
    "Task",
    "WorkerInfo",
    "WorkerRng",
    "current_torch_seed",
    "get_worker_info",
    "is_loading",
    "rng",
    "scope_of_whole",
]

_MASK_64 = (1 << 64) - 1

# What a stream of random numbers is for. Streams of different purposes never overlap,
# since the purpose is a word of Philox's counter.
_ITEM, _COLLATE, _BATCH, _STREAM, _WORKER, _WORKER_ITEM = range(6)


class WorkerRng:
    """Generators of one worker, new for each batch: `WorkerInfo.rng`.

    The same three that PyTorch keeps for a thread worker, so that
    ``torch.random.thread_safe_generator()`` works inside a worker. Each is made at its
    first use in a batch, from (seed, epoch, batch): what it yields does not depend on
    the worker that loads the batch. With ``items_in_parallel`` it is new for each
    sample, from the sample's position.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._made: dict[str, Any] = {}
        self._place: tuple[int, int, int] | None = None

    def _get(self, name: str) -> Any:
        place = self._current()
        if place != self._place:
            self._place = place
            self._made = {}
        if name not in self._made:
            self._made[name] = getattr(self, f"_make_{name}")()
        return self._made[name]

    def _current(self) -> tuple[int, int, int]:
        """Return what the generators are keyed by: epoch, place and purpose."""
        scope = self._scope
        number, start, _ = scope.task
        if scope.by_item and scope.cursor == SINGLE:
            return scope.epoch, start, _WORKER_ITEM
        return scope.epoch, number, _WORKER

    def _generator(self, lane: int) -> np.random.Generator:
        epoch, place, purpose = self._current()
        return _philox(self._scope.seed, epoch, place, purpose, lane)

    def _make_random(self) -> random.Random:
        return random.Random(int(self._generator(0).integers(1 << 63)))

    def _make_numpy(self) -> np.random.Generator:
        return self._generator(1)

    def _make_torch(self) -> Any:
        torch = loaded_torch()
        if torch is None:
            return None
        seed = int(self._generator(2).integers(1 << 63))
        return torch.Generator().manual_seed(seed)

    @property
    def random_generator(self) -> random.Random:
        """A ``random.Random`` for the current batch."""
        return self._get("random")  # type: ignore[no-any-return]

    @property
    def numpy_generator(self) -> np.random.Generator:
        """A NumPy generator for the current batch."""
        return self._get("numpy")  # type: ignore[no-any-return]

    @property
    def torch_generator(self) -> Any:
        """A ``torch.Generator`` for the current batch; None without torch."""
        return self._get("torch")


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker knows of itself, with PyTorch's fields.

    Attributes:
        id: number of the worker, 0 to ``num_workers - 1``.
        num_workers: number of workers of the loader.
        seed: the epoch's base seed plus ``id``.
        dataset: the worker's own dataset object.
        rng: generators for the current batch, see `WorkerRng`.
        worker_method: ``"thread"`` or ``"multiprocessing"``.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any
    rng: WorkerRng | None = None
    worker_method: Literal["thread", "multiprocessing"] = "multiprocessing"


class Scope(Presence):
    """The place in the epoch at which one thread is loading.

    Three stores for each batch, none for each sample, keep it up to date.

    Attributes:
        info: the worker's info, None in the thread that calls ``next()``.
        torch_seed: what ``torch.initial_seed()`` answers in this worker.
        seed: 64-bit key of the run.
        epoch: number of the epoch.
        task: number of the batch within the epoch, position of its first sample in the
            global order (for iterable datasets the worker's ordinal of that sample),
            and its keys.
        cursor: the iterator over the batch's keys, whose length hint tells how far the
            loading has come without a counter in the loop; or what else the thread
            does: `SINGLE`, `WHOLE`, `COLLATE`, or loads a `Part`.
        stream: number of the worker in an iterable dataset, else None.
        watch: called when user code asks which worker it is in; may raise
            `NotInWorker`.
        by_item: the samples of a batch are loaded by several threads, so generators
            that are else the batch's are the sample's.
        owner: the identifier of the thread that made it.
        drawn_at: the place that the generator was made for; None to have it made anew
            where that place is loaded again.
    """

    __slots__ = (
        "_generator",
        "by_item",
        "cursor",
        "drawn_at",
        "epoch",
        "info",
        "owner",
        "seed",
        "stream",
        "task",
        "torch_seed",
        "watch",
    )

    def __init__(self, seed: int, epoch: int, stream: int | None = None) -> None:
        self.seed: int = seed
        self.epoch: int = epoch
        self.stream: int | None = stream
        self.info: WorkerInfo | None = None
        self.torch_seed: int | None = None
        self.task: Task = (0, 0, ())
        self.cursor: Iterator[Any] | Part | int = SINGLE
        self.by_item: bool = False
        self.watch: Callable[[], None] | None = None
        self.is_active: bool | None = False
        self.owner: int = threading.get_ident()
        self.drawn_at: tuple[int, ...] | None = None
        self._generator: np.random.Generator | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What object does by itself for a class in Python, and not for one in C.
        return {name: getattr(self, name) for name in (*Scope.__slots__, "is_active")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def copy(self) -> Scope:
        """Return a scope for the calling thread to go on with."""
        other = Scope(self.seed, self.epoch, self.stream)
        other.torch_seed, other.watch, other.task = (
            self.torch_seed,
            self.watch,
            self.task,
        )
        return other

    def begin(self, seed: int, epoch: int) -> None:
        """Begin with an epoch; if it is the same again, so are the random numbers."""
        self.seed, self.epoch = seed, epoch
        self.drawn_at = None
        if self.info is not None and self.info.rng is not None:
            self.info.rng._place = None

    @property
    def batch(self) -> int:
        """Number of the batch within the epoch."""
        return self.task[0]

    def generator(self, item: int | None) -> np.random.Generator:
        """Return the generator of a place: one object while the place is the same."""
        key = (self.epoch, *self._place(item))
        kept = self.cursor.kept if isinstance(self.cursor, Part) else None
        if kept is not None:
            if key not in kept:
                kept[key] = _philox(self.seed, *key)
            return kept[key]
        if key != self.drawn_at:
            self._generator = _philox(self.seed, *key)
            self.drawn_at = key
        assert self._generator is not None
        return self._generator

    def _place(self, item: int | None) -> tuple[int, int, int]:
        number, start, _ = self.task
        cursor = self.cursor
        if cursor == COLLATE:
            return number, _COLLATE, 0
        if isinstance(cursor, Part):
            item = cursor.index if item is None else item
            if item is None:
                return start + cursor.place(0), _BATCH, 0
            return start + cursor.place(item), _ITEM, 0
        if item is None and cursor == WHOLE:
            return start, _BATCH, 0
        position = start + (self._offset() if item is None else item)
        if self.stream is not None:
            return position, _STREAM, self.stream
        return position, _ITEM, 0

    def _offset(self) -> int:
        """Index within the batch of the sample that is being loaded."""
        if isinstance(self.cursor, (int, Part)):
            return 0
        return _last_taken(self.cursor, len(self.task[2]))


class Part:
    """Some of a batch's samples, which a combinator has another dataset load.

    Args:
        places: index within the batch of each of them, at least one.
        cursor: the iterator over their keys; None if they are loaded in one call.
        kept: the generators so far by their places, where several datasets have parts
            in a sample: the next goes on where the one before stopped. None for the
            ordinary way.

    Attributes:
        kept: as given.
        is_whole: they are loaded in one call.
    """

    __slots__ = ("_cursor", "_places", "is_whole", "kept")

    def __init__(
        self,
        places: Sequence[int],
        cursor: Iterator[Any] | None = None,
        kept: dict[tuple[int, ...], np.random.Generator] | None = None,
    ) -> None:
        self._places = places
        self._cursor = cursor
        self.kept: dict[tuple[int, ...], np.random.Generator] | None = kept
        self.is_whole: bool = cursor is None

    @property
    def index(self) -> int | None:
        """Index in the part of the sample that is being loaded, None for no single."""
        if self._cursor is None:
            return None
        return _last_taken(self._cursor, len(self._places))

    def place(self, index: int) -> int:
        """Return the place of a sample; beyond the last it goes on, as in a batch."""
        beyond = max(index - len(self._places) + 1, 0)
        return self._places[index - beyond] + beyond


def _last_taken(cursor: Iterator[Any], count: int) -> int:
    """Return the index of what an iterator over ``count`` keys gave last."""
    return max(count - operator.length_hint(cursor) - 1, 0)


Task = tuple[int, int, Any]
"""A batch to load: its number, the position of its first sample, its keys."""

# What `Scope.cursor` says when it is not an iterator over keys: one sample is loaded, a
# whole batch at once, or samples are collated.
SINGLE, WHOLE, COLLATE = range(3)


def get_worker_info() -> WorkerInfo | None:
    """Return the `WorkerInfo` of the worker that calls it, None outside workers.

    PyTorch's function of this name gives the same answer in our workers, so libraries
    that shard their data by it need no change.
    """
    scope = _asked_scope()
    return None if scope is None else scope.info


def current_torch_seed() -> int | None:
    """Return what ``torch.initial_seed()`` is in this worker, None outside workers."""
    scope = _asked_scope()
    return None if scope is None else scope.torch_seed


def _asked_scope() -> Scope | None:
    """Return the thread's scope, for code that asks which worker it is in."""
    scope = local.scope
    if scope is not None and scope.watch is not None and scope.is_active:
        scope.watch()
    return scope


def scope_of_whole() -> Scope | None:
    """Return the thread's scope if it loads a batch, or a `Part`, in one call."""
    scope = local.scope
    if scope is None or not scope.is_active:
        return None
    cursor = scope.cursor
    is_whole = cursor.is_whole if isinstance(cursor, Part) else cursor == WHOLE
    return scope if is_whole else None


def is_loading() -> bool:
    """Whether the calling thread is a worker of ours, or loads a batch as one would."""
    scope = local.scope
    return scope is not None and (scope.info is not None or bool(scope.is_active))


def rng(item: int | None = None) -> np.random.Generator:
    """Return the random generator of the sample that is being loaded.

    Inside ``__getitem__`` the generator is keyed by (seed, epoch, position of the
    sample in the epoch's order), so an augmentation drawn from it is the same for any
    number of workers, any backend and after a resume, and a sample that is drawn twice
    is augmented differently. Several calls for one sample return one generator, which
    goes on. Inside ``collate_fn`` it is keyed by the number of the batch, and in an
    iterable dataset by worker and ordinal. Outside a loader it is seeded from the
    operating system.

    The generator is NumPy's Philox with the run's seed as key and the place in the
    epoch as counter (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
    2011), so streams of different samples never overlap.

    Args:
        item: inside ``__getitems__``, which loads many samples in one call: the index
            within the batch of the sample that the generator is for.

    Example:
        >>> import numpy as np
        >>> from dataloader import DataLoader, rng
        >>> class Noisy:
        ...     def __len__(self):
        ...         return 4
        ...
        ...     def __getitem__(self, index):
        ...         return index + rng().random()
        >>> a = list(DataLoader(Noisy(), seed=1, num_workers=2, collate_fn=list))
        >>> b = list(DataLoader(Noisy(), seed=1, collate_fn=list))
        >>> a == b
        True
    """
    scope = local.scope
    if scope is None or not scope.is_active:
        return np.random.default_rng()
    return scope.generator(item)


def _philox(
    seed: int, epoch: int, place: int, purpose: int, lane: int
) -> np.random.Generator:
    """Make the generator of one place.

    Philox's key is (seed, epoch), its counter (0, lane, place, purpose).

    Each draw advances the counter's lowest word, so a place has 2**64 blocks of its
    own.
    """
    key = np.array([seed & _MASK_64, epoch & _MASK_64], np.uint64)
    counter = np.array([0, lane, place & _MASK_64, purpose], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))

"""Fetching: the samples of one batch, by index or from an iterator, and collated.

A `Fetch` is what every backend calls in the thread that loads. Which form of a
map-style dataset is called is settled once for each epoch (`choose_fetch`), not per
batch.

The loop over a dataset stands in one comprehension whose body and whose ``for`` are on
different source lines. On one line the compiler fuses the store of the index with the
load of the dataset into an instruction that writes the dataset's reference count for
every sample, and on free-threaded builds that write is what stops workers from scaling.
For the same reason the dataset is an argument, not a variable of an enclosing function.
A formatter must not join the lines.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from dataloader._gather import gather, is_table
from dataloader._marks import END
from dataloader.errors import InterruptedDatasetError
from dataloader.samplers.batches import survives_interrupt
from dataloader.worker_info import (
    COLLATE,
    SINGLE,
    WHOLE,
    Part,
    Scope,
    Task,
    scope_of_whole,
)

__all__ = [
    "Check",
    "Collate",
    "Fetch",
    "Stream",
    "choose_fetch",
    "explain_stop",
    "fetch_columns",
    "fetch_one_by_one",
    "fetch_part",
    "fetch_stream",
    "note_place",
    "require_all",
    "uses_getitems",
]

Collate = Callable[[Any], Any]
"""``collate_fn``: makes a batch of a list of samples, or of one sample."""

Check = Callable[[Any, Any], Any]
"""``check(samples, indices)`` looks at what ``__getitems__`` returned: gives back the
samples, as they are or as another sequence, or raises."""

Fetch = Callable[[Any, Collate, Task, Scope], Any]
"""``fetch(dataset, collate_fn, task, scope)`` returns the task's batch."""


def choose_fetch(dataset: Any, batched: bool, check: Check | None = None) -> Fetch:
    """Return the function that loads batches of a map-style dataset.

    Args:
        dataset: called as ``dataset[key]`` or ``dataset.__getitems__(keys)``.
        batched: keys come as batches; else a key is one sample.
        check: what the samples that ``__getitems__`` returns pass through.
    """
    if not batched:
        return fetch_single
    fetch: Fetch = fetch_items
    if uses_getitems(dataset):
        fetch = fetch_whole if check is None else partial(fetch_whole, check=check)
    # Counts are checked by `require_all` where `default_collate` makes the batch.
    if check is require_all and is_table(dataset):
        return partial(fetch_table, otherwise=fetch)
    return fetch


def fetch_items(dataset: Any, collate_fn: Collate, task: Task, scope: Scope) -> Any:
    """Load a batch sample by sample: ``collate_fn([dataset[i] for i in keys])``."""
    indices = task[2]
    # The type that is cheapest to ask for comes first; it is the most frequent one.
    if type(indices) is not range and not isinstance(indices, (list, tuple)):
        indices = list(indices)
        task = (task[0], task[1], indices)
    scope.task = task
    cursor = scope.cursor = iter(indices)
    try:
        # Two lines on purpose, see the module's docstring.
        samples = [
            dataset[index]
            for index in cursor
        ]  # fmt: skip
        scope.cursor = COLLATE
        return collate_fn(samples)
    except StopIteration as error:
        raise explain_stop() from error


def fetch_table(
    dataset: Any, collate_fn: Collate, task: Task, scope: Scope, otherwise: Fetch
) -> Any:
    """Load a batch of a `TensorDataset` at once where that makes no difference.

    Args:
        dataset: for which `is_table` holds.
        collate_fn: ends in `default_collate`.
        task: the batch.
        scope: of the calling thread.
        otherwise: loads the batch where it does make one.
    """
    batch = gather(dataset, task[2])
    if batch is None:
        return otherwise(dataset, collate_fn, task, scope)
    scope.task = task
    scope.cursor = COLLATE
    return collate_fn(batch)


def fetch_single(dataset: Any, collate_fn: Collate, task: Task, scope: Scope) -> Any:
    """Load one sample, whose key may be anything, also a list of keys."""
    scope.task = task
    scope.cursor = SINGLE
    try:
        sample = dataset[task[2]]
        scope.cursor = COLLATE
        return collate_fn(sample)
    except StopIteration as error:
        raise explain_stop() from error


def fetch_whole(
    dataset: Any,
    collate_fn: Collate,
    task: Task,
    scope: Scope,
    check: Check | None = None,
) -> Any:
    """Load a batch by one call of ``dataset.__getitems__``, given a list of keys."""
    scope.task = task
    scope.cursor = WHOLE
    indices = task[2]
    if isinstance(indices, range):
        indices = list(indices)
    try:
        samples = dataset.__getitems__(indices)
        if check is not None:
            samples = check(samples, indices)
        scope.cursor = COLLATE
        return collate_fn(samples)
    except StopIteration as error:
        raise explain_stop() from error


def require_all(samples: Any, indices: Any) -> Any:
    """Return the samples as a sequence (a `Check`).

    Raises:
        ValueError: there are more or fewer than were asked for.
    """
    # Lists first: asking an abstract class takes as long as loading a sample may.
    if type(samples) is not list and not isinstance(samples, Sequence):
        samples = list(samples)
    if len(samples) != len(indices):
        raise ValueError(
            f"__getitems__ returned {len(samples)} samples for {len(indices)} indices; "
            "it must return one sample for each index, in order"
        )
    return samples


def uses_getitems(dataset: Any) -> bool:
    """Return whether a batch of this dataset is fetched by one ``__getitems__`` call.

    Combinators have the method to pass it on. They are asked sample by sample unless
    something in them gains by it.
    """
    method = getattr(dataset, "__getitems__", None)
    if not method:
        return False
    module = getattr(getattr(method, "__func__", None), "__module__", "")
    if module.startswith("dataloader.datasets."):
        # A wrapper that hands attributes through has its own __getitem__.
        return method.__self__ is dataset and bool(dataset._gathers())
    return not _is_plain_subset(dataset) or uses_getitems(dataset.dataset)


def fetch_part(
    dataset: Any, keys: Sequence[Any], places: Sequence[int] | None = None
) -> Any:
    """Load samples for the ``__getitems__`` of a combinator, in one call if it pays.

    `rng` is keyed as if the loader had asked for them.

    Args:
        dataset: one that the combinator is made of.
        keys: of the samples.
        places: index of each among the samples that the combinator was asked for; None
            if they are all of these.
    """
    if not uses_getitems(dataset):
        return fetch_one_by_one(dataset, keys, places)
    if places is None:
        return dataset.__getitems__(keys)
    with _part(places):
        return dataset.__getitems__(keys)


def fetch_columns(datasets: Iterable[Any], keys: Sequence[Any]) -> list[Any]:
    """Load samples of several datasets, of which those of one key are one sample.

    Args:
        datasets: what a combinator has side by side.
        keys: of the samples, the same for all.
    """
    with _part(range(len(keys)), side_by_side=True):
        return [fetch_part(dataset, keys) for dataset in datasets]


def fetch_one_by_one(
    dataset: Any, keys: Sequence[Any], places: Sequence[int] | None = None
) -> list[Any]:
    """Load samples one by one for the ``__getitems__`` of a combinator.

    Args:
        dataset: see `fetch_part`.
        keys: see `fetch_part`.
        places: see `fetch_part`.
    """
    cursor = iter(keys)
    with _part(range(len(keys)) if places is None else places, cursor):
        # Two lines on purpose, see the module's docstring.
        return [
            dataset[key]
            for key in cursor
        ]  # fmt: skip


@contextlib.contextmanager
def _part(
    places: Sequence[int],
    cursor: Iterator[Any] | None = None,
    side_by_side: bool = False,
) -> Iterator[None]:
    """Tell `rng` that a `Part` of the batch is loaded, if a batch is.

    Args:
        places: of the samples, within what is being loaded.
        cursor: see `Part`.
        side_by_side: several datasets will have parts in each sample.
    """
    scope = scope_of_whole()
    if scope is None or not places:
        yield
        return
    before = scope.cursor
    kept: dict[Any, Any] | None = {} if side_by_side else None
    if isinstance(before, Part):
        places = [before.place(place) for place in places]
        kept = kept if before.kept is None else before.kept
    scope.cursor = Part(places, cursor, kept)
    try:
        yield
    finally:
        scope.cursor = before


def _is_plain_subset(dataset: Any) -> bool:
    """Return whether this is torch's ``Subset``, or derives from it without methods."""
    method = getattr(type(dataset), "__getitems__", None)
    package = getattr(method, "__module__", "").partition(".")[0]
    return (
        getattr(method, "__qualname__", "") == "Subset.__getitems__"
        and package == "torch"
        and type(dataset).__getitem__.__qualname__ == "Subset.__getitem__"
    )


class Stream:
    """The iterator over an iterable dataset, and what has come of it.

    Belongs to the one thread that iterates it.

    Args:
        dataset: an iterable dataset; ``iter()`` of it is called here.
        batched: samples are delivered in batches.
        drop_last: leave out a last batch that is short.
    """

    def __init__(self, dataset: Any, batched: bool, drop_last: bool) -> None:
        # zip asks for iter() of what it is given, and iter() of a user's iterator may
        # begin it anew; iter() of a map is that map.
        iterator = iter(dataset)
        self._iterator = map(next, itertools.repeat(iterator))
        # Settled here: after an interrupt there must be no call before it is noted.
        self._is_mortal = not survives_interrupt(iterator)
        self._suspect = False
        self._batched = batched
        self._drop_last = drop_last
        self._ended = False
        self._ordinal = 0
        self._samples: list[Any] = []

    def fetch(self, collate_fn: Collate, task: Task, scope: Scope) -> Any:
        """Return the next batch, or `END`.

        A batch that an exception of the dataset broke off is lost, as in PyTorch; one
        that Ctrl-C broke off is completed by the next call.
        """
        try:
            batch = self._fetch(collate_fn, task, scope)
        except StopIteration as error:
            self._samples = []
            raise explain_stop() from error
        except Exception:
            self._samples = []
            raise
        self._samples = []
        return batch

    def _fetch(self, collate_fn: Collate, task: Task, scope: Scope) -> Any:
        samples = self._samples
        size = len(task[2]) if self._batched else 1
        if not self._ended and len(samples) < size:
            self._fill(size - len(samples), task[0], scope)
            self._ended = len(samples) < size
            if self._ended and self._suspect:
                self._suspect = False
                raise InterruptedDatasetError
        if not samples or (self._drop_last and len(samples) < size):
            return END
        scope.cursor = COLLATE
        return collate_fn(samples if self._batched else samples[0])

    def _fill(self, missing: int, number: int, scope: Scope) -> None:
        """Take samples; `rng` inside the dataset is keyed by their ordinals."""
        keys = range(missing)
        scope.task = (number, self._ordinal, keys)
        cursor = scope.cursor = iter(keys)
        samples = self._samples
        before = len(samples)
        append = samples.append
        try:
            # The cursor comes first in zip: when it ends nothing more is asked for.
            for _, sample in zip(cursor, self._iterator, strict=False):
                append(sample)
                self._suspect = False
        except KeyboardInterrupt:
            self._suspect = self._is_mortal
            raise
        except Exception:
            # The sample that failed has had its number; one that Ctrl-C broke off has
            # it once more.
            self._ordinal += 1
            raise
        finally:
            self._ordinal += len(samples) - before


def fetch_stream(stream: Stream, collate_fn: Collate, task: Task, scope: Scope) -> Any:
    """Load the next batch of a `Stream`."""
    return stream.fetch(collate_fn, task, scope)


def explain_stop() -> RuntimeError:
    """Return the error that StopIteration of a dataset or collate_fn becomes."""
    return RuntimeError(
        "the dataset or collate_fn raised StopIteration, which would end the epoch "
        "early without a word; return a sample or raise another exception"
    )


def note_place(error: BaseException, note: str) -> None:
    """Attach the note that says where ``error`` was raised, once.

    Args:
        error: the user's exception, which keeps type, arguments and traceback.
        note: worker, epoch, batch and indices in words.
    """
    # A frozen exception takes no notes. It matters more than the note.
    with contextlib.suppress(Exception):
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)

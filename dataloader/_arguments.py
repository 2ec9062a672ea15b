"""The checks of `DataLoader`'s arguments: PyTorch's order and exception types.

Which of several wrong arguments is reported first is part of the contract: tests and
users depend on it. Each message names argument, rule, value and fix. PyTorch raises
some of these only at the first epoch; here what is known at construction is checked at
construction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataloader.errors import BackendUnavailableError

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

__all__ = [
    "check_backend",
    "check_batching",
    "check_context",
    "check_iterable",
    "check_options",
    "check_order",
    "check_seed",
    "check_workers",
    "require_epoch",
]

MAX_THREADS = 1 << 16
"""Most threads of one loader; more is an error in the arguments, not a wish."""


def check_workers(
    num_workers: int,
    timeout: float,
    prefetch_factor: int | None,
    prefetch_depth: int | None,
    persistent_workers: bool,
) -> None:
    """Check how many workers there are, and what only makes sense with some.

    Raises:
        ValueError: a value is out of range or does not go with another.
        TypeError: ``num_workers`` or ``prefetch_depth`` is not a whole number.
    """
    if num_workers < 0:
        raise ValueError(
            "num_workers option should be non-negative; got "
            f"num_workers={num_workers}; 0 loads in the calling thread"
        )
    if timeout < 0:
        raise ValueError(
            f"timeout option should be non-negative, got timeout={timeout}; "
            "0 waits for as long as it takes"
        )
    if timeout > 0 and num_workers == 0:
        raise ValueError(
            f"timeout={timeout} needs num_workers > 0: without workers the calling "
            "thread loads each batch itself and cannot stop waiting; use timeout=0"
        )
    _check_prefetch(num_workers, prefetch_factor, prefetch_depth)
    if persistent_workers and num_workers == 0:
        raise ValueError(
            "persistent_workers option needs num_workers > 0, got num_workers=0"
        )
    _require_int("num_workers", num_workers)


def _check_prefetch(
    num_workers: int, prefetch_factor: int | None, prefetch_depth: int | None
) -> None:
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError(
            f"prefetch_factor={prefetch_factor} could only be specified with workers; "
            "use num_workers > 0, or leave prefetch_factor at None"
        )
    if prefetch_factor is not None and prefetch_factor <= 0:
        raise ValueError(
            "prefetch_factor option should be non-negative and at least 1, got "
            f"prefetch_factor={prefetch_factor}; leave it at None for 2"
        )
    if prefetch_depth is None:
        return
    _require_int("prefetch_depth", prefetch_depth)
    if prefetch_depth <= 0:
        raise ValueError(
            f"prefetch_depth must be > 0, got {prefetch_depth}; leave it at None to "
            "prefetch by prefetch_factor"
        )
    if prefetch_factor is not None:
        raise ValueError(
            f"prefetch_depth={prefetch_depth} and prefetch_factor={prefetch_factor} "
            "are mutually exclusive: both bound how far the workers load ahead"
        )


def check_options(
    num_workers: int, items_in_parallel: int, replicate: str, worker_method: str
) -> None:
    """Check the options that PyTorch does not have.

    Raises:
        ValueError: a value is out of range or unknown.
        TypeError: ``items_in_parallel`` is not a whole number.
    """
    _require_int("items_in_parallel", items_in_parallel)
    if items_in_parallel < 1:
        raise ValueError(
            f"items_in_parallel must be > 0, got {items_in_parallel}; 1 fetches the "
            "samples of a batch one after another"
        )
    threads = max(num_workers, 1) * items_in_parallel
    if threads > MAX_THREADS:
        raise ValueError(
            f"num_workers={num_workers} times items_in_parallel={items_in_parallel} is "
            f"too large: {threads} threads, at most {MAX_THREADS} are possible"
        )
    _require_choice("replicate", replicate, ("shallow", "none", "deep"))
    _require_choice("worker_method", worker_method, ("thread", "multiprocessing"))


def check_seed(seed: int | None, generator: object | None) -> None:
    """Check the seed of the order and of `rng`.

    Raises:
        TypeError: not a whole number.
        OverflowError: negative, or 2**64 or more.
        ValueError: given together with ``generator``.
    """
    if seed is None:
        return
    if isinstance(seed, bool):
        raise TypeError(f"seed must be a whole number, got {seed!r}")
    _require_int("seed", seed)
    if not 0 <= seed < 1 << 64:
        raise OverflowError(f"seed must be at least 0 and below 2**64, got {seed}")
    if generator is not None:
        raise ValueError(
            "seed and generator are mutually exclusive: both decide the order; leave "
            "one of them at None"
        )


def require_epoch(epoch: int) -> None:
    """Check the number of an epoch.

    Raises:
        TypeError: not a whole number.
        ValueError: negative.
    """
    _require_int("epoch", epoch)
    if epoch < 0:
        raise ValueError(f"epoch must be at least 0, got {epoch}")


def check_context(context: Any, num_workers: int) -> BaseContext | None:
    """Return the multiprocessing context that an argument stands for.

    Raises:
        ValueError: given without workers, or an unknown start method.
        TypeError: neither a start method nor a context.
    """
    if context is None:
        return None
    # Imported here: it is not needed by loaders with threads.
    import multiprocessing
    from multiprocessing.context import BaseContext

    if num_workers == 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading "
            f"(num_workers > 0), but got num_workers={num_workers}"
        )
    if isinstance(context, str):
        methods = multiprocessing.get_all_start_methods()
        if context not in methods:
            raise ValueError(
                "multiprocessing_context option should specify a valid start method in "
                f"{methods!r}, but got multiprocessing_context={context!r}"
            )
        context = multiprocessing.get_context(context)
    if not isinstance(context, BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a "
            "string specifying the start method, but got "
            f"multiprocessing_context={context}"
        )
    return context


def check_backend(
    worker_method: str, context: BaseContext | None, executor: object | None
) -> None:
    """Check that this version has the kind of worker that is asked for.

    Raises:
        ValueError: threads and a multiprocessing context.
        BackendUnavailableError: processes or an executor.
    """
    if executor is not None:
        raise BackendUnavailableError.asked_by("executor", executor)
    if worker_method == "multiprocessing":
        raise BackendUnavailableError.asked_by("worker_method", worker_method)
    if context is not None:
        raise BackendUnavailableError.asked_by("multiprocessing_context", context)


def check_iterable(shuffle: object, sampler: object, batch_sampler: object) -> None:
    """Check that nobody orders the samples of an iterable dataset, which orders itself.

    Raises:
        ValueError: ``shuffle``, ``sampler`` or ``batch_sampler`` is given.
    """
    expected = "DataLoader with IterableDataset: expected unspecified"
    fix = (
        "the dataset decides the order of its samples; shuffle or shard it in __iter__"
    )
    if shuffle not in {False, None}:
        raise ValueError(f"{expected} shuffle option, but got shuffle={shuffle}; {fix}")
    if sampler is not None:
        raise ValueError(f"{expected} sampler option, but got sampler={sampler}; {fix}")
    if batch_sampler is not None:
        raise ValueError(
            f"{expected} batch_sampler option, but got batch_sampler={batch_sampler}; "
            f"{fix}"
        )


def check_order(sampler: object, shuffle: bool) -> None:
    """Check that the order is decided once.

    Raises:
        ValueError: ``sampler`` and ``shuffle`` are given.
    """
    if sampler is not None and shuffle:
        raise ValueError(
            "sampler option is mutually exclusive with shuffle: both decide the order; "
            "leave shuffle at False or let the sampler go"
        )


def check_batching(
    batch_size: int | None,
    shuffle: bool,
    sampler: object,
    batch_sampler: object,
    drop_last: bool,
) -> None:
    """Check that batches are formed in one way.

    Raises:
        ValueError: ``batch_sampler`` with what it replaces, or ``drop_last`` without
            batches.
        TypeError: ``sampler`` or ``batch_sampler`` cannot be iterated over.
    """
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise ValueError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, "
                "sampler, and drop_last: it decides all four; got "
                f"batch_size={batch_size}, shuffle={shuffle}, sampler={sampler}, "
                f"drop_last={drop_last}"
            )
        _require_iterable("batch_sampler", batch_sampler)
    elif batch_size is None and drop_last:
        raise ValueError(
            "batch_size=None option disables auto-batching and is mutually exclusive "
            "with drop_last; leave drop_last at False"
        )
    _require_iterable("sampler", sampler)


def _require_int(name: str, value: object) -> None:
    if not hasattr(type(value), "__index__"):
        raise TypeError(f"{name} must be a whole number, got {value!r}")


def _require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")


def _require_iterable(name: str, value: object) -> None:
    kind = type(value)
    if value is None or hasattr(kind, "__iter__") or hasattr(kind, "__getitem__"):
        return
    raise TypeError(
        f"{name} must be an iterable of keys, got {value!r} of type {kind.__name__}"
    )

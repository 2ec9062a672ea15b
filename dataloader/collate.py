"""Collation: many samples become one batch, by the rules of PyTorch's loader.

Which rule applies is decided by the first sample: a function of the table for its exact
type, else for a base class, in the order of the table; else it is a container, whose
values, items or fields are collated one by one. Results are tensors where torch is
installed and NumPy arrays where not; torch is imported when an array, number or tensor
first needs it. A batch is the same in every thread, and never in shared memory.

Parts: `_collate_torch` and `_collate_numpy` hold the functions for leaves,
`_collate_map` the table, `_collate_errors` the errors, `_containers` what keeps types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dataloader import _collate_numpy, _collate_torch, _torch_probe
from dataloader._collate_errors import (
    RaggedBatchError,
    UnsupportedTypeError,
    add_step,
    explain_lookup,
    explain_types,
    raise_explained,
)
from dataloader._collate_map import CollateFnMap, Entries, Rule, UnloadedTensor
from dataloader._containers import (
    is_namedtuple,
    like_mapping,
    like_sequence,
    map_container,
)
from dataloader._fast import take_values

__all__ = [
    "collate",
    "default_collate",
    "default_collate_fn_map",
    "default_convert",
    "numpy_collate",
    "torch_collate",
]


def _keep(batch: Any, *, collate_fn_map: Entries | None = None) -> Any:
    """Return strings as they are."""
    return batch


def _rule(name: str) -> Rule:
    return Rule(getattr(_collate_torch, name), getattr(_collate_numpy, name))


default_collate_fn_map: CollateFnMap = CollateFnMap(
    {
        UnloadedTensor: _rule("collate_tensors"),
        np.ndarray: _rule("collate_arrays"),
        (np.bool_, np.number, np.object_): _rule("collate_scalars"),
        float: _rule("collate_floats"),
        int: _rule("collate_ints"),
        str: _keep,
        bytes: _keep,
    }
)
"""The functions that `default_collate` uses, by type or tuple of types; add your own.

A function is called with the list of samples, and with ``collate_fn_map=`` to be handed
on to `collate` for parts of them. What libraries register in PyTorch's table of this
name is used too.
"""


_OWN = frozenset(
    getattr(module, f"collate_{leaf}")
    for module in (_collate_numpy, _collate_torch)
    for leaf in ("arrays", "scalars", "tensors")
)


def default_collate(batch: Sequence[Any]) -> Any:
    """Make a batch: tensors where torch is installed, NumPy arrays where not.

    | samples | batch |
    |---|---|
    | tensors, arrays of shape ``S`` and one dtype | shape ``(n, *S)``, that dtype |
    | floats | float64 of shape ``(n,)`` |
    | ints | int64 of shape ``(n,)`` |
    | bools | bool of shape ``(n,)`` |
    | NumPy scalars | their dtype, shape ``(n,)`` |
    | strings, bytes | the list of them, unchanged |
    | mappings | the same type, each key of the first sample collated |
    | named tuples | the same type, each field collated |
    | tuples | a **list** of collated items |
    | lists and other sequences | the same type where it can be, items collated |

    Args:
        batch: at least one sample.

    Raises:
        RuntimeError: if shapes or lengths differ, or for sparse and nested tensors.
        TypeError: for other types (None among them) and dtypes.
        ValueError: for arrays of foreign byte order and ints beyond int64.
        KeyError: if a later sample lacks a key of the first.
        IndexError: if the batch is empty.

    Example:
        >>> default_collate([{"x": 1.5, "name": "a"}, {"x": 2.5, "name": "b"}])
        {'x': tensor([1.5000, 2.5000], dtype=torch.float64), 'name': ['a', 'b']}
    """
    if isinstance(batch, Collated):
        return batch.batch
    if _torch_probe.torch_installed():
        return torch_collate(batch)
    return numpy_collate(batch)


def as_default(array: Any) -> Any:
    """Return a new array of numbers in the form in which `default_collate` returns it.

    That is a tensor on its memory where torch is installed.
    """
    if not _torch_probe.torch_installed():
        return array
    import torch

    return torch.from_numpy(array)


class Collated:
    """Stands for samples whose batch is there already: `default_collate` returns it.

    Args:
        batch: the batch.
    """

    __slots__ = ("batch",)

    def __init__(self, batch: Any) -> None:
        self.batch: Any = batch


def has_own_rules(sample: tuple[Any, ...]) -> bool:
    """Return whether all rules for a tuple of tensors and NumPy data are our own.

    They are not where users or libraries registered functions for their types.
    """
    form: Any = "torch" if _torch_probe.torch_installed() else "numpy"
    entries = default_collate_fn_map.resolved(form)
    functions = [_find(part, entries) for part in sample]
    return _find(sample, entries) is None and _OWN.issuperset(functions)


def torch_collate(batch: Sequence[Any]) -> Any:
    """Make a batch of tensors, by the rules of `default_collate`.

    Args:
        batch: at least one sample.

    Raises:
        ImportError: if torch is not installed.
    """
    if not _torch_probe.torch_installed():
        raise ImportError(
            "torch_collate makes tensors, but torch is not installed; install it "
            "(pip install torch) or use numpy_collate"
        )
    return collate(batch, collate_fn_map=default_collate_fn_map.resolved("torch"))


def numpy_collate(batch: Sequence[Any]) -> Any:
    """Make a batch of NumPy arrays, by the rules of `default_collate`.

    Tensors among the samples become arrays. Every dtype that NumPy can stack is kept,
    objects excepted. What is registered in PyTorch's table, which makes tensors, does
    not apply.

    Args:
        batch: at least one sample.
    """
    return collate(batch, collate_fn_map=default_collate_fn_map.resolved("numpy"))


def collate(batch: Sequence[Any], *, collate_fn_map: Entries | None = None) -> Any:
    """Make a batch by a table of functions; containers keep the default rules.

    Args:
        batch: at least one sample.
        collate_fn_map: functions by type or tuple of types, tried in this order after
            the exact type of the first sample. Each is called with the samples and
            ``collate_fn_map=``.

    Raises:
        TypeError: for a type that is neither in the table nor a container.

    Example:
        >>> class Box: ...
        >>> def collate_boxes(batch, *, collate_fn_map=None):
        ...     return batch
        >>> table = default_collate_fn_map | {Box: collate_boxes}
        >>> batch = collate([(Box(), 1), (Box(), 2)], collate_fn_map=table)
    """
    # Asking what is no dict already is no small part of a small batch's time.
    if type(collate_fn_map) is not dict and isinstance(collate_fn_map, CollateFnMap):
        collate_fn_map = collate_fn_map.snapshot()
    sample = _first(batch)
    collate_fn = _find(sample, collate_fn_map)
    if collate_fn is not None:
        return collate_fn(batch, collate_fn_map=collate_fn_map)
    if isinstance(sample, Mapping):
        return _collate_mappings(batch, collate_fn_map)
    if is_namedtuple(sample):
        return _collate_namedtuples(batch, collate_fn_map)
    if isinstance(sample, Sequence) and not isinstance(sample, (str, bytes)):
        return _collate_sequences(batch, collate_fn_map)
    raise UnsupportedTypeError(type(sample))


def default_convert(data: Any) -> Any:
    """Convert one sample that is not batched: what ``batch_size=None`` does to it.

    NumPy arrays and scalars become tensors, sharing the arrays' memory, where torch is
    installed; where not, scalars become arrays without dimensions. Containers are
    rebuilt as `default_collate` does. All else, arrays of strings or objects too, is
    returned as it is.

    Args:
        data: the sample.

    Raises:
        TypeError: for NumPy data that torch has no dtype for.
        ValueError: for arrays of foreign byte order.
    """
    installed = _torch_probe.torch_installed()
    leaf = (_collate_torch if installed else _collate_numpy).convert_leaf
    return _convert(data, leaf)


def _convert(data: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(data, (np.ndarray, np.generic)) or type(data).__module__ == "numpy":
        return leaf(data)
    return map_container(lambda item: _convert(item, leaf), data, keep_tuples=False)


def _first(batch: Sequence[Any]) -> Any:
    try:
        return batch[0]
    except IndexError as error:
        raise IndexError(
            "default_collate: batch must have at least one sample, got none"
        ) from error


def _find(sample: Any, entries: Entries | None) -> Callable[..., Any] | None:
    if entries is None:
        return None
    collate_fn = entries.get(type(sample))
    if collate_fn is not None:
        return collate_fn
    matches = (fn for kind, fn in entries.items() if isinstance(sample, kind))
    return next(matches, None)


def _collate_mappings(batch: Sequence[Any], entries: Entries | None) -> Any:
    template = batch[0]
    values = {
        key: _collate_part(_values(batch, key), entries, "[{!r}]", key)
        for key in template
    }
    return like_mapping(template, values)


def _collate_namedtuples(batch: Sequence[Any], entries: Entries | None) -> Any:
    template = batch[0]
    values = [
        _collate_part(column, entries, ".{}", field)
        for field, column in zip(template._fields, _transpose(batch), strict=False)
    ]
    return type(template)(*values)


def _collate_sequences(batch: Sequence[Any], entries: Entries | None) -> Any:
    template = batch[0]
    _check_lengths(batch)
    values = [
        _collate_part(column, entries, "[{}]", index)
        for index, column in enumerate(_transpose(batch))
    ]
    return values if isinstance(template, tuple) else like_sequence(template, values)


def _collate_part(
    column: Sequence[Any], entries: Entries | None, step: str, key: object
) -> Any:
    """Collate one part of every sample.

    Args:
        column: the part, of each sample.
        entries: the table.
        step: how an error names the part: a format string for ``key``.
        key: the mapping's key, the sequence's index, the field's name.
    """
    try:
        return collate(column, collate_fn_map=entries)
    except Exception as error:
        add_step(error, step.format(key))
        raise


def _values(batch: Sequence[Any], key: object) -> list[Any]:
    try:
        return take_values(batch, key)
    except Exception as error:
        raise_explained(explain_lookup(error, batch, key), error)


def _transpose(batch: Sequence[Any]) -> list[tuple[Any, ...]]:
    try:
        return list(zip(*batch, strict=False))
    except TypeError as error:
        raise_explained(explain_types(error, batch, Sequence), error)


def _check_lengths(batch: Sequence[Any]) -> None:
    try:
        lengths = list(map(len, batch))
    except TypeError as error:
        raise_explained(explain_types(error, batch, Sequence), error)
    for position, length in enumerate(lengths):
        if length != lengths[0]:
            raise RaggedBatchError("lengths", position, lengths[0], length)

"""The errors of collation, which say where in the sample and in which samples.

The good path pays nothing for this. The place inside the sample is put together while
an exception passes outwards through the containers, and the samples that differ are
looked up only after torch or NumPy has refused the batch.

    CollateError
     +-- RaggedBatchError      shapes, lengths, dtypes differ        (RuntimeError)
     +-- MixedBatchError       types differ                 (TypeError, RuntimeError)
     +-- UnbatchableTensorError  nested and sparse tensors           (RuntimeError)
     +-- UnsupportedTypeError  a type that no rule covers               (TypeError)
     +-- UnsupportedDtypeError a dtype that a batch cannot have         (TypeError)
     +-- ByteOrderError        a foreign byte order                    (ValueError)
     +-- IntegerRangeError     an int beyond int64      (ValueError, OverflowError)
     +-- MissingKeyError       a key that a later sample lacks           (KeyError)

The type in brackets is the one that PyTorch raises, so what catches that still works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NoReturn

import numpy as np

__all__ = [
    "ByteOrderError",
    "CollateError",
    "IntegerRangeError",
    "MissingKeyError",
    "MixedBatchError",
    "RaggedBatchError",
    "UnbatchableTensorError",
    "UnsupportedDtypeError",
    "UnsupportedTypeError",
    "add_step",
    "explain_lookup",
    "explain_numbers",
    "explain_stack",
    "explain_types",
    "raise_explained",
    "refuse_unbatchable",
]

_ACCEPTED = "batch must contain tensors, numpy arrays, numbers, dicts or lists"
_INT64 = range(-(2**63), 2**63)
_FACTS = {
    "shape": "shapes",
    "dtype": "dtypes",
    "device": "devices",
    "layout": "layouts",
}
_FIXES = {
    "shapes": "pad or crop them to one shape, or pass collate_fn",
    "dtypes": "convert them to one dtype, or pass collate_fn",
    "devices": "move them to one device, or pass collate_fn",
    "layouts": "convert them to one layout, or pass collate_fn",
    "lengths": (
        "each element in list of batch should be of equal size, so pad or crop them, "
        "or pass collate_fn"
    ),
}


class CollateError(Exception):
    """A batch that cannot be made, with the place inside the sample.

    Args:
        head: the message up to the place.
        tail: the message from there on.
    """

    def __init__(self, head: str, tail: str) -> None:
        super().__init__(f"default_collate: {head}{tail}")
        self._head = head
        self._tail = tail
        self._path = ""

    def __str__(self) -> str:
        # KeyError would show the quoted form.
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)

    def add_step(self, step: str) -> None:
        """Put ``step``, such as ``['image']``, before the place found so far."""
        self._path = step + self._path
        self.args = (f"default_collate: {self._head} at {self._path}{self._tail}",)


def _restore(
    kind: type[CollateError], args: tuple[Any, ...], state: dict[str, Any]
) -> CollateError:
    """Make an error from its pickled parts: the facts it was made of are gone."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class RaggedBatchError(CollateError, RuntimeError):
    """Samples that differ in shape, length, dtype or device.

    Args:
        fact: what differs: a key of the table of fixes.
        position: of the differing sample in the batch, from 0.
        first: the fact of sample 0.
        other: the fact of the sample at ``position``.
    """

    def __init__(self, fact: str, position: int, first: object, other: object) -> None:
        if isinstance(first, tuple) and isinstance(other, tuple):  # torch.Size
            first, other = tuple(first), tuple(other)
        super().__init__(
            f"samples 0 and {position} differ",
            f": {fact} {first} and {other}; {_FIXES[fact]}",
        )


class MixedBatchError(CollateError, TypeError, RuntimeError):
    """Samples of types that do not go together.

    PyTorch raises TypeError or RuntimeError by the pair of types; this is both.

    Args:
        position: of the differing sample in the batch, from 0.
        first: sample 0.
        other: the sample at ``position``.
    """

    def __init__(self, position: int, first: object, other: object) -> None:
        super().__init__(
            f"samples 0 and {position} differ",
            f": types {type(first).__qualname__} and {type(other).__qualname__}; "
            "return one type from every sample, or pass collate_fn",
        )


class UnsupportedTypeError(CollateError, TypeError):
    """A sample of a type for which there is no rule.

    Args:
        kind: the type.
    """

    def __init__(self, kind: type) -> None:
        super().__init__(
            f"{_ACCEPTED}; found {kind}",
            "; convert it in the dataset, register a function for it in "
            "default_collate_fn_map, or pass collate_fn",
        )


class UnsupportedDtypeError(CollateError, TypeError):
    """An array or tensor of a dtype that the batch cannot have.

    Args:
        dtype: of the sample.
        fix: what to do about it.
    """

    def __init__(self, dtype: object, fix: str) -> None:
        super().__init__(
            f"{_ACCEPTED}; found dtype {dtype}", f"; {fix}, or pass collate_fn"
        )


class ByteOrderError(CollateError, ValueError):
    """An array whose byte order is not the machine's.

    Args:
        dtype: of the sample.
    """

    def __init__(self, dtype: object) -> None:
        super().__init__(
            f"tensors have the machine's byte order; found dtype {dtype}",
            "; convert it with array.astype(array.dtype.newbyteorder('=')), or pass "
            "collate_fn",
        )


class IntegerRangeError(CollateError, ValueError, OverflowError):
    """A Python int that int64 cannot hold: torch and NumPy differ in the type.

    Args:
        position: of the sample in the batch, from 0.
        value: the int.
    """

    def __init__(self, position: int, value: int) -> None:
        super().__init__(
            f"ints must fit in int64, got {value} in sample {position}",
            "; return a float or a string, or pass collate_fn",
        )


class UnbatchableTensorError(CollateError, RuntimeError):
    """A tensor that does not stack: nested or sparse.

    Args:
        kind: which of the two.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"{kind} tensors",
            " are not currently supported by the default collate_fn; make them dense "
            "in the dataset, or pass a collate_fn that joins them",
        )


class MissingKeyError(CollateError, KeyError):
    """A key of sample 0 that a later sample lacks.

    Args:
        key: the key.
        position: of the sample without it, from 0.
    """

    def __init__(self, key: object, position: int) -> None:
        super().__init__(
            f"sample {position} has no key {key!r}, which sample 0 has",
            "; give every sample the same keys, or pass collate_fn",
        )


class _Place(str):
    """A note that says where in the sample an exception of other code arose."""

    path: str

    def __new__(cls, path: str) -> _Place:
        place = super().__new__(cls, f"default_collate: at {path} of the samples")
        place.path = path
        return place

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


def add_step(error: Exception, step: str) -> None:
    """Record that ``error`` came out of the part of the sample that ``step`` names.

    Args:
        error: of this module, or of the user's or torch's code: then it gets a note
            and is otherwise left as it is.
        step: such as ``['image']``, ``[0]`` or ``.image``.
    """
    if isinstance(error, CollateError):
        error.add_step(step)
        return
    notes: list[str] = getattr(error, "__notes__", [])
    if notes and isinstance(notes[-1], _Place):
        notes[-1] = _Place(step + notes[-1].path)
    else:
        error.add_note(_Place(step))


def raise_explained(explained: Exception, error: Exception) -> NoReturn:
    """Raise what `explain_stack` and its like made of ``error``, if of its type."""
    if explained is error or not isinstance(explained, type(error)):
        raise error
    raise explained from error


def refuse_unbatchable(tensor: Any) -> None:
    """Raise `UnbatchableTensorError` for a nested or sparse torch tensor."""
    if tensor.is_nested:
        raise UnbatchableTensorError("nested")
    if "sparse" in str(tensor.layout):
        raise UnbatchableTensorError("sparse")


def explain_stack(error: Exception, batch: Any) -> Exception:
    """Return the error to raise for arrays or tensors that did not stack.

    Args:
        error: what torch or NumPy raised; returned itself when the samples do not say
            more than it does.
        batch: the samples.
    """
    if isinstance(error, TypeError):
        return explain_types(error, batch)
    for attribute, plural in _FACTS.items():
        position = _first_difference(error, batch, attrgetter(attribute))
        if position is not None:
            first, other = batch[0], batch[position]
            facts = getattr(first, attribute), getattr(other, attribute)
            return RaggedBatchError(plural, position, *facts)
    return error


def explain_types(error: Exception, batch: Any, *kinds: type) -> Exception:
    """Return the error to raise where a sample does not go with sample 0.

    Args:
        error: what was raised; returned itself when no sample stands out.
        batch: the samples.
        kinds: the types that would do beside that of sample 0.
    """
    fitting = (type(batch[0]), *kinds)
    position = _first_difference(error, batch, lambda one: isinstance(one, fitting))
    if position is None:
        return error
    return MixedBatchError(position, batch[0], batch[position])


def explain_numbers(error: Exception, batch: Any) -> Exception:
    """Return the error to raise for numbers that did not make a batch.

    Args:
        error: what torch or NumPy raised; returned itself when the samples do not say
            more than it does.
        batch: the samples.
    """
    if isinstance(error, (ValueError, OverflowError)) and _is_batch(batch):
        for position, value in enumerate(batch):
            if isinstance(value, int) and value not in _INT64:
                return IntegerRangeError(position, value)
    return explain_types(error, batch, int, float, complex, np.number, np.bool_)


def explain_lookup(error: Exception, batch: Any, key: object) -> Exception:
    """Return the error to raise where a sample did not give its value for ``key``.

    Args:
        error: what the sample raised; returned itself if it is not about a missing key
            or a sample that is no mapping.
        batch: the samples, sample 0 a mapping.
        key: of sample 0.
    """
    for position, sample in enumerate(batch):
        if not isinstance(sample, Mapping):
            if _is_stock(error):
                return MixedBatchError(position, batch[0], sample)
            return error
        if type(error) is KeyError and key not in sample:
            return MissingKeyError(key, position)
    return error


def _first_difference(
    error: Exception, batch: Any, fact: Callable[[Any], object]
) -> int | None:
    """Return the first position whose fact is not that of sample 0, or None."""
    if not (_is_stock(error) and _is_batch(batch)):
        return None
    first = fact(batch[0])
    differing = (at for at, sample in enumerate(batch) if fact(sample) != first)
    return next(differing, None)


def _is_stock(error: Exception) -> bool:
    # A subclass (out of memory, not implemented) says more than its base would.
    return type(error) in (RuntimeError, TypeError, ValueError)


def _is_batch(batch: object) -> bool:
    return isinstance(batch, (list, tuple))

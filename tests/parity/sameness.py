"""What it means that two loaders or functions give the same; odd types to try it on."""

from __future__ import annotations

import contextlib
import enum
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")


class Point(NamedTuple):
    x: Any
    y: Any


class Color(enum.IntEnum):
    RED = 1
    BLUE = 2


class TaggedDict(dict[Any, Any]):
    tag = ""


class TaggedList(list[Any]):
    tag = ""


class FrozenMapping(Mapping[Any, Any]):
    def __init__(self, contents: Any) -> None:
        self.contents = dict(contents)

    def __getitem__(self, key: Any) -> Any:
        return self.contents[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.contents)

    def __len__(self) -> int:
        return len(self.contents)


class StubbornDict(dict[Any, Any]):
    def __copy__(self) -> StubbornDict:
        raise TypeError("cannot be copied")


class FrozenSequence(Sequence[Any]):
    def __init__(self, contents: Any) -> None:
        self.contents = list(contents)

    def __getitem__(self, index: Any) -> Any:
        return self.contents[index]

    def __len__(self) -> int:
        return len(self.contents)


class TensorLike(torch.Tensor):  # type: ignore[misc, name-defined]
    pass


def tagged(container: Any, tag: str) -> Any:
    container.tag = tag
    return container


def assert_same(ours: Any, theirs: Any) -> None:
    """Assert equal types, dtypes, shapes and values, and equal attributes."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.device == theirs.device
        assert ours.requires_grad == theirs.requires_grad
        assert ours.is_contiguous()
        assert torch.equal(torch.nan_to_num(ours), torch.nan_to_num(theirs))
    elif isinstance(theirs, (np.ndarray, np.generic)):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(theirs, Mapping):
        assert list(ours) == list(theirs)
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, Sequence) and not isinstance(theirs, (str, bytes)):
        assert len(ours) == len(theirs)
        for our_item, their_item in zip(ours, theirs, strict=True):
            assert_same(our_item, their_item)
    else:
        assert ours == theirs
    if hasattr(theirs, "__dict__") and not isinstance(theirs, (torch.Tensor, type)):
        assert_same(vars(ours), vars(theirs))


def outcome(function: Callable[[Any], Any], value: Any) -> tuple[Any, Any]:
    """Return what the function returned, or else the exception that it raised."""
    with quiet():
        try:
            return function(value), None
        except Exception as error:
            return None, error


@contextlib.contextmanager
def case(name: str) -> Iterator[None]:
    """Name the case in what fails inside."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {name!r}")
        raise


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let NumPy and torch warn of the odd things that some cases are made of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def assert_parity(
    ours: Callable[[Any], Any],
    theirs: Callable[[Any], Any],
    make: Callable[[], Any],
) -> None:
    """Assert equal results, or exceptions that a handler for PyTorch's catches."""
    with quiet():
        own, other = make(), make()
    result, error = outcome(ours, own)
    expected, expected_error = outcome(theirs, other)
    if expected_error is not None:
        assert isinstance(error, type(expected_error)), (error, expected_error)
    else:
        assert error is None, error
        assert_same(result, expected)


def floats(*shape: int, dtype: Any = np.float32) -> Any:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)

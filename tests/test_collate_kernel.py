"""The kernel of collation: both twins do what NumPy would, for any samples."""

from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from twins import twins

KERNEL = "collate"
IMPLEMENTATIONS = twins(KERNEL)

DTYPES = [
    *("?", "i1", "u2", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "g"),
    *(">i4", ">f8", ">c8", ">M8[ns]", ">U3"),
    *("S3", "U2", "S0", "V5", "M8[s]", "M8[us]", "m8[ms]"),
    *([("a", "i1"), ("b", ">f4", (2,))], np.dtype("i1,f8", align=True)),
]
# What torch and NumPy take for numbers, as Python and NumPy have them.
NUMBERS = [
    *(0, -1, 2**63 - 1, -(2**63), 2**63, 2**70, 1.5, -0.0, float("nan"), 1e308),
    *(True, False, 2j, np.float32(1.5), np.float64(2.5), np.int64(-3), np.bool_(1)),
    *("1", None, [1], np.zeros(2), np.array(1)),
]
SCALARS = [
    *(np.bool_(True), np.int8(-1), np.int16(2), np.int32(3), np.int64(2**63 - 1)),
    *(np.uint8(4), np.uint16(5), np.uint32(6), np.uint64(2**64 - 1), np.longlong(7)),
    *(np.float16(1.5), np.float32("nan"), np.float64(-0.0), np.longdouble(2.5)),
    *(np.complex64(1j), np.complex128(2j), np.clongdouble(3j)),
]


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda module: module.__name__[-3:])
def impl(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def filled(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    """Return an array whose bytes are random zeros and ones."""
    array = np.zeros(shape, dtype)
    if array.nbytes:
        values = np.random.default_rng(seed).integers(0, 2, array.nbytes, np.uint8)
        array.reshape(-1).view(np.uint8)[:] = values
    return array


def has_gaps(array: Any) -> bool:
    """Return whether elements may have bytes that mean nothing."""
    return bool(array.dtype.char in "gGV")


def outcome(function: Callable[[Any], Any], samples: Any) -> Any:
    """Return all that tells one result from another: dtype, shape, order and bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = function(samples)
    if result is None:
        return None
    assert type(result) is np.ndarray
    assert result.flags.c_contiguous
    assert result.flags.writeable
    assert result.base is None
    values = repr(result.tolist()) if has_gaps(result) else result.tobytes()
    return result.dtype, result.dtype.byteorder, result.shape, values


def same(function: str, samples: Any) -> Any:
    """Return what the twins make of the samples, if it is the same."""
    first, *others = (outcome(getattr(t, function), samples) for t in IMPLEMENTATIONS)
    assert all(other == first for other in others)
    return first


# --- arrays ---------------------------------------------------------------------------

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@st.composite
def layouts(draw: st.DrawFn) -> Callable[[Any], Any]:
    """Return a function that gives an array another layout, and keeps its shape."""
    kinds: list[Callable[[Any], Any]] = [
        lambda array: array,
        np.asfortranarray,
        lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
        lambda array: array[::-1],
        lambda array: array.T.copy().T,
        lambda array: np.broadcast_to(array[:1], array.shape),
        lambda array: array.astype(array.dtype.newbyteorder()),
        lambda array: array.view(np.recarray),
    ]
    layout: Callable[[Any], Any] = draw(st.sampled_from(kinds))
    return layout


@given(st.sampled_from(DTYPES), shapes, st.lists(layouts(), min_size=1, max_size=6))
def test_twins_stack_arrays_of_any_dtype_shape_and_layout(
    dtype: Any, shape: tuple[int, ...], layouts: list[Any]
) -> None:
    arrays = [filled(shape, dtype, seed) for seed in range(len(layouts))]
    if shape:
        arrays = [lay(array) for lay, array in zip(layouts, arrays, strict=True)]
    found = same("stack_arrays", arrays)
    alike = all(np.can_cast(a.dtype, arrays[0].dtype, "no") for a in arrays)
    assert (found is not None) == alike
    if found is not None:
        assert found[2] == (len(arrays), *shape)
        if not has_gaps(arrays[0]):
            assert found[3] == b"".join(np.asarray(one).tobytes() for one in arrays)


ODD: list[Any] = [
    np.zeros(3),
    np.zeros(3, "f4"),
    np.zeros(3, ">f8"),
    np.zeros(4),
    np.zeros((3, 1)),
    np.array(1.5),
    np.float64(1.5),
    np.ma.masked_array([1.0, 2.0, 3.0], [True, False, False]),
    np.zeros((1, 3)),
    [0.0, 1.0, 2.0],
    None,
    np.array([1, None, "a"], dtype=object),
    np.array(["a", "b", "c"]),
    np.zeros(3, [("x", "f8")]),
]


@given(st.lists(st.sampled_from(ODD), min_size=1, max_size=4))
def test_twins_agree_on_what_goes_together(samples: list[Any]) -> None:
    same("stack_arrays", samples)
    same("stack_arrays", tuple(samples))


def test_arrays_of_one_kind_are_joined_and_others_are_not(impl: ModuleType) -> None:
    first = np.arange(3.0)
    assert impl.stack_arrays([first, first + 3]).tolist() == [[0, 1, 2], [3, 4, 5]]
    for other in (first.astype("f4"), first.astype(">f8"), first[:2], first[None], [1]):
        assert impl.stack_arrays([first, other]) is None
        assert impl.stack_arrays([other, first]) is None


def test_an_array_for_a_batch_is_its_rows(impl: ModuleType) -> None:
    batch = np.arange(6).reshape(3, 2)
    stacked = impl.stack_arrays(batch)
    assert np.array_equal(stacked, batch)
    assert not np.shares_memory(stacked, batch)


def test_strings_without_a_character_are_stacked_as_such(impl: ModuleType) -> None:
    empty = np.ndarray((4,), [("name", "S0")], b"")["name"]
    assert same("stack_arrays", [empty, empty]) is None


def test_dtypes_that_are_equal_and_not_identical_go_together(impl: ModuleType) -> None:
    # As unpickled arrays have them.
    own = np.dtype("f4", copy=True)
    assert own is not np.dtype("f4")
    arrays = [np.ones(2, "f4"), np.ones(2, own), np.ones(2, "f4")]
    assert impl.stack_arrays(arrays).tolist() == [[1, 1]] * 3
    longs = [np.ones(2, "l"), np.ones(2, "q")]
    assert (impl.stack_arrays(longs) is None) == (np.dtype("l") != np.dtype("q"))


def test_variable_width_strings_are_copied_as_numpy_copies_them(
    impl: ModuleType,
) -> None:
    if not hasattr(np.dtypes, "StringDType"):
        pytest.skip("NumPy has no such dtype")
    text = "long enough to lie somewhere else"
    arrays = [np.array([text, str(n)], np.dtypes.StringDType()) for n in range(3)]
    stacked = impl.stack_arrays(arrays)
    del arrays
    assert stacked.tolist() == [[text, str(n)] for n in range(3)]


@pytest.mark.parametrize("size", [4, 1 << 20])
def test_a_large_batch_is_stacked_like_a_small_one(impl: ModuleType, size: int) -> None:
    arrays = [np.full(size, n, np.int32) for n in range(3)]
    stacked = impl.stack_arrays(arrays)
    assert stacked.shape == (3, size)
    assert (stacked == np.arange(3)[:, None]).all()


# --- numbers --------------------------------------------------------------------------


@given(st.lists(st.sampled_from(NUMBERS), max_size=5))
def test_twins_read_numbers_alike(numbers: list[Any]) -> None:
    for batch in (numbers, tuple(numbers)):
        found = same("number_vector", batch)
        if found is not None and found[0].kind != "O":
            assert found[3] == np.array(batch).tobytes()


@pytest.mark.parametrize(
    "samples", [{0: 1, 1: 2}, {1.5: 0}, {1, 2}, range(3), np.arange(3), "12"], ids=str
)
def test_twins_agree_on_what_is_no_list(samples: Any) -> None:
    same("number_vector", samples)


@given(st.lists(st.floats(), min_size=1))
def test_twins_read_floats_alike(numbers: list[float]) -> None:
    assert same("number_vector", numbers)[3] == np.array(numbers).tobytes()


@given(st.lists(st.integers(-(2**64), 2**64), min_size=1))
def test_twins_read_ints_alike(numbers: list[int]) -> None:
    same("number_vector", numbers)


@given(st.lists(st.booleans(), min_size=1))
def test_twins_read_bools_alike(numbers: list[bool]) -> None:
    assert same("number_vector", numbers)[0].kind == "b"


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: type(scalar).__name__)
def test_scalars_of_one_type_keep_it(impl: ModuleType, scalar: Any) -> None:
    vector = impl.scalar_vector([scalar, type(scalar)(1), scalar])
    assert vector.dtype == scalar.dtype
    np.testing.assert_array_equal(vector, np.array([scalar, 1, scalar], scalar.dtype))


@given(st.lists(st.sampled_from(SCALARS), max_size=3))
def test_twins_agree_on_which_scalars_go_together(scalars: list[Any]) -> None:
    same("scalar_vector", scalars)


# --- mappings -------------------------------------------------------------------------


def test_values_are_taken_by_key_and_errors_are_the_samples_own(
    impl: ModuleType,
) -> None:
    samples = [{"a": 1}, collections.ChainMap({}, {"a": 2}), {"a": None}]
    assert impl.take_values(samples, "a") == [1, 2, None]
    assert impl.take_values([(1, 2), [3, 4]], -1) == [2, 4]
    with pytest.raises(KeyError, match="'b'"):
        impl.take_values(samples, "b")
    with pytest.raises(TypeError, match="not subscriptable"):
        impl.take_values([{"a": 1}, 5], "a")


# --- memory and threads ---------------------------------------------------------------


def test_samples_keep_their_reference_counts(impl: ModuleType) -> None:
    array, odd, scalar = np.zeros(3), np.zeros(4), np.float32(1)
    counted = (array, odd, scalar, array.dtype)
    before = [sys.getrefcount(one) for one in counted]
    for _ in range(10):
        impl.stack_arrays([array, array])
        impl.stack_arrays([array, odd])
        impl.scalar_vector([scalar, scalar])
        impl.scalar_vector([scalar, np.int8(1)])
        impl.number_vector([1.5, 2, "a"])
    gc.collect()
    assert [sys.getrefcount(one) for one in counted] == before


def test_nothing_is_left_behind(impl: ModuleType) -> None:
    batches = [
        [np.zeros(1000, "f4")] * 8,
        [np.zeros(1000, "f4"), np.zeros(1000)],
        [np.zeros((20, 50), "f4").T] * 2,
    ]

    def growth() -> int:
        before = tracemalloc.get_traced_memory()[0]
        for batch in batches * 10:
            impl.stack_arrays(batch)
            impl.number_vector([1.5] * 1000)
            impl.number_vector([2**70] * 1000)
            impl.scalar_vector([np.float32(1)] * 1000)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    growth()
    tracemalloc.start()
    try:
        # Other threads allocate too, and free late; a leak would show each time.
        assert min(growth() for _ in range(5)) < 3000
    finally:
        tracemalloc.stop()


def test_threads_stack_the_same_arrays_at_once(impl: ModuleType) -> None:
    arrays = [np.full(20_000, n) for n in range(8)]
    numbers = list(range(2000))

    def work(_: int) -> bool:
        stacked = impl.stack_arrays(arrays)
        ints = impl.number_vector(numbers)
        return bool((stacked == np.arange(8)[:, None]).all() and ints[-1] == 1999)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(100)))


def test_arrays_that_another_thread_would_resize_stay_whole(impl: ModuleType) -> None:
    # NumPy resizes no array that somebody refers to, and so the kernel must.
    samples: list[Any] = []
    resized: list[int] = []
    ready, over = threading.Event(), threading.Event()

    def resize() -> None:
        # A thread can resize only what it made itself, and what nobody else has.
        samples.extend(np.ones(40_000) for _ in range(8))
        for size in itertools.chain.from_iterable(
            itertools.repeat([40_000] * 8 + [20_000] * 8)
        ):
            array = samples.pop()
            with contextlib.suppress(ValueError):
                array.resize(size)
                resized.append(size)
            array[:] = 1
            samples.insert(0, array)
            del array
            ready.set()
            if over.is_set():
                return

    thread = threading.Thread(target=resize)
    thread.start()
    ready.wait()
    try:
        stacks = [impl.stack_arrays(samples) for _ in range(200)]
    finally:
        over.set()
        thread.join()
    assert len(set(resized)) == 2
    assert all(stack is None or (stack <= 1).all() for stack in stacks)


def test_the_list_of_samples_may_change_meanwhile(impl: ModuleType) -> None:
    samples = [np.ones(40_000) for _ in range(8)]
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            samples[3] = np.ones(40_000)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(100):
            assert (impl.stack_arrays(samples) == 1).all()
    finally:
        over.set()
        thread.join()

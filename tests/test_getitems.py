"""``__getitems__`` of combinators: the same samples as one by one, in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import MakeLoader
from hypothesis import given
from hypothesis import strategies as st

from dataloader import (
    ConcatDataset,
    DataLoader,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
    rng,
)
from dataloader.fetch import uses_getitems
from dataloader.worker_info import Part

SIZE = 23


class One(Dataset[int]):
    """Samples one by one; notes what it was asked."""

    def __init__(self, start: int = 0, n: int = 10) -> None:
        self.start = start
        self.n = n
        self.asked: list[Any] = []

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        return range(self.start, self.start + self.n)[index]

    def __len__(self) -> int:
        return self.n


class Many(One):
    """The same, many at a time."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(list(indices))
        return [range(self.start, self.start + self.n)[index] for index in indices]


def tensors(n: int = 10) -> TensorDataset:
    return TensorDataset(np.arange(n * 4).reshape(n, 2, 2), np.arange(n) / 2, "x" * n)


MADE: dict[str, Callable[[], Any]] = {
    "tensors": tensors,
    "one array": lambda: TensorDataset(np.arange(10)),
    "objects": lambda: TensorDataset(np.array([None, "a", 2] * 3, dtype=object)),
    "backwards": lambda: TensorDataset(np.arange(20).reshape(10, 2)[::-1, ::-1]),
    "lists": lambda: TensorDataset(list(range(10)), "abcdefghij"),
    "subset": lambda: Subset(tensors(), [7, 2, 2, 9, 0, 1]),
    "subset by array": lambda: Subset(tensors(), np.array([7, 2, 2, -1, 0])),  # type: ignore[arg-type]
    "subset of subset": lambda: Subset(Subset(Many(), [9, 3, 4, 8]), [2, 0, 1]),
    "concat": lambda: ConcatDataset([tensors(3), tensors(0), tensors(4)]),
    "concat of many": lambda: ConcatDataset([Many(0, 3), [], Many(50, 6)]),
    "concat of both": lambda: ConcatDataset([One(0, 3), Many(50, 6), range(90, 93)]),
    "concat of concats": lambda: ConcatDataset(
        [ConcatDataset([Many(0, 3), One(20, 2)]), Many(50, 6)]
    ),
    "concat of one": lambda: ConcatDataset([Many(0, 5)]),
    "stack": lambda: StackDataset(tensors(), Many(), One()),
    "stack named": lambda: StackDataset(a=tensors(), b=ConcatDataset([Many(), []])),
    "plain": lambda: ConcatDataset([StackDataset("ab", [1, 2]), Subset("abc", [2])]),
}


def equal(one: Any, other: Any) -> bool:
    """Whether two samples are the same in type and value."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and equal([*one.values()], [*other.values()])
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


# --- the same samples -----------------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
@given(data=st.data())
def test_a_batch_is_the_samples_one_by_one(name: str, data: st.DataObject) -> None:
    dataset = MADE[name]()
    n = len(dataset)
    keys = data.draw(st.lists(st.integers(-n, n - 1), max_size=2 * n))
    if data.draw(st.booleans()) and keys:
        start = data.draw(st.integers(0, n - 1))
        keys = list(range(start, n))
    assert equal(dataset.__getitems__(keys), [dataset[key] for key in keys])


@pytest.mark.parametrize("name", MADE)
def test_loaders_give_the_same_batches_as_one_by_one(
    make_loader: MakeLoader, name: str
) -> None:
    class Plain:
        def __init__(self, dataset: Any) -> None:
            self.dataset = dataset

        def __len__(self) -> int:
            return len(self.dataset)

        def __getitem__(self, index: int) -> Any:
            return self.dataset[index]

    options: dict[str, Any] = {"shuffle": True, "seed": 3, "collate_fn": list}
    loader = make_loader(MADE[name](), batch_size=4, **options)
    assert equal(list(loader), list(DataLoader(Plain(MADE[name]()), 4, **options)))


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("key", ["end", "before", 1.5, "a", 2**70])
def test_bad_keys_are_the_errors_of_single_samples(name: str, key: Any) -> None:
    dataset = MADE[name]()
    bad = {"end": len(dataset), "before": -len(dataset) - 1}.get(key, key)
    with pytest.raises(Exception) as single:  # noqa: PT011  # compared below
        dataset[bad]
    with pytest.raises(Exception) as whole:  # noqa: PT011  # compared below
        dataset.__getitems__([0, bad])
    assert whole.type is single.type


def test_keys_of_other_types_mean_what_they_mean_one_by_one() -> None:
    dataset = tensors()
    for keys in (
        [True, False],
        [np.int64(3), 2],
        [slice(0, 2)],
        [[1, 2]],
        [np.uint8(4)],
    ):
        if isinstance(keys[0], (list, bool)):  # str has no such keys
            dataset = TensorDataset(*tensors().tensors[:2])
        assert equal(dataset.__getitems__(keys), [dataset[key] for key in keys])


# --- TensorDataset --------------------------------------------------------------------


class Counting(np.ndarray[Any, np.dtype[Any]]):
    """An array that is none of NumPy's own."""


@pytest.mark.parametrize("keys", [[2, 3, 4], [4, 2, 3], [1], [3, 3]])
def test_gathered_samples_do_not_alias_the_arrays(keys: list[int]) -> None:
    array = np.arange(20).reshape(10, 2)
    (row,), *_ = TensorDataset(array).__getitems__(keys)
    assert not np.shares_memory(row, array)
    row[:] = -1
    assert array.min() == 0


def test_arrays_that_are_read_only_give_samples_that_can_be_written() -> None:
    array = np.arange(20).reshape(10, 2)
    array.flags.writeable = False
    (row,), *_ = TensorDataset(array).__getitems__([1, 2])
    assert row.flags.writeable


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([np.arange(3)], True),
        ([np.arange(3), [1, 2, 3], (1, 2, 3), "abc", range(3), b"abc"], True),
        ([[1, 2, 3]], False),
        ([np.arange(3), One(0, 3)], False),
        ([np.arange(3).view(Counting)], False),
        ([np.ma.masked_array([1, 2, 3])], False),
        ([], False),
    ],
)
def test_loaders_gather_only_from_what_they_know(
    columns: list[Any], expected: bool
) -> None:
    assert uses_getitems(TensorDataset(*columns)) is expected


def test_a_memory_map_is_gathered_from(tmp_path: Any) -> None:
    path = tmp_path / "rows"
    np.arange(20, dtype=np.int32).tofile(path)
    dataset = TensorDataset(np.memmap(path, np.int32, "r", shape=(10, 2)))
    assert uses_getitems(dataset)
    for keys in ([3, 1], [1, 2]):
        rows = [row.tolist() for (row,) in dataset.__getitems__(keys)]
        assert rows == [[2 * key, 2 * key + 1] for key in keys]


def test_torch_tensors_are_gathered_from() -> None:
    torch = pytest.importorskip("torch")
    columns = {
        "float": torch.arange(20.0).reshape(10, 2),
        "scalar": torch.arange(10),
        "bfloat16": torch.arange(10).to(torch.bfloat16),
        "transposed": torch.arange(20).reshape(2, 10).T,
        "complex": torch.arange(10).to(torch.complex64).conj(),
    }
    dataset = TensorDataset(*columns.values())
    assert uses_getitems(dataset)
    for keys in ([3, 4, 5], [9, -1, 0], [2], []):
        gathered = dataset.__getitems__(keys)
        assert len(gathered) == len(keys)
        for ours, expected in zip(
            gathered, map(dataset.__getitem__, keys), strict=True
        ):
            for a, b in zip(ours, expected, strict=True):
                assert type(a) is type(b)
                assert a.dtype is b.dtype
                assert torch.equal(a, b)
    dataset.__getitems__([3, 4])[0][0].fill_(-1)
    assert columns["float"].min() == 0


def test_tensors_that_are_more_than_rows_are_asked_one_by_one() -> None:
    torch = pytest.importorskip("torch")
    assert not uses_getitems(TensorDataset(torch.ones(3, requires_grad=True)))
    assert not uses_getitems(TensorDataset(torch.nn.Parameter(torch.ones(3))))
    assert not uses_getitems(TensorDataset(torch.eye(3).to_sparse()))
    weights = torch.ones(3, requires_grad=True)
    (sample,), *_ = TensorDataset(weights).__getitems__([0, 1])
    sample.backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == [1, 0, 0]


# --- ConcatDataset, StackDataset ------------------------------------------------------


def test_each_joined_dataset_is_asked_once_for_all_its_samples() -> None:
    first, second, third = Many(0, 3), Many(50, 6), One(90, 4)
    joined: ConcatDataset[int] = ConcatDataset([first, second, third])
    keys = [12, 5, 0, 3, -2, 2, 9]
    assert joined.__getitems__(keys) == [93, 52, 0, 50, 92, 2, 90]
    assert first.asked == [[0, 2]]
    assert second.asked == [[2, 0]]
    assert third.asked == [3, 2, 0]


@pytest.mark.parametrize("answer", [[1], [1, 2, 3], iter([1])])
def test_a_joined_dataset_must_return_what_it_was_asked_for(answer: Any) -> None:
    class Wrong(Many):
        def __getitems__(self, indices: list[int]) -> Any:
            return answer

    with pytest.raises(ValueError, match=r"samples for 2 indices"):
        ConcatDataset([One(0, 3), Wrong()]).__getitems__([3, 0, 4])


def test_a_joined_dataset_may_return_any_iterable() -> None:
    class Lazy(Many):
        def __getitems__(self, indices: list[int]) -> Any:
            return iter(super().__getitems__(indices))

    assert ConcatDataset([One(0, 3), Lazy(5)]).__getitems__([4, 0, 3]) == [6, 0, 5]


def test_loaders_ask_combinators_at_once_only_if_something_in_them_gains() -> None:
    for combine in (ConcatDataset, lambda d: StackDataset(*d)):
        assert uses_getitems(combine([Many(), One()]))
        assert uses_getitems(combine([Subset(Many(), range(10)), One()]))
        assert not uses_getitems(combine([One(), Subset(One(), range(10))]))
        assert not uses_getitems(combine([combine([One()])]))


# --- derived classes ------------------------------------------------------------------


class Negated(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(-column for column in super().__getitem__(index))


class Negatives(Negated):
    pass


class Shifted(ConcatDataset[int]):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) + 1000


class Swapped(StackDataset):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)[::-1]


DERIVED: dict[str, Callable[[], Any]] = {
    "tensors": lambda: Negated(np.arange(10)),
    "twice": lambda: Negatives(np.arange(10)),
    "concat": lambda: Shifted([Many(0, 5), Many(50, 5)]),
    "stack": lambda: Swapped(Many(), Many(50)),
}


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_class_with_its_own_getitem_is_asked_by_that(
    make_loader: MakeLoader, name: str
) -> None:
    dataset = DERIVED[name]()
    expected = [dataset[i] for i in range(10)]
    assert not uses_getitems(dataset)
    assert list(make_loader(dataset, batch_size=10, collate_fn=list)) == [expected]
    # PyTorch's loader calls the method wherever it finds it.
    assert dataset.__getitems__(list(range(10))) == expected


def test_a_derived_class_may_have_both_methods_of_its_own() -> None:
    class Both(Negated):
        def __getitems__(self, indices: list[int]) -> Any:
            return ["whole"] * len(indices)

    dataset = Both(np.arange(3))
    assert uses_getitems(dataset)
    assert list(DataLoader(dataset, 3, collate_fn=list)) == [["whole"] * 3]


@pytest.mark.parametrize(
    "inner",
    [
        tensors(),
        ConcatDataset([Many()]),
        StackDataset(Many()),
        Subset(Many(), range(9)),
    ],
)
def test_a_wrapper_that_hands_attributes_through_is_not_passed_by(inner: Any) -> None:
    class Wrapper:
        def __len__(self) -> int:
            return len(inner)

        def __getitem__(self, index: int) -> str:
            return f"wrapped {index}"

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    assert uses_getitems(inner)
    loader = DataLoader(Wrapper(), 2, collate_fn=list)
    assert next(iter(loader)) == ["wrapped 0", "wrapped 1"]


# --- rng ------------------------------------------------------------------------------


class Noise(Dataset[Any]):
    """Samples are an index and a random number."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(rng().random())


class Bulk(Noise):
    """The same, many at a time."""

    def __getitems__(self, indices: list[int]) -> list[tuple[int, float]]:
        return [(j, float(rng(i).random())) for i, j in enumerate(indices)]


NOISY: dict[str, Callable[[type[Noise], type[Noise]], Any]] = {
    "concat": lambda a, b: ConcatDataset([a(5), b(3), a(7), b(8)]),
    "stack": lambda a, b: StackDataset(a(SIZE), b(SIZE)),
    "subset": lambda a, b: Subset(ConcatDataset([a(20), b(20)]), range(5, 5 + SIZE)),
    "nested": lambda a, b: ConcatDataset(
        [
            StackDataset(a(9), ConcatDataset([b(4), a(5)])),
            StackDataset(Subset(b(9), range(9)), a(9)),
            StackDataset(ConcatDataset([a(3), b(2)]), TensorDataset(np.arange(5))),
        ]
    ),
}


def epochs(loader: DataLoader[Any]) -> list[Any]:
    """Return the samples of two epochs."""
    return [[sample for batch in loader for sample in batch] for _ in range(2)]


@pytest.mark.parametrize("kinds", [(Bulk, Bulk), (Noise, Bulk), (Bulk, Noise)])
@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("shuffle", [False, True])
def test_random_numbers_are_those_of_single_samples(
    name: str, kinds: Any, shuffle: bool
) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 5, "collate_fn": list}
    # Without batching every sample is asked for by itself.
    singly = DataLoader(
        NOISY[name](Noise, Noise), None, **{**options, "collate_fn": lambda s: s}
    )
    expected = [list(singly), list(singly)]
    for workers in (0, 2):
        loader = DataLoader(
            NOISY[name](*kinds), 6, num_workers=workers, help=False, **options
        )
        found = epochs(loader)
        assert found == expected


def test_a_generator_for_all_samples_of_a_call_differs_between_datasets() -> None:
    class Together(Bulk):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return list(map(float, rng().random(len(indices))))

    def numbers(batch_size: int) -> list[float]:
        loader = DataLoader(
            ConcatDataset([Together(6), Together(6)]),
            batch_size,
            seed=1,
            collate_fn=list,
            sampler=[0, 6, 1, 7, 2, 8],
        )
        return [number for batch in loader for number in batch]

    assert len(set(numbers(6))) == 6
    assert numbers(6) == numbers(6)


def test_after_an_error_in_a_part_the_numbers_are_those_of_the_batch() -> None:
    class Failing(Bulk):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            raise OSError("broken")

    class Caught(ConcatDataset[Any]):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            with pytest.raises(OSError, match="broken"):
                super().__getitems__(indices)
            return [float(rng(i).random()) for i in range(len(indices))]

    def numbers(dataset: Any) -> Any:
        return next(iter(DataLoader(dataset, 4, seed=1, collate_fn=list)))

    joined = Caught([Noise(2), Failing(2)])
    assert numbers(joined) == [number for _, number in numbers(Bulk(4))]


def test_a_part_goes_on_counting_beyond_its_samples() -> None:
    # A dataset that wants more generators than samples gets other ones.
    part = Part([4, 1, 7])
    assert [part.place(i) for i in range(5)] == [4, 1, 7, 8, 9]
    assert part.index is None
    cursor = iter([0, 0, 0])
    part = Part([4, 1, 7], cursor)
    next(cursor)
    assert part.index == 0
    next(cursor)
    assert part.index == 1

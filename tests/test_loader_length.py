"""len(loader): batches of an epoch, and the warning when a stream yields more."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import MakeLoader

from dataloader import BatchSampler, DataLoader, IterableDataset


class Sized(IterableDataset[int]):
    """A stream that says how long it is, right or wrong."""

    def __init__(self, claimed: int, actual: int) -> None:
        self.claimed = claimed
        self.actual = actual

    def __len__(self) -> int:
        return self.claimed

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.actual))


class Unsized(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class NoLength:
    """A map-style dataset without a length."""

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("samples", "batch_size", "drop_last", "expected"),
    [
        (7, 3, False, 3),
        (7, 3, True, 2),
        (6, 3, False, 2),
        (6, 3, True, 2),
        (0, 3, False, 0),
        (2, 3, True, 0),
        (5, 1, False, 5),
    ],
)
def test_length_of_map_style_and_iterable_loaders(
    make_loader: MakeLoader,
    samples: int,
    batch_size: int,
    drop_last: bool,
    expected: int,
) -> None:
    options: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last}
    assert len(make_loader(range(samples), **options)) == expected
    assert len(make_loader(range(samples), shuffle=samples > 0, **options)) == expected
    assert len(make_loader(Sized(samples, samples), **options)) == expected


def test_length_without_batching_is_the_number_of_samples() -> None:
    assert len(DataLoader(range(7), batch_size=None)) == 7
    assert len(DataLoader(Sized(7, 7), batch_size=None)) == 7


def test_length_follows_the_sampler() -> None:
    # A sampler longer than the dataset draws samples more than once.
    assert len(DataLoader(range(3), 2, sampler=[0] * 7)) == 4
    assert len(DataLoader(range(3), 2, sampler=[0] * 7, drop_last=True)) == 3
    assert len(DataLoader(range(3), batch_sampler=[[0], [1]] * 5)) == 10
    assert len(DataLoader(range(3), batch_size=None, sampler=[1])) == 1
    inner = BatchSampler([0] * 7, 2, drop_last=False)
    assert len(DataLoader(range(3), batch_sampler=inner)) == 4


def test_the_datasets_length_is_believed(make_loader: MakeLoader) -> None:
    class Modest:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            return range(10)[index]

    loader = make_loader(Modest(), batch_size=4, collate_fn=list)
    assert len(loader) == 2
    assert list(loader) == [[0, 1, 2, 3], [4, 5]]


@pytest.mark.parametrize(
    "options",
    [
        {"dataset": NoLength()},
        {"dataset": NoLength(), "batch_size": None},
        {"dataset": range(3), "sampler": iter([0])},
        {"dataset": range(3), "batch_sampler": iter([[0]])},
        {"dataset": Unsized()},
        {"dataset": Unsized(), "batch_size": None},
    ],
    ids=str,
)
def test_there_is_no_length_where_nobody_knows_it(options: dict[str, Any]) -> None:
    loader = DataLoader(**options)
    with pytest.raises(TypeError):
        len(loader)


def test_a_stream_without_a_length_is_iterated(make_loader: MakeLoader) -> None:
    loader = make_loader(Unsized(), batch_size=2, collate_fn=list)
    assert len(list(loader)) == 2 * max(loader.num_workers, 1)
    with pytest.raises(TypeError):
        len(iter(loader))


# The warning.


def warnings_of(loader: DataLoader[Any], ask: bool) -> tuple[int, list[str]]:
    """Return the number of batches of an epoch, and what was warned of."""
    if ask:
        len(loader)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = sum(1 for _ in loader)
    assert all(item.category is UserWarning for item in caught)
    return batches, [str(item.message) for item in caught]


@pytest.fixture
def few(backend: dict[str, Any]) -> dict[str, Any]:
    """Options of a backend with one worker at most."""
    return {**backend, "num_workers": min(backend["num_workers"], 1)}


def test_every_batch_past_the_length_that_was_told_is_warned_of(
    few: dict[str, Any],
) -> None:
    loader = DataLoader(Sized(3, 6), collate_fn=list, **few)
    batches, messages = warnings_of(loader, ask=True)
    assert batches == 6
    assert len(messages) == 3
    for number, message in enumerate(messages, start=4):
        assert "Length of IterableDataset" in message
        assert "reported to be 3" in message
        assert f"{number} samples have been fetched" in message


def test_nothing_is_warned_of_when_nobody_asked(few: dict[str, Any]) -> None:
    assert warnings_of(DataLoader(Sized(3, 6), **few), ask=False) == (6, [])


def test_a_right_or_too_large_length_is_not_warned_of(few: dict[str, Any]) -> None:
    for claimed in (6, 9):
        assert warnings_of(DataLoader(Sized(claimed, 6), **few), ask=True) == (6, [])


def test_batches_are_compared_with_samples(few: dict[str, Any]) -> None:
    # PyTorch's rule: three times the samples in batches of eight are few batches.
    loader = DataLoader(Sized(10, 30), 8, **few)
    assert warnings_of(loader, ask=True) == (4, [])


def test_len_does_not_arm_an_iterator_that_is_running(few: dict[str, Any]) -> None:
    loader = DataLoader(Sized(3, 6), collate_fn=list, **few)
    running = iter(loader)
    len(loader)
    assert len(list(running)) == 6  # a warning would be an error
    assert len(warnings_of(loader, ask=False)[1]) == 3


def test_workers_that_duplicate_a_stream_are_hinted_at() -> None:
    _, messages = warnings_of(DataLoader(Sized(3, 3), num_workers=2), ask=True)
    assert len(messages) == 3
    assert all("get_worker_info" in message for message in messages)
    _, messages = warnings_of(DataLoader(Sized(2, 3)), ask=True)
    assert len(messages) == 1
    assert "get_worker_info" not in messages[0]


def test_the_warning_points_at_the_users_line(few: dict[str, Any]) -> None:
    loader = DataLoader(Sized(1, 2), collate_fn=list, **few)
    len(loader)
    iterator = iter(loader)
    assert next(iterator) == [0]
    with pytest.warns(UserWarning, match="reported to be 1") as caught:
        assert next(iterator) == [1]
    assert caught[0].filename == __file__


def test_a_warning_that_is_an_error_loses_no_batch(few: dict[str, Any]) -> None:
    loader = DataLoader(Sized(1, 3), collate_fn=list, **few)
    len(loader)
    iterator = iter(loader)
    assert next(iterator) == [0]
    with pytest.raises(UserWarning, match="reported to be 1"):
        next(iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert list(iterator) == [[1], [2]]

"""Rows of token ids: padding, masks, and rows that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader import _torch_probe, token_collate

ROWS: list[Any] = [[5, 6, 7], (8,), np.array([9, 10], "u2"), []]


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch_probe, "torch_installed", lambda: False)


def test_rows_of_one_length_need_no_padding() -> None:
    ids = token_collate([[1, 2], np.array([3, 4], "i4")])
    assert ids.tolist() == [[1, 2], [3, 4]]
    assert "int64" in str(ids.dtype)


@pytest.mark.usefixtures("without_torch")
def test_without_torch_the_batch_is_an_array() -> None:
    ids, mask = token_collate([[1], [2, 3]], pad_id=0, return_mask=True)
    for array in (ids, mask):
        assert type(array) is np.ndarray
        assert array.dtype == np.int64


def test_with_torch_the_batch_is_a_tensor() -> None:
    torch = pytest.importorskip("torch")
    ids = token_collate([torch.tensor([1, 2], dtype=torch.int32), [3]], pad_id=-100)
    assert type(ids) is torch.Tensor
    assert ids.dtype == torch.int64
    assert ids.tolist() == [[1, 2], [3, -100]]


@pytest.mark.parametrize(
    ("side", "expected"),
    [
        ("right", [[5, 6, 7], [8, 0, 0], [9, 10, 0], [0, 0, 0]]),
        ("left", [[5, 6, 7], [0, 0, 8], [0, 9, 10], [0, 0, 0]]),
    ],
)
def test_shorter_rows_are_padded_on_one_side(side: Any, expected: Any) -> None:
    assert token_collate(ROWS, pad_id=0, side=side).tolist() == expected


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({"pad_to": 3}, 3),
        ({"pad_to": 6}, 6),
        ({"pad_to_multiple_of": 3}, 3),
        ({"pad_to_multiple_of": 8}, 8),
        ({"pad_to": 6, "pad_to_multiple_of": 4}, 8),
        ({"pad_to_multiple_of": np.int64(2)}, 4),
    ],
)
def test_the_length_can_be_fixed_or_rounded_up(options: Any, length: int) -> None:
    assert tuple(token_collate(ROWS, pad_id=0, **options).shape) == (4, length)


@given(
    st.lists(st.lists(st.integers(0, 5)), min_size=1),
    st.sampled_from(["right", "left"]),
    st.integers(1, 9),
)
def test_the_mask_tells_tokens_from_padding(
    rows: list[list[int]], side: Any, multiple: int
) -> None:
    ids, mask = token_collate(
        rows, pad_id=0, side=side, pad_to_multiple_of=multiple, return_mask=True
    )
    ids, mask = np.asarray(ids), np.asarray(mask).astype(bool)
    assert [list(i[m]) for i, m in zip(ids, mask, strict=True)] == rows
    assert not ids[~mask].any()
    assert ids.shape[1] % multiple == 0


def test_the_batch_is_new_memory() -> None:
    row = np.zeros(3, np.int64)
    token_collate([row])[...] = 1
    assert not row.any()


@pytest.mark.parametrize(
    ("rows", "options", "kind", "words"),
    [
        ([], {}, IndexError, "at least one row, got none"),
        ([[1], [2, 3]], {}, ValueError, "must have 2 tokens without pad_id, got 1 in"),
        ([[1, 2]], {"pad_to": 4}, ValueError, "sample 0; pass pad_id"),
        ([[1], [1, 2, 3]], {"pad_to": 2}, ValueError, "got 2 for 3 tokens in sample 1"),
        ([[1], [1.5]], {}, TypeError, "sample 1 must be a row of whole numbers"),
        ([[1], [True]], {}, TypeError, "whole numbers, got bool"),
        ([["a"]], {}, TypeError, "sample 0 must be a row of whole numbers"),
        ([[1], 2], {}, ValueError, r"sample 1 .* one dimension, got shape \(\)"),
        ([[[1]]], {}, ValueError, r"one dimension, got shape \(1, 1\)"),
        ([[[1], [1, 2]]], {}, ValueError, "sample 0 must be a row of one dimension"),
        ([[2**63]], {}, ValueError, "int64 numbers, got 9223372036854775808"),
        ([[1]], {"side": "top"}, ValueError, "side must be 'right' or 'left'"),
        ([[1]], {"pad_to": 0}, ValueError, "pad_to must be a positive int"),
        ([[1]], {"pad_to_multiple_of": 1.5}, ValueError, "must be a positive int"),
        ([[1]], {"pad_id": 1.5}, TypeError, "integer"),
        ([[1]], {"pad_id": 2**63}, ValueError, "pad_id must fit in int64"),
    ],
)
def test_what_cannot_be_a_batch_is_named(
    rows: Any, options: Any, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        token_collate(rows, **options)

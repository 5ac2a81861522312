"""Codes of identifiers and sums by code equal what a dictionary gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfmodel.base.arrays import Int64
from perfmodel.base.errors import ReportError
from perfmodel.readers.codes import Ids, factorize, sums
from perfmodel.readers.trace import NO_NAME, NULL

bounded = settings(max_examples=60, deadline=None, derandomize=True)
integer = st.integers(0, 6) | st.integers(-3, 5000) | st.integers(-(2**63), 2**63 - 1)


def column(values: list[int]) -> Int64:
    return np.array(values, np.int64)


@bounded
@given(values=st.lists(integer, max_size=60))
@example(values=[])
@example(values=[NULL, NULL, 2**63 - 1])
def test_factorize(values: list[int]) -> None:
    codes, distinct = factorize(column(values))
    assert codes.dtype == np.int32
    assert distinct.tolist() == sorted(set(values))
    assert distinct[codes].tolist() == values


def test_factorize_finds_what_its_sample_misses() -> None:
    values = np.zeros(100_000, np.int64)
    values[[1, 50_001, 99_999]] = [7, -7, NULL]
    codes, distinct = factorize(values)
    assert distinct.tolist() == [NULL, -7, 0, 7]
    assert (distinct[codes] == values).all()


@bounded
@given(
    ids=st.lists(integer, max_size=30),
    asked=st.lists(integer, max_size=30),
    known=st.lists(st.integers(0, 29), max_size=20),
)
@example(ids=[0, 1, 2], asked=[-1, 3, 4, 2**62, NULL], known=[])
@example(ids=[5, 5], asked=[5], known=[])
def test_ids(ids: list[int], asked: list[int], known: list[int]) -> None:
    asked = asked + [ids[k % len(ids)] for k in known if ids]
    position = {value: i for i, value in reversed([*enumerate(ids)])}
    codes = Ids(column(ids)).codes(column(asked))
    assert codes.dtype == np.int32
    assert codes.tolist() == [position.get(value, NO_NAME) for value in asked]


@bounded
@given(
    rows=st.lists(st.tuples(st.integers(0, 4), st.integers(-(2**55), 2**55)), max_size=30),
)
def test_sums(rows: list[tuple[int, int]]) -> None:
    codes, values = column([c for c, _ in rows]), column([v for _, v in rows])
    wanted = [sum(v for c, v in rows if c == code) for code in range(5)]
    assert sums(codes, values, 5).tolist() == wanted


def test_sums_beyond_64_bits_are_refused() -> None:
    values = column([2**62, 2**62])
    with pytest.raises(ReportError, match="more than 2\\^63"):
        sums(column([0, 0]), values, 1)
    with pytest.raises(ReportError, match="more than 2\\^63"):
        sums(column([0, 1]), values, 2)

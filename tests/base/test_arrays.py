"""Distinct rows of columns, by a table of what is possible or by sorting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.arrays import distinct_positions, distinct_rows

FEW = st.integers(-3, 3)
FAR = st.sampled_from([-(10**9), 0, 5, 10**9])
HUGE = st.sampled_from([-(2**62), 1, 2**62])


@pytest.mark.parametrize("values", [FEW, FAR, HUGE])
def test_distinct_rows_are_those_of_numpy(values: st.SearchStrategy[int]) -> None:
    @given(st.lists(st.tuples(values, values, FEW)))
    def holds(rows: list[tuple[int, int, int]]) -> None:
        table = np.array(rows, np.int64).reshape(-1, 3)
        found, number = distinct_rows(*table.T)
        expected, inverse = np.unique(table, axis=0, return_inverse=True)
        assert found.tolist() == expected.tolist()
        assert number.tolist() == inverse.ravel().tolist()

    holds()


def test_distinct_positions() -> None:
    assert distinct_positions(np.array([5, 0, 5, 2]), 7).tolist() == [0, 2, 5]
    assert distinct_positions(np.array([], np.int64), 0).tolist() == []

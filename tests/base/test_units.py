"""Units: numbers with SI prefixes, written and read back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.units import parse_si, si

UNITS = ["B/s", "FLOP/s", "s", "B", "FLOP/B"]


@pytest.mark.parametrize(
    ("value", "unit", "digits", "text"),
    [
        (1.632730e12, "FLOP/s", 3, "1.63 TFLOP/s"),
        (0.000470879, "s", 4, "470.9 µs"),
        (999.6, "B", 3, "1.00 kB"),  # rounds up into the next prefix
        (999.4, "B", 3, "999 B"),
        (0.9996, "s", 3, "1.00 s"),
        (1e3, "B", 3, "1.00 kB"),
        (1024, "B", 4, "1.024 kB"),  # never 2^10
        (-2.5e-6, "s", 2, "-2.5 µs"),
        (0, "B/s", 3, "0 B/s"),
        (0.0, "s", 3, "0 s"),
        (1e-15, "s", 3, "0.00100 ps"),
        (1e30, "B", 3, "1000000 YB"),
        (math.inf, "B/s", 3, "inf B/s"),
        (12, "FLOP/B", 1, "10 FLOP/B"),
        (None, "s", 3, "–"),
        (math.nan, "s", 3, "–"),
    ],
)
def test_written(value: float | None, unit: str, digits: int, text: str) -> None:
    assert si(value, unit, digits) == text


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("27 GB/s", "B/s", 27e9),
        ("27e9", "B/s", 27e9),
        ("27e9 B/s", "B/s", 27e9),
        (" 1.5 ms ", "s", 1.5e-3),
        ("3us", "s", 3e-6),
        ("3 µs", "s", 3e-6),
        (".5", "s", 0.5),
        ("-2.", "s", -2.0),
        ("+1E+3", "B", 1e3),
        ("0", "s", 0.0),
        ("5 m", "m", 5.0),
        ("5 mm", "m", 5e-3),
    ],
)
def test_read(text: str, unit: str, value: float) -> None:
    assert parse_si(text, unit) == value


@pytest.mark.parametrize(
    "text", ["", "GB/s", "1 2", "1,5", "27 GiB/s", "27 gb/s", "27 GB", "nan", "inf", "1e", "0x10",
             "27 B / s", "__import__('os')", "١"]
)  # fmt: skip
def test_what_is_no_quantity_is_refused(text: str) -> None:
    if text == "١":  # a digit of another script is a digit
        assert parse_si(text, "B/s") == 1.0
        return
    with pytest.raises(PerfmodelError, match="such as '27 GB/s'"):
        parse_si(text, "B/s")
    with pytest.raises(PerfmodelError, match="such as '27 ms'"):
        parse_si(text, "s")


@settings(derandomize=True, deadline=None)
@given(st.floats(1e-12, 1e26) | st.floats(-1e26, -1e-12), st.sampled_from(UNITS))
def test_what_is_written_is_read(value: float, unit: str) -> None:
    assert parse_si(si(value, unit, 6), unit) == pytest.approx(value, rel=1e-5)


@settings(derandomize=True, deadline=None)
@given(st.floats(1e-11, 1e26), st.integers(1, 6))
def test_a_number_has_at_most_four_places_before_the_point(value: float, digits: int) -> None:
    number, unit = si(value, "s", digits).split(" ")
    assert 1.0 <= float(number) < 1000.0
    assert unit.endswith("s")

"""Rooflines: the document's algebra, bounds of the smooth roof, and what cannot be drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import ModelError
from perfmodel.models.roofline import Roofline

DOCUMENT = Roofline("document", 1.632697e12, {"pci": 1.2720e10, "mpi": 7.9502e9},
                    {"pci": 0.5, "mpi": 0.5})  # fmt: skip
AI = 2_439_168_000 / 6_512_800

rate = st.floats(1e3, 1e15)
intensity = st.floats(1e-6, 1e9)


@st.composite
def roofs(draw: st.DrawFn) -> Roofline:
    links = draw(st.dictionaries(st.sampled_from(["pci", "mpi", "nccl"]), rate, min_size=1))
    weights = [draw(st.floats(0.01, 1.0)) for _ in links]
    shares = {k: w / sum(weights) for k, w in zip(links, weights, strict=True)}
    return Roofline("r", draw(rate), links, shares)


def test_the_document_s_roof() -> None:
    """Question 2.5: F = AI / (AI/P_flops + 1/2 (1/P_pci + 1/P_mpi)) = 1.1295 TFLOP/s at 374.5."""
    by_hand = AI / (AI / 1.632697e12 + 0.5 * (1 / 1.2720e10 + 1 / 7.9502e9))
    assert float(DOCUMENT.smooth(AI)) == pytest.approx(by_hand)
    assert by_hand == pytest.approx(1.1295e12, rel=1e-4)
    assert 2_439_168_000 / by_hand == pytest.approx(2.160e-3, abs=1e-6)


def test_the_document_s_ridge() -> None:
    assert DOCUMENT.bandwidth_bytes_per_s == pytest.approx(9.785e9, rel=1e-4)
    assert DOCUMENT.ridge_flops_per_byte == pytest.approx(166.9, abs=0.05)
    assert float(DOCUMENT.hard(AI)) == 1.632697e12  # right of the ridge
    assert float(DOCUMENT.hard(100.0)) == pytest.approx(9.785e11, rel=1e-4)


def test_unequal_bytes_shift_the_roof() -> None:
    """Three quarters of the bytes over the slow link: 1 / (0.25/4 + 0.75/1) = 1.2308."""
    roof = Roofline("r", 10.0, {"fast": 4.0, "slow": 1.0}, {"fast": 0.25, "slow": 0.75})
    assert roof.bandwidth_bytes_per_s == pytest.approx(16 / 13)


@settings(derandomize=True, deadline=None)
@given(roofs(), intensity)
def test_the_smooth_roof_lies_below_the_hard_one_and_above_half_of_it(
    roof: Roofline, at: float
) -> None:
    smooth, hard = float(roof.smooth(at)), float(roof.hard(at))
    assert 0.5 * hard * (1 - 1e-9) <= smooth <= hard * (1 + 1e-9)


@settings(derandomize=True, deadline=None)
@given(roofs())
def test_at_the_ridge_both_terms_take_equal_time(roof: Roofline) -> None:
    ridge = roof.ridge_flops_per_byte
    assert float(roof.smooth(ridge)) == pytest.approx(roof.flops_per_s / 2)
    assert float(roof.hard(ridge)) == pytest.approx(roof.flops_per_s)


@settings(derandomize=True, deadline=None)
@given(roofs(), intensity, intensity)
def test_roofs_rise(roof: Roofline, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert float(roof.smooth(low)) <= float(roof.smooth(high)) * (1 + 1e-12)
    assert float(roof.hard(low)) <= float(roof.hard(high)) * (1 + 1e-12)


@settings(derandomize=True, deadline=None)
@given(roofs(), intensity)
def test_the_roof_is_the_sum_of_times(roof: Roofline, at: float) -> None:
    """One byte in all: at FLOPs, and each link's share of the byte."""
    seconds = at / roof.flops_per_s
    seconds += sum(s / roof.links_bytes_per_s[k] for k, s in roof.shares.items())
    assert float(roof.smooth(at)) == pytest.approx(at / seconds)


@settings(derandomize=True, deadline=None)
@given(roofs())
def test_the_bandwidth_is_between_the_links(roof: Roofline) -> None:
    links = roof.links_bytes_per_s.values()
    assert min(links) * (1 - 1e-9) <= roof.bandwidth_bytes_per_s <= max(links) * (1 + 1e-9)


def test_roofs_take_arrays() -> None:
    at = np.geomspace(1.0, 1e4, 7)
    assert DOCUMENT.smooth(at).shape == DOCUMENT.hard(at).shape == (7,)
    assert np.all(np.diff(DOCUMENT.smooth(at)) > 0)
    assert np.isclose(DOCUMENT.smooth(at)[0], float(DOCUMENT.smooth(1.0)))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_rates_must_be_positive_and_finite(bad: float) -> None:
    with pytest.raises(ModelError, match="positive and finite"):
        Roofline("r", bad, {"pci": 1.0}, {"pci": 1.0})
    with pytest.raises(ModelError, match="positive and finite"):
        Roofline("r", 1.0, {"pci": bad}, {"pci": 1.0})


@pytest.mark.parametrize(
    ("links", "shares", "problem"),
    [
        ({}, {}, "at least one link"),
        ({"pci": 1.0}, {}, "share of the bytes for every link"),
        ({"pci": 1.0}, {"mpi": 1.0}, "share of the bytes for every link"),
        ({"pci": 1.0, "mpi": 1.0}, {"pci": 2.0, "mpi": -1.0}, "non-negative"),
        ({"pci": 1.0, "mpi": 1.0}, {"pci": 0.5, "mpi": 0.4}, "add up to 1"),
    ],
)
def test_shares_must_fit(links: dict[str, float], shares: dict[str, float], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        Roofline("r", 1.0, links, shares)

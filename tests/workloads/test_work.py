"""Work and workloads: addition, conservation, and what is said about wrong values."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import WorkloadError
from perfmodel.programs.mlp.mlp import mlp
from perfmodel.workloads import Counts, Expression, Symbol, Work, Workload
from perfmodel.workloads.work import KEYS

VALUES = {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 4}
FIELDS = [f.name for f in fields(Work)]

formulas = st.sampled_from(["0", "7", "x", "2*x", "x/3", "x**2 + y", "ceil(y/x)"])
works = st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, formulas)).map(
    lambda row: Work.parse(row, ["x", "y"], {})
)
points = st.fixed_dictionaries({"x": st.integers(1, 99), "y": st.integers(1, 99)})


@settings(deadline=None)
@given(works, works, works)
def test_addition_is_associative_with_an_identity(a: Work, b: Work, c: Work) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + Work() == a == Work() + a


@settings(deadline=None)
@given(works, works, points)
def test_sums_count_what_the_parts_count(a: Work, b: Work, at: dict[str, int]) -> None:
    together, apart = (a + b).subs(at), a.subs(at) + b.subs(at)
    for name in FIELDS:
        assert getattr(together, name) == pytest.approx(getattr(apart, name))
    swapped = (b + a).subs(at)
    assert together == swapped


@settings(deadline=None)
@given(works, points)
def test_symbolic_and_numeric_intensity_agree(work: Work, at: dict[str, int]) -> None:
    counts = work.subs(at)
    if counts.moved_bytes == 0:
        assert counts.arithmetic_intensity is None
        with pytest.raises(WorkloadError, match="no such bytes in this work; include"):
            work.arithmetic_intensity()
    else:
        found = work.arithmetic_intensity().evaluate(at)
        assert found == pytest.approx(counts.arithmetic_intensity)


def test_fields_of_work_and_counts_match() -> None:
    assert FIELDS == [f.name for f in fields(Counts)] == list(KEYS.values())


def test_sum_takes_a_start() -> None:
    ranges = mlp().ranges
    assert sum(ranges.values(), Work()) == mlp().total()
    assert sum(mlp().evaluate(VALUES).values(), Counts()) == mlp().total().subs(VALUES)


def test_total_of_some_ranges() -> None:
    gemms = mlp().total(["forward GEMM 1", "forward GEMM 2"]).subs(VALUES)
    assert gemms.flops == 2 * 1500 * 512 * 794
    assert mlp().total([]) == Work()
    with pytest.raises(WorkloadError, match="got 'forwards'; take some of: copying images"):
        mlp().total(["forwards"])


def test_whole_counts_are_ints_and_others_floats() -> None:
    work = Work.parse({"flops": "x/2", "pci": "x"}, ["x"], {})
    counts = work.subs({"x": 3})
    assert (counts.flops, counts.pci_bytes) == (1.5, 3)
    assert (type(counts.flops), type(counts.pci_bytes)) == (float, int)
    assert work.subs({"x": 4}).flops == 2
    assert type(work.subs({"x": 4}).flops) is int


# --- values ---------------------------------------------------------------------------------


def test_defaults_and_numpy_integers_are_taken() -> None:
    load = Workload(
        "w", "spec", "", "batch", {"x": Symbol("x", default=3), "y": Symbol("y")}, {"r": Work()}
    )
    found = load.check({"y": np.int64(2)})  # type: ignore[dict-item]
    assert found == {"x": 3, "y": 2}
    assert all(type(value) is int for value in found.values())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"B": None},
            "expected a value of B (batch size of all ranks together); got none; give B",
        ),
        (
            {"H": 0},
            "expected a whole number from 1 to 2^63 - 1 for H (hidden size); got 0; give H as a "
            "positive integer",
        ),
        ({"H": -1}, "got -1"),
        ({"H": 512.0}, "got 512.0"),
        ({"H": "512"}, "got '512'"),
        ({"H": True}, "got True"),
        ({"H": 2**63}, "got 9223372036854775808"),
        ({"H": float("nan")}, "got nan"),
        (
            {"N": 60000},
            "expected values of D, H, C, B, p, b for workload 'MLP, data parallel'; got 'N'; "
            "leave it out",
        ),
        (
            {"p": 7},
            "expected B divisible by p: every rank takes an equal share; got B=3000, p=7; take "
            "B=3003, the nearest",
        ),
        ({"B": 3, "p": 2}, "take B=2, the nearest"),
        ({"B": 7, "p": 4}, "take B=8, the nearest"),
        (
            {"B": 4, "p": 8},
            "expected p of at most B: every rank needs a share; got B=4, p=8; take B=8 or more, "
            "or a smaller p",
        ),
    ],
)
def test_wrong_values(change: dict[str, object], said: str) -> None:
    values = {name: value for name, value in {**VALUES, **change}.items() if value is not None}
    with pytest.raises(WorkloadError) as caught:
        mlp().evaluate(values)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert caught.value.exit_code == 5


@settings(deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 10**3))
def test_nearest_batch_is_valid_and_nearest(batch: int, ranks: int) -> None:
    values = {**VALUES, "B": batch, "p": ranks}
    if batch % ranks == 0:
        mlp().check(values)
    elif ranks < batch:
        with pytest.raises(WorkloadError) as caught:
            mlp().check(values)
        nearest = int(str(caught.value).split("take B=")[1].split(",")[0])
        mlp().check({**values, "B": nearest})
        assert 2 * abs(nearest - batch) <= ranks


def test_what_is_shared_need_not_divide() -> None:
    """H over p ranks: some hold one unit more, but each at least one."""
    load = mlp(parallel="model")
    assert load.shared == (("H", "p"),)
    assert load.check(VALUES | {"H": 5, "p": 3})["H"] == 5
    with pytest.raises(WorkloadError, match="expected p of at most H: every rank needs a share"):
        load.check(VALUES | {"H": 2, "p": 3})


def test_negative_and_undefined_counts_name_the_range() -> None:
    symbols = {"x": Symbol("x")}
    work = Work.parse({"dram": "5 - x"}, symbols, {})
    load = Workload("w", "spec", "", "batch", symbols, {"r": work})
    with pytest.raises(
        WorkloadError, match="workload 'w', range 'r', key 'dram': expected a count"
    ):
        load.evaluate({"x": 6})
    work = Work(flops=Expression.parse("1/(x - 6)", symbols))
    load = Workload("w", "spec", "", "batch", symbols, {"r": work})
    with pytest.raises(WorkloadError, match="workload 'w', range 'r': expected a finite number"):
        load.evaluate({"x": 6})

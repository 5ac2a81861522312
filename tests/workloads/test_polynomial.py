"""Formulas printed without SymPy: those that it prints too, and the value of every other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.programs.mlp.mlp import Parallel, mlp
from perfmodel.workloads.expression import Expression
from perfmodel.workloads.formulas import formula_text, formulas
from perfmodel.workloads.polynomial import text_of

NAMES = ("B", "b", "h", "p")


def text(formula: str) -> str | None:
    return text_of(Expression.parse(formula, NAMES).node, {"h": "h'"})


@pytest.mark.parametrize(
    ("formula", "printed"),
    [
        ("2*h*B + 4*b*h", "2*h'*(B + 2*b)"),
        ("4*(p - 1)/p*b", "4*b*(p - 1)/p"),
        ("B*B/b**2/6 - p*3/9", "(B**2 - 2*b**2*p)/(6*b**2)"),
        ("B + b + h + B/p", "B + B/p + b + h'"),
        ("(2*B + 2*h)/(4*b + 6*b/p)", "p*(B + h')/(b*(2*p + 3))"),
        ("(B + 1)/(2*B + 2)", "1/2"),
        ("B - B", "0"),
        ("-(0 - p)", "p"),
        ("0.5*p + 3", "(p + 6)/2"),
    ],
)
def test_what_polynomials_over_products_are_printed_as(formula: str, printed: str) -> None:
    assert text(formula) == printed


@pytest.mark.parametrize(
    "formula", ["ceil(B/p)", "(B + 1)*(b + 1)", "(B + 1)**2", "1 - p", "b*(1/(p + 1))", "B//p"]
)
def test_what_is_left_to_sympy(formula: str) -> None:
    assert text(formula) is None


@pytest.mark.parametrize("parallel", ["data", "model"])
def test_the_assignments_formulas_are_those_that_sympy_prints(parallel: Parallel) -> None:
    load = mlp("document", parallel)
    total = load.total()
    lines = formulas(load).splitlines()
    for quantity, formula in (("FLOPs", total.flops), ("MPI bytes", total.mpi_bytes)):
        assert f"  {quantity:<23}{formula_text(formula, load)}" in lines
    assert f"  AI = {formula_text(total.arithmetic_intensity(), load)}" in lines


@st.composite
def sums(draw: st.DrawFn) -> str:
    factor = st.sampled_from((*NAMES, "2", "3", "0.5"))
    term = st.lists(st.tuples(st.sampled_from("*/"), factor), min_size=1, max_size=4)
    terms = draw(st.lists(st.tuples(st.sampled_from("+-"), factor, term), min_size=1, max_size=5))
    return "1 " + " ".join(
        f"{sign} {first}{''.join(map(''.join, rest))}" for sign, first, rest in terms
    )


@given(sums(), sums(), st.fixed_dictionaries({name: st.integers(1, 9) for name in NAMES}))
def test_the_value_is_that_of_the_formula(above: str, below: str, values: dict[str, int]) -> None:
    for formula in (above, f"({above})/({below})"):
        parsed = Expression.parse(formula, NAMES)
        printed = text_of(parsed.node, {})
        if printed is None or not Expression.parse(below, NAMES).evaluate(values):
            continue
        found = Expression.parse(printed, NAMES).evaluate(values)
        assert found == pytest.approx(parsed.evaluate(values), rel=1e-12, abs=1e-12)

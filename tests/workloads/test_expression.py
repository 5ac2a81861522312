"""Formulas: the parser against Python's arithmetic, both backends against each other."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import WorkloadError
from perfmodel.workloads import Expression

VALUES = {"D": 784, "H": 512, "p": 3}
NAMES = tuple(VALUES)


def parse(text: str) -> Expression:
    return Expression.parse(text, NAMES)


# --- trees: text and Python's own value of it side by side ---------------------------------

Tree = tuple[str, Fraction]
leaves = st.one_of(
    st.sampled_from(NAMES).map(lambda name: (name, Fraction(VALUES[name]))),
    st.integers(0, 1000).map(lambda n: (str(n), Fraction(n))),
    st.integers(1, 999).map(lambda n: (f"0.{n:03d}", Fraction(n, 1000))),
)
BINARY = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: Fraction(a // b),
    "max": max,
    "min": min,
}
UNARY = {"-": lambda a: -a, "ceil": math.ceil, "floor": math.floor}


def combine(children: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    def binary(operation: str, a: Tree, b: Tree) -> Tree:
        assume(not (operation in ("/", "//") and b[1] == 0))
        value = BINARY[operation](a[1], b[1])
        if operation in ("max", "min"):
            return f"{operation}({a[0]}, {b[0]})", value
        return f"({a[0]} {operation} {b[0]})", value

    def unary(operation: str, a: Tree) -> Tree:
        return f"{operation}({a[0]})", Fraction(UNARY[operation](a[1]))

    def power(a: Tree, exponent: int) -> Tree:
        return f"({a[0]}) ** {exponent}", a[1] ** exponent

    return st.one_of(
        st.builds(binary, st.sampled_from(sorted(BINARY)), children, children),
        st.builds(unary, st.sampled_from(sorted(UNARY)), children),
        st.builds(power, children, st.integers(0, 3)),
    )


trees = st.recursive(leaves, combine, max_leaves=12)


@settings(deadline=None)
@given(trees)
def test_agrees_with_python_arithmetic(tree: Tree) -> None:
    text, exact = tree
    found = parse(text).evaluate(VALUES)
    if exact.denominator == 1:
        assert type(found) is int
        assert found == exact
    else:
        assert found == float(exact)


@settings(deadline=None)
@given(trees)
def test_text_parses_back_to_the_same_expression(tree: Tree) -> None:
    expression = parse(tree[0])
    assert parse(expression.text) == expression
    assert pickle.loads(pickle.dumps(expression)) == expression
    assert hash(parse(expression.text)) == hash(expression)


@given(trees)
def test_sympy_agrees_with_exact_evaluation(tree: Tree) -> None:
    import sympy

    formula = parse(tree[0]).sympy()
    found = formula.xreplace({s: sympy.Integer(VALUES[s.name]) for s in formula.free_symbols})
    assert found == sympy.Rational(tree[1].numerator, tree[1].denominator)


@settings(deadline=None)
@given(trees, trees, trees)
def test_addition_is_associative_and_adds_values(a: Tree, b: Tree, c: Tree) -> None:
    x, y, z = (parse(tree[0]) for tree in (a, b, c))
    assert (x + y) + z == x + (y + z)
    exact = a[1] + b[1] + c[1]
    assert (x + y + z).evaluate(VALUES) == (exact if exact.denominator == 1 else float(exact))
    assert x + Expression() == x == Expression() + x


@settings(deadline=None)
@given(trees, trees)
def test_division_divides(a: Tree, b: Tree) -> None:
    assume(b[1] != 0)
    found = (parse(a[0]) / parse(b[0])).evaluate(VALUES)
    assert found == pytest.approx(float(a[1] / b[1]))


# --- evaluation -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2*D*H", 802816),
        ("D/p", 784 / 3),
        ("0.5*D", 392),
        ("0.1*30", 3),
        ("-D // p", -262),
        ("ceil(D/p)", 262),
        ("log2(H)", 9),
        ("ceil(log2(p))", 2),
        ("log2(0.5)", -1.0),
        ("sqrt(D)", 28),
        ("sqrt(4/9)", 2 / 3),
        ("sqrt(p)", math.sqrt(3)),
        ("log2(p)*sqrt(p)", math.log2(3) * math.sqrt(3)),
        ("2**64", 2**64),
        ("H**0", 1),
        ("max(1, D, 2)", 784),
        ("1e30", 10**30),
        ("1_000", 1000),
    ],
)
def test_values(text: str, value: float) -> None:
    found = parse(text).evaluate(VALUES)
    assert found == value
    assert type(found) is type(value)


def test_numpy_integers_do_not_overflow() -> None:
    big = np.int64(2**62)
    assert parse("D*D").evaluate({"D": big}) == 2**124  # type: ignore[dict-item]


def test_derived_symbols_are_replaced_or_kept() -> None:
    share = Expression.parse("D/p", NAMES)
    twice = Expression.parse("2*s", NAMES, {"s": share})
    assert twice.evaluate(VALUES) == 2 * 784 / 3
    assert twice.symbols == {"D", "p"}
    assert str(twice.sympy()) == "2*D/p"
    assert str(twice.sympy(expand=False)) == "2*s"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1/(p - 3)", "got none at p=3"),
        ("D // (p - p)", "at D=784, p=3"),
        ("1/0", "at any values"),
        ("sqrt(p - 4)", "got none"),
        ("log2(p - 3)", "got none"),
        ("log2(p - 4)", "got none"),
        ("1e30**64 * 1e30**64 * 1e30**64 * 1e30**64", "too large"),
        ("1e30**20 * sqrt(2)", "got none"),
        ("1e30**9 * sqrt(2) * 1e30 * 1e30", "too large"),
    ],
)
def test_no_finite_value(text: str, reason: str) -> None:
    with pytest.raises(WorkloadError, match="expected a finite number") as caught:
        parse(text).evaluate(VALUES)
    assert reason in str(caught.value)


def test_missing_value() -> None:
    with pytest.raises(WorkloadError, match="expected a value of H for 'D \\* H'; got values of D"):
        parse("D*H").evaluate({"D": 1})


def test_evaluation_does_not_import_sympy() -> None:
    code = (
        "import sys, time; start = time.process_time();"
        "from perfmodel.programs.mlp.mlp import mlp;"
        "w = mlp('document'); v = dict(D=784, H=512, C=10, B=3000, p=2, b=4);"
        "w.evaluate(v); w.total().subs(v); w.total().arithmetic_intensity().evaluate(v);"
        "assert 'sympy' not in sys.modules and 'numpy' not in sys.modules;"
        "print(time.process_time() - start)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.5  # about 0.05 on the machine it was written on

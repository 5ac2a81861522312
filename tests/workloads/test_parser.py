"""The whitelist: hostile formulas are refused at once, with a message that names them."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import WorkloadError
from perfmodel.workloads import Expression
from perfmodel.workloads.expression import DEEPEST, LONGEST, MOST_NODES

VALUES = {"D": 784, "H": 512, "p": 3}
NAMES = tuple(VALUES)


def parse(text: str) -> Expression:
    return Expression.parse(text, NAMES)


HOSTILE = [
    '__import__("os").system("x")',
    "().__class__.__bases__[0].__subclasses__()",
    "D.real",
    "D[0]",
    "[D]",
    "(D, H)",
    "{D: H}",
    "lambda: D",
    "lambda D: D",
    "D if H else p",
    "D and H",
    "not D",
    "D < H",
    "D == H",
    "D % H",
    "D @ H",
    "D << H",
    "D | H",
    "~D",
    "+D",
    "(x := 3)",
    "[x for x in (1,)]",
    "f'{D}'",
    "'text'",
    "b'text'",
    "True",
    "None",
    "...",
    "1j",
    "eval('1')",
    "exec",
    "open",
    "ceil",
    "abs(D)",
    "ceil(D, H)",
    "ceil()",
    "ceil(x=D)",
    "ceil(*D)",
    "max(**D)",
    "max(D)",
    "max(" + "D, " * 9 + "D)",
    "ceil(D)(H)",
    "await D",
    "yield D",
    "D = 1",
    "import os",
    "D; H",
    "D\nH",
    "D H",
    "",
    "   ",
    "(",
    ")",
    "D)+(H",
    "D*",
    "\x00",
    "D\x00",
    "\u202eD",
    "\ud800",
    "Δ",
    "x",
    "_",
    "__builtins__",
    "9**9**9",
    "9**99999999",
    "2**(1+1)",
    "2**D",
    "D**-1",
    "D**0.5",
    "D**65",
    "D**True",
    "((D**9)**9)**9",
    "9" * 1000,
    "1e31",
    "1e999",
    "1e-31",
    "-" * 1999 + "D",
    "(" * 999 + "D" + ")" * 999,
    "ceil(" * 300 + "D" + ")" * 300,
    "+".join(["D"] * (DEEPEST + 1)),
    "D+" * 1500 + "D",
    "#",
    "D\\",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_refuses_what_is_not_on_the_whitelist(text: str) -> None:
    start = time.process_time()
    with pytest.raises(WorkloadError) as caught:
        Expression.parse(text, NAMES, where="net.toml: range 'forward', key 'flops'")
    message = str(caught.value)
    assert message.startswith("net.toml: range 'forward', key 'flops': expected ")
    assert "; got " in message
    assert len(message) < 700
    assert message.isprintable()
    assert time.process_time() - start < 0.5


def test_a_hostile_call_is_named() -> None:
    with pytest.raises(WorkloadError) as caught:
        parse('__import__("os").system("x")')
    assert str(caught.value) == (
        "formula: expected only declared symbols, numbers, + - * / // **, parentheses and ceil, "
        'floor, log2, max, min, sqrt; got \'__import__("os").system("x")\' in '
        '\'__import__("os").system("x")\'; correct the formula'
    )


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_an_expression_or_a_workload_error(text: str) -> None:
    with contextlib.suppress(WorkloadError):
        parse(text)


def test_limits_are_inclusive() -> None:
    assert parse("+".join(["D"] * DEEPEST)).evaluate(VALUES) == DEEPEST * 784
    assert parse("D".ljust(LONGEST)).evaluate(VALUES) == 784
    assert parse("(D**8)**8").evaluate({"D": 2}) == 2**64


def test_derived_symbols_cannot_blow_up_a_formula() -> None:
    wide = {"x": parse("*".join(f"(D + {i})" for i in range(20)))}
    with pytest.raises(WorkloadError, match=f"at most {MOST_NODES}, 100 levels deep"):
        Expression.parse("+".join(["x"] * 40), NAMES, wide)
    deep = {"x": parse("-" * 40 + "D")}
    deeper = {"y": Expression.parse("-" * 40 + "x", NAMES, deep)}
    with pytest.raises(WorkloadError, match="121 levels deep"):
        Expression.parse("-" * 40 + "y", NAMES, deeper)
    high = {"x": parse("D**9")}
    with pytest.raises(WorkloadError, match="nested powers of 81 in all"):
        Expression.parse("x**9", NAMES, high)

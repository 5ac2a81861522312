"""The whitelist: a formula's text in, checked nodes out; nothing in it is ever executed."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

from perfmodel.base.errors import WorkloadError
from perfmodel.base.escape import printable

FUNCTIONS: Final = ("ceil", "floor", "log2", "max", "min", "sqrt")
LONGEST: Final = 2000
"""Characters of one formula."""
DEEPEST: Final = 50
"""Levels of operators and calls as typed; twice that with derived symbols replaced."""
HIGHEST_POWER: Final = 64
"""Largest exponent, and largest product of nested exponents."""
LARGEST_LITERAL: Final = 1e30
MOST_ARGUMENTS: Final = 8
"""Arguments of min and max."""
MOST_NODES: Final = 2000
"""Symbols, numbers and operators of one formula with derived symbols replaced."""

_BINARY: Final = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//"}
_ALLOWED: Final = (
    f"declared symbols, numbers, + - * / // **, parentheses and {', '.join(FUNCTIONS)}"
)


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator or function and its operands."""

    operation: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """A derived symbol and what it stands for."""

    name: str
    value: Node


Node: TypeAlias = int | Fraction | str | Apply | Named
"""A number, a symbol's name, an operation or a derived symbol."""


def parse_formula(
    text: str, symbols: Collection[str], derived: Mapping[str, Node], where: str
) -> tuple[str, Node]:
    """Check a formula and return it in canonical spelling and as nodes.

    Parameters
    ----------
    text : str
        In Python's notation, such as ``'2*D*H*ceil(B/p)'``.
    symbols : collection of str
        Names the formula may use.
    derived : mapping of str to node
        Further names and what they stand for.
    where : str
        Names the formula in errors.

    Raises
    ------
    WorkloadError
        If the formula is too long, too deep or too large, or holds anything that is not on the
        whitelist.
    """
    text = text.strip()
    shown = printable(_shorten(text, 100))
    try:
        if len(text) > LONGEST:
            raise _RefusedError(
                f"{len(text)} characters",
                f"at most {LONGEST}",
                "name parts of it as derived symbols",
            )
        tree = _parse(text)
        node = _Whitelist(text, frozenset(symbols), derived).convert(tree, 1)
        size, depth, power = _measure(node)
        if size > MOST_NODES or depth > 2 * DEEPEST:
            raise _RefusedError(
                f"{size} symbols, numbers and operators, {depth} levels deep,",
                f"at most {MOST_NODES}, {2 * DEEPEST} levels deep, with derived symbols replaced",
            )
        if power > HIGHEST_POWER:
            raise _RefusedError(
                f"nested powers of {power} in all", f"at most {HIGHEST_POWER} in all"
            )
    except _RefusedError as refused:
        raise WorkloadError(
            f"{where}: wanted {refused.wanted}; found {printable(refused.found)} in '{shown}'; "
            f"{refused.remedy}"
        ) from None
    return ast.unparse(tree), node


class _RefusedError(ValueError):
    """What was found, what is wanted instead, and what to do."""

    def __init__(self, found: str, wanted: str, remedy: str = "correct the formula") -> None:
        super().__init__(found, wanted, remedy)
        self.found, self.wanted, self.remedy = found, wanted, remedy


def _parse(text: str) -> ast.expr:
    try:
        with warnings.catch_warnings():  # '2if' makes Python warn, on the user's terminal
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise _RefusedError(
            f"what is no formula ({reason})", f"one formula of {_ALLOWED}"
        ) from None


@dataclass(frozen=True, slots=True)
class _Whitelist:
    text: str
    symbols: frozenset[str]
    derived: Mapping[str, Node]

    def convert(self, node: ast.expr, depth: int) -> Node:
        """Turn a syntax tree into nodes; refuse whatever is not listed here."""
        if depth > DEEPEST:
            raise _RefusedError("a deeper formula", f"at most {DEEPEST} levels of operators")
        below = depth + 1
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return _literal(value)
            case ast.Name(id=name):
                return self._symbol(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return Apply("neg", (self.convert(operand, below),))
            case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
                return Apply("**", (self.convert(base, below), self._exponent(exponent)))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                operands = self.convert(left, below), self.convert(right, below)
                return Apply(_BINARY[type(op)], operands)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                low, high = (2, MOST_ARGUMENTS) if name in ("max", "min") else (1, 1)
                if low <= len(args) <= high:
                    return Apply(name, tuple(self.convert(arg, below) for arg in args))
                count = f"{low} to {high}" if low < high else f"{low}"
                raise _RefusedError(f"{len(args)}", f"{count} argument(s) of {name}")
        raise _RefusedError(f"'{self._source(node)}'", f"only {_ALLOWED}")

    def _symbol(self, name: str) -> Node:
        if name in self.symbols:
            return name
        if name in self.derived:
            return Named(name, self.derived[name])
        declared = ", ".join([*sorted(self.symbols), *self.derived]) or "none"
        raise _RefusedError(
            f"'{name}'", f"declared symbols ({_shorten(declared, 200)})", "declare or respell it"
        )

    def _exponent(self, node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int() as value) if type(value) is int and (
                value <= HIGHEST_POWER
            ):
                return value
        raise _RefusedError(
            f"the exponent '{self._source(node)}'",
            f"exponents that are whole numbers from 0 to {HIGHEST_POWER}",
        )

    def _source(self, node: ast.expr) -> str:
        return _shorten(ast.get_source_segment(self.text, node) or type(node).__name__, 60)


def _literal(value: float) -> Node:
    if abs(value) > LARGEST_LITERAL or 0 < abs(value) < 1 / LARGEST_LITERAL:
        raise _RefusedError("one outside", "numbers from 1e-30 to 1e30")
    exact = Fraction(str(value))
    return exact.numerator if exact.denominator == 1 else exact


def _measure(node: Node) -> tuple[int, int, int]:
    """Return the node count, the depth and the largest product of nested exponents."""
    if isinstance(node, Named):
        return _measure(node.value)
    if not isinstance(node, Apply):
        return 1, 1, 1
    sizes, depths, powers = zip(*map(_measure, node.operands), strict=True)
    own = node.operands[1] if node.operation == "**" else 1
    return 1 + sum(sizes), 1 + max(depths), max(powers) * max(own if isinstance(own, int) else 1, 1)


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."

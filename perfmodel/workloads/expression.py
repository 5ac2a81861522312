"""Expressions: a formula's text checked against a whitelist, evaluated exactly or as SymPy.

Nothing in a formula is ever executed.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Any, Final, TypeAlias, TypeVar

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


class _RefusedError(ValueError):
    """An error with the text found, the text expected, and advice."""

    def __init__(self, found: str, wanted: str, remedy: str = "correct the formula") -> None:
        super().__init__(found, wanted, remedy)


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
    """Return the node count, the depth and the largest GEMM of nested exponents."""
    if isinstance(node, Named):
        return _measure(node.value)
    if not isinstance(node, Apply):
        return 1, 1, 1
    sizes, depths, powers = zip(*map(_measure, node.operands), strict=True)
    own = node.operands[1] if node.operation == "**" else 1
    return 1 + sum(sizes), 1 + max(depths), max(powers) * max(own if isinstance(own, int) else 1, 1)


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


Number: TypeAlias = int | float
_Exact: TypeAlias = int | float | Fraction
_Leaf: TypeAlias = int | Fraction | str
_T = TypeVar("_T")
_MOST_BITS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked formula: a sum of terms in declared symbols; the empty sum is 0.

    Build one with `Expression.parse`; `+` adds, `/` divides.

    Attributes
    ----------
    text : str
        The formula in canonical spelling; `parse` takes it back.
    terms : tuple of nodes
        The parsed terms.

    Examples
    --------
    >>> gemm = Expression.parse("2*D*H*B/p", ["D", "H", "B", "p"])
    >>> gemm.evaluate({"D": 784, "H": 512, "B": 3000, "p": 2})
    1204224000
    >>> gemm.sympy()
    2*B*D*H/p
    """

    text: str = "0"
    terms: tuple[Node, ...] = ()

    @classmethod
    def parse(
        cls,
        text: str,
        symbols: Collection[str],
        derived: Mapping[str, Expression] | None = None,
        where: str = "formula",
    ) -> Expression:
        """Check and parse a formula; nothing in it is ever executed.

        Parameters
        ----------
        text : str
            In Python's notation, such as ``'2*D*H*ceil(B/p)'``. Literals are exact decimals:
            0.1 is one tenth.
        symbols : collection of str
            Names the formula may use.
        derived : mapping of str to Expression, optional
            Further names and what they stand for.
        where : str
            Names the formula in errors, such as ``"net.toml: range 'forward', key 'flops'"``.

        Raises
        ------
        WorkloadError
            If it is too long, too deep or too large, or holds anything but declared symbols,
            numbers, ``+ - * / // **``, unary minus, ceil, floor, log2, max, min and sqrt.
        """
        nodes = {name: definition.node for name, definition in (derived or {}).items()}
        text = text.strip()
        try:
            if len(text) > LONGEST:
                raise _RefusedError(
                    f"{len(text)} characters",
                    f"at most {LONGEST}",
                    "name parts of it as derived symbols",
                )
            tree = _parse(text)
            node = _Whitelist(text, frozenset(symbols), nodes).convert(tree, 1)
            size, depth, power = _measure(node)
            if size > MOST_NODES or depth > 2 * DEEPEST:
                raise _RefusedError(
                    f"{size} symbols, numbers and operators, {depth} levels deep,",
                    f"at most {MOST_NODES}, {2 * DEEPEST} levels deep, with derived symbols "
                    f"replaced",
                )
            if power > HIGHEST_POWER:
                raise _RefusedError(
                    f"nested powers of {power} in all", f"at most {HIGHEST_POWER} in all"
                )
        except _RefusedError as refused:
            found, wanted, remedy = map(printable, refused.args)
            raise WorkloadError(
                f"{where}: expected {wanted}; got {found} in '{printable(_shorten(text, 100))}'; "
                f"{remedy}"
            ) from None
        return cls(ast.unparse(tree), (node,)) if node != 0 else cls()

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __add__(self, other: Expression) -> Expression:
        if not self or not other:
            return self or other
        return Expression(f"{self.text} + {other.text}", self.terms + other.terms)

    def __truediv__(self, other: Expression) -> Expression:
        return Expression(f"({self.text}) / ({other.text})", (Apply("/", (self.node, other.node)),))

    @property
    def node(self) -> Node:
        """The sum of the terms as one node."""
        if len(self.terms) == 1:
            return self.terms[0]
        return Apply("+", self.terms) if self.terms else 0

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the symbols used, derived ones replaced by what they stand for."""
        return _fold(
            self.node,
            lambda leaf: frozenset({leaf} if isinstance(leaf, str) else ()),
            lambda _, parts: frozenset().union(*parts),
        )

    def evaluate(self, values: Mapping[str, Number]) -> Number:
        """Evaluate in exact arithmetic, without SymPy.

        Parameters
        ----------
        values : mapping of str to number
            A value for every name in `symbols`.

        Returns
        -------
        int or float
            An exact int where the value is a whole number, else the nearest float.

        Raises
        ------
        WorkloadError
            If a value is missing, or the formula has no finite real value there.
        """

        def leaf(node: _Leaf) -> _Exact:
            if not isinstance(node, str):
                return node
            if node not in values:
                raise WorkloadError(
                    f"expected a value of {node} for '{self.text}'; got values of "
                    f"{', '.join(values) or 'nothing'}; give {node}"
                )
            value = values[node]
            return int(value) if isinstance(value, Integral) else value

        try:
            return _number(_fold(self.node, leaf, _compute))
        except (ArithmeticError, ValueError) as error:
            at = ", ".join(f"{name}={values[name]}" for name in sorted(self.symbols))
            raise WorkloadError(
                f"expected a finite number from '{self.text}'; got none at {at or 'any values'} "
                f"({error}); change the formula or the values"
            ) from None

    def sympy(self, *, expand: bool = True) -> Any:
        """Return the formula as a SymPy expression; the first call imports SymPy (0.25 s).

        Parameters
        ----------
        expand : bool
            Replace derived symbols by what they stand for; else keep them as symbols.

        Raises
        ------
        WorkloadError
            If it has no finite real value whatever its symbols are, such as ``max(D, 1/0)``.
        """
        import sympy

        functions: dict[str, Callable[..., Any]] = {
            "+": sympy.Add, "-": lambda a, b: a - b, "*": sympy.Mul, "/": lambda a, b: a / b,
            "//": lambda a, b: sympy.floor(a / b), "**": sympy.Pow, "neg": lambda a: -a,
            "ceil": sympy.ceiling, "floor": sympy.floor, "log2": lambda a: sympy.log(a, 2),
            "max": sympy.Max, "min": sympy.Min, "sqrt": sympy.sqrt,
        }  # fmt: skip

        def leaf(node: _Leaf) -> Any:
            if isinstance(node, str):
                return sympy_symbol(node)
            return sympy.Rational(node.numerator, node.denominator)

        def apply(operation: str, operands: Sequence[Any]) -> Any:
            return functions[operation](*operands)

        try:
            made = _fold(self.node, leaf, apply, None if expand else sympy_derived)
        except ValueError:  # Max and Min refuse infinity and complex numbers
            made = sympy.nan
        if made.has(sympy.nan, sympy.zoo, sympy.oo, sympy.I):
            raise WorkloadError(
                f"expected a formula with a finite value; got '{self.text}', which has none "
                "whatever its symbols are; correct it"
            )
        return made


def sympy_symbol(name: str) -> Any:
    """Return the SymPy symbol of a symbol: a positive integer."""
    import sympy

    return sympy.Symbol(name, integer=True, positive=True)


def sympy_derived(name: str) -> Any:
    """Return the SymPy symbol of a derived symbol: a real number."""
    import sympy

    return sympy.Symbol(name, real=True)


def _fold(
    node: Node,
    leaf: Callable[[_Leaf], _T],
    apply: Callable[[str, Sequence[_T]], _T],
    named: Callable[[str], _T] | None = None,
) -> _T:
    """Walk a formula from its leaves upwards; `named` stops at derived symbols."""
    if isinstance(node, Apply):
        return apply(node.operation, [_fold(part, leaf, apply, named) for part in node.operands])
    if isinstance(node, Named):
        return named(node.name) if named else _fold(node.value, leaf, apply)
    return leaf(node)


def _compute(operation: str, operands: Sequence[_Exact]) -> _Exact:
    """Apply one operation to exact numbers, refusing results that take too many digits."""
    if operation == "+":
        total: _Exact = 0
        for operand in operands:
            total = _bounded(total + operand)
        return total
    if operation == "**" and _bits(operands[0]) * operands[1] > _MOST_BITS:
        raise OverflowError("too large")
    return _bounded(_EXACT[operation](*operands))


def _bounded(value: _Exact) -> _Exact:
    if _bits(value) > _MOST_BITS:
        raise OverflowError("too large")
    return value


def _bits(value: _Exact) -> int:
    if isinstance(value, float):
        return 0
    return value.numerator.bit_length() + value.denominator.bit_length()


def _number(value: _Exact) -> Number:
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    if not math.isfinite(value):
        raise OverflowError("too large")
    return value


def _divide(a: _Exact, b: _Exact) -> _Exact:
    return a / b if isinstance(a, float) or isinstance(b, float) else Fraction(a) / b


def _log2(a: _Exact) -> Number:
    whole = isinstance(a, int) and a > 0 and a & (a - 1) == 0
    return a.bit_length() - 1 if whole and isinstance(a, int) else math.log2(a)


def _sqrt(a: _Exact) -> _Exact:
    if isinstance(a, float) or a < 0:
        return math.sqrt(a)
    root = Fraction(math.isqrt(a.numerator), math.isqrt(a.denominator))
    return root if root * root == a else math.sqrt(a)


_EXACT: Final[dict[str, Callable[..., _Exact]]] = {
    "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": _divide, "//": lambda a, b: a // b,
    "**": lambda a, b: a**b, "neg": lambda a: -a, "ceil": math.ceil, "floor": math.floor,
    "log2": _log2, "max": max, "min": min, "sqrt": _sqrt,
}  # fmt: skip

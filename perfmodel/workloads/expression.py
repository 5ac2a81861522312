"""Expressions: one checked formula, evaluated exactly with numbers or turned into SymPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Any, Final, TypeAlias, TypeVar

from perfmodel.base.errors import WorkloadError
from perfmodel.workloads.parser import Apply, Named, Node, parse_formula

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
        canonical, node = parse_formula(text, symbols, nodes, where)
        return cls(canonical, (node,)) if node != 0 else cls()

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
        return frozenset(_names(self.node))

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
                    f"wanted a value of {node} for '{self.text}'; found values of "
                    f"{', '.join(values) or 'nothing'}; give {node}"
                )
            value = values[node]
            return int(value) if isinstance(value, Integral) else value

        try:
            return _number(_fold(self.node, leaf, _compute))
        except (ArithmeticError, ValueError) as error:
            at = ", ".join(f"{name}={values[name]}" for name in sorted(self.symbols))
            raise WorkloadError(
                f"wanted a finite number from '{self.text}'; found none at {at or 'any values'} "
                f"({error}); change the formula or the values"
            ) from None

    def sympy(self, *, expand: bool = True) -> Any:
        """Return the formula as a SymPy expression; the first call imports SymPy (0.25 s).

        Parameters
        ----------
        expand : bool
            Replace derived symbols by what they stand for; else keep them as symbols.
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

        return _fold(self.node, leaf, apply, None if expand else sympy_derived)


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


def _names(node: Node) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, Named):
        yield from _names(node.value)
    elif isinstance(node, Apply):
        for operand in node.operands:
            yield from _names(operand)


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

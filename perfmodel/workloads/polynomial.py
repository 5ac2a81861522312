"""Prints formulas that are polynomials over products, common factors in front, without SymPy.

Most formulas of work are, such as ``2*b*n*(p - 1)/p``; to import SymPy for them takes as long as to
analyze a report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final, TypeAlias

from perfmodel.workloads.expression import Apply, Named, Node

Powers: TypeAlias = tuple[tuple[str, int], ...]
"""Symbols in alphabetical order with their exponents, none of them 0."""
Polynomial: TypeAlias = dict[Powers, Fraction]
"""Coefficients by what they multiply, none of them 0."""

_MOST_TERMS: Final = 100
_FEW: Final = 3
"""Sums of more terms are not brought over one denominator."""


class _OtherError(ValueError):
    """The formula is none of these."""


def text_of(node: Node, labels: Mapping[str, str], *, expand: bool = True) -> str | None:
    """Return a formula as SymPy prints it once factored; None where that takes SymPy.

    Parameters
    ----------
    node : Node
        A polynomial over a product, or a quotient of two.
    labels : mapping of str to str
        How symbols are printed.
    expand : bool
        Replace derived symbols by what they stand for; else keep them.

    Examples
    --------
    >>> from perfmodel.workloads.expression import Expression
    >>> text_of(Expression.parse("2*a*x + 4*a*y - 2*a/p", "apxy").node, {})
    '2*a*(p*x + 2*p*y - 1)/p'
    """
    quotient = isinstance(node, Apply) and node.operation == "/"
    parts = node.operands if isinstance(node, Apply) and quotient else (node, 1)
    try:
        top, bottom = (_polynomial(part, labels, expand) for part in parts)
        if not top or not bottom:
            return "0" if bottom else None
        number, factor, above = _factored(top)
        under, over, below = _factored(bottom)
    except _OtherError:
        return None
    if above == below:
        above = below = "1"
    powers = dict(_times(factor, over, -1))
    if number == under and not powers and below == "1":
        return above
    return _term(number / under, powers, above, below)


def _term(number: Fraction, powers: Mapping[str, int], above: str = "1", below: str = "1") -> str:
    """Print a product with a sum above and one below the line, each but for 1."""
    up = [str(number.numerator)] * (number.numerator != 1)
    up += [_power(s, e) for s, e in powers.items() if e > 0] + [f"({above})"] * (above != "1")
    down = [str(number.denominator)] * (number.denominator != 1)
    down += [_power(s, -e) for s, e in powers.items() if e < 0] + [f"({below})"] * (below != "1")
    under = "*".join(down) if len(down) < 2 else f"({'*'.join(down)})"
    return ("*".join(up) or "1") + f"/{under}" * bool(down)


def _polynomial(node: Node, labels: Mapping[str, str], expand: bool) -> Polynomial:
    """Multiply a formula out, but for products of two sums."""
    if isinstance(node, Named) and expand:
        return _polynomial(node.value, labels, expand)
    if isinstance(node, str | Named):
        name = node if isinstance(node, str) else node.name
        return {((labels.get(name, name), 1),): Fraction(1)}
    if not isinstance(node, Apply):
        return {(): Fraction(node)} if node else {}
    if node.operation == "**":
        base, exponent = _polynomial(node.operands[0], labels, expand), node.operands[1]
        if len(base) != 1 or not isinstance(exponent, int):
            raise _OtherError
        return {_times((), p, exponent): c**exponent for p, c in base.items()}
    parts = [_polynomial(part, labels, expand) for part in node.operands]
    match node.operation, parts:
        case "+", _:
            return _sum(parts)
        case "neg", [one]:
            return _product({(): Fraction(-1)}, one)
        case "-", [one, other]:
            return _sum([one, _product({(): Fraction(-1)}, other)])
        case "*", [one, other]:
            return _product(one, other)
        case "/", [one, other] if len(other) == 1:
            return _product(one, {_times((), p, -1): 1 / c for p, c in other.items()})
    raise _OtherError


def _sum(parts: list[Polynomial]) -> Polynomial:
    found: Polynomial = {}
    for part in parts:
        for powers, number in part.items():
            found[powers] = found.get(powers, Fraction(0)) + number
    return {powers: number for powers, number in found.items() if number}


def _product(one: Polynomial, other: Polynomial) -> Polynomial:
    if min(len(one), len(other)) > 1 or max(len(one), len(other)) > _MOST_TERMS:
        raise _OtherError
    return {_times(p, q): c * d for p, c in one.items() for q, d in other.items()}


def _times(one: Powers, other: Powers, exponent: int = 1) -> Powers:
    """Multiply by the `exponent`-th power of the `other`."""
    found = dict(one)
    for symbol, power in other:
        found[symbol] = found.get(symbol, 0) + exponent * power
    return tuple(sorted((symbol, power) for symbol, power in found.items() if power))


def _factored(polynomial: Polynomial) -> tuple[Fraction, Powers, str]:
    """Return the number and the powers that all terms share, and the sum that is left, printed."""
    symbols = sorted({symbol for powers in polynomial for symbol, _ in powers})
    rows = {tuple(dict(p).get(s, 0) for s in symbols): c for p, c in polynomial.items()}
    shared = [min(c) if len(rows) <= _FEW else _common(c) for c in zip(*rows, strict=True)]
    number = Fraction(
        math.gcd(*(c.numerator for c in rows.values())),
        math.lcm(*(c.denominator for c in rows.values())),
    )
    text = ""
    for row, coefficient in sorted(rows.items(), reverse=True):
        count = coefficient / number
        if not text and count < 0:
            raise _OtherError  # where the sign goes depends on what else there is
        rest = {s: e - out for s, e, out in zip(symbols, row, shared, strict=True)}
        text += (" - " if count < 0 else " + " if text else "") + _term(abs(count), rest)
    return number, tuple((s, out) for s, out in zip(symbols, shared, strict=True) if out), text


def _common(exponents: Sequence[int]) -> int:
    """Return the exponent that all these share: none of 1 and -1."""
    return max(0, min(exponents)) + min(0, max(exponents))


def _power(symbol: str, exponent: int) -> str:
    return symbol if exponent == 1 else f"{symbol}**{exponent}"

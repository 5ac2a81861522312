"""Sensitivities: what raises a workload's arithmetic intensity, by differentiation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from perfmodel.base.errors import WorkloadError
from perfmodel.workloads.work import Workload

_MOST_TERMS: Final = 2000
_HIGHEST_POWER: Final = 8


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How arithmetic intensity follows one symbol, the others held.

    Attributes
    ----------
    elasticity : sympy expression or None
        (s/AI) dAI/ds: per cent of AI per per cent of s. None where ceil, floor, max or min make
        AI jump or bend.
    sign : {1, -1, 0} or None
        Sign of dAI/ds for all positive integers; None if it depends on the values.
    value : float or None
        The elasticity at the values given; None without values, or where no bytes are moved.
    """

    elasticity: Any
    sign: int | None
    value: float | None


def sensitivities(
    workload: Workload, values: Mapping[str, int] | None = None
) -> dict[str, Sensitivity]:
    """Differentiate the arithmetic intensity of all ranges together by every symbol.

    Source: the document's Question 2.6, "what is required to increase the arithmetic intensity".

    Parameters
    ----------
    workload : Workload
    values : mapping of str to int, optional
        Where to evaluate the elasticities.

    Raises
    ------
    WorkloadError
        If the workload has no FLOPs or moves no bytes, or a value is wrong.

    Examples
    --------
    >>> from perfmodel.programs.mlp.mlp import mlp
    >>> found = sensitivities(mlp("document"))
    >>> found["B"].elasticity, found["p"].elasticity, found["H"].sign
    (1, -3*p/(3*p - 2), 1)
    """
    total = workload.total()
    total.arithmetic_intensity()  # refuses a workload without bytes
    at = workload.check(values) if values is not None else None
    flops = tidy(total.flops.sympy())
    moved = tidy(total.moved_bytes().sympy())
    if not total.flops or flops == 0:
        raise WorkloadError(
            f"wanted FLOPs in workload '{workload.name}'; found none; add 'flops' to its ranges"
        )
    return {
        name: _sensitivity(flops, moved, symbol.sympy(), at)
        for name, symbol in workload.symbols.items()
    }


def tidy(expression: Any) -> Any:
    """Factor a SymPy expression where that is quick and makes it shorter."""
    import sympy

    if not _is_small(expression):
        return expression
    factored = sympy.factor(expression)
    return min((factored, expression), key=lambda e: (e.count_ops(), len(str(e))))


def _sensitivity(flops: Any, moved: Any, symbol: Any, at: Mapping[str, int] | None) -> Sensitivity:
    import sympy

    elasticity = symbol * (sympy.diff(flops, symbol) / flops - sympy.diff(moved, symbol) / moved)
    if elasticity.has(sympy.Derivative, sympy.Heaviside, sympy.DiracDelta):
        return Sensitivity(None, None, None)
    if _is_small(elasticity):
        elasticity = tidy(sympy.together(elasticity))
    value = None
    if at is not None:
        exact = {s: sympy.Integer(at[s.name]) for s in elasticity.free_symbols}
        result = elasticity.xreplace(exact)
        value = float(result) if result.is_real and result.is_finite else None
    return Sensitivity(elasticity, _sign(elasticity), value)


def _sign(expression: Any) -> int | None:
    """Sign for all positive integers: with s = 1 + t, a polynomial in t of one sign keeps it."""
    import sympy

    if not _is_small(expression):
        return None
    sign = 1
    for part in sympy.fraction(sympy.together(expression)):
        shift = {s: 1 + sympy.Symbol(s.name, nonnegative=True) for s in part.free_symbols}
        shifted = sympy.expand(part.xreplace(shift))
        terms = sympy.Add.make_args(shifted)
        if shifted == 0:
            sign = 0
        elif all(term.is_nonpositive for term in terms):
            sign = -sign
        elif not all(term.is_nonnegative for term in terms):
            return None
    return sign


def _is_small(expression: Any) -> bool:
    numerator, denominator = _count_terms(expression)
    return numerator <= _MOST_TERMS and denominator <= _MOST_TERMS


def _count_terms(expression: Any) -> tuple[int, int]:
    """Bound the terms of the numerator and denominator once expanded over one denominator."""
    if expression.is_Add:
        parts = [_count_terms(part) for part in expression.args]
        below = [d for _, d in parts]
        if max(below) == 1:
            return sum(n for n, _ in parts), 1
        return sum(n * prod(below) // d for n, d in parts), prod(below)
    if expression.is_Mul:
        parts = [_count_terms(part) for part in expression.args]
        return prod(n for n, _ in parts), prod(d for _, d in parts)
    if expression.is_Pow and expression.exp.is_Integer:
        n, d = _count_terms(expression.base)
        power = int(expression.exp)
        if abs(power) > _HIGHEST_POWER:
            return _MOST_TERMS + 1, 1
        return (n**power, d**power) if power > 0 else (d**-power, n**-power)
    return 1, 1

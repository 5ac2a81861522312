"""Symbols of numbers: products of symbols that have the number's value in every report.

A dimension that is 3072 where d_model is 768 and 4096 where it is 1024 is `4 d_model`. A number
that several products give is ambiguous; it matters only where they differ at the predicted sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, product
from typing import Final

from perfmodel.base.errors import ModelError

_NUMBER_PARTS: Final = 2
_SMALL: Final = (1, 2, 3, 4, Fraction(1, 2))
_MORE_PARTS: Final = 1
_MOST_SYMBOLS: Final = 3
"""Symbols of one product."""
_LARGEST_DENOMINATOR: Final = 16
_LARGEST_FACTOR: Final = 512
"""Numerator of the factor of a product of symbols; constants may be larger."""


@dataclass(frozen=True, slots=True, order=True)
class Term:
    """A product of symbols: `factor` times every symbol to its power.

    Examples
    --------
    >>> Term(Fraction(4), (("d_model", 1),)).at({"d_model": 768})
    Fraction(3072, 1)
    """

    factor: Fraction
    powers: tuple[tuple[str, int], ...]

    def at(self, values: Mapping[str, int]) -> Fraction:
        """Value at some sizes."""
        found = self.factor
        for name, power in self.powers:
            found *= Fraction(values[name]) ** power
        return found

    @property
    def text(self) -> str:
        """In print: `4 d_model`, `d_model / heads`.

        >>> Term(Fraction(1, 2), (("d_model", 1), ("heads", -1))).text
        'd_model / 2 heads'
        """
        above = [name for name, power in self.powers for _ in range(power)]
        below = [name for name, power in self.powers for _ in range(-power)]
        top, bottom = self.factor.numerator, self.factor.denominator
        upper = " ".join([*([str(top)] if top != 1 or not above else []), *above])
        lower = " ".join([*([str(bottom)] if bottom != 1 else []), *below])
        return f"{upper} / {lower}" if lower else upper

    @property
    def parts(self) -> int:
        """Number of its parts: symbols, squares, divisions, a factor that is not small.

        A number alone counts as two.
        """
        if not self.powers:
            return _NUMBER_PARTS
        divided = sum(power < 0 for _, power in self.powers)
        squared = sum(2 * (power > 1) for _, power in self.powers)
        return len(self.powers) + squared + divided + (self.factor not in _SMALL)

    @property
    def complexity(self) -> tuple[int, int]:
        """Fewer parts first, then a factor of 1."""
        return self.parts, self.factor.numerator * self.factor.denominator


def terms_of(numbers: Sequence[int], values: Sequence[Mapping[str, int]]) -> tuple[Term, ...]:
    """Products that have these numbers at these values, the simplest first.

    Those with two or more parts more than the simplest are left out.

    Parameters
    ----------
    numbers : sequence of int
        The dimension in every report.
    values : sequence of mapping
        The symbols' values in every report.

    Examples
    --------
    >>> at = [{"d_model": 768, "batch": 16}, {"d_model": 640, "batch": 12}]
    >>> [term.text for term in terms_of([3072, 2560], at)]
    ['4 d_model']
    """
    known = tuple(tuple(sorted(v.items())) for v in values)
    return _terms_of(tuple(numbers), known)


@lru_cache(maxsize=65536)
def _terms_of(
    numbers: tuple[int, ...], values: tuple[tuple[tuple[str, int], ...], ...]
) -> tuple[Term, ...]:
    if set(numbers) <= {0} or set(numbers) == {1}:
        return (Term(Fraction(numbers[0]), ()),)
    found = []
    for powers in _powers(tuple(name for name, _ in values[0])):
        at = [dict(v) for v in values]
        factors = {
            Fraction(number) / math.prod(Fraction(v[n]) ** p for n, p in powers)
            for number, v in zip(numbers, at, strict=True)
        }
        if len(factors) == 1:
            factor = factors.pop()
            simple = factor.numerator <= _LARGEST_FACTOR or not powers
            if factor > 0 and factor.denominator <= _LARGEST_DENOMINATOR and simple:
                found.append(Term(factor, powers))
    found.sort(key=lambda t: t.complexity)
    return tuple(t for t in found if t.parts <= found[0].parts + _MORE_PARTS)


@lru_cache(maxsize=64)
def _powers(names: tuple[str, ...]) -> tuple[tuple[tuple[str, int], ...], ...]:
    return tuple(_every_power(names))


def _every_power(names: Sequence[str]) -> Iterator[tuple[tuple[str, int], ...]]:
    """Squares, and products of up to three symbols, of which one at most is divided by."""
    yield ()
    yield from (((name, 2),) for name in names)  # elements of a square matrix
    for count in range(1, _MOST_SYMBOLS + 1):
        for chosen in combinations(names, count):
            for signs in product((1, -1), repeat=count):
                if signs.count(-1) <= 1:
                    yield tuple(zip(chosen, signs, strict=True))


def value_at(terms: Sequence[Term], values: Mapping[str, int], what: str) -> int:
    """Value of a dimension at some sizes.

    Raises
    ------
    ModelError
        If products that are equal in all reports differ there: names them, and what to do.
    """
    numbers = {term.at(values) for term in terms}
    if len(numbers) > 1:
        shown = ", ".join(f"{t.text} = {float(t.at(values)):g}" for t in terms[:4])
        raise ModelError(
            f"{what} is ambiguous: the reports have it as each of {shown}, which differ at the "
            f"sizes asked for; calibrate with one more report in which they differ"
        )
    number = numbers.pop()
    return max(round(number), 1) if number else 0

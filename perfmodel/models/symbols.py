"""Dimensions as products of symbols: 3072 is `4 d_model` where d_model is 768."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction


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

    def number_at(self, values: Mapping[str, int]) -> int:
        """Dimension at some sizes: rounded, and at least 1 where it is not 0.

        >>> Term(Fraction(1, 2), (("height", 1),)).number_at({"height": 7})
        4
        """
        number = self.at(values)
        return max(round(number), 1) if number else 0

"""Dimensions as products of symbols."""

from __future__ import annotations

from fractions import Fraction

import pytest

from perfmodel.models.symbols import Term

AT = {"d_model": 768, "heads": 12, "batch": 16, "height": 7}


@pytest.mark.parametrize(
    ("term", "number"),
    [
        (Term(Fraction(4), (("d_model", 1),)), 3072),
        (Term(Fraction(1), (("d_model", 1), ("heads", -1))), 64),
        (Term(Fraction(1), (("d_model", 2),)), 768**2),
        (Term(Fraction(1, 4), (("height", 1),)), 2),
        (Term(Fraction(1, 16), (("height", 1),)), 1),
        (Term(Fraction(50257), ()), 50257),
        (Term(Fraction(0), ()), 0),
    ],
)
def test_a_dimension_is_its_product_rounded(term: Term, number: int) -> None:
    assert term.number_at(AT) == number

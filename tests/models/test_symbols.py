"""Dimensions as products of symbols."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.models.symbols import terms_of, value_at

AT = [
    {"d_model": 768, "heads": 12, "batch": 16, "seq": 512},
    {"d_model": 1024, "heads": 8, "batch": 12, "seq": 640},
]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((768, 1024), "d_model"),
        ((3072, 4096), "4 d_model"),
        ((8192, 7680), "batch seq"),
        ((64, 128), "d_model / heads"),
        ((192, 96), "batch heads"),
        ((50257, 50257), "50257"),
        ((0, 0), "0"),
    ],
)
def test_number_is_the_product_that_reports_allow(numbers: tuple[int, int], text: str) -> None:
    assert [term.text for term in terms_of(numbers, AT)] == [text]


def test_number_that_no_product_gives_has_none_but_itself_nowhere() -> None:
    assert terms_of((77, 1001), AT) == ()


def test_head_of_one_size_in_all_reports_is_ambiguous() -> None:
    at = [{"d_model": 768, "heads": 12}, {"d_model": 512, "heads": 8}]
    terms = terms_of((768, 512), at)
    assert [term.text for term in terms] == ["d_model", "64 heads"]
    assert value_at(terms, {"d_model": 1024, "heads": 16}, "dimension 1") == 1024
    with pytest.raises(ModelError, match=r"64 heads = 512.*one more report"):
        value_at(terms, {"d_model": 1024, "heads": 8}, "dimension 1")

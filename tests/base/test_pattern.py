"""Names by a pattern: what matches, and that no expression hangs."""

from __future__ import annotations

import pytest

from perfmodel.base import pattern
from perfmodel.base.errors import SchemaError
from perfmodel.base.pattern import matching

NAMES = ("step 1", "step 12", "Step [x]", "log", "été\n\udcff")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("step 1", {0}),
        ("step *", {0, 1}),
        ("step ?", {0}),
        ("Step [x]", {2}),
        ("*[[]x]", {2}),
        (r"/^step \d+$/", {0, 1}),
        ("/t/", {0, 1, 2, 4}),
        ("//", set()),
        ("/[[]/", {2}),
        ("[z-a]", set()),
    ],
)
def test_names_globs_and_expressions(asked: str, found: set[int]) -> None:
    assert matching(asked, NAMES, "--batch-range") == found


@pytest.mark.parametrize("asked", ["/(/", "/a{99999999999}/", f"/{'(' * 5000}{')' * 5000}/", "/*/"])
def test_an_expression_that_is_none_is_refused(asked: str) -> None:
    with pytest.raises(SchemaError, match="--batch-range: expected a regular expression"):
        matching(asked, NAMES, "--batch-range")


@pytest.mark.parametrize("asked", ["/(a+)+$/", "/(a|a)*b/", "/(.*)*c$/"])
def test_an_expression_that_backtracks_for_ever_is_ended(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern, "_LONGEST_SEARCH_S", 0.1)
    with pytest.raises(SchemaError, match="in all names within 0 s"):
        matching(asked, ["a" * 60 + "!"], "--batch-range")

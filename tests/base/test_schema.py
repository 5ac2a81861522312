"""JSON Schemas: what a type says, and types that JSON lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict

import jsonschema
import pytest

from perfmodel.base.document import LEFT_OUT, plain, plain_view
from perfmodel.base.schema import Schemas, schema_of

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass(frozen=True)
class _Inner:
    """One of them.

    Attributes
    ----------
    shown, seconds : float
        Two numbers.
    """

    JSON_KEYS = {"hidden": "shown", "twice": "twice"}  # noqa: RUF012

    hidden: float
    seconds: float | None
    file: Path | None = field(default=None, metadata=LEFT_OUT)

    @property
    def twice(self) -> int:
        return 2


def test_keys_of_a_type(tmp_path: Path) -> None:
    made = Schemas()
    assert made.of(tuple[_Inner, ...]) == {"type": "array", "items": {"$ref": "#/$defs/_Inner"}}
    found = made.defs["_Inner"]
    assert found["description"] == "One of them."
    assert found["required"] == ["shown", "seconds", "twice"]
    assert found["properties"]["seconds"]["type"] == ["number", "null"]
    assert found["properties"]["seconds"]["description"] == "Two numbers."
    assert found["properties"]["twice"] == {"type": "integer"}
    assert plain(_Inner(1.0, float("nan"))) == {"shown": 1.0, "seconds": None, "twice": 2}
    assert plain(_Inner(1.0, 2.0, tmp_path))["file"] == str(tmp_path)


def test_a_type_that_json_lacks_is_refused() -> None:
    with pytest.raises(TypeError, match="got <class 'complex'>"):
        Schemas().of(complex)


class _Free(TypedDict):
    """A document without a class of its own.

    Attributes
    ----------
    inner : tuple
        Some of them.
    """

    inner: tuple[_Inner, ...]
    ratio: Fraction  # imported for type checkers only
    note: NotRequired[str]


class _Freer(_Free, total=False):
    """A document with a key that may be absent."""

    by_name: Mapping[str, Literal["a", "b"] | None]
    pair: tuple[int, str]


def test_a_typed_dict_is_an_object_whose_keys_may_be_absent() -> None:
    made = schema_of("documents", 3, [_Free, _Freer])
    assert (made["title"], made["version"], [*made["$defs"]]) == (
        "documents", 3, ["_Free", "_Freer", "_Inner"],
    )  # fmt: skip
    assert made["$defs"]["_Free"]["required"] == ["inner", "ratio"]
    assert made["$defs"]["_Free"]["properties"]["inner"]["description"] == "Some of them."
    free = {"inner": [], "ratio": 0.5}
    given: list[tuple[dict[str, Any], bool]] = [
        (free, True),
        ({**free, "note": "n", "by_name": {"x": "a", "y": None}, "pair": [1, "one"]}, True),
        ({**free, "by_name": {"x": "c"}}, False),
        ({**free, "pair": [1, "one", 2]}, False),
        ({**free, "inner": [{}]}, False),
        ({"inner": []}, False),
    ]
    validator = jsonschema.Draft202012Validator(made)
    assert [validator.is_valid(one) for one, _ in given] == [valid for _, valid in given]


@dataclass(frozen=True)
class _Outer:
    """What holds others.

    Attributes
    ----------
    by_place : mapping
        By section and key.
    """

    JSON_KEYS = {"own": ""}  # noqa: RUF012

    by_place: Mapping[tuple[str, str], float]
    own: object = None


def inner_view(item: _Inner) -> Annotated[dict[str, Any], {"doubled": int}]:
    """One of them, doubled."""
    return {"doubled": item.twice}


def outer_view(
    outer: _Outer, inner: _Inner | None
) -> Annotated[
    dict[str, Any],
    _Outer,
    {"inner": inner_view | None, "all": NotRequired[list[inner_view]]},
]:
    """Both.

    Keys
    ----
    inner, all
        The one, and each.
    """
    return plain_view(outer, inner=None if inner is None else inner_view(inner))


def test_a_view_has_the_keys_of_a_type_and_more() -> None:
    made = schema_of("views", 1, [outer_view])
    assert [*made["$defs"]] == ["InnerView", "OuterView"]
    found = made["$defs"]["OuterView"]
    assert found["description"] == "Both."
    assert [*found["properties"]] == ["by_place", "inner", "all"]
    assert found["required"] == ["by_place", "inner"]
    assert found["properties"]["by_place"]["description"] == "By section and key."
    assert found["properties"]["all"]["description"] == "The one, and each."
    validator = jsonschema.Draft202012Validator(made)
    for inner in (None, _Inner(1.0, 2.0)):
        document = outer_view(_Outer({("a", "b"): 1.0}), inner)
        assert document["by_place"] == {"a.b": 1.0}
        assert validator.is_valid(document)
    assert not validator.is_valid({**document, "own": None})
    assert not validator.is_valid({**document, "inner": {}})


def test_two_types_of_one_name_are_refused() -> None:
    made = Schemas()
    made.of(_Inner)
    with pytest.raises(TypeError, match="expected one type called _Inner"):
        made.of(dataclass(type("_Inner", (), {})))

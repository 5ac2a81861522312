"""Results as plain data that JSON holds: base units, missing as null, never NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

from perfmodel.base.escape import escape_json


def to_json(value: Any, indent: int | None = 1) -> str:
    """Return a value as JSON that is harmless in a terminal; see `plain`."""
    return escape_json(json.dumps(plain(value), indent=indent, allow_nan=False))


def plain(value: Any) -> Any:
    """Return plain Python data: data classes as dictionaries, infinity and NaN as None."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Iterable):
        return [plain(v) for v in value]
    return plain(value.item()) if hasattr(value, "item") else str(value)


def pick(item: object, names: str, **renamed: str) -> dict[str, Any]:
    """Return attributes of an object by name; `renamed` maps other keys to attributes.

    Examples
    --------
    >>> pick(1 + 2j, "real", imaginary="imag")
    {'real': 1.0, 'imaginary': 2.0}
    """
    wanted = {name: name for name in names.split()} | renamed
    return {key: attrgetter(name)(item) for key, name in wanted.items()}

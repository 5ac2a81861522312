"""JSON Schema of data classes and TypedDicts, described by their docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import (
    Any,
    Final,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import numpy as np

from perfmodel.base.document import LEFT_OUT, json_keys

_PLAIN: Final[dict[Any, dict[str, Any]]] = {
    Any: {},
    type(None): {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    str: {"type": "string"},
    float: {"type": ["number", "null"]},  # null where it is not finite
    Fraction: {"type": ["number", "null"]},
    Path: {"type": "string"},
    np.ndarray: {"type": "array"},
}
_ENTRY: Final = re.compile(  # name, other : type, and the indented lines below
    r"^(?P<names>\w+(?:, \w+)*)(?: : .*)?\n(?P<text>(?: .*(?:\n|$)|\n)+)", re.MULTILINE
)


def schema_of(title: str, version: int, roots: Sequence[Any]) -> dict[str, Any]:
    """Return the JSON Schema of documents that have one of these types."""
    made = Schemas()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "version": version,
        "anyOf": [made.of(root) for root in roots],
        "$defs": dict(sorted(made.defs.items())),
    }


class Schemas:
    """Schemas of types, with each data class and TypedDict once in `defs`."""

    def __init__(self) -> None:
        self.defs: dict[str, dict[str, Any]] = {}
        self._kinds: dict[str, type[Any]] = {}

    def of(self, hint: Any) -> dict[str, Any]:
        """Return the schema of a type.

        Raises
        ------
        TypeError
            If JSON has no such type.
        """
        origin, kinds = get_origin(hint), get_args(hint)
        if (plain := hint if origin is None else origin) in _PLAIN:
            return dict(_PLAIN[plain])
        if origin is NotRequired:
            return self.of(kinds[0])
        if origin is Literal:
            return {"enum": [*kinds]}
        if origin in (Union, types.UnionType):
            return _any_of([self.of(kind) for kind in kinds])
        if origin is tuple and kinds[-1] is not Ellipsis:
            each = [self.of(kind) for kind in kinds]
            return {"type": "array", "prefixItems": each, "items": False, "minItems": len(each)}
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(kinds[1])}
        if origin is not None and issubclass(origin, Sequence):
            return {"type": "array", "items": self.of(kinds[0])}
        if isinstance(hint, type) and (is_dataclass(hint) or is_typeddict(hint)):
            return self._reference(hint)
        raise TypeError(f"expected a type that JSON has; got {hint!r}")

    def _reference(self, kind: type[Any]) -> dict[str, Any]:
        name = kind.__name__
        if self._kinds.setdefault(name, kind) is not kind:
            raise TypeError(f"expected one type called {name}; got two; rename one")
        if name not in self.defs:
            self.defs[name] = {}  # a type may hold itself
            self.defs[name] = self._members(kind)
        return {"$ref": f"#/$defs/{name}"}

    def _members(self, kind: type[Any]) -> dict[str, Any]:
        hints, text, said = _hints(kind), *described(kind)
        if is_typeddict(kind):
            keys = {name: name for name in hints}
            absent = {n for n, hint in hints.items() if get_origin(hint) is NotRequired}
            absent |= kind.__optional_keys__
        else:
            keys = json_keys(kind)
            absent = {f.name for f in fields(kind) if f.metadata == LEFT_OUT}
            for base in kind.__mro__[1:-1]:
                said = described(base)[1] | said
        properties = {
            key: self.of(hints[name]) | ({"description": said[name]} if name in said else {})
            for name, key in keys.items()
        }
        return {
            "description": text,
            "type": "object",
            "properties": properties,
            "required": [key for key in properties if key not in absent],
            "additionalProperties": False,
        }


def _any_of(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of values that fit one of these; plain types become one list of names."""
    if not all([*one] == ["type"] for one in each):
        return {"anyOf": each}
    names = [name for one in each for name in np.atleast_1d(one["type"]).tolist()]
    return {"type": [*dict.fromkeys(names)]}


def described(kind: type[Any]) -> tuple[str, dict[str, str]]:
    """Return the text of a class's docstring, and those of its fields and properties by name."""
    text, _, listed = inspect.cleandoc(kind.__doc__ or "").partition("\n\nAttributes\n----------\n")
    said = {
        name: " ".join(entry["text"].split())
        for entry in _ENTRY.finditer(listed)
        for name in entry["names"].split(", ")
    }
    properties = {n: m.__doc__ for n, m in vars(kind).items() if isinstance(m, property)}
    own = {name: doc.partition("\n")[0] for name, doc in properties.items() if doc}
    return " ".join(text.split()), own | said


def _hints(kind: type[Any]) -> dict[str, Any]:
    """Return the types of a class's fields and properties."""
    if is_typeddict(kind):
        return get_type_hints(kind, localns=_namespace(kind.__module__), include_extras=True)
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__[:-1]):
        space = _namespace(base.__module__)
        found |= inspect.get_annotations(base, globals=space, locals={}, eval_str=True)
        for name, member in vars(base).items():
            if isinstance(member, property) and member.fget is not None:
                found[name] = get_type_hints(member.fget, space)["return"]
    return found


@cache
def _namespace(module: str) -> dict[str, Any]:
    """Return the names of a module, with those that it imports for type checkers only."""
    loaded = importlib.import_module(module)
    found: dict[str, Any] = {}
    for block in ast.parse(inspect.getsource(loaded)).body:
        for node in block.body if isinstance(block, ast.If) else ():
            if isinstance(node, ast.ImportFrom):
                path = "." * node.level + (node.module or "")
                origin = importlib.import_module(path, loaded.__package__)
                for name in node.names:
                    found[name.asname or name.name] = getattr(origin, name.name)
    return found | vars(loaded)

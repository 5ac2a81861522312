"""JSON Schema of data classes, TypedDicts and views, described by their docstrings.

A view is a function that returns a dictionary for JSON. Its return type says the keys:
`Annotated[dict[str, Any], Kind, {"key": float}]` has those of `Kind`, a data class or another view,
and one more. Its docstring describes keys below `Keys`.
"""

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
_LISTED: Final = "\n\nAttributes\n----------\n", "\n\nKeys\n----\n"


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
    """Schemas of types, with each data class, TypedDict and view once in `defs`."""

    def __init__(self) -> None:
        self.defs: dict[str, dict[str, Any]] = {}
        self._kinds: dict[str, Any] = {}

    def of(self, hint: Any) -> dict[str, Any]:
        """Return the schema of a type.

        Raises
        ------
        TypeError
            If JSON has no such type.
        """
        hint = _itself(hint)
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
            return self._reference(hint.__name__, hint)
        if inspect.isfunction(hint):
            return self._reference(hint.__name__.title().replace("_", ""), hint)
        raise TypeError(f"expected a type that JSON has; got {hint!r}")

    def _reference(self, name: str, kind: Any) -> dict[str, Any]:
        if self._kinds.setdefault(name, kind) is not kind:
            raise TypeError(f"expected one type called {name}; got two; rename one")
        if name not in self.defs:
            self.defs[name] = {}  # a type may hold itself
            self.defs[name] = self._members(kind)
        return {"$ref": f"#/$defs/{name}"}

    def _members(self, kind: Any) -> dict[str, Any]:
        text, said = described(kind)
        properties, required = self._own(kind, said)
        return {
            "description": text,
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def _own(self, kind: Any, said: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
        """Return the schemas of a type's keys, and the keys that are never absent."""
        if inspect.isfunction(kind):
            return self._of_view(kind, said)
        hints = _hints(kind)
        if is_typeddict(kind):
            keys = {name: name for name in hints}
            absent = {name for name, hint in hints.items() if _may_be_absent(hint)}
            absent |= kind.__optional_keys__
        else:
            keys = json_keys(kind)
            absent = {f.name for f in fields(kind) if f.metadata == LEFT_OUT}
            for base in kind.__mro__[1:-1]:
                said = described(base)[1] | said
        properties = {key: self._said(hints[name], said.get(name)) for name, key in keys.items()}
        return properties, [key for key in properties if key not in absent]

    def _of_view(self, view: Any, said: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
        properties: dict[str, Any] = {}
        required: list[str] = []
        for part in get_args(_returned(view))[1:]:
            if isinstance(part, Mapping):
                more = {key: self._said(hint, said.get(key)) for key, hint in part.items()}
                needed = [key for key, hint in part.items() if not _may_be_absent(hint)]
            else:
                kind = _itself(part)
                more, needed = self._own(kind, described(kind)[1])
            properties, required = properties | more, required + needed
        return properties, [*dict.fromkeys(required)]

    def _said(self, hint: Any, text: str | None) -> dict[str, Any]:
        return self.of(hint) | ({"description": text} if text else {})


def _returned(view: Any) -> Any:
    """Return the type that a view returns; views in it are types, as `|` takes no functions."""
    names = _namespace(view.__module__)
    space = {n: type(n, (_View,), {"view": one}) if inspect.isfunction(one) else one
             for n, one in names.items()}  # fmt: skip
    return inspect.get_annotations(view, globals=space, eval_str=True)["return"]


class _View:
    """Type of a view."""

    view: Any


def _itself(kind: Any) -> Any:
    return kind.view if isinstance(kind, type) and issubclass(kind, _View) else kind


def _may_be_absent(hint: Any) -> bool:
    return get_origin(hint) is NotRequired


def _any_of(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of values that fit one of these; plain types become one list of names."""
    if not all([*one] == ["type"] for one in each):
        return {"anyOf": each}
    names = [name for one in each for name in np.atleast_1d(one["type"]).tolist()]
    return {"type": [*dict.fromkeys(names)]}


def described(kind: Any) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring, and those of fields, properties or keys by name."""
    head = _LISTED[inspect.isfunction(kind)]
    text, _, listed = inspect.cleandoc(kind.__doc__ or "").partition(head)
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

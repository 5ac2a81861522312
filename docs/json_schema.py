"""Writes the JSON Schema of analysis.json, of the types that write it, its page, and a glossary.

    python docs/json_schema.py

The glossary is that of `perfmodel mcp`. A test fails when either is not what the types say.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from perfmodel.analysis.whatif import GraphChanges  # noqa: E402
from perfmodel.base.document import LEFT_OUT, json_keys  # noqa: E402
from perfmodel.base.errors import ErrorDocument  # noqa: E402
from perfmodel.render.analysis_json import SCHEMA_VERSION, AnalysisDocument, BriefDocument  # noqa: E402
from perfmodel.render.compare import CompareDocument  # noqa: E402
from perfmodel.render.evidence import Evidence  # noqa: E402
from perfmodel.render.operator_prediction import (  # noqa: E402
    ReportPredictionDocument,
)  # fmt: skip
from perfmodel.render.predict import PredictionDocument  # noqa: E402
from perfmodel.render.scaling import ScalingDocument  # noqa: E402
from perfmodel.render.whatif import WhatIfDocument  # noqa: E402

DOCUMENTS: Final = (
    AnalysisDocument, BriefDocument, Evidence, GraphChanges, CompareDocument, WhatIfDocument,
    ReportPredictionDocument, PredictionDocument,
    tuple[PredictionDocument, ...], ScalingDocument, ErrorDocument,
)  # fmt: skip
SCHEMA: Final = ROOT / "perfmodel" / "render" / "analysis.schema.json"
PAGE: Final = ROOT / "docs" / "json.md"
GLOSSARY: Final = ROOT / "perfmodel" / "commands" / "GLOSSARY.md"
_NUMBERS: Final = {bool: "boolean", int: "integer", str: "string"}
_FIRST: Final = re.compile(r"^(?P<names>\w+(?:, \w+)*)(?: : (?P<kind>.*))?$")
_OPENING: Final = """# analysis.json, key by key

<!-- made by docs/json_schema.py: do not edit -->

`perfmodel analyze --json` prints one JSON document, and `-o FOLDER` writes it as `analysis.json`.
Its [JSON Schema](https://json-schema.org/) is in the package as
`perfmodel/render/analysis.schema.json`, and `perfmodel analyze --json-schema` prints it. The schema
is made of the types that write the document, and tests hold the documents against it.

- `schema_version` grows by one when a key changes its meaning or goes away. New keys do not change
  it.
- Numbers are in base units, which names end in: `_s`, `_ns`, `_bytes`, `_flops`, `_bytes_per_s`,
  `_flops_per_s`. Shares are fractions of one.
- What is not known, or not finite, is `null`. Keys in *italics* are left out where not known.
- `--json --brief` prints a [BriefDocument](#briefdocument): the first screen of every run. `--json
  --evidence KEY` prints [Evidence](#evidence). `perfmodel whatif --json` prints
  [GraphChanges](#graphchanges) where it replays steps, `perfmodel compare --json` a
  [CompareDocument](#comparedocument). Of the trainer `whatif` prints a
  [WhatIfDocument](#whatifdocument). `perfmodel predict --json` prints a
  [ReportPredictionDocument](#reportpredictiondocument) of a report, a
  [PredictionDocument](#predictiondocument) of a model, and `perfmodel scaling --json` a
  [ScalingDocument](#scalingdocument). The schema is of all of these.
- With `--json` an error is JSON, too: `{"error": {...}}` on standard output, with the exit code of
  the command.
"""


@cache
def _namespace(module: str) -> dict[str, Any]:
    """Return the names of a module, those that it imports for type checkers only, too."""
    loaded = importlib.import_module(module)
    found = dict(vars(loaded))
    for node in ast.walk(ast.parse(inspect.getsource(loaded))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            origin = importlib.import_module(node.module)
            found |= {
                name.asname or name.name: getattr(origin, name.name)
                for name in node.names
                if hasattr(origin, name.name)
            }
    return found


def _hints(kind: type[Any]) -> dict[str, Any]:
    """Return the types of a class's fields, and of its properties that JSON has."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__[:-1]):
        space = _namespace(base.__module__)
        for name, hint in inspect.get_annotations(base).items():
            found[name] = eval(hint, space) if isinstance(hint, str) else hint  # our own source
        for name, member in vars(base).items():
            if isinstance(member, property) and member.fget is not None:
                found[name] = get_type_hints(member.fget, space)["return"]
    return found


def described(kind: type[Any]) -> tuple[str, dict[str, str]]:
    """Return the text of a class's docstring, and that of its attributes, without markup."""
    text = inspect.cleandoc(kind.__doc__ or "")
    text, _, listed = text.partition("\n\nAttributes\n----------\n")
    said: dict[str, str] = {}
    names: list[str] = []
    for line in listed.splitlines():
        if line and not line.startswith(" "):
            head = _FIRST.match(line)
            if head is None:
                break
            names = head["names"].split(", ")
        elif line.strip():
            for name in names:
                said[name] = f"{said.get(name, '')} {line.strip()}".strip()
    return " ".join(text.split()), said


class Schemas:
    """Schemas of types, each data class once, in `$defs`."""

    def __init__(self) -> None:
        self.kinds: dict[str, type[Any]] = {}
        self.defs: dict[str, dict[str, Any]] = {}

    def of(self, hint: Any) -> dict[str, Any]:
        """Return the schema of a type.

        Raises
        ------
        TypeError
            If JSON has no such type.
        """
        origin, kinds = get_origin(hint), get_args(hint)
        if hint is Any:
            return {}
        if hint is type(None):
            return {"type": "null"}
        if hint in _NUMBERS:
            return {"type": _NUMBERS[hint]}
        if hint in (float, Fraction):
            return {"type": ["number", "null"]}  # null where it is not finite
        if inspect.isclass(hint) and issubclass(hint, Path):
            return {"type": "string"}
        if origin is Literal:
            return {"enum": [*kinds]}
        if origin in (Union, types.UnionType):
            return self._any_of(kinds)
        if origin is np.ndarray:
            return {"type": "array"}
        if origin is tuple and kinds[-1] is not Ellipsis:
            each = [self.of(kind) for kind in kinds]
            return {"type": "array", "prefixItems": each, "items": False, "minItems": len(each)}
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(kinds[1])}
        if origin is not None and issubclass(origin, Sequence):
            return {"type": "array", "items": self.of(kinds[0])}
        if is_dataclass(hint) and isinstance(hint, type):
            self._add(hint)
            return {"$ref": f"#/$defs/{hint.__name__}"}
        raise TypeError(f"expected a type that JSON has; got {hint!r}")

    def _any_of(self, kinds: Sequence[Any]) -> dict[str, Any]:
        each = [self.of(kind) for kind in kinds]
        if all([*one] == ["type"] for one in each):
            names: list[str] = []
            for one in each:
                some = one["type"] if isinstance(one["type"], list) else [one["type"]]
                names += [name for name in some if name not in names]
            return {"type": names}
        return {"anyOf": each}

    def _add(self, kind: type[Any]) -> None:
        name = kind.__name__
        if self.kinds.setdefault(name, kind) is not kind:
            raise TypeError(f"expected one type called {name}; got two; rename one")
        if name not in self.defs:
            self.defs[name] = {}
            self.defs[name] = self.members(kind)

    def members(self, kind: type[Any]) -> dict[str, Any]:
        """Return the schema of a data class."""
        hints, (text, said) = _hints(kind), described(kind)
        for base in kind.__mro__[1:-1]:
            said = described(base)[1] | said
        absent = {f.name for f in fields(kind) if f.metadata == LEFT_OUT}
        properties = {}
        for name, key in json_keys(kind).items():
            schema = self.of(hints[name])
            if name in said:
                schema = {**schema, "description": said[name]}
            properties[key] = schema
        return {
            "description": text,
            "type": "object",
            "properties": properties,
            "required": [key for key in properties if key not in absent],
            "additionalProperties": False,
        }


def schema() -> dict[str, Any]:
    """Return the schema of what `analyze` and the replay of `whatif` print, and of an error."""
    schemas = Schemas()
    either = [schemas.of(kind) for kind in DOCUMENTS]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "analysis.json of perfmodel",
        "version": SCHEMA_VERSION,
        "anyOf": either,
        "$defs": dict(sorted(schemas.defs.items())),
    }


def schema_text() -> str:
    """Return the text of the schema's file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _kind(one: Mapping[str, Any]) -> str:
    """Say a schema in a cell of a table."""
    if "$ref" in one:
        name = one["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in one:
        return ", ".join(f"`{value}`" for value in one["enum"])
    if "anyOf" in one:
        return " or ".join(map(_kind, one["anyOf"]))
    kind = one.get("type", "anything")
    if kind == "array":
        return f"list of {_kind(one['items'])}" if one.get("items") else "list"
    if kind == "object":
        return f"by name: {_kind(one['additionalProperties'])}"
    return kind if isinstance(kind, str) else " or ".join(kind)


def _tables(document: Mapping[str, Any]) -> Iterator[str]:
    defs = document["$defs"]
    first = ["AnalysisDocument", "RunDocument"]
    for name in [*first, *(one for one in defs if one not in first)]:
        one = defs[name]
        yield f"## {name}\n\n{one['description']}\n"
        shown = one["properties"]
        if name == "RunDocument":
            yield "As [AnalysisDocument](#analysisdocument), without versions and runs.\n"
            continue
        rows = ["| key | type | |", "|---|---|---|"]
        for key, value in shown.items():
            word = f"`{key}`" if key in one["required"] else f"*`{key}`*"
            said = value.get("description", "").replace("|", "\\|")
            rows.append(f"| {word} | {_kind(value)} | {said} |")
        yield "\n".join(rows) + "\n"


def page() -> str:
    """Return the page of the schema."""
    return "\n".join([_OPENING, *_tables(schema())])


def glossary() -> str:
    """Return docs/glossary.md without links, for `perfmodel mcp`."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    text = re.sub(r" \(\[[^\]]*\]\([^)]*\)\)", "", text)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


if __name__ == "__main__":
    GLOSSARY.write_text(glossary(), encoding="utf-8")
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")

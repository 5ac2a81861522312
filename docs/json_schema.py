"""Writes docs/json.md, the page of the JSON Schema, and the glossary of `perfmodel mcp`.

    python docs/json_schema.py

A test fails when either is not what the types and docs/glossary.md say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from perfmodel.render.documents import json_schema  # noqa: E402

PAGE: Final = ROOT / "docs" / "json.md"
GLOSSARY: Final = ROOT / "perfmodel" / "commands" / "GLOSSARY.md"
_OPENING: Final = """# analysis.json, key by key

<!-- made by docs/json_schema.py: do not edit -->

`perfmodel analyze --json` prints one JSON document, and `-o FOLDER` writes it as `analysis.json`.
`perfmodel analyze --json-schema` prints its [JSON Schema](https://json-schema.org/). The schema is
made of the types that write the document, and tests hold the documents against it.

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
    return "\n".join([_OPENING, *_tables(json_schema())])


def glossary() -> str:
    """Return docs/glossary.md without links, for `perfmodel mcp`."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    text = re.sub(r" \(\[[^\]]*\]\([^)]*\)\)", "", text)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


if __name__ == "__main__":
    GLOSSARY.write_text(glossary(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")

"""The documents of general commands with `--json`, and their JSON Schema."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from perfmodel.analysis.changes import GraphChanges
from perfmodel.base.errors import ErrorDocument
from perfmodel.base.schema import schema_of
from perfmodel.render.analysis_json import SCHEMA_VERSION, analysis_document, brief_document
from perfmodel.render.compare import compare_document
from perfmodel.render.evidence import Evidence
from perfmodel.render.operator_prediction import report_prediction_document

DOCUMENTS: Final = (
    analysis_document, brief_document, Evidence, GraphChanges, compare_document,
    report_prediction_document, ErrorDocument,
)  # fmt: skip


@cache
def json_schema(more: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Return the JSON Schema of these documents, and of more; an error takes the place of one."""
    return schema_of("analysis.json of perfmodel", SCHEMA_VERSION, (*DOCUMENTS, *more))


def definition(path: str) -> str:
    """Return what the docstrings of the types say of a path of analysis.json.

    >>> definition("ranges[3].flops")
    'One range of a median step. `flops`: By formula, for the range and all ranges inside it.'
    """
    node: dict[str, Any] = {"$ref": "#/$defs/AnalysisDocument"}
    sentence = ""
    for name in re.sub(r"\[[^\]]*\]", "", path).split("."):
        node = _members(node)
        if name in node.get("properties", ()):  # else a key of a mapping, or a part of one
            about, *more = re.split(r"(?<=\.) (?=[A-Z`])", node["description"])
            node = node["properties"][name]
            own = node.get("description")
            more = [f"`{name}`: {own}"] if own else [one for one in more if f"`{name}`" in one]
            sentence = " ".join([about, *more])
    return sentence


def _members(node: dict[str, Any]) -> dict[str, Any]:
    """Return the schema that has the keys of a value or of what it holds, else its own."""
    if "$ref" in node:
        return _members(json_schema()["$defs"][node["$ref"].rpartition("/")[2]])
    inner = [node.get("items"), node.get("additionalProperties"), *node.get("anyOf", ())]
    return next((_members(one) for one in inner if one), node)

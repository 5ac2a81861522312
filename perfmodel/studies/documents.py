"""The documents of all commands with `--json`, those of studies too, and their JSON Schema."""

from __future__ import annotations

import json
from types import GenericAlias
from typing import Any, Final

from perfmodel.render import documents
from perfmodel.studies.render.predict import prediction_document
from perfmodel.studies.render.scaling import scaling_document
from perfmodel.studies.render.whatif import what_if_document

DOCUMENTS: Final = (
    what_if_document, prediction_document, GenericAlias(list, prediction_document),
    scaling_document,
)  # fmt: skip


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of every document."""
    return documents.json_schema(DOCUMENTS)


def json_schema_text() -> str:
    """Return the JSON Schema as a file holds it."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"

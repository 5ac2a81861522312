"""The documents that commands print with `--json`, and their JSON Schema."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

from perfmodel.analysis.changes import GraphChanges
from perfmodel.base.errors import ErrorDocument
from perfmodel.base.schema import schema_of
from perfmodel.render.analysis_json import SCHEMA_VERSION, AnalysisDocument, BriefDocument
from perfmodel.render.compare import CompareDocument
from perfmodel.render.evidence import Evidence
from perfmodel.render.operator_prediction import ReportPredictionDocument
from perfmodel.render.predict import PredictionDocument
from perfmodel.render.scaling import ScalingDocument
from perfmodel.render.whatif import WhatIfDocument

DOCUMENTS: Final = (
    AnalysisDocument, BriefDocument, Evidence, GraphChanges, CompareDocument, WhatIfDocument,
    ReportPredictionDocument, PredictionDocument,
    tuple[PredictionDocument, ...], ScalingDocument, ErrorDocument,
)  # fmt: skip


@cache
def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of every document; an error takes the place of one."""
    return schema_of("analysis.json of perfmodel", SCHEMA_VERSION, DOCUMENTS)


def json_schema_text() -> str:
    """Return the JSON Schema as a file holds it."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"

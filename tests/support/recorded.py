"""Recordings of programs in profiles/programs, analyzed, and what is known of them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from benchmarks.common.folders import PROGRAMS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import BatchSummary, RunAnalysis
from perfmodel.programs.program import Options


@cache
def analyzed(name: str) -> RunAnalysis:
    """Return the analysis of a recording."""
    return analyze_reports([PROGRAMS / f"{name}.sqlite.xz"], Options()).fitted


def truth(name: str) -> dict[str, Any]:
    """Return what the program itself measured and counted."""
    found: dict[str, Any] = json.loads(
        (PROGRAMS / f"{name}.truth.json").read_text(encoding="utf-8")
    )
    return found


def with_warmup_s(batch: BatchSummary) -> float:
    """Return the mean time of all steps that were recorded, the warm-up included."""
    whole = batch.warmup * batch.warmup_s + batch.count * batch.mean_s
    return whole / (batch.warmup + batch.count)

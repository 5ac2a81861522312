"""The JSON document of an analysis: `analysis.json`, versioned, base units, None as null."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import perfmodel
from perfmodel.analysis import sweeps
from perfmodel.analysis.result import RangeRow
from perfmodel.analysis.rows import own_roof
from perfmodel.base.document import pick, plain
from perfmodel.render.operators import work_document
from perfmodel.render.serving import serving_document
from perfmodel.timing.range_times import ranks_of

if TYPE_CHECKING:
    from perfmodel.analysis.result import Analysis, RunAnalysis
    from perfmodel.models.roofline import Point
    from perfmodel.timing.point_to_point import PointToPoint

SCHEMA_VERSION: Final = 2
"""Grows by one when a key changes its meaning or goes away; new keys do not change it."""


def analysis_document(analysis: Analysis) -> dict[str, Any]:
    """Return the whole analysis as plain Python data, the fitted run's at the top level.

    With several runs, `runs` holds the same keys for every one of them, and `roofline.points`
    the points of all.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "perfmodel_version": perfmodel.__version__,
        "fit": analysis.fitted.label,
        **_run(analysis.fitted),
        "roofline": _roofline(analysis.fitted, analysis.runs),
    }
    if len(analysis.runs) > 1:
        document["runs"] = [_run(run) for run in analysis.runs]
        document["trends"] = list(sweeps.trends(analysis.runs))
        document["warnings"] = list(dict.fromkeys(w for r in analysis.runs for w in r.warnings))
    found: dict[str, Any] = plain(document)
    return found


def _run(run: RunAnalysis) -> dict[str, Any]:
    batch = pick(
        run.batch, "count warmup warmup_s mean_s queued_s", range="label", median_s="median.value",
        low_s="median.low", high_s="median.high", instances="median.instances",
        launch_low_s="median.launch_low", launch_high_s="median.launch_high",
        launches="median.launches",
    )  # fmt: skip
    steps = run.steps
    if steps is not None:
        batch |= {"found_by": steps.found_by, "confidence": steps.confidence}
    return {
        "label": run.label,
        "reports": [
            {
                **pick(t, "", path="source", nsys_version="product_version"),
                "schema": t.schema_version,
                "ranks": sorted(ranks_of(t).values()),
            }
            for t in run.traces
        ],
        "machine": None if run.machine is None else {
            **pick(
                run.machine,
                "name source peak_flops_per_s bandwidth_bytes_per_s gemm_flops_per_s "
                "capacity_bytes latency_s note url chip basis",
                sheet="sheet.name" if run.machine.sheet else "sheet",
            ),
            "figures": {".".join(where): figure for where, figure in run.machine.figures.items()},
        },
        "workload": {
            **pick(run.workload, "name counting"),
            "symbols": run.identity.values,
            "symbols_from": run.identity.source,
            "config": run.identity.config,
            "totals": run.totals,
        },
        "program": run.program.name,
        "batch": batch,
        "levels": [] if steps is None else steps.levels,
        "layers": [] if steps is None else steps.layers,
        "candidates": [] if steps is None else steps.candidates,
        "kernels": None if steps is None else {
            "categories": steps.categories, "largest": steps.kernels,
            "unattributed_share": steps.unattributed,
        },
        **work_document(run),
        "serving": serving_document(run.serving),
        "gemms": [
            {"range": label, "flops": flops, "rate": rate} for label, flops, rate in run.products
        ],
        "ranges": [
            {name: getattr(row, name) for name in RangeRow.__slots__}
            | {"path": "/".join(row.path)}
            for row in run.ranges
        ],
        "roofline": _roofline(run, (run,)),
        "model": [{**asdict(c), "relative_error": c.relative_error} for c in run.model],
        "idle": run.steps.idle if run.steps else [],
        "critical_path": run.steps.facts.path if run.steps else [],
        "recorder": run.steps.facts.recorder if run.steps else None,
        "point_to_point": run.messages and _messages(run.messages),
        "ranges_by_rank": run.ranges_by_rank,
        "outliers": [{**asdict(one), "excess": one.excess} for one in run.outliers],
        "hosts": run.hosts,
        "stragglers": [{**asdict(one), "persistent": one.persistent} for one in run.late],
        "diagnostics": [d for t in run.traces for d in t.diagnostics if d.severity != "info"],
        **pick(
            run, "gpus precision rates rates_by_clock ranks copies collectives skew unattributed "
            "findings warnings",
        ),
    }  # fmt: skip


def _messages(messages: PointToPoint) -> dict[str, Any]:
    """Pairs with the key names `from` and `to`, and the ranks that others wait for."""
    return {
        "pairs": [
            {"from": p.sender, "to": p.receiver, **pick(p, "messages bytes waiting_s")}
            for p in messages.pairs
        ],
        "ranks": [pick(r, "rank waiting_s caused_s most_s") for r in messages.ranks],
        **pick(messages, "chains unmatched warnings"),
    }


def _roofline(fitted: RunAnalysis, runs: Sequence[RunAnalysis]) -> dict[str, Any]:
    roof = fitted.roofline
    points = [_point(p, fitted, run) for run in runs for p in run.points]
    if roof is None:
        return {"rates": None, "points": points}
    links = {f"P_{link}": rate for link, rate in roof.links_bytes_per_s.items()}
    return {
        "rates": {"P_flops": roof.flops_per_s, **links},
        **pick(roof, "shares bandwidth_bytes_per_s ridge_flops_per_byte", fitted_on="label"),
        "points": points,
    }


def _point(point: Point, fitted: RunAnalysis, run: RunAnalysis) -> dict[str, Any]:
    """One point, with the height of the roof above it for its run's own mix of bytes.

    None if the run's links or math are not those of the roof.
    """
    shown = {**asdict(point), "symbols": point.symbols or {}}
    if fitted.roofline is None:
        return shown
    own = own_roof(fitted, run)
    height = float(own.smooth(point.intensity_flops_per_byte)) if own else None
    return {**shown, "roof_flops_per_s": height}

"""The JSON document of an analysis: `analysis.json`, versioned, base units, None as null."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import perfmodel
from perfmodel.analysis import sweeps
from perfmodel.analysis.comparable import own_roof
from perfmodel.analysis.rates import Rate
from perfmodel.analysis.result import Analysis, RunAnalysis
from perfmodel.machines.machine import Machine
from perfmodel.models.roofline import Point
from perfmodel.timing.range_times import ranks_of

SCHEMA_VERSION: Final = 1
"""Grows by one when a key changes its meaning or goes away; new keys do not change it."""


def analysis_document(analysis: Analysis) -> dict[str, Any]:
    """Return the whole analysis as plain Python data, the fitted run's at the top level.

    With several runs, `runs` holds the same keys for every one of them, and `roofline.points`
    the points of all.
    """
    top = {
        "schema_version": SCHEMA_VERSION,
        "perfmodel_version": perfmodel.__version__,
        "fit": analysis.fitted.label,
    }
    document = top | _run(analysis.fitted)
    document["roofline"] = _roofline(analysis.fitted, analysis.runs)
    if len(analysis.runs) > 1:
        document["runs"] = [_run(run) for run in analysis.runs]
        document["trends"] = list(sweeps.trends(analysis.runs))
        document["warnings"] = list(dict.fromkeys(w for r in analysis.runs for w in r.warnings))
    cleaned: dict[str, Any] = _clean(document)
    return cleaned


def _run(run: RunAnalysis) -> dict[str, Any]:
    return {
        "label": run.label,
        "reports": [
            {
                "path": str(trace.source),
                "nsys_version": trace.product_version,
                "schema": trace.schema_version,
                "ranks": sorted(ranks_of(trace).values()),
            }
            for trace in run.traces
        ],
        "gpus": [asdict(gpu) for gpu in run.gpus],
        "machine": None if run.machine is None else _machine(run.machine),
        "precision": run.precision,
        "workload": {
            "name": run.workload.name,
            "counting": run.workload.counting,
            "symbols": dict(run.identity.values),
            "symbols_from": run.identity.source,
            "config": dict(run.identity.config),
            "totals": asdict(run.totals),
        },
        "batch": {
            "range": run.batch.label,
            "count": run.batch.count,
            "warmup": run.batch.warmup,
            "warmup_s": run.batch.warmup_s,
            "median_s": run.batch.median.value,
            "low_s": run.batch.median.low,
            "high_s": run.batch.median.high,
            "mean_s": run.batch.mean_s,
            "instances": run.batch.median.instances,
            "queued_s": run.batch.queued_s,
        },
        "rates": {name: _rate(rate) for name, rate in run.rates.items()},
        "rates_by_clock": {
            name: {clock: _rate(rate) for clock, rate in clocks.items()}
            for name, clocks in run.rates_by_clock.items()
        },
        "products": [
            {"range": label, "flops": flops, "rate": _rate(rate)}
            for label, flops, rate in run.products
        ],
        "ranges": [asdict(row) | {"path": "/".join(row.path)} for row in run.ranges],
        "ranks": [asdict(row) for row in run.ranks],
        "copies": [asdict(group) for group in run.copies],
        "collectives": [asdict(group) for group in run.collectives],
        "skew": asdict(run.skew) if run.skew else None,
        "unattributed": dict(run.unattributed),
        "roofline": _roofline(run, (run,)),
        "model": [asdict(check) | {"relative_error": check.relative_error} for check in run.model],
        "findings": [asdict(finding) for finding in run.findings],
        "warnings": list(run.warnings),
        "diagnostics": [
            asdict(d) for t in run.traces for d in t.diagnostics if d.severity != "info"
        ],
    }


def _machine(machine: Machine) -> dict[str, Any]:
    """Return a machine; its figures by 'section.key', such as 'bandwidth_bytes_per_s.hbm'."""
    figures = {".".join(where): asdict(figure) for where, figure in machine.figures.items()}
    return asdict(machine) | {"figures": figures}


def _rate(rate: Rate | None) -> dict[str, Any] | None:
    return None if rate is None else asdict(rate)


def _roofline(fitted: RunAnalysis, runs: tuple[RunAnalysis, ...]) -> dict[str, Any]:
    roof = fitted.roofline
    drawn = [_point(p, fitted, run) for run in runs for p in run.points]
    if roof is None:
        return {"rates": None, "points": drawn}
    return {
        "rates": {
            "P_flops": roof.flops_per_s,
            **{f"P_{k}": v for k, v in roof.links_bytes_per_s.items()},
        },
        "shares": dict(roof.shares),
        "bandwidth_bytes_per_s": roof.bandwidth_bytes_per_s,
        "ridge_flops_per_byte": roof.ridge_flops_per_byte,
        "fitted_on": roof.label,
        "points": drawn,
    }


def _point(point: Point, fitted: RunAnalysis, run: RunAnalysis) -> dict[str, Any]:
    """One point, with the height of the roof above it for its run's own mix of bytes.

    None if the run's links or math are not those of the roof.
    """
    shown = asdict(point) | {"symbols": dict(point.symbols or {})}
    if fitted.roofline is None:
        return shown
    own = own_roof(fitted, run)
    height = float(own.smooth(point.intensity_flops_per_byte)) if own else None
    return shown | {"roof_flops_per_s": height}


def _clean(value: Any) -> Any:
    """Replace NaN and infinity (missing) by None, tuples by lists, mappings by dicts."""
    if isinstance(value, Mapping):
        return {str(k): _clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

"""The text and the JSON document of a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import perfmodel
from perfmodel.analysis.compare.compare import Comparison, Row, Side
from perfmodel.analysis.compare.series import GPU_IDLE, GROUPS
from perfmodel.base.escape import printable
from perfmodel.base.table import render
from perfmodel.base.units import si
from perfmodel.render import compare_tables as tables

SCHEMA_VERSION: Final = 1
"""Grows by one when a key changes its meaning or goes away; new keys do not change it."""


def text(comparison: Comparison, *, width: int | None = None, color: bool = False) -> str:
    """Return the whole comparison as text."""
    blocks = ["\n".join(_what(comparison)) + "\n", "\n".join(_answer(comparison)) + "\n"]
    for group in GROUPS:
        table = tables.text(comparison, group)
        if table is not None:
            blocks.append(render(table, "table", width=width, color=color))
    return "\n".join(blocks) + "".join(f"note: {n}\n" for n in tables.notes(comparison))


def _what(c: Comparison) -> Iterator[str]:
    for name, side in (("before", c.before), ("after ", c.after)):
        for launch in side.launches:
            yield (
                f"{name}   {printable(launch.label)}: {launch.batches} batches after "
                f"{launch.warmup} of warm-up, {launch.ranks} rank{'s' * (launch.ranks != 1)}"
            )
    changed = [printable(str(d)) for d in c.differences]
    yield f"changed  {'; '.join(changed) or 'nothing that the reports tell'}"


def _answer(c: Comparison) -> Iterator[str]:
    batch = c.batch
    yield f"A batch takes {_change(batch)}: {_said(batch)}"
    if batch.verdict == "within noise":
        down = 1 - 1 / (1 + c.detectable)
        yield (
            f"    with these reports, a batch must get {100 * down:.0f} % faster or "
            f"{100 * c.detectable:.0f} % slower to pass"
        )
    for row in c.addressed:
        yield (
            f"Bottleneck addressed, by {_kind(row)}: {printable(row.name)}, "
            f"{_share(row)} before{_gain(row, batch)}"
        )
        if row.verdict == "only before" and (new := _new(c, row)):
            yield f"    new after: {new}"
    if not c.addressed:
        yield "No range or link lost time for certain: no bottleneck was addressed beyond noise."
    idle = next((r for r in c.rows if r.path == (GPU_IDLE,)), None)
    if idle is not None and idle.ratio is not None and idle not in c.addressed:
        yield f"Of a batch, the GPU idles {_change(idle)}: {_said(idle)}"


def _kind(row: Row) -> str:
    """What a row of the addressed is: a range, a link, or what the host lost."""
    if row.path == (GPU_IDLE,):
        return "host"
    return "range" if row.group == "range" else "link"


def _new(c: Comparison, gone: Row) -> str:
    """What may do the work of a range or link that is gone: the largest that are new."""
    found = [r for r in c.group(gone.group) if r.verdict == "only after" and not r.part]
    found.sort(key=lambda r: -(r.after_s or 0.0))
    return ", ".join(f"{printable(r.name)} ({si(r.after_s, 's')})" for r in found[:3])


def _change(row: Row) -> str:
    interval = ""
    if row.ratio is not None and row.low is not None and row.high is not None:
        interval = f", ratio {row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}]"
    return f"{si(row.before_s, 's', 4)} before, {si(row.after_s, 's', 4)} after{interval}"


def _said(row: Row) -> str:
    if row.verdict != "within noise":
        return row.verdict
    return "no difference that noise could not make"


def _share(row: Row) -> str:
    share = "" if row.share_before is None else f" ({100 * row.share_before:.0f} % of the batch)"
    return f"{si(row.before_s, 's')}{share}"


def _gain(row: Row, batch: Row) -> str:
    now = f", {si(row.after_s, 's')} after" if row.after_s is not None else ", gone after"
    lost = f"; it lost {si(-row.difference_s, 's')}"
    if batch.verdict == "faster" and row.difference_s < batch.difference_s:
        lost += f", the batch {si(-batch.difference_s, 's')}"
    elif batch.verdict == "faster":
        lost += f" of the {si(-batch.difference_s, 's')} that the batch lost"
    return now + lost


def document(comparison: Comparison) -> dict[str, Any]:
    """Return the whole comparison as plain Python data in base units, missing as None."""
    c = comparison
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "perfmodel_version": perfmodel.__version__,
        "before": _side(c.before),
        "after": _side(c.after),
        "differences": [asdict(d) for d in c.differences],
        "test": {
            "alpha": c.alpha,
            "intervals": c.tested,
            "correction": "Holm, half of alpha for the batch",
            "least": c.least,
            "unit": "launches" if c.noise is None else "batches, launches assumed",
            "launch_noise": c.noise,
            "other_machines": c.machines,
            "detectable_slower": c.detectable,
            "detectable_faster": 1 - 1 / (1 + c.detectable),
        },
        "batch": _row(c.batch),
        "addressed": [_row(r) for r in c.addressed],
        "rows": [_row(r) for r in c.rows],
        "warnings": list(c.warnings),
    }
    return {k: _finite(v) for k, v in found.items()}


def _side(side: Side) -> dict[str, Any]:
    runs = [
        {
            "label": launch.label,
            "batches": launch.batches,
            "warmup": launch.warmup,
            "ranks": launch.ranks,
            "queues": launch.queues,
            "settings": dict(told),
        }
        for launch, told in zip(side.launches, side.settings, strict=True)
    ]
    return {"launches": runs}


def _row(row: Row) -> dict[str, Any]:
    told = {
        "group": row.group,
        "name": row.name,
        "path": list(row.path),
        "before_s": row.before_s,
        "after_s": row.after_s,
        "difference_s": row.difference_s,
        "share_before": row.share_before,
        "ratio": row.ratio,
        "ratio_low": row.low,
        "ratio_high": row.high,
        "p": row.p,
        "level": row.level,
        "verdict": row.verdict,
        "launches_before": row.launches[0],
        "launches_after": row.launches[1],
    }
    return {k: _finite(v) for k, v in told.items()}


def _finite(value: Any) -> Any:
    """Replace infinity, where an interval has no bound, by None."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Compares perfmodel's times and FLOPs of a program recorded by Nsight Systems and torch.profiler.

    python -m profiles.programs.against_kineto REPORT.sqlite.xz OUT.json TRACE_rank0.json.xz ...

The traces are of `train.py --kineto`, the report of the same command under Nsight Systems: two
runs, so that what waits for another rank differs more than what computes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.programs.program import Options

TIMES = ("batch_s", "gpu_busy_s", "compute_s", "communication_s")


def rows(run: RunAnalysis) -> list[dict[str, float]]:
    """What a median step of every rank takes and does; operations are the mean over ranks."""
    assert run.steps is not None
    found: dict[str, float] = {"operations": sum(c.count for c in run.steps.categories)}
    if run.work is not None:
        found |= {"flops": run.work.flops, "operator_bytes": run.work.bytes}
    return [{k: getattr(rank, k) for k in TIMES} | found for rank in run.ranks]


def compared(report: Path, traces: Sequence[Path]) -> list[dict[str, Any]]:
    """Both recordings of every rank, and their ratios where both say it."""
    one, other = (rows(analyze_reports(paths, Options()).fitted) for paths in ([report], traces))
    return [
        {
            "rank": rank, "nsys": a, "torch.profiler": b,
            "ratio": {k: a[k] / b[k] for k in a if b.get(k)},
        }
        for rank, (a, b) in enumerate(zip(one, other, strict=True))
    ]  # fmt: skip


def main() -> None:
    """Write both recordings' medians, and their ratios."""
    report, out, *traces = map(Path, sys.argv[1:])
    found = compared(report, traces)
    truth = json.loads(report.with_name(f"{report.name.split('.')[0]}.truth.json").read_text())
    said = ("command", "date", "gpu", "torch", "ranks")
    document = {
        "date": datetime.now(UTC).isoformat()[:10],
        "recorded": {k: truth[k] for k in said if k in truth},
        "ranks": found,
    }
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps([f["ratio"] for f in found], indent=1))


if __name__ == "__main__":
    main()

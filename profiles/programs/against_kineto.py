"""Compares perfmodel's times and FLOPs of programs recorded by Nsight Systems and torch.profiler.

    python -m profiles.programs.against_kineto OUT.json gpt_both resnet34_both ddp_both

NAME.sqlite.xz and NAME_rankN.json.xz beside this file are of two runs of `train.py`, so that what
waits for another rank differs more than what computes.
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

HERE = Path(__file__).parent
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
    document: dict[str, Any] = {"date": datetime.now(UTC).isoformat()[:10], "programs": {}}
    for name in sys.argv[2:]:
        found = compared(HERE / f"{name}.sqlite.xz", sorted(HERE.glob(f"{name}_rank*.json.xz")))
        truth = json.loads((HERE / f"{name}.truth.json").read_text())
        recorded = {k: truth[k] for k in ("command", "date", "gpu", "torch", "ranks")}
        document["programs"][name] = {"recorded": recorded, "ranks": found}
        print(name, json.dumps([f["ratio"] for f in found], indent=1))
    Path(sys.argv[1]).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

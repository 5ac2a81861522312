"""Compares the savings that findings predict with what a step takes less without the fault.

    python -m benchmarks.idle FOLDER

FOLDER holds reports `FAULT_bBATCH.sqlite.xz` (of two ranks: `FAULT_p2_bBATCH`), the truth beside
each, made by `profiles/programs/train.py`; `step_s_bare` of the truth is the step's time without a
profiler. Writes benchmarks/results/idle.json.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders, results
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.program import Options

KIND_OF: Final = {
    "item": "blocking_sync", "pageable": "pageable_copy", "loop_optimizer": "many_small_kernels",
    "dataloader": "host_compute", "empty_cache": "allocation", "straggler": "straggler",
    "late_allreduce": "exposed_communication",
}  # fmt: skip
"""What the finding about each fault is called."""

_NAME: Final = re.compile(r"(?P<fault>\w+?)(?P<ranks>_p2)?_b(?P<batch>\d+)\.sqlite\.xz")
WITHIN: Final = 0.25


def pairs(folder: Path) -> list[dict[str, Any]]:
    """Return a row for every report with a fault that has a healthy one beside it."""
    rows = []
    for report in sorted(folder.glob("*.sqlite.xz")):
        named = _NAME.fullmatch(report.name)
        if named is None or named["fault"] not in KIND_OF:
            continue
        healthy = folder / f"healthy{named['ranks'] or ''}_b{named['batch']}.sqlite.xz"
        rows.append(pair(report, named["fault"], _truth(healthy)))
    return rows


def pair(report: Path, fault: str, healthy: dict[str, Any]) -> dict[str, Any]:
    """Compare one report's findings with what the fault costs."""
    truth = _truth(report)
    run = analyze_reports([report], Options()).fitted
    first = run.findings[0]
    about = next((f for f in run.findings if f.kind == KIND_OF[fault]), None)
    measured = truth["step_s_bare"] - healthy["step_s_bare"]
    predicted = about.saving_s if about else None
    return {
        "report": report.name.removesuffix(".sqlite.xz"), "step_s": run.batch.median.value,
        "bare_s": truth["step_s_bare"], "healthy_s": healthy["step_s_bare"], "first": first.kind,
        "first_saving_s": first.saving_s, "kind": KIND_OF[fault], "predicted_s": predicted,
        "measured_s": measured, "ratio": predicted / measured if predicted else None,
    }  # fmt: skip


def _truth(report: Path) -> dict[str, Any]:
    return results.read(report.with_name(report.name.replace(".sqlite.xz", ".truth.json")))


def main(folder: Path) -> dict[str, Any]:
    """Compare all pairs of a folder."""
    rows = pairs(folder)
    known = [row for row in rows if row["ratio"] is not None]
    close = [row for row in known if abs(row["ratio"] - 1) <= WITHIN]
    truth = _truth(next(folder.glob("healthy_b*.sqlite.xz")))
    return {
        "command": "python -m benchmarks.idle FOLDER", "device": truth["gpu"],
        "torch": truth["torch"], "recorded": truth["date"], "recorded_by": truth["command"],
        "within": WITHIN, "close": len(close),
        "first_is_the_fault": sum(row["first"] == row["kind"] for row in rows), "pairs": len(rows),
        "rows": rows,
    }  # fmt: skip


if __name__ == "__main__":
    found = main(Path(sys.argv[1]))
    results.write(folders.RESULTS / "idle.json", found, 6)
    for row in found["rows"]:
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "–"
        print(f"{row['report']:24} first {row['first']:22} {row['kind']:22} "
              f"{(row['predicted_s'] or 0) * 1e3:7.2f} ms, measured "
              f"{row['measured_s'] * 1e3:7.2f} ms, ratio {ratio}")  # fmt: skip
    print(f"{found['close']} of {found['pairs']} within {WITHIN:.0%}")

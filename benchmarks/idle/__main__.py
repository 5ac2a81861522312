"""Compares the savings that findings predict with recorded steps that lack the fault.

    python -m benchmarks.idle FOLDER...

A folder holds reports `FAULT_SIZE.sqlite.xz` (of two ranks: `FAULT_p2_SIZE`), the truth beside
each, made by `profiles/programs/train.py`. A prediction is about the recorded step, whose host
calls the profiler makes longer; the truth's `step_s_bare` is the step's time without a profiler,
and is compared, too. Writes benchmarks/results/idle.json.
"""

from __future__ import annotations

import re
import sys
from functools import cache
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

_NAME: Final = re.compile(r"(?P<fault>\w+?)(?P<ranks>_p2)?_(?P<size>[a-z]\d+)\.sqlite\.xz")
WITHIN: Final = 0.25


def pairs(folder: Path) -> list[dict[str, Any]]:
    """Return a row for every report with a fault that has a healthy one beside it."""
    rows = []
    for report in sorted(folder.glob("*.sqlite.xz")):
        named = _NAME.fullmatch(report.name)
        if named is None or named["fault"] not in KIND_OF:
            continue
        healthy = folder / f"healthy{named['ranks'] or ''}_{named['size']}.sqlite.xz"
        rows.append(pair(report, named["fault"], healthy))
    return rows


def pair(report: Path, fault: str, healthy: Path) -> dict[str, Any]:
    """Compare one report's findings with what the fault costs."""
    run = analyze_reports([report], Options()).fitted
    step_s, healthy_s = run.batch.median.value, _step_s(healthy)
    first = run.findings[0]
    about = next((f for f in run.findings if f.kind == KIND_OF[fault]), None)
    predicted = about.saving_s if about else None
    bare = _truth(report)["step_s_bare"] - _truth(healthy)["step_s_bare"]
    return {
        "report": report.name.removesuffix(".sqlite.xz"), "step_s": step_s, "healthy_s": healthy_s,
        "first": first.kind, "first_saving_s": first.saving_s, "kind": KIND_OF[fault],
        "predicted_s": predicted, "measured_s": step_s - healthy_s, "bare_s": bare,
        "ratio": predicted / (step_s - healthy_s) if predicted else None,
        "ratio_bare": predicted / bare if predicted else None,
    }  # fmt: skip


@cache
def _step_s(report: Path) -> float:
    return analyze_reports([report], Options()).fitted.batch.median.value


def _truth(report: Path) -> dict[str, Any]:
    return results.read(report.with_name(report.name.replace(".sqlite.xz", ".truth.json")))


def _close(rows: list[dict[str, Any]], ratio: str) -> int:
    return sum(row[ratio] is not None and abs(row[ratio] - 1) <= WITHIN for row in rows)


def main(recorded: list[Path]) -> dict[str, Any]:
    """Compare all pairs of some folders."""
    rows = [row for folder in recorded for row in pairs(folder)]
    truth = _truth(next(recorded[0].glob("healthy_*.sqlite.xz")))
    return {
        "command": "python -m benchmarks.idle FOLDER...", "device": truth["gpu"],
        "torch": truth["torch"], "recorded": truth["date"], "recorded_by": truth["command"],
        "within": WITHIN, "close": _close(rows, "ratio"), "close_bare": _close(rows, "ratio_bare"),
        "first_is_the_fault": sum(row["first"] == row["kind"] for row in rows), "pairs": len(rows),
        "rows": rows,
    }  # fmt: skip


if __name__ == "__main__":
    found = main([Path(folder) for folder in sys.argv[1:]])
    results.write(folders.RESULTS / "idle.json", found, 6)
    for row in found["rows"]:
        figures = [row[k] or 0.0 for k in ("predicted_s", "measured_s", "bare_s")]
        ratios = [row[k] or 0.0 for k in ("ratio", "ratio_bare")]
        print(f"{row['report']:24} first {row['first']:22} {row['kind']:22}"
              + "".join(f"{1e3 * t:8.2f}" for t in figures) + " ms"
              + "".join(f"{r:6.2f}" for r in ratios))  # fmt: skip
    print(f"within {WITHIN:.0%} of {found['pairs']}: {found['close']}, without a profiler "
          f"{found['close_bare']}")  # fmt: skip

"""Compares the savings that findings predict with recorded steps that lack the fault.

    python -m benchmarks.idle FOLDER...

A folder holds reports `FAULT_SIZE.sqlite.xz` (of two ranks: `FAULT_p2_SIZE`), the truth beside
each, made by `profiles/programs/train.py`; of several healthy ones (`healthy_SIZE_0`, ...) the mean
counts. A prediction is about the recorded step, whose host
calls the profiler makes longer; the truth's `step_s_bare` is the step's time without a profiler,
and is compared, too. Writes benchmarks/results/idle.json.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
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
        size = f"healthy{named['ranks'] or ''}_{named['size']}"
        healthy = [*folder.glob(f"{size}.sqlite.xz"), *sorted(folder.glob(f"{size}_*.sqlite.xz"))]
        if healthy:
            rows.append(pair(report, named["fault"], healthy))
    return rows


def pair(report: Path, fault: str, healthy: Sequence[Path]) -> dict[str, Any]:
    """Compare one report's findings with what the fault costs beside the mean healthy step."""
    run = analyze_reports([report], Options()).fitted
    step_s, healthy_s = run.batch.median.value, fmean(_step_s(path) for path in healthy)
    first = run.findings[0]
    about = next((f for f in run.findings if f.kind == KIND_OF[fault]), None)
    predicted = about.saving_s if about else None
    truth, measured = _truth(report), step_s - healthy_s
    bare = truth["step_s_bare"] - fmean(_truth(path)["step_s_bare"] for path in healthy)
    return {
        "report": report.name.removesuffix(".sqlite.xz"), "device": truth["gpu"],
        "step_s": step_s, "healthy_s": healthy_s, "healthy_reports": len(healthy),
        "first": first.kind, "first_saving_s": first.saving_s, "kind": KIND_OF[fault],
        "predicted_s": predicted, "measured_s": measured, "bare_s": bare,
        "ratio": predicted / measured if predicted else None,
        "ratio_bare": predicted / bare if predicted else None,
        "ratio_first": first.saving_s / measured if first.saving_s else None,
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
        "command": "python -m benchmarks.idle FOLDER...",
        "torch": truth["torch"], "recorded": truth["date"], "recorded_by": truth["command"],
        "within": WITHIN, "close": _close(rows, "ratio"), "close_bare": _close(rows, "ratio_bare"),
        "close_first": _close(rows, "ratio_first"),
        "first_is_the_fault": sum(row["first"] == row["kind"] for row in rows), "pairs": len(rows),
        "rows": rows,
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", metavar="FOLDER", type=Path, nargs="+")
    found = main(parser.parse_args().folders)
    results.write(folders.RESULTS / "idle.json", found, 6)
    for row in found["rows"]:
        figures = [row[k] or 0.0 for k in ("predicted_s", "measured_s", "bare_s")]
        ratios = [row[k] or 0.0 for k in ("ratio", "ratio_first", "ratio_bare")]
        print(f"{row['report']:24} first {row['first']:22} {row['kind']:22}"
              + "".join(f"{1e3 * t:8.2f}" for t in figures) + " ms"
              + "".join(f"{r:6.2f}" for r in ratios))  # fmt: skip
    print(f"within {WITHIN:.0%} of {found['pairs']}: {found['close']}, without a profiler "
          f"{found['close_bare']}, of first findings {found['close_first']}")  # fmt: skip

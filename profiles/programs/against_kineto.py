"""Compares perfmodel's times of a step with torch.profiler's, of two runs of one program.

    python -m profiles.programs.against_kineto REPORT.sqlite.xz OUT.json KINETO_rank0.json.gz ...

The traces are of `train.py --kineto`, the report of the same command under Nsight Systems. Each
tool's medians over the steps but the first and the last are set beside each other for every rank:
two processes on one host, so that what waits for another rank differs more than what computes.
"""

from __future__ import annotations

import gzip
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.program import Options

KINDS = ("kernel", "gpu_memcpy", "gpu_memset")


def union_us(events: Iterable[dict[str, Any]]) -> float:
    """Length of the union of the events' intervals in µs."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in events):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


def kineto_rank(path: Path) -> dict[str, float]:
    """Medians of one rank's trace in seconds, each operation in the step that launched it."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    steps = sorted(
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e.get("cat") == "user_annotation" and e["name"].startswith("step ")
    )
    calls = {e["args"]["correlation"]: e["ts"] for e in events
             if e.get("cat") in ("cuda_runtime", "cuda_driver")}  # fmt: skip
    inside: list[list[dict[str, Any]]] = [[] for _ in steps]
    for event in events:
        at = (
            calls.get(event.get("args", {}).get("correlation"))
            if event.get("cat") in KINDS
            else None
        )
        for i, (start, end) in enumerate(steps):
            if at is not None and start <= at <= end:
                inside[i].append(event)
    first = [min(e["ts"] for e in step) for step in inside]
    counted = inside[1:-1]

    def median(values: Sequence[float]) -> float:
        return statistics.median(values) * 1e-6

    nccl = [[e for e in step if e["name"].startswith("nccl")] for step in counted]
    compute = [
        [e for e in step if e["cat"] == "kernel" and not e["name"].startswith("nccl")]
        for step in counted
    ]
    return {
        "batch_s": median([b - a for a, b in pairwise(first)][1:]),
        "gpu_busy_s": median([union_us(step) for step in counted]),
        "compute_s": median([union_us(step) for step in compute]),
        "communication_s": median([union_us(step) for step in nccl]),
        "operations": statistics.median(len(step) for step in counted),
    }


def main() -> None:
    """Write both tools' medians, and their ratios."""
    report, out, *traces = map(Path, sys.argv[1:])
    run = analyze_reports([report], Options()).fitted
    assert run.steps is not None
    launches = sum(c.count for c in run.steps.categories)
    found = []
    for rank, path in zip(run.ranks, traces, strict=True):
        theirs = kineto_rank(path)
        ours = {k: getattr(rank, k) for k in theirs if k != "operations"} | {"operations": launches}
        ratios = {k: ours[k] / theirs[k] for k in theirs}
        found.append({"rank": rank.rank, "perfmodel": ours, "torch.profiler": theirs,
                      "ratio": ratios})  # fmt: skip
    truth = json.loads(report.with_name(f"{report.name.split('.')[0]}.truth.json").read_text())
    document = {
        "date": datetime.now(UTC).isoformat()[:10],
        "recorded": {k: truth[k] for k in ("command", "date", "gpu", "torch", "ranks")},
        "ranks": found,
    }
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps([f["ratio"] for f in found], indent=1))


if __name__ == "__main__":
    main()

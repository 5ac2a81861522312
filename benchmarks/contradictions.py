"""Compare every number that two commands, pages or pictures show of one report.

    python -m benchmarks.contradictions REPORT...

Each command is run as a user runs it, and what it says is read from its JSON; the HTML page's data
and the timeline's table count, too. A number is listed where two of them differ by more than a
thousandth, which is what three printed digits show. The exit code is 1 if there is one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_SHOWN = 1e-3
"""Relative difference that three digits show."""

Said = tuple[str, str, float]
"""What is meant, who says it, and the value."""


def said_of(report: Path) -> Iterator[Said]:
    """Yield every number of a report that some commands share."""
    analysis = _json("analyze", report)
    if analysis is None:
        return
    yield from _analysis(analysis)
    for command, read in (
        ("whatif", _whatif), ("utilization", _utilization), ("compare", _compare),
        ("timeline", _timeline),
    ):  # fmt: skip
        document = _json(command, report)
        if document is not None:
            yield from read(document)


def _json(command: str, report: Path) -> dict[str, Any] | None:
    words = {
        "utilization": ["--report", report],
        "compare": [report, report],
    }.get(command, [report])
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", command, *map(str, words), "--format", "json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found: dict[str, Any] | None = json.loads(done.stdout) if done.returncode == 0 else None
    return found


def _analysis(document: Mapping[str, Any]) -> Iterator[Said]:
    batch, ranks = document["batch"], document["ranks"]
    yield "step", "analyze: batch", batch["median_s"]
    steps = [rank["batch_s"] for rank in ranks if rank["batch_s"]]
    if steps:
        yield "step of the slowest rank", "analyze: ranks", max(steps)
    for rank in ranks:
        number = rank["rank"]
        for name in ("gpu_busy_s", "batch_s"):
            if rank.get(name) is not None:
                yield f"{name} of rank {number}", "analyze: ranks", rank[name]
        if rank.get("idle_s") is not None and batch["found_by"] != "mark":  # timed on the host
            yield f"idle of rank {number}", "analyze: ranks", rank["batch_s"] - rank["gpu_busy_s"]
            parts = ("compute_s", "copy_s", "exposed_communication_s", "idle_s")
            yield f"batch_s of rank {number}", "analyze: parts", sum(rank[p] or 0 for p in parts)
    idle: dict[int, float] = defaultdict(float)
    for cause in document.get("idle", ()):
        idle[cause["rank"]] += cause["seconds"]
    for number, seconds in idle.items():
        if batch["found_by"] != "mark":
            yield f"idle of rank {number}", "analyze: causes", seconds
    busy = [rank["gpu_busy_s"] for rank in ranks if rank.get("gpu_busy_s") is not None]
    categories = (document.get("kernels") or {}).get("categories", ())
    if busy and categories:
        yield "busy, mean", "analyze: ranks", sum(busy) / len(busy)
        yield "busy, mean", "analyze: categories", sum(row["seconds"] for row in categories)
    for cause in document.get("idle", ()):
        yield f"rank {cause['rank']}: {cause['cause']}", "analyze: causes", cause["seconds"]
    for finding in document["findings"]:
        yield f"saving: {finding['title']}", "analyze: findings", finding["saving_s"]


def _whatif(document: Mapping[str, Any]) -> Iterator[Said]:
    now = document.get("step_s") or document.get("batch_s")
    if now is None and document["rows"] and "step_s" in document["rows"][0]:
        now = document["rows"][0]["step_s"] + document["rows"][0]["saving_s"]
    if now is not None:
        yield "step", "whatif", now
    for row in document["rows"]:
        if row.get("finding"):
            yield f"saving: {row['finding']}", "whatif", row["saving_s"]


def _utilization(document: Mapping[str, Any]) -> Iterator[Said]:
    idle: dict[int, float] = defaultdict(float)
    for rank in document["report"]["ranks"]:
        yield f"batch_s of rank {rank['rank']}", "utilization", rank["step_s"]
        yield f"gpu_busy_s of rank {rank['rank']}", "utilization", rank["busy_s"]
    for cause in document["report"]["causes"]:
        idle[cause["rank"]] += cause["seconds"]
    for number, seconds in idle.items():
        yield f"idle of rank {number}", "utilization: causes", seconds


def _compare(document: Mapping[str, Any]) -> Iterator[Said]:
    if document["batch"]:
        yield "step of the slowest rank in each batch", "compare", document["batch"]["before_s"]
    for row in document["rows"]:
        if row["group"] == "idle":
            yield f"{row['name']}", "compare", row["before_s"]


def _timeline(document: Mapping[str, Any]) -> Iterator[Said]:
    lengths: dict[int, float] = defaultdict(float)
    for row in document["rows"]:
        if row["kind"] == "step":
            lengths[row["rank"]] = row["duration_s"]
    if lengths:
        yield "step drawn", "timeline", max(lengths.values())


def contradictions(report: Path) -> list[str]:
    """Say which numbers of a report have two values."""
    by_name: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for name, source, value in said_of(report):
        if value is not None:
            by_name[name].append((source, value))
    found = []
    for name, values in by_name.items():
        low, high = (pick(values, key=lambda v: v[1]) for pick in (min, max))
        if abs(high[1] - low[1]) > _SHOWN * abs(high[1]):
            found.append(f"{name}: {low[0]} {low[1]:.6g} s, {high[0]} {high[1]:.6g} s")
    return found


def main() -> None:
    """Print the contradictions of the reports in the arguments."""
    total = 0
    for name in sys.argv[1:]:
        found = contradictions(Path(name))
        total += len(found)
        print(f"{Path(name).name}: {len(found)}")
        for line in found:
            print(f"  {line}")
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()

"""Collects launches of many configurations: python -m profiles.collect_launches OUT --ranks 2.

Every launch is one process group that visits all configurations of a plan (plans.py) for so many
ranks, in another order (visit.py): some launches under Nsight Systems, cut into a report per
configuration (part.py), and some without it, timed in chunks. OUT gets

    NAME.sqlite.xz     the first recorded launch of every configuration, trimmed and compressed
    launches.json      a row per launch and configuration: what perfmodel observes in the report,
                       or the times without Nsight Systems; the core's speed beside it

Both kinds of launches take turns. Reports are exported, cut and compressed after the last launch.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common import folders
from profiles.collect import ROOT, TRACE, profile, versions
from profiles.pack import pack
from profiles.part import part
from profiles.plans import PLANS, configurations


def launch(c: argparse.Namespace, plan: Path, number: int, record: Path, raw: Path | None) -> str:
    """Start the ranks once, recorded by Nsight Systems into `raw` or not; return the command."""
    train = [
        sys.executable, "-m", "profiles.visit", str(plan), "--launch", str(number),
        "--batches", str(c.batches), "--record", str(record), *(["--timed"] if raw is None else []),
    ]  # fmt: skip
    command = ["mpirun", "--bind-to", "none", "-n", str(c.ranks), *train]
    if raw is not None:
        return profile([*TRACE, "--cuda-graph-trace=node"], command, raw, timeout_s=240)
    for attempt in (1, 2):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
        if done.returncode == 0 and record.exists():
            return " ".join(Path(w).name if w.startswith("/") else w for w in command)
        print(f"attempt {attempt} failed:\n{(done.stdout + done.stderr)[-3000:]}", file=sys.stderr)
    raise SystemExit(f"cannot launch: {' '.join(command)}")


def cut(raw: Path) -> dict[str, Path]:
    """Export one launch and cut it into reports."""
    exported = raw.with_suffix(".sqlite")
    export = ["nsys", "export", "-q", "true", "-t", "sqlite", "-f", "true", "-o", str(exported)]
    subprocess.run([*export, str(raw.with_suffix(".nsys-rep"))], check=True, capture_output=True)
    found = part(exported, raw.with_suffix(".parts"))
    exported.unlink()
    return found


def observed(report: Path) -> dict[str, Any]:
    """Return what perfmodel observes in one report, as JSON types."""
    from perfmodel.base.errors import PerfmodelError
    from perfmodel.readers import read
    from perfmodel.studies.mlp.observe import observe
    from perfmodel.timing.run import time_run

    try:
        found = observe(time_run([read(report)], "batch iteration", label=report.name))
    except PerfmodelError as error:
        return {"refused": str(error)}
    return {
        "sizes": dict(found.case.sizes), "settings": dict(found.case.settings),
        **{k: v for k, v in dataclasses.asdict(found).items() if k not in ("case", "source")},
    }  # fmt: skip


def shrink(report: Path, target: Path) -> str:
    """Compress a report; return its checksum."""
    pack(report, target)
    return hashlib.sha256(target.read_bytes()).hexdigest()


def main() -> None:
    """Launch in turns, then cut, observe and compress."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("out", type=Path)
    add("--machine", default="h200x4", help="noted beside every launch")
    add("--ranks", type=int, default=2, choices=(1, 2, 4, 8))
    add("--plan", default="launches", choices=sorted(PLANS), help="what is visited")
    add("--list", action="store_true", help="say what would be visited, and launch nothing")
    add("--launches", type=int, default=5, help="recorded by Nsight Systems")
    add("--bare", type=int, default=3, help="without it")
    add("--first", type=int, default=1, help="number of the first launch: more of what is there")
    add("--budget", type=float, default=math.inf, help="seconds after which no launch begins")
    add("--batches", type=int, default=30, help="per visit, warm-up included")
    add("--backend", default="cupy", choices=["cupy", "numpy"])
    add("--only", nargs="+", metavar="WORD", help="configurations whose names contain one of them")
    c = parser.parse_args()
    chosen = [
        each for each in configurations(c.ranks, PLANS[c.plan])
        if not c.only or any(word in each["name"] for word in c.only)
    ]  # fmt: skip
    if c.list:
        print(*(each["name"] for each in chosen), sep="\n")
        return
    c.out.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        plan = scratch / "plan.json"
        plan.write_text(json.dumps(chosen))
        done = []
        for turn in range(max(c.launches, c.bare)):
            number = c.first + turn
            for traced in (True, False):
                late = time.perf_counter() - begun > c.budget
                if late or turn >= (c.launches if traced else c.bare):
                    continue
                record = scratch / f"{number}_{traced}.json"
                raw = scratch / f"launch_{number}" if traced else None
                command = launch(c, plan, number, record, raw)
                done.append((number, raw, record, command))
                said = f"launch {number}{'' if traced else ' without nsys'}"
                print(f"{said}: {time.perf_counter() - begun:.0f} s", flush=True)
        print(f"{len(done)} launches; cutting the reports", flush=True)
        rows = gather(c, done)
    file = c.out / "launches.json"
    kept = json.loads(folders.content(file))["launches"] if folders.there(file) else []
    new = {(row["name"], row["launch"], row["recorded"]) for row in rows}
    kept = [r for r in kept if (r["name"], r["launch"], r["recorded"]) not in new]
    about = {"versions": versions(), "collected": datetime.now(UTC).isoformat(timespec="seconds")}
    folders.put(file, json.dumps({**about, "launches": kept + rows}, indent=1) + "\n")
    print(f"{len(rows)} rows, {time.perf_counter() - begun:.0f} s", flush=True)


def gather(c: argparse.Namespace, done: list[tuple[int, Path | None, Path, str]]) -> list[Any]:
    """Cut and observe every launch, side by side; keep the first one's reports."""
    rows, reports = [], []
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        cuts = {n: pool.submit(cut, raw) for n, raw, _, _ in done if raw is not None}
        for number, raw, record, command in done:
            for visited in json.loads(record.read_text()):
                row = {
                    "name": visited["name"], "launch": number, "recorded": raw is not None,
                    "ranks": c.ranks, "machine": c.machine, "command": command, **visited,
                }  # fmt: skip
                rows.append(row)
                if raw is not None:
                    reports.append((row, cuts[number].result()[visited["name"]]))
        found = pool.map(observed, [report for _, report in reports])
        first = [(row, report) for row, report in reports if row["launch"] == 1]
        targets = [c.out / f"{row['name']}.sqlite.xz" for row, _ in first]
        sums = pool.map(shrink, [report for _, report in first], targets)
        for (row, _), said in zip(reports, found, strict=True):
            row.update(said)
        for (row, _), target, checksum in zip(first, targets, sums, strict=True):
            row.update(file=target.name, sha256=checksum)
    return rows


if __name__ == "__main__":
    main()

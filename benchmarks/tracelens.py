"""Compare perfmodel with TraceLens on recordings of serving: operators with a formula, and time.

    python -m benchmarks.tracelens RECORDINGS --tracelens CHECKOUT [--python PYTHON] [--out FILE]

RECORDINGS is a checkout of https://github.com/AMD-AGI/TraceLens with its traces, CHECKOUT one with
its code, PYTHON an interpreter that can import it. Both tools read the same recording and the same
capture of graphs, one after the other. Of each stands the share of the kernels' time that its
formulas cover, and the processor time of the process. TraceLens runs with `--enable_pseudo_ops`,
which gives fused experts a formula.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.common import results
from benchmarks.common.folders import ROOT
from perfmodel.base.table import Column, Table, render

TRACES: Final = Path("tests/traces/inference")
CASES: Final = {
    "SGLang, decode": ("sglang_decode/sglang_Qwen3-8B_decode.json.gz", "sglang_decode"),
    "SGLang, prefill": ("sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz", ""),
    "vLLM, decode": ("vllm_decode_full/graph_execution.json.gz", "vllm_decode_full"),
    "vLLM, mixed": (
        "vllm_prefilldecode_piecewise/graph_execution.json.gz", "vllm_prefilldecode_piecewise"
    ),
}  # fmt: skip
"""Recordings, and the folders whose `capture_traces` they replay."""
REPORT: Final = Path("TraceLens/Reporting/generate_perf_report_pytorch_inference.py")
MODELLED, SPENT = "has_perf_model", "Kernel Time (µs)_sum"
"""Columns of TraceLens's unified_perf_summary.csv."""

COLUMNS: Final = (
    Column("recording", "Recording"),
    Column("share", "perfmodel", "percent", digits=1),
    Column("tracelens_share", "TraceLens", "percent", digits=1),
    Column("cpu_s", "perfmodel", "si", "s"),
    Column("tracelens_cpu_s", "TraceLens", "si", "s"),
)


class Covered(NamedTuple):
    """Share of the kernels' time with a formula, and processor time of the process."""

    share: float
    cpu_s: float


def ran(command: Sequence[str], path: Path) -> float:
    """Run a command with a folder to import from; return its processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    folders = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": folders}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def covered_share(summary: Path) -> float:
    """Return the share of the kernels' time that TraceLens models."""
    with summary.open(encoding="utf-8", newline="") as stream:
        rows = [(row[MODELLED] == "True", float(row[SPENT])) for row in csv.DictReader(stream)]
    return sum(spent for modelled, spent in rows if modelled) / sum(spent for _, spent in rows)


def by_tracelens(python: str, code: Path, trace: Path, captures: Path | None) -> Covered:
    """Let TraceLens write its report."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            python, str(code / REPORT), "--profile_json_path", str(trace), "--output_csvs_dir",
            folder, "--gpu_arch_platform", "MI300X", "--enable_pseudo_ops",
        ]  # fmt: skip
        command += [] if captures is None else ["--capture_folder", str(captures)]
        cpu_s = ran(command, code)
        return Covered(covered_share(Path(folder, "unified_perf_summary.csv")), cpu_s)


def by_perfmodel(trace: Path, captures: Path | None) -> Covered:
    """Let perfmodel write its report."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "analysis.json")
        command = [sys.executable, "-m", "perfmodel", "analyze", str(trace), "-o", str(out)]
        if captures is not None:
            command += ["--shapes", str(min(captures.glob("*.json.gz")))]
        cpu_s = ran(command, ROOT)
        return Covered(json.loads(out.read_text(encoding="utf-8"))["work"]["modelled_share"], cpu_s)


def main() -> None:
    """Compare all cases, and print a table."""
    asked = argparse.ArgumentParser(description="Compare perfmodel with TraceLens.")
    asked.add_argument("recordings", type=Path)
    asked.add_argument("--tracelens", type=Path, required=True)
    asked.add_argument("--python", default=sys.executable)
    asked.add_argument("--out", type=Path)
    given = asked.parse_args()
    rows = []
    for name, (trace, capture) in CASES.items():
        file = given.recordings / TRACES / trace
        captures = given.recordings / TRACES / capture / "capture_traces" if capture else None
        ours = by_perfmodel(file, captures)
        theirs = by_tracelens(given.python, given.tracelens, file, captures)
        rows.append((name, ours.share, theirs.share, ours.cpu_s, theirs.cpu_s))
    found = Table("perfmodel and TraceLens", COLUMNS, rows)
    print(render(found, "markdown"))
    if given.out:
        results.write_tables(given.out, [found])


if __name__ == "__main__":
    main()

"""profiles.collect_counters with a stand-in for ncu: what it runs, writes, survives."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.common.folders import ROOT
from benchmarks.common.ncu import Failed, collect

STUB = r"""#!/usr/bin/env bash
while [ $# -gt 0 ]; do
    case $1 in
        --log-file) log=$2; shift 2 ;;
        --metrics) metrics=$2; shift 2 ;;
        --nvtx | --csv | --force-overwrite) shift ;;
        --*) shift 2 ;;
        *) break ;;
    esac
done
case $metrics in
    *device__*) echo "Failed to find metric device__attribute_display_name"; exit 1 ;;
esac
case "$*" in *hierarchical*) echo "no such kernel"; exit 1 ;; esac
case "$*" in
    *"--trainer-with $BLIND "*) echo "==WARNING== No kernels were profiled." >"$log"; exit ;;
esac
"$@" || exit 1
{ echo "==PROF== Connected to process 5 (/somewhere/python3)"; cat "$TABLE"; } >"$log"
"""
TABLE = ROOT / "tests" / "golden" / "ncu" / "h200_forward_gemm_1.csv"
SMALL = ["--backend", "numpy", "--hidden-size", "16", "--batch-size", "30", "--train-size", "90"]


def run(tmp_path: Path, *names: str, blind: str = "") -> subprocess.CompletedProcess[str]:
    pytest.importorskip("nvtx")
    pytest.importorskip("mpi4py")
    stub = tmp_path / "ncu"
    stub.write_text(STUB)
    stub.chmod(0o755)
    return subprocess.run(
        [sys.executable, "-m", "profiles.collect_counters", "--ncu", str(stub),
         "--out", str(tmp_path), "--only", *names, "--trainer", *SMALL],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={"PATH": "/usr/bin:/bin", "TABLE": str(TABLE), "BLIND": blind},
    )  # fmt: skip


@pytest.mark.mpi
def test_tables_are_written_and_a_failure_stops_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "hierarchical", "cublas")
    assert done.returncode == 1
    assert "ncu does not know device__attribute_display_name: left out" in done.stderr
    assert "1 launches in ['forward GEMM 1']" in done.stdout
    assert "no kernels inside ranges" not in done.stdout
    assert "no such kernel" in done.stderr
    assert [p.name for p in tmp_path.glob("*.csv")] == ["h200_cublas.csv"]
    text = (tmp_path / "h200_cublas.csv").read_text()
    assert text == "==PROF== Connected to process 5 (python)\n" + TABLE.read_text()


@pytest.mark.mpi
def test_ranges_that_ncu_does_not_see_are_pushed_by_cupy(tmp_path: Path) -> None:
    done = run(tmp_path, "cublas", blind="nvtx")
    assert "got that no kernels were profiled; check --nvtx-include" in done.stderr
    assert "no kernels inside ranges; now: ('cupy', True)" in done.stdout


def test_what_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    late = ["bash", "-c", f"(sleep 1; touch {gone}) & wait"]
    with pytest.raises(Failed, match="took more than 0 s"):
        collect(late, [], ["m"], 0.2)
    time.sleep(1.5)
    assert not gone.exists()

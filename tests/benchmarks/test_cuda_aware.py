"""The transports in turns: real ranks with NumPy, and the tables that the page shows of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.cuda_aware.report import batches, messages
from support.folders import ROOT
from support.trainer_runs import environment, mpirun_command


@pytest.mark.mpi
def test_every_transport_of_a_cpu_is_timed_and_trains_the_same_bits(tmp_path: Path) -> None:
    """Two numbers have one sum: the order of two ranks cannot change a bit."""
    out = tmp_path / "rows.json"
    for launch in ("1", "1"):  # the second takes the place of the first
        words = ["--rehearse", "--out", str(out), "--sizes", "8", "--messages", "4096"]
        done = subprocess.run(
            mpirun_command(2, "-m", "benchmarks.cuda_aware", *words, "--launch", launch),
            cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert {r["launch"] for r in rows} == {1}
    trained = [r for r in rows if r["what"] == "batch" and "median_s" in r]
    assert len(trained) == 5
    assert all(r["bits_equal"] and r["median_s"] > 0 for r in trained)
    refused = {r["transport"] for r in rows if "reason" in r}
    assert refused == {"cuda-aware", "nccl", "peer"}
    summed = {r["transport"] for r in rows if r["what"] == "message"}
    assert summed == {"ring", "host-flat", "chunked", "exchange"}
    page = batches(rows)
    assert page.count("the same bits") == 5
    assert messages(rows).splitlines()[2].startswith("| 4.10 kB | – | ")

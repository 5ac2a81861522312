"""The transports in turns: real ranks with NumPy, and the tables that the page shows of them."""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
from pathlib import Path

import pytest

from benchmarks.common import results
from benchmarks.common.folders import ROOT
from benchmarks.common.pages import section
from benchmarks.cuda_aware import predicted
from benchmarks.cuda_aware.report import (
    PAGE,
    PROFILES,
    RESULTS,
    SCRIPT,
    batches,
    copies,
    messages,
    other_host,
    predictions,
)
from support.trainer_runs import environment, mpirun_command


@pytest.mark.slow
@pytest.mark.mpi
def test_every_transport_of_a_cpu_is_timed_and_trains_the_same_bits(tmp_path: Path) -> None:
    """Two numbers have one sum: the order of two ranks cannot change a bit."""
    out = tmp_path / "rows.json"
    for launch in ("1", "1"):  # the second takes the place of the first
        words = ["--rehearse", "--out", str(out), "--sizes", "8", "--messages", "4096"]
        words += ["--batch", "60", "--rounds", "2"]
        done = subprocess.run(
            mpirun_command(2, "-m", "benchmarks.cuda_aware", *words, "--launch", launch),
            cwd=ROOT, env=environment(OMPI_MCA_mpi_yield_when_idle="1"), capture_output=True,
            text=True, timeout=120, check=False,
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


@pytest.mark.slow
def test_the_page_shows_the_results() -> None:
    rows = results.read(RESULTS)["rows"]
    for ranks in {r["p"] for r in rows}:
        assert batches(rows, ranks).strip() in section(PAGE, SCRIPT, f"batches {ranks}")
        assert section(PAGE, SCRIPT, f"messages {ranks}") == messages(rows, ranks).strip()
    assert section(PAGE, SCRIPT, "copies") == copies().strip()
    assert section(PAGE, SCRIPT, "predictions") == predictions(results.read(RESULTS)).strip()
    assert section(PAGE, SCRIPT, "other host") == other_host(results.read(RESULTS)).strip()


def test_the_ring_beats_the_library_where_the_page_says_so() -> None:
    rows = [r for r in results.read(RESULTS)["rows"] if r["p"] == 2 and "median_s" in r]

    def medians(what: str, transport: str) -> dict[int, float]:
        of = [r for r in rows if (r["what"], r["transport"]) == (what, transport)]
        key = "H" if what == "batch" else "message_bytes"
        return {
            size: statistics.median(r["median_s"] for r in of if r[key] == size)
            for size in sorted({r[key] for r in of})
        }

    library, ring = medians("message", "cuda-aware"), medians("message", "ring")
    staged, nccl = medians("message", "host-flat"), medians("message", "nccl")
    assert min(size for size in ring if ring[size] < library[size]) == 64 << 10
    assert min(size for size in ring if ring[size] < staged[size]) == 256 << 10
    assert all(nccl[size] < ring[size] for size in ring)
    for h, seconds in medians("batch", "ring").items():
        assert seconds < medians("batch", "cuda-aware")[h]
    assert {r["bits_equal"] for r in rows if r["what"] == "batch"} == {True}


def test_the_size_that_is_predicted_is_in_no_report_of_the_calibration() -> None:
    """And the command on the page is of the same reports."""
    reports = predicted.calibration()
    sizes = {predicted.observed(path).case.sizes["H"] for path in reports}
    assert predicted.UNSEEN not in sizes
    listed = f"printf '%s\\n' {predicted.command().removeprefix('perfmodel study calibrate ')}"
    named = subprocess.run(
        ["bash", "-c", listed.removesuffix(" -o mpi.json")], cwd=ROOT, capture_output=True,
        text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert sorted(named) == sorted(str(path.relative_to(ROOT)) for path in reports)


def test_every_report_is_in_the_index_with_its_command() -> None:
    index = json.loads((PROFILES / "index.json").read_text(encoding="utf-8"))
    assert {e["file"] for e in index} == {path.name for path in PROFILES.glob("*.xz")}
    for entry in index:
        content = (PROFILES / entry["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"]
        assert "nsys profile" in entry["command"]
        assert entry["settings"]["transport"] in entry["command"]

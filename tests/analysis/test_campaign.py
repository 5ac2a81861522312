"""The campaign's profiles: every one analyzes, and together they show the document's Problem 2."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from benchmarks.common.folders import PROFILES
from perfmodel.analysis.analyze import analyze
from perfmodel.analysis.result import RunAnalysis
from perfmodel.programs.program import Options
from perfmodel.readers import read

FOLDER = PROFILES / "campaign"
INDEX: list[dict[str, Any]] = json.loads((FOLDER / "index.json").read_text())
GRID = [
    entry
    for entry in INDEX
    if entry["machine"] == "h200x2"
    and entry["config"]["transport"] == "host"
    and not entry["config"]["sync_ranges"]
]


def analyzed(entry: dict[str, Any]) -> RunAnalysis:
    return analyze([read(FOLDER / entry["file"])], Options(values={})).fitted


def test_the_index_names_what_is_there() -> None:
    assert {e["file"] for e in INDEX} == {p.name for p in FOLDER.glob("*.sqlite.xz")}
    for entry in INDEX:
        content = (FOLDER / entry["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"], entry["file"]


def test_the_grid_is_whole() -> None:
    sizes = {(e["config"]["hidden_size"], e["config"]["batch_size"]) for e in GRID}
    hidden, batch = (128, 256, 512, 1024, 2048, 4096), (1500, 3000, 6000, 12000)
    assert sizes == {(h, b) for h in hidden for b in batch}


@pytest.mark.slow
@pytest.mark.parametrize("entry", INDEX, ids=lambda entry: entry["file"].split(".")[0])
def test_report_says_what_was_run(entry: dict[str, Any]) -> None:
    run = analyzed(entry)
    config, values = entry["config"], run.identity.values
    assert run.identity.source == "the report's configuration mark"
    assert (values["H"], values["B"], values["p"]) == (
        config["hidden_size"],
        config["batch_size"],
        config["ranks"],
    )
    assert run.batch.count >= 40
    assert not run.warnings or config["ranks"] == 1, run.warnings
    assert {r.gpu for r in run.ranks} == set(range(config["ranks"]))
    assert run.machine is not None
    assert run.machine.name == "NVIDIA H200 SXM"


def test_intensity_and_performance_follow_b_and_h() -> None:
    """Figures 13 and 14: B raises intensity and performance, H performance alone."""
    chosen = [
        e for e in GRID
        if e["config"]["hidden_size"] in (128, 4096) and e["config"]["batch_size"] in (1500, 12000)
    ]  # fmt: skip
    runs = {(e["config"]["hidden_size"], e["config"]["batch_size"]): analyzed(e) for e in chosen}
    for h in (128, 4096):
        points = [runs[h, b].points[0] for b in (1500, 12000)]
        intensity = [p.intensity_flops_per_byte for p in points]
        assert intensity[1] / intensity[0] == pytest.approx(8.0)
        rates = [p.flops_per_s for p in points]
        assert rates == sorted(rates)
    small, large = runs[128, 12000].points[0], runs[4096, 12000].points[0]
    assert large.intensity_flops_per_byte == pytest.approx(small.intensity_flops_per_byte, rel=1e-3)
    assert large.flops_per_s > 2 * small.flops_per_s


def test_message_sizes_do_not_depend_on_the_number_of_ranks() -> None:
    """Nsight Systems records (p - 1) times an all-reduce's buffer; the reader undoes that."""
    for ranks in (2, 4):
        trace = read(FOLDER / f"h200x4_p{ranks}_host_float32_H512_B3000.sqlite.xz")
        reduced = [i for i, s in enumerate(trace.strings) if s == "MPI_Allreduce"]
        sizes = set(trace.mpi.size_bytes[trace.mpi.name == reduced[0]].tolist())
        assert {4 * 784 * 512, 4 * 512, 4 * 10 * 512, 4 * 10} <= sizes

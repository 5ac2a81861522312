"""The command `perfmodel study scaling`: text, JSON, picture, errors; its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import pages as made
from benchmarks.common.folders import MACHINE, PROFILES, PROGRAMS
from benchmarks.scaling import __main__ as benchmark
from perfmodel.base.errors import ModelError
from perfmodel.render.plot.studies import scaling as draw
from support.build_training import Training, training_report
from support.cli import fails, harmless, perfmodel, succeeds

CAMPAIGN = PROFILES / "campaign"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One configuration on one and on two ranks, whose batches take 1 ms each."""
    folder = tmp_path_factory.mktemp("scaling")
    one, two = (
        training_report(folder / f"p{p}.sqlite", Training(p=p, pace=(8, *[1] * 7))) for p in (1, 2)
    )
    return one, two


def document(*arguments: object) -> dict[str, Any]:
    found = json.loads(succeeds("study", "scaling", "--json", *arguments))
    assert isinstance(found, dict)
    return found


def test_text_says_what_the_ranks_gain(pair: tuple[Path, Path]) -> None:
    """Equal times: speed-up 1, efficiency a half, serial fraction 1."""
    said = succeeds("study", "scaling", *pair)
    assert harmless(said)
    assert "Strong scaling: B=3000 H=512" in said
    assert "Amdahl: serial fraction 1.000 (1.000 to 1.000, 95 %); one speed-up, which" in said
    assert "2 ranks are 1.00 times as fast as 1, 50 % of ideal, with the batch held." in said
    assert "Computing against communication" in said
    assert "All-reduce by message size" in said


def test_json_is_a_contract(pair: tuple[Path, Path]) -> None:
    found = document(*pair, "--machine", MACHINE)
    assert set(found) == {
        "schema_version", "perfmodel_version", "series", "all_reduces", "links", "warnings",
    }  # fmt: skip
    (series,) = found["series"]
    assert set(series) == {
        "kind", "sizes", "settings", "unusual", "batch_per_rank", "by_launches", "fit", "points",
    }  # fmt: skip
    assert (series["kind"], series["by_launches"]) == ("strong", False)
    assert series["fit"] == {
        "law": "Amdahl", "serial": 1.0, "low": 1.0, "high": 1.0, "misfit": None,
    }  # fmt: skip
    first, second = series["points"]
    assert set(first) == set(second) == {
        "ranks", "batch", "launches", "batch_s", "low_s", "high_s", "speedup", "speedup_low",
        "speedup_high", "efficiency", "serial_fraction", "split",
    }  # fmt: skip
    assert (second["ranks"], second["batch"], second["batch_s"]) == (2, 3000, 1e-3)
    assert (second["speedup"], second["efficiency"]) == (1.0, 0.5)
    assert first["serial_fraction"] is None
    # kernels 30 + 10 + 10 + 10 + 60 + 20 µs; MPI 140 µs, of it none under kernels
    assert second["split"]["compute_s"] == pytest.approx(140e-6)
    assert second["split"]["exposed_s"] == pytest.approx(140e-6, rel=1e-3)
    assert second["split"]["overlapped_s"] == 0
    sources = {(row["source"], row["through"]) for row in found["all_reduces"]}
    assert sources == {("training", "MPI"), ("NVIDIA H200", "MPI"), ("NVIDIA H200", "NCCL")}


@pytest.mark.slow
def test_a_picture_of_reports_is_drawn(pair: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "scaling.png"
    result = perfmodel("study", "scaling", *pair, "-o", out)
    assert result.exit_code == 0, result.output
    assert out.read_bytes().startswith(b"\x89PNG")
    assert perfmodel("study", "scaling", *pair, "-o", tmp_path / "scaling.jpg").exit_code == 2
    with pytest.raises(ModelError, match="expected series over ranks to draw"):
        draw([])


def test_one_number_of_ranks_is_refused(pair: tuple[Path, Path]) -> None:
    said = fails(6, "study", "scaling", pair[0])
    assert "two or more numbers of ranks" in said
    assert "got p1 (p=1)" in said


def test_files_that_are_neither_record_nor_report_are_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "run.json"
    wrong.write_text("no", encoding="utf-8")
    assert "run.json: expected a record" in fails(3, "study", "scaling", wrong)
    assert "none.json" in fails(3, "study", "scaling", tmp_path / "none.json")


# --- the page


@pytest.mark.slow
def test_the_page_holds_what_is_committed() -> None:
    for name, part in benchmark.parts(benchmark.of_campaign()).items():
        wanted = made.shorten(part, benchmark.PAGE, benchmark.SHOWN, name)
        shown = made.section(benchmark.PAGE, benchmark.SCRIPT, name)
        assert shown == wanted.text.strip(), f"{name}: run python -m benchmarks.scaling"
        assert wanted.differing() == []


def test_speedups_of_the_ladder_by_hand() -> None:
    """2.09315 ms / 1.17344 ms and / 0.681761 ms: the rung `graph` at H=2048, B=12000."""
    found = benchmark.ladder(2048, 12000)
    assert found["graph"][1] / found["graph"][2] == pytest.approx(1.7838, abs=1e-4)
    assert found["graph"][1] / found["graph"][4] == pytest.approx(3.0702, abs=1e-4)
    assert found["peer x3"][1] == found["fused x3"][1]


def test_a_batch_that_no_report_holds_is_given() -> None:
    """Of PyTorch programs on one and two ranks the operators' sizes were not recorded."""
    one, two = (PROGRAMS / f"{name}.sqlite.xz" for name in ("gpt_unnamed", "gpt_ddp"))
    refused = fails(6, "study", "scaling", "-q", one, two)
    assert "neither B nor FLOPs of gpt_unnamed, gpt_ddp; give --set B=N1,N2,..." in refused
    said = succeeds("study", "scaling", one, two, "--set", "B=8,16")
    assert "Weak scaling: B/p=8" in said
    assert "B/p=8: 2 ranks are 0.95 times as fast as 1" in said

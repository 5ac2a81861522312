"""Outputs: the contract of analysis.json, tidy CSVs, pictures; whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import sqlite3
import tempfile
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import perfmodel
from benchmarks.common.folders import BASE
from perfmodel.analysis.result import Analysis
from perfmodel.base.errors import ModelError, PerfmodelError
from perfmodel.render import outputs, plot
from perfmodel.render.analysis_json import SCHEMA_VERSION, analysis_document
from support.build_report import ReportBuilder
from support.build_training import Training, analyzed, training_report
from support.cli import succeeds
from support.document_report import document_report
from support.once import anew

CSVS = {
    "categories", "collectives", "copies", "findings", "gaps", "idle", "kernels", "late_ranks",
    "points", "ranges", "ranks", "rates", "runs", "skew", "stragglers",
}  # fmt: skip
PICTURES = {
    "breakdown.png", "breakdown.svg", "idle.png", "idle.svg", "roofline.pdf", "roofline.png",
    "roofline.svg",
}  # fmt: skip
UNITS = ("_s", "seconds", "bytes", "flops", "_per_byte")
UNITLESS = {
    "level", "count", "instances", "launches", "rank", "gpu", "batches", "gpu_ops",  # numbers
    "last", "last_rank", "step",
    "share", "last_share", "of_ceiling", "of_roof", "model_error",  # fractions
    "value", "low", "high", "launch_low", "launch_high", "rate",  # with a unit column
    *"DHCBpb",  # symbols
    "share_last", "latest", "steps", "probability", "doing",  # empty: nobody is late
}  # fmt: skip
NAMES = (
    "\x1b[2J\x1b[31mred", "[bold red]rich[/]", "two\r\nlines\n", r"$\frac{$", 'a,b"c', "=1+1",
    "x" * 300, "\u202eevil", "<script>alert(1)</script>", r"%s {} \ & # _", "[/nope]", " ", "訓練",
)  # fmt: skip
"""Range names that a terminal, a spreadsheet, a browser or LaTeX could take for something else."""


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analyzed(document_report(tmp_path_factory.mktemp("document") / "document.sqlite"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    report = ReportBuilder()
    report.gpu(0, name=NAMES[0] + NAMES[1])
    thread = report.thread(rank=0)
    for batch in range(4):
        start = 1_000_000 * batch
        thread.range("batch iteration", start, start + 900_000)
        for i, name in enumerate(NAMES):
            begin = start + 50_000 * i + 10
            thread.range(name, begin, begin + 40_000)
            thread.kernel(name, (begin + 10, begin + 20), (begin + 30, begin + 30_000))
            thread.mpi(f"MPI_{name}", begin + 30, begin + 40, 8)
    report.diagnostic("\x1b]0;title\x07 [red]hi[/red]\nnext")
    return analyzed(report.write(tmp_path_factory.mktemp("hostile") / "r.sqlite"))


def everything(value: Any) -> list[Any]:
    """All scalars of a JSON document."""
    if isinstance(value, dict):
        return [v for inner in value.values() for v in everything(inner)]
    if isinstance(value, list):
        return [v for inner in value for v in everything(inner)]
    return [value]


# --- analysis.json


def test_the_contract_of_analysis_json(document: Analysis, tmp_path: Path) -> None:
    outputs.write(document, tmp_path / "out", plots=False)
    text = (tmp_path / "out" / "analysis.json").read_text(encoding="utf-8")
    found = json.loads(text, parse_constant=lambda c: pytest.fail(f"{c} is no strict JSON"))
    assert found["schema_version"] == SCHEMA_VERSION == 3
    units = {"P_flops": "FLOP/s", "P_pci": "B/s", "P_mpi": "B/s"}
    assert list(found["rates"]) == list(units)
    for name, unit in units.items():
        rate = found["rates"][name]
        assert {"value", "low", "high", "unit", "instances", "clock"} <= rate.keys()
        assert rate["low"] <= rate["value"] <= rate["high"]
        assert rate["unit"] == unit
        assert rate["instances"] == 38
    assert found["rates"]["P_flops"]["value"] == pytest.approx(1.632697e12)
    batch = found["batch"]
    assert (batch["count"], batch["warmup"]) == (19, 1)
    assert batch["median_s"] == pytest.approx(4.958e-3)
    keys = {"path", "count", "host_s", "gpu_projection_s", "gpu_busy_s", "flops", "pci_bytes",
            "mpi_bytes"}  # fmt: skip
    assert all(keys <= row.keys() for row in found["ranges"])
    paths = [row["path"] for row in found["ranges"]]
    assert "GPU parallel train/batch iteration/forward/forward GEMM 1" in paths
    assert len(set(paths)) == len(paths)
    assert found["roofline"]["rates"] == pytest.approx(
        {name: found["rates"][name]["value"] for name in units}
    )
    for point in found["roofline"]["points"]:
        assert {"label", "intensity_flops_per_byte", "flops_per_s"} <= point.keys()
    for finding in found["findings"]:
        assert {"title", "saving_s", "evidence", "action"} <= finding.keys()
    assert found["warnings"] == []


def test_a_report_that_lacks_much_keeps_the_contract(tmp_path: Path) -> None:
    path = training_report(tmp_path / "r.sqlite", Training(gpu=False, mpi=False, p=1))
    found = json.loads(json.dumps(analysis_document(analyzed(path)), allow_nan=False))
    assert found["rates"] == {"P_flops": None, "P_pci": None, "P_mpi": None}
    assert found["roofline"] == {"rates": None, "points": []}
    assert all(row["gpu_busy_s"] is None and row["flops"] is None for row in found["ranges"])
    assert found["warnings"]


def test_what_is_not_finite_is_null(hostile: Analysis, document: Analysis) -> None:
    for analysis in (hostile, document):
        for value in everything(analysis_document(analysis)):
            assert value is None or isinstance(value, (str, int, float, bool))
            assert not isinstance(value, float) or math.isfinite(value)


def test_several_runs_are_all_in_the_document(tmp_path: Path) -> None:
    paths = [
        training_report(tmp_path / f"{H}.sqlite", Training(H=H, B=600, pace=(1, 1)))
        for H in (64, 128)
    ]
    found = analysis_document(analyzed(*paths, fit="128"))
    assert found["fit"] == found["label"] == "128"
    assert [run["label"] for run in found["runs"]] == ["64", "128"]
    assert len(found["roofline"]["points"]) == 4
    assert found["roofline"]["fitted_on"] == "128"
    assert len(found["trends"]) == 1
    assert "trends" not in analysis_document(analyzed(paths[0]))


def test_the_document_is_the_same_every_time() -> None:
    with anew():
        first, second = (json.dumps(analysis_document(analyzed(BASE))) for _ in range(2))
    assert first == second


# --- CSVs


def test_csvs_are_tidy(document: Analysis, tmp_path: Path) -> None:
    written = outputs.write(document, tmp_path / "out", plots=False)
    assert {p.stem for p in written if p.suffix == ".csv"} == CSVS
    assert {p.name for p in (tmp_path / "out").iterdir()} == {p.name for p in written}
    frames = {p.stem: pd.read_csv(p) for p in written if p.suffix == ".csv"}
    for name, frame in frames.items():
        assert len(frame), name
        for column in frame.select_dtypes("number"):
            named = column in UNITLESS or column.endswith(UNITS)
            assert named, f"{name}.{column} does not say its unit"
    ranges = frames["ranges"].set_index("range")
    assert ranges.loc["batch iteration", "host_s"] == pytest.approx(4.958e-3)
    assert ranges.loc["forward GEMM 1", "flops"] == 2 * 784 * 512 * 1500
    assert ranges.loc["forward GEMM 1", "level"] == 2
    assert set(frames["rates"].loc[:2, "unit"]) == {"FLOP/s", "B/s"}
    assert frames["points"]["model_error"].tolist() == pytest.approx([-0.564, -0.258], abs=1e-3)


def test_csvs_of_several_runs_name_the_run(tmp_path: Path) -> None:
    paths = [
        training_report(tmp_path / f"{name}.sqlite", Training(pace=(1, 1))) for name in ("a", "b")
    ]
    outputs.write(analyzed(*paths), tmp_path / "out", plots=False)
    for table in (tmp_path / "out").glob("*.csv"):
        assert set(pd.read_csv(table)["run"]) == {"a", "b"}, table.name


def test_hostile_names_survive_csv_and_json(hostile: Analysis, tmp_path: Path) -> None:
    outputs.write(hostile, tmp_path / "out", plots=False)
    raw = (tmp_path / "out" / "ranges.csv").read_bytes().decode("utf-8")
    frame = pd.read_csv(io.StringIO(raw), keep_default_na=False)
    assert set(NAMES) <= set(frame["range"])
    text = (tmp_path / "out" / "analysis.json").read_text(encoding="utf-8")
    assert text.isascii()
    assert "\x1b" not in text
    assert {p["path"].rpartition("/")[2] for p in json.loads(text)["ranges"]} >= {NAMES[0]}


# --- pictures


@pytest.mark.slow
def test_all_pictures_are_written(document: Analysis, tmp_path: Path) -> None:
    written = outputs.write(document, tmp_path / "out")
    assert {p.name for p in written} == PICTURES | {f"{n}.csv" for n in CSVS} | {"analysis.json"}
    assert (tmp_path / "out" / "roofline.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "roofline.pdf").read_bytes().startswith(b"%PDF")
    assert b"<svg" in (tmp_path / "out" / "roofline.svg").read_bytes()[:500]


def test_hostile_names_are_drawn_without_a_word(hostile: Analysis, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written = outputs.write(hostile, tmp_path / "out")
    assert {p.name for p in written if p.suffix == ".svg"} == {"breakdown.svg", "idle.svg"}
    svg = (tmp_path / "out" / "breakdown.svg").read_text(encoding="utf-8")
    assert "<script" not in svg
    assert "\x1b" not in svg


@pytest.mark.slow
def test_many_points_make_a_picture_per_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(plot, "save", lambda _, __, name, **___: drawn.append(name))
    paths = [
        training_report(tmp_path / f"{H}.sqlite", Training(H=H, B=600, pace=(1,)))
        for H in (64, 128, 256, 512, 1024)
    ]
    outputs.write(analyzed(*paths[:2]), tmp_path / "few")
    assert drawn == ["roofline", "idle", "breakdown"]
    drawn.clear()
    outputs.write(analyzed(*paths), tmp_path / "many")
    assert drawn == ["roofline", "roofline_phases", "idle", "breakdown"]


def test_a_batch_without_duration_is_not_drawn(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for i in range(4):
        thread.range("batch iteration", 1_000 * i, 1_000 * i)
    written = outputs.write(analyzed(report.write(tmp_path / "r.sqlite")), tmp_path / "out")
    assert not [p for p in written if p.suffix == ".png"]


def test_no_roofline_is_an_error_for_who_asks_for_it(tmp_path: Path) -> None:
    path = training_report(tmp_path / "r.sqlite", Training(gpu=False, mpi=False, p=1))
    with pytest.raises(ModelError, match="the warnings say what is missing"):
        outputs.draw_roofline(analyzed(path))


# --- whole or not at all


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left"), KeyboardInterrupt(), MemoryError()]
)
def test_a_failure_in_the_middle_leaves_nothing(
    document: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(plot, "save", fail)
    with pytest.raises((PerfmodelError, type(error))):
        outputs.write(document, tmp_path / "deep" / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_in_the_middle_leaves_the_old_content(
    document: Analysis, hostile: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs.write(hostile, tmp_path, plots=False)
    (tmp_path / "notes.txt").write_text("mine")
    before = listing(tmp_path)
    monkeypatch.setattr(plot, "breakdown", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        outputs.write(document, tmp_path)
    assert listing(tmp_path) == before


def test_new_outputs_replace_old_ones_and_leave_other_files(
    document: Analysis, hostile: Analysis, tmp_path: Path
) -> None:
    outputs.write(hostile, tmp_path, plots=False)
    (tmp_path / "notes.txt").write_text("mine")
    outputs.write(document, tmp_path, plots=False)
    assert json.loads((tmp_path / "analysis.json").read_text())["label"] == "document"
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_a_file_in_the_way(document: Analysis, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(PerfmodelError, match="a file of that name"):
        outputs.write(document, tmp_path / "out", plots=False)
    assert listing(tmp_path) == {"out": b"mine"}


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
def test_a_read_only_folder(document: Analysis) -> None:
    """Root may write everywhere: then as nobody, in a folder that nobody may enter."""
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        folder = Path(parent) / "protected"
        folder.mkdir()
        (folder / "analysis.json").write_text("old")
        folder.chmod(0o555)
        outputs.write(document, Path(parent) / "imported", plots=False)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)
            with pytest.raises(PerfmodelError, match="change its permissions or write elsewhere"):
                outputs.write(document, folder, plots=False)
        finally:
            os.seteuid(user)
        assert listing(folder) == {"analysis.json": b"old"}
        folder.chmod(0o755)


def test_unicode_folders(document: Analysis, tmp_path: Path) -> None:
    written = outputs.write(document, tmp_path / "Ergebnisse für 訓練", plots=False)
    assert all(p.is_file() for p in written)


def test_the_version_is_in_the_document(document: Analysis) -> None:
    assert analysis_document(document)["perfmodel_version"] == perfmodel.__version__


def test_a_report_without_mark_and_mpi_has_rates_and_a_roofline_for_given_sizes(
    tmp_path: Path,
) -> None:
    """As frozen: nothing but the ranges and the GPU's operations says what a batch is."""
    report = tmp_path / "bare.sqlite"
    shutil.copyfile(BASE, report)
    with closing(sqlite3.connect(report)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if name.startswith("MPI_"):
                db.execute(f"DROP TABLE {name}")
        db.commit()
    out = tmp_path / "out"
    succeeds("analyze", report, "-D", "784", "-H", "512", "-C", "10", "-B", "3000", "-o", out)
    with (out / "rates.csv").open(encoding="utf-8", newline="") as file:
        rates = {row["name"]: float(row["value"]) for row in csv.DictReader(file)}
    assert rates["P_flops"] == pytest.approx(2.2458456098998230e13)
    assert rates["P_pci"] == pytest.approx(1.0270740815502623e10)
    assert rates["P_mpi"] == pytest.approx(8.325460995174331e9)
    pictures = {path.name for path in out.glob("roofline.*")}
    assert pictures == {"roofline.png", "roofline.svg", "roofline.pdf"}

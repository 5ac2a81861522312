"""Folders of Arrow and Parquet files say what the SQLite export of the same report says."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing, suppress
from pathlib import Path

import pytest
from readers.test_rewritten import RECORDED, recorded, said_of

from benchmarks.common.folders import ROOT
from perfmodel.base.errors import ReportError, SchemaError
from perfmodel.readers import read
from perfmodel.timing.nsys_stats.collect import collect
from support.build_columnar import write_folder
from support.build_operators import operators_report
from support.cli import succeeds

pa = pytest.importorskip("pyarrow", exc_type=ImportError)  # or one for another NumPy
KINDS = ("arrow", "parquet")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return operators_report(tmp_path_factory.mktemp("made") / "report.sqlite")


def summaries(path: Path) -> dict[str, object]:
    names = ("nvtx_pushpop_sum", "cuda_gpu_kern_sum", "cuda_api_sum", "nvtx_gpu_proj_sum")
    return {name: getattr(found, "count", None) is not None and found.count.tolist()
            for name, found in collect(path, names).items()}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_analysis_and_summaries_are_equal(kind: str, report: Path, tmp_path: Path) -> None:
    folder = write_folder(report, tmp_path / "report_2", kind)
    assert said_of(folder) == said_of(report)
    assert summaries(folder) == summaries(report)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_reports(name: str, kind: str, tmp_path: Path) -> None:
    source = recorded(name, tmp_path / "report_1.sqlite")
    assert said_of(write_folder(source, tmp_path / "report_2", kind)) == said_of(source)


def test_real_folders_of_2025(tmp_path: Path) -> None:
    """One report of a GPT on an H200, exported by Nsight Systems 2025.3.1 in three formats."""
    with tarfile.open(ROOT / "tests" / "reports" / "formats_nsys2025.3.1.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    file = tmp_path / "report.sqlite"
    said, counts = said_of(file), summaries(file)
    assert len(read(file).ranges) == 4600
    for kind in ("arwdir", "pqtdir"):
        folder = (tmp_path / f"report_{kind}").rename(tmp_path / "report")
        assert said_of(folder) == said, kind
        assert summaries(folder) == counts, kind
        shutil.rmtree(folder)


@pytest.mark.nsys
@pytest.mark.usefixtures("one_profile")
def test_exports_of_nsys(nsys: str, tmp_path: Path) -> None:
    """Record a program with ranges and compare all three exports of the report."""
    program = (
        "import nvtx, time\n"
        "for i in range(5):\n"
        "    with nvtx.annotate('batch iteration'):\n"
        "        time.sleep(0.002)\n"
    )
    record = ["profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-o", "run", sys.executable]
    exports = [["export", "-q", "true", "-t", kind, "run.nsys-rep"]
               for kind in ("sqlite", "arrowdir", "parquetdir")]  # fmt: skip
    for command in ([*record, "-c", program], *exports):
        subprocess.run([nsys, *command], cwd=tmp_path, check=True, capture_output=True, timeout=100)
    expected = said_of(tmp_path / "run.sqlite")
    assert len(read(tmp_path / "run.sqlite").ranges) == 5
    for folder in ("run_arwdir", "run_pqtdir"):
        shutil.move(tmp_path / folder, tmp_path / "run")
        assert said_of(tmp_path / "run") == expected
        shutil.rmtree(tmp_path / "run")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", [0, 10, 400])
def test_a_damaged_file(kind: str, left: int, report: Path, tmp_path: Path) -> None:
    folder = write_folder(report, tmp_path / "report_2", kind)
    file = folder / f"NVTX_EVENTS.{kind}"
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(ReportError, match=rf"NVTX_EVENTS\.{kind}: cannot be read .* -t {kind}dir"):
        read(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_table_is_refused(kind: str, report: Path, tmp_path: Path) -> None:
    folder = write_folder(report, tmp_path / "report_2", kind)
    file = folder / f"NVTX_EVENTS.{kind}"
    file.write_bytes(file.read_bytes()[:-1200])
    with pytest.raises(ReportError, match="the export is damaged or unfinished"):
        read(folder)


def test_a_folder_without_strings(report: Path, tmp_path: Path) -> None:
    folder = write_folder(report, tmp_path / "report_2", "parquet")
    (folder / "StringIds.parquet").unlink()
    with pytest.raises(SchemaError, match="got a folder with "):
        read(folder)


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="got a folder; name the files inside it"):
        read(tmp_path)
    table = pa.table({"a": [1]})
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as file,
    ):
        file.write_table(table)
    with pytest.raises(SchemaError, match="expected an Nsight Systems export"):
        read(tmp_path)


def test_columns_that_no_export_has(tmp_path: Path) -> None:
    table = pa.table({"id": [[1, 2], [3]]})
    with (
        pa.OSFile(str(tmp_path / "StringIds.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as file,
    ):
        file.write_table(table)
    with pytest.raises(SchemaError, match="column id: expected numbers or text; got list"):
        read(tmp_path)


def test_without_pyarrow(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(report, tmp_path / "report_2", "arrow")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ReportError, match=r"pip install 'perfmodel\[arrow\]'"):
        read(folder)


def test_commands_take_a_folder(report: Path, tmp_path: Path) -> None:
    folder = write_folder(report, tmp_path / "report_pqtdir", "parquet")
    asked = ("--report", "cuda_gpu_kern_sum", "--format", "csv")
    assert succeeds("stats", f"{folder}/", *asked) == succeeds("stats", report, *asked)


def test_the_results_database_takes_a_folder(report: Path, tmp_path: Path) -> None:
    folder = write_folder(report, tmp_path / "report_pqtdir", "parquet")
    database = tmp_path / "results.db"
    succeeds("analyze", folder, "--no-plots", "-o", tmp_path / "out", "--db", database)
    with closing(sqlite3.connect(database)) as db:
        (kept,) = db.execute("SELECT count(*) FROM runs").fetchone()
    assert kept == 1


@pytest.mark.parametrize(("kind", "said"), [("arrow", "a stream of Arrow"), ("parquet", "Parquet")])
def test_one_file_of_a_folder_is_no_report(
    kind: str, said: str, report: Path, tmp_path: Path
) -> None:
    folder = write_folder(report, tmp_path / "report_2", kind)
    with pytest.raises(ReportError, match=rf"got .*{said}.* \(name the folder"):
        read(folder / f"NVTX_EVENTS.{kind}")


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bits_are_an_error_or_read(kind: str, report: Path, tmp_path: Path) -> None:
    """Whatever is damaged, perfmodel says so or reads it; it raises nothing else, and lives."""
    folder = write_folder(report, tmp_path / "report_2", kind)
    draw = random.Random(kind)
    for _ in range(6):
        file = folder / f"{draw.choice(['NVTX_EVENTS', 'StringIds'])}.{kind}"
        whole = file.read_bytes()
        damaged = bytearray(whole)
        for _ in range(draw.choice((1, 3, 30))):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        file.write_bytes(damaged)
        with suppress(ReportError, SchemaError):
            read(folder)
        file.write_bytes(whole)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_one_name(kind: str, report: Path, tmp_path: Path) -> None:
    folder = write_folder(report, tmp_path / "report_2", kind)
    table = pa.table([pa.array([1]), pa.array([2])], names=["start", "start"])
    file = folder / f"CUPTI_ACTIVITY_KIND_KERNEL.{kind}"
    if kind == "parquet":
        pa.parquet.write_table(table, file)
    else:
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    with pytest.raises(SchemaError, match="distinct names; got start more than once"):
        read(folder)

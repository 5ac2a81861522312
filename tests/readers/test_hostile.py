"""Reports and files that mean harm: bounded time and memory, an error of one line, or the truth."""

from __future__ import annotations

import ast
import gzip
import hashlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.text import Text

from benchmarks.common.folders import ROOT
from benchmarks.robustness.reading import numbers
from perfmodel.base.errors import ReportError
from perfmodel.readers import read
from perfmodel.readers.nsys import read_sqlite
from perfmodel.render import plot
from support.build_report import ReportBuilder
from support.build_training import Training, analyzed, shared_report
from support.cli import fails, perfmodel, succeeds
from support.damaged_reports import KERNELS, refusal, sql

SMALL = Training(D=9, H=6, C=2, B=20, pace=(3, 1))
LONG = 3_000_000


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "r.sqlite"
    path.write_bytes(shared_report(SMALL).read_bytes())
    return path


@pytest.mark.parametrize("fast", [True, False])
def test_names_of_megabytes(fast: bool, tmp_path: Path) -> None:
    """Shortened to what a screen takes; two that differ at their ends stay two."""
    build = ReportBuilder()
    thread = build.thread()
    for i, name in enumerate(("n" * LONG + "a", "n" * LONG + "b", "x" * 100_000)):
        thread.range(name, 10 * i, 10 * i + 9, registered=i != 1)
    trace = read_sqlite(build.write(tmp_path / "r.sqlite"), fast=fast)
    names = [trace.range_names[n] for n in trace.ranges.name]
    assert len(set(names)) == 3
    assert names[0].startswith("n" * 1000 + "… [3000001 bytes, ")
    assert len(names[0]) < 1100
    assert names[2] == "x" * 100_000


def test_ranges_ten_thousand_deep(tmp_path: Path) -> None:
    """As of a loop that pushes and never pops."""
    build = ReportBuilder()
    thread = build.thread()
    for i in range(10_000):
        thread.range("batch iteration" if i == 0 else "push", i, 30_000 - i)
    path = build.write(tmp_path / "r.sqlite")
    said = fails(4, "analyze", path, "--no-plots")
    assert "10000 deep; pop every range that is pushed" in said
    assert "push" in succeeds("stats", path, "--report", "nvtx_pushpop_sum")


def test_a_table_of_three_thousand_names(tmp_path: Path) -> None:
    build = ReportBuilder()
    thread = build.thread()
    for i in range(3000):
        thread.range(f"range {i}", 10 * i, 10 * i + 9)
    path = build.write(tmp_path / "r.sqlite")
    options = ("stats", path, "--report", "nvtx_pushpop_sum")
    assert succeeds(*options, "--format", "csv").count("\n") == 3001
    assert "note: 2000 of 3000; all of them in --format csv" in succeeds(*options)


def test_a_picture_of_a_thousand_ranges() -> None:
    clocks = {"gpu_projection_s": None, "gpu_busy_s": None}
    rows = [SimpleNamespace(path=("batch",), host_s=1.0, **clocks)]
    rows += [
        SimpleNamespace(path=("batch", f"r{i}"), host_s=i / 1000, **clocks) for i in range(1000)
    ]
    ax = plot.breakdown(rows, title="A batch")
    shown = {text.get_text().strip() for text in ax.figure.findobj(Text)}
    assert "r999" in shown
    assert "r100" not in shown
    assert "A batch: the 80 longest of 1001 ranges" in shown


def test_a_sum_beside_a_report_is_checked(
    original: bytes, truth: list[Any], tmp_path: Path
) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(original)
    beside = tmp_path / "report.sqlite.sha256"
    beside.write_text(f"{hashlib.sha256(original).hexdigest()}  report.sqlite\n")
    assert numbers(read(path)) == truth
    sql(path, f"UPDATE {KERNELS} SET start = start - 1 WHERE rowid = 7")
    assert "expected the SHA-256 that report.sqlite.sha256 has" in str(refusal(path))
    for content in ("", "\xff\xfe"):
        beside.write_text(content)
        assert isinstance(refusal(path), ReportError)
    beside.unlink()
    assert numbers(read(path)) != truth


@pytest.mark.parametrize("head", [True, False])
def test_a_small_file_that_unpacks_to_gigabytes(
    head: bool, original: bytes, tmp_path: Path
) -> None:
    """Nothing but the start is unpacked of what is no report; a report ends where it says."""
    path = tmp_path / "bomb.sqlite.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(original if head else b"")
        for _ in range(100):
            file.write(bytes(1 << 20))
    with pytest.raises(ReportError, match="got many more" if head else "got something else"):
        read(path)


def test_a_compressed_report_that_needs_more_than_the_disk_has(tmp_path: Path) -> None:
    header = bytearray(b"SQLite format 3\0\0\1" + bytes(82))
    header[28:32] = b"\xff\xff\xff\xfe"
    path = tmp_path / "large.sqlite.gz"
    path.write_bytes(gzip.compress(bytes(header)))
    with pytest.raises(ReportError, match="set TMPDIR to a folder on another disk"):
        read(path)


def test_a_path_longer_than_sqlite_opens(small: Path, tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d" * 200] * 3)
    deep.mkdir(parents=True)
    path = small.rename(deep / "r.sqlite")
    assert "expected a path of at most 504 bytes" in fails(3, "stats", path)


def test_a_results_database_called_memory(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    succeeds("analyze", small, "-q", "--db", ":memory:", "-D", 9, "-H", 6, "-C", 2, "-B", 20)
    with closing(sqlite3.connect(tmp_path / ":memory:")) as db:
        assert db.execute("SELECT count(*) FROM runs").fetchone() == (1,)


@pytest.mark.parametrize(
    "statement",
    [
        f"CREATE TRIGGER t AFTER UPDATE ON {KERNELS} BEGIN DELETE FROM {KERNELS}; END",
        f"CREATE INDEX i ON {KERNELS} (abs(start))",
        f"CREATE INDEX i ON {KERNELS} (start) WHERE start > 10",
        f"ALTER TABLE {KERNELS} ADD COLUMN g AS (hex(zeroblob(900000000))) VIRTUAL",
        "CREATE TABLE c (x CHECK (length(hex(zeroblob(900000000))) > x))",
        "CREATE TABLE [a'b\"c;--] (x DEFAULT (hex(randomblob(9))))",
        "CREATE VIEW StringIds2 AS WITH RECURSIVE n AS (SELECT 1 UNION ALL SELECT 1 FROM n) "
        "SELECT * FROM n",
    ],
)
def test_nothing_of_a_schema_runs(statement: str, small: Path) -> None:
    truth = numbers(read(shared_report(SMALL)))
    sql(small, statement)
    for fast in (True, False):
        assert numbers(read_sqlite(small, fast=fast)) == truth


@pytest.mark.parametrize(
    ("table", "setting"),
    [
        (KERNELS, "demangledName = -5, shortName = 1 << 40, streamId = -9, deviceId = 1 << 40"),
        (KERNELS, "correlationId = -1, globalPid = -1"),
        ("NVTX_EVENTS", "textId = -7"),
        ("MPI_COLLECTIVES_EVENTS", "size = -5, recvSize = -7, commHandle = -1"),
        ("MPI_COMMUNICATORS", "size = -1, rank = 1 << 62"),
        ("MPI_COMMUNICATORS", "size = 1 << 62"),
        ("MPI_RANKS", "rank = 2147483647"),
        ("TARGET_INFO_GPU", "clockRate = 1 << 62, smCount = -3, memoryBandwidth = -1"),
        ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs = -9223372036854775807 - 1"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "bytes = 9223372036854775807"),
    ],
)
def test_numbers_out_of_every_range(table: str, setting: str, small: Path) -> None:
    """Done, or one line that says what is wrong; never a number of the wrap-around."""
    sql(small, f"UPDATE {table} SET {setting}")
    for command in ("analyze", "stats"):
        result = perfmodel(command, small, *([] if command == "stats" else ["--no-plots"]))
        assert result.exit_code in (0, 3, 4, 5), result.output
        assert result.exit_code == 0 or result.stderr.count("perfmodel: error: ") == 1
        assert "-9223372036854775808" not in result.output


def _shifted(db: sqlite3.Connection, table: str) -> None:
    db.execute(f'UPDATE {table} SET start = start - 500000000, "end" = "end" - 500000000')


def test_negative_times_are_times(small: Path, tmp_path: Path) -> None:
    truth = analyzed(small).fitted.batch
    with closing(sqlite3.connect(small)) as db:
        names = db.execute("SELECT name FROM sqlite_master WHERE sql LIKE '%start%end%'").fetchall()
        for (table,) in names:
            if not table.startswith(("ANALYSIS", "TARGET", "ENUM")):
                _shifted(db, table)
        db.commit()
    found = analyzed(small).fitted.batch
    assert (found.count, found.median.value) == (truth.count, truth.median.value)


@pytest.mark.parametrize(
    "formula",
    [
        "__import__('os').system('true')", "9**9**9", "9**9**9**9", "(" * 5000 + "1" + ")" * 5000,
        "1e999", "B.__class__", "lambda: 1", "[x for x in (1,)]", "B" * 3000, "10**64**64",
        "f'{B}'", "B if B else B", "2if", "\0", "B;B", "max(*[1,2])", "1_0e+9_9",
    ],
)  # fmt: skip
def test_hostile_formulas(formula: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = tmp_path / "w.toml"
    path.write_text(f"[symbols]\nB = 'size'\n[ranges.forward]\nflops = {formula!r}\n")
    if "\\" in path.read_text():  # TOML's quotes take no escapes
        path.write_text(path.read_text().replace(repr(formula), '"\\u0000"'))
    fails(5, "study", "formulas", "--workload", path)
    assert not list(recwarn)


@pytest.mark.parametrize("make", [lambda: "=cmd|' /C calc'!A0", lambda: "+1", lambda: "@x"])
def test_names_that_a_spreadsheet_computes_stay_names(
    make: Callable[[], str], tmp_path: Path
) -> None:
    """CSV is data: docs/robustness.md says how to open it."""
    build = ReportBuilder()
    build.thread().range(make(), 0, 10)
    path = build.write(tmp_path / "r.sqlite")
    said = succeeds("stats", path, "--report", "nvtx_pushpop_sum", "--format", "csv")
    assert make() in said


def test_nothing_is_unpickled() -> None:
    """Neither by the tool nor by the trainer, the benchmarks or the profiles' scripts."""
    found = []
    for folder in ("perfmodel", "trainer", "benchmarks", "profiles"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            program = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(program)) if "pickle" in program else ():
                text = ast.unparse(node) if isinstance(node, ast.Import | ast.ImportFrom) else ""
                asked = isinstance(node, ast.keyword) and node.arg == "allow_pickle"
                unpickles = "pickle" in text and text != "import pickletools"  # executes nothing
                if unpickles or (asked and ast.unparse(node) != "allow_pickle=False"):
                    found.append(f"{path.name}: {ast.unparse(node)}")
    assert not found

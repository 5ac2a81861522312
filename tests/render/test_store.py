"""The results database: idempotent by report, all or nothing, several writers, wrong files."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlite_utils

from perfmodel.analysis.result import Analysis
from perfmodel.base.errors import PerfmodelError
from perfmodel.render import outputs, tables
from support.build_training import Training, analyzed, shared_report, training_report

SMALL = Training(D=9, H=6, C=2, B=20, pace=(3, 1, 1))
VALUES = {"D": 9, "H": 6, "C": 2, "B": 20}
TABLES = ("ranges", "rates", "copies", "collectives", "ranks", "findings", "points", "times")


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyzed(shared_report(SMALL))


@pytest.fixture
def near(tmp_path: Path) -> Analysis:
    """One whose report is in the test's folder."""
    return analyzed(training_report(tmp_path / "r.sqlite", SMALL))


def content(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    with closing(sqlite3.connect(path)) as db:
        names = [n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {n: sorted(db.execute(f"SELECT * FROM {n}"), key=repr) for n in sorted(names)}


def counts(path: Path) -> dict[str, int]:
    return {name: len(rows) for name, rows in content(path).items()}


def append_in_process(report: Path, database: Path, times: int) -> None:
    analysis = analyzed(report)
    for _ in range(times):
        outputs.append(analysis, database)


def test_all_tables_are_written(analysis: Analysis, tmp_path: Path) -> None:
    assert outputs.append(analysis, tmp_path / "results.db") == 1
    found = counts(tmp_path / "results.db")
    assert set(found) == {"runs", *TABLES}
    assert found["runs"] == 1
    assert found["ranges"] == 13
    assert found["ranks"] == 2
    database = sqlite_utils.Database(tmp_path / "results.db")
    (run,) = database["runs"].rows
    assert run["label"] == "r"
    assert run["batch_median_s"] == pytest.approx(1e-3)
    assert run["symbols"] == '{"b": 4, "p": 2, "D": 9, "H": 6, "C": 2, "B": 20}'
    (row,) = database["ranges"].rows_where("range = ?", ["forward GEMM 1"])
    assert row["flops"] == 2 * 9 * 6 * 10
    assert row["run_hash"] == run["run_hash"]


def test_the_same_report_again_changes_nothing(near: Analysis, tmp_path: Path) -> None:
    """By content, whatever the file is called."""
    database = tmp_path / "results.db"
    outputs.append(near, database)
    before = content(database)
    copy = Path(shutil.copy(tmp_path / "r.sqlite", tmp_path / "another name.sqlite"))
    outputs.append(analyzed(copy), database)
    after = content(database)
    assert counts(database) == {name: len(rows) for name, rows in before.items()}
    assert {row[0] for row in after["runs"]} == {row[0] for row in before["runs"]}
    assert after["ranges"] == before["ranges"]


def test_other_options_replace_the_rows(tmp_path: Path) -> None:
    report, database = training_report(tmp_path / "r.sqlite", SMALL), tmp_path / "results.db"
    outputs.append(analyzed(report), database)
    other = {"counting": "full", "warmup": 0, "batch_label": "forward", "values": VALUES}
    outputs.append(analyzed(report, **other), database)
    found = sqlite_utils.Database(database)
    (run,) = found["runs"].rows
    assert (run["counting"], run["warmup"]) == ("full", 0)
    assert {row["range"] for row in found["ranges"].rows} == {
        "forward", "forward GEMM 1", "forward GEMM 2",
    }  # fmt: skip


def test_different_reports_add_up(tmp_path: Path) -> None:
    paths = [
        training_report(tmp_path / f"{H}.sqlite", Training(D=9, H=H, C=2, B=20)) for H in (6, 8)
    ]
    database = tmp_path / "results.db"
    assert outputs.append(analyzed(*paths), database) == 2
    outputs.append(analyzed(paths[0]), database)
    assert counts(database)["runs"] == 2
    assert counts(database)["ranges"] == 26


def test_the_order_of_the_ranks_reports_does_not_matter(tmp_path: Path) -> None:
    paths = [
        training_report(tmp_path / f"{rank}.sqlite", SMALL, ranks=[rank], world_size=2)
        for rank in (0, 1)
    ]
    outputs.append(analyzed(*paths), tmp_path / "results.db")
    outputs.append(analyzed(*reversed(paths)), tmp_path / "results.db")
    assert counts(tmp_path / "results.db")["runs"] == 1


def test_a_failure_in_the_middle_leaves_the_database_as_it_was(
    analysis: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = analyzed(training_report(tmp_path / "s.sqlite", Training(D=5, H=6, C=2, B=20)))
    database = tmp_path / "results.db"
    outputs.append(analysis, database)
    before = content(database)
    # the last table's rows cannot be made
    monkeypatch.setattr(tables, "points", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        outputs.append(other, database)
    assert content(database) == before
    # the last table's rows cannot be inserted, when the others have been
    monkeypatch.undo()
    with closing(sqlite3.connect(database)) as db:
        db.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON points BEGIN SELECT raise(ABORT, 'no'); END"
        )
    with pytest.raises(PerfmodelError, match=r"cannot be written|expected a file"):
        outputs.append(other, database)
    assert content(database) == before


@pytest.mark.slow
def test_two_processes_may_append_at_once(tmp_path: Path) -> None:
    """Both create the tables; each replaces its own rows again and again."""
    database = tmp_path / "results.db"
    context = multiprocessing.get_context("spawn")
    workers = []
    for H in (6, 8):
        report = training_report(tmp_path / f"{H}.sqlite", Training(D=9, H=H, C=2, B=20))
        workers.append(context.Process(target=append_in_process, args=(report, database, 8)))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(50)
        assert worker.exitcode == 0
    assert counts(database)["runs"] == 2
    assert counts(database)["ranges"] == 26


# --- wrong files


@pytest.mark.parametrize(
    "bad", [b"this is no database, but long enough to be one", b"SQLite format 3\x00" + b"x" * 600]
)
def test_a_file_that_is_no_database_stays_as_it_is(
    analysis: Analysis, tmp_path: Path, bad: bytes
) -> None:
    path = tmp_path / "results.db"
    path.write_bytes(bad)
    with pytest.raises(PerfmodelError, match=r"cannot be written \(.*name another file with --db"):
        outputs.append(analysis, path)
    assert path.read_bytes() == bad


def test_a_report_is_no_results_database(near: Analysis, tmp_path: Path) -> None:
    """`--db report.sqlite` by mistake must not write into the report."""
    before = (tmp_path / "r.sqlite").read_bytes()
    with pytest.raises(PerfmodelError, match="got an Nsight Systems report"):
        outputs.append(near, tmp_path / "r.sqlite")
    assert (tmp_path / "r.sqlite").read_bytes() == before


@pytest.mark.parametrize("name", ["runs", *TABLES])
def test_a_view_in_a_table_s_place_is_told(analysis: Analysis, tmp_path: Path, name: str) -> None:
    path = tmp_path / "results.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"CREATE VIEW {name} AS SELECT 1 AS run_hash")
    with pytest.raises(PerfmodelError, match=f"got a view '{name}'.*name another file with --db"):
        outputs.append(analysis, path)
    assert content(path) == {}


def test_views_of_one_s_own_are_welcome(analysis: Analysis, tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    outputs.append(analysis, path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE VIEW best AS SELECT min(batch_median_s) FROM runs")
    assert outputs.append(analysis, path) == 1


@pytest.mark.parametrize("path", [".", "missing/results.db"])
def test_a_folder_and_a_missing_folder(analysis: Analysis, tmp_path: Path, path: str) -> None:
    with pytest.raises(PerfmodelError, match=r"cannot be written|expected a file"):
        outputs.append(analysis, tmp_path / path)
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_stays_locked(
    analysis: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "_BUSY_SECONDS", 0.1)
    database = tmp_path / "results.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        with pytest.raises(PerfmodelError, match="wait until nobody else writes it"):
            outputs.append(analysis, database)


def test_a_report_that_is_gone(near: Analysis, tmp_path: Path) -> None:
    (tmp_path / "r.sqlite").unlink()
    with pytest.raises(PerfmodelError, match="keep the report where it is"):
        outputs.append(near, tmp_path / "results.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="names that are no UTF-8")
def test_a_report_whose_name_is_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff\xfe.sqlite")
    try:
        training_report(tmp_path / "r.sqlite", SMALL).rename(path)
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    outputs.append(analyzed(path), tmp_path / "results.db")
    (run,) = sqlite_utils.Database(tmp_path / "results.db")["runs"].rows
    assert run["label"] == "\\udcff\\udcfe"

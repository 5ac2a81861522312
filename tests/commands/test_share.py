"""Private texts of a report: in no output, in no display of an object, and in no shared copy."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

import perfmodel
from benchmarks.common.folders import BASE, ROOT
from perfmodel.readers import read
from support.cli import fails, succeeds

SECRETS: Final = {
    "environment": "AWS_SECRET=swordfish",
    "command": "python train.py --token hunter2",
    "user": "lovelace",
    "host": "node17.secret.example",
    "thread": "worker-of-lovelace",
    "payload": '{"password": "opensesame"}',
}


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recorded report with texts that Nsight Systems keeps of a machine and its user."""
    path = tmp_path_factory.mktemp("private") / "report.sqlite"
    shutil.copy(BASE, path)
    path.chmod(0o644)
    with closing(sqlite3.connect(path)) as db, db:
        last = db.execute("SELECT MAX(id) FROM StringIds").fetchone()[0]
        texts = [(last + 1 + i, text) for i, text in enumerate(SECRETS.values())]
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", texts)
        db.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        facts = [("Hostname", SECRETS["host"]), ("User", SECRETS["user"])]
        db.executemany("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (?, ?)", facts)
        db.execute("CREATE TABLE PROCESSES (name TEXT)")
        db.execute("INSERT INTO PROCESSES VALUES (?)", [SECRETS["command"]])
        db.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_FILE', '/home/lovelace/r')")
        said = "CUDA events were lost; see '/home/lovelace/log.txt' on node17.secret.example"
        db.execute("DROP TABLE DIAGNOSTIC_EVENT")
        db.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp INT, severity INT, text TEXT)")
        db.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 2, ?)", [said])
        (thread,) = db.execute("SELECT globalTid FROM NVTX_EVENTS LIMIT 1").fetchone()
        db.execute(
            "INSERT INTO NVTX_EVENTS (start, eventType, globalTid, text) VALUES (0, 39, ?, ?)",
            [thread, SECRETS["thread"]],
        )
        have = [row[1] for row in db.execute("PRAGMA table_info(NVTX_EVENTS)")]
        if "jsonText" in have:
            rows = "(SELECT rowid FROM NVTX_EVENTS WHERE eventType = 59 LIMIT 1)"
            db.execute(
                f"UPDATE NVTX_EVENTS SET jsonText = ? WHERE rowid IN {rows}", [SECRETS["payload"]]
            )
    return path


def private_words(text: str | bytes) -> list[str]:
    words = ("swordfish", "hunter2", "lovelace", "node17", "opensesame")
    data = text.encode() if isinstance(text, str) else text
    return [word for word in words if word.encode() in data]


def analyzed(path: Path, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(succeeds("analyze", path, "--json", *options))
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("analyze", "REPORT"), ("analyze", "REPORT", "--json"), ("stats", "REPORT"),
        ("timeline", "REPORT", "--perfetto", "--batch", "5", "-o", "-"),
        ("whatif", "REPORT", "--json"), ("memory", "REPORT", "--json"),
        ("compare", "REPORT", "REPORT", "--json"),
    ],
)  # fmt: skip
def test_no_output_has_private_texts(words: tuple[str, ...], private: Path) -> None:
    from support.cli import perfmodel as run

    done = run(*(private if word == "REPORT" else word for word in words))
    assert private_words(done.output.replace(str(private), "")) == []


@pytest.mark.slow
def test_no_page_has_private_texts(private: Path, tmp_path: Path) -> None:
    succeeds("report", private, "-o", tmp_path / "page.html")
    assert private_words((tmp_path / "page.html").read_bytes()) == []


def test_names_of_hosts_are_shown_where_they_are_asked_for(private: Path) -> None:
    assert set(analyzed(private)["hosts"].values()) == {"0"}
    assert set(analyzed(private, "--host-names")["hosts"].values()) == {SECRETS["host"]}


def test_objects_have_a_short_display(private: Path) -> None:
    report = perfmodel.read(private)
    results = perfmodel.analyze(report)
    compared = perfmodel.compare(report, report)
    parts = (
        report, report.trace, results, results.analysis, results.run, results.run.measured,
        compared, compared.comparison,
    )  # fmt: skip
    for shown in parts:
        assert len(repr(shown)) < 400, type(shown)
        assert private_words(repr(shown)) == []
    for found in (report, results, compared):
        page = found._repr_html_()
        assert page.startswith("<pre")
        assert private_words(page) == []
    assert "2.44 ms" in results._repr_html_()


def test_a_shared_copy_has_no_private_texts_and_the_same_analysis(
    private: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "report.sqlite"
    succeeds("share", private, "-o", copy)
    assert private_words(copy.read_bytes()) == []
    ours, theirs = (json.dumps(analyzed(path)) for path in (copy, private))
    assert ours == theirs.replace(str(private), str(copy))
    with closing(sqlite3.connect(copy)) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    assert not tables & {"PROCESSES", "NVTX_PAYLOAD_SCHEMAS", "ANALYSIS_DETAILS"}
    assert read(copy).host not in (None, SECRETS["host"])


@pytest.mark.parametrize(
    "name",
    [
        "profiles/programs/halo.sqlite.xz",
        "profiles/ladder/document_1.sqlite.xz",
        "tests/reports/cpu_2ranks_nsys2022.4.2.sqlite",
    ],
)
def test_a_shared_copy_of_recorded_reports_has_the_same_analysis(name: str, tmp_path: Path) -> None:
    copy = tmp_path / f"{Path(name).name.partition('.sqlite')[0]}.sqlite"
    succeeds("share", ROOT / name, "-o", copy)
    ours, theirs = (json.dumps(analyzed(path)) for path in (copy, ROOT / name))
    assert ours == theirs.replace(str(ROOT / name), str(copy))


def test_a_window_of_steps(private: Path, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.sqlite", tmp_path / "part.sqlite"
    succeeds("share", private, "-o", whole)
    succeeds("share", private, "-o", part, "--batch", "10:30")
    assert len(read(part).ops) < len(read(whole).ops) / 2
    steps = analyzed(part)["batch"]
    assert 18 <= steps["count"] + steps["warmup"] <= 21
    assert "expected step" in fails(4, "share", private, "-o", part, "--batch", "100000")

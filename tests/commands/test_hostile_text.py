"""Every command shows text of reports and of paths as a terminal may see it: nothing is raw."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.common.folders import TESTS
from support.cli import harmless, leaves, perfmodel
from support.foreign_reports import SHARED

ESCAPE = "\x1b[31m\u202eX\r\n"
KEPT = ("batch iteration", "forward", "backward", "step", "MPI_Allreduce")
"""Names that commands look for: without them most would have nothing to show."""
REPORTS = {
    "gpu": SHARED,
    "cpu": TESTS / "reports" / "cpu_2ranks_nsys2024.2.3.sqlite",
}
SIZES = ["-D", "784", "-H", "512", "-C", "10", "-B", "3000", "-p", "2"]


def poisoned(source: Path, target: Path) -> Path:
    """Copy a report with `ESCAPE` behind every text of every table, but the names in `KEPT`."""
    shutil.copy(source, target)
    with closing(sqlite3.connect(target)) as db, db:
        tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            for _, column, kind, *_ in db.execute(f'PRAGMA table_info("{table}")').fetchall():
                if kind.upper() != "TEXT" or (table.endswith("_EXPORT") and column == "name"):
                    continue
                db.execute(
                    f'UPDATE OR IGNORE "{table}" SET "{column}" = "{column}" || ? '
                    f'WHERE "{column}" NOT IN ({", ".join("?" * len(KEPT))}) '
                    f"""AND "{column}" NOT LIKE 'cuda%' AND "{column}" NOT LIKE '{{%'""",
                    [ESCAPE, *KEPT],
                )
    return target


@pytest.fixture(scope="module", params=REPORTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hostile") / "\x1b[31mfolder"
    made.mkdir()
    if not REPORTS[request.param].is_file():
        pytest.skip(f"{REPORTS[request.param]} is not here")
    poisoned(REPORTS[request.param], made / "r\x1b[32m.sqlite")
    return made


def lines(folder: Path) -> dict[str, list[list[object]]]:
    """Command lines of every command: of the report, of wrong names, of names to write to."""
    report, missing = folder / "r\x1b[32m.sqlite", folder / "no\x1b[32m"
    return {
        "analyze": [[report, "-o", folder / "out"], [report, "--no-plots", "--format", "latex"],
                    [report, "--no-plots", "--set", "\x1b[31m=1"], [folder]],
        "report": [[report, "-o", folder / "r.html"]],
        "compare": [[report, report], [report, REPORTS["gpu"]], [missing, report]],
        "study calibrate": [[report, "-o", folder / "model.json"]],
        "predict": [[missing]],
        "study predict": [["--model", missing, *SIZES]],
        "whatif": [[report], [missing]],
        "share": [[report, "-o", folder / "s.sqlite"], [missing, "-o", folder / "t.sqlite"]],
        "stats": [[report], [report, "--format", "markdown"], [report, "--report", "\x1b[31m"]],
        "study formulas": [["--workload", missing]],
        "study layers": [["\x1b[31mnet"], [folder / "n.onnx"]],
        "study splits": [[report, *SIZES]],
        "study scaling": [[missing]],
        "machine": [["show", missing], ["show", "\x1b[31m"]],
        "counters": [[report], [missing]],
        "memory": [[report, *SIZES]],
        "utilization": [[report], [missing]],
        "timeline": [[report], [report, "-o", folder / "t.svg"], [report, "-o", missing / "x.svg"]],
        "study tta": [[report]],
        "mcp": [[missing]],
        "completion": [["\x1b[31m"]],
        "doctor": [["--\x1b[31m"]],
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [name for name in leaves() if not name.startswith("machine ")] + ["machine"]
)
def test_what_comes_from_outside_is_escaped(command: str, folder: Path) -> None:
    for arguments in lines(folder)[command]:
        result = perfmodel(*command.split(), *arguments)
        assert harmless(result.stdout), (arguments, result.stdout)
        assert harmless(result.stderr), (arguments, result.stderr)

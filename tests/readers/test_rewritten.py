"""A report that is stored in another way says the same: pages, encoding, keys, columns, rows."""

from __future__ import annotations

import json
import lzma
import random
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.folders import PROFILES
from perfmodel.analysis.analyze import analyze
from perfmodel.base.errors import SchemaError
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.render.analysis_json import analysis_document
from perfmodel.timing.nsys_stats.collect import REPORTS, collect
from perfmodel.timing.nsys_stats.tables import Counted, to_csv, to_table
from support.build_operators import THUNKS, operators_report
from support.cli import succeeds

RECORDED = (
    "programs/gpt_ddp",  # operators, NCCL's payloads, two ranks
    "programs/straggler_p2_b32",
    "programs/gpt_modules",
    "programs/halo",  # point to point
    "programs/jax_gpt",
    "ddp/ddp_p2_H1024_B6000",
    "ddp/ddp_p2_H512_B12000",
    "h200x2_2ranks_base_nsys2025.3.1",  # the trainer: MPI's collectives
)
KINDS = ("pytorch", "jax")
REWRITES: dict[str, dict[str, Any]] = {
    "pages of 512 bytes": {"page_size": 512},
    "pages of 64 kB": {"page_size": 65536},
    "UTF-16": {"encoding": "UTF-16le"},
    "UTF-16, big-endian": {"encoding": "UTF-16be"},
    "without rowid": {"without_rowid": True},
    "columns in another order": {"columns": True},
    "rows in another order": {"rows": True},
    "columns of no type": {"untyped": True},
    "everything": {
        "page_size": 1024, "encoding": "UTF-16le", "columns": True, "rows": True, "untyped": True,
    },
}  # fmt: skip


def rewritten(
    source: Path,
    target: Path,
    *,
    page_size: int = 4096,
    encoding: str = "UTF-8",
    without_rowid: bool = False,
    columns: bool = False,
    rows: bool = False,
    untyped: bool = False,
) -> Path:
    """Copy all rows of a report into tables that are stored in another way."""
    draw = random.Random(3)
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as db:
        db.execute(f"PRAGMA page_size = {page_size}")
        db.execute(f"PRAGMA encoding = '{encoding}'")
        for (name,) in old.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall():
            said = [row[1:3] for row in old.execute(f"PRAGMA table_info({name})")]
            if columns:
                draw.shuffle(said)
            listed = ", ".join(f'"{column}"' for column, _ in said)
            found = old.execute(f"SELECT {listed} FROM {name} ORDER BY rowid").fetchall()
            if rows:
                draw.shuffle(found)
            shown = [f'"{column}" {"" if untyped else kind}' for column, kind in said]
            places = ["?"] * len(said)
            if without_rowid:
                shown, places = [*shown, '"of this row" INTEGER PRIMARY KEY'], [*places, "?"]
                found = [(*row, i) for i, row in enumerate(found)]
            key = " WITHOUT ROWID" if without_rowid else ""
            db.execute(f"CREATE TABLE {name} ({', '.join(shown)}){key}")
            db.executemany(f"INSERT INTO {name} VALUES ({', '.join(places)})", found)
        db.commit()
    return target


def recorded(name: str, target: Path) -> Path:
    """Copy one of `RECORDED`, unpacked."""
    plain = PROFILES / f"{name}.sqlite"
    packed = plain.with_name(f"{plain.name}.xz")
    target.write_bytes(
        plain.read_bytes() if plain.exists() else lzma.decompress(packed.read_bytes())
    )
    return target


def said_of(path: Path) -> dict[str, Any]:
    """Everything in analysis.json but the file."""
    document = analysis_document(analyze([read(path)], Options()))
    for report in document["reports"]:
        for key in ("path", "size_bytes"):
            report.pop(key, None)
    text = json.dumps(document).replace(path.name, "report").replace(path.stem, "report")
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report by the kind of its program."""
    found = {kind: tmp_path_factory.mktemp(kind) / "made.sqlite" for kind in KINDS}
    return {
        "pytorch": operators_report(found["pytorch"]),
        "jax": operators_report(found["jax"], THUNKS),
    }


@pytest.fixture(scope="module")
def known(made: dict[str, Path]) -> dict[str, dict[str, Any]]:
    return {kind: said_of(path) for kind, path in made.items()}


@pytest.mark.parametrize("how", REWRITES)
@pytest.mark.parametrize("kind", KINDS)
def test_operators_payloads_and_messages_are_read_from_any_storage(
    kind: str,
    how: str,
    made: dict[str, Path],
    known: dict[str, dict[str, Any]],
    tmp_path: Path,
) -> None:
    path = rewritten(made[kind], tmp_path / "report_2.sqlite", **REWRITES[how])
    assert said_of(path) == known[kind]


@pytest.fixture(scope="module")
def unpacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One of `RECORDED`, and what is said of it."""
    path = recorded(request.param, tmp_path_factory.mktemp("recorded") / "report_1.sqlite")
    return path, said_of(path)


@pytest.mark.slow
@pytest.mark.parametrize("unpacked", RECORDED, indirect=True)
@pytest.mark.parametrize("how", REWRITES)
def test_recorded_reports_are_read_from_any_storage(
    unpacked: tuple[Path, dict[str, Any]], how: str, tmp_path: Path
) -> None:
    path, said = unpacked
    assert said_of(rewritten(path, tmp_path / "report_2.sqlite", **REWRITES[how])) == said


def summaries(path: Path) -> dict[str, str]:
    """Every summary as CSV; what the report lacks is left out."""
    found = collect(path, list(REPORTS))
    return {
        name: to_csv(to_table(name, one)) for name, one in found.items() if isinstance(one, Counted)
    }


def drawn(path: Path) -> str:
    """The timeline of all batches, as Perfetto shows it."""
    made = path.with_name("timeline.json")
    succeeds("timeline", path, "-o", made)
    return made.read_text()


def printed(path: Path) -> list[str]:
    """What commands make of a report, but for its place, size and sum."""
    page = path.with_name("report.html")
    succeeds("report", path, "-o", page)
    found = [
        page.read_text(),
        succeeds("analyze", path, "--json", "--no-plots"),
        succeeds("compare", path, "--to", path, "--warmup", "0", "--json"),
        succeeds("whatif", path, "--json"),
    ]
    own = re.compile(rf'{re.escape(str(path.parent))}|"(size_bytes|sha256)": [^,\n]*')
    return [own.sub("", text) for text in found]


@pytest.mark.parametrize("kind", KINDS)
def test_summaries_and_the_timeline_of_rows_in_another_order(
    kind: str, made: dict[str, Path], tmp_path: Path
) -> None:
    other = rewritten(made[kind], tmp_path / "made.sqlite", **REWRITES["everything"])
    assert summaries(other) == summaries(made[kind])
    assert drawn(other) == drawn(made[kind])


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED[::3])
def test_summaries_and_timelines_of_recorded_reports(name: str, tmp_path: Path) -> None:
    source = recorded(name, tmp_path / "made.sqlite")
    (tmp_path / "other").mkdir()
    other = rewritten(source, tmp_path / "other" / "made.sqlite", rows=True, columns=True)
    assert summaries(other) == summaries(source)
    assert drawn(other) == drawn(source)
    assert printed(other) == printed(source)


def test_steps_without_a_range_after_the_warm_up_are_an_error(tmp_path: Path) -> None:
    path = operators_report(tmp_path / "made.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = 0")
        db.commit()
    with pytest.raises(SchemaError, match="no finished step is left: found"):
        analyze([read(path)], Options(warmup=1))


@pytest.fixture(scope="module")
def untyped(made: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The content of a report whose columns take any value."""
    path = tmp_path_factory.mktemp("untyped") / "r.sqlite"
    return rewritten(made["pytorch"], path, untyped=True).read_bytes()


@pytest.mark.parametrize("column", ["localRank", "groupRoot", "groupRootUid", "rank", "size"])
@pytest.mark.parametrize("value", [b"", "", "x", -(2**62), 2**62, None])
def test_a_communicator_that_cannot_be_is_left_out(
    column: str, value: object, untyped: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "odd.sqlite"
    path.write_bytes(untyped)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"UPDATE MPI_COMMUNICATORS SET {column} = ?", [value])
        db.commit()
    assert len(read(path).mpi) == 16


def test_shapes_of_a_recording_without_operations_in_its_steps_are_refused(tmp_path: Path) -> None:
    path = operators_report(tmp_path / "made.sqlite")
    empty = rewritten(path, tmp_path / "empty.sqlite")
    with closing(sqlite3.connect(empty)) as db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = 0, end = 0")
        db.commit()
    with pytest.raises(SchemaError, match="expected GPU operations in its steps"):
        analyze([read(path)], Options(shapes=empty, batch_label="step *"))

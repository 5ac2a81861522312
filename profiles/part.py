"""Cuts the report of a launch into one per visit: python -m profiles.part IN OUT.

A visit of `visit.py` is what lies between the start of its range `GPU parallel train` and the
start of the next one, on the rank that begins first: ranks wait for each other between visits, so
that nothing of one reaches into another. Every part is a whole report in the same schema, trimmed
as by trim.py.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from profiles.trim import DROPPED, trim
from trainer.ranges import MARK_KEY, TRAIN

_TEXT = "COALESCE(n.text, (SELECT value FROM s.StringIds WHERE id = n.textId))"


def part(source: Path, folder: Path) -> dict[str, Path]:
    """Write one report per visit into `folder`; return them by run id without its launch.

    Raises
    ------
    ValueError
        If ranks do not have the same number of visits, each with its mark.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with closing(_attach(":memory:", source)) as report:
        windows = list(_windows(report))
    found = {}
    for name, low, high in windows:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            cut = Path(scratch) / "part.sqlite"
            _cut(source, cut, low, high)
            found[name] = folder / f"{name}.sqlite"
            trim(cut, found[name])
    return found


def _attach(target: str | Path, source: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{quote(str(target))}", uri=True)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    address = f"file:{quote(str(source.resolve()))}?mode=ro&immutable=1"
    connection.execute("ATTACH ? AS s", (address,))
    return connection


def _windows(report: sqlite3.Connection) -> Iterator[tuple[str, int, int]]:
    """Yield name, first and one past last nanosecond of every visit."""
    starts: dict[int, list[int]] = {}
    query = f"SELECT globalTid / 0x1000000 AS process, start FROM s.NVTX_EVENTS n WHERE {_TEXT} = ?"
    for process, start in report.execute(f"{query} ORDER BY start", (TRAIN,)):
        starts.setdefault(process, []).append(start)
    if len({len(found) for found in starts.values()}) != 1:
        counts = {process: len(found) for process, found in starts.items()}
        raise ValueError(f"wanted as many ranges {TRAIN!r} on every rank; found {counts}")
    lows = [min(of_visit) for of_visit in zip(*starts.values(), strict=True)]
    marks: list[tuple[int, str]] = sorted(
        (start, json.loads(text)["run_id"])
        for start, text in report.execute(f"SELECT start, {_TEXT} AS t FROM s.NVTX_EVENTS n")
        if text and MARK_KEY in text
    )
    for low, high in zip(lows, [*lows[1:], (1 << 63) - 1], strict=True):
        names = {run_id for start, run_id in marks if low <= start < high}
        if len(names) != 1:
            raise ValueError(f"wanted the mark of one configuration in a visit; found {names}")
        yield names.pop().rpartition("_")[0], low, high


def _cut(source: Path, target: Path, low: int, high: int) -> None:
    """Copy what began from `low` until before `high`, and all that has no start."""
    with closing(_attach(target, source)) as copy:
        made = copy.execute("SELECT name, sql FROM s.sqlite_master WHERE type = 'table'").fetchall()
        for table, sql in made:
            if table in DROPPED or table.startswith("sqlite_"):
                continue
            copy.execute(sql)
            columns = {row[1] for row in copy.execute(f'PRAGMA table_info("{table}")')}
            where, values = "", ()
            if "start" in columns:
                where = "WHERE start IS NULL OR (start >= ? AND start < ?)"
                values = (low, high)
            copy.execute(f'INSERT INTO main."{table}" SELECT * FROM s."{table}" {where}', values)
        for (sql,) in copy.execute(
            "SELECT sql FROM s.sqlite_master WHERE type = 'index'"
        ).fetchall():
            if sql:
                copy.execute(sql)
        copy.commit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    for name, file in part(given.source, given.folder).items():
        print(f"{name}: {file.stat().st_size:,} bytes")

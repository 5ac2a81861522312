"""Changes of a report that must not change what is said of it: any other number is wrong.

    python -m benchmarks.robustness.metamorphic                     # 20 cases of each, some minutes
    python -m benchmarks.robustness.metamorphic --cases 200 --seed 7 --record

A case draws a report, a few changes and their numbers from its seed. Compared is all of
`analysis.json` but where the report lies and what counts from the clock's zero.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders, results
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.changes import changes_of
from perfmodel.base.errors import PerfmodelError
from perfmodel.programs.program import Options
from perfmodel.readers.share import share
from perfmodel.render.analysis_json import analysis_document

RESULTS = folders.RESULTS / "metamorphic.json"
REPORTS: Final = (
    "gpt_ddp", "gpt_shapes", "gpt_modules_timing", "halo", "cupy_streams", "jax_gpt",
    "graph_epochs", "gpt_straggler8",
)  # fmt: skip
"""Programs of PyTorch on one to eight GPUs, of MPI, of CuPy and of JAX."""
_ABSOLUTE: Final = frozenset({"start_s", "utc_start_ns", "path", "tables"})
"""What counts from the clock's zero, or names the file."""
_SCALED: Final = ("copies", "collectives", "phases", "ranges_by_rank")
"""Tables of which every time is twice as long where everything is twice as slow."""
_RECORDED: Final = ("rank", "batches", "recorded_step_s", "gpu_busy_s", "compute_s", "copies_s")
"""So is this of each rank; the rest is without the recorder, whose cost does not double."""
_RATES: Final = ("per_s", "of_ceiling")
_TIMES: Final = ("_s", "seconds", "by_rank", *_RATES)
_STRING_COLUMNS: Final = ("textId", "nameId", "demangledName", "shortName", "mangledName")
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_WORK: Final = tuple(
    f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
)
_MOST_NS: Final = 10**12
_ROUNDING: Final = 1e-9
_BITS: Final = (1 << 24) - 1
"""Of a process's number, and of a thread's."""

Tables = dict[str, list[str]]
Change = Callable[[sqlite3.Connection, Tables, random.Random], None]


def _with(tables: Tables, *columns: str) -> Iterator[tuple[str, str]]:
    """Yield the tables that have one of the columns, and the column."""
    for table, known in tables.items():
        for column in columns:
            if column in known:
                yield table, column


def rows_shuffled(db: sqlite3.Connection, tables: Tables, draw: random.Random) -> None:
    """Put the rows of all tables of events into any order."""
    for table, _ in [*_with(tables, "start")]:
        db.execute(f"CREATE TABLE shuffled AS SELECT * FROM {table}")
        db.execute(f"DELETE FROM {table}")
        order = f"(rowid * {draw.randrange(3, 10**6) * 2 + 1}) % 1000003"
        db.execute(f"INSERT INTO {table} SELECT * FROM shuffled ORDER BY {order}, rowid")
        db.execute("DROP TABLE shuffled")


def later(db: sqlite3.Connection, tables: Tables, draw: random.Random) -> None:
    """Let the clock have begun earlier."""
    by = draw.randrange(1, _MOST_NS)
    for table, column in [*_with(tables, "start", "end", "timestamp", "rawTimestamp")]:
        if table != "MPI_COMMUNICATORS":
            db.execute(f"UPDATE {table} SET {column} = {column} + {by}")
    for table, column in _with(tables, "utcEpochNs"):
        db.execute(f"UPDATE {table} SET {column} = {column} - {by}")


def other_strings(db: sqlite3.Connection, tables: Tables, draw: random.Random) -> None:
    """Give every text another number."""
    by = draw.randrange(1, 10**6)
    for table, column in [*_with(tables, *_STRING_COLUMNS, "symbol", "module", "jsonTextId")]:
        db.execute(f"UPDATE {table} SET {column} = {by} + 3 * {column}")
    db.execute("CREATE TABLE texts AS SELECT * FROM StringIds")
    db.execute("DELETE FROM StringIds")
    db.execute(f"UPDATE texts SET id = {by} + 3 * id")
    db.execute("INSERT INTO StringIds SELECT * FROM texts")
    db.execute("DROP TABLE texts")


def other_correlations(db: sqlite3.Connection, tables: Tables, draw: random.Random) -> None:
    """Give every call another correlation id."""
    times, by = draw.choice((1, 2, 5)), draw.randrange(1, 10**6)
    for table in (_CALLS, *_WORK):
        if "correlationId" in tables.get(table, ()):
            db.execute(
                f"UPDATE {table} SET correlationId = {by} + {times} * correlationId "
                "WHERE correlationId > 0"
            )


def other_streams(db: sqlite3.Connection, tables: Tables, draw: random.Random) -> None:
    """Give every stream another number."""
    by = draw.randrange(1, 10**6)
    for table in _WORK:
        if "streamId" in tables.get(table, ()):
            db.execute(f"UPDATE {table} SET streamId = {by} + 2 * streamId")


def unknown_columns(db: sqlite3.Connection, tables: Tables, draw: random.Random) -> None:
    """Add what a later version may add: a table, and a column in every table."""
    for table in tables:
        db.execute(f"ALTER TABLE {table} ADD COLUMN later{draw.randrange(10**6)} INTEGER")
    db.execute("CREATE TABLE LATER_EVENTS (start INTEGER, end INTEGER, globalTid INTEGER)")
    db.execute("INSERT INTO LATER_EVENTS VALUES (1, 2, 3)")


def other_processes(db: sqlite3.Connection, tables: Tables, draw: random.Random) -> None:
    """Give every process and thread another number of the system's."""
    known = {
        value >> 24 & _BITS
        for table, column in _with(tables, "globalTid", "globalPid")
        for (value,) in db.execute(f"SELECT DISTINCT {column} >> 24 << 24 FROM {table}")
        if value is not None
    }
    numbers = draw.sample(range(2, _BITS), len(known))
    db.execute("CREATE TABLE pids (old INTEGER PRIMARY KEY, new INTEGER)")
    db.executemany("INSERT INTO pids VALUES (?, ?)", zip(sorted(known), numbers, strict=True))
    by = draw.randrange(1, 1000)
    for table, column in _with(tables, "globalTid", "globalPid", "endGlobalTid"):
        old = f"(({column} >> 24) & {_BITS})"
        thread = f"(({column} + {by if column != 'globalPid' else 0}) & {_BITS})"
        new = f"(SELECT new FROM pids WHERE old = {old})"
        db.execute(
            f"UPDATE {table} SET {column} = (({column} >> 48) << 48) + ({new} << 24) + {thread} "
            f"WHERE {old} IN (SELECT old FROM pids)"
        )
    for table, column in _with(tables, "pid"):
        db.execute(
            f"UPDATE {table} SET pid = (SELECT new FROM pids WHERE old = {column}) "
            f"WHERE {column} IN (SELECT old FROM pids)"
        )
    db.execute("DROP TABLE pids")


CHANGES: Final[dict[str, Change]] = {
    change.__name__: change
    for change in (
        rows_shuffled, later, other_strings, other_correlations, other_streams, other_processes,
        unknown_columns,
    )
}  # fmt: skip


def changed(report: Path, target: Path, draw: random.Random) -> tuple[str, ...]:
    """Write a copy with some changes; return their names."""
    target.write_bytes(report.read_bytes())
    chosen = draw.sample(list(CHANGES), draw.randrange(1, 4))
    with closing(sqlite3.connect(target)) as db, db:
        for name in chosen:
            CHANGES[name](db, tables_of(db), draw)
    return tuple(chosen)


def tables_of(db: sqlite3.Connection) -> Tables:
    """Return the columns of every table."""
    names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {n: [row[1] for row in db.execute(f'PRAGMA table_info("{n}")')] for (n,) in names}


def said_of(report: Path) -> dict[str, Any]:
    """Return what `analyze` says, the recorded ranks, and what `whatif` says of all changes.

    Alone, and of pairs of them.
    """
    analysis = analyze_reports([report], Options({}))
    document = json.loads(json.dumps(analysis_document(analysis), allow_nan=False))
    steps = analysis.fitted.steps
    ranks = [asdict(rank) for rank in steps.ranks] if steps else []
    return {"analyze": document, "recorded": ranks, "whatif": _savings(analysis.fitted)}


def _savings(run: Any) -> dict[str, float]:
    """Seconds that changes save, alone and two at a time in both orders."""
    if run.steps is None:
        return {}
    try:
        names = [row.name for row in changes_of(run).changes]
    except PerfmodelError:
        return {}
    alone = {row.name: row.saving_s for row in changes_of(run).changes}
    together = {}
    for pair in pairwise(names):
        for asked in (pair, pair[::-1]):
            found = changes_of(run, asked).together
            together[",".join(asked)] = found.saving_s if found else None
    return alone | together


def unequal(said: Any, other: Any, where: str = "") -> Iterator[str]:
    """Yield where two results differ, by more than the rounding of sums in another order."""
    if isinstance(said, dict) and isinstance(other, dict):
        for key in sorted({*said, *other}):
            if key not in _ABSOLUTE:
                yield from unequal(said.get(key), other.get(key), f"{where}.{key}")
    elif isinstance(said, list) and isinstance(other, list) and len(said) == len(other):
        for i, (one, two) in enumerate(zip(said, other, strict=True)):
            yield from unequal(one, two, f"{where}[{i}]")
    elif isinstance(said, float) and isinstance(other, float):
        if abs(said - other) > _ROUNDING * max(abs(said), abs(other)):
            yield f"{where}: {said!r}, {other!r}"
    elif said != other:
        yield f"{where}: {str(said)[:200]!r}, {str(other)[:200]!r}"


def orders_differ(savings: dict[str, float]) -> Iterator[str]:
    """Yield the pairs of changes whose order matters, and savings that are none."""
    for name, saved in savings.items():
        other = ",".join(reversed(name.split(",")))
        if other != name and [*unequal(saved, savings.get(other))]:
            yield f"whatif --apply {name}: {saved!r}, {other}: {savings.get(other)!r}"
        if saved is not None and saved < 0:
            yield f"whatif {name}: {saved!r} s saved"


def slower(db: sqlite3.Connection, tables: Tables, times: int) -> None:
    """Let everything begin so many times later, and take as many times as long."""
    for table, column in [*_with(tables, "start", "end", "timestamp", "rawTimestamp")]:
        if table != "MPI_COMMUNICATORS":
            db.execute(f"UPDATE {table} SET {column} = {times} * {column}")


def unequal_scaled(said: Any, other: Any, times: int) -> Iterator[str]:
    """Yield what is not so many times as long, of each rank and of kernels."""
    tables = [(part, *(of["analyze"].get(part) or [] for of in (said, other))) for part in _SCALED]
    tables.append(("recorded", said["recorded"], other["recorded"]))
    ranks = (
        [{key: row[key] for key in _RECORDED} for row in of["analyze"]["ranks"]]
        for of in (said, other)
    )
    tables.append(("ranks", *ranks))
    for part, one, two in tables:
        yield from unequal([_longer(row, times) for row in one], two, f"x{times}.{part}")


def _longer(row: Any, times: int, key: str = "") -> Any:
    """Return a row with times, which its keys name, so many times as long."""
    if isinstance(row, dict):
        return {name: _longer(value, times, name) for name, value in row.items()}
    if isinstance(row, list):
        return [_longer(value, times, key) for value in row]
    if not isinstance(row, float) or not key.endswith(_TIMES):
        return row
    return row / times if key.endswith(_RATES) else row * times


def cases(report: Path, count: int, seed: int, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield what was done to a report in every case, and what differs."""
    truth = said_of(report)
    yield "whatif", [*orders_differ(truth["whatif"])]
    copy = folder / report.name
    share(report, copy)
    yield "share", [*unequal(truth, said_of(copy))]
    for times in (2, 3):
        copy.write_bytes(report.read_bytes())
        with closing(sqlite3.connect(copy)) as db, db:
            slower(db, tables_of(db), times)
        yield f"{times} times as slow", [*unequal_scaled(truth, said_of(copy), times)]
    for nth in range(count):
        copy.unlink(missing_ok=True)
        done = changed(report, copy, random.Random(f"{seed} {report.name} {nth}"))
        yield "+".join(done), [*unequal(truth, said_of(copy))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20, help="Of each report.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", action="append", choices=REPORTS)
    parser.add_argument("--record", action="store_true", help=f"Into {RESULTS.name}.")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for name in options.report or REPORTS:
        begin, verdicts = time.process_time(), Counter[str]()
        with tempfile.TemporaryDirectory() as place:
            report = Path(place) / f"{name}.sqlite"
            packed = (folders.PROGRAMS / f"{name}.sqlite.xz").read_bytes()
            report.write_bytes(lzma.decompress(packed))
            folder = Path(place) / "copies"
            folder.mkdir()
            for done, differs in cases(report, options.cases, options.seed, folder):
                verdicts["wrong" if differs else "equal"] += 1
                for line in differs[:8]:
                    print(f"{name}, {done}: {line}", flush=True)
        seconds = round(time.process_time() - begin, 1)
        found[name] = {**dict(sorted(verdicts.items())), "seed": options.seed, "cpu_s": seconds}
        print(name, found[name], flush=True)
    if options.record:
        results.write(RESULTS, found)
    sys.exit(any(row.get("wrong") for row in found.values()))


if __name__ == "__main__":
    main()

"""Reads times by commit from a results database that `perfmodel analyze --db` has written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from perfmodel.base.errors import ReportError, SchemaError

_QUERY = """
    SELECT run_hash, commit_id, coalesce(recorded_utc, analyzed_utc), benchmark, workload, gpu,
           ranks, symbols FROM runs WHERE commit_id IS NOT NULL AND commit_id != ''
"""
_HOW = "analyze every report with --db and --commit"


@dataclass(frozen=True, slots=True)
class Recorded:
    """Times of one run of one commit.

    Attributes
    ----------
    commit : str
    recorded_utc : str
        ISO 8601; when the recording began, or was analyzed where the report does not say.
    benchmark : str
        What is compared over commits: the name that was given, workload, GPU, ranks and sizes.
    seconds : mapping of (str, str) to float
        Per step, by kind ('step', 'GPU busy', 'range', 'kernel', 'idle') and name.
    """

    commit: str
    recorded_utc: str
    benchmark: str
    seconds: Mapping[tuple[str, str], float]


def read_results(path: Path) -> tuple[Recorded, ...]:
    """Read all runs of known commits, by the time when they were recorded.

    Raises
    ------
    ReportError
        If the file cannot be read, or is no results database.
    SchemaError
        If no run in it names its commit.
    """
    if not path.is_file():
        raise ReportError(f"{path}: expected a results database; got no file; {_HOW}")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            names = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
            columns = {row[1] for row in database.execute("PRAGMA table_info(runs)")}
            if "runs" not in names:
                raise ReportError(f"{path}: expected a results database; got other tables; {_HOW}")
            if "commit_id" not in columns or "times" not in names:
                raise _without_commits(path)
            runs = database.execute(_QUERY).fetchall()
            times: dict[str, dict[tuple[str, str], float]] = {}
            for key, kind, name, seconds in database.execute(
                "SELECT run_hash, kind, name, seconds FROM times WHERE seconds > 0"
            ):
                times.setdefault(key, {})[kind, name] = float(seconds)
    except sqlite3.Error as error:
        raise ReportError(
            f"{path}: expected a results database; it cannot be read ({error}); {_HOW}"
        ) from error
    found = [
        Recorded(commit, str(utc), _benchmark(*about), times[key])
        for key, commit, utc, *about in runs
        if key in times
    ]
    if not found:
        raise _without_commits(path)
    return tuple(sorted(found, key=lambda run: run.recorded_utc))


def _without_commits(path: Path) -> SchemaError:
    return SchemaError(f"{path}: expected runs that name their commits; got none; {_HOW}")


def _benchmark(given: str | None, workload: str, gpu: str | None, ranks: int, sizes: str) -> str:
    """Name a configuration: the name given, and all that must be equal."""
    symbols = {k: v for k, v in json.loads(sizes or "{}").items() if k not in ("b", "p")}
    parts = [
        given or workload, gpu or "", f"{ranks} rank{'s' * (ranks != 1)}",
        *(f"{k}={v}" for k, v in symbols.items()),
    ]  # fmt: skip
    return ", ".join(filter(None, parts))

"""Cuts a report of several GPTs into one of each.

Run as `python -m benchmarks.predict.gpt_split REPORT TAG OUT`. REPORT is an export in SQLite whose
ranges `size K MODE` were made by `benchmarks.predict.gpt_runs`.
"""

from __future__ import annotations

import lzma
import shutil
import sqlite3
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from profiles.trim import trim


def windows(report: Path) -> dict[str, tuple[int, int]]:
    """Start and end of every `size K MODE`, over all processes."""
    with sqlite3.connect(report) as file:
        rows = file.execute(
            "SELECT coalesce(text, value), min(start), max(end) FROM NVTX_EVENTS "
            "LEFT JOIN StringIds ON id = textId WHERE coalesce(text, value) LIKE 'size %' "
            "AND end IS NOT NULL GROUP BY 1"
        ).fetchall()
    return {name.replace("size ", "").replace(" ", "_"): (a, b) for name, a, b in rows}


def split(report: Path, tag: str, out: Path) -> list[Path]:
    """Write OUT/TAG_K_MODE.sqlite.xz of every window, side by side."""
    with ProcessPoolExecutor(8) as pool:
        made = [
            pool.submit(cut, report, window, out / f"{tag}_{name}.sqlite.xz")
            for name, window in windows(report).items()
        ]
        return [one.result() for one in made]


def cut(report: Path, window: tuple[int, int], target: Path) -> Path:
    """Write what began in a window."""
    with tempfile.TemporaryDirectory() as folder:
        part, trimmed = Path(folder) / "part.sqlite", Path(folder) / "trimmed.sqlite"
        shutil.copy(report, part)
        with sqlite3.connect(part) as file:
            tables = [r[0] for r in file.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'")]  # fmt: skip
            for table in tables:
                timed = table == "NVTX_EVENTS" or table.startswith("CUPTI_ACTIVITY_KIND_")
                columns = {r[1] for r in file.execute(f'PRAGMA table_info("{table}")')}
                if timed and "start" in columns:
                    kept = "AND eventType != 75" if table == "NVTX_EVENTS" else ""  # domains
                    file.execute(
                        f'DELETE FROM "{table}" WHERE (start < ? OR start > ?) {kept}', window
                    )
            file.execute(
                "DELETE FROM NVTX_EVENTS WHERE coalesce(text, (SELECT value FROM StringIds "
                "WHERE id = textId)) LIKE 'size %'"
            )
        file.close()
        trim(part, trimmed)
        target.write_bytes(lzma.compress(trimmed.read_bytes(), preset=6))
    return target


if __name__ == "__main__":
    for path in split(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])):
        print(path.name, path.stat().st_size)

"""Cuts recordings to their first steps: `python -m profiles.programs.cut STEPS OUT FILE ...`.

Rows from the start of the next step on go; what is left is trimmed and packed
(`profiles.trim`, `profiles.pack`).
"""

from __future__ import annotations

import lzma
import sqlite3
import sys
import tempfile
from pathlib import Path

from profiles.pack import pack
from profiles.trim import trim


def cut(packed: Path, out: Path, steps: int) -> Path:
    """Write the first steps of a recording whose steps are called `step 0`, `step 1`, ..."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "whole.sqlite"
        report.write_bytes(lzma.decompress(packed.read_bytes()))
        with sqlite3.connect(report) as file:
            (end,) = file.execute(
                "SELECT start FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId "
                "WHERE coalesce(text, value) = ?", (f"step {steps}",),
            ).fetchone()  # fmt: skip
            tables = {r[0] for r in file.execute("SELECT name FROM sqlite_master")}
            for table in sorted(tables):
                timed = table == "NVTX_EVENTS" or table.startswith("CUPTI_ACTIVITY_KIND_")
                columns = {r[1] for r in file.execute(f'PRAGMA table_info("{table}")')}
                if timed and "start" in columns:
                    file.execute(f'DELETE FROM "{table}" WHERE start >= ?', (end,))
        file.close()
        trimmed = Path(folder) / "trimmed.sqlite"
        trim(report, trimmed)
        target = out / packed.name
        pack(trimmed, target)
    return target


if __name__ == "__main__":
    for name in sys.argv[3:]:
        print(cut(Path(name), Path(sys.argv[2]), int(sys.argv[1])))

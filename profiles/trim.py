"""Trims Nsight Systems exports to the tables an analysis needs: python -m profiles.trim IN OUT.

Drops operating-system calls, call chains, scheduling, overheads, other processes' names, the
attached log files, and what names paths, hosts and users, then compacts the file. Ranges, GPU
operations, API calls, MPI calls, strings they use, GPU and session information and the warnings
among the diagnostics stay as they are, so that every statistic of `nsys stats` and every number of
`perfmodel analyze` is the same before and after.
"""

from __future__ import annotations

import argparse
import sqlite3
from pathlib import Path
from urllib.parse import quote

DROPPED = (
    "ANALYSIS_FILE",
    "COMPOSITE_EVENTS",
    "OSRT_API",
    "OSRT_CALLCHAINS",
    "PROFILER_OVERHEAD",
    "PROCESSES",
    "ProcessStreams",
    "SAMPLING_CALLCHAINS",
    "SCHED_EVENTS",
    "TARGET_INFO_SYSTEM_ENV",
    "META_DATA_CAPTURE",
    "ThreadNames",
    "UnwindMethodType",
)
PRIVATE = [f"name GLOB '*_{word}*'" for word in ("PATH", "FILE", "HOST", "USER")]
STRING_COLUMNS = {
    "NVTX_EVENTS": ("textId", "jsonTextId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": ("demangledName", "shortName", "mangledName"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("nameId",),
    "MPI_COLLECTIVES_EVENTS": ("textId",),
    "MPI_P2P_EVENTS": ("textId",),
    "MPI_START_WAIT_EVENTS": ("textId",),
    "MPI_OTHER_EVENTS": ("textId",),
}


def trim(source: Path, target: Path) -> None:
    """Write a trimmed copy of `source` to `target`, whole or not at all."""
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    try:
        _copy_trimmed(source, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _copy_trimmed(source: Path, part: Path) -> None:
    address = f"file:{quote(str(source.resolve()))}?mode=ro&immutable=1"
    with sqlite3.connect(address, uri=True) as original:
        copy = sqlite3.connect(part)
        original.backup(copy)
    tables = {r[0] for r in copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table in sorted(tables & set(DROPPED)):
        copy.execute(f'DROP TABLE "{table}"')
    used = " UNION ".join(
        f'SELECT "{column}" AS id FROM "{table}"'
        for table, columns in STRING_COLUMNS.items()
        if table in tables
        for column in columns
        if column in {r[1] for r in copy.execute(f'PRAGMA table_info("{table}")')}
    )
    if used:
        kept = f"SELECT id FROM ({used}) WHERE id IS NOT NULL"  # NOT IN knows no NULL
        copy.execute(f"DELETE FROM StringIds WHERE id NOT IN ({kept})")
    for table in sorted(tables & {"META_DATA_EXPORT", "EXPORT_META_DATA"}):
        copy.execute(f"DELETE FROM {table} WHERE {' OR '.join(PRIVATE)}")
    if "DIAGNOSTIC_EVENT" in tables:
        copy.execute("DELETE FROM DIAGNOSTIC_EVENT WHERE severity < 2 AND text GLOB '*/*/*'")
    copy.commit()
    copy.execute("VACUUM")
    copy.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    trim(arguments.source, arguments.target)
    sizes = [p.stat().st_size for p in (arguments.source, arguments.target)]
    print(f"{arguments.target}: {sizes[1]:,} bytes, {sizes[1] / sizes[0]:.0%} of {sizes[0]:,}")

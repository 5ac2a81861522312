"""Busy and NCCL time of every GPU in a median step, by SQL alone: a check of docs/ddp.md.

python docs/ddp_check.py REPORT.sqlite[.xz]
"""

from __future__ import annotations

import lzma
import sqlite3
import statistics
import sys
import tempfile
from pathlib import Path

OPERATIONS = """
WITH op AS (
  SELECT k.start, k.end, k.globalPid, k.correlationId, k.deviceId, s.value AS name
  FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName
  UNION ALL SELECT start, end, globalPid, correlationId, deviceId, ''
  FROM CUPTI_ACTIVITY_KIND_MEMCPY
  UNION ALL SELECT start, end, globalPid, correlationId, deviceId, ''
  FROM CUPTI_ACTIVITY_KIND_MEMSET
), step AS (
  SELECT n.start, n.end, n.globalTid & ~0xFFFFFF AS pid,
         row_number() OVER (PARTITION BY n.globalTid ORDER BY n.start) AS number
  FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId
  WHERE n.eventType = 59 AND coalesce(n.text, s.value) = 'batch iteration'
)
SELECT op.deviceId, step.number, op.start, op.end, op.name LIKE 'nccl%'
FROM op JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
  ON r.correlationId = op.correlationId AND r.globalTid & ~0xFFFFFF = op.globalPid
JOIN step ON step.pid = op.globalPid AND r.start BETWEEN step.start AND step.end
ORDER BY op.deviceId, step.number, op.start
"""
WARMUP = 3


def main(report: Path) -> None:
    """Print a line for every GPU."""
    with tempfile.TemporaryDirectory() as folder:
        if report.suffix == ".xz":
            plain = Path(folder) / "report.sqlite"
            plain.write_bytes(lzma.decompress(report.read_bytes()))
            report = plain
        with sqlite3.connect(f"file:{report}?mode=ro&immutable=1", uri=True) as db:
            rows = db.execute(OPERATIONS).fetchall()
    for gpu in sorted({row[0] for row in rows}):
        steps: dict[int, list[tuple[int, int, int]]] = {}
        for _, number, *operation in (row for row in rows if row[0] == gpu):
            steps.setdefault(number, []).append((operation[0], operation[1], operation[2]))
        first = [min(steps[number])[0] for number in sorted(steps)]
        chosen = [steps[number] for number in sorted(steps)][WARMUP:-1]
        lengths = [b - a for a, b in zip(first[WARMUP:], first[WARMUP + 1 :], strict=False)]
        busy = statistics.median(union(step) for step in chosen)
        nccl = statistics.median(union([one for one in step if one[2]]) for step in chosen)
        print(
            f"GPU {gpu}: {len(chosen)} steps, {statistics.median(lengths) / 1e6:.3f} ms, "
            f"busy {busy / 1e3:.0f} µs, NCCL {nccl / 1e3:.3g} µs"
        )


def union(operations: list[tuple[int, int, int]]) -> int:
    """Nanoseconds in which at least one of the operations runs."""
    total, reached = 0, 0
    for start, end, _ in sorted(operations):
        total += max(end - max(start, reached), 0)
        reached = max(reached, end)
    return total


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Tables of benchmarks/results/all_reduce.json: the peer all-reduce against NCCL's, by size."""

from __future__ import annotations

import math
import statistics
from typing import Any, Final

from benchmarks.common.pages import markdown, short
from perfmodel.machines.machine import bus_bytes_per_s

NCCL, BOTH, PEER = "nccl", "nccl and step", "peer"
COLUMNS: Final = (
    "GPUs=int; size=B; NCCL=s; NCCL and step=s; peer (sum and step)=s; peer / NCCL and step; "
    "NCCL, bus=B/s; peer, bus=B/s"
)
Times = dict[tuple[int, int], dict[str, list[float]]]
"""Medians of launches by kind, by (ranks, bytes)."""


def times(record: dict[str, Any]) -> Times:
    """Return the median time of a call in every launch."""
    found: Times = {}
    for run in record["runs"]:
        for row in run["rows"]:
            kinds = found.setdefault((run["ranks"], row["bytes"]), {})
            kinds.setdefault(row["kind"], []).append(statistics.median(row["round_s"]))
    return dict(sorted(found.items()))


def ratios(kinds: dict[str, list[float]]) -> tuple[float, float, float]:
    """Return the median, smallest and largest peer / NCCL and step over launches."""
    each = [peer / both for peer, both in zip(kinds[PEER], kinds[BOTH], strict=True)]
    return statistics.median(each), min(each), max(each)


def crossover_bytes(found: Times, ranks: int) -> float | None:
    """Return the size from which NCCL with the step's kernel is faster; None if it never is.

    Between the last size at which the peer all-reduce is the faster and the next one, the ratio's
    logarithm is taken as a line over the size's.
    """
    sizes = [size for p, size in found if p == ranks]
    logs = [math.log(ratios(found[ranks, size])[0]) for size in sizes]
    for i in range(len(sizes) - 1, 0, -1):
        if logs[i] > 0 >= logs[i - 1]:
            share = -logs[i - 1] / (logs[i] - logs[i - 1])
            return math.exp(math.log(sizes[i - 1]) + share * math.log(sizes[i] / sizes[i - 1]))
    return 0.0 if logs[0] > 0 else None


def table(record: dict[str, Any]) -> str:
    """Return the times by size and number of GPUs, and what they come to."""
    found = times(record)
    rows = []
    for (ranks, size), kinds in found.items():
        nccl, both, peer = (statistics.median(kinds[k]) for k in (NCCL, BOTH, PEER))
        ratio, low, high = ratios(kinds)
        bus = [bus_bytes_per_s("all-reduce", size, s, ranks) for s in (nccl, peer)]
        rows.append((ranks, size, nccl, both, peer, f"{ratio:.2f} ({low:.2f} to {high:.2f})", *bus))
    return f"{text(record)}\n\n{markdown(COLUMNS, rows)}"


def text(record: dict[str, Any]) -> str:
    """Say where the lines cross, and latency and bandwidth at the ends."""
    found = times(record)
    said = []
    for ranks in sorted({p for p, _ in found}):
        mine = {size: kinds for (p, size), kinds in found.items() if p == ranks}
        count = len(next(iter(mine.values()))[PEER])
        least, most = min(mine), max(mine)
        latency = {k: 1e6 * statistics.median(mine[least][k]) for k in (NCCL, BOTH, PEER)}
        buses = [
            1e-9 * max(
                bus_bytes_per_s("all-reduce", size, statistics.median(kinds[k]), ranks)
                for size, kinds in mine.items()
            )
            for k in (NCCL, PEER)
        ]  # fmt: skip
        cross = crossover_bytes(found, ranks)
        where = (
            f"is the faster up to {most / 1e6:.0f} MB" if cross is None
            else f"is the faster up to {cross / 1e6:.2g} MB" if cross > 0
            else f"is the slower from {least / 1e3:.0f} kB on"
        )  # fmt: skip
        said.append(
            f"- {ranks} GPUs, {count} launches: the peer all-reduce {where}. At {least} bytes it "
            f"takes {short(latency[PEER])} µs, NCCL {short(latency[NCCL])} µs and with the step's "
            f"kernel {short(latency[BOTH])} µs; the largest bus bandwidth is {short(buses[1])} "
            f"against {short(buses[0])} GB/s."
        )
    return "\n".join(said)

"""The section of docs/ladder.md on profiles before and after each rung: `perfmodel compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.common.pages import microseconds, table
from benchmarks.ladder.configurations import RUNGS


def pairs(index: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return (before, after) of every profiled rung and the nearest profiled one it stands on."""
    profiled = {entry["rung"] for entry in index}
    stands_on = {rung.name: rung.after for rung in RUNGS}
    found = []
    for rung in RUNGS:
        below = rung.after
        while below is not None and below not in profiled:
            below = stands_on[below]
        if rung.name in profiled and below is not None:
            found.append((below, rung.name))
    last = found[-1][1] if found else None
    best = next((name for name in ("peer x3", "fused x3", last) if name in profiled), None)
    return [*found, ("document", str(best))] if "document" in profiled and best else found


def profiles(folder: Path) -> str:
    """Return what perfmodel says of every pair of profiles in a folder; nothing without any."""
    if not (folder / "index.json").exists():
        return ""
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    machines: dict[str, list[dict[str, Any]]] = {}
    for entry in index:
        machines.setdefault(entry["machine"], []).append(entry)
    config = index[0]["command"].split("-m trainer ")[-1].split(" --epochs")[0]
    nsys = index[0]["versions"]["nsys"]
    return (
        "## Before and after, in profiles\n\n`perfmodel compare` on "
        f"[profiles/ladder](../profiles/README.md): `{config}`,\n"
        f"under Nsight Systems {nsys}, which slows the host down: the times above are without it.\n"
        "From `nccl` up the host only queues: a batch is then timed until the GPU is done with it, "
        "on both sides.\nA verdict is one that noise between launches "
        "cannot pass. The bottleneck addressed is the range and the\nlink that lost the most time "
        "for certain, with their share of the batch before; *GPU idle* stands for what\nthe host "
        "lost where it only queues, or where the batches after share no range with those before.\n"
        + "".join(_machine(name, entries, folder) for name, entries in machines.items())
    )


def _machine(name: str, index: list[dict[str, Any]], folder: Path) -> str:
    """Return the comparisons of one machine's reports."""
    from perfmodel import compare

    files: dict[str, list[Path]] = {}
    for entry in index:
        files.setdefault(entry["rung"], []).append(folder / entry["file"])
    lines = []
    for before, after in pairs(index):
        found = compare(files[before], files[after]).comparison
        batch = found.batch
        interval = (
            "" if batch.low is None else f"{batch.ratio:.2f} [{batch.low:.2f}, {batch.high:.2f}]"
        )
        lines.append((
            before, after, microseconds(batch.before_s), microseconds(batch.after_s), interval,
            batch.verdict,
            "; ".join(_addressed(row, batch) for row in found.addressed) or "none for certain",
        ))  # fmt: skip
    head = (
        "before", "after", "before, µs", "after, µs", "ratio", "verdict", "bottleneck addressed",
    )  # fmt: skip
    launches = max(len(found) for found in files.values())
    return f"\n{name}, {launches} launches a side:\n\n{table(head, lines)}"


def _addressed(row: Any, batch: Any) -> str:
    share = 100 * row.before_s / batch.before_s
    after = "gone" if row.after_s is None else f"{microseconds(row.after_s)} µs"
    return f"{row.name} {microseconds(row.before_s)} µs ({share:.0f} %) to {after}"

"""The DDP study once more, on H200s: ResNet-18, for docs/scaling.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from benchmarks.common.pages import markdown
from perfmodel.analysis.scaling import Bandwidth
from perfmodel.models.scaling_laws import fit

NET: Final = "resnet18"
MATH: Final = "fp32"
GPUS: Final = (2, 4)
COLUMNS: Final = (
    "batch per GPU=int; GPUs=int; step of one GPU=s; step of all=s; T1 / Tp=float.3; "
    "efficiency=percent; longer by=s; the all-reduce alone=s; longer by, in forward=s; "
    "in backward=s"
)


def section(results: Path, all_reduces: tuple[Bandwidth, ...]) -> str:
    """Return what benchmarks.resnet measured, and Gustafson's law for each batch."""
    record = json.loads((results / "resnet.json").read_text(encoding="utf-8"))
    size = 4 * next(r["parameters"] for r in record["theory"]["rows"] if r["net"] == NET)
    rows = [row for gpus in GPUS for row in _rows(record, gpus, all_reduces, size)]
    rows.sort()
    said = []
    for batch in sorted({row[0] for row in rows}):
        mine = [row for row in rows if row[0] == batch]
        law = fit("Gustafson", [row[1] for row in mine], [row[4] for row in mine], None)
        said.append(f"{law.serial:.3f} (batch {batch})")
    table = markdown(COLUMNS, rows)
    return (
        f"Gradients of {size / 1e6:.1f} MB are summed in each step. Gustafson's law fitted to 2 "
        f"and 4 GPUs: s = {', '.join(said)}.\n\n{table}"
    )


def _rows(
    record: dict[str, Any], gpus: int, all_reduces: tuple[Bandwidth, ...], size: int
) -> list[tuple[Any, ...]]:
    """Return a row per batch on some GPUs."""
    times = {
        (r["batch"], r["mode"]): r
        for r in record[f"ddp{gpus}"]["rows"]
        if (r["net"], r["math"]) == (NET, MATH)
    }
    ring_s = all_reduce_s(all_reduces, gpus, size)
    found = []
    for batch in sorted({batch for batch, _ in times}):
        one, all_of_them = times[batch, "alone"], times[batch, "ddp"]
        alone, together = one["total_s"], all_of_them["total_s"]
        longer = [all_of_them[k] - one[k] for k in ("total_s", "forward_s", "backward_s")]
        found.append(
            (batch, gpus, alone, together, gpus * alone / together, alone / together, longer[0],
             ring_s, *longer[1:])
        )  # fmt: skip
    return found


def all_reduce_s(all_reduces: tuple[Bandwidth, ...], gpus: int, size: int) -> float:
    """Return NCCL's seconds for `size` bytes at the bus bandwidth of the largest one measured."""
    mine = [b for b in all_reduces if b.through == "NCCL" and b.source != "training"]
    largest = max(mine, key=lambda b: b.bytes)
    return 2 * (gpus - 1) / gpus * size / largest.bus_bytes_per_s

"""Strong and weak scaling of optimization steps on one host, from launches of the ladder.

benchmarks/results/scaling_P.json is of hosts with P GPUs, by `bash benchmarks/gpu.sh P scaling`:
launches of `python -m benchmarks.ladder --out FILE` on 1, 2, ... P of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from benchmarks.common.pages import markdown
from benchmarks.ladder.rows import launches
from perfmodel.studies.analysis.measure import Launch
from perfmodel.studies.analysis.scaling import ScalingPoint, ScalingSeries, Study, study
from perfmodel.studies.mlp.model import MLP_MODEL

ALONE: Final = {"peer x3": "fused x3"}
"""Steps that one GPU does not have, and the one that stands for them there."""
ORDER: Final = (
    "document", "pinned", "nccl", "graph", "fused x3", "peer x3", "model graph",
    "torch ddp_eager", "torch graph_branches",
)  # fmt: skip


def of_record(record: dict[str, Any]) -> Iterator[Launch]:
    """Yield every sound launch of every step, and of one GPU those that stand for others."""
    for row in record["rows"]:
        for launch in launches(row):
            if not launch["median_s"] or not launch["valid"]:
                continue
            names = [row["rung"]]
            names += [new for new, old in ALONE.items() if old == row["rung"] and row["p"] == 1]
            for name in names:
                yield Launch(
                    label=f"{name}, {launch['run']}", source="ladder", ranks=row["p"],
                    sizes={"H": row["H"], "B": row["B"]}, settings={"step": name},
                    seconds=np.array([launch["round_s"] or [launch["median_s"]]]),
                    calibrated=MLP_MODEL,
                )  # fmt: skip


def tables(record: dict[str, Any]) -> str:
    """Return the tables of strong and of weak scaling."""
    found = study(list(of_record(record)))
    return f"{_table(found, 'strong')}\n\n{_table(found, 'weak')}"


def _table(found: Study, kind: str) -> str:
    mine = [s for s in found.series if s.kind == kind and s.fit is not None]
    mine.sort(key=lambda s: (s.sizes["H"], s.sizes.get("B", 0), ORDER.index(s.settings["step"])))
    ranks = sorted({p.ranks for s in mine for p in s.points})
    law = "Amdahl" if kind == "strong" else "Gustafson"
    columns = (
        f"{kind} scaling", "step", *(f"p={p}=s" for p in ranks),
        *(f"speed-up, {p}" for p in ranks if p > 1), f"efficiency, {ranks[-1]}=percent.0",
        f"{law}'s s=float.2", "launches",
    )  # fmt: skip
    return markdown(columns, (_row(s, ranks) for s in mine))


def _row(series: ScalingSeries, ranks: list[int]) -> tuple[object, ...]:
    at = {p.ranks: p for p in series.points}
    sizes = " ".join(f"{k}={v}" for k, v in sorted(series.sizes.items()))
    if series.batch_per_rank is not None:
        sizes += f" B/p={series.batch_per_rank:g}"
    last = at.get(ranks[-1])
    assert series.fit is not None
    return (
        sizes, series.settings["step"], *(at[p].batch_s if p in at else None for p in ranks),
        *(speedup(at[p]) if p in at else None for p in ranks if p > 1),
        last.efficiency if last else None, series.fit.serial,
        ", ".join(str(len(at[p].launches)) for p in ranks if p in at),
    )  # fmt: skip


def speedup(point: ScalingPoint) -> str:
    """Write a speed-up, with its interval where there is one."""
    if point.speedup_low is None:
        return f"{point.speedup:.2f}"
    return f"{point.speedup:.2f} ({point.speedup_low:.2f} to {point.speedup_high:.2f})"

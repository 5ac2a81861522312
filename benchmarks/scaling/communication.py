"""Communication on 4 and 8 GPUs: what was predicted from one and two, against what was measured.

benchmarks/results/predict_scale.json holds the phases of predictions that were frozen before,
profiles/scale/launches.json those of the launches.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.common.pages import markdown, percent

STAGED: Final = ("cudaMemcpyDeviceToHost", "MPI_Allreduce", "cudaMemcpyHostToDevice")
NCCL: Final = ("all-reduce",)
PEER: Final = ("step in one kernel",)
"""Phases that communicate, by transport; none of these settings overlaps: all of it is exposed."""
COLUMNS: Final = (
    "GPUs=int; H=int; B=int; setting; predicted=s; measured=s; error; "
    "share predicted=percent.0; share measured=percent.0"
)


@dataclass(frozen=True)
class Compared:
    """One configuration: seconds of communication and of the batch, predicted and measured."""

    ranks: int
    hidden: int
    batch: int
    setting: str
    transport: str
    predicted_s: float
    measured_s: float
    predicted_share: float
    measured_share: float

    @property
    def error(self) -> float:
        """Relative error of the communication's time."""
        return self.predicted_s / self.measured_s - 1


def compare(predicted: dict[str, Any], launches: dict[str, Any]) -> list[Compared]:
    """Compare what holds phases of communication on both sides; the rest is left out."""
    recorded: dict[str, list[dict[str, Any]]] = {}
    for launch in launches["launches"]:
        if launch["recorded"]:
            recorded.setdefault(launch["name"], []).append(launch)
    found = []
    for said in predicted["predictions"]:
        mine = recorded.get(said["name"], [])
        names = [n for n in _phases(said["name"]) if n in said["phases"]]
        if not names or not all(set(names) <= set(launch["phases"]) for launch in mine):
            continue
        seconds = [sum(launch["phases"][n] for n in names) for launch in mine]
        measured_s = statistics.median(seconds)
        batch_s = statistics.median(launch["batch_s"] for launch in mine)
        predicted_s = sum(said["phases"][n] for n in names)
        sizes, words = mine[0]["sizes"], said["name"].split("_")
        found.append(Compared(
            sizes["p"], sizes["H"], sizes["B"], " ".join(words[1:-2]), words[1], predicted_s,
            measured_s, predicted_s / said["predicted_s"], measured_s / batch_s,
        ))  # fmt: skip
    return found


def _phases(name: str) -> tuple[str, ...]:
    transport = name.split("_")[1]
    return {"nccl": NCCL, "peer": PEER}.get(transport, STAGED)


def text(predicted: dict[str, Any], launches: dict[str, Any]) -> str:
    """Return the errors by transport and number of GPUs, and the table."""
    rows = compare(predicted, launches)
    left = len(predicted["predictions"]) - len(rows)
    words = {"host": "through pageable memory and MPI", "pinned": "through pinned memory and MPI",
             "nccl": "by NCCL", "peer": "by the peer kernel, with the step"}  # fmt: skip
    lines = []
    for transport, how in words.items():
        for ranks in sorted({r.ranks for r in rows}):
            mine = [r for r in rows if (r.transport, r.ranks) == (transport, ranks)]
            lines.append((
                how, ranks, len(mine), percent(_mean(abs(r.error) for r in mine)),
                percent(_mean(r.error for r in mine), signed=True),
                _mean(r.predicted_share for r in mine), _mean(r.measured_share for r in mine),
            ))  # fmt: skip
    head = (
        "communication", "GPUs=int", "configurations=int", "mean error", "bias",
        "share predicted=percent.0", "share measured=percent.0",
    )  # fmt: skip
    apart = _mean(abs(r.predicted_share - r.measured_share) for r in rows)
    table = markdown(COLUMNS, (
        (r.ranks, r.hidden, r.batch, r.setting, r.predicted_s, r.measured_s,
         percent(r.error, signed=True), r.predicted_share, r.measured_share)
        for r in rows
    ))  # fmt: skip
    said = (
        f"Predicted and measured shares of the batch are {100 * apart:.1f} percentage points apart "
        f"on average ({len(rows)} configurations; {left} of {len(predicted['predictions'])} "
        "predictions hold no phase of communication)."
    )
    return f"{said}\n\n{markdown(head, lines)}\n\n{table}"


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)

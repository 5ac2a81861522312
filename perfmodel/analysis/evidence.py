"""Evidence: what one report says of its own batch, and how far its batches' spread leaves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.analysis.result import RunAnalysis
from perfmodel.base.arrays import Floats
from perfmodel.machines.machine import Machine
from perfmodel.models.part import BETWEEN, D2H, H2D, REDUCE, Part, route
from perfmodel.programs.mlp.case import Case
from perfmodel.programs.mlp.observe import Observation
from perfmodel.programs.mlp.parts import parts_of
from perfmodel.timing.run import Run, batch_seconds
from perfmodel.timing.samples import bootstrap_medians, tabulate

GRAPH: Final = "kernels of the graph"
"""What a replayed batch's kernels take that no other name tells."""
WAITS: Final = "waiting for the GPU"
_DRAWS: Final = 200
_STEPS: Final = ("trainer_descend", "sum_and_step")
_OWN_PRODUCTS: Final = ("hierarchical", "fused")
_INNER: Final = (D2H, REDUCE, H2D)


@dataclass(frozen=True)
class Evidence:
    """One launch: its case, and seconds of its batch by part.

    Attributes
    ----------
    case : Case
    batch_s : float
        Median batch.
    seconds : mapping of str to float
        By `Part.name`, medians along the critical path; on the host they add up to `batch_s` where
        it waits for the GPU (with `WAITS`).
    largest : float
        Share of the all-reduces' time that their largest message takes.
    machine : Machine or None
        Ceilings.
    """

    case: Case
    batch_s: float
    seconds: Mapping[str, float]
    largest: float
    machine: Machine | None


def structure(case: Case) -> dict[str, Part]:
    """Return the parts of a case by name, those of a replayed or overlapped one as if it were not.

    Raises
    ------
    ModelError
        If the structure of such a run is not modelled.
    """
    plain = replace(case, settings={**case.settings, "graph": "no", "overlap": "no"})
    return {part.name: part for part in parts_of(plain)}


def evidence(observed: Observation, analysis: RunAnalysis) -> Evidence:
    """Put together what a report tells.

    Parameters
    ----------
    observed : Observation
        Of `perfmodel.programs.mlp.observe`.
    analysis : RunAnalysis
        Of the same run: sizes of messages, the machine, kernels of a graph.
    """
    case, how = observed.case, route(observed.case)
    if how == "replayed":
        seconds = _replayed(observed, analysis)
    else:
        parts = structure(case)
        seconds = {n: observed.parts[p.key] for n, p in parts.items() if p.key in observed.parts}
        if how == "blocking":
            seconds |= _blocking(observed, parts)
        else:
            seconds |= _between_kernels(observed, parts, seconds)
    return Evidence(case, observed.batch_s, seconds, _largest(analysis), analysis.machine)


def _blocking(observed: Observation, parts: Mapping[str, Part]) -> dict[str, float]:
    """Phases as parts; what the host waits for the GPU is in none of them."""
    told = {p.phase: name for name, p in parts.items() if p.clock == "host"}
    found = {told[phase]: s for phase, s in observed.phases.items() if phase in told}
    if "pipeline" in parts:  # its copies begin and end in ranges of their own
        stages = [s for phase, s in observed.phases.items() if phase in _INNER]
        found["pipeline"] = sum(stages)
    if "copy out" in found:
        copied = min(observed.parts.get(parts["copy out"].key, 0.0), found["copy out"])
        found |= {"copy out": copied, WAITS: found["copy out"] - copied}
    rest = observed.batch_s - sum(found.values())
    return found | {"between": found.get("between", 0.0) + rest}


def _between_kernels(
    observed: Observation, parts: Mapping[str, Part], seconds: Mapping[str, float]
) -> dict[str, float]:
    """Gaps of a queued batch, told only where the GPU is the slower side."""
    sides = {"host": 0.0, "gpu": 0.0}
    for name, s in seconds.items():
        sides[parts[name].clock] += s
    if sides["gpu"] <= sides["host"]:
        return {}
    return {"gaps": max(observed.batch_s - sides["gpu"], 0.0)}


def _replayed(observed: Observation, analysis: RunAnalysis) -> dict[str, float]:
    """Kernels of a graph by the names that tell them; the rest together."""
    rows = {row.label: row.gpu_busy_s or 0.0 for row in analysis.ranges}
    busy = analysis.ranges[0].gpu_busy_s or observed.batch_s
    found = {}
    transfers = [g.transfer_s or g.seconds for g in analysis.collectives if "NCCL" in g.name]
    if transfers:
        found["all-reduce"] = sum(transfers)
    step = sum(s for label, s in rows.items() if label.startswith(_STEPS))
    if step > 0:
        peer = observed.case.settings["transport"] == "peer"
        found["peer all-reduce and step" if peer else "step kernels"] = step
    if observed.case.settings["gemm"] in _OWN_PRODUCTS and rows.get("gemm"):
        found["wide products"] = rows["gemm"]
    found["gaps"] = max(observed.batch_s - busy, 0.0)
    found[GRAPH] = max(observed.batch_s - sum(found.values()), 0.0)
    return found


def _largest(analysis: RunAnalysis) -> float:
    groups = [g for g in analysis.collectives if g.name == "MPI_Allreduce" and g.bytes]
    spent = [(g.bytes or 0, g.count * g.seconds) for g in groups]
    whole = sum(s for _, s in spent)
    return max(spent)[1] / whole if whole > 0 else 0.0


def draws(run: Run, found: Evidence, observed: Observation) -> tuple[Evidence, ...]:
    """Resample the report's batches: the same evidence as other batches of this launch give it.

    Whole batches of all ranks are drawn together, so that what the medians share stays shared. What
    launches differ by is not in one launch's batches.
    """
    tables = _tables(run, observed.batches)
    names = list(tables)
    medians = bootstrap_medians([tables[name] for name in names])[:_DRAWS]
    usual = np.array([np.nanmedian(tables[name]) for name in names])
    ratios = np.where(usual > 0, medians / np.where(usual > 0, usual, 1.0), 1.0)
    at = {name: i for i, name in enumerate(names)}
    parts = structure(found.case)
    blocking = route(found.case) == "blocking"
    made = []
    for row in ratios:
        seconds = {}
        for name, s in found.seconds.items():
            part = parts.get(name)
            table = part.phase if part is not None and part.clock == "host" else "GPU"
            seconds[name] = s * float(row[at.get(table, at["batch"])])
        batch_s = found.batch_s * float(row[at["batch"]])
        if blocking:
            others = sum(s for name, s in seconds.items() if _on_host(name, parts))
            seconds["between"] += batch_s - others
        made.append(replace(found, batch_s=batch_s, seconds=seconds))
    return tuple(made)


def _on_host(name: str, parts: Mapping[str, Part]) -> bool:
    return name == WAITS or (name in parts and parts[name].clock == "host")


def _tables(run: Run, batches: int) -> dict[str, Floats]:
    """Seconds of the last batches by phase, each (ranks, batches)."""
    everything = tabulate(run.range_times, run.ranks, run.batch_label)
    head = next(m for m in everything if m.label == run.batch_label)
    found = {
        m.path[-1]: m.seconds["host"][:, -batches:] for m in everything
        if len(m.path) - len(head.path) == 1 or m.path[-1] in _INNER
    }  # fmt: skip
    inner = [np.nan_to_num(found[name]) for name in _INNER if name in found]
    if "backward" in found and inner:
        found["backward"] = found["backward"] - sum(inner, np.zeros(1))
    found["batch"] = batch_seconds(run)[:, -batches:]
    found["GPU"] = head.seconds["gpu_busy"][:, -batches:]
    found[BETWEEN] = found["batch"]
    return {name: table for name, table in found.items() if not np.isnan(table).all()}


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the middle 90 % of draws."""
    low, high = np.percentile(np.array(values), [5, 95])
    return float(low), float(high)

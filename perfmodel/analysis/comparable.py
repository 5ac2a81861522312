"""Comparable points: the roof over a run's own points, fitted on a run or of its machine."""

from __future__ import annotations

from typing import Final

from perfmodel.analysis.rates import LINKS
from perfmodel.analysis.result import Analysis, RunAnalysis
from perfmodel.models.roofline import Point, Roofline

_PER_DIRECTION: Final = {"pci": ("pcie", "PCIe", 1), "peer": ("nvlink", "NVLink", 2)}
"""The machine's bandwidth of a link, its name, and how many directions that is the sum of."""


def own_roof(fitted: RunAnalysis, run: RunAnalysis) -> Roofline | None:
    """Return the fitted run's roof for another run's own mix of bytes.

    None where that roof is not over the run's points: if it lacks a link of the run, or if the run
    multiplies with other math. The fitted run's own points are always below its roof.
    """
    roof = fitted.roofline
    used = _shares(run)
    if roof is None or run.precision != fitted.precision or not used:
        return None
    if set(used) <= set(roof.links_bytes_per_s):
        return roof.for_shares(used)
    return roof if run is fitted else None


def comparable(analysis: Analysis) -> tuple[Point, ...]:
    """Return the measured points that the fitted run's roof is over."""
    fitted = analysis.fitted
    return tuple(p for run in analysis.runs if own_roof(fitted, run) for p in run.points)


def machine_roof(run: RunAnalysis) -> Roofline | None:
    """Return the roof of the machine's peaks for a run that replays a CUDA graph.

    Nothing inside a replay is timed, so that no roof can be fitted. None for other runs, and where
    a link has no peak, as MPI. From GPU to GPU NVLink is taken where the machine has it; its
    datasheet adds up both directions, and so does the document's count of bytes.
    """
    machine, used = run.machine, _shares(run)
    peak = machine.peak_flops_per_s.get(run.precision) if machine else None
    if machine is None or not run.workload.replay or not peak or not used:
        return None
    links, names = {}, []
    for link in used:
        key, name, directions = _PER_DIRECTION.get(link, ("", "", 1))
        if key not in machine.bandwidth_bytes_per_s:
            return None
        both = directions if run.workload.counting != "document" else 1
        links[link] = machine.bandwidth_bytes_per_s[key] / both
        names.append(name)
    return Roofline(f"{machine.name}: {run.precision}, {', '.join(names)}", peak, links, used)


def _shares(run: RunAnalysis) -> dict[str, float]:
    """Each link's share of the bytes that the run moves; empty if it moves none."""
    moved = {k: float(getattr(run.totals, f"{k}_bytes")) for k in LINKS}
    used = {k: n for k, n in moved.items() if n > 0}
    return {k: n / sum(used.values()) for k, n in used.items()}

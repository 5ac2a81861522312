"""Observations of a user's own workload: every range's own time on the host and on the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from perfmodel.analysis.runs import identify
from perfmodel.base.arrays import Floats
from perfmodel.base.errors import ModelError
from perfmodel.models.part import BETWEEN
from perfmodel.programs.mlp.case import own_case
from perfmodel.programs.mlp.observe import AHEAD, Observation
from perfmodel.programs.mlp.parts import own_parts
from perfmodel.timing.run import Run, batch_seconds
from perfmodel.timing.samples import Clock, PathTimes, count_warmup, tabulate
from perfmodel.workloads.work import Workload

_CLOCKS: Final[dict[str, Clock]] = {"host": "host", "gpu": "gpu_busy"}


def observe_own(run: Run, workload: Workload, given: Mapping[str, int]) -> Observation:
    """Measure the ranges of a user's own workload in one run.

    Parameters
    ----------
    run : Run
    workload : Workload
    given : mapping of str to int
        Values of symbols that the report does not tell.

    Raises
    ------
    WorkloadError
        If symbols have no value, or an impossible one.
    ModelError
        If the report has none of the workload's ranges, or no batch after the warm-up.
    """
    identity, _ = identify(run, {k: v for k, v in given.items() if k in workload.symbols})
    values = {name: identity.values[name] for name in workload.symbols if name in identity.values}
    case = own_case(workload, {**values, **given})
    everything = tabulate(run.range_times, run.ranks, run.batch_label)
    head = next(m for m in everything if m.label == run.batch_label)
    warmup = count_warmup(head.seconds["host"])
    batches = batch_seconds(run)[:, warmup:]
    known = [m for m in everything if m.label in workload.ranges and m is not head]
    if not known or batches.size == 0 or np.isnan(batches).all():
        raise ModelError(
            f"{run.label}: wanted batches with the ranges {', '.join(workload.ranges)}; found "
            f"{', '.join(m.label for m in everything) or 'none'} and {batches.shape[1]} batches "
            f"after the warm-up; name the ranges in the workload as in the program"
        )
    batch_s = float(np.nanmedian(batches))
    times: dict[tuple[str, str], float] = {}
    for clock, column in _CLOCKS.items():
        for name in workload.ranges:
            own = sum((_own(m, known, column, warmup) for m in known if m.label == name), 0.0)
            times[name, clock] = own
    inside = sum(times[name, "host"] for name in workload.ranges)
    host = float(np.nanmedian(head.seconds["host"][:, warmup:]))
    times[BETWEEN, "host"] = max(host - inside, 0.0)
    parts = {p.key: times.get((p.phase, p.clock), 0.0) for p in own_parts(workload, case.sizes)}
    clock = "gpu" if batch_s > AHEAD * host else "host"
    return Observation(
        source=run.traces[0].source.name,
        case=case,
        batch_s=batch_s,
        parts={key: s for key, s in parts.items() if s > 0},
        phases={name: s for (name, c), s in times.items() if c == clock and s > 0},
        batches=int(np.isfinite(batches).any(axis=0).sum()),
    )


def _own(mine: PathTimes, known: list[PathTimes], clock: Clock, warmup: int) -> float:
    """Median time of a range without the known ranges directly inside it; 0 without any."""

    def seconds(m: PathTimes) -> Floats:
        return np.nan_to_num(m.seconds[clock][:, warmup:])

    below = [m for m in known if len(m.path) > len(mine.path)
             and m.path[: len(mine.path)] == mine.path]  # fmt: skip
    direct = [
        m for m in below
        if not any(len(o.path) < len(m.path) and m.path[: len(o.path)] == o.path for o in below)
    ]  # fmt: skip
    own = seconds(mine) - sum((seconds(m) for m in direct), np.zeros(1))
    return max(float(np.median(own)), 0.0)

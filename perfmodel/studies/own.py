"""The calibrated model of a program of the user's own: a part for every range of its formulas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, get_args

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import ModelError
from perfmodel.programs.mlp.identify import identify
from perfmodel.programs.program import Options
from perfmodel.studies.calibrated import Calibrated, not_modelled
from perfmodel.studies.models.terms import AHEAD, BETWEEN, Alone, Case, Observation, Part
from perfmodel.studies.models.terms import Clock as Side
from perfmodel.timing.async_batches import head_of
from perfmodel.timing.run import Run
from perfmodel.timing.run_steps import run_steps
from perfmodel.timing.samples import Clock, PathTimes, tabulate
from perfmodel.workloads.work import Workload

_CLOCKS: Final[dict[str, Clock]] = {"host": "host", "gpu": "gpu_busy"}


class OwnModel(Calibrated):
    """See `perfmodel.studies.calibrated.Calibrated`."""

    def case(
        self, sizes: Mapping[str, int], settings: Mapping[str, str], options: Options
    ) -> OwnCase:
        """Return a case of the user's formulas."""
        assert options.workload is not None  # `recognizes`
        return OwnCase(options.workload.check(sizes), {}, options.workload)

    def observe(self, run: Run, options: Options) -> Observation:
        """Measure the ranges that the file names."""
        if options.workload is None:  # the run was measured with one
            raise not_modelled(run)
        workload, given = options.workload, options.values
        identity, _ = identify(run, {k: v for k, v in given.items() if k in workload.symbols})
        values = {
            name: identity.values[name] for name in workload.symbols if name in identity.values
        }
        case = OwnCase(workload.check({**values, **given}), {}, workload)
        everything = tabulate(run.range_times, run.ranks, run.batch_label)
        head = head_of(run, everything)
        steps = run_steps(run, "host", done=True)
        warmup, batches = steps.warmup, steps.seconds()[:, steps.counted]
        known = [m for m in everything if m.label in workload.ranges and m.path != head.path]
        if not known or batches.size == 0 or np.isnan(batches).all():
            raise ModelError(
                f"{run.label}: expected batches with the ranges {', '.join(workload.ranges)}; got "
                f"{', '.join(m.label for m in everything) or 'none'} and {batches.shape[1]} "
                f"batches after the warm-up; name the ranges in the workload as in the program"
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
        parts = {p.key: times.get((p.phase, p.clock), 0.0) for p in case.parts()}
        clock = "gpu" if batch_s > AHEAD * host else "host"
        return Observation(
            source=run.traces[0].source.name,
            case=case,
            batch_s=batch_s,
            parts={key: s for key, s in parts.items() if s > 0},
            phases={name: s for (name, c), s in times.items() if c == clock and s > 0},
            batches=int(np.isfinite(batches).any(axis=0).sum()),
        )


OWN_MODEL: Final = OwnModel()


@dataclass(frozen=True)
class OwnCase(Case):
    """One run of a program of the user's own, which has no settings."""

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"formulas": ""}

    formulas: Workload

    @property
    def workload(self) -> str:
        """Name of the workload."""
        return self.formulas.name

    def parts(self, alone: Alone | None = None) -> tuple[Part, ...]:
        """Return each range on the host and on the GPU, and what lies between ranges.

        A range's time is a constant and what its FLOPs, its bytes over links and its memory
        accesses take; what only queues work is constant on the host.
        """
        found = []
        for name, counts in self.formulas.evaluate(self.sizes).items():
            amounts = {
                "flops": float(counts.flops),
                "bytes": float(counts.moved_bytes),
                "moved": float(counts.dram_bytes),
            }
            work = {"batches": 1.0} | {key: value for key, value in amounts.items() if value > 0}
            found += [Part(name, clock, name, clock, work, "optional") for clock in get_args(Side)]
        found.append(Part("between", "host", BETWEEN, "host", {"batches": 1.0}, "optional"))
        return tuple(found)


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

"""Bounds of a batch by one report: its evidence, the least after a change, and Amdahl's.

A part's time is a sum of non-negative rates times amounts (`perfmodel.studies.mlp.parts`). Where a
change leaves the rates as they are, the part takes at least the smallest ratio of its amounts, at
most all of its time; where it does not (other kernels, memory of another kind, another library),
the report says nothing, and only the machine's ceilings are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.machines.machine import Machine
from perfmodel.models.launches import drawn_medians
from perfmodel.programs.mlp.settings import (
    COPY,
    D2H,
    GEMMS,
    H2D,
    OWN_GEMMS,
    REDUCE,
    SYNC,
    parameters,
)
from perfmodel.studies.calibrated import Floor, Free, Offer
from perfmodel.studies.mlp.case import Case
from perfmodel.studies.mlp.changes import offers
from perfmodel.studies.models import terms
from perfmodel.studies.models.terms import BETWEEN, Observation, Part
from perfmodel.timing.async_batches import head_of
from perfmodel.timing.collectives import CollectiveGroup
from perfmodel.timing.run import Run
from perfmodel.timing.run_steps import run_steps
from perfmodel.timing.samples import tabulate

GRAPH: Final = "kernels of the graph"
"""Kernels of a replayed batch without another name."""
WAITS: Final = "waiting for the GPU"
_DRAWS: Final = 200
_STEPS: Final = ("trainer_descend", "sum_and_step")
_INNER: Final = (D2H, SYNC, REDUCE, H2D)


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

    def part_of(self, label: str) -> str:
        """Return the part that moves the bytes of a range."""
        name = {D2H: "copy out", H2D: "copy back", COPY: "copy images"}.get(label, "all-reduce")
        piped = name not in self.seconds and "pipeline" in self.seconds
        return "pipeline" if piped else name

    def changes(self, case: terms.Case) -> Iterator[Offer]:
        """Yield the changes that a run of this case has not made, in the ladder's order."""
        assert isinstance(case, Case)
        return offers(case)

    def least(self, after: terms.Case) -> Floor:
        """Return the least time of a batch of the changed case.

        Raises
        ------
        ModelError
            If the structure of such a run is not modelled.
        """
        assert isinstance(after, Case)
        floors = _Floors(self, after, structure(self.case), structure(after))
        return floors.blocking() if after.route == "blocking" else floors.queued()

    def without(self, names: Sequence[str]) -> float:
        """Return the batch if some parts took no time: what runs beside them may then show.

        A host that waits for the GPU is done with a batch when both its launches and the GEMMs are;
        where it only queues, the slower side is the batch.
        """
        s, how, parts = self.seconds, self.case.route, structure(self.case)
        if how == "replayed":
            return self.batch_s - sum(s.get(name, 0.0) for name in names if name != "replay")
        host = {n: v for n, v in s.items() if n in parts and parts[n].clock == "host"}
        gpu = {
            n: v for n, v in s.items() if n == "gaps" or (n in parts and parts[n].clock == "gpu")
        }
        if how == "queued":
            sides = [sum(v for n, v in side.items() if n not in names) for side in (host, gpu)]
            now = max(sum(host.values()), sum(gpu.values()))
            return self.batch_s - now + max(sides)
        kept = sum(v for n, v in host.items() if n not in names)
        launched = sum(s.get(n, 0.0) for n in _LAUNCHED)
        computed = sum(v for n, v in gpu.items() if parts[n].phase == "GEMMs")
        waits = s.get(WAITS, 0.0)
        done = launched + waits if waits > 0 else min(computed, launched)
        if set(_LAUNCHED) & set(names):
            launched = sum(s.get(n, 0.0) for n in _LAUNCHED if n not in names)
        if "large GEMMs" in names:
            done = 0.0
        return kept + max(done - launched, 0.0)

    def if_free(self, flops: float) -> Iterator[Free]:
        """Yield the bound of every link or unit that takes time; `flops` are those of a batch."""
        for name, parts in GROUPS.items():
            seconds = sum(self.seconds.get(part, 0.0) for part in parts if part != WAITS)
            if seconds <= 0:
                continue
            batch = max(self.without(parts), 0.0)
            speedup = self.batch_s / batch if batch > 0 else float("inf")
            yield Free(
                name, seconds, batch, speedup, flops / batch if flops and batch > 0 else None
            )

    def draws(self, run: Run, observed: Observation) -> tuple[Evidence, ...]:
        """Draw the same evidence as other batches of this launch could have given it.

        What the medians share stays shared (`perfmodel.models.launches.drawn_medians`). What
        launches differ by is not in one launch's batches.
        """
        tables = _tables(run, observed.batches)
        names = list(tables)
        medians = drawn_medians([tables[name] for name in names], _DRAWS)
        usual = np.array([np.nanmedian(tables[name]) for name in names])
        ratios = np.where(usual > 0, medians / np.where(usual > 0, usual, 1.0), 1.0)
        parts = structure(self.case)
        made = []
        for row in ratios:
            drawn = dict(zip(names, row.tolist(), strict=True))
            seconds = {}
            for name, s in self.seconds.items():
                part = parts.get(name)
                table = part.phase if part is not None and part.clock == "host" else "GPU"
                seconds[name] = s * drawn.get(table, drawn["batch"])
            batch_s = self.batch_s * drawn["batch"]
            if self.case.route == "blocking":
                seconds["between"] += batch_s - sum(
                    s for n, s in seconds.items()
                    if n == WAITS or (n in parts and parts[n].clock == "host")
                )  # fmt: skip
            made.append(replace(self, batch_s=batch_s, seconds=seconds))
        return tuple(made)


def structure(case: Case) -> dict[str, Part]:
    """Return the parts of a case by name, those of a replayed or overlapped one as if it were not.

    Raises
    ------
    ModelError
        If the structure of such a run is not modelled.
    """
    return {part.name: part for part in case.having(graph="no", overlap="no").parts()}


def gather(
    observed: Observation,
    busy_s: Mapping[str, float],
    collectives: Sequence[CollectiveGroup],
    machine: Machine | None,
) -> Evidence:
    """Put together what a report gives; see `perfmodel.studies.calibrated.Calibrated.evidence`."""
    case = observed.case
    assert isinstance(case, Case)  # as `observe` makes it
    how = case.route
    if how == "replayed":
        seconds = _replayed(observed, busy_s, collectives)
    else:
        parts = structure(case)
        seconds = {n: observed.parts[p.key] for n, p in parts.items() if p.key in observed.parts}
        if how == "blocking":
            seconds |= _blocking(observed, parts)
        else:
            seconds |= _between_kernels(observed, parts, seconds)
    return Evidence(case, observed.batch_s, seconds, _largest(collectives), machine)


def _blocking(observed: Observation, parts: Mapping[str, Part]) -> dict[str, float]:
    """Phases as parts; what the host waits for the GPU is in none of them."""
    names = {p.phase: name for name, p in parts.items() if p.clock == "host"}
    found = {names[phase]: s for phase, s in observed.phases.items() if phase in names}
    if "pipeline" in parts:  # its copies begin and end in ranges of their own
        stages = [s for phase, s in observed.phases.items() if phase in _INNER]
        found["pipeline"] = sum(stages)
    if "copy out" in found:
        copied = min(observed.parts.get(parts["copy out"].key, 0.0), found["copy out"])
        found |= {"copy out": copied, WAITS: found["copy out"] - copied}
    if SYNC in observed.phases:
        found[WAITS] = observed.phases[SYNC]
    rest = observed.batch_s - sum(found.values())
    return found | {"between": found.get("between", 0.0) + rest}


def _between_kernels(
    observed: Observation, parts: Mapping[str, Part], seconds: Mapping[str, float]
) -> dict[str, float]:
    """Gaps of a queued batch, known only where the GPU is the slower side."""
    sides = {"host": 0.0, "gpu": 0.0}
    for name, s in seconds.items():
        sides[parts[name].clock] += s
    if sides["gpu"] <= sides["host"]:
        return {}
    return {"gaps": max(observed.batch_s - sides["gpu"], 0.0)}


def _replayed(
    observed: Observation, busy_s: Mapping[str, float], collectives: Sequence[CollectiveGroup]
) -> dict[str, float]:
    """Kernels of a graph by the names that give them; the rest together."""
    busy = next(iter(busy_s.values()), 0.0) or observed.batch_s
    found = {}
    transfers = [g.transfer_s or g.seconds for g in collectives if "NCCL" in g.name]
    if transfers:
        found["all-reduce"] = sum(transfers)
    step = sum(s for label, s in busy_s.items() if label.startswith(_STEPS))
    if step > 0:
        peer = observed.case.settings["transport"] == "peer"
        found["peer all-reduce and step" if peer else "step kernels"] = step
    if observed.case.settings["gemm"] in OWN_GEMMS and busy_s.get("gemm"):
        found["large GEMMs"] = busy_s["gemm"]
    found["gaps"] = max(observed.batch_s - busy, 0.0)
    found[GRAPH] = max(observed.batch_s - sum(found.values()), 0.0)
    return found


def _largest(collectives: Sequence[CollectiveGroup]) -> float:
    groups = [g for g in collectives if g.name == REDUCE and g.bytes]
    spent = [(g.bytes or 0, g.count * g.seconds) for g in groups]
    whole = sum(s for _, s in spent)
    return max(spent)[1] / whole if whole > 0 else 0.0


def _tables(run: Run, batches: int) -> dict[str, Floats]:
    """Seconds of the last batches by phase, each (ranks, batches)."""
    everything = tabulate(run.range_times, run.ranks, run.batch_label)
    head = head_of(run, everything)
    found = {
        m.path[-1]: m.seconds["host"][:, -batches:] for m in everything
        if len(m.path) - len(head.path) == 1 or m.path[-1] in _INNER
    }  # fmt: skip
    inner = [np.nan_to_num(found[name]) for name in _INNER if name in found]
    if "backward" in found and inner:
        found["backward"] = found["backward"] - sum(inner, np.zeros(1))
    found["batch"] = run_steps(run, "host", done=True).seconds()[:, -batches:]
    found["GPU"] = head.seconds["gpu_busy"][:, -batches:]
    found[BETWEEN] = found["batch"]
    return {name: table for name, table in found.items() if not np.isnan(table).all()}


_PEAKS: Final = {"ieee": "float32", "tf32": "tf32_tensor", "tf32x3": "tf32x2_tensor"}
"""Of float32; two TF32 GEMMs do where one factor is exact. Double precision has none here:
cuBLAS may multiply it on tensor cores, whose rate is not the datasheet's ordinary one."""
_COPIES: Final = ("copy images", "copy out", "copy back")
_GEMMS: Final = ("large GEMMs", "small GEMMs", "element-wise", "fused steps")
_LAUNCHES: Final = ("launch forward", "launch backward", "launch step", "between")


@dataclass(frozen=True)
class _Floors:
    """The parts before and after, and what is known of the former."""

    found: Evidence
    after: Case
    old: Mapping[str, Part]
    new: Mapping[str, Part]

    def blocking(self) -> Floor:
        """Add up the host's chain; the GPU's GEMMs are beside the launches."""
        parts = {p.name: self.part(p) for p in self.new.values()}
        if "pipeline" in self.new and "pipeline" not in self.old:
            parts["pipeline"] = self._pipeline()
        parts[WAITS] = self._waits(parts)
        gpu = [p.name for p in self.new.values() if p.clock == "gpu"]
        return Floor(sum(parts.values()) - sum(parts[name] for name in gpu), parts)

    def queued(self) -> Floor:
        """Take the slower of host and GPU, as both work side by side."""
        host = {p.name: self.part(p) for p in self.new.values() if p.clock == "host"}
        if self.after.route == "replayed":  # one launch instead of all
            host = {}
        gpu = {p.name: self.part(p) for p in self.new.values() if p.clock == "gpu"}
        if self.after.settings["overlap"] == "yes" and "all-reduce" in gpu:
            gpu["all-reduce"] *= _of_the_first_layer(self.after)
        gpu["gaps"] = self._gaps()
        if GRAPH in self.found.seconds:  # what no name gives is in the rest
            unnamed = [n for n in gpu if n in _GEMMS and n not in self.found.seconds]
            gpu[GRAPH] = max(self._rest(), sum(gpu.pop(name) for name in unnamed))
        return Floor(max(sum(host.values()), sum(gpu.values())), {**host, **gpu})

    def part(self, new: Part) -> float:
        """Return the least of one part."""
        old = self.old.get(new.name)
        seconds = self.found.seconds.get(new.name)
        limit = self._limit(new)
        if old is None or seconds is None or not self._same_rates(old, new):
            return limit
        shared = [new.amounts[k] / v for k, v in old.amounts.items() if v > 0 and k in new.amounts]
        ratio = min([*shared, 1.0]) if shared else 0.0  # more work takes no less time
        if new.name == "all-reduce" and old.group.startswith("MPI") and ratio < 1:
            fewer = new.amounts["messages"] < old.amounts["messages"]
            kept = self.found.largest if fewer else 0.0
            grown = min(new.amounts["bytes"] / old.amounts["bytes"], 1.0)
            return seconds * max(ratio, kept * grown)
        floor = ratio * seconds
        if new.name in _COPIES:  # what is not latency takes its bytes over the link
            left = new.amounts["bytes"] - ratio * old.amounts["bytes"]
            floor += max(left, 0.0) * self._per_byte("pcie")
        if new.name == "pipeline" and self.after.settings["overlap"] == "yes":
            floor *= _of_the_first_layer(self.after)
        return max(floor, limit)

    def _same_rates(self, old: Part, new: Part) -> bool:
        before, after = self.found.case.settings, self.after.settings
        if old.key == new.key:
            return True
        if new.name == "large GEMMs":
            alike = all("ieee" in GEMMS[s["gemm"]].cublas for s in (before, after))
            return alike and before["math"] == after["math"]
        # the same kernels, launched on the same route
        same = all(before[name] == after[name] for name in ("gemm", "sync"))
        return new.name in _LAUNCHES and same and self.found.case.route == self.after.route

    def _limit(self, new: Part) -> float:
        """Return what the machine's ceilings allow; 0 where none is known."""
        if new.name == "large GEMMs":
            machine, math = self.found.machine, self.after.settings["math"]
            known = machine.peak_flops_per_s if machine else {}
            peak = known.get(_PEAKS[math]) if self.after.sizes["b"] == 4 else None
            return new.amounts["flops"] / peak if peak else 0.0
        if new.name in _COPIES:
            return new.amounts["bytes"] * self._per_byte("pcie")
        if new.clock == "gpu" and "bytes" in new.amounts:  # the data sheet counts both directions
            return new.amounts["bytes"] * 2 * self._per_byte("nvlink")
        return 0.0

    def _per_byte(self, link: str) -> float:
        machine: Machine | None = self.found.machine
        rate = machine.bandwidth_bytes_per_s.get(link) if machine else None
        return 1 / rate if rate else 0.0

    def _pipeline(self) -> float:
        """Return the largest of the three stages: they run side by side."""
        stages = structure(self.after.having(transport="host-flat", overlap="no"))
        names = ("copy out", "all-reduce", "copy back")
        return max(self.part(stages[name]) for name in names if name in stages)

    def _gemms(self, parts: Mapping[str, Part]) -> float:
        """Return the GEMMs' time on the GPU: measured for the old parts, least for the new."""
        if parts is self.old:
            return sum(self.found.seconds.get(name, 0.0) for name in _GEMMS if name in parts)
        return sum(self.part(parts[name]) for name in _GEMMS if name in parts)

    def _waits(self, host: Mapping[str, float]) -> float:
        """Return what the host still waits for the GPU's GEMMs after launching them."""
        waited = self.found.seconds.get(WAITS, 0.0)
        launched = sum(host.get(name, 0.0) for name in ("launch forward", "launch backward"))
        computed = self._gemms(self.new)
        before = sum(
            self.found.seconds.get(name, 0.0) for name in ("launch forward", "launch backward")
        )
        if waited > 0 and self.found.case.settings["gemm"] == self.after.settings["gemm"]:
            done = before + waited + computed - self._gemms(self.old)
        else:
            done = computed
        return max(done - launched, 0.0)

    def _gaps(self) -> float:
        """Return the time between kernels where neither they nor their launches change."""
        old, new = self.found.case.settings, self.after.settings
        same = all(old[k] == new[k] for k in ("gemm", "transport", "graph", "parallel"))
        return self.found.seconds.get("gaps", 0.0) if same else 0.0

    def _rest(self) -> float:
        """Return the graph's kernels that no name gives, where they stay the same ones."""
        known, old, new = self.found.seconds, self.found.case.settings, self.after.settings
        changed = {name for name in old if old[name] != new[name]}
        if "gemm" in changed or ("math" in changed and "large GEMMs" not in known):
            return 0.0
        if "transport" in changed and "step kernels" not in known:
            return 0.0
        shares = [
            self.new[name].amounts[k] / v for name in _GEMMS if name in self.old
            for k, v in self.old[name].amounts.items()
        ]  # fmt: skip
        return known[GRAPH] * min([*shares, 1.0])


def _of_the_first_layer(case: Case) -> float:
    """Share of the gradients that are W1's and b1's: they are summed last."""
    d, h, c = (case.sizes[name] for name in "DHC")
    return parameters(d, h, 0) / parameters(d, h, c)


_LAUNCHED: Final = ("launch forward", "launch backward")
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "copy of images (PCIe)": ("copy images", "queue images"),
    "copies of gradients (PCIe)": ("copy out", "copy back"),
    "all-reduce": ("all-reduce", "sum alone", "pipeline", "peer all-reduce and step"),
    "launches on the host": (*_LAUNCHED, "launch step", "between", "replay"),
    "GEMMs": ("large GEMMs", "small GEMMs", "element-wise", "fused steps", GRAPH, WAITS),
    "step on the GPU": ("step kernels",),
    "gaps between kernels": ("gaps",),
}
"""Parts by link or unit."""

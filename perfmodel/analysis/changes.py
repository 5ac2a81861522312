"""Changes of the graph of a program's steps: what each saves, in order, and several at once.

A change removes, shortens, overlaps, moves or joins work. Its saving is the difference of two
replays of the recorded steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from perfmodel.base.errors import ModelError
from perfmodel.programs.findings import Finding
from perfmodel.timing.critical_path import Change, Replay
from perfmodel.timing.run_exchanges import exchanges_of, kernels_of, lane_ranks
from perfmodel.timing.run_graph import replay_of
from perfmodel.timing.step_facts import StepFacts

if TYPE_CHECKING:
    from perfmodel.analysis.result import RunAnalysis
    from perfmodel.analysis.steps import StepBreakdown
    from perfmodel.programs.facts import OperatorRow

TITLES: Final[Mapping[str, str]] = {
    "launch_bound": "launches cost nothing, as in one CUDA graph per step",
    "dispatch": "neither launches nor the host's work between them cost anything",
    "blocking_sync": "the host never waits for the GPU",
    "host_compute": "the host's own work takes no time",
    "allocation": "no GPU memory is allocated or freed",
    "pageable_copy": "no copies from pageable memory",
    "copy": "no copies",
    "offloading": "no copies",
    "communication": "no communication by MPI",
    "exposed_communication": "no communication that computing does not hide",
    "straggler": "the late rank does no more than the others",
    "many_small_kernels": "small kernels of a range are fused",
    "other": "CUDA graphs launch at once",
    "kernel": "kernels take no time",
    "waiting_mpi": "the late rank does no more than the others",
    "kernel_below_ceiling": "an operator runs at its ceiling",
    "memory_bound": "operators that memory limits are fused",
    "low_precision_unused": "GEMMs run on tensor cores",
    "unfused_attention": "attention is one kernel",
    "page_migration": "no pages move between host and GPU",
    "single_block": "a kernel of one block runs on the whole GPU",
    "gemms_at_ceiling": "all GEMMs and attention run at their ceilings",
    "bf16_for_fp32": "operators in FP32 run in BF16",
    "twice_the_bandwidth": "the GPU's memory has twice the bandwidth",
    "twice_the_network": "communication that computing does not hide takes half its time",
}
"""Differences in the graph, by the kind of a finding, a kind of work, or a question."""
_KEYS: Final = {"straggler": "straggler", "waiting_mpi": "straggler", "offloading": "copy"}
"""Keys of `StepFacts.changes` that are not called as the kind of the finding."""
_NUMBER: Final = re.compile(r"_\d+$")
_LATE: Final = ("straggler", "waiting_mpi")
_OF_KERNELS: Final = (
    "kernel_below_ceiling", "memory_bound", "low_precision_unused", "unfused_attention",
    "page_migration", "single_block",
)  # fmt: skip
"""Findings that say how much shorter kernels would be."""
_NAMED: Final = (*_LATE, *_OF_KERNELS, "many_small_kernels")
"""Kinds of which a run may have several: the title says which one a change is for."""
_WORTH: Final = 0.01
"""Changes that would save less than this share of a step are not listed, as findings."""
_FIRST: Final = 3
"""Findings that are replayed one after another: those of the first screen."""


@dataclass(frozen=True, slots=True)
class GraphChange:
    """One change of the graph of a program's steps, or several, and what it saves by a replay.

    Attributes
    ----------
    name : str
        The kind of a finding, with a number where there are several of one kind; or another key of
        `TITLES`.
    change : str
        The difference in words; of kernels and late ranks with the title of the finding.
    saving_s, step_s : float
        Of a step, and what is left of it.
    share : float
        `saving_s` of the step.
    """

    name: str
    change: str
    saving_s: float
    step_s: float
    share: float


@dataclass(frozen=True, slots=True)
class GraphChanges:
    """What changes of the graph of a program's steps would save, the largest saving first.

    `step_s` is the step that they save of: without the profiler, where that makes it longer and is
    named by `without`.
    `together` is what several of them save that were asked for at once.
    """

    label: str
    step_s: float
    changes: tuple[GraphChange, ...]
    together: GraphChange | None
    warnings: tuple[str, ...]
    without: str = ""


def changes_of(analysis: RunAnalysis, together: Sequence[str] = ()) -> GraphChanges:
    """Replay the steps of a run with changes: those of its findings, and others that are asked for.

    Of the steps without the profiler, where that makes them longer. A change that a finding is
    about has the saving that the finding says.

    Parameters
    ----------
    analysis : RunAnalysis
    together : sequence of str
        Names of changes that are replayed at once.

    Raises
    ------
    ModelError
        If there are no steps, or no change of such a name.
    """
    run = analysis.measured
    if analysis.steps is None or not analysis.steps.facts.step_s:
        raise ModelError(f"{run.label}: expected steps to replay; got none; see perfmodel analyze")
    facts = _facts(analysis.steps)
    step_s, replay = facts.step_s, _replay(analysis)
    known = dict(_of_findings(analysis, analysis.findings))
    done = {one.change for one in analysis.findings} | {_KEYS.get(name, name) for name in known}
    for name, change, less_s, later_s in _others(analysis):
        saved_s = step_s - replay.step_s(facts.base | change) if less_s is None else less_s
        if name not in done and max(saved_s, later_s) >= _WORTH * step_s:
            known[name] = _row(name, TITLES[_NUMBER.sub("", name)], saved_s, step_s), change
    unknown = [name for name in together if name not in known]
    if unknown:
        raise ModelError(
            f"expected changes of this run ({', '.join(known)}); got {', '.join(unknown)}"
        )
    rows = sorted((row for row, _ in known.values()), key=lambda row: -row.saving_s)
    at_once = _together(known, together, replay, facts) if together else None
    without = facts.recorder.name if facts.base.shorter_ns and facts.recorder else ""
    return GraphChanges(run.label, step_s, tuple(rows), at_once, analysis.warnings, without)


def one_after_another(analysis: RunAnalysis, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Say of the first findings what each saves where all before it are fixed: no more than alone.

    Steps that are long for a reason of their own are others than the median one, which is replayed.
    """
    if not findings or analysis.steps is None or not analysis.steps.facts.step_s:
        return tuple(findings)
    facts = _facts(analysis.steps)
    known = dict(_of_findings(analysis, findings))
    named = dict(zip(_names(findings), findings, strict=True))
    more = dict([*named.items()][:_FIRST])
    replay = _replay(analysis) if len(known.keys() & more.keys()) > 1 else None
    change, step_s, said = facts.base, facts.step_s, dict[str, float]()
    for name, finding in more.items():
        alone_s = finding.true_saving_s
        if alone_s is None:
            continue
        if finding.of_mean or (name in known and replay is None):
            said[name] = alone_s
        elif name in known and replay is not None:
            change |= known[name][1]
            left_s = replay.step_s(change)
            most_s = max(alone_s, finding.gpu_s or 0.0)
            said[name] = min(max(step_s - left_s, 0.0), most_s) if said else alone_s
            step_s = left_s
    return tuple(
        replace(finding, after_previous_s=said.get(name)) for name, finding in named.items()
    )


def _replay(analysis: RunAnalysis) -> Replay:
    assert analysis.steps is not None
    run = analysis.measured
    return replay_of(
        run.steps,
        lane_ranks(run.steps),
        kernels_of(run.steps),
        exchanges_of(run),
        analysis.run_steps.step_s,
    )


def _facts(steps: StepBreakdown) -> StepFacts:
    """Of the step that findings are ranked by."""
    return steps.facts.unrecorded or steps.facts


def _row(name: str, change: str, saving_s: float, step_s: float) -> GraphChange:
    return GraphChange(name, change, saving_s, step_s - saving_s, saving_s / step_s)


Known = Mapping[str, tuple[GraphChange, Change]]


def _names(findings: Sequence[Finding]) -> list[str]:
    """Names of findings: their kinds, with a number behind the second one of a kind."""
    kinds = [one.kind for one in findings]
    before = [kinds[:i].count(kind) for i, kind in enumerate(kinds)]
    return [f"{kind}_{n + 1}" if n else kind for kind, n in zip(kinds, before, strict=True)]


def _of_findings(
    run: RunAnalysis, findings: Sequence[Finding]
) -> Iterator[tuple[str, tuple[GraphChange, Change]]]:
    """Findings that a change of the graph is known for, by name, with their savings."""
    assert run.steps is not None
    facts = _facts(run.steps)
    replayed = [one for one in findings if not one.of_mean and one.kind in TITLES]
    for name, finding in zip(_names(replayed), replayed, strict=True):
        key = finding.change or _KEYS.get(finding.kind, finding.kind)
        change = facts.changes.get(name, facts.changes.get(key))
        saving_s = finding.true_saving_s or 0.0
        said = TITLES[key if finding.change else finding.kind]
        if finding.kind in _NAMED:
            said = f"{said}: {finding.title}"
        if finding.kind in _OF_KERNELS:
            change = _shorter_kernels(run, max(saving_s, finding.gpu_s or 0.0))
        if change is not None:
            yield name, (_row(name, said, saving_s, facts.step_s), change)


def _shorter_kernels(run: RunAnalysis, saving_s: float) -> Change | None:
    """All kernels are shorter by the same share, so much together."""
    assert run.steps is not None
    computing_s = max((rank.compute_s for rank in run.steps.ranks), default=0.0)
    if not computing_s:
        return None
    left = max(1.0 - saving_s / computing_s, 0.0)
    return Change(scale={(lane, "kernel"): left for lane in range(len(run.steps.ranks))})


def _others(run: RunAnalysis) -> Iterator[tuple[str, Change, float | None, float]]:
    """Changes that no finding is needed for: kinds of work, ceilings, types and bandwidths.

    With what each saves, None where its replay says that, and what it saves once launches cost
    nothing.
    """
    assert run.steps is not None
    facts = _facts(run.steps)
    for name, change in facts.changes.items():
        yield name, change, facts.saved_s(name) if name in facts.free_s else None, 0.0
    for name, less_s in _by_operators(run):
        if (change_of_all := _shorter_kernels(run, less_s)) is not None:
            now_s, next_s = facts.saved_s("kernel"), facts.kernels_next_s
            yield name, change_of_all, min(less_s, now_s), min(less_s, next_s)
    if facts.exposed_s:
        lanes = range(len(run.steps.ranks))
        half = {(lane, "exposed_communication"): 0.5 for lane in lanes}
        yield "twice_the_network", Change(scale=half), None, 0.0


def _by_operators(run: RunAnalysis) -> Iterator[tuple[str, float]]:
    """GPU time that operators of known sizes would take less.

    An operator in another type takes the same multiple of its least time, it is assumed, as now.
    """
    if run.work is None or run.machine is None:
        return
    from perfmodel.analysis.operators import operator_facts  # most reports name none

    rows = [row for row in operator_facts(run.work) if row.least_s and row.bound != "latency"]
    peaks, hbm = run.machine.peak_flops_per_s, run.machine.bandwidth_bytes_per_s.get("hbm")
    yield "gemms_at_ceiling", sum(max(r.gpu_s - r.least_s, 0.0) for r in rows if r.flops)
    yield "twice_the_bandwidth", sum(r.gpu_s / 2 for r in rows if r.bound == "memory")
    half = peaks.get("bfloat16_tensor", peaks.get("float16_tensor"))
    if half and hbm:
        yield (
            "bf16_for_fp32",
            sum(
                r.gpu_s * (1.0 - min(1.0, _in_half(r, half, hbm) / r.least_s))
                for r in rows
                if r.dtype == "float32"
            ),
        )


def _in_half(row: OperatorRow, peak_flops_per_s: float, hbm_bytes_per_s: float) -> float:
    """Least time of an operator on half as many bytes, at the peak of 16-bit types."""
    return max((row.flops or 0.0) / peak_flops_per_s, (row.bytes or 0.0) / 2 / hbm_bytes_per_s)


def _together(known: Known, names: Sequence[str], replay: Replay, facts: StepFacts) -> GraphChange:
    """Replay several changes at once: they save at least what the largest does.

    One alone saves what it says. Where a finding says less than its replay, since a GPU idles no
    longer by that cause, several save no more than all alone; else they may.
    """
    chosen = [known[name] for name in dict.fromkeys(names)]
    alone = [row.saving_s for row, _ in chosen]
    change, step_s = facts.base, facts.step_s
    for _, one in chosen:
        change |= one
    less = any(step_s - replay.step_s(facts.base | one) > row.saving_s for row, one in chosen)
    at_once = step_s - replay.step_s(change)
    saving_s = max(min(at_once, sum(alone)) if less else at_once, *alone)
    return _row(" + ".join(row.name for row, _ in chosen), "together", saving_s, step_s)

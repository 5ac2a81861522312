"""Changes of the graph of a program's steps: what each saves, and several at once.

A change removes, shortens, overlaps, moves or joins work. What it saves says `timing.ledger`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from perfmodel.base.errors import ModelError
from perfmodel.findings import WORTH, Finding, kinds
from perfmodel.timing.critical_path import EXPOSED, Change
from perfmodel.timing.host_timeline import CAUSE_NAMES
from perfmodel.timing.ledger import Item, Ledger
from perfmodel.timing.step_facts import DISPATCH

if TYPE_CHECKING:
    from perfmodel.analysis.result import RunAnalysis
    from perfmodel.programs.facts import OperatorRow

WORDS: Final[Mapping[str, str]] = {
    DISPATCH: "neither launches nor the host's work between them cost anything",
    "communication": "no communication by MPI",
    "other": "CUDA graphs launch at once",
    "dependency": "launched work waits for nothing that was not recorded",
    "kernel": "kernels take no time",
    "gemms_at_ceiling": "all GEMMs and attention run at their ceilings",
    "bf16_for_fp32": "operators in FP32 run in BF16",
    "twice_the_bandwidth": "the GPU's memory has twice the bandwidth",
    "twice_the_network": "communication that computing does not hide takes half its time",
}
"""Differences in the graph by a kind of work, or a question; kinds of findings have their own."""


@dataclass(frozen=True, slots=True)
class GraphChange:
    """One change of the graph of a program's steps, or several, and what it saves.

    Attributes
    ----------
    name : str
        The key of a finding, or of `StepFacts.changes`, or a question of `WORDS`.
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

    Parameters
    ----------
    analysis : RunAnalysis
    together : sequence of str
        Names of changes that are made at once.

    Raises
    ------
    ModelError
        If there are no steps, no change of such a name, or several with one that cannot be
        replayed.
    """
    run, ledger = analysis.measured, analysis.ledger
    if analysis.steps is None or not analysis.steps.facts.step_s:
        raise ModelError(f"{run.label}: expected steps to replay; got none; see perfmodel analyze")
    known: dict[str, tuple[str, Item]] = {}
    for finding in analysis.findings:
        if finding.saving_s is not None and not finding.of_mean:
            known[finding.key] = _words(finding), item_of(analysis, finding)
    done = {one.change for one in analysis.findings} | known.keys()
    words = {**{k.replays or k.key: k.change for k in kinds().values()}, **WORDS}
    for item in _others(analysis):
        if item.key not in done and max(item.alone_s, item.most_s) >= WORTH * ledger.step_s:
            kind = item.key.partition("-")[0]
            known[item.key] = words.get(kind, f"no time for: {CAUSE_NAMES.get(kind, kind)}"), item
    of_some = [one.key for one in analysis.findings if one.of_mean and one.key in together]
    if of_some:
        raise ModelError(
            f"expected changes of the median step, which is replayed; got {', '.join(of_some)}, "
            f"which is about some steps only; leave it out"
        )
    unknown = [name for name in together if name not in known]
    if unknown:
        raise ModelError(
            f"expected changes of this run ({', '.join(known)}); got {', '.join(unknown)}"
        )
    rows = sorted(
        (_row(name, words, ledger.saved_s(item), ledger) for name, (words, item) in known.items()),
        key=lambda row: -row.saving_s,
    )
    recorder = analysis.steps.facts.recorder
    without = recorder.name if recorder and recorder.matters else ""
    at_once = _at_once([known[name][1] for name in together], ledger) if together else None
    return GraphChanges(run.label, ledger.step_s, tuple(rows), at_once, analysis.warnings, without)


def item_of(run: RunAnalysis, finding: Finding) -> Item:
    """Return the change that a finding is about, with what it saves.

    Steps that are long for a reason of their own are others than the median one, which is replayed:
    such a finding is a bound.
    """
    alone_s = finding.saving_s or 0.0
    most_s = max(alone_s, finding.gpu_s or 0.0)
    change = None
    if run.steps is not None and not finding.of_mean:
        if kinds()[finding.kind].shortens_kernels:
            change = _shorter_kernels(run, most_s)
        else:
            change = run.steps.facts.changes.get(finding.change)
    return Item(finding.key, change, alone_s, most_s)


def _words(finding: Finding) -> str:
    """What a finding's change is; with its title where a run may have several of its kind."""
    kind = kinds()[finding.kind]
    words = WORDS.get(finding.change, kind.change)
    return f"{words}: {finding.title}" if kind.several else words


def _row(name: str, words: str, saving_s: float | None, ledger: Ledger) -> GraphChange:
    saved_s = saving_s or 0.0
    return GraphChange(name, words, saved_s, ledger.step_s - saved_s, saved_s / ledger.step_s)


def _at_once(items: Sequence[Item], ledger: Ledger) -> GraphChange:
    """Make several changes at once."""
    after_s = ledger.step_after(items)
    if after_s is None:
        bounds = [item.key for item in items if item.change is None]
        raise ModelError(
            f"expected changes that can be replayed together; {', '.join(bounds)} is known as a "
            f"bound only; leave it out"
        )
    names = " + ".join(dict.fromkeys(item.key for item in items))
    return _row(names, "together", ledger.step_s - after_s, ledger)


def _shorter_kernels(run: RunAnalysis, saving_s: float) -> Change | None:
    """All kernels are shorter by the same share, so much together."""
    assert run.steps is not None
    computing_s = max((rank.part_s("compute") for rank in run.steps.ranks), default=0.0)
    if not computing_s:
        return None
    left = max(1.0 - saving_s / computing_s, 0.0)
    return Change(scale={(lane, "kernel"): left for lane in range(len(run.steps.ranks))})


def _others(run: RunAnalysis) -> Iterator[Item]:
    """Changes that no finding is needed for: kinds of work, ceilings, types and bandwidths."""
    assert run.steps is not None
    facts, ledger = run.steps.facts, run.ledger

    def saved_s(change: Change) -> float:
        return max(ledger.step_s - ledger.replayed_s(change), 0.0)

    for name, change in facts.changes.items():
        alone_s = facts.saved_s(name) if name in facts.free_s else saved_s(change)
        yield Item(name, change, alone_s, alone_s)
    for name, less_s in _by_operators(run):
        if (change_of_all := _shorter_kernels(run, less_s)) is not None:
            now_s, next_s = facts.saved_s("kernel"), facts.kernels_next_s
            alone_s = min(less_s, now_s)
            yield Item(name, change_of_all, alone_s, max(alone_s, min(less_s, next_s)))
    if facts.exposed_s:
        lanes = range(len(run.steps.ranks))
        half = Change(scale={(lane, EXPOSED): 0.5 for lane in lanes})
        yield Item("twice_the_network", half, saved_s(half), saved_s(half))


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

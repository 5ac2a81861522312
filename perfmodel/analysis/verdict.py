"""The verdict on a run: what limits a step, what to do, and what the step would then take.

One object, made once, which the terminal, the page, JSON and notebooks show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from perfmodel.analysis.changes import item_of
from perfmodel.analysis.result import RankRow
from perfmodel.base.units import percent, si
from perfmodel.findings import WORTH, Part, kinds
from perfmodel.readers.trace import GRAPH, KERNEL, NO_CALLS, TORCH_PROFILER
from perfmodel.timing.host_timeline import CAUSE_CLAUSES
from perfmodel.timing.ledger import Item
from perfmodel.timing.trim import LAUNCHES

if TYPE_CHECKING:
    from perfmodel.analysis.result import RunAnalysis
    from perfmodel.findings import Finding
    from perfmodel.programs.facts import ServingRow
    from perfmodel.timing.first_calls import FirstCall

FIXES: Final = 3
"""Findings that a summary shows."""
CAVEATS: Final = 2
"""Caveats that a summary shows."""
_LEADS: Final = 0.05
"""A finding that would save this share of a step is named in the verdict: times of the same step
differ by less from run to run (benchmarks/results/reruns.json)."""
_MOST: Final = 0.5
"""Above this share a part is most of the whole."""
_OUTSIDE: Final = 0.05
"""Share of the GPU's time outside steps that a reader must know of."""
_FEW: Final = 3
"""Fewer steps say nothing of how far steps differ."""
_SURE: Final = 0.9
"""Steps with a lower probability are called unsure, as in `render.summary`."""

_COUNTED: Final = 0.5
"""Where formulas cover a smaller share of the computing time, MFU says nothing."""
_OF_FLOOR: Final[Mapping[str, str]] = {
    "memory": "memory needs {} for weights and KV cache",
    "compute": "its FLOPs need {}",
    "exchange": "the link needs {} for its exchanges",
}

Certainty = Literal["replayed", "bound", "estimate", "few steps", ""]
_LIMITS: Final[dict[Part, str]] = {
    "compute": "The GPU{of} computes {share} of each step",
    "communication": "Communication that nothing hides takes {share} of each step",
    "waiting": "Ranks wait for each other {share} of each step",
    "copies": "{copies} that nothing hides {take} {share} of each step",
    "idle": "The GPU{of} is idle {share} of each step",
}
"""`of` names the rank, where there are several; `copies` are copies, or settings of memory."""
_WITHOUT_GPU: Final[dict[Part, str]] = {
    "compute": "Work outside MPI takes {share} of each step",
    "communication": "MPI takes {share} of each step",
    "waiting": "Ranks wait for each other {share} of each step",
    "copies": "{copies} {take} {share} of each step",
    "idle": "{share} of each step is unexplained",
}
_SERVED: Final[dict[Part, str]] = {
    "compute": "The GPU computes {share} of it",
    "communication": "Communication that nothing hides takes {share} of it",
    "waiting": "Ranks wait for each other {share} of it",
    "copies": "{copies} that nothing hides {take} {share} of it",
    "idle": "The GPU is idle {share} of it",
}
"""Behind a sentence on the step of an engine."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a step.

    Attributes
    ----------
    text : str
        One or two sentences.
    kind : str
        Of the first finding, where that leads; else the largest part of a step (`compute`,
        `communication`, `waiting`, `copies`, `idle`); `kernels_not_recorded`, `outside_steps` and
        `cold_start` where the recording does not show what limits a step.
    saving_s : float or None
        Saving of the first finding.
    rank : int or None
        The late rank.
    """

    text: str
    kind: str
    saving_s: float | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Fix:
    """A finding in a summary: what to do, what it saves, and what a step then takes.

    Attributes
    ----------
    key, kind, title, action : str
        As of the finding.
    saving_s : float or None
        Of this one alone.
    after_previous_s : float or None
        Saving where those before it are fixed; None where no order is known.
    step_s : float or None
        Step with all fixes up to this one; None where no order is known. The mean step where
        `of_mean`.
    of_mean : bool
        Whether it is about some steps only: `saving_s` and `share` are then of the mean step.
    share : float or None
    certainty : {'replayed', 'bound', 'estimate', 'few steps', ''}
        Where the saving is from: a replay of the steps; a formula, as an upper bound; the step
        without the profiler, which is estimated; one or two steps only. '' where it is unknown.
    line : str or None
    range : str or None
        Place with most of the loss, as far as that is known.
    """

    key: str
    kind: str
    title: str
    action: str
    saving_s: float | None
    after_previous_s: float | None
    step_s: float | None
    share: float | None
    certainty: Certainty
    line: str | None
    range: str | None
    of_mean: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """What a reader sees first.

    Attributes
    ----------
    verdict : Verdict
    recorded_s, step_s : float
        The median step as recorded, and without the profiler where that is known.
    low_s, high_s : float or None
        An interval of `step_s` that holds nine in ten, where a profiler makes steps longer.
    recorder : str
        The profiler, where it does; else ''.
    steps, ranks : int
    uses_gpu, uses_mpi : bool
        Whether GPU work, and calls of MPI, were recorded.
    bars : tuple of RankRow
    fixes : tuple of Fix
        At most `FIXES`; `findings` counts all. None where the recording does not show the steps.
    findings : int
    bound_s : float or None
        A step of the work alone: without idle time and waiting, of the rank with most of it.
    mfu : float or None
        Of `step_s`.
    caveats : tuple of str
        At most `CAVEATS`.
    """

    verdict: Verdict
    recorded_s: float
    step_s: float
    low_s: float | None
    high_s: float | None
    recorder: str
    steps: int
    ranks: int
    uses_gpu: bool
    uses_mpi: bool
    bars: tuple[RankRow, ...]
    fixes: tuple[Fix, ...]
    findings: int
    bound_s: float | None
    mfu: float | None
    caveats: tuple[str, ...]


def summarize(run: RunAnalysis) -> Summary:
    """Sum up a run: its verdict, its parts, the first findings and what to know of them."""
    recorder = run.steps.facts.recorder if run.steps else None
    longer = recorder if recorder is not None and recorder.matters else None
    recorded_s, step_s = run.ledger.recorded_s, run.ledger.step_s
    bars = tuple(row for row in run.ranks if row.step_s and row.compute_s is not None)
    uses_gpu = any(row.gpu is not None for row in run.ranks)
    work = [bar.whole_s - bar.part_s("idle") - bar.part_s("waiting") for bar in bars]
    bound_s = min(max(work), step_s) if work and max(work) > 0 else None
    unseen = _not_recorded(run)
    return Summary(
        verdict=unseen or _verdict(run, bars, step_s, uses_gpu=uses_gpu),
        recorded_s=recorded_s,
        step_s=step_s,
        low_s=longer.low_s if longer else None,
        high_s=longer.high_s if longer else None,
        recorder=longer.name if longer else "",
        steps=run.batch.count,
        ranks=len(run.ranks),
        uses_gpu=uses_gpu,
        uses_mpi=any(len(trace.mpi) for trace in run.traces),
        bars=bars,
        fixes=() if unseen else tuple(_fixes(run)),
        findings=len(run.findings),
        bound_s=None if unseen else bound_s,
        mfu=_mfu(run),
        caveats=tuple(_caveats(run, uses_gpu=uses_gpu))[:CAVEATS],
    )


def _mfu(run: RunAnalysis) -> float | None:
    """MFU of a step whose FLOPs are counted; a decode is bound by the memory."""
    work = run.work
    if work is None or work.mfu is None or work.modelled < _COUNTED:
        return None
    return None if run.serving and run.serving[0].phase == "decode" else work.mfu.of_step


def _of_engine(run: RunAnalysis, step_s: float) -> str:
    """Say what the median step of the phase with most time does; of one batch alone, unprofiled."""
    from perfmodel.analysis.serving import usual_rows

    row = usual_rows(run.serving)[0]
    like = [one.generations for one in run.serving if one.phase == row.phase]
    others = f" (of {min(like):,.0f} to {max(like):,.0f})" if len(like) > 1 else ""
    return _served(row, step_s if len(run.serving) == 1 else row.step_s, others)


def _served(row: ServingRow, step_s: float, others: str) -> str:
    """Say what an engine's step does, and by how much it is above its floor.

    `others` says how many sequences other steps of the phase have.
    """
    prompts, tokens = row.sequences - row.generations, f"{row.context_tokens:,.0f} tokens"
    of_prompts = f"{prompts:,.0f} prompt{'s' * (prompts != 1)} ({tokens})"
    answers = f"{row.generations:,.0f} sequence{'s' * (row.generations != 1)}"
    what = {
        "decode": f"A decode of {answers}",
        "prefill": f"A prefill of {of_prompts}",
        "mixed": f"A step of {of_prompts} and a decode of {answers}",
    }[row.phase]
    takes = f"{what}{others} takes {si(step_s, 's')}"
    if not row.floor_s or row.floor_by is None:
        return takes
    least = _OF_FLOOR[row.floor_by].format(si(row.floor_s, "s"))
    times = step_s / row.floor_s
    return f"{takes}, {times:.{0 if times >= 10 else 1}f} times its floor: {least}"


def _fixes(run: RunAnalysis) -> Iterator[Fix]:
    """The first findings; each with what it saves alone, and behind those before it.

    One that saves nothing, neither alone nor behind the others, is left out.
    """
    step_s = run.ledger.step_s
    items: list[Item] = []
    for one in run.findings[:FIXES]:
        item = item_of(run, one)
        after_s = run.ledger.saved_s(item, items) if one.saving_s is not None else None
        if one.saving_s is not None and max(one.saving_s, after_s or 0.0) < WORTH * step_s:
            continue
        items.append(item)
        left_s = run.ledger.step_after(items) if after_s is not None else None
        if one.of_mean and len(items) == 1:
            left_s = max(_whole_s(run, one) - item.alone_s, 0.0)
        yield Fix(
            key=one.key,
            kind=one.kind,
            title=one.title,
            action=one.action,
            saving_s=one.saving_s,
            after_previous_s=after_s,
            step_s=left_s,
            share=one.share,
            certainty=_certainty(run, one, item),
            line=one.line,
            range=one.range,
            of_mean=one.of_mean,
        )


def _whole_s(run: RunAnalysis, one: Finding) -> float:
    """The step that a finding is about: the mean one, where only some steps have it."""
    ledger = run.ledger
    return ledger.without_recorder_s(run.batch.mean_s) if one.of_mean else ledger.step_s


def _certainty(run: RunAnalysis, one: Finding, item: Item) -> Certainty:
    """Say where a saving is from."""
    if one.saving_s is None:
        return ""
    if run.batch.count < _FEW:
        return "few steps"
    recorder = run.steps.facts.recorder if run.steps else None
    guessed = recorder is not None and recorder.matters and recorder.source == "estimated"
    if guessed and (item.change is not None or kinds()[one.kind].part == "idle"):
        return "estimate"
    return "bound" if item.change is None else "replayed"


def _verdict(
    run: RunAnalysis, bars: tuple[RankRow, ...], step_s: float, *, uses_gpu: bool
) -> Verdict:
    """Say what limits a step, the first thing to do, and what a step then takes."""
    engine = f"{_of_engine(run, step_s)}. " if run.serving else ""
    first = next((one for one in run.findings if one.saving_s is not None), None)
    if first is None or (first.share or 0.0) < _LEADS:
        part, limit = _limit(run, bars, step_s, uses_gpu=uses_gpu)
        hidden = bool(run.serving) and run.serving[0].hidden > _COUNTED
        what = "Nothing that the recording shows" if hidden else "No change that perfmodel knows"
        nothing = f"{what} would save 1 % of it"
        small = "No finding would save 5 % of it" if first else nothing
        return Verdict(f"{engine}{limit}. {small}.", part, first.saving_s if first else None)
    saved_s = first.saving_s or 0.0
    whole_s = _whole_s(run, first)
    then_s = max(whole_s - saved_s, 0.0)
    step, place = "a step", f" in place of {si(whole_s, 's')}"
    if first.of_mean:
        step, place = f"the mean step of {si(whole_s, 's')}", ""
    least, less = si(then_s, "s"), percent(first.share or 0.0)
    fixed = f"{first.remedy} {step} takes at best {least}{place} ({less} less)."
    return Verdict(
        f"{engine}{_cause(run, first, bars, step_s, uses_gpu=uses_gpu)}. {fixed}",
        first.kind,
        first.saving_s,
        first.rank if kinds()[first.kind].of_ranks else None,
    )


_EXCHANGING: Final[tuple[Part, ...]] = ("communication", "waiting")


def _cause(
    run: RunAnalysis, first: Finding, bars: tuple[RankRow, ...], step_s: float, *, uses_gpu: bool
) -> str:
    """Say what limits a step by the first finding, with the share of the part that it is about."""
    kind = kinds()[first.kind]
    part, share = kind.part, percent(first.share or 0.0)
    title = kind.limits.format(title=f"{first.title[0].upper()}{first.title[1:]}", share=share)
    if part == "waiting":
        waits_s = max((bar.part_s("waiting") for bar in bars), default=0.0)
        others = f"; the others wait up to {si(waits_s, 's')} per step for it"
        return title + others * (waits_s > 0)
    if part is None or not bars or first.of_mean:
        return title
    if part == "communication" and uses_gpu:  # the title says the same
        spent = {one: max(bar.part_s(one) for bar in bars) for one in _EXCHANGING}
        most: Part = max(_EXCHANGING, key=lambda one: spent[one])
        return _limit(run, bars, step_s, uses_gpu=uses_gpu, part=most)[1]
    limit = _limit(run, bars, step_s, uses_gpu=uses_gpu, part=part)[1]
    loss = f"it waits {first.waits}" if first.waits else first.title
    return f"{limit}: {loss}"


def _limit(
    run: RunAnalysis,
    bars: tuple[RankRow, ...],
    step_s: float,
    *,
    uses_gpu: bool,
    part: Part | None = None,
) -> tuple[Part, str]:
    """A part of a step, by default the largest of the slowest rank's, and a sentence that says so.

    Of a given part the rank that has most of it counts.
    """
    if not bars:
        return "compute", f"A step takes {si(step_s, 's')}"
    share: dict[int, dict[Part, float]] = {
        bar.rank: {name: bar.part_s(name) / (bar.whole_s or 1.0) for name in _LIMITS}
        for bar in bars
    }
    rank = max(bars, key=lambda bar: bar.whole_s if part is None else share[bar.rank][part]).rank
    largest: Part = max(_LIMITS, key=lambda name: share[rank][name])
    named = part or largest
    of = f" of rank {rank}" if part is not None and len(bars) > 1 else ""
    words = _SERVED if run.serving else _LIMITS if uses_gpu else _WITHOUT_GPU
    copies, take = ("Setting memory", "takes") if _only_sets(run) else ("Copies", "take")
    limit = words[named].format(share=percent(share[rank][named]), of=of, copies=copies, take=take)
    return named, limit if part is not None else limit + _mostly(run, named)


def _only_sets(run: RunAnalysis) -> bool:
    """Whether a step's copies only set memory."""
    found = {one.category for one in run.steps.categories} if run.steps else set()
    return "memset" in found and "copy" not in found


def _mostly(run: RunAnalysis, part: Part) -> str:
    """What most of a part is, where one kind of it is most."""
    if run.steps is None:
        return ""
    if part == "compute":
        busy = {
            c.category: c.seconds for c in run.steps.categories if c.category != "communication"
        }
    elif part == "idle":
        busy = {}
        for one in run.steps.facts.idle:
            clause = CAUSE_CLAUSES.get(one.cause, one.cause)
            busy[clause] = busy.get(clause, 0.0) + one.seconds
    else:
        return ""
    total = sum(busy.values())
    most = max(busy, key=lambda name: busy[name], default="")
    named = most != "unknown" and total and busy[most] > _MOST * total
    return f", mostly {most}" if named else ""


def _not_recorded(run: RunAnalysis) -> Verdict | None:
    """A verdict on a recording that does not show the steps."""
    torch = any(trace.recorder == TORCH_PROFILER for trace in run.traces)
    flag = "activities=[CPU, CUDA]" if torch else "--trace=cuda,nvtx,mpi"
    launches = sum(_launches(run))
    if launches and not any(np.isin(t.ops.kind, (KERNEL, GRAPH)).any() for t in run.traces):
        copies = sum(len(trace.ops) for trace in run.traces)
        besides = f", beside {copies:,} copies" if copies else ""
        return Verdict(
            f"The kernels were not recorded: {launches:,} kernel launches and no kernel{besides}. "
            f"Record them with {flag}.",
            "kernels_not_recorded",
        )
    recorded = [len(trace.ops) + len(trace.mpi) for trace in run.traces]
    if torch and not any(recorded):
        taken = si(run.batch.median.value, "s")
        return Verdict(
            f"No GPU work was recorded: a step takes the CPU {taken}, and nothing says what limits "
            f"it. Record the GPU's work with {flag}.",
            "kernels_not_recorded",
        )
    if not any(recorded) and run.identity.config.get("backend") != "numpy":
        return Verdict(
            f"Neither GPU operations nor MPI calls were recorded, so that nothing says what limits "
            f"a step. Record them with {flag}.",
            "kernels_not_recorded",
        )
    steps = run.steps if run.program.step_clock == "gpu" else None
    if steps is not None and steps.found_by != "asked" and steps.unattributed > _MOST:
        return Verdict(
            f"{percent(steps.unattributed)} of the GPU's time is outside the steps. Name the range "
            f"that is one step with --batch-range, or see --section levels.",
            "outside_steps",
        )
    few = run.batch.count < _FEW or (steps is not None and steps.facts.long is not None)
    return _cold_start(run) if steps is not None and few else None


def _cold_start(run: RunAnalysis) -> Verdict | None:
    """A verdict on few steps, or unequal ones, whose time is mostly that of first calls.

    What first calls of CUDA's functions take longer than later ones is then at least half of the
    time in which the GPU works, and of that in which it does not: in the steps, and in first calls
    before them.
    """
    if run.steps is None:
        return None
    process = max(_processes(run), key=lambda calls: sum(c.longer_s for c in calls), default=())
    longer_s = sum(call.longer_s for call in process)
    steps_s = run.batch.count * run.batch.mean_s
    busy_s = run.batch.count * max((rank.gpu_busy_s or 0.0 for rank in run.steps.ranks), default=0)
    idle_s = max(steps_s, longer_s) - busy_s
    if not process or longer_s < _MOST * max(busy_s, idle_s):
        return None
    torch = any(trace.recorder == TORCH_PROFILER for trace in run.traces)
    later = "schedule(wait=5, warmup=5, active=8)" if torch else "nsys profile --delay=SECONDS"
    steps = "step" if run.batch.count == 1 else f"{run.batch.count} steps"
    longest = process[0]
    if longest.longer_s >= _SURE * longer_s:
        said = f"One {longest.name} takes {si(longest.seconds, 's')}"
    else:
        said = (
            f"{len(process)} first calls, such as {longest.name}, take {si(longer_s, 's')} more "
            f"than later ones"
        )
    return Verdict(
        f"{said}, the recorded {steps} {si(steps_s, 's')}: this is a cold start. Record later "
        f"steps, with {later}.",
        "cold_start",
    )


def _processes(run: RunAnalysis) -> Iterator[tuple[FirstCall, ...]]:
    """First calls that took longer than later ones, process by process, the longest first."""
    for report in run.measured.steps:
        for one in sorted({call.process for call in report.first_calls}):
            yield tuple(call for call in report.first_calls if call.process == one)


def _launches(run: RunAnalysis) -> Iterator[int]:
    """Kernel launches of each report."""
    for trace in run.traces:
        codes = [i for i, name in enumerate(trace.strings) if name.startswith(LAUNCHES)]
        if codes and len(trace.api):
            yield sum(int((trace.api.name == code).sum()) for code in codes)


def _without_floor(run: RunAnalysis) -> str:
    """Say what the least time of an engine's steps needs."""
    if run.machine is None:
        return "The floor is not known: give the GPU by --machine"
    if run.serving[0].hidden > _COUNTED:
        return "CUDA graphs hide the floor: give --shapes CAPTURE, or --decoder MODEL"
    return "The floor is not known: record sizes (record_shapes), or give --decoder MODEL"


def _hides(run: RunAnalysis) -> bool:
    """Whether CUDA graphs replay kernels without operators, which have most of the time."""
    hidden = any(one.hidden for one in run.measured.operators)
    return hidden and run.work is not None and run.work.modelled < _COUNTED


def _paused(run: RunAnalysis) -> Iterator[str]:
    """Say how long pauses between steps are, where they are more than half as long as all steps.

    Of the process with the longest pauses, whichever report it is in.
    """
    longer: dict[tuple[int, int], float] = {}
    for at, report in enumerate(run.measured.steps):
        for pause in report.pauses:
            key = at, pause.process
            longer[key] = longer.get(key, 0.0) + pause.longer
    most = max(longer.values(), default=0.0)
    if most > _MOST * run.batch.count:
        yield f"Pauses between steps last as long as {most:.0f} steps: see --section warnings"


def _caveats(run: RunAnalysis, *, uses_gpu: bool) -> Iterator[str]:
    """What to know of the numbers, what matters most first."""
    steps, count = run.steps, run.batch.count
    if run.serving and run.serving[0].floor_s is None:
        yield _without_floor(run)
    elif _hides(run):
        yield "CUDA graphs hide the operators: --shapes CAPTURE shows which lose most"
    if steps is not None and len(steps.candidates) > 1 and steps.candidates[0].score < _SURE:
        yield (
            f"What a step is, is not sure ({percent(steps.candidates[0].score)}): "
            f"see --section levels"
        )
    if steps is not None and run.program.step_clock == "gpu" and steps.unattributed > _OUTSIDE:
        yield f"{percent(steps.unattributed)} of the GPU's time is outside the steps"
    if any(NO_CALLS in said.text for trace in run.traces for said in trace.diagnostics):
        yield "No CUDA calls were recorded: GPU idle time has no known cause"
    yield from _paused(run)
    if count < _FEW:
        yield f"Only {count} step{'s' * (count != 1)} recorded: no interval; record more"
    sized = bool(run.workload.ranges or run.serving or (run.work and run.work.modelled))
    if uses_gpu and not sized:
        torch = any(trace.recorder == TORCH_PROFILER for trace in run.traces)
        flag = "record_shapes=True" if torch else "--pytorch=autograd-shapes-nvtx"
        if run.program.name in ("pytorch", "steps"):
            yield f"FLOPs and MFU are unknown; record sizes with {flag}"
        else:
            yield "FLOPs and MFU are unknown: the recording has no sizes of operators"

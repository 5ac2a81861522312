"""What a reader of a comparison sees first: what changed, why, and what limits a step now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from perfmodel.analysis.analyze import analyze_run
from perfmodel.analysis.compare.compare import (
    LEAST,
    Comparison,
    Row,
    Side,
    Verdict,
    addressed,
    each,
)
from perfmodel.analysis.compare.series import FLOPS, GPU_IDLE, TOKENS
from perfmodel.analysis.result import RankRow, RunAnalysis
from perfmodel.analysis.verdict import CAVEATS, Fix
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.units import percent, si
from perfmodel.findings import Finding
from perfmodel.programs.program import Options
from perfmodel.timing.host_timeline import CAUSE_CLAUSES

_LEADS: Final = 0.05
"""A finding that would save this share of a step is named: times of the same step differ by less
from run to run (benchmarks/results/reruns.json)."""
_MOST: Final = 0.5
"""Above this share a part is most of the whole."""
_EQUAL: Final = 0.005
"""Ratios that are printed as 0 %."""
_TWICE: Final = 2.0
"""From here on a change is said as a factor: 16.7x, not 1569 %."""
_NAMED: Final = 2
"""Kinds of work, or settings, that a sentence names."""
_SLOWEST_LINK: Final = 1e9
"""Bytes/s that every link reaches (pageable memory over PCIe 3: 3e9): fewer bytes than that in 1 %
of a step are not named."""
_BYTES: Final = "bytes "
_OPPOSITE: Final[dict[Verdict, Verdict]] = {
    "faster": "slower", "slower": "faster", "only before": "only after",
    "only after": "only before",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ComparedSummary:
    """What a reader of a comparison sees first.

    Attributes
    ----------
    text : str
        What changed: the work of a step where that is not equal, its time, and the reason.
    verdict : {'faster', 'slower', 'within noise', 'only before', 'only after', 'not tested'}
        Of a step; of a sample or token, where a step has not as many on the two sides.
    before, after : RankRow or None
        The step of the slowest rank in its parts, of the middle run of a side; without the
        profiler where it makes steps longer.
    gone, new : tuple of Finding
        Findings of one side alone that would save 5 % of its step or more, the largest first.
    limit : str or None
        What limits a step now.
    fix : Fix or None
        Next action against the limit.
    caveats : tuple of str
        At most two.
    """

    text: str
    verdict: Verdict
    before: RankRow | None
    after: RankRow | None
    gone: tuple[Finding, ...]
    new: tuple[Finding, ...]
    limit: str | None
    fix: Fix | None
    caveats: tuple[str, ...]


def analyzed(side: Side) -> RunAnalysis | None:
    """Analyze the middle run of a side; None where it was not measured, or cannot be analyzed."""
    if side.middle is None:
        return None
    run, warmup = side.middle
    try:
        return analyze_run(run, Options(warmup=warmup))
    except PerfmodelError:
        return None


def summarize(
    c: Comparison, before: RunAnalysis | None = None, after: RunAnalysis | None = None
) -> ComparedSummary:
    """Sum up a comparison and the analyses of both sides' middle runs, where they are known."""
    now = after.summary if after else None
    batch = c.batch if c.unit is None else each(c.batch, c.unit.ratio)
    return ComparedSummary(
        text=" ".join([*_work(c), _change(c, batch)]),
        verdict=batch.verdict,
        before=_slowest(before),
        after=_slowest(after),
        gone=_alone(before, after),
        new=_alone(after, before),
        limit=now.verdict.text if now else None,
        fix=now.fixes[0] if now and now.fixes else None,
        caveats=tuple(_caveats(c))[:CAVEATS],
    )


def _slowest(run: RunAnalysis | None) -> RankRow | None:
    """The slowest rank's step in parts."""
    return max(run.summary.bars, key=lambda bar: bar.whole_s, default=None) if run else None


def _alone(run: RunAnalysis | None, other: RunAnalysis | None) -> tuple[Finding, ...]:
    """Findings that lead, and that the other side has not at all."""
    if run is None or other is None:
        return ()
    known = {(one.kind, one.rank, one.subject) for one in other.findings}
    step_s = run.summary.step_s
    found = [
        one
        for one in run.findings
        if (one.saving_s or 0.0) >= _LEADS * step_s
        and (one.kind, one.rank, one.subject) not in known
    ]
    return tuple(sorted(found, key=lambda one: -(one.saving_s or 0.0)))


def _work(c: Comparison) -> Iterator[str]:
    """Say what else a step does after, or does more or less of."""
    sizes = [d for d in c.differences if d.workload]
    if c.unit is not None:
        yield (f"A step has {c.unit.after:,.0f} {c.unit.name}s in place of {c.unit.before:,.0f}.")
    elif sizes:
        yield f"The sides do not compute the same ({'; '.join(map(str, sizes[:_NAMED]))})."
    else:
        few = _SLOWEST_LINK * LEAST * (c.batch.before_s or 0.0)
        said = [
            f"{_amount(w.name, w.after)} in place of {_amount(w.name, w.before, bare=True)}"
            for w in c.work
            if not w.name.startswith(_BYTES) or max(w.before, w.after) > few
        ][:_NAMED]
        if said:
            yield f"A step has {', and '.join(said)}."


def _amount(name: str, value: float, *, bare: bool = False) -> str:
    if name == FLOPS:
        return si(value, "FLOP")
    if name.startswith(_BYTES):
        return si(value, "B") + ("" if bare else name.removeprefix(_BYTES.strip()))
    return f"{value:,.0f}" + ("" if bare else f" {name if name != TOKENS else 'tokens'}")


def _change(c: Comparison, batch: Row) -> str:
    """Say by how much a step became faster or slower, whether that is certain, and why."""
    if not batch.before_s or not batch.after_s:
        return f"A step takes {si(batch.after_s or batch.before_s, 's')}."
    ratio = batch.after_s / batch.before_s
    step = f"A {c.unit.name}" if c.unit else "A step"
    # in time per sample, where a step has not as many
    old, new = batch.before_s, batch.after_s
    if c.unit is not None:
        old, new = old / c.unit.before, new / c.unit.before
    times = f"({si(new, 's')} in place of {si(old, 's')})"
    if ratio <= 1 / _TWICE:
        said = f"{step} is {1 / ratio:.3g}x as fast {times}"
    elif ratio >= _TWICE:
        said = f"{step} takes {ratio:.3g}x as long {times}"
    elif abs(ratio - 1) < _EQUAL:
        said = f"{step} takes {si(new, 's')} on both sides"
    elif ratio < 1:
        said = f"{step} takes {percent(1 - ratio)} less time {times}"
    else:
        said = f"{step} takes {percent(ratio - 1)} longer {times}"
    if batch.verdict == "within noise":
        equal = abs(ratio - 1) < _EQUAL
        return (
            f"{said}{'' if equal else ', which is not significant'}: these reports show changes "
            f"above +{percent(c.detectable_slower)} or -{percent(c.detectable_faster)} only."
        )
    reasons = [*_reasons(c, batch)]
    return f"{said}, more than noise explains{': ' if reasons else ''}{'; '.join(reasons)}."


def _reasons(c: Comparison, batch: Row) -> Iterator[str]:
    """The range or link with most of a certain change, and the cause of idle time, if it has most.

    What became slower is what the change back would address.
    """
    sign = -1 if batch.verdict == "faster" else 1
    more = c.unit.ratio if c.unit else 1.0
    rows = c.addressed
    if sign > 0:
        rows = addressed([_back(row) for row in c.rows], c.after, c.before, 1 / more)
    word, moved = "saved" if sign < 0 else "lost", abs(batch.difference_s)
    idle = [row for row in c.idle if sign * row.difference_s > _MOST * moved]
    most = max(idle, key=lambda row: abs(row.difference_s), default=None)
    if c.unit is not None:  # causes of idle time are those of a step
        most = None
    for row in rows[:1]:
        seconds, of = si(abs(row.difference_s), "s"), ""
        if most is not None and row.path == (GPU_IDLE,):
            continue  # the cause says it
        if c.unit is not None:
            yield f"mostly in {row.name!r}"
            continue
        if abs(row.difference_s) < moved:
            of = f" of the {si(moved, 's')}"
        yield f"{seconds}{of} {word} in {row.name!r}"
    if most is not None:
        whose = "the GPU" if len({row.path[0] for row in c.idle}) == 1 else f"{most.path[0]}'s GPU"
        amount = f"{si(abs(most.difference_s), 's')} {'less' if sign < 0 else 'more'}"
        yield f"{whose} idles {amount} {CAUSE_CLAUSES.get(most.path[1], '')}".rstrip()
    elif not rows:
        yield "no range or link alone explains it"


def _back(row: Row) -> Row:
    """A row of the change back."""
    return replace(
        row, before_s=row.after_s, after_s=row.before_s,
        ratio=1 / row.ratio if row.ratio else None,
        low=1 / row.high if row.high else None, high=1 / row.low if row.low else None,
        verdict=_OPPOSITE.get(row.verdict, row.verdict), launches=row.launches[::-1],
    )  # fmt: skip


def _caveats(c: Comparison) -> Iterator[str]:
    """What to know of the answer, what matters most first."""
    yield from (one for one in c.warnings if "no difference can show" in one)
    if c.other_machines:
        yield "The sides ran on different GPUs: run both on one machine"
    counts = len(c.before.launches), len(c.after.launches)
    if c.launch_noise is not None:
        runs = f"{counts[0]} run{'s' * (counts[0] != 1)} before, {counts[1]} after"
        yield f"{runs}: {percent(c.launch_noise)} between runs is assumed; 3 of each measure it"
    if any(x.batches == 1 for side in (c.before, c.after) for x in side.launches):
        yield "One finished step in a run: how much steps differ is unknown"
    if c.before.queues or c.after.queues:
        yield "The host queues steps: a step is timed until the GPU is done"

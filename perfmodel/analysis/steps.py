"""The parts of a step on every rank: times, kernels by category, collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.analysis.modules import layers_together
from perfmodel.analysis.result import RankRow
from perfmodel.base.arrays import Bool, Floats, Int64, distinct_positions
from perfmodel.base.units import si
from perfmodel.readers.trace import NULL
from perfmodel.timing.critical_path import EXPOSED
from perfmodel.timing.exchanges import Exchanges
from perfmodel.timing.host_timeline import CAUSES, DEPENDENCY
from perfmodel.timing.idle_causes import LONGEST, Gap, IdleGaps
from perfmodel.timing.kernels import COMMUNICATION
from perfmodel.timing.levels import LayerTime, LevelRow, layer_times, level_rows
from perfmodel.timing.recorder import Timed
from perfmodel.timing.run_exchanges import kernels_of, lane_ranks
from perfmodel.timing.run_steps import RunSteps
from perfmodel.timing.spans import Candidate, FoundBy
from perfmodel.timing.step_facts import (
    IdleCause,
    IdleRange,
    KernelTime,
    LongSteps,
    StepFacts,
    step_facts,
)
from perfmodel.timing.step_report import StepReport
from perfmodel.timing.step_times import StepTimes

_TOP_KERNELS: Final = 10
_FEW: Final = 3
_UNEQUAL: Final = 0.1
"""Of at least so many steps the median one does not stand for all if long ones take this share of
it more, per step of all."""
_LONG: Final = 1.5
"""A long step takes more than so many median ones: what a bar chart of steps shows at a glance."""
_PACE: Final = 0.8
"""A GPU that idles this share of what the longest idles is as slow as that one: of the ladder's
hosts that wait in every step all GPUs do, of those that queue their work one or both (any share
from 0.5 to 0.8 chooses the same)."""
_MOSTLY: Final = 0.5
"""A cause explains long steps if it takes this share of what they take more."""
_BUSY: Final = {
    "kernel": "in computing kernels",
    EXPOSED: "in communication beside no computing",
    "copy": "in copies",
}


@dataclass(frozen=True, slots=True)
class CategoryTime:
    """GPU time of one category of kernels per step, the mean over ranks.

    `seconds` is the category's part of the busy time: where several operations run at once the
    time counts once, for computing kernels before copies before communication, so that the
    categories add up to the busy time. `kernel_s` is the sum of the operations' own times.
    """

    category: str
    seconds: float
    share: float
    kernel_s: float
    count: float


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """Parts of the time of a run's steps.

    Attributes
    ----------
    label : str
        Name of the steps' ranges, '' where nothing names them.
    found_by : str
        How the steps were found, see `timing.spans.Steps`.
    window : slice
        The steps that count, of those whose end is known.
    confidence : float
        Share of the GPU's work inside steps, warm-up included.
    ranks : tuple of RankRow
        As recorded.
    waiting_s : tuple of (float or None)
        All of the time in which each rank waits for others in communication, hidden or not.
    unattributed : float
        Share of the GPU time between the first and the last step that no step holds.
    facts : StepFacts
        The critical path, small kernels and late ranks.
    levels : tuple of LevelRow
        The steps, and the levels around and inside them, the outermost first.
    layers : tuple of LayerTime
        Layers one by one.
    candidates : tuple of Candidate
        What may be the step, the likeliest first.
    """

    label: str
    found_by: FoundBy
    window: slice
    confidence: float
    ranks: tuple[RankRow, ...]
    waiting_s: tuple[float | None, ...]
    categories: tuple[CategoryTime, ...]
    kernels: tuple[KernelTime, ...]
    unattributed: float
    facts: StepFacts
    levels: tuple[LevelRow, ...]
    layers: tuple[LayerTime, ...]
    candidates: tuple[Candidate, ...]


def break_down(
    reports: Sequence[StepReport],
    found: Exchanges,
    steps: RunSteps,
    *,
    timed: Timed | None = None,
    pinned_bytes_per_s: float | None = None,
) -> StepBreakdown:
    """Sum the steps of a run up.

    Parameters
    ----------
    reports : sequence of StepReport
        One per report of the run.
    found : Exchanges
        Of the run; its kernels come first.
    steps : RunSteps
    timed : Timed, optional
        Steps that the program timed before it was recorded.
    pinned_bytes_per_s : float, optional
        Rate of pinned copies, see `timing.copies.pinned_rate`.
    """
    window = window_of(reports, steps)
    waiting = _waiting_by_step(found, window)
    rows: list[RankRow] = []
    waiting_s: list[float | None] = []
    numbered, factors = lane_ranks(reports), clock_factors(reports, steps)
    for report, numbers, factor in zip(reports, numbered, factors, strict=True):
        for lane, rank in enumerate(numbers):
            waited = None if waiting is None else waiting[found.ranks.index(rank)]
            row, waited_s = _rank(report.times, lane, rank, window, waited, float(factor[lane]))
            rows.append(row)
            waiting_s.append(waited_s)
    order = sorted(range(len(rows)), key=lambda i: (rows[i].rank, rows[i].gpu or 0))
    launched = sum(r.launched_ns for r in reports)
    kernels = kernels_of_steps(reports, window)
    facts = step_facts(
        reports,
        kernels_of(reports),
        found,
        window,
        numbered,
        idle_causes(reports, steps),
        kernels,
        steps.step_s,
        max((r.gpu_busy_s or 0.0) - (s or 0.0) for r, s in zip(rows, waiting_s, strict=True)),
        _long_steps(reports, window, numbered),
        timed,
        pinned_bytes_per_s,
    )
    return StepBreakdown(
        label=reports[0].steps.label,
        found_by=reports[0].steps.found_by,
        window=window,
        confidence=min(r.steps.confidence for r in reports),
        ranks=tuple(rows[i] for i in order),
        waiting_s=tuple(waiting_s[i] for i in order),
        categories=_categories(reports, rows, window),
        kernels=kernels[:_TOP_KERNELS],
        unattributed=sum(r.lost_ns for r in reports) / launched if launched else 0.0,
        levels=level_rows([r.spans for r in reports], sum(r.work_ns for r in reports)),
        layers=layer_times([r.spans for r in reports]),
        candidates=reports[0].steps.candidates,
        facts=facts,
    )


def _waiting_by_step(found: Exchanges, window: slice) -> Floats | None:
    """Waiting of every rank and step that counts, in s; None where it is not known."""
    inside = (found.step >= window.start) & (found.step < window.stop)
    known, mpi = found.wait_ns != NULL, found.by_mpi
    if not (inside & known).any() or (inside & ~mpi & ~known).any():
        return None
    return found.seconds_by_step(window.stop, waiting=True)[:, window]


def _median_s(values: Int64) -> float | None:
    known = values[values >= 0]
    return float(np.median(known)) * 1e-9 if len(known) else None


def clock_factors(reports: Sequence[StepReport], steps: RunSteps) -> list[Floats]:
    """Return what brings the parts of every lane's period to its step on the clock of the steps."""
    found, window = [], window_of(reports, steps)
    for report, numbers in zip(reports, lane_ranks(reports), strict=True):
        factors = np.ones(len(numbers))
        for lane, rank in enumerate(numbers if steps.clock != "gpu" else ()):
            own_s, period_s = steps.median_s(rank), _median_s(report.times.step_ns[lane, window])
            if own_s and period_s:
                factors[lane] = own_s / period_s
        found.append(factors)
    return found


def _rank(
    times: StepTimes, lane: int, rank: int, window: slice, waited: Floats | None, factor: float
) -> tuple[RankRow, float | None]:
    """Median step of a lane, and all of its waiting, hidden or not.

    `factor` brings the parts to the clock of the steps.
    """
    on_gpu = bool(times.device[lane] >= 0)
    present = times.busy_ns[lane, window] >= 0

    def median(column: Int64) -> float:
        return factor * (_median_s(column[lane, window]) or 0.0)

    parts = np.array([times.compute_ns, times.copy_ns, times.exposed_ns])[:, lane, window]
    active_s = factor * (_median_s(np.where(present, parts.sum(axis=0), -1)) or 0.0)
    usual = np.median(parts[:, present], axis=1) if present.any() else np.zeros(3)
    usual = usual if usual.any() or not present.any() else parts[:, present].mean(axis=1)
    compute_s, copies_s, exposed_s = (active_s * usual / max(float(usual.sum()), 1.0)).tolist()
    waiting_s = None if median(times.communication_ns) else 0.0
    if waited is not None and present.any():
        spent = times.communication_ns[lane, window][present] * 1e-9
        longest = np.minimum(waited[: len(present)][present], spent)
        waiting_s = factor * float(np.median(longest))
    exposed_waiting_s = None if waiting_s is None else min(waiting_s, exposed_s)
    step_s = median(times.step_ns)
    row = RankRow(
        rank=rank,
        gpu=int(times.device[lane]) if on_gpu else None,
        batches=int(present.sum()),
        step_s=step_s,
        recorded_step_s=step_s,
        compute_s=compute_s,
        communication_s=exposed_s - (exposed_waiting_s or 0.0),
        waiting_s=exposed_waiting_s,
        copies_s=copies_s if on_gpu else None,
        idle_s=max(step_s - active_s, 0.0),
        gpu_busy_s=median(times.busy_ns) if on_gpu else None,
        collectives_s=max(median(times.communication_ns), exposed_s),
    )
    return row, waiting_s


def _gpu_idle_s(times: StepTimes, lane: int, window: slice) -> float:
    """Return the part of the median step without GPU work, also while its process communicates."""
    step_s, busy_s = (_median_s(ns[lane, window]) or 0.0 for ns in (times.step_ns, times.busy_ns))
    return max(step_s - busy_s, 0.0)


def _categories(
    reports: Sequence[StepReport], rows: Sequence[RankRow], window: slice
) -> tuple[CategoryTime, ...]:
    """Split the GPU's parts of every rank's step by category, and average over the ranks."""
    names = reports[0].categories
    sends = np.array([name == COMMUNICATION for name in names])
    seconds, own, count = (np.zeros(len(names)) for _ in range(3))
    lanes = 0
    for at, (report, lane) in enumerate(
        (r, i) for r in reports for i in range(len(r.times.device))
    ):
        rank = rows[at]
        if rank.gpu_busy_s is None or rank.copies_s is None:
            continue
        held = report.exclusive_ns[lane, window].sum(axis=0).astype(np.float64)
        others_s = rank.part_s("compute") + rank.copies_s if held[sends].any() else rank.gpu_busy_s
        for group, part_s in ((~sends, others_s), (sends, max(rank.gpu_busy_s - others_s, 0.0))):
            seconds[group] += part_s * held[group] / max(held[group].sum(), 1.0)
        steps = max(int((report.times.busy_ns[lane, window] >= 0).sum()), 1)
        own += report.kernel_ns[lane, window].sum(axis=0) * 1e-9 / steps
        count += report.count[lane, window].sum(axis=0) / steps
        lanes += 1
    total = float(seconds.sum()) or 1.0
    lanes = max(lanes, 1)
    found = [
        CategoryTime(
            category=name,
            seconds=float(seconds[i]) / lanes,
            share=float(seconds[i]) / total,
            kernel_s=float(own[i]) / lanes,
            count=float(count[i]) / lanes,
        )
        for i, name in enumerate(names)
        if count[i]
    ]
    return tuple(sorted(found, key=lambda c: -c.seconds))


def window_of(reports: Sequence[StepReport], steps: RunSteps) -> slice:
    """Return the steps that count, without a last one whose end no operation marks."""
    stop = min(steps.counted.stop, max(report.times.step_ns.shape[1] for report in reports))
    first = min(steps.counted.start, stop - 1)
    ended = [np.flatnonzero((r.times.step_ns[:, first:stop] >= 0).any(axis=0)) for r in reports]
    last = max(int(numbers.max(initial=-1)) for numbers in ended)
    return slice(first, first + last + 1 if last >= 0 else stop)


def idle_ranges(reports: Sequence[StepReport], steps: RunSteps) -> tuple[IdleRange, ...]:
    """Sum up in which ranges, and why, the GPUs of a run idle as recorded; the largest first."""
    window = window_of(reports, steps)
    found: dict[tuple[str, str], float] = {}
    step_s, lanes = 0.0, 0
    for report, factors in zip(reports, clock_factors(reports, steps), strict=True):
        gaps, names = report.gaps, (*report.gaps.names, "")
        for lane in np.flatnonzero(report.times.device >= 0).tolist():
            mine = gaps.rows_of(lane, window)
            key = (gaps.range[mine] + 1).astype(np.int64) * len(CAUSES) + gaps.cause[mine]
            distinct, share = _shares(report, mine, window, key)
            idle_s = float(factors[lane]) * _gpu_idle_s(report.times, lane, window)
            for code, part in zip(distinct.tolist(), share.tolist(), strict=True):
                where = names[code // len(CAUSES) - 1], CAUSES[code % len(CAUSES)]
                found[where] = found.get(where, 0.0) + part * idle_s
            step_s += float(factors[lane]) * (_median_s(report.times.step_ns[lane, window]) or 0.0)
            lanes += 1
    rows = [IdleRange(*key, s / lanes, s / step_s) for key, s in found.items() if s and step_s]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def idle_pieces(reports: Sequence[StepReport], steps: RunSteps) -> tuple[dict[str, float], float]:
    """Cut the idle time of a median step into pieces by the range that the host was in.

    Of the GPUs that idle longest: where hosts queue their work, the others wait for them inside
    kernels that communicate, and their idle time says nothing of the step.

    Returns
    -------
    dict of str to float
        Seconds by range, '' outside any; the mean over these GPUs.
    float
        Share of their steps; 0 without any.
    """
    window = window_of(reports, steps)
    lanes = [
        (_gpu_idle_s(report.times, lane, window), report, lane)
        for report in reports
        for lane in np.flatnonzero(report.times.device >= 0).tolist()
    ]
    most = max((idle_s for idle_s, _, _ in lanes), default=0.0)
    chosen = [one for one in lanes if one[0] > 0 and one[0] >= _PACE * most]
    pieces: dict[str, float] = {}
    step_s = 0.0
    for idle_s, report, lane in chosen:
        rows = report.gaps.rows_of(lane, window)
        where = report.gaps.range[rows].astype(np.int64) + 1
        distinct, shares = _shares(report, rows, window, where)
        names = ("", *report.gaps.names)
        for code, share in zip(distinct.tolist(), shares.tolist(), strict=True):
            pieces[names[code]] = pieces.get(names[code], 0.0) + share * idle_s / len(chosen)
        step_s += (_median_s(report.times.step_ns[lane, window]) or 0.0) / len(chosen)
    return pieces, min(sum(pieces.values()) / step_s, 1.0) if step_s else 0.0


def idle_causes(reports: Sequence[StepReport], steps: RunSteps) -> tuple[IdleCause, ...]:
    """Split the recorded idle time of every rank's step by the medians of its causes."""
    found: list[IdleCause] = []
    window, numbered = window_of(reports, steps), lane_ranks(reports)
    for report, numbers, factors in zip(
        reports, numbered, clock_factors(reports, steps), strict=True
    ):
        single = report.gaps.longest()  # which trimmed reports have, too
        for lane, rank in enumerate(numbers):
            rows = report.gaps.rows_of(lane, window)
            cause = report.gaps.cause[rows].astype(np.int64)
            codes, shares = _shares(report, rows, window, cause)
            idle_s = float(factors[lane]) * _gpu_idle_s(report.times, lane, window)
            names = (*report.gaps.names, "")  # the last one is that of no range
            for i in np.argsort(-shares, kind="stable").tolist():
                code, share = int(codes[i]), float(shares[i])
                if share > 0:
                    mine = rows[cause == code]
                    longest = _longest(report.gaps, mine)
                    where = report.gaps.range[mine].astype(np.int64) + 1
                    ranges, parts = _shares(report, mine, window, where)
                    most = names[int(ranges[np.argmax(parts)]) - 1]
                    most = "" if most == report.steps.label else most
                    doing = _doing(report.gaps, mine[single[mine]])
                    call = _mostly_in(report.gaps, mine[single[mine]])
                    found.append(
                        IdleCause(
                            rank, CAUSES[code], share * idle_s, share, longest, most, *doing, call
                        )
                    )
    return tuple(sorted(found, key=lambda cause: cause.rank))


def _mostly_in(gaps: IdleGaps, rows: Int64) -> str:
    """Call that the host was in for most of some gaps."""
    rows = rows[gaps.call[rows] >= 0]
    spent = np.bincount(gaps.call[rows], gaps.idle_ns[rows], 1)
    return gaps.names[int(spent.argmax())] if len(rows) else ""


def _doing(gaps: IdleGaps, rows: Int64) -> tuple[float | None, str]:
    """Share of some gaps in which the host slept, and the system's call that it was in for most.

    None where that was not recorded.
    """
    known, idle = gaps.asleep_ns[rows] != NULL, gaps.idle_ns[rows]
    slept = gaps.asleep_ns[rows][known].sum() / idle[known].sum() if known.any() else None
    named = gaps.wait[rows] >= 0
    spent = np.bincount(gaps.wait[rows][named], idle[named], 1)
    call = gaps.names[int(spent.argmax())] if 2 * spent.max() >= idle.sum() > 0 else ""
    return None if slept is None else float(slept), call


def unequal_steps(steps: StepBreakdown | None) -> tuple[str, ...]:
    """Warn where the median step does not represent all."""
    long = steps.facts.long if steps else None
    if long is None:
        return ()
    if long.cause in CAUSES:
        why = ", but for the finding about these steps"
    elif long.cause:
        why = f"; the long ones take {si(long.longer_s, 's')} more, mostly {_BUSY[long.cause]}"
    else:
        why = f"; the long ones take {si(long.longer_s, 's')} more"
    return (
        f"{long.count} of {long.steps} steps take over {_LONG:g} times the median "
        f"{si(long.median_s, 's')}; the mean is {si(long.mean_s, 's')}: times, shares and savings "
        f"are those of a median step{why}",
    )


def _long_steps(
    reports: Sequence[StepReport], window: slice, numbered: Sequence[Sequence[int]]
) -> LongSteps | None:
    """Find steps that are much longer than the others; of ranks the one that idles longest then."""
    found = []
    for report, numbers in zip(reports, numbered, strict=True):
        for lane, rank in enumerate(numbers):
            step_ns = report.times.step_ns[lane, window]
            known = step_ns[step_ns >= 0]
            if report.times.device[lane] < 0 or len(known) < _FEW:
                continue
            usual = float(np.median(known))
            long = step_ns > _LONG * usual
            longer = step_ns[long] - usual
            if longer.sum() < _UNEQUAL * usual * len(known):
                continue
            rows = report.gaps.rows_of(lane, window)
            cause = report.gaps.cause[rows].astype(np.int64)
            cell = cause * len(step_ns) + report.gaps.step[rows] - window.start
            idle = np.bincount(cell, report.gaps.idle_ns[rows], len(CAUSES) * len(step_ns))
            idle = idle.reshape(len(CAUSES), -1)
            more = idle[:, long].sum(axis=1) - np.median(idle, axis=1) * long.sum()
            most = int(np.argmax(more[:DEPENDENCY]))  # what follows is no cause of its own
            why = CAUSES[most]
            if more[most] < _MOSTLY * longer.sum():
                why, most = _busy_longer(report.times, lane, window, long, float(longer.sum())), -1
            gaps = _longest(report.gaps, rows[cause == most])
            found.append(
                LongSteps(
                    rank,
                    int(long.sum()),
                    len(known),
                    usual * 1e-9,
                    float(known.mean()) * 1e-9,
                    float(longer.mean()) * 1e-9,
                    why,
                    float(more[most]) / len(known) * 1e-9 if most >= 0 else 0.0,
                    gaps[0] if gaps else None,
                    _followed(report, lane, np.flatnonzero(long) + window.start),
                )
            )
    return max(found, key=lambda f: (f.saving_s, f.cause == "kernel", f.longer_s), default=None)


def _followed(report: StepReport, lane: int, numbers: Int64) -> int:
    """After how many of a lane's steps other work is done before the next one."""
    process = int(report.times.process[lane])
    others = [p.number for p in report.pauses if p.process == process and p.launched != "all"]
    return int(np.isin(numbers, others).sum())


def _busy_longer(times: StepTimes, lane: int, window: slice, long: Bool, longer_ns: float) -> str:
    """Return the main GPU work in the excess of long steps; '' if no one kind is most of it."""
    parts = {
        "kernel": times.compute_ns,
        EXPOSED: times.exposed_ns,
        "copy": times.copy_ns,
    }
    more = {}
    for kind, ns in parts.items():
        mine = ns[lane, window]
        more[kind] = float(mine[long].sum() - np.median(mine) * long.sum())
    most = max(more, key=lambda kind: more[kind])
    return most if more[most] >= _MOSTLY * longer_ns else ""


def _shares(report: StepReport, rows: Int64, window: slice, key: Int64) -> tuple[Int64, Floats]:
    """Distinct keys of some gaps of a lane, and the share of each by its median over steps."""
    distinct = distinct_positions(key, int(key.max(initial=-1)) + 1)
    place = np.zeros(int(key.max(initial=-1)) + 1, np.int64)
    place[distinct] = np.arange(len(distinct))
    count = window.stop - window.start
    cell = place[key] * count + report.gaps.step[rows] - window.start
    total = np.bincount(cell, report.gaps.idle_ns[rows], len(distinct) * count)
    total = total.reshape(len(distinct), count)
    usual = np.median(total, axis=1) if len(distinct) else total.sum(axis=1)
    usual = usual if usual.any() else total.mean(axis=1)
    return distinct, usual / max(float(usual.sum()), 1.0)


def _longest(gaps: IdleGaps, rows: Int64) -> tuple[Gap, ...]:
    names = (*gaps.names, "")
    rows = rows[gaps.start_ns[rows] != NULL]
    if len(rows) > LONGEST:  # few are sorted, in time linear in all
        idle = gaps.idle_ns[rows]
        rows = rows[idle >= np.partition(idle, -LONGEST)[-LONGEST]]
    top = rows[np.argsort(-gaps.idle_ns[rows], kind="stable")[:LONGEST]]
    return tuple(
        Gap(
            start_s=float(gaps.start_ns[i]) * 1e-9,
            seconds=float(gaps.idle_ns[i]) * 1e-9,
            step=int(gaps.step[i]),
            in_step_s=float(gaps.into_ns[i]) * 1e-9,
            call=names[gaps.call[i]],
            range=names[gaps.range[i]],
            line=names[gaps.line[i]] or None,
            asleep_s=None if gaps.asleep_ns[i] == NULL else int(gaps.asleep_ns[i]) * 1e-9,
            wait=names[gaps.wait[i]],
        )
        for i in top.tolist()
    )


def kernels_of_steps(reports: Sequence[StepReport], window: slice) -> tuple[KernelTime, ...]:
    """All kernels of the steps that count, by name, over all ranks, most GPU time first."""
    durations: dict[tuple[str, str], list[Int64]] = {}
    total, cells = 0, 0
    for report in reports:
        kernels = report.kernels
        cells += len(report.times.process) * (window.stop - window.start)
        total += int(kernels.total_ns[window].sum())
        inside = (kernels.step >= window.start) & (kernels.step < window.stop)
        name, spent = kernels.name[inside], kernels.duration_ns[inside]
        spent = spent[np.argsort(name.astype(np.uint16), kind="stable")]  # of few names
        ends = np.cumsum(np.bincount(name, minlength=len(kernels.names)))
        keys = zip(kernels.names, kernels.categories, strict=True)
        for key, times in zip(keys, np.split(spent, ends[:-1]), strict=False):
            durations.setdefault(key, []).append(times)
    joined = {key: np.concatenate(times) for key, times in durations.items()}
    top = sorted((k for k in joined if len(joined[k])), key=lambda key: -int(joined[key].sum()))
    places = places_of(reports, window)
    single = {name: kind for report in reports for name, kind in report.kernels.single.items()}
    return tuple(
        KernelTime(
            name=name,
            category=category,
            count=len(joined[name, category]) / cells,
            median_s=float(np.median(joined[name, category])) * 1e-9,
            seconds=float(joined[name, category].sum()) * 1e-9 / cells,
            share=float(joined[name, category].sum()) / max(total, 1),
            line=places.get(name, (None, None))[0],
            module=places.get(name, (None, None))[1],
            single=single.get(name, 0),
        )
        for name, category in top
    )


def places_of(
    reports: Sequence[StepReport], window: slice
) -> dict[str, tuple[str | None, str | None]]:
    """Return the line and the module that launch each kernel or copy for most of its time.

    Of the launches whose line, or module, is known; layers of one kind are one module. Of what a
    graph replays it is the place of its capture.
    """
    spent: dict[tuple[str, int], dict[str, int]] = {}
    for report in reports:
        times = report.stacks
        for node, name, ns in times.inside(window):
            module = times.module(node)
            for which, place in enumerate((times.line(node), module and layers_together(module))):
                if place:
                    mine = spent.setdefault((name, which), {})
                    mine[place] = mine.get(place, 0) + ns
    most = {key: max(places, key=places.__getitem__) for key, places in spent.items()}
    names = dict.fromkeys(name for name, _ in most)
    found = {name: (most.get((name, 0)), most.get((name, 1))) for name in names}
    for report in reports:
        for name, (line, module) in report.captured.items():
            found[name] = line, module and layers_together(module)
    return found

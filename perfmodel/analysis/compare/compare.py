"""Compares two sets of reports: the function behind `perfmodel compare`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.analysis.compare import copies
from perfmodel.analysis.compare.configuration import differences, mixed, settings
from perfmodel.analysis.compare.effects import (
    ENOUGH,
    LAUNCH_NOISE,
    SCALES,
    Effect,
    Median,
    effect,
    holm,
    median,
)
from perfmodel.analysis.compare.links import GPU_BUSY, GPU_IDLE, Key
from perfmodel.analysis.compare.matching import align, order, without_repeats
from perfmodel.analysis.compare.result import Comparison, Row, Side, Verdict
from perfmodel.analysis.compare.series import Launch, launch_of
from perfmodel.analysis.runs import group, identify
from perfmodel.base.errors import ReportError, WorkloadError
from perfmodel.readers.trace import Trace
from perfmodel.timing.async_batches import AsyncBatches, time_async
from perfmodel.timing.run import Run, time_run
from perfmodel.timing.samples import tabulate

ALPHA: Final = 0.05
LEAST: Final = 0.01
_SOURCES: Final = {
    "gpu": (
        "no GPU operations were recorded {}, so that they are left out on both sides",
        "if there were any, profile with --trace=nvtx,cuda,mpi",
    ),
    "mpi": (
        "no MPI calls were recorded {}, so that they are left out on both sides",
        "if there were any, profile with --trace=nvtx,cuda,mpi",
    ),
    "nodes": (
        "CUDA graphs were traced as a whole {}, so that kernels and copies are left out on both "
        "sides",
        "profile with --cuda-graph-trace=node",
    ),
}
"""What a warning says, and advises, where only one side recorded something."""


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What the user may choose.

    `least` is the relative change that counts, `noise` the relative standard deviation that is
    assumed between launches where there are too few to tell.
    """

    batch_label: str = "batch iteration"
    warmup: int | None = None
    by_time: bool = False
    least: float = LEAST
    noise: float = LAUNCH_NOISE


def compare_traces(
    before: Sequence[Trace],
    after: Sequence[Trace],
    options: CompareOptions | None = None,
    progress: Callable[[str], object] = lambda _: None,
) -> Comparison:
    """Compare the reports of two sides, each of one or more launches of one configuration.

    Parameters
    ----------
    before, after : sequence of Trace
        Reports of the ranks of one launch are put together.
    options : CompareOptions, optional
    progress : callable, optional
        Called with a run's label before it is measured.

    Raises
    ------
    ReportError, SchemaError, WorkloadError
        If a side has no report, a run has too few batches, or an option is out of range.
    """
    options = options or CompareOptions()
    for name, value in (("least", options.least), ("launch noise", options.noise)):
        if not 0 <= value < 10:
            raise WorkloadError(
                f"wanted a {name} from 0 to 1000 percent; found {100 * value:g} percent; give less"
            )
    measured = [
        _measure(n, t, options, progress) for n, t in (("before", before), ("after", after))
    ]
    done = any(pace.queues for side in measured for _, pace in side)  # or times mean two things
    sides, warnings = [], []
    for name, runs in zip(("before", "after"), measured, strict=True):
        side, said = _side(name, runs, options.warmup, done=done)
        sides.append(side)
        warnings += said
    return compare_sides(sides[0], sides[1], options, [*warnings, *copies.found(before, after)])


def compare_sides(
    before: Side, after: Side, options: CompareOptions, warnings: Sequence[str] = ()
) -> Comparison:
    """Compare two sides whose launches have been measured."""
    old, new = align(before.launches, after.launches)
    machines = _on_other_machines(before.launches, after.launches)
    keys = without_repeats(order(old, new))
    medians = {key: (_medians(old, key), _medians(new, key)) for key in keys}
    effects = {
        key: effect(*pair, options.noise * _scale(key, [*old, *new]), machines=machines)
        for key, pair in medians.items()
        if all(pair)
    }
    first = keys[0]
    shares = [float(max(len(effects) - 1, 1)) if key == first else 1.0 for key in effects]
    p = [e.p(options.least) for e in effects.values()]
    passed, levels = holm(p, shares, ALPHA)
    tests = dict(zip(effects, zip(p, passed, levels, strict=True), strict=True))
    batch_s = _central(medians[first][0])
    rows = tuple(
        _row(key, keys, medians[key], effects.get(key), tests.get(key), batch_s) for key in keys
    )
    enough = min(len(before.launches), len(after.launches)) >= ENOUGH
    return Comparison(
        before=before,
        after=after,
        rows=rows,
        differences=differences(before.settings, after.settings),
        tested=len(effects),
        alpha=ALPHA,
        least=options.least,
        noise=None if enough else options.noise,
        machines=machines,
        detectable=effects[first].detectable(tests[first][2], options.least),
        addressed=_addressed(rows, before, after),
        warnings=tuple(dict.fromkeys([*warnings, *_cautions(before, after, machines, options)])),
    )


def _measure(
    name: str,
    traces: Sequence[Trace],
    options: CompareOptions,
    progress: Callable[[str], object],
) -> list[tuple[Run, AsyncBatches]]:
    """Measure the launches of one side."""
    distinct = list({copies.content(t): t for t in traces}.values())
    if not distinct:
        raise ReportError(f"wanted at least one report {name}; found none; name one")
    found = []
    for label, members in group(distinct):
        progress(label)
        run = time_run(members, options.batch_label, label=label, by_time=options.by_time)
        found.append((run, time_async(run, tabulate(run.range_times, run.ranks, run.batch_label))))
    return found


def _side(
    name: str, runs: Sequence[tuple[Run, AsyncBatches]], warmup: int | None, *, done: bool
) -> tuple[Side, list[str]]:
    """Take the series of one side's launches; `done` as of `launch_of`."""
    warnings, launches, told = [], [], []
    for run, pace in runs:
        identity, said = identify(run, {})
        launches.append(launch_of(run, warmup, pace=pace, done=done))
        told.append(settings(identity, run.traces))
        warnings += said
    for text in mixed(told):
        warnings.append(
            f"the launches {name} do not have one configuration ({text}): their differences count "
            f"as noise; compare launches of one configuration"
        )
    return Side(tuple(launches), tuple(told)), warnings


def _medians(launches: Sequence[Launch], key: Key) -> list[Median]:
    found = [launch.series[key] for launch in launches if key in launch.series]
    return [median(s.seconds, s.noise) for s in found]


def _scale(key: Key, launches: Sequence[Launch]) -> float:
    """Noise between launches over that of host times, of the side where there is more."""
    return max(SCALES[one.series[key].noise] for one in launches if key in one.series)


def _central(medians: Sequence[Median]) -> float | None:
    """Geometric mean of the launches' medians; None without any."""
    seconds = [m.seconds for m in medians]
    if not seconds:
        return None
    if min(seconds) <= 0:
        return float(np.mean(seconds))
    return math.exp(float(np.mean(np.log(seconds))))


def _row(
    key: Key,
    keys: Sequence[Key],
    medians: tuple[list[Median], list[Median]],
    found: Effect | None,
    test: tuple[float, bool, float] | None,
    batch_s: float | None,
) -> Row:
    group_name, path = key
    before, after = (_central(side) for side in medians)
    ratio = low = high = p = level = None
    verdict: Verdict = "only before" if after is None else "only after"
    if found is not None and test is not None:
        p, certain, level = test
        ratio, low, high = found.ratio(level)
        verdict = ("faster" if ratio < 1 else "slower") if certain else "within noise"
        if not before or not after:
            ratio = low = high = None
    return Row(
        group=group_name,
        path=path,
        part=group_name != "range" and len(path) > 1 and (group_name, path[:1]) in keys,
        before_s=before,
        after_s=after,
        ratio=ratio,
        low=low,
        high=high,
        p=p,
        level=level,
        verdict=verdict,
        share_before=before / batch_s if before is not None and batch_s else None,
        launches=(len(medians[0]), len(medians[1])),
    )


def _addressed(rows: Sequence[Row], before: Side, after: Side) -> tuple[Row, ...]:
    """The innermost range and the link that certainly lost the most time, in that order.

    Totals of the GPU do not count as links: they lose what copies and kernels lose. But where a
    host only queues, and ranges cannot tell what it lost, the GPU's idle time does, if that is
    more than any link lost.
    """
    leaves = _telling_ranges(rows, before, after)
    totals = (GPU_BUSY, GPU_IDLE)
    links = [r for r in rows if r.group != "range" and r.depth == 0 and r.path[0] not in totals]
    found = [most for candidates in (leaves, links) if (most := _most_lost(candidates))]
    if (before.queues or after.queues) and not any(r.group == "range" for r in found):
        idle = _most_lost([r for r in rows if r.path == (GPU_IDLE,)])
        if idle and all(idle.difference_s < r.difference_s for r in found):
            found.insert(0, idle)
    return tuple(found)


def _most_lost(rows: Sequence[Row]) -> Row | None:
    lost = [r for r in rows if r.verdict in ("faster", "only before")]
    return min(lost, key=lambda r: r.difference_s, default=None)


def _telling_ranges(rows: Sequence[Row], before: Side, after: Side) -> list[Row]:
    """Innermost ranges whose loss says what a change addressed.

    None if the batches after have no range of those before: their work went elsewhere. None if
    the host only queued them; if it does so after, what is gone still tells.
    """
    inside = [r for r in rows if r.group == "range" and r.depth > 0]
    if before.queues or not any(r.before_s is not None and r.after_s is not None for r in inside):
        return []
    holders = {r.path[:-1] for r in inside if r.before_s is not None}
    leaves = [r for r in inside if r.path not in holders]
    return [r for r in leaves if r.after_s is None] if after.queues else leaves


def _queued(before: Side, after: Side) -> Iterator[str]:
    """Say what times mean where a host queues batches and does not wait for them."""
    where = [name for name, side in (("before", before), ("after", after)) if side.queues]
    if where:
        yield (
            f"the host queues batches {' and '.join(where)} without waiting until they are done: "
            f"on both sides a batch is timed from the end of the one before it to the end of its "
            f"own GPU work; host times of ranges {' and '.join(where)} are those of queueing"
        )


def _on_other_machines(before: Sequence[Launch], after: Sequence[Launch]) -> bool:
    """Whether both sides name their GPUs and share none."""
    seen = [frozenset().union(*(launch.gpus for launch in side)) for side in (before, after)]
    return bool(seen[0] and seen[1] and not seen[0] & seen[1])


def _cautions(before: Side, after: Side, machines: bool, options: CompareOptions) -> list[str]:
    """Warn of what the comparison cannot know, or compares that is no before and after."""
    said = list(_queued(before, after))
    found = differences(before.settings, after.settings)
    other = "; ".join(str(d) for d in found if d.workload)
    if other:
        said.append(
            f"the sides do not compute the same ({other}): this is no before and after of one "
            f"change; compare runs of one workload"
        )
    counts = len(before.launches), len(after.launches)
    if min(counts) < ENOUGH:
        noise = f"{100 * options.noise:g} %" if options.noise else "nothing"
        said.append(
            f"{counts[0]} launch{'es' * (counts[0] > 1)} before and {counts[1]} after do not show "
            f"how much launches differ, so {noise} is assumed (kernels a fifth of it); launch "
            f"each side {ENOUGH} times or more and give all reports: perfmodel compare b1 b2 b3 "
            f"--to a1 a2 a3"
        )
    for source, (problem, advice) in _SOURCES.items():
        has = [all(source in one.recorded for one in s.launches) for s in (before, after)]
        gpu = [all("gpu" in one.recorded for one in s.launches) for s in (before, after)]
        if has[0] != has[1] and (source != "nodes" or all(gpu)):
            said.append(f"{problem.format('before' if has[1] else 'after')}; {advice}")
    if machines:
        said.append(
            "the sides ran on different GPUs, which is a difference of its own: machines are "
            "assumed to differ more than launches do; run both sides on one machine"
        )
    return said

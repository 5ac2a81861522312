"""Compares two sets of reports: the function behind `perfmodel compare`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.comparison.configuration import differences, mixed, settings
from perfmodel.comparison.effects import (
    ENOUGH,
    LAUNCH_NOISE,
    SCALES,
    Effect,
    Median,
    effect,
    holm,
    median,
)
from perfmodel.comparison.links import GPU_BUSY, GPU_IDLE, Key
from perfmodel.comparison.matching import align, order, without_repeats
from perfmodel.comparison.result import Comparison, Row, Side, Verdict
from perfmodel.comparison.series import Launch, launch_of
from perfmodel.errors import ReportError, WorkloadError
from perfmodel.measure import measure
from perfmodel.runs import group, identify
from perfmodel.trace import Trace

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
    sides, warnings = [], []
    for name, traces in (("before", before), ("after", after)):
        side, said = _side(name, traces, options, progress)
        sides.append(side)
        warnings += said
    return compare_sides(sides[0], sides[1], options, [*warnings, *_check(before, after)])


def compare_sides(
    before: Side, after: Side, options: CompareOptions, warnings: Sequence[str] = ()
) -> Comparison:
    """Compare two sides whose launches have been measured."""
    old, new = align(before.launches, after.launches)
    machines = _on_other_machines(before.launches, after.launches)
    keys = without_repeats(order(old, new))
    medians = {key: (_medians(old, key), _medians(new, key)) for key in keys}
    effects = {
        key: effect(*pair, options.noise * SCALES[_noise(key, old)], machines=machines)
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
        addressed=_addressed(rows),
        warnings=tuple(dict.fromkeys([*warnings, *_cautions(before, after, machines, options)])),
    )


def _side(
    name: str,
    traces: Sequence[Trace],
    options: CompareOptions,
    progress: Callable[[str], object],
) -> tuple[Side, list[str]]:
    distinct = list({t.source.resolve(): t for t in traces}.values())
    if not distinct:
        raise ReportError(f"wanted at least one report {name}; found none; name one")
    warnings, launches, told = [], [], []
    for label, members in group(distinct):
        progress(label)
        run = measure(members, options.batch_label, label=label, by_time=options.by_time)
        identity, said = identify(run, {})
        launches.append(launch_of(run, options.warmup))
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


def _noise(key: Key, launches: Sequence[Launch]) -> str:
    return next(launch.series[key].noise for launch in launches if key in launch.series)


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


def _addressed(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The innermost range and the link that certainly lost the most time, in that order.

    Ranges do not count if the batches after have none inside: their work went elsewhere. Totals
    of the GPU do not count as links: they lose what copies and kernels lose.
    """
    inside = [r for r in rows if r.group == "range" and r.depth > 0]
    holders = {r.path[:-1] for r in inside if r.before_s is not None}
    leaves = [r for r in inside if r.path not in holders]
    if not any(r.after_s is not None for r in inside):
        leaves = []
    links = [
        r for r in rows
        if r.group != "range" and r.depth == 0 and r.path[0] not in (GPU_BUSY, GPU_IDLE)
    ]  # fmt: skip
    found = []
    for candidates in (leaves, links):
        lost = [r for r in candidates if r.verdict in ("faster", "only before")]
        if lost:
            found.append(min(lost, key=lambda r: r.difference_s))
    return tuple(found)


def _on_other_machines(before: Sequence[Launch], after: Sequence[Launch]) -> bool:
    """Whether both sides name their GPUs and share none."""
    seen = [frozenset().union(*(launch.gpus for launch in side)) for side in (before, after)]
    return bool(seen[0] and seen[1] and not seen[0] & seen[1])


def _check(before: Sequence[Trace], after: Sequence[Trace]) -> list[str]:
    """Warn of reports that are on both sides."""
    both = {t.source.resolve() for t in before} & {t.source.resolve() for t in after}
    return [f"{path.name} is on both sides: no difference can show" for path in sorted(both)]


def _cautions(before: Side, after: Side, machines: bool, options: CompareOptions) -> list[str]:
    """Warn of what the comparison cannot know, or compares that is no before and after."""
    said = []
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

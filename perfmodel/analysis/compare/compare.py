"""Compares two sets of reports, launch by launch: the function of `perfmodel compare`."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import numpy as np

from perfmodel.analysis.compare.pairs import Pairs, pairs_of
from perfmodel.analysis.compare.series import (
    COLLECTIVES,
    FLOPS,
    GPU_BUSY,
    GPU_IDLE,
    GRAPHS,
    GROUPS,
    KERNELS,
    TOKENS,
    Group,
    Key,
    Launch,
    launch_of,
)
from perfmodel.analysis.runs import is_large, measure_report, runs_of, time_one
from perfmodel.base.arrays import Floats
from perfmodel.base.errors import ModelError, ReportError, WorkloadError
from perfmodel.base.units import si
from perfmodel.models.launches import (
    ENOUGH,
    GATE_SCALES,
    HOST_LIMITED,
    LAUNCH_NOISE,
    SCALES,
    Effect,
    Median,
    effect,
    holm,
    host_speeds,
    median,
    spreads,
)
from perfmodel.programs import MARK_SYMBOLS, program_of, program_of_run
from perfmodel.programs.identify import MARK_KEY, Identity, from_mark
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.trace import Trace
from perfmodel.timing.async_batches import AsyncBatches, time_async
from perfmodel.timing.collectives import NCCL
from perfmodel.timing.host_timeline import CAUSE_NAMES
from perfmodel.timing.recorder import Recorder
from perfmodel.timing.run import Run, TimedReport
from perfmodel.timing.spans import Level

Verdict = Literal["faster", "slower", "within noise", "only before", "only after", "not tested"]


ALPHA: Final = 0.05
_NINE_IN_TEN: Final = 1.645
"""Standard deviations on either side that hold nine in ten, as the recorder's intervals do."""
_LEAST_STEP_S: Final = 1e-9
_LAUNCHES: Final = 2
"""Of each side: one a side would raise 8 % of false alarms (`benchmarks.gate`)."""
_BATCHES: Final = 15
"""Of every launch: nearly all from which the noise at one speed was learned have more."""
KERNEL_NOISE: Final = 0.0075
"""Relative standard deviation of the time in kernels between runs of one configuration: less in
three of four of profiles/launches, fresh, hosts and scale, 0.24 % in the median."""


@dataclass(frozen=True, slots=True)
class Row:
    """One range, link or kernel on both sides; seconds per batch, None on a side without it.

    Attributes
    ----------
    path : tuple of str
        A range's labels from the batch inwards; a link's or kernel's kind and name; the rank that
        idles, and the cause.
    part : bool
        A link or kernel that is part of a total among the rows.
    before_s, after_s : float or None
        Median batch of the slowest rank; of several launches, the geometric mean of their medians.
    ratio, low, high : float or None
        After over before, with the interval that decides the verdict.
    level : float or None
        Probability that the interval was allowed to miss the truth with.
    share_before : float or None
        Of the batch before.
    p : float or None
        Of the hypothesis that nothing differs.
    launches : tuple of (int, int)
        Launches before and after that have it.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {
        "name": "name", "difference_s": "difference_s", "low": "ratio_low", "high": "ratio_high",
    }  # fmt: skip

    group: Group
    path: tuple[str, ...]
    part: bool
    before_s: float | None
    after_s: float | None
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    level: float | None
    verdict: Verdict
    share_before: float | None
    launches: tuple[int, int]

    @property
    def name(self) -> str:
        """Return its name for a reader: the innermost label, and its kind where no total has it."""
        if self.group == "range" or self.part or len(self.path) == 1:
            return self.path[-1]
        if self.group == "idle":
            return f"{self.path[0]}: {CAUSE_NAMES.get(self.path[1], self.path[1])}"
        return ": ".join(self.path) if self.group == "link" else self.path[-1]

    @property
    def depth(self) -> int:
        """Depth in the tree of its group."""
        return len(self.path) - 1 if self.group == "range" else int(self.part)

    @property
    def difference_s(self) -> float:
        """After less before, per batch; what is missing on a side took no time there."""
        return (self.after_s or 0.0) - (self.before_s or 0.0)


@dataclass(frozen=True, slots=True)
class Side:
    """The launches of one side, and what each says of itself.

    `middle` is the launch whose median batch is the middle one of the side, as it was measured, and
    its warm-up; None where launches were not measured here.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"middle": ""}

    launches: tuple[Launch, ...]
    settings: tuple[Mapping[str, str], ...]
    middle: tuple[Run, int] | None = None

    @property
    def queues(self) -> bool:
        """Whether the host of any launch leaves batches before they are done."""
        return any(launch.queues for launch in self.launches)


@dataclass(frozen=True, slots=True)
class Amount:
    """What a step works on or does, and how much of it on either side."""

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"ratio": "ratio"}

    name: str
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before if self.before else math.inf


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether batches became slower by more than is allowed.

    Attributes
    ----------
    limit : float
        Relative slowdown that is allowed: 0.05 is 5 %.
    low, high : float
        Limits of after / before of the batch, of which each is missed with 5 %.
    slower : bool or None
        True if the batch or its kernels are slower, by `judged`, or the batch at one speed of the
        host; False if none is; None if the noise is too large to decide.
    gpu : (float, float, bool or None) or None
        The limits and the answer for the time in kernels that compute, which differs less between
        runs; None where kernels were not recorded.
    host : (float, float, bool or None) or None
        The same of the batch, had all launches had a host of one speed; None where that speed is
        unknown, see `perfmodel.models.launches.host_speeds`.
    host_ratio : float or None
        By how much the host took longer after in all its pieces alike.
    launch_ratio : float or None
        The same of the calls that launch kernels, which no change of the program makes longer.
    per : str or None
        'sample' or 'token' where times are per one of these, for a step has not as many on the two
        sides.
    less : float or None
        Work of a step after over before where it is less by more than the limit and nobody says of
        how many samples it is: equal times are then no proof.
    rows : tuple of Row
        Ranges, links and kernels that certainly gained time, the largest first.
    without_recorder_s : (float, float) or None
        The steps before and after without the profiler, which are judged; None where it costs
        nothing that matters, or where its cost in a launch is unknown.
    """

    limit: float
    low: float
    high: float
    slower: bool | None
    rows: tuple[Row, ...]
    gpu: tuple[float, float, bool | None] | None = None
    host: tuple[float, float, bool | None] | None = None
    host_ratio: float | None = None
    launch_ratio: float | None = None
    per: str | None = None
    less: float | None = None
    without_recorder_s: tuple[float, float] | None = None


def judged(found: Effect, limit: float) -> tuple[float, float, bool | None]:
    """Hold a change against a limit; return its two limits, each missed with 5 %, and the answer.

    Slower is what is seen above the limit and is certainly no chance (the lower limit is above 1);
    not slower what is seen below it and is certainly less than twice the limit. So a change as
    large as the limit is decided as soon as the noise is less than the limit, by what is seen, and
    no change raises an alarm in less than 5 %. Source: two one-sided tests, D. J. Schuirmann,
    J. Pharmacokinet. Biopharm. 15, 657-680 (1987), about 1 and 1 + 2 limit.
    """
    ratio, low, high = found.ratio(2 * ALPHA)
    if ratio > 1 + limit:
        return low, high, True if low > 1 else None
    return low, high, False if high <= 1 + 2 * limit else None


def gate_of(
    batch: Effect, rows: Sequence[Row], limit: float, kernels: Effect | None = None,
    unit: Amount | None = None, without_recorder_s: tuple[float, float] | None = None,
    steady: _Steady | None = None, work: float = 1.0,
) -> Gate:  # fmt: skip
    """Judge the batch, and apart from it its kernels and what no slower host explains, per unit.

    Where the unit is unknown, less `work` (after over before) does not pass. The batch at one speed
    of the host decides what the batch as recorded leaves open. It passes only if it does so without
    the largest piece of the host's time, too, and if no more than the limit is seen on a host whose
    launches take as long: a change of a large piece, or of all alike, looks like a slower host.
    """
    more = math.log(unit.ratio) if unit else 0.0
    less = work if unit is None and work < 1 - limit else None

    def judge(found: Effect) -> tuple[float, float, bool | None]:
        return judged(replace(found, value=found.value - more), limit)

    low, high, slower = judge(batch)
    gpu = None if kernels is None else judge(kernels)
    host = None
    if steady is not None:
        host = judge(steady.effect)
        seen = batch.value - more - steady.by_launches > math.log1p(limit)
        if slower is None and (host[2] or (not seen and judge(steady.besides)[2] is False)):
            slower = host[2]
    slower = True if gpu is not None and gpu[2] else slower
    slower = None if less is not None and slower is False else slower
    gained = [r for r in rows[1:] if r.verdict in ("slower", "only after") and r.difference_s > 0]
    gained.sort(key=lambda row: -row.difference_s)
    return Gate(
        limit, low, high, slower, tuple(gained), gpu, host, steady.host_ratio if steady else None,
        steady.launch_ratio if steady else None,
        unit.name if unit and more else None, less, without_recorder_s,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Steady:
    """The change of the batch at one speed of the host, and of that speed (time after / before).

    `besides` is the same change by the speed of all pieces but the largest. `launch_ratio` is by
    how much the calls that launch kernels take longer: a slower host makes them longer, and no
    change of the program. `by_launches` is the logarithm of what the batch takes longer for it.
    """

    effect: Effect
    besides: Effect
    host_ratio: float
    launch_ratio: float | None
    by_launches: float


def _steady(
    before: Launches, after: Launches, medians: tuple[list[Median], list[Median]]
) -> _Steady | None:
    """Take the host's speed out of the batch; None where it is unknown, or limits nothing.

    A launch whose host took e^c times as long in its pieces, which are a share s of the batch, has
    the batch over e^(s c).
    """
    launches, n = [*before, *after], len(before)
    pieces = [one.pieces for one in launches]
    speeds = host_speeds(pieces)
    if speeds is None or min(n, len(after)) < _LAUNCHES:
        return None
    if min(x.batches for x in launches) < _BATCHES:
        return None
    share = float(np.mean([one.idle_share for one in launches]))
    if share < HOST_LIMITED:
        return None

    def at(speeds: Floats) -> Effect:
        even = [
            replace(m, log=m.log - share * c)
            for m, c in zip((*medians[0], *medians[1]), speeds.tolist(), strict=True)
        ]
        return spreads()["host at one speed"].effect(even[:n], even[n:])

    largest = max(pieces[0], key=lambda name: sum(one.get(name, 0.0) for one in pieces))
    others = host_speeds(pieces, without=largest)
    ratio = math.exp(float(np.mean(speeds[n:]) - np.mean(speeds[:n])))
    calls = [one.launch_s for one in launches]
    longer = None
    if min(calls) > 0:
        longer = float(np.mean(np.log(calls[n:])) - np.mean(np.log(calls[:n])))
    return _Steady(
        at(speeds), at(speeds if others is None else others), ratio,
        None if longer is None else math.exp(longer), share * (longer or 0.0),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Unrecorded:
    """Median batches of the launches of both sides without the profiler.

    `error` is what the timed steps leave unknown of the logarithm of after over before.
    """

    sides: tuple[list[Median], list[Median]]
    error: float


def _unrecorded(
    before: Launches, after: Launches, medians: tuple[list[Median], list[Median]]
) -> _Unrecorded | None:
    """Take the recorder's cost out of the batch; None where it is unknown, or does not matter.

    It is known where every program timed steps before it was recorded. Estimates are not enough:
    three launches over NCCL (profiles/ladder/nccl) differ by 4.2 % as recorded and by 7.7 % with
    them, and the gate then cannot decide between these launches and those of a CUDA graph.
    """
    recorders = [[launch.recorder for launch in side] for side in (before, after)]
    known = [[r for r in side if r and r.source == "measured"] for side in recorders]
    if any(len(a) < len(b) for a, b in zip(known, recorders, strict=True)):
        return None
    if not any(r.matters for side in known for r in side):
        return None
    sides, variance = [], 0.0
    for side, one in zip(medians, known, strict=True):
        shares = [_share(r, r.without_s) for r in one]
        sides.append([
            replace(m, seconds=m.seconds * share, log=m.log + math.log(share))
            for m, share in zip(side, shares, strict=True)
        ])  # fmt: skip
        widths = [math.log(_share(r, r.high_s) / _share(r, r.low_s)) / 2 for r in one]
        variance += sum(width**2 for width in widths) / len(widths) ** 2
    return _Unrecorded((sides[0], sides[1]), math.sqrt(variance) / _NINE_IN_TEN)


def _share(recorder: Recorder, seconds: float | None) -> float:
    """Return a step's time over the one that was recorded."""
    return max(seconds or recorder.step_s, _LEAST_STEP_S) / max(recorder.step_s, _LEAST_STEP_S)


def _gate_scale(before: Launches, after: Launches, batch: Key) -> float:
    """Noise of the batch between launches over that of host times, to raise few false alarms."""
    launches = [x for x in (*before, *after) if batch in x.series]
    scale = max(SCALES[x.series[batch].noise] for x in launches)
    if scale != SCALES["host"]:
        return scale
    return GATE_SCALES["queued" if any(x.queues for x in launches) else "waiting"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything perfmodel says about two sides.

    Attributes
    ----------
    rows : tuple of Row
        The batch first, then ranges, links and kernels.
    intervals : int
        Rows on both sides, which share the chance of a wrong verdict.
    alpha : float
        That chance, over all of them together.
    least : float
        Relative change that a verdict must exceed.
    launch_noise : float or None
        Assumed relative standard deviation between launches; None if launches give it.
    other_machines : bool
        Whether the sides ran on different machines.
    detectable_slower : float
        Smallest relative change of the batch that could have passed.
    addressed : tuple of Row
        The range and the link that lost the most time, of those that lost any for certain.
    idle : tuple of Row
        Idle time of every rank's GPU in a median step by cause, the largest change first; medians
        over launches, not tested.
    gate : Gate or None
        The gate, if an allowed slowdown was named.
    pairs : Pairs or None
        Kernels matched by operator and place, where many have other names on the two sides.
    unit : Amount or None
        Samples or tokens of a step over all ranks, where it has not as many on the two sides.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {
        "batch": "batch", "work": "work", "detectable_faster": "detectable_faster",
    }  # fmt: skip

    before: Side
    after: Side
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    intervals: int
    alpha: float
    least: float
    launch_noise: float | None
    other_machines: bool
    detectable_slower: float
    addressed: tuple[Row, ...]
    idle: tuple[Row, ...]
    gate: Gate | None
    warnings: tuple[str, ...]
    pairs: Pairs | None = None
    unit: Amount | None = None

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.rows)} rows, {len(self.warnings)} warnings>"

    @property
    def batch(self) -> Row:
        """The whole batch."""
        return self.rows[0]

    @property
    def work(self) -> tuple[Amount, ...]:
        """Work of a median batch that changed."""
        return work_changed(self.before, self.after)

    @property
    def detectable_faster(self) -> float:
        """The same of a batch that gets faster."""
        return 1 - 1 / (1 + self.detectable_slower)

    def group(self, name: Group) -> tuple[Row, ...]:
        """Rows of one group."""
        return tuple(row for row in (*self.rows, *self.idle) if row.group == name)


Launches = Sequence[Launch]


def align(before: Launches, after: Launches) -> tuple[Launches, Launches]:
    """Make the sides' keys comparable.

    The batch of every launch is called as that of the first one. A range that moved to another
    parent takes its path before, if its label is unique on both sides. What one side's collection
    did not record is left out on the other: missing is not zero.
    """
    root = next(iter(before[0].series))[1][0]
    before, after = ([_rooted(one, root) for one in side] for side in (before, after))
    old, new = (
        dict.fromkeys(path for one in side for group, path in one.series if group == "range")
        for side in (before, after)
    )
    moved = {}
    for path in new:
        at = [p for p in old if p[-1] == path[-1]]
        alone = len(at) == 1 and [p[-1] for p in new].count(path[-1]) == 1
        if alone and path not in old and at[0] not in new:
            moved[path] = at[0]
    after = [
        replace(one, series={
            (g, moved.get(p, p) if g == "range" else p): s for (g, p), s in one.series.items()
        })
        for one in after
    ]  # fmt: skip
    recorded = [frozenset.intersection(*(launch.recorded for launch in s)) for s in (before, after)]
    one_sided = recorded[0] ^ recorded[1]
    return [_without(x, one_sided) for x in before], [_without(x, one_sided) for x in after]


def _rooted(launch: Launch, root: str) -> Launch:
    """Name the batch, which contains all ranges, as given."""
    series = {(g, (root, *p[1:]) if g == "range" else p): s for (g, p), s in launch.series.items()}
    return replace(launch, series=series)


def _without(launch: Launch, sources: frozenset[str]) -> Launch:
    """Leave out what comes from sources that one of the sides did not record."""
    kept = {k: s for k, s in launch.series.items() if _source(k) not in sources}
    return replace(launch, series=kept)


def _source(key: Key) -> str:
    group, path = key
    if group == "range":
        return "nvtx"
    if path[0] in COLLECTIVES:
        return "nodes" if path[-1].startswith(NCCL) else "mpi"
    return "gpu" if path[0] in (GPU_BUSY, GPU_IDLE, GRAPHS) else "nodes"


def order(before: Launches, after: Launches) -> list[Key]:
    """All keys as trees: those before in their order, new ones after their siblings."""
    found = list(dict.fromkeys(k for launch in before for k in launch.series))
    found.sort(key=lambda k: GROUPS.index(k[0]))  # launches may have added some at the end
    for kind in GROUPS:
        known = [k for k in found if k[0] == kind]
        rest = [k for k in found if k[0] != kind]
        for key in dict.fromkeys(k for one in after for k in one.series if k[0] == kind):
            if key not in known:
                siblings = [i for i, k in enumerate(known) if _inside(k, key)]
                known.insert(siblings[-1] + 1 if siblings else len(known), key)
        found = rest + known
    return found


def _inside(key: Key, other: Key) -> bool:
    """Whether `key` is the range around `other`, or is in that range, too."""
    parent = other[1][:-1]
    return key[1][: len(parent)] == parent and (bool(parent) or key[1] == other[1][:1])


def without_repeats(keys: Sequence[Key]) -> list[Key]:
    """Leave out totals of a single part: they would say the same twice."""
    parts: dict[Key, int] = {}
    for kind, path in keys:
        if kind != "range" and len(path) > 1:
            parts[kind, path[:1]] = parts.get((kind, path[:1]), 0) + 1
    return [key for key in keys if parts.get(key, 0) != 1]


BATCH, LENGTH = "batch", "seq"
_ROLES: Final = {
    BATCH, LENGTH, "d_model", "d_ff", "heads", "kv_heads", "n_layer", "vocab", "channels", "height",
    "width",
}  # fmt: skip
"""Sizes of a program that are read off its operators' (`perfmodel.models.roles`)."""
_WORKLOAD: Final = {*MARK_SYMBOLS.values(), "dtype", "bytes per element", "workload", *_ROLES}
"""Settings that decide what is computed: D, H, C, B, p, the type."""
_NO_SETTINGS: Final = {MARK_KEY, "rank", "run_id", "versions", *MARK_SYMBOLS.values()}
_VERSIONS: Final = "versions."


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting with its values on either side; `workload` if it changes what is computed."""

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    workload: bool

    def __str__(self) -> str:
        sides = [" and ".join(s) if s else "not given" for s in (self.before, self.after)]
        return f"{self.name}: {sides[0]} -> {sides[1]}"


def settings(identity: Identity, traces: Sequence[Trace]) -> dict[str, str]:
    """Everything a run says of itself, by name."""
    config, symbols = identity.config, {v: k for k, v in MARK_SYMBOLS.items()}
    if "dtype" not in config:  # which bytes per element stand for
        symbols["bytes per element"] = "b"
    values = from_mark(config) | dict(identity.values)
    given = {f"{n} ({s})": str(values[s]) for n, s in symbols.items() if s in values}
    given |= {k: _text(v) for k, v in config.items() if k not in _NO_SETTINGS}
    versions = config.get("versions")
    if isinstance(versions, Mapping):
        given |= {f"{_VERSIONS}{k}": _text(v) for k, v in versions.items()}
    gpus = Counter(name for _, name in {(g.id, g.name) for t in traces for g in t.gpus})
    given |= (
        {"GPUs": ", ".join(f"{n} x {name}" for name, n in sorted(gpus.items()))} if gpus else {}
    )
    return given | {"Nsight Systems": traces[0].product_version}


def differences(
    before: Iterable[Mapping[str, str]], after: Iterable[Mapping[str, str]]
) -> tuple[Difference, ...]:
    """Settings that are not the same on both sides; the workload's first."""
    sides = [list(before), list(after)]
    names = dict.fromkeys(name for side in sides for run in side for name in run)
    found = []
    for name in names:
        first, second = (
            tuple(dict.fromkeys(run[name] for run in side if name in run)) for side in sides
        )
        if set(first) != set(second):
            of_workload = name.partition(" (")[0] in _WORKLOAD
            found.append(Difference(name, first, second, of_workload))
    return tuple(sorted(found, key=lambda d: not d.workload))


def mixed(runs: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Settings in which the launches of one side differ, as text."""
    names = dict.fromkeys(name for run in runs for name in run)
    said = []
    for name in names:
        values = tuple(dict.fromkeys(run.get(name, "not given") for run in runs))
        if len(values) > 1 and name != "seed" and not name.startswith(_VERSIONS):
            said.append(f"{name}: {' and '.join(values)}")
    return tuple(said)


def _text(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def copied(before: Sequence[Trace], after: Sequence[Trace]) -> list[str]:
    """Warn of reports that are there twice: copies are no launches of their own."""
    sides = [{content(t): t.source.name for t in traces} for traces in (before, after)]
    said = [
        f"{sides[0][key]} is on both sides: no difference can show"
        for key in sides[0]
        if key in sides[1]
    ]
    for name, traces, distinct in zip(("before", "after"), (before, after), sides, strict=True):
        if len(distinct) < len(traces):
            said.append(
                f"{len(traces) - len(distinct)} of the {len(traces)} reports {name} are copies of "
                f"others: each run counts once"
            )
    return said


def content(trace: Trace) -> tuple[Any, ...]:
    """Return what identifies a recording, whatever its file is called."""
    columns = (
        trace.ranges.start_ns, trace.ranges.end_ns, trace.ops.start_ns, trace.ops.end_ns,
        trace.mpi.start_ns, trace.threads,
    )  # fmt: skip
    sums = tuple(zlib.crc32(np.ascontiguousarray(column).data) for column in columns)
    return trace.utc_start_ns, trace.marks, *sums, *map(len, columns)


LEAST: Final = 0.01
_OTHERS: Final = 0.1
"""Of the time in kernels: from here on their names do not tell what replaced what."""
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
"""Warnings and advice where only one side recorded something."""


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Choices of the user.

    `level` is the level that is the unit in place of the step, `least` the relative change that
    counts, `noise` the relative standard deviation that is assumed between launches where there are
    too few to estimate it, `limit` the relative slowdown that `Comparison.gate` allows.
    """

    batch_label: str | None = None
    level: Level | None = None
    warmup: int | None = None
    by_time: bool = True
    least: float = LEAST
    noise: float = LAUNCH_NOISE
    limit: float | None = None

    def measured_by(self) -> Options:
        """Return the options by which every report is measured."""
        return Options(batch_label=self.batch_label, level=self.level, by_time=self.by_time)


def compare_traces(
    before: Sequence[Trace],
    after: Sequence[Trace],
    options: CompareOptions | None = None,
) -> Comparison:
    """Compare the reports of two sides, each of one or more launches of one configuration.

    Parameters
    ----------
    before, after : sequence of Trace
        Reports of the ranks of one launch are joined.
    options : CompareOptions, optional

    Raises
    ------
    ReportError, SchemaError, WorkloadError
        If a side has no report, a run has too few batches, or an option is out of range.
    """
    options = options or CompareOptions()
    chosen = options.measured_by()
    sides = [[time_one(trace, chosen) for trace in side] for side in (before, after)]
    found = compare_timed(
        sides[0],
        sides[1],
        options,
        lambda _: None,
        lambda i: sizes_of((before, after)[i][0], chosen),
    )
    if not other_kernels(found):
        return found
    return replace(found, pairs=pairs_of(before[0], after[0], chosen))


def compare_reports(
    before: Sequence[Path],
    after: Sequence[Path],
    options: CompareOptions,
    progress: Callable[[str], object],
) -> Comparison:
    """Compare the reports of two sides, of which one at a time is in memory whole.

    Parameters and errors are those of `compare_traces`; `progress` is called with every report's
    name before it is read, and with a run's label before it is measured.
    """

    def measured(path: Path) -> TimedReport:
        progress(f"reading {path.name}")
        chosen = options.measured_by()
        return measure_report(path, path, chosen, kernels=True)

    sides = [[measured(path) for path in side] for side in (before, after)]
    found = compare_timed(
        sides[0], sides[1], options, lambda label: progress(f"measuring {label}"),
        lambda i: sizes_of(read((before, after)[i][0]), options.measured_by()),
    )  # fmt: skip
    if not other_kernels(found) or any(is_large(path) for path in (before[0], after[0])):
        return found
    del sides
    return replace(found, pairs=pairs_of(read(before[0]), read(after[0]), options.measured_by()))


def sizes_of(trace: Trace, options: Options) -> dict[str, str]:
    """Read the sizes of a program off its operators' sizes, but those that are guessed."""
    operators = program_of([trace], options).recorded_operators
    if operators is None:
        return {}
    try:
        found = operators.roles(operators.recorded_step(trace, options), {})
    except ModelError:
        return {}
    return {role.name: str(role.value) for role in found.found if role.certainty != "guess"}


def other_kernels(found: Comparison) -> bool:
    """Whether a tenth of the time in kernels or more has no kernel of its name on the other side.

    Another vendor or version calls kernels by other names; a change of one operator does not.
    """
    kernels = [r for r in found.group("kernel") if len(r.path) > 1]
    for side, alone in (("before_s", "only before"), ("after_s", "only after")):
        total = sum(getattr(r, side) or 0.0 for r in kernels)
        single = sum(getattr(r, side) or 0.0 for r in kernels if r.verdict == alone)
        if single < _OTHERS * total or not total:
            return False
    return True


def compare_timed(
    before: Sequence[TimedReport],
    after: Sequence[TimedReport],
    options: CompareOptions,
    progress: Callable[[str], object],
    sizes: Callable[[int], Mapping[str, str]] = lambda _: {},
) -> Comparison:
    """Compare reports that have been measured.

    `sizes` reads the sizes of the first report before (0) or after (1), where FLOPs are not equal.
    """
    for name, value in (("least", options.least), ("launch noise", options.noise)):
        if not 0 <= value < 10:
            raise WorkloadError(
                f"expected a {name} from 0 to 1000 percent; got {100 * value:g} percent; give less"
            )
    measured = [
        _runs(name, timed, options.measured_by(), progress)
        for name, timed in (("before", before), ("after", after))
    ]
    # or times mean two things
    done = any(batches.queues for side in measured for _, batches in side)
    sides, warnings = [], []
    for name, runs in zip(("before", "after"), measured, strict=True):
        side, said = _side(
            name, runs, options.warmup, done=done, unrecorded=options.limit is not None
        )
        sides.append(side)
        warnings += said
    if any(one.name == FLOPS for one in work_changed(*sides)):
        given = [dict(sizes(i)) for i in (0, 1)]
        if all(given):
            sides = [
                replace(side, settings=tuple({**own, **more} for own in side.settings))
                for side, more in zip(sides, given, strict=True)
            ]
    traces = [[one.trace for one in timed] for timed in (before, after)]
    return compare_sides(sides[0], sides[1], options, [*warnings, *copied(*traces)])


def compare_sides(
    before: Side, after: Side, options: CompareOptions, warnings: Sequence[str] = ()
) -> Comparison:
    """Compare two sides whose launches have been measured."""
    old, new = align(before.launches, after.launches)
    gpus = [frozenset().union(*(x.gpus for x in side.launches)) for side in (before, after)]
    machines = bool(gpus[0] and gpus[1] and not gpus[0] & gpus[1])  # both named, none shared
    keys = without_repeats(order(old, new))
    medians = {key: (_medians(old, key), _medians(new, key)) for key in keys}
    effects = {
        # noise between launches over that of host times, of the side where there is more
        key: effect(
            *pair,
            options.noise * max(SCALES[s.noise] for x in (*old, *new) if (s := x.series.get(key))),
            machines=machines,
        )
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
    unit = _unit(before, after)
    enough = min(len(before.launches), len(after.launches)) >= ENOUGH
    return Comparison(
        before=before,
        after=after,
        rows=rows,
        differences=differences(before.settings, after.settings),
        intervals=len(effects),
        alpha=ALPHA,
        least=options.least,
        launch_noise=None if enough else options.noise,
        other_machines=machines,
        detectable_slower=effects[first].detectable(tests[first][2], options.least),
        addressed=addressed(rows, before, after, unit.ratio if unit else 1.0),
        idle=_idle(before.launches, after.launches, batch_s),
        gate=_gate(
            old, new, medians, first, rows, options, machines, unit, _less(before, after)
        ),
        warnings=tuple(dict.fromkeys([*warnings, *_warnings(before, after, machines, options)])),
        unit=unit if unit and unit.ratio != 1 else None,
    )  # fmt: skip


def _gate(
    old: Launches, new: Launches, medians: Mapping[Key, tuple[list[Median], list[Median]]],
    first: Key, rows: Sequence[Row], options: CompareOptions, machines: bool, unit: Amount | None,
    work: float,
) -> Gate | None:  # fmt: skip
    """Judge the batch without its recorder, where that is known; None where no limit was named."""
    if options.limit is None:
        return None
    sides, noise = medians[first], options.noise * _gate_scale(old, new, first)
    without = _unrecorded(old, new, sides)
    found = effect(*(without.sides if without else sides), noise, machines=machines)
    steps = None
    if without:
        found = replace(found, error=math.hypot(found.error, without.error))
        seconds = [_central(side) or 0.0 for side in without.sides]
        steps = seconds[0], seconds[1]
    kernels = _kernels(medians, machines=machines)
    steady = None if machines else _steady(old, new, without.sides if without else sides)
    return gate_of(found, rows, options.limit, kernels, unit, steps, steady, work)


def _kernels(
    medians: Mapping[Key, tuple[list[Median], list[Median]]], *, machines: bool
) -> Effect | None:
    """Compare the time in kernels that compute."""
    total = next((pair for (kind, path), pair in medians.items()
                  if kind == "kernel" and path == (KERNELS,)), None)  # fmt: skip
    if total is None or not all(total):
        return None
    return effect(*total, KERNEL_NOISE, machines=machines)


def _unit(before: Side, after: Side) -> Amount | None:
    """Return the samples or tokens of a step on both sides; None where a side does not say one.

    By the configuration mark, the operators' sizes, or the steps of an engine that serves a model.
    """
    sides = before, after
    marked = [
        {int(v) for run in side.settings for k, v in run.items() if k.endswith(" (B)")}
        for side in sides
    ]
    if all(len(found) == 1 for found in marked):
        return Amount("sample", float(marked[0].pop()), float(marked[1].pop()))
    sized = [side.settings[0] for side in sides]
    if all(BATCH in found for found in sized):
        old, new = (
            float(found[BATCH]) * side.launches[0].ranks
            for found, side in zip(sized, sides, strict=True)
        )
        if all(LENGTH in found for found in sized) and sized[0][LENGTH] != sized[1][LENGTH]:
            return Amount(
                "token", *(n * float(s[LENGTH]) for n, s in zip((old, new), sized, strict=True))
            )
        return Amount("sample", old, new)
    tokens = [_work(side, TOKENS) for side in sides]
    return Amount("token", *tokens) if all(tokens) else None


def _work(side: Side, name: str) -> float:
    """Return what a median step of a side does; 0 where a run does not say it."""
    found = [x.work.get(name, 0.0) for x in side.launches]
    return float(np.median(found)) if all(found) else 0.0


def work_changed(before: Side, after: Side) -> tuple[Amount, ...]:
    """Return what a median batch does more or less of.

    FLOPs and tokens only where both sides know them.
    """
    found = []
    for name in dict.fromkeys(k for x in (*before.launches, *after.launches) for k in x.work):
        old, new = _work(before, name), _work(after, name)
        known = (old and new) or name not in (FLOPS, TOKENS)
        if known and abs(new - old) > LEAST * max(old, new):
            found.append(Amount(name, old, new))
    return tuple(found)


def _threads(before: Side, after: Side) -> float:
    """Return the threads of kernels that both sides have, after over before; 1 where unknown.

    The geometric mean over kernels, by their time before: a program of other sizes launches the
    same kernels with other grids. Unknown where these kernels are less than half of the time.
    """
    old, new = before.launches[0], after.launches[0]
    time, logs, whole = [], [], 0.0
    for (group, path), series in old.series.items():
        if group != "kernel" or len(path) == 1:
            continue
        seconds = float(np.nanmedian(series.seconds))
        whole += seconds
        if path[-1] in old.threads and path[-1] in new.threads:
            time.append(seconds)
            logs.append(math.log(new.threads[path[-1]] / old.threads[path[-1]]))
    return math.exp(float(np.average(logs, weights=time))) if sum(time) > whole / 2 else 1.0


def _less(before: Side, after: Side) -> float:
    """Return the work of a step after over before: FLOPs, or threads where these are unknown."""
    old, new = _work(before, FLOPS), _work(after, FLOPS)
    return new / old if old and new else _threads(before, after)


def _runs(
    name: str, timed: Sequence[TimedReport], options: Options, progress: Callable[[str], object]
) -> list[tuple[Run, AsyncBatches]]:
    """Put the reports of one side together to its launches, each once."""
    distinct = list({content(one.trace): one for one in timed}.values())
    if not distinct:
        raise ReportError(f"expected at least one report {name}; got none; name one")
    return [(run, time_async(run)) for run in runs_of(distinct, options, progress)]


def _side(
    name: str,
    runs: Sequence[tuple[Run, AsyncBatches]],
    warmup: int | None,
    *,
    done: bool,
    unrecorded: bool,
) -> tuple[Side, list[str]]:
    """Take the series of one side's launches; `done` and `unrecorded` as of `launch_of`."""
    warnings, launches, given = [], [], []
    for run, batches in runs:
        identity, said = program_of_run(run, Options()).identify(run, {})
        launches.append(
            launch_of(run, warmup, async_batches=batches, done=done, unrecorded=unrecorded)
        )
        given.append(settings(identity, run.traces))
        warnings += said
    for text in mixed(given):
        warnings.append(
            f"the runs {name} do not have one configuration ({text}): their differences count "
            f"as noise; compare runs of one configuration"
        )
    medians = [float(np.nanmedian(next(iter(x.series.values())).seconds)) for x in launches]
    middle = int(np.argsort(medians)[len(medians) // 2])
    chosen = runs[middle][0], launches[middle].warmup
    return Side(tuple(launches), tuple(given), chosen), warnings


def _medians(launches: Sequence[Launch], key: Key) -> list[Median]:
    found = [launch.series[key] for launch in launches if key in launch.series]
    return [median(s.seconds, s.noise) for s in found]


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


def _idle(before: Launches, after: Launches, batch_s: float | None) -> tuple[Row, ...]:
    """Idle time by rank and cause on both sides; 0 where a rank idles, but not by that cause."""
    sides = [[launch.idle for launch in side if launch.idle] for side in (before, after)]
    keys = dict.fromkeys(key for side in sides for one in side for key in one)
    found = []
    for rank, cause in keys:
        seconds = [
            [one.get((rank, cause), 0.0) for one in side if any(r == rank for r, _ in one)]
            for side in sides
        ]
        old, new = (float(np.median(values)) if values else None for values in seconds)
        share = old / batch_s if old is not None and batch_s else None
        launches = (len(seconds[0]), len(seconds[1]))
        found.append(
            Row("idle", (f"rank {rank}", cause), False, old, new, None, None, None, None, None,
                "not tested", share, launches)
        )  # fmt: skip
    return tuple(sorted(found, key=lambda row: -abs(row.difference_s)))


def addressed(rows: Sequence[Row], before: Side, after: Side, more: float = 1.0) -> tuple[Row, ...]:
    """The innermost range and the link that certainly lost the most time, in that order.

    Where a step has so many times `more` samples after, times per sample count.

    Totals of the GPU do not count as links: they lose what copies and kernels lose. But where a
    host only queues, and ranges cannot show what it lost, the GPU's idle time does, if that is
    more than any link lost.
    """
    if more != 1:
        rows = [each(row, more) for row in rows]
    if (rows[0].after_s or 0.0) >= (rows[0].before_s or 0.0):
        return ()  # nothing was gained that it could be the reason of
    least_s = LEAST * (rows[0].before_s or 0.0)
    leaves = _telling_ranges(rows, before, after)
    totals = (GPU_BUSY, GPU_IDLE)
    links = [r for r in rows if r.group != "range" and r.depth == 0 and r.path[0] not in totals]
    found = [most for candidates in (leaves, links) if (most := _most_lost(candidates, least_s))]
    if (before.queues or after.queues) and not any(r.group == "range" for r in found):
        idle = _most_lost([r for r in rows if r.path == (GPU_IDLE,)], least_s)
        if idle and all(idle.difference_s < r.difference_s for r in found):
            found.insert(0, idle)
    return tuple(found)


def each(row: Row, more: float) -> Row:
    """Return a row whose times after are for as many samples as before."""
    if row.ratio is None or row.low is None or row.high is None:
        return row if row.after_s is None else replace(row, after_s=row.after_s / more)
    ratio, low, high = row.ratio / more, row.low / more, row.high / more
    verdict: Verdict = "within noise"
    if high < 1 - LEAST or low > 1 + LEAST:
        verdict = "faster" if high < 1 else "slower"
    after_s = None if row.after_s is None else row.after_s / more
    return replace(row, after_s=after_s, ratio=ratio, low=low, high=high, verdict=verdict)


def _most_lost(rows: Sequence[Row], least_s: float) -> Row | None:
    lost = [r for r in rows if r.verdict in ("faster", "only before") and -r.difference_s > least_s]
    return min(lost, key=lambda r: r.difference_s, default=None)


def _telling_ranges(rows: Sequence[Row], before: Side, after: Side) -> list[Row]:
    """Innermost ranges whose loss says what a change addressed.

    None if the batches after have no range of those before: their work went elsewhere. None if
    the host only queued them; if it does so after, what is gone still counts.
    """
    inside = [r for r in rows if r.group == "range" and r.depth > 0]
    if before.queues or not any(r.before_s is not None and r.after_s is not None for r in inside):
        return []
    holders = {r.path[:-1] for r in inside if r.before_s is not None}
    leaves = [r for r in inside if r.path not in holders]
    return [r for r in leaves if r.after_s is None] if after.queues else leaves


def _changed_work(work: Amount) -> str:
    if work.name == FLOPS:
        return f"{si(work.before, 'FLOP')} -> {si(work.after, 'FLOP')}"
    return f"{work.name} {work.before:,.0f} -> {work.after:,.0f}"


def _warnings(before: Side, after: Side, machines: bool, options: CompareOptions) -> list[str]:
    """Warn of what the comparison cannot know, or compares that is no before and after."""
    said = []
    where = " and ".join(n for n, s in (("before", before), ("after", after)) if s.queues)
    if where:
        said.append(
            f"the host queues steps {where} without waiting until they are done: on both sides a "
            f"step is timed from the end of the one before it to the end of its own GPU work; "
            f"host times of ranges {where} are those of queueing"
        )
    found = differences(before.settings, after.settings)
    other = "; ".join(str(d) for d in found if d.workload)
    if other:
        said.append(
            f"the sides do not compute the same ({other}): the comparison is not of one "
            f"change; compare runs of one workload"
        )
    work = [_changed_work(one) for one in work_changed(before, after)]
    threads = _threads(before, after)
    if abs(threads - 1) > LEAST:
        work.append(f"threads of the same kernels: {threads:.2f} times as many")
    if work:
        said.append(f"a step does other work on the two sides ({'; '.join(work)})")
    counts = len(before.launches), len(after.launches)
    if min(counts) < ENOUGH:
        noise = f"{100 * options.noise:g} %" if options.noise else "nothing"
        said.append(
            f"{counts[0]} run{'s' * (counts[0] > 1)} before and {counts[1]} after do not show the "
            f"difference between runs, so {noise} is assumed (kernels a fifth of it); record "
            f"{ENOUGH} runs or more of each side and give all reports: perfmodel compare b1 b2 b3 "
            f"--to a1 a2 a3"
        )
    single = [x.label for side in (before, after) for x in side.launches if x.batches == 1]
    if single:
        said.append(
            f"one finished step in {' and '.join(single)}: how much steps differ is unknown; "
            f"profile more steps"
        )
    for source, (problem, advice) in _SOURCES.items():
        has = [all(source in one.recorded for one in s.launches) for s in (before, after)]
        gpu = [all("gpu" in one.recorded for one in s.launches) for s in (before, after)]
        if has[0] != has[1] and (source != "nodes" or all(gpu)):
            said.append(f"{problem.format('before' if has[1] else 'after')}; {advice}")
    if machines:
        said.append(
            "the sides ran on different GPUs: machines are assumed to differ more than runs "
            "do; run both sides on one machine"
        )
    return said

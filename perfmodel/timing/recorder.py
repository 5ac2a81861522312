"""The step without its recorder: a replay in which the host does not pay for being recorded.

A profiler makes a step longer only through the host: it runs code before and after every call to
CUDA and every range, most of it outside of the times that it writes down. So the graph of the step
is replayed with shorter pieces of the host, and the GPU's work hides as much of them as it can:

    cost of a piece = k^a (c_launch launches + c_sized sized ranges + c_range other ranges)
    piece without   = max(piece - cost, b piece)

A launch's cost is the sum over all calls that belong to it (cuKernelGetName, cuKernelGetAttribute,
...): their numbers are in proportion, so that costs per kind of call cannot be told apart. `own` of
it lies in the launching call, the rest in the pause behind it. k is how much slower than usual the
recorder was, which the recording says itself: the geometric mean of the median durations of short
calls, and of the 10th percentile of pauses between calls, over usual ones. Such calls do next to
nothing but to be recorded. A call's time holds the driver's own work, too, that is slowed less:
hence the exponent a > 1. Constants, and how they were fitted, are in `recorders.toml`.

The interval is that of replays with costs multiplied by factors that recordings of known time
without a profiler justify. So it is wide where the host sets the pace, and narrow where the GPU
does. No step is shorter than the GPU's own work, nor longer than recorded.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal

import numpy as np

from perfmodel.base.arrays import Bool, Floats, Int32, Int64
from perfmodel.base.units import si
from perfmodel.readers.trace import NO_NAME, TORCH_PROFILER, Trace
from perfmodel.timing.critical_path import Change, Replay
from perfmodel.timing.host_timeline import plain_call
from perfmodel.timing.spans import Steps
from perfmodel.timing.step_graph import STEP_OP, StepGraph

_SIZED: Final = "sizes = "
_MARK_KEY: Final = "perfmodel_recorder"
_LONGEST_MARK: Final = 10_000
"""Letters; a longer text is no such mark."""
_MOST_COST: Final = 4.0
"""Recordings of known time without a profiler need at most 2.1 times the usual costs."""
_HALVINGS: Final = 8
_FEW: Final = 5
"""Calls of a name whose median is looked at, at least."""
_NOISE: Final = 0.02
"""The same steps differ by so much from one measurement to the next: GPU-limited ones timed without
a profiler and by one differ by at most 1.2 % (`benchmarks.recorder`)."""
_KINDS: Final = ("launch", "sized_range", "range")
SIZED: Final = _KINDS.index("sized_range")
_NO_CALLS: Final = "no CUDA API calls of the steps were recorded"
_NO_LAUNCHES: Final = "no launch of the steps' operations was recorded"


@dataclass(frozen=True, slots=True)
class Costs:
    """What a recorder costs the host; see `recorders.toml`.

    Attributes
    ----------
    name : str
    exponent, own, kept, slowest : float
    ns : float64, shape (kinds,)
        Per event of `_KINDS`.
    low, high : float64, shape (kinds,)
    usual_ns : mapping of str to float
    """

    name: str
    exponent: float
    own: float
    kept: float
    slowest: float
    ns: Floats
    low: Floats
    high: Floats
    usual_ns: Mapping[str, float]


@cache
def costs_of(recorder: str) -> Costs:
    """Return the costs of a recorder by what `Trace.recorder` calls it."""
    text = files("perfmodel.timing").joinpath("recorders.toml").read_text(encoding="utf-8")
    family = TORCH_PROFILER if recorder == TORCH_PROFILER else "Nsight Systems"
    said: dict[str, Any] = tomllib.loads(text)[family]
    ns, low, high = (
        np.array([said[kind][column] for kind in _KINDS], float) for column in ("ns", "low", "high")
    )
    name, exponent, own, kept, slowest = (
        said[key] for key in ("name", "exponent", "own", "kept", "slowest")
    )
    return Costs(name, exponent, own, kept, slowest, ns, low, high, said["usual_ns"])


@dataclass(frozen=True, slots=True)
class Pushes:
    """Ranges that the threads of a report pushed, by time.

    Attributes
    ----------
    start_ns : int64, shape (n,)
    thread : int32, shape (n,)
    sized : bool, shape (n,)
        Whether the name holds sizes of an operator's arguments.
    """

    start_ns: Int64
    thread: Int32
    sized: Bool

    @classmethod
    def of(cls, trace: Trace) -> Pushes:
        """All ranges of a report, those of operators and libraries, too."""
        ranges = trace.ranges
        named = np.array([_SIZED in label for label in trace.range_labels] + [False], np.bool_)
        order = np.argsort(ranges.start_ns, kind="stable")
        name = np.where(ranges.name == NO_NAME, -1, ranges.name)
        return cls(ranges.start_ns[order], ranges.thread[order], named[name][order])

    def count(self, edge_ns: Int64, threads: Int32) -> tuple[Int32, Int32]:
        """Ranges with sizes, and others, that some threads pushed between each two edges."""
        if len(edge_ns) < 2:
            return np.empty(0, np.int32), np.empty(0, np.int32)
        held = slice(*np.searchsorted(self.start_ns, edge_ns[[0, -1]]))
        mine = np.isin(self.thread[held], threads)
        piece = np.searchsorted(edge_ns, self.start_ns[held][mine], side="right") - 1
        sized, pieces = self.sized[held][mine], len(edge_ns) - 1
        counts = (np.bincount(piece[some], minlength=pieces) for some in (sized, ~sized))
        with_sizes, others = (count.astype(np.int32) for count in counts)
        return with_sizes, others


def slowness(trace: Trace, steps: Steps, process: int) -> float | None:
    """By what factor recording a process was slower than usual; None without CUDA calls."""
    usual, api = costs_of(trace.recorder).usual_ns, trace.api
    mine = steps.process == process
    inside = np.flatnonzero(
        (trace.thread_process[api.thread] == process)
        & (api.start_ns >= steps.start_ns[mine].min(initial=np.iinfo(np.int64).max))
        & (api.start_ns <= steps.end_ns[mine].max(initial=0))
        & (api.end_ns >= api.start_ns)
    )
    if len(inside) == 0:
        return None
    name, length = api.name[inside], (api.end_ns - api.start_ns)[inside]
    factors = []
    for code in np.unique(name[name != NO_NAME]).tolist():
        known = usual.get(plain_call(trace.strings[code]))
        if known and np.count_nonzero(name == code) >= _FEW:
            factors.append(float(np.median(length[name == code])) / known)
    order = inside[np.lexsort((api.start_ns[inside], api.thread[inside]))]
    same = api.thread[order[1:]] == api.thread[order[:-1]]
    pauses = np.maximum(api.start_ns[order[1:]] - api.end_ns[order[:-1]], 0)[same]
    if "pause" in usual and len(pauses) >= _FEW:
        factors.append(float(np.percentile(pauses, 10)) / usual["pause"])
    # sorted: a sum of floats depends on the order, here that of the names' numbers
    known_factors = np.log(sorted(f for f in factors if f > 0))
    return float(np.exp(known_factors.mean())) if len(known_factors) else 1.0


@dataclass(frozen=True, slots=True)
class Recorder:
    """A step with and without the profiler that recorded it.

    Attributes
    ----------
    name : str
        `nsys` or `torch.profiler`.
    step_s : float
        As recorded: the median step of the slowest rank.
    without_s, low_s, high_s : float or None
        Without the profiler, and an interval that holds nine in ten; None where unknown.
    source : str
        `measured` where the program timed steps before it was recorded, else `estimated`; '' where
        nothing is known.
    by_kind : mapping of str to float
        Seconds per step that recording costs the host of the slowest rank: `launch` (calls to
        CUDA), `sized_range` (names with sizes), `range`. The GPU's work may hide them.
    reason : str
        Why nothing is known; '' where it is.
    """

    name: str
    step_s: float
    without_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    source: Literal["measured", "estimated", ""] = ""
    by_kind: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def matters(self) -> bool:
        """Whether recording makes the step longer by more than times differ anyway."""
        return self.without_s is not None and self.without_s < (1.0 - _NOISE) * self.step_s

    def __str__(self) -> str:
        """Say both times in one line."""
        if self.without_s is None:
            return (
                f"step {si(self.step_s, 's')} recorded; unknown without {self.name}: {self.reason}"
            )
        about = "about " * (self.source == "estimated")
        without, low, high = (si(s, "s", 2) for s in (self.without_s, self.low_s, self.high_s))
        return (
            f"step {si(self.step_s, 's')} recorded, {about}{without} without {self.name} "
            f"({low} to {high})"
        )


def recorded(
    graph: StepGraph, pushes: Pushes, threads: Int32, recorder: str, slow: float | None
) -> StepGraph:
    """Return a graph with what its recorder did in every piece of the host.

    Parameters
    ----------
    graph : StepGraph
    pushes : Pushes
    threads : int32
        Those of the graph's host.
    recorder : str
        As `Trace.recorder`.
    slow : float or None
        As `slowness`.
    """
    sized, others = pushes.count(graph.host_edge_ns, np.unique(threads))
    return replace(graph, host_sized=sized, host_ranges=others, recorder=recorder, slow=slow)


def events_of(graph: StepGraph) -> Floats:
    """Launches, ranges with sizes and other ranges of the host per step, shape (kinds,)."""
    ranges = (
        0 if count is None else count.sum() for count in (graph.host_sized, graph.host_ranges)
    )
    steps = max(len(np.unique(graph.op_step)), 1)
    return np.array([len(_launches(graph)), *ranges]) / steps


def _launches(graph: StepGraph) -> Int64:
    """Pieces of the host that launch."""
    return np.unique(graph.op_call[graph.op_kind < STEP_OP]).astype(np.int64)


def each_ns(graph: StepGraph) -> Floats:
    """What recording one event of each kind costs the host, shape (kinds,); 0 where unknown."""
    costs, slow = costs_of(graph.recorder), graph.slow or 0.0
    each: Floats = costs.ns * min(slow, costs.slowest) ** costs.exponent
    return each


def shorter_ns(graph: StepGraph, factor: Floats | float = 1.0) -> Int64:
    """By how much each piece of the host is shorter without the recorder, shape (h,).

    Parameters
    ----------
    graph : StepGraph
    factor : floats, shape (kinds,), or float
        What to multiply the costs by.
    """
    costs, length = costs_of(graph.recorder), np.diff(graph.host_edge_ns)
    each, cost = each_ns(graph) * factor, np.zeros(len(length))
    launches = np.zeros(len(length))
    launches[_launches(graph)] = each[0]
    cost += costs.own * launches
    cost[1:] += (1.0 - costs.own) * launches[:-1]
    for ns, count in zip(each[1:], (graph.host_sized, graph.host_ranges), strict=True):
        cost += 0.0 if count is None else ns * count
    cost[graph.host_drains] = 0.0  # such a call waits for the GPU
    return np.minimum(cost, (1.0 - costs.kept) * length).astype(np.int64)


def unrecorded(graphs: Sequence[StepGraph], factor: Floats | float = 1.0) -> Change:
    """The change of a replay that takes the recorder's cost off the host of every lane."""
    return Change(shorter_ns={i: shorter_ns(g, factor) for i, g in enumerate(graphs)})


@dataclass(frozen=True, slots=True)
class Timed:
    """What a program's mark says of steps that it timed before it was recorded.

    Attributes
    ----------
    step_s, low_s, high_s : float
        Median, least and most of its rounds, of the slowest rank.
    range_s, launch_s, sized_range_s : float or None
        What recording adds to an event, by the probes before and after its begin.
    """

    step_s: float
    low_s: float
    high_s: float
    launch_s: float | None = None
    sized_range_s: float | None = None
    range_s: float | None = None

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> Timed | None:
        """Read the marks of all ranks; None where there is none, or none that can be read."""
        found = [one for t in traces for _, _, text in t.marks if (one := cls._read(text))]
        return max(found, key=lambda one: one.step_s, default=None)

    @classmethod
    def _read(cls, text: str) -> Timed | None:
        if _MARK_KEY not in text or len(text) > _LONGEST_MARK:
            return None
        try:
            said = json.loads(text)
            times = [float(said[key]) for key in ("step_s", "low_s", "high_s")]
            probe = said.get("probe", {})
            more = {
                f"{kind}_s": max(float(probe[kind][1]) - float(probe[kind][0]), 0.0)
                for kind in _KINDS
                if kind in probe
            }
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return None
        sane = all(0 < t < np.inf for t in times) and times[1] <= times[0] <= times[2]
        return cls(*times, **more) if sane else None


def _by_kind(graph: StepGraph, timed: Timed | None) -> Floats:
    """Seconds per step that recording costs the host, by the program's probe where it is known."""
    each = each_ns(graph) * 1e-9
    probed = (getattr(timed, f"{kind}_s", None) for kind in _KINDS)
    found: Floats = events_of(graph) * [
        e if p is None else p for p, e in zip(probed, each, strict=True)
    ]
    return found


def without_recorder(
    replay: Replay,
    graphs: Sequence[StepGraph],
    step_s: float,
    gpu_s: float,
    timed: Timed | None = None,
) -> Recorder:
    """Estimate a step without the profiler that recorded it.

    Parameters
    ----------
    replay : Replay
        Of the graphs.
    graphs : sequence of StepGraph
        One per lane.
    step_s : float
        As recorded.
    gpu_s : float
        The GPU's own work in a step: none is shorter.
    timed : Timed, optional
        What the program timed: it counts before all estimates.
    """
    known = [graph for graph in graphs if len(_launches(graph))]
    costs = costs_of(graphs[0].recorder)
    by_kind = max((_by_kind(graph, timed) for graph in known), key=np.sum, default=np.zeros(3))
    named = {kind: s for kind, s in zip(_KINDS, by_kind.tolist(), strict=True) if s}
    if timed is not None and step_s:
        middle, low, high = (min(s, step_s) for s in (timed.step_s, timed.low_s, timed.high_s))
        return Recorder(costs.name, step_s, middle, low, high, "measured", named)
    if not known or not step_s or any(graph.slow is None for graph in known):
        unknown = _NO_LAUNCHES if not known else _NO_CALLS
        return Recorder(costs.name, step_s, reason=unknown)
    bounds = (costs.high, 1.0 - _NOISE), (1.0, 1.0), (costs.low, 1.0 + _NOISE)
    low, middle, high = (
        min(max(replay.step_s(unrecorded(graphs, factor)) * noise, min(gpu_s, step_s)), step_s)
        for factor, noise in bounds
    )
    return Recorder(costs.name, step_s, middle, low, high, "estimated", named)


def fitted(replay: Replay, graphs: Sequence[StepGraph], found: Recorder) -> Change:
    """The change of a replay after which a step takes as long as without the recorder.

    Where that was measured, costs are multiplied by what gives it, at most `_MOST_COST`.
    """
    if found.source != "measured" or found.without_s is None:
        return unrecorded(graphs)
    least, most = 0.0, _MOST_COST
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        if replay.step_s(unrecorded(graphs, middle)) > found.without_s:
            least = middle
        else:
            most = middle
    return unrecorded(graphs, most)

"""Runs: groups the reports of the ranks of one run, and measures the runs that reports hold."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int64, release_freed
from perfmodel.base.errors import ModelError, ReportError
from perfmodel.programs import program_of
from perfmodel.programs.identify import read_mark
from perfmodel.programs.program import Options, Program
from perfmodel.readers import opened
from perfmodel.readers.nsys import read_by_process, read_sqlite
from perfmodel.readers.packed import EventsByProcess
from perfmodel.readers.pages import Texts
from perfmodel.readers.trace import NULL, NcclRank, Trace
from perfmodel.timing.by_process import launches
from perfmodel.timing.kernels import communicating
from perfmodel.timing.recorder import Pushes
from perfmodel.timing.run import Needed, Run, TimedReport, assemble, time_report
from perfmodel.timing.spans import Candidate, Steps
from perfmodel.timing.step_graph import MOST_OPS
from perfmodel.timing.step_report import StepsByPart
from perfmodel.timing.trim import needed, trim

_SUFFIXES: Final = re.compile(
    r"\.sqlite.*|\.nsys-rep$|(\.pt\.trace)?\.json(\.gz|\.xz|\.zst)?$|_(pqt|arw)dir$|\.xplane\.pb"
)
"""Ends of the names of reports, which labels leave out."""
_LARGE_BYTES: Final = 1 << 25
"""Reports of this many bytes or more are measured one process after the other."""
_SLACK_NS: Final = 10**9
"""Reports of one run overlap in time, but for what the clocks of its hosts differ by."""
_FEW: Final = 4
"""Of fewer exchanges nothing tells whose they are."""
_TOGETHER_NS: Final = 100_000
"""The kernels of one collective end together: on NVLink of one host within 20 µs."""
_MOST: Final = 0.9
"""Of the exchanges of one run so many end together; the first may be before a recording began."""
_NEVER: Final = 1e-6
"""Probability of an answer that a report does not have among its own."""
_NO_GPU: Final = int(np.iinfo(np.int32).max)
"""Comes behind all numbers of GPUs."""


def time_one(trace: Trace, options: Options) -> TimedReport:
    """Measure the ranges of one report, whose batches are those of its program."""
    program = program_of([trace], options)
    shown, steps = program.steps(trace, options)
    timed = _timed(program, (trace, shown), steps, options)
    if timed.steps and options.layers:
        from perfmodel.programs.layers import phase_times  # most analyses need none

        return replace(timed, operators=phase_times(shown, timed.steps, options.dtype))
    if timed.steps:
        found = program.operators(trace, timed.steps, options)
        captured = found.places if found else {}
        return replace(timed, steps=replace(timed.steps, captured=captured), operators=found)
    return timed


def is_large(file: Path) -> bool:
    """Whether a report is measured one process after the other."""
    return file.is_file() and file.stat().st_size >= _LARGE_BYTES


def read_large(file: Path, source: Path, options: Options) -> tuple[Trace, EventsByProcess]:
    """Read a large report; labels have all their numbers if they are not of PyTorch's operators."""
    trace, events = read_by_process(file, source=source)
    if trace.numbers is None or program_of([trace], options).parses_operators:
        return trace, events
    del trace, events
    return read_by_process(file, source=source, texts=Texts)


def has_parts(trace: Trace, options: Options) -> bool:
    """Whether a report can be measured so: nothing is counted over all of it at once."""
    return not options.layers and not program_of([trace], options).has_operators(trace, options)


def measure_report(
    path: Path,
    source: Path,
    options: Options,
    *,
    kernels: bool = False,
    most_ops: int = MOST_OPS,
    drawn: bool = False,
    unpacked: Path | None = None,
) -> TimedReport:
    """Read and measure one report, and keep of it what is looked at later.

    Parameters
    ----------
    path, source : Path
        The file, and what it is called.
    options : Options
    kernels : bool
        Keep every kernel in the batches, as where the workload replays them.
    most_ops : int
        As `time_streamed`.
    drawn : bool
        Keep all of it but operations and calls that can be read again: those of a large file that
        stays.
    unpacked : Path, optional
        Folder where a temporary file of it stays, if it is there.
    """
    kernels |= bool(options.workload and options.workload.replay)
    stays = unpacked if drawn and unpacked and unpacked.is_dir() else None  # here: not elsewhere
    with opened(path, stays) as file:
        large = is_large(file) and (file == path or bool(stays) or not drawn)
        if large:
            keep = partial(needed, replays=kernels)
            timed = time_streamed(
                *read_large(file, source, options), options, keep, most_ops, all_gaps=drawn
            )
        else:
            timed = time_one(read_sqlite(file, source=source), options)
    found = timed if drawn else trim(timed, replays=kernels, most_ops=most_ops)
    if large:
        del timed
        release_freed()
    return found


def time_streamed(
    trace: Trace,
    events: EventsByProcess,
    options: Options,
    needed: Needed,
    most_ops: int,
    *,
    all_gaps: bool = False,
) -> TimedReport:
    """Measure a large report, and keep of its operations and calls only what is needed.

    Parameters
    ----------
    trace : Trace
        Without operations and API calls.
    events : EventsByProcess
        These.
    options : Options
    needed : callable
        Which of them are kept.
    most_ops : int
        Operations of each lane's last steps that are kept for the replay.
    all_gaps : bool
        Keep the gaps of GPUs one by one.
    """
    if not has_parts(trace, options):
        return time_one(events.whole(trace), options)
    program = program_of([trace], options)
    shown, steps = program.steps(trace, options, partial(launches, trace, events))
    return _timed(
        program, (trace, shown), steps, options, (events, needed), most_ops, all_gaps=all_gaps
    )


def _timed(
    program: Program,
    traces: tuple[Trace, Trace],
    steps: Steps,
    options: Options,
    events: tuple[EventsByProcess, Needed] | None = None,
    most_ops: int | None = None,
    *,
    all_gaps: bool = False,
) -> TimedReport:
    """Measure a report, given as read and with the program's own ranges only."""
    whole, trace = traces
    by_part = None
    if len(steps):
        pushes = Pushes.of(whole)
        by_part = StepsByPart(trace, steps, most_ops, all_gaps=all_gaps, pushes=pushes)
    return time_report(
        trace,
        steps.label,
        by_time=options.by_time,
        steps=by_part,
        program=program.name,
        events=events,
    )


def time_runs(traces: Sequence[Trace], options: Options) -> list[Run]:
    """Measure the runs that some reports hold, each report once.

    Raises
    ------
    ReportError, SchemaError
        If there is no report, or a run has no batches.
    """
    return runs_of([time_one(t, options) for t in distinct_reports(traces)], options)


def runs_of(
    timed: Sequence[TimedReport],
    options: Options,
    progress: Callable[[str], object] = lambda _: None,
) -> list[Run]:
    """Put reports that were measured with these options together to the runs they are of."""
    by_source = {one.trace.source.resolve(): one for one in timed}
    runs = []
    for label, traces in group([one.trace for one in timed]):
        progress(label)
        members = _agreed([by_source[trace.source.resolve()] for trace in traces], options)
        runs.append(assemble(_numbered(members), label=label))
    return runs


def one_run(timed: Sequence[TimedReport], options: Options) -> Run:
    """Return the run of some reports; several runs are refused."""
    runs = runs_of(timed, options)
    if len(runs) != 1:
        raise ModelError(
            f"expected the report of one run (or those of its ranks); got {len(runs)} runs: "
            f"{', '.join(run.label for run in runs)}; give one of them"
        )
    return runs[0]


def _agreed(members: Sequence[TimedReport], options: Options) -> list[TimedReport]:
    """Let the ranks of one run have one step, where their reports alone say different ones.

    Of the answers of its reports the run's is the one of the largest joint probability. Reports
    with another answer are measured again, if they are files and have the run's among theirs.
    """
    said = [one.steps.steps.candidates if one.steps else () for one in members]
    if len(members) < 2 or options.batch_label or options.level or not all(said):
        return [*members]
    answers = [candidates[0] for candidates in said]
    if all(one.is_like(answers[0]) or one.count == answers[0].count for one in answers):
        return [*members]

    def joint(answer: Candidate) -> float:
        like = ([c.score for c in candidates if c.is_like(answer)] for candidates in said)
        return sum(math.log(max(max(scores, default=0.0), _NEVER)) for scores in like)

    best = max(answers, key=joint)
    again = replace(options, agreed=best)
    found = []
    for one, answer in zip(members, answers, strict=True):
        source = one.trace.source
        if answer.is_like(best) or not source.is_file():
            found.append(one)
            continue
        found.append(measure_report(source, source, again, kernels=True, drawn=one.trace.whole))
    return found


def _numbered(members: Sequence[TimedReport]) -> list[TimedReport]:
    """Number the ranks of one run where MPI does not name them.

    Reports of one rank each have the number that NCCL, or torchrun's environment, gives; where
    these do not tell all of them apart, ranks are counted one report after the other.
    """
    if len(members) == 1 or any(m.trace.ranks or m.steps is None for m in members):
        return [*members]
    said = [_said_rank(m.trace) for m in members]
    alone = all(m.steps is not None and len(m.steps.rank_of) == 1 for m in members)
    apart = alone and min(said) >= 0 and len({*said}) == len(said)
    found, first = [], 0
    for one, rank in zip(members, said, strict=True):
        assert one.steps is not None
        first = rank if apart else first
        times, attribution = one.range_times, one.attribution
        found.append(
            replace(
                one,
                range_times=replace(times, rank=times.rank + np.int32(first)),
                attribution=replace(attribution, op_rank=attribution.op_rank + np.int32(first)),
                steps=replace(
                    one.steps, rank_of={p: r + first for p, r in one.steps.rank_of.items()}
                ),
            )
        )
        first += len(one.steps.rank_of)
    return found


def distinct_reports(traces: Sequence[Trace]) -> list[Trace]:
    """Return every report once; those given again are left out.

    Raises
    ------
    ReportError
        If there is none.
    """
    distinct: dict[Path, Trace] = {}
    for trace in traces:
        distinct.setdefault(trace.source.resolve(), trace)
    if not distinct:
        raise ReportError("expected at least one report; got none; name one")
    return list(distinct.values())


def group(traces: Sequence[Trace]) -> list[tuple[str, list[Trace]]]:
    """Group reports that hold different ranks of one run; every other report is its own run.

    Reports belong together if their marks name one run, or, without marks, if each holds fewer
    ranks than its communicator, their ranks differ, and they overlap in time; or if NCCL's payloads
    in them name one communicator; or, where neither names ranks, if their collectives end
    together. The reports of a run come by rank; where no ranks are named, by
    GPU if each is of another one, else as they are given.
    """
    groups: list[_Group] = []
    for i in sorted(range(len(traces)), key=lambda i: traces[i].utc_start_ns or 0):
        alone = _Group.of(i, traces[i])
        home = next((n for n, g in enumerate(groups) if g.takes(alone)), None)
        if home is None:
            groups.append(alone)
        else:
            groups[home] = groups[home].with_member(alone)
    found = [[traces[i] for i in g] for g in sorted(sorted(g.members) for g in groups)]
    found = [_by_rank(members) for members in found]
    return list(zip(_labels([g[0].source for g in found]), found, strict=True))


def _by_rank(traces: Sequence[Trace]) -> list[Trace]:
    """Order the reports of one run."""
    ranks = [min(t.ranks.values(), default=_said_rank(t)) for t in traces]
    gpus = [int(t.ops.device.min(initial=_NO_GPU)) for t in traces]
    apart = len({*gpus}) == len(gpus)
    order = sorted(range(len(traces)), key=lambda i: (ranks[i], gpus[i] if apart else i))
    return [traces[i] for i in order]


def _said_rank(trace: Trace) -> int:
    """Rank by the largest communicator of NCCL, or by torchrun's environment; -1 without both."""
    known = max(trace.nccl_ranks, key=_size, default=None)
    if known is not None:
        return known.rank
    return -1 if trace.launch_rank is None else trace.launch_rank


def _size(member: NcclRank) -> int:
    return member.ranks


@dataclass(frozen=True, slots=True)
class _Group:
    """Reports of one run so far: their ranks, what their marks call the run, and their UTC times.

    `latest_ns` is the last of their starts and `earliest_ns` the first of their ends; None where
    one of them does not give it.
    """

    members: tuple[int, ...]
    ranks: frozenset[int]
    world: int
    run_id: str
    communicators: frozenset[int]
    latest_ns: int | None
    earliest_ns: int | None
    exchanges: Int64
    gpus: frozenset[tuple[str | None, int]]

    @classmethod
    def of(cls, member: int, trace: Trace) -> _Group:
        """A group of one report."""
        latest, earliest = _utc_span(trace) or (None, None)
        run_id = str(read_mark(trace).get("run_id", ""))
        ranks = frozenset(trace.ranks.values())
        known = trace.nccl.communicator[trace.nccl.communicator != NULL]
        communicators = frozenset(np.unique(known).tolist())
        ends = _exchange_ends(trace)
        world = trace.world_size or 0
        gpus = frozenset((trace.host, device) for device in np.unique(trace.ops.device).tolist())
        return cls((member,), ranks, world, run_id, communicators, latest, earliest, ends, gpus)

    def takes(self, other: _Group) -> bool:
        """Whether another report holds other ranks of the same run."""
        if self.communicators & other.communicators and not self.ranks & other.ranks:
            return True
        if not (self.ranks or other.ranks or self.communicators & other.communicators):
            named = self.communicators and other.communicators
            if named or len(self.gpus & other.gpus) > 1:  # one number may mean several GPUs
                return False
            return _end_together(self.exchanges, other.exchanges)
        if not other.ranks or len(other.ranks) >= other.world or self.world != other.world:
            return False
        if other.ranks & self.ranks or len(self.ranks) >= other.world:
            return False
        if self.run_id or other.run_id:
            return self.run_id == other.run_id
        both = self.with_member(other)
        if both.latest_ns is None or both.earliest_ns is None:
            return False
        return both.latest_ns < both.earliest_ns + _SLACK_NS

    def with_member(self, other: _Group) -> _Group:
        """Return the group with another report in it."""
        known = None not in (self.latest_ns, other.latest_ns)
        return _Group(
            (*self.members, *other.members),
            self.ranks | other.ranks,
            self.world,
            self.run_id,
            self.communicators | other.communicators,
            max(self.latest_ns or 0, other.latest_ns or 0) if known else None,
            min(self.earliest_ns or 0, other.earliest_ns or 0) if known else None,
            self.exchanges,
            self.gpus | other.gpus,
        )


def _exchange_ends(trace: Trace) -> Int64:
    """UTC times at which kernels that communicate end, ascending; none where UTC is unknown."""
    if trace.utc_start_ns is None:
        return np.empty(0, np.int64)
    return np.sort(trace.ops.end_ns[communicating(trace)]) + trace.utc_start_ns


def _end_together(one: Int64, other: Int64) -> bool:
    """Whether exchanges of two reports are the same ones.

    Of equally many the k-th ones are compared, less what the clocks of two hosts differ by.
    """
    if min(len(one), len(other)) < _FEW:
        return False
    if len(one) == len(other):
        apart = other - one
        shift = float(np.median(apart))
        if abs(shift) > _SLACK_NS:
            return False
        return bool((np.abs(apart - shift) <= _TOGETHER_NS).mean() >= _MOST)
    few, many = sorted((one, other), key=len)
    at = np.searchsorted(many, few)
    after, before = many[np.minimum(at, len(many) - 1)], many[np.maximum(at - 1, 0)]
    nearest = np.minimum(np.abs(after - few), np.abs(few - before))
    return bool(len(few) >= _MOST * len(many) and (nearest <= _TOGETHER_NS).mean() >= _MOST)


def not_joined(traces: Sequence[Trace]) -> list[str]:
    """Say which reports ran at the same time with collectives, and are of several runs."""
    groups = [(label, members[0]) for label, members in group(traces)]
    said = []
    for i, (label, trace) in enumerate(groups):
        ends = _exchange_ends(trace)
        for other_label, other in groups[i + 1 :]:
            others = _exchange_ends(other)
            if trace.host != other.host or min(len(ends), len(others)) < _FEW:
                continue
            if trace.ranks or other.ranks or ends[0] > others[-1] or others[0] > ends[-1]:
                continue
            said.append(
                f"{label} and {other_label} ran at the same time on one host, but are analyzed as "
                f"two runs: their collectives ({len(ends)} and {len(others)}) do not end together"
            )
    return said


def _utc_span(trace: Trace) -> tuple[int, int] | None:
    """UTC times of a report's first and last range or MPI call, None if it does not give them."""
    tables = [t for t in (trace.ranges, trace.mpi) if len(t)]
    if trace.utc_start_ns is None or not tables:
        return None
    first = min(int(t.start_ns.min()) for t in tables)
    last = max(int(max(t.start_ns.max(), t.end_ns.max())) for t in tables)
    return trace.utc_start_ns + first, trace.utc_start_ns + last


def _labels(paths: Sequence[Path]) -> list[str]:
    """Short, distinct labels: file stems, with their folder where stems repeat."""
    stems = [_SUFFIXES.sub("", p.name) for p in paths]
    if len(set(stems)) == len(stems):
        return stems
    full = [f"{p.resolve().parent.name}/{s}" for p, s in zip(paths, stems, strict=True)]
    return [f if full.count(f) == 1 else f"{f}#{i + 1}" for i, f in enumerate(full)]

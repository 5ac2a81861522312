"""Runs: groups reports of the ranks of one run, decides what each ran, analyzes them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.analysis.analyze import analyze_run
from perfmodel.analysis.result import Analysis, RunAnalysis
from perfmodel.base.errors import ModelError, ReportError, WorkloadError
from perfmodel.programs.identify import MARK_SYMBOLS, Identity, from_mark, from_messages, read_mark
from perfmodel.programs.mlp.mlp import Counting, mlp
from perfmodel.readers.trace import MEMCPY, MPI_SOURCES, NULL, Trace
from perfmodel.timing.run import Run, TimedReport, assemble, time_report
from perfmodel.workloads.work import Symbol, Workload

_H2D, _D2H = 1, 2
_USUAL: Final = 0.9
"""Messages in this share of the batches are in every batch, but for trimmed ones."""
_SLACK_NS: Final = 10**9
"""Reports of one run overlap in time, but for what the clocks of its hosts differ by."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user may choose; None lets the report decide.

    `values` are given symbols (D, H, C, B, p, ...), `counting` is 'document' or 'full', `fit` the
    index or label of the report that fits the roofline, the first that can by default.
    """

    values: Mapping[str, int]
    counting: Counting = "document"
    workload: Workload | None = None
    batch_label: str | None = None
    warmup: int | None = None
    by_time: bool = False
    fit: str | int | None = None

    @property
    def batch_range(self) -> str:
        """Label of the range that is one batch."""
        of_workload = self.workload.batch_range if self.workload else None
        return self.batch_label or of_workload or "batch iteration"


def analyze_traces(
    traces: Sequence[Trace],
    options: Options,
    progress: Callable[[str], object] = lambda _: None,
) -> Analysis:
    """Analyze the reports of one or more runs.

    Parameters
    ----------
    traces : sequence of Trace
    options : Options
    progress : callable, optional
        Called with a run's label before it is analyzed.

    Raises
    ------
    ReportError, SchemaError, WorkloadError, ModelError
        If there is no report, a run has no batches, its symbols are unknown or impossible, or the
        run that is to fit the roofline cannot.
    """
    members = [time_report(t, options.batch_range, by_time=options.by_time) for t in traces]
    return analyze_observed(members, options, progress)


def analyze_observed(
    observed: Sequence[TimedReport],
    options: Options,
    progress: Callable[[str], object] = lambda _: None,
) -> Analysis:
    """Analyze reports whose ranges were measured before, as `analyze_traces` does."""
    distinct: dict[Path, TimedReport] = {}
    for one in observed:
        distinct.setdefault(one.trace.source.resolve(), one)
    if not distinct:
        raise ReportError("wanted at least one report; found none; name one")
    given = {name: Symbol(name).check(value) for name, value in options.values.items()}
    repeated = len(observed) - len(distinct)
    runs: list[RunAnalysis] = []
    for label, traces in group([o.trace for o in distinct.values()]):
        progress(label)
        workload = options.workload
        members = [distinct[t.source.resolve()] for t in traces]
        run = assemble(members, options.batch_range, label=label)
        identity, warnings = identify(run, given)
        if repeated and not runs:
            warnings.append(f"{repeated} of the reports were given before and are left out")
        if workload is None:
            parallel = str(identity.config.get("parallel", "data"))
            workload = mlp(options.counting, "model" if parallel == "model" else "data")
        unknown = [name for name in given if name not in workload.symbols]
        if unknown:
            raise WorkloadError(
                f"workload '{workload.name}' has no symbol {unknown[0]!r}; it has "
                f"{', '.join(workload.symbols) or 'none'}; leave it out"
            )
        defaults = {n: s.default for n, s in workload.symbols.items() if s.default is not None}
        identity = replace(identity, values={**defaults, **identity.values})
        missing = [name for name in workload.symbols if name not in identity.values]
        if missing:
            problem = _unknown(run.label, missing, marked=bool(identity.config))
            if given or options.workload:
                raise WorkloadError(problem)
            warnings.append(f"{problem} (FLOPs, rates and the roofline are missing until then)")
            workload = Workload("unknown", "no", "", run.batch_label, {}, {})
        runs.append(analyze_run(run, workload, identity, warmup=options.warmup, warnings=warnings))
    return Analysis(tuple(runs), _chosen(runs, options.fit))


def group(traces: Sequence[Trace]) -> list[tuple[str, list[Trace]]]:
    """Group reports that hold different ranks of one run; every other report is its own run.

    Reports belong together if their marks name one run, or, without marks, if each holds fewer
    ranks than its communicator, their ranks differ, and they overlap in time.
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
    return list(zip(_labels([g[0].source for g in found]), found, strict=True))


@dataclass(frozen=True, slots=True)
class _Group:
    """Reports of one run so far: their ranks, what their marks call the run, and their UTC times.

    `latest_ns` is the last of their starts and `earliest_ns` the first of their ends; None where
    one of them does not tell.
    """

    members: tuple[int, ...]
    ranks: frozenset[int]
    world: int
    run_id: str
    latest_ns: int | None
    earliest_ns: int | None

    @classmethod
    def of(cls, member: int, trace: Trace) -> _Group:
        """A group of one report."""
        span = _utc_span(trace) or (None, None)
        run_id = str(read_mark(trace).get("run_id", ""))
        ranks = frozenset(trace.ranks.values())
        return cls((member,), ranks, trace.world_size or 0, run_id, *span)

    def takes(self, other: _Group) -> bool:
        """Whether another report holds other ranks of the same run."""
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
            max(self.latest_ns or 0, other.latest_ns or 0) if known else None,
            min(self.earliest_ns or 0, other.earliest_ns or 0) if known else None,
        )


def _utc_span(trace: Trace) -> tuple[int, int] | None:
    """UTC times of a report's first and last range or MPI call, None if it does not tell them."""
    tables = [t for t in (trace.ranges, trace.mpi) if len(t)]
    if trace.utc_start_ns is None or not tables:
        return None
    first = min(int(t.start_ns.min()) for t in tables)
    last = max(int(max(t.start_ns.max(), t.end_ns.max())) for t in tables)
    return trace.utc_start_ns + first, trace.utc_start_ns + last


def _labels(paths: Sequence[Path]) -> list[str]:
    """Short, distinct labels: file stems, with their folder where stems repeat."""
    stems = [p.name.split(".sqlite")[0].removesuffix(".nsys-rep") for p in paths]
    if len(set(stems)) == len(stems):
        return stems
    full = [f"{p.resolve().parent.name}/{s}" for p, s in zip(paths, stems, strict=True)]
    return [f if full.count(f) == 1 else f"{f}#{i + 1}" for i, f in enumerate(full)]


def identify(run: Run, given: Mapping[str, int]) -> tuple[Identity, list[str]]:
    """Decide the values of the symbols: given ones first, then the mark's, then the messages'."""
    warnings = []
    config: dict[str, Any] = next((c for t in run.traces if (c := read_mark(t))), {})
    marked = from_mark(config)
    world = max((t.world_size or 0 for t in run.traces), default=0)
    recorded = max(world, len(run.ranks))
    ranks = given.get("p", marked.get("p", recorded))
    inferred = from_messages(*_messages(run), ranks) or {}
    told = inferred | marked
    if "p" in given and "p" not in marked and 1 <= recorded != given["p"]:
        warnings.append(
            f"{run.label}: p = {given['p']} was given and overrides the {recorded} ranks that the "
            f"report records; B and the bytes of MPI follow it"
        )
        told = {k: v for k, v in told.items() if k != "p"}
    values = {"b": 4, "p": recorded} | told
    for symbol, value in given.items():
        if told.get(symbol, value) != value:
            name = MARK_SYMBOLS.get(symbol, symbol)
            whose = "the report's own" if symbol in marked else "what its messages' sizes tell,"
            warnings.append(
                f"{run.label}: {symbol} = {value} was given and overrides {whose} "
                f"{name} = {told[symbol]}"
            )
        values[symbol] = value
    if len(run.ranks) < values["p"]:
        warnings.append(
            f"{run.label}: {len(run.ranks)} of p = {values['p']} ranks are in the report; give "
            f"the other ranks' reports too to see all of them"
        )
    sources = {
        "the report's configuration mark": bool(marked),
        "the sizes of the report's messages": bool({*inferred} - {*marked, *given, "p", "b"}),
        "the flags": bool(given),
    }
    source = " and ".join(name for name, used in sources.items() if used) or "the defaults"
    return Identity(values, source, config), warnings


def _messages(run: Run) -> tuple[set[int], set[int]]:
    """Distinct sizes of the gradients' messages and of the input copies inside the batches.

    Sizes count if (nearly) every batch has them: gradients as device-to-host copies, or as
    all-reduces where there are no copies.
    """
    trace, found = run.parts[0]
    batches = len({*zip(found.op_rank.tolist(), found.op_batch.tolist(), strict=True)})
    times: dict[int, dict[int, float]] = {}
    for kind in (_D2H, _H2D):
        op = found.op[
            (trace.ops.copy_kind[found.op] == kind) & (trace.ops.kind[found.op] == MEMCPY)
        ]
        size, count = np.unique(trace.ops.bytes[op], return_counts=True)
        times[kind] = dict(zip(size.tolist(), (count / max(batches, 1)).tolist(), strict=True))
    gradients = {size for size, n in times[_D2H].items() if n >= _USUAL}
    if not gradients:
        collective = trace.mpi.source == MPI_SOURCES.index("collectives")
        reduce = np.array(["llreduce" in s for s in trace.strings] + [False], np.bool_)
        mine = collective & reduce[trace.mpi.name] & (trace.mpi.size_bytes != NULL)
        gradients = {int(s) for s in np.unique(trace.mpi.size_bytes[mine])}
    # what went out comes back; a size that comes more often is that of an input, too
    returned = dict.fromkeys(gradients, 1.0) if times[_D2H] else {}
    inputs = {size for size, n in times[_H2D].items() if n - returned.get(size, 0.0) >= _USUAL}
    return gradients, inputs


def _unknown(label: str, missing: Sequence[str], *, marked: bool) -> str:
    flags = " ".join(
        f"--{MARK_SYMBOLS[s].replace('_', '-')} {s}" if s in MARK_SYMBOLS else f"--set {s}=..."
        for s in missing
    )
    return (
        f"{label}: the report has {'a' if marked else 'no'} configuration mark"
        f"{' without' if marked else ', and the sizes of its messages do not tell'} "
        f"{', '.join(missing)}; give: {flags}"
    )


def _chosen(runs: Sequence[RunAnalysis], fit: str | int | None) -> int:
    """Index of the run that fits the roofline."""
    labels = [run.label for run in runs]
    if fit is None:
        return next((i for i, run in enumerate(runs) if run.roofline is not None), 0)
    if isinstance(fit, str) and fit in labels:
        chosen = labels.index(fit)
    elif str(fit).isdecimal() and len(str(fit)) < 10 and int(fit) < len(labels):
        chosen = int(fit)
    else:
        raise WorkloadError(
            f"wanted --fit to name one of the runs {', '.join(labels)} (or its number from 0); "
            f"found {fit!r}"
        )
    if runs[chosen].roofline is None:
        lacking = [name for name, rate in runs[chosen].rates.items() if rate is None]
        raise ModelError(
            f"wanted a roofline fitted on {labels[chosen]}; found no {' and no '.join(lacking)} "
            f"there; leave --fit out to see why, or take another run"
        )
    return chosen

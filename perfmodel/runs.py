"""Runs: groups reports of the ranks of one run, decides what each ran, analyzes them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.analysis import Analysis
from perfmodel.analyze import Run, analyze_run, measure
from perfmodel.errors import WorkloadError
from perfmodel.identify import (
    MARK_SYMBOLS,
    Identity,
    from_mark,
    from_messages,
    read_mark,
)
from perfmodel.trace import MEMCPY, MPI_SOURCES, NULL, Trace
from perfmodel.workloads.mlp import Counting, mlp
from perfmodel.workloads.work import Workload

_H2D, _D2H = 1, 2
_SAME_START_NS: Final = 600 * 10**9
"""Reports of one run start within ten minutes of each other."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user may choose; None lets the report decide.

    `values` are given symbols (D, H, C, B, p, ...), `counting` is 'document' or 'full', `fit` the
    index or label of the report that fits the roofline.
    """

    values: Mapping[str, int]
    counting: Counting = "document"
    workload: Workload | None = None
    batch_label: str | None = None
    warmup: int | None = None
    by_time: bool = False
    fit: str | int = 0


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
    SchemaError, WorkloadError
        If a run has no batches, or its symbols are unknown or impossible.
    """
    runs = []
    for label, members in group(traces):
        progress(label)
        workload = options.workload
        batch_label = options.batch_label or (workload.batch_range if workload else None)
        run = measure(
            members, batch_label or "batch iteration", label=label, by_time=options.by_time
        )
        identity, warnings = identify(run, options.values)
        if workload is None:
            parallel = str(identity.config.get("parallel", "data"))
            workload = mlp(options.counting, "model" if parallel == "model" else "data")
        unknown = [name for name in options.values if name not in workload.symbols]
        if unknown:
            raise WorkloadError(
                f"workload '{workload.name}' has no symbol {unknown[0]!r}; it has "
                f"{', '.join(workload.symbols) or 'none'}; leave it out"
            )
        missing = [
            name
            for name, symbol in workload.symbols.items()
            if name not in identity.values and symbol.default is None
        ]
        if missing:
            problem = _unknown(run.label, missing)
            if options.values or options.workload:
                raise WorkloadError(problem)
            warnings.append(f"{problem} (FLOPs, rates and the roofline are missing until then)")
            workload = Workload("unknown", "no", "", run.batch_label, {}, {})
        runs.append(analyze_run(run, workload, identity, warmup=options.warmup, warnings=warnings))
    return Analysis(tuple(runs), _chosen([r.label for r in runs], options.fit))


def group(traces: Sequence[Trace]) -> list[tuple[str, list[Trace]]]:
    """Group reports that hold different ranks of one run; every other report is its own run.

    Reports belong together if their marks name one run, or, without marks, if each holds fewer
    ranks than its communicator, their ranks differ, and they started within ten minutes.
    """
    groups: list[list[Trace]] = []
    for trace in traces:
        home = next((g for g in groups if _same_run(g, trace)), None)
        if home is None:
            groups.append([trace])
        else:
            home.append(trace)
    labels = _labels([g[0].source for g in groups])
    return list(zip(labels, groups, strict=True))


def _same_run(members: Sequence[Trace], trace: Trace) -> bool:
    mine, world = set(trace.ranks.values()), trace.world_size
    if not mine or not world or len(mine) >= world:
        return False
    taken = {rank for t in members for rank in t.ranks.values()}
    if mine & taken or len(taken) >= world or members[0].world_size != world:
        return False
    ids = {str(read_mark(t).get("run_id", "")) for t in (*members, trace)}
    if ids != {""}:
        return len(ids) == 1
    starts = [t.utc_start_ns for t in (*members, trace)]
    known = [s for s in starts if s is not None]
    return len(known) == len(starts) and max(known) - min(known) < _SAME_START_NS


def _labels(paths: Sequence[Path]) -> list[str]:
    """Short, distinct labels: file stems, with their folder where stems repeat."""
    stems = [p.name.split(".sqlite")[0].removesuffix(".nsys-rep") for p in paths]
    if len(set(stems)) == len(stems):
        return stems
    full = [f"{p.parent.name}/{s}" for p, s in zip(paths, stems, strict=True)]
    return [f if full.count(f) == 1 else f"{f}#{i + 1}" for i, f in enumerate(full)]


def identify(run: Run, given: Mapping[str, int]) -> tuple[Identity, list[str]]:
    """Decide the values of the symbols: given ones first, then the mark's, then the messages'."""
    warnings = []
    config: dict[str, Any] = next((c for t in run.traces if (c := read_mark(t))), {})
    marked = from_mark(config)
    world = max((t.world_size or 0 for t in run.traces), default=0)
    recorded = max(world, len(run.ranks))
    inferred = from_messages(*_messages(run), recorded) or {}
    values = {"b": 4, "p": recorded} | (marked or inferred)
    for symbol, value in given.items():
        if symbol in marked and marked[symbol] != value:
            name = MARK_SYMBOLS.get(symbol, symbol)
            warnings.append(
                f"{run.label}: {symbol} = {value} was given and overrides the report's own "
                f"{name} = {marked[symbol]}"
            )
        values[symbol] = value
    if len(run.ranks) < values["p"]:
        warnings.append(
            f"{run.label}: {len(run.ranks)} of p = {values['p']} ranks are in the report; give "
            f"the other ranks' reports too to see all of them"
        )
    source = "the report's configuration mark" if marked else "the flags"
    if not marked and inferred and not set(inferred) <= set(given) | {"p", "b"}:
        source = "the sizes of the report's messages"
    return Identity(values, source, config), warnings


def _messages(run: Run) -> tuple[set[int], set[int]]:
    """Distinct sizes of the gradients' messages and of the input copies inside the batches.

    Sizes count if every batch has them once: gradients as device-to-host copies, or as
    all-reduces where there are no copies.
    """
    trace, found = run.parts[0]
    batches = len({*zip(found.op_rank.tolist(), found.op_batch.tolist(), strict=True)})
    sizes = {}
    for kind in (_D2H, _H2D):
        op = found.op[
            (trace.ops.copy_kind[found.op] == kind) & (trace.ops.kind[found.op] == MEMCPY)
        ]
        size, count = np.unique(trace.ops.bytes[op], return_counts=True)
        sizes[kind] = {int(s) for s, n in zip(size, count, strict=True) if n >= 0.9 * batches}
    gradients = sizes[_D2H]
    if not gradients:
        collective = trace.mpi.source == MPI_SOURCES.index("collectives")
        reduce = np.array(["llreduce" in s for s in trace.strings] + [False], np.bool_)
        mine = collective & reduce[trace.mpi.name] & (trace.mpi.size_bytes != NULL)
        gradients = {int(s) for s in np.unique(trace.mpi.size_bytes[mine])}
    return gradients, sizes[_H2D] - gradients


def _unknown(label: str, missing: Sequence[str]) -> str:
    flags = " ".join(
        f"--{MARK_SYMBOLS[s].replace('_', '-')} {s}" if s in MARK_SYMBOLS else f"--set {s}=..."
        for s in missing
    )
    return (
        f"{label}: the report has no configuration mark, and the sizes of its messages do not "
        f"tell {', '.join(missing)}; give: {flags}"
    )


def _chosen(labels: Sequence[str], fit: str | int) -> int:
    if isinstance(fit, str) and fit in labels:
        return labels.index(fit)
    if str(fit).isdigit() and int(fit) < len(labels):
        return int(fit)
    raise WorkloadError(
        f"wanted --fit to name one of the runs {', '.join(labels)} (or its number from 0); "
        f"found {fit!r}"
    )

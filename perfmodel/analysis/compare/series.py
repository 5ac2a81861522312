"""Both sides of a comparison as series of launches and batches, and the effects between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal

import numpy as np

from perfmodel.analysis.steps import (
    StepBreakdown,
    break_down,
    idle_causes,
    idle_pieces,
)
from perfmodel.base.arrays import Floats, Int64, distinct_rows
from perfmodel.base.kernels import kernel
from perfmodel.programs import program_of_run
from perfmodel.programs.program import Options
from perfmodel.readers.trace import COPY_KINDS, GRAPH, KERNEL, MEMCPY, MEMORY_KINDS, NULL, Trace
from perfmodel.timing.async_batches import AsyncBatches, head_of, time_async
from perfmodel.timing.collectives import marked_by_nccl
from perfmodel.timing.exchanges import COLLECTIVE, Exchanges
from perfmodel.timing.kernels import COMMUNICATION
from perfmodel.timing.range_times import Path
from perfmodel.timing.recorder import Recorder, Timed
from perfmodel.timing.run import Run
from perfmodel.timing.run_exchanges import exchanges_of
from perfmodel.timing.run_steps import run_steps
from perfmodel.timing.samples import PathTimes, tabulate

Group = Literal["range", "link", "kernel", "idle"]
GROUPS: Final[tuple[Group, ...]] = ("range", "link", "kernel")
Key = tuple[Group, tuple[str, ...]]
"""What is compared: a range by its labels from the batch inwards, a link or kernel by the kind it
adds to and its name."""

GPU_BUSY: Final = "GPU busy"
GPU_IDLE: Final = "GPU idle"
TRANSFER: Final = "collectives, transfer"
WAITING: Final = "collectives, waiting"
UNSPLIT: Final = "collectives, not split"
COLLECTIVES: Final = (TRANSFER, WAITING, UNSPLIT)
KERNELS: Final = "kernels"
GRAPHS: Final = "whole CUDA graphs"
FLOPS: Final = "FLOPs"
TOKENS: Final = "tokens"
"""Kinds of `Launch.work`."""


@dataclass(frozen=True, slots=True)
class _Ops:
    """GPU operations of one report inside batches, each once; `code` indexes `keys`."""

    trace: Trace
    op: Int64
    rank: Int64
    batch: Int64
    code: Int64
    keys: tuple[Key | None, ...]


def links(run: Run, head: PathTimes, found: Exchanges) -> Iterator[tuple[Key, Floats]]:
    """Tabulate what was copied, reduced and computed inside the batches.

    Parameters
    ----------
    run : Run
    head : PathTimes
        The batch itself.
    found : Exchanges

    Yields
    ------
    (Key, array of shape (ranks, batches))
        Seconds; NaN where a rank did none of it in a batch.
    """
    shape = head.instances.shape
    busy = head.seconds["gpu_busy"]
    if np.isfinite(busy).any():
        yield ("link", (GPU_BUSY,)), busy
        yield ("link", (GPU_IDLE,)), np.maximum(head.seconds["host"] - busy, 0.0)
    parts = [_operations(run, i) for i in range(len(run.parts))]
    tables: dict[Key, Floats] = {}
    for part in parts:
        spent = part.trace.ops.end_ns[part.op] - part.trace.ops.start_ns[part.op]
        for code, key in enumerate(part.keys):
            if key is None:
                continue
            mine = part.code == code
            cell = part.rank[mine] * shape[1] + part.batch[mine]
            total_ns = np.bincount(cell, spent[mine], shape[0] * shape[1]).reshape(shape)
            tables[key] = np.add(tables.get(key, np.zeros(shape)), total_ns * 1e-9)
    for key in sorted(tables, key=lambda k: (k[0], k[1][0], -tables[k].sum())):
        yield key, np.where(tables[key] > 0, tables[key], np.nan)
    yield from _collectives(found, run.ranks, shape)


def _operations(run: Run, index: int) -> _Ops:
    trace, found = run.parts[index]
    op, at = np.unique(found.op, return_index=True)
    rank = np.searchsorted(run.ranks, found.op_rank[at])
    o = trace.ops
    kind, copied = o.kind[op], o.kind[op] == MEMCPY
    distinct, code = distinct_rows(
        kind, np.where(copied, o.copy_kind[op], -1), np.where(copied, o.host_memory(op), -1),
        np.where(kind == KERNEL, o.name[op], -1),
    )  # fmt: skip
    keys = tuple(_key(trace, *row) for row in distinct.tolist())
    batch = found.op_batch[at].astype(np.int64)
    return _Ops(trace, op, rank, batch, code, keys)


def _key(trace: Trace, kind: int, direction: int, memory: int, name: int) -> Key | None:
    """Return the key of an operation in comparisons; None for sets and kernels that communicate."""
    if kind == MEMCPY:
        copies = f"{COPY_KINDS.get(direction, 'Unknown')} copies"
        return "link", (copies, MEMORY_KINDS.get(memory, "unknown"))
    if kind == GRAPH:
        return "kernel", (GRAPHS,)
    if kind != KERNEL or (name >= 0 and kernel(trace.strings[name]).category == COMMUNICATION):
        return None
    return "kernel", (KERNELS, trace.strings[name] if name >= 0 else "unnamed")


def _collectives(
    found: Exchanges, ranks: Sequence[int], shape: tuple[int, ...]
) -> Iterator[tuple[Key, Floats]]:
    """Seconds in collectives by name, split where those have come that a rank needs, if known."""
    rank = np.searchsorted(ranks, found.rank)
    inside = (found.way == COLLECTIVE) & (found.step >= 0) & (found.step < shape[1])
    inside &= np.isin(found.rank, ranks)
    for name in np.unique(found.name[inside]).tolist():
        at = np.flatnonzero(inside & (found.name == name))
        cell = rank[at] * shape[1] + found.step[at]
        present = np.bincount(cell, minlength=shape[0] * shape[1]) > 0
        waiting = np.where(found.wait_ns[at] == NULL, 0, found.wait_ns[at])
        parts = {UNSPLIT: found.spent_ns[at]}
        if shape[0] == 1 or (found.instance[at] >= 0).all():
            parts = {TRANSFER: found.spent_ns[at] - waiting}
            parts |= {WAITING: waiting} if shape[0] > 1 else {}
        for part, ns in parts.items():
            total = np.bincount(cell, ns * 1e-9, shape[0] * shape[1])
            yield (
                ("link", (part, found.names[name])),
                np.where(present, total, np.nan).reshape(shape),
            )


Noise = Literal["host", "collective", "waiting", "kernel"]


@dataclass(frozen=True, slots=True)
class Series:
    """Seconds of one thing in every batch of one launch, after the warm-up.

    Attributes
    ----------
    seconds : array, shape (batches,)
        Of the slowest rank: the others wait for it. NaN in batches that lack it.
    noise : {'host', 'collective', 'waiting', 'kernel'}
        What makes launches differ: 'kernel' also for batches that the GPU limits.
    """

    seconds: Floats
    noise: Noise = "host"


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of the program: its batches as series, the batch itself first.

    `gpus` are the UUIDs of the GPUs of its host, empty where the report does not give them;
    `recorded` names what it has events of: 'gpu', 'nodes' (operations one by one, no CUDA graphs
    traced whole) and 'mpi'; `queues` says that the host leaves batches before they are done, so
    that the host times of ranges are those of queueing. `idle` has the seconds that the GPU of a
    rank idles in a median step, by rank and cause; empty where the report does not say. `pieces`
    has those of the GPUs that idle longest by range, and `idle_share` their share of a step. `work`
    has what a median batch of a rank does, whatever time it takes: GPU operations, bytes, FLOPs of
    operators with sizes, tokens of an engine's step. `threads` has those of a kernel's launch.
    `launch_s` is the median time of a call that launches a kernel, of the process where it is the
    longest; 0 where nothing is launched.
    `recorder` is the step with and without its profiler, where it was asked for and is known.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {
        "batches": "batches", "gpus": "", "recorded": "", "series": "", "idle": "", "pieces": "",
        "idle_share": "", "work": "", "threads": "", "recorder": "", "launch_s": "",
    }  # fmt: skip

    label: str
    warmup: int
    ranks: int
    gpus: frozenset[str]
    recorded: frozenset[str]
    series: Mapping[Key, Series]
    queues: bool = False
    idle: Mapping[tuple[int, str], float] = field(default_factory=dict)
    pieces: Mapping[str, float] = field(default_factory=dict)
    idle_share: float = 0.0
    work: Mapping[str, float] = field(default_factory=dict)
    threads: Mapping[str, float] = field(default_factory=dict)
    recorder: Recorder | None = None
    launch_s: float = 0.0

    @property
    def batches(self) -> int:
        """Finished batches left after the warm-up."""
        return int(np.isfinite(next(iter(self.series.values())).seconds).sum())


def launch_of(
    run: Run,
    warmup: int | None = None,
    *,
    async_batches: AsyncBatches | None = None,
    done: bool | None = None,
    unrecorded: bool = False,
) -> Launch:
    """Take the series of one measured run.

    Parameters
    ----------
    run : Run
    warmup, done
        As of `perfmodel.timing.run_steps.run_steps`.
    async_batches : AsyncBatches, optional
        Of the run, if it is known already.
    unrecorded : bool
        Whether `Launch.recorder` is wanted, which replays the steps.

    Raises
    ------
    SchemaError
        If no finished step is left.
    """
    async_batches = async_batches or time_async(run)
    program = program_of_run(run, Options())
    steps = run_steps(
        run,
        program.step_clock,
        replay=program.replay,
        warmup=warmup,
        batches=async_batches,
        done=done,
    )
    exchanges, first = exchanges_of(run), steps.warmup
    parts = None
    if run.steps and (steps.clock == "gpu" or unrecorded or run.operators):
        parts = break_down(run.steps, exchanges, steps, timed=Timed.of(run.traces))
    table = tabulate(run.range_times, run.ranks, run.batch_label)
    measured = steps.with_own_clock(table, run)
    head = head_of(run, measured)
    found: dict[Key, Series] = {}
    collective = _in_collectives(run)
    for m in measured:
        if run.batch_label in m.path and not marked_by_nccl(m.path):
            path = m.path[m.path.index(run.batch_label) :]
            noise = collective.get(path, "host")
            if m.path == head.path and async_batches.by_gpu:
                noise = "kernel"
            seconds = _slowest(m.seconds["host"][:, first:])
            found[("range", path)] = Series(seconds, noise)
    whole = steps.seconds()[steps.slowest]
    batch: Key = ("range", head.path[head.path.index(run.batch_label) :])
    found[batch] = replace(found[batch], seconds=whole[first:])
    for key, seconds in _with_totals(links(run, head, exchanges)):
        found[key] = Series(_slowest(seconds[:, first:]), _noise(key, async_batches))
    kept = {k: s for k, s in found.items() if np.isfinite(s.seconds).any()}
    gpus = frozenset(g.uuid for t in run.traces for g in t.gpus if g.uuid)
    recorded = frozenset(_recorded(run))
    queues = async_batches.queues and steps.clock != "gpu"
    causes = idle_causes(run.steps, steps) if run.steps else ()
    idle = {(one.rank, one.cause): one.seconds for one in causes}
    pieces, share = idle_pieces(run.steps, steps) if run.steps else ({}, 0.0)
    counted = {
        "GPU operations": head.gpu_ops, "bytes copied": head.copy_bytes,
        "bytes handed to MPI": head.mpi_bytes,
    }  # fmt: skip
    work = {
        name: float(np.nanmedian(table[:, first:]))
        for name, table in counted.items()
        if np.isfinite(table[:, first:]).any()
    }
    if parts and run.operators:
        work |= _of_operators(run, parts)
    threads: dict[str, float] = {}
    launch_ns = max((ns for report in run.steps for ns in report.launch_ns), default=0.0)
    recorder = parts.facts.recorder if parts else None
    for report in run.steps:
        threads |= report.kernels.launch_threads
    return Launch(
        run.label, first, len(run.ranks), gpus, recorded, kept, queues, idle, pieces, share, work,
        threads, recorder, 1e-9 * launch_ns,
    )  # fmt: skip


def _of_operators(run: Run, steps: StepBreakdown) -> dict[str, float]:
    """FLOPs of a median step by the sizes of its operators, and the tokens of an engine's steps."""
    from perfmodel.analysis.operators import step_work  # most reports name none
    from perfmodel.analysis.serving import serving_rows

    found = {}
    if flops := step_work(run.operators, steps, None).flops:
        found[FLOPS] = flops
    if rows := serving_rows(run, steps, None):
        tokens = sum(row.steps * (row.context_tokens + row.generation_tokens) for row in rows)
        found[TOKENS] = tokens / sum(row.steps for row in rows)
    return found


def _noise(key: Key, async_batches: AsyncBatches) -> Noise:
    """Return the source of differences in a link or kernel: the GPU alone, or the host, too."""
    group, path = key
    if path[0] == WAITING:
        return "waiting"
    by_gpu = async_batches.by_gpu and path[0] in (GPU_BUSY, GPU_IDLE)
    return "kernel" if group == "kernel" or by_gpu else "host"


def _recorded(run: Run) -> Iterator[str]:
    if any(len(t.ops) for t in run.traces):
        yield "gpu"
        if not any((t.ops.kind == GRAPH).any() for t in run.traces):
            yield "nodes"
    if any(len(t.mpi) for t in run.traces):
        yield "mpi"


def _slowest(table: Floats) -> Floats:
    """Seconds of the slowest rank per batch; NaN where no rank has any."""
    slowest = np.max(np.where(np.isnan(table), -np.inf, table), axis=0, initial=-np.inf)
    return np.where(np.isfinite(slowest), slowest, np.nan)


def _in_collectives(run: Run) -> dict[Path, Noise]:
    """Ranges that spend most of their time in MPI: they hold the waiting for other ranks."""
    times, size = run.range_times, len(run.range_times.paths)
    spent = np.bincount(times.path, weights=times.mpi_ns, minlength=size)
    lasted = np.bincount(times.path, weights=np.maximum(times.host_ns, 0), minlength=size)
    return {
        path[path.index(run.batch_label) :]: "collective"
        for path, mpi, host in zip(times.paths, spent, lasted, strict=True)
        if run.batch_label in path and mpi > 0.5 * host
    }


def _with_totals(tables: Iterator[tuple[Key, Floats]]) -> Iterator[tuple[Key, Floats]]:
    """Put the total of every kind of link before its members: what replaces one is another."""
    members: dict[Key, list[tuple[Key, Floats]]] = {}
    for (group, path), table in tables:
        members.setdefault((group, path[:1]), []).append(((group, path), table))
    for total, parts in members.items():
        if any(len(path) > 1 for (_, path), _ in parts):
            stacked = np.stack([table for _, table in parts])
            missing = np.isnan(stacked).all(axis=0)
            yield total, np.where(missing, np.nan, np.nansum(stacked, axis=0))
        yield from parts

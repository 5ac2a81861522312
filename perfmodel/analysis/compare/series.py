"""Series: what every range, link and kernel of one launch took, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfmodel.analysis.compare.links import GPU_BUSY, GPU_IDLE, WAITING, Key, links
from perfmodel.base.arrays import Floats
from perfmodel.base.errors import SchemaError
from perfmodel.programs.mlp.mlp_ranges import GRAPH as GRAPH_RANGE
from perfmodel.readers.trace import GRAPH
from perfmodel.timing.async_batches import AsyncBatches, head_of, time_async, until_done
from perfmodel.timing.collectives import marked_by_nccl
from perfmodel.timing.cuda_graphs import first_replay
from perfmodel.timing.range_times import Path
from perfmodel.timing.run import Run
from perfmodel.timing.samples import PathTimes, count_warmup, tabulate

Noise = Literal["host", "collective", "waiting", "kernel"]


@dataclass(frozen=True, slots=True)
class Series:
    """Seconds of one thing in every batch of one launch, after the warm-up.

    Attributes
    ----------
    seconds : array, shape (batches,)
        Of the slowest rank: the others wait for it. NaN in batches that lack it.
    noise : {'host', 'collective', 'waiting', 'kernel'}
        What makes launches differ: 'kernel' also stands for batches that the GPU paces.
    """

    seconds: Floats
    noise: Noise = "host"


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of the program: its batches as series, the batch itself first.

    `gpus` are the UUIDs of the GPUs of its host, empty where the report does not tell them;
    `recorded` names what it has events of: 'gpu', 'nodes' (operations one by one, no CUDA graphs
    traced whole) and 'mpi'; `queues` says that the host leaves batches before they are done, so
    that the host times of ranges are those of queueing.
    """

    label: str
    warmup: int
    ranks: int
    gpus: frozenset[str]
    recorded: frozenset[str]
    series: Mapping[Key, Series]
    queues: bool = False

    @property
    def batches(self) -> int:
        """Finished batches left after the warm-up."""
        return int(np.isfinite(next(iter(self.series.values())).seconds).sum())


def launch_of(
    run: Run,
    warmup: int | None = None,
    *,
    pace: AsyncBatches | None = None,
    done: bool | None = None,
) -> Launch:
    """Take the series of one measured run.

    Parameters
    ----------
    run : Run
    warmup : int, optional
        Leading batches to leave out; detected by default (`perfmodel.timing.samples.count_warmup`),
        and up to the first that only replays a CUDA graph, if one does.
    pace : AsyncBatches, optional
        Of the run, if it is known already.
    done : bool, optional
        Whether batches are timed until the GPU is done with them, too; by default only where the
        host queues them.

    Raises
    ------
    SchemaError
        If fewer than two finished batches are left.
    """
    measured = tabulate(run.range_times, run.ranks, run.batch_label)
    pace = pace or time_async(run, measured)
    if pace.queues if done is None else done:
        measured = until_done(run, measured, pace)
    head = head_of(run, measured)
    whole = head.seconds["host"]
    first = _warmup(run, measured) if warmup is None else warmup
    left = int(np.isfinite(_slowest(whole[:, first:])).sum())
    if left < 2:
        raise SchemaError(
            f"{run.label}: wanted at least 2 finished batches to compare; found {left} of "
            f"{whole.shape[1]} after {first} of warm-up; profile more batches or lower --warmup"
        )
    found: dict[Key, Series] = {}
    collective = _in_collectives(run)
    for m in measured:
        if run.batch_label in m.path and not marked_by_nccl(m.path):
            path = m.path[m.path.index(run.batch_label) :]
            noise = collective.get(path, "host")
            if m is head and pace.by_gpu:
                noise = "kernel"
            found[("range", path)] = Series(_slowest(m.seconds["host"][:, first:]), noise)
    for key, table in _with_totals(links(run, head)):
        found[key] = Series(_slowest(table[:, first:]), _noise(key, pace))
    kept = {k: s for k, s in found.items() if np.isfinite(s.seconds).any()}
    gpus = frozenset(g.uuid for t in run.traces for g in t.gpus if g.uuid)
    recorded = frozenset(_recorded(run))
    return Launch(run.label, first, len(run.ranks), gpus, recorded, kept, pace.queues)


def _warmup(run: Run, measured: tuple[PathTimes, ...]) -> int:
    replays = first_replay(measured, GRAPH_RANGE, run.batch_label)
    return max(count_warmup(head_of(run, measured).seconds["host"]), replays or 0)


def _noise(key: Key, pace: AsyncBatches) -> Noise:
    """What makes launches differ in a link or kernel: the GPU alone, or the host, too."""
    group, path = key
    if path[0] == WAITING:
        return "waiting"
    paced = pace.by_gpu and path[0] in (GPU_BUSY, GPU_IDLE)
    return "kernel" if group == "kernel" or paced else "host"


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

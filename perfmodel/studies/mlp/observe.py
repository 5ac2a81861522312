"""Observations: what the parts of a batch took in a report of the trainer, on its critical path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats, Int64
from perfmodel.base.errors import ModelError
from perfmodel.programs.identify import read_mark
from perfmodel.programs.mlp.identify import identify
from perfmodel.programs.mlp.settings import (
    COPY,
    D2H,
    GRAPH,
    H2D,
    LAYER_1,
    LAYER_2,
    NCCL,
    PEER,
    REDUCE,
    SYNC,
    settings_of,
)
from perfmodel.readers.trace import KERNEL, MEMCPY, NULL, TO_HOST
from perfmodel.studies.calibrated import UnknownPartsError, not_modelled
from perfmodel.studies.mlp.case import MLP, Case, mlp_case
from perfmodel.studies.models.terms import AHEAD, BETWEEN, DERIVED, Observation
from perfmodel.timing.async_batches import head_of
from perfmodel.timing.cuda_graphs import kernel_seconds, only_replays, traced_as_a_whole
from perfmodel.timing.run import Run, batch_seconds
from perfmodel.timing.run_steps import run_steps
from perfmodel.timing.samples import tabulate

_SUMS: Final = "nccl"
_STEPS: Final = ("output_layer", "backward_hidden")
_UPDATE: Final = "sum_and_step"


def replayed_parts(run: Run, case: Case, warmup: int, batch_s: float) -> dict[str, float]:
    """Return seconds by `Part.key` of a graph's kernels, and of what lies between them.

    No range lies inside a replay, so that only names say what a kernel is for: those of the fused
    network do, cuBLAS's do not. A sum over ranks counts on the rank that arrives last, which waits
    for nobody. Empty where the report has the graph as one operation.
    """
    if traced_as_a_whole(run):
        return {}
    spent = {name: seconds for name, (seconds, _) in kernel_seconds(run, warmup).items()}
    if not spent:
        return {}

    def typical(names: list[str]) -> float:
        return float(np.median(_together([spent[name] for name in names]))) if names else 0.0

    def last(names: list[str]) -> float:
        return float(np.median(_together([spent[name] for name in names]).min(axis=0)))

    sums, steps, update = (
        [name for name in spent if name.startswith(start)] for start in (_SUMS, _STEPS, _UPDATE)
    )
    others = [name for name in spent if name not in (*sums, *steps, *update)]
    found = {"all-reduce": last(sums)} if sums else {}
    found |= {"step in one kernel": last(update)} if update else {}
    found["fused steps"] = typical(steps)
    found["gaps"] = max(batch_s - sum(found.values()) - typical(others), 0.0)
    if case.settings["gemm"] != "cublas":
        found["large GEMMs" if steps else "replayed kernels"] = typical(others)
    keys = {part.name: part.key for part in case.parts() if part.clock == "gpu"}
    return {keys[name]: s for name, s in found.items() if s > 0 and name in keys}


def _together(tables: list[Floats]) -> Floats:
    """Sum tables of shape (ranks, batches)."""
    whole: Floats = np.sum(np.nan_to_num(tables), axis=0)
    return whole


_WAITS_S: Final = 100e-6
"""A host that waits longer than this is behind the GPU; below, it waits for its last launches."""


def observe(run: Run) -> Observation:
    """Measure the parts of the MLP's batch in one run.

    Raises
    ------
    ModelError
        If the run has no configuration mark, or one of another program than the trainer, or no
        batch is left after the warm-up.
    """
    config = next((c for t in run.traces if (c := read_mark(t))), {})
    if not config and run.program == MLP:
        raise UnknownPartsError(
            f"{run.label}: expected a configuration mark, which says how the step ran; got none",
            "profile with python -m trainer, or calibrate with --workload and the sizes",
        )
    if not config or config.get("workload", MLP) != MLP:
        raise not_modelled(run)
    identity, _ = identify(run, {})
    case = mlp_case(identity.values, settings_of(config))  # older marks lack some settings
    clocks = _Clocks.of(run, config.get("graph") is True)
    if case.route == "blocking":
        parts, phases = _blocking(run, case, clocks)
    else:
        parts, phases = _queued(run, case, clocks)
    return Observation(
        source=run.traces[0].source.name,
        case=case,
        batch_s=clocks.batch_s,
        parts={key: s for key, s in parts.items() if s > 0},
        phases=phases,
        batches=clocks.batches,
    )


@dataclass(frozen=True)
class _Clocks:
    """Times by path inside the batch, each (ranks, batches) after the warm-up, NaN if absent."""

    host: Mapping[tuple[str, ...], Floats]
    busy: Mapping[tuple[str, ...], Floats]
    warmup: int
    batch_s: float
    batches: int

    @classmethod
    def of(cls, run: Run, replayed: bool) -> _Clocks:
        everything = tabulate(run.range_times, run.ranks, run.batch_label)
        head = head_of(run, everything)
        done = batch_seconds(run)
        warmup = run_steps(run, "host", done=True).warmup
        chosen = np.ones(done.shape[1], np.bool_)
        if replayed and any(m.label == GRAPH for m in everything):
            chosen = only_replays(everything, GRAPH, run.batch_label)
            warmup = max(warmup, int(chosen.argmax()) if chosen.any() else done.shape[1])

        def late_of(table: Floats) -> Floats:
            return np.where(chosen, table, np.nan)[:, warmup:]

        late = late_of(done)
        if late.size == 0 or np.isnan(late).all() or np.nanmedian(late) <= 0:
            raise ModelError(
                f"{run.label}: expected batches after the warm-up; got {done.shape[1]}, "
                f"{warmup} of them warm-up; profile more"
            )
        depth = len(head.path)
        return cls(
            {m.path[depth:]: late_of(m.seconds["host"]) for m in everything},
            {m.path[depth:]: late_of(m.seconds["gpu_busy"]) for m in everything},
            warmup,
            float(np.nanmedian(late)),
            int(np.isfinite(late).any(axis=0).sum()),
        )

    def gpu(self, *path: str) -> float:
        """Median GPU busy time of a range, 0 where it has none."""
        return _median(self.busy.get(path))


def _kernels(case: Case, clocks: _Clocks) -> dict[str, float]:
    """Seconds of the GPU's parts by key, from the busy clock of their ranges."""
    keys = {part.name: part.key for part in case.parts() if part.clock == "gpu"}
    wide = sum(clocks.gpu(r.split(" ")[0], r) for r in LAYER_1)
    thin = sum(clocks.gpu(r.split(" ")[0], r) for r in LAYER_2)
    copies = sum(clocks.gpu("backward", r) for r in (D2H, REDUCE, H2D, NCCL))
    both = clocks.gpu("forward") - clocks.gpu("forward", NCCL) + clocks.gpu("backward") - copies
    found = {
        "large GEMMs": wide,
        "small GEMMs": thin,
        "element-wise": both - wide - thin,
        "step kernels": clocks.gpu("step"),
    }
    return {keys[name]: s for name, s in found.items() if name in keys}


def _median(table: Floats | None) -> float:
    return 0.0 if table is None or np.isnan(table).all() else float(np.nanmedian(table))


def _blocking(run: Run, case: Case, clocks: _Clocks) -> tuple[dict[str, float], dict[str, float]]:
    """Parts and phases where the host waits for the GPU in every batch."""
    critical = _last_to_arrive(run, clocks)
    columns = np.arange(critical.shape[0])

    def on_path(*path: str) -> Floats:
        table = clocks.host.get(path)
        return np.zeros(len(columns)) if table is None else np.nan_to_num(table[critical, columns])

    def median(values: Floats) -> float:
        return float(np.median(values))

    on_gpu = case.transport.links == "mpi-gpu"
    waiting = SYNC if on_gpu else D2H
    out, summed, back = (on_path("backward", name) for name in (waiting, REDUCE, H2D))
    images, forward, step = on_path(COPY), on_path("forward"), on_path("step")
    own = on_path("backward") - out - summed - back
    whole = on_path()
    piped = case.settings["transport"] == "chunked"
    if piped:  # one pipeline, whose ends are the copies' ranges
        none = np.zeros(len(columns))
        out, summed, back = none, out + summed + back, none
    waited = np.clip(_behind(run, clocks)[critical, columns], 0.0, summed if piped else out)
    if on_gpu:  # a range that does nothing else
        waited = out
    late = median(waited)
    if late <= _WAITS_S:
        waited, late = np.zeros(len(out)), 0.0
    phases = {
        COPY: median(images), "forward": median(forward), "backward": median(own),
        waiting: median(out), REDUCE: median(summed), H2D: median(back), "step": median(step),
    }  # fmt: skip
    phases = {name: s for name, s in phases.items() if s > 0}
    phases[BETWEEN] = max(clocks.batch_s - sum(phases.values()), 0.0)
    if on_gpu:  # a short wait is the call's, as it is a copy's elsewhere
        summed, out = summed + out - waited, waited
    inside = images + forward + own + out + summed + back + step
    seconds = {
        COPY: median(images), "forward": median(forward), "backward": median(own),
        D2H: median(out if piped else out - waited), H2D: median(back),
        REDUCE: median(summed - waited if piped else summed),
        "step": median(step), BETWEEN: max(median(whole - inside), 0.0),
    }  # fmt: skip
    parts = {p.key: seconds[p.phase] for p in case.parts() if p.clock == "host"}
    kernels = _kernels(case, clocks)
    if late > 0:
        computed = sum(s for key, s in kernels.items() if not key.startswith("step"))
        start = late + median(forward) + median(own) - computed
        parts |= {p.key: start for p in case.parts() if p.name == "first launch"}
    return parts | kernels, phases


def _queued(run: Run, case: Case, clocks: _Clocks) -> tuple[dict[str, float], dict[str, float]]:
    """Parts and phases where the host only queues: on the GPU's busy clock."""

    def host(*path: str) -> float:
        return _median(clocks.host.get(path))

    reduced = [table for path, table in clocks.busy.items() if path and path[-1] in (NCCL, PEER)]
    transfer = min((float(np.nanmedian(np.nanmin(t, axis=0))) for t in reduced
                    if not np.isnan(t).all()), default=0.0)  # fmt: skip
    if case.route == "queued":
        parts = _kernels(case, clocks)
    else:
        parts = replayed_parts(run, case, clocks.warmup, clocks.batch_s)
    between = host() - host(COPY) - host("forward") - host("backward") - host("step")
    seconds = {
        COPY: host(COPY), "forward": host("forward"), "backward": host("backward"),
        "step": host("step"), BETWEEN: between, GRAPH: host(GRAPH),
    }  # fmt: skip
    for part in case.parts():
        if part.name in DERIVED:
            continue
        if part.clock == "host" and part.phase in seconds:
            parts[part.key] = seconds[part.phase]
        elif part.phase in (NCCL, PEER) and case.route == "queued":
            parts[part.key] = transfer
    on_host = {
        p.phase: parts[p.key] for p in case.parts() if p.clock == "host" and p.name not in DERIVED
    }
    if sum(on_host.values()) * AHEAD > clocks.batch_s:
        return parts, on_host
    return parts, {
        p.name: parts[p.key] for p in case.parts() if parts.get(p.key, 0.0) > 0 and p.clock == "gpu"
    }


def _last_to_arrive(run: Run, clocks: _Clocks) -> Int64:
    """Rank (its row) that starts the sum of every batch last: nobody has to wait for the others."""
    times, shape = run.range_times, next(iter(clocks.host.values())).shape
    starts = np.full((shape[0], shape[1] + clocks.warmup), -1, np.int64)
    at = np.flatnonzero(times.labelled(REDUCE) & (times.batch >= 0))
    cell = np.searchsorted(run.ranks, times.rank[at]), times.batch[at]
    np.maximum.at(starts, cell, times.start_ns[at])
    late: Int64 = starts[:, clocks.warmup :].argmax(axis=0)
    return late


def _behind(run: Run, clocks: _Clocks) -> Floats:
    """Seconds that the GPU still computes when the host begins to copy gradients out, by rank."""
    shape = next(iter(clocks.host.values())).shape
    whole = shape[0], shape[1] + clocks.warmup
    times = run.range_times
    at = np.flatnonzero(times.labelled(D2H) & (times.batch >= 0))
    begun = np.full(whole, NULL)
    begun[np.searchsorted(run.ranks, times.rank[at]), times.batch[at]] = times.start_ns[at]
    first_copy = np.full(whole, np.iinfo(np.int64).max)
    last_kernel = np.full(whole, NULL)
    for trace, found in run.parts:
        ops = trace.ops
        cell = np.searchsorted(run.ranks, found.op_rank), found.op_batch
        out = (ops.kind[found.op] == MEMCPY) & np.isin(ops.copy_kind[found.op], TO_HOST)
        np.minimum.at(first_copy, tuple(c[out] for c in cell), ops.start_ns[found.op[out]])
        before = (ops.kind[found.op] == KERNEL) & (ops.start_ns[found.op] < first_copy[cell])
        np.maximum.at(last_kernel, tuple(c[before] for c in cell), ops.end_ns[found.op[before]])
    known = (begun != NULL) & (last_kernel != NULL)
    behind = np.where(known, (last_kernel - begun) * 1e-9, 0.0)
    return behind[:, clocks.warmup :]

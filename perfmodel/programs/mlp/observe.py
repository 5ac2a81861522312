"""Observations: what every part and phase of a batch took in one report, on its critical path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats, Int64
from perfmodel.base.errors import ModelError
from perfmodel.base.escape import printable
from perfmodel.models.part import BETWEEN, D2H, DERIVED, H2D, REDUCE, route
from perfmodel.programs.identify import read_mark
from perfmodel.programs.mlp.case import MLP, Case, from_mark
from perfmodel.programs.mlp.identify import identify
from perfmodel.programs.mlp.mlp_ranges import COPY, NCCL, PEER
from perfmodel.programs.mlp.observe_replay import replayed_parts
from perfmodel.programs.mlp.parts import mlp_parts
from perfmodel.readers.trace import KERNEL, MEMCPY, NULL
from perfmodel.timing.run import Run, batch_seconds
from perfmodel.timing.samples import count_warmup, tabulate

_WIDE: Final = ("forward GEMM 1", "backward GEMM 3")
_THIN: Final = ("forward GEMM 2", "backward GEMM 1", "backward GEMM 2")
_WAITS_S: Final = 100e-6
"""A host that waits longer than this is behind the GPU; below, it waits for its last launches."""
AHEAD: Final = 1.1
"""A GPU that takes longer than this many times the host's own time is what the batch waits for."""
_COPY_OUT: Final = 2  # CUPTI's device to host


@dataclass(frozen=True)
class Observation:
    """One launch of one case: medians over the batches after the warm-up, in seconds.

    Attributes
    ----------
    source : str
        File name of the report.
    batch_s : float
        Median host time of a batch; to the end of its GPU work where the host only queues.
    parts : mapping of str to float
        Seconds by `Part.key`, of the parts that the report tells.
    phases : mapping of str to float
        Seconds by NVTX range along the critical path: of the rank that reaches the all-reduce
        last, without the ranges inside.
    batches : int
        Batches behind the medians.
    """

    source: str
    case: Case
    batch_s: float
    parts: Mapping[str, float]
    phases: Mapping[str, float]
    batches: int


def observe(run: Run) -> Observation:
    """Measure the parts of the MLP's batch in one run.

    Raises
    ------
    ModelError
        If the run has no configuration mark, or one of another program than the trainer, or no
        batch is left after the warm-up.
    """
    config = next((c for t in run.traces if (c := read_mark(t))), {})
    if not config:
        raise ModelError(
            f"{run.label}: wanted a configuration mark, which says how the batch ran; found none; "
            f"profile with python -m trainer, or calibrate with --workload and the sizes"
        )
    workload = config.get("workload", MLP)
    if workload != MLP:
        raise ModelError(
            f"{run.label}: wanted a run of the trainer's MLP; found one of the workload "
            f"{printable(str(workload))!r}, by its configuration mark; perfmodel calibrate "
            f"takes it with its formulas, --workload FILE.toml"
        )
    identity, _ = identify(run, {})
    case = from_mark(config, identity.values)
    clocks = _Clocks.of(run, config.get("graph") is True)
    if route(case) == "blocking":
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
        head = next(m for m in everything if m.label == run.batch_label)
        done = batch_seconds(run)
        warmup = count_warmup(head.seconds["host"])
        if replayed:
            ran = next((m for m in everything if m.label == "CUDA graph"), None)
            if ran is not None:
                first = np.flatnonzero((ran.instances > 0).all(axis=0))
                other = [m for m in everything if len(m.path) > len(head.path)
                         and "CUDA graph" not in m.path]  # fmt: skip
                seen = [np.flatnonzero(m.instances.any(axis=0)).max(initial=-1) for m in other]
                warmup = max(warmup, int(first[0]) if len(first) else 0, max(seen, default=-1) + 1)
        late = done[:, warmup:]
        if late.size == 0 or np.isnan(late).all():
            raise ModelError(
                f"{run.label}: wanted batches after the warm-up; found {done.shape[1]}, "
                f"{warmup} of them warm-up; profile more"
            )
        depth = len(head.path)
        return cls(
            {m.path[depth:]: m.seconds["host"][:, warmup:] for m in everything},
            {m.path[depth:]: m.seconds["gpu_busy"][:, warmup:] for m in everything},
            warmup,
            float(np.nanmedian(late)),
            int(np.isfinite(late).any(axis=0).sum()),
        )

    def gpu(self, *path: str) -> float:
        """Median GPU busy time of a range, 0 where it has none."""
        table = self.busy.get(path)
        return 0.0 if table is None or np.isnan(table).all() else float(np.nanmedian(table))


def _kernels(case: Case, clocks: _Clocks) -> dict[str, float]:
    """Seconds of the GPU's parts by key, from the busy clock of their ranges."""
    keys = {part.name: part.key for part in mlp_parts(case) if part.clock == "gpu"}
    wide = sum(clocks.gpu(_phase(r), r) for r in _WIDE)
    thin = sum(clocks.gpu(_phase(r), r) for r in _THIN)
    copies = sum(clocks.gpu("backward", r) for r in (D2H, H2D, NCCL))
    both = clocks.gpu("forward") - clocks.gpu("forward", NCCL) + clocks.gpu("backward") - copies
    found = {
        "wide products": wide,
        "thin products": thin,
        "element-wise": both - wide - thin,
        "step kernels": clocks.gpu("step"),
    }
    return {keys[name]: s for name, s in found.items() if name in keys}


def _phase(product: str) -> str:
    return product.split(" ")[0]


def _blocking(run: Run, case: Case, clocks: _Clocks) -> tuple[dict[str, float], dict[str, float]]:
    """Parts and phases where the host waits for the GPU in every batch."""
    critical = _last_to_arrive(run, clocks)
    columns = np.arange(critical.shape[0])

    def on_path(*path: str) -> Floats:
        table = clocks.host.get(path)
        return np.zeros(len(columns)) if table is None else np.nan_to_num(table[critical, columns])

    def median(values: Floats) -> float:
        return float(np.median(values))

    out, summed, back = (on_path("backward", name) for name in (D2H, REDUCE, H2D))
    images, forward, step = on_path(COPY), on_path("forward"), on_path("step")
    own = on_path("backward") - out - summed - back
    whole = on_path()
    piped = case.settings["transport"] == "chunked"
    if piped:  # one pipeline, whose ends are the copies' ranges
        none = np.zeros(len(columns))
        out, summed, back = none, out + summed + back, none
    waited = np.clip(_behind(run, clocks)[critical, columns], 0.0, summed if piped else out)
    late = median(waited)
    if late <= _WAITS_S:
        waited, late = np.zeros(len(out)), 0.0
    phases = {
        COPY: median(images), "forward": median(forward), "backward": median(own),
        D2H: median(out), REDUCE: median(summed), H2D: median(back), "step": median(step),
    }  # fmt: skip
    phases = {name: s for name, s in phases.items() if s > 0}
    phases[BETWEEN] = max(clocks.batch_s - sum(phases.values()), 0.0)
    inside = images + forward + own + out + summed + back + step
    told = {
        COPY: median(images), "forward": phases["forward"], "backward": phases["backward"],
        D2H: median(out if piped else out - waited), H2D: median(back),
        REDUCE: median(summed - waited if piped else summed),
        "step": median(step), BETWEEN: max(median(whole - inside), 0.0),
    }  # fmt: skip
    parts = {p.key: told[p.phase] for p in mlp_parts(case) if p.clock == "host"}
    kernels = _kernels(case, clocks)
    if late > 0:
        computed = sum(s for key, s in kernels.items() if not key.startswith("step"))
        start = late + phases["forward"] + phases["backward"] - computed
        parts |= {p.key: start for p in mlp_parts(case) if p.name == "first launch"}
    return parts | kernels, phases


def _queued(run: Run, case: Case, clocks: _Clocks) -> tuple[dict[str, float], dict[str, float]]:
    """Parts and phases where the host only queues: on the GPU's busy clock."""

    def host(*path: str) -> float:
        table = clocks.host.get(path)
        return 0.0 if table is None or np.isnan(table).all() else float(np.nanmedian(table))

    reduced = [table for path, table in clocks.busy.items() if path and path[-1] in (NCCL, PEER)]
    transfer = min((float(np.nanmedian(np.nanmin(t, axis=0))) for t in reduced
                    if not np.isnan(t).all()), default=0.0)  # fmt: skip
    if route(case) == "queued":
        parts = _kernels(case, clocks)
    else:
        parts = replayed_parts(run, case, clocks.warmup, clocks.batch_s)
    between = host() - host(COPY) - host("forward") - host("backward") - host("step")
    told = {
        COPY: host(COPY), "forward": host("forward"), "backward": host("backward"),
        "step": host("step"), BETWEEN: between, "CUDA graph": host("CUDA graph"),
    }  # fmt: skip
    for part in mlp_parts(case):
        if part.name in DERIVED:
            continue
        if part.clock == "host" and part.phase in told:
            parts[part.key] = told[part.phase]
        elif part.phase in (NCCL, PEER) and route(case) == "queued":
            parts[part.key] = transfer
    on_host = {
        p.phase: parts[p.key]
        for p in mlp_parts(case)
        if p.clock == "host" and p.name not in DERIVED
    }
    if sum(on_host.values()) * AHEAD > clocks.batch_s:
        return parts, on_host
    return parts, {
        p.name: parts[p.key]
        for p in mlp_parts(case)
        if parts.get(p.key, 0.0) > 0 and p.clock == "gpu"
    }


def _last_to_arrive(run: Run, clocks: _Clocks) -> Int64:
    """Rank (its row) that starts the sum of every batch last: nobody has to wait for the others."""
    times, shape = run.range_times, next(iter(clocks.host.values())).shape
    starts = np.full((shape[0], shape[1] + clocks.warmup), -1, np.int64)
    mine = np.array([path[-1] == REDUCE for path in times.paths], np.bool_)
    at = np.flatnonzero(mine[times.path] & (times.batch >= 0))
    cell = np.searchsorted(run.ranks, times.rank[at]), times.batch[at]
    np.maximum.at(starts, cell, times.start_ns[at])
    late: Int64 = starts[:, clocks.warmup :].argmax(axis=0)
    return late


def _behind(run: Run, clocks: _Clocks) -> Floats:
    """Seconds that the GPU still computes when the host begins to copy gradients out, by rank."""
    shape = next(iter(clocks.host.values())).shape
    whole = shape[0], shape[1] + clocks.warmup
    times = run.range_times
    mine = np.array([path[-1] == D2H for path in times.paths], np.bool_)
    at = np.flatnonzero(mine[times.path] & (times.batch >= 0))
    begun = np.full(whole, NULL)
    begun[np.searchsorted(run.ranks, times.rank[at]), times.batch[at]] = times.start_ns[at]
    first_copy = np.full(whole, np.iinfo(np.int64).max)
    last_kernel = np.full(whole, NULL)
    for trace, found in run.parts:
        ops = trace.ops
        cell = np.searchsorted(run.ranks, found.op_rank), found.op_batch
        out = (ops.kind[found.op] == MEMCPY) & (ops.copy_kind[found.op] == _COPY_OUT)
        np.minimum.at(first_copy, tuple(c[out] for c in cell), ops.start_ns[found.op[out]])
        before = (ops.kind[found.op] == KERNEL) & (ops.start_ns[found.op] < first_copy[cell])
        np.maximum.at(last_kernel, tuple(c[before] for c in cell), ops.end_ns[found.op[before]])
    known = (begun != NULL) & (last_kernel != NULL)
    behind = np.where(known, (last_kernel - begun) * 1e-9, 0.0)
    return behind[:, clocks.warmup :]

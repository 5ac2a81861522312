"""Writes the trace that torch.profiler would have made of what Nsight Systems recorded."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from perfmodel.programs.pytorch.names import parse
from perfmodel.readers.trace import COPY_KINDS, KERNEL, MEMCPY, MEMORY_KINDS, NULL, Trace

BASE_NS = 1_790_857_026 * 10**9


def events_of(trace: Trace, process: int) -> list[dict[str, Any]]:
    """Ranges, calls and GPU operations of one process, in the order in which Kineto writes them."""
    return [
        *_ranges(trace, process), *_operations(trace, process), *_calls(trace, process)
    ]  # fmt: skip


def document(trace: Trace, process: int = 0, rank: int = 0, world: int = 1) -> dict[str, Any]:
    """The whole trace of one process, as a rank of `world`."""
    found: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": g.id, "name": g.name, "totalGlobalMem": g.memory_bytes, "numSms": g.sm_count,
             "computeMajor": g.compute_capability[0], "computeMinor": g.compute_capability[1]}
            for g in trace.gpus if g.compute_capability
        ],
        "baseTimeNanoseconds": BASE_NS,
    }  # fmt: skip
    if world > 1:
        found["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
    return {**found, "traceEvents": events_of(trace, process), "traceName": "trace.json"}


def write(path: Path, content: Any) -> Path:
    """Write JSON, compressed if the name says so, with times of three decimals as Kineto's."""
    text = json.dumps(content)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def of_every_rank(trace: Trace, folder: Path) -> list[Path]:
    """Write the traces of a report's processes, a rank each."""
    ranks = int(trace.ops.process.max()) + 1
    return [
        write(folder / f"rank{rank}.json", document(trace, rank, rank, ranks))
        for rank in range(ranks)
    ]


def us(ns: int) -> float:
    return ns / 1000


def _span(start: int, end: int) -> dict[str, Any]:
    return {"ph": "X", "ts": us(start), "dur": us(max(end - start, 0))}


def _place(trace: Trace, thread: int) -> dict[str, int]:
    serialized = int(trace.threads[thread])
    return {"pid": serialized >> 24 & 0xFFFFFF, "tid": serialized & 0xFFFFFF}


def _ranges(trace: Trace, process: int) -> list[dict[str, Any]]:
    names, ranges, found = parse(trace.range_labels), trace.ranges, []
    mine = trace.thread_process[ranges.thread] == process
    for i in np.flatnonzero(mine & (ranges.end_ns != NULL) & (ranges.name >= 0)).tolist():
        code = int(ranges.name[i])
        name, sizes, seq = names.name[code], names.sizes[code], int(names.seq[code])
        operator = sizes is not None or name.startswith(("aten::", "autograd::"))
        args: dict[str, Any] = {"External id": i + 1}
        if seq >= 0:
            args["Sequence number"] = seq
        if sizes is not None:
            args["Input Dims"] = [list(size) for size in sizes]
        found.append({
            **_span(int(ranges.start_ns[i]), int(ranges.end_ns[i])),
            **_place(trace, int(ranges.thread[i])), "name": name,
            "cat": "cpu_op" if operator else "user_annotation", "args": args,
        })  # fmt: skip
    return found


def _calls(trace: Trace, process: int) -> list[dict[str, Any]]:
    api = trace.api
    return [
        {**_span(int(api.start_ns[i]), int(api.end_ns[i])), **_place(trace, int(api.thread[i])),
         "name": trace.strings[api.name[i]].partition("_v")[0], "cat": "cuda_runtime",
         "args": {"correlation": int(api.correlation[i])}}
        for i in np.flatnonzero(trace.thread_process[api.thread] == process).tolist()
    ]  # fmt: skip


def _operations(trace: Trace, process: int) -> list[dict[str, Any]]:
    ops, found = trace.ops, []
    for i in np.flatnonzero(ops.process == process).tolist():
        args: dict[str, Any] = {"device": int(ops.device[i]), "stream": int(ops.stream[i]),
                                "correlation": int(ops.correlation[i])}  # fmt: skip
        if ops.kind[i] == KERNEL:
            name, category = _as_kineto(trace.strings[ops.name[i]]), "kernel"
        elif ops.kind[i] == MEMCPY:
            name, category = _copy_name(*(int(c[i]) for c in _kinds(trace))), "gpu_memcpy"
        else:
            name, category = "Memset (Device)", "gpu_memset"
        if ops.kind[i] != KERNEL:
            args["bytes"] = int(ops.bytes[i])
        found.append({
            **_span(int(ops.start_ns[i]), int(ops.end_ns[i])), "name": name, "cat": category,
            "pid": args["device"], "tid": args["stream"], "args": args,
        })  # fmt: skip
    return found


def _kinds(trace: Trace) -> tuple[Any, ...]:
    return trace.ops.copy_kind, trace.ops.src_kind, trace.ops.dst_kind


def _copy_name(direction: int, source: int, target: int) -> str:
    one, _, other = COPY_KINDS[direction].partition("-to-")
    ends = " -> ".join(MEMORY_KINDS[k].title() for k in (source, target))
    return f"Memcpy {one[0]}to{other[0]} ({ends})"


def _as_kineto(kernel: str) -> str:
    """Write unnamed namespaces as CUPTI's names have them."""
    return kernel.replace("<unnamed>", "(anonymous namespace)")


def trace_event(
    category: str, name: str, *, pid: Any = 10, tid: Any = 10, ts: float = 1, dur: float = 2,
    args: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return one event that lasts, as Kineto writes it."""
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
            "args": args or {}}  # fmt: skip


def zstd_frames(*parts: bytes) -> bytes:
    """Compress each part to a frame of its own, as pzstd does."""
    compressor = zstandard.ZstdCompressor()
    return b"".join(compressor.compress(part) for part in parts)

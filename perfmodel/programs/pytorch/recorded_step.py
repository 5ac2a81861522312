"""One recorded step of a PyTorch program as a list of calls, and what a call of other sizes does.

What `perfmodel.models.operators` predicts from: every call's sizes, work and GPU time in the order
in which the host launched them, without knowing what they compute.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import Floats, Int64
from perfmodel.base.errors import ModelError
from perfmodel.models.lifetimes import Optimizer, Tensor
from perfmodel.models.recorded import RecordedCall, RecordedStep
from perfmodel.programs.pytorch.flow import gradients_of, listed, optimizer_of, tensors_of
from perfmodel.programs.pytorch.operator_times import Found, find
from perfmodel.programs.pytorch.operators import FUSED, Call, formula_of, numel, work_of
from perfmodel.readers.trace import KERNEL, NULL, Trace
from perfmodel.timing.host_timeline import FULL, LAUNCH
from perfmodel.timing.launched import launched
from perfmodel.timing.recorder import Timed, costs_of, shorter_ns
from perfmodel.timing.run_exchanges import kernel_exchanges
from perfmodel.timing.step_graph import StepGraph
from perfmodel.timing.step_report import StepReport

_NUMBER: Final = re.compile(r"_[0-9]+$")
_LAYOUT: Final = re.compile(
    r"_([TN])([TN])[TN]?(?:_|$)|_(tn|nt|nn)_(?:align|v|n)|(?:^|_)(tn|nt|nn)(?:_|$)"
)
"""Of a GEMM's kernel: which factors cuBLAS, whose matrices are column-major, transposes."""
_ROW_MAJOR: Final = {"tn": "nt", "nt": "tn", "nn": "nn"}
_CONVOLUTION: Final = "convolution"
_MOST_GAP_NS: Final = 3000
_AHEAD_NS: Final = 10_000
_Z90: Final = 1.645
"""Standard deviations on each side that hold 90 % of a normal distribution."""


def recorded_step(trace: Trace, steps: StepReport) -> RecordedStep:
    """Put the steps of a report down call by call, without the first of them.

    Parameters
    ----------
    trace : Trace
        With its ranges.
    steps : StepReport
        Of the same trace.

    Raises
    ------
    ModelError
        If no step has GPU work.
    """
    inside = steps.times.ops
    number = steps.steps.number[inside.step].astype(np.int64)
    kept = np.unique(number).tolist()
    if not kept:
        raise ModelError(
            f"{trace.source.name}: expected steps with GPU work; got none; record more steps"
        )
    kept = kept[1:] or kept
    found = launched(trace)
    at_ns = found.at_ns[np.searchsorted(found.op, inside.op)]
    calls = find(trace, steps, flow=True)
    lanes = len(steps.times.process)
    rows = _Rows(trace, inside.op, at_ns, _collectives(steps, inside.op, inside.lane, trace))
    updated = gradients_of(trace, steps, kept[-1]) if calls is not None else ()
    times: dict[Any, list[float]] = {}
    described: dict[Any, RecordedCall] = {}
    codes: dict[Any, int] = {}
    order: list[int] = []
    last: list[int] = []
    tensors: tuple[Tensor, ...] = ()
    optimizer: Optimizer | None = None
    for lane, step in product(range(lanes), kept):
        chosen = (number == step) & (inside.lane == lane)
        if calls is None:  # its collectives' times are known all the same
            chosen &= np.isin(inside.op, [*rows.collectives])
        sequence = listed(rows.calls(np.flatnonzero(chosen), calls), updated)
        for call in sequence:
            described.setdefault(call.key, call)
            times.setdefault(call.key, []).append(call.gpu_s)
            codes.setdefault(call.key, len(codes))
        if calls is not None and lane == 0 and step == kept[-1]:
            order = [codes[call.key] for call in sequence]
            last = rows.starts(np.flatnonzero(chosen), calls)
            optimizer = optimizer_of(sequence)
            tensors = tensors_of(sequence, rows.owners(np.flatnonzero(chosen), calls), calls)
    timed = Timed.of([trace])
    host_s, waits, noise = _host_of(steps.graphs[0], last if order else [])
    return RecordedStep(
        source=trace.source.name,
        ranks=lanes,
        gpu=trace.gpus[0].name if trace.gpus else "",
        calls=tuple(replace(described[k], gpu_s=float(np.mean(times[k]))) for k in codes),
        order=tuple(order),
        gap_s=_gap_s(trace, inside.op, at_ns, inside.lane),
        host_s=host_s,
        waits=waits,
        host_noise=noise,
        tensors=tensors,
        optimizer=optimizer,
        bare_s=None if timed is None else timed.step_s,
    )


def _host_of(
    graph: StepGraph, starts: Sequence[int]
) -> tuple[tuple[float, ...], tuple[bool, ...], float]:
    """Seconds of the host before each call's last launch, whether it waits, and how unsure that is.

    The pieces of the host without the profiler, from the launch before to the call's own. A call
    that waits for the GPU, or for room in its queue, counts as a quick launch. Seconds are medians
    over the steps that launch as many operations as the last one.

    Parameters
    ----------
    graph : StepGraph
    starts : sequence of int
        Of every call of the last step, when its last operation began on the GPU.
    """
    if not starts or graph.slow is None or len(graph.host_edge_ns) < 2:
        return (), (), 0.0
    costs = costs_of(graph.recorder)
    lengths = np.diff(graph.host_edge_ns)
    full = graph.host_call & (graph.host_kind == LAUNCH) & (lengths > FULL * graph.launch_ns)
    held = graph.host_drains | full
    passed = [
        np.append(0, np.cumsum(np.where(held, np.minimum(lengths, graph.launch_ns),
                                        lengths - shorter_ns(graph, factor))))
        for factor in (1.0, costs.low, costs.high)
    ]  # fmt: skip
    place = {start: k for k, start in enumerate(graph.op_start_ns.tolist())}
    if any(start not in place for start in starts):
        return (), (), 0.0
    _, firsts, counts = np.unique(graph.op_step, return_index=True, return_counts=True)
    offsets = np.maximum.accumulate([place[start] for start in starts]) - firsts[-1]
    alike = [first for first, n in zip(firsts, counts, strict=True) if n == counts[-1]]
    drained = np.append(0, np.cumsum(graph.host_drains))
    own: list[Floats] = []
    fast: list[Floats] = []
    slow: list[Floats] = []
    waits = []
    for first in alike:
        before = int(graph.op_call[first - 1]) if first else -1
        edges = np.append(before, graph.op_call[first + offsets]) + 1
        for found, so_far in zip((own, fast, slow), passed, strict=True):
            found.append(np.diff(so_far[edges]).astype(float))
            if not first and len(alike) > 1:
                found[-1][0] = np.nan  # what came before was not kept
        waits.append(np.diff(drained[np.maximum(edges - 1, 0)]) > 0)
    seconds, fast_s, slow_s = (np.nanmedian(found, axis=0) * 1e-9 for found in (own, fast, slow))
    spread = max(float(fast_s.sum()), 1e-9) / max(float(slow_s.sum()), 1e-9)
    noise = math.log(max(spread, 1.0)) / (2 * _Z90)
    return tuple(seconds.tolist()), tuple((np.mean(waits, axis=0) > 0.5).tolist()), noise


def call_at(call: RecordedCall, sizes: Sequence[tuple[int, ...]]) -> RecordedCall:
    """Return a call whose arguments have other sizes, with its FLOPs, bytes and shape.

    The last of the sizes is that of the result where the recording says it.
    """
    said = call.said
    arguments = tuple(tuple(s) for s in sizes[: call.arguments])
    unknown = replace(
        call, sizes=tuple(sizes), flops=0.0, bytes=float(4 * sum(map(numel, arguments))), shape=None
    )
    weights = said.get("weights")
    if weights is not None:
        moved = sum(w * numel(s) for w, s in zip(weights, arguments, strict=True))
        return replace(unknown, bytes=float(moved))
    if call.kind == "unknown":
        return unknown
    out = tuple(sizes[call.arguments]) if len(sizes) > call.arguments else None
    given = said["items"]
    items = tuple(
        given[i * len(given) // len(arguments)] for i in range(len(arguments))
    )  # lists grow
    made = Call(
        call.name, arguments, items, said["item"], out,
        tuple(said["needed"]), said["transposed"], said["depth"], said["kernels"],
    )  # fmt: skip
    work = work_of(made)
    if work is None:
        return unknown
    moved = float(work.read_bytes + work.write_bytes)
    return replace(unknown, flops=float(work.flops), bytes=moved, shape=work.shape)


class _Rows:
    """GPU operations of steps as calls in the order of their launches."""

    def __init__(
        self,
        trace: Trace,
        op: Int64,
        at_ns: Int64,
        collectives: Mapping[int, tuple[str, float, float]],
    ) -> None:
        self.trace, self.op, self.at_ns, self.collectives = trace, op, at_ns, collectives

    def _groups(self, chosen: Int64, found_calls: Found | None) -> dict[int, list[int]]:
        """Rows of every call by its number, or of no operator by a negative one, as launched."""
        none = np.full(len(self.op), -1, np.int64)
        owner = found_calls.calls.owner if found_calls else none
        chosen = chosen[np.argsort(self.at_ns[chosen], kind="stable")]
        groups: dict[int, list[int]] = {}
        for i in chosen.tolist():
            alone = owner[i] < 0 or int(self.op[i]) in self.collectives
            groups.setdefault(-1 - i if alone else int(owner[i]), []).append(i)
        return groups

    def owners(self, chosen: Int64, found_calls: Found) -> list[int]:
        """Of every call its place in what was found, negative for operations of no operator."""
        return [*self._groups(chosen, found_calls)]

    def starts(self, chosen: Int64, found_calls: Found | None) -> list[int]:
        """When the last operation of every call begins on the GPU, in nanoseconds."""
        groups = self._groups(chosen, found_calls).values()
        return [int(self.trace.ops.start_ns[self.op[rows[-1]]]) for rows in groups]

    def calls(self, chosen: Int64, found_calls: Found | None) -> list[RecordedCall]:
        """One for every call, with its time; those of no operator one by one."""
        ops = self.trace.ops
        calls = found_calls.calls.calls if found_calls else ()
        phase = found_calls.calls.phase if found_calls else ("",) * len(self.op)
        found = []
        for who, rows in self._groups(chosen, found_calls).items():
            first = int(self.op[rows[0]])
            if first in self.collectives:
                name, size, seconds = self.collectives[first]
                made = _plain(name, str(phase[rows[0]]), "communication")
                found.append(RecordedCall(**{**made, "bytes": size}, launches=1, gpu_s=seconds))
                continue
            names = [
                self.trace.strings[int(ops.name[self.op[i]])]
                if ops.kind[self.op[i]] == KERNEL and ops.name[self.op[i]] >= 0
                else ""
                for i in rows
            ]
            made = (
                _described(calls[who], names)
                if who >= 0
                else _plain(_short(names[0]), str(phase[rows[0]]), "unknown")
            )
            seconds = _covered_ns(ops.start_ns[self.op[rows]], ops.end_ns[self.op[rows]]) * 1e-9
            found.append(RecordedCall(**made, launches=len(rows), gpu_s=seconds))
        return found


def _covered_ns(start_ns: Int64, end_ns: Int64) -> int:
    """Time in which an operator's kernels run: an LSTM's run on several streams at once."""
    order = np.argsort(start_ns, kind="stable")
    begins, ends = start_ns[order], np.maximum.accumulate(end_ns[order])
    begins[1:] = np.maximum(begins[1:], ends[:-1])
    return int((ends - begins).sum())


def _short(kernel: str) -> str:
    """Name of a GPU operation of no operator."""
    return f"({kernel.split('<')[0].split('(')[0][:60] or 'memory operation'})"


def _plain(name: str, phase: str, kind: str) -> dict[str, Any]:
    return {
        "name": name, "phase": phase, "kind": kind, "dtype": "", "layout": "",
        "sizes": (), "arguments": 0, "said": {}, "flops": 0.0, "bytes": 0.0, "shape": None,
    }  # fmt: skip


def _described(call: Call, kernels: Sequence[str]) -> dict[str, Any]:
    name = _NUMBER.sub("", call.name) if call.name.startswith(FUSED) else call.name
    sizes, work = call.sizes, call.work
    said: dict[str, Any] = {}
    kind, shape, layout = "unknown", None, ""
    if work is not None:
        kind, shape = "memory", work.shape if work.flops else None
        if call.buffers:
            said = {
                "weights": [
                    b / numel(s) if numel(s) else 0.0
                    for b, s in zip(call.buffers, sizes, strict=True)
                ]
            }
        else:
            said = {
                "items": list(call.items), "item": call.item, "needed": list(call.needed),
                "transposed": call.transposed, "depth": call.depth, "kernels": call.kernels,
            }  # fmt: skip
        if shape is not None:
            kind = formula_of(name).product
            layout = _layout(kernels) if kind == "gemm" else ""
        elif work.flops and _CONVOLUTION in name:
            kind = "convolution"
    out = call.out if call.out and not call.buffers else None
    return {
        "name": name, "phase": call.phase, "kind": kind, "dtype": _dtype(call), "layout": layout,
        "sizes": (*sizes, out) if out else sizes, "arguments": len(sizes), "said": said,
        "flops": float(work.flops) if work else 0.0,
        "bytes": float(work.read_bytes + work.write_bytes) if work else
        float(4 * sum(map(numel, sizes))),
        "shape": shape,
    }  # fmt: skip


def _dtype(call: Call) -> str:
    return "tf32" if call.unit == "tf32_tensor" else call.dtype


def _layout(kernels: Sequence[str]) -> str:
    """Layout of a GEMM's factors as PyTorch sees them; '' where no kernel's name says it."""
    for kernel in kernels:
        said = _LAYOUT.search(kernel)
        if said:
            first, second, *others = said.groups()
            word = (first + second).lower() if first else next(o for o in others if o)
            return _ROW_MAJOR[word]
    return ""


def _gap_s(trace: Trace, op: Int64, at_ns: Int64, lane: Int64) -> float:
    """Median gap between two operations of a stream of which the second was queued before."""
    rows = np.flatnonzero(lane == 0)
    rows = rows[np.argsort(trace.ops.start_ns[op[rows]], kind="stable")]
    start, end = trace.ops.start_ns[op[rows]], trace.ops.end_ns[op[rows]]
    gap = start[1:] - end[:-1]
    queued = (end[:-1] - at_ns[rows][1:] > _AHEAD_NS) & (gap > 0) & (gap < _MOST_GAP_NS)
    return float(np.median(gap[queued])) * 1e-9 if queued.any() else 0.0


def _collectives(
    steps: StepReport, op: Int64, lane: Int64, trace: Trace
) -> dict[int, tuple[str, float, float]]:
    """Name, bytes of the whole vector and seconds of transfer of NCCL's kernels, by operation."""
    lanes, sent = len(steps.times.process), kernel_exchanges([steps])
    at = {
        (n, s): o
        for n, s, o in zip(lane.tolist(), trace.ops.start_ns[op].tolist(), op.tolist(), strict=True)
    }
    found: dict[int, tuple[str, float, float]] = {}
    transfer = np.where(sent.transfer_ns == NULL, sent.spent_ns, sent.transfer_ns) * 1e-9
    rows = zip(steps.nccl.lane.tolist(), sent.post_ns.tolist(), sent.name.tolist(),
               sent.bytes.tolist(), transfer.tolist(), strict=True)  # fmt: skip
    for n, start, name, size, seconds in rows:
        o = at.get((n, start))
        if o is not None:
            word = sent.names[name]
            shared = lanes if word.endswith(("AllGather", "ReduceScatter")) else 1
            found[o] = word, float(max(size, 0) * shared), seconds
    return found

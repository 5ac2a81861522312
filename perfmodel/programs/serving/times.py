"""Joins the steps of serving engines to their operators: replays, tokens, weights and KV cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int64
from perfmodel.base.escape import printable
from perfmodel.base.kernels.types import ITEM_BYTES
from perfmodel.models.serving import Layout, exchanged_bytes
from perfmodel.programs.program import Options
from perfmodel.programs.pytorch.calls import Calls
from perfmodel.programs.pytorch.operator_times import Placed, find_replayed, tabulate
from perfmodel.programs.pytorch.operators import Call, Inference, formula_of, numel, work_of
from perfmodel.programs.pytorch.replays import Needed, replays, tokens_captured
from perfmodel.programs.serving.formulas import EXPERTS, WEIGHTS
from perfmodel.programs.serving.steps import engine_step, engine_steps, untold_steps
from perfmodel.readers.trace import KERNEL, MEMCPY, TO_HOST, Trace
from perfmodel.timing.engine_steps import EngineStep, EngineTimes, EngineWork
from perfmodel.timing.kernels import communicating
from perfmodel.timing.operator_times import OperatorTimes
from perfmodel.timing.step_report import StepReport
from perfmodel.workloads.decoder import Batch, Decoder, published

_SHARDS: Final = (1, 2, 4, 8, 16)
"""GPUs that may share a layer: heads and widths of models are multiples of powers of 2."""
_WIDE_BITS: Final = 16
_SELDOM_QUANTIZED: Final = ("head", "router")
"""Matrices that published checkpoints of 8 and 4 bits leave in 16."""
_COVERED: Final = 0.9
"""Of the computing time: where formulas cover less, the model's weights count, not those seen."""


@dataclass(frozen=True, slots=True)
class Known:
    """The model of a step, and how many GPUs share its layers."""

    model: Decoder | None = None
    shards: int = 1


def serving_times(
    trace: Trace, steps: StepReport, options: Options, sources: Sequence[Trace]
) -> OperatorTimes:
    """Count the operators of engine steps, those of replayed graphs among them.

    Parameters
    ----------
    trace, steps : Trace, StepReport
    options : Options
    sources : sequence of Trace
        The recordings of the graphs' captures; `trace` itself where no other one is given.
    """
    said = engine_steps(trace, steps.steps)
    tokens = [Needed(one.tokens, one.sequences) if one else None for one in said]
    found = find_replayed(
        trace, steps, sources, tokens, options.dtype, causal=options.causal, tokens_of=_tokens_of
    )
    calls, work = _counted(trace, steps, found.calls, said, options.decoder)
    placed = Placed.of(steps, causal=options.causal, warnings=found.warnings)
    made = tabulate(trace, calls, placed)
    warnings = (*made.warnings, *_untold(trace, steps))
    return replace(made, engine=work, hidden=found.hidden, places=found.places, warnings=warnings)


def _untold(trace: Trace, steps: StepReport) -> Iterator[str]:
    """Say how many steps have no phase because their names lack tokens, and how to record them."""
    lacking = untold_steps(trace, steps.steps)
    if lacking:
        yield (
            f"{len(lacking)} of {len(steps.steps)} steps do not name their tokens, such as "
            f"{printable(lacking[0])}: they have no phase and no floor; record with vLLM's "
            f"detailed_trace_annotation, or SGLang's roofline_annotations (docs/serving.md)"
        )


def _tokens_of(label: str) -> int | None:
    step = engine_step(label)
    return tokens_captured(label) if step is None else step.tokens


def _counted(
    trace: Trace,
    steps: StepReport,
    calls: Calls,
    said: Sequence[EngineStep | None],
    served: Decoder | None,
) -> tuple[Calls, dict[tuple[int, int], EngineWork]]:
    """Count calls with the tokens of their step; and what every lane's step must do."""
    ops = steps.times.ops
    again = np.concatenate([np.empty(0, np.int64), *(one.op for one in replays(trace, steps))])
    replayed = np.isin(ops.op, again)
    sends = communicating(trace)[ops.op]
    spent = (trace.ops.end_ns - trace.ops.start_ns)[ops.op]
    start = trace.ops.start_ns[ops.op]
    more = [*calls.calls]
    work: dict[tuple[int, int], EngineWork] = {}
    order = np.lexsort((start, ops.step, ops.lane))
    ends = np.flatnonzero(np.diff(ops.lane[order]) | np.diff(ops.step[order])) + 1
    lanes = {int(lane): _Lane.of(trace, ops.op[ops.lane == lane]) for lane in np.unique(ops.lane)}
    for mine in np.split(order, ends) if len(order) else ():
        lane, at = int(ops.lane[mine[0]]), int(ops.step[mine[0]])
        step = said[at]
        if step is None:
            continue
        owner = calls.owner[mine]
        seen = [*dict.fromkeys(owner[owner >= 0].tolist())]
        quiet = ~sends[mine]
        alone = 1 if quiet.all() else trace.world_size or 1
        known = recognized([calls.calls[i] for i in seen], served, alone)
        _tell(more, seen, step, known)
        modelled = np.array([i >= 0 and more[i].work is not None for i in owner.tolist()], np.bool_)
        share = spent[mine][modelled & quiet].sum() / max(spent[mine][quiet].sum(), 1)
        talking = [*dict.fromkeys(owner[~quiet & (owner >= 0)].tolist())]
        number = int(steps.steps.number[at])
        found = _work(
            [more[i] for i in seen], [more[i] for i in talking], step, known,
            covered=bool(share >= _COVERED),
        )  # fmt: skip
        routes = np.array([i >= 0 and more[i].name in EXPERTS for i in owner.tolist()], np.bool_)
        times = _times(trace, ops.op[mine], lanes[lane], ~quiet, routes)
        kernels = spent[mine] * (trace.ops.kind[ops.op[mine]] == KERNEL)
        again_ns = kernels * replayed[mine]
        work[lane, number] = replace(found, times=replace(
            times, kernels_ns=int(kernels.sum()), replayed_ns=int(again_ns.sum()),
            hidden_ns=int(again_ns[owner < 0].sum()),
        ))  # fmt: skip
    return replace(calls, calls=tuple(more)), work


@dataclass(frozen=True, slots=True)
class _Lane:
    """Starts of a lane's operations in their order, and the latest end up to each."""

    start_ns: Int64
    until_ns: Int64

    @classmethod
    def of(cls, trace: Trace, op: Int64) -> _Lane:
        ordered = op[np.argsort(trace.ops.start_ns[op], kind="stable")]
        return cls(trace.ops.start_ns[ordered], np.maximum.accumulate(trace.ops.end_ns[ordered]))


def _times(trace: Trace, mine: Int64, lane: _Lane, sends: Bool, routes: Bool) -> EngineTimes:
    """Measure one step of a lane.

    Parameters
    ----------
    trace : Trace
    mine : int64 array
        Operations of the step, by their start: rows of `GpuOps`.
    lane : _Lane
        All operations of the lane's steps.
    sends, routes : bool arrays, shape of `mine`
        Which of the step exchange, and which are of experts.
    """
    start, end = trace.ops.start_ns, trace.ops.end_ns
    spent = (end - start)[mine]
    read_bytes = read_ns = 0
    reads = mine[(trace.ops.kind[mine] == MEMCPY) & np.isin(trace.ops.copy_kind[mine], TO_HOST)]
    if len(reads):
        read = int(reads[np.argmax(trace.ops.bytes[reads])])
        read_bytes = max(int(trace.ops.bytes[read]), 0)
        after = int(np.searchsorted(lane.start_ns, start[read], "right"))
        until = lane.start_ns[after] if after < len(lane.start_ns) else end[read]
        beside = lane.until_ns[after - 1] > end[read]
        read_ns = int((end[read] if beside else max(end[read], until)) - start[read])
    return EngineTimes(
        int(end[mine].max() - start[mine].min()), int(sends.sum()), int(spent[sends].sum()),
        int(spent[routes].sum()), read_bytes, read_ns,
    )  # fmt: skip


def _tell(calls: list[Call], seen: Sequence[int], step: EngineStep, known: Known) -> None:
    """Count the calls of a step that need its tokens."""
    attends = [i for i in seen if formula_of(calls[i].name).product == "attention"]
    layers = known.model.layers if known.model else 0
    layer = {i: n for n, i in enumerate(attends)} if len(attends) == layers else {}
    made: dict[tuple[int, bool], Call] = {}
    for i in seen:
        if not formula_of(calls[i].name).by_step:
            continue
        at = layer.get(i)
        key = id(calls[i]), bool(at is not None and known.model and known.model.windowed(at))
        if key not in made:
            told = replace(calls[i], inference=Inference(step, known.model, known.shards, at))
            made[key] = replace(told, work=work_of(told))
        calls[i] = made[key]


def recognized(calls: Sequence[Call], served: Decoder | None = None, ranks: int = 1) -> Known:
    """Return the model whose layers' GEMMs a step has, and over how many GPUs.

    By the projections before and behind attention of every layer, and by the router of experts.

    Parameters
    ----------
    calls : sequence of Call
    served : Decoder, optional
        The model that is said to be served; another one whose GEMMs run is the one that is.
    ranks : int
        GPUs that share each layer of `served` where its GEMMs are not seen.
    """
    seen = Counter(
        call.work.shape[1:] for call in calls
        if call.work and call.work.shape and formula_of(call.name).product == "gemm"
    )  # fmt: skip
    for model in (*(() if served is None else (served,)), *published().values()):
        for shards in _SHARDS:
            if _has(model, shards, seen):
                return Known(model, shards)
    return Known() if served is None else Known(served, ranks)


def _has(model: Decoder, shards: int, seen: Counter[tuple[int, int]]) -> bool:
    if model.heads % shards:
        return False
    value = model.latent[4] if model.latent else model.head_dim
    behind = seen[model.hidden, model.heads // shards * value]
    routers = seen[model.experts, model.hidden] if model.experts else None
    if routers is not None and routers != model.layers - model.dense_layers:
        return False
    if model.latent:
        return behind >= model.layers
    columns = (model.heads // shards + 2 * max(model.kv_heads // shards, 1)) * model.head_dim
    return behind >= model.layers and seen[columns, model.hidden] == model.layers


def _work(
    calls: Sequence[Call],
    talking: Sequence[Call],
    step: EngineStep,
    known: Known,
    *,
    covered: bool,
) -> EngineWork:
    """Sum up what a step must do; of a model that is known where formulas cover too little."""
    exchanged = float(sum(_exchanged(call) for call in talking))
    name = known.model.name if known.model else ""
    model, shards = known.model, known.shards
    if covered:
        computing = [call for call in calls if call.work and call not in talking]
        flops: Counter[str] = Counter()
        weights = cache = 0
        for call in computing:
            assert call.work is not None
            if call.work.flops:
                flops[call.unit] += call.work.flops
            place = WEIGHTS.get(call.name)
            weights += call.work.weight_bytes if place is None else call.read(place)
            cache += call.work.cache_bytes
        done = tuple((unit, float(count)) for unit, count in flops.items())
        return EngineWork(step, name, shards, float(weights), float(cache), done, exchanged)
    if model is None:
        return EngineWork(step, name, shards, None, None, (), exchanged)
    batch = Batch(step.sequences, step.tokens, step.cached, step.pairs)
    units: Counter[str] = Counter()
    for part in model.parts():
        units[part.format.unit or model.plain.unit] += model.part_flops(part, batch)  # type: ignore[assignment]
    units[model.plain.unit] += model.flops(batch) - sum(units.values())  # type: ignore[assignment]
    heads = 1 if model.latent else min(shards, model.kv_heads)
    wide = sum(
        model.part_bytes(part, batch) for part in model.parts()
        if part.kind in ("product", "expert") and part.format.bits == _WIDE_BITS
        and part.name not in _SELDOM_QUANTIZED
    )  # fmt: skip
    return EngineWork(
        step, name, shards, model.read_bytes(batch) / shards, model.cache_bytes(batch) / heads,
        tuple((unit, count / shards) for unit, count in units.items() if count),
        exchanged or exchanged_bytes(model, batch, Layout(shards)), wide / shards,
    )  # fmt: skip


def _exchanged(call: Call) -> int:
    """Bytes of the tensor that an operator exchanges: its first argument that has elements."""
    size = next((size for size in call.sizes if numel(size)), ())
    return numel(size) * ITEM_BYTES.get(call.dtype, 2)

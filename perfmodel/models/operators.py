"""A step of a program's operators at other sizes: its calls, timed and put on their lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Final

from perfmodel.base.units import si
from perfmodel.models.lifetimes import (
    HELD,
    RESULT,
    Optimizer,
    Peak,
    Tensor,
    fused,
    in_halves,
    of_one_type,
    peak_of,
    saved_by_fusion,
)
from perfmodel.models.operator_times import Timer
from perfmodel.models.recorded import RecordedCall, Size, parameters_of
from perfmodel.models.spread import Z90
from perfmodel.models.structure import Structure, repeated, runs_of
from perfmodel.models.two_lanes import Lanes, Operation, host_factor, lanes

CallAt = Callable[[RecordedCall, Sequence[Size]], RecordedCall]
"""A program's formulas: a call whose arguments have these sizes, with its work."""

_FAR: Final = 0.7
"""A size outside the reports' by this logarithm (a factor of two) is an extrapolation."""
_FIRST_BUCKET_BYTES: Final = 1 << 20
_BUCKET_BYTES: Final = 25 << 20
"""Gradients that DistributedDataParallel reduces at once (bucket_cap_mb=25, the first 1 MiB)."""
_ELEMENT_BYTES: Final = (2, 4)
_ADDED: Final = 3
"""Gradients are read, those so far too, and the sum is written."""
_WHOLE_LAYER: Final = 0.95
"""Parameters of so much of a layer close it: its first ones are seen with the layer before."""
_FUSED: Final = "(fused)"
_OF_SHARDS: Final = ("AllGather", "ReduceScatter")
"""Collectives of ranks that share parameters."""
_PRODUCTS: Final = ("gemm", "attention", "convolution")
_WIDE: Final = ("layer_norm", "group_norm", "rms_norm", "softmax", "loss", "pow")
"""Operators that autocast computes in float32 (torch/csrc/.../autocast_mode.h), by their names."""
_COLUMNS: Final = "batch_norm"
"""Operators that sum over all but one dimension first, which no kernel does on its way."""
_DROPS: Final = "aten::native_dropout"
_PAIR_BYTES: Final = 5
"""Of a pair of attention with dropout that is written out: what PyTorch's partitioner keeps of a
BERT of transformers (2.14, on the CPU), and 4 layers on an H200 within 2 %."""
_WHOLE: Final = ("sum", "softmax")
"""Sums over rows read what they sum up in a kernel of their own, or twice."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Seconds of collectives: `alpha_s` and `beta_s_per_byte` of the bytes that one rank sends."""

    alpha_s: float
    beta_s_per_byte: float


@dataclass(frozen=True, slots=True)
class Network:
    """Between nodes: how many GPUs a node has, and seconds per byte that each sends to others."""

    gpus_per_node: int
    beta_s_per_byte: float


@dataclass(frozen=True)
class Rates:
    """How fast the GPU and the wires are on which a step is predicted.

    Attributes
    ----------
    timer : Timer
        Of kernels.
    wires : mapping
        By collective.
    network : Network
        Between nodes.
    contention : float
        Share by which a kernel takes longer during a collective.
    gap_s : float
        Between two kernels.
    """

    timer: Timer
    wires: Mapping[str, Wire]
    network: Network
    contention: float
    gap_s: float


@dataclass(frozen=True, slots=True)
class Noise:
    """How unsure what sets a step is, as standard deviations of logarithms."""

    gpu: float
    host: float


@dataclass(frozen=True)
class OperatorPrediction:
    """The time of a step of some sizes.

    Attributes
    ----------
    sizes : mapping
        By symbol, and the ranks 'p'.
    step_s, low_s, high_s : float
        And its 90 % interval.
    lanes : Lanes
    bound : {'GPU', 'host', 'communication'}
    by_kind : mapping of str to float
        GPU seconds.
    calls : tuple of (int, RecordedCall)
        Calls with the same sizes, and how many there are; most GPU time first.
    source : str
        The report whose structure was taken.
    warnings : tuple of str
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"lanes": "", "calls": "", "by_kind": "gpu_s_by_kind"}

    sizes: Mapping[str, int]
    step_s: float
    low_s: float
    high_s: float
    lanes: Lanes
    bound: str
    by_kind: Mapping[str, float]
    calls: tuple[tuple[int, RecordedCall], ...]
    source: str
    warnings: tuple[str, ...]


def computes(call: RecordedCall) -> bool:
    """Whether a call is no collective."""
    return call.kind != "communication"


def updates(call: RecordedCall) -> bool:
    """Whether a call is the optimizer's."""
    return call.phase == "optimizer"


def sent_bytes(name: str, size: float, ranks: int) -> float:
    """Bytes that a rank sends of a vector, around a ring."""
    twice = 2 if name.endswith("AllReduce") else 1
    return twice * (ranks - 1) / ranks * size


_Table = dict[tuple[str, str, str, tuple[Size, ...]], tuple[int, RecordedCall]]
"""By name, phase, kind and sizes of calls: how many there are, and one."""


class PredictedStep:
    """A step that is being predicted.

    Parameters
    ----------
    rates : Rates
    structure : Structure
        Of the report.
    values : mapping
        Sizes by symbol, and the ranks 'p'.
    call_at : callable
    host_scale : float
        Host seconds over the report's.
    fuses : bool
        Whether torch.compile makes one kernel of what lies between two products.
    micro_batches : int
        Of which the gradients are accumulated.
    unit_s : float or None
        Host seconds of a unit of FullyShardedDataParallel; None where ranks share nothing.
    """

    def __init__(
        self,
        rates: Rates,
        structure: Structure,
        values: Mapping[str, int],
        call_at: CallAt,
        host_scale: float,
        *,
        fuses: bool = False,
        micro_batches: int = 1,
        unit_s: float | None = None,
        item_bytes: int | None = None,
        narrow: bool = True,
    ) -> None:
        self.rates, self.structure, self.values = rates, structure, values
        self.call_at, self.host_scale = call_at, host_scale
        self.fuses, self.micro_batches, self.unit_s = fuses, micro_batches, unit_s
        self.item_bytes, self.narrow = item_bytes, narrow
        recorded = any(c.name.endswith("AllGather") for c in structure.step.calls)
        self.sharded = recorded or unit_s is not None
        self.calls = structure.calls_at(values)
        self.places = structure.places_at(values)

    def predicted(self, noise: Noise, seen: Sequence[Mapping[str, int]]) -> OperatorPrediction:
        """Time of the step and of its parts; `seen` are the sizes of the reports."""
        table: _Table = {}
        found = lanes(self._operations(table), self.rates.gap_s, self.rates.contention)
        bound = "GPU"
        if found.exposed_s > 0.3 * found.step_s:
            bound = "communication"
        elif found.host_s > 0.97 * found.step_s:
            bound = "host"
        low, high = _interval(found, bound, noise)
        return OperatorPrediction(
            sizes=dict(self.values),
            step_s=found.step_s,
            low_s=low,
            high_s=high,
            lanes=found,
            bound=bound,
            by_kind=self._by_kind(table),
            calls=tuple(sorted(table.values(), key=lambda row: -row[0] * row[1].gpu_s)),
            source=self.structure.step.source,
            warnings=tuple(self._warnings(seen)),
        )

    def _operations(self, table: _Table) -> list[Operation]:
        """Operations in order, of all micro-batches."""
        if self.micro_batches == 1:
            return self._pass(table, exchanges=True)
        again = self._pass({}, exchanges=self.unit_s is not None)
        optimizer = next((k for k, o in enumerate(again) if o.joins), len(again))
        added_s = self.rates.timer.baseline.memory_s(_ADDED * 4 * self._parameters()[0])
        again = [*again[:optimizer], Operation(0.0, added_s)]  # to the gradients so far
        found = self._pass(table, exchanges=True)
        for key, (count, call) in table.items():
            if not updates(call):
                table[key] = count * self.micro_batches, call
        return again * (self.micro_batches - 1) + found

    def _pass(self, table: _Table, *, exchanges: bool) -> list[Operation]:
        """Operations of one micro-batch, and of the optimizer.

        Gradients' buckets are put where they are ready, or the shards of FullyShardedDataParallel
        are gathered before each unit and its gradients reduced after it.
        """
        host_s, waits = self._host_s(), self._waits()
        sums = self._parameters()
        bucketed = self.values["p"] > 1 and not self.sharded
        ready = self._buckets() if bucketed and exchanges else {}
        before, after = self._shards() if self.unit_s is not None else ({}, {})
        done: list[Operation] = []
        joined = False
        group: list[tuple[RecordedCall, tuple[Size, ...], Operation]] = []
        for i, (call, sizes) in enumerate(self.calls):
            if call.kind == "communication":
                if not bucketed:
                    done.append(self._inline(call, sums, host_s[i]))
                continue
            done += before.get(i, [])
            seconds = self._seconds(call, sizes, table)
            joins = updates(call) and not joined
            joined |= joins
            done.append(Operation(host_s[i], seconds, call.launches, "", joins, waits[i]))
            if self.fuses and self._fusible(call):
                group.append((call, sizes, done.pop()))
                if i + 1 == len(self.calls) or not self._fusible(self.calls[i + 1][0]):
                    done.append(self._fused(group, self.places[i], table))
                    group = []
            for size in ready.get(i, ()):
                done += self._copied(size)
                done.append(self._collective("NCCL AllReduce", size, "reduce", 0.0))
            done += after.get(i, [])
        if ready and self.structure.step.ranks == 1:
            first = next((k for k, o in enumerate(done) if o.joins), len(done))
            done[first:first] = self._copied(sum(map(sum, ready.values())))
        return done

    def _fusible(self, call: RecordedCall) -> bool:
        """Whether torch.compile makes one kernel of a call and its neighbours."""
        whole = any(word in call.name for word in _WHOLE)
        return call.kind in ("memory", "unknown") and not (updates(call) or call.flops or whole)

    @cached_property
    def _groups(self) -> list[int]:
        """Of every recorded place its group of calls that are fused, -1 of others."""
        step, found, count = self.structure.step, [], 0
        for i in step.order:
            fusible = self._fusible(step.calls[i])
            count += not fusible
            found.append(count if fusible else -1)
        return found

    @cached_property
    def _saved(self) -> dict[int, int]:
        """Bytes that each group does not move."""
        tensors = self.structure.step.tensors
        sizes = [self._tensor_bytes(tensor) for tensor in tensors]
        return saved_by_fusion(tensors, sizes, self._groups)

    def _fused(
        self,
        group: Sequence[tuple[RecordedCall, tuple[Size, ...], Operation]],
        place: int,
        table: _Table,
    ) -> Operation:
        """One kernel in place of a group of calls, which moves its bytes at their rate."""
        moved = apart = moving = 0.0
        for call, sizes, one in group:
            key = (call.name, call.phase, call.kind, sizes)
            count, made = table.pop(key)
            if count > 1:
                table[key] = count - 1, made
            moved += made.bytes
            apart += one.gpu_s
            moving += self.rates.timer.baseline.memory_s(made.bytes)
        left = max(moved - self._saved.get(self._groups[place], 0), 0.0)
        seconds = min(self.rates.timer.baseline.memory_s(left) * apart / moving, apart)
        first, _, operation = group[0]
        call = replace(first, name=_FUSED, kind="memory", sizes=(), bytes=left, gpu_s=seconds)
        key = (_FUSED, first.phase, "memory", ())
        count, before = table.get(key, (0, call))
        mean_s, mean_bytes = (
            (old * count + new) / (count + 1)
            for old, new in ((before.gpu_s, seconds), (before.bytes, left))
        )
        table[key] = count + 1, replace(call, gpu_s=mean_s, bytes=mean_bytes)
        host_s = max(one.host_s for _, _, one in group)
        waits = any(one.waits for _, _, one in group)
        return replace(operation, host_s=host_s, gpu_s=seconds, launches=1, waits=waits)

    def _host_s(self) -> list[float]:
        """Host seconds of every call, as recorded."""
        grown, seconds = self._tensors(), self.structure.step.host_s
        return [
            self.host_scale * seconds[k] * (grown if updates(call) else 1.0)
            for k, (call, _) in zip(self.places, self.calls, strict=True)
        ]

    def _tensors(self) -> float:
        """Tensors of parameters over those of the recording: an optimizer's Python lists each."""
        counts = max(((len(new), len(old)) for new, old in self._updated()), default=(1, 1))
        return counts[0] / max(counts[1], 1)

    def host_factor(self, step_s: float) -> float | None:
        """By how much the host takes longer where this step takes so long; None if the GPU does."""
        rates = self.rates
        return host_factor(self._operations({}), rates.gap_s, rates.contention, step_s)

    def _waits(self) -> list[bool]:
        """Whether the host waits for the GPU before each call."""
        waits = self.structure.step.waits
        return [bool(waits) and waits[k] for k in self.places]

    def _seconds(self, call: RecordedCall, sizes: tuple[Size, ...], table: _Table) -> float:
        key = (call.name, call.phase, call.kind, sizes)
        count, found = table.get(key, (0, None))
        if found is None:
            one = replace(call, arguments=self.structure.arguments_at(call, sizes))
            found = self.call_at(one, sizes)
            seconds = self.rates.timer.seconds(found, call)
            if self.sharded and updates(call):
                seconds *= self.structure.step.ranks / self.values["p"]
            found = replace(found, gpu_s=seconds)
        table[key] = count + 1, found
        return found.gpu_s

    def no_peak(self) -> str:
        """Why the most memory is not predicted, and what says it; empty where it is."""
        step = self.structure.step
        sends = [c for c in step.calls if c.kind == "communication"]
        phases = [step.calls[i].phase for i in step.order]
        if not step.tensors and any("weights" in c.said for c in step.calls):
            return "kernels of torch.compile do not say what they write; record without it"
        if not step.tensors:
            return (
                "the report does not say which operator reads what another made; record it by "
                "nsys profile --pytorch=autograd-shapes-nvtx"
            )
        if step.optimizer is None or "backward" not in phases:
            return "the report has no backward pass and optimizer; record whole training steps"
        if min(step.optimizer.updates) < len(phases) - 1 - phases[::-1].index("backward"):
            return "several optimizers take turns; perfmodel memory shows a recorded peak"
        if self.item_bytes not in (None, 2, 4):
            return "what is kept of numbers of another size is not known; record a step with them"
        if any(c.name.endswith(_OF_SHARDS) for c in sends):
            return "its ranks share the parameters; record the program on one rank, for --fsdp"
        return ""

    def _of_one_rank(self) -> bool:
        """Whether the report is of one of several ranks, as its collectives say."""
        step = self.structure.step
        return step.ranks == 1 and any(c.kind == "communication" for c in step.calls)

    @property
    def shares_layers(self) -> bool:
        """Whether ranks share layers: they sum their results in the forward pass."""
        return any(
            c.kind == "communication" and c.phase == "forward" and c.name.endswith("AllReduce")
            for c in self.structure.step.calls
        )

    def peak(self, workspace_bytes: int) -> Peak | None:
        """Most memory of the step; None where the report does not say it (`no_peak`).

        DistributedDataParallel copies gradients into buckets, as many bytes again, if it is not
        told to keep them there (gradient_as_bucket_view).
        """
        step = self.structure.step
        if self.no_peak() or step.optimizer is None:
            return None
        calls = [step.calls[i] for i in step.order]
        phases = [call.phase for call in calls]
        done = len(phases) - 1 - phases[::-1].index("backward")
        accumulates = self.micro_batches > 1 or step.optimizer.zeroes
        shards = self.values["p"] if self.unit_s is not None else 1
        weights, largest = (n // shards for n in self._weights(step.optimizer))
        made = step.optimizer.lists * weights + step.optimizer.singles * largest
        more: dict[str, int | Sequence[int]] = {
            "workspace": [workspace_bytes + (made if phase == "optimizer" else 0)
                          for phase in phases],
        }  # fmt: skip
        if shards > 1:
            more["gathered"] = self._gathered(weights * shards)
        elif (self.values["p"] > 1 or self._of_one_rank()) and not self.shares_layers:
            more["buckets"] = weights
        tensors = self._tensors_of_type()
        sizes = [self._tensor_bytes(t) // (shards if t.gradient else 1) for t in tensors]
        if self.fuses:
            alone = [c.kind in _PRODUCTS or updates(c) for c in calls]
            columns = {k for k, c in enumerate(calls) if _COLUMNS in c.name}
            tensors, sizes = fused(
                tensors, sizes, alone, self._casts(calls), phases.index("backward"), columns
            )
            written = self._written_out(calls)
            tensors, sizes = [*tensors, *written], [*sizes, *written.values()]
            if accumulates:  # a compiled backward pass returns its gradients all together
                tensors = [replace(t, gradient=False, until=done) if t.gradient else t
                           for t in tensors]  # fmt: skip
        return peak_of(
            tensors, sizes, self.places, (done, len(phases) - 1), weights,
            step.optimizer.states, more, [(c.name, c.phase) for c in calls],
            accumulates=accumulates,
        )  # fmt: skip

    @cached_property
    def _recorded_items(self) -> int:
        """Bytes of a number of most products' operands in the recording."""
        step = self.structure.step
        items = [int(step.calls[i].said["item"]) for i in step.order
                 if step.calls[i].kind in _PRODUCTS and "item" in step.calls[i].said]  # fmt: skip
        return max({*items}, key=items.count, default=4)

    def _tensors_of_type(self) -> Sequence[Tensor]:
        """Tensors of the step in the data type that is predicted."""
        step = self.structure.step
        calls = [step.calls[i] for i in step.order]
        if self.unit_s is not None and self._narrow < 1:
            products = [k for k, c in enumerate(calls) if c.kind in _PRODUCTS]
            head = max((k for k in products if calls[k].phase == "forward"), default=-1)
            loss = range(head + 1, min((k for k in products if k > head), default=len(calls)))
            return of_one_type(step.tensors, self._casts(calls), 2, loss)
        if self.item_bytes in (None, self._recorded_items):
            return step.tensors
        if self.item_bytes == 4:
            return of_one_type(step.tensors, self._casts(calls), 4)
        kinds = [
            "product" if c.kind in _PRODUCTS
            else "wide" if any(word in c.name for word in _WIDE) else "" for c in calls
        ]  # fmt: skip
        backward = next((k for k, c in enumerate(calls) if c.phase == "backward"), len(calls))
        return in_halves(step.tensors, kinds, self._read_parameters(calls), backward)

    def _written_out(self, calls: Sequence[RecordedCall]) -> dict[Tensor, int]:
        """What torch.compile keeps of attention with dropout, which it writes out, with its bytes.

        Of every pair of a query and a key its weight in float32 and whether it is dropped. That
        attention drops is taken from other operators that do.
        """
        if not any(c.name == _DROPS and c.phase == "forward" for c in calls):
            return {}
        found: dict[Tensor, int] = {}
        waiting: list[int] = []
        for k, call in enumerate(calls):
            if call.kind == "attention" and call.phase == "forward":
                waiting.append(k)
            elif call.kind == "attention" and waiting:
                place = waiting.pop()
                queries, keys = self.structure.sizes_at(place, self.values)[:2]
                pairs = math.prod(queries[:-1]) * keys[-2]
                found[Tensor(place, (k,), place, 0, 4)] = _PAIR_BYTES * pairs
        return found

    def _casts(self, calls: Sequence[RecordedCall]) -> set[int]:
        """Calls that copy numbers of 2 bytes to 4, or of 4 to 2."""
        return {
            k for k, c in enumerate(calls)
            if c.name == "aten::copy_" and {*c.said.get("items", ())[:2]} == {2, 4}
        }  # fmt: skip

    def _read_parameters(self, calls: Sequence[RecordedCall]) -> list[Tensor]:
        """Parameters of products, each read by one of the forward pass and its backward pass."""
        weights = parameters_of(calls)
        waiting: dict[Size, list[Tensor]] = {}
        found: list[Tensor] = []
        for k, call in enumerate(calls):
            sizes = [(i, s) for i, s in enumerate(call.sizes[: call.arguments]) if len(s) > 1]
            if call.kind == "gemm":
                sizes = sizes[-1:]
            mine = [(i, s) for i, s in sizes if s in weights or s[::-1] in weights]
            if call.kind not in _PRODUCTS or not mine:
                continue
            i, size = mine[-1]
            same = waiting.setdefault(min(size, size[::-1]), [])
            if call.phase == "forward":
                same.append(Tensor(HELD, (k,), k, i, 4))
            elif same and call.phase == "backward" and call.layout != "tn":
                one = same.pop()
                found.append(replace(one, readers=(*one.readers, k)))
        return [*found, *(one for each in waiting.values() for one in each)]

    def _weights(self, optimizer: Optimizer) -> tuple[int, int]:
        """Bytes of all parameters, and of the largest."""
        step = self.structure.step
        whole = largest = 0
        singles: list[tuple[Size, int]] = []
        for place in optimizer.updates:
            call = step.calls[step.order[place]]
            items = call.said["items"]
            if self.item_bytes == 4:
                items = [max(n, 4) for n in items]
            shapes = [s for s in self.structure.sizes_at(place, self.values) if s]
            if "_f" not in call.name:  # of one parameter
                singles.append((shapes[0], items[0]))
                continue
            shapes = shapes[: len(shapes) // call.lists]
            whole += items[0] * round(_elements(shapes))
            largest = max(largest, items[0] * max(map(math.prod, shapes)))
        runs = self.structure.layers_of(
            [step.calls[step.order[k]].sizes for k in optimizer.updates]
        )
        for i in repeated(range(len(singles)), runs, self.structure.more(self.values)):
            size = singles[i][1] * math.prod(singles[i][0])
            whole, largest = whole + size, max(largest, size)
        return whole, largest

    def _gathered(self, weights: int) -> list[int]:
        """Bytes that FullyShardedDataParallel holds besides its shards, at every recorded place.

        What is in no layer (the root) is gathered from the forward pass on until the backward pass
        is done. Of each layer that computes there are its parameters; in the forward pass also the
        buffer that they were gathered into, until the next layer's is full; in the backward pass
        the buffer of the layer before it, which is gathered already, that of the layer after it,
        which is reduced, and its gradients until they are reduced
        (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py of PyTorch 2.14).
        """
        step = self.structure.step
        layer = round(4 * self._layer_elements[1] * self._narrow)
        root = round(weights * self._narrow) - layer * self.values.get(self.structure.depth, 0)
        found = [0] * len(step.order)
        forward = [k for k, i in enumerate(step.order) if step.calls[i].phase == "forward"]
        head = max((k for k in forward if step.calls[step.order[k]].kind == "gemm"), default=-1)
        for k in forward:
            found[k] = root + layer * (2 if k < head else 1 if k == head else 0)
        owned = self._owned()
        backward = [i for i, (c, _) in enumerate(self.calls) if c.phase == "backward"]
        begin = next((i for i in backward if self.calls[i][0].kind == "gemm"), len(self.calls))
        for i in backward:
            if i < begin:  # of the loss
                found[self.places[i]] = root
        shapes = max((new for new, _ in self._updated()), key=len, default=[])
        run = max(runs_of(shapes), key=lambda r: r.period * r.count, default=None)
        at = len(shapes)

        def later(whole: int) -> int:
            """Of gradients that are not reduced yet, what is more than this rank's shard."""
            return round(whole * self._narrow) - whole // self.values["p"]

        kept = grads = reduced = 0  # gradients of the root and of this layer; a layer's, reduced
        before: int | None = None
        for i, sizes in owned:
            at -= len(sizes)
            inside = run is not None and run.start <= at < run.end
            unit = (at - run.start) // run.period if run is not None and inside else None
            if unit != before and before is not None:
                grads, reduced = 0, layer
            if unit != before and self.calls[begin][0].kind == "gemm" and begin < i:
                found[self.places[begin]] = found[self.places[begin - 1]]  # of the one before
                begin += 1
            before = unit
            held = root + reduced + (layer if unit is not None else 0)
            held += layer if unit or reduced == 0 else 0  # the next, which is gathered already
            for place in self.places[begin:i]:
                found[place] = max(found[place], held + later(kept + grads))
            begin = i + 1
            if unit is None:
                kept += round(sum(sizes))
            else:
                grads += round(sum(sizes))
            found[self.places[i]] = max(found[self.places[i]], held + later(kept + grads))
        return found

    def _tensor_bytes(self, tensor: Tensor) -> int:
        call = self.structure.step.calls[self.structure.step.order[tensor.seen]]
        sizes = self.structure.sizes_at(tensor.seen, self.values)
        size: Size = sizes[tensor.argument]
        if tensor.argument == RESULT:
            one = replace(call, arguments=self.structure.arguments_at(call, sizes))
            size = (self.call_at(one, sizes).shape or (0, 0, 0))[:2]
        return tensor.item_bytes * math.prod(size)

    # --- collectives

    def _copied(self, size: float) -> list[Operation]:
        """A copy of gradients to or from a bucket, where the recording has none."""
        if self.structure.step.ranks > 1:
            return []
        seconds = self.rates.timer.baseline.memory_s(2 * size)
        return [Operation(0.0, seconds, 1)]

    def _updated(self) -> Iterator[tuple[list[Size], list[Size]]]:
        """Yield the shapes of the parameters that each call of the optimizer updates.

        As predicted, and as recorded.
        """
        for call, sizes in self.calls:
            if call.lists:
                new, old = ([s for s in shapes if s] for shapes in (sizes, call.sizes))
                yield new[: len(new) // call.lists], old[: len(old) // call.lists]

    def _parameters(self) -> tuple[float, float]:
        """Elements of all parameters, at the predicted sizes and in the recording."""
        both = ((_elements(new), _elements(old)) for new, old in self._updated())
        return max(both, default=(0.0, 0.0))

    def _inline(self, call: RecordedCall, sums: tuple[float, float], launch_s: float) -> Operation:
        """A collective in the recorded order; its bytes are those of a layer, or of the rest."""
        size = call.bytes * self._growth(call.bytes, sums)
        kind = "gather" if call.name.endswith("AllGather") else "reduce"
        return self._collective(call.name, size, kind, launch_s)

    def _growth(self, size: float, sums: tuple[float, float]) -> float:
        """By how much the bytes of a collective grow."""
        if not sums[1]:
            return 1.0
        step = self.structure.step
        depth = self.structure.depth
        if not depth:
            return sums[0] / sums[1]
        old, new = self._layer_elements
        scale = step.ranks if self.sharded else 1
        for item in _ELEMENT_BYTES:
            if old and abs(size / (item * old * scale) - 1) < 0.02:
                return new / old
        rest_old = sums[1] - old * self.structure.sizes[depth]
        rest_new = sums[0] - new * self.values[depth]
        return rest_new / rest_old if rest_old > 0 and rest_new > 0 else sums[0] / sums[1]

    @cached_property
    def _layer_elements(self) -> tuple[float, float]:
        """Elements of one layer's parameters, in the recording and as predicted."""
        for new, old in self._updated():
            layers = [_layer(shapes) for shapes in (old, new)]
            if all(layers):
                return _elements(layers[0]), _elements(layers[1])
        return 0.0, 0.0

    def _collective(self, name: str, size: float, kind: str, launch_s: float) -> Operation:
        wire = self.rates.wires.get(name) or Wire(2e-5, 1 / 2e11)
        ranks = self.values["p"]
        nodes = math.ceil(ranks / self.rates.network.gpus_per_node)
        seconds = wire.alpha_s * (1.0 + math.log2(nodes))  # a tree between nodes
        seconds += sent_bytes(name, size, ranks) * max(wire.beta_s_per_byte, self._network_beta())
        return Operation(launch_s, seconds, 1, kind)

    def _network_beta(self) -> float:
        """Seconds per byte of a ring's slowest link; 0 within one node.

        Each GPU has an adapter of its own, and NCCL has a ring for each adapter.
        """
        network = self.rates.network
        if self.values["p"] <= network.gpus_per_node:
            return 0.0
        return network.beta_s_per_byte

    def _owned(self) -> list[tuple[int, list[float]]]:
        """Bytes of the gradients that each call of the backward pass completes, in its order."""
        left = max((new for new, _ in self._updated()), key=len, default=[])[::-1]
        backward = [i for i, (c, _) in enumerate(self.calls) if c.phase == "backward"]
        found: list[tuple[int, list[float]]] = []
        if not left or not backward:
            return found
        for i in backward:
            call, sizes = self.calls[i]
            made = self.call_at(call, sizes).shape if call.layout == "tn" else None
            if made is None:
                continue
            place = next((k for k, s in enumerate(left) if s in (made[:2], made[1::-1])), None)
            if place is None:
                continue
            found.append((i, [4.0 * math.prod(shape) for shape in left[: place + 1]]))
            del left[: place + 1]
        found.append((backward[-1], [4.0 * math.prod(shape) for shape in left]))
        return found

    def _buckets(self) -> dict[int, list[float]]:
        """Bytes of every bucket of gradients, by the call after which it is ready."""
        found: dict[int, list[float]] = {}
        held, most, last = 0.0, float(_FIRST_BUCKET_BYTES), 0
        for i, sizes in self._owned():
            for size in sizes:
                held, last = held + size, i
                if held >= most:
                    found.setdefault(i, []).append(held)
                    held, most = 0.0, float(_BUCKET_BYTES)
        if held:
            found.setdefault(last, []).append(held)
        return found

    def _units(self) -> list[tuple[float, int, int]]:
        """Units that FullyShardedDataParallel shards, a layer each, in the backward pass's order.

        Bytes of each, and its first and last place in the list of `_owned`.
        """
        layer = 4.0 * self._layer_elements[1]
        found: list[tuple[float, int, int]] = []
        held, first = 0.0, 0
        owned = self._owned()
        for k, (_, sizes) in enumerate(owned):
            held += sum(sizes)
            if k + 1 == len(owned) or held >= _WHOLE_LAYER * layer:
                found.append((held, first, k))
                held, first = 0.0, k + 1
        return [unit for unit in found if unit[0]]

    @cached_property
    def _narrow(self) -> float:
        """Share of the parameters' bytes that FullyShardedDataParallel gathers and reduces.

        They are sent in the data type of the products, as MixedPrecisionPolicy(param_dtype=...)
        has it.
        """
        if not self.narrow:
            return 1.0
        kinds = [c.dtype for c, _ in self.calls if c.kind == "gemm"]
        return 0.5 if sum("16" in kind for kind in kinds) > len(kinds) / 2 else 1.0

    def _shards(self) -> tuple[dict[int, list[Operation]], dict[int, list[Operation]]]:
        """Collectives before and after calls: gathers in both passes, then a reduction."""
        assert self.unit_s is not None
        before: dict[int, list[Operation]] = {}
        after: dict[int, list[Operation]] = {}
        owned = self._owned()
        forward = [i for i, (c, _) in enumerate(self.calls)
                   if c.phase == "forward" and c.kind == "gemm"]  # fmt: skip
        begin = next((i for i, (c, _) in enumerate(self.calls) if c.phase == "backward"), 0)
        host_s = self.unit_s * self.host_scale / 3
        for size, _, last in self._units():
            sent = size * self._narrow
            gather = self._collective("NCCL AllGather", sent, "gather", host_s)
            reduce = self._collective("NCCL ReduceScatter", sent, "reduce", host_s)
            place = forward[max(len(forward) - 1 - last, 0)] if forward else 0
            before.setdefault(place, []).append(gather)
            before.setdefault(begin, []).append(gather)
            begin = owned[last][0]
            after.setdefault(begin, []).append(reduce)
            begin += 1
        return before, after

    # --- what is shown

    def _by_kind(self, table: _Table) -> dict[str, float]:
        found: dict[str, float] = {}
        for count, call in table.values():
            found[call.kind] = found.get(call.kind, 0.0) + count * call.gpu_s
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def _warnings(self, reports: Sequence[Mapping[str, int]]) -> list[str]:
        found = []
        for name in sorted(self.values):
            seen = [sizes.get(name, self.values[name]) for sizes in reports]
            value = self.values[name]
            if not min(seen) / math.exp(_FAR) <= value <= max(seen) * math.exp(_FAR):
                limit = f"{min(seen)} to {max(seen)}" if min(seen) < max(seen) else f"{min(seen)}"
                found.append(
                    f"{name} = {value} is an extrapolation: the reports have {limit}; record "
                    f"one nearer to it"
                )
        if self._network_beta():
            network = self.rates.network
            found.append(
                f"p = {self.values['p']}: more than the {network.gpus_per_node} GPUs of a node; "
                f"the network is taken to send {si(1 / network.beta_s_per_byte, 'B/s')} per GPU, "
                f"as data sheets say; record on several nodes"
            )
        return found


def _interval(found: Lanes, bound: str, noise: Noise) -> tuple[float, float]:
    """90 % interval: of what the GPU takes and of what the host does, the longer each time."""
    gpu = found.gpu_s + found.exposed_s if bound == "host" else found.step_s
    host = found.step_s if bound == "host" else found.host_s
    low, high = (
        max(gpu * math.exp(sign * Z90 * noise.gpu), host * math.exp(sign * Z90 * noise.host))
        for sign in (-1, 1)
    )
    return min(low, found.step_s), max(high, found.step_s)


def _elements(shapes: Sequence[Size]) -> float:
    return float(sum(map(math.prod, shapes)))


def _layer(shapes: Sequence[Size]) -> Sequence[Size]:
    """Shapes of one layer, the longest repetition; none where nothing repeats."""
    longest = max(runs_of(shapes), key=lambda r: r.period * r.count, default=None)
    return shapes[longest.start : longest.start + longest.period] if longest else ()

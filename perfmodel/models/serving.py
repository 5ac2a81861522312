"""Least time of a forward pass of a decoder that GPUs share, and what a recording makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from perfmodel.base.errors import ModelError
from perfmodel.machines.machine import Machine
from perfmodel.workloads.decoder import Batch, Decoder, Part

FloorBy = Literal["memory", "compute", "exchange"]
_ITEM_BYTES: Final = 2
"""Of activations and the KV cache: 16 bits."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How GPUs share a model.

    Attributes
    ----------
    tensor : int
        GPUs that share the matrices and heads of a layer, and its batch.
    experts : int
        GPUs over which whole experts are distributed, `tensor` or a multiple of it: each `tensor`
        of them have a batch of their own. 1 where experts are shared as other matrices are.
    """

    tensor: int = 1
    experts: int = 1


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a recording says of steps of one phase.

    Attributes
    ----------
    reached : mapping of str to float
        Share of the bandwidth ('memory'), the peaks ('compute') or the link ('exchange') that the
        steps that it bounds reach while the GPU works.
    host_s : float
        What a step takes beside the GPU's work.
    """

    reached: Mapping[str, float] = field(default_factory=dict)
    host_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward pass on each of the GPUs that share a model.

    Attributes
    ----------
    memory_s, compute_s : float
    exchange_s : float or None
        None where the machine's link is not known and something is exchanged.
    weight_bytes, cache_bytes : float
        That each GPU reads and writes.
    held_bytes : float
        All weights and the KV cache of the batch, that each GPU holds.
    """

    memory_s: float
    compute_s: float
    exchange_s: float | None
    weight_bytes: float
    cache_bytes: float
    held_bytes: float

    @property
    def times(self) -> dict[FloorBy, float]:
        """Seconds by what bounds them."""
        found: dict[FloorBy, float] = {"memory": self.memory_s, "compute": self.compute_s}
        return found if self.exchange_s is None else {**found, "exchange": self.exchange_s}

    @property
    def floor_by(self) -> FloorBy:
        """What takes longest."""
        return max(self.times, key=lambda name: self.times[name])

    @property
    def floor_s(self) -> float:
        """The largest of the times, which may overlap."""
        return self.times[self.floor_by]

    def expected_s(self, recorded: Recorded | None) -> float | None:
        """Return the time at what a recording reaches; None if it says nothing of the bound."""
        reached = recorded.reached.get(self.floor_by) if recorded else None
        return self.floor_s / reached + recorded.host_s if recorded and reached else None


def link_bytes_per_s(machine: Machine) -> float | None:
    """Return the rate of the link between GPUs in one direction."""
    links = machine.bandwidth_bytes_per_s
    both = links.get("nvlink", links.get("infinity_fabric"))
    return both / 2 if both else None


def forward_pass(model: Decoder, batch: Batch, machine: Machine, layout: Layout) -> Pass:
    """Count a pass of a batch on one GPU of several, and its least times.

    Matrices and heads are divided by the GPUs that share a layer, heads of keys until each GPU has
    one; a latent is held by each (DeepSeek-V2, arXiv:2405.04434, 2.1). Each expert has its tokens
    from all batches. After attention and after the feed-forward part a tensor of tokens x hidden
    numbers is summed up (Megatron-LM, arXiv:1909.08053, 3): each GPU sends it once at least. Tokens
    go to the other GPUs that have one of their k experts, expected (e - 1) (1 - (1 - 1/e)^k) of e
    if evenly, and come back.

    Raises
    ------
    ModelError
        If the GPUs cannot share the model so, or the machine's rates are not known.
    """
    t, e = layout.tensor, layout.experts
    if t > 1 and model.heads % t:
        raise ModelError(f"expected GPUs that divide {model.heads} heads of {model.name}; got {t}")
    if e > 1 and (not model.experts or model.experts % e or e % t):
        raise ModelError(
            f"expected GPUs of experts that divide {model.experts} experts of {model.name} and are "
            f"a multiple of {t}; got {e}"
        )
    rate, peaks = machine.bandwidth_bytes_per_s.get("hbm"), machine.peak_flops_per_s
    if not rate or model.plain.unit not in peaks:
        raise ModelError(f"{machine.name}: expected hbm and {model.plain.unit}; they are not known")
    replicas = max(e // t, 1)
    together = Batch(
        batch.sequences * replicas, batch.tokens * replicas, batch.cached * replicas,
        batch.pairs * replicas,
    )  # fmt: skip

    def share(part: Part) -> int:
        return e if part.kind == "expert" and e > 1 else t

    def whose(part: Part) -> Batch:
        return together if part.kind == "expert" and e > 1 else batch

    weights = (
        sum(model.part_bytes(part, whose(part)) / share(part) for part in model.parts())
        + model.tied_bytes / t
    )
    over = 1 if model.latent else min(t, model.kv_heads)
    cache = model.cache_bytes(batch, _ITEM_BYTES) / over
    plain = peaks[model.plain.unit]
    compute_s = sum(
        model.part_flops(part, whose(part)) / share(part) / peaks.get(part.format.unit, plain)
        for part in model.parts()
    )
    rest = model.flops(batch) - sum(model.part_flops(part, batch) for part in model.parts())
    held = sum(part.bytes / share(part) for part in model.parts())
    held += batch.cached * model.kv_bytes_per_token(_ITEM_BYTES) / over
    sent = exchanged_bytes(model, batch, layout)
    link = link_bytes_per_s(machine)
    exchange_s = 0.0 if not sent else sent / link if link else None
    return Pass(
        (weights + cache) / rate, compute_s + rest / t / plain, exchange_s, weights, cache, held
    )


_LARGEST: Final = 1 << 24
"""Sequences of a batch that no memory holds."""


def compute_bound_from(model: Decoder, context: int, machine: Machine) -> int | None:
    """Return the fewest sequences of which a decode takes longer to compute than to read.

    Every sequence has `context` tokens. None where the KV cache of each takes longer to read than
    its FLOPs take, so that no batch is large enough. FLOPs grow by as much with every sequence,
    bytes by less and less, as more experts are read already: there is one such number.

    Raises
    ------
    ModelError
        As `forward_pass`.
    """

    def computes(sequences: int) -> bool:
        found = forward_pass(model, Batch.decode(sequences, context), machine, Layout())
        return found.compute_s >= found.memory_s

    if not computes(_LARGEST):
        return None
    low, high = 0, _LARGEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if computes(middle) else (middle, high)
    return high


def exchanged_bytes(model: Decoder, batch: Batch, layout: Layout) -> float:
    """Return the bytes that each GPU sends in a pass, at least."""
    t, e = layout.tensor, layout.experts
    tensor = batch.tokens * model.hidden * _ITEM_BYTES
    routed = (model.layers - model.dense_layers) if model.experts and e > 1 else 0
    sums = 2 * model.layers - routed if t > 1 else 0  # tokens come back from experts summed up
    others = (e - 1) * (1 - (1 - 1 / e) ** model.experts_per_token)
    return tensor * (sums + 2 * routed * others / t)

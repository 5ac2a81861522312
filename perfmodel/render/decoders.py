"""A decoder part by part: its weights, and FLOPs and bytes of prefill and decode, in print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perfmodel.base.errors import ModelError
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.machines.machine import Machine
from perfmodel.models.serving import Layout, Pass, Recorded, compute_bound_from, forward_pass
from perfmodel.render.result import Result
from perfmodel.workloads.decoder import Batch, Decoder

_COLUMNS: Final = (
    Column("part", "Part"),
    Column("parameters", "Parameters", "int"),
    Column("weight_bytes", "Weights", "si", "B"),
    Column("prefill_flops", "Prefill", "si", "FLOP"),
    Column("prefill_bytes", "Prefill moves", "si", "B"),
    Column("decode_flops", "Decode", "si", "FLOP"),
    Column("decode_bytes", "Decode moves", "si", "B"),
)
_NOTE: Final = (
    "FLOPs: 2 a weight and token, and 4 a query, key that it sees, head and number of a head; "
    "moves: weights once, rows of the embedding, experts that a token is routed to (if evenly), "
    "and the KV cache; not activations"
)


@dataclass(frozen=True, slots=True)
class Counted:
    """A decoder, and the prompts and answers that are counted.

    Attributes
    ----------
    model : Decoder
    sequences, context : int
        Tokens of every sequence: all in a prefill, those before and the new one in a decode.
    machine : Machine or None
        Adds the least time of both.
    """

    model: Decoder
    sequences: int
    context: int
    machine: Machine | None = None

    @property
    def batches(self) -> dict[str, Batch]:
        """The forward pass of each phase."""
        return {
            "prefill": Batch.prefill(self.sequences, self.context),
            "decode": Batch.decode(self.sequences, self.context),
        }

    def floor_s(self, phase: str) -> tuple[float, str] | None:
        """Least time of a phase by the machine, and what bounds it; None if it is unknown."""
        if self.machine is None:
            return None
        try:
            found = forward_pass(self.model, self.batches[phase], self.machine, Layout())
        except ModelError:  # the machine's rates are not known
            return None
        return found.floor_s, found.floor_by

    @property
    def compute_bound_from(self) -> int | None:
        """Sequences from which a decode is bound by computing; None if it never is."""
        if self.machine is None or self.floor_s("decode") is None:
            return None
        return compute_bound_from(self.model, self.context, self.machine)


def result(said: Counted) -> Result:
    """Return a decoder in every format."""
    return Result([table(said), [*sentences(said)]], lambda: document(said))


def _rows(said: Counted) -> Iterator[dict[str, Any]]:
    model, batches = said.model, said.batches
    for part in model.parts():
        row = {"part": part.name, "parameters": part.weights, "weight_bytes": part.bytes}
        for phase, batch in batches.items():
            row[f"{phase}_flops"] = model.part_flops(part, batch)
            row[f"{phase}_bytes"] = model.part_bytes(part, batch)
        yield row
    yield {"part": "attention", "parameters": None, "weight_bytes": None} | {
        f"{phase}_{key}": value
        for phase, batch in batches.items()
        for key, value in (
            ("flops", sum(model.attention_flops(batch, i) for i in range(model.layers))),
            ("bytes", model.cache_bytes(batch)),
        )
    }
    yield {"part": "all", "parameters": model.parameters, "weight_bytes": model.weight_bytes} | {
        f"{phase}_{key}": value
        for phase, batch in batches.items()
        for key, value in (
            ("flops", model.flops(batch)),
            ("bytes", model.read_bytes(batch) + model.cache_bytes(batch)),
        )
    }


def table(said: Counted) -> Table:
    """One row a part of the model, attention, and all."""
    title = f"{said.model.name}, {said.sequences} x {said.context} tokens"
    rows = [tuple(row.get(c.key) or None for c in _COLUMNS) for row in _rows(said)]
    return Table(title, _COLUMNS, rows, (_NOTE,))


def sentences(said: Counted) -> Iterator[str]:
    """Say what the KV cache takes, and the least times."""
    model = said.model
    each = model.kv_bytes_per_token()
    together = si(each * said.context * said.sequences, "B")
    yield f"KV cache: {each:,.0f} B a token in 16 bits, {together} for all of these."
    if model.experts:
        read = model.experts_read(said.sequences)
        yield (
            f"A decode of {said.sequences} sequences reads {read:.1f} of {model.experts} experts a "
            f"layer, if tokens are routed evenly; at least {model.experts_per_token}, at most "
            f"{min(model.experts, model.experts_per_token * said.sequences)}."
        )
    for phase in said.batches:
        if (floor := said.floor_s(phase)) is not None and said.machine is not None:
            least, by = si(floor[0], "s"), floor[1]
            yield f"On {said.machine.name} a {phase} takes at least {least}, by {by}."
    if said.machine is not None and said.floor_s("decode") is not None:
        from_ = said.compute_bound_from
        yield f"Decodes of {said.context:,} tokens a sequence are bound by " + (
            f"computing from {from_:,} sequences on."
            if from_
            else "memory in batches of any size: the KV cache takes longer than the FLOPs."
        )


def document(said: Counted) -> dict[str, Any]:
    """Return the decoder as plain Python data."""
    return {
        "model": said.model.name,
        "sequences": said.sequences,
        "context": said.context,
        "parameters": said.model.parameters,
        "weight_bytes": said.model.weight_bytes,
        "kv_bytes_per_token": said.model.kv_bytes_per_token(),
        "parts": [*_rows(said)],
        "floors": {
            phase: None if (floor := said.floor_s(phase)) is None
            else {"floor_s": floor[0], "floor_by": floor[1]}
            for phase in said.batches
        },
        "compute_bound_from": said.compute_bound_from,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Predicted:
    """A pass of a phase, and what it takes.

    Attributes
    ----------
    phase : str
    sequences, context : int
    layout : Layout
    found : Pass
    recorded : Recorded or None
    capacity_bytes : float or None
        Of a GPU's memory.
    """

    phase: str
    sequences: int
    context: int
    layout: Layout
    found: Pass
    recorded: Recorded | None
    capacity_bytes: float | None

    @property
    def expected_s(self) -> float | None:
        """The time at what the recording reaches."""
        return self.found.expected_s(self.recorded)

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the batch in a second, at most: those of prompts, or those generated."""
        tokens = self.sequences * (self.context if self.phase == "prefill" else 1)
        return tokens / (self.expected_s or self.found.floor_s)

    @property
    def fits(self) -> str | None:
        """Whether a GPU holds its weights and KV cache."""
        if self.capacity_bytes is None:
            return None
        return "yes" if self.found.held_bytes <= self.capacity_bytes else "no"


_PREDICTED: Final = (
    Column("phase", "Phase"),
    Column("sequences", "Sequences", "int"),
    Column("context", "Context", "int"),
    Column("tensor", "GPUs a layer", "int", of=lambda p: p.layout.tensor),
    Column("experts", "GPUs of experts", "int", of=lambda p: p.layout.experts),
    Column("held_bytes", "Held a GPU", "si", "B", of=lambda p: p.found.held_bytes),
    Column("fits", "Fits"),
    Column("memory_s", "Memory", "si", "s", of=lambda p: p.found.memory_s),
    Column("compute_s", "Compute", "si", "s", of=lambda p: p.found.compute_s),
    Column("exchange_s", "Exchange", "si", "s", of=lambda p: p.found.exchange_s or None),
    Column("floor_s", "At least", "si", "s", of=lambda p: p.found.floor_s),
    Column("floor_by", "By", of=lambda p: p.found.floor_by),
    Column("expected_s", "Expected", "si", "s"),
    Column("tokens_per_s", "Tokens/s", "si"),
)
_BOUNDS: Final = (
    "At least: weights and KV cache moved once at the memory's bandwidth, FLOPs at the peaks, or "
    "tensors sent once over the link, whichever takes longest. Held: weights and KV cache, without "
    "activations. Tokens/s: of one batch, at most"
)
_EXPECTED: Final = (
    "Expected: the bound over the share of it that the recording reaches where the same bounds it, "
    "and what the host adds there to a step of the phase"
)


def prediction(name: str, machine: str, rows: Sequence[Predicted]) -> Result:
    """Return predicted passes in every format."""
    with_recording = any(row.expected_s is not None for row in rows)
    columns = [c for c in _PREDICTED if with_recording or c.key != "expected_s"]
    notes = [_BOUNDS, *([_EXPECTED] if with_recording else [])]
    made = Table.of(f"{name} on {machine}", rows, columns, notes)
    return Result(
        [made],
        lambda: {
            "model": name,
            "machine": machine,
            "passes": [dict(zip((c.key for c in made.columns), r, strict=True)) for r in made.rows],
        },
    )

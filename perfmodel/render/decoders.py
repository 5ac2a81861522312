"""A decoder part by part: its weights, and FLOPs and bytes of prefill and decode, in print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.machines.machine import Machine
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
        batch = self.batches[phase]
        rate = self.machine.bandwidth_bytes_per_s.get("hbm")
        peak = self.machine.peak_flops_per_s.get(self.model.plain.unit)
        if not rate or not peak:
            return None
        moved = self.model.read_bytes(batch) + self.model.cache_bytes(batch)
        times = {"memory": moved / rate, "compute": self.model.flops(batch) / peak}
        by = max(times, key=lambda name: times[name])
        return times[by], by


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
    }  # fmt: skip

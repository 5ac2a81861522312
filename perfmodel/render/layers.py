"""Tables, sentences and JSON of a network's layers, their time by Paleo, and the exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from perfmodel.base.document import pick
from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent, si
from perfmodel.models.paleo import Exchange, LayerTime, Platform, Times
from perfmodel.render.result import Result
from perfmodel.workloads.layers import (
    Conv,
    Cost,
    Linear,
    Net,
    Placed,
    Shape,
    costs,
    training_bytes,
)

CONVENTION: Final = {
    "macs": "multiply-accumulates of convolutions and fully connected layers, without bias; "
    "nothing else is one",
    "flops": "2 per MAC; backward is twice forward, less the gradient of the images",
    "bytes": "every layer reads its inputs and weights once and writes its output once; the update "
    "is of SGD with momentum",
}
"""What the counts count: shown wherever one is."""

_KINDS: Final = {"Conv": "conv", "Linear": "fc", "Norm": "norm", "LocalNorm": "local norm"}


@dataclass(frozen=True, slots=True)
class Layers:
    """A network at one batch: its layers, and where a machine was named, their time.

    Attributes
    ----------
    element_bytes : int
    timed : tuple of LayerTime
        Empty without a machine.
    exchanges : tuple of Exchange
        Of gradients over `ranks`; empty where one rank trains.
    """

    net: Net
    batch: int
    dtype: str
    element_bytes: int
    where: Platform | None = None
    timed: tuple[LayerTime, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    ranks: int = 1

    @property
    def layers(self) -> tuple[tuple[Placed, Cost], ...]:
        """Every layer with its cost."""
        return costs(self.net, self.batch, self.element_bytes)

    @property
    def times(self) -> tuple[Times, Times]:
        """Return all layers' times: Paleo's sum, and with bytes under operations."""
        return (
            sum((x.times for x in self.timed), Times()),
            sum((x.overlapped for x in self.timed), Times()),
        )


def kind(x: Placed) -> str:
    """Name what a layer is, such as 'conv', 'fc' or 'max pool'."""
    name = type(x.layer).__name__
    what = f"{x.layer.kind} " if name == "Pool" and hasattr(x.layer, "kind") else ""
    return what + _KINDS.get(name, name.lower())


def totals(said: Layers) -> dict[str, Any]:
    """Return the sums over all layers, with the convolutions' share of the MACs."""
    found = said.layers
    whole = sum((c for _, c in found), Cost())
    conv = sum(c.macs for x, c in found if isinstance(x.layer, Conv))
    fc = sum(c.macs for x, c in found if isinstance(x.layer, Linear))
    return {
        "params": whole.parameters,
        "conv_macs": conv,
        "fc_macs": fc,
        "conv_share": conv / (conv + fc) if conv + fc else None,
        "forward_flops": whole.forward_flops,
        "backward_flops": whole.backward_flops,
        "training_flops": whole.flops,
        "activations": said.batch * sum(x.shape.elements for x, _ in found),
        "forward_bytes": whole.forward_bytes,
        "backward_bytes": whole.backward_bytes,
        "update_bytes": whole.update_bytes,
        "held_bytes": training_bytes(said.net, said.batch, said.element_bytes),
        "forward_flops_per_byte": whole.forward_flops / whole.forward_bytes,
        "training_flops_per_byte": whole.flops / whole.moved_bytes,
    }


def result(said: Layers, every: bool = False) -> Result:
    """Return a network in every format; `every` lists layers without FLOPs one by one."""
    tables = [table(said, every), *([exchange_table(said)] if said.ranks > 1 else [])]
    return Result([*tables, sentences(said)], lambda: document(said))


def table(said: Layers, every: bool = False) -> Table:
    """One row per layer with MACs (or per layer), those without summed up by kind, and all."""
    columns = (
        Column("layer", "Layer", wrap=False),
        Column("kind", "Kind", wrap=False),
        Column("output", "Output", wrap=False),
        Column("params", "Parameters", "int"),
        Column("macs", "MACs", "int"),
        Column("forward_flops", "Forward", "si", "FLOP"),
        Column("backward_flops", "Backward", "si", "FLOP"),
        Column("forward_bytes", "Moved fwd", "si", "B"),
        Column("backward_bytes", "bwd", "si", "B"),
        Column("flops_per_byte", "FLOP/B", "float", digits=1),
        Column("forward_s", "Time fwd", "si", "s"),
        Column("backward_s", "bwd", "si", "s"),
    )
    # Times take the place of what other columns say: a screen is so wide.
    hidden = {"forward_s", "backward_s"} if said.where is None else {"output", "macs"}
    shown = [i for i, c in enumerate(columns) if c.key not in hidden]
    image = said.net.image
    title = (
        f"{said.net.name}, {said.batch} x {image.channels} x {image.height} x {image.width}, "
        f"{said.dtype}"
    )
    notes = [
        f"MACs: {CONVENTION['macs']}; FLOP: {CONVENTION['flops']}",
        f"moved: {CONVENTION['bytes']} ({si(totals(said)['update_bytes'], 'B')}, not in a column); "
        f"FLOP/B: forward and backward",
    ]
    if said.where is not None:
        notes.append(_how(said.where))
    rows = [[row[i] for i in shown] for row in _rows(said, every)]
    return Table(title, tuple(columns[i] for i in shown), rows, tuple(notes))


def _rows(said: Layers, every: bool) -> list[tuple[object, ...]]:
    seconds = {x.layer.name: x.times for x in said.timed}
    rows: list[tuple[object, ...]] = []
    rest: dict[str, tuple[int, Cost, Times]] = {}
    for x, cost in said.layers:
        times = seconds.get(x.name, Times())
        if every or cost.macs:
            rows.append((x.name, kind(x), _shape(x), *_counts(cost, times)))
        else:
            n, c, t = rest.get(kind(x), (0, Cost(), Times()))
            rest[kind(x)] = (n + 1, c + cost, t + times)
    for name, (n, c, t) in rest.items():
        rows.append((f"{n} layer{'s' * (n > 1)}", name, None, *_counts(c, t)))
    whole = sum((c for _, c in said.layers), Cost())
    return [*rows, ("all", None, None, *_counts(whole, said.times[0]))]


def exchange_table(said: Layers) -> Table:
    """One row per scheme of exchanging gradients over the ranks."""
    step_s = said.times[0].training_s
    columns = (
        Column("scheme", "Scheme"),
        Column("messages", "Messages", "int", of="cost.messages"),
        Column("sent_bytes", "Busiest rank sends", "si", "B", of="cost.sent_bytes"),
        Column("seconds", "Exchange", "si", "s"),
        Column("step_s", "Step and exchange", "si", "s", of=lambda x: step_s + x.seconds),
        Column("efficiency", "Efficiency", "percent"),
    )
    note = (
        f"each of {said.ranks} ranks trains on {said.batch} images, then all gradients are "
        f"exchanged: nothing overlaps; OneToAll, tree and butterfly are Paleo's"
    )
    return Table.of(f"Gradients over {said.ranks} ranks", said.exchanges, columns, [note])


def sentences(said: Layers) -> list[str]:
    """Say the convolutions' share, the memory of a step, and the time by Paleo."""
    t = totals(said)
    lines = [
        f"{si(t['forward_flops'], 'FLOP')} forward, {si(t['training_flops'], 'FLOP')} training, at "
        f"2 FLOP per MAC; {t['activations']:,} activations (all layers' outputs).",
        f"A training step holds {si(t['held_bytes'], 'B')} at its fullest (weights, gradients, "
        f"momenta, and what the backward pass needs), without workspaces.",
    ]
    if t["conv_share"] is not None:
        lines.insert(
            0, f"Convolutions are {percent(t['conv_share'], 2)} of the multiply-accumulates."
        )
    if said.where is not None:
        paleo, least = said.times
        lines += [
            f"{name}: {si(a, 's')}, reading, computing and writing one after the other; "
            f"{si(b, 's')} if they overlap; {si(said.where.compute_s(flops), 's')} for the FLOP "
            f"alone."
            for name, a, b, flops in (
                ("Forward pass", paleo.forward_s, least.forward_s, t["forward_flops"]),
                ("Training step", paleo.training_s, least.training_s, t["training_flops"]),
            )
        ]
    return lines


def document(said: Layers) -> dict[str, Any]:
    """Return everything as JSON: counts with their convention, times, exchange."""
    seconds = {x.layer.name: x for x in said.timed}
    return {
        "network": said.net.name,
        "image": _sizes(said.net.image),
        "batch": said.batch,
        "dtype": said.dtype,
        "convention": CONVENTION,
        "totals": totals(said),
        "paleo": None if said.where is None else _paleo(said, said.where),
        "exchange": [
            {
                **pick(x, "scheme seconds efficiency"),
                **pick(x.cost, "messages sent_bytes"),
                "ranks": said.ranks,
            }
            for x in said.exchanges
        ],
        "layers": [
            {**_entry(x, c, said.batch), **_seconds(seconds.get(x.name))} for x, c in said.layers
        ],
    }


def _paleo(said: Layers, where: Platform) -> dict[str, Any]:
    paleo, least = said.times
    return {
        **pick(where, "peak peak_flops_per_s bandwidth_bytes_per_s ppp", machine="name"),
        **pick(paleo, "forward_s backward_s update_s training_s"),
        "overlapped_forward_s": least.forward_s,
        "overlapped_training_s": least.training_s,
    }


def _sizes(shape: Shape) -> list[int]:
    return [shape.channels, shape.height, shape.width]


def _entry(x: Placed, c: Cost, batch: int) -> dict[str, Any]:
    return {
        "name": x.name,
        "kind": kind(x),
        "inputs": x.inputs,
        "output": _sizes(x.shape),
        **pick(c, "macs forward_flops backward_flops", params="parameters"),
        "activations": batch * x.shape.elements,
        **pick(c, "forward_bytes backward_bytes update_bytes"),
        "flops_per_byte": c.flops / (c.forward_bytes + c.backward_bytes),
    }


def _seconds(x: LayerTime | None) -> dict[str, Any]:
    return {} if x is None else {**pick(x.times, "forward_s backward_s update_s"), "bound": x.bound}


def _counts(c: Cost, t: Times) -> tuple[object, ...]:
    return (
        c.parameters, c.macs, c.forward_flops, c.backward_flops, c.forward_bytes, c.backward_bytes,
        c.flops / (c.forward_bytes + c.backward_bytes), t.forward_s, t.backward_s,
    )  # fmt: skip


def _shape(x: Placed) -> str:
    s = x.shape
    return str(s.channels) if (s.height, s.width) == (1, 1) else (
        f"{s.channels} x {s.height} x {s.width}"
    )  # fmt: skip


def _how(where: Platform) -> str:
    return (
        f"time by Paleo: bytes / (PPP {si(where.bandwidth_bytes_per_s, 'B/s')}) + FLOP / (PPP "
        f"{si(where.peak_flops_per_s, 'FLOP/s')}), {where.name}'s memory and {where.peak} peak; "
        f"PPP = {where.ppp:.3g}"
    )

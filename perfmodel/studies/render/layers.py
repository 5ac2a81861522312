"""Tables, sentences and JSON of a network's layers, their time by Paleo, and the exchange."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from perfmodel.base.document import pick
from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent, si
from perfmodel.render.result import Result
from perfmodel.studies.models.paleo import Exchange, LayerTime, Platform, Times
from perfmodel.workloads.layers import (
    MULTIPLIES,
    Attention,
    Cost,
    FeatureNorm,
    Net,
    Placed,
    Pointwise,
    Pool,
    Product,
    View,
    costs,
    training_bytes,
)

_KINDS: Final = {"Conv": "conv", "Linear": "fc", "Norm": "norm", "LocalNorm": "local norm"}
_NUMBER: Final = re.compile(r"(?<![^./])[0-9]+(?=[./])")
"""Of a block in the name of its layers."""


def convention(net: Net) -> dict[str, str]:
    """Return the convention of the counts, shown wherever there is a count."""
    attention = [node.layer for node in net.nodes if isinstance(node.layer, Attention)]
    macs = "multiply-accumulates of convolutions and fully connected layers"
    flops = "2 per MAC; backward is twice forward"
    if any(isinstance(node.layer, Product) for node in net.nodes):
        macs += ", products of activations"
    if attention:
        half = any(layer.causal for layer in attention)
        square = "the scores that a causal mask leaves" if half else "the whole square of scores"
        macs += f" and of attention ({square})"
        flops += ", of attention 5/2"
    return {
        "macs": f"{macs}, without bias; nothing else is one",
        "flops": f"{flops}, less the gradient of the network's input",
        "bytes": "every layer reads its inputs and weights once and writes its output once; the "
        f"update is of {net.optimizer}",
    }


@dataclass(frozen=True)
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

    @cached_property
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
    match x.layer:
        case Pool():
            return f"{x.layer.kind} pool"
        case Pointwise():
            return x.layer.name
        case FeatureNorm():
            return "layer norm" if x.layer.bias else "rms norm"
    name = type(x.layer).__name__
    return _KINDS.get(name, name.lower())


def totals(said: Layers) -> dict[str, Any]:
    """Return the sums over all layers, with the convolutions' share of the MACs."""
    found = said.layers
    whole = sum((c for _, c in found), Cost())
    macs = {
        name: sum(c.macs for x, c in found if isinstance(x.layer, kinds))
        for name, kinds in MULTIPLIES.items()
    }
    return {
        "params": whole.parameters,
        **{f"{name}_macs": count for name, count in macs.items()},
        "conv_share": macs["conv"] / whole.macs if whole.macs else None,
        "forward_flops": whole.forward_flops,
        "backward_flops": whole.backward_flops,
        "training_flops": whole.flops,
        "activations": said.batch
        * sum(x.shape.elements for x, _ in found if not isinstance(x.layer, View)),
        "forward_bytes": whole.forward_bytes,
        "backward_bytes": whole.backward_bytes,
        "update_bytes": whole.update_bytes,
        "held_bytes": training_bytes(said.net, said.batch, said.element_bytes),
        "forward_flops_per_byte": _ratio(whole.forward_flops, whole.forward_bytes),
        "training_flops_per_byte": _ratio(whole.flops, whole.moved_bytes),
    }


def _ratio(flops: int, moved: int) -> float | None:
    return flops / moved if moved else None


def result(said: Layers, every: bool = False) -> Result:
    """Return a network in every format; `every` lists layers without FLOPs one by one."""
    tables = [table(said, every), *([exchange_table(said)] if said.ranks > 1 else [])]
    return Result([*tables, sentences(said)], lambda: document(said))


def table(said: Layers, every: bool = False) -> Table:
    """One row per layer with MACs, equal layers of blocks in one; those without by kind; and all.

    With `every` one row per layer.
    """
    title = f"{said.net.name}, {said.batch} x {said.net.sample}, {said.dtype}"
    rule = convention(said.net)
    notes = [
        f"MACs: {rule['macs']}; FLOP: {rule['flops']}",
        f"moved: {rule['bytes']} ({si(totals(said)['update_bytes'], 'B')}, not in a column); "
        f"FLOP/B: forward and backward",
    ]
    if said.where is None:
        return Table.of(title, _rows(said, every), LAYERS, notes).without("forward_s", "backward_s")
    # Times take the place of what other columns say: a screen is so wide.
    notes.append(_how(said.where))
    return Table.of(title, _rows(said, every), LAYERS, notes).without("output", "macs")


class _Row(NamedTuple):
    """A layer, or several together."""

    layer: str
    kind: str | None
    output: str | None
    cost: Cost
    times: Times


LAYERS: Final = (
    Column("layer", "Layer", wrap=False),
    Column("kind", "Kind", wrap=False),
    Column("output", "Output", wrap=False),
    Column("params", "Parameters", "int", of="cost.parameters"),
    Column("macs", "MACs", "int", of="cost.macs"),
    Column("forward_flops", "Forward", "si", "FLOP", of="cost.forward_flops"),
    Column("backward_flops", "Backward", "si", "FLOP", of="cost.backward_flops"),
    Column("forward_bytes", "Moved fwd", "si", "B", of="cost.forward_bytes"),
    Column("backward_bytes", "bwd", "si", "B", of="cost.backward_bytes"),
    Column("flops_per_byte", "FLOP/B", "float", digits=1, of=lambda row: _intensity(row.cost)),
    Column("forward_s", "Time fwd", "si", "s", of="times.forward_s"),
    Column("backward_s", "bwd", "si", "s", of="times.backward_s"),
)


def _intensity(c: Cost) -> float | None:
    return _ratio(c.flops, c.forward_bytes + c.backward_bytes)


def _rows(said: Layers, every: bool) -> Iterator[_Row]:
    seconds = {x.layer.name: x.times for x in said.timed}
    groups: dict[tuple[str, ...], list[tuple[Placed, Cost]]] = {}
    for x, cost in said.layers:
        name = x.name if every else _NUMBER.sub("*", x.name)
        key: tuple[str, ...] = (kind(x),)
        if every or cost.macs:
            key = (kind(x), name, str(x.shape), str(cost))
        groups.setdefault(key, []).append((x, cost))
    for key, members in sorted(groups.items(), key=lambda group: len(group[0]) == 1):
        times = sum((seconds.get(x.name, Times()) for x, _ in members), Times())
        cost = sum((c for _, c in members), Cost())
        n = len(members)
        if len(key) == 1:
            yield _Row(f"{n} layer{'s' * (n > 1)}", key[0], None, cost, times)
        else:
            name = key[1] if n > 1 else members[0][0].name
            yield _Row(f"{n} {name}" if n > 1 else name, key[0], key[2], cost, times)
    whole = sum((c for _, c in said.layers), Cost())
    yield _Row("all", None, None, whole, said.times[0])


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
        f"each of {said.ranks} ranks trains on {said.batch} samples, then all gradients are "
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
        f"the optimizer's states, and what the backward pass needs), without workspaces.",
    ]
    macs = sum(t[f"{name}_macs"] for name in MULTIPLIES)
    if t["attention_macs"]:
        lines.insert(
            0, f"Attention is {percent(t['attention_macs'] / macs, 2)} of the multiply-accumulates."
        )
    elif macs:
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
        "input": said.net.sample,
        "batch": said.batch,
        "dtype": said.dtype,
        "convention": convention(said.net),
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


def _entry(x: Placed, c: Cost, batch: int) -> dict[str, Any]:
    return {
        "name": x.name,
        "kind": kind(x),
        "inputs": x.inputs,
        "output": x.shape,
        **pick(c, "macs forward_flops backward_flops", params="parameters"),
        "activations": batch * x.shape.elements,
        **pick(c, "forward_bytes backward_bytes update_bytes"),
        "flops_per_byte": _intensity(c),
    }


def _seconds(x: LayerTime | None) -> dict[str, Any]:
    return {} if x is None else {**pick(x.times, "forward_s backward_s update_s"), "bound": x.bound}


def _how(where: Platform) -> str:
    return (
        f"time by Paleo: bytes / (PPP {si(where.bandwidth_bytes_per_s, 'B/s')}) + FLOP / (PPP "
        f"{si(where.peak_flops_per_s, 'FLOP/s')}), {where.name}'s memory and {where.peak} peak; "
        f"PPP = {where.ppp:.3g}"
    )

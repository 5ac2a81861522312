"""`perfmodel layers`: a network layer by layer, and its time on a machine by Paleo's model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands import candidates
from perfmodel.commands.options import TABLES
from perfmodel.commands.terminal import show, warn


@click.command()
@click.argument("network", shell_complete=candidates.networks)
@click.option(
    "--batch", type=click.IntRange(1), default=1, show_default=True, help="Images of a step."
)
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "tf32", "float16", "bfloat16"]),
    default="float32",
    show_default=True,
    help="Numbers in memory, and whose peak counts.",
)
@click.option(
    "--pixels", type=click.IntRange(1), help="Height and width for a torch model.  [default: 224]"
)
@click.option(
    "--machine", metavar="NAME|FILE.toml", help="Add times on it, such as h200.",
    shell_complete=candidates.machines,
)  # fmt: skip
@click.option(
    "--ppp", type=float, help="Platform percent of peak as a fraction, such as 0.5.  [default: 1]"
)
@click.option(
    "--measured",
    metavar="SECONDS",
    help="Fit the percent of peak to a training step's time, such as 46.7ms.",
)
@click.option("--forward", is_flag=True, help="--measured is a forward pass, not a training step.")
@click.option("--ranks", "-p", type=click.IntRange(2), help="Add the exchange of gradients.")
@click.option(
    "--link", metavar="RATE", help="Of the exchange, one way, such as 25GB/s; else NVLink or PCIe."
)
@click.option("--all", "every", is_flag=True, help="List layers without FLOPs one by one, too.")
@TABLES
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON document.")
def layers(network: str, every: bool, as_json: bool, **options: Any) -> None:
    """Count a network layer by layer: parameters, MACs, FLOPs, bytes, intensity; and time it.

    NETWORK is alexnet (torchvision's), alexnet-caffe (grouped, 227 pixels), vgg16, vgg19,
    googlenet (the paper's, without auxiliary classifiers), resnet18, resnet34, resnet50, resnet101
    or resnet152; or MODULE:FUNCTION, a function that makes a torch model; or FILE.onnx. With
    --machine, times are Paleo's (Qi et al., ICLR 2017): bytes and FLOPs of each layer at a
    percentage of the machine's peaks.
    """
    import json

    from perfmodel.base.escape import escape_json
    from perfmodel.render import layers as report

    for name in ("ppp", "measured", "ranks", "forward", "link"):
        if options[name] not in (None, False) and options["machine"] is None:
            raise click.UsageError(f"--{name} is about times: give --machine NAME, too")
    if options["ppp"] is not None and options["measured"]:
        raise click.UsageError("wanted --ppp or --measured; found both; leave one out")
    if options["link"] and not options["ranks"]:
        raise click.UsageError("--link is about an exchange: give --ranks, too")
    said = _ask(network, options)
    if as_json:
        click.echo(escape_json(json.dumps(report.document(said), indent=1, allow_nan=False)))
        return
    tables = [report.table(said, every), *([report.exchange_table(said)] if said.ranks > 1 else [])]
    show(tables, report.sentences(said), options["fmt"])


def _ask(name: str, options: dict[str, Any]) -> Any:
    from dataclasses import replace

    from perfmodel.models.paleo import DTYPES, fit_ppp, layer_times, platform, step
    from perfmodel.render.layers import Layers

    batch, dtype = options["batch"], options["dtype"]
    size, _ = DTYPES[dtype]
    net = _network(name, options["pixels"])
    said = Layers(net, batch, dtype, size)
    if options["machine"] is None:
        return said
    machine = _machine(options["machine"])
    if machine.note:
        warn(f"{machine.name}: {machine.note}")
    where = platform(machine, dtype, 1.0 if options["ppp"] is None else options["ppp"])
    if options["measured"]:
        at_peak = step(net, where, batch, size)
        part = at_peak.forward_s if options["forward"] else at_peak.training_s
        where = replace(where, ppp=fit_ppp(part, _quantity(options, "measured", "s")))
        if where.ppp > 1:
            warn(
                f"the measured time is below that at the peaks (PPP {where.ppp:.3g}): check "
                f"--measured, --batch and --dtype; else caches or fewer operations explain it"
            )
    elif where.ppp > 1:
        warn(f"times are below those at the peaks (PPP {where.ppp:.3g}): --ppp is a fraction")
    said = replace(said, where=where, timed=layer_times(net, where, batch, size))
    return said if options["ranks"] is None else _with_exchange(said, machine, options)


def _network(name: str, pixels: int | None) -> Any:
    from perfmodel.workloads.networks import network

    if ":" in name:
        from perfmodel.workloads.foreign import from_torch

        return from_torch(name, pixels or 224)
    if name.endswith(".onnx"):
        from perfmodel.workloads.foreign import from_onnx

        if pixels is not None:
            raise click.UsageError("--pixels is for torch models; an ONNX file tells its own size")
        return from_onnx(Path(name))
    if pixels is not None:
        raise click.UsageError(
            f"--pixels is for torch models; {name}'s images have the size it was published with"
        )
    return network(name)


def _with_exchange(said: Any, machine: Any, options: dict[str, Any]) -> Any:
    from dataclasses import replace

    from perfmodel.machines.link import Link
    from perfmodel.models.paleo_exchange import exchanges
    from perfmodel.render.layers import totals

    if options["link"]:
        rate = _quantity(options, "link", "B/s")
    else:
        rates = machine.bandwidth_bytes_per_s
        name = next((key for key in ("nvlink", "pcie") if key in rates), None)
        if name is None:
            raise click.UsageError(f"{machine.name} has no link: give --link, such as 25GB/s")
        rate = rates[name] / 2 if name == "nvlink" else rates[name]  # of both directions
        warn(f"gradients go over {machine.name}'s {name} at its peak; --link gives another rate")
    found = exchanges(
        said.element_bytes * totals(said)["params"], options["ranks"], Link(0.0, 1 / rate),
        said.times[0].training_s,
    )  # fmt: skip
    return replace(said, exchanges=found, ranks=options["ranks"])


def _machine(word: str) -> Any:
    from perfmodel.machines.machine import named
    from perfmodel.machines.measure.measurement import load

    return load(word).machine if word.endswith(".toml") else named(word)


def _quantity(options: dict[str, Any], name: str, unit: str) -> float:
    from perfmodel.base.errors import PerfmodelError
    from perfmodel.base.units import parse_si

    try:
        value = parse_si(options[name], unit)
    except PerfmodelError as error:
        raise click.BadParameter(str(error), param_hint=f"--{name}") from error
    if not value > 0:
        raise click.BadParameter(
            f"wanted more than 0 {unit}; found {options[name]!r}", param_hint=f"--{name}"
        )
    return value

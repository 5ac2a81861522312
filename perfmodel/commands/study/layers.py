"""`perfmodel study layers`: a network by layers, and its time on a machine by Paleo's model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from perfmodel.commands import _options
from perfmodel.commands._output import emit, warn

_DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8")
_CONTEXT = 1024
"""Tokens of a sequence by default: a short prompt and its answer."""


@click.command()
@click.argument("network", shell_complete=_options.networks)
@_options.batch_size("B, samples of a step: images, or sequences.", default=1, most=2**31)
@click.option(
    "--set", "given", multiple=True, metavar="KEY=N",
    help="Setting of the network, such as n_layer=24, seq=512 or image=160.",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(_DTYPES), default="float32", show_default=True,
    help="Type of the numbers in memory, and of the peak.",
)  # fmt: skip
@_options.machine("Add times on this machine, such as h200.")
@click.option(
    "--ppp", type=float, help="Platform percent of peak as a fraction, such as 0.5.  [default: 1]"
)
@click.option(
    "--measured", metavar="SECONDS",
    help="Fit the percent of peak to a training step's time, such as 46.7ms.",
)  # fmt: skip
@click.option("--forward", is_flag=True, help="--measured is a forward pass, not a training step.")
@_options.ranks("p, ranks: adds the exchange of gradients.", least=2)
@click.option(
    "--link",
    metavar="RATE",
    help="Rate of the exchange, one way, such as 25GB/s; default: NVLink or PCIe.",
)
@click.option(
    "--context", type=click.IntRange(1, 2**31), metavar="N",
    help="Tokens of a sequence: counts prefill and decode of a language model.  [default: 1024]",
)  # fmt: skip
@click.option("--all", "every", is_flag=True, help="List layers without FLOPs one by one, too.")
@_options.output()
def layers(network: str, every: bool, fmt: str, out: Path | None, **options: Any) -> None:
    """Count a network layer by layer: FLOPs, bytes, time.

    NETWORK is a name, FILE.onnx, a config.json of Hugging Face, or MODULE:FUNCTION, a function that
    creates a torch model. Names of CNNs: alexnet (torchvision's), alexnet-caffe (grouped, 227
    pixels), vgg16, vgg19, googlenet (without auxiliary classifiers), resnet18 to resnet152. Of
    transformers in training: gpt2 to gpt2-xl, bert-base, bert-large, vit_b_16 to vit_h_14,
    llama-2-7b to llama-3-70b, mistral-7b. Of language models as they are served, as --context
    counts a config.json: llama-3.1-8b to -405b, qwen3-0.6b to -235b-a22b, mixtral-8x7b,
    mixtral-8x22b, deepseek-v3, gpt-oss-20b, gpt-oss-120b.

    With --machine, times are Paleo's (Qi et al., ICLR 2017): bytes and FLOPs of each layer at a
    percentage of the machine's peaks.
    """
    from perfmodel.studies.render.layers import result
    from perfmodel.workloads.decoder import published

    if options["context"] is not None or network in published():
        emit(_served(network, options), fmt, out)
        return
    for name in ("ppp", "measured", "ranks", "forward", "link"):
        if options[name] not in (None, False) and options["machine"] is None:
            raise click.UsageError(f"--{name} is about times: give --machine NAME, too")
    if options["ppp"] is not None and options["measured"]:
        raise click.UsageError("expected --ppp or --measured; got both; leave one out")
    if options["link"] and not options["ranks"]:
        raise click.UsageError("--link is about an exchange: give --ranks, too")
    emit(result(_counted(network, options), every), fmt, out)


def _served(name: str, options: dict[str, Any]) -> Any:
    """Count prefill and decode of a language model."""
    from perfmodel.render.decoders import Counted, result
    from perfmodel.workloads.decoder import decoder

    for given in ("given", "ppp", "measured", "ranks", "forward", "link"):
        if options[given]:
            flag = "set" if given == "given" else given
            raise click.UsageError(f"--{flag} is about training steps: leave it out")
    machine, _ = _options.machine_of(options["machine"])
    context = options["context"] or _CONTEXT
    return result(Counted(decoder(name), options["batch_size"], context, machine))


def _counted(name: str, options: dict[str, Any]) -> Any:
    from perfmodel.base.units import DTYPE_BYTES
    from perfmodel.studies.models.paleo import fit_ppp, layer_times, platform, step
    from perfmodel.studies.render.layers import Layers
    from perfmodel.workloads.networks import network

    dtype, batch = options["dtype"], options["batch_size"]
    size = DTYPE_BYTES[dtype]
    net = network(name, **_options.given_values(options["given"]))
    said = Layers(net, batch, dtype, size)
    machine, _ = _options.machine_of(options["machine"])
    if machine is None:
        return said
    if machine.note:
        warn(f"{machine.name}: {machine.note}")
    where = platform(machine, dtype, 1.0 if options["ppp"] is None else options["ppp"])
    if options["measured"]:
        at_peak = step(net, where, batch, size)
        part = at_peak.forward_s if options["forward"] else at_peak.training_s
        where = replace(
            where, ppp=fit_ppp(part, _options.quantity(options["measured"], "s", "--measured"))
        )
        if where.ppp > 1:
            warn(
                f"the measured time is below that at the peaks (PPP {where.ppp:.3g}): check "
                f"--measured, --batch-size and --dtype; else caches or fewer operations explain it"
            )
    elif where.ppp > 1:
        warn(f"times are below those at the peaks (PPP {where.ppp:.3g}): --ppp is a fraction")
    said = replace(said, where=where, timed=layer_times(net, where, batch, size))
    return said if options["ranks"] is None else _with_exchange(said, machine, options)


def _with_exchange(said: Any, machine: Any, options: dict[str, Any]) -> Any:
    from perfmodel.machines.machine import Link
    from perfmodel.studies.models.paleo import exchanges
    from perfmodel.studies.render.layers import totals

    if options["link"]:
        rate = _options.quantity(options["link"], "B/s", "--link")
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

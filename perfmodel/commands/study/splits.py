"""`perfmodel study splits`: how p ranks may share the MLP, what each way costs, which is best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands import _options
from perfmodel.commands._output import emit, warn
from perfmodel.commands.analyze import analyzed, exit_of

_UNITS = {
    "P_flops": "FLOP/s",
    "P_pci": "B/s",
    "P_images": "B/s",
    "P_mpi": "B/s",
    "P_peer": "B/s",
    "alpha": "s",
}


@click.command(cls=_options.Grouped)
@click.argument("reports", nargs=-1, type=_options.REPORT)
@_options.symbols
@click.option(
    "--images", type=click.IntRange(1),
    help="Images of the training set that stay on the GPUs; by default every batch is copied.",
)  # fmt: skip
@click.option(
    "--rate", "rates", multiple=True, metavar="NAME=VALUE",
    help="P_flops, P_pci, P_images (P_pci without it), P_mpi or P_peer (bytes sent, one way) or "
    "alpha, such as P_mpi=4GB/s.",
)  # fmt: skip
@_options.batches
@_options.output()
def splits(reports: tuple[Path, ...], fmt: str, out: Path | None, **options: Any) -> None:
    """Rank all ways to split the MLP over p ranks.

    Compares FLOPs, bytes, memory and time of data, model and mixed parallelism. Sizes and rates are
    those of the first report, or without one the CME 213 assignment's; options override them. The
    measured all-reduce of every report is shown beside the estimate.
    """
    from perfmodel.base.errors import WorkloadError
    from perfmodel.studies.analysis.splits import compare, override, rank_splits, rates_of, sizes_of
    from perfmodel.studies.mlp.splits import DOCUMENT
    from perfmodel.studies.registry import calibrated_of
    from perfmodel.studies.render.splits import result

    batches = {name: options[name] for name in ("batch_range", "warmup", "attribute")}
    analysis = analyzed(reports, {**batches, "counting": "full"}) if reports else None
    runs = analysis.runs if analysis else ()
    if runs and calibrated_of(runs[0].program) is None:
        raise WorkloadError(
            f"{runs[0].label}: expected a run of a two-layer MLP, whose splits are ranked; got "
            f"program {runs[0].program.name!r}; leave the report out, and give sizes as flags"
        )
    values = _options.symbol_values(options)
    known = dict(runs[0].identity.values) if runs else {}
    sizes, ranks = sizes_of({**known, **values})
    rates = override(rates_of(runs[0]) if runs else DOCUMENT, _rates(options["rates"]))
    for note in rates.notes:
        warn(note)
    other = runs and values.get("b", known.get("b")) != known.get("b")
    if other and not any(item.startswith("P_flops=") for item in options["rates"]):
        warn(
            f"{rates.source}: its P_flops is of elements of {known.get('b')} bytes, expected for "
            f"{values['b']}; give the report of such a run, or --rate P_flops=..."
        )
    if options["images"] is None and rates.images_bytes_per_s is None:
        warn(
            f"{rates.source}: no rate of copying images, so that copying them counts nothing; give "
            f"--images N for N images that stay on the GPUs, or --rate P_pci=..."
        )
    measured = tuple(compare(run, rates) for run in runs)
    ranked = rank_splits(sizes, ranks, rates, images=options["images"], measured=measured)
    emit(result(ranked), fmt, out)
    if analysis:
        exit_of(analysis)


def _rates(given: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for item in given:
        name, _, value = item.partition("=")
        if name not in _UNITS:
            raise click.BadParameter(
                f"expected one of {', '.join(_UNITS)} and =VALUE; got {item!r}", param_hint="--rate"
            )
        found[name] = _options.quantity(value, _UNITS[name], "--rate", zero=name == "alpha")
    return found

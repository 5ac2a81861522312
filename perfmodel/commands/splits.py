"""`perfmodel splits`: how p ranks may share the MLP, what each way costs, which is best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands.options import TABLES, symbol_options, symbol_values
from perfmodel.commands.paths import REPORT
from perfmodel.commands.terminal import Progress, show, warn

_UNITS = {"P_flops": "FLOP/s", "P_pci": "B/s", "P_mpi": "B/s", "P_peer": "B/s", "alpha": "s"}


@click.command()
@click.argument("reports", nargs=-1, type=REPORT)
@symbol_options
@click.option(
    "--images",
    type=click.IntRange(1),
    help="Images of the training set that stay on the GPUs; without it every batch copies its own.",
)
@click.option(
    "--rate",
    "rates",
    multiple=True,
    metavar="NAME=VALUE",
    help="P_flops, P_pci, P_mpi or P_peer (bytes sent, one way) or alpha, such as P_mpi=4GB/s.",
)
@TABLES
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def splits(reports: tuple[Path, ...], **options: Any) -> None:
    """Rank all ways to split the MLP's loops over p ranks: FLOPs, bytes, memory, time.

    D, H, C, B and p are taken from the first of REPORTS, which also gives the rates (the document's
    without one); options override them. Every report's all-reduce, data or model parallel, by MPI
    or NCCL, is set beside the estimate.
    """
    import json

    from perfmodel.base.escape import escape_json
    from perfmodel.programs.mlp.answer import answer as answered
    from perfmodel.programs.mlp.answer import document as json_document
    from perfmodel.programs.mlp.answer import grids_table, measured_table, sentences
    from perfmodel.programs.mlp.measured import compare as compare_measured
    from perfmodel.programs.mlp.measured import override, rates_of, sizes_of
    from perfmodel.programs.mlp.model import DOCUMENT

    runs = _analyzed(reports)
    values = symbol_values(options)
    known = dict(runs[0].identity.values) if runs else {}
    sizes, ranks = sizes_of({**known, **values})
    rates = override(rates_of(runs[0]) if runs else DOCUMENT, _rates(options["rates"]))
    for note in rates.notes:
        warn(note)
    other = runs and values.get("b", known.get("b")) != known.get("b")
    if other and not any(item.startswith("P_flops=") for item in options["rates"]):
        warn(
            f"{rates.source}: its P_flops is of elements of {known.get('b')} bytes, wanted for "
            f"{values['b']}; give the report of such a run, or --rate P_flops=..."
        )
    if options["images"] is None and rates.images_bytes_per_s is None:
        warn(
            f"{rates.source}: no rate of copying images, so that copying them counts nothing; give "
            f"--images N for N images that stay on the GPUs, or --rate P_pci=..."
        )
    found = answered(
        sizes,
        ranks,
        rates,
        images=options["images"],
        measured=tuple(compare_measured(run, rates) for run in runs),
    )
    if options["as_json"]:
        click.echo(escape_json(json.dumps(json_document(found), indent=1, allow_nan=False)))
        return
    tables = (grids_table(found), *([measured_table(found)] if runs else []))
    show(tables, sentences(found), options["fmt"])


def _analyzed(reports: tuple[Path, ...]) -> list[Any]:
    """Analyze the reports, each by its own configuration, counting everything."""
    from perfmodel.analysis.analyze import analyze
    from perfmodel.programs.program import Options
    from perfmodel.readers import read

    if not reports:
        return []
    with Progress(2 * len(reports), False) as advance:
        traces = []
        for path in reports:
            advance(f"reading {path.name}")
            traces.append(read(path))
        chosen = Options(values={}, counting="full")
        analysis = analyze(traces, chosen, lambda label: advance(f"analyzing {label}"))
    for run in analysis.runs:
        for warning in run.warnings:
            warn(warning)
    return list(analysis.runs)


def _rates(given: tuple[str, ...]) -> dict[str, float]:
    from perfmodel.base.errors import PerfmodelError
    from perfmodel.base.units import parse_si

    found = {}
    for item in given:
        name, _, value = item.partition("=")
        if name not in _UNITS:
            raise click.BadParameter(
                f"wanted one of {', '.join(_UNITS)} and =VALUE, found {item!r}",
                param_hint="--rate",
            )
        try:
            found[name] = parse_si(value, _UNITS[name])
        except PerfmodelError as error:
            raise click.BadParameter(f"{item!r}: {error}", param_hint="--rate") from error
        if not found[name] > 0 and name != "alpha":
            raise click.BadParameter(
                f"wanted a rate above 0, such as {name}=4G{_UNITS[name]}; found {item!r}",
                param_hint="--rate",
            )
    return found

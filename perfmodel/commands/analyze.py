"""`perfmodel analyze`: where a batch goes, rates, roofline, findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands.options import (
    ATTRIBUTE,
    BATCH_RANGE,
    COUNTING,
    TABLES,
    WARMUP,
    symbol_options,
    symbol_values,
)
from perfmodel.commands.paths import FOLDER, REPORT, TOML
from perfmodel.commands.terminal import Progress, show, terminal, warn


@click.command()
@click.argument("reports", nargs=-1, required=True, type=REPORT)
@symbol_options
@click.option("--workload", type=TOML, help="A TOML file of your own.")
@COUNTING
@BATCH_RANGE
@WARMUP
@ATTRIBUTE
@click.option(
    "--fit", metavar="RUN", help="Label or number (from 0) of the run that fits the roofline."
)
@click.option("--out", "-o", type=FOLDER, help="Folder for all outputs.")
@click.option("--db", type=click.Path(path_type=Path), help="Results database to add to.")
@click.option("--no-plots", is_flag=True, help="Draw nothing.")
@TABLES
@click.option("--json", "as_json", is_flag=True, help="Print analysis.json instead of text.")
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
def analyze(reports: tuple[Path, ...], **options: Any) -> None:
    """Find where a batch goes, fit P_flops, P_pci and P_mpi, draw the roofline.

    REPORTS are Nsight Systems exports (.sqlite, or .nsys-rep where nsys is installed). Reports of
    the ranks of one run are put together; different runs become points on one roofline. What a
    report says of its workload need not be given.
    """
    import json
    from dataclasses import replace

    from perfmodel import outputs, summary
    from perfmodel.analysis_json import analysis_document

    quiet = options["quiet"]
    analysis = _analyze(reports, options)
    if not quiet:
        for run in analysis.runs:
            for warning in run.warnings:
                warn(warning)
    written = []
    if options["out"]:
        written = outputs.write(
            analysis, options["out"], plots=not options["no_plots"], db=options["db"]
        )
    elif options["db"]:
        outputs.append(analysis, options["db"])
    if options["as_json"]:
        click.echo(json.dumps(analysis_document(analysis), indent=1, allow_nan=False))
    elif options["fmt"] != "text":
        named = (replace(table, title=name) for name, table in outputs.csv_tables(analysis))
        show(named, fmt=options["fmt"])
    elif not quiet:
        width, color = terminal()
        click.echo(summary.text(analysis, width=width, color=color), nl=False)
        if written:
            click.echo("\nWritten: " + "  ".join(str(path) for path in written))


def _analyze(reports: tuple[Path, ...], options: dict[str, Any]) -> Any:
    from perfmodel.readers import read
    from perfmodel.runs import Options, analyze_traces

    workload = None
    if options["workload"]:
        from perfmodel.workloads.spec import load

        workload = load(options["workload"])
    chosen = Options(
        values=symbol_values(options),
        counting=options["counting"],
        workload=workload,
        batch_label=options["batch_range"],
        warmup=options["warmup"],
        by_time=options["attribute"] == "time",
        fit=options["fit"],
    )
    with Progress(2 * len(reports), options["quiet"]) as advance:
        traces = []
        for path in reports:
            advance(f"reading {path.name}")
            traces.append(read(path))
        return analyze_traces(traces, chosen, lambda label: advance(f"analyzing {label}"))

"""`perfmodel analyze`: where a batch goes, rates, roofline, findings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.commands.options import (
    TABLES,
    analysis_options,
    engine_of,
    engine_options,
    symbol_values,
)
from perfmodel.commands.paths import FOLDER, REPORT
from perfmodel.commands.terminal import Progress, show, terminal, warn

if TYPE_CHECKING:
    from perfmodel.analysis.result import Analysis
    from perfmodel.base.parallel import Engine


@click.command()
@click.argument("reports", nargs=-1, required=True, type=REPORT)
@analysis_options
@engine_options
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

    from perfmodel.render import outputs, summary
    from perfmodel.render.analysis_json import analysis_document

    quiet = options["quiet"]
    analysis = analyzed(reports, options, engine_of(options))
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


def analyzed(
    reports: tuple[Path, ...], options: dict[str, Any], engine: Engine | None = None
) -> Analysis:
    """Read and analyze reports with the values of `analysis_options` and ``quiet``.

    Without an engine all of every report is kept, for who looks further into it.
    """
    from perfmodel.analysis.analyze import analyze_reports
    from perfmodel.programs.program import Options

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
        return analyze_reports(reports, chosen, engine, advance, whole=engine is None)

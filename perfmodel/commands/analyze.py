"""`perfmodel analyze`: where a batch goes, rates, roofline, findings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import ReportError
from perfmodel.commands._options import (
    COUNTERS,
    FILE,
    FOLDER,
    QUIET,
    REPORT,
    analysis_options,
    engine_of,
    engine_options,
    formats,
    machine_option,
    symbol_values,
)
from perfmodel.commands._output import Progress, emit, report_written, say_error, warn

if TYPE_CHECKING:
    from perfmodel.analysis.result import Analysis
    from perfmodel.base.parallel import Engine
    from perfmodel.machines.machine import Machine


@click.command()
@click.argument("reports", nargs=-1, required=True, type=REPORT)
@analysis_options
@engine_options
@click.option("--out", "-o", type=FOLDER, help="Folder for all outputs.")
@click.option("--db", type=FILE, help="Results database to add to.")
@click.option(
    "--shapes", type=REPORT, help="Recording of the same program with its operators' sizes."
)
@click.option(
    "--attention", type=click.Choice(["full", "causal"]), default="full", show_default=True,
    help="FLOPs of attention: of all scores, or without those that a causal mask hides.",
)  # fmt: skip
@click.option(
    "--counters", type=COUNTERS,
    help="Table of Nsight Compute of the same PyTorch program, with its operators' ranges.",
)  # fmt: skip
@machine_option("Ceilings, such as those that perfmodel machine measure wrote.")
@click.option("--no-plots", is_flag=True, help="Draw nothing.")
@formats
@QUIET
def analyze(reports: tuple[Path, ...], fmt: str, **options: Any) -> None:
    """Find where a batch goes, fit P_flops, P_pci and P_mpi, draw the roofline.

    REPORTS are Nsight Systems exports (.sqlite, or .nsys-rep where nsys is installed). Reports of
    the ranks of one run are put together; different runs become points on one roofline. What a
    report says of its workload need not be given.
    """
    from perfmodel.render import outputs, summary

    analysis = analyzed(reports, options, engine_of(options))
    written = []
    if options["out"]:
        plots = not options["no_plots"]
        written = outputs.write(analysis, options["out"], plots=plots, db=options["db"])
    elif options["db"]:
        outputs.append(analysis, options["db"])
    if fmt != "text" or not options["quiet"]:
        emit(summary.result(analysis), fmt)
    if written and fmt == "text" and not options["quiet"]:
        click.echo()
        report_written(written, err=False)
    if analysis.failed:
        click.get_current_context().exit(ReportError.exit_code)


def analyzed(
    reports: tuple[Path, ...], options: dict[str, Any], engine: Engine | None = None
) -> Analysis:
    """Read and analyze reports with the values of `analysis_options` and ``quiet``; warn.

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
        dtype=options["dtype"],
        shapes=options.get("shapes"),
        causal=options.get("attention") == "causal",
        counters=options.get("counters"),
        machine=_machine(options.get("machine")),
    )
    with Progress(2 * len(reports), options["quiet"]) as advance:
        found = analyze_reports(reports, chosen, engine, advance, whole=engine is None)
    for error in found.failed:
        say_error(error)
    if not options["quiet"]:
        warn_of(found)
    return found


def _machine(word: str | None) -> Machine | None:
    """Return the machine of a name or a file, which is read only where one is given."""
    if word is None:
        return None
    from perfmodel.machines.measure.measurement import choose

    return choose(word)[0]


def warn_of(analysis: Analysis) -> None:
    """Print the warnings of all runs."""
    for run in analysis.runs:
        for warning in run.warnings:
            warn(warning)

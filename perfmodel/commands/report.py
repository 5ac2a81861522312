"""`perfmodel report`: everything about one run as one HTML file that loads nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands._options import (
    JSON,
    QUIET,
    REPORT,
    Out,
    analysis_options,
    operator_options,
    out_option,
)
from perfmodel.commands._output import STDOUT, is_quiet, report_written, write
from perfmodel.commands.analyze import analyzed, exit_of

_USUAL = Path("report.html")


@click.command()
@click.argument("reports", nargs=-1, required=True, type=REPORT)
@analysis_options
@operator_options
@click.option(
    "--model", "path", type=JSON,
    help="What perfmodel calibrate wrote: changes are then predicted, not bounded.",
)  # fmt: skip
@out_option(Out(".html", ".htm", "-", result=False), f"Without it: {_USUAL}, which is then named.")
@QUIET
def report(reports: tuple[Path, ...], path: Path | None, out: Path | None, **options: Any) -> None:
    """Write everything about a run into one HTML file.

    Summary, breakdown, timeline, roofline, model, what-if and findings. REPORTS and options are
    those of perfmodel analyze. The file loads nothing from anywhere: mail it, print it, open it in
    any browser.
    """
    from perfmodel.models.model import load
    from perfmodel.render.html import page

    if out is None and is_quiet():
        raise click.UsageError("expected -o FILE.html with --quiet, which does not name the file")
    out = out or _USUAL
    model = None if path is None else load(path)
    analysis = analyzed(reports, options)
    write(out, page(analysis, model))
    if out != STDOUT:
        report_written(out, err=False)
    exit_of(analysis)

"""`perfmodel report`: everything about one run as one HTML file that loads nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands._options import JSON, QUIET, REPORT, analysis_options
from perfmodel.commands._output import STDOUT, report_written, write
from perfmodel.commands.analyze import analyzed


@click.command()
@click.argument("reports", nargs=-1, required=True, type=REPORT)
@analysis_options
@click.option(
    "--model", "path", type=JSON,
    help="What perfmodel calibrate wrote: changes are then predicted, not bounded.",
)  # fmt: skip
@click.option(
    "--out", "-o", type=click.Path(path_type=Path, allow_dash=True), default=Path("report.html"),
    show_default=True, metavar="FILE.html", help="Where to; - is standard output.",
)  # fmt: skip
@QUIET
def report(reports: tuple[Path, ...], path: Path | None, out: Path, **options: Any) -> None:
    """Write one HTML file: summary, breakdown, timeline, roofline, model, what-if, findings.

    REPORTS and options are those of perfmodel analyze. The file loads nothing from anywhere: mail
    it, print it, open it in any browser.
    """
    from perfmodel.models.model import load
    from perfmodel.render.html import page

    if out != STDOUT and out.suffix not in (".html", ".htm"):
        raise click.BadParameter(
            f"expected a file that ends in .html, or - for standard output; got {out.name!r}",
            param_hint="--out",
        )
    model = None if path is None else load(path)
    write(out, page(analyzed(reports, options), model))
    if out != STDOUT and not options["quiet"]:
        report_written(out, err=False)

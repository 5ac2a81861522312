"""`perfmodel report`: everything about one run as one HTML file that loads nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands.analyze import analyzed
from perfmodel.commands.options import analysis_options
from perfmodel.commands.paths import JSON, REPORT
from perfmodel.commands.terminal import warn


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
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
def report(reports: tuple[Path, ...], path: Path | None, out: Path, **options: Any) -> None:
    """Write one HTML file: summary, breakdown, timeline, roofline, model, what-if, findings.

    REPORTS and options are those of perfmodel analyze. The file loads nothing from anywhere: mail
    it, print it, open it in any browser.
    """
    from perfmodel.base.files import write_text
    from perfmodel.models.model_file import load
    from perfmodel.render.html import page

    if str(out) != "-" and out.suffix not in (".html", ".htm"):
        raise click.BadParameter(
            f"wanted a file that ends in .html, or - for standard output; found {out.name!r}",
            param_hint="--out",
        )
    model = None if path is None else load(path)
    analysis = analyzed(reports, options)
    if not options["quiet"]:
        for run in analysis.runs:
            for warning in run.warnings:
                warn(warning)
    text = page(analysis, model)
    if str(out) == "-":
        click.echo(text, nl=False)
        return
    write_text(out, text)
    if not options["quiet"]:
        click.echo(f"Written: {out}")

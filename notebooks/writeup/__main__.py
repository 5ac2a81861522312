"""``python -m writeup``: write the report from its template and the exported figures."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.escape import printable
from writeup.report import compose


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "template", type=click.Path(path_type=Path), default=Path("notebooks/report/report.tex")
)
@click.option(
    "--figures", type=click.Path(path_type=Path), default=Path("out/figures"), show_default=True,
    help="Folder that the notebooks exported to.",
)  # fmt: skip
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), default=Path("out/report"), show_default=True,
    help="Folder to write to.",
)  # fmt: skip
@click.option("--draft", is_flag=True, help="Leave gaps where figures are missing.")
def main(template: Path, figures: Path, out: Path, draft: bool) -> None:
    """Write a report from a LaTeX TEMPLATE and the figures that the notebooks exported.

    Captions come from the figures, with the numbers that the notebooks computed. The folder
    compiles without other files: report.tex, figures.tex and figures/, and report.md with the same
    text. TEMPLATE is notebooks/report/report.tex by default.
    """
    try:
        made = compose(template, figures, out, draft=draft)
    except PerfmodelError as error:
        click.echo(f"writeup: error: {' '.join(str(error).split())}", err=True)
        sys.exit(error.exit_code)
    for key in made.missing:
        click.echo(f"warning: {key} is not exported yet: run make figures", err=True)
    for name in made.unused:
        click.echo(f"warning: {name} is exported and not in the report", err=True)
    for path in made.files:
        click.echo(f"Written: {printable(str(path))}", err=True)
    click.echo(f"{made.shown - len(made.missing)} of {made.shown} figures; to make the PDF:")
    folder = printable(shlex.quote(str(out)))
    click.echo(f"cd {folder} && pdflatex report.tex && pdflatex report.tex")


if __name__ == "__main__":
    main()

"""`perfmodel writeup`: a report's template and the notebooks' figures, as LaTeX and Markdown."""

from __future__ import annotations

from pathlib import Path

import click

from perfmodel.commands.terminal import warn


@click.command()
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
@click.option("--no-markdown", is_flag=True, help="Write LaTeX only.")
def writeup(template: Path, figures: Path, out: Path, draft: bool, no_markdown: bool) -> None:
    """Compose a report from a LaTeX TEMPLATE and the figures that the notebooks exported.

    Captions come from the figures, with the numbers that the notebooks computed; they are never
    typed. The folder written compiles by itself: report.tex, captions.tex, figures/, and report.md
    with the same text. TEMPLATE is notebooks/report/report.tex by default.
    """
    from writeup.compose import compose

    made = compose(template, figures, out, draft=draft, markdown=not no_markdown)
    for key in made.missing:
        warn(f"{key} is not exported yet: run make figures")
    for name in made.unused:
        warn(f"{name} is exported and not in the report")
    for path in made.files:
        click.echo(f"Written: {path}", err=True)
    click.echo(f"{made.shown - len(made.missing)} of {made.shown} figures; to make the PDF:")
    click.echo(f"cd {out} && pdflatex {template.name} && pdflatex {template.name}")

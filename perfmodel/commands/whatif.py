"""`perfmodel whatif`: what each change of the ladder would save of one report's batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands.options import TABLES
from perfmodel.commands.paths import FOLDER, JSON, REPORT
from perfmodel.commands.terminal import Progress, show, warn


@click.command()
@click.argument("reports", nargs=-1, required=True, type=REPORT)
@click.option(
    "--model", "path", type=JSON,
    help="What perfmodel calibrate wrote; without it, savings are bounds by the report alone.",
)  # fmt: skip
@click.option("--out", "-o", type=FOLDER, help="Folder for the figure.")
@TABLES
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def whatif(
    reports: tuple[Path, ...], path: Path | None, out: Path | None, fmt: Any, as_json: bool
) -> None:
    """Rank the changes that would make this run faster, with what each removes and how sure it is.

    REPORTS are one run of the trainer's: one report, or one per rank. Without --model every saving
    is an upper bound; with it, the model's relative change applied to the report's own batch, and
    bounds for what the model cannot tell. Also says what would raise arithmetic intensity and
    FLOP/s, and whether model parallelism would pay.
    """
    import json

    from perfmodel.analysis.ask import ask
    from perfmodel.base.escape import escape_json
    from perfmodel.models.model_file import load
    from perfmodel.programs.mlp.words import words
    from perfmodel.readers import read
    from perfmodel.render import whatif as report

    model = None if path is None else load(path)
    with Progress(len(reports), quiet=False) as advance:
        traces = []
        for one in reports:
            advance(f"reading {one.name}")
            traces.append(read(one))
    said = ask(traces, model)
    for warning in said.warnings:
        warn(warning)
    if out is not None:
        _draw(said, out)
    if as_json:
        click.echo(escape_json(json.dumps(report.document(said), indent=1, allow_nan=False)))
        return
    if fmt == "text":
        click.echo(f"{said.label}: {said.case.label}")
    tables = [report.changes_table(said), report.free_table(said.answer)]
    tables[1:1] = [report.path_table(said)] if said.path else []
    tables += [report.removed_table(said.answer)] if said.answer.removed else []
    show(tables, words(said), fmt)


def _draw(said: Any, out: Path) -> None:
    from perfmodel.render.plot import save
    from perfmodel.render.plot.bars import SavingBar, savings

    bars = [
        SavingBar(c.name, c.saving_s, c.low_s, c.high_s, bound=c.source == "bound")
        for c in said.changes
    ]
    axes = savings(bars, said.batch_s, title=f"{said.label}: {said.case.label}")
    for written in save(axes, out, "whatif"):
        click.echo(f"Written: {written}", err=True)

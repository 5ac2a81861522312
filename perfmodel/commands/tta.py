"""`perfmodel tta`: time to accuracy of repeated trainings, its stability, and against others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands.options import TABLES, TakesAll
from perfmodel.commands.paths import RUN
from perfmodel.commands.pictures import PICTURE, write_picture
from perfmodel.commands.terminal import one_line, show, warn


class _Sides(TakesAll):
    """Lets `--against` take all the files that follow it."""

    flag = "--against"


@click.command(cls=_Sides)
@click.argument("runs", nargs=-1, required=True, type=RUN)
@click.option(
    "--target", type=click.FloatRange(0, 1, min_open=True), default=0.95, show_default=True,
    help="Test precision that counts as reached.",
)  # fmt: skip
@click.option(
    "--against", multiple=True, metavar="OTHER...", type=RUN,
    help="Runs of another configuration, to compare with.",
)  # fmt: skip
@PICTURE
@TABLES
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def tta(runs: tuple[Path, ...], against: tuple[Path, ...], **options: Any) -> None:
    """Say how long repeated trainings take to a test precision, how stable that is, and how good.

    RUNS are records of one configuration with several seeds: files of python -m trainer --record,
    or of benchmarks.tta. Times are of training alone: neither set-up nor evaluation counts.
    """
    import json

    from perfmodel.analysis.tta import answer
    from perfmodel.base.escape import escape_json
    from perfmodel.render import tta as report

    found = answer(runs, against, options["target"])
    for warning in found.warnings:
        warn(warning)
    if options["out"]:
        _draw(found, options["out"])
    if options["as_json"]:
        click.echo(escape_json(json.dumps(report.document(found), indent=1, allow_nan=False)))
        return
    tables = (
        table
        for side in found.sides
        for table in (report.runs_table(side, found.target), report.spread_table(side))
    )
    show(tables, map(one_line, report.sentences(found)), options["fmt"])


def _draw(found: Any, out: Path) -> None:
    from perfmodel.render.plot.studies import AccuracyCurve, time_to_accuracy

    curves = [
        AccuracyCurve(
            side.name, [e.time_s for e in seen], [e.precision for e in seen],
            run.moment.time_between_s, run.moment.reached,
        )
        for side in found.sides
        for run in side.runs
        for seen in [run.training.evaluated]
    ]  # fmt: skip
    write_picture(time_to_accuracy(curves, found.target), out)

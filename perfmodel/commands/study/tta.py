"""`perfmodel study tta`: time to accuracy of trainings, its stability, and against others."""

from __future__ import annotations

from pathlib import Path

import click

from perfmodel.commands import _options
from perfmodel.commands._output import emit


@click.command(cls=_options.taking_all("--against"))
@click.argument("runs", nargs=-1, required=True, type=_options.RUN)
@click.option(
    "--target", type=click.FloatRange(0, 1, min_open=True), default=0.95, show_default=True,
    help="Test accuracy that counts as reached.",
)  # fmt: skip
@click.option(
    "--against", multiple=True, metavar="OTHER...", type=_options.RUN,
    help="Runs of another configuration, to compare with.",
)  # fmt: skip
@_options.output(*_options.PICTURES)
def tta(
    runs: tuple[Path, ...], against: tuple[Path, ...], target: float, fmt: str, out: Path | None
) -> None:
    """Measure time to accuracy of repeated trainings.

    RUNS are records of one configuration with several seeds: files of python -m trainer --record,
    or of benchmarks.tta. Times are of training only, without set-up and evaluation.
    """
    from perfmodel.studies.analysis.tta import answer
    from perfmodel.studies.render import tta as report

    found = answer(runs, against, target)
    emit(report.result(found), fmt, out, picture=lambda: report.picture(found.sides, found.target))

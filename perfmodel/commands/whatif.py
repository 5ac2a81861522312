"""`perfmodel whatif`: what each change of the ladder would save of one report's batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands._options import FIGURES, JSON, REPORT, formats
from perfmodel.commands._output import Progress, emit, read_reports, report_written


@click.command()
@click.argument("reports", nargs=-1, required=True, type=REPORT)
@click.option(
    "--model", "path", type=JSON,
    help="What perfmodel calibrate wrote; without it, savings are bounds by the report alone.",
)  # fmt: skip
@FIGURES
@formats
def whatif(reports: tuple[Path, ...], path: Path | None, out: Path | None, fmt: str) -> None:
    """Rank the changes that would make this run faster, with what each removes and how sure it is.

    REPORTS are one run: one report, or one per rank. Of the trainer's runs, every saving is an
    upper bound without --model; with it, the model's relative change applied to the report's own
    batch, and bounds for what the model cannot predict. Also says what would raise arithmetic
    intensity and FLOP/s, and whether model parallelism would pay. Of any other program, and
    without the trainer's mark, says what a step could save at most were one part of it free.
    """
    from perfmodel.analysis.whatif import ask
    from perfmodel.models.model import load
    from perfmodel.programs import program_of
    from perfmodel.programs.identify import read_mark
    from perfmodel.programs.program import Options
    from perfmodel.render.whatif import bounds_result, result

    model = None if path is None else load(path)
    with Progress(len(reports)) as advance:
        traces = read_reports(reports, advance)
    modelled = program_of(traces, Options()).modelled
    if model is None and not (modelled and any(map(read_mark, traces))):
        from perfmodel.analysis.analyze import analyze

        emit(bounds_result(analyze(traces, Options()).fitted), fmt)
        return
    said = ask(traces, model)
    if out is not None:
        _draw(said, out)
    emit(result(said), fmt)


def _draw(said: Any, out: Path) -> None:
    from perfmodel.render.plot import save
    from perfmodel.render.plot.bars import SavingBar, savings

    bars = [
        SavingBar(c.name, c.saving_s, c.low_s, c.high_s, bound=c.source == "bound")
        for c in said.changes
    ]
    axes = savings(bars, said.batch_s, title=f"{said.label}: {said.case.label}")
    for written in save(axes, out, "whatif"):
        report_written(written)

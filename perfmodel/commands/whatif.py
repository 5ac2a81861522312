"""`perfmodel whatif`: what each change of the ladder would save of one report's batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands._options import (
    JSON,
    MACHINE,
    PICTURES,
    REPORT,
    analysis_options_of,
    batch_options,
    output_options,
)
from perfmodel.commands._output import Progress, emit, read_reports


@click.command()
@click.argument("reports", nargs=-1, required=True, type=REPORT)
@click.option(
    "--model", "path", type=JSON,
    help="What perfmodel calibrate wrote; without it, savings are bounds by the report alone.",
)  # fmt: skip
@batch_options
@MACHINE
@output_options(*PICTURES)
def whatif(
    reports: tuple[Path, ...], path: Path | None, fmt: str, out: Path | None, **options: Any
) -> None:
    """Rank the changes that would make a run faster.

    With what each removes and how sure it is. REPORTS are one run: one report, or one per rank. Of
    the trainer's runs, every saving is an upper bound without --model; with it, the model's
    relative change applied to the report's own batch, and bounds for what the model cannot predict.
    Also says what would raise arithmetic intensity and FLOP/s, and whether model parallelism would
    pay. Of any other program, and without the trainer's mark, says what a step could save at most
    were one part of it free.
    """
    from perfmodel.analysis.whatif import ask
    from perfmodel.models.model import load
    from perfmodel.programs import program_of
    from perfmodel.programs.identify import read_mark
    from perfmodel.render.whatif import bounds_result, picture, result

    model = None if path is None else load(path)
    chosen = analysis_options_of(options)
    with Progress(len(reports)) as advance:
        traces = read_reports(reports, advance)
    modelled = program_of(traces, chosen).modelled
    if model is None and not (modelled and any(map(read_mark, traces))):
        from perfmodel.analysis.analyze import analyze

        emit(bounds_result(analyze(traces, chosen).fitted), fmt, out)
        return
    said = ask(traces, model, chosen)
    emit(result(said), fmt, out, picture=lambda: picture(said))

"""`perfmodel whatif`: what each change of the ladder would save of one report's batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands import _options
from perfmodel.commands._output import Progress, distinct, emit


@click.command()
@_options.reports
@_options.MODEL
@_options.batches
@_options.MACHINE
@_options.output(*_options.PICTURES)
def whatif(
    reports: tuple[Path, ...], path: Path | None, fmt: str, out: Path | None, **options: Any
) -> None:
    """Rank the changes that would make a run faster.

    REPORTS are one run: one report, or one per rank. For the trainer, lists what each change saves
    and removes: without --model an upper bound, with it the model's relative change applied to the
    report's own batch (a bound, if the model cannot predict it); also what raises arithmetic
    intensity and FLOP/s, and whether model parallelism is faster. For any other program, lists the
    largest possible saving if one part of a step took no time.
    """
    from perfmodel.analysis.runs import measure_report
    from perfmodel.analysis.whatif import ask_of_measured
    from perfmodel.models.model import load
    from perfmodel.programs import program_named
    from perfmodel.programs.identify import read_mark
    from perfmodel.render.whatif import bounds_result, picture, result

    model = None if path is None else load(path)
    chosen = _options.chosen(options)
    with Progress(len(reports)) as advance:
        timed = []
        for one in distinct(reports):
            advance(f"reading {one.name}")
            timed.append(measure_report(one, one, chosen))
    models = [program_named(one.program).calibrated for one in timed]
    by_mark = any(one is not None and one.by_mark for one in models)
    if model is None and not (by_mark and any(read_mark(one.trace) for one in timed)):
        from perfmodel.analysis.analyze import analyze_measured

        emit(bounds_result(analyze_measured(timed, chosen).fitted), fmt, out)
        return
    said = ask_of_measured(timed, model, chosen)
    emit(result(said), fmt, out, picture=lambda: picture(said))

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
@click.option(
    "--apply", "together", metavar="CHANGE,...", default="",
    help="Replay several changes of the list at once (programs other than the trainer).",
)  # fmt: skip
@_options.output(*_options.PICTURES)
def whatif(
    reports: tuple[Path, ...],
    path: Path | None,
    together: str,
    fmt: str,
    out: Path | None,
    **options: Any,
) -> None:
    """Rank the changes that would make a run faster.

    REPORTS are one run: one report, or one per rank. The recorded steps are replayed with one
    change each, such as launches that cost nothing, or with several at once (--apply).

    For the trainer, savings are upper bounds; with --model they are the model's predictions for the
    report's own step. Changes that raise arithmetic intensity and FLOP/s are listed, too, and
    whether model parallelism is faster.
    """
    from perfmodel.analysis.analyze import analyze_run
    from perfmodel.analysis.changes import changes_of
    from perfmodel.analysis.runs import measure_report, one_run
    from perfmodel.base.errors import ModelError
    from perfmodel.programs import program_named
    from perfmodel.programs.identify import read_mark
    from perfmodel.render.whatif import graph_picture, graph_result
    from perfmodel.studies.analysis.whatif import ask_of_measured
    from perfmodel.studies.models.model import load
    from perfmodel.studies.registry import calibrated_of
    from perfmodel.studies.render.whatif import picture, result

    model = None if path is None else load(path)
    chosen = _options.chosen(options)
    with Progress(len(reports)) as advance:
        timed = []
        for one in distinct(reports):
            advance(f"reading {one.name}")
            timed.append(measure_report(one, one, chosen))
    models = [calibrated_of(program_named(one.program)) for one in timed]
    by_mark = any(one is not None and one.by_mark for one in models)
    if model is None and not (by_mark and any(read_mark(one.trace) for one in timed)):
        names = [name.strip() for name in together.split(",") if name.strip()]
        found = changes_of(analyze_run(one_run(timed, chosen), chosen), names)
        emit(graph_result(found), fmt, out, picture=lambda: graph_picture(found))
        return
    if together:
        raise ModelError(
            "expected --apply for a program other than the trainer; got the trainer's report, "
            "whose changes are the ladder's; leave --apply out"
        )
    said = ask_of_measured(timed, model, chosen)
    emit(result(said), fmt, out, picture=lambda: picture(said))

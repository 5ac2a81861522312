"""`perfmodel share`: a copy of a report without what is private in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands import _options
from perfmodel.commands._output import report_written


@click.command()
@click.argument("report", type=_options.REPORT)
@click.option("--out", "-o", type=_options.Out(".sqlite", result=False),
              metavar="COPY", help="Write to FILE.sqlite.")  # fmt: skip
@click.option(
    "--batch", "batches", metavar="N|FROM:TO",
    help="Only this batch, or batches from FROM up to but without TO, counted from 0.",
)  # fmt: skip
@_options.batches
@_options.QUIET
def share(report: Path, out: Path | None, batches: str | None, **options: Any) -> None:
    """Write a copy of a report that can be given to others.

    It has what perfmodel reads: events and their names, GPUs, ranks and versions. Environment
    variables, command lines, names of users, hosts, programs and threads, and paths are not in it.
    Names of ranges and kernels are: look at them with perfmodel stats COPY. perfmodel analyze says
    the same of the copy as of the report.
    """
    from perfmodel.base.files import staged_folder
    from perfmodel.readers.share import share as copied

    if out is None:
        raise click.UsageError("expected -o FILE.sqlite for the copy; got none; give it")
    window = None if batches is None else _window(report, batches, options)
    with staged_folder(out.parent) as folder:
        copied(report, folder / out.name, window)
    report_written(out, err=False)


def _window(report: Path, batches: str, options: dict[str, Any]) -> tuple[int, int]:
    """Find when the batches ran, on the report's clock."""
    from perfmodel.analysis.runs import time_runs
    from perfmodel.commands.timeline import chosen_batches
    from perfmodel.readers import read
    from perfmodel.timing.timeline import window_of

    (run,) = time_runs([read(report)], _options.chosen(options))
    found = window_of(run, chosen_batches(batches) or range(0))
    return found.start_ns, found.end_ns

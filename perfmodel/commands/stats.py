"""`perfmodel stats`: the summaries of `nsys stats`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import PerfmodelError
from perfmodel.commands.options import FORMATS, engine_of, engine_options
from perfmodel.commands.paths import REPORT
from perfmodel.commands.terminal import Progress, is_terminal, one_line, terminal, warn

if TYPE_CHECKING:
    from perfmodel.timing.nsys_stats.stats import Statistic
    from perfmodel.timing.nsys_stats.streamed import Found

_SHOWN_BYTES = 50_000_000
"""Reports this large together take a second, and get a progress bar."""

REPORTS = (
    "nvtx_gpu_proj_sum",
    "nvtx_pushpop_sum",
    "cuda_gpu_kern_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
    "cuda_api_sum",
    "mpi_event_sum",
)

_MOST_ROWS = 2000
"""Of a table for readers, which takes a millisecond each."""


@click.command()
@click.argument("reports", nargs=-1, required=True, type=REPORT)
@click.option(
    "--report",
    "names",
    multiple=True,
    type=click.Choice(REPORTS),
    help="Summary to print; may be repeated. All that the report has data for by default.",
)
@click.option(
    "--format",
    "fmt",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="How to print it; csv is as nsys prints it.",
)
@engine_options
def stats(reports: tuple[Path, ...], names: tuple[str, ...], fmt: str, **options: Any) -> None:
    """Print the summary reports of `nsys stats`, equal to the last digit.

    Several REPORTS are summarized together, with the medians of all their events. The CSV of one
    equals that of Nsight Systems 2024.2.3; docs/statistics.md names the cases in which nsys is
    quirky and perfmodel is not.
    """
    from perfmodel.timing.nsys_stats.summaries import to_statistic

    wanted = names or REPORTS
    found = _collected(reports, wanted, options)
    printed, missing = 0, []
    for name in wanted:
        try:
            counted = found[name]
            if isinstance(counted, PerfmodelError):
                raise counted
            statistic = to_statistic(name, counted)
        except PerfmodelError as error:
            missing.append(error)
            continue
        gap = "\n" if printed and fmt != "jsonl" else ""
        text = gap + _rendered(statistic, fmt)
        click.echo(text, nl=False, color=True)  # as it is: click would strip escapes of names
        printed += 1
    if names or not printed:
        for problem in missing if printed else missing[:-1]:
            warn(problem)
        if not printed:
            raise missing[-1]


def _collected(reports: tuple[Path, ...], names: Sequence[str], options: dict[str, Any]) -> Found:
    """Gather what the summaries are made of, with a bar over bytes of one report or over many."""
    from perfmodel.timing.nsys_stats.streamed import collect, summarize_reports

    engine = engine_of(options)
    reports = _distinct(reports)
    size = sum(path.stat().st_size for path in reports if path.is_file())
    quiet = size < _SHOWN_BYTES
    if len(reports) == 1 and engine.scheduler is None:
        path = reports[0]
        with Progress(size, quiet) as advance:
            return collect(path, names, lambda read: advance(f"reading {path.name}", read))
    with Progress(len(reports), quiet) as advance:
        return summarize_reports(reports, names, engine, lambda path: advance(f"read {path.name}"))


def _distinct(reports: tuple[Path, ...]) -> tuple[Path, ...]:
    """Leave out reports that were given before: their events would count twice."""
    first: dict[str, Path] = {}
    for path in reports:
        first.setdefault(os.path.realpath(path), path)
    if repeated := len(reports) - len(first):
        warn(f"{repeated} of the reports were given before and are left out")
    return tuple(first.values())


def _rendered(statistic: Statistic, fmt: Any) -> str:
    from perfmodel.base.table import render
    from perfmodel.timing.nsys_stats import stats as statistics

    if fmt == "csv":
        text = statistics.to_csv(statistic)
        return "\n".join(map(one_line, text.split("\n"))) if is_terminal() else text
    width, color = terminal()
    table = statistics.to_table(statistic)
    more = len(table.rows) - _MOST_ROWS
    if fmt == "table" and more > 0:
        table = replace(
            table, rows=table.rows[:_MOST_ROWS], notes=(f"{more} more rows: take --format csv",)
        )
    return render(table, fmt, width=width, color=color)

"""`perfmodel stats`: the summaries of `nsys stats`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import PerfmodelError
from perfmodel.commands import _options
from perfmodel.commands._output import Progress, distinct, emit, warn

if TYPE_CHECKING:
    from perfmodel.base.table import Table
    from perfmodel.timing.nsys_stats.collect import Found

_SHOWN_BYTES = 50_000_000
"""Reports this large together take a second, and get a progress bar."""

REPORTS = (
    "nvtx_gpu_proj_sum", "nvtx_pushpop_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum", "cuda_api_sum", "mpi_event_sum",
)  # fmt: skip

_MOST_ROWS = 2000
"""Of a table for readers, which takes a millisecond each."""


@click.command()
@_options.reports
@click.option(
    "--report", "names", multiple=True, type=click.Choice(REPORTS),
    help="Summary to print; repeatable. By default, all that the report has data for.",
)  # fmt: skip
@_options.engine
@_options.output()
def stats(
    reports: tuple[Path, ...], names: tuple[str, ...], fmt: str, out: Path | None, **options: Any
) -> None:
    """Print the summaries of `nsys stats`, equal to the last digit.

    Several REPORTS give one summary, with the medians of all their events. The CSV of one report
    equals that of Nsight Systems 2024.2.3; docs/statistics.md lists the exceptions.
    """
    from perfmodel.render.result import Result
    from perfmodel.timing.nsys_stats.collect import AbsentError
    from perfmodel.timing.nsys_stats.tables import csv_parts, to_table

    wanted = names or REPORTS
    found = _collected(reports, wanted, options)
    made, missing = [], []
    for name in wanted:
        try:
            counted = found[name]
            if isinstance(counted, PerfmodelError):
                raise counted
            made.append(to_table(name, counted))
            for warning in counted.warnings:
                warn(warning)
        except PerfmodelError as error:
            missing.append(error)
    for problem in missing if made else missing[:-1]:
        if names or not made or not isinstance(problem, AbsentError):
            warn(problem)
    if not made:
        raise missing[-1]
    shown = [table.first(_MOST_ROWS, "in --format csv") for table in made]
    files: dict[str, Iterable[tuple[str, Iterable[str]]]]
    files = {"csv": ((table.title, csv_parts(table)) for table in made)}
    files |= {each: _of_readers(shown, each) for each in ("markdown", "latex")}
    emit(Result(text=shown, tables=made, made=files), fmt, out)


def _of_readers(tables: Sequence[Table], fmt: str) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield name and content of the files of a format for readers."""
    from perfmodel.base.table import parts

    for table in tables:
        yield table.title, parts(table, fmt)


def _collected(reports: tuple[Path, ...], names: Sequence[str], options: dict[str, Any]) -> Found:
    """Gather what the summaries are made of, with a bar over bytes of one report or over many."""
    from perfmodel.timing.nsys_stats.collect import collect, summarize_reports

    engine = _options.engine_of(options)
    reports = distinct(reports)
    size = sum(path.stat().st_size for path in reports if path.is_file())
    shown = size >= _SHOWN_BYTES
    if len(reports) == 1 and engine.scheduler is None:
        path = reports[0]
        with Progress(size, shown) as advance:
            return collect(path, names, lambda read: advance(f"reading {path.name}", read))
    with Progress(len(reports), shown) as advance:
        return summarize_reports(reports, names, engine, lambda path: advance(f"read {path.name}"))

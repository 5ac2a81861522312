"""`perfmodel stats`: the summaries of `nsys stats`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.commands.options import FORMATS
from perfmodel.commands.paths import REPORT
from perfmodel.commands.terminal import is_terminal, one_line, terminal, warn
from perfmodel.errors import PerfmodelError

if TYPE_CHECKING:
    from perfmodel.stats import Statistic

REPORTS = (
    "nvtx_gpu_proj_sum",
    "nvtx_pushpop_sum",
    "cuda_gpu_kern_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
    "cuda_api_sum",
    "mpi_event_sum",
)


@click.command()
@click.argument("report", type=REPORT)
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
def stats(report: Path, names: tuple[str, ...], fmt: str) -> None:
    """Print the summary reports of `nsys stats`, equal to the last digit.

    The CSV equals that of Nsight Systems 2024.2.3; docs/statistics.md names the cases in which
    nsys is quirky and perfmodel is not.
    """
    from perfmodel import stats as statistics
    from perfmodel.readers import read

    wanted = names or REPORTS
    parts = frozenset().union(*(statistics.REPORTS[name][1] for name in wanted))
    trace = read(report, parts=parts)
    printed, missing = 0, []
    for name in wanted:
        try:
            statistic = statistics.REPORTS[name][0](trace)
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


def _rendered(statistic: Statistic, fmt: Any) -> str:
    from perfmodel import stats as statistics
    from perfmodel.table import render

    if fmt == "csv":
        text = statistics.to_csv(statistic)
        return "\n".join(map(one_line, text.split("\n"))) if is_terminal() else text
    width, color = terminal()
    return render(statistics.to_table(statistic), fmt, width=width, color=color)

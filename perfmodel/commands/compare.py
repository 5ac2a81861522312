"""`perfmodel compare`: before and after of one change, with a verdict that noise cannot pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands.options import ATTRIBUTE, BATCH_RANGE, FORMATS, WARMUP, TakesAll
from perfmodel.commands.paths import REPORT
from perfmodel.commands.terminal import Progress, is_terminal, one_line, terminal, warn


class _Sides(TakesAll):
    """Lets `--to` take all the reports that follow it."""

    flag = "--to"


@click.command(cls=_Sides)
@click.argument("reports", nargs=-1, required=True, type=REPORT)
@click.option(
    "--to",
    "after",
    multiple=True,
    metavar="REPORT...",
    type=REPORT,
    help="All reports after the change, where a side has several.",
)
@BATCH_RANGE
@WARMUP
@ATTRIBUTE
@click.option(
    "--least",
    type=click.FloatRange(0, 900),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="Changes up to this one do not count.",
)
@click.option(
    "--launch-noise",
    type=click.FloatRange(0, 900),
    default=10.0,
    show_default=True,
    metavar="PERCENT",
    help="What host times of equal launches are assumed to differ by, below 3 launches a side.",
)
@click.option(
    "--format",
    "fmt",
    type=click.Choice(["text", *FORMATS]),
    default="text",
    show_default=True,
    help="The summary as text, or one table of all rows.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON document.")
def compare(reports: tuple[Path, ...], after: tuple[Path, ...], fmt: Any, **options: Any) -> None:
    """Say which ranges, links and kernels a change made faster or slower, beyond noise.

    REPORTS are the report before and the one after; or, with --to, all reports before the change,
    and behind --to all reports after it. Reports of the ranks of one run are put together; every
    other report is a launch of its own. Three launches a side or more show how much launches
    differ.
    """
    import json
    import math

    from perfmodel.analysis.compare.compare import CompareOptions, compare_traces
    from perfmodel.base.table import render
    from perfmodel.readers import read
    from perfmodel.render import compare as report
    from perfmodel.render import compare_tables as tables

    if options["as_json"] and fmt != "text":
        raise click.UsageError(f"wanted --json or --format {fmt}; found both; leave one out")
    for name in ("least", "launch_noise"):
        if math.isnan(options[name]):
            flag = f"--{name.replace('_', '-')}"
            raise click.BadParameter(f"wanted a percentage from 0 to 900, found nan: {flag}")
    before = reports
    if not after:
        if len(reports) != 2:
            raise click.UsageError(
                f"wanted the report before and the one after; found {len(reports)}; give sets of "
                f"reports as: perfmodel compare BEFORE... --to AFTER..."
            )
        before, after = reports[:1], reports[1:]
    chosen = CompareOptions(
        batch_label=options["batch_range"] or "batch iteration",
        warmup=options["warmup"],
        by_time=options["attribute"] == "time",
        least=options["least"] / 100,
        noise=options["launch_noise"] / 100,
    )
    with Progress(2 * len(before + after), quiet=False) as advance:

        def opened(path: Path) -> Any:
            advance(f"reading {path.name}")
            return read(path)

        first, second = ([opened(path) for path in paths] for paths in (before, after))
        found = compare_traces(first, second, chosen, lambda label: advance(f"measuring {label}"))
    for warning in found.warnings:
        warn(warning)
    width, color = terminal()
    if options["as_json"]:
        click.echo(json.dumps(report.document(found), indent=1, allow_nan=False))
    elif fmt == "text":
        click.echo(report.text(found, width=width, color=color), nl=False)
    else:
        said = render(tables.rows(found), fmt, width=width, color=color)
        if fmt == "csv" and is_terminal():
            said = "\n".join(map(one_line, said.split("\n")))
        click.echo(said, nl=False)

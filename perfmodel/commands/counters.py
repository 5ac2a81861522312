"""`perfmodel counters`: what Nsight Compute counts, by level of memory and unit, against roofs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands.terminal import terminal, warn


@click.command()
@click.argument("files", nargs=-1)
@click.option(
    "--command",
    "collect",
    is_flag=True,
    help="Print the ncu command that counts what is needed of the program behind --.",
)
@click.option(
    "--range",
    "ranges",
    multiple=True,
    metavar="NAME",
    help="Only kernels launched inside this NVTX range; may be repeated.",
)
@click.option("--sectors", is_flag=True, help="With --command: count hits and misses of L2, too.")
@click.option(
    "--by",
    type=click.Choice(["kernel", "range"]),
    help="Sum by kernel or innermost NVTX range (where the file has ranges, by these).",
)
@click.option("--machine", metavar="NAME|FILE.toml", help="Whose ceilings, such as h200.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def counters(files: tuple[str, ...], **options: Any) -> None:
    """Read Nsight Compute's counters: FLOPs by type, bytes at L1, L2 and DRAM, intensities.

    FILES are CSV files of ncu, in both its forms, or .ncu-rep reports (these need ncu). Passes of
    one program that counted different metrics are put together. With --command, FILES are the
    program to be counted: perfmodel counters --command -- python train.py
    """
    if options["collect"]:
        import shlex

        from perfmodel.counters import command

        words = command(files, ranges=options["ranges"], sectors=options["sectors"])
        click.echo(shlex.join(words))
        return
    if not files:
        raise click.UsageError("wanted FILES of ncu, or --command -- PROGRAM; found neither")
    _report(tuple(map(Path, files)), options)


def _report(paths: tuple[Path, ...], options: dict[str, Any]) -> None:
    import json

    from perfmodel import counters as counting
    from perfmodel.counters import against, report
    from perfmodel.escape import escape_json
    from perfmodel.readers.ncu import read_counters
    from perfmodel.table import render

    read = read_counters(paths)
    launches = counting.inside(read.launches, options["ranges"])
    machine = against.machine_of(launches, options["machine"])
    by_range = options["by"] == "range" or (not options["by"] and any(x.ranges for x in launches))
    counted = (counting.by_range if by_range else counting.by_kernel)(launches)
    placed = [against.place(one, machine) for one in counted]
    said = [*read.warnings, *report.warnings(counted)]
    said += against.unknown(placed, machine) if machine else []
    for sentence in said:
        warn(sentence)
    if options["as_json"]:
        found = report.document(placed, machine, said)
        click.echo(escape_json(json.dumps(found, indent=1, allow_nan=False)))
        return
    width, color = terminal()
    for table in (report.work_table(placed), report.roof_table(placed, machine)):
        click.echo(render(table, "table", width=width, color=color))

"""`perfmodel counters`: what Nsight Compute counts, by level of memory and unit, against roofs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands import _options
from perfmodel.commands._output import echo, emit, warn


@click.command(cls=_options.Grouped)
@click.argument("files", nargs=-1)
@click.option(
    "--command", "collect", is_flag=True,
    help="Print the ncu command that counts the program after --.",
)  # fmt: skip
@click.option(
    "--range", "ranges", multiple=True, metavar="NAME",
    help="Only kernels launched inside this NVTX range; repeatable.",
)  # fmt: skip
@click.option("--sectors", is_flag=True, help="With --command: count hits and misses of L2, too.")
@click.option(
    "--by", type=click.Choice(["kernel", "range"]),
    help="Sum by kernel or innermost NVTX range (default: by range, if the file has any).",
)  # fmt: skip
@_options.machine("Ceilings: a name, such as h200, or a TOML file.")
@_options.symbols
@_options.WORKLOAD
@click.option(
    "--batches", type=click.IntRange(1),
    help="Number of batches counted; by default inferred from how often kernels ran.",
)  # fmt: skip
@_options.output(*_options.PICTURES)
def counters(files: tuple[str, ...], fmt: str, out: Path | None, **options: Any) -> None:
    """Read Nsight Compute's counters: FLOPs, bytes, rooflines.

    Shows FLOPs by type, bytes at L1, L2 and DRAM, and a hierarchical roofline.

    FILES are CSV files of ncu, with or without --page raw, or .ncu-rep reports (these need ncu).
    Passes of one program with different metrics are joined. With --command, FILES are the program
    to count: perfmodel counters --command -- python train.py
    """
    if options["collect"]:
        from perfmodel.analysis.counters import command
        from perfmodel.base.escape import shell_line

        words = command(files, ranges=options["ranges"], sectors=options["sectors"])
        echo(shell_line(words))
        return
    if not files:
        raise click.UsageError("expected FILES of ncu, or --command -- PROGRAM; got neither")
    context = click.get_current_context()
    paths = tuple(_options.COUNTERS.convert(name, None, context) for name in files)
    result, placed, machine = _read(paths, options)
    draws = out is not None and (machine is not None or _options.kind_of(out) in _options.PICTURES)
    emit(result, fmt, out, picture=(lambda: _picture(placed, machine)) if draws else None)


def _read(paths: tuple[Path, ...], options: dict[str, Any]) -> tuple[Any, list[Any], Any]:
    """Return the result, what it places, and whose ceilings they are."""
    from perfmodel.analysis import counters
    from perfmodel.analysis.counters import by_kernel, by_range, inside
    from perfmodel.readers.ncu import read_counters
    from perfmodel.render import counters as report

    read = read_counters(paths)
    launches = inside(read.launches, options["ranges"])
    machine, measured = _options.machine_of(options["machine"])
    machine = machine or counters.device_of(launches)
    ranged = options["by"] == "range" or (not options["by"] and any(x.ranges for x in launches))
    counted = (by_range if ranged else by_kernel)(launches)
    placed = [counters.place(one, machine) for one in counted]
    said = [*read.warnings, *report.warnings(counted)]
    if machine:
        said += counters.elsewhere(launches, machine, measured.gpus if measured else None)
        said += counters.unknown(placed, machine)
    if ranged and not any(one.ranges for one in launches):
        said.append("no launch has an NVTX range: collect with ncu --nvtx, or take --by kernel")
    compared = _compared(launches, options)
    said += counters.warnings(compared)
    return report.result(placed, machine, said, compared), placed, machine


def _compared(launches: Any, options: dict[str, Any]) -> list[Any]:
    """Compare formulas with counters, file by file, if sizes or a workload are given."""
    values = _options.symbol_values(options)
    if not values and not options["workload"]:
        return []
    from perfmodel.analysis import counters
    from perfmodel.analysis.counters import by_range
    from perfmodel.workloads import load

    given = load(options["workload"]) if options["workload"] else None
    values = values if given else {"p": 1, "b": 4, **values}
    ranges = by_range(launches)
    found: list[Any] = []
    for source in dict.fromkeys(one.source for one in ranges):
        run = [one for one in launches if source in ("", one.source)]
        workload = counters.as_counted(given, own := [r for r in ranges if r.source == source])
        batches = options["batches"] or counters.batches_of(run, workload.batch_range)
        found += counters.compare(own, workload, values, batches)
    return found


def _picture(placed: list[Any], machine: Any) -> Any:
    """Draw the roofline, and say what it cannot show."""
    from perfmodel.render.plot.roofline import MOST, drawable, levels

    if machine is None:
        raise click.UsageError("-o draws ceilings: give --machine NAME or FILE.toml, too")
    axes = levels(placed, title=f"What {machine.name} does by {placed[0].counted.kind}")
    pointless = [p.counted.label for p in placed if not drawable(p)]
    if pointless:
        warn(f"not drawn, for want of FLOPs, time or bytes: {', '.join(pointless)}")
    rest = len(placed) - len(pointless) - MOST
    if rest > 0:
        warn(f"{rest} more are not drawn: they take the least time")
    return axes

"""`perfmodel counters`: what Nsight Compute counts, by level of memory and unit, against roofs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands._options import (
    COUNTERS,
    FILE,
    TOML,
    formats,
    machine_option,
    symbol_options,
    symbol_values,
)
from perfmodel.commands._output import emit, warn, write_picture


@click.command()
@click.argument("files", nargs=-1)
@click.option(
    "--command", "collect", is_flag=True,
    help="Print the ncu command that counts what is needed of the program behind --.",
)  # fmt: skip
@click.option(
    "--range", "ranges", multiple=True, metavar="NAME",
    help="Only kernels launched inside this NVTX range; may be repeated.",
)  # fmt: skip
@click.option("--sectors", is_flag=True, help="With --command: count hits and misses of L2, too.")
@click.option(
    "--by", type=click.Choice(["kernel", "range"]),
    help="Sum by kernel or innermost NVTX range (where the file has ranges, by these).",
)  # fmt: skip
@machine_option("Whose ceilings, such as h200.")
@click.option(
    "--roofline", type=FILE, metavar="OUT.png",
    help="Draw the hierarchical roofline: PNG, SVG or PDF.",
)  # fmt: skip
@symbol_options
@click.option(
    "--workload", type=TOML, help="Compare with the formulas of this TOML file, not of the MLP."
)
@click.option(
    "--batches", type=click.IntRange(1),
    help="How many batches were counted; inferred from how often kernels ran by default.",
)  # fmt: skip
@formats
def counters(files: tuple[str, ...], fmt: str, **options: Any) -> None:
    """Read Nsight Compute's counters: FLOPs by type, bytes at L1, L2 and DRAM, intensities.

    FILES are CSV files of ncu, in both its forms, or .ncu-rep reports (these need ncu). Passes of
    one program that counted different metrics are put together. With --command, FILES are the
    program to be counted: perfmodel counters --command -- python train.py
    """
    if options["collect"]:
        import shlex

        from perfmodel.analysis.counters import command

        words = command(files, ranges=options["ranges"], sectors=options["sectors"])
        click.echo(shlex.join(words))
        return
    if not files:
        raise click.UsageError("expected FILES of ncu, or --command -- PROGRAM; got neither")
    context = click.get_current_context()
    emit(_read(tuple(COUNTERS.convert(name, None, context) for name in files), options), fmt)


def _read(paths: tuple[Path, ...], options: dict[str, Any]) -> Any:
    from perfmodel.analysis import counters
    from perfmodel.analysis.counters import by_kernel, by_range, inside
    from perfmodel.machines.measure.measurement import choose
    from perfmodel.readers.ncu import read_counters
    from perfmodel.render import counters as report

    read = read_counters(paths)
    launches = inside(read.launches, options["ranges"])
    chosen = options["machine"]
    machine, measured = choose(chosen) if chosen else (counters.device_of(launches), None)
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
    if options["roofline"]:
        _draw(placed, machine, options["roofline"])
    return report.result(placed, machine, said, compared)


def _compared(launches: Any, options: dict[str, Any]) -> list[Any]:
    """Formulas beside counters, file by file, where sizes or a workload are given."""
    values = symbol_values(options)
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


def _draw(placed: list[Any], machine: Any, out: Path) -> None:
    """Write the picture, and say what it cannot show."""
    from perfmodel.render.plot.roofline import MOST, drawable, levels

    if machine is None:
        raise click.UsageError("--roofline draws ceilings: give --machine NAME or FILE.toml, too")
    axes = levels(placed, title=f"What {machine.name} does by {placed[0].counted.kind}")
    write_picture(axes, out, option="--roofline")
    pointless = [p.counted.label for p in placed if not drawable(p)]
    if pointless:
        warn(f"not drawn, for want of FLOPs, time or bytes: {', '.join(pointless)}")
    rest = len(placed) - len(pointless) - MOST
    if rest > 0:
        warn(f"{rest} more are not drawn: they take the least time")

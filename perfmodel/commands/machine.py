"""`perfmodel machine`: the ceilings of known machines, and of this one as measured."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from perfmodel.commands import candidates
from perfmodel.commands.options import FORMATS, TABLES
from perfmodel.commands.paths import STDOUT, write
from perfmodel.commands.terminal import one_line, show, terminal, warn


@click.group()
def machine() -> None:
    """List and show the ceilings of machines, or measure those of this one."""


@machine.command("list")
@click.option("--format", "fmt", type=click.Choice(FORMATS), default="table", show_default=True)
def list_(fmt: Any) -> None:
    """List the machines that perfmodel knows, with their published ceilings."""
    from perfmodel.base.table import render
    from perfmodel.machines.machine import shipped
    from perfmodel.render import machines as report

    width, color = terminal()
    click.echo(render(report.listing(shipped()), fmt, width=width, color=color), nl=False)


@machine.command("show")
@click.argument("name", shell_complete=candidates.machines)
@TABLES
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON document.")
def show_(name: str, fmt: Any, as_json: bool) -> None:
    """Show every figure of a machine with its source.

    NAME is a machine of the list, the system's name of its GPU, or a TOML file. Figures that
    `perfmodel machine measure` wrote are held against the datasheet where GPU or CPU are known.
    """
    import json

    from perfmodel.machines.measure.measurement import choose
    from perfmodel.render import machines as report

    chosen, measurement = choose(name)
    if as_json:
        click.echo(json.dumps(report.document(chosen, measurement), indent=1, allow_nan=False))
        return
    if measurement:
        for line in report.headline(measurement) if fmt == "text" else ():
            click.echo(one_line(line))
        for warning in measurement.warnings:
            warn(warning)
    show(report.tables(chosen, measurement), fmt=fmt)


@machine.command("measure")
@click.option(
    "--out", "-o", required=True, type=click.Path(path_type=Path),
    help="Where the TOML file goes; - for standard output.",
)  # fmt: skip
@click.option(
    "--device",
    type=click.Choice(["auto", "gpu", "cpu"]),
    default="auto",
    show_default=True,
    help="What is measured; auto is the GPU where there is one.",
)
@click.option("--quick", is_flag=True, help="Fewer and smaller sizes, for a first look.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Parts that have not begun by then are left out.",
)
def measure_(out: Path, device: str, quick: bool, seconds: float) -> None:
    """Measure this machine's ceilings and write them to a TOML file.

    Under mpirun all-reduces are measured as well, and the first rank writes the file.
    """
    from perfmodel.base.errors import PerfmodelError
    from perfmodel.machines.measure.measure import measure
    from perfmodel.machines.measure.measurement import FULL, QUICK, as_text, save
    from perfmodel.machines.measure.ranks import connect

    ranks = connect()
    first = ranks.rank == 0

    def say(text: str) -> None:
        if first:
            click.echo(one_line(text), err=True)

    words = (out.name if word == str(out) else word for word in sys.argv[1:])  # no one's folders
    command = shlex.join(["perfmodel", *words])
    if ranks.size > 1:
        command = f"mpirun -n {ranks.size} {command}"
    effort = QUICK if quick else FULL
    try:
        for found in measure(
            ranks, effort, device=device, seconds=seconds, command=command, say=say
        ):
            if first and out != STDOUT:
                save(found, out)
    except PerfmodelError as error:
        if ranks.size == 1:
            raise
        click.echo(f"perfmodel: error: {one_line(error)}", err=True)
        ranks.abort(error.exit_code)  # the others wait for this one
    if first:
        for warning in found.warnings:
            warn(warning)
        if out == STDOUT:
            write(out, as_text(found))
        else:
            click.echo(f"Written: {out}")

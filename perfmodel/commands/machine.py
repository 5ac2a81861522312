"""`perfmodel machine`: the ceilings of known machines, and of this one as measured."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from perfmodel.commands._options import FILE, formats, machines
from perfmodel.commands._output import STDOUT, emit, one_line, report_written, warn, write


@click.group()
def machine() -> None:
    """List and show the ceilings of machines, or measure those of this one."""


@machine.command("list")
@formats
def list_(fmt: str) -> None:
    """List the machines that perfmodel knows, with their published ceilings."""
    from perfmodel.machines.machine import shipped
    from perfmodel.render.machines import listing
    from perfmodel.render.result import Result

    emit(Result([listing(shipped())]), fmt)


@machine.command("show")
@click.argument("name", shell_complete=machines)
@formats
def show_(name: str, fmt: str) -> None:
    """Show every figure of a machine with its source.

    NAME is a machine of the list, the system's name of its GPU, or a TOML file. Figures that
    `perfmodel machine measure` wrote are held against the datasheet where GPU or CPU are known.
    """
    from perfmodel.machines.measure.measurement import choose
    from perfmodel.render.machines import result

    emit(result(*choose(name)), fmt)


@machine.command("measure")
@click.option(
    "--out", "-o", required=True, type=FILE,
    help="Where the TOML file goes; - for standard output.",
)  # fmt: skip
@click.option(
    "--device", type=click.Choice(["auto", "gpu", "cpu"]), default="auto", show_default=True,
    help="What is measured; auto is the GPU where there is one.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Fewer and smaller sizes, for a first look.")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True,
    help="Parts that have not begun by then are left out.",
)  # fmt: skip
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
            report_written(out, err=False)

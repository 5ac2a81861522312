"""`perfmodel machine`: the ceilings of known machines, and of this one as measured."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from perfmodel.commands.terminal import one_line, warn


@click.group()
def machine() -> None:
    """List and show the ceilings of machines, or measure those of this one."""


@machine.command("measure")
@click.option(
    "--out", "-o", required=True, type=click.Path(path_type=Path), help="Where the TOML file goes."
)
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
    from perfmodel.ceilings.measure import measure
    from perfmodel.ceilings.measurement_file import save
    from perfmodel.ceilings.ranks import connect
    from perfmodel.ceilings.shapes import FULL, QUICK

    ranks = connect()
    first = ranks.rank == 0

    def say(text: str) -> None:
        if first:
            click.echo(one_line(text), err=True)

    command = shlex.join(["perfmodel", *sys.argv[1:]])
    if ranks.size > 1:
        command = f"mpirun -n {ranks.size} {command}"
    effort = QUICK if quick else FULL
    for found in measure(ranks, effort, device=device, seconds=seconds, command=command, say=say):
        if first:
            save(found, out)
    if first:
        for warning in found.warnings:
            warn(warning)
        click.echo(f"Written: {out}")

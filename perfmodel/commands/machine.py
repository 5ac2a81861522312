"""`perfmodel machine`: the ceilings of known machines, and of this one as measured."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from perfmodel.commands import _options
from perfmodel.commands._output import echo, emit, one_line, say_error, writes


@click.group()
def machine() -> None:
    """List, show or measure the ceilings of machines."""


@machine.command("list")
@_options.output()
def list_(fmt: str, out: Path | None) -> None:
    """List the known machines and their published ceilings."""
    from perfmodel.machines.devices import shipped
    from perfmodel.render.machines import listing
    from perfmodel.render.result import Result

    emit(Result([listing(shipped())]), fmt, out)


@machine.command("show")
@click.argument("name", type=_options.MachineName())
@_options.output()
def show_(name: str, fmt: str, out: Path | None) -> None:
    """Show every figure of a machine with its source.

    NAME is a machine of the list, CUDA's name of its GPU, or a TOML file. Figures of `perfmodel
    machine measure` are compared with the data sheet, if the GPU or CPU is known.
    """
    from perfmodel.machines.measure.measurement import choose
    from perfmodel.render.machines import result

    emit(result(*choose(name)), fmt, out)


@machine.command("measure")
@click.option(
    "--device", type=click.Choice(["auto", "gpu", "cpu"]), default="auto", show_default=True,
    help="Parts to measure; auto is the GPU if there is one.",
)  # fmt: skip
@click.option(
    "--gemm-grid", is_flag=True,
    help="Also time PyTorch's GEMMs and attention by size, for predicting its programs.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Fewer and smaller sizes, for a first look.")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=120.0, show_default=True,
    help="Parts that have not begun after this time are left out.",
)  # fmt: skip
@click.option(
    "--only", metavar="WORD", multiple=True, help="Only parts whose names have it; repeatable."
)
@click.option(
    "--kernels", metavar="MODULE",
    help="Also time a program's own kernels by shape, such as trainer.microbenchmarks.",
)  # fmt: skip
@_options.output(".toml", "-", "", said="FILE.toml is a machine, for --machine.")
def measure_(
    device: str, gemm_grid: bool, quick: bool, seconds: float, only: tuple[str, ...],
    kernels: str | None, fmt: str, out: Path | None,
) -> None:  # fmt: skip
    """Measure this machine's ceilings.

    -o FILE.toml writes them. Under mpirun all-reduces are measured, too, and the first rank writes
    the file.
    """
    from perfmodel.base.errors import PerfmodelError
    from perfmodel.machines.measure.measure import measure
    from perfmodel.machines.measure.measurement import FULL, QUICK, as_text, save
    from perfmodel.machines.measure.ranks import connect
    from perfmodel.render.machines import result

    ranks = connect()
    first = ranks.rank == 0

    def say(text: str) -> None:
        if first:
            echo(one_line(text), err=True)

    words = (Path(word).name if word == str(out) else word for word in sys.argv[1:])
    command = shlex.join(["perfmodel", *words])
    if ranks.size > 1:
        command = f"mpirun -n {ranks.size} {command}"
    effort = QUICK if quick else FULL
    try:
        for found in measure(
            ranks, effort, device=device, gemm_grid=gemm_grid, seconds=seconds, command=command,
            only=only, own=kernels, say=say,
        ):  # fmt: skip
            if first and out is not None and _options.kind_of(out) in ("", ".toml"):
                save(found, out)  # whatever comes later
    except PerfmodelError as error:
        if ranks.size == 1:
            raise
        say_error(error)
        ranks.abort(error.exit_code)  # the others wait for this one

    if first:
        shown = result(found.machine, found)
        emit(
            shown, fmt, out, makes=dict.fromkeys((".toml", "-", ""), writes(lambda: as_text(found)))
        )

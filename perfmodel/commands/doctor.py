"""`perfmodel doctor`: what works on this machine, and what to do about what does not."""

from __future__ import annotations

from pathlib import Path

import click

from perfmodel.commands import _options
from perfmodel.commands._output import Progress, emit

_PURPOSES = ("analyze", "collect", "mpi", "gpu", "count")


@click.command()
@click.option(
    "--for", "purposes", multiple=True, type=click.Choice(_PURPOSES), default=("analyze",),
    show_default=True, help="Purpose of the machine; repeatable.",
)  # fmt: skip
@_options.output()
@click.pass_context
def doctor(
    context: click.Context, /, purposes: tuple[str, ...], fmt: str, out: Path | None
) -> None:
    """Check Python, Nsight Systems, MPI and GPUs on this machine.

    Each part is tried: a figure is drawn, an empty program profiled, two ranks are started. Only
    what --for needs can fail, and then the exit code is 1. analyze: read reports; collect: profile;
    mpi: start ranks; gpu: compute with CuPy; count: use Nsight Compute.
    """
    from perfmodel.machines.doctor import diagnose
    from perfmodel.render.machines import broken, checkup

    with Progress(1) as advance:
        advance("asking this machine, up to a minute")
        checks = diagnose(purposes)
    emit(checkup(checks, purposes), fmt, out)
    context.exit(1 if broken(checks) else 0)

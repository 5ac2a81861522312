"""`perfmodel doctor`: what works on this machine, and what to do about what does not."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.commands.options import TABLES
from perfmodel.commands.terminal import Progress, one_line, show

_PURPOSES = ("analyze", "collect", "mpi", "gpu", "count")


@click.command()
@click.option(
    "--for", "purposes", multiple=True, type=click.Choice(_PURPOSES), default=("analyze",),
    show_default=True, help="What the machine is for; may be repeated.",
)  # fmt: skip
@TABLES
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.pass_context
def doctor(context: click.Context, /, purposes: tuple[str, ...], fmt: Any, as_json: bool) -> None:
    """Check Python, Nsight Systems, MPI, GPU and counters here, and say what to do.

    Everything is tried, not only looked for: a figure is drawn, an empty program profiled, two
    ranks are started. Only what --for needs can fail, and then the exit code is 1: analyze reads
    reports, collect profiles, mpi starts ranks, gpu computes, count is Nsight Compute.
    """
    import json

    from perfmodel.base.escape import escape_json
    from perfmodel.machines.doctor.diagnose import diagnose
    from perfmodel.render import doctor as report

    with Progress(1, quiet=False) as advance:
        advance("asking this machine, up to a minute")
        checks = diagnose(purposes)
    if as_json:
        said = json.dumps(report.document(checks, purposes), indent=1, allow_nan=False)
        click.echo(escape_json(said))
    else:
        sentences = report.sentences(checks, purposes)
        lines = (one_line(line) for said in sentences for line in said.split("\n"))
        show([report.table(checks)], lines, fmt)
    context.exit(1 if report.broken(checks) else 0)

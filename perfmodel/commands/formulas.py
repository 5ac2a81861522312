"""`perfmodel formulas`: a workload's FLOPs and bytes as formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands._options import COUNTING, WORKLOAD, flag, symbol_options, symbol_values
from perfmodel.programs import LEADING_SETTING, LINKS, program_of_sizes


@click.command()
@WORKLOAD
@COUNTING
@click.option(
    "--parallel", type=click.Choice(["data", "model"]), default="data", show_default=True,
    help="What the ranks of the built-in MLP share: the batch, or the hidden units.",
)  # fmt: skip
@click.option(
    flag(LEADING_SETTING), "links", type=click.Choice(list(LINKS)), default="host",
    show_default=True,
    help="What sums over the ranks: MPI between copies, MPI alone, NCCL, one kernel, nothing.",
)  # fmt: skip
@symbol_options
@click.option(
    "--format", "fmt", type=click.Choice(["text", "latex", "json"]), default="text",
    show_default=True, help="How to print it.",
)  # fmt: skip
def formulas(
    workload: Path | None, counting: Any, parallel: Any, links: Any, fmt: Any, **options: Any
) -> None:
    """Print the workload's FLOPs and bytes per range, per rank and batch, as formulas.

    With values of all symbols, also what raises arithmetic intensity there, in numbers.
    """
    from perfmodel.programs.identify import Identity
    from perfmodel.programs.program import Options
    from perfmodel.workloads import load
    from perfmodel.workloads.formulas import formulas as described

    chosen = Options(counting=counting, workload=load(workload) if workload else None)
    mark = {"parallel": parallel, LEADING_SETTING: links}
    model = program_of_sizes(chosen).workload(Identity({}, "", mark), chosen)
    assert model is not None
    click.echo(described(model, fmt, symbol_values(options) or None), nl=False)

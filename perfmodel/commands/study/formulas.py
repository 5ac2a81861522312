"""`perfmodel study formulas`: a workload's FLOPs and bytes as formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands import _options
from perfmodel.commands._output import emit
from perfmodel.programs import FORMULA_SETTINGS, program_of_sizes


@click.command(cls=_options.Grouped)
@_options.WORKLOAD
@_options.COUNTING
@_options.settings(*FORMULA_SETTINGS)
@_options.symbols
@_options.output()
def formulas(
    workload: Path | None, counting: Any, fmt: str, out: Path | None, **options: Any
) -> None:
    """Print a workload's FLOPs and bytes as formulas.

    Formulas are per range, rank and step. With values of all symbols, changes that raise the
    arithmetic intensity are listed, too.
    """
    from perfmodel.programs.identify import Identity
    from perfmodel.programs.program import Options
    from perfmodel.render.result import Result
    from perfmodel.workloads import load
    from perfmodel.workloads.formulas import formulas as described

    chosen = Options(counting=counting, workload=load(workload) if workload else None)
    run = Identity({}, "", _options.trainer_settings(options))
    model = program_of_sizes(chosen).workload(run, chosen)
    assert model is not None
    values = _options.symbol_values(options) or None

    def written(form: Any) -> tuple[str, str]:
        return "formulas", described(model, form, values)

    emit(Result(made={form: map(written, [form]) for form in _options.FORMATS}), fmt, out)

"""Programs: what is known of one kind of program; the first that recognizes a report is its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

from perfmodel.programs.mlp.settings import (
    BATCH_RANGE,
    FORMULA_SETTINGS,
    LEADING_SETTING,
    SETTING_FLAGS,
    SETTINGS,
    SWITCH_FLAGS,
    settings_of,
)

if TYPE_CHECKING:
    from perfmodel.programs.program import Options, Program
    from perfmodel.readers.trace import Trace
    from perfmodel.timing.run import Run
    from perfmodel.timing.run_steps import RunSteps
    from perfmodel.workloads.work import Workload

__all__ = [
    "BATCH_RANGE",
    "FORMULA_SETTINGS",
    "LEADING_SETTING",
    "MARK_SYMBOLS",
    "SETTINGS",
    "SETTING_FLAGS",
    "SWITCH_FLAGS",
    "Counting",
    "program_named",
    "program_of",
    "program_of_run",
    "program_of_sizes",
    "programs",
    "settings_of_mark",
    "steps_of_run",
    "workload_of_kernels",
]  # fmt: skip

Counting = Literal["document", "full"]
"""Ways to count FLOPs and bytes: as the CME 213 assignment does, or everything."""
MARK_SYMBOLS: Final = {
    "D": "input_size",
    "H": "hidden_size",
    "C": "num_classes",
    "B": "batch_size",
    "p": "ranks",
}
"""Symbols and their names in a configuration mark and on the command line."""


_PROGRAMS: Final = (
    ("mlp.program", "MLP_PROGRAM"),
    ("own", "OWN_PROGRAM"),
    ("jax", "JAX_PROGRAM"),
    ("serving.program", "SERVING_PROGRAM"),
    ("pytorch.program", "PYTORCH_PROGRAM"),
    ("program", "UNKNOWN_PROGRAM"),
)


def programs() -> Iterator[Program]:
    """Yield the programs in the order in which they are asked; the last recognizes every report.

    Each is imported when it is asked, not with the package: the commands' flags come from it, too.
    """
    for module, name in _PROGRAMS:
        program: Program = getattr(import_module(f"perfmodel.programs.{module}"), name)
        yield program


def program_of(traces: Sequence[Trace], options: Options) -> Program:
    """Return the program that recognizes a report of a run."""
    for program in programs():
        if any(program.recognizes(trace, options) for trace in traces):
            return program
    return program_named("unknown")


def program_of_run(run: Run, options: Options) -> Program:
    """Return the program that recognized the reports when the run was measured."""
    named = (program for program in programs() if program.name == run.program)
    return next(named, None) or program_of(run.traces, options)


def steps_of_run(run: Run, warmup: int | None = None) -> RunSteps:
    """Return the steps of a run on the clock of its program, as `run_steps` does."""
    from perfmodel.programs.program import Options
    from perfmodel.timing.run_steps import run_steps

    program = program_of_run(run, Options())
    return run_steps(run, program.step_clock, replay=program.replay, warmup=warmup)


def program_named(name: str) -> Program:
    """Return the program of this name; the user's own has its formulas' instead."""
    from perfmodel.programs.own import OWN_PROGRAM

    return next((program for program in programs() if program.name == name), OWN_PROGRAM)


def program_of_sizes(options: Options | None = None) -> Program:
    """Return the program that sizes alone describe: of the user's formulas, else the trainer."""
    from perfmodel.programs.mlp.program import MLP_PROGRAM
    from perfmodel.programs.own import OWN_PROGRAM

    return MLP_PROGRAM if options is None or options.workload is None else OWN_PROGRAM


def settings_of_mark(program: Program, config: Mapping[str, Any]) -> dict[str, str]:
    """Return what a configuration mark says that changes the time of a step, by name."""
    return settings_of(config) if program.name == "mlp" else {}


def workload_of_kernels(kernels: Mapping[str, Collection[str]]) -> Workload:
    """Return the formulas of a run of the trainer of which only the kernels by range are known."""
    from perfmodel.programs.mlp.mlp import as_its_kernels

    return as_its_kernels(kernels)

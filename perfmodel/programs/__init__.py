"""Programs: what is known of one kind of program; the first that recognizes a report is its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.programs.program import Options, Program, StepClock
    from perfmodel.readers.trace import Trace
    from perfmodel.timing.run import Run


def programs() -> tuple[Program, ...]:
    """Return the programs in the order in which they are asked; the last recognizes every report.

    They are imported here, not with the package: the commands' flags come from it, too.
    """
    from perfmodel.programs.jax import JAX_PROGRAM
    from perfmodel.programs.mlp.program import MLP_PROGRAM
    from perfmodel.programs.own import OWN_PROGRAM
    from perfmodel.programs.pytorch.program import PYTORCH_PROGRAM
    from perfmodel.programs.unknown import UNKNOWN_PROGRAM

    return (MLP_PROGRAM, OWN_PROGRAM, JAX_PROGRAM, PYTORCH_PROGRAM, UNKNOWN_PROGRAM)


def program_of(traces: Sequence[Trace], options: Options) -> Program:
    """Return the program that recognizes a report of a run."""
    known = programs()
    return next(p for p in known if p is known[-1] or any(p.recognizes(t, options) for t in traces))


def program_of_run(run: Run, options: Options) -> Program:
    """Return the program that recognized the reports when the run was measured."""
    named = (program for program in programs() if program.name == run.program)
    return next(named, None) or program_of(run.traces, options)


def clock_of(run: Run) -> StepClock:
    """Return what times a step of a run: its range on the host, or the GPU."""
    from perfmodel.programs.program import Options

    return program_of_run(run, Options()).step_clock

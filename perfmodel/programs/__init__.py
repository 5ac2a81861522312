"""Programs: what is known of one kind of program; the first that recognizes a report is its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perfmodel.programs.jax import JAX_PROGRAM
from perfmodel.programs.mlp.program import MLP_PROGRAM
from perfmodel.programs.own import OWN_PROGRAM
from perfmodel.programs.program import Options, Program
from perfmodel.programs.pytorch.program import PYTORCH_PROGRAM
from perfmodel.programs.unknown import UNKNOWN_PROGRAM
from perfmodel.readers.trace import Trace

PROGRAMS: Final[tuple[Program, ...]] = (
    MLP_PROGRAM,
    OWN_PROGRAM,
    JAX_PROGRAM,
    PYTORCH_PROGRAM,
    UNKNOWN_PROGRAM,
)
"""In the order in which they are asked; the last recognizes every report."""


def program_of(traces: Sequence[Trace], options: Options) -> Program:
    """Return the program that recognizes a report of a run."""
    for program in PROGRAMS:
        if any(program.recognizes(trace, options) for trace in traces):
            return program
    return UNKNOWN_PROGRAM


def program_named(name: str) -> Program | None:
    """Return the program of a name, None if there is none."""
    return next((program for program in PROGRAMS if program.name == name), None)

"""The command line: the group of the commands, and what their errors become."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import click

from perfmodel import __version__
from perfmodel.commands.analyze import analyze
from perfmodel.commands.calibrate import calibrate
from perfmodel.commands.compare import compare
from perfmodel.commands.completion import completion
from perfmodel.commands.counters import counters
from perfmodel.commands.doctor import doctor
from perfmodel.commands.formulas import formulas
from perfmodel.commands.layers import layers
from perfmodel.commands.machine import machine
from perfmodel.commands.memory import memory
from perfmodel.commands.predict import predict
from perfmodel.commands.report import report
from perfmodel.commands.scaling import scaling
from perfmodel.commands.splits import splits
from perfmodel.commands.stats import REPORTS, stats
from perfmodel.commands.terminal import one_line
from perfmodel.commands.timeline import timeline
from perfmodel.commands.tta import tta
from perfmodel.commands.utilization import utilization
from perfmodel.commands.whatif import whatif
from perfmodel.commands.writeup import writeup
from perfmodel.errors import PerfmodelError

__all__ = ["REPORTS", "main"]

gc.set_threshold(100_000)  # start-up makes many objects and drops few
# nothing here multiplies matrices on the host: spare NumPy the start of its BLAS threads
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


class _Main(click.Group):
    """Turns perfmodel's errors into one line on stderr and their exit code."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except PerfmodelError as error:
            click.echo(f"perfmodel: error: {one_line(error)}", err=True)
            context.exit(error.exit_code)
        except BrokenPipeError:
            sys.stderr.close()
            context.exit(0)
        except MemoryError:
            said = "perfmodel: error: there is not enough memory; free some, or give fewer reports"
            click.echo(said, err=True)
            context.exit(1)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else "standard output: "
            said = f"{where}{error.strerror or error}; free some space or write elsewhere"
            click.echo(f"perfmodel: error: {one_line(said)}", err=True)
            context.exit(1)


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="perfmodel")
def main() -> None:
    """From a raw Nsight Systems report to a validated performance model.

    Exit codes: 0 done; 1 an output cannot be written, NVML is missing, or doctor found something
    broken; 2 wrong usage; 3 the report cannot be read; 4 it lacks what the question needs; 5 the
    workload is unknown or impossible; 6 a model cannot be fitted.
    """


for _command in (
    analyze,
    report,
    compare,
    calibrate,
    predict,
    whatif,
    stats,
    formulas,
    layers,
    splits,
    scaling,
    machine,
    counters,
    memory,
    utilization,
    timeline,
    tta,
    completion,
    doctor,
    writeup,
):  # one file in commands/ each
    main.add_command(_command)

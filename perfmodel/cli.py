"""The command line: the group of the commands, and what their errors become."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any, Final, cast

import click

from perfmodel import __version__
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.escape import substitute_unencodable
from perfmodel.commands._options import COMPLETING
from perfmodel.commands._output import say_error

__all__ = ["COMMANDS", "main"]

COMMANDS: Final = (
    "analyze", "report", "compare", "calibrate", "predict", "whatif", "stats", "formulas", "layers",
    "splits", "scaling", "machine", "counters", "memory", "utilization", "timeline", "tta",
    "completion", "doctor",
)  # fmt: skip
"""One file in commands/ each, with a command of its name."""

gc.set_threshold(100_000)  # start-up makes many objects and drops few
# nothing here multiplies matrices on the host: spare NumPy the start of its BLAS threads
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
substitute_unencodable(sys.stdout, sys.stderr)
if COMPLETING in os.environ:
    import_module("perfmodel.commands.completion")  # knows how bash wants its words


class _Main(click.Group):
    """Turns perfmodel's errors into one line on stderr and their exit code."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except PerfmodelError as error:
            say_error(error)
            context.exit(error.exit_code)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # another one ends it at once, silently
            raise
        except BrokenPipeError:
            sys.stderr.close()
            context.exit(0)
        except MemoryError:
            say_error("there is not enough memory; free some, or give fewer reports")
            context.exit(1)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else "standard output: "
            said = f"{where}{error.strerror or error}; free some space or write elsewhere"
            say_error(said)
            context.exit(1)


class _Commands(MutableMapping[str, click.Command]):
    """The commands by name, each imported when it is asked for."""

    def __init__(self) -> None:
        self._known: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._known:
            if name not in COMMANDS:
                raise KeyError(name)
            found = getattr(import_module(f"perfmodel.commands.{name}"), name)
            self._known[name] = cast(click.Command, found)
        return self._known[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._known[name] = command

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*COMMANDS, *self._known)))

    def __len__(self) -> int:
        return len({*COMMANDS, *self._known})


@click.group(
    cls=_Main, commands=_Commands(), context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="perfmodel")
def main() -> None:
    """From a raw Nsight Systems report to a validated performance model.

    Exit codes: 0 done; 1 an output cannot be written, a machine is unknown, NVML is missing, or
    doctor found something broken; 2 wrong usage; 3 the report cannot be read; 4 it lacks what the
    question needs; 5 the workload is unknown or impossible; 6 a model cannot be fitted.
    """

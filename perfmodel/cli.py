"""The command line: the group of the commands, and what their errors become."""

from __future__ import annotations

import gc
import io
import os
import sys
from importlib import import_module
from typing import Any, Final, NoReturn

import click

from perfmodel import __version__
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.escape import printable, substitute_unencodable
from perfmodel.base.files import OF_THE_PROCESS, advice
from perfmodel.commands._options import COMPLETING
from perfmodel.commands._output import asks_for_json, drop, echo, print_error, say_error

__all__ = ["COMMANDS", "GROUPS", "main"]

GROUPS: Final = {
    "Explain a run": ("analyze", "report", "timeline", "whatif"),
    "Compare runs": ("compare",),
    "Predict": ("predict", "study"),
    "Read more data": ("stats", "counters", "memory", "utilization"),
    "Set up and share": ("doctor", "machine", "share", "mcp", "completion"),
}  # fmt: skip
"""Commands by purpose, the most used first; each is a file of its name in commands/."""
_OF_STUDIES: Final = ("calibrate", "splits", "tta", "scaling", "layers", "formulas")
"""Commands that were called without `study`, by their names."""
COMMANDS: Final = tuple(name for names in GROUPS.values() for name in names)

gc.set_threshold(300_000)  # commands make many objects and drop few
# nothing here multiplies matrices on the host: spare NumPy the start of its BLAS threads
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
substitute_unencodable(sys.stdout, sys.stderr)
if COMPLETING in os.environ:
    import_module("perfmodel.commands.completion")  # knows how bash wants its words

_INTERRUPTED: Final = 130
interrupted = 0
"""Exit code of the signal that came, 130 for Ctrl-C, or 0: code that it interrupts may raise
something else instead."""


class _Main(click.Group):
    """Turns perfmodel's errors into one line on stderr, or JSON, and their exit code."""

    _as_json = False

    def main(self, *arguments: Any, **options: Any) -> NoReturn:
        """Run a command and exit, as click does, but for signals: their code and no word."""
        given = arguments[0] if arguments else options.get("args")
        self._as_json = asks_for_json(sys.argv[1:] if given is None else given)
        try:
            code = super().main(*arguments, **{**options, "standalone_mode": False})
        except click.exceptions.Abort:
            code = _INTERRUPTED
        except click.ClickException as error:
            code = error.exit_code
            if self._as_json and not interrupted:
                print_error("UsageError", error.format_message(), code)
            elif not interrupted:
                error.show(shown := io.StringIO())  # it quotes what was given
                echo("\n".join(map(printable, shown.getvalue().splitlines())), err=True)
        except OSError as error:  # of help, which is printed before a command runs
            code = interrupted or _said(error, as_json=self._as_json)
        except BaseException:
            if not interrupted:
                raise
            code = interrupted
        sys.exit(interrupted or (code if isinstance(code, int) else 0))

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except Exception as error:
            if interrupted:
                raise KeyboardInterrupt from error
            code = _said(error, as_json=self._as_json)
            if code is None:
                raise
            context.exit(code)

    def list_commands(self, _: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import the command that is asked for, and no other."""
        if name not in COMMANDS:
            return super().get_command(context, name)
        found: click.Command = getattr(import_module(f"perfmodel.commands.{name}"), name)
        return found

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or name the one that its name is near to."""
        try:
            return super().resolve_command(context, args)
        except click.UsageError as error:
            if args[0] in _OF_STUDIES:
                now = f"perfmodel study {args[0]}"
                said = f"expected a command; got {args[0]!r}, which is now {now!r}"
                raise click.UsageError(said, context) from None
            from difflib import get_close_matches  # only where a name is wrong

            near = get_close_matches(args[0], COMMANDS, 1)
            if not near:
                raise
            said = f"{error.message} Did you mean {near[0]!r}?"
            raise click.UsageError(said, context) from error

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands before the options."""
        self.format_commands(context, formatter)
        click.Command.format_options(self, context, formatter)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by purpose, each with its whole summary."""
        for title, names in GROUPS.items():
            commands = [(name, self.get_command(context, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl([(n, c.get_short_help_str(200)) for n, c in commands if c])


def _said(error: Exception, *, as_json: bool) -> int | None:
    """Say what went wrong, in one line; return the exit code, or None where it is our fault."""

    def say(message: object, code: int = 1) -> int:
        if as_json:
            print_error(type(error).__name__, message, code)
        else:
            say_error(message)
        return code

    if isinstance(error, PerfmodelError):
        return say(error, error.exit_code)
    if isinstance(error, MemoryError):
        return say("there is not enough memory; free some, or give fewer reports")
    if not isinstance(error, OSError):
        return None
    if not error.filename and error.errno not in OF_THE_PROCESS:
        drop(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return 0
    where = f"{error.filename}: " if error.filename else "standard output: "
    if error.errno in OF_THE_PROCESS:
        where = ""
    return say(f"{where}{error.strerror or error}; {advice(error)}")


@click.group(
    cls=_Main,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done; 1 an output cannot be written, a machine is unknown, NVML is "
    "missing, or doctor found something broken; 2 wrong usage; 3 the report cannot be read; 4 it "
    "lacks what the command needs; 5 the workload is unknown or impossible; 6 a model cannot be "
    "fitted; 7 compare found a slowdown; 8 its noise is too large to decide; 129, 130, 143 SIGHUP, "
    "Ctrl-C, SIGTERM.",
)
@click.version_option(__version__, prog_name="perfmodel")
def main() -> None:
    """Find what limits a program, in recordings of Nsight Systems and torch.profiler."""

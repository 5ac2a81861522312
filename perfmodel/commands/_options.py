"""Options and arguments that commands share, what their values mean, and what a shell completes."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from perfmodel.programs import MARK_SYMBOLS, SETTING_FLAGS, SWITCH_FLAGS

if TYPE_CHECKING:
    from perfmodel.base.parallel import Engine

FORMATS: Final = ("text", "csv", "json", "jsonl", "markdown", "latex")
COMPLETING: Final = "_PERFMODEL_COMPLETE"
"""What a shell's script sets to tell the program that it is asked to complete; click's name."""

_STDIN: Final = "perfmodel.commands.stdin"
_BLOCK: Final = 1 << 20
_KINDS: Final = (
    (b"SQLite format 3\x00", ".sqlite"),
    (b"\x1f\x8b", ".sqlite.gz"),
    (b"\xfd7zXZ", ".sqlite.xz"),
    (b"\x28\xb5\x2f\xfd", ".sqlite.zst"),
    (b"NVIDIA Tegra Profiler Report", ".nsys-rep"),
    (b"{", ".json"),
)
"""First bytes of what may come through a pipe, and how such a file is called."""
_LARGEST_FOR_RANGES_BYTES: Final = 64 << 20
"""A larger report takes more than a tenth of a second to read the names of its ranges from."""

_Command = Callable[..., Any]


# --- words that a shell is offered when it completes ---


def files(incomplete: str, suffixes: tuple[str, ...]) -> list[CompletionItem[str]]:
    """Offer files with these suffixes and folders; the shell's own choice where there are none.

    A shell adds a blank behind what it completes, also behind a folder: folders alone are left to
    the shell, which knows better.
    """
    folder, beginning = os.path.split(incomplete)
    try:
        with os.scandir(Path(folder or ".").expanduser()) as entries:
            found = sorted(
                (e.name, e.is_dir())
                for e in entries
                if e.name.startswith(beginning)
                and (beginning.startswith(".") or not e.name.startswith("."))
            )
    except OSError:
        found = []
    matching = [(name, is_dir) for name, is_dir in found if is_dir or name.endswith(suffixes)]
    if all(is_dir for _, is_dir in matching):
        return [CompletionItem(incomplete, type="file")]
    before = incomplete.removesuffix(beginning)
    return [CompletionItem(before + name + "/" * is_dir) for name, is_dir in matching]


def ranges(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Offer the names of the NVTX ranges of the reports that are already on the line."""
    from perfmodel.base.errors import PerfmodelError
    from perfmodel.readers import read

    names: set[str] = set()
    for path in _paths(context):
        try:
            if path.suffix == ".sqlite" and path.stat().st_size <= _LARGEST_FOR_RANGES_BYTES:
                names.update(read(path, parts=("nvtx",)).range_names)
        except (PerfmodelError, OSError):
            continue
    return [
        CompletionItem(name)
        for name in sorted(names)
        if name and name.isprintable() and name.startswith(incomplete)
    ]


def _paths(context: click.Context) -> list[Path]:
    """Return the files named so far: behind an option without its value click has not read them."""
    values = context.params.values()
    listed = [v if isinstance(v, (tuple, list)) else [v] for v in values]
    found = [path for group in listed for path in group if isinstance(path, Path)]
    return found + [Path(word) for word in context.args if not word.startswith("-")]


def machines(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Offer the machines that perfmodel knows, and TOML files."""
    from perfmodel.machines.machine import shipped

    names = [CompletionItem(n, help=m.name) for n, m in shipped() if n.startswith(incomplete)]
    found = files(incomplete, (".toml",))
    return names + [item for item in found if not names or item.type == "plain"]


def networks(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Offer the networks that perfmodel knows layer by layer."""
    from perfmodel.workloads.networks import NETWORKS

    return [CompletionItem(name) for name in NETWORKS if name.startswith(incomplete)]


# --- files: `-` is standard input ---


class Input(click.Path):
    """A file to read, or `-`: standard input, which is copied to a temporary file first.

    A report is read at many places at once, which a pipe does not allow. The temporary file is
    called ``stdin`` with the suffix that its content asks for, and goes when the command ends.

    Parameters
    ----------
    suffixes : tuple of str
        Files that a shell offers, the usual one first; the user may name any.
    """

    def __init__(self, *suffixes: str) -> None:
        super().__init__(path_type=Path)
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path to read."""
        if value == "-" and ctx is not None and not ctx.resilient_parsing:
            return self._spooled(ctx)
        return super().convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Offer files with the suffixes; where there is none, leave it to the shell."""
        return files(incomplete, self._suffixes)

    def _spooled(self, context: click.Context) -> Path:
        """Copy standard input to a temporary file that lives as long as the command."""
        from tempfile import TemporaryDirectory

        if _STDIN in context.meta:
            raise click.BadParameter("expected - once; got it again: a pipe is read once")
        if sys.stdin is None or sys.stdin.isatty():
            raise click.BadParameter(
                "expected a file through a pipe; got none; as in: "
                "xz -dc run.sqlite.xz | perfmodel analyze -"
            )
        context.meta[_STDIN] = True
        folder: str = context.with_resource(TemporaryDirectory(prefix="perfmodel-"))
        return _copied(sys.stdin.buffer, Path(folder), self._suffixes[0])


def _copied(stream: IO[bytes], folder: Path, usual: str) -> Path:
    import shutil

    first = stream.read(_BLOCK)
    if not first:
        raise click.BadParameter(
            "expected a file through the pipe; got nothing; the command before it wrote nothing"
        )
    known = (suffix for magic, suffix in _KINDS if first.lstrip().startswith(magic))
    path = folder / f"stdin{next(known, usual)}"
    with path.open("wb") as file:
        file.write(first)
        shutil.copyfileobj(stream, file, _BLOCK)
    return path


class Folder(click.Path):
    """A folder to write into; `-` is refused, for a folder does not fit into a pipe."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path to write to."""
        if value == "-":
            self.fail("expected a folder; got -; for standard output take --json", param, ctx)
        return super().convert(value, param, ctx)


REPORT: Final = Input(".sqlite", ".sqlite.gz", ".sqlite.xz", ".sqlite.zst", ".nsys-rep", ".qdrep")
RUN: Final = Input(".json", ".sqlite", ".sqlite.gz", ".sqlite.xz", ".sqlite.zst", ".nsys-rep")
JSON: Final = Input(".json")
TOML: Final = Input(".toml")
COUNTERS: Final = Input(".csv", ".csv.xz", ".ncu-rep")
SERIES: Final = Input(".csv")
FOLDER: Final = Folder()
FILE: Final = click.Path(path_type=Path)


class TakesAll(click.Command):
    """Lets the option `flag` take all the words that follow it, as a shell's pattern gives them."""

    flag = ""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Repeat the flag before every word that it takes."""
        spread, taking = [], False
        for word in args:
            if word.startswith("-"):
                taking = word == self.flag
                spread += [] if taking else [word]
            else:
                spread += [self.flag, word] if taking else [word]
        if taking and args[-1] == self.flag:
            spread.append(self.flag)  # click says what is missing
        return super().parse_args(context, spread)


# --- options ---


def together(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Several options as one decorator, in the order in which the help lists them."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def formats(command: _Command) -> _Command:
    """`--format` of every command that prints tables, and `--json`, short for one of them.

    The command is called with the chosen one as `fmt`.
    """

    @functools.wraps(command)
    def with_format(*args: Any, as_json: bool, fmt: str, **options: Any) -> Any:
        if as_json and fmt not in ("text", "json"):
            raise click.UsageError(f"expected --json or --format {fmt}; got both; leave one out")
        return command(*args, fmt="json" if as_json else fmt, **options)

    chosen = click.option(
        "--format", "fmt", type=click.Choice(FORMATS), default="text", show_default=True,
        help="Text with what there is to say, nothing but the tables, or one JSON document.",
    )  # fmt: skip
    alias = click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
    return together(chosen, alias)(with_format)


_COUNT: Final = click.IntRange(1)
DTYPES: Final = click.Choice(["float16", "bfloat16", "float32", "float64"])
symbol_options = together(
    click.option("--input-size", "-D", type=_COUNT, help="D, inputs of one sample."),
    click.option("--hidden-size", "-H", type=_COUNT, help="H, hidden units."),
    click.option("--num-classes", "-C", type=_COUNT, help="C, classes."),
    click.option("--batch-size", "-B", type=_COUNT, help="B, batch of all ranks together."),
    click.option("--ranks", "-p", type=_COUNT, help="p, MPI ranks."),
    click.option("--dtype", type=DTYPES, help="b, the data type that is copied and reduced."),
    click.option("--set", "given", multiple=True, metavar="SYMBOL=N",
                 help="Value of any symbol."),
)  # fmt: skip
WORKLOAD = click.option("--workload", type=TOML, help="A TOML file of your own.")
QUIET = click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
PICTURE = click.option(
    "--out", "-o", type=FILE, metavar="FILE.png", help="Draw to this file: .png, .svg or .pdf."
)
FIGURES = click.option("--out", "-o", type=FOLDER, help="Folder for the figure.")
COUNTING = click.option(
    "--counting", type=click.Choice(["document", "full"]), default="document", show_default=True,
    help="Count four GEMMs and the gradients, as the CME 213 assignment does, or everything.",
)  # fmt: skip
BATCH_RANGE = click.option(
    "--batch-range", metavar="NAME",
    help="NVTX ranges that are one step each: a name, a glob or /regex/; found by default.",
    shell_complete=ranges,
)  # fmt: skip
WARMUP = click.option("--warmup", type=click.IntRange(0), help="Leading batches to exclude.")
ATTRIBUTE = click.option(
    "--attribute", type=click.Choice(["thread", "time"]), default="time", show_default=True,
    help="Give GPU work to the ranges of its own thread, or also by time within the process.",
)  # fmt: skip
FIT = click.option(
    "--fit", metavar="RUN", help="Label or number (from 0) of the run that fits the roofline."
)
batch_options = together(BATCH_RANGE, WARMUP, ATTRIBUTE)
analysis_options = together(symbol_options, WORKLOAD, COUNTING, batch_options, FIT)
engine_options = together(
    click.option("--jobs", "-j", type=click.IntRange(1),
                 help="Processes that read the reports; one per core where that pays by default."),
    click.option("--scheduler", metavar="ADDRESS",
                 help="Dask scheduler whose workers read the reports."),
)  # fmt: skip


def flag(name: str) -> str:
    """Return a setting's flag."""
    return f"--{name.replace('_', '-')}"


trainer_options = together(
    *(click.option(flag(name), metavar=value, help=said)
      for name, (value, said) in SETTING_FLAGS.items())
)  # fmt: skip
trainer_switches = together(
    *(click.option(flag(name), is_flag=True, help=said) for name, said in SWITCH_FLAGS.items())
)


def trainer_settings(options: dict[str, Any]) -> dict[str, str]:
    """Settings of the trainer given on the command line."""
    given = {name: options[name] for name in SETTING_FLAGS if options[name] is not None}
    return given | {name: "yes" for name in SWITCH_FLAGS if options.get(name)}


def machine_option(said: str) -> Callable[[_Command], _Command]:
    """`--machine`: a name that perfmodel knows, or a TOML file."""
    return click.option("--machine", metavar="NAME|FILE.toml", help=said, shell_complete=machines)


def engine_of(options: dict[str, Any]) -> Engine:
    """Where the options say that reports are read."""
    from perfmodel.base.parallel import Engine

    if options["scheduler"] and options["jobs"]:
        raise click.UsageError("--jobs is for this machine; leave it out with --scheduler")
    return Engine(options["jobs"], options["scheduler"])


def symbol_values(options: dict[str, Any]) -> dict[str, int]:
    """Symbols given on the command line."""
    from perfmodel.base.units import DTYPE_BYTES

    values = {s: options[name] for s, name in MARK_SYMBOLS.items() if options[name] is not None}
    if options["dtype"]:
        values["b"] = DTYPE_BYTES[options["dtype"]]
    return values | given_values(options["given"])


def given_values(items: Iterable[str]) -> dict[str, int]:
    """Read the values of --set."""
    values = {}
    for item in items:
        name, _, number = item.partition("=")
        if not name or not number.isascii() or not number.isdigit() or len(number) > 18:
            raise click.BadParameter(f"expected SYMBOL=N with a whole number; got {item!r}")
        values[name] = int(number)
    return values


def quantity(text: str, unit: str, option: str, *, zero: bool = False) -> float:
    """Read a number above 0, or from 0 on, with its unit, such as 46.7ms."""
    from perfmodel.base.errors import PerfmodelError
    from perfmodel.base.units import parse_si

    try:
        value = parse_si(text, unit)
    except PerfmodelError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    if not (value > 0 or zero):
        raise click.BadParameter(f"expected more than 0 {unit}; got {text!r}", param_hint=option)
    return value

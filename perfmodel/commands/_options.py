"""Options and arguments that commands share, what their values mean, and what a shell completes."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from perfmodel.base.errors import PerfmodelError
from perfmodel.programs import MARK_SYMBOLS, SETTING_FLAGS, SETTINGS, SWITCH_FLAGS

if TYPE_CHECKING:
    from perfmodel.base.parallel import Engine
    from perfmodel.programs.layers import LayeredStep
    from perfmodel.programs.program import Options

FORMATS: Final = ("text", "csv", "json", "jsonl", "markdown", "latex")
SILENT: Final = "perfmodel.commands.silent"
"""Key of a command's context for --quiet."""
COMPLETING: Final = "_PERFMODEL_COMPLETE"
"""Environment variable with which a shell's script asks for completions; click's name."""

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

    A shell adds a blank after what it completes, also after a folder: if there are only folders,
    the shell completes them itself.
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
    """Return the files named so far; click has not read those after an option without its value."""
    values = context.params.values()
    listed = [v if isinstance(v, (tuple, list)) else [v] for v in values]
    found = [path for group in listed for path in group if isinstance(path, Path)]
    return found + [Path(word) for word in context.args if not word.startswith("-")]


def networks(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Offer the networks that perfmodel knows layer by layer."""
    from perfmodel.workloads.decoder import published
    from perfmodel.workloads.networks import NETWORKS

    known = (*NETWORKS, *published())
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]


# --- files: `-` is standard input ---


class Input(click.Path):
    """A file to read, or `-`: standard input, which is copied to a temporary file first.

    A report is read at many places at once, which a pipe does not allow. The temporary file is
    called ``stdin`` with the suffix of its content, and is deleted when the command ends.

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


class MachineName(Input):
    """A machine that perfmodel knows, or a TOML file of one; `-` is standard input."""

    def __init__(self) -> None:
        super().__init__(".toml")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name as it is, or the path of what came through a pipe."""
        return super().convert(value, param, ctx) if value == "-" else value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Offer the machines that perfmodel knows, and TOML files."""
        from perfmodel.machines.devices import shipped

        names = [CompletionItem(n, help=m.name) for n, m in shipped() if n.startswith(incomplete)]
        found = files(incomplete, (".toml",))
        return names + [item for item in found if not names or item.type == "plain"]


PICTURES: Final = (".png", ".svg", ".pdf")
RESULTS: Final = {
    ".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".md": "markdown", ".tex": "latex",
    ".txt": "text",
}  # fmt: skip
"""Formats of a result by the suffix of the file that keeps it."""


def kind_of(out: Path | str) -> str:
    """Return the suffix of what is to be written, or '-' for standard output."""
    return "-" if str(out) == "-" else Path(out).suffix.lower()


class Out(click.Path):
    """Destination of `-o`: the name decides the format.

    Parameters
    ----------
    own : tuple of str
        Suffixes of what the command itself makes, such as '.toml'; '-' is that on standard output,
        '' any other name. `PICTURES` are for those that draw.
    result : bool
        Whether a file of `RESULTS` keeps the result, and a name without a suffix is a folder of its
        tables.
    """

    def __init__(self, *own: str, result: bool = True) -> None:
        super().__init__(path_type=Path)
        self.own, self._result = own, result

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, whose suffix says what to write."""
        kind = kind_of(value)
        known = kind in self.own or (self._result and kind in RESULTS)
        folder = self._result and (not kind or Path(value).is_dir())
        drawn = kind in PICTURES  # no folder is called so
        if not known and not folder and (drawn or "" not in self.own):
            self.fail(f"expected {self.words}; got {Path(value).name!r}", param, ctx)
        if kind == "-" and not known:
            self.fail("expected a file or a folder; got -; take --format without -o", param, ctx)
        return super().convert(value, param, ctx)

    @property
    def words(self) -> str:
        """Return the formats that can be written, in words."""
        own = [kind for kind in self.own if kind.startswith(".")]
        parts = [_files(own)] if own else []
        if self._result:
            parts.append(f"{_files([kind for kind in RESULTS if kind not in own])} for the result")
            parts += [] if set(own) - {*PICTURES} else ["a folder for all of it"]
        parts += ["- for standard output"] if "-" in self.own else []
        return "; ".join(parts)


def _files(kinds: Sequence[str]) -> str:
    return f"FILE{', '.join(kinds[:-1])}{' or ' if kinds[:-1] else ''}{kinds[-1]}"


REPORT: Final = Input(
    ".sqlite", ".sqlite.gz", ".sqlite.xz", ".sqlite.zst", ".nsys-rep", ".qdrep", ".json",
    ".json.gz", ".json.xz", ".json.zst",
)  # fmt: skip
MEMORY: Final = Input(
    ".sqlite", ".sqlite.gz", ".sqlite.xz", ".sqlite.zst", ".nsys-rep", ".qdrep", ".json",
    ".json.gz", ".json.xz", ".json.zst", ".pickle",
)  # fmt: skip
RUN: Final = Input(
    ".json", ".json.gz", ".json.xz", ".json.zst", ".sqlite", ".sqlite.gz", ".sqlite.xz",
    ".sqlite.zst", ".nsys-rep",
)  # fmt: skip
JSON: Final = Input(".json")
TOML: Final = Input(".toml")
COUNTERS: Final = Input(".csv", ".csv.xz", ".ncu-rep")
SERIES: Final = Input(".csv")
TEXT: Final = Input(".txt")
DATABASE: Final = Input(".db", ".sqlite")
FILE: Final = click.Path(path_type=Path)


def taking_all(flag: str) -> type[click.Command]:
    """Return a command whose option `flag` takes all words after it, as from a shell pattern."""

    class TakesAll(click.Command):
        def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
            spread, taking = [], False
            for word in args:
                if word.startswith("-"):
                    taking = word == flag
                    spread += [] if taking else [word]
                else:
                    spread += [flag, word] if taking else [word]
            if taking and args[-1] == flag:
                spread.append(flag)  # click says what is missing
            return super().parse_args(context, spread)

    return TakesAll


# --- options ---


def together(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Several options as one decorator, in the order in which the help lists them."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _be_quiet(context: click.Context, _: click.Parameter, quiet: bool) -> None:
    context.meta[SILENT] = quiet


QUIET: Final = click.option(
    "--quiet", "-q", is_flag=True, expose_value=False, callback=_be_quiet,
    help="Print only errors and what --format asks for.",
)  # fmt: skip


def out(kind: Out, said: str = "") -> Callable[[_Command], _Command]:
    """`-o`: a file where a command makes one, a folder where it makes several."""
    help_said = f"Write to {kind.words}. {said}".strip()
    return click.option("--out", "-o", type=kind, metavar="PATH", help=help_said)


def output(*own: str, said: str = "") -> Callable[[_Command], _Command]:
    """`-o`, `--format`, `--json` and `-q`: of every command that has a result.

    The command is called with `out` and `fmt`, for `emit`. `own` is what it makes besides its
    result; see `Out`.
    """

    def add(command: _Command) -> _Command:
        @functools.wraps(command)
        def with_format(*args: Any, as_json: bool, fmt: str, **options: Any) -> Any:
            if as_json and fmt not in ("text", "json"):
                raise click.UsageError(
                    f"expected --json or --format {fmt}; got both; leave one out"
                )
            return command(*args, fmt="json" if as_json else fmt, **options)

        chosen = click.option(
            "--format", "fmt", type=click.Choice(FORMATS), default="text", show_default=True,
            help="Text, only the tables, or one JSON document.",
        )  # fmt: skip
        alias = click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
        return together(out(Out(*own), said), chosen, alias, QUIET)(with_format)

    return add


def machine(said: str) -> Callable[[_Command], _Command]:
    """`--machine`: a name that perfmodel knows, or a TOML file."""
    return click.option("--machine", type=MachineName(), metavar="NAME|FILE.toml", help=said)


def machine_of(word: str | Path | None) -> tuple[Any, Any]:
    """Return the machine of a name or file, and what was measured of it; None for neither."""
    if word is None:
        return None, None
    from perfmodel.machines.measure.measurement import choose

    return choose(str(word))


reports = click.argument("reports", nargs=-1, required=True, type=REPORT)
some_reports = click.argument("reports", nargs=-1, type=REPORT)
MODEL = click.option(
    "--model", "path", type=JSON,
    help="A model of perfmodel study calibrate; without it, savings are bounds by the report "
    "alone.",
)  # fmt: skip
_COUNT: Final = click.IntRange(1)
SHORT_DTYPES: Final = {
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "fp64": "float64",
    "fp8": "float8",
}  # fmt: skip


class _Dtype(click.Choice[str]):
    """A data type by its name, or as short as people call it."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return super().convert(SHORT_DTYPES.get(value, value), param, ctx)


DTYPES: Final = _Dtype(["float16", "bfloat16", "float32", "float64"])
OPERATOR_DTYPES: Final = _Dtype(["float8", *DTYPES.choices, "tf32"])


class _Special(click.Option):
    """An option that few need: help lists it under a title of its own, after all others."""

    title = "Sizes, for formulas"


class _OfTrainer(_Special):
    title = "Settings of perfmodel's trainer"


_PURPOSES: Final = {
    "Output": (
        "section", "brief", "evidence", "out", "fmt", "as_json", "stacks", "no_plots",
    ),
    "Steps": ("batch_range", "level", "warmup", "attribute"),
    "Program and machine": (
        "dtype", "workload", "machine", "shapes", "attention", "counters", "decoder", "fit",
    ),
    "Many reports": ("jobs", "scheduler", "cache", "host_names"),
    "Results over commits": ("db", "commit", "benchmark"),
}  # fmt: skip
"""Options by purpose, as help lists them where there are many."""
_MANY: Final = 16
"""Fewer options have no groups."""


class Grouped(click.Command):
    """A command whose help lists its options by purpose, and what few need last."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those with a title of their own behind the others."""
        rows: list[tuple[str, str, tuple[str, str]]] = []
        for parameter in self.get_params(context):
            row = parameter.get_help_record(context)
            if row is not None and isinstance(parameter, click.Option):
                title = parameter.title if isinstance(parameter, _Special) else ""
                rows.append((parameter.name or "", title, row))
        usual = sum(not title for _, title, _ in rows)
        purposes = _PURPOSES if usual >= _MANY else {}
        order = {name: title for title, names in purposes.items() for name in names}
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in purposes}
        sections["Options"] = []
        place = {name: at for at, name in enumerate(order)}
        rows.sort(key=lambda row: place.get(row[0], len(place)))
        for name, title, row in rows:
            sections.setdefault(title or order.get(name, "Options"), []).append(row)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def batch_size(
    said: str,
    default: int | None = None,
    most: int | None = None,
    kind: type[click.Option] = click.Option,
) -> Callable[[_Command], _Command]:
    """`--batch-size`, which is B."""
    return click.option(
        "--batch-size",
        "-B",
        type=click.IntRange(1, most),
        default=default,
        show_default=True,
        help=said,
        cls=kind,
    )


def ranks(
    said: str, least: int = 1, kind: type[click.Option] = click.Option
) -> Callable[[_Command], _Command]:
    """`--ranks`, which is p."""
    return click.option("--ranks", "-p", type=click.IntRange(least), help=said, cls=kind)


def _symbols(dtypes: click.Choice[str]) -> Callable[[_Command], _Command]:
    return together(
        click.option("--input-size", "-D", type=_COUNT, cls=_Special,
                     help="D, inputs of one sample."),
        click.option("--hidden-size", "-H", type=_COUNT, cls=_Special, help="H, hidden units."),
        click.option("--num-classes", "-C", type=_COUNT, cls=_Special, help="C, classes."),
        batch_size("B, batch of all ranks together.", kind=_Special),
        ranks("p, MPI ranks.", kind=_Special),
        click.option("--dtype", type=dtypes,
                     help="b, the data type of copies and reductions; for PyTorch, of operators "
                          "whose type the report does not show."),
        click.option("--set", "given", multiple=True, metavar="SYMBOL=N", cls=_Special,
                     help="Value of any symbol."),
    )  # fmt: skip


symbols = _symbols(DTYPES)
symbols_of_operators = _symbols(OPERATOR_DTYPES)
"""The same of what any program computes with; the trainer's TF32 is --math, not a data type."""
WORKLOAD = click.option("--workload", type=TOML, help="TOML file with the formulas of a program.")
LAYERS_OR_WORKLOAD = click.option(
    "--workload", type=TOML, metavar="FILE.toml|layers:NETWORK",
    help="TOML file with formulas, or a network of perfmodel study layers with sizes in --set.",
)  # fmt: skip
COUNTING = click.option(
    "--counting", type=click.Choice(["document", "full"]), default="document", show_default=True,
    cls=_Special,
    help="Count four GEMMs and the gradients, as in the CME 213 assignment, or everything.",
)  # fmt: skip
BATCH_RANGE = click.option(
    "--batch-range", metavar="NAME",
    help="NVTX ranges that are one step each: a name, a glob or /regex/; found by default.",
    shell_complete=ranges,
)  # fmt: skip
LEVEL = click.option(
    "--level", type=click.Choice(["epoch", "micro_batch", "phase", "layer"]),
    help="Unit of the analysis in place of the step; --section levels lists them.",
)  # fmt: skip
WARMUP = click.option("--warmup", type=click.IntRange(0), help="Leading steps to exclude.")
ATTRIBUTE = click.option(
    "--attribute", type=click.Choice(["thread", "time"]), default="time", show_default=True,
    help="Attribute GPU work to ranges of its own thread, or also by time within the process.",
)  # fmt: skip
FIT = click.option(
    "--fit", metavar="RUN", help="Label or number (from 0) of the run that fits the roofline."
)
operators = together(
    click.option("--shapes", type=REPORT,
                 help="Recording of the same program with its operators' sizes, or of the capture "
                 "of its CUDA graphs, or a folder of captures."),
    click.option("--attention", type=click.Choice(["full", "causal"]), default="full",
                 show_default=True, help="FLOPs of attention: of all scores, or without those "
                 "that a causal mask hides."),
    click.option("--counters", type=COUNTERS, help="Nsight Compute's table of the same PyTorch "
                 "program, with its operators' ranges."),
    click.option("--decoder", metavar="NAME|config.json",
                 help="Language model that an engine serves, such as qwen3-8b, for the least time "
                 "of its steps where no operators' sizes are recorded."),
)  # fmt: skip
batches = together(BATCH_RANGE, LEVEL, WARMUP, ATTRIBUTE)
MACHINE = machine("Ceilings: a name, such as h200, or a file of perfmodel machine measure.")
analysis = together(symbols_of_operators, LAYERS_OR_WORKLOAD, COUNTING, batches, FIT, MACHINE)
engine = together(
    click.option("--jobs", "-j", type=click.IntRange(1),
                 help="Processes that read reports; by default one per core for large ones."),
    click.option("--scheduler", metavar="ADDRESS",
                 help="Dask scheduler whose workers read the reports."),
)  # fmt: skip
CACHE = click.option("--cache", type=FILE, metavar="FOLDER",
                     help="Folder to keep results in; a report with the same content is not "
                     "read again.")  # fmt: skip

HOST_NAMES = click.option("--host-names", is_flag=True,
                          help="Name hosts as the reports do; else they are numbered.")  # fmt: skip


def flag(name: str) -> str:
    """Return a setting's flag."""
    return f"--{name.replace('_', '-')}"


def settings(*names: str) -> Callable[[_Command], _Command]:
    """Settings of the trainer, with their values as choices."""
    return together(
        *(click.option(flag(name), type=click.Choice(SETTINGS[name]), cls=_OfTrainer,
                       help=SETTING_FLAGS[name])
          for name in names)
    )  # fmt: skip


trainer = settings(*SETTING_FLAGS)
switches = together(
    *(
        click.option(flag(name), is_flag=True, help=said, cls=_OfTrainer)
        for name, said in SWITCH_FLAGS.items()
    )
)


def trainer_settings(options: Mapping[str, Any]) -> dict[str, str]:
    """Settings of the trainer given on the command line."""
    given = {name: options[name] for name in SETTING_FLAGS if options.get(name) is not None}
    return given | {name: "yes" for name in SWITCH_FLAGS if options.get(name)}


def values_of_sweep(text: str) -> tuple[str, tuple[int, ...]]:
    """Read SYMBOL=FROM:TO or SYMBOL=A,B,C."""
    from perfmodel.analysis.sweeps import doublings

    symbol, _, said = text.partition("=")
    words = said.split(":" if ":" in said else ",")
    if not symbol or not all(w.isascii() and w.isdigit() and 0 < len(w) < 10 for w in words):
        raise click.BadParameter(f"expected SYMBOL=FROM:TO or SYMBOL=A,B,C; got {text!r}")
    numbers = tuple(int(w) for w in words)
    if min(numbers) < 1 or (":" in said and (len(numbers) != 2 or numbers[0] > numbers[1])):
        raise click.BadParameter(f"expected positive numbers, FROM at most TO; got {text!r}")
    return symbol, doublings(*numbers) if ":" in said else numbers


def engine_of(options: dict[str, Any]) -> Engine:
    """Return the executor that reads reports, by the options."""
    from perfmodel.base.parallel import Engine

    if options["scheduler"] and options["jobs"]:
        raise click.UsageError("--jobs is for this machine; leave it out with --scheduler")
    return Engine(options["jobs"], options["scheduler"])


def chosen(options: dict[str, Any]) -> Options:
    """Return the analysis options of a command; missing ones have their default."""
    from perfmodel.programs.program import Options
    from perfmodel.workloads.decoder import decoder
    from perfmodel.workloads.spec import load

    file, layers = options.get("workload"), None
    if file is not None and str(file).startswith("layers:"):
        file, layers = None, _layered(str(file).removeprefix("layers:"), options)
    return Options(
        values={} if layers else symbol_values(options),
        counting=options.get("counting", "document"),
        workload=None if file is None else load(file),
        layers=layers,
        batch_label=options.get("batch_range"),
        level=options.get("level"),
        warmup=options.get("warmup"),
        by_time=options.get("attribute", "time") == "time",
        fit=options.get("fit"),
        dtype=options.get("dtype"),
        shapes=options.get("shapes"),
        causal=options.get("attention") == "causal",
        counters=options.get("counters"),
        decoder=decoder(served) if (served := options.get("decoder")) else None,
        machine=machine_of(options.get("machine"))[0],
        host_names=bool(options.get("host_names")),
    )


def _layered(word: str, options: dict[str, Any]) -> LayeredStep:
    """Return the step of a network: --batch-size, sizes in --set, --attention causal."""
    from perfmodel.programs.layers import LayeredStep
    from perfmodel.workloads.networks import network

    settings = given_values(options.get("given", ()))
    training = settings.pop("training", 1)
    if options.get("attention") == "causal":
        settings["causal"] = 1
    if training not in (0, 1):
        raise click.BadParameter("expected training=1, or training=0 for a forward pass")
    net = network(word, **settings)  # an unknown name is worse than a missing size
    if not options.get("batch_size"):
        raise click.UsageError(
            f"expected the samples of a step of all ranks with layers:{word}; got none: give "
            f"--batch-size"
        )
    return LayeredStep(net, options["batch_size"], bool(training))


def symbol_values(options: dict[str, Any]) -> dict[str, int]:
    """Symbols given on the command line."""
    from perfmodel.base.units import DTYPE_BYTES

    given = {symbol: options.get(name) for symbol, name in MARK_SYMBOLS.items()}
    values = {symbol: value for symbol, value in given.items() if value is not None}
    if options.get("dtype"):
        values["b"] = DTYPE_BYTES[options["dtype"]]
    return values | given_values(options.get("given", ()))


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
    from perfmodel.base.units import parse_si

    try:
        value = parse_si(text, unit)
    except PerfmodelError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    if not (value > 0 or zero):
        raise click.BadParameter(f"expected more than 0 {unit}; got {text!r}", param_hint=option)
    return value

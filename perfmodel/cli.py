"""The command line: thin click commands; the only place that prints or exits."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel import __version__
from perfmodel.errors import PerfmodelError

if TYPE_CHECKING:
    from perfmodel.stats import Statistic

gc.set_threshold(100_000)  # start-up makes many objects and drops few
# nothing here multiplies matrices on the host: spare NumPy the start of its BLAS threads
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

FORMATS = ("table", "csv", "json", "markdown", "latex")
REPORTS = (
    "nvtx_gpu_proj_sum",
    "nvtx_pushpop_sum",
    "cuda_gpu_kern_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
    "cuda_api_sum",
    "mpi_event_sum",
)
_SYMBOLS = {
    "input_size": "D",
    "hidden_size": "H",
    "num_classes": "C",
    "batch_size": "B",
    "ranks": "p",
}
_WIDTH_OF_PIPE = 120


class _Main(click.Group):
    """Turns perfmodel's errors into one line on stderr and their exit code."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except PerfmodelError as error:
            click.echo(f"perfmodel: error: {_one_line(error)}", err=True)
            context.exit(error.exit_code)
        except BrokenPipeError:
            sys.stderr.close()
            context.exit(0)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else "standard output: "
            said = f"{where}{error.strerror or error}; free some space or write elsewhere"
            click.echo(f"perfmodel: error: {_one_line(said)}", err=True)
            context.exit(1)


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="perfmodel")
def main() -> None:
    """From a raw Nsight Systems report to a validated performance model.

    Exit codes: 0 done; 1 an output cannot be written; 2 wrong usage; 3 the report cannot be read;
    4 it lacks what the question needs; 5 the workload is unknown or impossible; 6 a model cannot
    be fitted.
    """


def _symbol_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options that give the workload's symbols values."""
    positive = click.IntRange(1)
    for option in (
        click.option(
            "--set", "given", multiple=True, metavar="SYMBOL=N", help="Value of any symbol."
        ),
        click.option(
            "--dtype",
            type=click.Choice(["float16", "bfloat16", "float32", "float64"]),
            help="b, the data type that is copied and reduced.",
        ),
        click.option("--ranks", "-p", type=positive, help="p, MPI ranks."),
        click.option("--batch-size", "-B", type=positive, help="B, batch of all ranks together."),
        click.option("--num-classes", "-C", type=positive, help="C, classes."),
        click.option("--hidden-size", "-H", type=positive, help="H, hidden units."),
        click.option("--input-size", "-D", type=positive, help="D, inputs of one sample."),
    ):
        command = option(command)
    return command


_COUNTING = click.option(
    "--counting",
    type=click.Choice(["document", "full"]),
    default="document",
    show_default=True,
    help="Count four GEMMs and the gradients, as the document does, or everything.",
)


@main.command()
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path))
@_symbol_options
@click.option("--workload", type=click.Path(path_type=Path), help="A TOML file of your own.")
@_COUNTING
@click.option("--batch-range", metavar="NAME", help="The NVTX range that is one batch.")
@click.option("--warmup", type=click.IntRange(0), help="Leading batches to exclude.")
@click.option(
    "--attribute",
    type=click.Choice(["thread", "time"]),
    default="thread",
    show_default=True,
    help="Give GPU work to the ranges of its own thread, or also by time within the process.",
)
@click.option(
    "--fit", metavar="RUN", help="Label or number (from 0) of the run that fits the roofline."
)
@click.option("--out", "-o", type=click.Path(path_type=Path), help="Folder for all outputs.")
@click.option("--db", type=click.Path(path_type=Path), help="Results database to add to.")
@click.option("--no-plots", is_flag=True, help="Draw nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print analysis.json instead of text.")
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
def analyze(reports: tuple[Path, ...], **options: Any) -> None:
    """Find where a batch goes, fit P_flops, P_pci and P_mpi, draw the roofline.

    REPORTS are Nsight Systems exports (.sqlite, or .nsys-rep where nsys is installed). Reports of
    the ranks of one run are put together; different runs become points on one roofline. What a
    report says of its workload need not be given.
    """
    import json

    from perfmodel import outputs, summary
    from perfmodel.analysis_json import analysis_document

    quiet = options["quiet"]
    analysis = _analyze(reports, options)
    if not quiet:
        for run in analysis.runs:
            for warning in run.warnings:
                click.echo(f"perfmodel: warning: {_one_line(warning)}", err=True)
    written = []
    if options["out"]:
        written = outputs.write(
            analysis, options["out"], plots=not options["no_plots"], db=options["db"]
        )
    elif options["db"]:
        outputs.append(analysis, options["db"])
    if options["as_json"]:
        click.echo(json.dumps(analysis_document(analysis), indent=1, allow_nan=False))
    elif not quiet:
        width, color = _terminal()
        click.echo(summary.text(analysis, width=width, color=color), nl=False)
        if written:
            click.echo("\nWritten: " + "  ".join(str(path) for path in written))


def _analyze(reports: tuple[Path, ...], options: dict[str, Any]) -> Any:
    from perfmodel.readers import read
    from perfmodel.runs import Options, analyze_traces

    workload = None
    if options["workload"]:
        from perfmodel.workloads.spec import load

        workload = load(options["workload"])
    chosen = Options(
        values=_values(options),
        counting=options["counting"],
        workload=workload,
        batch_label=options["batch_range"],
        warmup=options["warmup"],
        by_time=options["attribute"] == "time",
        fit=options["fit"],
    )
    with _progress(2 * len(reports), options["quiet"]) as advance:
        traces = []
        for path in reports:
            advance(f"reading {path.name}")
            traces.append(read(path))
        return analyze_traces(traces, chosen, lambda label: advance(f"analyzing {label}"))


def _values(options: dict[str, Any]) -> dict[str, int]:
    """Symbols given on the command line."""
    from perfmodel.identify import DTYPE_BYTES

    values = {s: options[name] for name, s in _SYMBOLS.items() if options[name] is not None}
    if options["dtype"]:
        values["b"] = DTYPE_BYTES[options["dtype"]]
    for item in options["given"]:
        symbol, _, number = item.partition("=")
        if not symbol or not number.isascii() or not number.isdigit() or len(number) > 18:
            raise click.BadParameter(f"wanted SYMBOL=N with a whole number, found {item!r}")
        values[symbol] = int(number)
    return values


@main.command()
@click.argument("report", type=click.Path(path_type=Path))
@click.option(
    "--report",
    "names",
    multiple=True,
    type=click.Choice(REPORTS),
    help="Summary to print; may be repeated. All that the report has data for by default.",
)
@click.option(
    "--format",
    "fmt",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="How to print it; csv is as nsys prints it.",
)
def stats(report: Path, names: tuple[str, ...], fmt: str) -> None:
    """Print the summary reports of `nsys stats`, equal to the last digit.

    The CSV equals that of Nsight Systems 2024.2.3; docs/statistics.md names the cases in which
    nsys is quirky and perfmodel is not.
    """
    from perfmodel import stats as statistics
    from perfmodel.readers import read

    wanted = names or REPORTS
    parts = frozenset().union(*(statistics.REPORTS[name][1] for name in wanted))
    trace = read(report, parts=parts)
    printed, missing = 0, []
    for name in wanted:
        try:
            statistic = statistics.REPORTS[name][0](trace)
        except PerfmodelError as error:
            missing.append(error)
            continue
        text = ("\n" if printed else "") + _rendered(statistic, fmt)
        click.echo(text, nl=False, color=True)  # as it is: click would strip escapes of names
        printed += 1
    if names or not printed:
        for problem in missing if printed else missing[:-1]:
            click.echo(f"perfmodel: warning: {_one_line(problem)}", err=True)
        if not printed:
            raise missing[-1]


def _rendered(statistic: Statistic, fmt: Any) -> str:
    from perfmodel import stats as statistics
    from perfmodel.table import render

    if fmt == "csv":
        text = statistics.to_csv(statistic)
        return "\n".join(map(_one_line, text.split("\n"))) if _is_terminal() else text
    width, color = _terminal()
    return render(statistics.to_table(statistic), fmt, width=width, color=color)


@main.command()
@click.option("--workload", type=click.Path(path_type=Path), help="A TOML file of your own.")
@_COUNTING
@click.option(
    "--parallel",
    type=click.Choice(["data", "model"]),
    default="data",
    show_default=True,
    help="What the ranks of the built-in MLP share: the batch, or the hidden units.",
)
@_symbol_options
@click.option(
    "--format",
    "fmt",
    type=click.Choice(["text", "latex", "json"]),
    default="text",
    show_default=True,
    help="How to print it.",
)
def formulas(workload: Path | None, counting: Any, parallel: Any, fmt: Any, **options: Any) -> None:
    """Print the workload's FLOPs and bytes per range, per rank and batch, as formulas.

    With values of all symbols, also what raises arithmetic intensity there, in numbers.
    """
    from perfmodel.workloads import formulas as described
    from perfmodel.workloads import load, mlp

    model = load(workload) if workload else mlp(counting, parallel)
    click.echo(described(model, fmt, _values(options) or None), nl=False)


def _one_line(message: object) -> str:
    from perfmodel.escape import printable

    return printable(str(message))


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _terminal() -> tuple[int | None, bool]:
    """Width and colour of standard output; a pipe gets a fixed width and no colour."""
    import shutil

    if not _is_terminal():
        return _WIDTH_OF_PIPE, False
    return shutil.get_terminal_size().columns, "NO_COLOR" not in os.environ


class _progress:  # noqa: N801
    """A progress bar on standard error, only where that is a terminal and takes a while."""

    def __init__(self, total: int, quiet: bool) -> None:
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._total, self._shown = total, terminal and not quiet
        self._bar: Any = None

    def __enter__(self) -> Callable[[str], None]:
        if not self._shown:
            return lambda _: None
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._bar.start()
        task = self._bar.add_task("", total=self._total)
        return lambda text: self._bar.update(task, description=_one_line(text), advance=1)

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

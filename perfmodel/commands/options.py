"""Options that commands share, and what their values mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from perfmodel.commands import candidates
from perfmodel.commands.paths import TOML

if TYPE_CHECKING:
    from perfmodel.base.parallel import Engine

FORMATS = ("table", "csv", "json", "jsonl", "markdown", "latex")
_ALONE = ("text", "csv", "jsonl", "markdown", "latex")
_SYMBOLS = {
    "input_size": "D",
    "hidden_size": "H",
    "num_classes": "C",
    "batch_size": "B",
    "ranks": "p",
}


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


def symbol_options(command: Callable[..., None]) -> Callable[..., None]:
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


TABLES = click.option(
    "--format", "fmt", type=click.Choice(_ALONE), default="text", show_default=True,
    help="Text, or nothing but the tables.",
)  # fmt: skip
COUNTING = click.option(
    "--counting",
    type=click.Choice(["document", "full"]),
    default="document",
    show_default=True,
    help="Count four GEMMs and the gradients, as the document does, or everything.",
)

BATCH_RANGE = click.option(
    "--batch-range", metavar="NAME", help="The NVTX range that is one batch.",
    shell_complete=candidates.ranges,
)  # fmt: skip
WARMUP = click.option("--warmup", type=click.IntRange(0), help="Leading batches to exclude.")
ATTRIBUTE = click.option(
    "--attribute",
    type=click.Choice(["thread", "time"]),
    default="thread",
    show_default=True,
    help="Give GPU work to the ranges of its own thread, or also by time within the process.",
)


def analysis_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options of an analysis: symbols, workload, counting, batches, attribution, the fitted run."""
    workload = click.option("--workload", type=TOML, help="A TOML file of your own.")
    fit = click.option(
        "--fit", metavar="RUN", help="Label or number (from 0) of the run that fits the roofline."
    )

    for option in (
        fit,
        ATTRIBUTE,
        WARMUP,
        BATCH_RANGE,
        COUNTING,
        workload,
        symbol_options,
    ):
        command = option(command)
    return command


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say where many reports are read."""
    for option in (
        click.option(
            "--scheduler", metavar="ADDRESS", help="Dask scheduler whose workers read the reports."
        ),
        click.option(
            "--jobs",
            "-j",
            type=click.IntRange(1),
            help="Processes that read the reports; one per core where that pays by default.",
        ),
    ):
        command = option(command)
    return command


def engine_of(options: dict[str, Any]) -> Engine:
    """Where the options say that reports are read."""
    from perfmodel.base.parallel import Engine

    if options["scheduler"] and options["jobs"]:
        raise click.UsageError("--jobs is for this machine; leave it out with --scheduler")
    return Engine(options["jobs"], options["scheduler"])


def symbol_values(options: dict[str, Any]) -> dict[str, int]:
    """Symbols given on the command line."""
    from perfmodel.base.units import DTYPE_BYTES

    values = {s: options[name] for name, s in _SYMBOLS.items() if options[name] is not None}
    if options["dtype"]:
        values["b"] = DTYPE_BYTES[options["dtype"]]
    for item in options["given"]:
        symbol, _, number = item.partition("=")
        if not symbol or not number.isascii() or not number.isdigit() or len(number) > 18:
            raise click.BadParameter(f"wanted SYMBOL=N with a whole number, found {item!r}")
        values[symbol] = int(number)
    return values

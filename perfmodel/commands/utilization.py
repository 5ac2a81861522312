"""`perfmodel utilization`: sample the GPUs while a command runs, and say what they idled in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands import _options
from perfmodel.commands._output import emit, warn

_KEY = "command"
_SAMPLES = "samples.csv"


class _Samples(click.Command):
    """Takes all arguments after `--` as a command, and does not parse its options."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        context.meta[_KEY] = tuple(args[at + 1 :])
        return super().parse_args(context, args[:at])


@click.command(cls=_Samples, options_metavar="[OPTIONS]", epilog="[-- COMMAND...]")
@click.argument("series", required=False, type=_options.SERIES)
@click.option(
    "--report", "reports", multiple=True, type=_options.REPORT,
    help="A report of the same program; repeat it for other ranks.",
)  # fmt: skip
@click.option("--window", metavar="FROM:TO", help="Seconds of the series to use.")
@click.option(
    "--period", type=click.FloatRange(0.01, 60), default=0.1, show_default=True,
    help="Seconds between samples of a command.",
)  # fmt: skip
@click.option(
    "--gpu", "gpus", multiple=True, type=click.IntRange(0), help="Only this GPU; repeatable."
)
@_options.BATCH_RANGE
@_options.WARMUP
@_options.output(*_options.PICTURES, said="The folder also has a command's samples.")
@click.pass_context
def utilization(
    context: click.Context, /, series: Path | None, fmt: str, out: Path | None, **options: Any
) -> None:
    """Measure how busy the GPUs are, and in which phase they idle.

    With a command after --, runs it and samples the GPUs by NVML meanwhile; the exit code is the
    command's. With SERIES, reads an earlier CSV. --report adds GPU busy time, and why the GPU
    idles.
    """
    from perfmodel.analysis.utilization import answer
    from perfmodel.render.utilization import picture, result

    command = context.meta[_KEY]
    if (series is not None) + bool(command) > 1 or not (series or command or options["reports"]):
        raise click.UsageError(
            "expected one of: SERIES.csv, -- COMMAND..., or --report REPORT alone; see --help"
        )
    window = _window(options["window"])
    if window and not (series or command):
        raise click.UsageError("--window is of a series: give SERIES.csv or -- COMMAND..., too")
    sampled, code = _samples(series, command, out, options)
    found = answer(
        sampled, options["reports"], window_s=window, batch_label=options["batch_range"],
        warmup=options["warmup"],
    )  # fmt: skip
    emit(result(found), fmt, out, picture=lambda: picture(sampled, found))
    context.exit(code)


def _samples(
    path: Path | None, command: tuple[str, ...], out: Path | None, options: dict[str, Any]
) -> tuple[Any, int]:
    """Read the series, or run the command and keep its own; return it and the exit code."""
    if path is not None:
        from perfmodel.machines.gpu_samples import read_series

        series = read_series(path)
        return (series.only(options["gpus"]) if options["gpus"] else series), 0
    if not command:
        return None, 0
    from perfmodel.base.files import staged_folder
    from perfmodel.machines.gpu_samples import NvmlSampler, record_command, to_csv

    sampler = NvmlSampler(options["gpus"] or None)
    series, code = record_command(command, sampler, options["period"])
    if out is None or _options.kind_of(out) in (*_options.PICTURES, *_options.RESULTS):
        warn(f"the samples are not kept; give -o FOLDER, which gets them as {_SAMPLES}")
    else:
        with staged_folder(out) as stage:  # before anything else can fail
            (stage / _SAMPLES).write_text(to_csv(series), encoding="utf-8", newline="")
    if code:
        warn(f"the command ended with exit code {code}; its samples are used")
    return series, code


def _window(text: str | None) -> tuple[float, float] | None:
    """Read FROM:TO in seconds; an end left out is the series' own."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    try:
        start, end = float(first or 0), float(last or "inf")
    except ValueError:
        start, end = 0.0, -1.0
    if not colon or not 0 <= start < end:
        raise click.BadParameter(
            f"expected FROM:TO in seconds, such as 10:20; got {text!r}", param_hint="--window"
        )
    return start, end

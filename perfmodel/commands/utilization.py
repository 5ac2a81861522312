"""`perfmodel utilization`: sample the GPUs while a command runs, and say what they idled in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands.options import BATCH_RANGE, TABLES, WARMUP
from perfmodel.commands.paths import REPORT, SERIES
from perfmodel.commands.pictures import PICTURE, write_picture
from perfmodel.commands.terminal import show, warn

_KEY = "command"


class _Samples(click.Command):
    """Takes what stands behind `--` as a command, and leaves its options alone."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        context.meta[_KEY] = tuple(args[at + 1 :])
        return super().parse_args(context, args[:at])


@click.command(cls=_Samples, options_metavar="[OPTIONS]", epilog="[-- COMMAND...]")
@click.argument("series", required=False, type=SERIES)
@click.option(
    "--report", "reports", multiple=True, type=REPORT,
    help="A report of the same program; again for those of other ranks.",
)  # fmt: skip
@click.option("--window", metavar="FROM:TO", help="Seconds of the series to look at.")
@click.option(
    "--period", type=click.FloatRange(0.01, 60), default=0.1, show_default=True,
    help="Seconds between samples of a command.",
)  # fmt: skip
@click.option("--gpu", "gpus", multiple=True, type=click.IntRange(0), help="This GPU only.")
@click.option(
    "--save", type=click.Path(path_type=Path), default=Path("utilization.csv"), show_default=True,
    help="Where the samples of a command go.",
)  # fmt: skip
@BATCH_RANGE
@WARMUP
@PICTURE
@TABLES
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.pass_context
def utilization(context: click.Context, /, series: Path | None, **options: Any) -> None:
    """Say how well the GPUs are used over time, and in which phase they idle.

    With a command behind --, it is run and the GPUs are sampled by NVML meanwhile; the exit code is
    its own. With SERIES, a CSV sampled before is read. --report sets GPU busy time beside it and
    says what the GPU idles in.
    """
    import json

    from perfmodel.analysis import utilization as saying
    from perfmodel.base.escape import escape_json

    command = context.meta[_KEY]
    if (series is not None) + bool(command) > 1 or not (series or command or options["reports"]):
        raise click.UsageError(
            "wanted one of: SERIES.csv, -- COMMAND..., or --report REPORT alone; see --help"
        )
    window = _window(options["window"])
    if window and not (series or command):
        raise click.UsageError("--window is of a series: give SERIES.csv or -- COMMAND..., too")
    sampled, code = _samples(series, command, options)
    found = saying.answer(
        sampled, options["reports"], window_s=window, batch_label=options["batch_range"],
        warmup=options["warmup"],
    )  # fmt: skip
    for warning in found.warnings:
        warn(warning)
    if options["out"]:
        _draw(sampled, found, options["out"])
    if options["as_json"]:
        said = json.dumps(saying.document(found), indent=1, allow_nan=False)
        click.echo(escape_json(said))
    else:
        show(saying.tables(found), saying.sentences(found), options["fmt"])
    context.exit(code)


def _samples(
    path: Path | None, command: tuple[str, ...], options: dict[str, Any]
) -> tuple[Any, int]:
    """Read the series, or run the command and save its own; return it and the exit code."""
    if path is not None:
        from perfmodel.machines.gpu_samples import read_series

        series = read_series(path)
        return (series.only(options["gpus"]) if options["gpus"] else series), 0
    if not command:
        return None, 0
    from perfmodel.base.files import write_text
    from perfmodel.machines.gpu_samples import to_csv
    from perfmodel.machines.record import record_command
    from perfmodel.machines.sampler import NvmlSampler

    sampler = NvmlSampler(options["gpus"] or None)
    series, code = record_command(command, sampler, options["period"])
    write_text(options["save"], to_csv(series))
    click.echo(f"Written: {options['save']}", err=True)
    if code:
        warn(f"the command ended with {code}; its samples are saved all the same")
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
            f"wanted FROM:TO in seconds, such as 10:20; found {text!r}", param_hint="--window"
        )
    return start, end


def _draw(series: Any, found: Any, out: Path) -> None:
    from perfmodel.render.plot.lines import Percentages, broken
    from perfmodel.render.plot.lines import utilization as draw

    curves = []
    for gpu in series.gpus if series is not None else ():
        mine = series.of(gpu)
        for counter, word in (("gpu_percent", "utilization"), ("memory_percent", "memory busy")):
            curves.append(
                Percentages(
                    gpu, f"GPU {gpu}, NVML {word}",
                    *broken(mine.time_s, mine.values[counter], mine.gaps(gpu)),
                    minor=counter == "memory_percent",
                )
            )  # fmt: skip
    busy = {} if found.idle is None else {"GPU busy by the report": found.idle.busy_share}
    window = found.window_s
    if window is not None and series is not None:
        window = (window[0], min(window[1], float(series.time_s[-1])))
    write_picture(draw(curves, window_s=window, busy=busy), out)

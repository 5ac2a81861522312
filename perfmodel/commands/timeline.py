"""`perfmodel timeline`: one batch as a picture, or a report as a trace for Perfetto."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.commands._options import BATCH_RANGE, FILE, REPORT, WARMUP
from perfmodel.commands._output import (
    STDOUT,
    one_line,
    picture_bytes,
    report_written,
    warn,
    write,
    write_picture,
)

if TYPE_CHECKING:
    from perfmodel.timing.run import Run


@click.command()
@click.argument("reports", nargs=-1, required=True, type=REPORT)
@click.option(
    "--batch", "batches", metavar="N|FROM:TO",
    help="Batch, or batches from FROM up to but without TO, counted from 0.",
)  # fmt: skip
@click.option("--ranks", metavar="0,1", help="Only these ranks.")
@click.option("--api", is_flag=True, help="With a lane of CUDA API calls in the picture.")
@BATCH_RANGE
@WARMUP
@click.option(
    "--format", "fmt", type=click.Choice(["picture", "perfetto"]), default="picture",
    show_default=True, help="A picture, or a trace for Perfetto and chrome://tracing.",
)  # fmt: skip
@click.option(
    "--out", "-o", type=FILE, metavar="FILE",
    help="Where to: .png, .svg or .pdf, or .json; - for standard output (PNG or JSON).  "
    "[default: timeline.png or trace.json]",
)  # fmt: skip
def timeline(reports: tuple[Path, ...], **options: Any) -> None:
    """Show when everything in a batch ran: ranges, MPI, kernels, copies, by rank.

    REPORTS are those of one run. A picture shows the batch of median time behind the warm-up, a
    trace the whole report, unless --batch says which.
    """
    from perfmodel.timing.timeline import clocks_differ, median_batch, select, window_of

    run = _run(reports, options["batch_range"])
    if clocks_differ(run):
        warn("a report has no UTC time: its rank may be shifted against the others")
    picture = options["fmt"] == "picture"
    batches = _batches(options["batches"])
    if batches is None and picture:
        first = median_batch(run, options["warmup"])
        batches = range(first, first + 1)
    window = None if batches is None else window_of(run, batches)
    ranks = _ranks(options["ranks"], run.ranks)
    api = options["api"] or not picture
    lanes = select(run, window, ranks=ranks, api=api, around=not picture)
    title = _title(run, batches, median=options["batches"] is None)
    if window is not None and picture:
        _draw(lanes, window, title, options["out"] or Path("timeline.png"))
    else:
        _write_trace(lanes, title, options["out"] or Path("trace.json"))
    bars = sum(len(lane.bars) for lane in lanes)
    said = f"{title}: {bars} bars in {len(lanes)} lanes"
    click.echo(one_line(said), err=options["out"] == STDOUT)


def _run(reports: tuple[Path, ...], batch_label: str | None) -> Run:
    from perfmodel.analysis.runs import group, time_runs
    from perfmodel.programs.program import Options
    from perfmodel.readers import read

    label, traces = (groups := group([read(path) for path in dict.fromkeys(reports)]))[0]
    if len(groups) > 1:
        warn(f"the reports are of {len(groups)} runs: only {label} is shown")
    (run,) = time_runs(traces, Options(batch_label=batch_label, by_time=True))
    return replace(run, label=label)


def _batches(text: str | None) -> range | None:
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not all(t.isascii() and t.isdigit() and len(t) < 10 for t in (first, last) if t or colon):
        first = last = ""
    found = range(int(first or 0), int(last or 0) if colon else int(first or -1) + 1)
    if not found:
        raise click.BadParameter(
            f"expected a batch or FROM:TO, such as 7 or 2:5; got {text!r}", param_hint="--batch"
        )
    return found


def _ranks(text: str | None, known: tuple[int, ...]) -> frozenset[int] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    found = {int(w) for w in words if w.isascii() and w.isdigit() and len(w) < 10}
    if len(found) < len(words) or not found <= set(known):
        raise click.BadParameter(
            f"expected some of the ranks {', '.join(map(str, known))}; got {text!r}",
            param_hint="--ranks",
        )
    return frozenset(found)


def _title(run: Run, batches: range | None, *, median: bool) -> str:
    from perfmodel.programs import program_of
    from perfmodel.programs.program import Options

    identity, problems = program_of(run.traces, Options()).identify(run, {})
    for problem in problems:
        warn(problem)
    values = identity.values
    symbols = ", ".join(f"{s} = {values[s]}" for s in ("D", "H", "C", "B", "p") if s in values)
    which = "all batches"
    if batches is not None:
        which = f"batch {batches[0]}{' (the median)' if median else ''}"
    if batches is not None and len(batches) > 1:
        which = f"batches {batches[0]} to {batches[-1]}"
    return f"{run.label}, {which}" + (f"; {symbols}" if symbols else "")


def _draw(lanes: Any, window: Any, title: str, out: Path) -> None:
    from perfmodel.render.plot.timeline import timeline as draw

    if out.suffix == ".json":
        raise click.BadParameter(
            f"expected a file that ends in .png, .svg or .pdf; got {out.name!r}; for a trace add "
            f"--format perfetto",
            param_hint="--out",
        )
    with warnings.catch_warnings():  # names may be in scripts that the font lacks
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        figure = draw(lanes, window.start_ns, window.end_ns, title=title)
        if out == STDOUT:
            click.echo(picture_bytes(figure), nl=False)
        else:
            write_picture(figure, out)


def _write_trace(lanes: Any, title: str, out: Path) -> None:
    from perfmodel.render.perfetto import to_json

    if out.suffix != ".json" and out != STDOUT:
        raise click.BadParameter(
            f"expected a file that ends in .json; got {out.name!r}", param_hint="--out"
        )
    write(out, to_json(lanes, title))
    if out != STDOUT:
        report_written(out)

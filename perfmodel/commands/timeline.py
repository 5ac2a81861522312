"""`perfmodel timeline`: one batch as a picture, or a report as a trace for Perfetto."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.commands import _options
from perfmodel.commands._output import emit, picture_bytes, warn, write

if TYPE_CHECKING:
    from perfmodel.timing.run import Run


@click.command()
@_options.reports
@click.option(
    "--batch", "batches", metavar="N|FROM:TO",
    help="Batch, or batches from FROM up to but without TO, counted from 0.",
)  # fmt: skip
@click.option(
    "--rank",
    "ranks",
    multiple=True,
    type=click.IntRange(0),
    help="This rank only; may be repeated.",
)
@click.option("--api", is_flag=True, help="With a lane of CUDA API calls in the picture.")
@_options.batches
@click.option("--perfetto", is_flag=True, help="With -o -: a trace for Perfetto, not a picture.")
@_options.output(*_options.PICTURES, ".json", "-", said="FILE.json is a trace for Perfetto.")
def timeline(reports: tuple[Path, ...], fmt: str, out: Path | None, **options: Any) -> None:
    """Show when everything in a batch ran, by rank.

    Ranges, MPI calls, kernels and copies, as a picture, a trace for Perfetto and chrome://tracing,
    or a table. REPORTS are those of one run. A picture and a table show the batch of median time
    behind the warm-up, a trace the whole report, unless --batch says which.
    """
    from perfmodel.render.timeline import result
    from perfmodel.timing.timeline import clocks_differ, median_batch, select, window_of

    run = _run(reports, options)
    if clocks_differ(run):
        warn("a report has no UTC time: its rank may be shifted against the others")
    perfetto = out is not None and (options["perfetto"] or _options.kind_of(out) == ".json")
    batches = _batches(options["batches"])
    if batches is None and not perfetto:
        first = median_batch(run, options["warmup"])
        batches = range(first, first + 1)
    window = None if batches is None else window_of(run, batches)
    ranks = _ranks(options["ranks"], run.ranks)
    api = options["api"] or perfetto
    lanes = select(run, window, ranks=ranks, api=api, around=perfetto)
    title = _title(run, batches, median=options["batches"] is None)

    def trace(path: Path) -> Path:
        from perfmodel.render.perfetto import to_json

        write(path, to_json(lanes, title))
        return path

    def drawn(path: Path) -> Path:
        click.echo(picture_bytes(_picture(lanes, window, title)), nl=False)
        return path

    standard = trace if perfetto else drawn
    start_ns = window.start_ns if window else None
    emit(
        result(lanes, title, start_ns), fmt, out, makes={".json": trace, "-": standard},
        picture=lambda: _picture(lanes, window, title),
    )  # fmt: skip


def _run(reports: tuple[Path, ...], options: dict[str, Any]) -> Run:
    from perfmodel.analysis.runs import group, time_runs
    from perfmodel.readers import read

    label, traces = (groups := group([read(path) for path in dict.fromkeys(reports)]))[0]
    if len(groups) > 1:
        warn(f"the reports are of {len(groups)} runs: only {label} is shown")
    (run,) = time_runs(traces, _options.chosen(options))
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


def _ranks(given: tuple[int, ...], known: tuple[int, ...]) -> frozenset[int] | None:
    if not set(given) <= set(known):
        raise click.BadParameter(
            f"expected some of the ranks {', '.join(map(str, known))}; got "
            f"{', '.join(map(str, given))}",
            param_hint="--rank",
        )
    return frozenset(given) or None


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


def _picture(lanes: Any, window: Any, title: str) -> Any:
    from perfmodel.render.plot.timeline import timeline as draw

    with warnings.catch_warnings():  # names may be in scripts that the font lacks
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        return draw(lanes, window.start_ns, window.end_ns, title=title)

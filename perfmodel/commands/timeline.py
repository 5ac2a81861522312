"""`perfmodel timeline`: one batch as a picture, or a report as a trace for Perfetto."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import SchemaError, WorkloadError
from perfmodel.commands import _options
from perfmodel.commands._output import echo, emit, warn, writes

if TYPE_CHECKING:
    from perfmodel.programs.identify import Identity
    from perfmodel.programs.program import Options
    from perfmodel.readers.trace import Trace
    from perfmodel.timing.run import Run


@click.command()
@_options.reports
@click.option(
    "--batch", "batches", metavar="N|FROM:TO",
    help="Step, or steps from FROM up to but without TO, counted from 0.",
)  # fmt: skip
@click.option(
    "--rank",
    "ranks",
    multiple=True,
    type=click.IntRange(0),
    help="Only this rank; repeatable.",
)
@click.option(
    "--width", type=click.Choice(["single", "double", "wide"]), default="wide", show_default=True,
    help="Width of the picture: one or two columns of a page (3.5 and 7.2 in), or 11 in.",
)  # fmt: skip
@click.option("--api", is_flag=True, help="Add a lane of CUDA API calls to the picture.")
@_options.batches
@click.option("--perfetto", is_flag=True, help="With -o -: a trace for Perfetto, not a picture.")
@_options.output(*_options.PICTURES, ".json", "-", said="FILE.json is a trace for Perfetto.")
def timeline(reports: tuple[Path, ...], fmt: str, out: Path | None, **options: Any) -> None:
    """Draw one step of every rank, or write a trace.

    Writes ranges, MPI calls, kernels, copies and idle time as a picture, a table, or a trace for
    Perfetto and chrome://tracing. REPORTS are those of one run. Without --batch, a picture and a
    table show the median step, a trace the whole report.
    """
    from perfmodel.analysis.window import only_window
    from perfmodel.programs import steps_of_run
    from perfmodel.render import tables
    from perfmodel.render.result import Result
    from perfmodel.timing.timeline import clocks_differ, select, window_of

    perfetto = out is not None and (options["perfetto"] or _options.kind_of(out) == ".json")
    batches = chosen_batches(options["batches"])
    with contextlib.ExitStack() as files:
        if batches is None and perfetto:
            run, traces = _whole_run(reports, options)
        else:
            run, traces = _run(reports, options, files)
        if clocks_differ(run):
            warn("a report has no UTC time: its rank may be shifted against the others")
        if batches is None and not perfetto:
            first = steps_of_run(run, options["warmup"]).drawn
            batches = range(first, first + 1)
        window = None if batches is None else window_of(run, batches)
        ranks = _ranks(options["ranks"], run.ranks)
        api = options["api"] or perfetto
        identity, flops, work = _work(run, traces, _options.chosen(options), operations=perfetto)
        if window:
            run = only_window(run, window)
    lanes = select(
        run, window, ranks=ranks, api=api, around=perfetto, flops=flops, work=work
    )  # fmt: skip
    title = _title(run, identity, batches, median=options["batches"] is None)

    def trace() -> str:
        from perfmodel.render.perfetto import to_json

        return to_json(lanes, title)

    def drawn(path: Path) -> Path:
        from perfmodel.render.plot import png_bytes

        echo(png_bytes(_picture(lanes, window, title, options["width"])), nl=False)
        return path

    start_ns = window.start_ns if window else None
    emit(
        Result([tables.lanes(lanes, title)], tables=[tables.bars(lanes, title, start_ns)]),
        fmt, out, makes={".json": writes(trace), "-": writes(trace) if perfetto else drawn},
        picture=lambda: _picture(lanes, window, title, options["width"]),
    )  # fmt: skip


def _run(
    reports: tuple[Path, ...], options: dict[str, Any], files: contextlib.ExitStack
) -> tuple[Run, list[Trace]]:
    """Measure the first run; of large reports few operations and calls stay."""
    from perfmodel.analysis.window import read_light, time_light

    chosen = _options.chosen(options)
    read = [read_light(path, files, chosen) for path in dict.fromkeys(reports)]
    label, traces = _first_run([trace for trace, _ in read])
    first = [next(one for one in read if one[0] is trace) for trace in traces]
    run, traces = time_light(first, chosen)
    return replace(run, label=label), traces


def _whole_run(reports: tuple[Path, ...], options: dict[str, Any]) -> tuple[Run, list[Trace]]:
    """Measure the first run, of which all is shown."""
    from perfmodel.analysis.runs import time_runs
    from perfmodel.readers import read
    from perfmodel.timing.run import without_steps

    label, traces = _first_run([read(path) for path in dict.fromkeys(reports)])
    try:
        (run,) = time_runs(traces, _options.chosen(options))
    except SchemaError as error:
        warn(f"{error}: the trace shows no steps")
        return without_steps(traces, label), traces
    return replace(run, label=label), traces


def _first_run(traces: list[Trace]) -> tuple[str, list[Trace]]:
    from perfmodel.analysis.runs import group

    label, traces = (groups := group(traces))[0]
    if len(groups) > 1:
        warn(f"the reports are of {len(groups)} runs: only {label} is shown")
    return label, traces


def _work(
    run: Run, traces: list[Trace], options: Options, *, operations: bool
) -> tuple[Identity, dict[str, float], list[Any]]:
    """Return the run's identity, FLOPs of ranges by formula, and facts of GPU operations."""
    from perfmodel.programs import program_of

    program = program_of(run.traces, options)
    identity, problems = program.identify(run, {})
    for problem in problems:
        warn(problem)
    workload = program.workload(identity, options)
    flops = {}
    if workload is not None:
        values = {s: v for s, v in identity.values.items() if s in workload.symbols}
        with contextlib.suppress(WorkloadError):  # some sizes are not known
            counts = workload.evaluate(values)
            flops = {name: count.flops for name, count in counts.items() if count.flops}
    if not operations or len(run.steps) != len(traces):
        return identity, flops, []
    pairs = zip(traces, run.steps, strict=True)
    return identity, flops, [program.operations(t, steps, options) for t, steps in pairs]


def chosen_batches(text: str | None) -> range | None:
    """Read the value of --batch."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not all(t.isascii() and t.isdigit() and len(t) < 10 for t in (first, last) if t or colon):
        first = last = ""
    found = range(int(first or 0), int(last or 0) if colon else int(first or -1) + 1)
    if not found:
        raise click.BadParameter(
            f"expected a step or FROM:TO, such as 7 or 2:5; got {text!r}", param_hint="--batch"
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


def _title(run: Run, identity: Identity, batches: range | None, *, median: bool) -> str:
    values = identity.values
    symbols = ", ".join(f"{s} = {values[s]}" for s in ("D", "H", "C", "B", "p") if s in values)
    which = "all steps"
    if batches is not None:
        which = f"step {batches[0]}{' (the median)' if median else ''}"
    if batches is not None and len(batches) > 1:
        which = f"steps {batches[0]} to {batches[-1]}"
    return f"{run.label}, {which}" + (f"; {symbols}" if symbols else "")


def _picture(lanes: Any, window: Any, title: str, width: str) -> Any:
    from perfmodel.render.plot import quiet
    from perfmodel.render.plot.timeline import timeline as draw
    from perfmodel.timing.timeline import drawn_lanes

    window = window or _extent(lanes)
    lanes = drawn_lanes(lanes)
    with quiet():
        return draw(lanes, window.start_ns, window.end_ns, title=title, width=width)


def _extent(lanes: Any) -> Any:
    """Return when there are bars: all of a report."""
    from perfmodel.timing.timeline import Window

    bars = [bar for lane in lanes for bar in lane.bars]
    start_ns = min((bar.start_ns for bar in bars), default=0)
    return Window(range(0), start_ns, max((bar.end_ns for bar in bars), default=1), {})

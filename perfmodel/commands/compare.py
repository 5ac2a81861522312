"""`perfmodel compare`: before and after of one change, with a verdict that noise cannot pass."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from perfmodel.commands import _options
from perfmodel.commands._output import Progress, emit, write
from perfmodel.render.first_screen import COMPARED

_EXIT_CODES = {False: 0, True: 7, None: 8}
"""Of the gate: not slower, slower, too noisy to decide."""


class _Percent(click.FloatRange):
    """A percentage, with or without its sign."""

    def __init__(self) -> None:
        super().__init__(0, 900)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        text: Any = value.removesuffix("%").strip() if isinstance(value, str) else value
        found = super().convert(text, param, ctx)
        if math.isnan(found):
            self.fail(f"expected a percentage such as 5 %; got {value}", param, ctx)
        return found


@click.command(cls=_options.taking_all("--to"))
@_options.some_reports
@click.option(
    "--to", "after", multiple=True, metavar="REPORT...", type=_options.REPORT,
    help="All reports after the change, if there are several.",
)  # fmt: skip
@_options.batches
@click.option(
    "--least", type=_Percent(), default=1.0, show_default=True, metavar="PERCENT",
    help="Smaller changes do not count.",
)  # fmt: skip
@click.option(
    "--launch-noise", type=_Percent(), default=10.0, show_default=True, metavar="PERCENT",
    help="Assumed difference of host times between runs, if there are fewer than 3 of each.",
)  # fmt: skip
@click.option(
    "--fail-if-slower", "limit", type=_Percent(), metavar="PERCENT",
    help="Exit with 7 if steps are slower by more, 8 if the noise is too large to decide.",
)  # fmt: skip
@click.option(
    "--junit", type=_options.FILE, help="Write the result of --fail-if-slower as JUnit XML."
)
@click.option(
    "--history", "database", metavar="DB", type=_options.DATABASE,
    help="In place of REPORTS: find changes over the commits that analyze --db kept in DB.",
)  # fmt: skip
@click.option(
    "--commits", type=_options.TEXT,
    help="With --history: the commits to look at, a line each, from old to new.",
)  # fmt: skip
@click.option(
    "--section", type=click.Choice(COMPARED),
    help="Print the tables of one section, or all of them, in place of the first screen.",
)  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Print all tables, with kernels within noise.")
@_options.output(*_options.PICTURES)
def compare(
    reports: tuple[Path, ...],
    after: tuple[Path, ...],
    limit: float | None,
    junit: Path | None,
    section: str | None,
    every: bool,
    database: Path | None,
    commits: Path | None,
    fmt: str,
    out: Path | None,
    **options: Any,
) -> None:
    """Find what a change made faster or slower, beyond noise.

    Ranges, links and kernels of a median batch are compared.

    REPORTS are the report before and the one after; or, with --to, all reports before the change,
    and after --to all reports after it. Reports of the ranks of one run become one run; every other
    report is a launch of its own. Give three launches of each or more, so that their differences
    show the noise.

    With --history, the change points of a step, its ranges and its kernels over commits; exit code
    7 of --fail-if-slower is then for a slowdown that the newest commit reveals.
    """
    if database is not None:
        if reports or after or junit:
            raise click.UsageError("--history: expected no reports and no --junit; got some")
        _follow(database, commits, options["least"] / 100, limit, fmt, out)
        return
    if commits is not None:
        raise click.UsageError("--commits: expected --history DB, too; got none")
    from perfmodel.analysis.compare.compare import CompareOptions, compare_reports
    from perfmodel.render import compare as render

    if junit and limit is None:
        raise click.UsageError("--junit: expected --fail-if-slower PERCENT, too; got none")
    before = reports
    if not after or not reports:
        if len(reports) != 2:
            raise click.UsageError(
                f"expected the report before and the one after; got {len(reports)}; give several "
                f"reports as: perfmodel compare BEFORE... --to AFTER..."
            )
        before, after = reports[:1], reports[1:]
    chosen = CompareOptions(
        batch_label=options["batch_range"],
        level=options["level"],
        warmup=options["warmup"],
        by_time=options["attribute"] == "time",
        least=options["least"] / 100,
        noise=options["launch_noise"] / 100,
        limit=None if limit is None else limit / 100,
    )
    with Progress(2 * len(before + after)) as advance:
        found = compare_reports(before, after, chosen, advance)
    shown = render.result(found, section or ("all" if every else None), every=every)
    if fmt == "text" and not every and section in (None, "warnings"):
        shown = replace(shown, warnings=())  # the first screen counts them
    emit(shown, fmt, out, picture=lambda: render.picture(found))
    if junit:
        write(junit, render.junit(found))
    if found.gate is not None:
        click.get_current_context().exit(_EXIT_CODES[found.gate.slower])


def _follow(
    database: Path, commits: Path | None, least: float, limit: float | None, fmt: str,
    out: Path | None,
) -> None:  # fmt: skip
    """Print the changes over commits; exit with 7 if the newest one reveals a slowdown."""
    from perfmodel.analysis.history import histories
    from perfmodel.readers.results import read_results
    from perfmodel.render import history as render

    order = commits.read_text(encoding="utf-8").split() if commits else []
    found = histories(read_results(database), order, least)
    allowed = None if limit is None else limit / 100
    emit(render.result(found, allowed), fmt, out, picture=lambda: render.picture(found))
    if allowed is not None:
        slower = any(one.alarms(allowed) for one in found)
        click.get_current_context().exit(_EXIT_CODES[slower])

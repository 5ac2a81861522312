"""`perfmodel analyze`: where a batch goes, rates, roofline, findings."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import ReportError
from perfmodel.commands import _options
from perfmodel.commands._output import Progress, echo, emit, say_error, warn
from perfmodel.render.first_screen import SECTIONS

if TYPE_CHECKING:
    from perfmodel.analysis.result import Analysis
    from perfmodel.base.parallel import Engine

_SHOWN = 10
_COMMITS = ("PERFMODEL_COMMIT", "GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT")
"""Variables that hold the commit of a job: the user's, GitHub's, GitLab's and Jenkins's."""


def _print_schema(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        from perfmodel.studies.documents import json_schema_text

        echo(json_schema_text(), nl=False)
        context.exit()


@click.command(
    cls=_options.Grouped,
    epilog="Exit codes: 0 done; 1 an output cannot be written; 2 wrong usage; 3 a report cannot be "
    "read; 4 it lacks what the command needs; 5 the workload is unknown or impossible; 130 Ctrl-C.",
)
@_options.reports
@_options.analysis
@_options.operators
@_options.engine
@_options.CACHE
@_options.HOST_NAMES
@click.option("--db", type=_options.FILE, help="Results database to add to.")
@click.option(
    "--commit", envvar=_COMMITS, metavar="COMMIT",
    help="Commit that was recorded, for --db; by default that of the CI job.",
)  # fmt: skip
@click.option(
    "--benchmark", metavar="NAME",
    help="Name of the program for --db: runs of one name are compared over commits.",
)  # fmt: skip
@click.option(
    "--section", type=click.Choice(SECTIONS),
    help="Print the tables of one section, or all of them, in place of the first screen.",
)  # fmt: skip
@click.option(
    "--brief", is_flag=True, help="Print a line for each run, with --json its first screen."
)
@click.option(
    "--evidence", metavar="KEY",
    help="Print the evidence of a finding (its kind) or a number (its path in analysis.json, such "
    "as ranks[rank=0].idle_s): formula, inputs, events.",
)  # fmt: skip
@click.option(
    "--json-schema", is_flag=True, is_eager=True, expose_value=False, callback=_print_schema,
    help="Print the JSON Schema of what --json prints.",
)  # fmt: skip
@click.option(
    "--stacks", type=_options.FILE,
    help="Write the stacks of the GPU's time to this file, folded, in µs, for flame graphs.",
)  # fmt: skip
@click.option("--no-plots", is_flag=True, help="Draw nothing.")
@_options.output("", said="The folder also has analysis.json and the figures.")
def analyze(reports: tuple[Path, ...], fmt: str, out: Path | None, **options: Any) -> None:
    """Find what limits a step, and what each change would save.

    REPORTS are Nsight Systems exports (.sqlite, or .nsys-rep where nsys is installed) or traces of
    torch.profiler (.json, .json.gz, .json.xz, .json.zst). Reports of the ranks of one run become
    one run; different runs become points on one roofline. Most programs need no option.
    """
    from perfmodel.render import summary

    db, plots = options["db"], not options["no_plots"]
    source = options["commit"], options["benchmark"]
    key = options["evidence"]
    # the first screen counts the warnings, and its sections print them
    said = fmt != "text" or key is not None or options["section"] == "all"
    analysis = analyzed(
        reports, options, _options.engine_of(options), whole=key is not None, said=said
    )
    if key is not None:
        from perfmodel.render import evidence
        from perfmodel.render.analysis_json import analysis_document

        document = analysis_document(analysis)
        emit(evidence.result(evidence.evidence(analysis.fitted, document, key)), fmt, out)
        exit_of(analysis)
        return

    def write(folder: Path) -> list[Path]:
        from perfmodel.render import outputs

        return outputs.write(analysis, folder, plots=plots, db=db, source=outputs.Source(*source))

    if db and (out is None or _options.kind_of(out) in _options.RESULTS):
        from perfmodel.render import outputs

        outputs.append(analysis, db, outputs.Source(*source))
    if options["stacks"] is not None:
        from perfmodel.base.files import write_text
        from perfmodel.render.stacks import folded_stacks

        write_text(options["stacks"], folded_stacks(analysis))
    shown = summary.result(analysis, options["section"], brief=options["brief"])
    emit(shown, fmt, out, makes={"": write})
    exit_of(analysis)


def _beside(reports: tuple[Path, ...]) -> set[Path]:
    """Files like several reports in their folders: those of a job that runs may still come."""
    found: set[Path] = set()
    if len(reports) == 1:
        return found
    for folder, suffix in {(path.parent, path.suffix) for path in reports if path.suffix}:
        with suppress(OSError, ValueError):
            found.update(path for path in folder.iterdir() if path.suffix == suffix)
    return found


def exit_of(analysis: Analysis) -> None:
    """End with the code of a report that cannot be read, if one could not."""
    if analysis.failed:
        click.get_current_context().exit(ReportError.exit_code)


def analyzed(
    reports: tuple[Path, ...],
    options: dict[str, Any],
    engine: Engine | None = None,
    *,
    whole: bool | int = True,
    unpacked: Path | None = None,
    said: bool = True,
) -> Analysis:
    """Read and analyze reports with the values of `_options.analysis`; warn if that is `said`.

    All of every report is kept, or of the first ones, for who looks further into them; what is
    unpacked of these for as long as its folder is there.
    """
    from perfmodel.analysis.analyze import analyze_reports

    chosen = _options.chosen(options)
    before = _beside(reports)
    with Progress(2 * len(reports)) as advance:
        found = analyze_reports(
            reports,
            chosen,
            engine,
            advance,
            whole=whole,
            unpacked=unpacked,
            cache=options.get("cache"),
        )
    if came := sorted(_beside(reports) - before):
        more = ", ..." if len(came) > _SHOWN else ""
        warn(
            f"{len(came)} more report{'s' * (len(came) > 1)} added while this ran: "
            f"{', '.join(map(str, came[:_SHOWN]))}{more}; analyze again with them"
        )
    if found.not_kept:
        warn(
            f"{len(found.not_kept)} of {len(reports)} results are not kept, and are measured again "
            f"the next time: {found.not_kept[0]}"
        )
    for error in found.failed:
        say_error(error)
    for run in found.runs if said else ():
        for warning in run.warnings:
            warn(warning)
    return found

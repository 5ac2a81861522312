"""`perfmodel scaling`: strong and weak scaling of measured runs, the laws, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands.options import ATTRIBUTE, BATCH_RANGE, TABLES, WARMUP
from perfmodel.commands.paths import RUN, TOML
from perfmodel.commands.pictures import PICTURE, write_picture
from perfmodel.commands.terminal import Progress, show, warn


@click.command()
@click.argument("runs", nargs=-1, required=True, type=RUN)
@BATCH_RANGE
@WARMUP
@ATTRIBUTE
@click.option(
    "--machine", "machine", type=TOML, metavar="FILE.toml",
    help="All-reduces that perfmodel machine measure timed, beside those of the runs.",
)  # fmt: skip
@PICTURE
@TABLES
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def scaling(runs: tuple[Path, ...], machine: Path | None, **options: Any) -> None:
    """Measure strong and weak scaling, fit Amdahl's and Gustafson's laws, and say what is lost.

    RUNS are reports of one, two or more ranks, or records of `python -m trainer --record
    run.json`; several launches of the same are put together, and intervals then hold what launches
    differ by. Reports also tell communication from computing, and all-reduces by size.
    """
    import json

    from perfmodel.analysis.bandwidth import of_launches, of_machine
    from perfmodel.analysis.study import study
    from perfmodel.base.escape import escape_json
    from perfmodel.render import scaling as report

    found = study(_launches(runs, options))
    rows = of_launches(found.launches)
    if machine is not None:
        from perfmodel.machines.measure.measurement import load

        rows += of_machine(load(machine))
    for warning in found.warnings:
        warn(warning)
    if options["out"]:
        from perfmodel.render.scaling_picture import picture

        write_picture(picture(found, rows), options["out"])
    if options["as_json"]:
        said = json.dumps(report.document(found, rows), indent=1, allow_nan=False)
        click.echo(escape_json(said))
        return
    show(report.tables(found, rows), report.sentences(found), options["fmt"])


def _launches(paths: tuple[Path, ...], options: dict[str, Any]) -> list[Any]:
    """Read records (.json) and reports, in the order of reading: records first."""
    from perfmodel.analysis.measure import launches_of
    from perfmodel.readers import read
    from perfmodel.readers.run_records import launch_of_record

    records = [path for path in paths if path.suffix == ".json"]
    reports = [path for path in paths if path.suffix != ".json"]
    with Progress(len(records) + 2 * len(reports), quiet=False) as advance:
        found = []
        for path in records:
            advance(f"reading {path.name}")
            found.append(launch_of_record(path))
        traces = []
        for path in reports:
            advance(f"reading {path.name}")
            traces.append(read(path))
        found += launches_of(
            traces,
            batch_label=options["batch_range"],
            warmup=options["warmup"],
            by_time=options["attribute"] == "time",
            progress=lambda label: advance(f"measuring {label}"),
        )
    return found

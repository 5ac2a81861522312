"""`perfmodel scaling`: strong and weak scaling of measured runs, the laws, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands._options import PICTURE, RUN, TOML, batch_options, formats
from perfmodel.commands._output import Progress, emit, read_reports, write_picture


@click.command()
@click.argument("runs", nargs=-1, required=True, type=RUN)
@batch_options
@click.option(
    "--machine", type=TOML, metavar="FILE.toml",
    help="All-reduces that perfmodel machine measure timed, beside those of the runs.",
)  # fmt: skip
@PICTURE
@formats
def scaling(
    runs: tuple[Path, ...], machine: Path | None, out: Path | None, fmt: str, **options: Any
) -> None:
    """Measure strong and weak scaling, fit Amdahl's and Gustafson's laws, and say what is lost.

    RUNS are reports of one, two or more ranks, or records of `python -m trainer --record
    run.json`; several launches of the same are put together, and intervals then hold what launches
    differ by. Reports also separate communication from computing, and all-reduces by size.
    """
    from perfmodel.analysis.scaling import of_launches, of_machine, study
    from perfmodel.machines.measure.measurement import load
    from perfmodel.render.scaling import picture, result

    found = study(_launches(runs, options))
    rows = of_launches(found.launches) + (of_machine(load(machine)) if machine else ())
    if out:
        write_picture(picture(found, rows), out)
    emit(result(found, rows), fmt)


def _launches(paths: tuple[Path, ...], options: dict[str, Any]) -> list[Any]:
    """Read records (.json) and reports, in the order of reading: records first."""
    from perfmodel.analysis.measure import launch_of_record, launches_of

    records = [path for path in paths if path.suffix == ".json"]
    reports = [path for path in paths if path.suffix != ".json"]
    with Progress(len(records) + 2 * len(reports)) as advance:
        found = []
        for path in records:
            advance(f"reading {path.name}")
            found.append(launch_of_record(path))
        found += launches_of(
            read_reports(reports, advance),
            batch_label=options["batch_range"],
            warmup=options["warmup"],
            by_time=options["attribute"] == "time",
            progress=lambda label: advance(f"measuring {label}"),
        )
    return found

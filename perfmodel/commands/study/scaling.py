"""`perfmodel study scaling`: strong and weak scaling of runs, the laws, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands import _options
from perfmodel.commands._output import Progress, emit, read_reports, warn


@click.command()
@click.argument("runs", nargs=-1, required=True, type=_options.RUN)
@_options.batches
@click.option(
    "--set", "given", multiple=True, metavar="B=N1,N2,...",
    help="B, samples of all ranks together, in the order of the reports that do not hold it.",
)  # fmt: skip
@_options.machine("File of perfmodel machine measure: adds its all-reduces to those of the runs.")
@_options.output(*_options.PICTURES)
def scaling(runs: tuple[Path, ...], fmt: str, out: Path | None, **options: Any) -> None:
    """Measure strong and weak scaling; fit Amdahl and Gustafson.

    RUNS are reports of one, two or more ranks, or records of `python -m trainer --record
    run.json`. Several launches of the same configuration are joined; intervals then include their
    differences. Reports also give communication, computing, and all-reduces by size.
    """
    from perfmodel.studies.analysis.scaling import of_launches, of_machine, study
    from perfmodel.studies.render.scaling import picture, result

    found = study(_launches(runs, options))
    machine, measured = _options.machine_of(options["machine"])
    if machine is not None and measured is None:
        warn(f"{machine.name}: no all-reduces in a datasheet; give what machine measure wrote")
    rows = of_launches(found.launches) + (of_machine(measured) if measured else ())
    emit(result(found, rows), fmt, out, picture=lambda: picture(found, rows))


def _launches(paths: tuple[Path, ...], options: dict[str, Any]) -> list[Any]:
    """Read records (.json) and reports, in the order of reading: records first."""
    from perfmodel.commands._operators import values_of
    from perfmodel.commands._output import distinct
    from perfmodel.studies.analysis.measure import launch_of_record, launches_of

    records = [path for path in paths if path.suffix == ".json"]
    reports = distinct(tuple(path for path in paths if path.suffix != ".json"))
    given = values_of(options["given"], len(reports))
    with Progress(len(records) + 2 * len(reports)) as advance:
        found = []
        for path in records:
            advance(f"reading {path.name}")
            found.append(launch_of_record(path))
        traces = read_reports(reports, advance)
        found += launches_of(
            traces,
            batch_label=options["batch_range"],
            level=options["level"],
            warmup=options["warmup"],
            by_time=options["attribute"] == "time",
            batches={t.source: b for t, b in zip(traces, given.get("B", []), strict=False)},
            progress=lambda label: advance(f"measuring {label}"),
        )
    return found

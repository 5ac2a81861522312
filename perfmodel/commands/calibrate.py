"""`perfmodel calibrate`: a few reports -> model.json, with what they leave open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands.options import ATTRIBUTE, BATCH_RANGE, symbol_options, symbol_values
from perfmodel.commands.paths import JSON, REPORT, STDOUT, TOML, write
from perfmodel.commands.terminal import Progress, terminal, warn


@click.command()
@click.argument("reports", nargs=-1, required=True, type=REPORT)
@click.option(
    "--out", "-o", required=True, type=click.Path(path_type=Path),
    help="Where model.json goes; - for standard output.",
)  # fmt: skip
@symbol_options
@click.option("--workload", type=TOML, help="A TOML file of your own.")
@BATCH_RANGE
@ATTRIBUTE
@click.option(
    "--index",
    type=JSON,
    help="index.json with batch_median_s_without_nsys of the reports: what recording adds.",
)
@click.option(
    "--microbenchmarks",
    type=TOML,
    help="What perfmodel machine time_run wrote on this machine: products, copies, all-reduces.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
def calibrate(reports: tuple[Path, ...], out: Path, **options: Any) -> None:
    """Fit a predictive model to REPORTS of a few configurations and write it to a file.

    Every term (launches, kernels, copies, sums) is fitted on all reports that have it; what they
    cannot tell is said, with the run that would. Reports of the ranks of one run are put together;
    every other report is a launch of its own.
    """
    from perfmodel.analysis.predict import predict as predicted
    from perfmodel.base.table import render
    from perfmodel.models.calibrate import calibrate as calibrated
    from perfmodel.models.model_file import as_text
    from perfmodel.render import predict as report

    observations, machine = _observed(reports, options)
    alone, micro = _microbenchmarks(options["microbenchmarks"], machine)
    model = calibrated(
        observations, machine=machine, untraced=_untraced(options["index"]), alone=alone,
        micro=micro,
    )  # fmt: skip
    if not model.runs:
        predicted(model, observations[0].case)  # says what its report lacks
    write(out, as_text(model))
    if options["quiet"]:
        return
    width, color = terminal()
    aside = out == STDOUT
    for sentence in report.calibration_text(model):
        click.echo(sentence, err=aside)
    click.echo(render(report.terms_table(model), "table", width=width, color=color), err=aside)
    for question in report.open_questions(model):
        warn(question)
    if not aside:
        click.echo(f"Written: {out}")


def _observed(reports: tuple[Path, ...], options: dict[str, Any]) -> tuple[list[Any], str]:
    """Observations of all runs, and the GPUs' name."""
    from perfmodel.analysis.runs import group
    from perfmodel.programs.mlp.observe import observe
    from perfmodel.programs.own import observe_own
    from perfmodel.readers import read
    from perfmodel.timing.run import time_run

    workload = None
    if options["workload"]:
        from perfmodel.workloads import load

        workload = load(options["workload"])
    label = options["batch_range"] or (workload.batch_range if workload else "batch iteration")
    with Progress(len(reports), options["quiet"]) as advance:
        traces = []
        for path in reports:
            advance(f"reading {path.name}")
            traces.append(read(path))
    gpus = sorted({gpu.name for trace in traces for gpu in trace.gpus})
    found = []
    for name, members in group(traces):
        run = time_run(members, label, label=name, by_time=options["attribute"] == "time")
        if workload is None:
            found.append(observe(run))
        else:
            found.append(observe_own(run, workload, symbol_values(options)))
    if len(gpus) > 1:
        warn(
            f"reports of {len(gpus)} kinds of GPU, {', '.join(gpus)}: one model for all of them "
            f"predicts none; calibrate for each apart"
        )
    return _distinct(found), ", ".join(gpus)


def _distinct(found: list[Any]) -> list[Any]:
    """Leave out runs that were given before: a copy says nothing of the noise between launches."""
    kept: list[Any] = []
    for o in found:
        same = next((x for x in kept if (x.case, x.parts) == (o.case, o.parts)), None)
        if same is None:
            kept.append(o)
        else:
            warn(f"{o.source}: the same run as {same.source}, given before: it counts once")
    return kept


def _microbenchmarks(file: Path | None, machine: str) -> tuple[Any, Any]:
    """What a machine's measurement tells: products by shape, and evidence of other parts."""
    from perfmodel.base.errors import ModelError
    from perfmodel.machines.measure.measurement import load
    from perfmodel.models import alone, micro

    if file is None:
        return None, ()
    found = load(file)
    names = ", ".join(sorted(set(found.gpus)))
    if names != machine:
        raise ModelError(
            f"{file}: wanted microbenchmarks of the reports' GPU, {machine or 'none'}; found those "
            f"of {names or 'a CPU'}; time_run on the machine that ran the reports"
        )
    products = alone.from_measurement(found, file.name)
    evidence = micro.from_measurement(found, file.name)
    if products is None and not evidence:
        raise ModelError(
            f"{file}: wanted the trainer's products, copies, all-reduces or an empty kernel's "
            "time; found none; run perfmodel machine time_run again, with more --seconds"
        )
    return products, evidence


def _untraced(index: Path | None) -> dict[str, float]:
    """Median batches without Nsight Systems, by file, from a collection's index."""
    import json

    from perfmodel.base.errors import ModelError

    if index is None:
        return {}
    try:
        rows = json.loads(index.read_text(encoding="utf-8"))
        return {
            row["file"]: float(row["batch_median_s_without_nsys"])
            for row in rows
            if row.get("batch_median_s_without_nsys")
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{index}: wanted an index of reports, as profiles/collect.py writes it; found none "
            f"that can be read ({type(error).__name__}); check the path"
        ) from None

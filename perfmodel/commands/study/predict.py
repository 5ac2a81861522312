"""`perfmodel study predict`: a batch of another configuration, by a calibrated model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from perfmodel.commands import _options
from perfmodel.commands._output import Progress, distinct, emit, read_reports, warn
from perfmodel.programs import program_of_sizes


@click.command(cls=_options.Grouped)
@click.option(
    "--model", "path", type=_options.JSON, required=True,
    help="A model of perfmodel study calibrate.",
)  # fmt: skip
@_options.symbols
@_options.trainer
@_options.switches
@_options.WORKLOAD
@click.option(
    "--anchor", "anchors", type=_options.REPORT, multiple=True,
    help="A report of the host to predict, of any configuration; repeatable.",
)  # fmt: skip
@_options.machine("File of perfmodel machine measure on the host to predict.")
@click.option(
    "--sweep", metavar="SYMBOL=FROM:TO", help="Predict over a symbol that doubles, or at A,B,C."
)
@click.option(
    "--scaling",
    type=click.Choice(["strong", "weak"]),
    help="Predict over ranks, with constant B or B/p.",
)
@click.option(
    "--ranks-to", type=click.IntRange(1, 1 << 20), default=4096, show_default=True,
    help="Most ranks of --scaling.",
)  # fmt: skip
@click.option(
    "--images", type=click.IntRange(1), default=60_000, show_default=True,
    help="Images of an epoch.",
)  # fmt: skip
@_options.output(*_options.PICTURES, said="Curves are of --sweep and --scaling.")
def predict(path: Path, fmt: str, out: Path | None, **options: Any) -> None:
    """Predict a batch of other sizes from a model.

    Time per batch and per phase, with 90 % intervals and what bounds each phase. Without --sweep
    and --scaling one configuration is predicted. Settings without a run in the calibration are
    refused, with the run that is needed; sizes beyond its runs are marked as extrapolated.
    Intervals hold for any host like the calibration's; --anchor and --machine correct for one host,
    and narrow them.
    """
    from perfmodel.studies.models.model import load
    from perfmodel.studies.models.predict import predict as predict_case
    from perfmodel.studies.registry import model_of_sizes
    from perfmodel.studies.render import predict as shown

    model = load(path)
    case = _case(model, options)
    images, host = options["images"], _host(model, options)
    if options["sweep"] or options["scaling"]:
        found, table, symbol = _over(model, case, host, options)
        result = shown.several(found, table, images, host)
        picture = partial(shown.picture, model, found, symbol)
    elif out is not None and _options.kind_of(out) in _options.PICTURES:
        raise click.UsageError(f"{out.suffix} is of curves: give --sweep or --scaling, too")
    else:
        found, picture = [predict_case(model, case, host)], None
        result = shown.one(found[0], images, host)
    said = model_of_sizes().too_large([p.case for p in found], model.machine, images)
    if said is not None:
        warn(said)
    emit(result, fmt, out, picture=picture)


def _case(model: Any, options: dict[str, Any]) -> Any:
    """Return the configuration that the flags describe."""
    from perfmodel.base.errors import WorkloadError
    from perfmodel.studies.registry import model_of_sizes

    chosen = _options.chosen(options)
    sizes, settings = model_of_sizes(chosen), _options.trainer_settings(options)
    given = program_of_sizes().name if chosen.workload is None else chosen.workload.name
    if given != model.workload:
        raise WorkloadError(
            f"expected the workload that the model was calibrated with, {model.workload!r}; got "
            f"{given!r}; give that one's --workload FILE.toml, and none for the trainer's MLP"
        )
    if chosen.workload is None:
        return sizes.case({"D": 784, "C": 10, "b": 4, **chosen.values}, settings, chosen)
    if settings:
        flags = ", ".join(map(_options.flag, settings))
        warn(f"{flags}: settings of the trainer's say nothing of {model.workload}")
    return sizes.case(chosen.values, {}, chosen)


def _host(model: Any, options: dict[str, Any]) -> Any:
    """Return what is known of the host that is predicted: by its machine file, and by reports."""
    from perfmodel.base.errors import ModelError
    from perfmodel.studies.models import hosts

    host, file = hosts.unknown(), options["machine"]
    if file is not None:
        _, found = _options.machine_of(file)
        if found is None or not model.host_calls:
            what = "a datasheet" if found is None else "a model without host times"
            raise ModelError(
                f"{file}: expected what perfmodel machine measure wrote on the host to predict, "
                f"and a model that was calibrated with --machine; got {what}; measure, or give "
                "--anchor REPORT of that host"
            )
        if model.machine and found.gpus and model.machine not in found.gpus:
            raise ModelError(
                f"{file}: expected the model's GPU, {model.machine}; got {', '.join(found.gpus)}; "
                "a host is corrected, not another GPU: measure a host with that one"
            )
        host = hosts.by_calls(host, model.host_calls, hosts.calls_of(found), Path(file).name)
    for observation in _anchors(model, options):
        host = hosts.by_report(host, model, observation)
    return host


def _anchors(model: Any, options: dict[str, Any]) -> list[Any]:
    """Observe the reports of the host that is predicted."""
    from perfmodel.analysis.runs import time_runs
    from perfmodel.base.errors import ModelError
    from perfmodel.studies.calibrated import UnknownPartsError
    from perfmodel.studies.registry import model_of_sizes

    reports = distinct(options["anchors"])
    if not reports:
        return []
    chosen = _options.chosen({"workload": options["workload"]})  # sizes are the reports' own
    with Progress(len(reports)) as advance:
        traces = read_reports(reports, advance)
    gpus = ", ".join(sorted({gpu.name for trace in traces for gpu in trace.gpus}))
    if model.machine and gpus != model.machine:
        raise ModelError(
            f"expected anchors on the model's GPU, {model.machine}; got {gpus or 'none'}; a host "
            "is corrected, not another GPU: calibrate there"
        )
    observed = model_of_sizes(chosen)
    try:
        return [observed.observe(run, chosen) for run in time_runs(traces, chosen)]
    except UnknownPartsError as error:
        raise ModelError(
            f"{error.found}; give --anchor reports of the program that the model is of, on the "
            f"host to predict"
        ) from error


def _over(model: Any, case: Any, host: Any, options: dict[str, Any]) -> tuple[list[Any], Any, str]:
    """Predictions over a symbol, their table, and the symbol."""
    from perfmodel.analysis.sweeps import doublings
    from perfmodel.studies.models import predict as scaling
    from perfmodel.studies.models.predict import predict as one
    from perfmodel.studies.render import predict as report

    def predicted(at: Any) -> Any:
        return one(model, at, host)

    if options["sweep"] and options["scaling"]:
        raise click.UsageError("expected --sweep or --scaling; got both; leave one out")
    if options["scaling"]:
        first = min(case.sizes.get("p", 1), options["ranks_to"])
        last = options["ranks_to"]
        if options["scaling"] == "strong":
            last = min(last, case.sizes["B"])
        points = scaling.scale(predicted, case, doublings(first, last), options["scaling"])
        return [s.prediction for s in points], report.scaling_table(points, options["scaling"]), "p"
    symbol, values = _options.values_of_sweep(options["sweep"])
    found = scaling.sweep(predicted, case, symbol, values)
    return list(found), report.sweep_table(found, symbol), symbol

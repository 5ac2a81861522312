"""`perfmodel study calibrate`: a few reports -> model.json, with what they leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from perfmodel.commands import _options
from perfmodel.commands._output import Progress, distinct, emit_model, read_reports, warn

_BARE: Final = "batch_median_s_without_nsys"
"""Of a row of an index: seconds without a profiler."""
_MOST_INDEX_BYTES: Final = 20_000_000
"""An index of the shipped profiles has 300 bytes a row."""


@click.command(cls=_options.Grouped)
@_options.reports
@_options.symbols
@_options.WORKLOAD
@_options.BATCH_RANGE
@_options.ATTRIBUTE
@click.option(
    "--index", type=_options.JSON,
    help="index.json of the reports: their sizes, and their time unrecorded as "
    "batch_median_s_without_nsys.",
)  # fmt: skip
@_options.machine("File of perfmodel machine measure on that machine: GEMMs, copies, all-reduces.")
@_options.output(".json", "-", "", said="FILE.json is the model, for study predict.")
def calibrate(reports: tuple[Path, ...], fmt: str, out: Path | None, **options: Any) -> None:
    """Fit a predictive model to reports of a few runs.

    -o FILE.json writes the model. Every term (launches, kernels, copies, sums) is fitted on all
    reports that have it; a warning names the run that would determine a missing one. Reports of
    the ranks of one run become one run; every other report is a launch of its own.

    For a --workload, --set NAME=V1,V2,... gives sizes that the reports do not hold, in the order of
    the reports, or the index does, as "sizes" of each file. A PyTorch program needs no model: see
    perfmodel predict REPORT.
    """
    from perfmodel.base.errors import ModelError
    from perfmodel.programs import program_of

    index = _read_index(options["index"])
    reports = distinct(reports)
    with Progress(len(reports)) as advance:
        traces = read_reports(reports, advance)
    plain = _options.chosen({**options, "machine": None, "given": ()})
    if all(program_of([trace], plain).recorded_operators is not None for trace in traces):
        raise ModelError(
            "expected reports of a program with formulas, such as by --workload FILE.toml; got one "
            "of PyTorch, which needs no model: perfmodel predict REPORT... predicts from its "
            "reports themselves (docs/pytorch_predict.md)"
        )
    from perfmodel.studies.models.calibrate import calibrate as calibrated
    from perfmodel.studies.models.model import as_text
    from perfmodel.studies.models.predict import predict as predicted
    from perfmodel.studies.render.predict import calibration

    observations, machine = _observed(traces, reports, options, index)
    part, terms, calls = _microbenchmarks(options["machine"], machine)
    model = calibrated(
        observations, machine=machine, alone=part, micro=terms, host_calls=calls,
        untraced={file: row[_BARE] for file, row in index.items() if row.get(_BARE)},
    )  # fmt: skip
    if not model.runs:
        predicted(model, observations[0].case)  # says what its report lacks

    taken_by = "study predict and whatif take"
    emit_model(calibration(model), lambda: as_text(model), fmt, out, taken_by=taken_by)


def _read_index(index: Path | None) -> dict[str, dict[str, Any]]:
    """Rows of an index by file: sizes of the program, and `_BARE`, as far as it has them."""
    from perfmodel.base.document import fitting, parse_json
    from perfmodel.base.errors import ModelError
    from perfmodel.base.escape import printable
    from perfmodel.base.files import read_whole

    if index is None:
        return {}
    try:
        rows = parse_json(read_whole(index, _MOST_INDEX_BYTES).decode())
        return {
            row["file"]: row
            | ({_BARE: fitting(float, row[_BARE])} if row.get(_BARE) else {})
            | ({"sizes": fitting(Mapping[str, int], row["sizes"])} if "sizes" in row else {})
            for row in rows
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{index}: expected a list of objects with file, sizes and {_BARE}; got none that can "
            f"be read ({printable(repr(error))[:200]}); check the path"
        ) from None


def _observed(
    traces: Sequence[Any],
    reports: Sequence[Path],
    options: dict[str, Any],
    index: Mapping[str, Mapping[str, Any]],
) -> tuple[list[Any], str]:
    """Observations of all runs, and the GPUs' name; sizes of --set go before those of the index."""
    from perfmodel.analysis.runs import time_runs
    from perfmodel.commands._operators import values_of
    from perfmodel.programs import program_of_sizes
    from perfmodel.studies.registry import model_of_sizes

    chosen = _options.chosen({**options, "machine": None, "given": ()})
    given = values_of(options["given"], len(traces))
    gpus = sorted({gpu.name for trace in traces for gpu in trace.gpus})
    model = model_of_sizes(chosen)
    found = []
    for run in time_runs(traces, chosen):
        at = next(i for i, trace in enumerate(traces) if trace.source == run.traces[0].source)
        sizes = {**index.get(reports[at].name, {}).get("sizes", {}), **chosen.values}
        sizes |= {name: values[at] for name, values in given.items()}
        found.append((run, sizes, model.observe(run, replace(chosen, values=sizes))))
    _told_apart(found, program_of_sizes(chosen), chosen.workload)
    if len(gpus) > 1:
        warn(
            f"reports of {len(gpus)} kinds of GPU, {', '.join(gpus)}: a model of all of them "
            f"predicts none of them; calibrate each separately"
        )
    return _distinct([observation for _, _, observation in found]), ", ".join(gpus)


def _told_apart(
    found: Sequence[tuple[Any, Mapping[str, int], Any]], program: Any, workload: Any
) -> None:
    """Refuse two reports whose equal sizes are defaults of the workload, for they may be others."""
    from perfmodel.base.errors import ModelError

    seen: dict[tuple[tuple[str, int], ...], str] = {}
    for run, sizes, one in found if workload is not None else ():
        known = {*sizes, *program.identify(run, {})[0].values}
        assumed = [f"{name} = {n}" for name, n in one.case.sizes.items() if name not in known]
        key = tuple(sorted(one.case.sizes.items()))
        if key in seen and assumed:
            raise ModelError(
                f"expected the sizes of {seen[key]} and of {one.source}; got the same default "
                f"{', '.join(assumed)} for both; give --set {assumed[0].split()[0]}=V1,V2,... in "
                f"the order of the reports, or an --index with their sizes"
            )
        seen[key] = one.source


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


def _microbenchmarks(file: str | None, machine: str) -> tuple[Any, Any, Any]:
    """Return the parts of a machine's measurement: GEMMs by shape, evidence, host times."""
    from perfmodel.base.errors import ModelError
    from perfmodel.studies.models.hosts import calls_of
    from perfmodel.studies.registry import model_of_sizes

    if file is None:
        return None, (), {}
    _, found = _options.machine_of(file)
    if found is None:
        raise ModelError(
            f"{file}: expected what perfmodel machine measure wrote; got a datasheet; measure on "
            f"the machine that ran the reports"
        )
    source = Path(file).name
    names = ", ".join(sorted(set(found.gpus)))
    if names != machine:
        raise ModelError(
            f"{file}: expected microbenchmarks of the reports' GPU, {machine or 'none'}; got those "
            f"of {names or 'a CPU'}; measure on the machine that ran the reports"
        )
    products, evidence = model_of_sizes().microbenchmarks(found, source)
    if products is None and not evidence:
        raise ModelError(
            f"{file}: expected the trainer's GEMMs, copies, all-reduces or an empty kernel's "
            "time; got none; run perfmodel machine measure again, with more --seconds"
        )
    return products, evidence, calls_of(found)

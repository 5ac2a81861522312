"""`calibrate` and `predict` of a model of operators, for reports that name their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from perfmodel.commands import _options
from perfmodel.commands._output import emit, emit_model, warn


def calibrate(
    traces: Sequence[Any], reports: Sequence[Path], fmt: str, out: Path | None,
    options: Mapping[str, Any],
) -> None:  # fmt: skip
    """Fit a model of operators to reports, and write it."""
    from perfmodel.models.operators_calibrate import calibrate_operators
    from perfmodel.models.operators_file import as_text
    from perfmodel.programs import program_of
    from perfmodel.render.operator_prediction import calibration

    chosen = _options.chosen({**options, "machine": None, "given": (), "index": None})
    rows = read_index(options["index"])
    given = values_of(options["given"], len(traces))
    steps = []
    for i, (trace, path) in enumerate(zip(traces, reports, strict=True)):
        program = program_of([trace], chosen)
        operators = _operators_of(program)
        row = rows.get(path.name, {})
        symbols = {**row.get("sizes", {}), **{name: values[i] for name, values in given.items()}}
        step = operators.recorded_step(
            trace, chosen, {k: v for k, v in symbols.items() if k != "p"}
        )
        steps.append(replace(step, bare_s=row[BARE]) if row.get(BARE) else step)
    _with_sizes(steps)
    _same_symbols(steps)
    given_files = {path.name for path in reports}
    steps += [_timed(row, steps[0]) for name, row in rows.items()
              if name not in given_files and "sizes" in row]  # fmt: skip
    gpus = [gpu for trace in traces for gpu in trace.gpus]
    baseline = _baseline(options["machine"]) or _baseline_of(steps[0].gpu, gpus)
    model = calibrate_operators(program.name, steps, baseline, operators.call_at, options["take"])

    left = list(dict.fromkeys(each for s in model.structures for each in s.unresolved))
    if left:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        warn(
            f"no product of the sizes given is {', '.join(left[:3])}{more}: kept as recorded; name "
            "by --set what else differs between the reports, which must be of one program"
        )

    emit_model(calibration(model), lambda: as_text(model), fmt, out, taken_by="predict takes")


def predict(path: Path, fmt: str, out: Path | None, options: Mapping[str, Any]) -> None:
    """Predict a step of a program by a model of operators."""
    from perfmodel.models.operators import host_ratio, predict_operators
    from perfmodel.models.operators_file import load
    from perfmodel.programs import program_named
    from perfmodel.render.operator_prediction import prediction

    _only_of_operators(out, {**options, "anchor": options.get("anchors")})
    model = load(path)
    given = {name: values[0] for name, values in values_of(options["given"], 1).items()}
    sizes = {**given, "p": options.get("ranks") or given.get("p", 1)}
    other, scale = None, None
    if options.get("machine"):
        other = _baseline(options["machine"])
        scale = host_ratio(model.baseline.machine, other.machine)
    call_at = _operators_of(program_named(model.program)).call_at
    emit(prediction(predict_operators(model, sizes, call_at, other, scale)), fmt, out)


def _only_of_operators(out: Path | None, options: Mapping[str, Any]) -> None:
    """Refuse options of models of batches."""
    for name in ("sweep", "scaling", "anchor", "workload"):
        if options.get(name):
            raise click.UsageError(f"--{name} is of models of batches; got one of operators")
    if settings := _options.trainer_settings(options):
        flags = ", ".join(map(_options.flag, settings))
        raise click.UsageError(f"{flags}: of the trainer's models; got one of operators")
    if out is not None and _options.kind_of(out) in _options.PICTURES:
        raise click.UsageError(f"{out.suffix} is of curves; predictions of operators have none")


@dataclass(frozen=True, slots=True)
class Asked:
    """Options of `predict REPORT` alone, as `commands.predict` has them."""

    names: tuple[str, ...] = ()
    gpu: str | None = None
    graphs: bool = False
    compiled: bool = False
    timed: tuple[str, ...] = ()
    other_host: bool = False
    fsdp: bool = False
    accumulate: int = 1
    tokens: float | None = None


def predict_report(
    path: Path, fmt: str, out: Path | None, options: Mapping[str, Any], asked: Asked
) -> None:
    """Predict a step of other sizes from one report, and what is known of the host."""
    from perfmodel.commands._output import Progress, distinct, read_reports
    from perfmodel.models.one_report import predict_report
    from perfmodel.programs import program_of
    from perfmodel.render.operator_prediction import report_prediction

    _only_of_operators(out, options)
    if options.get("machine") and asked.gpu:
        raise click.UsageError("expected --machine or --gpu; got both; leave one out")
    if asked.fsdp and (options.get("ranks") or 1) < 2:
        raise click.UsageError("--fsdp: expected ranks to share parameters, by -p; got one")
    chosen = _options.chosen({**options, "machine": None, "given": (), "dtype": None})
    reports = [path, *distinct(options["anchors"])]
    with Progress(len(reports)) as advance:
        trace, *others = read_reports(reports, advance)
    operators = _operators_of(program_of([trace], chosen))
    step, *anchors = (operators.recorded_step(t, chosen, {}) for t in (trace, *others))
    roles = operators.roles(step, _roles_of(asked.names))
    given = {name: values[0] for name, values in values_of(options["given"], 1).items()}
    given |= {"p": options["ranks"]} if options.get("ranks") else {}
    if asked.fsdp and step.ranks > 1:
        raise click.UsageError("--fsdp: expected a REPORT of one rank; got several")
    other = _baseline(asked.gpu or options.get("machine"))
    changes = changes_of(asked, other, options.get("dtype"), trace)
    found = predict_report(step, roles, given, _baseline_of(step.gpu, trace.gpus),
                           operators.call_at, changes,
                           (*anchors, *map(_timed_step, asked.timed)))  # fmt: skip
    emit(report_prediction(found, asked.tokens), fmt, out)


def changes_of(asked: Asked, other: Any, dtype: str | None, trace: Any) -> Any:
    """Return what is changed besides the sizes; another GPU is in another host."""
    from perfmodel.models.one_report import Changes, hosts

    memory_bytes = next((gpu.memory_bytes for gpu in trace.gpus), None)
    if other is not None:
        memory_bytes = other.machine.capacity_bytes.get("hbm")
    elsewhere = asked.other_host or other is not None
    return Changes(
        other, dtype, asked.graphs, asked.compiled, memory_bytes and int(memory_bytes),
        hosts() if elsewhere else None, asked.accumulate, asked.fsdp,
    )  # fmt: skip


def peak_of_report(path: Path) -> Any:
    """Estimate the peak of a report's memory from its operators; None where they do not say it.

    Raises
    ------
    ModelError
        If the report has no operators with sizes.
    """
    from perfmodel.commands._output import read_reports
    from perfmodel.models.one_report import Changes, predict_report
    from perfmodel.programs import program_of
    from perfmodel.programs.program import Options

    (trace,) = read_reports([path], lambda *_: None)
    operators = _operators_of(program_of([trace], Options()))
    step = operators.recorded_step(trace, Options(), {})
    found = predict_report(step, operators.roles(step, {}), {}, _baseline_of(step.gpu, trace.gpus),
                           operators.call_at, Changes())  # fmt: skip
    return found.peak


def _baseline_of(name: str, gpus: Sequence[Any]) -> Any:
    """Times of GEMMs and attention of a report's GPU: its shipped grid, else another's, scaled."""
    from perfmodel.machines.devices import find
    from perfmodel.machines.grids import grid_of, grids
    from perfmodel.models.operator_times import Baseline

    measured = grid_of(name)
    if measured is not None:
        return Baseline.of(measured.machine, measured)
    if not gpus:
        raise click.UsageError("the report names no GPU: record with nsys profile -t cuda,nvtx")
    return Baseline.like(find(gpus[0]), grids()[-1])


def _baseline(word: str | None) -> Any:
    """Times of another GPU, by its name or the file of a machine; None for neither."""
    return None if word is None else _times_of(*_options.machine_of(word))


def _times_of(machine: Any, measured: Any = None) -> Any:
    """Times on a machine: as measured, else of the shipped grid of its GPU, else scaled."""
    from perfmodel.machines.grids import grids
    from perfmodel.models.operator_times import Baseline

    if measured is None:
        shipped = (m for m in grids() if m.machine.sheet and m.machine.sheet.name == machine.name)
        measured = next(shipped, None)
    if measured is not None and measured.products:
        return Baseline.of(measured.machine, measured)
    return Baseline.like(machine, grids()[-1])


def _timed_step(text: str) -> Any:
    """Read NAME=N,...:SECONDS, or SECONDS."""
    from perfmodel.models.one_report import TimedStep

    said, _, seconds = text.rpartition(":")
    try:
        step_s = float(seconds)
        if not 0 < step_s < _LONGEST_STEP_S:
            raise ValueError(text)
        sizes = values_of(said.split(",") if said else (), 1)
    except (ValueError, click.BadParameter):
        raise click.BadParameter(
            f"--timed: expected SECONDS or NAME=N,...:SECONDS, such as batch=8:0.0093; got {text!r}"
        ) from None
    return TimedStep({name: values[0] for name, values in sizes.items()}, step_s)


def _roles_of(names: Sequence[str]) -> dict[str, int]:
    """Read N=ROLE."""
    found: dict[str, int] = {}
    for text in names:
        number, _, role = text.partition("=")
        if not role.isidentifier() or not (number.isascii() and number.isdigit()):
            raise click.BadParameter(f"--name: expected N=ROLE, such as 32=batch; got {text!r}")
        found[role] = int(number)
    return found


def _operators_of(program: Any) -> Any:
    """The formulas of a program's operators."""
    from perfmodel.base.errors import ModelError

    found = program.recorded_operators
    if found is None:
        raise ModelError(
            f"expected a program whose operators have formulas, such as pytorch; got "
            f"{program.name!r}; calibrate on its reports again"
        )
    return found


_LONGEST_STEP_S: Final = 1e6
BARE: Final = "batch_median_s_without_nsys"
"""Of a row of an index: seconds without a profiler."""
_MOST_INDEX_BYTES: Final = 20_000_000
"""An index of the shipped profiles has 300 bytes a row."""


def read_index(index: Path | None) -> dict[str, dict[str, Any]]:
    """Rows of an index by file: sizes of the program, and `BARE`, as far as it has them.

    A file that is no report names a step that was timed, and not recorded.
    """
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
            | ({BARE: fitting(float, row[BARE])} if row.get(BARE) else {})
            | ({"sizes": fitting(Mapping[str, int], row["sizes"])} if "sizes" in row else {})
            for row in rows
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{index}: expected a list of objects with file, sizes and {BARE}; got none that can "
            f"be read ({printable(repr(error))[:200]}); check the path"
        ) from None


def _timed(row: Mapping[str, Any], like: Any) -> Any:
    """A step of other sizes that was timed without a profiler, and not recorded."""
    from perfmodel.base.errors import ModelError

    sizes = {"p": 1, **row["sizes"]}
    seconds = row.get(BARE)
    if {*sizes} != {*like.symbols} or not seconds:
        raise ModelError(
            f"{row['file']}: expected a row of the index with {BARE} and the sizes "
            f"{', '.join(sorted(like.symbols))}; got {', '.join(sorted(sizes))}; give all"
        )
    return replace(
        like, source=row["file"], symbols=sizes, calls=(), order=(), step_s=0.0, busy_s=0.0,
        launches=0, gap_s=0.0, bare_s=seconds,
    )  # fmt: skip


def values_of(given: Sequence[str], count: int) -> dict[str, list[int]]:
    """Read NAME=V or NAME=V1,V2,...: one value for all reports, or one for each."""
    found: dict[str, list[int]] = {}
    for text in given:
        name, _, said = text.partition("=")
        words = said.split(",")
        numbers = [int(w) for w in words if w.isascii() and w.isdigit() and len(w) < 10]
        if not name or len(numbers) < len(words) or min(numbers) < 1:
            raise click.BadParameter(
                f"--set: expected NAME=N or NAME=N,N,... with N of 1 to 999999999; got {text!r}"
            )
        if name in found:
            raise click.BadParameter(f"--set {name}: expected once; got it twice; give one")
        if len(words) not in (1, count):
            raise click.BadParameter(
                f"--set {name}: expected one value, or one for each of the {count} reports in "
                f"their order; got {len(words)}"
            )
        found[name] = numbers * count if len(numbers) == 1 else numbers
    return found


def _with_sizes(steps: Sequence[Any]) -> None:
    """Refuse reports of which none has operators' sizes."""
    from perfmodel.base.errors import ModelError

    if not any(step.order for step in steps):
        raise ModelError(
            "expected reports of a PyTorch program with operators' sizes; got none with them; "
            "record with nsys profile --pytorch=autograd-shapes-nvtx, or give formulas of the "
            "program's ranges by --workload FILE.toml (docs/pytorch_predict.md)"
        )


def _same_symbols(steps: Sequence[Any]) -> None:
    """Refuse reports whose sizes are not named."""
    from perfmodel.base.errors import ModelError

    names = {frozenset(s.symbols) for s in steps}
    if len(names) > 1 or names == {frozenset({"p"})}:
        raise ModelError(
            "expected the program's sizes of every report, such as --set n_layer=4,8 --set "
            "batch=16,24 with one value for each report in order, or an index with sizes by "
            f"--index; got {', '.join(sorted({*names.pop()} - {'p'})) or 'none'} of some"
        )

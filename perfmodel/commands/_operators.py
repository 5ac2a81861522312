"""`predict` from reports that name their operators' sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from perfmodel.commands import _options
from perfmodel.commands._output import emit


def _only_of_operators(out: Path | None, options: Mapping[str, Any]) -> None:
    """Refuse options of models, and of --decoder."""
    context = click.get_current_context(silent=True)
    given = [
        name for name in ("sweep", *_OF_OTHERS)
        if context and context.get_parameter_source(name) == ParameterSource.COMMANDLINE
    ]  # fmt: skip
    if flags := [f"--{name.replace('_', '-')}" for name in given]:
        whose = "of --decoder" if "context" in given else "of models"
        raise click.UsageError(
            f"{', '.join(flags)}: {whose}; got a REPORT; give its sizes by --set, such as --set "
            f"batch=24"
        )
    if out is not None and _options.kind_of(out) in _options.PICTURES:
        raise click.UsageError(f"{out.suffix} is of curves; a predicted step has none")


_OF_OTHERS: Final = (
    "context", "expert_gpus", "shapes", "input_size", "hidden_size",
    "num_classes", "batch_size",
)  # fmt: skip
"""Options of --decoder and of models that have a default."""


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
    fsdp_float32: bool = False
    accumulate: int = 1
    tokens: float | None = None


def predict_report(
    paths: Sequence[Path], fmt: str, out: Path | None, options: Mapping[str, Any], asked: Asked
) -> None:
    """Predict a step of other sizes from reports, and what is known of the host."""
    from perfmodel.commands._output import Progress, distinct, read_reports
    from perfmodel.models.one_report import predict_report
    from perfmodel.programs import program_of
    from perfmodel.render.operator_prediction import report_prediction

    _only_of_operators(out, options)
    if options.get("machine") and asked.gpu:
        raise click.UsageError("expected --machine or --gpu; got both; leave one out")
    if asked.fsdp_float32 and not asked.fsdp:
        raise click.UsageError("--fsdp-float32: of --fsdp; got none; give both")
    if asked.fsdp and (options.get("ranks") or 1) < 2:
        raise click.UsageError("--fsdp: expected ranks to share parameters, by -p; got one")
    if asked.tokens is not None and not math.isfinite(asked.tokens):
        raise click.BadParameter(f"--tokens: expected a number of tokens; got {asked.tokens}")
    chosen = _options.chosen({**options, "machine": None, "given": (), "dtype": None})
    own = distinct(paths)
    anchored = distinct(options["anchors"])
    if both := [path.name for path in anchored if path in own]:
        raise click.UsageError(
            f"--anchor {both[0]}: expected a report of the host to predict; got a REPORT, "
            f"whose host is predicted without --anchor"
        )
    files = [*own, *anchored]
    with Progress(len(files)) as advance:
        traces = read_reports(files, advance)
    operators = _operators_of(program_of(traces[:1], chosen))
    named = [*_roles_of(asked.names, len(own)), *([{}] * len(files))]
    steps = [_recorded_step(operators, trace, chosen) for trace in traces]
    reports = [(s, operators.roles(s, n)) for s, n in zip(steps, named, strict=False)]
    step, trace = steps[0], traces[0]
    given = {name: values[0] for name, values in values_of(options["given"], 1).items()}
    given |= {"p": options["ranks"]} if options.get("ranks") else {}
    if asked.fsdp and step.ranks > 1:
        raise click.UsageError("--fsdp: expected a REPORT of one rank; got several")
    other = _baseline(asked.gpu or options.get("machine"))
    changes = changes_of(asked, other, options.get("dtype"), trace)
    anchors = (*reports[len(own) :], *map(_timed_step, asked.timed))
    found = predict_report(reports[: len(own)], given, _baseline_of(step.gpu, trace.gpus),
                           operators.call_at, changes, anchors)  # fmt: skip
    emit(report_prediction(found, asked.tokens), fmt, out)


def _recorded_step(operators: Any, trace: Any, options: Any) -> Any:
    """Put the step of a report down call by call, with the time that `analyze` says."""
    from perfmodel.analysis.analyze import step_s_of

    found = operators.recorded_step(trace, options)
    return replace(found, step_s=step_s_of(trace, options)) if found.host_s else found


def changes_of(asked: Asked, other: Any, dtype: str | None, trace: Any) -> Any:
    """Return what is changed besides the sizes; another GPU is in another host."""
    from perfmodel.models.one_report import Changes

    memory_bytes = next((gpu.memory_bytes for gpu in trace.gpus), None)
    if other is not None:
        memory_bytes = other.machine.capacity_bytes.get("hbm")
    elsewhere = asked.other_host or other is not None
    return Changes(
        other, dtype, asked.graphs, asked.compiled, memory_bytes and int(memory_bytes),
        elsewhere, asked.accumulate, asked.fsdp, asked.fsdp_float32,
    )  # fmt: skip


def peak_of_report(path: Path) -> Any:
    """Predict the step of a report as recorded, with the peak of its memory.

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
    step = _recorded_step(operators, trace, Options())
    report = step, operators.roles(step, {})
    found = predict_report([report], {}, _baseline_of(step.gpu, trace.gpus), operators.call_at,
                           Changes())  # fmt: skip
    return found


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


def _roles_of(names: Sequence[str], reports: int) -> list[dict[str, int]]:
    """Read N=ROLE or N1,N2,...=ROLE: a number of all reports, or one of each."""
    found: list[dict[str, int]] = [{} for _ in range(reports)]
    for text in names:
        said, _, role = text.partition("=")
        numbers = said.split(",")
        if not role.isidentifier() or not all(n.isascii() and n.isdigit() for n in numbers):
            raise click.BadParameter(f"--name: expected N=ROLE, such as 32=batch; got {text!r}")
        if len(numbers) not in (1, reports):
            raise click.BadParameter(
                f"--name: expected one number, or one for each of the {reports} reports in their "
                f"order; got {text!r}"
            )
        for i, each in enumerate(found):
            each[role] = int(numbers[i % len(numbers)])
    return found


def _operators_of(program: Any) -> Any:
    """The formulas of a program's operators."""
    from perfmodel.base.errors import ModelError

    found = program.recorded_operators
    if found is None:
        raise ModelError(
            f"expected a report of PyTorch with operators' sizes; got one of {program.name!r}; "
            f"predict the trainer and workloads by perfmodel study predict --model FILE"
        )
    return found


_LONGEST_STEP_S: Final = 1e6


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

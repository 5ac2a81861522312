"""Text, tables and JSON of calibrations and predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np

from perfmodel.base.document import plain_view
from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent, si
from perfmodel.models.spread import Z90
from perfmodel.programs import LEADING_SETTING, program_named
from perfmodel.render.result import Result
from perfmodel.studies.models.hosts import SAME, Host
from perfmodel.studies.models.model import Model
from perfmodel.studies.models.predict import Phase, Prediction, Scaled, epoch_s
from perfmodel.studies.models.terms import BOUNDS, UNITS, USUAL_NOISE, Term
from perfmodel.studies.registry import calibrated_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RATES: Final = ("bytes", "moved", "flops")
"""Amounts whose coefficients are shown as what happens in a second."""

TERMS: Final = (
    Column("term", "Term", wrap=False),
    Column("amount", "Per", wrap=False),
    Column("value", "Value"),
    Column("from", "90 % from"),
    Column("to", "to"),
    Column("bound", "Bound"),
    Column("runs", "Runs", "int"),
    Column("noise", "Noise", "percent"),
)


def calibration(model: Model) -> Result:
    """Return what a calibration found; what its runs leave open are warnings."""
    return Result([calibration_text(model), terms_table(model)], warnings=open_questions(model))


def terms_table(model: Model) -> Table:
    """Return every coefficient with its 90 % interval, the physical rate, and its evidence."""
    rows = []
    for term in model.terms.values():
        sure = identified(term)
        for i, name in enumerate(term.amounts):
            value, width = float(term.coefficients[i]), Z90 * math.sqrt(term.covariance[i, i])
            ends = [max(value - width, 0.0), value + width]
            if name in _RATES:  # the most time is the lowest rate
                ends.reverse()
            shown = [rate(name, c) if sure[i] else None for c in (value, *ends)]
            rows.append((term.key, name, *shown, BOUNDS[name], len(term.runs), term.noise))
    notes = (
        "a dash: the runs do not separate this one from the term's others",
        "noise: standard deviation of log(measured / fitted) between launches",
    )
    return Table("Calibrated terms", TERMS, rows, notes)


def rate(amount: str, seconds_per_unit: float) -> str:
    """Show a coefficient as people know it: latency in s, bandwidth in B/s, rate in FLOP/s.

    Times of GEMMs are factors of what they take alone.
    """
    if amount in _RATES:
        unit = "FLOP/s" if amount == "flops" else "B/s"
        return si(1 / seconds_per_unit, unit) if seconds_per_unit > 0 else "no limit seen"
    if amount == "alone":
        return f"x {seconds_per_unit:.3f}"
    if UNITS[amount].endswith("^0.5"):
        return f"{seconds_per_unit:.3g} {UNITS[amount]}"
    return si(seconds_per_unit, "s") if seconds_per_unit > 0 else "0 s"


def identified(term: Term) -> list[bool]:
    """Whether the runs separate each coefficient from the others of its term."""
    count = len(term.amounts)
    left = np.eye(count) - term.space.T @ term.space
    return [bool(np.linalg.norm(left[:, i]) < 1e-6) for i in range(count)]


def open_questions(model: Model) -> list[str]:
    """Say which coefficients the runs leave open, and which run would determine them."""
    found, calibrated = [], calibrated_of(program_named(model.workload))
    for term in model.terms.values():
        unsure = [n for n, sure in zip(term.amounts, identified(term), strict=True) if not sure]
        if unsure and calibrated is not None:
            found.append(
                f"{term.key}: {len(term.runs)} run{'s' * (len(term.runs) != 1)} cannot separate "
                f"{' from '.join(unsure)}: only such runs are predicted; "
                + calibrated.separating(term.key, unsure, len(term.amounts) - len(term.space))
            )
    return found


def calibration_text(model: Model) -> list[str]:
    """Return the sentences above the table of terms."""
    runs = len(model.runs)
    errors = [abs(_number(r, "fitted_s") / _number(r, "batch_s") - 1) for r in model.runs]
    said = [
        f"{model.workload}: {len(model.terms)} terms of {runs} run{'s' * (runs != 1)}"
        + (f" on {model.machine}" if model.machine else "")
    ]
    if errors:
        said.append(
            f"Fitted batches miss the measured ones by {percent(float(np.mean(errors)), 1)} on "
            f"average, {percent(max(errors), 1)} at most; from launch to launch they differ by "
            f"{_noise(model)} (one standard deviation)"
        )
    files = {m.partition(":")[0] for t in model.terms.values() for m in t.microbenchmarks}
    if files:
        count = sum(bool(t.microbenchmarks) for t in model.terms.values())
        said.append(
            f"Microbenchmarks are evidence of {count} terms beside the runs: {', '.join(files)}"
        )
    sides = {"host": "that a host launches", "gpu": "that a GPU runs"}
    added = [f"{si(s, 's')} per kernel {sides[side]}" for side, s in model.recording_s.items()]
    if added:
        said.append(f"Recording adds {', and '.join(added)}")
    return said


def _noise(model: Model) -> str:
    """Noise by what limits a batch, or the one that is assumed."""
    if not model.batch_noise:
        return f"an assumed {percent(USUAL_NOISE)}"
    return ", ".join(f"{percent(sd, 1)} ({limit})" for limit, sd in model.batch_noise.items())


def one(p: Prediction, images: int, host: Host = SAME) -> Result:
    """Return the prediction of one configuration."""
    warnings, said, epoch = [], host_text(host), epoch_s(p, images)
    if p.extrapolated:
        warnings.append(f"extrapolated: {', '.join(p.extrapolated)} beyond the calibration's runs")
    if epoch is not None:
        said.append(f"Epoch of {images} images: {si(epoch, 's')}")
    elif "B" in p.case.sizes:
        warnings.append(
            f"no epoch: a batch of {p.case.sizes['B']} images is more than the {images} there are; "
            f"give --images"
        )
    if p.untraced_s is not None:
        said.append(f"Without Nsight Systems recording: {si(p.untraced_s, 's')} per batch")
    document = prediction_document(p, images, host)
    return Result([phases_table(p), said], lambda: document, warnings=warnings)


def several(found: Sequence[Prediction], table: Table, images: int, host: Host = SAME) -> Result:
    """Return predictions over one symbol or over ranks."""
    return Result(
        [table, host_text(host)], lambda: [prediction_document(p, images, host) for p in found]
    )


def host_text(host: Host) -> list[str]:
    """Say by how much the host's parts were corrected, by what, and how sure that is."""
    if not host.evidence:
        return ["Host: any like the calibration's; --anchor REPORT of one narrows the intervals"]
    if host is SAME:
        return []
    factors = ", ".join(
        f"{kind} x {ratio:.2f} ({low:.2f} to {high:.2f})"
        for kind, (ratio, low, high) in host.ranges.items()
    )
    return [f"Host, against the calibration's: {factors}; by {', '.join(host.evidence)}"]


def prediction_document(
    p: Prediction, images: int, host: Host = SAME
) -> Annotated[
    dict[str, Any],
    Prediction,
    {"epoch_s": float | None, "images_per_s": float | None, "host": Host},
]:
    """What `predict --model MODEL --json` prints; with --sweep and --scaling a list.

    Keys
    ----
    epoch_s, images_per_s
        None where the model has no images, or a batch is more than there are.
    """
    rate = p.case.sizes["B"] / p.batch_s if "B" in p.case.sizes else None
    return plain_view(p, epoch_s=epoch_s(p, images), images_per_s=rate, host=host)


_SECONDS: Final = Column("batch_s", "Batch", "si", "s")
_LOW: Final = Column("low_s", "90 % from", "si", "s")
_HIGH: Final = Column("high_s", "to", "si", "s")
_LONGEST: Final = Column("bound", "Longest phase", of=lambda p: _longest(p))
_BEYOND: Final = Column("extrapolated", "Extrapolated", of=lambda p: ", ".join(p.extrapolated))


def phases_table(p: Prediction) -> Table:
    """Return the phases of one prediction, with their bounds."""
    columns = (
        Column("phase", "Phase", of="name"),
        Column("seconds", "Time", "si", "s"),
        _LOW,
        _HIGH,
        Column("share", "Share", "percent", of=lambda f: f.seconds / p.batch_s),
        Column("bound", "Bound"),
    )
    whole = Phase("batch", p.batch_s, p.low_s, p.high_s, "")
    beyond = [f"extrapolated: {', '.join(p.extrapolated)} beyond the calibration's runs"]
    title = f"Predicted batch: {p.case.label}"
    return Table.of(title, [*p.phases, whole], columns, beyond if p.extrapolated else ())


def sweep_table(points: Sequence[Prediction], symbol: str) -> Table:
    """Return predictions over one symbol."""
    at = Column(symbol, symbol, "int", of=lambda p: p.case.sizes[symbol])
    columns = (at, _SECONDS, _LOW, _HIGH, _LONGEST, _BEYOND)
    return Table.of(f"Predictions over {symbol}", points, columns)


def _longest(p: Prediction) -> str:
    phase = max(p.phases, key=lambda f: f.seconds)
    return f"{phase.name} ({phase.bound})"


def scaling_table(points: Sequence[Scaled], kind: str) -> Table:
    """Return strong or weak scaling."""
    columns = (
        Column("p", "Ranks", "int", of=lambda s: s.prediction.case.sizes["p"]),
        Column("B", "B", "int", of=lambda s: s.prediction.case.sizes["B"]),
        Column("batch_s", "Batch", "si", "s", of="prediction.batch_s"),
        Column("low_s", "90 % from", "si", "s", of="prediction.low_s"),
        Column("high_s", "to", "si", "s", of="prediction.high_s"),
        Column("speedup", "Speed-up", "float", digits=2),
        Column("efficiency", "Efficiency", "percent"),
        Column("bound", "Longest phase", of=lambda s: _longest(s.prediction)),
        Column("extrapolated", "Extrapolated", of=lambda s: ", ".join(s.prediction.extrapolated)),
    )
    note = "extrapolated rows are the model's alone: no run of that size was measured"
    return Table.of(f"{kind.capitalize()} scaling", points, columns, [note])


def picture(model: Model, found: Sequence[Prediction], symbol: str) -> Axes:
    """Draw predictions over one symbol, with the calibration's own runs."""
    from perfmodel.render.plot.lines import predictions

    label = found[0].case.settings.get(LEADING_SETTING, model.workload)
    words = [w for w in found[0].case.label.split() if not w.startswith(f"{symbol}=")]
    measured = measured_points(model, found, symbol)
    at = [p.case.sizes[symbol] for p in found]
    seconds = [(p.batch_s, p.low_s, p.high_s) for p in found]
    beyond = [bool(p.extrapolated) for p in found]
    return predictions(
        f"predicted, {label}", at, seconds, beyond, measured, symbol, title=" ".join(words)
    )


def measured_points(
    model: Model, points: Sequence[Prediction], symbol: str
) -> list[tuple[int, float]]:
    """Return the calibration's own runs that differ from a sweep's cases in one symbol only."""
    if not points:
        return []
    case = points[0].case
    rest = {k: v for k, v in case.sizes.items() if k != symbol}
    found = []
    for run in model.runs:
        sizes, settings = run.get("sizes"), run.get("settings")
        if not isinstance(sizes, Mapping) or settings != dict(case.settings):
            continue
        if all(sizes.get(k) == v for k, v in rest.items()) and symbol in sizes:
            found.append((int(sizes[symbol]), _number(run, "batch_s")))
    return sorted(found)


def _number(run: Mapping[str, object], key: str) -> float:
    """Return a number of a calibration's run; `model_file` checks those of files."""
    value = run[key]
    assert isinstance(value, int | float)
    return float(value)

"""Text, tables and JSON of calibrations and predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from perfmodel.analysis.predict import Prediction
from perfmodel.analysis.predict_scaling import Scaled, epoch_s
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.models.model import USUAL_NOISE, Z90, Model, Term
from perfmodel.models.part import BOUNDS, UNITS
from perfmodel.programs.mlp.case import MLP

_RATES: Final = ("bytes", "moved", "flops")
"""Amounts whose coefficients are shown as what happens in a second."""
_SIZES: Final = {
    "copy images": "B", "copy out": "H", "copy back": "H", "pipeline": "H", "step kernels": "H",
    "all-reduce": "H and number of ranks", "peer all-reduce and step": "H",
}  # fmt: skip
"""Sizes that change the amounts of a term: another such value tells them apart; else H and B."""
_WAYS: Final = {
    "NCCL sums": "on one rank or without NCCL",
    "paged": "with images that are not pageable (--data-on pinned)",
    "spilled": "at another H",
}
"""Runs that tell these amounts from a constant."""
_PROPORTION: Final = (
    "a report at sizes that change their proportions would tell; if by the workload's formulas no "
    "sizes do, nothing is missing"
)


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
    return Table(
        "Calibrated terms",
        (
            Column("term", "Term", wrap=False),
            Column("amount", "Per", wrap=False),
            Column("value", "Value"),
            Column("from", "90 % from"),
            Column("to", "to"),
            Column("bound", "Bound"),
            Column("runs", "Runs", "int"),
            Column("noise", "Noise", "percent"),
        ),
        rows,
        notes=(
            "a dash: the runs do not tell this one apart from the term's others",
            "noise: standard deviation of log(measured / fitted) between launches",
        ),
    )


def rate(amount: str, seconds_per_unit: float) -> str:
    """Show a coefficient as people know it: latency in s, bandwidth in B/s, rate in FLOP/s.

    Times of products are factors of what they take alone.
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
    """Whether the runs tell each coefficient apart from the others of its term."""
    count = len(term.amounts)
    left = np.eye(count) - term.space.T @ term.space
    return [bool(np.linalg.norm(left[:, i]) < 1e-6) for i in range(count)]


def open_questions(model: Model) -> list[str]:
    """Say which coefficients the runs leave open, and which run would tell them."""
    found = []
    for term in model.terms.values():
        unsure = [n for n, sure in zip(term.amounts, identified(term), strict=True) if not sure]
        if unsure:
            found.append(
                f"{term.key}: {len(term.runs)} run{'s' * (len(term.runs) != 1)} cannot tell "
                f"{' from '.join(unsure)}: only such runs are predicted; "
                + (_telling(term, unsure) if model.workload == MLP else _PROPORTION)
            )
    return found


def _telling(term: Term, unsure: Sequence[str]) -> str:
    """Say how many reports are missing, and of which runs."""
    missing = len(term.amounts) - len(term.space)
    ways = [way for name, way in _WAYS.items() if name in unsure]
    if len(ways) < missing and not set(unsure) <= {"batches", *_WAYS}:
        ways.append(f"at another {_SIZES.get(term.key.partition(' [')[0], 'H and B')}")
    reports = "a report" if missing == 1 else f"{missing} reports"
    return f"{reports} of such a run {', and '.join(ways)} would tell"


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
            f"Fitted batches miss the measured ones by {100 * float(np.mean(errors)):.1f} % on "
            f"average, {100 * max(errors):.1f} % at most; from launch to launch they differ by "
            f"{_noise(model)} (one standard deviation)"
        )
    files = {m.partition(":")[0] for t in model.terms.values() for m in t.microbenchmarks}
    if files:
        count = sum(bool(t.microbenchmarks) for t in model.terms.values())
        said.append(
            f"Microbenchmarks are evidence of {count} terms beside the runs: {', '.join(files)}"
        )
    if model.tracing_s is not None:
        said.append(f"Recording adds {si(model.tracing_s, 's')} to a batch")
    return said


def _noise(model: Model) -> str:
    """Noise by what sets the pace, or the one that is assumed."""
    if not model.batch_noise:
        return f"an assumed {100 * USUAL_NOISE:.0f} %"
    return ", ".join(f"{100 * sd:.1f} % ({pace})" for pace, sd in model.batch_noise.items())


def prediction_document(p: Prediction, images: int) -> dict[str, Any]:
    """Return what `predict --json` prints; times in seconds."""
    return {
        "batch_s": p.batch_s,
        "low_s": p.low_s,
        "high_s": p.high_s,
        "interval": 0.9,
        "untraced_s": p.untraced_s,
        "epoch_s": epoch_s(p, images),
        "images_per_s": p.case.sizes["B"] / p.batch_s if "B" in p.case.sizes else None,
        "extrapolated": list(p.extrapolated),
        "sizes": dict(p.case.sizes),
        "settings": dict(p.case.settings),
        "phases": [
            {"name": f.name, "seconds": f.seconds, "low_s": f.low_s, "high_s": f.high_s,
             "bound": f.bound}
            for f in p.phases
        ],
    }  # fmt: skip


def phases_table(p: Prediction) -> Table:
    """Return the phases of one prediction, with their bounds."""
    rows: list[tuple[object, ...]] = [
        (f.name, f.seconds, f.low_s, f.high_s, f.seconds / p.batch_s, f.bound) for f in p.phases
    ]
    rows.append(("batch", p.batch_s, p.low_s, p.high_s, 1.0, ""))
    beyond = [f"extrapolated: {', '.join(p.extrapolated)} beyond the calibration's runs"]
    return Table(
        f"Predicted batch: {p.case.label}",
        (
            Column("phase", "Phase"),
            Column("seconds", "Time", "si", "s"),
            Column("low_s", "90 % from", "si", "s"),
            Column("high_s", "to", "si", "s"),
            Column("share", "Share", "percent"),
            Column("bound", "Bound"),
        ),
        rows,
        notes=tuple(beyond if p.extrapolated else ()),
    )


def sweep_table(points: Sequence[Prediction], symbol: str) -> Table:
    """Return predictions over one symbol."""
    return Table(
        f"Predictions over {symbol}",
        (
            Column(symbol, symbol, "int"),
            Column("batch_s", "Batch", "si", "s"),
            Column("low_s", "90 % from", "si", "s"),
            Column("high_s", "to", "si", "s"),
            Column("bound", "Longest phase"),
            Column("extrapolated", "Extrapolated"),
        ),
        [
            (p.case.sizes[symbol], p.batch_s, p.low_s, p.high_s, _longest(p),
             ", ".join(p.extrapolated))
            for p in points
        ],
    )  # fmt: skip


def _longest(p: Prediction) -> str:
    phase = max(p.phases, key=lambda f: f.seconds)
    return f"{phase.name} ({phase.bound})"


def scaling_table(points: Sequence[Scaled], kind: str) -> Table:
    """Return strong or weak scaling."""
    return Table(
        f"{kind.capitalize()} scaling",
        (
            Column("p", "Ranks", "int"),
            Column("B", "B", "int"),
            Column("batch_s", "Batch", "si", "s"),
            Column("low_s", "90 % from", "si", "s"),
            Column("high_s", "to", "si", "s"),
            Column("speedup", "Speed-up", "float", digits=2),
            Column("efficiency", "Efficiency", "percent"),
            Column("bound", "Longest phase"),
            Column("extrapolated", "Extrapolated"),
        ),
        [
            (
                s.prediction.case.sizes["p"], s.prediction.case.sizes["B"], s.prediction.batch_s,
                s.prediction.low_s, s.prediction.high_s, s.speedup, s.efficiency,
                _longest(s.prediction), ", ".join(s.prediction.extrapolated),
            )
            for s in points
        ],
        notes=("extrapolated rows are the model's on paper: no run of that size was measured",),
    )  # fmt: skip


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

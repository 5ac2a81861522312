"""Time to accuracy for notebooks: configurations side by side, ratios, and the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.base.errors import ModelError
from perfmodel.base.table import Column, Table
from perfmodel.models.spread import Spread
from perfmodel.studies.analysis.tta import Compared, Side, compare, side

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def read_sides(folder: Path, names: Sequence[str], target: float) -> dict[str, Side]:
    """Read the runs of benchmarks.tta by configuration; those that were not run are left out.

    Raises
    ------
    ReportError, SchemaError
        If a file is no record of runs.
    """
    paths = {name: folder / f"{name}.json" for name in names}
    return {name: side([path], target) for name, path in paths.items() if path.exists()}


def sides_table(sides: Mapping[str, Side], title: str = "") -> Table:
    """Return a row per configuration: how many runs reach the target, when, and how stable."""
    columns = (
        Column("name", "configuration"), Column("batch", "B", "int"),
        Column("rate", "learning rate", "float"), Column("warmup", "epochs of warm-up", "int"),
        Column("reached", "runs that reach it"), Column("epochs", "epochs", align="right"),
        Column("epochs_between", "interpolated", align="right"),
        Column("epochs_cv", "CV of it", align="right"), Column("seconds", "time", align="right"),
        Column("time_between", "interpolated", align="right"),
        Column("time_cv", "CV of it", align="right"),
        Column("last", "test accuracy, last", align="right"),
    )  # fmt: skip
    rows = []
    for name, one in sides.items():
        said, found = one.runs[0].training.settings, one.spreads
        scale = said.get("scale_learning_rate") or said["batch_size"]
        rows.append(
            (name, said["batch_size"], said["learning_rate"] * said["batch_size"] / scale,
             said.get("warmup_epochs") or 0, f"{len(one.runs) - one.censored} of {len(one.runs)}",
             _mean(found["epoch"], 1), _mean(found["epochs_between"], 2),
             _cv(found["epochs_between"]), _mean(found["time_s"], 3, " s"),
             _mean(found["time_between_s"], 3, " s"), _cv(found["time_between_s"]),
             _mean(found["accuracy_final"], 4))
        )  # fmt: skip
    notes = (
        "mean and standard deviation over the seeds, of evaluated epochs and interpolated between them; "
        "CV with its 95 % interval",
    )
    return Table(title, columns, rows, notes)


def pairs_table(sides: Mapping[str, Side], pairs: Sequence[tuple[str, str]]) -> Table:
    """Return one configuration over another: ratios of epochs and of time, difference of accuracy."""
    columns = (
        Column("pair", "configurations"), Column("epochs", "epochs, ratio", align="right"),
        Column("seconds", "time, ratio", align="right"),
        Column("last", "test accuracy, difference", align="right"),
    )  # fmt: skip
    rows = []
    for after, before in pairs:
        if after in sides and before in sides:
            seconds, epochs, last = compare(sides[after], sides[before])
            rows.append((f"{after} / {before}", _ratio(epochs), _ratio(seconds), _shift(last)))
    notes = ("Intervals by Welch's test at Holm's levels; where runs lack it, p of permutations",)
    return Table("", columns, rows, notes)


def ratio_of(
    sides: Mapping[str, Side], after: str, before: str, *, over: str = "epochs"
) -> tuple[float, float, float]:
    """Return the ratio of epochs, or of time ('time'), to the target with its 95 % interval.

    Raises
    ------
    ModelError
        If too few runs of one of them reach it.
    """
    seconds, epochs, _ = compare(sides[after], sides[before])
    found = (epochs if over == "epochs" else seconds).effect
    if found is None:
        raise ModelError(
            f"expected three runs or more of {after} and of {before} that reach the target; got "
            f"fewer; train more seeds, or lower the target"
        )
    return found.value, found.low, found.high


def draw_sides(sides: Mapping[str, Side], names: Sequence[str], target: float) -> Figure:
    """Draw test accuracy over epochs, a line for every run, 7.2 inches wide."""
    from perfmodel.render.plot.studies import AccuracyCurve, time_to_accuracy

    lines = []
    for name in names:
        for run in sides[name].runs if name in sides else ():
            seen = [e for e in run.training.evaluated if e.precision is not None]
            at = [float(e.epoch) for e in seen]
            accuracies = [e.precision for e in seen if e.precision is not None]
            moment = run.moment
            lines.append(AccuracyCurve(name, at, accuracies, moment.epochs_between, moment.reached))
    return time_to_accuracy(lines, target, label="Epochs", width_in=7.2)


def _mean(found: Spread | None, digits: int, unit: str = "") -> str | None:
    if found is None:
        return None
    spread = "" if found.std is None else f" ± {found.std:.{digits}f}"
    return f"{found.mean:.{digits}f}{spread}{unit}"


def _cv(found: Spread | None) -> str | None:
    if found is None or found.cv is None or found.cv_low is None:
        return None
    high = "" if found.cv_high is None else f" to {100 * found.cv_high:.1f}"
    return f"{100 * found.cv:.1f} % ({100 * found.cv_low:.1f}{high} %)"


def _ratio(one: Compared) -> str | None:
    said = "" if one.p is None else f"; p = {one.p:.2g}"
    if one.effect is None:
        return said.removeprefix("; ") or None
    return f"{one.effect.value:.2f} ({one.effect.low:.2f} to {one.effect.high:.2f}){said}"


def _shift(one: Compared) -> str | None:
    if one.effect is None:
        return None
    return f"{one.effect.value:+.4f} ({one.effect.low:+.4f} to {one.effect.high:+.4f})"

"""Optimization steps: bounds and predictions before, profiled launches after (notebook 05)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.analysis.analyze import analyze
from perfmodel.analysis.compare.compare import compare_traces
from perfmodel.base.errors import ModelError, ReportError
from perfmodel.base.escape import printable
from perfmodel.base.table import Column, Table
from perfmodel.programs.mlp.settings import BATCH_RANGE
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.trace import Trace
from perfmodel.studies.analysis.whatif import Judge, Saving, evidence
from perfmodel.studies.mlp.case import Case, mlp_case
from perfmodel.studies.mlp.changes import Change
from perfmodel.studies.mlp.observe import observe
from perfmodel.studies.models.model import Model
from perfmodel.studies.models.predict import predict
from perfmodel.timing.run import time_run
from writeup.ladder import CHAIN, Ladder
from writeup.parity import Pair, parity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CHANGE = Change("", "", "")


@dataclass(frozen=True, slots=True)
class Profiled:
    """The profiled launches of one version of the trainer: its settings, and their reports."""

    name: str
    settings: Mapping[str, str]
    traces: tuple[Trace, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One change: bound and prediction from the first launch before it, and the measured saving.

    Attributes
    ----------
    before, after : str
        Versions.
    before_s, after_s : float
        Median batches, over launches.
    low, high : float
        After over before: the interval that decides the verdict.
    verdict : str
        Of `perfmodel compare`, launches against launches.
    launches : (int, int)
    at_most_s : float or None
        Saving that the first report before allows.
    predicted_s, predicted_low_s, predicted_high_s : float or None
        Saving by the calibrated model, with 90 % of what another launch would show.
    refused : str
        Why the model does not predict it.
    """

    before: str
    after: str
    before_s: float
    after_s: float
    low: float
    high: float
    verdict: str
    launches: tuple[int, int]
    at_most_s: float | None
    predicted_s: float | None
    predicted_low_s: float | None
    predicted_high_s: float | None
    refused: str = ""

    @property
    def saved_s(self) -> float:
        """What the launches saved."""
        return self.before_s - self.after_s

    @property
    def held(self) -> bool | None:
        """Whether the saving lies inside the prediction's interval; None without one."""
        if self.predicted_low_s is None or self.predicted_high_s is None:
            return None
        return self.predicted_low_s <= self.saved_s <= self.predicted_high_s


@dataclass(frozen=True, slots=True)
class Agreement:
    """One version at one size: predicted by the model, and timed without a profiler."""

    name: str
    case: Case
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1


def read_profiled(folder: Path, names: Sequence[str] = CHAIN) -> dict[str, Profiled]:
    """Read the launches of some versions from a folder of profiles/collect_ladder.py, by name.

    Raises
    ------
    ReportError
        If the folder's index cannot be read, or lacks a version.
    """
    try:
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        rows = [(r["rung"], r["file"], _settings(r["settings"])) for r in index]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReportError(
            f"{printable(folder.name)}: expected index.json of profiles/collect_ladder.py; got "
            f"none that can be read ({type(error).__name__}); collect anew"
        ) from None
    found = {}
    for name in names:
        mine = [(file, settings) for one, file, settings in rows if one == name]
        if not mine:
            raise ReportError(
                f"{printable(folder.name)}: expected launches of {name!r}; got "
                f"{', '.join(dict.fromkeys(one for one, *_ in rows))}; collect it, too"
            )
        found[name] = Profiled(name, mine[0][1], tuple(read(folder / file) for file, _ in mine))
    return found


def steps(profiled: Mapping[str, Profiled], model: Model | None) -> tuple[Step, ...]:
    """Predict and measure every step from one version to the next, in the mapping's order.

    Bound and prediction see the first launch before the change alone; the verdict is of all
    launches of both.
    """
    return tuple(_step(a, b, model) for a, b in pairwise(profiled.values()))


def agreements(
    found: Ladder, model: Model, settings: Mapping[str, Mapping[str, str]],
    sizes: Iterable[tuple[int, int]], ranks: Sequence[int] = (1, 2, 4),
) -> tuple[Agreement, ...]:  # fmt: skip
    """Predict every version of `settings` at every size and number of GPUs, beside its timing.

    What was not timed, and what the model cannot predict, is left out.

    Parameters
    ----------
    settings : mapping of str to mapping
        The trainer's settings by version, such as those of `Profiled`.
    sizes : iterable of (int, int)
        H and B.
    """
    rows = []
    for hidden, batch in sizes:
        for name, chosen in settings.items():
            for p in ranks:
                timed = found.find(name, p, hidden, batch)
                if timed is None or timed.median_s is None:
                    continue
                size = {"D": 784, "H": hidden, "C": 10, "B": batch, "p": p, "b": 4}
                try:
                    predicted = predict(model, case := mlp_case(size, chosen))
                except ModelError:
                    continue
                alone = (
                    predicted.untraced_s or predicted.batch_s
                ) / predicted.batch_s  # no profiler here
                rows.append(
                    Agreement(
                        name, case, timed.median_s, alone * predicted.batch_s,
                        alone * predicted.low_s, alone * predicted.high_s,
                    )
                )  # fmt: skip
    return tuple(rows)


def steps_table(found: Sequence[Step]) -> Table:
    """Return a row per step: expected, measured, and whether it is beyond noise."""
    columns = (
        Column("step", "step"), Column("before_s", "before", "si", "s"),
        Column("after_s", "after", "si", "s"), Column("saved_s", "saved", "si", "s"),
        Column("at_most_s", "at most", "si", "s"),
        Column("predicted_s", "predicted", "si", "s"),
        Column("predicted_low_s", "90 % from", "si", "s"),
        Column("predicted_high_s", "to", "si", "s"), Column("held", "inside"),
        Column("ratio", "after / before", "float", digits=3),
        Column("low", "95 % from", "float", digits=3), Column("high", "to", "float", digits=3),
        Column("verdict", "verdict"),
    )  # fmt: skip
    rows = [
        (
            f"{s.before} to {s.after}", s.before_s, s.after_s, s.saved_s, s.at_most_s,
            s.predicted_s, s.predicted_low_s, s.predicted_high_s,
            None if s.held is None else "yes" if s.held else "no",
            s.after_s / s.before_s, s.low, s.high, s.verdict,
        )
        for s in found
    ]  # fmt: skip
    notes = (
        "saved: launches before against launches after; at most and predicted: by the first "
        "report before alone; inside: the saving is in the prediction's interval",
        *(f"{s.before} to {s.after} is not predicted: {s.refused}" for s in found if s.refused),
    )
    return Table("Steps, expected and measured", columns, rows, notes)


def draw_steps(found: Sequence[Step], ax: Axes) -> Axes:
    """Draw savings as shares of the batch before: measured, predicted, and at most."""
    from perfmodel.render.plot.bars import Dot, dots
    from perfmodel.render.plot.style import Measure

    made, most = [], {}
    for s in found:
        name, percent = f"{s.before} to {s.after}", 100 / s.before_s
        hollow = s.verdict not in ("faster", "slower")
        made.append(Dot(name, "measured, 95 %", percent * s.saved_s, 100 * (1 - s.high),
                        100 * (1 - s.low), hollow))  # fmt: skip
        if s.predicted_s is not None:
            low, high = s.predicted_low_s, s.predicted_high_s
            made.append(Dot(name, "predicted, 90 %", percent * s.predicted_s,
                            low and percent * low, high and percent * high))  # fmt: skip
        if s.at_most_s is not None:
            most[name] = percent * s.at_most_s
    share = Measure("Saved share of the batch before (%)")
    limits = ("at most, by the report before", most)
    return dots(made, share, limits=limits, hollow="within noise", ax=ax)


def draw_agreements(rows: Sequence[Agreement], ax: Axes) -> Axes:
    """Draw predicted over measured batches, marked by number of GPUs, coloured by size."""
    pairs = []
    for r in sorted(rows, key=lambda r: (r.case.sizes["H"], r.case.sizes["p"])):
        p, hidden, batch = (r.case.sizes[name] for name in ("p", "H", "B"))
        gpus, size = f"{p} GPU{'s' * (p > 1)}", f"H = {hidden}, B = {batch}"
        pairs.append(Pair(gpus, size, r.measured_s, r.predicted_s, r.low_s, r.high_s))
    return parity(pairs, within=(1.25,), ordered=True, ax=ax)


def _step(before: Profiled, after: Profiled, model: Model | None) -> Step:
    batch = compare_traces(before.traces, after.traces).batch
    first = before.traces[0]
    seen = observe(time_run([first], BATCH_RANGE, label=before.name))
    case = mlp_case(seen.case.sizes, after.settings)
    judge = Judge(evidence(seen, analyze([first], Options({})).runs[0]), (), model)
    predicted, refused = _or_why(judge.predicted, case)
    most, _ = _or_why(judge.bound, case)
    if batch.before_s is None or batch.after_s is None or batch.low is None or batch.high is None:
        raise ReportError(
            f"expected batches of {before.name} and of {after.name}; got none on a side; collect "
            f"both anew"
        )
    return Step(
        before.name, after.name, batch.before_s, batch.after_s, batch.low, batch.high,
        batch.verdict, (len(before.traces), len(after.traces)),
        at_most_s=most.saving_s if most else None,
        predicted_s=predicted.saving_s if predicted else None,
        predicted_low_s=predicted.next_low_s if predicted else None,
        predicted_high_s=predicted.next_high_s if predicted else None,
        refused=refused,
    )  # fmt: skip


def _or_why(ask: Callable[[Change, Case], Saving], case: Case) -> tuple[Saving | None, str]:
    """Ask for a saving; return it, or why it cannot be predicted."""
    try:
        return ask(_CHANGE, case), ""
    except ModelError as error:
        return None, str(error)


def _settings(chosen: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as predictions name them: switches are 'yes' and 'no'."""
    return {k: ("yes" if v else "no") if isinstance(v, bool) else str(v) for k, v in chosen.items()}

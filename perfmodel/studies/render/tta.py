"""The time to accuracy as tables, sentences, a picture and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from perfmodel.base.document import pick
from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent
from perfmodel.models.spread import LEVEL, Spread
from perfmodel.render.result import Block, Result
from perfmodel.studies.analysis.tta import LEAST_RUNS, MOMENTS, Answer, Compared, Run, Side

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES: Final = {
    "time_s": "time (s)",
    "time_between_s": "time, interpolated (s)",
    "epoch": "epochs",
    "epochs_between": "epochs, interpolated",
    "accuracy_final": "test accuracy, last",
    "accuracy_best": "test accuracy, best",
    "accuracy_gap": "train less test",
}
_DIGITS: Final = {"time_s": 3, "time_between_s": 3, "epoch": 1, "epochs_between": 2}
_ALMOST_NO: Final = 1e-4
_VERDICTS: Final = {True: "differs", False: "no difference seen", None: ""}


RUNS: Final = (
    Column("run", "Run", of="training.label"),
    Column("seed", "Seed", "int", of="training.seed"),
    Column("epoch", "Epoch reached", "int", of=lambda r: _if_reached(r, "epoch")),
    Column("time_s", "Time", "float", "s", digits=3, of=lambda r: _if_reached(r, "time_s")),
    Column("epochs_between", "Epochs, interpolated", "float", digits=2,
           of=lambda r: _if_reached(r, "epochs_between")),
    Column("time_between_s", "Time, interpolated", "float", "s", digits=3,
           of=lambda r: _if_reached(r, "time_between_s")),
    Column("accuracy_final", "Test, last", "float", digits=4),
    Column("accuracy_best", "Best", "float", digits=4),
    Column("ended", "Censored after epoch", "int",
           of=lambda r: None if r.moment.reached else r.moment.epoch),
)  # fmt: skip


def _if_reached(run: Run, name: str) -> float | None:
    return getattr(run.moment, name) if run.moment.reached else None


def result(found: Answer) -> Result:
    """Return the sides and what differs between them in every format."""
    return Result(_blocks(found), lambda: document(found), warnings=found.warnings)


def _blocks(found: Answer) -> Iterator[Block]:
    for side in found.sides:
        yield runs_table(side, found.target)
        yield spread_table(side)
    yield sentences(found)


def runs_table(side: Side, target: float) -> Table:
    """Return every run of a side."""
    return Table.of(f"{side.name}: runs to a test accuracy of {target:g}", side.runs, RUNS)


def spread_table(side: Side) -> Table:
    """Return mean, spread and coefficient of variation of what the runs gave."""
    columns = (
        Column("quantity", "Quantity", wrap=False),
        Column("n", "Runs", "int"),
        Column("mean", "Mean", align="right"),
        Column("interval", f"{percent(LEVEL)} interval", align="right"),
        Column("std", "Std. deviation", align="right"),
        Column("cv", "CV", "percent"),
        Column("cv_interval", f"{percent(LEVEL)} interval of CV", align="right"),
        Column("range", "Least to most", align="right"),
    )
    rows = [_row(name, found) for name, found in side.spreads.items() if found is not None]
    said = f"{len(side.runs)} runs" + (f", {side.censored} censored" if side.censored else "")
    return Table(f"{side.name}: {said}", columns, rows)


def _row(name: str, s: Spread) -> tuple[Any, ...]:
    digits = _DIGITS.get(name, 4)
    cv = s.cv if name in MOMENTS else None
    return (
        _NAMES[name], s.n, f"{s.mean:.{digits}f}", _span(s.low, s.high, f".{digits}f"),
        None if s.std is None else f"{s.std:.{digits}f}", cv,
        None if cv is None else _percents(s.cv_low, s.cv_high),
        _span(s.least, s.most, f".{digits}f"),
    )  # fmt: skip


def _percents(low: float | None, high: float | None) -> str | None:
    if low is None:
        return None
    return (
        f"{100 * low:.1f} to {percent(high, 1)}" if high is not None else f"above {percent(low, 1)}"
    )


def _span(low: float | None, high: float | None, form: str) -> str | None:
    return None if low is None or high is None else f"{low:{form}} to {high:{form}}"


def sentences(found: Answer) -> list[str]:
    """Say what differs between two sides and how far."""
    if len(found.sides) < 2:
        return []
    mine, other = found.sides
    changed = "; ".join(f"{k}: {b} -> {a}" for k, (b, a) in found.differences.items())
    said = [f"{mine.name} against {other.name}: {changed or 'the same configuration'}"]
    for side in found.sides:
        got = len(side.runs) - side.censored
        said.append(f"  {side.name}: {got} of {len(side.runs)} runs reach {found.target:g}")
    return said + [_compared(one) for one in found.compared]


def _compared(one: Compared) -> str:
    name = _NAMES[one.quantity].removesuffix(" (s)")
    e = one.effect
    if one.p is None or one.level is None:
        return f"  {name}: no test, which takes more runs a side"
    said = f"{one.test} p = {_p(one.p)}, {_VERDICTS[one.differs]} at {percent(one.level, 1)}"
    if e is None:
        no = f"no interval, which takes {LEAST_RUNS} runs a side, all of which reach it, and spread"
        return f"  {name}: {no}; {said}"
    if one.quantity == "accuracy_final":
        text = f"{e.value:+.4f} ({e.low:+.4f} to {e.high:+.4f}"
    else:
        text = f"x {e.value:.3f} ({e.low:.3f} to {e.high:.3f}"
    return f"  {name}: {text}; {said})"


def _p(p: float) -> str:
    return f"{p:.2g}" if p >= _ALMOST_NO else f"below {_ALMOST_NO:g}"


def picture(sides: Sequence[Side], target: float) -> Figure:
    """Draw accuracy over time, run by run."""
    from perfmodel.render.plot.studies import AccuracyCurve, time_to_accuracy

    curves = [
        AccuracyCurve(
            side.name, [e.time_s for e in seen],
            [e.precision for e in seen if e.precision is not None],
            run.moment.time_between_s, run.moment.reached,
        )
        for side in sides
        for run in side.runs
        for seen in [run.training.evaluated]
    ]  # fmt: skip
    return time_to_accuracy(curves, target)


def document(found: Answer) -> dict[str, Any]:
    """Return everything as JSON types; docs/tta.md lists the keys."""
    return {
        **pick(found, "target differences compared warnings"),
        "level": LEVEL,
        "sides": [_side(side) for side in found.sides],
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        **pick(side, "name censored spreads"),
        "settings": side.runs[0].training.settings,
        "runs": [
            {
                **pick(run.training, "seed", run="label", curve="epochs"),
                **asdict(run.moment),
                **pick(run, "accuracy_final accuracy_best accuracy_gap"),
            }
            for run in side.runs
        ],
    }

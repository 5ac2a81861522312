"""How the time to accuracy is said: tables, sentences and JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from perfmodel.analysis.tta import LEAST_RUNS, MOMENTS, Answer, Compared, Side
from perfmodel.base.table import Column, Table
from perfmodel.models.spread import LEVEL, Spread

_NAMES: Final = {
    "time_s": "time (s)",
    "time_between_s": "time, interpolated (s)",
    "epoch": "epochs",
    "epochs_between": "epochs, interpolated",
    "precision_final": "test precision, last",
    "precision_best": "test precision, best",
    "precision_gap": "train less test",
}
_DIGITS: Final = {"time_s": 3, "time_between_s": 3, "epoch": 1, "epochs_between": 2}
_ALMOST_NO: Final = 1e-4


def runs_table(side: Side, target: float) -> Table:
    """Return every run of a side."""
    columns = (
        Column("run", "Run"),
        Column("seed", "Seed", "int"),
        Column("epoch", "Epoch reached", "int"),
        Column("time_s", "Time", "float", "s", digits=3),
        Column("epochs_between", "Epochs, interpolated", "float", digits=2),
        Column("precision_final", "Test, last", "float", digits=4),
        Column("precision_best", "Best", "float", digits=4),
        Column("ended", "Censored after epoch", "int"),
    )
    rows = []
    for run in side.runs:
        m = run.moment
        seen = (m.epoch, m.time_s, m.epochs_between) if m.reached else (None, None, None)
        ended = None if m.reached else m.epoch
        rows.append((run.training.label, run.training.seed, *seen, run.precision_final,
                     run.precision_best, ended))  # fmt: skip
    return Table(f"{side.name}: runs to a test precision of {target:g}", columns, rows)


def spread_table(side: Side) -> Table:
    """Return mean, spread and coefficient of variation of what the runs gave."""
    columns = (
        Column("quantity", "Quantity", wrap=False),
        Column("n", "Runs", "int"),
        Column("mean", "Mean", align="right"),
        Column("interval", f"{LEVEL:.0%} interval", align="right"),
        Column("std", "Std. deviation", align="right"),
        Column("cv", "CV", "percent"),
        Column("cv_interval", f"{LEVEL:.0%} interval of CV", align="right"),
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
    return f"{100 * low:.1f} to {100 * high:.1f} %" if high is not None else f"above {low:.1%}"


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
    permuted = "" if one.permutation_p is None else f"permutation p = {_p(one.permutation_p)}"
    e = one.effect
    if e is None:
        no = f"no interval, which takes {LEAST_RUNS} runs a side that reach it, and some spread"
        return f"  {name}: {no}; {permuted}".rstrip("; ")
    if one.quantity == "precision_final":
        text = f"{e.value:+.4f} ({e.low:+.4f} to {e.high:+.4f}"
    else:
        text = f"x {e.value:.3f} ({e.low:.3f} to {e.high:.3f}"
    return f"  {name}: {text}; Welch p = {_p(e.p)}{', ' if permuted else ''}{permuted})"


def _p(p: float) -> str:
    return f"{p:.2g}" if p >= _ALMOST_NO else f"below {_ALMOST_NO:g}"


def document(found: Answer) -> dict[str, Any]:
    """Return everything as JSON types; docs/tta.md lists the keys."""
    return {
        "target": found.target,
        "level": LEVEL,
        "sides": [_side(side) for side in found.sides],
        "differences": {k: list(pair) for k, pair in found.differences.items()},
        "compared": [asdict(one) for one in found.compared],
        "warnings": list(found.warnings),
    }


def _side(side: Side) -> dict[str, Any]:
    runs = [
        {
            "run": run.training.label, "seed": run.training.seed, **asdict(run.moment),
            "precision_final": run.precision_final, "precision_best": run.precision_best,
            "precision_gap": run.precision_gap,
            "curve": [asdict(epoch) for epoch in run.training.epochs],
        }
        for run in side.runs
    ]  # fmt: skip
    return {
        "name": side.name,
        "settings": side.runs[0].training.settings,
        "censored": side.censored,
        "runs": runs,
        "spreads": {k: None if v is None else asdict(v) for k, v in side.spreads.items()},
    }

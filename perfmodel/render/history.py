"""Times over commits: the changes as text, tables, JSON and a picture."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import perfmodel
from perfmodel.analysis.history import HEADS, STEADY, STEP, History, Shift, too_few
from perfmodel.base.document import plain
from perfmodel.base.kernels import kernel
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.models.history import FEWEST
from perfmodel.render.result import Block, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMA_VERSION: Final = 1
_LETTERS: Final = 10
"""Of a commit's name: git itself shows 7 to 12."""
_MOST_PARTS: Final = 4

COLUMNS: Final = (
    Column("benchmark", "Benchmark", of=lambda pair: pair[0].benchmark),
    Column("commit", "Commit", of=lambda pair: pair[1].commit),
    Column("first", "Earliest", of=lambda pair: pair[1].first),
    Column("last", "Latest", of=lambda pair: pair[1].last),
    Column("kind", "Kind", of=lambda pair: pair[1].kind),
    Column("name", "Name", of=lambda pair: pair[1].name),
    Column("before_s", "Before", "si", "s", of=lambda pair: pair[1].change.before),
    Column("after_s", "After", "si", "s", of=lambda pair: pair[1].change.after),
    Column("ratio", "Ratio", "float", digits=3, of=lambda pair: pair[1].change.ratio),
    Column("of_step", "Of step", "percent", digits=1, of=lambda pair: pair[1].of_step),
    Column("new", "New", of=lambda pair: "yes" if pair[1].new else "no"),
)
_TEXT: Final = (
    Column("commit", "Commit", wrap=False, of=lambda s: _short(s.commit)),
    Column("between", "Between", wrap=False, of=lambda s: _between(s)),
    Column("name", "Time of", wrap=False, of=lambda s: _name(s.kind, s.name)),
    Column("before_s", "Before", "si", "s", of=lambda s: s.change.before),
    Column("after_s", "After", "si", "s", of=lambda s: s.change.after),
    Column("change", "Change", align="right", of=lambda s: _percent(s.change.ratio)),
    Column("of_step", "Of step", align="right", of=lambda s: _percent(1 + s.of_step)),
    Column("parts", "Ranges and kernels", of=lambda s: _parts(s)),
)


def result(found: Sequence[History], limit: float | None = None) -> Result:
    """Return the changes of all benchmarks in every format; `limit` is that of the gate."""
    table = Table.of("Changes", [(h, s) for h in found for s in h.shifts], COLUMNS)
    return Result(
        _blocks(found, limit), lambda: document(found, limit), [table], warnings=[*_warnings(found)]
    )


def _blocks(found: Sequence[History], limit: float | None) -> Iterator[Block]:
    for one in found:
        commits = f"{len(one.commits)} commit{'s' * (len(one.commits) != 1)}"
        runs = f"{sum(one.runs)} run{'s' * (sum(one.runs) != 1)}"
        now = float(one.series[STEP, STEP][-1])
        yield [
            f"{one.benchmark}: {commits}, {runs}, {_short(one.commits[0])} to "
            f"{_short(one.commits[-1])}; a step takes {si(now, 's', 4)} now"
        ]
        if one.shifts:
            yield Table.of("Changes", one.shifts, _TEXT)
        elif not too_few(one):
            yield ["No change found."]
        if limit is not None:
            alarms = one.alarms(limit)
            said = ", ".join(
                f"{_name(s.kind, s.name)} {_percent(1 + s.of_step)} of a step since "
                f"{_short(s.commit)}"
                for s in alarms
            )
            allowed = f"more than {100 * limit:g} % slower"
            yield [
                f"Gate: the newest commit shows what is {allowed}: {said}" if said
                else f"Gate: the newest commit shows nothing that is {allowed}"
            ]  # fmt: skip


def _warnings(found: Sequence[History]) -> Iterator[str]:
    for one in found:
        if too_few(one):
            yield (
                f"{one.benchmark}: {len(one.commits)} commits do not show how much times vary; "
                f"record {FEWEST} or more, or compare two commits: perfmodel compare BEFORE... "
                f"--to AFTER..."
            )


def _short(commit: str) -> str:
    return commit[:_LETTERS]


def _between(shift: Shift) -> str:
    if shift.first == shift.last:
        return "this commit"
    return f"{_short(shift.first)} and {_short(shift.last)}"


def _name(kind: str, name: str) -> str:
    if kind in HEADS:
        return name
    return f"{kind} {kernel(name).short if kind == 'kernel' else name or 'none'}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _parts(shift: Shift) -> str | None:
    said = [
        f"{_name(part.kind, part.name)} {'+' if part.difference_s > 0 else '-'}"
        f"{si(abs(part.difference_s), 's')}"
        for part in shift.parts[:_MOST_PARTS]
    ]
    return "; ".join(said) or None


def document(found: Sequence[History], limit: float | None = None) -> dict[str, Any]:
    """Return everything as plain Python data in base units, missing as None."""
    made: dict[str, Any] = plain({
        "schema_version": SCHEMA_VERSION,
        "perfmodel_version": perfmodel.__version__,
        "benchmarks": [_benchmark(one, limit) for one in found],
    })  # fmt: skip
    return made


def _benchmark(one: History, limit: float | None) -> dict[str, Any]:
    return {
        "benchmark": one.benchmark,
        "commits": [
            {"commit": commit, "runs": runs, "step_s": float(step_s)}
            for commit, runs, step_s in zip(
                one.commits, one.runs, one.series[STEP, STEP], strict=True
            )
        ],
        "enough": not too_few(one),
        "changes": [_shift(shift) for shift in one.shifts],
        "slower": None if limit is None else bool(one.alarms(limit)),
    }


def _shift(shift: Shift) -> dict[str, Any]:
    change = shift.change
    return {
        "commit": shift.commit, "first": shift.first, "last": shift.last, "kind": shift.kind,
        "name": shift.name, "before_s": change.before, "after_s": change.after,
        "ratio": change.ratio, "of_step": shift.of_step, "new": shift.new,
        "parts": [
            {"kind": p.kind, "name": p.name, "before_s": p.before_s, "after_s": p.after_s}
            for p in shift.parts
        ],
    }  # fmt: skip


def picture(found: Sequence[History]) -> Axes:
    """Draw the step and the GPU's busy time of every benchmark over commits, with their levels."""
    from perfmodel.render.plot import panels
    from perfmodel.render.plot.lines import Level, over_commits

    axes = panels("double", 2.4 * len(found), rows=len(found), letters=False)
    for one, ax in zip(found, axes, strict=True):
        curves = {}
        for kind in HEADS:
            if (kind, kind) in one.series:
                mine = [shift for shift in one.shifts if shift.kind == kind]
                at = [0, *(shift.change.at for shift in mine), len(one.commits)]
                seconds = one.series[kind, kind]
                curves[kind] = (
                    seconds,
                    [
                        Level(a, b - 1, float(np.nanmedian(seconds[a:b])))
                        for a, b in itertools.pairwise(at)
                    ],
                )
        marks = {s.change.at: _short(s.commit) for s in one.shifts if s.kind in (*HEADS, STEADY)}
        over_commits(curves, marks, ax=ax, title=one.benchmark)
    return axes[0]

"""Tables of a comparison: for the terminal, CSV, JSON, Markdown, LaTeX and data frames."""

from __future__ import annotations

from typing import Final

from perfmodel.analysis.compare.compare import Comparison, Row
from perfmodel.analysis.compare.series import GROUPS, Group
from perfmodel.base.table import Column, Table

_TITLES: Final[dict[Group, str]] = {
    "range": "Ranges (host time per batch, slowest rank)",
    "link": "Links (per batch, slowest rank)",
    "kernel": "Kernels (GPU time per batch, slowest rank)",
}
_HEADS: Final[dict[Group, str]] = {"range": "Range", "link": "Link", "kernel": "Kernel"}


def rows(comparison: Comparison, group: Group | None = None) -> Table:
    """Everything that was compared, a row each; of one group or all."""
    columns = (
        Column("name", "Name", wrap=False),
        Column("group", "Group"),
        Column("path", "Path"),
        Column("before_s", "Before", "si", "s"),
        Column("after_s", "After", "si", "s"),
        Column("difference_s", "Difference", "si", "s"),
        Column("share_before", "Of batch before", "percent", digits=0),
        Column("ratio", "Ratio", "float", digits=3),
        Column("ratio_low", "Ratio low", "float", digits=3),
        Column("ratio_high", "Ratio high", "float", digits=3),
        Column("level", "Level", "float"),
        Column("verdict", "Verdict"),
        Column("launches_before", "Launches before", "int"),
        Column("launches_after", "Launches after", "int"),
    )
    chosen = [r for g in ([group] if group else GROUPS) for r in comparison.group(g)]
    data = [
        (
            r.name, r.group, "/".join(r.path), r.before_s, r.after_s, r.difference_s,
            r.share_before, r.ratio, r.low, r.high, r.level, r.verdict, *r.launches,
        )
        for r in chosen
    ]  # fmt: skip
    levels = [r.depth for r in chosen]
    return Table("Before and after", columns, data, notes(comparison), levels=levels)


def text(comparison: Comparison, group: Group) -> Table | None:
    """One group for the terminal, None without rows; parts within noise only as a number."""
    columns = (
        Column("name", _HEADS[group], wrap=False),
        Column("before_s", "Before", "si", "s"),
        Column("after_s", "After", "si", "s"),
        Column("difference_s", "Difference", "si", "s"),
        Column("share_before", "Share", "percent", digits=0),
        Column("ratio", "Ratio", "float", digits=3),
        Column("interval", "Interval", align="right"),
        Column("verdict", "Verdict"),
    )
    every = comparison.group(group)
    shown = [r for r in every if group != "kernel" or r.depth == 0 or r.verdict != "within noise"]
    if not shown:
        return None
    left = len(every) - len(shown)
    hidden = (f"{left} kernels within noise are not shown; --format csv has them",) if left else ()
    data = [
        (r.name, r.before_s, r.after_s, r.difference_s, r.share_before, r.ratio, _interval(r),
         r.verdict)
        for r in shown
    ]  # fmt: skip
    title = _TITLES[group]
    if group == "range" and (comparison.before.queues or comparison.after.queues):
        title = "Ranges (host time per batch, the batch until the GPU is done; slowest rank)"
    return Table(title, columns, data, hidden, levels=[r.depth for r in shown])


def _interval(row: Row) -> str | None:
    if row.low is None or row.high is None:
        return None
    return f"{row.low:.3g} to {row.high:.3g}"


def notes(comparison: Comparison) -> tuple[str, ...]:
    """How the verdicts were reached."""
    c = comparison
    said = (
        f"ratio: after / before; a verdict needs its interval to leave out -{_percent(c.least)} to "
        f"+{_percent(c.least)}; the {c.tested} intervals all hold with {_percent(1 - c.alpha)} "
        f"(Holm, half of the {_percent(c.alpha)} for the batch)"
    )
    if c.noise is None:
        how = "launches are the unit (Welch, on the logarithms of their median batches)"
    else:
        how = (
            f"launches of one configuration are assumed to differ by {_percent(c.noise)} "
            f"(standard deviation of host times), batches within them by what they do"
        )
    return said, how


def _percent(share: float) -> str:
    return f"{100 * share:g} %"

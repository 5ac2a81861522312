"""A comparison of two sides: its text, its tables and its JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from perfmodel.analysis.compare.compare import Amount, Comparison, Gate, Row
from perfmodel.analysis.compare.pairs import Pairs
from perfmodel.analysis.compare.series import GPU_IDLE, GROUPS, Group
from perfmodel.analysis.compare.summary import ComparedSummary, analyzed, summarize
from perfmodel.base.document import Head, plain_view
from perfmodel.base.escape import printable
from perfmodel.base.kernels import kernel
from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent, si
from perfmodel.render import first_screen
from perfmodel.render.result import Block, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMA_VERSION: Final = 2
"""Grows by one when a key changes its meaning or goes away; new keys do not change it."""

_TITLES: Final[dict[Group, str]] = {
    "range": "Ranges (host time per step, slowest rank)",
    "link": "Links (per step, slowest rank)",
    "kernel": "Kernels (GPU time per step, slowest rank)",
    "idle": "Idle time of the GPU by cause (median step of the rank)",
}
_QUEUED: Final = "Ranges (host time per step, the step until the GPU is done; slowest rank)"

_TIMES: Final = (
    Column("before_s", "Before", "si", "s"),
    Column("after_s", "After", "si", "s"),
    Column("difference_s", "Difference", "si", "s"),
)
_RATIO: Final = Column("ratio", "Ratio", "float", digits=3)
_VERDICT: Final = Column("verdict", "Verdict")
ROWS: Final = (
    Column("name", "Name", wrap=False),
    Column("group", "Group"),
    Column("path", "Path", of=lambda r: "/".join(r.path)),
    *_TIMES,
    Column("share_before", "Of step before", "percent", digits=0),
    _RATIO,
    Column("ratio_low", "Ratio low", "float", digits=3, of="low"),
    Column("ratio_high", "Ratio high", "float", digits=3, of="high"),
    Column("level", "Level", "float"),
    _VERDICT,
    Column("launches_before", "Launches before", "int", of=lambda r: r.launches[0]),
    Column("launches_after", "Launches after", "int", of=lambda r: r.launches[1]),
)
ROWS_TEXT: Final = (
    *_TIMES,
    Column("share_before", "Share", "percent", digits=0),
    _RATIO,
    Column("interval", "Interval", align="right", of=lambda r: _interval(r)),
    _VERDICT,
)


WORK: Final = (
    Column("name", "Work"),
    Column("before", "Before", "float"),
    Column("after", "After", "float"),
)
_MOST_PAIRS: Final = 16
_MOST_IDLE: Final = 12
"""Causes of idle time that the terminal lists, those that changed most."""
_MOST_GAINED: Final = 5
_WORTH: Final = 0.01
"""Of the batch before: what changed less is not named."""


def _interval(row: Row) -> str | None:
    if row.low is None or row.high is None:
        return None
    return f"{row.low:.3g} to {row.high:.3g}"


_SECTIONS: Final[dict[Group, str]] = {"range": "ranges", "link": "links", "kernel": "kernels"}


def result(found: Comparison, section: str | None = None, *, every: bool = False) -> Result:
    """Return a comparison in every format; of the text the first screen, or the section named.

    `every` shows kernels within noise in the text, too.
    """
    return Result(
        _first(found) if section is None else _chosen(found, section, every=every),
        lambda: compare_document(found),
        tables=[rows(found)],
        warnings=found.warnings,
    )


def _first(found: Comparison) -> Iterator[Block]:
    before, after = analyzed(found.before), analyzed(found.after)
    said = summarize(found, before, after)
    gate = next(_gate(found.gate)).removeprefix("Gate: ") if found.gate is not None else None
    there = {name for name, _ in _blocks(found)} | {"all"}
    sections = [name for name in first_screen.COMPARED if name in there]
    yield lambda color: first_screen.compared_screen(
        found, said, after, gate, sections, color=color
    )


def _chosen(found: Comparison, section: str, *, every: bool) -> Iterator[Block]:
    """The blocks of a section."""
    if section == "warnings":
        yield list(found.warnings) or "no warning"
        return
    shown = [block for name, block in _blocks(found, every) if section in (name, "all")]
    yield from shown or [f"Nothing is known of {section} in these recordings."]


def _blocks(found: Comparison, every: bool = False) -> Iterator[tuple[str, Block]]:
    """All blocks of the text, each with the name of its section."""
    yield "answer", list(_what(found))
    yield "answer", list(_answer(found))
    groups = [g for g in GROUPS if every or g != "kernel" or not found.pairs]
    for group in groups:
        if (table := group_table(found, group, every=every)) is not None:
            yield _SECTIONS[group], table
    if found.pairs:
        yield "kernels", pairs_table(found.pairs, every=every)
    if found.idle:
        yield "idle", idle_table(found)
    yield "answer", [f"note: {note}" for note in notes(found)]


_DRAWN: Final = 12
"""Ranges, links and kernels in a picture, besides the step."""


def picture(found: Comparison) -> Axes:
    """Draw the step, and what changed most of what it holds, before and after."""
    from perfmodel.render.plot.bars import pairs

    known = [r for r in found.rows if r.before_s is not None or r.after_s is not None]
    others = [r for r in known if r is not found.batch and not r.part]
    most = sorted(others, key=lambda r: -abs(r.difference_s))[:_DRAWN]
    sides = [side.launches[0].label for side in (found.before, found.after)]
    return pairs((found.batch, *most), (f"before: {sides[0]}", f"after: {sides[1]}"),
                 title="A median step, and what changed most of it")  # fmt: skip


def rows(comparison: Comparison, group: Group | None = None) -> Table:
    """Everything that was compared, a row each; of one group or all."""
    groups = [group] if group else (*GROUPS, "idle")
    chosen = [r for g in groups for r in comparison.group(g)]
    levels = [r.depth for r in chosen]
    return Table.of("Before and after", chosen, ROWS, notes(comparison), levels)


def work(comparison: Comparison) -> Table:
    """Return what a step does more or less of, a row each."""
    return Table.of("Work", comparison.work, WORK)


def group_table(comparison: Comparison, group: Group, *, every: bool = False) -> Table | None:
    """One group for the terminal, None without rows; kernels within noise only as a number."""
    found = comparison.group(group)
    whole = every or group != "kernel"
    shown = [r for r in found if whole or r.depth == 0 or r.verdict != "within noise"]
    if not shown:
        return None
    left = len(found) - len(shown)
    hidden = [f"{left} kernels within noise are not shown; --all shows them"] if left else []
    queues = group == "range" and (comparison.before.queues or comparison.after.queues)
    title = _QUEUED if queues else _TITLES[group]
    columns = (Column("name", group.capitalize(), wrap=False), *ROWS_TEXT)
    return Table.of(title, shown, columns, hidden, [r.depth for r in shown])


def pairs_table(pairs: Pairs, *, every: bool = False) -> Table:
    """Return kernels matched by the operator that launched them, for the terminal."""
    shown = pairs.rows if every else pairs.rows[:_MOST_PAIRS]
    left = len(pairs.rows) - len(shown)
    hidden = [f"{left} more pairs, which take less time; --all shows them"] if left else []
    before, after = (percent(share, 1) for share in pairs.shares)
    title = f"Kernels by operator (middle step; {before} of the GPU's time before is paired, "
    return Table.of(f"{title}{after} after)", shown, PAIRS, hidden)


def _kernels(names: Sequence[str]) -> str:
    """Name the kernels of one operator as short as the report's tables do."""
    return " + ".join(dict.fromkeys(kernel(name).short for name in names))


PAIRS: Final = (
    Column("operator", "Operator", wrap=False),
    Column("calls", "Calls", "int"),
    Column("before", "Kernels before", of=lambda p: _kernels(p.before)),
    Column("after", "Kernels after", of=lambda p: _kernels(p.after)),
    *_TIMES,
)


def idle_table(comparison: Comparison) -> Table:
    """Return the causes of idle time that came and went, by rank, for the terminal."""
    shown = comparison.idle[:_MOST_IDLE]
    left = len(comparison.idle) - len(shown)
    hidden = [f"{left} more, which changed less, are in the other formats"] if left else []
    columns = (Column("name", "Rank and cause", wrap=False), *ROWS_TEXT[:4])
    return Table.of(_TITLES["idle"], shown, columns, hidden)


def notes(comparison: Comparison) -> tuple[str, ...]:
    """How the verdicts were reached."""
    c = comparison
    said = (
        f"ratio: after / before; a verdict needs its interval to leave out -{_percent(c.least)} to "
        f"+{_percent(c.least)}; the {c.intervals} intervals all hold with {_percent(1 - c.alpha)} "
        f"(Holm, half of the {_percent(c.alpha)} for the step)"
    )
    if c.launch_noise is None:
        how = "runs are the unit (Welch, on the logarithms of their median steps)"
    else:
        how = (
            f"runs of one configuration are assumed to differ by {_percent(c.launch_noise)} "
            f"(standard deviation of host times), steps within them by what they do"
        )
    return said, how


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _what(c: Comparison) -> Iterator[str]:
    for name, side in (("before", c.before), ("after ", c.after)):
        for launch in side.launches:
            yield (
                f"{name}   {launch.label}: {launch.batches} step{'s' * (launch.batches != 1)} "
                f"after {launch.warmup} of warm-up, {launch.ranks} rank{'s' * (launch.ranks != 1)}"
            )
    changed = [str(d) for d in c.differences]
    yield f"changed  {'; '.join(changed) or 'nothing that the reports show'}"


def _answer(c: Comparison) -> Iterator[str]:
    batch = c.batch
    yield f"A step takes {_change(batch)}: {_verdict(batch)}"
    if batch.verdict == "within noise":
        yield (
            f"    with these reports, only changes above +{percent(c.detectable_slower)} or "
            f"-{percent(c.detectable_faster)} can be detected"
        )
    if c.unit is not None:
        yield _per(c.unit, batch)
    if c.gate is not None:
        yield from _gate(c.gate)
    for row in c.addressed:
        if c.unit is not None:
            before, after = row.before_s, row.after_s
            yield (
                f"Bottleneck addressed, by {_kind(row)}: {row.name}, per {c.unit.name} "
                f"{si((before or 0.0) / c.unit.before, 's')} before, "
                f"{si((after or 0.0) / c.unit.before, 's')} after"
            )
            continue
        yield (
            f"Bottleneck addressed, by {_kind(row)}: {row.name}, "
            f"{_share(row)} before{_gain(row, batch)}"
        )
        if row.verdict == "only before" and (new := _new(c, row)):
            yield f"    new after: {new}"
    if not c.addressed:
        yield "No range or link got significantly faster."
    idle = next((r for r in c.rows if r.path == (GPU_IDLE,)), None)
    if idle is not None and idle.ratio is not None and idle not in c.addressed:
        yield f"Of a step, the GPU idles {_change(idle)}: {_verdict(idle)}"
    for word, sign in (("removed", -1), ("added", 1)):
        least = _WORTH * (batch.before_s or 0.0)
        moved = [r for r in c.idle if sign * r.difference_s > least]
        if moved:
            causes = ", ".join(f"{r.name} {si(abs(r.difference_s), 's')}" for r in moved[:3])
            yield f"Idle time {word}, by cause: {causes}"


def _per(unit: Amount, batch: Row) -> str:
    """Say what a sample or token takes, where a step has not as many on the two sides."""
    counts = f"{unit.before:,.0f} before, {unit.after:,.0f} after"
    before, after = (batch.before_s or 0.0) / unit.before, (batch.after_s or 0.0) / unit.after
    return (
        f"Per {unit.name} ({counts}): {si(before, 's')} before, {si(after, 's')} after, ratio "
        f"{after / before:.3f}"
    )


def _gate(gate: Gate) -> Iterator[str]:
    allowed = f"{_percent(gate.limit)} slower" + (f" per {gate.per}" if gate.per else "")
    limits = f"ratio {gate.low:.3f} to {gate.high:.3f}, each limit with 95 %"
    if gate.slower is None and gate.less is not None:
        yield (
            f"Gate: a step does {gate.less:.2f} times the work after, of an unknown number of "
            f"samples, so that it is not known to be at most {allowed} ({limits}): compare runs of "
            f"one size, or record operators' sizes"
        )
    elif gate.slower is None:
        yield (
            f"Gate: the noise is too large to tell whether a step is more than {allowed} "
            f"({limits}): give more runs a side"
        )
    else:
        said = "more than" if gate.slower else "not more than"
        yield f"Gate: a step is {said} {allowed} ({limits})"
    if gate.host is not None and gate.host_ratio is not None:
        yield (
            f"    at one speed of the host: ratio {gate.host[0]:.3f} to {gate.host[1]:.3f}; "
            f"after, the host took {100 * (gate.host_ratio - 1):+.1f} % in all ranges alike"
            + (
                ""
                if gate.launch_ratio is None
                else f", and {100 * (gate.launch_ratio - 1):+.1f} % in kernel launches"
            )
        )
    if gate.slower is None:
        return
    if gate.without_recorder_s is not None:
        before, after = (si(s, "s") for s in gate.without_recorder_s)
        yield f"    judged without the profiler: {before} before, {after} after"
    if gate.gpu is not None:
        kernels = {True: "more than", False: "not more than", None: "perhaps"}[gate.gpu[2]]
        yield (
            f"    its kernels are {kernels} {allowed} (ratio {gate.gpu[0]:.3f} to "
            f"{gate.gpu[1]:.3f})"
        )
    for row in gate.rows[:_MOST_GAINED] if gate.slower else ():
        yield f"    {row.group} {row.name}: {_change(row)}"
    if gate.slower and not gate.rows:
        yield "    no single range, link or kernel got significantly slower"


def junit(c: Comparison) -> str:
    """Return the gate as JUnit XML: a test case that passes, fails or, too noisy, is an error."""
    from xml.etree import ElementTree

    gate = c.gate
    assert gate is not None
    bad = {True: "failure", None: "error"}.get(gate.slower)
    counts = {"tests": "1", "failures": str(int(bad == "failure")),
              "errors": str(int(bad == "error"))}  # fmt: skip
    suite = ElementTree.Element("testsuite", {"name": "perfmodel compare", **counts})
    case = ElementTree.SubElement(suite, "testcase", {
        "classname": "perfmodel.compare", "time": f"{c.batch.after_s or 0.0:.9f}",
        "name": f"a step is at most {_percent(gate.limit)} slower",
    })  # fmt: skip
    lines = [printable(line) for line in _gate(gate)]
    if bad:
        ElementTree.SubElement(case, bad, {"message": lines[0]}).text = "\n".join(lines)
    else:
        ElementTree.SubElement(case, "system-out").text = lines[0]
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _kind(row: Row) -> str:
    """Return the kind of an addressed row: a range, a link, or the host."""
    if row.path == (GPU_IDLE,):
        return "host"
    return "range" if row.group == "range" else "link"


def _new(c: Comparison, gone: Row) -> str:
    """Name the largest new rows, which may do the work of a range or link that is gone."""
    found = [r for r in c.group(gone.group) if r.verdict == "only after" and not r.part]
    found.sort(key=lambda r: -(r.after_s or 0.0))
    return ", ".join(f"{r.name} ({si(r.after_s, 's')})" for r in found[:3])


def _change(row: Row) -> str:
    interval = ""
    if row.ratio is not None and row.low is not None and row.high is not None:
        interval = f", ratio {row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}]"
    return f"{si(row.before_s, 's', 4)} before, {si(row.after_s, 's', 4)} after{interval}"


def _verdict(row: Row) -> str:
    if row.verdict != "within noise":
        return row.verdict
    return "not significant"


def _share(row: Row) -> str:
    share = "" if row.share_before is None else f" ({percent(row.share_before)} of the step)"
    return f"{si(row.before_s, 's')}{share}"


def _gain(row: Row, batch: Row) -> str:
    now = f", {si(row.after_s, 's')} after" if row.after_s is not None else ", gone after"
    saved, of_step = (si(-r.difference_s, "s") for r in (row, batch))
    if batch.verdict != "faster":
        return f"{now}; {saved} saved"
    if row.difference_s < batch.difference_s:
        return f"{now}; {saved} saved, {of_step} of the step"
    return f"{now}; {saved} of the {of_step} saved"


def compare_document(
    c: Comparison,
) -> Annotated[dict[str, Any], Head, {"summary": ComparedSummary}, Comparison]:
    """What `perfmodel compare --json` prints.

    Keys
    ----
    summary
        The first screen.
    """
    summary = summarize(c, analyzed(c.before), analyzed(c.after))
    return plain_view(Head(SCHEMA_VERSION), c, summary=summary)

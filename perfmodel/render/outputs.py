"""Writes an analysis into a folder or a results database, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import perfmodel
from perfmodel.analysis.history import times_of
from perfmodel.analysis.result import Analysis, RunAnalysis
from perfmodel.analysis.rows import comparable, machine_roof, own_roof
from perfmodel.base.document import to_json
from perfmodel.base.errors import ModelError, PerfmodelError
from perfmodel.base.files import blocks, check_path, staged_folder
from perfmodel.base.table import Column, Table, render
from perfmodel.models.roofline import Point
from perfmodel.render import messages, operators, serving, tables
from perfmodel.render.analysis_json import analysis_document

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_PICTURES: Final = frozenset(
    f"{stem}.{suffix}"
    for stem in ("roofline", "roofline_phases", "sweep", "breakdown", "operators", "idle")
    for suffix in ("png", "svg", "pdf")
)
_CROWD: Final = 8
"""More points than these are drawn in one picture per kind."""


def write(
    analysis: Analysis,
    out: Path,
    *,
    plots: bool = True,
    db: Path | None = None,
    source: Source | None = None,
) -> list[Path]:
    """Write all outputs and return their paths.

    The results database `db` is added to when everything is drawn and before anything appears: if
    that fails, nothing does.

    Raises
    ------
    PerfmodelError
        If the folder cannot be written.
    """
    with staged_folder(out) as stage:
        text = to_json(analysis_document(analysis)) + "\n"
        (stage / "analysis.json").write_text(text, encoding="utf-8")
        for name, table in csv_tables(analysis):
            content = render(table, "csv")
            (stage / f"{name}.csv").write_text(content, encoding="utf-8", newline="")
        if plots:
            _draw(analysis, stage)
        names = sorted(p.name for p in stage.iterdir())
        if db is not None:
            append(analysis, db, source)
    for stale in _PICTURES - set(names):  # of an earlier analysis into the same folder
        (out / stale).unlink(missing_ok=True)
    return [out / name for name in names]


def csv_tables(analysis: Analysis) -> Iterator[tuple[str, Table]]:
    """Name and table of every CSV file; with several runs, a first column names the run."""
    of_run = {
        "ranges": tables.ranges, "rates": tables.rates, "copies": tables.copies,
        "collectives": tables.collectives, "ranks": tables.ranks, "findings": tables.findings,
        "skew": tables.collective_skew, "stragglers": tables.stragglers,
        "categories": tables.categories, "kernels": tables.kernels, "idle": tables.idle,
        "gaps": tables.gaps,
    }  # fmt: skip
    if any(run.work for run in analysis.runs):
        of_run["operators"] = operators.operators
    if any(run.work and run.work.modules for run in analysis.runs):
        of_run["modules"] = operators.modules
    if any(run.serving for run in analysis.runs):
        of_run["serving"] = serving.serving_table
    if any(run.messages for run in analysis.runs):
        of_run |= {
            "messages": messages.pairs, "waiting": messages.waiters, "chains": messages.chains,
            "ranges_by_rank": messages.by_rank,
        }  # fmt: skip
    if any(run.late for run in analysis.runs):
        of_run["late_ranks"] = tables.late_ranks
    if any(run.steps and run.steps.facts.arrivals for run in analysis.runs):
        of_run["last_arrivals"] = tables.last_arrivals
    if any(run.outliers for run in analysis.runs):
        of_run["outliers"] = tables.outliers
    for name, make in of_run.items():
        yield name, _stacked([(run.label, make(run)) for run in analysis.runs])
    yield "points", tables.points(analysis)
    yield "runs", tables.sweep(analysis)


def _stacked(parts: list[tuple[str, Table]]) -> Table:
    """One tidy table of the same table of several runs."""
    first = parts[0][1]
    rows = [(label, *row) for label, table in parts for row in table.rows]
    levels = None
    if first.levels is not None:
        levels = [n for _, t in parts for n in t.levels or ()]
    return Table(first.title, (Column("run", "Run"), *first.columns), rows, levels=levels)


def _draw(analysis: Analysis, folder: Path) -> None:
    from perfmodel.render import plot

    roof = analysis.fitted.roofline
    with plot.quiet():
        if roof is not None:
            points = comparable(analysis)
            kinds = list(dict.fromkeys(p.kind for p in points))
            if len(points) > _CROWD and len(kinds) > 1:
                plot.save(draw_roofline(analysis, kinds=kinds[:1]), folder, "roofline")
                plot.save(draw_roofline(analysis, kinds=kinds[1:]), folder, "roofline_phases")
            else:
                plot.save(draw_roofline(analysis), folder, "roofline")
            if _is_sweep(points):
                plot.save(plot.sweep(points, roof), folder, "sweep")
        elif machine_roof(analysis.fitted) is not None:
            plot.save(draw_roofline(analysis), folder, "roofline")
        pair = draw_operators(analysis)
        if pair is not None:
            plot.save(pair, folder, "operators", formats=("png", "svg"))
        idle = draw_idle(analysis.fitted)
        if idle is not None:
            plot.save(idle, folder, "idle", formats=("png", "svg"))
        if analysis.fitted.batch.median.value > 0 and len(analysis.fitted.ranges) > 1:
            plot.save(draw_breakdown(analysis), folder, "breakdown", formats=("png", "svg"))


def draw_operators(analysis: Analysis) -> Axes | None:
    """Draw the operators of a framework below the machine's roofs; None if nothing counts them."""
    from perfmodel.render.plot.operators import operators as draw

    run = analysis.fitted
    bandwidth = run.machine.bandwidth_bytes_per_s.get("hbm") if run.machine else None
    if run.work is None or run.machine is None or not bandwidth or not run.work.flops:
        return None
    links = run.machine.bandwidth_bytes_per_s
    l2 = max((links[name] for name in ("l2", "l2_read") if name in links), default=None)
    peaks = run.machine.peak_flops_per_s
    return draw(run.work.by_sizes, run.work.operators, peaks, bandwidth, l2)


def draw_idle(run: RunAnalysis) -> Axes | None:
    """Draw why the GPU of every rank idles; None where no GPU does, or nothing says why."""
    from perfmodel.render.plot.bars import idle as draw

    found = run.steps.facts.idle if run.steps else ()
    if not any(cause.seconds for cause in found):
        return None
    return draw(found, title=f"Why the GPU idles, {run.label}")


def draw_roofline(
    analysis: Analysis, ax: Axes | None = None, kinds: Sequence[str] | None = None
) -> Axes:
    """Draw the fitted run's roofline with the points that it is over and the machine's peak.

    Points of runs over other links or with other math are left out, and the title says how many
    runs. A run that replays a CUDA graph has no roof of its own: alone, it is drawn below the
    machine's peaks. `kinds` chooses what was timed, such as 'batch iteration'; all by default.

    Raises
    ------
    ModelError
        If no roofline could be fitted.
    """
    from perfmodel.render import plot

    run = analysis.fitted
    if run.roofline is None:
        return _draw_below_machine(run, ax)
    peak = run.machine.peak_flops_per_s.get(run.precision) if run.machine else None
    others = sum(own_roof(run, other) is None for other in analysis.runs)
    count = len(analysis.runs) - others
    title = f"Roofline of {run.roofline.label}"
    if count > 1:
        title = f"{count} runs, roof fitted on {run.roofline.label}"
    if others:
        title += f"; {others} run{'s' * (others > 1)} with other links or math left out"
    return plot.roofline(
        run.roofline,
        [p for p in comparable(analysis) if kinds is None or p.kind in kinds],
        ax=ax,
        title=title,
        ceiling_flops_per_s=peak,
        ceiling_label=f"{run.machine.name} {run.precision} peak" if run.machine else None,
    )


def _draw_below_machine(run: RunAnalysis, ax: Axes | None) -> Axes:
    from perfmodel.render import plot

    roof = machine_roof(run)
    if roof is None or not run.points:
        raise ModelError(
            f"{run.label}: no roofline to draw: P_flops and a link's throughput are needed; "
            f"the warnings say what is missing"
        )
    return plot.roofline(roof, run.points, ax=ax, title=f"{run.label} below {roof.label}")


def draw_breakdown(analysis: Analysis, ax: Axes | None = None) -> Axes:
    """Draw where the fitted run's median batch goes."""
    from perfmodel.render import plot

    run = analysis.fitted
    return plot.breakdown(
        run.ranges,
        ax=ax,
        title=f"A median step of {run.label}",
        queued=run.batch.queued_s is not None,
    )


def _is_sweep(points: Sequence[Point]) -> bool:
    """Whether the points differ in both H and B, so that lines over B make sense."""
    symbols = [p.symbols or {} for p in points]
    return all(len({s.get(name) for s in symbols} - {None}) > 1 for name in ("H", "B"))


_BUSY_SECONDS = 60
_TIMES: Final = (
    Column("kind", "Kind"), Column("name", "Name"), Column("seconds", "Per step", "si", "s"),
)  # fmt: skip
_PARTS: Mapping[str, Callable[[RunAnalysis], Table]] = {
    "ranges": tables.ranges,
    "rates": tables.rates,
    "copies": tables.copies,
    "collectives": tables.collectives,
    "ranks": tables.ranks,
    "findings": tables.findings,
    "points": lambda run: tables.points(Analysis((run,))),
    "times": lambda run: Table("Times by commit", _TIMES, [*times_of(run)]),
}
_OURS = {"runs", *_PARTS}


@dataclass(frozen=True, slots=True)
class Source:
    """The recorded commit and the benchmark's name; None where nobody says it."""

    commit: str | None = None
    benchmark: str | None = None


def append(analysis: Analysis, path: Path, source: Source | None = None) -> int:
    """Add every run's rows to the results database; a run that is there already is replaced.

    Runs are known by the SHA-256 of their reports, so analyzing a report again, with whatever
    options, leaves one set of rows. All rows of one call appear together or not at all.

    Returns
    -------
    int
        Number of runs written.

    Raises
    ------
    PerfmodelError
        If the file is no results database, cannot be written, or stays locked for a minute.
    """
    import sqlite_utils

    if path.exists():
        check_path(path)
    keys = [_hash(run) for run in analysis.runs]
    try:
        connection = sqlite3.connect(
            path.absolute(),  # ':memory:' is a name like others
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            factory=_OneTransaction,
        )
    except sqlite3.Error as error:
        raise _failed(path, error) from error
    try:
        database = sqlite_utils.Database(connection)
        connection.execute("BEGIN IMMEDIATE")
        if "StringIds" in database.table_names():
            raise PerfmodelError(
                f"{path}: expected a results database; got an Nsight Systems report; name another "
                f"file with --db"
            )
        if taken := _OURS & {*database.view_names()}:
            raise PerfmodelError(
                f"{path}: expected a results database; got a view {min(taken)!r} in a table's "
                f"place; name another file with --db"
            )
        for key, run in zip(keys, analysis.runs, strict=True):
            _store(database, run, key, source or Source())
        connection.commit()
    except sqlite3.Error as error:
        raise _failed(path, error) from error
    finally:
        connection.close()  # rolls back what was not committed
    return len(analysis.runs)


class _OneTransaction(sqlite3.Connection):
    """A connection whose `with` blocks, of which sqlite-utils has many, commit nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        return False


def _failed(path: Path, error: sqlite3.Error) -> PerfmodelError:
    full = "disk is full" in str(error) or "disk I/O error" in str(error)
    advice = "free some space" if full else "wait until nobody else writes it"
    return PerfmodelError(
        f"{path}: the results database cannot be written ({error}); name another file with --db, "
        f"or {advice}"
    )


def _store(database: Any, run: RunAnalysis, key: str, source: Source) -> None:
    row = {
        "run_hash": key,
        "label": run.label,
        "commit_id": source.commit,
        "benchmark": source.benchmark,
        "recorded_utc": _began_utc(run),
        "analyzed_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "perfmodel_version": perfmodel.__version__,
        "reports": json.dumps([str(t.source.resolve()) for t in run.traces]),
        "nsys_version": run.traces[0].product_version,
        "gpu": run.machine.name if run.machine else None,
        "ranks": len(run.ranks),
        "workload": run.workload.name,
        "counting": run.workload.counting,
        "symbols": json.dumps(dict(run.identity.values)),
        "batches": run.batch.count,
        "warmup": run.batch.warmup,
        "batch_median_s": run.batch.median.value,
        "batch_low_s": run.batch.median.low,
        "batch_high_s": run.batch.median.high,
        "batch_launch_low_s": run.batch.median.launch_low,
        "batch_launch_high_s": run.batch.median.launch_high,
    }
    row = {name: _storable(value) for name, value in row.items()}
    database["runs"].upsert(row, pk="run_hash", alter=True)
    for name, part in _PARTS.items():
        keys, rows = part(run).records()
        if name in database.table_names():
            database.conn.execute(f'DELETE FROM "{name}" WHERE run_hash = ?', [key])
        records = [
            {"run_hash": key, "row": i, **dict(zip(keys, map(_storable, values), strict=True))}
            for i, values in enumerate(rows)
        ]
        if records:
            database[name].insert_all(records, pk=("run_hash", "row"), alter=True)


def _began_utc(run: RunAnalysis) -> str | None:
    """When the first of the run's recordings began; None where no report says it."""
    began_ns = min((t.utc_start_ns for t in run.traces if t.utc_start_ns), default=None)
    if began_ns is None:
        return None
    return datetime.fromtimestamp(began_ns // 10**9, UTC).isoformat(timespec="seconds")


def _storable(value: Any) -> Any:
    """A text that UTF-8 cannot hold (a file name that is no UTF-8) with escapes instead."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _hash(run: RunAnalysis) -> str:
    """SHA-256 over the sorted SHA-256 of the run's reports."""
    digests = []
    for trace in run.traces:
        digest = hashlib.sha256()
        try:
            for block in blocks(trace.source):
                digest.update(block)
        except OSError as error:
            raise PerfmodelError(
                f"{trace.source}: expected its hash for the results database; it cannot be read "
                f"any more ({error.strerror or error}); keep the report where it is"
            ) from error
        digests.append(digest.hexdigest())
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()

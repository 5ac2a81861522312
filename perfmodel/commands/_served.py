"""Answers of `perfmodel mcp` to questions about reports in folders that the user names.

Nothing here runs another program or writes a file, and nothing outside the folders is read. Answers
are plain data of at most `MOST_LETTERS` as JSON, so that an agent can read them.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.changes import changes_of
from perfmodel.analysis.compare.compare import CompareOptions, compare_traces
from perfmodel.analysis.events import documented, events
from perfmodel.analysis.result import Analysis, RunAnalysis
from perfmodel.base.document import plain, to_json
from perfmodel.base.errors import ModelError, ReportError, WorkloadError
from perfmodel.base.escape import printable
from perfmodel.commands import _operators, _options
from perfmodel.machines.devices import named
from perfmodel.models.one_report import predict_report
from perfmodel.programs import program_of
from perfmodel.programs.program import Options
from perfmodel.readers import RAW, read
from perfmodel.render import compare as comparisons
from perfmodel.render.analysis_json import analysis_document, brief_document
from perfmodel.render.evidence import evidence, find
from perfmodel.render.operator_prediction import report_prediction_document
from perfmodel.render.plot import png_bytes, quiet
from perfmodel.render.plot.timeline import timeline
from perfmodel.timing.timeline import drawn_lanes, select, window_of

MOST_LETTERS: Final = 24_000
"""Letters of an answer, about 6,000 tokens."""
MOST_ROWS: Final = 100
_MOST_FILES: Final = 500
_MOST_REPORTS: Final = 256
_MOST_DEPTH: Final = 6
_KEPT: Final = 4
"""Analyses that stay in memory."""
_LONGEST: Final = 1000
_MOST_SIZE: Final = 1_000_000_000
_MOST_SECONDS: Final = 1e6
_MOST_DRAWN: Final = 4
"""Ranks in a picture, unless some are named."""
_DOTS: Final = 100
"""Of an inch: a picture of 11 inches is read at about 1,100 points."""
_SUFFIXES: Final = (
    ".sqlite", ".sqlite.gz", ".sqlite.xz", ".sqlite.zst", ".json", ".json.gz", ".json.xz",
    ".json.zst", ".xplane.pb", ".db",
)  # fmt: skip
"""Files that are read as reports. Those of `RAW` are not: reading them runs nsys."""

Opened = tuple[Analysis, dict[str, Any]]


class Served:
    """Answers questions about the reports in some folders.

    Several threads may ask at once: one report is analyzed, and one picture drawn, at a time.

    Parameters
    ----------
    folders : sequence of Path
        What may be read; nothing outside, links followed.

    Raises
    ------
    ReportError
        If one is no folder.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise ReportError(f"{folder}: expected a folder of reports; got none; name one")
        self._folders = [folder.resolve() for folder in folders]
        self._opened: OrderedDict[tuple[Any, ...], Opened] = OrderedDict()
        self._one_at_a_time = threading.RLock()

    def reports(self) -> dict[str, Any]:
        """Return the files that may be reports, with their sizes."""
        found: list[dict[str, Any]] = []
        for folder in self._folders:
            for path in _files(folder):
                if len(found) == _MOST_FILES:
                    break
                if _is_report(path) and path.is_file() and self._inside(path.resolve()):
                    found.append({"report": str(path), "bytes": path.stat().st_size})
        return {"reports": found, "more": len(found) == _MOST_FILES}

    def path_of(self, name: str) -> Path:
        """Return the report that a client names.

        Raises
        ------
        ReportError
            If it is outside the folders, or no report.
        """
        shown = printable(name[:200])
        if not name or len(name) > _LONGEST or "\0" in name:
            raise ReportError(f"expected a report's name; got {shown!r}; list the reports")
        for folder in self._folders:
            try:
                path = (folder / name).resolve(strict=True)
            except (OSError, RuntimeError):
                continue
            if self._inside(path) and path.is_file():
                if _is_report(path):
                    return path
                raise ReportError(
                    f"{shown}: expected a report ({', '.join(_SUFFIXES)}); got another file"
                    + ("; export it by nsys first" if path.suffix in RAW else "; list the reports")
                )
        raise ReportError(f"{shown}: expected a report in the folders; got none; list the reports")

    def _inside(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._folders)

    def open(self, names: Sequence[str]) -> Opened:
        """Return the analysis of reports and its document, kept where they have not changed."""
        if not 0 < len(names) <= _MOST_REPORTS:
            raise ReportError(f"expected 1 to {_MOST_REPORTS} reports; got {len(names)}")
        paths = [self.path_of(name) for name in names]
        key = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
        with self._one_at_a_time:
            if key not in self._opened:
                analysis = analyze_reports(paths, Options(), whole=True)
                self._opened[key] = analysis, analysis_document(analysis)
                while len(self._opened) > _KEPT:
                    self._opened.popitem(last=False)
            self._opened.move_to_end(key)
            return self._opened[key]

    def _run(self, names: Sequence[str]) -> RunAnalysis:
        return self.open(names)[0].fitted

    def summary(self, names: Sequence[str]) -> dict[str, Any]:
        """Return what matters most: the step, its parts on every rank, findings, warnings."""
        return brief_document(self.open(names)[0])

    def section(self, names: Sequence[str], path: str) -> dict[str, Any]:
        """Return the values at a path of analysis.json, as many as fit."""
        _, document = self.open(names)
        if (key := re.split(r"[.\[]", path[:_LONGEST], maxsplit=1)[0]) not in document:
            raise ModelError(
                f"expected a key of analysis.json: {', '.join(document)}; got "
                f"{printable(key[:80])!r}; take one of these"
            )
        found = [{"path": where, "value": value} for where, value, _ in find(document, path)]
        return bounded("values", found)

    def evidence(self, names: Sequence[str], key: str, rows: int = 10) -> dict[str, Any]:
        """Return what is behind a finding or a number."""
        analysis, document = self.open(names)
        found = plain(evidence(analysis.fitted, document, key, _rows(rows)))
        return bounded("rows", found.pop("rows"), found)

    def rows(
        self,
        names: Sequence[str],
        table: str,
        where: Mapping[str, Any] | None = None,
        by: str | None = None,
        columns: Sequence[str] | None = None,
        first: int = 0,
        count: int = 20,
        *,
        descending: bool = True,
    ) -> dict[str, Any]:
        """Return rows of a table of events: those with some values, by a column."""
        for value in (where or {}).values():
            several = value if isinstance(value, list) else [value]
            if len(several) > MOST_ROWS:
                raise WorkloadError(
                    f"expected at most {MOST_ROWS} values in a list of where; got {len(several)}"
                )
            if not all(one is None or isinstance(one, (str, int, float)) for one in several):
                raise WorkloadError("expected texts and numbers in where; got something else")
        whole = events(self._run(names), table)
        found = whole.where(where or {})
        ordered = found if by is None else found.sorted_by(by, descending=descending)
        for name in columns or ():
            ordered.column(name)
        shown = ordered.records(max(first, 0), _rows(count))
        kept = [{k: row[k] for k in columns} if columns else row for row in shown]
        said = {"table": table, "matching": len(found), "of": len(whole), "first": max(first, 0)}
        return bounded("rows", kept, said | {"complete": whole.complete})

    def compare(self, before: Sequence[str], after: Sequence[str]) -> dict[str, Any]:
        """Return what differs between two sides, the significant rows first."""
        one, other = ([read(self.path_of(name)) for name in names] for names in (before, after))
        document = comparisons.compare_document(compare_traces(one, other, CompareOptions()))
        rows = document.pop("rows", [])
        return bounded("rows", rows, document)

    def whatif(self, names: Sequence[str], together: Sequence[str] = ()) -> dict[str, Any]:
        """Return what changes of the steps would save, and several of them at once."""
        found: dict[str, Any] = plain(changes_of(self._run(names), together))
        return found

    def predict(
        self,
        name: str,
        sizes: Mapping[str, int] | None = None,
        gpu: str | None = None,
        dtype: str | None = None,
        asked: _operators.Asked | None = None,
    ) -> dict[str, Any]:
        """Return a step of a PyTorch report with other sizes, on another GPU by its name."""
        asked = asked or _operators.Asked()
        if not 0 < asked.accumulate < _MOST_SIZE:
            raise WorkloadError(f"expected micro-batches of 1 or more; got {asked.accumulate}")
        dtype = None if dtype is None else _options.SHORT_DTYPES.get(dtype, dtype)
        if dtype not in (None, *_options.OPERATOR_DTYPES.choices):
            known = ", ".join(_options.OPERATOR_DTYPES.choices)
            raise WorkloadError(f"expected a data type of {known}; got {dtype}"[:_LONGEST])
        trace = read(self.path_of(name))
        operators = _operators._operators_of(program_of([trace], Options()))
        step = _operators._recorded_step(operators, trace, Options())
        given = dict(sizes or {})
        if any(isinstance(v, bool) or not 0 < v < _MOST_SIZE for v in given.values()):
            raise WorkloadError(f"expected sizes of 1 to {_MOST_SIZE - 1}; got {given}"[:_LONGEST])
        other = None if gpu is None else _operators._times_of(named(gpu[:_LONGEST]))
        found = predict_report(
            [(step, operators.roles(step, {}))],
            given,
            _operators._baseline_of(step.gpu, trace.gpus),
            operators.call_at,
            _operators.changes_of(asked, other, dtype, trace),
        )
        return report_prediction_document(found)

    def picture(
        self,
        names: Sequence[str],
        step: int | None = None,
        ranks: Sequence[int] = (),
        start_s: float = 0.0,
        end_s: float | None = None,
    ) -> bytes:
        """Return a step, the median one by default, or seconds of it, as a PNG.

        Raises
        ------
        PerfmodelError
            If there is no such step or rank, or nothing ran in the window.
        """
        if not all(abs(at) < _MOST_SECONDS for at in (start_s, end_s or 0.0)):
            raise WorkloadError(f"expected seconds from the step's start; got {start_s}, {end_s}")
        analysis = self._run(names)
        run, number = analysis.measured, analysis.run_steps.drawn if step is None else step
        window = window_of(run, range(number, number + 1))
        first = window.start_ns + round(max(start_s, 0.0) * 1e9)
        last = window.end_ns if end_s is None else window.start_ns + round(end_s * 1e9)
        window = replace(window, start_ns=first, end_ns=min(last, window.end_ns))
        shown = frozenset(ranks or run.ranks[:_MOST_DRAWN]) & frozenset(run.ranks)
        lanes = select(run, window, ranks=shown, api=False, around=False)
        with self._one_at_a_time, quiet():
            drawn = timeline(
                drawn_lanes(lanes), first, window.end_ns, title=f"{run.label}, step {number}"
            )
            return png_bytes(drawn, _DOTS)


def columns() -> dict[str, dict[str, str]]:
    """Return what the columns of all tables of events hold."""
    return documented()


def bounded(
    name: str, rows: Sequence[Any], others: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return rows beside other keys, as many as fit into an answer.

    Raises
    ------
    WorkloadError
        If not even one fits.
    """
    rest = dict(others or {})
    room = MOST_LETTERS - len(to_json(rest, None))
    kept: list[Any] = []
    for row in rows:
        room -= len(to_json(row, None)) + 2
        if room < 0:
            break
        kept.append(plain(row))
    if rows and not kept:
        raise WorkloadError(
            f"expected an answer of at most {MOST_LETTERS} letters; got a longer one; ask for a "
            f"narrower path, such as ranks[rank=0]"
        )
    return {**rest, name: kept, "left_out": len(rows) - len(kept)}


def _rows(count: int) -> int:
    return min(max(count, 0), MOST_ROWS)


def _is_report(path: Path) -> bool:
    return path.name.endswith(_SUFFIXES)


def _files(folder: Path) -> list[Path]:
    """Return files in a folder and those in it, sorted, without following links to folders."""
    found: list[Path] = []
    left = [(folder, 0)]
    while left and len(found) < _MOST_FILES * 20:
        at, depth = left.pop()
        try:
            inside = sorted(at.iterdir())
        except OSError:
            continue
        for path in inside:
            if path.is_dir() and not path.is_symlink():
                left += [(path, depth + 1)] if depth < _MOST_DEPTH else []
            else:
                found.append(path)
    return sorted(found)

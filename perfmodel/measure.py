"""Measures the reports of one run: spans of all ranks, which ranges are batches, by which rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.errors import SchemaError
from perfmodel.spans import Attribution, Spans, concatenate, make_spans
from perfmodel.trace import Trace


@dataclass(frozen=True, slots=True)
class Run:
    """The reports of one run, measured but not yet interpreted.

    `parts` has one entry per report; `ranks` is ascending.
    """

    label: str
    parts: tuple[tuple[Trace, Attribution], ...]
    spans: Spans
    ranks: tuple[int, ...]
    batch_label: str

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The reports."""
        return tuple(trace for trace, _ in self.parts)


def measure(traces: Sequence[Trace], batch_label: str, *, label: str, by_time: bool = False) -> Run:
    """Measure the ranges of the reports of one run.

    Raises
    ------
    SchemaError
        If no report has NVTX ranges, or none is called `batch_label`.
    """
    measured = [make_spans(t, batch_label, by_time=by_time) for t in traces]
    spans = concatenate([s for s, _ in measured])
    batches = [p for p in spans.paths if p[-1] == batch_label]
    if not batches:
        raise _no_batches(traces, batch_label)
    inside = spans.batch >= 0
    ranks = tuple(int(r) for r in np.unique(spans.rank[inside]))
    parts = tuple((t, a) for t, (_, a) in zip(traces, measured, strict=True))
    return Run(label, parts, spans, ranks, batch_label)


def _no_batches(traces: Sequence[Trace], batch_label: str) -> SchemaError:
    names = dict.fromkeys(
        label for t in traces for label in t.range_labels if not label.startswith("MPI_")
    )
    where = ", ".join(t.source.name for t in traces)
    if not names:
        said = [d.text for t in traces for d in t.diagnostics if "NVTX" in d.text]
        hint = f" (Nsight Systems says: {said[0]!r})" if said else ""
        return SchemaError(
            f"{where}: no NVTX range was recorded{hint}; annotate the program and profile it with "
            f"--trace=nvtx,cuda,mpi"
        )
    if batch_label in names:
        return SchemaError(
            f"{where}: ranges called {batch_label!r} were found, but each starts on one thread and "
            f"ends on another, so that nothing lies inside them; push and pop them on one thread"
        )
    short = [n if len(n) <= 60 else f"{n[:59]}…" for n in list(names)[:8]]
    shown = ", ".join(map(repr, short)) + (", ..." if len(names) > 8 else "")
    return SchemaError(
        f"{where}: wanted ranges called {batch_label!r}, one per batch; found {shown}; "
        f"name the range that is one batch with --batch-range"
    )

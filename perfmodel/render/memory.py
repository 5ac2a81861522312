"""What perfmodel memory says: theory by tensor, measured peaks by memory, and both together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perfmodel.analysis.analyze import analyze
from perfmodel.base.errors import PerfmodelError, WorkloadError
from perfmodel.base.gpu import Gpu
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.programs.identify import read_mark
from perfmodel.programs.mlp.footprint import Footprint, footprint
from perfmodel.programs.mlp.identify import from_mark
from perfmodel.programs.mlp.memory import (
    SETTINGS,
    Allocation,
    TrainerCase,
    allocations,
    trainer_case,
)
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.memory import COLLECT, TABLE, read_memory
from perfmodel.readers.trace import Trace
from perfmodel.timing.memory_live import Timeline, timelines


@dataclass(frozen=True, slots=True)
class Answer:
    """Theory and measurement; None where one of them is missing, and `warnings` say why.

    `measured` has an entry per process and kind of memory, the largest peak first.
    """

    case: TrainerCase | None
    listed: tuple[Allocation, ...]
    sums: Footprint | None
    measured: tuple[Timeline, ...] | None
    gpu: Gpu | None
    warnings: tuple[str, ...]

    def theory_bytes(self, kind: str) -> int | None:
        """Bytes that the allocators should ask CUDA for; None where no formula tells."""
        if self.sums is None:
            return None
        return {
            "device": self.sums.reserved_bytes + self.sums.apart_bytes,
            "pinned": self.sums.held_bytes["pinned"],
        }.get(kind)


def answer(
    path: Path | None,
    given: Mapping[str, int],
    settings: Mapping[str, str],
    *,
    images: int,
    test_images: int,
) -> Answer:
    """Count and read.

    Parameters
    ----------
    path : Path or None
        A report; without one the sizes must be given and nothing is measured.
    given, settings : mapping
        Symbols and flags of the trainer that override what the report says.
    images, test_images : int
        Of the sets, where the report does not say.

    Raises
    ------
    ReportError, SchemaError
        If the report cannot be read.
    WorkloadError
        If there is neither a report with memory events nor the sizes of an MLP.
    """
    warnings: list[str] = []
    trace = None if path is None else read(path)
    config = {} if trace is None else read_mark(trace)
    values = {**from_mark(config), **given}
    if trace is not None and not {"D", "H", "C", "B"} <= values.keys():
        values = {**_told(trace, given), **values}
    measured = None
    if path is not None and trace is not None:
        events = read_memory(path)
        measured = None if events is None else timelines(events, trace)
        if measured is None:
            warnings.append(
                f"{path.name} has no table {TABLE}: memory was not recorded; collect with {COLLECT}"
            )
    case = None
    try:
        case = trainer_case(values, {**config, **settings}, images=images, test_images=test_images)
    except WorkloadError as error:
        if measured is None:
            raise
        warnings.append(str(error))
    if case is not None and config.get("backend") == "numpy":
        raise WorkloadError(
            f"{path}: wanted a run on a GPU; its backend was numpy, which allocates nothing there; "
            f"profile with --backend cupy"
        )
    if trace is not None and case is not None and "transport" not in config:
        warnings.append(
            "the report has no configuration mark of the trainer: theory is that of the trainer's "
            "defaults, and other programs allocate otherwise"
        )
    listed = () if case is None else allocations(case)
    gpus = () if trace is None else trace.gpus
    return Answer(
        case, listed, footprint(listed) if listed else None, measured,
        gpus[0] if gpus else None, tuple(warnings),
    )  # fmt: skip


def _told(trace: Trace, given: Mapping[str, int]) -> dict[str, int]:
    """Symbols that a report without a whole mark tells by its messages' sizes."""
    try:
        run = analyze([trace], Options(values=given)).fitted
    except PerfmodelError:
        return {}
    return dict(run.identity.values)


def theory_table(found: Answer) -> Table:
    """Return every tensor with its formula, its bytes, and whether the report saw its block."""
    seen = _seen(found)
    columns = (
        Column("tensor", "Tensor", wrap=False),
        Column("use", "For"),
        Column("memory", "Memory"),
        Column("formula", "Formula", wrap=False),
        Column("bytes", "Bytes", "si", "B"),
        Column("held_bytes", "Held", "si", "B", digits=4),
        Column("seen", "In the report"),
    )
    rows = [
        (a.name, a.use, a.memory, a.formula, a.bytes, a.held_bytes, mark)
        for a, mark in zip(found.listed, seen, strict=True)
    ]
    return Table("Theory, rank 0: what the trainer asks for", columns, rows, _notes(found))


def _notes(found: Answer) -> tuple[str, ...]:
    if found.sums is None:
        return ()
    s = found.sums
    notes = [
        f"device: {si(s.asked_bytes['device'], 'B', 4)} that stays, "
        f"+ {si(s.rounding_bytes, 'B')} by rounding to blocks of 512 B; with what is given back "
        f"CuPy's pool takes {si(s.reserved_bytes, 'B', 4)} from CUDA; pinned blocks are powers "
        f"of two",
        f"libraries ask CUDA for {si(s.apart_bytes, 'B', 4)} of device memory past the pool",
        "not counted, since no tensor shows them: the CUDA context, kernels and libraries "
        "(docs/memory.md)",
    ]
    if s.unknown:
        notes.append(f"no formula tells: {', '.join(s.unknown)}")
    return tuple(notes)


def _seen(found: Answer) -> Sequence[str | None]:
    """Whether blocks of an allocation's size were live at the peak, largest allocations first."""
    first = _first(found, "device"), _first(found, "pinned")
    blocks = {t.kind: Counter(t.blocks.tolist()) for t in first if t is not None}
    marks: list[str | None] = [None] * len(found.listed)
    for i in sorted(range(len(marks)), key=lambda i: -(found.listed[i].held_bytes or 0)):
        one = found.listed[i]
        if not one.held_bytes or one.memory not in blocks or not one.stays:
            continue
        size, have = one.held_bytes // one.count, blocks[one.memory]
        hits = min(one.count, have[size])
        have[size] -= hits
        marks[i] = "yes" if hits == one.count else f"{hits} of {one.count}" if hits else "no"
    return marks


def _first(found: Answer, kind: str) -> Timeline | None:
    """The timeline of rank 0, or of the process with the largest peak."""
    mine = [t for t in found.measured or () if t.kind == kind]
    return next((t for t in mine if t.rank == 0), mine[0] if mine else None)


def measured_table(found: Answer) -> Table:
    """Return peaks by process and kind of memory, beside the theory's."""
    columns = (
        Column("rank", "Rank", "int"),
        Column("memory", "Memory"),
        Column("peak_bytes", "Peak", "si", "B", digits=4),
        Column("theory_bytes", "Theory", "si", "B", digits=4),
        Column("theory_error", "Error", "percent"),
        Column("where", "Peak in range"),
        Column("allocations", "Allocations", "int"),
        Column("releases", "Released", "int"),
        Column("left_bytes", "Left at the end", "si", "B"),
    )
    rows = []
    for t in found.measured or ():
        theory = found.theory_bytes(t.kind)
        error = theory / t.peak_bytes - 1 if theory and t.peak_bytes else None
        rows.append(
            (t.rank, t.kind, t.peak_bytes, theory, error, t.where or None, t.allocations,
             t.releases, t.left_bytes)
        )  # fmt: skip
    return Table("Measured: live bytes of CUDA's own allocations, most at once", columns, rows)


def sums_by_kind(found: Answer) -> dict[str, int]:
    """Return the sum of the processes' peaks by kind of memory."""
    sums: dict[str, int] = {}
    for t in found.measured or ():
        sums[t.kind] = sums.get(t.kind, 0) + t.peak_bytes
    return sums


def sentences(found: Answer) -> Sequence[str]:
    """Say how much of the GPU that is."""
    said = []
    sums = sums_by_kind(found)
    if sums:
        said.append(
            "Peaks of all processes by memory: "
            + ", ".join(f"{kind} {si(size, 'B', 4)}" for kind, size in sums.items())
        )
    total = None if found.gpu is None else found.gpu.memory_bytes
    peak = _first(found, "device")
    most = peak.peak_bytes if peak else found.theory_bytes("device")
    if total and most and found.gpu:
        what = "A process's peak" if peak else "What theory counts"
        said.append(f"{what} is {most / total:.2%} of the memory of one {found.gpu.name}")
    return said


def document(found: Answer) -> dict[str, Any]:
    """Return the answer as JSON types."""
    seen = _seen(found)
    return {
        "case": None if found.case is None else asdict(found.case),
        "settings": list(SETTINGS),
        "theory": [
            {**asdict(a), "held_bytes": a.held_bytes, "seen": mark}
            for a, mark in zip(found.listed, seen, strict=True)
        ],
        "sums": None if found.sums is None else asdict(found.sums),
        "measured": None
        if found.measured is None
        else [
            {
                "rank": t.rank, "process": t.process, "memory": t.kind,
                "peak_bytes": t.peak_bytes, "peak_ns": t.peak_ns, "where": t.where,
                "allocations": t.allocations, "releases": t.releases, "left_bytes": t.left_bytes,
                "theory_bytes": found.theory_bytes(t.kind), "blocks_bytes": t.blocks.tolist(),
            }
            for t in found.measured
        ],
        "peaks_by_memory_bytes": sums_by_kind(found),
        "warnings": list(found.warnings),
    }  # fmt: skip

"""Memory: what the trainer allocates by its formulas, and what a report recorded over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.base.arrays import Int64
from perfmodel.base.errors import PerfmodelError, WorkloadError
from perfmodel.base.gpu import Gpu
from perfmodel.programs import BATCH_RANGE
from perfmodel.programs.identify import from_mark, read_mark
from perfmodel.programs.mlp.identify import is_trainers
from perfmodel.programs.mlp.memory import (
    Allocation,
    Footprint,
    Training,
    allocations,
    footprint,
    training,
)
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.gpu import COLLECT_MEMORY, MEMORY_TABLE, MemoryEvents, read_memory
from perfmodel.readers.trace import MEMORY_KINDS, NULL, Trace
from perfmodel.timing.range_times import ranks_of


@dataclass(frozen=True, slots=True)
class Timeline:
    """Live bytes of one kind of memory in one process.

    Attributes
    ----------
    process : int
        Serialized global process id.
    rank : int or None
        None where the report names no rank for it.
    kind : str
        As in `perfmodel.readers.trace.MEMORY_KINDS`: 'device', 'pinned', 'managed', ...
    time_ns, live_bytes : int64, shape (n,)
        Live bytes from each event on.
    blocks : int64
        Sizes of the allocations that were live at the peak, descending.
    allocations, releases : int
    where : str
        The innermost NVTX range open at the peak, '' outside all ranges.
    """

    process: int
    rank: int | None
    kind: str
    time_ns: Int64
    live_bytes: Int64
    blocks: Int64
    allocations: int
    releases: int
    where: str

    @property
    def peak_bytes(self) -> int:
        """Most bytes that were live at once."""
        return int(self.live_bytes.max(initial=0))

    @property
    def peak_ns(self) -> int:
        """When the peak was reached first."""
        return int(self.time_ns[int(np.argmax(self.live_bytes))])

    @property
    def left_bytes(self) -> int:
        """Return the bytes that were never released."""
        return int(self.live_bytes[-1])


def timelines(events: MemoryEvents, trace: Trace) -> tuple[Timeline, ...]:
    """Follow the memory of every process, largest peak first.

    A release counts as many bytes as its address was allocated with; one of an address that was
    allocated before the recording began counts nothing.
    """
    index = {int(pid): i for i, pid in enumerate(trace.processes)}
    ranks = ranks_of(trace) if len(trace.ranges) else dict(trace.ranks)
    found = []
    for process in np.unique(events.process):
        for kind in np.unique(events.kind[events.process == process]):
            at = np.flatnonzero((events.process == process) & (events.kind == kind))
            live, blocks, peak = _follow(events, at)
            time = events.start_ns[at]
            found.append(
                Timeline(
                    process=int(process),
                    rank=ranks.get(index.get(int(process), -1)),
                    kind=MEMORY_KINDS[int(kind)],
                    time_ns=time,
                    live_bytes=live,
                    blocks=np.array(sorted(blocks, reverse=True), np.int64),
                    allocations=int((~events.frees[at]).sum()),
                    releases=int(events.frees[at].sum()),
                    where=_where(trace, index.get(int(process)), int(time[peak])),
                )
            )
    return tuple(sorted(found, key=lambda t: (-t.peak_bytes, index.get(t.process, len(index)))))


def _follow(events: MemoryEvents, at: Int64) -> tuple[Int64, Sequence[int], int]:
    """Live bytes after each event, the sizes live at the peak, and the peak's place."""
    open_blocks: dict[tuple[int, int], int] = {}
    at_peak: list[int] = []
    live = np.empty(len(at), np.int64)
    total = most = place = 0
    rows = zip(
        events.device[at].tolist(), events.address[at].tolist(), events.bytes[at].tolist(),
        events.frees[at].tolist(), strict=True,
    )  # fmt: skip
    for i, (device, address, size, frees) in enumerate(rows):
        if frees:
            total -= open_blocks.pop((device, address), 0)
        else:
            total += size - open_blocks.get((device, address), 0)
            open_blocks[device, address] = size
        live[i] = total
        if total > most:
            most, place, at_peak = total, i, list(open_blocks.values())
    return live, at_peak, place


def _where(trace: Trace, process: int | None, time_ns: int) -> str:
    """Label of the range of this process that was opened last and is open at a time."""
    ranges = trace.ranges
    if process is None or len(ranges) == 0:
        return ""
    mine = trace.thread_process[ranges.thread] == process
    end = np.where(ranges.end_ns == NULL, np.iinfo(np.int64).max, ranges.end_ns)
    is_open = (ranges.start_ns <= time_ns) & (end > time_ns)
    inside = np.flatnonzero(mine & is_open & (ranges.name >= 0))
    if len(inside) == 0:
        return ""
    return trace.range_labels[int(ranges.name[inside[-1]])]  # ranges are by start


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Theory and measurement; None where one of them is missing, and `warnings` say why.

    `measured` has an entry per process and kind of memory, the largest peak first.
    """

    case: Training | None
    listed: tuple[Allocation, ...]
    sums: Footprint | None
    measured: tuple[Timeline, ...] | None
    gpu: Gpu | None
    warnings: tuple[str, ...]

    def first(self, kind: str) -> Timeline | None:
        """The timeline of rank 0, or of the process with the largest peak."""
        mine = [t for t in self.measured or () if t.kind == kind]
        return next((t for t in mine if t.rank == 0), mine[0] if mine else None)

    @property
    def peaks_bytes(self) -> dict[str, int]:
        """Sum of the processes' peaks by kind of memory."""
        sums: dict[str, int] = {}
        for t in self.measured or ():
            sums[t.kind] = sums.get(t.kind, 0) + t.peak_bytes
        return sums

    @property
    def seen(self) -> list[str | None]:
        """Whether blocks of an allocation's size were live at the peak, largest first."""
        first = self.first("device"), self.first("pinned")
        blocks = {t.kind: Counter(t.blocks.tolist()) for t in first if t is not None}
        marks: list[str | None] = [None] * len(self.listed)
        for i in sorted(range(len(marks)), key=lambda i: -(self.listed[i].held_bytes or 0)):
            one = self.listed[i]
            if not one.held_bytes or one.memory not in blocks or not one.stays:
                continue
            size, have = one.held_bytes // one.count, blocks[one.memory]
            hits = min(one.count, have[size])
            have[size] -= hits
            marks[i] = "yes" if hits == one.count else f"{hits} of {one.count}" if hits else "no"
        return marks

    def theory_bytes(self, kind: str) -> int | None:
        """Bytes that the allocators should ask CUDA for; None where no formula says."""
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
) -> MemoryUse:
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
    trace = None if path is None else read(path, parts=("nvtx", "mpi"))
    config = {} if trace is None else read_mark(trace)
    values = {**from_mark(config), **given}
    if path is not None and not {"D", "H", "C", "B"} <= values.keys():
        values = {**_inferred(path, given), **values}
    measured = None
    if path is not None and trace is not None:
        events = read_memory(path)
        measured = None if events is None else timelines(events, trace)
        if measured is None:
            warnings.append(
                f"{path.name} has no table {MEMORY_TABLE}: memory was not recorded; "
                f"collect with {COLLECT_MEMORY}"
            )
    case = None
    try:
        case = training(values, {**config, **settings}, images=images, test_images=test_images)
    except WorkloadError as error:
        of_others = trace is not None and BATCH_RANGE not in trace.range_labels and not given
        if measured is None:
            raise (_no_memory(path) if path is not None and of_others else error) from error
        if not of_others:
            warnings.append(str(error))
    if case is not None and config.get("backend") == "numpy":
        raise WorkloadError(
            f"{path}: expected a run on a GPU; got one on the CPU (numpy), which allocates "
            f"nothing there; profile with --backend cupy"
        )
    if trace is not None and case is not None and not is_trainers(config):
        warnings.append(
            "the report has no configuration mark of the trainer: theory is that of the trainer's "
            "defaults, and other programs allocate otherwise"
        )
    listed = () if case is None else allocations(case)
    gpus = () if trace is None else trace.gpus
    return MemoryUse(
        case, listed, footprint(listed) if listed else None, measured,
        gpus[0] if gpus else None, tuple(warnings),
    )  # fmt: skip


def _no_memory(path: Path) -> WorkloadError:
    return WorkloadError(
        f"{path.name}: expected a report with memory usage; got one without {MEMORY_TABLE}; "
        f"collect with {COLLECT_MEMORY}"
    )


def _inferred(path: Path, given: Mapping[str, int]) -> dict[str, int]:
    """Symbols that a report without a whole mark shows by its messages' sizes."""
    try:
        run = analyze_reports([path], Options(values=given)).fitted
    except PerfmodelError:
        return {}
    return dict(run.identity.values)

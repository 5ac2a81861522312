"""The result of an analysis: frozen rows for ranges, ranks, rates, points and findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.units import si
from perfmodel.readers.trace import Trace

if TYPE_CHECKING:
    from perfmodel.analysis.operators import StepWork
    from perfmodel.analysis.rates import Rate
    from perfmodel.analysis.steps import StepBreakdown
    from perfmodel.analysis.verdict import Summary
    from perfmodel.base.gpu import Gpu
    from perfmodel.findings import Finding, Part
    from perfmodel.machines.machine import Machine
    from perfmodel.models.roofline import Point, Roofline
    from perfmodel.programs.facts import ServingRow
    from perfmodel.programs.identify import Identity
    from perfmodel.programs.program import Program
    from perfmodel.timing.collectives import CollectiveGroup
    from perfmodel.timing.copies import CopyGroup
    from perfmodel.timing.late_ranks import LateRank
    from perfmodel.timing.ledger import Ledger
    from perfmodel.timing.point_to_point import PointToPoint, RangeOfRank
    from perfmodel.timing.range_times import Path
    from perfmodel.timing.run import Run
    from perfmodel.timing.run_steps import RunSteps
    from perfmodel.timing.samples import Estimate
    from perfmodel.timing.skew import Skew
    from perfmodel.workloads.work import Counts, Workload


OutlierKind = Literal["host", "GPU", "rank"]


@dataclass(frozen=True, slots=True)
class Outlier:
    """A rank, GPU or host whose steps take longer than those of the others.

    Attributes
    ----------
    kind : {'host', 'GPU', 'rank'}
        A GPU is one number on several hosts.
    name : str
    measure : str
        What takes longer: 'own time' (the step without waiting for other ranks) or 'computing'.
    seconds, usual_s : float
        Its own median, and the median of the others of its kind; per step.
    ranks : tuple of int
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"excess": "excess"}

    kind: OutlierKind
    name: str
    measure: str
    seconds: float
    usual_s: float
    ranks: tuple[int, ...]

    @property
    def excess(self) -> float:
        """By how much longer, as a share of the usual time."""
        return self.seconds / self.usual_s - 1.0


@dataclass(frozen=True, slots=True)
class RangeRow:
    """One range of a median step.

    Attributes
    ----------
    count : int
        Ranges of this path in all steps that count.
    per_batch : float
        Ranges of this path per step.
    host_s : float or None
        Median over steps and ranks of the host's time in the range, per step.
    gpu_projection_s, gpu_busy_s, gpu_ops : float or None
        Median per step of the operations that the range launched: from the first to the last one,
        their union, their number.
    share : float or None
        `host_s` over that of the step.
    flops : float or None
        By formula, for the range and all ranges inside it.
    pci_bytes, mpi_bytes, peer_bytes : float or None
        By formula, for the range and all ranges inside it: over PCIe, by MPI, from GPU to GPU.
    measured_copy_bytes, measured_mpi_bytes : float or None
        As the report has them: bytes of copies, sizes of calls of MPI.
    rate : float or None
        FLOPs or bytes over the time of the range, by the clock of `rates`.
    of_ceiling : float or None
        `rate` over the machine's limit that `ceiling` names.
    batches, of_batches : int or None
        Steps in which the range occurs on any rank, of those measured: medians are over these.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"joined": "path"}

    path: Path
    count: int
    per_batch: float
    host_s: float | None
    gpu_projection_s: float | None
    gpu_busy_s: float | None
    share: float | None
    flops: float | None
    pci_bytes: float | None
    mpi_bytes: float | None
    measured_copy_bytes: float | None
    measured_mpi_bytes: float | None
    gpu_ops: float | None
    rate: float | None
    rate_unit: str
    of_ceiling: float | None
    ceiling: str
    peer_bytes: float | None = None
    batches: int | None = None
    of_batches: int | None = None

    @property
    def label(self) -> str:
        """The innermost range's label."""
        return self.path[-1]

    @property
    def joined(self) -> str:
        """The labels of the path with slashes between them."""
        return "/".join(self.path)

    @property
    def occurs(self) -> str | None:
        """In how many batches the range occurs, None where it is in each."""
        if self.batches is None or self.batches == self.of_batches:
            return None
        return f"{self.batches} of {self.of_batches}"


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """Number of steps, and the median one of the slowest rank.

    Attributes
    ----------
    label : str
        Name of the ranges that are one step each.
    rank : int
        The slowest one, whose median step is the longest.
    count : int
        Steps that count, without warm-up, and are timed on any rank.
    warmup : int
        Leading steps of more than 1.25 medians, and of more than the upper quartile of later ones.
    warmup_s : float
        Sum of the warm-up steps of the slowest rank.
    mean_s : float
        Over the steps of the slowest rank that count; of the trainer, on the host.
    queued_s : float or None
        Median of the host's own time where it only queues steps: they are then timed until the GPU
        is done with them, and host times of the ranges inside are those of queueing.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"label": "range", "median": ""}

    label: str
    rank: int
    count: int
    warmup: int
    warmup_s: float
    median: Estimate
    mean_s: float
    queued_s: float | None = None


@dataclass(frozen=True, slots=True)
class RankRow:
    """The median step of one rank and its parts, which add up to it; None where it is unknown.

    Without the profiler where it makes steps longer: what it adds is taken off the idle time of the
    GPU, and off the waiting of a rank for one that it slows; computing, copies and exchanges take
    as long without it.

    Attributes
    ----------
    rank : int
    gpu : int or None
    batches : int
        Steps that count.
    step_s, recorded_step_s : float or None
        On the clock of the steps (`perfmodel.timing.run_steps.RunSteps`); the second as recorded.
    compute_s : float or None
        Kernels that do not communicate; without a GPU the time outside MPI.
    communication_s : float or None
        Communication beside neither computing nor copies, without the waiting for other ranks.
    waiting_s : float or None
        Of that time what passes before the ranks came that it needed; None where that is unknown.
    copies_s : float or None
        Copies and sets of memory beside no computing.
    idle_s : float or None
        What is left: nothing without a GPU.
    gpu_busy_s : float or None
        Union of all operations of the GPU, as recorded.
    collectives_s : float or None
        All communication, hidden or not, and waiting, as recorded.
    """

    rank: int
    gpu: int | None
    batches: int
    step_s: float | None
    recorded_step_s: float | None
    compute_s: float | None = None
    communication_s: float | None = None
    waiting_s: float | None = None
    copies_s: float | None = None
    idle_s: float | None = None
    gpu_busy_s: float | None = None
    collectives_s: float | None = None

    @property
    def whole_s(self) -> float:
        """The step, 0 where it is unknown."""
        return self.step_s or 0.0

    def part_s(self, part: Part) -> float:
        """Seconds of a part, 0 where it is unknown."""
        seconds: float | None = getattr(self, f"{part}_s")
        return seconds or 0.0

    def without_recorder(self, less_s: float) -> RankRow:
        """Return a rank whose step is so much shorter, as far as it idles and waits so long."""
        if self.step_s is None or less_s <= 0:
            return self
        if self.compute_s is None:
            return replace(self, step_s=max(self.step_s - less_s, 0.0))
        idling_s = min(self.part_s("idle"), less_s)
        waiting_s = min(self.part_s("waiting"), less_s - idling_s)
        return replace(
            self,
            step_s=self.step_s - idling_s - waiting_s,
            idle_s=None if self.idle_s is None else self.idle_s - idling_s,
            waiting_s=None if self.waiting_s is None else self.waiting_s - waiting_s,
        )


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The assignment's three-parameter model against the measurement: F/P_flops + sum n_k/P_k.

    Attributes
    ----------
    predicted_s, measured_s : float
        Time of the range's work by the model, and the median time.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"relative_error": "relative_error"}

    label: str
    predicted_s: float
    measured_s: float

    @property
    def relative_error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True, slots=True)
class RunAnalysis:
    """Everything perfmodel says about one run; `measured` is the run with all its range times.

    Attributes
    ----------
    label : str
        Name of the run.
    ranges : tuple of RangeRow
        Ranges of a median step, parents before children.
    rates, rates_by_clock : mapping
        Effective throughputs, those of each clock apart.
    model : tuple of ModelCheck
        The three-parameter model against the measurement.
    findings : tuple of Finding
        Losses of a step, largest saving first.
    warnings : tuple of str
        Data missing from the report, and how to record it.
    summary : Summary
        The first screen.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {
        "summary": "summary", "late": "stragglers", "messages": "point_to_point", "measured": "",
        "program": "", "identity": "", "workload": "", "totals": "", "run_steps": "", "ledger": "",
        "batch": "", "products": "", "roofline": "", "points": "", "steps": "", "work": "",
        "serving": "",
    }  # fmt: skip

    label: str
    measured: Run
    program: Program
    identity: Identity
    workload: Workload
    totals: Counts
    machine: Machine | None
    precision: str
    gpus: tuple[Gpu, ...]
    ranks: tuple[RankRow, ...]
    run_steps: RunSteps
    ledger: Ledger
    batch: BatchSummary
    ranges: tuple[RangeRow, ...]
    rates: Mapping[str, Rate | None]
    rates_by_clock: Mapping[str, Mapping[str, Rate | None]]
    products: tuple[tuple[str, float, Rate], ...]
    copies: tuple[CopyGroup, ...]
    collectives: tuple[CollectiveGroup, ...]
    unattributed: Mapping[str, int]
    roofline: Roofline | None
    points: tuple[Point, ...]
    model: tuple[ModelCheck, ...]
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]
    skew: Skew | None = None
    late: tuple[LateRank, ...] = ()
    steps: StepBreakdown | None = None
    messages: PointToPoint | None = None
    ranges_by_rank: tuple[RangeOfRank, ...] = ()
    work: StepWork | None = None
    hosts: Mapping[int, str] = field(default_factory=dict)
    outliers: tuple[Outlier, ...] = ()
    serving: tuple[ServingRow, ...] = ()

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The reports of the run."""
        return self.measured.traces

    @property
    def summary(self) -> Summary:
        """The verdict on the run, and what a reader sees first."""
        from perfmodel.analysis.verdict import summarize

        return summarize(self)

    def __repr__(self) -> str:
        return (
            f"<RunAnalysis {self.label}: {self.batch.count} steps of "
            f"{si(self.batch.median.value, 's')}, {len(self.ranks)} ranks, "
            f"{len(self.findings)} findings>"
        )


@dataclass(frozen=True, slots=True)
class Analysis:
    """One or more runs, and which of them fits the roofline that all points are drawn on.

    `failed` are the errors of reports and runs that could not be analyzed with the others;
    `not_kept` says of each result that was to be kept in a folder, and is not, why.
    """

    runs: tuple[RunAnalysis, ...]
    fit: int = 0
    failed: tuple[PerfmodelError, ...] = ()
    not_kept: tuple[str, ...] = ()

    def __repr__(self) -> str:
        more = f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else ""
        return f"<Analysis of {self.fitted!r}{more}>"

    @property
    def fitted(self) -> RunAnalysis:
        """The run whose effective throughputs make the roofline."""
        return self.runs[self.fit]

    @property
    def points(self) -> tuple[Point, ...]:
        """The measured points of all runs."""
        return tuple(point for run in self.runs for point in run.points)

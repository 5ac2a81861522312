"""Findings: what a batch loses, ranked by potential saving, and what to change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from perfmodel.base.units import percent, si
from perfmodel.timing.late_ranks import late_rank

if TYPE_CHECKING:
    from perfmodel.machines.machine import Machine
    from perfmodel.timing.collectives import CollectiveGroup, Waiting
    from perfmodel.timing.copies import CopyGroup
    from perfmodel.timing.late_ranks import LateRank
    from perfmodel.timing.point_to_point import PointToPoint, RangeOfRank
    from perfmodel.timing.samples import Estimate
    from perfmodel.timing.step_facts import StepFacts

_WORTH: Final = 0.01
"""Savings below this share of a batch are not worth a line."""


_OF_PCIE: Final = 0.8
"""Share of PCIe's datasheet rate that large pinned copies reach (52.7 of 64 GB/s on an H200)."""

_UNEQUAL: Final = 0.05
"""A rank that takes longer by this share of a batch in a range is reported without any waiting."""

_EXPLAINS: Final = 0.2
"""A range explains why the others wait for a rank if it takes this share of the waiting longer."""

_TELLING: Final = 3
"""Of so many ranks the median one tells which rank is longer than usual."""

_RARE: Final = 2.0
"""A mean so many times the median is of some steps; parts that differ so much, of a trend."""

_STEPS: Final = 6
"""Of fewer steps nobody can say which are long."""

_MOSTLY: Final = 0.5
"""With this share of the waiting in messages, or more, a late rank is named for these."""

_PEERS: Final = 8
"""So many GPUs of one host reach each other's memory directly."""


KINDS: Final = (
    "launch_bound", "blocking_sync", "host_compute", "allocation", "pageable_copy",
    "exposed_communication", "straggler", "low_precision_unused", "unfused_attention",
    "many_small_kernels", "memory_bound", "kernel_below_ceiling", "waiting_mpi",
    "host_reduction", "input_copy", "shared_gpu",
)  # fmt: skip
"""What findings are about; the three before the last are of MPI programs and of the trainer."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One loss, with the evidence for it and what to change.

    `kind` is one of `KINDS`. `saving_s` is an upper bound per batch, None where it is unknown.
    Savings overlap: they do not add up. `of_mean` says that it is lost in some batches only, and
    the mean over all of them. `saving_without_recorder_s` is the saving of the step without the
    profiler that recorded it, None where that is unknown.
    """

    kind: str
    title: str
    saving_s: float | None
    evidence: str
    action: str
    of_mean: bool = False
    saving_without_recorder_s: float | None = None

    @property
    def true_saving_s(self) -> float | None:
        """The saving without the profiler, the recorded one where that is unknown."""
        without = self.saving_without_recorder_s
        return self.saving_s if without is None else without

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"expected one of {', '.join(KINDS)}; got {self.kind!r}")


@dataclass(frozen=True, slots=True)
class GemmTime:
    """One range's products: achieved rate against the time its ceilings allow."""

    label: str
    seconds: float
    flops: float
    bound_s: float | None


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """Calls of one operator in a median step of a rank, the mean over ranks.

    Attributes
    ----------
    name, phase, dtype, dtype_from, unit, sizes : str
        As `timing.operator_times.OperatorKey`; `sizes` is '' for calls of several sizes.
    count, kernels : float
        Calls, and kernels that they launched.
    flops, read_bytes, write_bytes, bytes : float or None
        By formula; None if there is none. `bytes` is the sum of the two.
    gpu_s : float
        Time in which the operator's own kernels ran.
    share : float
        Of the step's time in operations that do not communicate; of a collective 0.
    intensity : float or None
        FLOPs a byte.
    flops_per_s, bytes_per_s : float or None
        Achieved.
    bound : str or None
        What allows no less time: 'compute', 'memory', 'latency' of so many kernels, or 'link' of
        copies between GPU and host; of calls of several sizes what bounds most of their time.
    of_ceiling : float or None
        Least time that the unit's peak and the memory's bandwidth allow, over `gpu_s`. More than
        1 where data came from the cache.
    of_tensor_ceiling : float or None
        The same by the peak of the tensor cores, of a product that runs without them.
    cached_bytes : float or None
        What it moves to and from memory if its inputs are still in L2, as far as they fit there.
    fusible_bytes : float or None
        Of `read_bytes` those of what an operator without products has just written: a kernel that
        did the work of both would not read them.
    inputs_from : str or None
        'l2' where the time is too short for all its bytes, 'memory' of others that memory bounds.
    dram_bytes, l2_bytes : float or None
        As Nsight Compute counted them, with no input in L2; None without its table.
    l2_intensity, of_l2 : float or None
        FLOPs a byte of L2; and `l2_bytes` over what L2's bandwidth allows in the time.
    communicates : bool
    """

    name: str
    phase: str
    dtype: str
    dtype_from: str
    unit: str
    sizes: str
    count: float
    kernels: float
    flops: float | None
    read_bytes: float | None
    write_bytes: float | None
    bytes: float | None
    gpu_s: float
    share: float
    intensity: float | None
    flops_per_s: float | None
    bytes_per_s: float | None
    bound: str | None
    of_ceiling: float | None
    of_tensor_ceiling: float | None = None
    cached_bytes: float | None = None
    fusible_bytes: float | None = None
    inputs_from: str | None = None
    dram_bytes: float | None = None
    l2_bytes: float | None = None
    l2_intensity: float | None = None
    of_l2: float | None = None
    communicates: bool = False

    @property
    def least_s(self) -> float:
        """What peak and bandwidth allow at least; 0 where they are not known."""
        return (self.of_ceiling or 0.0) * self.gpu_s

    @property
    def tensor_s(self) -> float:
        """What tensor cores would allow a product that runs without them; 0 of all else."""
        return (self.of_tensor_ceiling or 0.0) * self.gpu_s


@dataclass(frozen=True, slots=True)
class DeviceReduce:
    """NCCL's all-reduce of `bytes` a rank and batch: its kernels' time, less waiting if known."""

    seconds: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Facts:
    """What the findings are drawn from; all times are medians per rank and batch.

    `waiting` is about MPI, on the host; `gpu_waiting` about NCCL's kernels, which count as busy.
    `config` is the run's configuration mark: what it already does is not advised. `lacking` are GPU
    operations of the whole run that no batch has: with some, `busy_s` is a lower bound. `host_s` is
    host time by range; a program that knows its ranges says which of it completes reductions that
    began before (`polled_s`) and which is spent in copies, by direction (`copying_s`). `steps` is
    there where the GPU's operations time the steps, `operators` where their least time is known,
    `sizes_recorded` where the same recording names them, which slows its host down; `compute_s` is
    what each rank computes. `numbers` are the ranks that `waiting` is of; `host_ranks` their median
    time outside and inside MPI per batch, of a program without a GPU. `mean_s` is the mean batch.
    """

    batch: Estimate
    busy_s: float | None
    gpu_ops: float
    synchronizations: float
    synchronize_s: float
    host_s: Mapping[str, float]
    copies: Sequence[CopyGroup]
    collectives: Sequence[CollectiveGroup]
    waiting: Waiting | None
    gemms: Sequence[GemmTime]
    shared_gpus: Mapping[int, tuple[int, ...]]
    machine: Machine | None
    ranks: int
    gpu_waiting: Waiting | None = None
    reduced: DeviceReduce | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    lacking: int = 0
    polled_s: float = 0.0
    copying_s: Mapping[str, float] = field(default_factory=dict)
    steps: StepFacts | None = None
    operators: tuple[OperatorRow, ...] = ()
    sizes_recorded: bool = False
    messages: PointToPoint | None = None
    ranges_by_rank: tuple[RangeOfRank, ...] = ()
    compute_s: Mapping[int, float] = field(default_factory=dict)
    late: tuple[LateRank, ...] = ()
    numbers: tuple[int, ...] = ()
    host_ranks: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    mean_s: float = 0.0


ADVICE: Final[Mapping[str, str]] = {
    "wait_less": "read results later or less often, so that the host does not wait in {call}",
    "allocate_less": "allocate GPU memory once and reuse it",
    "compute_less": "do the host's work{where} beside the GPU's: in another thread, a step ahead",
    "step_less": "do the host's work{where} beside the GPU's, or for all parameters at once",
    "load_ahead": "load what the next step needs{where} in another thread, a step ahead",
    "write_less": "do the host's work{where} every n steps, or from a copy in another thread",
    "join_messages": "join the messages to a few large ones, and start it while computing goes on",
    "overlap_messages": "start it while computing goes on",
    "hide_messages": "start it while computing goes on, and join small messages",
    "gather_ahead": "gather the parameters of the next layers while this one computes",
    "share_less": "let fewer ranks share a layer, or sum its parts while other parts compute",
    "help_rank": "find out what rank {rank} does beyond the others, and share its work out",
    "help_stage": "give the ranks as long to compute between their messages",
    "fill_stages": "send smaller messages earlier, so that the ranks compute at the same time",
    "lower_precision": "use tensor cores: TF32, or 16-bit types",
    "move_less": "fuse element-wise kernels with what makes or takes their data; use 16-bit types",
    "raise_rate": "larger matrices: a larger batch; sizes that are multiples of 64",
    "fuse_attention": "use a fused attention kernel, which keeps the scores on the chip",
    "fuse_small": "fuse the kernels{where}, or capture them in a CUDA graph",
}
"""What to do against a loss of any program."""


@dataclass(frozen=True, slots=True)
class Actions:
    """What to advise: everything by default, less what a program says that it does.

    Attributes
    ----------
    known : bool
        Whether the program said how it runs.
    done : set of str
        What it does already, of 'fused' (small kernels), 'graph' (a CUDA graph a step), 'prefetch'
        (inputs), 'overlapped' (nothing is left to overlap), 'own kernels', 'tf32', 'tf32x3', 'peer'
        (no kernel could sum over the GPUs' memory).
    flags : mapping of str to str
        The program's own flags, by what they do.
    texts : mapping of str to str
        What to call in the program's framework: keys of `ADVICE`, 'launch_less', 'pin in' and 'pin
        out'.
    """

    known: bool = False
    done: Set[str] = frozenset()
    flags: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    def advise(self, what: str, **words: object) -> str:
        """Return what to do, one of `ADVICE`."""
        return self.texts.get(what, ADVICE[what]).format(**words)

    def flag(self, what: str) -> str:
        """Return the program's flag for something in parentheses; empty if it has none."""
        return f" ({self.flags[what]})" if what in self.flags else ""

    def launch_less(self, *, synchronizes: bool) -> str:
        """What shortens the time in which the GPU waits for the host."""
        if "launch_less" in self.texts:
            return self.texts["launch_less"]
        steps = []
        if "fused" not in self.done:
            steps.append(f"fuse elementwise kernels{self.flag('fuse')}")
        if synchronizes or not self.known:
            steps.append("drop synchronizations between ranges")
        if "graph" not in self.done:
            steps.append(f"capture the step in a CUDA graph{self.flag('graph')}")
        if not steps:
            return "give the GPU more work per launch: a larger batch, or fewer ranks"
        return f"launch less: {', '.join(steps)}"

    def pin(self, direction: str) -> str:
        """How to take host buffers from page-locked memory."""
        what = "pin out" if direction == "Device-to-Host" else "pin in"
        if what in self.texts:
            return self.texts[what]
        said, flags = "allocate the host buffers with cudaMallocHost", self.flags.get(what)
        return f"{said} (CuPy: cupyx.empty_pinned; {flags})" if flags else said

    def keep_inputs(self) -> str:
        """How not to wait for inputs."""
        keep = f"keep the training set on the GPU{self.flag('keep')}"
        if "prefetch" in self.done:
            return keep
        return (
            f"{keep}, or copy the next batch on a stream of its own while this one computes"
            f"{self.flag('prefetch')}"
        )

    def balance(self) -> str:
        """How ranks wait less for each other."""
        said = "balance the ranks' work before the collective"
        if "overlapped" in self.done:
            return said
        return f"{said}, or overlap it with computing{self.flag('overlapping')}"

    def multiply(self) -> str:
        """What a product may still gain from."""
        steps = []
        if "own kernels" not in self.done:
            steps.append(f"a kernel tiled for this shape{self.flag('tile')}")
        if not self.done & {"tf32", "tf32x3"}:
            steps.append(f"tensor cores{self.flag('tf32') or ' (TF32)'}")
        if "tf32x3" in self.done:
            steps.append(f"one product of TF32 numbers for three, less exact{self.flag('one')}")
        if "fused" not in self.done:
            steps.append(f"fusing it with its neighbours{self.flag('fuse')}")
        if not steps:
            return "larger matrices: a larger batch, or fewer ranks"
        return ", ".join(steps[:-1]) + (", or " if len(steps) > 1 else "") + steps[-1]

    def reduce_on_gpus(self, ranks: int) -> str:
        """How gradients need not pass through the host."""
        ways = [
            f"NCCL{self.flag('nccl')}",
            f"a ring of MPI_Sendrecv on GPU memory{self.flag('ring')}",
        ]
        if "peer" not in self.done and ranks <= _PEERS:
            ways.append(f"one kernel over the GPUs' memory{self.flag('peer')}")
        return (
            f"reduce on the GPUs: {', '.join(ways[:-1])} or {ways[-1]}; CUDA-aware MPI's "
            f"MPI_Allreduce is no improvement where the library copies to the host, as Open MPI's "
            f"does"
        )

    def reduce_faster(self, ranks: int) -> str:
        """What is left where an all-reduce over NVLink is mostly latency."""
        steps = []
        if "peer" not in self.done and ranks <= _PEERS:
            steps.append(
                f"one kernel that reads the other GPUs' gradients and takes the step"
                f"{self.flag('peer')}"
            )
        if "overlapped" not in self.done:
            steps.append(f"sum what is computed first beside the rest{self.flag('overlapping')}")
        return ", or ".join(steps) or "fewer ranks, which have more to compute for every message"


def general(facts: Facts, actions: Actions) -> Iterator[Finding]:
    """Find what any program may lose, by the times of its GPU, its copies and its collectives."""
    yield from shared_gpus(facts)
    for find in (
        idle_gpu, nccl_latency, pageable_copies, late_messages, waiting_ranks, many_reductions,
        slow_products,
    ):  # fmt: skip
        yield from find(facts, actions)


def ranked(facts: Facts, found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings worth at least one percent of a batch, largest saving first.

    A saving is between nothing and the whole batch (the mean one, where some steps may be much
    longer than the median one); unknown ones come last. A rank that the others
    wait for is named even if that costs nothing: its waiting looks like work. So are products that
    run without tensor cores, since recording sizes makes the host limit most steps.
    """
    if facts.batch.value <= 0:
        return ()
    unequal = facts.host_ranks or (facts.steps and facts.steps.long)
    most = max(facts.batch.value, facts.mean_s if unequal else 0.0)
    kept = [
        f if f.saving_s is None else replace(f, saving_s=min(f.saving_s, most))
        for f in found
        if worth(f, facts) or f.kind in ("straggler", "low_precision_unused")
    ]
    return tuple(sorted(kept, key=lambda f: (f.saving_s is None, -(f.saving_s or 0.0))))


def worth(finding: Finding, facts: Facts) -> bool:
    """Whether a finding may save at least one percent of a batch, or nobody knows how much."""
    return finding.saving_s is None or finding.saving_s >= _WORTH * facts.batch.value


def shared_gpus(facts: Facts) -> Iterator[Finding]:
    """Ranks that run on one device."""
    for gpu, ranks in facts.shared_gpus.items():
        who = " and ".join(str(r) for r in ranks)
        yield Finding(
            "shared_gpu",
            f"ranks {who} share GPU {gpu}",
            None,
            f"the operations of ranks {who} ran on one device, so their GPU times include each "
            f"other",
            "give every rank a GPU of its own (CUDA_VISIBLE_DEVICES by local rank)",
        )


def idle_gpu(facts: Facts, actions: Actions) -> Iterator[Finding]:
    """Time in which neither the GPU nor a collective works: launches, synchronizations, Python."""
    if facts.busy_s is None:
        return
    mpi = float(np.median(facts.waiting.seconds)) if facts.waiting else 0.0
    mpi = max(mpi, facts.polled_s)
    idle = facts.batch.value - facts.busy_s - mpi
    if idle <= 0:
        return
    mpi_said = f", collectives take {si(mpi, 's')}" if facts.waiting or mpi else ""
    evidence = (
        f"the GPU is busy {'at least ' * bool(facts.lacking)}{share_of_batch(facts, facts.busy_s)}"
        f"{mpi_said}; "
        f"{facts.gpu_ops:.0f} GPU operation{'s' * (round(facts.gpu_ops) != 1)}"
    )
    if facts.synchronizations:
        evidence += (
            f" and {facts.synchronizations:.0f} synchronizing calls "
            f"({si(facts.synchronize_s, 's')} inside them)"
        )
    evidence += " per batch"
    action = actions.launch_less(synchronizes=facts.synchronizations > 0)
    if facts.lacking:
        evidence += f"; {facts.lacking} operations of the run are in no range, and not counted"
        action = f"count these first, as the warning says; then {action}"
    yield Finding("launch_bound", "the GPU waits for the host", idle, evidence, action)


def nccl_latency(facts: Facts, actions: Actions) -> Iterator[Finding]:
    """NCCL's all-reduce against what the link needs for its bytes: the rest is latency."""
    reduced = facts.reduced
    direct = over_nvlink(facts, reduced.bytes) if reduced is not None else None
    if reduced is None or direct is None or reduced.bytes <= 0:
        return
    yield Finding(
        "exposed_communication",
        "NCCL's all-reduce is mostly latency",
        reduced.seconds - direct,
        f"its kernels transfer for {share_of_batch(facts, reduced.seconds)}; "
        f"{si(reduced.bytes, 'B')} over NVLink needs {si(direct, 's')}",
        actions.reduce_faster(facts.ranks),
    )


def pageable_copies(facts: Facts, actions: Actions) -> Iterator[Finding]:
    """Copies from and to pageable memory, against pinned ones."""
    for group in facts.copies:
        if group.memory != "pageable":
            continue
        pinned = [g for g in facts.copies if g.memory == "pinned" and g.largest_bytes > 1e5]
        if pinned:
            rate = max(g.bytes_per_s for g in pinned)
            source = f"pinned copies in this report reach {si(rate, 'B/s')}"
        elif facts.machine and "pcie" in facts.machine.bandwidth_bytes_per_s:
            rate = _OF_PCIE * facts.machine.bandwidth_bytes_per_s["pcie"]
            source = f"pinned ones should reach about {si(rate, 'B/s')}"
        else:
            continue
        spent = max(facts.copying_s.get(group.direction, 0.0), group.seconds)
        yield Finding(
            "pageable_copy",
            f"{group.direction} copies use pageable memory",
            spent - group.bytes / rate,
            f"{group.count:.0f} copies, {si(group.bytes, 'B')} per batch at "
            f"{si(group.bytes_per_s, 'B/s')} on the copy engine, "
            f"{share_of_batch(facts, spent)} on the host; {source}",
            actions.pin(group.direction),
        )


def waiting_ranks(facts: Facts, actions: Actions) -> Iterator[Finding]:
    """Time in collectives before the last rank has come."""
    for kind, waiting, where in (
        ("waiting_mpi", facts.waiting, "collectives"),
        ("straggler", facts.gpu_waiting, "NCCL's kernels, which keep its GPU busy meanwhile"),
    ):
        if waiting is None or waiting.waiting_s is None:
            continue
        if kind == "waiting_mpi" and _late_by_messages(facts) is not None:
            continue  # named there, with its collectives
        if kind == "waiting_mpi" and (rare := _waiting_in_some_steps(facts, waiting, actions)):
            yield rare
            continue
        worst = max(range(len(waiting.waiting_s)), key=waiting.waiting_s.__getitem__)
        seconds = waiting.waiting_s[worst]
        if seconds < _WORTH * facts.batch.value:
            continue
        who, more = _who_is_last(facts) if kind == "waiting_mpi" else ("", None)
        begun = [g for g in facts.collectives if g.name.startswith("MPI_I") and g.waiting_s]
        saved = seconds
        if more is not None and begun and facts.host_ranks:  # nor go on before it is in MPI
            saved = max(seconds, min(more.more_s, facts.host_ranks[_number(facts, worst)][1]))
        yield Finding(
            kind,
            "ranks wait for each other",
            saved,
            f"rank {_number(facts, worst)} waits longest in {where}: "
            f"{share_of_batch(facts, seconds)}"
            f"{_trend(facts, waiting, worst) if kind == 'waiting_mpi' else ''}{who}",
            actions.balance(),
        )


def _number(facts: Facts, index: int) -> int:
    """The rank that is the n-th of those that are measured."""
    return facts.numbers[index] if facts.numbers else index


def _waiting_in_some_steps(facts: Facts, waiting: Waiting, actions: Actions) -> Finding | None:
    """Waiting that medians hide, since fewer than half of the steps have it."""
    by_batch = waiting.by_batch
    if not facts.host_ranks or by_batch is None or by_batch.shape[1] < _STEPS:
        return None
    by_batch = by_batch[:, np.isfinite(by_batch).all(axis=0)]  # batches that all ranks have
    mean, usual = by_batch.mean(axis=1), np.median(by_batch, axis=1)
    worst = int(mean.argmax())
    if mean[worst] < max(_RARE * float(usual[worst]), _WORTH * facts.batch.value):
        return None
    long = by_batch[worst] > mean[worst]
    return Finding(
        "waiting_mpi",
        "ranks wait for each other in some steps",
        float(mean[worst]),
        f"rank {_number(facts, worst)} waits {si(float(mean[worst]), 's')} per step on average in "
        f"collectives: {si(float(np.median(by_batch[worst][long])), 's')} in {int(long.sum())} of "
        f"{len(long)} steps, {si(float(np.median(by_batch[worst][~long])), 's')} in the others"
        f"{_who_is_last(facts)[0]}",
        actions.balance(),
        of_mean=True,
    )


def _trend(facts: Facts, waiting: Waiting, worst: int) -> str:
    """Say if the waiting grows or falls with the steps."""
    by_batch = waiting.by_batch
    if not facts.host_ranks or by_batch is None or by_batch.shape[1] < _STEPS:
        return ""
    parts = np.array_split(by_batch[worst][np.isfinite(by_batch[worst])], 3)
    first, last = float(np.median(parts[0])), float(np.median(parts[-1]))
    if max(first, last) < _RARE * min(first, last) + _UNEQUAL * facts.batch.value:
        return ""
    return (
        f", {si(first, 's')} in the first third of the steps and {si(last, 's')} in the last: it "
        f"{'grows' if last > first else 'falls'}"
    )


@dataclass(frozen=True, slots=True)
class _Longer:
    """What a rank does longer than the median rank; `alone` with the time of both."""

    said: str
    alone: str
    more_s: float


def _who_is_last(facts: Facts) -> tuple[str, _Longer | None]:
    """Name the rank to which most waiting leads back, with what it does longer.

    Of a program without a GPU, where there is no such rank, one that computes longer than the
    others.
    """
    late = late_rank(facts.late)
    if late is not None:
        said = (
            f"; rank {late.rank} comes last to {percent(late.share_last)} of them and causes "
            f"{percent(late.caused_s / sum(r.caused_s for r in facts.late))} of the waiting"
            f"{too_few(late)}"
        )
        more = _longer(facts, late.rank)
        if more is None or (facts.host_ranks and more.more_s < _UNEQUAL * facts.batch.value):
            return said, None
        return f"{said}; it {more.said}", more
    if not facts.host_ranks:
        return "", None
    slow = max(facts.host_ranks, key=lambda rank: facts.host_ranks[rank][0])
    more = _longer(facts, slow)
    if more is None or more.more_s < _UNEQUAL * facts.batch.value:
        return "", None
    return f"; rank {slow} {more.said}", more


def too_few(late: LateRank) -> str:
    """Say where too few steps were recorded to tell a late rank from chance."""
    steps = f"{late.steps} step{'s' * (late.steps != 1)}"
    return "" if late.enough else f" (only {steps}: record more to be sure)"


def _longer(facts: Facts, rank: int) -> _Longer | None:
    """Return what a rank spends more time in than the median rank; the innermost such range.

    Without a GPU the step itself says nothing, since all ranks wait for the longest; where no range
    explains at least half of it, what the rank does outside MPI.
    """
    own = [r for r in facts.ranges_by_rank if r.rank == rank and r.more_s > 0]
    outside = _computes_more(facts, rank) if facts.host_ranks else None
    if facts.host_ranks:
        own = [r for r in own if "/" in r.path]
    most = max(own, key=lambda r: (r.more_s, len(r.path)), default=None)
    if outside is not None and (most is None or most.more_s < outside.more_s / 2):
        return outside
    if most is None:
        return None
    more = si(most.more_s, "s")
    return _Longer(
        f"is {more} longer in '{most.range}' than the median rank",
        f"is {si(most.seconds, 's')} in '{most.range}', {more} more than the median rank",
        most.more_s,
    )


def _computes_more(facts: Facts, rank: int) -> _Longer | None:
    """Return how much longer a rank computes than the median of the others."""
    others = [seconds for r, seconds in facts.compute_s.items() if r != rank]
    if rank not in facts.compute_s or not others:
        return None
    seconds = facts.compute_s[rank]
    more_s = seconds - float(np.median(others))
    if more_s <= 0:
        return None
    more, spent = si(more_s, "s"), si(seconds, "s")
    does, is_there = ("is", " outside MPI") if facts.host_ranks else ("computes", "")
    return _Longer(
        f"{does} {more} longer{is_there} than the median of the others",
        f"{does} {spent}{is_there} per batch, {more} more than the other ranks' median",
        more_s,
    )


def late_messages(facts: Facts, actions: Actions) -> Iterator[Finding]:
    """The rank to which most waiting in point-to-point messages leads back."""
    if facts.messages is None:
        return
    if _late_by_messages(facts) is None:
        yield from _unseen_waiting(facts, actions)
        return
    late = late_rank(facts.late, least=0.0)
    if late is None:
        waiting = sorted(row.waiting_s for row in facts.late)
        yield Finding(
            "waiting_mpi",
            "ranks wait for each other's messages",
            float(np.median(waiting)),
            f"up to {si(waiting[-1], 's')} of a rank per batch; they are late in turn: no rank is "
            f"late more often than chance makes it",
            actions.balance(),
        )
        return
    most = _longer(facts, late.rank)
    if most is None or most.more_s < _EXPLAINS * late.most_s:
        most = _computes_more(facts, late.rank)
    if most is not None and most.more_s < _EXPLAINS * late.most_s:
        most = None  # that is not why the others wait
    said = f"it {most.alone}; " if most else ""
    through: dict[int, float] = {}
    for chain in facts.messages.chains:
        if chain.origin == late.rank:
            through[chain.peer] = through.get(chain.peer, 0.0) + chain.waiting_s
    peer = max(through, key=lambda rank: through[rank], default=None)
    passed = (
        f"; {si(through[peer], 's')} of it comes through rank {peer}, which waits itself"
        if peer is not None
        else ""
    )
    yield Finding(
        "waiting_mpi",
        f"ranks wait for messages of rank {late.rank}",
        min(late.most_s, most.more_s) if most else late.most_s,
        f"{said}{si(late.caused_s, 's')} of all ranks' waiting per batch leads back to rank "
        f"{late.rank}, up to {si(late.most_s, 's')} of one rank{passed}{too_few(late)}",
        actions.advise("help_rank", rank=late.rank),
    )


def _late_by_messages(facts: Facts) -> LateRank | None:
    """Return the rank that most waiting leads back to, if that counts and is mostly in messages."""
    if facts.messages is None or not facts.late:
        return None
    late, total = facts.late[0], sum(row.caused_s for row in facts.late)
    mostly = sum(pair.waiting_s for pair in facts.messages.pairs) > _MOSTLY * total
    return late if mostly and late.most_s >= _WORTH * facts.batch.value else None


def _unseen_waiting(facts: Facts, actions: Actions) -> Iterator[Finding]:
    """A rank that takes longer, where others poll for its messages: no call shows that they wait.

    Not of ranks whose step is longer than the others': they make no one wait. Of two ranks, the one
    that polls is the longer one where it polls.
    """
    if facts.ranks < _TELLING:
        return
    slow = max(facts.ranges_by_rank, key=lambda r: (r.more_s, len(r.path)), default=None)
    if slow is None or slow.more_s < _UNEQUAL * facts.batch.value:
        return
    seen = (
        max(facts.waiting.waiting_s, default=0.0)
        if facts.waiting and facts.waiting.waiting_s
        else 0.0
    )
    if seen > slow.more_s / 2:  # in collectives
        return
    whole = min(facts.ranges_by_rank, key=lambda r: len(r.path)).path
    steps = [r.more_s for r in facts.ranges_by_rank if r.path == whole and r.rank == slow.rank]
    if slow.path == whole or max(steps, default=0.0) > slow.more_s / 2:
        return
    yield Finding(
        "waiting_mpi",
        f"rank {slow.rank} takes longer in '{slow.range}' than the others",
        slow.more_s,
        f"it is {si(slow.seconds, 's')} in '{slow.range}', {si(slow.more_s, 's')} more than the "
        f"median rank, and the steps of all ranks are as long: the others pass the time "
        f"elsewhere, such as between calls of MPI_Test, which does not wait",
        actions.advise("help_rank", rank=slow.rank),
    )


def many_reductions(facts: Facts, actions: Actions) -> Iterator[Finding]:
    """Several all-reduces of MPI a batch, most of them small."""
    reduced = [g for g in facts.collectives if g.name == "MPI_Allreduce" and g.bytes]
    count = sum(g.count for g in reduced)
    if count < 1.5:
        return
    small = [g for g in reduced if g.bytes and g.bytes < 65536]
    saved = sum(g.count * g.seconds for g in small)
    yield Finding(
        "exposed_communication",
        "the gradients are reduced in several messages",
        saved,
        f"{count:.0f} all-reduces per batch, {len(small)} of them under 64 KB, which together "
        f"take {si(saved, 's')}",
        f"keep the gradients in one flat buffer: one copy and one all-reduce{actions.flag('flat')}",
    )


def slow_products(facts: Facts, actions: Actions) -> Iterator[Finding]:
    """Products against the ceilings of the machine."""
    for gemm in facts.gemms:
        if gemm.bound_s is None:
            continue
        yield Finding(
            "kernel_below_ceiling",
            f"{gemm.label} runs at {percent(gemm.bound_s / gemm.seconds)} of its ceiling",
            gemm.seconds - gemm.bound_s,
            f"{si(gemm.flops, 'FLOP')} in {si(gemm.seconds, 's')} = "
            f"{si(gemm.flops / gemm.seconds, 'FLOP/s')}; the machine's ceilings allow "
            f"{si(gemm.bound_s, 's')}",
            actions.multiply(),
        )


def share_of_batch(facts: Facts, seconds: float) -> str:
    """Say so many seconds as a share of the batch."""
    batch = facts.batch.value
    return f"{si(seconds, 's')} of {si(batch, 's')}, {percent(seconds / batch)}"


def over_nvlink(facts: Facts, size: float) -> float | None:
    """Seconds of a ring between the GPUs; half the data sheet's rate is one direction."""
    link = facts.machine.peers_bytes_per_s if facts.machine else None
    return None if link is None else 2 * (facts.ranks - 1) / facts.ranks * size / (link / 2)

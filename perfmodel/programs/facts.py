"""Facts: what is known of a run's steps, from which findings are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from perfmodel.machines.machine import Machine
    from perfmodel.models.serving import FloorBy
    from perfmodel.timing.collectives import CollectiveGroup, Waiting
    from perfmodel.timing.copies import CopyGroup
    from perfmodel.timing.engine_steps import Stage
    from perfmodel.timing.late_ranks import LateRank
    from perfmodel.timing.point_to_point import PointToPoint, RangeOfRank
    from perfmodel.timing.samples import Estimate
    from perfmodel.timing.step_facts import StepFacts


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
        Limit of its least time: 'compute', 'memory', 'latency' of so many kernels, or 'link' of
        copies between GPU and host; of calls of several sizes what bounds most of their time.
    of_ceiling : float or None
        Least time that the unit's peak and the memory's bandwidth allow, over `gpu_s`. More than
        1 where data came from the cache.
    of_tensor_ceiling : float or None
        The same by the peak of the tensor cores, of a product that runs without them.
    cached_bytes : float or None
        DRAM bytes if its inputs are still in L2, as far as they fit there.
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
        """Return the least time by peak and bandwidth; 0 where they are not known."""
        return (self.of_ceiling or 0.0) * self.gpu_s

    @property
    def tensor_s(self) -> float:
        """Return the least time with tensor cores of a product without them; 0 for all else."""
        return (self.of_tensor_ceiling or 0.0) * self.gpu_s


@dataclass(frozen=True, slots=True)
class DeviceReduce:
    """NCCL's all-reduce of `bytes` a rank and batch: its kernels' time, less waiting if known."""

    seconds: float
    bytes: float


@dataclass(frozen=True, slots=True)
class HostReduction:
    """A reduction of `bytes` per rank and step through the host: its time with the copies.

    `by_library` says that the MPI library copies, not the program.
    """

    seconds: float
    bytes: float
    by_library: bool


@dataclass(frozen=True, slots=True)
class Spent:
    """Host time of a range per step."""

    label: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ServingRow:
    """Engine steps of one stage and number of sequences: medians over steps and GPUs.

    Attributes
    ----------
    engine, phase : str
        The engine, and 'prefill', 'decode' or 'mixed'.
    model : str
        The model that the operators' sizes are of; '' if none is recognized.
    shards : int
        GPUs that share each layer.
    steps : int
        Of the run, that any rank computes so.
    sequences, generations : float
        All, and those that get an output token after the prompt's.
    context_tokens, generation_tokens, cached_tokens : float
        Cached tokens are those whose keys and values are read; at least so many without `exact`.
    exact : bool
        Whether the engine names all of them.
    step_s, busy_s : float
        From a step's first operation to the next step's, and the time in which the GPU works.
    weight_bytes, cache_bytes : float or None
        Weights and KV cache, moved once.
    memory_s, compute_s, exchange_s : float or None
        Least times by bandwidth, peaks and link.
    floor_s : float or None
        The largest of them: these may overlap.
    floor_by : str or None
    compute_bound_sequences : float or None
        Sequences from which decoding is bound by computing, with as many tokens each; None where
        it is not a decode, where its cached tokens are not known, or where the KV cache of each
        takes longer than its computing.
    gap_s : float or None
        From the last operation of a step to the first of the next; None without a next one.
    exchanges, exchange_kernels_s : float
        Kernels of a step that exchange, and their time.
    experts_s : tuple of float
        Time in experts of each GPU that has some, by rank.
    experts_late_s : float
        By how much the GPU with most time in experts exceeds the mean, in a step.
    read_bytes, read_s : float
        The largest copy to the host; its time, and that until the GPU has work again.
    wide_bytes : float
        Of `weight_bytes` matrices of 16 bits other than the head, where the model's configuration
        counts them; 0 where operators do.
    guesses : bool
        Whether the steps check guessed tokens whose number is not known.
    replayed, hidden : float
        Share of the kernels' time that CUDA graphs replay, and of that whose operators no
        recording of the capture names.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {
        name: name
        for name in (
            "host_s", "tokens_per_s", "ttft_s", "ttft_gpu_s", "tpot_s", "tpot_gpu_s", "tpot_floor_s"
        )
    }  # fmt: skip

    engine: str
    phase: Stage
    model: str
    shards: int
    steps: int
    sequences: float
    generations: float
    context_tokens: float
    generation_tokens: float
    cached_tokens: float
    exact: bool
    step_s: float
    busy_s: float
    weight_bytes: float | None
    cache_bytes: float | None
    memory_s: float | None
    compute_s: float | None
    exchange_s: float | None
    floor_s: float | None
    floor_by: FloorBy | None
    compute_bound_sequences: float | None
    gap_s: float | None
    exchanges: float
    exchange_kernels_s: float
    experts_s: tuple[float, ...]
    experts_late_s: float
    read_bytes: float
    read_s: float
    wide_bytes: float
    guesses: bool
    replayed: float
    hidden: float

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token of a prompt that this step finishes, without its queueing.

        The step's; None of a decode. Of a prompt in several chunks it is the last chunk's alone.
        """
        return self.step_s if self.context_tokens else None

    @property
    def ttft_gpu_s(self) -> float | None:
        """What the GPU's work alone allows of `ttft_s`."""
        return self.busy_s if self.context_tokens else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token of a sequence: the step's over the tokens that it gets in it.

        None of a prefill, and where the tokens are not known. With speculative decoding it is the
        least: if all tokens are accepted.
        """
        return self._each(self.step_s)

    @property
    def tpot_gpu_s(self) -> float | None:
        """What the GPU's work alone allows of `tpot_s`."""
        return self._each(self.busy_s)

    @property
    def tpot_floor_s(self) -> float | None:
        """What bandwidth and peaks allow of `tpot_s`."""
        return None if self.floor_s is None else self._each(self.floor_s)

    def _each(self, seconds: float) -> float | None:
        if not self.generation_tokens or self.guesses:
            return None
        return seconds * self.generations / self.generation_tokens

    @property
    def host_s(self) -> float:
        """Time of the step beside the GPU's work: waiting for the host, gaps between steps."""
        return max(self.step_s - self.busy_s, 0.0)

    @property
    def of_floor(self) -> float | None:
        """Share of the step that the floor is."""
        return self.floor_s / self.step_s if self.floor_s and self.step_s else None

    @property
    def tokens_per_s(self) -> float:
        """Tokens that are computed in a second."""
        return (self.context_tokens + self.generation_tokens) / self.step_s if self.step_s else 0.0


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts behind the findings; all times are medians per rank and step.

    Attributes
    ----------
    batch : Estimate
        The step, without the profiler where that makes it longer; `mean_s` is the mean one,
        and `recorded_s` the step as recorded.
    busy_s : float or None
        Time in which the GPU works; a lower bound if operations are `lacking`.
    gpu_ops, synchronizations, synchronize_s : float
        Operations, blocking calls and the time inside these.
    synchronizes_in : str
        The blocking call with most of this time; '' without any.
    host_s : mapping of str to float
        Host time by range.
    copies : sequence of CopyGroup
    collectives : sequence of CollectiveGroup
        Of MPI and of NCCL.
    waiting, gpu_waiting : Waiting or None
        In MPI's collectives, on the host, and in NCCL's kernels, which count as busy.
    gemms : sequence of GemmTime
        Of a workload's formulas.
    shared_gpus : mapping of int to tuple of int
        Ranks by the GPU that they share.
    machine : Machine or None
    ranks : int
    reduced : DeviceReduce or None
    config : mapping
        The run's configuration mark: what it already does is not advised.
    lacking : int
        GPU operations of the whole run that no step has.
    steps : StepFacts or None
        Where the GPU's operations time the steps: their replay, idle causes, kernels, late ranks.
    operators : tuple of OperatorRow
        Where their least time is known.
    sizes_recorded : bool
        Whether the same recording names the operators' sizes, which slows its host down.
    messages : PointToPoint or None
        Of MPI.
    ranges_by_rank : tuple of RangeOfRank
    compute_s : mapping of int to float
        What each rank computes.
    late : tuple of LateRank
        Who makes others wait, in MPI or in kernels, the latest first.
    numbers : tuple of int
        The ranks that `waiting` is of.
    host_ranks : mapping of int to (float, float)
        Time of each rank outside and inside MPI, of a program without a GPU.
    serving : tuple of ServingRow
        The median step of each phase of an engine that serves a language model.
    serving_shares : mapping of str to float
        Share of each phase in the time of all steps.
    lines : mapping of (str, str) to str
        Source line of an operator's largest kernel, by the operator's name and phase.
    polled_s, copying_s, host_reduction, input_copy
        Known where `Program.facts` knows the program's ranges: host time that completes reductions
        that began before, that is spent in copies, by direction, a reduction through the host, and
        the copy of the inputs.
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
    recorded_s: float | None = None
    serving: tuple[ServingRow, ...] = ()
    serving_shares: Mapping[str, float] = field(default_factory=dict)
    lines: Mapping[tuple[str, str], str] = field(default_factory=dict)
    host_reduction: HostReduction | None = None
    input_copy: Spent | None = None
    synchronizes_in: str = ""

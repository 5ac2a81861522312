"""Programs of PyTorch, and what to call in them against each loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from perfmodel.programs.actions import Actions
from perfmodel.programs.identify import Identity
from perfmodel.programs.program import Options, Program, RecordedOperators
from perfmodel.programs.pytorch.ranges import SIZES, is_pytorch, own_ranges
from perfmodel.readers.trace import TORCH_PROFILER, Trace
from perfmodel.timing.operator_times import OperatorTimes
from perfmodel.timing.recorder import Pushes
from perfmodel.timing.run import Run
from perfmodel.timing.step_report import StepReport, report_steps

if TYPE_CHECKING:
    from perfmodel.models.recorded import RecordedCall, RecordedStep
    from perfmodel.models.roles import Roles
    from perfmodel.timing.launched import Parts
    from perfmodel.timing.spans import Steps

ACTIONS: Final = Actions(texts={
    "launch_less":
        "launch less: torch.compile(model, mode='reduce-overhead') captures CUDA graphs; or "
        "torch.cuda.make_graphed_callables, or a larger batch per GPU",
    "wait_less":
        "call .item(), .cpu(), .tolist() and print on tensors of the GPU less often: sum the "
        "values up in a tensor and read it every n steps; compare and clip on the GPU",
    "allocate_less":
        "drop torch.cuda.empty_cache() from the step; where memory is short or fragmented, set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "wait_for_others":
        "find out which thread or process the host waits for{where}: it is in {call}; for workers "
        "of a DataLoader, with more of them (num_workers) or a larger prefetch_factor",
    "step_less":
        "fused=True (or foreach=True) in torch.optim, in place of Python's work per parameter"
        "{where}; torch.compile of the optimizer's step",
    "load_ahead":
        "DataLoader(num_workers=8, pin_memory=True, persistent_workers=True, prefetch_factor=4), "
        "so that the host's work{where} is done ahead by other processes; with more of them where "
        "they are too slow",
    "write_less":
        "do the host's work{where} every n steps, or write it from a copy in another thread "
        "(torch.distributed.checkpoint.async_save)",
    "pin out": "copy into a tensor with pin_memory=True by .copy_(source, non_blocking=True)",
    "pin in":
        "DataLoader(pin_memory=True) or tensor.pin_memory() once, then "
        ".to(device, non_blocking=True), of the next batch while this one computes",
    "join_messages":
        "reduce gradients in buckets during the backward: "
        "DistributedDataParallel(bucket_cap_mb=25, gradient_as_bucket_view=True) in place "
        "of an all-reduce per parameter; gradient accumulation under no_sync()",
    "overlap_messages":
        "more overlap with the backward: a smaller bucket_cap_mb of DistributedDataParallel; "
        "gradient accumulation under no_sync()",
    "hide_messages":
        "start it earlier, beside computing (async_op=True, and wait() where the result is "
        "needed), join small messages, and send less often what not every step needs",
    "gather_ahead":
        "FSDP: set_modules_to_forward_prefetch and set_modules_to_backward_prefetch, "
        "reshard_after_forward=False where memory allows, fully_shard over several layers at once, "
        "or a larger batch per GPU",
    "share_less":
        "tensor parallelism over fewer ranks and data parallelism over the others; "
        "SequenceParallel; torch._inductor.config._micro_pipeline_tp with torch.compile, which "
        "sums parts of a product while others compute",
    "help_rank":
        "give rank {rank} as much work as the others: equal batches of equal lengths, such as by "
        "DistributedSampler, and as many layers or experts",
    "help_stage":
        "move layers of the pipeline, or experts, from rank {rank} to other ranks, so that all "
        "compute as long between their messages",
    "fill_stages":
        "of a pipeline: more micro-batches per step, and a schedule with a smaller bubble "
        "(torch.distributed.pipelining: n_microbatches, Schedule1F1B, ScheduleInterleaved1F1B); "
        "torch.distributed.isend and irecv in place of send and recv",
    "lower_precision":
        "torch.set_float32_matmul_precision('high') for TF32, or "
        "torch.autocast('cuda', dtype=torch.bfloat16)",
    "move_less":
        "torch.compile(model), which fuses element-wise operators, normalization and casts; "
        "activations in bfloat16; channels_last for convolutions",
    "raise_rate":
        "a larger batch; widths, heads and vocabularies that are multiples of 64; "
        "torch.compile(model, mode='max-autotune'); torch.backends.cudnn.benchmark = True "
        "for convolutions",
    "fuse_attention": "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=...)",
    "fuse_small":
        "of an optimizer: fused=True (or foreach=True) in torch.optim; of other element-wise "
        "operations: torch.compile, in inference with mode='reduce-overhead', which captures "
        "CUDA graphs",
})  # fmt: skip
"""Calls of PyTorch against each loss."""


_BY_NSYS: Final = "nsys profile --pytorch=autograd-shapes-nvtx"
_HOW: Final = {TORCH_PROFILER: "record_shapes=True of torch.profiler"}
"""Ways to record the sizes of operators, by recorder."""


class PyTorchOperators(RecordedOperators):
    """See `perfmodel.programs.program.RecordedOperators`."""

    def recorded_step(self, trace: Trace, options: Options) -> RecordedStep:
        """Put the steps of a report down call by call."""
        from perfmodel.programs.pytorch.recorded_step import recorded_step

        shown, found = PYTORCH_PROGRAM.steps(trace, options)
        return recorded_step(trace, report_steps(shown, found, Pushes.of(trace)))

    def roles(self, step: RecordedStep, named: Mapping[str, int]) -> Roles:
        """Infer what the numbers of a step's sizes are."""
        from perfmodel.programs.pytorch.roles import roles_of

        return roles_of(step, named)

    def call_at(self, call: RecordedCall, sizes: Sequence[tuple[int, ...]]) -> RecordedCall:
        """Evaluate the formula of an operator."""
        from perfmodel.programs.pytorch.recorded_step import call_at

        return call_at(call, sizes)


class PyTorchProgram(Program):
    """See `perfmodel.programs.program.Program`."""

    name: str = "pytorch"
    parses_operators: bool = True
    recorded_operators: RecordedOperators | None = PyTorchOperators()

    def recognizes(self, trace: Trace, options: Options) -> bool:
        """Whether operators' ranges or kernels are PyTorch's."""
        return is_pytorch(trace)

    def steps(
        self, trace: Trace, options: Options, parts: Parts | None = None
    ) -> tuple[Trace, Steps]:
        """Return the trace without the ranges of operators and libraries, and its steps."""
        return super().steps(own_ranges(trace), options, parts)

    def has_operators(self, trace: Trace, options: Options) -> bool:
        """Whether ranges, or another recording, name the sizes of operators."""
        return options.shapes is not None or any(SIZES in label for label in trace.range_labels)

    def actions(self, identity: Identity) -> Actions:
        """Return what to call in PyTorch."""
        return ACTIONS

    def operators(self, trace: Trace, steps: StepReport, options: Options) -> OperatorTimes | None:
        """Count ATen's operators, where their ranges name sizes, or those of another recording."""
        # most reports are of other programs: the formulas are imported for those that need them
        found = self._operators(trace, steps, options)
        if found is None or options.counters is None:
            return found
        from perfmodel.programs.pytorch.counters import counted_operators
        from perfmodel.readers.ncu import read_counters

        launches = read_counters([options.counters]).launches
        return replace(found, counted=counted_operators(launches, options.dtype))

    def operations(
        self, trace: Trace, steps: StepReport, options: Options
    ) -> Mapping[int, tuple[tuple[str, str | int], ...]]:
        """Name the operator that launched each, with its sizes, FLOPs and bytes."""
        from perfmodel.programs.pytorch.operator_times import find

        found = find(trace, steps, options.dtype, causal=options.causal)
        if found is None:
            return {}
        calls, owner = found.calls.calls, found.calls.owner.tolist()
        pairs = zip(steps.times.ops.op.tolist(), owner, strict=True)
        return {op: calls[i].described for op, i in pairs if i >= 0}

    def _operators(self, trace: Trace, steps: StepReport, options: Options) -> OperatorTimes | None:
        from perfmodel.programs.pytorch.operator_times import operator_times
        from perfmodel.programs.pytorch.replays import captures, recordings, replays

        others = () if options.shapes is None else recordings(options.shapes)
        if not others or (replays(trace, steps) and any(captures(one) for one in others)):
            return operator_times(
                trace, steps, options.dtype, causal=options.causal, sources=others
            )
        other = others[0]
        from perfmodel.programs.pytorch.two_recordings import operator_times_from

        shown, found = self.steps(other, options)
        measured = report_steps(shown, found)
        return operator_times_from(
            trace, steps, other, measured, options.dtype, causal=options.causal
        )

    def identify(self, run: Run, given: Mapping[str, int]) -> tuple[Identity, list[str]]:
        """Say how to record what FLOPs are counted from."""
        known, said = super().identify(run, given)
        if run.operators:
            return known, said
        return known, [
            *said,
            f"{run.label}: FLOPs are unknown: the operators' sizes were not recorded; record them "
            f"with {_HOW.get(run.traces[0].product_version, _BY_NSYS)}, or give a known network by "
            f"--workload layers:NAME (docs/pytorch.md)",
        ]


PYTORCH_PROGRAM: Final = PyTorchProgram()

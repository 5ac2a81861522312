"""Programs that serve language models in PyTorch, and what to change in them against each loss."""

from __future__ import annotations

from typing import Final

from perfmodel.programs.actions import Actions
from perfmodel.programs.identify import Identity
from perfmodel.programs.program import Options
from perfmodel.programs.pytorch.program import ACTIONS, PyTorchProgram
from perfmodel.programs.serving.steps import is_serving
from perfmodel.readers.trace import Trace
from perfmodel.timing.operator_times import OperatorTimes
from perfmodel.timing.step_report import StepReport

_AHEAD: Final = (
    "let the host prepare the next step while the GPU computes: vLLM --async-scheduling; SGLang "
    "without --disable-overlap-schedule"
)
_ACTIONS: Final = Actions(texts={
    **ACTIONS.texts,
    "launch_less":
        "replay the step as a CUDA graph: vLLM without --enforce-eager, with cudagraph_mode FULL "
        "or FULL_AND_PIECEWISE; SGLang without --disable-cuda-graph, with --cuda-graph-max-bs of "
        "the batch",
    "compute_less": _AHEAD,
    "prepare_ahead": _AHEAD,
    "raise_rate":
        "kernels tuned for this batch and GPU: another --attention-backend; of experts vLLM's "
        "benchmark_moe.py --tune, SGLang --moe-runner-backend; or a larger batch: vLLM "
        "--max-num-seqs, --max-num-batched-tokens; SGLang --max-running-requests, "
        "--chunked-prefill-size",
    "move_less":
        "fuse normalization, activation and quantization with their neighbours: vLLM without "
        "--enforce-eager; SGLang --enable-torch-compile",
    "hide_messages":
        "compute one half of the batch while the other exchanges: vLLM --enable-dbo, SGLang "
        "--enable-two-batch-overlap; or let fewer GPUs share a layer",
    "balance_experts":
        "balance the experts over the GPUs: vLLM --enable-eplb; SGLang --enable-eplb with "
        "--ep-num-redundant-experts; or share each expert's matrices (no expert parallelism)",
    "exchange_faster":
        "exchange small tensors in one shot, fused with the RMS norm: vLLM without "
        "--disable-custom-all-reduce, VLLM_ALLREDUCE_USE_SYMM_MEM=1, fuse_allreduce_rms of "
        "pass_config; SGLang --enable-torch-symm-mem, --enable-flashinfer-allreduce-fusion; or "
        "fewer GPUs a layer and more replicas",
    "sample_on_gpu":
        "sample on the GPU: no logits processors in Python, and no log probabilities of the whole "
        "vocabulary; SGLang --sampling-backend flashinfer",
    "quantize_weights":
        "serve a checkpoint with weights of 8 or 4 bits (FP8, AWQ, GPTQ, MXFP4, NVFP4), or set "
        "--quantization fp8, and measure the accuracy",
})  # fmt: skip
"""What to set in an engine against each loss; of others what PyTorch offers."""


class ServingProgram(PyTorchProgram):
    """See `perfmodel.programs.program.Program`."""

    name: str = "serving"

    def recognizes(self, trace: Trace, options: Options) -> bool:
        """Whether a range is a step of an engine."""
        return is_serving(trace)

    def has_operators(self, trace: Trace, options: Options) -> bool:
        """Whether steps are counted: always, by their operators or by their names."""
        return True

    def actions(self, identity: Identity) -> Actions:
        """Return what to set in the engine."""
        return _ACTIONS

    def _operators(self, trace: Trace, steps: StepReport, options: Options) -> OperatorTimes | None:
        from perfmodel.programs.pytorch.replays import recordings, replays
        from perfmodel.programs.serving.times import serving_times

        if options.shapes is None:
            return serving_times(trace, steps, options, (trace,))
        if not replays(trace, steps):
            return super()._operators(trace, steps, options)
        return serving_times(trace, steps, options, recordings(options.shapes))


SERVING_PROGRAM: Final = ServingProgram()

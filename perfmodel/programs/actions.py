"""Actions: what to do against each loss, in the words of a program's framework."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Final

_PEERS: Final = 8
"""So many GPUs of one host reach each other's memory directly."""

ADVICE: Final[Mapping[str, str]] = {
    "offload_less": "keep more of it on the GPU, or in fewer bits; copy it from pinned memory on a "
    "stream of its own, a layer before it is needed",
    "wait_less": "read results later or less often, so that the host does not wait in {call}",
    "allocate_less": "allocate GPU memory once and reuse it",
    "compute_less": "do the host's work{where} beside the GPU's: in another thread, a step ahead",
    "prepare_ahead": "prepare the next step on the host while the GPU computes this one",
    "sleep_less": "remove the sleep{where}: the thread is in {call}",
    "wait_for_others": "find out which thread or process the host waits for{where}: it is in "
    "{call}",
    "wake_up": "find out what the thread waits for{where}: nsys profile --trace=cuda,nvtx,osrt "
    "names the call",
    "record_host": "record what the thread does{where}: nsys profile --trace=cuda,nvtx,osrt "
    "--cpuctxsw=process-tree --python-sampling=true names the call that it waits in, or its line",
    "record_stacks": "record what the thread does{where}: with_stack=True of torch.profiler names "
    "its line",
    "step_less": "do the host's work{where} beside the GPU's, or for all parameters at once",
    "load_ahead": "load what the next step needs{where} in another thread, a step ahead",
    "write_less": "do the host's work{where} every n steps, or from a copy in another thread",
    "join_messages": "join the messages to a few large ones, and start it while computing goes on",
    "overlap_messages": "start it while computing goes on",
    "hide_messages": "start it while computing goes on, and join small messages",
    "gather_ahead": "gather the parameters of the next layers while this one computes",
    "share_less": "let fewer ranks share a layer, or sum its parts while other parts compute",
    "help_rank": "give rank {rank} as much to do{where} as the other ranks, or let them do a part "
    "of it",
    "record_late": "name parts of the step by NVTX ranges and record again: nothing that was "
    "recorded says what rank {rank} does longer",
    "compare_clocks": "compare the GPUs while the program runs: nvidia-smi "
    "--query-gpu=clocks.sm,power.draw,utilization.gpu; a lower clock of rank {rank}'s GPU is heat "
    "or its power limit, an equal one another process on it",
    "bind_rank": "compare the load of the hosts' cores while the program runs (top -H), and bind "
    "rank {rank} to free cores next to its GPU (numactl --cpunodebind)",
    "help_stage": "give the ranks as long to compute between their messages",
    "fill_stages": "send smaller messages earlier, so that the ranks compute at the same time",
    "lower_precision": "use tensor cores: TF32, or 16-bit types",
    "move_less": "fuse element-wise kernels with what makes or takes their data; use 16-bit types",
    "raise_rate": "larger matrices: a larger batch; sizes that are multiples of 64",
    "quantize_weights": "quantize the weights of these layers to 8 bits, or to 4 bits where the "
    "accuracy allows it, and measure the accuracy",
    "balance_experts": "place experts on the GPUs by their load, and copy those with most tokens",
    "exchange_faster": "exchange with one kernel that writes to the other GPUs' memory, fused with "
    "the normalization that follows; or let fewer GPUs share a layer",
    "sample_on_gpu": "choose the next tokens on the GPU, and copy their ids alone",
    "fuse_attention": "use a fused attention kernel, which keeps the scores on the chip",
    "fuse_small": "fuse the kernels{where}, or capture them in a CUDA graph",
    "prefetch_pages": "cudaMemPrefetchAsync before the kernels that use them; or cudaMalloc in "
    "place of cudaMallocManaged, with copies from pinned memory",
    "share_pages": "cudaMemPrefetchAsync before the kernels that use them; cudaMemAdvise "
    "(SetReadMostly, SetAccessedBy) for what both sides read; or cudaMalloc in place of "
    "cudaMallocManaged, with copies from pinned memory",
    "more_blocks": "launch more blocks: split the work over elements or rows, and sum the parts up "
    "with atomics or in a second kernel",
}
"""Advice against a loss of any program."""


@dataclass(frozen=True, slots=True)
class Actions:
    """Advice: everything by default, less the changes that a program has made.

    Attributes
    ----------
    known : bool
        Whether the program said how it runs.
    done : set of str
        What it does already, of 'fused' (small kernels), 'graph' (a CUDA graph a step), 'prefetch'
        (inputs), 'overlapped' (nothing is left to overlap), 'own kernels', 'tf32', 'tf32x3', 'peer'
        (no kernel could sum over the GPUs' memory), 'chunks' (messages divided on purpose).
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
        return f" ({self.flags[what]})" if self.flags.get(what) else ""

    def launch_less(self, *, synchronizes: bool) -> str:
        """Return advice against waiting for the host."""
        if "launch_less" in self.texts:
            return self.texts["launch_less"]
        ways = _open(
            ("fused" not in self.done, f"fuse elementwise kernels{self.flag('fuse')}"),
            (synchronizes or not self.known, "drop synchronizations between ranges"),
            ("graph" not in self.done, f"capture the step in a CUDA graph{self.flag('graph')}"),
        )
        if not ways:
            return "give the GPU more work per launch: a larger batch, or fewer ranks"
        return f"launch less: {', '.join(ways)}"

    def pin(self, direction: str) -> str:
        """Return advice on page-locked host buffers."""
        what = "pin out" if direction == "Device-to-Host" else "pin in"
        flags = f" (CuPy: cupyx.empty_pinned; {self.flags[what]})" if self.flags.get(what) else ""
        return self.texts.get(what, f"allocate the host buffers with cudaMallocHost{flags}")

    def keep_inputs(self) -> str:
        """Return advice against waiting for inputs."""
        ahead = (
            "prefetch" not in self.done,
            f"copy the next batch on a stream of its own while this one computes"
            f"{self.flag('prefetch')}",
        )
        kept = f"keep the training set on the GPU{self.flag('keep')}"
        return ", or ".join(_open((True, kept), ahead))

    def balance(self) -> str:
        """Return advice against waiting between ranks."""
        overlap = f"overlap it with computing{self.flag('overlapping')}"
        balanced = "balance the ranks' work before the collective"
        return ", or ".join(_open((True, balanced), ("overlapped" not in self.done, overlap)))

    def multiply(self) -> str:
        """Return advice for slow products."""
        ways = _open(
            ("own kernels" not in self.done, f"a kernel tiled for this shape{self.flag('tile')}"),
            (
                not self.done & {"tf32", "tf32x3"},
                f"tensor cores{self.flag('tf32') or ' (TF32)'}",
            ),
            (
                "tf32x3" in self.done,
                f"one product of TF32 numbers for three, less exact{self.flag('one')}",
            ),
            ("fused" not in self.done, f"fusing it with its neighbours{self.flag('fuse')}"),
        )
        if not ways:
            return "larger matrices: a larger batch, or fewer ranks"
        return ", ".join(ways[:-1]) + (", or " if len(ways) > 1 else "") + ways[-1]

    def reduce_on_gpus(self, ranks: int) -> str:
        """Return advice for gradients that pass through the host."""
        ways = _open(
            (True, f"NCCL{self.flag('nccl')}"),
            (True, f"a ring of MPI_Sendrecv on GPU memory{self.flag('ring')}"),
            (self._peers(ranks), f"one kernel over the GPUs' memory{self.flag('peer')}"),
        )
        return (
            f"reduce on the GPUs: {', '.join(ways[:-1])} or {ways[-1]}; CUDA-aware MPI's "
            f"MPI_Allreduce is no improvement where the library copies to the host, as Open MPI's "
            f"does"
        )

    def reduce_faster(self, ranks: int) -> str:
        """Return advice for an all-reduce over NVLink that is mostly latency."""
        ways = _open(
            (
                self._peers(ranks),
                f"one kernel that reads the other GPUs' gradients and takes the step"
                f"{self.flag('peer')}",
            ),
            (
                "overlapped" not in self.done,
                f"sum what is computed first beside the rest{self.flag('overlapping')}",
            ),
        )
        return ", or ".join(ways) or "fewer ranks, which have more to compute for every message"

    def _peers(self, ranks: int) -> bool:
        """Whether a kernel could sum over the memory of all ranks' GPUs, and none does."""
        return "peer" not in self.done and ranks <= _PEERS


def _open(*ways: tuple[bool, str]) -> list[str]:
    """Return the ways that are still open to a program."""
    return [way for is_open, way in ways if is_open]

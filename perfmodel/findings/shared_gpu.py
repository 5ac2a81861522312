"""GPUs that several ranks, or another process, use in turns."""

from collections.abc import Mapping

from perfmodel.findings import WITHOUT, Actions, Facts, Finding, Findings, Kind, StepFacts, si

KIND = Kind(
    key="shared_gpu",
    change="no other process uses the GPU",
    remedy=WITHOUT,
    of_ranks=True,
    several=True,
    precedence=9,
    grounds={
        "formula": "what interrupted kernels take longer than the same kernels of other steps",
        "inputs": ["summary.step_s"],
        "table": "operations",
        "where": {"kind": "kernel", "counted": True},
        "by": "seconds",
    },
)

_SLICE_S, _NEAR = 2.5e-3, 0.1
"""Time slice of a process on an H200 (docs/findings.md); a GPU of another kind has another."""


@KIND.rule(needs=("shared_gpus",))
def shared_gpus(facts: Facts, actions: Actions, shared: Mapping[int, tuple[int, ...]]) -> Findings:
    """Ranks that run on one device."""
    for gpu, ranks in shared.items():
        who = " and ".join(str(r) for r in ranks)
        yield Finding(
            KIND.key,
            f"ranks {who} share GPU {gpu}",
            None,
            f"the operations of ranks {who} ran on one device, so their GPU times include each "
            f"other",
            "give every rank a GPU of its own (CUDA_VISIBLE_DEVICES by local rank)",
            subject=f"GPU {gpu}",
        )


@KIND.rule(needs=("steps",))
def interrupted(facts: Facts, actions: Actions, steps: StepFacts) -> Findings:
    """GPUs on which a process that was not recorded takes turns."""
    known = {rank for ranks in facts.shared_gpus.values() for rank in ranks}
    for one in steps.interrupted:
        if one.rank not in known:
            uses = "uses" if abs(one.each_s - _SLICE_S) <= _NEAR * _SLICE_S else "may use"
            yield Finding(
                KIND.key,
                f"another process {uses} the GPU of rank {one.rank}",
                one.seconds,
                f"{one.count:.1f} kernels per step take {si(one.each_s, 's')} longer than the same "
                f"kernels of other steps, whatever they do: a time slice of another process, "
                f"which has its turn meanwhile",
                "find the other process (nvidia-smi), and give each program a GPU of its own "
                "(CUDA_VISIBLE_DEVICES)",
                rank=one.rank,
            )

"""Ranges that launch many short kernels."""

from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, StepFacts, si
from perfmodel.findings._idle import slowed
from perfmodel.timing.step_facts import SMALL_KERNELS

KIND = Kind(
    key="many_small_kernels",
    change="small kernels of a range are fused",
    remedy="Fuse them:",
    part="idle",
    several=True,
    replays=SMALL_KERNELS,
    grounds={
        "formula": "step_s less the replay with one launch, and one pass over the data for each "
        "different kernel",
        "inputs": ["summary.step_s", "kernels.categories[].count"],
        "table": "operations",
        "where": {"kind": "kernel", "counted": True},
        "by": "seconds",
        "least": True,
    },
)


@KIND.rule(needs=("steps",))
def small_kernels(facts: Facts, actions: Actions, steps: StepFacts) -> Findings:
    """Ranges that launch many short kernels."""
    for small in steps.small:
        of, within = (f" {word} '{small.range}'" if small.range else "" for word in ("of", "in"))
        yield Finding(
            KIND.key,
            f"the host launches {small.count:.0f} small kernels{within}",
            small.saving_s,
            f"kernels under {si(small.under_s, 's', 2)}, {si(small.gpu_s, 's')} of GPU time per "
            f"step, which the host takes {si(small.host_s, 's')} to launch{slowed(facts)}",
            actions.advise("fuse_small", where=of),
            subject=small.range,
            change=small.change,
        )

"""Allocations of GPU memory inside steps, each of which waits for the GPU."""

from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, StepFacts, si
from perfmodel.findings._idle import (
    blocking_call,
    find_long_steps,
    longest_gap,
    recurs,
    saving_without,
)

KIND = Kind(
    key="allocation",
    change="no GPU memory is allocated or freed",
    remedy="Reuse the memory:",
    part="idle",
    forbids_graph=True,
    precedence=3,
    grounds={
        "formula": "step_s less free_s, the replay without allocating calls; at most all idle time",
        "inputs": [
            "summary.step_s",
            "critical_path[kind=allocation].free_s",
            "idle[cause=allocation].seconds",
        ],
        "table": "gaps",
        "where": {"cause": "allocation", "counted": True},
        "by": "seconds",
    },
)


find_long_steps(KIND, lambda actions, *_: actions.advise("allocate_less"))


@KIND.rule(needs=("steps",))
def allocates(facts: Facts, actions: Actions, steps: StepFacts) -> Findings:
    """Memory that every step allocates and frees; one step does not say what the next does."""
    if not recurs(facts):
        return
    call = blocking_call(KIND.key, steps)
    yield Finding(
        KIND.key,
        "the host allocates and frees GPU memory in every step",
        saving_without(KIND.key, steps, steps.idle_s()),
        f"the GPU idles {si(steps.idle_s(KIND.key), 's')} per step in "
        f"{call or 'cudaMalloc'}{longest_gap(KIND.key, steps)}",
        actions.advise("allocate_less"),
    )

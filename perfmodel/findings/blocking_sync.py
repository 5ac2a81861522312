"""Calls in which the host waits for the GPU, so that nothing is launched ahead."""

from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, StepFacts, si
from perfmodel.findings._idle import (
    blocking_call,
    find_long_steps,
    longest_gap,
    recurs,
    saving_without,
)

KIND = Kind(
    key="blocking_sync",
    change="the host never waits for the GPU",
    remedy="Wait for the GPU less often:",
    part="idle",
    forbids_graph=True,
    precedence=1,
    grounds={
        "formula": "step_s less free_s, the replay without calls that wait for the GPU and copies "
        "to the host; at most all idle time",
        "inputs": [
            "summary.step_s",
            "critical_path[kind=blocking_sync].free_s",
            "idle[cause=blocking_sync].seconds",
        ],
        "table": "gaps",
        "where": {"cause": "blocking_sync", "counted": True},
        "by": "seconds",
    },
)


find_long_steps(KIND, lambda actions, _steps, _where, call: _advice(call, actions))


@KIND.rule(needs=("steps",))
def waits_for_the_gpu(facts: Facts, actions: Actions, steps: StepFacts) -> Findings:
    """Blocking calls and copies to the host, after which the GPU has nothing to do."""
    copies = [g for g in facts.copies if g.direction == "Device-to-Host"]
    count = max(round(facts.synchronizations), round(sum(g.count for g in copies)))
    often = (  # a call waits for each copy
        f"{count} times per step" if count > 1 else "in every step" if recurs(facts) else "once"
    )
    yield Finding(
        KIND.key,
        f"the host waits for the GPU {often}",
        saving_without(KIND.key, steps, steps.idle_s()),
        f"{waiting_calls(facts)} per step; the GPU idles {si(steps.idle_s(KIND.key), 's')} right "
        f"after them{longest_gap(KIND.key, steps)}",
        _advice(blocking_call(KIND.key, steps), actions),
    )


def _advice(call: str, actions: Actions) -> str:
    """Return what to do against the waiting in a call."""
    return actions.advise("wait_less", call=call or "a blocking call")


def waiting_calls(facts: Facts) -> str:
    """Count what waits for the GPU: blocking calls, and copies to the host."""
    copies = [g for g in facts.copies if g.direction == "Device-to-Host"]
    count, seconds = sum(g.count for g in copies), sum(g.seconds for g in copies)
    parts = []
    if round(facts.synchronizations) or not round(count):
        call, plural = facts.synchronizes_in, "s" * (round(facts.synchronizations) != 1)
        named = f", {call}" if call else ""
        parts.append(
            f"{facts.synchronizations:.0f} blocking call{plural} "
            f"({si(facts.synchronize_s, 's')} inside them{named})"
        )
    if round(count):
        many = "1 copy" if round(count) == 1 else f"{count:.0f} copies"
        parts.append(f"{many} to the host ({si(seconds, 's')} on the GPU)")
    return " and ".join(parts)

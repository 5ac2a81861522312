"""Kernel launches that the GPU waits for, with an empty queue."""

from typing import Final

import numpy as np

from perfmodel.findings import (
    Actions,
    Facts,
    Finding,
    Findings,
    Kind,
    StepFacts,
    percent,
    share_of_step,
    si,
)
from perfmodel.findings._idle import find_long_steps, is_dispatch, slowed
from perfmodel.timing.host_timeline import CAUSES, HOST
from perfmodel.timing.step_facts import DISPATCH

KIND = Kind(
    key="launch_bound",
    change="launches cost nothing, as in one CUDA graph per step",
    remedy="Launch less, as by CUDA graphs:",
    part="idle",
    grounds={
        "formula": "step_s less free_s, the replay without launches; at most the idle time with "
        "this cause, minus what many_small_kernels explains; where the host's own work between "
        "launches is many short pauses, without these, too",
        "inputs": [
            "summary.step_s",
            "critical_path[kind=launch_bound].free_s",
            "critical_path[kind=host_compute].free_s",
            "idle[cause=launch_bound].seconds",
            "idle[cause=host_compute].seconds",
        ],
        "table": "gaps",
        "where": {"cause": "launch_bound", "counted": True},
        "by": "seconds",
    },
)

_REPLAYED: Final = 0.5
"""Above this share of the kernels' time a step is a replay of CUDA graphs."""


@KIND.rule(needs=("busy_s",), unless=("steps",))
def idle_gpu(facts: Facts, actions: Actions, busy_s: float) -> Findings:
    """Time in which neither the GPU nor a collective works: launches, synchronizations, Python."""
    mpi_s = float(np.median(facts.waiting.seconds)) if facts.waiting else 0.0
    mpi_s = max(mpi_s, facts.polled_s)
    idle_s = facts.batch.value - busy_s - mpi_s
    if idle_s <= 0:
        return
    collectives = f", collectives take {si(mpi_s, 's')}" if facts.waiting or mpi_s else ""
    calls = (
        f" and {facts.synchronizations:.0f} synchronizing calls "
        f"({si(facts.synchronize_s, 's')} inside them)"
    )
    uncounted = f"; {facts.lacking} operations of the run are in no range, and not counted"
    waits = "for the host"
    yield Finding(
        KIND.key,
        f"the GPU waits {waits}",
        idle_s,
        f"the GPU is busy {'at least ' * bool(facts.lacking)}{share_of_step(facts, busy_s)}"
        f"{collectives}; {facts.gpu_ops:.0f} GPU operation{'s' * (round(facts.gpu_ops) != 1)}"
        f"{calls * bool(facts.synchronizations)} per step{uncounted * bool(facts.lacking)}",
        "count these first, as the warning says; then " * bool(facts.lacking)
        + actions.launch_less(synchronizes=facts.synchronizations > 0),
        waits=waits,
    )


find_long_steps(KIND, lambda actions, *_: actions.launch_less(synchronizes=False))


@KIND.rule(needs=("steps",))
def launches(facts: Facts, actions: Actions, steps: StepFacts) -> Findings:
    """Time in which the queue is empty while the host launches."""
    whole = is_dispatch(steps)
    causes = (KIND.key, CAUSES[HOST]) if whole else (KIND.key,)
    idle_s, change = steps.idle_s(*causes), DISPATCH if whole else KIND.key
    by_small_s = sum(small.saving_s for small in steps.small)
    count = max(round(facts.gpu_ops), 1)
    between = ", and works between launches" if whole else ""
    shares = facts.serving_shares
    most = (one.replayed for one in facts.serving if shares[one.phase] >= _REPLAYED)
    again = max(most, default=0.0)
    graphs = again >= _REPLAYED
    replays = f"; CUDA graphs replay {percent(again)} of the kernels' time" if graphs else ""
    each = f"{count} launch{'es' * (count != 1)} per step"
    waits = f"for {'the host beside graph replays' if graphs else each}"
    yield Finding(
        KIND.key,
        f"the GPU waits {waits}",
        min(steps.saved_s(change), idle_s) - by_small_s,
        f"the GPU idles {si(idle_s, 's')} per step with an empty queue while the host launches "
        f"{count} operation{'s' * (count != 1)}, one every {si(facts.batch.value / count, 's')}"
        f"{between}{replays}{_slow_launches(steps)}{slowed(facts)}",
        actions.advise("prepare_ahead") if graphs else actions.launch_less(synchronizes=False),
        change=change,
        waits=waits,
    )


def _slow_launches(steps: StepFacts) -> str:
    """Name the rank whose launches the others wait for, where only they make it late."""
    late = steps.last_rank()
    more = late.excess if late else None
    if late is None or more is None or not more.by_chance:
        return ""
    return (
        f"; the others wait up to {si(late.most_s, 's')} for rank {late.rank}, which takes "
        f"{si(more.seconds, 's')} longer for its launches"
    )

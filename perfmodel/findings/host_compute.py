"""Work of the host outside CUDA, for which the GPU waits."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, StepFacts, percent, si
from perfmodel.findings._host_work import (
    BESIDE,
    advice_by_words,
    against_host_work,
    in_gaps,
    sleeps,
)
from perfmodel.findings._idle import (
    find_long_steps,
    is_dispatch,
    longest_gap,
    saving_without,
    slowed,
    within,
)
from perfmodel.timing.point_to_point import RangeOfRank

KIND = Kind(
    key="host_compute",
    change="the host's own work takes no time",
    remedy="Do that work beside the GPU's:",
    part="idle",
    precedence=2,
    grounds={
        "formula": "step_s less free_s, the replay without the host's work outside CUDA; at most "
        "the idle time with this cause",
        "inputs": [
            "summary.step_s",
            "critical_path[kind=host_compute].free_s",
            "idle[cause=host_compute].seconds",
        ],
        "table": "gaps",
        "where": {"cause": "host_compute", "counted": True},
        "by": "seconds",
    },
)

_LEAST_SHARE_OF_STEP: Final = 0.2
"""Input and output of all ranks with a smaller share of a step are what a program needs: 11 to 12 %
in healthy MPI programs, 33 % and more where it was made a fault (benchmarks/diagnosis)."""


find_long_steps(KIND, lambda actions, steps, where, _: _advice(where, steps, actions))


@KIND.rule(needs=("steps",))
def works(facts: Facts, actions: Actions, steps: StepFacts) -> Findings:
    """Work of the host, or its sleep, that is more than Python between launches."""
    if is_dispatch(steps):
        return
    idle_s, most = steps.idle_s(KIND.key), steps.most_idle(KIND.key)
    where, asleep = within(most.range if most else ""), sleeps(most)
    waits = f"while the host {'sleeps' if asleep else 'works'}{where}"
    yield Finding(
        KIND.key,
        f"the GPU waits {waits}",
        saving_without(KIND.key, steps, idle_s),
        f"the GPU idles {si(idle_s, 's')} per step while the host is outside CUDA"
        f"{longest_gap(KIND.key, steps)}{in_gaps(most)}{slowed(facts)}",
        _advice(where, steps, actions),
        waits=waits,
        remedy="Without that wait" if asleep else "",  # it may be paced from outside
    )


def _advice(where: str, steps: StepFacts, actions: Actions) -> str:
    """Return what to do against the host's work in a range."""
    recorder = steps.recorder.name if steps.recorder else ""
    return against_host_work(steps.most_idle(KIND.key), where, recorder, actions)


@KIND.rule(needs=("ranges_by_rank", "host_ranks"))
def alike(
    facts: Facts,
    actions: Actions,
    ranges: Sequence[RangeOfRank],
    host_ranks: Mapping[int, tuple[float, float]],
) -> Findings:
    """Input, output and checks that all ranks of a program without a GPU do beside computing."""
    told: list[str] = []
    for path in sorted({one.path for one in ranges if "/" in one.path}, key=len):
        rows = [one for one in ranges if one.path == path]
        what = advice_by_words(f" in '{rows[0].range}'")
        inner = any(path.startswith(f"{outer}/") for outer in told)
        if what not in BESIDE or len(rows) < len(host_ranks) or inner:
            continue
        usual_s, of_steps = (
            float(np.median(column))
            for column in ([r.seconds for r in rows], [r.of_steps for r in rows])
        )
        if usual_s * of_steps < _LEAST_SHARE_OF_STEP * facts.batch.value:
            continue
        told.append(path)
        some = of_steps < 1.0
        often = f"in {percent(of_steps)} of the steps" if some else "in every step"
        yield Finding(
            KIND.key,
            f"all ranks spend time in '{rows[0].range}' {often}",
            usual_s * of_steps,
            f"the median rank is {si(usual_s, 's')} in '{rows[0].range}' {often}, beside its own "
            f"computing and MPI",
            actions.advise(what, where=f" in '{rows[0].range}'"),
            of_mean=some,
            range=rows[0].range,
            subject=path,
        )

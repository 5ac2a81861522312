"""GPUs whose experts get more tokens than those of other GPUs, which wait for them."""

from statistics import fmean
from typing import Final

from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, si
from perfmodel.programs.facts import ServingRow

KIND = Kind(
    key="unequal_experts",
    change="the experts of all GPUs have as much to do",
    remedy="Balance the experts:",
    grounds={
        "formula": "of each step the most time in experts of a GPU, minus the mean over GPUs; the "
        "median over steps",
        "inputs": ["summary.step_s", "serving.experts_s", "serving.experts_late_s"],
        "table": "operations",
        "where": {"category": "GEMM", "counted": True},
        "by": "seconds",
    },
)

_UNEQUAL: Final = 1.2
"""Time of the slowest GPU's experts over the mean from which an imbalance is reported: less is
chance, where a GPU's experts have some hundred tokens."""


@KIND.rule(needs=("serving",))
def unequal_experts(facts: Facts, actions: Actions, serving: tuple[ServingRow, ...]) -> Findings:
    """GPUs whose experts get more tokens than those of others, which wait for them."""
    for one in serving:
        mean_s = fmean(one.experts_s or (0.0,))
        unequal = mean_s > 0 and mean_s + one.experts_late_s >= _UNEQUAL * mean_s
        if unequal and len(one.experts_s) > 1:
            last = max(range(len(one.experts_s)), key=lambda rank: one.experts_s[rank])
            yield Finding(
                KIND.key,
                "experts of some GPUs have more to do",
                one.experts_late_s * facts.serving_shares[one.phase],
                f"in a {one.phase} the experts take {si(mean_s, 's')} on the mean GPU, and on the "
                f"one with most of each step {si(one.experts_late_s, 's')} more; most often rank "
                f"{last} ({si(one.experts_s[last], 's')})",
                actions.advise("balance_experts"),
            )
            return

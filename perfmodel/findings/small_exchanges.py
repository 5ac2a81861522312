"""Exchanges of a layer's parts that take longer than the link needs for their bytes."""

from typing import Final

from perfmodel.findings import WITHOUT, Actions, Facts, Finding, Findings, Kind, si
from perfmodel.programs.facts import ServingRow

KIND = Kind(
    key="small_exchanges",
    change="exchanges take what the link needs",
    remedy=WITHOUT,
    part="communication",
    grounds={
        "formula": "time of the kernels that exchange in a step, minus bytes of their tensors / "
        "one direction of the link",
        "inputs": [
            "summary.step_s",
            "serving.exchanges",
            "serving.exchange_kernels_s",
            "serving.exchange_s",
        ],
        "table": "operations",
        "where": {"category": "communication", "counted": True},
        "by": "seconds",
    },
)

_SLOW: Final = 2.0
"""From so many times what the link needs latency or waiting is most of an exchange."""


@KIND.rule(needs=("serving",))
def small_exchanges(facts: Facts, actions: Actions, serving: tuple[ServingRow, ...]) -> Findings:
    """Exchanges of a layer's parts that take longer than the link needs for their bytes."""
    for one in serving:
        if one.exchange_s is not None and one.exchange_kernels_s >= _SLOW * one.exchange_s:
            yield Finding(
                KIND.key,
                f"exchanges of a {one.phase} take {one.exchange_kernels_s / one.exchange_s:.1f} "
                f"times what the link needs",
                (one.exchange_kernels_s - one.exchange_s) * facts.serving_shares[one.phase],
                f"{one.exchanges:.0f} kernels per {one.phase} exchange for "
                f"{si(one.exchange_kernels_s, 's')}; the link needs {si(one.exchange_s, 's')} for "
                f"the tensors; waiting for other GPUs is part of it",
                actions.advise("exchange_faster"),
            )
            return

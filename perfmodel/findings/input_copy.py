"""Copies of the inputs of every step, for which the host waits."""

from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, share_of_recorded
from perfmodel.programs.facts import Spent

KIND = Kind(
    key="input_copy",
    change="no copies of the inputs",
    remedy="Keep the inputs on the GPU:",
    part="copies",
    grounds={
        "formula": "host time of the range that copies the inputs",
        "inputs": ["summary.step_s", "copies[].seconds"],
        "table": "operations",
        "where": {"kind": "memcpy", "counted": True},
        "by": "seconds",
    },
)


@KIND.rule(needs=("input_copy",))
def copied_inputs(facts: Facts, actions: Actions, copy: Spent) -> Findings:
    """Copies of a step's inputs, in a range of their own, for which the host waits."""
    yield Finding(
        KIND.key,
        "the inputs are copied in every step",
        copy.seconds,
        f"{copy.label} takes {share_of_recorded(facts, copy.seconds)}",
        actions.keep_inputs(),
    )

"""Logits that are copied to the host, where the next tokens are chosen."""

from typing import Final

from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, si
from perfmodel.programs.facts import ServingRow

KIND = Kind(
    key="host_sampling",
    change="the next tokens are chosen on the GPU",
    remedy="Sample on the GPU:",
    part="idle",
    grounds={
        "formula": "the largest copy to the host in a step, and the time until the GPU has work "
        "again",
        "inputs": ["summary.step_s", "serving.sequences", "serving.read_bytes", "serving.read_s"],
        "table": "operations",
        "where": {"category": "copy", "counted": True},
        "by": "seconds",
    },
)

_LOGITS_BYTES: Final = 64_000
"""Of a sequence, in 16 bits, of the smallest vocabularies in use (Llama 2: 32,000). The id of a
token and its log probability take 12."""


@KIND.rule(needs=("serving",))
def host_sampling(facts: Facts, actions: Actions, serving: tuple[ServingRow, ...]) -> Findings:
    """Logits that are copied to the host, where the next tokens are chosen."""
    for one in serving:
        if one.read_bytes >= _LOGITS_BYTES * one.sequences:
            yield Finding(
                KIND.key,
                "tokens are sampled on the host",
                one.read_s * facts.serving_shares[one.phase],
                f"each {one.phase} copies {si(one.read_bytes, 'B')} to the host, "
                f"{si(one.read_bytes / one.sequences, 'B')} a sequence, as logits of a whole "
                f"vocabulary take; the copy and the time until the GPU has work again last "
                f"{si(one.read_s, 's')}",
                actions.advise("sample_on_gpu"),
            )
            return

"""Decodes that read weights of 16 bits, where the GPU multiplies 8 bits."""

from typing import Final

from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, percent, si
from perfmodel.machines.machine import Machine
from perfmodel.programs.facts import ServingRow

KIND = Kind(
    key="weights_not_quantized",
    change="decodes read weights of 8 bits",
    remedy="Quantize the weights:",
    part="compute",
    grounds={
        "formula": "half of the least time in which the memory reads the weights of 16 bits of a "
        "decode's GEMMs",
        "inputs": ["summary.step_s", "serving.weight_bytes", "serving.memory_s"],
        "table": "operations",
        "where": {"category": "GEMM", "counted": True},
        "by": "seconds",
    },
)

_WIDE: Final = ("bfloat16", "float16")

_HALVED: Final = 0.5
"""Share of the bytes that 8 bits in place of 16 leave out."""


@KIND.rule(needs=("serving", "machine"))
def wide_weights(
    facts: Facts, actions: Actions, serving: tuple[ServingRow, ...], machine: Machine
) -> Findings:
    """GEMMs of a decode that read weights of 16 bits, where the GPU multiplies 8 bits.

    By the model's configuration where CUDA graphs hide the GEMMs.
    """
    from perfmodel.programs.pytorch.operators import formula_of

    decode = next((one for one in serving if one.phase == "decode"), None)
    if decode is None or "float8_tensor" not in machine.peak_flops_per_s:
        return
    rate = machine.bandwidth_bytes_per_s.get("hbm")
    floor_s = decode.floor_s or 0.0
    if decode.wide_bytes and rate and decode.wide_bytes / rate > _HALVED * floor_s:
        yield Finding(
            KIND.key,
            "decoding reads weights of 16 bits",
            decode.wide_bytes * _HALVED / rate * facts.serving_shares["decode"],
            f"by the configuration of {decode.model} a decode of {decode.sequences:.0f} sequences "
            f"reads {si(decode.wide_bytes, 'B')} of weights of 16 bits, at least "
            f"{si(decode.wide_bytes / rate, 's')} of {si(decode.step_s, 's')}; weights of 8 bits "
            f"are half as many bytes",
            actions.advise("quantize_weights"),
        )
    if decode.hidden > _HALVED or decode.weight_bytes is None:  # most GEMMs are not counted
        return
    wide = [
        row for row in facts.operators
        if row.dtype in _WIDE and row.bound == "memory" and row.flops
        and formula_of(row.name).product == "gemm"
    ]  # fmt: skip
    if not wide:
        return
    spent, least = sum(row.gpu_s for row in wide), sum(row.least_s for row in wide)
    read = sum(row.bytes or 0.0 for row in wide)
    yield Finding(
        KIND.key,
        "decoding reads weights of 16 bits",
        least * _HALVED,
        f"GEMMs of {', '.join(sorted({row.dtype for row in wide}))} take {si(spent, 's')} per "
        f"step of {decode.sequences:.0f} sequences and must read {si(read, 'B')}: "
        f"{percent(least / spent)} of their time is the memory's; weights of 8 bits are half as "
        f"many bytes",
        actions.advise("quantize_weights"),
    )

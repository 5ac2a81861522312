"""Serving: weights that decoding reads in more bits than it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perfmodel.base.units import percent, si
from perfmodel.programs.actions import Actions
from perfmodel.programs.facts import Facts, ServingFact
from perfmodel.programs.findings import Finding, finding

_WIDE: Final = ("bfloat16", "float16")
_HALVED: Final = 0.5
"""Share of the bytes that 8 bits in place of 16 leave out."""


@finding("weights_not_quantized", needs=("serving", "operators", "machine"))
def wide_weights(
    facts: Facts, actions: Actions, serving: tuple[ServingFact, ...], *_: object
) -> Iterator[Finding]:
    """GEMMs of a decode that read weights of 16 bits, where the GPU multiplies 8 bits."""
    from perfmodel.programs.pytorch.operators import formula_of

    decode = next((one for one in serving if one.phase == "decode"), None)
    if decode is None or facts.machine is None:
        return
    if "float8_tensor" not in facts.machine.peak_flops_per_s:
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
        "weights_not_quantized",
        "decoding reads weights of 16 bits",
        least * _HALVED,
        f"GEMMs of {', '.join(sorted({row.dtype for row in wide}))} take {si(spent, 's')} per "
        f"step of {decode.sequences:.0f} sequences and must read {si(read, 'B')}: "
        f"{percent(least / spent)} of their time is the memory's; weights of 8 bits are half as "
        f"many bytes",
        actions.advise("quantize_weights"),
    )

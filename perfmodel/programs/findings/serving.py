"""Serving: wide weights, small exchanges, unequal experts, sampling on the host."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import TYPE_CHECKING, Final

from perfmodel.base.units import percent, si
from perfmodel.programs.actions import Actions
from perfmodel.programs.facts import Facts, ServingFact
from perfmodel.programs.findings import Finding, finding

if TYPE_CHECKING:
    from perfmodel.machines.machine import Machine

_WIDE: Final = ("bfloat16", "float16")
_HALVED: Final = 0.5
"""Share of the bytes that 8 bits in place of 16 leave out."""
_LOGITS_BYTES: Final = 64_000
"""Of a sequence, in 16 bits, of the smallest vocabularies in use (Llama 2: 32,000). The id of a
token and its log probability take 12."""
_SLOW: Final = 2.0
"""From so many times what the link needs latency or waiting is most of an exchange."""
_UNEQUAL: Final = 1.2
"""Time of the slowest GPU's experts over the mean from which an imbalance is reported: less is
chance, where a GPU's experts have some hundred tokens."""


@finding("weights_not_quantized", needs=("serving", "machine"))
def wide_weights(
    facts: Facts, actions: Actions, serving: tuple[ServingFact, ...], machine: Machine
) -> Iterator[Finding]:
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
            "weights_not_quantized",
            "decoding reads weights of 16 bits",
            decode.wide_bytes * _HALVED / rate * decode.of_time,
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
        "weights_not_quantized",
        "decoding reads weights of 16 bits",
        least * _HALVED,
        f"GEMMs of {', '.join(sorted({row.dtype for row in wide}))} take {si(spent, 's')} per "
        f"step of {decode.sequences:.0f} sequences and must read {si(read, 'B')}: "
        f"{percent(least / spent)} of their time is the memory's; weights of 8 bits are half as "
        f"many bytes",
        actions.advise("quantize_weights"),
    )


@finding("small_exchanges", needs=("serving",))
def small_exchanges(
    facts: Facts, actions: Actions, serving: tuple[ServingFact, ...]
) -> Iterator[Finding]:
    """Exchanges of a layer's parts that take longer than the link needs for their bytes."""
    for one in serving:
        if one.exchange_s is None or one.exchange_kernels_s < _SLOW * one.exchange_s:
            continue
        yield Finding(
            "small_exchanges",
            f"exchanges of a {one.phase} take {one.exchange_kernels_s / one.exchange_s:.1f} times "
            f"what the link needs",
            (one.exchange_kernels_s - one.exchange_s) * one.of_time,
            f"{one.exchanges:.0f} kernels per {one.phase} exchange for "
            f"{si(one.exchange_kernels_s, 's')}; the link needs {si(one.exchange_s, 's')} for the "
            f"tensors; waiting for other GPUs is part of it",
            actions.advise("exchange_faster"),
        )
        return


@finding("unequal_experts", needs=("serving",))
def unequal_experts(
    facts: Facts, actions: Actions, serving: tuple[ServingFact, ...]
) -> Iterator[Finding]:
    """GPUs whose experts get more tokens than those of others, which wait for them."""
    for one in serving:
        mean_s = fmean(one.experts_s) if one.experts_s else 0.0
        if len(one.experts_s) < 2 or mean_s + one.experts_late_s < _UNEQUAL * mean_s or not mean_s:
            continue
        last = max(range(len(one.experts_s)), key=lambda rank: one.experts_s[rank])
        yield Finding(
            "unequal_experts",
            "experts of some GPUs have more to do",
            one.experts_late_s * one.of_time,
            f"in a {one.phase} the experts take {si(mean_s, 's')} on the mean GPU, and on the one "
            f"with most of each step {si(one.experts_late_s, 's')} more; most often rank {last} "
            f"({si(one.experts_s[last], 's')})",
            actions.advise("balance_experts"),
        )
        return


@finding("host_sampling", needs=("serving",))
def host_sampling(
    facts: Facts, actions: Actions, serving: tuple[ServingFact, ...]
) -> Iterator[Finding]:
    """Logits that are copied to the host, where the next tokens are chosen."""
    for one in serving:
        if one.read_bytes < _LOGITS_BYTES * one.sequences:
            continue
        yield Finding(
            "host_sampling",
            "tokens are sampled on the host",
            one.read_s * one.of_time,
            f"each {one.phase} copies {si(one.read_bytes, 'B')} to the host, "
            f"{si(one.read_bytes / one.sequences, 'B')} a sequence, as logits of a whole "
            f"vocabulary take; the copy and the time until the GPU has work again last "
            f"{si(one.read_s, 's')}",
            actions.advise("sample_on_gpu"),
        )
        return

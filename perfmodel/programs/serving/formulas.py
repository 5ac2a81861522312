"""Formulas of the operators of serving engines: paged attention, experts, quantized products.

Which operator is counted by which formula, and where its arguments are, is in `operators.toml`. A
formula that needs the tokens of the engine's step takes them from `Call.inference`.
"""

from __future__ import annotations

import tomllib
from functools import partial
from importlib.resources import files
from math import prod
from typing import Any, Final

from perfmodel.base.kernels.types import ITEM_BYTES
from perfmodel.programs.pytorch.operators import (
    Call,
    Formula,
    Inference,
    OperatorWork,
    SizesError,
    mm_flops,
    numel,
    register,
)
from perfmodel.workloads.decoder import Batch

_FILE: Final = tomllib.loads(
    files("perfmodel.programs.serving").joinpath("operators.toml").read_text(encoding="utf-8")
)
WEIGHTS: Final[dict[str, int]] = _FILE["weights"]
"""Place of the weights among the arguments of PyTorch's products."""
EXPERTS: Final = frozenset(
    name for row in _FILE["operator"] if row["kind"] in ("experts", "routed", "grouped")
    for name in row["names"]
)  # fmt: skip
"""Operators that are a layer's experts."""


def _inference(call: Call) -> Inference:
    if call.inference is None:
        raise SizesError
    return call.inference


def _seen(said: Inference) -> Batch:
    """Return the tokens that the call's layer sees, at most its window."""
    step = said.step
    batch = Batch(step.sequences, step.tokens, step.cached, step.pairs)
    if said.model is None or said.layer is None:
        return batch
    return said.model.seen(said.layer, batch)


def attention(call: Call, row: dict[str, Any]) -> OperatorWork:
    """4 H D for each query and key that it sees; the cache of K and V is read once.

    Source: flop_counter.sdpa_flop, of pairs under a causal mask. Grouped queries share keys
    (Ainslie et al., GQA, arXiv:2305.13245): the cache has 2 H_kv D numbers a token. Of pages (Kwon
    et al., PagedAttention, arXiv:2309.06180) only those of the step's sequences are read.
    """
    query, key = call.size(row["query"], least=3), call.size(row["key"], least=3)
    heads, size = query[-2:]
    batch = _seen(_inference(call))
    item = min(call.items[row["key"]], ITEM_BYTES.get(call.dtype, 8))
    each = key[-2] * key[-1] if "key_heads" not in row else key[row["key_heads"]] * size
    cache = batch.cached * 2 * each * item
    own = numel(query) * call.items[row["query"]]
    flops = 4 * heads * size * batch.pairs
    shape = heads, batch.tokens, size
    return OperatorWork(flops, own + cache, own, shape, cache_bytes=cache)


def latent(call: Call, row: dict[str, Any]) -> OperatorWork:
    """Multi-head latent attention: all heads read one latent a token.

    FLOPs are `Decoder.latent_flops`; rank + positions numbers a token of the cache.
    Source: DeepSeek-V2 (arXiv:2405.04434), 2.1.
    """
    said = _inference(call)
    query = call.size(row["query"], least=2)
    if said.model is None or said.model.latent is None:
        raise SizesError
    _, rank, _, turned, _ = said.model.latent
    batch = _seen(said)
    cache = batch.cached * (rank + turned) * ITEM_BYTES.get(call.dtype, 2)
    heads = query[-2]
    own = numel(query) * call.items[row["query"]]
    flops = said.model.latent_flops(batch, heads)
    written = batch.tokens * heads * rank * call.item
    return OperatorWork(flops, own + cache, written, (heads, batch.tokens, rank), 0, cache)


def experts(call: Call, row: dict[str, Any]) -> OperatorWork:
    """2 FLOPs a weight of k experts for every token; experts are read that have a token.

    How many have one is not recorded: expected are E (1 - (1 - k/E)^T), if evenly (as
    `Decoder.experts_read`).
    """
    tokens, width = call.size(row["hidden"], 2)
    first, second = call.size(row["first"], 3), call.size(row["second"], 3)
    each = call.size(row["routed"], 2)[1]
    count = first[0]
    packed = 2 if first[2] * 2 == width else 1  # two numbers of 4 bits in a byte
    numbers = (numel(first) + numel(second)) // count * packed
    used = count * (1 - (1 - min(each / count, 1.0)) ** tokens)
    weights = round(call.read(row["first"], row["second"]) * used / count)
    moved = call.read(row["hidden"])
    return OperatorWork(2 * tokens * each * numbers, weights + moved, moved, None, weights)


def routed(call: Call, row: dict[str, Any]) -> OperatorWork:
    """As `experts`, with the weights of the model, shared by the GPUs of a layer."""
    said, (tokens, count) = _inference(call), call.size(row["scores"], 2)
    model = said.model
    if model is None or model.experts != count:
        raise SizesError
    numbers = 3 * model.hidden * model.expert_width
    used = model.experts_read(tokens)
    weights = round(model.quantized.bytes_of(used * numbers) / said.shards)
    flops = 2 * tokens * model.experts_per_token * numbers // said.shards
    moved = tokens * model.hidden * call.items[row["hidden"]]
    return OperatorWork(
        flops, weights + moved + call.read(row["scores"]), moved, None, weight_bytes=weights
    )


def gemm(call: Call, row: dict[str, Any]) -> OperatorWork:
    """2 M K N, of factors that may be packed: several numbers in an element.

    Reads the factors and scales as they are stored, writes M N.
    """
    a, b = call.size(row["a"], least=2), call.size(row["b"], least=2)
    k = a[-1] * row.get("pack_a", 1)
    m, numbers = prod(a[:-1]), numel(b) * row.get("pack", 1)
    if "columns" in row:
        columns = call.size(row["columns"], least=2)
        numbers = k * columns[-1]
        if numbers < numel(b):  # these are no scales of every column
            raise SizesError
    if not k or numbers % k:
        raise SizesError
    n = numbers // k
    out = call.size(row["out"], least=2) if "out" in row else (m, n)
    written = m * n * (call.items[row["out"]] if "out" in row else call.item)
    if prod(out) != m * n:
        raise SizesError
    weights = call.read(row["b"], *row.get("scales", ()))
    read = call.read(row["a"]) + weights
    return OperatorWork(mm_flops(m, k, n), read, written, (m, n, k), weights)


def grouped(call: Call, row: dict[str, Any]) -> OperatorWork:
    """2 M K N, of rows that are sorted by expert, each times the matrix of its expert.

    Experts are read that have a row, expected E (1 - (1 - 1/E)^M) if each row has any of E.
    """
    a, b = call.size(row["a"], 2), call.size(row["b"], 3)
    m, k, count = a[0], a[1] * row.get("pack_a", 1), b[0]
    numbers = b[1] * b[2] * row.get("pack", 1)
    if not k or numbers % k:
        raise SizesError
    n = numbers // k
    used = count * (1 - (1 - 1 / count) ** m) if count else 0.0
    weights = round(call.read(row["b"], *row.get("scales", ())) * used / max(count, 1))
    flops = mm_flops(m, k, n)
    return OperatorWork(flops, call.read(row["a"]) + weights, m * n * call.item, None, weights)


def moves(call: Call, row: dict[str, Any]) -> OperatorWork:
    """Reads and writes arguments once; of tables a row a token; of a KV cache what is stored."""
    call.size(max(row["reads"]))
    read = call.read(*row["reads"])
    for place in row.get("rows", ()):
        table = call.size(place, least=2)
        read += min(numel(call.size(row["like"])), table[0]) * prod(table[1:]) * call.items[place]
    written, stored = call.read(*row.get("writes", ())), 0
    if "result" in row:
        written += numel(call.size(row["result"])) * call.item
    if "stores" in row:
        stored = sum(numel(call.size(i)) for i in row["stores"]) * call.items[row["cache"]]
    return OperatorWork(0, read, written + stored, cache_bytes=stored)


_KINDS: Final = {
    "attention": (attention, {"product": "attention", "by_step": True, "whole": True}),
    "latent": (latent, {"product": "attention", "by_step": True, "whole": True}),
    "experts": (experts, {"product": "other", "whole": True}),
    "routed": (routed, {"product": "other", "by_step": True, "whole": True}),
    "gemm": (gemm, {"product": "gemm"}),
    "grouped": (grouped, {"product": "other"}),
    "moves": (moves, {"layer": True}),
}


def _register_all() -> None:
    for row in _FILE["operator"]:
        count, facts = _KINDS[row["kind"]]
        made = partial(count, row=row)
        made.__name__ = count.__name__  # type: ignore[attr-defined]  # that errors name
        register(tuple(row["names"]), Formula(made, **facts))  # type: ignore[arg-type]


_register_all()

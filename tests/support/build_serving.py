"""Builds recordings of engines that decode: a step that replays a CUDA graph, and its capture.

As vLLM and SGLang record them on AMD's GPUs: the replay has kernels without operators, and the
capture has the operators, with launches of which no kernel ran. Names of operators and sizes are
those of the engines and of published models, times are made up: a product reads its weights at
1.5 TB/s, experts theirs at 1.6 TB/s, and most other kernels take 3 us.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perfmodel.workloads.decoder import Decoder, published
from support.build_kineto import BASE_NS, trace_event

SEQUENCES: Final = 32
CACHED: Final = {"vllm": 40_064, "sglang": 19_232, "hidden": 16_416}
"""Tokens in the KV cache of the step's sequences."""
MODELS: Final = {"vllm": "gpt-oss-20b", "sglang": "qwen3-8b", "hidden": "qwen3-30b-a3b"}
HOST: Final = 7
"""Process and thread of the host."""
START: Final = 1_000_000
"""us from the capture to the step."""
GRAPH: Final = 900
"""Correlation of the call that launches the graph."""

_BF16: Final = "c10::BFloat16"
_GPUS: Final = {
    "vllm": ("", 9, 4, 304, 206_000_000_000),  # nothing names it
    "sglang": ("AMD Instinct MI300X", 9, 4, 304, 206_000_000_000),
    "hidden": ("NVIDIA B300 SXM6 AC", 10, 3, 148, 287_000_000_000),
}
Sizes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Operator:
    """One operator: its arguments, its kernels with their us, and the operator inside it."""

    name: str
    sizes: Sizes
    kernels: tuple[tuple[str, float], ...]
    inner: str = ""
    inner_sizes: Sizes = ()


def _small(name: str, sizes: Sizes, kernel: str) -> Operator:
    return Operator(name, sizes, ((kernel, 3.0),))


def _product(name: str, columns: int, rows: int, *, bias: bool = False) -> Operator:
    """A product of all tokens with a matrix that is read once."""
    kernel = f"Cijk_Alik_Bljk_BBS_BH_Bias_MT32x{rows % 97 + 16}x64_MI16x16x1"
    spent = round(2 + 2 * columns * rows / 1.5e6, 3)
    factors: Sizes = (SEQUENCES, rows), (rows, columns)
    inner: Sizes = ((columns,), *factors, (), ()) if bias else factors
    outer: Sizes = (SEQUENCES, rows), (columns, rows), (columns,) if bias else ()
    return Operator(name, outer, ((kernel, spent),), "aten::addmm" if bias else "aten::mm", inner)


def _sglang(model: Decoder) -> Iterator[Operator]:
    """Operators of a decode by SGLang, of a model with dense layers."""
    tokens, hidden = SEQUENCES, (SEQUENCES, model.hidden)
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    cache = 600_000, keys
    norm = "aiter::add_rmsnorm_kernel"
    for layer in range(model.layers):
        first = hidden, hidden, (model.hidden,), ()
        added = hidden, hidden, hidden, hidden, (model.hidden,), ()
        if layer:
            yield _small("aiter::add_rmsnorm", added, norm)
        else:
            yield _small("aiter::rmsnorm", first, norm)
        yield _product("aiter::gemm_a16w16", queries + 2 * keys, model.hidden)
        for heads in (model.heads, model.kv_heads):
            rows = tokens * heads, model.head_dim
            yield _small("aiter::rmsnorm", (rows, rows, (model.head_dim,), ()), norm)
        yield _small(
            "sgl_kernel::rotary_embedding",
            ((tokens,), (tokens, queries), (tokens, keys), (), (40_960, 128), ()),
            "rotary_embedding_kernel",
        )
        stored = (tokens, keys), (tokens, keys), cache, cache, (tokens,), (), ()
        yield _small("sglang::store_cache", stored, "store_kvcache")
        query, pages = (tokens, model.heads, model.head_dim), (600_000, 1, model.kv_heads, 128)
        yield Operator(
            "sglang_profiler::attention_paged_attention_ragged_41",
            (query, (9,), query, pages, pages, (tokens + 1,)),
            (("paged_attention_kernel", 40.0), ("paged_attention_reduce_kernel", 4.0)),
        )
        yield _product("aiter::gemm_a16w16", model.hidden, queries)
        yield _small("aiter::add_rmsnorm", added, norm)
        yield _product("aiter::gemm_a16w16", 2 * model.width, model.hidden)
        wide = (tokens, model.width), (tokens, 2 * model.width)
        yield _small("sgl_kernel::silu_and_mul", wide, "act_and_mul_kernel")
        yield _product("aiter::gemm_a16w16", model.hidden, model.width)
    yield _small("aiter::add_rmsnorm", added, norm)
    yield _product("aiter::gemm_a16w16", model.vocab, model.hidden)


def _vllm(model: Decoder) -> Iterator[Operator]:
    """Operators of a decode by vLLM, of a model with experts; the head is launched after them."""
    tokens, hidden = SEQUENCES, (SEQUENCES, model.hidden)
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    query, key = (tokens, model.heads, model.head_dim), (tokens, model.kv_heads, model.head_dim)
    cache = 200_000, 32, model.kv_heads, model.head_dim
    added = hidden, hidden, hidden, hidden, (model.hidden,), (), ()
    turned = 131_072, model.head_dim
    experts = round(3 * 32 * model.hidden * model.expert_width * 17 / 32 / 1.6e6 / 2, 3)
    for layer in range(model.layers):
        yield _small("aiter::rmsnorm2d_fwd_with_add_ck", added, "ck_tile::Rmsnorm2dFwd")
        yield _product("vllm::rocm_unquantized_gemm", queries + 2 * keys, model.hidden, bias=True)
        copy = f"triton_poi_fused_copy_{min(layer, 1)}"
        yield _small(copy, (turned, turned, ()), copy)
        yield _small(
            "_C::rotary_embedding",
            ((tokens,), (tokens, queries), (tokens, keys), (), turned, ()),
            "vllm::rotary_embedding_kernel",
        )
        yield _small(
            "_C_cache_ops::reshape_and_cache_flash",
            (key, key, cache, cache, (tokens,), (), ()), "vllm::reshape_and_cache_flash_kernel",
        )  # fmt: skip
        yield Operator(
            "vllm::unified_attention_with_output", (query, key, key, query, (), (), ()),
            (("kernel_unified_attention", 30.0), ("reduce_segments", 4.0)),
        )  # fmt: skip
        yield _product("vllm::rocm_unquantized_gemm", model.hidden, queries, bias=True)
        yield _small("aiter::rmsnorm2d_fwd_with_add_ck", added, "ck_tile::Rmsnorm2dFwd")
        yield _product("vllm::rocm_unquantized_gemm", model.experts, model.hidden, bias=True)
        yield Operator(
            "vllm::moe_forward", ((tokens, 3072), (tokens, model.experts), ()),
            (("_topk_forward", 3.0), ("_matmul_ogs_swiglu", experts), ("_matmul_ogs", experts)),
        )  # fmt: skip


def operators(engine: str) -> list[Operator]:
    """Return the operators of a step, in their order."""
    model = published()[MODELS[engine]]
    if engine == "hidden":  # of which nobody knows the operators
        return [_product("aten::mm", model.hidden, 30 * model.hidden)] * model.layers
    return [*(_vllm if engine == "vllm" else _sglang)(model)]


def kernels(engine: str) -> int:
    """Return how many kernels a step's graph has."""
    return sum(len(one.kernels) for one in operators(engine))


def _document(engine: str, events: list[dict[str, Any]]) -> dict[str, Any]:
    name, major, minor, units, memory = _GPUS[engine]
    device = {"id": 0, "name": name, "totalGlobalMem": memory, "computeMajor": major,
              "computeMinor": minor, "numSms": units}  # fmt: skip
    return {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "deviceProperties": [device],
            "traceEvents": events}  # fmt: skip


def _host(category: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return trace_event(category, name, pid=HOST, tid=HOST, ts=ts, dur=dur, args=args)


def _on_gpu(name: str, ts: float, dur: float, correlation: int, **args: Any) -> dict[str, Any]:
    category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    args = {"device": 0, "stream": 3, "correlation": correlation, **args}
    return trace_event(category, name, pid=0, tid=3, ts=ts, dur=dur, args=args)


def _operator(name: str, sizes: Sizes, ts: float, dur: float) -> dict[str, Any]:
    types = [_BF16 if size else "Scalar" for size in sizes]
    return _host("cpu_op", name, ts, dur, **{"Input Dims": [*map(list, sizes)],
                                             "Input type": types})  # fmt: skip


def capture(engine: str) -> dict[str, Any]:
    """Return the recording of a graph's capture, around which its sequences are named."""
    begin = {"vllm": "FULL", "sglang": "DECODE"}[engine]
    launches = "hipExtModuleLaunchKernel", "hipLaunchKernel", "hipModuleLaunchKernel"
    events: list[dict[str, Any]] = []
    # what runs before the capture is no node of the graph
    events += [_operator("aten::fill_", ((SEQUENCES,), ()), 20, 9),
               _host("cuda_runtime", "hipLaunchKernel", 22, 4, correlation=1),
               _on_gpu("fill_kernel", 30, 3, 1),
               _host("cuda_runtime", "hipStreamBeginCapture", 40, 3, correlation=2)]  # fmt: skip
    at, number = 50.0, 3
    for one in operators(engine):
        last = len(one.kernels)
        events.append(_operator(one.name, one.sizes, at, 6 + 4 * last))
        if one.inner:
            events.append(_operator(one.inner, one.inner_sizes, at + 1, 3 + 4 * last))
        events.append(_operator("aten::empty", ((),), at + 1.5, 0.5))
        for i in range(last):
            name = launches[number % len(launches)]
            events.append(_host("cuda_runtime", name, at + 3 + 4 * i, 2, correlation=number))
            number += 1
        at += 150
    events.append(_host("cuda_runtime", "hipStreamEndCapture", at, 3, correlation=number))
    events.append(_host("cuda_runtime", "hipLaunchKernel", at + 5, 2, correlation=number + 1))
    events.append(_host("user_annotation", f"capture_{SEQUENCES}_{begin}", 10, at))
    return _document(engine, events)


def decode(engine: str) -> dict[str, Any]:
    """Return the recording of a step that replays the graph, and copies its tokens to the host."""
    vendor = "cuda" if engine == "hidden" else "hip"
    events: list[dict[str, Any]] = []

    def launch(call: str, ts: float, number: int) -> None:
        events.append(_host("cuda_runtime", vendor + call, ts, 5, correlation=GRAPH + number))

    ids = 8 * SEQUENCES
    launch("MemcpyAsync", 100, 1)
    events.append(_on_gpu("Memcpy HtoD (Pinned -> Device)", 106, 2, GRAPH + 1, bytes=ids))
    launch("GraphLaunch", 400, 0)
    at = 420.0
    for one in operators(engine):
        for kernel, spent in one.kernels:
            events.append(_on_gpu(kernel, at, spent, GRAPH))
            at += spent + 0.1
    if engine == "vllm":  # the head is no part of the graph
        model = published()[MODELS[engine]]
        head = _product("aten::mm", model.vocab, model.hidden)
        ((kernel, spent),) = head.kernels
        spent = round(spent / 3, 3)  # large products are faster
        events.append(_operator("aten::mm", head.inner_sizes, 480, 20))
        launch("ExtModuleLaunchKernel", 490, 2)
        events.append(_on_gpu(kernel, at, spent, GRAPH + 2))
        at += spent
    events.append(_operator("aten::argmax", ((SEQUENCES, 4096), (), ()), 520, 20))
    launch("LaunchKernel", 530, 3)
    events.append(_on_gpu("reduce_kernel_argmax", at, 6, GRAPH + 3))
    launch("MemcpyAsync", 560, 4)
    copy = _on_gpu("Memcpy DtoH (Device -> Pinned)", at + 7, 2, GRAPH + 4, bytes=ids)
    waited = round(at - 540, 3)
    events += [copy, _host("cuda_runtime", f"{vendor}StreamSynchronize", 570, waited)]
    cached, lasts = CACHED[engine], round(at + 40, 3)
    said = f"sq{SEQUENCES}sk{cached}sqsq{SEQUENCES}sqsk{cached}"
    name = f"execute_{SEQUENCES}_context_0(sq0sk0sqsq0sqsk0)_generation_{SEQUENCES}({said})"
    events.append(_host("user_annotation", name, 0, lasts))
    if engine != "vllm":  # whose step has one range alone
        events.append(_host("user_annotation", f"step[DECODE bs={SEQUENCES}]", 1, lasts - 2))
    for event in events:  # in whole ns
        event["ts"] = round(START + event["ts"], 3)
    return _document(engine, events)


def write(folder: Path, name: str, document: dict[str, Any]) -> Path:
    """Write a recording into a folder."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document))
    return path

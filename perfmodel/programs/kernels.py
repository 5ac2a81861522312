"""Kernels by what they do: the category of a GPU operation from the name of its kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int8
from perfmodel.readers.trace import GRAPH, KERNEL, MEMCPY, MEMSET, GpuOps

CATEGORIES: Final = (
    "GEMM", "attention", "convolution", "normalization", "softmax and loss", "element-wise",
    "reduction", "optimizer", "gather and scatter", "sort and scan", "FFT", "copy", "memset",
    "communication", "graph", "other",
)  # fmt: skip
"""Codes of `categorize` are positions in this tuple."""

_RULES: Final = (
    ("communication", r"^nccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter|multimem"),
    ("optimizer", r"adam|adagrad|\bsgd|fusedsgd|lamb(?!da)|fusedoptimizer|rmsprop"),
    ("attention", r"attention|flash|fmha|sdpa|mha_|compute_dot_do_o|convert_dq|splitkv|paged_kv"),
    ("reduction", r"pool_|_pool|maxpool|avgpool"),
    (
        "normalization",
        r"layer_?norm|batch_?norm|rms_?norm|group_?norm|gammabeta|instance_?norm|rowwisemoments"
        r"|bn_(?:fw|bw)|native_norm|welford|computeinternalgradients|fused_params",
    ),
    (
        "convolution",
        r"conv(?!ert)|[dw]grad|fprop|winograd|im2col|col2im|nchwtonhwc|nhwctonchw"
        r"|nhwcaddpadding|scalepackedtensor|init_device_workspace|^(?>.*?cudnn).*kernel<",
    ),
    ("FFT", r"(?:^|[\W_])fft|cufft"),
    ("softmax and loss", r"softmax|nll_?loss|cross_?entropy|_loss|logsumexp"),
    (
        "gather and scatter",
        r"embedding|sum_and_scatter|compute_grad_weight|segment_offset|partials_per_segment"
        r"|num_of_partial_segments|index_?(?:select|put|add|elementwise|func)|indexing_backward"
        r"|gather_kernel|scatter",
    ),
    (
        "GEMM",
        r"gemm|nvjet|splitkreduce|_mma|cutlass|cublas|gemv|dot_kernel|matmul|_dot(?![a-z])|wgmma"
        r"|\bger\b|syrk|trsm|xmma",
    ),
    (
        "sort and scan",
        r"radix|sort|devicescan|deviceselect|unique|scan|topk|bitonic|merge|write_indices",
    ),
    (
        "copy",
        r"direct_copy|catarray|copy_?kernel|copyfunctor|chunk_cat|split_with_sizes|transpose"
        r"|memcpy|_copy(?:\b|__)|to_copy|permute|concatenate|pad_|slice",
    ),
    ("reduction", r"reduce|_sum|_mean|norm_?kernel|triton_(?:red|per)_|argmax|argmin|cumsum"),
    ("memset", r"memset"),
    (
        "element-wise",
        r"elementwise|unrolled|vectorized|triton_poi|functor|fill|dropout|gelu|relu|silu|sigmoid"
        r"|tanh|add|mul|arange|tril|triu|random|distribution|cast|convert|where|bernoulli|loop_"
        r"|fusion|wrapped_|cupy_|elemwise|rng|philox|pointwise|pow|exp_|compare|mask|clamp|foreach",
    ),
)
"""In this order: what comes first wins, since a later pattern may occur in an earlier kernel."""

_PATTERNS: Final = tuple((CATEGORIES.index(name), re.compile(rule, re.I)) for name, rule in _RULES)
_OF_KIND: Final = {MEMCPY: "copy", MEMSET: "memset", GRAPH: "graph"}


def _code(kernel: str) -> int:
    """Category of a kernel by its (demangled) name; 'other' where no rule knows it.

    What a template kernel does stands in its arguments, the work of a generic element-wise,
    reducing or copying kernel in its functor; namespaces and plain types say nothing.
    """
    for code, pattern in _PATTERNS:
        if pattern.search(kernel):
            return code
    return CATEGORIES.index("other")


def categorize(ops: GpuOps, strings: Sequence[str]) -> tuple[Int8, tuple[str, ...]]:
    """Category of every GPU operation, shape (n,), as positions in `CATEGORIES`, and these."""
    other = CATEGORIES.index("other")
    found = np.full(len(ops), other, np.int8)
    for kind, name in _OF_KIND.items():
        found[ops.kind == kind] = CATEGORIES.index(name)
    kernels = np.flatnonzero((ops.kind == KERNEL) & (ops.name >= 0))
    codes, inverse = np.unique(ops.name[kernels], return_inverse=True)
    found[kernels] = np.array([_code(strings[c]) for c in codes] or [other], np.int8)[inverse]
    return found, CATEGORIES

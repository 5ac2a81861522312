"""Data types by the names of kernels: what a kernel computes with, and on which unit of the GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

ITEM_BYTES: Final = {
    "float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2, "float8": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16,
}  # fmt: skip

FLOATS: Final = ("float64", "float32", "bfloat16", "float16", "float8")

_CPP: Final = {
    "double": "float64", "float": "float32", "c10::BFloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16", "c10::Half": "float16", "__half": "float16", "half": "float16",
    "c10::Float8_e4m3fn": "float8", "c10::Float8_e5m2": "float8", "__nv_fp8_e4m3": "float8",
    "__nv_fp8_e5m2": "float8", "long": "int64", "long long": "int64", "int": "int32",
    "short": "int16", "signed char": "int8", "unsigned char": "uint8", "bool": "bool",
    "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
}  # fmt: skip
_TYPES: Final = "|".join(re.escape(t) for t in sorted(_CPP, key=len, reverse=True))
_LAMBDA: Final = re.compile(rf"\[lambda\(({_TYPES})[,)]")
_ARGUMENT: Final = re.compile(rf"[<,] ?({_TYPES})(?=[,>])")
_OPAQUE: Final = re.compile(r"OpaqueType<\(?(?:unsigned int\)?)?([0-9]{1,2})")
_DEPTH: Final = re.compile(r"TensorListMetadata<(?:\(int\))?([1-5])>")
_CAST_TO: Final = re.compile(r"::(bfloat16|float16|float8)_copy_kernel_cuda")

_NVJET: Final = {"t": "bfloat16", "h": "float16", "q": "float8", "r": "float8", "s": "tf32"}
"""Letters behind `nvjet_sm90_`: the first is the type of the first factor, the last the result's.

Seen on an H200 (profiles/programs/kernel_names.json): `tst` of bfloat16, `hsh` of float16, `qqtst`,
`qqhsh`, `qqsss` of float8 e4m3 into bfloat16, float16, float32, `qr...` and `rq...` with e5m2.
Products of TF32 and float64 ran other kernels there.
"""

_PRODUCTS: Final = (
    (re.compile(r"^nvjet_(?:sm[0-9]+_)?([a-z])[a-z]*([a-z])_"), None),
    (re.compile(r"cf32cf32"), "complex64"),
    (re.compile(r"i16832gemm_s8|_s8s8_|imma"), "int8"),
    (re.compile(r"e4m3|e5m2|fp8|float8"), "float8"),
    (re.compile(r"tf32|tfloat32_t"), "tf32"),
    (re.compile(r"bf16|bfloat16|BFloat16"), "bfloat16"),
    (re.compile(r"fmha_cutlass[FB]_f32"), "tf32x3"),
    (re.compile(r"sgemm|simt_s|f32f32|ffma|gemmsn_tn_f32"), "float32"),
    (re.compile(r"f16f16|_f16|fp16|h884|h1688|h16816|hgemm|half_t|__half\b|c10::Half"), "float16"),
    (re.compile(r"dgemm|d884|f64f64|simt_d|double"), "float64"),
    (re.compile(r"s1688"), "tf32"),
)
_MADE_OF_PRODUCTS: Final = re.compile(
    r"gemm|nvjet|cutlass|xmma|wgmma|implicit|gemv|_sdpa_|flash|fmha|dgrad|wgrad|fprop|conv2d"
    r"|winograd|conv_|cudnn::cnn|attention"
)
_TENSOR: Final = re.compile(
    r"nvjet|tensorop|TensorOp|TmaGmma|s16816|s1688|s884|h884|h16816|d884|wgmma|hmma|gmma|warpgroup|mma_tensor"
    r"|flash|fmha|^(?>.*sm[89]0_xmma_)(?!.*ffma)"
)
_SIXTEEN_BITS: Final = re.compile(r"^(?>.*?cudnn_generated).*_f16_|^(?:void )?cudnn::fusion::")
_UNTYPED: Final = re.compile(
    r"gather_kernel|scatter_gather|index_elementwise|indexSelect|chunk_cat|split_with_sizes"
)


@dataclass(frozen=True, slots=True)
class KernelTypes:
    """What the name of a kernel says.

    Attributes
    ----------
    dtype : str or None
        Type that it computes with and writes, a key of `ITEM_BYTES`.
    source : str or None
        Type of what a cast reads.
    result : str or None
        Type of what it writes, where that is another one.
    casts : bool
        It reads operands of any type and casts them.
    item_bytes : int or None
        Size of an element, where a kernel that only moves data says no type.
    unit : str
        A machine's peak that bounds its arithmetic: 'bfloat16_tensor', 'float32', ...; '' if the
        name says no type.
    depth : int
        Lists of tensors that a foreach or fused kernel takes; 0 if it is none.
    """

    dtype: str | None = None
    source: str | None = None
    result: str | None = None
    casts: bool = False
    item_bytes: int | None = None
    unit: str = ""
    depth: int = 0


@lru_cache(maxsize=4096)
def kernel_types(name: str) -> KernelTypes:
    """Read the types of a kernel off its demangled name.

    >>> kernel_types("nvjet_sm90_tst_128x192_64x5_1x4_h_bz_coopB_bias_TNN").unit
    'bfloat16_tensor'
    >>> kernel_types("cutlass_80_simt_sgemm_128x256_8x4_tn_align1").unit
    'float32'
    """
    if multiplies(name):
        return _product(name)
    if _UNTYPED.search(name):
        return KernelTypes()
    opaque = _OPAQUE.search(name)
    if opaque:
        return KernelTypes(item_bytes=int(opaque[1]))
    casts = "LoadWithCast" in name or "gpu_kernel_impl<" in name
    last = [] if "reduce_kernel<" in name else _LAMBDA.findall(name)
    if "elementwise_kernel<" in name:  # the last lambda may be that of its index
        last = [t for t in last if t != "int"] or (last if "FillFunctor" in name else [])
    to = _CAST_TO.search(name)
    if to:
        return KernelTypes(to[1], _CPP[last[-1]] if last else None, unit="float32")
    depth = _DEPTH.search(name)
    lists = int(depth[1]) if depth else 0
    arguments = [_CPP[t] for t in _ARGUMENT.findall(name)]
    floating = [t for t in arguments if t in FLOATS]
    if last:
        dtype = _CPP[last[-1]]
    elif "SoftMaxForward" in name and len(floating) >= 3:
        return KernelTypes(floating[0], result=floating[2], unit=plain_unit(floating[0]))
    elif "softmax_warp_forward" in name and len(floating) >= 2:
        return KernelTypes(floating[0], result=floating[1], unit=plain_unit(floating[0]))
    elif "CopyFunctor" in name and len(floating) >= 2 and lists:
        return KernelTypes(floating[0], floating[1], unit="float32", depth=lists)
    elif arguments:
        dtype = floating[0] if floating else arguments[0]
    else:
        return KernelTypes(casts=casts, depth=lists)
    return KernelTypes(dtype, casts=casts, unit=plain_unit(dtype), depth=lists)


@lru_cache(maxsize=4096)
def multiplies(name: str) -> bool:
    """Whether a kernel multiplies matrices, convolves or attends, by its name."""
    return "native::" not in name and bool(_MADE_OF_PRODUCTS.search(name))


def _product(name: str) -> KernelTypes:
    """Types of a kernel that multiplies matrices, convolves or attends."""
    dtype: str | None = None
    result: str | None = None
    if not _SIXTEEN_BITS.search(name):  # cuDNN's attention says f16 of both types of 16 bits
        for pattern, kind in _PRODUCTS:
            found = pattern.search(name)
            if found:
                dtype = kind or _NVJET.get(found[1])
                if kind is None:
                    result = "float32" if found[2] == "s" else _NVJET.get(found[2])
                elif kind == "int8":
                    result = "int32"
                break
        else:
            arguments = [_CPP[t] for t in _ARGUMENT.findall(name)]
            dtype = next((t for t in arguments if t in FLOATS), None)
    if dtype is None:
        return KernelTypes(item_bytes=2 if _SIXTEEN_BITS.search(name) else None)
    tensor = bool(_TENSOR.search(name)) or dtype.startswith(("tf32", "float8", "int8"))
    plain = "float32" if dtype.startswith("tf32") else dtype
    return KernelTypes(
        plain,
        result=None if result == plain else result,
        unit=f"{dtype}_tensor" if tensor else plain_unit(dtype),
    )


def dtype_named(cpp: str) -> str | None:
    """Return the type that C++ calls so, a key of `ITEM_BYTES`; None if it is of no tensor.

    >>> dtype_named("c10::BFloat16"), dtype_named("Scalar")
    ('bfloat16', None)
    """
    return _CPP.get("long" if cpp == "long int" else cpp)


def plain_unit(dtype: str) -> str:
    """The unit of arithmetic outside tensor cores: operands of 16 bits are computed as FP32."""
    return "float64" if dtype in ("float64", "complex128") else "float32"

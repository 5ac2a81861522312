"""Data types by the names of kernels: what a kernel computes with, and on which unit of the GPU."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

ITEM_BYTES: Final = {
    "float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2, "float8": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16, "float4": 1,
}  # fmt: skip
"""Of an element as tensors count them: PyTorch's of 4 bits are two numbers."""

FLOATS: Final = ("float64", "float32", "bfloat16", "float16", "float8", "float4")

_FILE: Final = tomllib.loads(
    files("perfmodel.base.kernels").joinpath("types.toml").read_text(encoding="utf-8")
)
_CPP: Final[dict[str, str]] = _FILE["cpp"]
_CPP_OF: Final = {"int64": "long", "int32": "int", "float64": "double", "float32": "float",
                  "float16": "half"}  # fmt: skip
_TYPES: Final = "|".join(re.escape(t) for t in sorted(_CPP, key=len, reverse=True))
_LAMBDA: Final = re.compile(rf"[\[{{]lambda\(({_TYPES})[,)]")
_ARGUMENT: Final = re.compile(rf"[<,] ?({_TYPES})(?=[,>])")
_OPAQUE: Final = re.compile(r"OpaqueType<\(?(?:unsigned int\)?)?([0-9]{1,2})")
_DEPTH: Final = re.compile(r"TensorListMetadata<(?:\(int\))?([1-5])>")
_CAST_TO: Final = re.compile(r"::(bfloat16|float16|float8)_copy_kernel_cuda")
_NVJET: Final = re.compile(r"^nvjet_(?:sm[0-9]+_)?([a-z])[a-z]*([a-z])_")
_TENSILE: Final = re.compile(
    rf"Cijk_A[il]{{2}}k_B[jl]{{2}}k_({'|'.join(sorted(_FILE['tensile'], key=len, reverse=True))})"
)
_PRODUCTS: Final = tuple((re.compile(row["pattern"]), row["type"]) for row in _FILE["product"])
_TENSOR: Final = re.compile(
    r"nvjet|tensorop|TensorOp|TmaGmma|s16816|s1688|s884|h884|h1688|h16816|d884|wgmma|hmma|gmma|warpgroup|mma_tensor|_mfma"
    r"|flash|fmha|^(?>.*sm[89]0_xmma_)(?!.*ffma)|^Cijk_.*_MI\d"
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


def types_of(name: str, product: bool, tensor: bool = False) -> KernelTypes:
    """Read the types of a kernel off its name.

    Parameters
    ----------
    name : str
    product : bool
        Whether it multiplies matrices, convolves or attends.
    tensor : bool
        Whether its family runs on tensor cores, as far as these have the type.
    """
    if product:
        return _product(name, tensor)
    if _UNTYPED.search(name):
        return KernelTypes()
    opaque = _OPAQUE.search(name)
    if opaque:
        return KernelTypes(item_bytes=int(opaque[1]))
    casts = "LoadWithCast" in name or "gpu_kernel_impl<" in name
    last = [] if "reduce_kernel<" in name else _LAMBDA.findall(name)
    if "elementwise_kernel" in name:  # the last lambda may be that of its index
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


def _product(name: str, on_tensor: bool) -> KernelTypes:
    """Types of a kernel that multiplies matrices, convolves or attends."""
    dtype: str | None = None
    result: str | None = None
    if not _SIXTEEN_BITS.search(name):  # cuDNN's attention says f16 of both types of 16 bits
        if letters := _NVJET.search(name):
            dtype = _FILE["nvjet"].get(letters[1])
            result = "float32" if letters[2] == "s" else _FILE["nvjet"].get(letters[2])
        elif tensile := _TENSILE.search(name):
            dtype = _FILE["tensile"][tensile[1]]
        else:
            dtype = next((kind for pattern, kind in _PRODUCTS if pattern.search(name)), None)
            result = "int32" if dtype == "int8" else None
            if dtype is None:
                arguments = [_CPP[t] for t in _ARGUMENT.findall(name)]
                dtype = next((t for t in arguments if t in FLOATS), None)
    if dtype is None:
        return KernelTypes(item_bytes=2 if _SIXTEEN_BITS.search(name) else None)
    tensor = bool(_TENSOR.search(name)) or dtype.startswith(("tf32", "float8", "float4", "int8"))
    tensor |= on_tensor and dtype in ("bfloat16", "float16")
    tensor &= dtype != "float32"
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


def shown_types(types: KernelTypes, product: bool, integers: bool = True) -> str:
    """Types as short names write them: 'bf16' of a product, else as C++: 'float -> bfloat16'.

    >>> shown_types(KernelTypes("bfloat16", source="float32"), False)
    'float -> bfloat16'
    """
    if product:
        unit = types.unit.removesuffix("_tensor")
        dtype = unit if unit.startswith("tf32") else types.dtype or ""
        return str(_FILE["short"].get(dtype, dtype))
    said = (types.source, types.dtype)
    written = [_CPP_OF.get(t, t) for t in said if t and (integers or t in FLOATS)]
    return " -> ".join(written)

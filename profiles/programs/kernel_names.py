"""Kernels that PyTorch's products run on a GPU, by data type: `python kernel_names.py OUT.json`.

What the letters of cuBLAS's kernels mean is read off here: `perfmodel/base/kernels/types.toml`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

SIZES = ((2048, 2048, 2048), (4096, 512, 1024), (256, 256, 8192), (64, 4096, 512), (16, 48, 4096))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ACTIVITY = ProfilerActivity.CUDA if DEVICE == "cuda" else ProfilerActivity.CPU
NO_KERNEL = ("cu", "Activity", "INVALID", "Lazy", "Runtime", "Mem")
"""What else CUPTI's activities are called."""
PLAIN = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64,
         "complex64": torch.complex64}  # fmt: skip


def products() -> Iterator[tuple[str, Callable[[], object]]]:
    """Products of every data type."""
    for name, dtype in PLAIN.items():
        for m, n, k in SIZES:
            a, b = (torch.randn(s, device=DEVICE).to(dtype) for s in ((m, k), (k, n)))
            yield name, lambda a=a, b=b: a @ b
            yield name, lambda a=a, b=b: torch.addmm(a[:1, :1].expand(1, b.shape[1])[0], a, b)
    for name, allowed in (("float32", False), ("tf32", True)):
        for m, n, k in SIZES:
            a, b = (torch.randn(s, device=DEVICE) for s in ((m, k), (k, n)))

            def product(
                a: torch.Tensor = a, b: torch.Tensor = b, allowed: bool = allowed
            ) -> object:
                torch.backends.cuda.matmul.allow_tf32 = allowed
                return a @ b

            yield name, product
    for kind in ("float8_e4m3fn", "float8_e5m2"):
        for out in (torch.bfloat16, torch.float16, torch.float32):
            for m, n, k in SIZES[:4]:
                a = torch.randn(m, k, device=DEVICE).to(getattr(torch, kind))
                b = torch.randn(n, k, device=DEVICE).to(torch.float8_e4m3fn).t()
                one = torch.ones((), device=DEVICE)
                yield (
                    f"{kind} -> {out}",
                    lambda a=a, b=b, one=one, out=out: torch._scaled_mm(
                        a, b, one, one, out_dtype=out
                    ),
                )
    for m, n, k in SIZES[:4]:
        a = torch.randint(-9, 9, (m, k), device=DEVICE, dtype=torch.int8)
        b = torch.randint(-9, 9, (n, k), device=DEVICE, dtype=torch.int8).t()
        yield "int8", lambda a=a, b=b: torch._int_mm(a, b)


def kernels_of(several: Sequence[Callable[[], object]]) -> list[str]:
    """Names of the kernels of products, or why they were refused."""
    found = []
    with profile(activities=[ACTIVITY]) as recorded:
        for product in several:
            try:
                product()
            except RuntimeError as error:
                found.append(f"refused: {str(error).splitlines()[0][:120]}")
        torch.cuda.synchronize()
    names = (event.key for event in recorded.key_averages())
    return [*found, *(name for name in names if not name.startswith(NO_KERNEL))]


def main() -> None:
    by_type: dict[str, list[Callable[[], object]]] = {}
    for name, product in products():
        by_type.setdefault(name, []).append(product)
    found = {name: kernels_of(several) for name, several in by_type.items()}
    said = {k: sorted(set(v)) for k, v in found.items()}
    gpu = torch.cuda.get_device_name() if DEVICE == "cuda" else "none"
    document = {"gpu": gpu, "torch": torch.__version__, "kernels": said}
    Path(sys.argv[1]).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""GEMMs by Hopper's own instructions, TMA and wgmma (hopper.cu), against cuBLAS and ours.

    python -m benchmarks.gemm.hopper          # on an H100 or H200, with nvcc and CuPy

Products are of the form NT: rows of both factors lie along k, as TF32 factors of wgmma must.
Results: benchmarks/results/gemm_hopper.json.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.common import folders, results
from benchmarks.gemm.bench import Gpu, in_turns
from benchmarks.gemm.problems import Problem
from trainer.kernels import make_gemm

RESULTS: Final = folders.RESULTS / "gemm_hopper.json"
SOURCE: Final = Path(__file__).with_suffix(".cu")
PROBLEMS: Final = (
    Problem("square", 2048, 2048, 2048, "NT"),
    Problem("square", 4096, 4096, 4096, "NT"),
    Problem("square", 8192, 8192, 8192, "NT"),
    Problem("forward GEMM 1", 512, 3072, 768, "NT", 512, 3072),
    Problem("forward GEMM 1", 2048, 6144, 768, "NT", 2048, 6144),
)
"""Sizes of the network rounded to multiples of the tiles."""
BM, BK = 128, 32
_FLOAT32, _SWIZZLE_128B, _L2_128B = 7, 3, 2  # CUtensorMapDataType, Swizzle, L2promotion
_MAP_BYTES = 128


class HopperGemm:
    """out = a b, a (m, k) row-major and b (k, n) the transpose of a row-major matrix.

    Parameters
    ----------
    columns : {128, 256}
        Of a block's tile.
    parts : {1, 3}
        TF32 as it is, or three products of split factors, which are split in every call.
    stages : int
    """

    def __init__(self, columns: int, parts: int, stages: int) -> None:
        import cupy

        self.cupy, self.columns, self.parts = cupy, columns, parts
        with tempfile.TemporaryDirectory() as folder:
            cubin = Path(folder) / "hopper.cubin"
            macros = [f"-DBN={columns}", f"-DPARTS={parts}", f"-DSTAGES={stages}"]
            words = ["nvcc", "-arch=sm_90a", "-std=c++17", "-cubin", *macros, str(SOURCE)]
            subprocess.run([*words, "-o", str(cubin)], check=True)
            module = cupy.RawModule(path=str(cubin))
            self._kernel = module.get_function("gemm_hopper")
            self._split = module.get_function("split")
        factors = 1 if parts == 1 else 2
        self._shared = stages * factors * (BM + columns) * BK * 4 + 1024
        self._kernel.max_dynamic_shared_size_bytes = self._shared
        self._plans: dict[Any, Any] = {}

    def __call__(self, a: Any, b: Any, out: Any) -> None:
        """Multiply."""
        key = a.data.ptr, b.data.ptr, out.data.ptr, a.shape, b.shape
        if key not in self._plans:
            self._plans[key] = self._plan(a, b.T, out)
        splits, arguments, grid = self._plans[key]
        for x, high, low in splits:
            self._split((-(-x.size // 1024),), (256,), (x, high, low, np.int32(x.size // 4)))
        self._kernel((grid,), (384,), arguments, shared_mem=self._shared)

    def _plan(self, a: Any, b: Any, out: Any) -> Any:
        (m, k), n = a.shape, b.shape[0]
        assert all(x.flags.c_contiguous for x in (a, b, out))
        assert m % BM == n % self.columns == k % BK == 0
        splits: list[Any] = []
        pairs = []
        for x in (a, b):
            pair = (x, x) if self.parts == 1 else (self.cupy.empty_like(x), self.cupy.empty_like(x))
            splits += [] if self.parts == 1 else [(x, *pair)]
            pairs.append(pair)
        maps = [
            tensor_map(part, rows)
            for pair, rows in zip(pairs, (BM, self.columns), strict=True)
            for part in pair
        ]
        sizes = (np.int32(m), np.int32(n), np.int32(k))
        return splits, (*maps, out, *sizes), m // BM * (n // self.columns)


def tensor_map(matrix: Any, rows: int) -> np.ndarray:
    """Return a CUtensorMap of a row-major float32 matrix, for boxes of so many rows by 32."""
    driver = ctypes.CDLL("libcuda.so.1")
    room = ctypes.create_string_buffer(_MAP_BYTES + 64)
    address = -(-ctypes.addressof(room) // 64) * 64
    height, width = matrix.shape
    code = driver.cuTensorMapEncodeTiled(
        ctypes.c_void_p(address), _FLOAT32, 2, ctypes.c_void_p(matrix.data.ptr),
        (ctypes.c_uint64 * 2)(width, height), (ctypes.c_uint64 * 1)(4 * width),
        (ctypes.c_uint32 * 2)(BK, rows), (ctypes.c_uint32 * 2)(1, 1),
        0, _SWIZZLE_128B, _L2_128B, 0,
    )  # fmt: skip
    if code:
        raise SystemExit(f"cuTensorMapEncodeTiled: CUDA error {code}")
    words = np.frombuffer(ctypes.string_at(address, _MAP_BYTES), np.uint64).copy()
    found: np.ndarray = words.view([("words", np.uint64, words.shape)])
    return found


KERNELS: Final = {
    "tf32": {
        "wgmma 128x128": lambda: HopperGemm(128, 1, 4),
        "wgmma 128x256": lambda: HopperGemm(256, 1, 4),
        "hierarchical": lambda: make_gemm("hierarchical", math="tf32"),
        "cublas": lambda: make_gemm("cublas", math="tf32"),
    },
    "tf32x3": {
        "wgmma 128x128": lambda: HopperGemm(128, 3, 3),
        "hierarchical": lambda: make_gemm("hierarchical", math="tf32x3"),
        "cublas": lambda: make_gemm("cublas"),
    },
}
"""By way to multiply; tf32x3 is compared with cuBLAS's float32."""


def main() -> None:
    """Time all in turns; write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    a = parser.parse_args()
    bench = Gpu()
    rows: list[dict[str, Any]] = []
    for dtype, makers in KERNELS.items():
        gemms = {name: make() for name, make in makers.items()}
        for seed, problem in enumerate(PROBLEMS):
            rows += in_turns(bench, gemms, problem, dtype, seed)
            results.write(a.out, {
                "command": results.command("gemm.hopper", sys.argv[1:]), "date": results.now(),
                **bench.describe(), "rows": rows,
            }, 6)  # fmt: skip


if __name__ == "__main__":
    main()

"""nvcc compiles every kernel for Hopper (sm_90) without spilling registers, and within bounds."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.kernels.hierarchical import MATH, TILES
from trainer.kernels.launch import Operand
from trainer.kernels.peer import THREADS
from trainer.kernels.source import FOLDER
from trainer.kernels.thin import ThinGemm

pytestmark = pytest.mark.slow

Variant = tuple[str, dict[str, str | int], int]
"""A file, its macros, and the registers a thread may take."""

MOST = 255
"""What a thread can have; a block of 8 warps then fills a multiprocessor's 65536."""


REALS = {"float32": "float", "float64": "double"}


def _plain() -> Iterator[Variant]:
    for real in ("float", "double"):
        yield "naive", {"REAL": real}, 64
        yield "tiled", {"REAL": real}, 64  # 32 warps of 64 fill a multiprocessor
        wide = 4 if real == "float" else 2
        for each, step, vector, staged in (
            (1, 4, 1, 0), (1, 4, wide, 0), (1, 16, wide, 0), (1, 16, wide, 1), (2, 16, wide, 1),
            (4, 8, wide, 1),
        ):  # fmt: skip
            if each == 4 and real == "double":
                continue  # more sums than registers
            macros: dict[str, str | int] = {
                "REAL": real, "EACH": each, "STEP": step, "WIDE": vector,
                "A_WIDE": int(vector > 1), "STAGED": staged,
            }  # fmt: skip
            yield "register", macros, 255


def _thin() -> list[Variant]:
    """Return what the plans of the network's thin products ask for, and of odd ones."""
    asked: dict[str, Variant] = {}

    def load(name: str, **macros: Any) -> Any:
        threads = 32 * macros["WARPS"]
        asked[str((name, macros))] = name, macros, min(MOST, 65536 // threads)
        return SimpleNamespace(get_function=lambda kernel: kernel)

    gemm = ThinGemm(SimpleNamespace(multiprocessors=132, load=load))
    shapes = {
        "float": ((10, 512, 1500), (10, 2048, 6000), (10, 512, 750), (16, 129, 1501)),
        "double": ((10, 512, 1500), (16, 129, 1501)),
    }
    for real, some in shapes.items():
        for c, h, b in some:
            w2, a1, z2 = (Operand(*s, s[1], 1, 0) for s in ((c, h), (h, b), (c, b)))
            ones = Operand(b, 1, 1, 0, 0)
            for x, y in ((w2, a1), (w2.transposed, z2), (z2, a1.transposed), (z2, ones)):
                out = Operand(x.rows, y.columns, y.columns, 1, 0)
                gemm.plan(x, y, out, real)
    return list(asked.values())


def _hierarchical() -> Iterator[Variant]:
    """Yield both layouts that the network's large products have: x^T with a sigmoid, and x."""
    for (kind, dtype), tiles in TILES.items():
        math = {"tf32x2": "tf32x3"}.get(kind, kind)
        for tile in tiles.tiles:
            for b_along_k in (1, 0):
                macros: dict[str, str | int] = {
                    "REAL": REALS[dtype], "MATH": MATH[math], "B_EXACT": int(kind == "tf32x2"),
                    "BM": tile.bm, "BN": tile.bn, "BK": tile.bk, "WM": tile.wm, "WN": tile.wn,
                    "STAGES": tile.stages, "A_ALONG_K": 1, "B_ALONG_K": b_along_k,
                    "A_ALIGNED": 1, "B_ALIGNED": 1, "C_ALIGNED": 1, "SIGMOID": b_along_k,
                }  # fmt: skip
                yield "hierarchical", macros, min(MOST, 65536 // tile.threads)


def _fused() -> Iterator[Variant]:
    """Yield what `FusedNetwork` asks for: 512 threads of output_layer fill a multiprocessor."""
    for real, classes, rows, sigmoid in (
        ("float", 10, 2, 0), ("float", 10, 2, 1), ("float", 10, 1, 0), ("float", 2, 1, 1),
        ("float", 16, 2, 0), ("float", 16, 2, 1), ("float", 32, 1, 0), ("float", 32, 1, 1),
        ("double", 10, 1, 0), ("double", 16, 1, 0),
    ):  # fmt: skip
        vector = 4 if real == "float" and classes <= 16 else 1
        macros: dict[str, str | int] = {
            "REAL": real, "CLASSES": classes, "ROWS": rows, "VECTOR": vector, "SIGMOID": sigmoid,
        }  # fmt: skip
        yield "fused", macros, MOST


def _peer() -> Iterator[Variant]:
    for real in REALS.values():
        for ranks in (1, 2, 4, 8):
            yield "peer", {"REAL": real, "RANKS": ranks}, 65536 // THREADS


VARIANTS = [*_plain(), *_thin(), *_hierarchical(), *_fused(), *_peer()]


def _named(variant: Variant) -> str:
    return f"{variant[0]}-{'-'.join(str(value) for value in variant[1].values())}"


@pytest.fixture(scope="session")
def nvcc() -> str:
    found = shutil.which("nvcc")
    if found is None:
        pytest.skip("no nvcc to compile kernels for sm_90: install the CUDA toolkit")
    return found


@pytest.mark.parametrize("variant", VARIANTS, ids=_named)
def test_a_kernel_fits_hopper(variant: Variant, nvcc: str, tmp_path: Path) -> None:
    name, macros, most = variant
    defines = [f"-D{macro}={value}" for macro, value in macros.items()]
    done = subprocess.run(
        [nvcc, "-arch=sm_90", "-std=c++17", "-cubin", "-Xptxas", "-v", *defines,
         str(FOLDER / f"{name}.cu"), "-o", str(tmp_path / "kernel.cubin")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    spilled = re.findall(r"(\d+) bytes spill (?:stores|loads)", done.stderr)
    assert spilled, f"nvcc said nothing of spills: {done.stderr}"
    assert not any(int(size) for size in spilled), done.stderr
    registers = [int(count) for count in re.findall(r"Used (\d+) registers", done.stderr)]
    assert max(registers) <= most, done.stderr


def test_every_kernel_is_compiled() -> None:
    assert {path.stem for path in FOLDER.glob("*.cu")} == {name for name, _, _ in VARIANTS}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.cu")), ids=lambda path: path.stem)
def test_a_source_reads_on_its_own(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("//"), "wanted a comment at the top that explains the algorithm"
    assert "#include" not in text

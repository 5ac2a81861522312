"""Compiles .cu files for the CPU (cuda_on_cpu.h says how) and calls their kernels as CuPy does.

    emulator = Emulator(folder)
    kernel = emulator.load("tiled", REAL="float").get_function("tiled")
    kernel((2, 1), (32, 32), (a, b, out, ...), shared_mem=0)    # NumPy arrays

An `Emulator` is what a GEMM of `trainer.kernels` takes as its device; give it arrays made by
`device_array`, which have CuPy's ``.data.ptr``.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.common.folders import ROOT

HERE = Path(__file__).resolve().parent
KERNELS = ROOT / "trainer" / "kernels"
FLAGS = (
    "-std=c++17", "-O0", "-g0", "-w", "-fPIC", "-shared", "-fno-extern-tls-init",
    "-fvisibility=hidden", "-U_FORTIFY_SOURCE", "-fsanitize=undefined",
    "-fno-sanitize=signed-integer-overflow,vptr", "-fsanitize-undefined-trap-on-error",
)  # fmt: skip
PAGE = mmap.PAGESIZE


class KernelError(Exception):
    """A kernel did on the CPU what it must not do on a GPU."""


def compiler() -> str | None:
    """Return the C++ compiler, or None."""
    return shutil.which("g++")


class Emulator:
    """A CPU that compiles and runs CUDA kernels.

    Parameters
    ----------
    folder : Path
        For the libraries; each is compiled once.
    order : int
        Of threads and blocks: 0 ascending, 1 descending, else a random seed. May be changed.
    """

    multiprocessors = 132

    def __init__(self, folder: Path, order: int = 0) -> None:
        self.folder, self.order = folder, order
        self._modules: dict[Any, Module] = {}

    def load(self, name: str, **macros: str | int) -> Module:
        """Compile trainer/kernels/NAME.cu, as `trainer.kernels.source.load` does for a GPU."""
        return self.compile((KERNELS / f"{name}.cu").read_text(encoding="utf-8"), name, **macros)

    def compile(self, text: str, name: str = "kernels", **macros: str | int) -> Module:
        """Compile CUDA source; kernels that are not templates, and shared memory, are found."""
        key = (text, tuple(sorted(macros.items())))
        if key not in self._modules:
            stem = f"{name}_{len(self._modules)}"
            self._modules[key] = Module(self, _build(self.folder, stem, text, macros))
        return self._modules[key]


class Module:
    """What `cupy.RawModule` is."""

    def __init__(self, emulator: Emulator, library: Path) -> None:
        self._emulator, self._library = emulator, ctypes.CDLL(str(library))

    def get_function(self, name: str) -> Kernel:
        """Return the kernel of this name."""
        return Kernel(self._emulator, self._library, name)


class Kernel:
    """What `cupy.RawKernel` is: ints are 8 bytes, floats 8, NumPy scalars what they are.

    An array of structured dtype is passed by value; uint64, which is uintp, is an address.
    """

    max_dynamic_shared_size_bytes = 0

    def __init__(self, emulator: Emulator, library: ctypes.CDLL, name: str) -> None:
        self._emulator = emulator
        self._launch = getattr(library, f"{name}_on_cpu")
        self._launch.restype = ctypes.c_char_p
        signature = getattr(library, f"{name}_on_cpu_signature")
        signature.restype = ctypes.c_char_p
        self.signature = signature().decode().split()

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...],
        *, shared_mem: int = 0,
    ) -> None:  # fmt: skip
        """Run all blocks; raise KernelError at what `cuda_on_cpu.h` finds."""
        values = [_value(arg) for arg in args]
        given = [kind for kind, _ in values]
        if given != self.signature:
            raise TypeError(f"wanted arguments {self.signature}, found {given}")
        pointers = (ctypes.c_void_p * len(values))(*(v.ctypes.data for _, v in values))
        sizes = [(ctypes.c_uint * 3)(*(*size, 1, 1)[:3]) for size in (grid, block)]
        failed = self._launch(*sizes, ctypes.c_size_t(shared_mem), pointers, self._emulator.order)
        if failed:
            raise KernelError(failed.decode())


def _value(arg: Any) -> tuple[str, np.ndarray]:
    """Return the kind of an argument, as the library's signature writes it, and its memory."""
    if isinstance(arg, np.ndarray) and arg.dtype.kind == "V":  # a structure, by value
        return f"s{arg.nbytes}", arg
    if isinstance(arg, np.ndarray) and arg.ndim > 0:
        return "p8", np.array([arg.ctypes.data], np.uint64)
    if isinstance(arg, np.uint64):  # an address, perhaps null
        return "p8", np.array([arg])
    value = np.array([arg])
    kinds = {"i": "i", "u": "i", "b": "i", "f": "f", "V": "s"}
    return f"{kinds[value.dtype.kind]}{value.itemsize}", value


def _build(folder: Path, stem: str, text: str, macros: dict[str, str | int]) -> Path:
    source, wrapper, library = (folder / f"{stem}{end}" for end in (".cu", ".cpp", ".so"))
    source.write_text(text, encoding="utf-8")
    defines = [f"-D{name}={value}" for name, value in macros.items()]
    bare = ["-DCUDA_ON_CPU", "-D__launch_bounds__(...)=", "-D__align__(...)="]
    plain = _run(["g++", "-E", "-P", "-x", "c++", *bare, *defines, str(source)])
    plain = re.sub(r"template\s*<[^{;]*?>[\w\s]*__global__", "", plain)
    kernels = re.findall(r"__global__\s+(?:static\s+)?void\s+(\w+)", plain)
    shared = dict.fromkeys(re.findall(r"extern\s+__shared__[\w\s]*?(\w+)\s*\[", plain))
    lines = ['#include "cuda_on_cpu.h"', f'#include "{source}"']
    lines += [f"CUDA_ON_CPU_KERNEL({kernel})" for kernel in kernels]
    lines += [f"CUDA_ON_CPU_DYNAMIC_SHARED({array})" for array in shared]
    wrapper.write_text("\n".join(lines) + "\n", encoding="utf-8")
    _run(["g++", *FLAGS, *defines, f"-I{HERE}", str(wrapper), "-o", str(library)])
    return library


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[-4000:]}"
    return done.stdout


class _DeviceArray(np.ndarray):
    """A NumPy array that tells its address as CuPy's do."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


def device_array(values: Any, *, at_the_end: bool = True, shift: int = 0) -> Any:
    """Copy an array to between two pages that nobody may touch, the rest filled with bytes 0xFF.

    Parameters
    ----------
    values : array
        C-contiguous copy of it is made; views of the result know their addresses too.
    at_the_end : bool
        Whether its last byte is the last before the forbidden page, or its first one the first
        after the other.
    shift : int
        Elements to leave free there, to move the array off an alignment.
    """
    array = np.ascontiguousarray(values)
    room = (array.nbytes + shift * array.itemsize + PAGE - 1) // PAGE * PAGE
    memory = mmap.mmap(-1, room + 2 * PAGE)
    memory[:] = b"\xff" * len(memory)
    offset = PAGE + shift * array.itemsize
    if at_the_end:
        offset = PAGE + room - array.nbytes - shift * array.itemsize
    held = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
    held[...] = array
    libc = ctypes.CDLL(None, use_errno=True)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    for page in (address, address + PAGE + room):
        assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0) == 0
    return held.view(_DeviceArray)

"""Adds two vectors in several ways and says where the time went: host loops, NumPy, CUDA."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

SOURCE: Final = Path(__file__).resolve().parent / "vecadd.cu"
LOOP: Final = """
extern "C" void add(long long n, const float* x, const float* y, float* out)
{
    for (long long i = 0; i < n; ++i) out[i] = x[i] + y[i];
}
"""
COMPILERS: Final = ("g++", "c++", "clang++")
THREADS: Final = 256
SECTOR: Final = 8
"""Floats in the 32 bytes that a GPU loads at a time."""
MILLIONS: Final = (1.0, 5.0, 10.0, 50.0, 100.0)
"""Sizes of the lab, in millions of floats."""
HOPS: Final = 200_000
SPAN: Final = 1 << 26
"""Loads that are timed, and numbers in the memory they go through."""

Vector = npt.NDArray[np.float32]
Seconds = dict[str, float]


class Gpu:
    """The current GPU, by CuPy and NVRTC."""

    def __init__(self) -> None:
        import cupy

        self._cuda = cupy.cuda
        self._module = cupy.RawModule(
            code=SOURCE.read_text(encoding="utf-8"), options=("-std=c++17",), backend="nvrtc"
        )
        memory = self.allocate(4)
        at = np.uint64(memory.ptr)
        self.run("chase", 1, 1, (at, at, np.int64(0)))  # both are compiled and loaded from here on
        self.run("add", 1, 1, (at, at, at, np.int64(0)))

    def allocate(self, size_bytes: int) -> Any:
        """Return memory of the device's own: at `ptr`, free once nobody refers to it."""
        return self._cuda.Memory(size_bytes)  # cudaMalloc, no pool

    def managed(self, size_bytes: int) -> Any:
        """Return unified memory likewise."""
        return self._cuda.malloc_managed(size_bytes)

    def copy_in(self, target: int, source: npt.NDArray[Any]) -> None:
        """Copy to the device and wait."""
        runtime = self._cuda.runtime
        runtime.memcpy(target, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice)
        runtime.deviceSynchronize()

    def copy_out(self, target: npt.NDArray[Any], source: int) -> None:
        """Copy to the host and wait."""
        runtime = self._cuda.runtime
        runtime.memcpy(target.ctypes.data, source, target.nbytes, runtime.memcpyDeviceToHost)

    def view(self, address: int, count: int) -> Vector:
        """Return floats of unified memory as an array."""
        held = (ctypes.c_float * count).from_address(address)
        return np.frombuffer(held, np.float32)

    def run(self, kernel: str, grid: int, block: int, args: tuple[Any, ...]) -> float:
        """Launch, wait, and return the seconds between two events around it."""
        function = self._module.get_function(kernel)
        first, last = self._cuda.Event(), self._cuda.Event()
        first.record()
        function((grid,), (block,), args)
        last.record()
        last.synchronize()
        return float(self._cuda.get_elapsed_time(first, last)) / 1e3

    def free_bytes(self) -> int:
        """Return what nobody has allocated."""
        return int(self._cuda.runtime.memGetInfo()[0])

    def about(self) -> dict[str, Any]:
        """Return what the measurements ran on."""
        import cupy

        device = cupy.cuda.Device()
        said = device.attributes
        name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
        return {
            "device": name, "cupy": cupy.__version__,
            "driver": cupy.cuda.runtime.driverGetVersion(),
            "concurrent_managed_access": bool(said.get("ConcurrentManagedAccess", 0)),
            "pageable_memory_access": bool(said.get("PageableMemoryAccess", 0)),
        }  # fmt: skip


def shape(way: str, n: int) -> tuple[int, int]:
    """Return blocks and threads of a block, by the name of the way."""
    return {"thread": (1, 1), "block": (1, THREADS), "grid": (-(-n // THREADS), THREADS)}[way]


class _Watch:
    """A stopwatch that is read in laps."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        before, self._last = self._last, time.perf_counter()
        return self._last - before


def explicit(device: Gpu, way: str, x: Vector, y: Vector, out: Vector) -> Seconds:
    """Allocate, copy in, add, copy out, free: the lab's program without unified memory."""
    watch, found = _Watch(), {}
    buffers = [device.allocate(x.nbytes) for _ in range(3)]
    at = [np.uint64(buffer.ptr) for buffer in buffers]
    found["allocate_s"] = watch.lap()
    device.copy_in(int(at[0]), x)
    device.copy_in(int(at[1]), y)
    found["copy_in_s"] = watch.lap()
    found["kernel_s"] = device.run("add", *shape(way, x.size), (*at, np.int64(x.size)))
    launched_s = watch.lap()
    device.copy_out(out, int(at[2]))
    found["copy_out_s"] = watch.lap()
    buffers.clear()
    found["free_s"] = watch.lap()
    return _with_total(found, launched_s - found["kernel_s"])


def managed(device: Gpu, way: str, x: Vector, y: Vector, out: Vector) -> Seconds:
    """Write unified memory on the host, add twice, and read the sum on the host.

    Pages come to the GPU when the first kernel touches them; the second finds them there. The
    total is the lab's program, which adds once.
    """
    watch, found = _Watch(), {}
    buffers = [device.managed(x.nbytes) for _ in range(3)]
    at = [np.uint64(buffer.ptr) for buffer in buffers]
    on_host = [device.view(int(a), x.size) for a in at]
    found["allocate_s"] = watch.lap()
    np.copyto(on_host[0], x)
    np.copyto(on_host[1], y)
    found["first_touch_s"] = watch.lap()
    args = (*at, np.int64(x.size))
    found["kernel_s"] = device.run("add", *shape(way, x.size), args)
    launched_s = watch.lap()
    second_s = device.run("add", *shape(way, x.size), args)
    watch.lap()
    np.copyto(out, on_host[2])
    found["read_back_s"] = watch.lap()
    on_host.clear()
    buffers.clear()
    found["free_s"] = watch.lap()
    return {**_with_total(found, launched_s - found["kernel_s"]), "second_kernel_s": second_s}


def _with_total(found: Seconds, launch_s: float) -> Seconds:
    rest = max(0.0, launch_s)  # what the host waited beyond the events
    return {**found, "launch_s": rest, "total_s": sum(found.values()) + rest}


def loop_in_c(folder: Path) -> Callable[[Vector, Vector, Vector], None]:
    """Compile a loop over the elements; raise RuntimeError where there is no compiler."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise RuntimeError(f"expected one of {', '.join(COMPILERS)}; got none; install one")
    source, library = folder / "loop.cpp", folder / "loop.so"
    source.write_text(LOOP, encoding="utf-8")
    words = [compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(words, check=True, capture_output=True, text=True)
    function = ctypes.CDLL(str(library)).add

    def add(x: Vector, y: Vector, out: Vector) -> None:
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (x, y, out)]
        function(ctypes.c_longlong(x.size), *pointers)

    return add


def loop_in_python(x: Vector, y: Vector, out: Vector) -> None:
    """Add one element after another in Python."""
    for i in range(x.size):
        out[i] = x[i] + y[i]


def on_hosts(folder: Path) -> dict[str, Callable[[], Callable[..., Seconds]]]:
    """Return what makes the ways to add on the host, by name; a compiler may be missing."""
    return {
        "numpy": lambda: on_host(lambda x, y, out: np.add(x, y, out=out)),
        "loop": lambda: on_host(loop_in_c(folder)), "python": lambda: on_host(loop_in_python),
    }  # fmt: skip


def on_host(add: Callable[[Vector, Vector, Vector], None]) -> Callable[..., Seconds]:
    """Return a way that adds on the host."""

    def run(x: Vector, y: Vector, out: Vector) -> Seconds:
        watch = _Watch()
        add(x, y, out)
        return {"total_s": watch.lap()}

    return run


def latencies(device: Gpu, hops: int = HOPS, span: int = SPAN) -> Seconds:
    """Return the seconds of a load that waits for memory, and of one whose data are in L1.

    Both chains go on by 32 bytes, as the additions of one thread do: through 4 KiB, and once
    through the first of `span` numbers, of which the L2 cache holds the last.
    """
    found = {}
    for name, count in (("memory_s", span), ("l1_s", 1024)):  # short ones at a risen clock
        following = np.roll(np.arange(count, dtype=np.uint32), -SECTOR)
        buffers = [device.allocate(following.nbytes), device.allocate(4)]
        at = [np.uint64(buffer.ptr) for buffer in buffers]
        device.copy_in(int(at[0]), following)
        seconds = [device.run("chase", 1, 1, (*at, np.int64(h))) for h in (0, hops)]
        found[name] = (seconds[1] - seconds[0]) / hops
    return found

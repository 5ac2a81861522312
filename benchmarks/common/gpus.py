"""The GPUs of this machine, as the CUDA driver counts them: no library and no tool is needed."""

from __future__ import annotations

import ctypes
import shutil


def require(count: int = 1) -> None:
    """End the program where there are fewer GPUs than it needs, before it writes anything.

    Raises
    ------
    SystemExit
        If the driver lists fewer; with the reason.
    """
    found, why = visible()
    if found < count:
        wanted = "a GPU" if count == 1 else f"{count} GPUs"
        raise SystemExit(
            f"expected {wanted}; got {found or 'none'}: {why}; run it where `nvidia-smi -L` lists "
            f"{'one' if count == 1 else count}"
        )


def require_tool(name: str, what: str) -> None:
    """End the program where a tool is not on the PATH.

    Raises
    ------
    SystemExit
        If it is not; with what provides it.
    """
    if not shutil.which(name):
        raise SystemExit(f"expected {name} on the PATH; got none; install {what}")


def visible() -> tuple[int, str]:
    """Return how many GPUs the CUDA driver lists for this process, and the source or the reason."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, "the CUDA driver (libcuda.so.1) is not installed"
    if error := driver.cuInit(0):
        return 0, f"cuInit of the CUDA driver returned {error}"
    count = ctypes.c_int()
    error = driver.cuDeviceGetCount(ctypes.byref(count))
    return (0, f"cuDeviceGetCount returned {error}") if error else (
        count.value, "the CUDA driver lists no more (CUDA_VISIBLE_DEVICES limits them)"
    )  # fmt: skip

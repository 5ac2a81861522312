"""Compiles trainer/kernels/*.cu for the current GPU, each set of macros once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Protocol

from trainer.errors import DeviceError

FOLDER: Final = Path(__file__).resolve().parent
CTYPES: Final = {"f": "float", "d": "double"}
"""C type of a dtype's character: the macro REAL of every kernel."""

_modules: dict[tuple[Any, ...], Any] = {}


def load(name: str, **macros: str | int) -> Any:
    """Compile trainer/kernels/NAME.cu with NVRTC; return its cupy.RawModule.

    Parameters
    ----------
    name : str
    macros : str or int
        Become ``-DMACRO=value``, such as REAL="float".

    Returns
    -------
    cupy.RawModule
        Compiled and loaded on the current device; the same one for the same macros.

    Raises
    ------
    DeviceError
        If NVRTC refuses the source.
    """
    import cupy

    key = (name, tuple(sorted(macros.items())), cupy.cuda.runtime.getDevice())
    if key not in _modules:
        text = (FOLDER / f"{name}.cu").read_text(encoding="utf-8")
        options = ("-std=c++17", *(f"-D{macro}={value}" for macro, value in macros.items()))
        module = cupy.RawModule(code=text, options=options, backend="nvrtc")
        try:
            _ = module.module  # compiles now, so that no batch waits for it
        except cupy.cuda.compiler.CompileException as error:
            raise DeviceError(
                f"expected {name}.cu compiled for this GPU ({' '.join(options)}); got NVRTC's\n"
                f"{error}\ncheck that the package cupy fits the CUDA driver (nvidia-smi)"
            ) from error
        _modules[key] = module
    return _modules[key]


class Device(Protocol):
    """The facts of a device that a GEMM needs; a CPU that emulates one has the same."""

    @property
    def multiprocessors(self) -> int:
        """Return the least number of blocks that can run at a time."""

    def load(self, name: str, **macros: str | int) -> Any:
        """Compile a .cu file; return an object with ``get_function(name)``."""


class CurrentGpu:
    """The GPU that was current when this was made."""

    def __init__(self) -> None:
        import cupy

        device = cupy.cuda.Device()
        self.multiprocessors = int(device.attributes["MultiProcessorCount"])

    def load(self, name: str, **macros: str | int) -> Any:
        """Compile a .cu file."""
        return load(name, **macros)

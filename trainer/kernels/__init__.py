"""GEMMs by name: every one that the trainer can use, made on demand.

A kernel is a .cu file that reads on its own and a class that launches it. To add one, write both
and give it a line in `GEMMS`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Protocol

from trainer.errors import ConfigError

Array = Any
"""A 2-D cupy.ndarray or a view of one."""


class Gemm(Protocol):
    """A matrix multiplication on the device that was current when it was made."""

    name: str

    def __call__(
        self, a: Array, b: Array, out: Array, alpha: float = 1.0, beta: float = 0.0
    ) -> None:
        """Set out to alpha a b + beta out, on the current stream, without allocating.

        Parameters
        ----------
        a, b : Array, (m, k) and (k, n)
            float32 or float64, both and `out` the same, with any strides; m, n, k of any size.
        out : Array, (m, n)
            Rows of neighbouring elements, any distance apart; shares no memory with a and b. It
            is not read when beta is 0.

        Raises
        ------
        ConfigError
            If the shapes, dtypes or strides do not fit.
        """


def _maker(module: str, cls: str, **chosen: bool) -> Callable[..., Gemm]:
    """Return a maker that imports the module when it is called, and passes what is chosen."""

    def make(**options: str) -> Gemm:
        found: Callable[..., Gemm] = getattr(import_module(f"trainer.kernels.{module}"), cls)
        return found(**chosen, **options)

    return make


GEMMS: Final[dict[str, Callable[..., Gemm]]] = {
    "naive": _maker("plain", "NaiveGemm"),
    "tiled": _maker("plain", "TiledGemm"),
    "register": _maker("plain", "RegisterGemm", wide=True),
    "hierarchical": _maker("hierarchical", "HierarchicalGemm"),
    "thin": _maker("thin", "ThinGemm"),
    "cublas": _maker("cublas", "CublasGemm"),
}
"""Makers of a `Gemm` by name; of `math` where `MATHS` has several."""

MATHS: Final = {
    "naive": ("ieee",),
    "tiled": ("ieee",),
    "register": ("ieee",),
    "hierarchical": ("ieee", "tf32", "tf32x3"),
    "thin": ("ieee",),
    "cublas": ("ieee", "tf32"),
}
"""How each can multiply float32: as it is ('ieee'), rounded to TF32 (10 bits of mantissa) for
tensor cores, or there in three GEMMs of TF32 halves, with float32's accuracy."""


def large_gemm(name: str, math: str) -> str:
    """Return the GEMM that multiplies large matrices with ``--gemm NAME``.

    thin and fused multiply what they are made for, and leave the rest to the fastest there is.
    """
    if name == "thin":
        return "cublas"
    if name == "fused":
        return "cublas" if math == "tf32" else "hierarchical"
    return name


def make_gemm(name: str, *, math: str = "ieee") -> Gemm:
    """Return the GEMM called `name` for the current device.

    Raises
    ------
    ConfigError
        If there is no such GEMM, or it does not multiply so.
    """
    if name not in GEMMS:
        raise ConfigError(f"expected a GEMM of {', '.join(GEMMS)}; got {name!r}")
    if math not in MATHS[name]:
        able = [other for other, maths in MATHS.items() if math in maths]
        raise ConfigError(
            f"expected a GEMM that multiplies in {math}; got {name!r} with only "
            f"{', '.join(MATHS[name])}; use {' or '.join(able) or 'ieee'}"
        )
    return GEMMS[name](**({"math": math} if len(MATHS[name]) > 1 else {}))

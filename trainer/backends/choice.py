"""The backend of a run: CuPy where a GPU answers, else NumPy, or the one that was asked for."""

from __future__ import annotations

from trainer.backends.base import Backend
from trainer.backends.numpy import NumpyBackend
from trainer.config import Config
from trainer.errors import ConfigError, DeviceError


def choose(config: Config, local_rank: int) -> Backend:
    """Return the backend that `config` names; ``'auto'`` is CuPy where a GPU answers, else NumPy.

    Raises
    ------
    DeviceError
        If CuPy is asked for but it, the driver or the GPU is missing.
    ConfigError
        If a GPU's way to multiply is asked of NumPy.
    """
    if config.backend != "numpy":
        try:
            from trainer.backends.cupy import CupyBackend

            return CupyBackend(local_rank, gemm=config.gemm, math=config.math)
        except ImportError as error:
            if config.backend != "auto":
                raise DeviceError(
                    f"--backend cupy: expected the package cupy; got none ({error}); run "
                    "pip install cupy-cuda13x (or cupy-cuda12x), or use --backend numpy"
                ) from error
        except DeviceError:
            if config.backend != "auto":
                raise
    for flag, found, usual in (("gemm", config.gemm, "cublas"), ("math", config.math, "ieee")):
        if found != usual:
            raise ConfigError(
                f"--{flag} {found}: expected a CUDA GPU and --backend cupy; got the backend "
                "numpy, which multiplies with its BLAS; leave it out"
            )
    return NumpyBackend()

"""The configuration of a training run: a frozen, validated Config with units in its messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from trainer import kernels
from trainer.errors import ConfigError
from trainer.transports import TRANSPORTS, Kind

DTYPES: Final = ("float32", "float64")
BACKENDS: Final = ("auto", "numpy", "cupy")
PARALLEL: Final = ("data", "model")
PIXELS: Final = ("raw", "unit")
DATA_ON: Final = ("host", "pinned", "prefetch", "device")
GEMMS: Final = ("cublas", *(name for name in kernels.GEMMS if name != "cublas"), "fused")
MATHS: Final = ("ieee", "tf32", "tf32x3")
_ABLE: Final = {  # which --gemm multiply so
    how: tuple(n for n in GEMMS if how in kernels.MATHS[kernels.large_gemm(n, how)])
    for how in MATHS
    if how != "ieee"
}
SYNTHETIC: Final = "synthetic"
MNIST: Final = "mnist"
VERIFY_BOUNDS: Final = {"float32": 1e-5, "float64": 1e-13, "tf32": 5e-3}

_CONTINUES: Final = (  # what a resumed run must share with the checkpointed one
    "input_size", "hidden_size", "num_classes", "batch_size", "learning_rate", "regularization",
    "dtype", "pixels", "seed", "warmup_epochs", "scale_learning_rate",
)  # fmt: skip
_LATER: Final = {"warmup_epochs": 0, "scale_learning_rate": None}
"""Defaults of settings that older checkpoints lack."""

_ROUNDS: Final = ("parallel", "transport", "overlap", "gemm", "math")
"""Settings that a resumed run may change, though sums are then rounded differently."""


@dataclass(frozen=True, slots=True)
class Config:
    """Hyperparameters and machinery of one run; by default, the CME 213 assignment's profiled run.

    Attributes
    ----------
    input_size, hidden_size, num_classes : int
        D, H and C: pixels of an image, hidden neurons, classes.
    batch_size : int
        B, images per step over all ranks; rank r of p works on its B' = B/p.
    epochs : int
        Passes over the training set, in total (a resumed run counts what it did before).
    learning_rate : float
        alpha of ``p <- p - alpha grad J`` (eq. 2 of the assignment).
    warmup_epochs : int
        Epochs in which the rate grows to its peak, batch by batch (`trainer.rates`); 0: none.
    scale_learning_rate : int or None
        The batch that `learning_rate` was chosen for: the peak is learning_rate x B / this one.
    regularization : float
        lambda of ``J = CE + 0.5 lambda ||W||^2`` (eq. 1).
    dtype : str
        Of parameters, images, labels and gradients.
    backend : str
        ``'auto'``, ``'numpy'`` or ``'cupy'``; auto is CuPy where a GPU answers, else NumPy.
    transport : str
        How gradients are summed over ranks: a name in `trainer.transports.TRANSPORTS`.
    overlap : bool
        Start to sum the gradients of W2 and b2 while those of W1 and b1 are computed.
    gemm : str
        Who multiplies matrices on a GPU: ``'cublas'``, one of our kernels, or ``'fused'``: our
        kernels for this network, with the element-wise steps inside.
    math : str
        How a GPU multiplies float32: ``'ieee'``, as it is; ``'tf32'``, factors rounded to TF32
        (10 bits of mantissa) for tensor cores; ``'tf32x3'``, three such GEMMs of split
        factors, with float32's accuracy.
    graph : bool
        Capture the whole step as a CUDA graph and replay it.
    data_on : str or None
        Where the images of a batch come from: ``'host'``, pageable memory; ``'pinned'``, page-
        locked memory; ``'prefetch'``, page-locked memory, the next batch copied while this one
        is computed; ``'device'``: all of them stay on the GPU. None: ``'host'``, or ``'pinned'``
        with the pinned transport.
    parallel : str
        ``'data'``: ranks share the batch; ``'model'``: ranks share the hidden neurons.
    data : str
        ``'mnist'`` ($MNIST_DIR, else a downloaded cache), ``'synthetic'``, or a directory of
        IDX files.
    pixels : str
        ``'raw'`` 0..255 as in the assignment, or ``'unit'`` 0..1.
    train_size, test_size : int or None
        Use the first so many images; None is all of them (60000 and 10000 synthetic ones).
    seed : int
        Of the initial weights and of synthetic data.
    evaluate_every : int
        Accuracy is computed after every so many epochs and after the last; 0: after the last
        only, outside the range 'GPU parallel train'.
    verify : float or None
        Compare with a sequential NumPy run; the largest relative error allowed.
    sync_ranges : bool
        The assignment's MPI_Barrier and cudaDeviceSynchronize calls, so that ranges show the
        work they name.
    checksum : bool
        Refuse MNIST-sized data whose MD5 is not MNIST's.
    threads : int
        BLAS threads per rank; 0 is the cores of this rank.
    """

    input_size: int = 784
    hidden_size: int = 512
    num_classes: int = 10
    batch_size: int = 3000
    epochs: int = 1
    learning_rate: float = 1e-2
    warmup_epochs: int = 0
    scale_learning_rate: int | None = None
    regularization: float = 1e-4
    dtype: str = "float32"
    backend: str = "auto"
    transport: str = "host"
    overlap: bool = False
    gemm: str = "cublas"
    math: str = "ieee"
    graph: bool = False
    data_on: str | None = None
    parallel: str = "data"
    data: str = MNIST
    pixels: str = "raw"
    train_size: int | None = None
    test_size: int | None = None
    seed: int = 1
    evaluate_every: int = 1
    verify: float | None = None
    sync_ranges: bool = False
    checksum: bool = True
    threads: int = 0

    def __post_init__(self) -> None:
        _whole("input_size", self.input_size, 1, "pixels of an image, such as 784")
        _whole("hidden_size", self.hidden_size, 1, "hidden neurons, such as 512")
        _whole("num_classes", self.num_classes, 2, "classes, such as 10")
        if self.num_classes > 256:
            raise ConfigError(f"--num-classes: labels are bytes: expected <= 256 classes; "
                              f"got {self.num_classes}; merge classes")  # fmt: skip
        _whole("batch_size", self.batch_size, 1, "images per step over all ranks, such as 3000")
        _whole("epochs", self.epochs, 1, "passes over the training set")
        _whole("evaluate_every", self.evaluate_every, 0, "epochs between evaluations, 0 for none")
        _whole("threads", self.threads, 0, "BLAS threads per rank, 0 for this rank's cores")
        _whole("seed", self.seed, 0, "any number that names the random sequence")
        for name in ("train_size", "test_size"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1, "images, or leave it out for all of them")
        _number("learning_rate", self.learning_rate, above=True, hint="0.01 to 0.5 is usual")
        _number("regularization", self.regularization, above=False, hint="1e-4 is usual")
        _whole("warmup_epochs", self.warmup_epochs, 0, "epochs of growing rates, 0 for none")
        if self.scale_learning_rate is not None:
            what = "the batch size that --learning-rate was chosen for"
            _whole("scale_learning_rate", self.scale_learning_rate, 1, what)
        if self.peak_learning_rate * self.regularization >= 1:
            raise ConfigError(
                "--learning-rate times --regularization: expected < 1 (a step shrinks each weight "
                f"by that share); got {self.peak_learning_rate * self.regularization:g}; lower one"
            )
        if self.verify is not None:
            _number("verify", self.verify, above=True, hint="a relative error, such as 1e-5")
        _among("dtype", self.dtype, DTYPES)
        _among("backend", self.backend, BACKENDS)
        _among("parallel", self.parallel, PARALLEL)
        _among("transport", self.transport, tuple(TRANSPORTS))
        _among("gemm", self.gemm, GEMMS)
        _among("math", self.math, MATHS)
        if self.data_on is not None:
            _among("data-on", self.data_on, DATA_ON)
        self._check_combinations()
        _among("pixels", self.pixels, PIXELS)

    def _check_combinations(self) -> None:
        """Refuse what does not go together, whatever the machine."""
        if self.math != "ieee" and self.dtype != "float32":
            raise ConfigError(
                f"--math {self.math}: expected --dtype float32, whose factors it rounds or splits; "
                f"got {self.dtype}; leave one of them out"
            )
        if self.math != "ieee" and self.gemm not in _ABLE[self.math]:
            raise ConfigError(
                f"--math {self.math}: expected a --gemm that multiplies so "
                f"({', '.join(_ABLE[self.math])}); got {self.gemm}; take one of those"
            )
        if self.parallel == "model" and self.overlap:
            raise ConfigError(
                "--overlap: hides one gradient's sum behind another's GEMM: expected --parallel "
                "data; got model, whose only sum is needed at once; leave out --overlap"
            )
        if self.parallel == "model":
            for flag, found, instead in (
                ("--gemm", self.gemm, "hierarchical" if self.gemm == "fused" else None),
                ("--transport", self.transport, self._kind.model_parallel_instead),
            ):
                if instead:
                    raise ConfigError(
                        f"{flag} {found}: is made for --parallel data; got --parallel model; "
                        f"use {flag} {instead}"
                    )

    @property
    def _kind(self) -> Kind:
        return TRANSPORTS[self.transport]

    @property
    def parameters(self) -> int:
        """Parameters of the network: n = HD + H + CH + C."""
        hidden, classes = self.hidden_size, self.num_classes
        return hidden * self.input_size + hidden + classes * hidden + classes

    @property
    def images_on(self) -> str:
        """Return the source of batches: `data_on`, or the transport's suggestion."""
        return self.data_on or self._kind.images_on

    @property
    def peak_learning_rate(self) -> float:
        """The rate behind the warm-up: `learning_rate`, or times B / `scale_learning_rate`.

        Source: the linear scaling rule (Goyal et al. 2017, arXiv:1706.02677, section 2.1).
        """
        if self.scale_learning_rate is None:
            return self.learning_rate
        return self.learning_rate * self.batch_size / self.scale_learning_rate

    def check_ranks(self, ranks: int) -> None:
        """Refuse what `ranks` ranks cannot run; every rank needs images, or hidden neurons."""
        flag, whole, what = (
            ("--batch-size", self.batch_size, "image")
            if self.parallel == "data"
            else ("--hidden-size", self.hidden_size, "hidden neuron")
        )
        if whole < ranks:
            raise ConfigError(
                f"{flag}: expected at least one {what} for each of the {ranks} ranks; got "
                f"{whole} {what}s; the nearest valid size is {ranks}"
            )

    def with_(self, **changes: Any) -> Config:
        """Return a copy with some fields changed, validated again."""
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return asdict(self)

    def differences(self, saved: dict[str, Any]) -> list[str]:
        """List what keeps a checkpoint with configuration `saved` from being continued."""
        return self._changes(_CONTINUES, {**_LATER, **saved})

    def roundings(self, saved: dict[str, Any]) -> list[str]:
        """List what keeps a continuation of `saved` from being bit-identical."""
        return self._changes([name for name in _ROUNDS if name in saved], saved)

    def _changes(self, fields: Sequence[str], saved: dict[str, Any]) -> list[str]:
        return [
            f"--{name.replace('_', '-')} was {saved.get(name)!r}, is {getattr(self, name)!r}"
            for name in fields
            if saved.get(name) != getattr(self, name)
        ]


def _whole(name: str, value: object, least: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            f"--{name.replace('_', '-')}: expected a whole number >= {least} ({what}); "
            f"got {value!r}"
        )


def _number(name: str, value: object, *, above: bool, hint: str) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value < 0
        or (above and value == 0)
    ):
        raise ConfigError(
            f"--{name.replace('_', '-')}: expected a finite number {'>' if above else '>='} 0 "
            f"({hint}); got {value!r}"
        )


def _among(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"--{name}: expected one of {', '.join(allowed)}; got {value!r}")

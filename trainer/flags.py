"""The command line: its flags, and the Config they make."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NoReturn

from trainer.config import (
    BACKENDS,
    DATA_ON,
    DTYPES,
    GEMMS,
    MATHS,
    PARALLEL,
    PIXELS,
    VERIFY_BOUNDS,
    Config,
)
from trainer.errors import ConfigError
from trainer.transports import TRANSPORTS

_DEFAULT_BOUND: Final = object()
"""Value of --verify without a number: nothing that could be typed."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see python -m trainer --help")


def _natural(text: str) -> int:
    """Read a number that is not negative."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 on; got {text!r}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser; its defaults are Config's."""
    made = _Parser(
        prog="python -m trainer",
        description="Train a two-layer network on one or many ranks, annotated for Nsight Systems.",
    )
    _add_mathematics(made.add_argument_group("network and gradient descent"))
    _add_data(made.add_argument_group("data"))
    _add_machine(made.add_argument_group("machine"))
    add = made.add_argument_group("results").add_argument
    add("--evaluate-every", type=int, metavar="K", help="epochs between accuracies; 0: at the end")
    add("--verify", type=float, nargs="?", const=_DEFAULT_BOUND, metavar="BOUND",
        help="compare with a sequential NumPy run; a relative error beyond BOUND "
        "(1e-5 float32, 5e-3 tf32, 1e-13 float64) exits with 7")  # fmt: skip
    add("--record", type=Path, metavar="FILE", help="write configuration, curves, timings as JSON")
    add("--checkpoint", type=Path, metavar="DIR", help="save after each epoch and when stopped")
    add("--resume", action="store_true", help="continue from the checkpoint")
    add("--time-first", type=_natural, default=0, metavar="N",
        help="time N batches, then let nsys --capture-range=nvtx begin (nsys.sh does)")  # fmt: skip
    made.set_defaults(**{f.name: f.default for f in fields(Config)})
    return made


def _add_mathematics(group: Any) -> None:
    add = group.add_argument
    add("--input-size", type=int, metavar="D", help="pixels of an image (%(default)s)")
    add("--hidden-size", type=int, metavar="H", help="hidden neurons (%(default)s)")
    add("--num-classes", type=int, metavar="C", help="classes (%(default)s)")
    add("--batch-size", type=int, metavar="B", help="images per step, all ranks (%(default)s)")
    add("--epochs", type=int, help="passes over the images, in total (%(default)s)")
    add("--learning-rate", type=float, help="%(default)s")
    add("--scale-learning-rate", type=int, metavar="B0",
        help="multiply the rate by B / B0, the batch it was chosen for")  # fmt: skip
    add("--warmup-epochs", type=int, metavar="N", help="epochs in which the rate grows to its peak")
    add("--regularization", type=float, help="lambda of 0.5 lambda ||W||^2 (%(default)s)")
    add("--dtype", choices=DTYPES, help="%(default)s")
    add("--seed", type=int, help="of weights and synthetic data (%(default)s)")


def _add_data(group: Any) -> None:
    add = group.add_argument
    add("--data", metavar="DIR|synthetic", help="IDX files ($MNIST_DIR, else a downloaded cache)")
    add("--pixels", choices=PIXELS, help="0..255 as in the assignment, or 0..1 (%(default)s)")
    add("--train-size", type=int, metavar="N", help="only the first N training images")
    add("--test-size", type=int, metavar="N", help="only the first N test images")
    add("--no-checksum", dest="checksum", action="store_false",
        help="accept other data of MNIST's size")  # fmt: skip


def _add_machine(group: Any) -> None:
    add = group.add_argument
    add("--backend", choices=BACKENDS, help="%(default)s: cupy where a GPU answers, else numpy")
    add("--transport", choices=tuple(TRANSPORTS), help="how gradients are summed (%(default)s)")
    add("--overlap", action="store_true", help="sum W2's gradient while W1's is computed")
    add("--parallel", choices=PARALLEL, help="what the ranks divide (%(default)s)")
    add("--data-on", choices=DATA_ON,
        help="where batches come from (host; pinned with the pinned transport)")  # fmt: skip
    add("--gemm", choices=GEMMS, help="who multiplies matrices on a GPU (%(default)s)")
    add("--math", choices=MATHS,
        help="float32 GEMMs as they are, or on tensor cores (%(default)s)")  # fmt: skip
    add("--graph", action="store_true", help="capture the step as a CUDA graph and replay it")
    add("--threads", type=int, help="BLAS threads per rank (%(default)s: this rank's cores)")
    add("--sync-ranges", action="store_true",
        help="the assignment's barriers and synchronizations around ranges")  # fmt: skip


def configure(arguments: argparse.Namespace) -> Config:
    """Turn flags into a validated Config."""
    values = {f.name: getattr(arguments, f.name) for f in fields(Config)}
    if values["verify"] is _DEFAULT_BOUND:
        values["verify"] = VERIFY_BOUNDS["tf32" if values["math"] == "tf32" else values["dtype"]]
    if arguments.resume and arguments.checkpoint is None:
        raise ConfigError("--resume: expected the --checkpoint DIR to continue from; got none")
    return Config(**values)

"""What the trainer allocates on a GPU and page-locked, tensor by tensor, from D, H, C, B, p, b."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from perfmodel.base.errors import WorkloadError
from perfmodel.base.escape import printable
from perfmodel.models.allocators import device_block, pinned_block
from perfmodel.programs.mlp.case import SETTINGS as CHOICES
from perfmodel.programs.mlp.rules import check
from perfmodel.workloads.work import LARGEST

Use = Literal[
    "parameters", "gradients", "optimizer state", "activations", "inputs", "losses", "messages",
    "workspace",
]  # fmt: skip
Memory = Literal["device", "pinned"]

CUBLAS_WORKSPACE_BYTES: Final = 32 << 20
"""What cuBLAS recommends on Hopper (cuBLAS documentation, cublasSetWorkspace) and the trainer sets
aside."""

CUBLAS_OWN_BYTES: Final = (64 << 20, 128 << 10, 1 << 10)
"""What a cuBLAS handle asks CUDA for itself when it is made: seen on an H200, CUDA 13, in
profiles/memory/ (cublasCreate's own workspace, before cublasSetWorkspace gives another)."""

SETTINGS: Final = ("data_on", "transport", "gemm", "math", "parallel")
"""Flags of the trainer that change what is allocated."""

_FLAT_PINNED: Final = ("host-flat", "chunked")


@dataclass(frozen=True, slots=True)
class Allocation:
    """One tensor, or some of one shape.

    Attributes
    ----------
    name, use, memory : str
    bytes : int or None
        Together; None where no formula tells it.
    formula : str
        In the symbols of the model, D, H, C, B' = B/p, b, n.
    count : int
        How many blocks of equal size.
    stays : bool
        Whether it is kept; else it is given back before the next one.
    pooled : bool
        Whether CuPy's pool hands it out; else a library asks CUDA itself.
    """

    name: str
    use: Use
    memory: Memory
    bytes: int | None
    formula: str
    count: int = 1
    stays: bool = True
    pooled: bool = True

    @property
    def held_bytes(self) -> int | None:
        """What CuPy's pools hold for it."""
        if self.bytes is None:
            return None
        block = device_block if self.memory == "device" else pinned_block
        return self.count * block(self.bytes // self.count)


@dataclass(frozen=True, slots=True)
class TrainerCase:
    """The sizes and settings that decide what a rank of the trainer allocates.

    Attributes
    ----------
    D, H, C, B, p, b : int
        As in the model; B over all ranks, b bytes per element.
    images, test_images : int
        N of the training and the test set.
    data_on, transport, gemm, math, parallel : str
        The trainer's flags of these names.
    """

    D: int
    H: int
    C: int
    B: int
    p: int = 1
    b: int = 4
    images: int = 60_000
    test_images: int = 10_000
    data_on: str = "host"
    transport: str = "host"
    gemm: str = "cublas"
    math: str = "ieee"
    parallel: str = "data"

    @property
    def own_hidden(self) -> int:
        """Hidden neurons of the rank with most of them."""
        return -(-self.H // self.p) if self.parallel == "model" else self.H

    @property
    def elements(self) -> int:
        """N = HD + H + CH + C of the rank."""
        return self.own_hidden * (self.D + 1 + self.C) + self.C

    def shares(self, images: int) -> dict[int, int]:
        """Return B' of the batches of a set of so many images, and how many there are of each.

        Of rank 0, which has most; full batches come first, the rest of the set last.
        """
        ranks = 1 if self.parallel == "model" else self.p
        found: dict[int, int] = {}
        for size, count in ((self.B, images // self.B), (images % self.B, 1)):
            if size and count:
                share = -(-size // ranks)
                found[share] = found.get(share, 0) + count
        return found


def trainer_case(
    values: Mapping[str, int], config: Mapping[str, Any], *, images: int, test_images: int
) -> TrainerCase:
    """Return the case of a report: its symbols, and what its configuration mark says.

    Raises
    ------
    WorkloadError
        If a symbol is missing, a setting is not the trainer's, or a rank has nothing to do.
    """
    missing = [name for name in ("D", "H", "C", "B") if name not in values]
    if missing:
        raise WorkloadError(
            f"wanted the sizes of the MLP to count its memory; found no {', '.join(missing)}; "
            f"give --input-size, --hidden-size, --num-classes and --batch-size"
        )
    said = {name: config.get(name) for name in SETTINGS}
    settings: dict[str, Any] = {name: v for name, v in said.items() if isinstance(v, str)}
    for name, found in settings.items():
        if found not in CHOICES[name]:
            raise WorkloadError(
                f"--{name.replace('_', '-')}: wanted one of {', '.join(CHOICES[name])}; found "
                f"{printable(found)!r}; take one of those"
            )
    if settings.get("transport") == "pinned":
        settings.setdefault("data_on", "pinned")
    settings |= {"images": images, "test_images": test_images}
    for name, key in (("images", "train_size"), ("test_images", "test_size")):
        if type(config.get(key)) is int and 0 < config[key] <= LARGEST:
            settings[name] = config[key]
    case = TrainerCase(**settings | {n: values[n] for n in "DHCBpb" if n in values})
    check({name: getattr(case, name) for name in SETTINGS}, case.b, case.C)
    divided, what = (
        ("H", "hidden units") if case.parallel == "model" else ("B", "images of a batch")
    )
    if case.p > values[divided]:
        raise WorkloadError(
            f"wanted at most as many ranks as {what}; found p={case.p}, {divided}="
            f"{values[divided]}; take fewer ranks"
        )
    return case


def allocations(case: TrainerCase) -> tuple[Allocation, ...]:
    """List what rank 0 allocates, in the order in which it does.

    The source of every formula is the code of `trainer/`; tests/test_memory_trainer.py counts there
    and compares.
    """
    return (
        *_products(case),
        *_inputs(case),
        *_network(case),
        *_messages(case),
        *_training(case),
        *_evaluation(case),
    )


def _products(case: TrainerCase) -> Iterator[Allocation]:
    cublas = case.gemm in ("cublas", "thin") or (case.gemm == "fused" and case.math == "tf32")
    if cublas:
        for size in CUBLAS_OWN_BYTES:
            yield Allocation(
                "cuBLAS's own", "workspace", "device", size, f"{size >> 10} KiB", pooled=False
            )
        yield Allocation(
            "cuBLAS", "workspace", "device", CUBLAS_WORKSPACE_BYTES, "32 MiB, as cuBLAS recommends"
        )
    elif case.gemm in ("hierarchical", "fused"):
        yield Allocation(
            "partial sums", "workspace", "device", None, "depends on the tiles that are chosen"
        )


def _inputs(case: TrainerCase) -> Iterator[Allocation]:
    D, C, b = case.D, case.C, case.b  # noqa: N806 (the model's symbols)
    shares, tests = case.shares(case.images), case.shares(case.test_images)
    total, most = sum(share * count for share, count in shares.items()), max(shares)
    if case.data_on == "device":
        for name, each, symbol in (("training images", D, "D"), ("training labels", C, "C")):
            size = b * each * total
            yield Allocation(name, "inputs", "device", size, f"b {symbol} N/p")
            yield Allocation(f"staging of {name}", "inputs", "pinned", size, f"b {symbol} N/p")
        if case.gemm == "fused":
            for share, count in shares.items():
                yield Allocation(
                    f"images by pixels, batches of {share}", "inputs", "device",
                    count * b * D * _of_four(share), "b D B' of each batch", count,
                )  # fmt: skip
    else:
        slots = 2 if case.data_on == "prefetch" else 1
        times = "2 " if slots == 2 else ""
        yield Allocation(
            "images", "inputs", "device", slots * b * D * most, f"{times}b D B'", slots
        )
        yield Allocation(
            "labels", "inputs", "device", slots * b * C * most, f"{times}b C B'", slots
        )
        if case.data_on in ("pinned", "prefetch"):
            yield Allocation("training images", "inputs", "pinned", b * D * total, "b D N/p")
            yield Allocation("training labels", "inputs", "pinned", b * C * total, "b C N/p")
    for name, each, symbol in (("test images", D, "D"), ("test labels", C, "C")):
        yield Allocation(name, "inputs", "device", b * each * max(tests), f"b {symbol} B', largest")


def _network(case: TrainerCase) -> Iterator[Allocation]:
    size = case.b * case.elements
    yield Allocation("W1, b1, W2, b2", "parameters", "device", size, "n b")
    yield Allocation("their gradients", "gradients", "device", size, "n b")
    yield Allocation("none", "optimizer state", "device", 0, "0: gradient descent keeps none")


def _messages(case: TrainerCase) -> Iterator[Allocation]:
    D, H, C, b = case.D, case.own_hidden, case.C, case.b  # noqa: N806
    if case.transport == "nccl":
        yield Allocation("NCCL's buffers", "messages", "device", None, "NCCL's own")
    elif case.transport == "peer":
        why = "see trainer/kernels/peer.py"
        yield Allocation("inbox and flags", "messages", "device", None, why)
    elif case.parallel == "model" and case.transport in ("pinned", *_FLAT_PINNED):
        for share in case.shares(case.images):
            yield Allocation(f"z2 of {share}", "messages", "pinned", b * C * share, "b C B")
    elif case.transport == "pinned":
        for name, n in (("W1", H * D), ("b1", H), ("W2", C * H), ("b2", C)):
            yield Allocation(f"gradient of {name}", "messages", "pinned", b * n, f"b |{name}|")
    elif case.transport in _FLAT_PINNED:
        yield Allocation("gradients", "messages", "pinned", b * case.elements, "n b")


def _training(case: TrainerCase) -> Iterator[Allocation]:
    shares = case.shares(case.images)
    size = case.b * sum(shares.values()) * max(shares)
    yield Allocation("losses of an epoch", "losses", "device", size, "b ceil(N/B) B'")
    if case.parallel == "model":  # which makes its matrices with its transports
        yield from _matrices(case)
    size = case.b * case.elements
    yield Allocation("initial values", "parameters", "device", size, "n b", stays=False)
    yield Allocation("staging of initial values", "parameters", "pinned", size, "n b")
    if case.parallel != "model":
        yield from _matrices(case)


def _matrices(case: TrainerCase) -> Iterator[Allocation]:
    """The activations, with the first step; the fused network's are apart for every width."""
    H, C, b = case.own_hidden, case.C, case.b  # noqa: N806
    widths = {*case.shares(case.images), *case.shares(case.test_images)}
    if case.gemm == "fused":
        for width in sorted(widths, reverse=True):
            columns = _of_four(width)
            size = 2 * b * H * columns
            yield Allocation(
                f"a1, d1, batches of {width}", "activations", "device", size, "2 b H B'", 2
            )
            size = b * C * columns
            yield Allocation(f"z2, batches of {width}", "activations", "device", size, "b C B'")
        return
    most = max(widths)
    yield Allocation("a1, d1", "activations", "device", 2 * b * H * most, "2 b H B'", 2)
    yield Allocation("z2", "activations", "device", b * C * most, "b C B'")
    yield Allocation("ones", "workspace", "device", b * most, "b B'")


def _evaluation(case: TrainerCase) -> Iterator[Allocation]:
    most = max(case.shares(case.images))
    if case.gemm != "fused":
        yield Allocation(
            "scores z2 + b2", "activations", "device", case.b * case.C * most, "b C B'", stays=False
        )


def _of_four(columns: int) -> int:
    """Rows start on 16 bytes of single precision."""
    return -(-columns // 4) * 4

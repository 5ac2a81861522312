"""Memory of the trainer: what each rank allocates, by formula, and what allocators make of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from perfmodel.base.errors import WorkloadError
from perfmodel.base.escape import printable
from perfmodel.programs.mlp.rules import SIZES, TRAIN_IMAGES, accepted
from perfmodel.programs.mlp.settings import GEMMS, TRANSPORTS, parameters, settings_of
from perfmodel.programs.mlp.settings import SETTINGS as CHOICES
from perfmodel.workloads.work import LARGEST

UNIT_BYTES: Final = 512
"""CuPy's device pool hands out multiples of this (cupy/cuda/memory.pyx, ALLOCATION_UNIT_SIZE), and
PyTorch's allocator too (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""


def device_block(size: int) -> int:
    """Return what CuPy's device pool holds for a request of `size` bytes.

    Examples
    --------
    >>> device_block(1_628_200)
    1628672
    """
    return -(-size // UNIT_BYTES) * UNIT_BYTES


def pinned_block(size: int) -> int:
    """Return what CuPy's pinned pool holds: the next power of two, 512 bytes at least.

    Source: cupy/cuda/pinned_memory.pyx, PinnedMemoryPool.malloc.

    Examples
    --------
    >>> pinned_block(188_160_000)
    268435456
    """
    return 0 if size == 0 else 1 << (device_block(size) - 1).bit_length()


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

TEST_IMAGES: Final = 10_000
"""Images of MNIST's test set."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """One tensor, or some of one shape.

    Attributes
    ----------
    name, use, memory : str
    bytes : int or None
        Together; None where no formula gives it.
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
        """Return the bytes that CuPy's pools hold for it."""
        if self.bytes is None:
            return None
        block = device_block if self.memory == "device" else pinned_block
        return self.count * block(self.bytes // self.count)


@dataclass(frozen=True, slots=True)
class Training:
    """A run, and the images of its training and its test set, which decide what is allocated.

    Attributes
    ----------
    sizes : mapping of str to int
        Of `perfmodel.programs.mlp.rules.SIZES`.
    settings : mapping of str to str
        A value for every key of `perfmodel.programs.mlp.settings.SETTINGS`.
    images, test_images : int
    """

    sizes: Mapping[str, int]
    settings: Mapping[str, str]
    images: int = TRAIN_IMAGES
    test_images: int = TEST_IMAGES

    def document(self) -> dict[str, int | str]:
        """Return sizes and settings as what JSON holds."""
        return {
            **{name: self.sizes[name] for name in SIZES},
            "images": self.images,
            "test_images": self.test_images,
            **{name: self.settings[name] for name in SETTINGS},
        }

    @property
    def parallel(self) -> bool:
        """Whether ranks share the hidden units."""
        return self.settings["parallel"] == "model"

    @property
    def rank_sizes(self) -> tuple[int, int, int, int, int]:
        """Return D, H, C, b and n of the rank that has most hidden units."""
        d, h, c, b, p = (self.sizes[name] for name in "DHCbp")
        h = -(-h // p) if self.parallel else h
        return d, h, c, b, int(parameters(d, h, c))

    def shares(self, images: int) -> dict[int, int]:
        """Return B' of the batches of a set of so many images, and how many there are of each.

        Of rank 0, which has most; full batches come first, the rest of the set last.
        """
        batch, ranks = self.sizes["B"], 1 if self.parallel else self.sizes["p"]
        found: dict[int, int] = {}
        for size, count in ((batch, images // batch), (images % batch, 1)):
            if size and count:
                share = -(-size // ranks)
                found[share] = found.get(share, 0) + count
        return found


def training(
    values: Mapping[str, int], config: Mapping[str, Any], *, images: int, test_images: int
) -> Training:
    """Return the training of a report: its symbols, and what its configuration mark says.

    Raises
    ------
    WorkloadError
        If a symbol is missing, a setting is not the trainer's, or a rank has nothing to do.
    """
    missing = [name for name in ("D", "H", "C", "B") if name not in values]
    if missing:
        raise WorkloadError(
            f"expected the sizes of the MLP to count its memory; got no {', '.join(missing)}; "
            f"give --input-size, --hidden-size, --num-classes and --batch-size"
        )
    settings = {name: v for name, v in settings_of(config).items() if name in SETTINGS}
    for name, value in settings.items():
        if value not in CHOICES[name]:
            raise WorkloadError(
                f"--{name.replace('_', '-')}: expected one of {', '.join(CHOICES[name])}; got "
                f"{printable(value)!r}; take one of those"
            )
    sets = {"train_size": images, "test_size": test_images}
    for key in sets:
        if type(config.get(key)) is int and 0 < config[key] <= LARGEST:
            sets[key] = config[key]
    sizes = {"p": 1, "b": 4} | {n: values[n] for n in "DHCBpb" if n in values}
    return Training(*accepted(sizes, settings), sets["train_size"], sets["test_size"])


def allocations(run: Training) -> tuple[Allocation, ...]:
    """List what rank 0 allocates, in the order in which it does.

    The source of every formula is the code of `trainer/`; tests/programs/test_mlp_memory.py counts
    there and compares.
    """
    *_, b, n = run.rank_sizes
    return (
        *_products(run),
        *_inputs(run),
        Allocation("W1, b1, W2, b2", "parameters", "device", n * b, "n b"),
        Allocation("their gradients", "gradients", "device", n * b, "n b"),
        Allocation("none", "optimizer state", "device", 0, "0: gradient descent keeps none"),
        *_messages(run),
        *_training(run),
    )


def _products(run: Training) -> Iterator[Allocation]:
    gemm, math = run.settings["gemm"], run.settings["math"]
    if math in GEMMS[gemm].cublas:
        for size in CUBLAS_OWN_BYTES:
            yield Allocation(
                "cuBLAS's own", "workspace", "device", size, f"{size >> 10} KiB", pooled=False
            )
        yield Allocation(
            "cuBLAS", "workspace", "device", CUBLAS_WORKSPACE_BYTES, "32 MiB, as cuBLAS recommends"
        )
    elif gemm in ("hierarchical", "fused"):
        yield Allocation(
            "partial sums", "workspace", "device", None, "depends on the tiles that are chosen"
        )


def _inputs(run: Training) -> Iterator[Allocation]:
    D, _, C, b, _ = run.rank_sizes  # noqa: N806 (the model's symbols)
    shares, tests = run.shares(run.images), run.shares(run.test_images)
    total, most = sum(share * count for share, count in shares.items()), max(shares)
    if run.settings["data_on"] == "device":
        for name, each, symbol in (("training images", D, "D"), ("training labels", C, "C")):
            size = b * each * total
            yield Allocation(name, "inputs", "device", size, f"b {symbol} N/p")
            yield Allocation(f"staging of {name}", "inputs", "pinned", size, f"b {symbol} N/p")
        if run.settings["gemm"] == "fused":
            for share, count in shares.items():
                yield Allocation(
                    f"images by pixels, batches of {share}", "inputs", "device",
                    count * b * D * _of_four(share), "b D B' of each batch", count,
                )  # fmt: skip
    else:
        slots = 2 if run.settings["data_on"] == "prefetch" else 1
        times = "2 " if slots == 2 else ""
        yield Allocation(
            "images", "inputs", "device", slots * b * D * most, f"{times}b D B'", slots
        )
        yield Allocation(
            "labels", "inputs", "device", slots * b * C * most, f"{times}b C B'", slots
        )
        if run.settings["data_on"] in ("pinned", "prefetch"):
            yield Allocation("training images", "inputs", "pinned", b * D * total, "b D N/p")
            yield Allocation("training labels", "inputs", "pinned", b * C * total, "b C N/p")
    for name, each, symbol in (("test images", D, "D"), ("test labels", C, "C")):
        yield Allocation(name, "inputs", "device", b * each * max(tests), f"b {symbol} B', largest")


def _messages(run: Training) -> Iterator[Allocation]:
    D, H, C, b, n = run.rank_sizes  # noqa: N806
    transport = TRANSPORTS[run.settings["transport"]]
    if transport.links == "nccl":
        yield Allocation("NCCL's buffers", "messages", "device", None, "NCCL's own")
    elif transport.links == "peer":
        why = "see trainer/kernels/peer.py"
        yield Allocation("inbox and flags", "messages", "device", None, why)
    elif run.settings["transport"] == "ring":
        ranks = run.sizes["p"]
        if run.parallel:
            for share in run.shares(run.images):
                whole = C * share
                yield Allocation(
                    f"z2 of {share}", "messages", "device", b * -(-whole // ranks), "b C B / p"
                )
        else:
            yield Allocation("piece", "messages", "device", b * -(-n // ranks), "n b / p")
    elif transport.buffers == "pinned" and run.parallel:
        for share in run.shares(run.images):
            yield Allocation(f"z2 of {share}", "messages", "pinned", b * C * share, "b C B")
    elif transport.buffers == "pinned" and transport.messages > 1:
        for name, size in (("W1", H * D), ("b1", H), ("W2", C * H), ("b2", C)):
            yield Allocation(f"gradient of {name}", "messages", "pinned", b * size, f"b |{name}|")
    elif transport.buffers == "pinned":
        yield Allocation("gradients", "messages", "pinned", b * n, "n b")


def _training(run: Training) -> Iterator[Allocation]:
    shares, (*_, b, n) = run.shares(run.images), run.rank_sizes
    size = b * sum(shares.values()) * max(shares)
    yield Allocation("losses of an epoch", "losses", "device", size, "b ceil(N/B) B'")
    if run.parallel:  # which makes its matrices with its transports
        yield from _matrices(run)
    yield Allocation("initial values", "parameters", "device", b * n, "n b", stays=False)
    yield Allocation("staging of initial values", "parameters", "pinned", b * n, "n b")
    if not run.parallel:
        yield from _matrices(run)
    if run.settings["gemm"] != "fused":
        size = b * run.sizes["C"] * max(shares)
        yield Allocation("scores z2 + b2", "activations", "device", size, "b C B'", stays=False)


def _matrices(run: Training) -> Iterator[Allocation]:
    """The activations, with the first step; the fused network's are apart for every width."""
    _, H, C, b, _ = run.rank_sizes  # noqa: N806
    widths = {*run.shares(run.images), *run.shares(run.test_images)}
    if run.settings["gemm"] == "fused":
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


def _of_four(columns: int) -> int:
    """Rows start on 16 bytes of single precision."""
    return -(-columns // 4) * 4


@dataclass(frozen=True, slots=True)
class Footprint:
    """The sums of a list of allocations by memory.

    Attributes
    ----------
    asked_bytes, held_bytes : dict of str to int
        By memory, what stays: as asked for, and as the allocator's blocks.
    peak_bytes : int
        Most device memory handed out at once, those included that do not stay.
    reserved_bytes : int
        Device memory that the pool asked CUDA for: it keeps what was given back.
    apart_bytes : int
        Device memory that libraries ask CUDA for past the pool; in none of the other sums.
    unknown : tuple of str
        Names of allocations that no formula gives.
    """

    asked_bytes: Mapping[Memory, int]
    held_bytes: Mapping[Memory, int]
    peak_bytes: int
    reserved_bytes: int
    apart_bytes: int
    unknown: tuple[str, ...]

    @property
    def rounding_bytes(self) -> int:
        """Device bytes that only the allocator's rounding adds."""
        return self.held_bytes["device"] - self.asked_bytes["device"]


def footprint(listed: tuple[Allocation, ...]) -> Footprint:
    """Replay allocations in their order through CuPy's device pool, and sum them by memory.

    The smallest free block that fits is split, else CUDA is asked; nothing is given back to it.
    Source: cupy/cuda/memory.pyx, SingleDeviceMemoryPool, on one stream. Free neighbours are not
    merged: no list here asks again for a block that it has split.
    """
    asked: dict[Memory, int] = {"device": 0, "pinned": 0}
    held: dict[Memory, int] = {"device": 0, "pinned": 0}
    used = peak = reserved = apart = 0
    free: list[int] = []
    for one in listed:
        if not one.bytes or one.held_bytes is None:
            continue
        if not one.pooled:
            apart += one.bytes
            continue
        if one.stays:
            asked[one.memory] += one.bytes
            held[one.memory] += one.held_bytes
        if one.memory == "pinned":
            continue
        count = one.count if free else 1  # there may be millions of batches
        each = one.held_bytes // count
        for _ in range(count):
            block = min((b for b in free if b >= each), default=None)
            if block is None:
                reserved += each
            else:
                free.remove(block)
                free += [block - each] if block > each else []
        peak = max(peak, used + one.held_bytes)
        if one.stays:
            used += one.held_bytes
        else:
            free += [each] * count
    unknown = tuple(one.name for one in listed if one.bytes is None)
    return Footprint(asked, held, peak, reserved, apart, unknown)

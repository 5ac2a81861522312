"""Parts of programs: operations of a framework, networks, optimizers, inputs, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from . import names
from .program import Drawing
from .tree import (
    COPY_STREAM,
    MEMCPY,
    MEMSET,
    NCCL_STREAM,
    ON_GPU,
    TO_GPU,
    TO_HOST,
    Flattener,
    Loop,
    Node,
    Op,
    Seq,
    loop,
    ranged,
    seq,
)

STYLES: Final = ("torch", "torch", "torch", "compiled", "xla", "own")
KNOWN: Final = ("fused", "foreach", "adam")
"""Optimizers whose kernels have names that tell what they do."""


def size(node: Node) -> int:
    """Return the number of operations of a node."""
    return len(Flattener().flat(node).op)


def steps(d: Drawing, per_step: int, least: int = 5, most: int = 120, budget: int = 12_000) -> int:
    """Draw the number of steps, fewer where steps are long."""
    return d.count("steps", least, max(least, min(most, budget // max(per_step, 1))))


class Maker:
    """Makes operations of one program, named in the manner of one framework."""

    def __init__(self, d: Drawing, styles: Sequence[str] = STYLES) -> None:
        rng = d.rng
        self.d = d
        self.style = d.choice("style", styles)
        self.weight = d.near(1.0, 0.8)
        self.host_us = d.near(6.0 if self.style == "torch" else 3.0, 0.3)
        library = rng.choice(["nvjet", "ampere", "cutlass"])
        self.products = [names.gemms(rng, library) for _ in range(rng.randint(1, 3))]
        self.norm = rng.randrange(len(names.NORM))
        self.activation = rng.randrange(len(names.ACTIVATIONS))
        self.attention = rng.randrange(len(names.ATTENTION))
        self.backward_thread = int(self.style == "torch" and d.chance("backward_thread", 0.5))
        self._number = rng.randint(0, 20)

    def kernel(self, name: str | Sequence[str], us: float = 5.0, **more: object) -> Op:
        """Return a kernel; the median time is drawn near `us`."""
        rng = self.d.rng
        op = Op(
            (name,) if isinstance(name, str) else tuple(name),
            us=self.d.near(us * self.weight, 0.5),
            grid=rng.choice([1, 8, 64, 132, 264, 1024, 4096]),
            host_us=self.d.near(self.host_us, 0.2),
        )
        return op.but(**more)

    def generated(self) -> str:
        """Return a new name as the compiler of the program numbers them."""
        self._number += self.d.rng.randint(1, 3)
        if self.style == "xla":
            return names.fusion(self.d.rng, self._number)
        if self.style == "own":
            return names.own(self.d.rng, self._number)
        return names.compiled(self.d.rng, self._number)

    def pointwise(self, us: float = 4.0) -> Op:
        """Return an element-wise kernel."""
        name = self.d.rng.choice(names.POINTWISE) if self.style == "torch" else self.generated()
        return self.kernel(name, us)

    def make(self, word: str) -> Op:
        """Return the operation of a forward pass that a word stands for."""
        if word == "product":
            return self.kernel(self.d.rng.choice(self.products), 20)
        if word == "convolution":
            return self.kernel(names.convolutions(self.d.rng, "fprop"), 25)
        if word == "attention":
            return self.kernel(names.ATTENTION[self.attention], 20)
        if self.style != "torch":
            return self.pointwise()
        if word == "norm":
            return self.kernel(names.NORM[self.norm], 5)
        if word == "act":
            return self.kernel(names.ACTIVATIONS[self.activation], 4)
        if word == "add":
            return self.kernel(names.ADD, 3)
        return self.pointwise()

    def back(self, word: str) -> list[Op]:
        """Return operations of the backward pass of what a word stands for."""
        rng = self.d.rng
        if word == "product":
            found = [self.kernel(rng.choice(self.products), 20) for _ in range(2)]
            if self.style == "torch" and rng.random() < 0.4:
                found.append(self.kernel(names.SUM, 4))
        elif word == "convolution":
            found = [
                self.kernel(names.convolutions(rng, "dgrad"), 25),
                self.kernel(names.convolutions(rng, "wgrad"), 25),
            ]
        elif word == "attention":
            found = [self.kernel(names.ATTENTION_BACKWARD[self.attention], 40)]
        elif self.style != "torch":
            found = [self.pointwise()]
        elif word == "norm":
            found = [self.kernel(names.NORM_BACKWARD[self.norm], 6)]
            if self.norm < 2:
                found.append(self.kernel(names.NORM_BACKWARD[1], 6))
        elif word == "act":
            found = [self.kernel(names.ACTIVATIONS_BACKWARD[self.activation], 4)]
        elif word == "add":
            found = [self.kernel(names.ADD, 3)] if rng.random() < 0.5 else []
        else:
            found = [self.pointwise()]
        return [op.but(thread=self.backward_thread) for op in found]

    def copy(self, kind: int, size_bytes: int, **more: object) -> Op:
        """Return a copy; one to the host waits, as of pageable memory."""
        fields: dict[str, object] = {
            "kind": MEMCPY, "copy_kind": kind, "bytes": size_bytes,
            "us": 1.5 + size_bytes / (2_000_000 if kind == ON_GPU else 20_000),
            "host_us": 5.0, "waits": kind == TO_HOST,
        }  # fmt: skip
        return Op(("",), **{**fields, **more})  # type: ignore[arg-type]

    def fill(self, size_bytes: int) -> Op:
        """Return a memset."""
        return Op(("",), kind=MEMSET, bytes=size_bytes, us=1.5, host_us=4.0)


@dataclass(frozen=True, eq=False)
class Block:
    """A layer: what it does, and the operations of both passes."""

    words: tuple[str, ...]
    forward: tuple[Op, ...]
    backward: tuple[Op, ...]

    def at(self, chunks: int) -> tuple[Seq, Seq]:
        """Return both passes where attention, or else the first operation, goes through chunks."""
        if chunks == 1:
            return Seq(self.forward), Seq(self.backward)
        which = self.words.index("attention") if "attention" in self.words else 0
        op = self.forward[which]
        forward = [*self.forward[:which], *[op] * chunks, *self.forward[which + 1 :]]
        last = len(self.backward) // 2
        backward = [*self.backward[:last], *[self.backward[last]] * chunks]
        return seq(forward), seq(backward, self.backward[last + 1 :])


_WORDS: Final = {
    "transformer": "norm product attention product add norm product act product add",
    "convolution": "convolution norm act convolution norm add act",
    "perceptron": "product add act",
    "recurrent": "product act other product act other",
    "mixer": "norm product act product add",
}


def block(maker: Maker, family: str) -> Block:
    """Draw a layer of a family; further element-wise kernels stand somewhere."""
    rng = maker.d.rng
    words = _WORDS[family].split()
    for _ in range(rng.randint(0, 3)):
        words.insert(rng.randint(0, len(words)), "other")
    return Block(
        tuple(words),
        tuple(maker.make(word) for word in words),
        tuple(op for word in reversed(words) for op in maker.back(word)),
    )


class Network:
    """Layers with an embedding or stem, and a head.

    Parameters
    ----------
    maker : Maker
    layers : (int, int)
        Least and most layers.
    label : str
        Begins the names of what is drawn.
    every : int
        Every so many layers one is of another kind; 0 draws it, 1 makes all alike.
    """

    def __init__(
        self,
        maker: Maker,
        layers: tuple[int, int] = (2, 12),
        label: str = "",
        every: int = 0,
        families: Sequence[str] = tuple(_WORDS),
    ) -> None:
        d = maker.d
        self.maker = maker
        self.family = d.choice(f"{label}family", families)
        self.layers = d.count(f"{label}layers", *layers)
        self.every = every or d.rng.choice([1, 1, 1, 2, 4])
        d.draws[f"{label}every"] = self.every
        usual, other = block(maker, self.family), block(maker, self.family)
        self.blocks = [
            other if self.every > 1 and i % self.every == self.every - 1 else usual
            for i in range(self.layers)
        ]
        torch = maker.style == "torch"
        self.stem = [
            maker.kernel(names.EMBEDDING if torch else maker.generated(), 6),
            *([maker.pointwise()] if d.rng.random() < 0.5 else []),
        ]
        self.head = [maker.make("norm"), maker.make("product")]
        self.head_back = [
            *maker.back("product"),
            *maker.back("norm"),
        ]
        losses, losses_back = d.rng.choice(
            [
                (names.LOSS, names.LOSS_BACKWARD),
                (names.SQUARE_LOSS, names.SQUARE_LOSS_BACKWARD),
            ]
        )
        self.loss = [maker.kernel(name if torch else maker.generated(), 4) for name in losses]
        self.loss_back = [
            maker.kernel(name if torch else maker.generated(), 4, thread=maker.backward_thread)
            for name in losses_back
        ]
        last = names.EMBEDDING_BACKWARD if torch else maker.generated()
        self.stem_back = [maker.kernel(last, 8, thread=maker.backward_thread)]
        self.parameters = d.rng.choice([2, 3, 4, 6]) * self.layers + d.rng.randint(1, 3)
        self._passes: dict[tuple[int, int, int], tuple[Seq, Seq]] = {}

    def _at(self, chunks: int, layers: int, reduce: int) -> tuple[Seq, Seq]:
        key = chunks, layers, reduce
        if key not in self._passes:
            known = {id(one): one.at(chunks) for one in self.blocks}
            passes = [known[id(one)] for one in self.blocks[:layers]]
            backward: list[Node] = [one[1] for one in reversed(passes)]
            if reduce:
                all_reduce = collective(self.maker, names.ALL_REDUCE)
                backward = [
                    seq(one, all_reduce if i % reduce == reduce - 1 else None)
                    for i, one in enumerate(backward)
                ]
            self._passes[key] = (
                seq(self.stem, loop("layer", [one[0] for one in passes]), self.head),
                seq(self.head_back, loop("layer_backward", backward), self.stem_back),
            )
        return self._passes[key]

    def forward(self, chunks: int = 1, layers: int | None = None) -> Seq:
        """Return the forward pass, of the first so many layers."""
        return self._at(chunks, layers or self.layers, 0)[0]

    def backward(self, chunks: int = 1, layers: int | None = None, reduce: int = 0) -> Seq:
        """Return the backward pass; gradients of `reduce` layers at a time are all-reduced."""
        return self._at(chunks, layers or self.layers, reduce)[1]

    def both(self, chunks: int = 1, layers: int | None = None, reduce: int = 0) -> Seq:
        """Return the forward pass, the loss, and the backward pass."""
        return seq(
            self.forward(chunks, layers), self.loss, self.loss_back,
            self.backward(chunks, layers, reduce),
        )  # fmt: skip


def collective(maker: Maker, name: str, us: float = 40.0) -> Op:
    """Return a collective operation on NCCL's stream; it begins after what is on others."""
    return maker.kernel(
        name, us, stream=NCCL_STREAM, meets=True, joins=True, thread=maker.backward_thread
    )


def optimizer(
    maker: Maker,
    parameters: int,
    how: str | Sequence[str] | None = None,
    *,
    label: str = "",
    in_range: bool | None = None,
) -> Node:
    """Draw an optimizer.

    Parameters
    ----------
    maker : Maker
    parameters : int
    how : str or sequence of str, optional
        One of them is drawn: fused, foreach, adam (one kernel per parameter whose name says it),
        looped (small kernels of PyTorch per parameter), unknown (names that do not tell).
    label : str
        Begins the names of what is drawn.
    in_range : bool, optional
        Whether it is in a range, as PyTorch's; drawn by default.
    """
    d, rng = maker.d, maker.d.rng
    torch = maker.style == "torch"
    usual = {
        "torch": ("fused", "fused", "foreach", "foreach", "looped", "adam"),
        "compiled": ("fused", "foreach", "unknown"),
        "own": ("adam", "unknown"),
        "xla": ("unknown",),
    }[maker.style]
    which = d.choice(f"{label}optimizer", (how,) if isinstance(how, str) else how or usual)
    chunks = rng.randint(1, 4)
    if which == "fused":
        kernel = maker.kernel(rng.choice(names.FUSED_OPTIMIZERS), 20)
        update: Node = seq([kernel] * chunks)
    elif which == "foreach":
        each = [maker.kernel(name, 10) for name in rng.choice(names.FOREACH_OPTIMIZERS)]
        update = seq([op for op in each for _ in range(chunks)])
    elif which == "adam":
        update = seq([maker.kernel(rng.choice(names.OWN_OPTIMIZERS[::2]), 6)] * parameters)
    elif which == "looped":
        each = [maker.kernel(name, 3) for name in rng.choice(names.LOOPED_OPTIMIZERS)]
        update = loop("parameter", [seq(each)] * parameters)
    else:
        templates = rng.choice(names.UNKNOWN_OPTIMIZERS)
        each = [maker.kernel(name.format(rng.randint(50, 99)), 8) for name in templates]
        update = loop("parameter", [seq(each)] * rng.choice([1, chunks, parameters]))
    before: list[Op] = []
    if torch and which in KNOWN:
        if rng.random() < 0.3:
            before += [maker.kernel(name, 5) for name in names.CLIP]
        if rng.random() < 0.2:
            before.append(maker.kernel(names.UNSCALE, 5))
    if in_range is None:
        in_range = torch and d.chance(f"{label}ranges", 0.15)
    if in_range:
        update = ranged("Optimizer.step#AdamW.step", update)
    zero: list[Op] = []
    draw = rng.random()
    if draw < 0.25:
        zero = [maker.fill(1 << 20)] * rng.choice([1, parameters])
    elif draw < 0.4 and torch:
        zero = [maker.kernel(names.FILL, 3)] * parameters
    return seq(before, update, zero)


def feed(maker: Maker, *, thread: int = 0) -> Seq:
    """Return copies of a batch to the GPU, and what prepares it; a thread apart prefetches."""
    rng = maker.d.rng
    more: dict[str, object] = {"thread": thread, "stream": COPY_STREAM} if thread else {}
    copies = [
        maker.copy(TO_GPU, rng.choice([1 << 12, 1 << 18, 1 << 22]), **more)
        for _ in range(rng.randint(1, 3))
    ]
    copies[0] = copies[0].but(pause_us=maker.d.near(40, 1.0))
    after = [] if thread else [maker.pointwise() for _ in range(rng.choice([0, 0, 1, 2]))]
    return seq(copies, after)


def report(maker: Maker, probability: float = 0.5) -> Seq | None:
    """Return what reads a loss to the host, or nothing."""
    if maker.d.rng.random() > probability:
        return None
    return seq(maker.copy(TO_HOST, 4))


def setup(maker: Maker, parameters: int, probability: float = 0.6) -> Seq | None:
    """Return what makes the parameters before the first step, or nothing."""
    d, rng = maker.d, maker.d.rng
    if not d.chance("setup", probability):
        return None
    if rng.random() < 0.5:
        return seq([maker.copy(TO_GPU, 1 << rng.randint(8, 24)) for _ in range(parameters)])
    kernel = maker.kernel(rng.choice([names.NORMAL, names.UNIFORM]), 5)
    fill = maker.kernel(names.FILL, 3)
    return seq([rng.choice([kernel, kernel, fill]) for _ in range(parameters)])


def evaluation(maker: Maker, network: Network) -> Seq:
    """Return one batch of an evaluation."""
    metric = [maker.kernel(names.ARGMAX, 5), maker.kernel(names.SUM, 4)]
    result = maker.copy(TO_HOST, 4) if maker.d.rng.random() < 0.5 else None
    return seq(feed(maker), network.forward(), metric, result)


def checkpoint(maker: Maker, parameters: int) -> Seq:
    """Return copies of the parameters to the host."""
    sizes = [1 << maker.d.rng.randint(8, 24) for _ in range(parameters)]
    return seq([maker.copy(TO_HOST, one) for one in sizes])


def training(
    maker: Maker,
    network: Network,
    update: Node | None = None,
    *,
    inputs: Node | None = None,
    reading: float = 0.5,
    chunks: Sequence[int] = (1,),
    reduce: int = 0,
) -> list[Node]:
    """Return a training step for each of some lengths of the input."""
    update = update or optimizer(maker, network.parameters)
    inputs = inputs or feed(maker)
    result = report(maker, reading)
    if reduce:
        update = seq(maker.pointwise().but(joins=True), update)
    return [seq(inputs, network.both(n, reduce=reduce), result, update) for n in chunks]


def steps_of(bodies: Sequence[Node], level: str = "step") -> Loop:
    """Return a loop over steps."""
    return loop(level, bodies)

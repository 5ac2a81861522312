"""Layers of a network: their shapes, and what training them costs, layer by layer.

Conventions, wherever a number is shown:

- MACs: multiply-accumulates of convolutions, fully connected layers, attention and other matrix
  products, without bias. Normalizations, activations, softmax and pools are none.
- FLOPs: 2 per MAC.
- Bytes: every layer reads each input once and writes its output once, as a program does that
  launches layer after layer (eager PyTorch) with perfect caches within a layer and none between
  layers. Batch normalization of a training step reads its input twice (statistics, then values).
  The gradients of a sum's and a concatenation's inputs are (parts of) the output's: no bytes.
  Attention is fused: its scores stay on the chip. Dropout's masks are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Literal, NamedTuple

from perfmodel.base.errors import WorkloadError

INPUT: Final = "input"
"""Name of the network's input, for the layers that read it."""

_LARGEST: Final = 2**63 - 1


class Shape(tuple[int, ...]):
    """Extents of one sample: (channels, height, width) of an image, (tokens, features) of text."""

    __slots__ = ()

    def __new__(cls, *sizes: int) -> Shape:
        """Refuse what holds nothing, and what no memory holds.

        Raises
        ------
        WorkloadError
            If an extent is below 1, or there are more than 2^63 - 1 elements.
        """
        if min(sizes, default=1) < 1:
            raise WorkloadError(
                f"expected at least one element each way; got {' x '.join(map(str, sizes))}: "
                f"enlarge the input, or the padding before it"
            )
        if math.prod(sizes) > _LARGEST:
            raise WorkloadError(
                f"expected at most 2^63 - 1 elements in a layer; got more, {len(sizes)} extents "
                f"from {sizes[0]:.3g} on: correct the sizes"
            )
        return super().__new__(cls, sizes)

    def __getnewargs__(self) -> tuple[int, ...]:
        return tuple(self)

    @property
    def elements(self) -> int:
        """Product of the extents."""
        return math.prod(self)

    @property
    def channels(self) -> int:
        """First extent, that of an image's channels."""
        return self[0]

    @property
    def height(self) -> int:
        """Rows of an image, 1 of what is none."""
        return self[1] if len(self) > 1 else 1

    @property
    def width(self) -> int:
        """Columns of an image, 1 of what is none."""
        return self[2] if len(self) > 2 else 1

    def __str__(self) -> str:
        return " x ".join(map(str, self))


class Passes(NamedTuple):
    """Passes of a layer over its activations.

    Attributes
    ----------
    read, write : int
        Forward, over inputs and output.
    of_output, of_input, gradient : int
        Backward, over the output or its gradient, the inputs, and the inputs' gradients.
    """

    read: int = 1
    write: int = 1
    of_output: int = 1
    of_input: int = 1
    gradient: int = 1


_FORWARD_ONLY: Final = Passes(of_output=0, of_input=0, gradient=0)


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that keeps its input's shape, without parameters and without products.

    Attributes
    ----------
    passes : Passes
    keeps : str
        What the backward pass needs: 'inputs', 'output', 'both' or ''.
    """

    passes: ClassVar[Passes] = Passes()
    keeps: ClassVar[str] = ""

    def shape(self, *inputs: Shape) -> Shape:
        """Return the output's shape."""
        return inputs[0]

    def weights(self, *inputs: Shape) -> int:
        """Return the number of weights that the layer uses."""
        return 0

    def macs(self, *inputs: Shape) -> int:
        """Return the multiply-accumulates of one sample, forward."""
        return 0

    def backward_macs(self, inputs: Sequence[Shape], trained: Sequence[bool]) -> int:
        """Return those of the gradients: of weights, and of each input that needs one."""
        return self.macs(*inputs) * (bool(self.weights(*inputs)) + sum(trained))


@dataclass(frozen=True, slots=True)
class Conv(Layer):
    """Convolution with a square kernel: `channels` outputs, each of c/groups input channels."""

    keeps: ClassVar[str] = "inputs"
    channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1
    bias: bool = False

    def shape(self, *inputs: Shape) -> Shape:
        """Return the output's shape: floor((size + 2 padding - kernel) / stride) + 1 each way."""
        (x,) = inputs
        self._inner(x)
        return _windows(x, self.channels, self.kernel, self.stride, self.padding)

    def weights(self, *inputs: Shape) -> int:
        """Return c/groups k^2 per output channel, and its bias."""
        return self.channels * (self._inner(inputs[0]) + self.bias)

    def macs(self, *inputs: Shape) -> int:
        """Return c/groups k^2 per element of the output; a bias is none."""
        return self.shape(*inputs).elements * self._inner(inputs[0])

    def _inner(self, x: Shape) -> int:
        if self.groups < 1 or x.channels % self.groups or self.channels % self.groups:
            raise WorkloadError(
                f"expected channels that {self.groups} groups divide; got {x.channels} in, "
                f"{self.channels} out: correct the groups"
            )
        return x.channels // self.groups * self.kernel**2


@dataclass(frozen=True, slots=True)
class Linear(Layer):
    """Fully connected layer: every output reads every input element.

    Attributes
    ----------
    each : bool
        Whether it maps the last extent at every position, as of tokens; else all elements.
    """

    keeps: ClassVar[str] = "inputs"
    channels: int
    bias: bool = True
    each: bool = False

    def shape(self, *inputs: Shape) -> Shape:
        """Return `channels` outputs, at every position if `each`."""
        return Shape(*(inputs[0][:-1] if self.each else ()), self.channels)

    def weights(self, *inputs: Shape) -> int:
        """Return one per input element and output, and a bias per output."""
        (x,) = inputs
        return self.channels * ((x[-1] if self.each else x.elements) + self.bias)

    def macs(self, *inputs: Shape) -> int:
        """Return one per input element and output; a bias is none."""
        return self.channels * inputs[0].elements


@dataclass(frozen=True, slots=True)
class Product(Layer):
    """GEMM of two activations, or with `factors` weights, `inner` MACs an element."""

    keeps: ClassVar[str] = "inputs"
    inner: int
    output: Shape
    factors: int = 0

    def shape(self, *inputs: Shape) -> Shape:
        """Return the given shape."""
        return self.output

    def weights(self, *inputs: Shape) -> int:
        """Return the given number."""
        return self.factors

    def macs(self, *inputs: Shape) -> int:
        """Return `inner` per element of the output."""
        return self.output.elements * self.inner


@dataclass(frozen=True, slots=True)
class Attention(Layer):
    """Scaled dot-product attention of queries, keys and values, joined in one input or apart.

    Attributes
    ----------
    heads, kv_heads : int
        Of the queries, and of keys and values: fewer where queries are grouped.
    size : int
        Features of a head.
    causal : bool
        Whether only the scores up to a token's own position count; else the whole square, as
        torch's FlopCounterMode counts a causal attention, too.
    """

    passes: ClassVar[Passes] = Passes(of_output=2)
    keeps: ClassVar[str] = "both"
    heads: int
    kv_heads: int
    size: int
    causal: bool = False

    def shape(self, *inputs: Shape) -> Shape:
        """Return every query's position with all heads' features."""
        queries, _ = self._lengths(*inputs)
        return Shape(queries, self.heads * self.size)

    def macs(self, *inputs: Shape) -> int:
        """Return d per head and score, and d for its product with the value.

        Source: torch.utils.flop_counter.sdpa_flop_count, 2 (S_q d S_k + S_q S_k d) FLOPs a head.
        """
        queries, keys = self._lengths(*inputs)
        scores = queries * (2 * keys - queries + 1) // 2 if self.causal else queries * keys
        return 2 * self.heads * self.size * scores

    def backward_macs(self, inputs: Sequence[Shape], trained: Sequence[bool]) -> int:
        """Return 5/2 of the forward pass's: scores again, gradients of them, of v, q and k.

        Source: torch.utils.flop_counter.sdpa_backward_flop_count.
        """
        return 5 * self.macs(*inputs) // 2 if any(trained) else 0

    def _lengths(self, *inputs: Shape) -> tuple[int, int]:
        """Return the numbers of queries and of keys."""
        if min(self.heads, self.kv_heads, self.size) < 1:
            raise WorkloadError(
                f"expected heads of 1 feature or more; got {self.heads} heads, {self.kv_heads} of "
                f"keys and values, {self.size} features each: correct the heads"
            )
        if len(inputs) == 1:
            length, left = divmod(inputs[0].elements, (self.heads + 2 * self.kv_heads) * self.size)
            return self._whole(length, length, left, inputs)
        queries, left = divmod(inputs[0].elements, self.heads * self.size)
        keys, more = divmod(inputs[1].elements, self.kv_heads * self.size)
        return self._whole(queries, keys, left + more, inputs)

    def _whole(
        self, queries: int, keys: int, left: int, inputs: Sequence[Shape]
    ) -> tuple[int, int]:
        if left or self.heads % self.kv_heads or (self.causal and keys < queries):
            raise WorkloadError(
                f"expected queries of {self.heads} heads, keys and values of {self.kv_heads}, "
                f"{self.size} features each; got {', '.join(map(str, inputs))}: correct the heads"
            )
        return queries, keys


@dataclass(frozen=True, slots=True)
class Embedding(Layer):
    """A table of `rows` vectors of `width` features, one of which every index takes."""

    passes: ClassVar[Passes] = Passes(write=2, of_input=0, gradient=0)  # a row is read, too
    keeps: ClassVar[str] = "inputs"
    rows: int
    width: int

    def shape(self, *inputs: Shape) -> Shape:
        """Return the inputs' shape with the features behind it."""
        return Shape(*inputs[0], self.width)

    def weights(self, *inputs: Shape) -> int:
        """Return the table's elements."""
        return self.rows * self.width


@dataclass(frozen=True, slots=True)
class Learned(Layer):
    """Adds, multiplies by or joins `count` learned numbers: positions, a class token, scales."""

    passes: ClassVar[Passes] = _FORWARD_ONLY
    count: int

    def weights(self, *inputs: Shape) -> int:
        """Return their number."""
        return self.count


@dataclass(frozen=True, slots=True)
class Norm(Layer):
    """Batch normalization with a scale and a shift per channel."""

    passes: ClassVar[Passes] = Passes(read=2, of_output=2, of_input=2)
    keeps: ClassVar[str] = "inputs"

    def weights(self, *inputs: Shape) -> int:
        """Return two per channel."""
        return 2 * inputs[0].channels


@dataclass(frozen=True, slots=True)
class FeatureNorm(Layer):
    """Layer normalization over the last extent; without `bias` it is RMSNorm."""

    keeps: ClassVar[str] = "inputs"
    bias: bool = True

    def weights(self, *inputs: Shape) -> int:
        """Return a scale, and a shift if there is a bias, per feature."""
        return inputs[0][-1] * (1 + self.bias)


@dataclass(frozen=True, slots=True)
class Relu(Layer):
    """max(0, x), in place."""

    keeps: ClassVar[str] = "output"


@dataclass(frozen=True, slots=True)
class Pointwise(Layer):
    """Any other operation that moves its inputs and its output, such as GELU and softmax."""

    keeps: ClassVar[str] = "inputs"
    name: str


@dataclass(frozen=True, slots=True)
class Add(Layer):
    """Sum of inputs of one shape: where a shortcut meets its block."""

    passes: ClassVar[Passes] = _FORWARD_ONLY

    def shape(self, *inputs: Shape) -> Shape:
        """Return the inputs' shape; refuse inputs that differ."""
        if len(inputs) < 2 or len(set(inputs)) > 1:
            raise WorkloadError(
                f"expected several inputs of one shape to add; got {'; '.join(map(str, inputs))}: "
                f"correct the layers before"
            )
        return inputs[0]


@dataclass(frozen=True, slots=True)
class Concat(Layer):
    """Inputs of one height and width, channels behind channels."""

    passes: ClassVar[Passes] = _FORWARD_ONLY

    def shape(self, *inputs: Shape) -> Shape:
        """Return the inputs' height and width with all their channels; refuse unequal ones."""
        if len({x[1:] for x in inputs}) > 1 or not inputs:
            raise WorkloadError(
                f"expected several inputs of one height and width to join; got "
                f"{'; '.join(map(str, inputs))}: correct the layers before"
            )
        return Shape(sum(x.channels for x in inputs), *inputs[0][1:])


@dataclass(frozen=True, slots=True)
class View(Layer):
    """The same numbers, or some of them, in another shape: the one that its node gives."""

    passes: ClassVar[Passes] = Passes(0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class LocalNorm(Layer):
    """Local response normalization: divides by neighbouring channels' squares."""

    passes: ClassVar[Passes] = Passes(of_output=2)
    keeps: ClassVar[str] = "both"
    size: int = 5


@dataclass(frozen=True, slots=True)
class Dropout(Layer):
    """Zeroes a share of its input while training."""

    passes: ClassVar[Passes] = Passes(of_input=0)
    share: float = 0.5


@dataclass(frozen=True, slots=True)
class Pool(Layer):
    """Maximum or mean over square windows; `kernel` None is the whole image.

    `ceil`: a last window may reach over the edge, as Caffe's does and torch's with `ceil_mode`.
    """

    passes: ClassVar[Passes] = Passes(of_input=0)
    kind: Literal["max", "mean"]
    kernel: int | None = None
    stride: int = 1
    padding: int = 0
    ceil: bool = False

    def shape(self, *inputs: Shape) -> Shape:
        """Return the number of windows each way, as for a convolution."""
        (x,) = inputs
        if self.kernel is None:
            return Shape(x.channels)
        return _windows(x, x.channels, self.kernel, self.stride, self.padding, self.ceil)


@dataclass(frozen=True, slots=True)
class Node:
    """A layer in its place: its name, and the names of what it reads.

    Attributes
    ----------
    shape : Shape or None
        Of the output, where the layer's own rule does not give it.
    parameters : int or None
        Weights of its own, where some are another layer's: 0 of a head tied to the embedding.
    """

    name: str
    layer: Layer
    inputs: tuple[str, ...]
    shape: Shape | None = None
    parameters: int | None = None


@dataclass(frozen=True, slots=True)
class Net:
    """A network: its layers in an order in which they can run, on samples of one shape.

    Attributes
    ----------
    sample : Shape
        Of one image, or the number of tokens.
    loss : str
        Layer from which the loss is computed, the last one by default; what it does not depend on
        has no backward pass.
    states : int
        Numbers that the optimizer keeps of every parameter: 1 of SGD with momentum, 2 of Adam.
    """

    name: str
    sample: Shape
    nodes: tuple[Node, ...]
    loss: str = ""
    states: int = 1

    @property
    def optimizer(self) -> str:
        """Return the optimizer that updates the parameters."""
        return {1: "SGD with momentum", 2: "Adam"}.get(self.states, f"{self.states} states")


class Chain:
    """Layers in the order they were added; every method returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    @property
    def last(self) -> str:
        """Name of what was added last; of the network's input before that."""
        return self.nodes[-1].name if self.nodes else INPUT

    def add(self, name: str, layer: Layer, *inputs: str, **given: Any) -> str:
        """Add a layer that reads `inputs`, or what was added last; `given` are the `Node`'s."""
        self.nodes.append(Node(name, layer, inputs or (self.last,), **given))
        return name


@dataclass(frozen=True, slots=True)
class Placed:
    """A layer with its shapes for one sample.

    Attributes
    ----------
    trained_inputs : tuple of bool
        Whether each input depends on a parameter, so that training needs its gradient.
    consumers : int
        How many layers that the loss depends on read the output.
    trains : bool
        Whether the loss depends on it.
    own : int or None
        Weights of its own, all by default.
    """

    name: str
    layer: Layer
    inputs: tuple[str, ...]
    input_shapes: tuple[Shape, ...]
    shape: Shape
    trained_inputs: tuple[bool, ...]
    consumers: int
    trains: bool = True
    own: int | None = None

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.layer.weights(*self.input_shapes) if self.own is None else self.own

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one sample, forward, without bias."""
        return self.layer.macs(*self.input_shapes)


def place(net: Net) -> tuple[Placed, ...]:
    """Propagate shapes through a network.

    Raises
    ------
    WorkloadError
        If a layer reads what no earlier layer wrote, a name occurs twice, or shapes do not fit.
    """
    shapes: dict[str, Shape] = {INPUT: net.sample}
    trained: dict[str, bool] = {INPUT: False}
    readers = _readers(net)
    placed = []
    for node in net.nodes:
        unknown = [name for name in node.inputs if name not in shapes]
        if unknown or not node.inputs or node.name in shapes:
            raise WorkloadError(
                f"{net.name}: expected {node.name!r}, once, to read layers before it; it reads "
                f"{', '.join(node.inputs) or 'nothing'}: correct the layers' names"
            )
        inputs = tuple(shapes[name] for name in node.inputs)
        try:
            shape = node.shape or node.layer.shape(*inputs)
            weights = node.layer.weights(*inputs)
        except (WorkloadError, ValueError) as problem:
            raise WorkloadError(f"{net.name}, {node.name}: {problem}") from problem
        through = tuple(trained[name] for name in node.inputs)
        shapes[node.name] = shape
        trained[node.name] = any(through) or weights > 0
        placed.append(
            Placed(
                node.name, node.layer, node.inputs, inputs, shape, through,
                readers.get(node.name, 0), node.name in readers, node.parameters,
            )
        )  # fmt: skip
    return tuple(placed)


def _readers(net: Net) -> dict[str, int]:
    """Of every layer that the loss depends on, how many such layers read it."""
    count = {net.loss or node.name: 0 for node in net.nodes[-1:]}
    for node in reversed(net.nodes):
        if node.name in count:
            for name in node.inputs:
                count[name] = count.get(name, 0) + 1
    return count


def _windows(
    x: Shape, channels: int, kernel: int, stride: int, padding: int, ceil: bool = False
) -> Shape:
    if min(kernel, stride) < 1 or padding < 0 or len(x) != 3:
        raise WorkloadError(
            f"expected windows and strides of at least 1, padding of at least 0, over channels, "
            f"height and width; got {kernel}, {stride}, {padding} over {x}: correct the layer"
        )

    def windows(size: int) -> int:
        room = size + 2 * padding - kernel
        if ceil and room % stride and (room // stride + 1) * stride < size + padding:
            return room // stride + 2  # one more, which begins within the image
        return room // stride + 1

    return Shape(channels, windows(x.height), windows(x.width))


_INDEX_BYTES: Final = 8  # where each maximum was: int64 in torch


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a layer, or of several added up, in one training step of a batch.

    Attributes
    ----------
    parameters : int
        Independent of the batch.
    macs, forward_flops, backward_flops : int
        The backward pass of a GEMM computes the gradients of its weights and of its
        inputs, as many FLOPs each as forward; nothing needs the gradient of the network's input.
        That of attention is 5/2 of forward.
    forward_bytes, backward_bytes, update_bytes : int
        Bytes that memory moves; update is that of the network's optimizer.
    """

    parameters: int = 0
    macs: int = 0
    forward_flops: int = 0
    backward_flops: int = 0
    forward_bytes: int = 0
    backward_bytes: int = 0
    update_bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def flops(self) -> int:
        """FLOPs of a training step: 2 per MAC, forward and backward."""
        return self.forward_flops + self.backward_flops

    @property
    def moved_bytes(self) -> int:
        """Bytes that memory moves in a training step."""
        return self.forward_bytes + self.backward_bytes + self.update_bytes


def costs(net: Net, batch: int = 1, element_bytes: int = 4) -> tuple[tuple[Placed, Cost], ...]:
    """Return every layer with what it costs in a training step of `batch` samples.

    Parameters
    ----------
    element_bytes : int
        Size of a number in memory: 4 for float32 and TF32.

    Raises
    ------
    WorkloadError
        If the batch or the element's size is not positive, or the network's shapes do not fit.
    """
    if batch < 1 or element_bytes < 1:
        raise WorkloadError(
            f"expected at least one sample and one byte a number; got {batch} and "
            f"{element_bytes}: enlarge them"
        )
    return tuple((x, _cost(x, batch, element_bytes, net.states)) for x in place(net))


MULTIPLIES: Final = {"conv": (Conv,), "fc": (Linear,), "attention": (Attention, Product)}
"""Layers that multiply and accumulate, by kind; attention's are also products of activations."""


def total(
    net: Net,
    batch: int = 1,
    element_bytes: int = 4,
    only: Literal["conv", "fc", "attention"] | None = None,
) -> Cost:
    """Return what all layers cost together, or only those of a kind of `MULTIPLIES`."""
    kinds = MULTIPLIES[only] if only else (object,)
    chosen = [c for layer, c in costs(net, batch, element_bytes) if isinstance(layer.layer, kinds)]
    return sum(chosen, Cost())


def training_bytes(net: Net, batch: int, element_bytes: int = 4) -> int:
    """Return the memory a training step holds at its fullest, without workspaces and caches.

    Weights, gradients and the optimizer's states, and what the backward pass needs of every layer:
    inputs of GEMMs, normalizations and maximum pools, outputs of activations (in place)
    and local normalizations, positions of maxima, dropout's masks (a byte each). A tensor that two
    layers need is held once.
    """
    layers = place(net)
    shapes = {name: s for x in layers for name, s in zip(x.inputs, x.input_shapes, strict=True)}
    shapes |= {x.name: x.shape for x in layers}
    same: dict[str, str] = {}
    for x in layers:
        if isinstance(x.layer, View):
            same[x.name] = same.get(x.inputs[0], x.inputs[0])
    kept: set[str] = set()
    positions = masks = 0
    for x in layers:
        if x.layer.keeps in ("output", "both"):
            kept.add(x.name)
        if x.layer.keeps in ("inputs", "both") or _is_maximum(x):
            kept.update(same.get(name, name) for name in x.inputs)
        positions += x.shape.elements if _is_maximum(x) else 0
        masks += x.shape.elements if isinstance(x.layer, Dropout) else 0
    activations = sum(shapes[name].elements for name in kept)
    parameters = sum(x.parameters for x in layers)
    held = element_bytes * ((2 + net.states) * parameters + batch * activations)
    return held + batch * (_INDEX_BYTES * positions + masks)


def _is_maximum(x: Placed) -> bool:
    return isinstance(x.layer, Pool) and x.layer.kind == "max"


def _cost(x: Placed, batch: int, element_bytes: int, states: int) -> Cost:
    macs = batch * x.macs
    weights = x.layer.weights(*x.input_shapes)
    multiplied = weights if macs else 0  # those of a normalization are few
    gradients = multiplied * (1 + any(x.trained_inputs))  # dW is written; W is read for dx
    if isinstance(x.layer, Embedding):
        gradients = weights  # of all rows
    forward, backward = _moved(x, weights)
    trained = x.layer.backward_macs(x.input_shapes, x.trained_inputs)
    if not x.trains or not (weights or any(x.trained_inputs)):
        backward = gradients = trained = 0
    return Cost(
        parameters=x.parameters,
        macs=macs,
        forward_flops=2 * macs,
        backward_flops=2 * batch * trained,
        forward_bytes=element_bytes * (batch * forward + multiplied),
        backward_bytes=element_bytes * (batch * backward + gradients),
        # the optimizer reads and writes the weight and its states, and reads the gradient
        update_bytes=element_bytes * (3 + 2 * states) * x.parameters,
    )


def _moved(x: Placed, weights: int) -> tuple[int, int]:
    """Return the elements of activations and gradients moved per sample: forward, backward."""
    t = x.layer.passes
    read, written = sum(s.elements for s in x.input_shapes), x.shape.elements
    back = sum(s.elements for s, t in zip(x.input_shapes, x.trained_inputs, strict=True) if t)
    of_output = t.of_output
    if x.macs and not isinstance(x.layer, Attention):  # dW = f(dy, x), then dx = f(dy, W)
        of_output = bool(weights) + sum(x.trained_inputs)
    joined = 3 * (x.consumers - 1) if x.consumers > 1 else 0  # gradients of a fork are summed
    backward = of_output * written + t.of_input * read + t.gradient * back + joined * written
    return t.read * read + t.write * written, backward

"""Layers of a network: their shapes, and what training them costs, layer by layer.

Conventions, wherever a number is shown:

- MACs: multiply-accumulates of convolutions and fully connected layers, without bias. Batch
  normalization, activations and pools are none.
- FLOPs: 2 per MAC.
- Bytes: every layer reads each input once and writes its output once, as a program does that
  launches layer after layer (eager PyTorch) with perfect caches within a layer and none between
  layers. Batch normalization of a training step reads its input twice (statistics, then values).
  The gradients of a sum's and a concatenation's inputs are (parts of) the output's: no bytes.
  Dropout's masks are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, Literal

from perfmodel.base.errors import WorkloadError

IMAGE: Final = "image"
"""Name of the network's input, for the layers that read it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Extent of one image's activations: (channels, height, width)."""

    channels: int
    height: int = 1
    width: int = 1

    def __post_init__(self) -> None:
        if min(self.channels, self.height, self.width) < 1:
            raise WorkloadError(
                f"a layer needs at least one channel, row and column; found {self}: enlarge the "
                f"image, or the padding before it"
            )

    @property
    def elements(self) -> int:
        """Channels times height times width."""
        return self.channels * self.height * self.width


@dataclass(frozen=True, slots=True)
class Conv:
    """Convolution with a square kernel: `channels` outputs, each of c/groups input channels."""

    channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1
    bias: bool = False

    def shape(self, *inputs: Shape) -> Shape:
        """Return the output's shape: floor((size + 2 padding - kernel) / stride) + 1 each way."""
        (x,) = inputs
        if x.channels % self.groups or self.channels % self.groups:
            raise WorkloadError(
                f"expected channels that {self.groups} groups divide; got {x.channels} in, "
                f"{self.channels} out"
            )
        return _windows(x, self.channels, self.kernel, self.stride, self.padding)

    def weights(self, *inputs: Shape) -> int:
        """Return c/groups k^2 per output channel, and its bias."""
        (x,) = inputs
        return self.channels * (x.channels // self.groups * self.kernel**2 + self.bias)

    def macs(self, *inputs: Shape) -> int:
        """Return c/groups k^2 per element of the output; a bias is none."""
        (x,) = inputs
        return self.shape(x).elements * (x.channels // self.groups) * self.kernel**2


@dataclass(frozen=True, slots=True)
class Linear:
    """Fully connected layer: every output reads every input element."""

    channels: int
    bias: bool = True

    def shape(self, *inputs: Shape) -> Shape:
        """Return `channels` outputs."""
        return Shape(self.channels)

    def weights(self, *inputs: Shape) -> int:
        """Return one per input element and output, and a bias per output."""
        (x,) = inputs
        return self.channels * (x.elements + self.bias)

    def macs(self, *inputs: Shape) -> int:
        """Return one per input element and output; a bias is none."""
        (x,) = inputs
        return self.channels * x.elements


@dataclass(frozen=True, slots=True)
class Norm:
    """Batch normalization with a scale and a shift per channel."""

    def shape(self, *inputs: Shape) -> Shape:
        """Return the input's shape."""
        return inputs[0]

    def weights(self, *inputs: Shape) -> int:
        """Return two per channel."""
        return 2 * inputs[0].channels

    def macs(self, *inputs: Shape) -> int:
        """Return 0: only convolutions and fully connected layers multiply and accumulate."""
        return 0


@dataclass(frozen=True, slots=True)
class _Bare:
    """A layer without parameters that keeps its input's shape."""

    def shape(self, *inputs: Shape) -> Shape:
        """Return the input's shape."""
        return inputs[0]

    def weights(self, *inputs: Shape) -> int:
        """Return 0."""
        return 0

    def macs(self, *inputs: Shape) -> int:
        """Return 0."""
        return 0


@dataclass(frozen=True, slots=True)
class Relu(_Bare):
    """max(0, x), in place."""


@dataclass(frozen=True, slots=True)
class Add(_Bare):
    """Sum of inputs of one shape: where a shortcut meets its block."""

    def shape(self, *inputs: Shape) -> Shape:
        """Return the inputs' shape; refuse inputs that differ."""
        if len(inputs) < 2 or len(set(inputs)) > 1:
            raise WorkloadError(f"expected several inputs of one shape to add; got {inputs}")
        return inputs[0]


@dataclass(frozen=True, slots=True)
class Concat(_Bare):
    """Inputs of one height and width, channels behind channels."""

    def shape(self, *inputs: Shape) -> Shape:
        """Return the inputs' height and width with all their channels; refuse unequal ones."""
        if len(inputs) < 2 or len({(x.height, x.width) for x in inputs}) > 1:
            raise WorkloadError(
                f"expected several inputs of one height and width to join; got {inputs}"
            )
        return Shape(sum(x.channels for x in inputs), inputs[0].height, inputs[0].width)


@dataclass(frozen=True, slots=True)
class LocalNorm(_Bare):
    """Local response normalization: divides by neighbouring channels' squares."""

    size: int = 5


@dataclass(frozen=True, slots=True)
class Dropout(_Bare):
    """Zeroes a share of its input while training."""

    share: float = 0.5


@dataclass(frozen=True, slots=True)
class Pool(_Bare):
    """Maximum or mean over square windows; `kernel` None is the whole image.

    `ceil`: a last window may reach over the edge, as Caffe's does and torch's with `ceil_mode`.
    """

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


Layer = Conv | Linear | Norm | Relu | Pool | Add | Concat | LocalNorm | Dropout


@dataclass(frozen=True, slots=True)
class Node:
    """A layer in its place: its name, and the names of what it reads."""

    name: str
    layer: Layer
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Net:
    """A network: its layers in an order in which they can run, on images of one shape."""

    name: str
    image: Shape
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """A layer with its shapes for one image.

    Attributes
    ----------
    trained_inputs : tuple of bool
        Whether each input depends on a parameter, so that training needs its gradient.
    consumers : int
        How many layers read the output.
    """

    name: str
    layer: Layer
    inputs: tuple[str, ...]
    input_shapes: tuple[Shape, ...]
    shape: Shape
    trained_inputs: tuple[bool, ...]
    consumers: int

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.layer.weights(*self.input_shapes)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one image, forward, without bias."""
        return self.layer.macs(*self.input_shapes)


def place(net: Net) -> tuple[Placed, ...]:
    """Propagate shapes through a network.

    Raises
    ------
    WorkloadError
        If a layer reads what no earlier layer wrote, a name occurs twice, or shapes do not fit.
    """
    shapes: dict[str, Shape] = {IMAGE: net.image}
    trained: dict[str, bool] = {IMAGE: False}
    readers = _readers(net)
    placed = []
    for node in net.nodes:
        unknown = [name for name in node.inputs if name not in shapes]
        if unknown or not node.inputs or node.name in shapes:
            raise WorkloadError(
                f"{net.name}: expected {node.name!r}, once, to read layers before it; it reads "
                f"{', '.join(node.inputs) or 'nothing'}"
            )
        inputs = tuple(shapes[name] for name in node.inputs)
        try:
            shape = node.layer.shape(*inputs)
        except (WorkloadError, ValueError) as problem:
            raise WorkloadError(f"{net.name}, {node.name}: {problem}") from problem
        through = tuple(trained[name] for name in node.inputs)
        shapes[node.name] = shape
        trained[node.name] = any(through) or node.layer.weights(*inputs) > 0
        placed.append(
            Placed(
                node.name, node.layer, node.inputs, inputs, shape, through, readers[node.name]
            )
        )  # fmt: skip
    return tuple(placed)


def _readers(net: Net) -> Mapping[str, int]:
    count = {node.name: 0 for node in net.nodes}
    for node in net.nodes:
        for name in node.inputs:
            if name in count:
                count[name] += 1
    return count


def _windows(
    x: Shape, channels: int, kernel: int, stride: int, padding: int, ceil: bool = False
) -> Shape:
    def windows(size: int) -> int:
        room = size + 2 * padding - kernel
        if ceil and room % stride and (room // stride + 1) * stride < size + padding:
            return room // stride + 2  # one more, which begins within the image
        return room // stride + 1

    return Shape(channels, windows(x.height), windows(x.width))


UPDATE_PASSES: Final = 5
"""SGD with momentum reads weight, gradient and momentum, and writes weight and momentum."""

_INDEX_BYTES: Final = 8  # where each maximum was: int64 in torch


@dataclass(frozen=True, slots=True)
class Cost:
    """What a layer, or several added up, costs in one training step of a batch.

    Attributes
    ----------
    parameters : int
        Independent of the batch.
    macs, forward_flops, backward_flops : int
        The backward pass of a convolution or fully connected layer computes the gradients of its
        weights and of its input, as many FLOPs each as forward; nothing needs the gradient of
        the images.
    forward_bytes, backward_bytes, update_bytes : int
        Memory traffic; update is that of SGD with momentum.
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
        """Memory traffic of a training step."""
        return self.forward_bytes + self.backward_bytes + self.update_bytes


def costs(net: Net, batch: int = 1, element_bytes: int = 4) -> tuple[tuple[Placed, Cost], ...]:
    """Return every layer with what it costs in a training step of `batch` images.

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
            f"expected at least one image and one byte a number; got {batch} and {element_bytes}"
        )
    return tuple((layer, _cost(layer, batch, element_bytes)) for layer in place(net))


def total(
    net: Net,
    batch: int = 1,
    element_bytes: int = 4,
    only: Literal["conv", "fc"] | None = None,
) -> Cost:
    """Return what all layers cost together, or only the convolutions or the FC layers."""
    kinds = {"conv": (Conv,), "fc": (Linear,), None: (object,)}[only]
    chosen = [c for layer, c in costs(net, batch, element_bytes) if isinstance(layer.layer, kinds)]
    return sum(chosen, Cost())


def training_bytes(net: Net, batch: int, element_bytes: int = 4) -> int:
    """Return the memory a training step holds at its fullest, without workspaces and caches.

    Weights, gradients and momenta (three copies of the parameters), and what the backward pass
    needs of every layer: inputs of convolutions, FC layers, normalizations and maximum pools,
    outputs of activations (in place) and local normalizations, positions of maxima, dropout's masks
    (a byte each). A tensor that two layers need is held once.
    """
    layers = place(net)
    shapes = {name: s for x in layers for name, s in zip(x.inputs, x.input_shapes, strict=True)}
    shapes |= {x.name: x.shape for x in layers}
    kept: set[str] = set()
    positions = masks = 0
    for x in layers:
        if isinstance(x.layer, Relu | LocalNorm):
            kept.add(x.name)
        if isinstance(x.layer, Conv | Linear | Norm | LocalNorm) or _is_maximum(x):
            kept.update(x.inputs)
        positions += x.shape.elements if _is_maximum(x) else 0
        masks += x.shape.elements if isinstance(x.layer, Dropout) else 0
    activations = sum(shapes[name].elements for name in kept)
    parameters = sum(x.parameters for x in layers)
    held = element_bytes * (3 * parameters + batch * activations)
    return held + batch * (_INDEX_BYTES * positions + masks)


def _is_maximum(x: Placed) -> bool:
    return isinstance(x.layer, Pool) and x.layer.kind == "max"


def _cost(x: Placed, batch: int, element_bytes: int) -> Cost:
    forward, backward = _passes(x)
    weights = x.parameters
    once = weights if isinstance(x.layer, Conv | Linear) else 0  # those of a Norm are few
    gradients = once * (1 + any(x.trained_inputs))  # dW is written; W is read for dx
    macs = batch * x.macs
    return Cost(
        parameters=weights,
        macs=macs,
        forward_flops=2 * macs,
        backward_flops=2 * macs * (1 + any(x.trained_inputs)),
        forward_bytes=element_bytes * (batch * forward + once),
        backward_bytes=element_bytes * (batch * backward + gradients),
        update_bytes=element_bytes * UPDATE_PASSES * weights,
    )


def _passes(x: Placed) -> tuple[int, int]:
    """Return the elements of activations and their gradients moved per image: forward, backward."""
    read, written = sum(s.elements for s in x.input_shapes), x.shape.elements
    back = sum(s.elements for s, t in zip(x.input_shapes, x.trained_inputs, strict=True) if t)
    forward = read + written
    match x.layer:
        case Conv() | Linear():  # dW = f(dy, x), then dx = f(dy, W)
            backward = written + read + (written + back if back else 0)
        case Norm():
            forward = 2 * read + written
            backward = 2 * (written + read) + back
        case Relu():
            backward = 2 * written + back
        case LocalNorm():
            backward = 2 * written + read + back
        case Pool() | Dropout():
            backward = written + back
        case Add() | Concat():
            backward = 0  # the inputs' gradients are the output's, or parts of it
    joined = 3 * (x.consumers - 1) if x.consumers > 1 else 0  # gradients of a fork are summed
    return forward, backward + joined * written

"""What training a network costs: FLOPs, memory traffic and memory, layer by layer.

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

from dataclasses import dataclass, fields
from typing import Final, Literal

from perfmodel.base.errors import WorkloadError
from perfmodel.workloads.layers import (
    Add,
    Concat,
    Conv,
    Dropout,
    Linear,
    LocalNorm,
    Net,
    Norm,
    Placed,
    Pool,
    Relu,
    place,
)

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
            f"wanted at least one image and one byte a number; found {batch} and {element_bytes}"
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

"""Turns a torch model into a list of layers, by tracing it on tensors without data."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final, Literal

from perfmodel.errors import WorkloadError
from perfmodel.escape import printable
from perfmodel.workloads.cnn import total
from perfmodel.workloads.layers import (
    IMAGE,
    Add,
    Concat,
    Conv,
    Dropout,
    Layer,
    Linear,
    LocalNorm,
    Net,
    Node,
    Norm,
    Pool,
    Relu,
    Shape,
)

_CALLED: Final[Mapping[str, Layer]] = {
    "add": Add(), "iadd": Add(), "add_": Add(), "relu": Relu(), "relu_": Relu(),
    "cat": Concat(), "dropout": Dropout(),
}  # fmt: skip
_SAME: Final = ("flatten", "view", "reshape", "contiguous", "size", "getattr")
"""What neither computes nor moves anything."""


def from_torch(word: str, size: int = 224) -> Net:
    """Return the network that `MODULE:FUNCTION` makes, for images of (3, size, size).

    The function is imported and called without arguments, on torch's meta device: no weights are
    made. Convolutions, fully connected layers, normalizations, pools, sums, concatenations, ReLU
    and dropout are known.

    Raises
    ------
    WorkloadError
        If torch or the function is missing, a layer is not known or not square, or parameters are
        left over.
    """
    torch = _import("torch", "install torch, or name one of perfmodel's own networks")
    model = _made(torch, word)
    images = torch.empty(1, 3, size, size, device="meta")
    try:
        traced = importlib.import_module("torch.fx").symbolic_trace(model)
        propagate = importlib.import_module("torch.fx.passes.shape_prop").ShapeProp
        propagate(traced).propagate(images)
    except Exception as problem:  # torch.fx raises what the model's own code raises
        raise WorkloadError(
            f"wanted a model that torch.fx can trace on images of 3 x {size} x {size}; found: "
            f"{printable(str(problem))}: a model whose forward pass branches on values cannot be"
        ) from problem
    net = Net(word, Shape(3, size, size), _nodes(traced, dict(traced.named_modules())))
    wanted = sum(p.numel() for p in model.parameters())
    if total(net).parameters != wanted:
        raise WorkloadError(
            f"wanted all {wanted:,} parameters of {printable(word)} in its layers; found "
            f"{total(net).parameters:,}: layers used twice, layers that do not run "
            f"(auxiliary classifiers), and parameters outside of layers are not known"
        )
    return net


def _import(name: str, advice: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        said = printable(str(problem))
        raise WorkloadError(f"wanted the module {name}; found: {said}: {advice}") from problem


def _made(torch: Any, word: str) -> Any:
    """Call the function; return its model in evaluation mode."""
    name, _, function = word.partition(":")
    make = getattr(_import(name, "put it on PYTHONPATH"), function, None)
    if not callable(make):
        raise WorkloadError(
            f"wanted a function of {printable(name)} that makes a model; found no "
            f"{printable(function)!r} to call: give MODULE:FUNCTION"
        )
    try:
        with torch.device("meta"):
            model = make()
    except Exception as problem:  # whatever the model's own code raises
        raise WorkloadError(
            f"wanted {printable(word)}() to make a model; it raised {printable(repr(problem))}: "
            f"give a function that needs no arguments and no data"
        ) from problem
    if not isinstance(model, torch.nn.Module):
        raise WorkloadError(
            f"wanted a torch.nn.Module from {printable(word)}(); found {type(model).__name__}: "
            f"return the model"
        )
    return model.train(False)


def _nodes(traced: Any, modules: Mapping[str, Any]) -> tuple[Node, ...]:
    names: dict[Any, str] = {}
    nodes: list[Node] = []
    for op in traced.graph.nodes:
        if op.op == "placeholder":
            names[op] = IMAGE
        if op.op == "get_attr":
            raise _unknown(op, "a tensor outside of layers")
        if op.op not in ("call_module", "call_function", "call_method"):
            continue
        module = op.op == "call_module"
        layer = _of_module(modules[op.target], op) if module else _of_call(op)
        inputs = tuple(names[x] for x in op.all_input_nodes)
        if layer is None:
            names[op] = inputs[0]
            continue
        once = module and str(op.target) not in names.values()  # one ReLU may run many times
        names[op] = str(op.target) if once else op.name
        nodes.append(Node(names[op], layer, inputs))
    return tuple(nodes)


def _of_module(module: Any, op: Any) -> Layer | None:
    kind = type(module).__name__
    match kind:
        case "Conv2d":
            if set(module.dilation) != {1}:
                raise _unknown(op, f"a dilation of {module.dilation}")
            sizes = (module.kernel_size, module.stride, module.padding)
            kernel, stride, padding = (_square(op, x) for x in sizes)
            bias = module.bias is not None
            return Conv(module.out_channels, kernel, stride, padding, module.groups, bias)
        case "Linear":
            return Linear(module.out_features, module.bias is not None)
        case "BatchNorm2d":
            return Norm()
        case "ReLU":
            return Relu()
        case "Dropout":
            return Dropout(module.p)
        case "LocalResponseNorm":
            return LocalNorm(module.size)
        case "MaxPool2d" | "AvgPool2d":
            sizes = (module.kernel_size, module.stride, module.padding)
            kernel, stride, padding = (_square(op, x) for x in sizes)
            what: Literal["max", "mean"] = "max" if kind == "MaxPool2d" else "mean"
            return Pool(what, kernel, stride, padding, module.ceil_mode)
        case "AdaptiveAvgPool2d":
            return _adaptive(op)
        case "Flatten" | "Identity":
            return None
    raise _unknown(op, kind)


def _of_call(op: Any) -> Layer | None:
    name = op.target if isinstance(op.target, str) else op.target.__name__
    if name in _SAME:
        return None
    if name == "adaptive_avg_pool2d":
        return _adaptive(op)
    if name not in _CALLED:
        raise _unknown(op, name)
    return _CALLED[name]


def _adaptive(op: Any) -> Pool:
    """Return the pool that makes the traced output of the traced input."""
    (before, after) = (x.meta["tensor_meta"].shape for x in (op.all_input_nodes[0], op))
    if tuple(after[2:]) == (1, 1):
        return Pool("mean")
    kernel = _square(op, tuple(n // m for n, m in zip(before[2:], after[2:], strict=True)))
    if kernel * after[2] != before[2]:
        raise _unknown(op, f"a pool from {tuple(before[2:])} to {tuple(after[2:])}")
    return Pool("mean", kernel, kernel)


def _square(op: Any, size: Any) -> int:
    sizes = {size} if isinstance(size, int) else set(size)
    if len(sizes) != 1 or not isinstance(next(iter(sizes)), int):
        raise _unknown(op, f"a size of {size}")
    return int(next(iter(sizes)))


def _unknown(op: Any, found: str) -> WorkloadError:
    return WorkloadError(
        f"wanted layers that perfmodel knows; found {printable(found)} in {printable(op.name)}: "
        f"add it to perfmodel/workloads/layers.py"
    )

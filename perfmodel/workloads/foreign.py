"""PyTorch modules, read layer by layer; and what readers of other libraries' networks share."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from perfmodel.base.errors import WorkloadError
from perfmodel.base.escape import printable
from perfmodel.workloads.layers import (
    INPUT,
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
    total,
)


def imported(name: str, advice: str) -> Any:
    """Import an optional module; WorkloadError with `advice` if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        said = printable(str(problem))
        raise WorkloadError(f"expected the module {name}; got: {said}: {advice}") from problem


def square(size: int | Iterable[Any], where: str) -> int:
    """Return the one number of a size; WorkloadError if height and width differ."""
    sizes = {size} if isinstance(size, int) else set(size)
    if len(sizes) != 1 or not isinstance(next(iter(sizes)), int):
        raise unknown(f"a size of {size}", where)
    return int(next(iter(sizes)))


def unknown(found: str, where: str) -> WorkloadError:
    """Return the refusal of a layer."""
    return WorkloadError(
        f"expected layers that perfmodel knows; got {printable(found)} in {printable(where)}: "
        f"add it to perfmodel/workloads/layers.py"
    )


def check_parameters(net: Net, wanted: int) -> None:
    """Raise WorkloadError unless the layers have all of the model's parameters."""
    found = total(net).parameters
    if found != wanted:
        raise WorkloadError(
            f"expected all {wanted:,} parameters of {printable(net.name)} in its layers; got "
            f"{found:,}: layers used twice, layers that do not run "
            f"(auxiliary classifiers), and parameters outside of layers are not known"
        )


_CALLED: Final[Mapping[str, Layer]] = {
    "add": Add(), "iadd": Add(), "add_": Add(), "relu": Relu(), "relu_": Relu(),
    "cat": Concat(), "dropout": Dropout(),
}  # fmt: skip
_TORCH_SAME: Final = ("flatten", "view", "reshape", "contiguous", "size", "getattr")
"""Modules that neither compute nor move anything."""


def from_torch(word: str, image: int = 224) -> Net:
    """Return the network that `MODULE:FUNCTION` makes, for images of (3, image, image).

    The function is imported and called without arguments, on torch's meta device: no weights are
    made. Convolutions, fully connected layers, normalizations, pools, sums, concatenations, ReLU
    and dropout are known.

    Raises
    ------
    WorkloadError
        If torch or the function is missing, a layer is not known or not square, or parameters are
        left over.
    """
    torch = imported("torch", "install torch, or name one of perfmodel's own networks")
    model = _made(torch, word)
    images = torch.empty(1, 3, image, image, device="meta")
    try:
        traced = importlib.import_module("torch.fx").symbolic_trace(model)
        propagate = importlib.import_module("torch.fx.passes.shape_prop").ShapeProp
        propagate(traced).propagate(images)
    except Exception as problem:  # torch.fx raises what the model's own code raises
        raise WorkloadError(
            f"expected a model that torch.fx can trace on images of 3 x {image} x {image}; got: "
            f"{printable(str(problem))}: a model whose forward pass branches on values cannot be"
        ) from problem
    net = Net(word, Shape(3, image, image), _nodes(traced, dict(traced.named_modules())))
    check_parameters(net, sum(p.numel() for p in model.parameters()))
    return net


def _made(torch: Any, word: str) -> Any:
    """Call the function; return its model in evaluation mode."""
    name, _, function = word.partition(":")
    make = getattr(imported(name, "put it on PYTHONPATH"), function, None)
    if not callable(make):
        raise WorkloadError(
            f"expected a function of {printable(name)} that makes a model; got no "
            f"{printable(function)!r} to call: give MODULE:FUNCTION"
        )
    try:
        with torch.device("meta"):
            model = make()
    except Exception as problem:  # whatever the model's own code raises
        raise WorkloadError(
            f"expected {printable(word)}() to make a model; it raised {printable(repr(problem))}: "
            f"give a function that needs no arguments and no data"
        ) from problem
    if not isinstance(model, torch.nn.Module):
        raise WorkloadError(
            f"expected a torch.nn.Module from {printable(word)}(); got {type(model).__name__}: "
            f"return the model"
        )
    return model.train(False)


def _nodes(traced: Any, modules: Mapping[str, Any]) -> tuple[Node, ...]:
    names: dict[Any, str] = {}
    nodes: list[Node] = []
    for op in traced.graph.nodes:
        if op.op == "placeholder":
            names[op] = INPUT
        if op.op == "get_attr":
            raise unknown("a tensor outside of layers", op.name)
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
                raise unknown(f"a dilation of {module.dilation}", op.name)
            sizes = (module.kernel_size, module.stride, module.padding)
            kernel, stride, padding = (square(x, op.name) for x in sizes)
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
            kernel, stride, padding = (square(x, op.name) for x in sizes)
            what: Literal["max", "mean"] = "max" if kind == "MaxPool2d" else "mean"
            return Pool(what, kernel, stride, padding, module.ceil_mode)
        case "AdaptiveAvgPool2d":
            return _adaptive(op)
        case "Flatten" | "Identity":
            return None
    raise unknown(kind, op.name)


def _of_call(op: Any) -> Layer | None:
    name = op.target if isinstance(op.target, str) else op.target.__name__
    if name in _TORCH_SAME:
        return None
    if name == "adaptive_avg_pool2d":
        return _adaptive(op)
    if name not in _CALLED:
        raise unknown(name, op.name)
    return _CALLED[name]


def _adaptive(op: Any) -> Pool:
    """Return the pool that makes the traced output of the traced input."""
    (before, after) = (x.meta["tensor_meta"].shape for x in (op.all_input_nodes[0], op))
    if tuple(after[2:]) == (1, 1):
        return Pool("mean")
    kernel = square(tuple(n // m for n, m in zip(before[2:], after[2:], strict=True)), op.name)
    if kernel * after[2] != before[2]:
        raise unknown(f"a pool from {tuple(before[2:])} to {tuple(after[2:])}", op.name)
    return Pool("mean", kernel, kernel)

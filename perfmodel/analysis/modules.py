"""Time, FLOPs and bytes of a model's modules: what each calls, with the modules in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

_OF_CLASS: Final = re.compile(r"([A-Z]\w*)_\d+")
"""A module by its class and number, as torch.profiler names them."""
_DEEPEST: Final = 31
"""Modules around a module; the names of those further in stay with the last."""


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """Operators that a module and the modules in it call in a median step, the mean over ranks.

    Attributes
    ----------
    name : str
        Qualified name; '' for operators outside of all modules. In `StepWork.module_groups`
        numbers are `*`: layers of one kind are together.
    forward_s, backward_s, gpu_s : float
        Time of the operators' kernels; of a backward pass those whose forward the module called.
    own_s : float
        Of it what the module itself calls, not a module in it.
    share : float
        Of the step's time in operations that do not communicate.
    flops, bytes : float
        By formula.
    flops_per_s : float or None
        `flops` over `gpu_s`.
    of_ceiling : float or None
        Least time by peaks and bandwidth over the time of operators with a formula.
    """

    name: str
    forward_s: float
    backward_s: float
    gpu_s: float
    own_s: float
    share: float
    flops: float
    bytes: float
    flops_per_s: float | None
    of_ceiling: float | None


@dataclass(frozen=True, slots=True)
class ModulePart:
    """The calls of one module itself in one phase."""

    module: str
    phase: str
    flops: float
    bytes: float
    gpu_s: float
    limited_s: float  # of it the time of operators whose least time is known
    least_s: float


def module_rows(parts: Sequence[ModulePart], named: Callable[[str], str]) -> tuple[ModuleRow, ...]:
    """Sum parts up by module and by all modules around it."""
    inside: dict[str, list[ModulePart]] = {}
    own: dict[str, float] = {}
    for part in parts:
        module = named(part.module)
        own[module] = own.get(module, 0.0) + part.gpu_s
        for name in _around(module):
            inside.setdefault(name, []).append(part)
    first = {name: i for i, name in enumerate(inside)}
    ordered = sorted(inside, key=lambda name: (not name, [first[n] for n in _around(name)]))
    total = sum(part.gpu_s for part in parts) or 1.0
    return tuple(_module(name, inside[name], own.get(name, 0.0), total) for name in ordered)


def _around(module: str) -> list[str]:
    """A module's name and those of the modules around it, the outermost first."""
    parts = module.split(".", _DEEPEST)
    names = [".".join(parts[: i + 1]) for i in range(len(parts))]
    return [n for n, below in zip(names, [*parts[1:], ""], strict=True) if below != "*"]


def layers_together(module: str) -> str:
    """Return a name with `*` for the numbers of layers, without those of modules of one class.

    >>> layers_together("GPT.h.3.attn"), layers_together("GPT_0.Block_3")
    ('GPT.h.*.attn', 'GPT.Block')
    """
    parts = ("*" if part.isdecimal() else part for part in module.split("."))
    return ".".join(_OF_CLASS.sub(r"\1", part) for part in parts)


def _module(name: str, parts: Sequence[ModulePart], own_s: float, total_s: float) -> ModuleRow:
    gpu_s, flops = sum(p.gpu_s for p in parts), sum(p.flops for p in parts)
    limited_s = sum(p.limited_s for p in parts)
    return ModuleRow(
        name=name,
        forward_s=sum(p.gpu_s for p in parts if p.phase == "forward"),
        backward_s=sum(p.gpu_s for p in parts if p.phase == "backward"),
        gpu_s=gpu_s,
        own_s=own_s,
        share=gpu_s / total_s,
        flops=flops,
        bytes=sum(p.bytes for p in parts),
        flops_per_s=flops / gpu_s if flops and gpu_s else None,
        of_ceiling=sum(p.least_s for p in parts) / limited_s if limited_s else None,
    )

"""Frames of a program's stack: how one is written, and whose code it is.

The user's frames come before those of the libraries that the user calls, and both before the
framework's: PyTorch, Python itself, what is built in.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

MODULE: Final = "nn.Module: "
"""Prefix of the name of a module's range, or of its frame; the module's name follows."""

USER, LIBRARY, FRAMEWORK = range(3)
"""Origins of a frame's code, the most telling first."""

_PYTHON: Final = re.compile(r"(?P<file>.+)\((?P<line>-?\d+)\): (?P<function>.*)", re.DOTALL)
"""A frame as torch.profiler names it."""
_INSTALLED: Final = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
_OF_PYTHON: Final = re.compile(r".*[/\\]lib(?:64)?[/\\]python\d[.\d]*[/\\]")
_NUMBERED: Final = re.compile(r"\w+_\d+")
_NOTEBOOK: Final = ("<ipython-input", "<stdin>")
_GENERATED: Final = ("torchinductor_", "ipykernel_launcher")
_MAIN: Final = "<module>"


@cache
def _owners() -> Mapping[str, tuple[str, ...]]:
    return tomllib.loads((Path(__file__).parent / "frameworks.toml").read_text("utf-8"))


def frame_text(file: str, line: int | None, function: str) -> str:
    """Return a frame as it is shown; the folder that packages are installed in is left out.

    >>> frame_text("/usr/lib/python3.12/site-packages/timm/layers/mlp.py", 43, "forward")
    'timm/layers/mlp.py:43 in forward'
    """
    at = "" if line is None or line < 0 else f":{line}"
    return f"{_INSTALLED.sub('', file)}{at} in {function}"


def python_frame(name: str) -> tuple[str, int]:
    """Return the text of a frame that torch.profiler names, and whose code it is.

    >>> python_frame("train_ddp.py(161): ddp_worker")
    ('train_ddp.py:161 in ddp_worker', 0)
    >>> python_frame("torch/nn/modules/module.py(1773): _call_impl")
    ('torch/nn/modules/module.py:1773 in _call_impl', 2)
    >>> python_frame("<built-in method to of Tensor object at 0x7f>")[1]
    2
    """
    found = _PYTHON.fullmatch(name)
    if found is None:
        return name, LIBRARY if name.startswith(MODULE) else FRAMEWORK
    file, function = found["file"], found["function"]
    return frame_text(file, int(found["line"]), function), owner_of(file, function)


def owner_of(file: str, function: str = "") -> int:
    """Return whose code a file of Python is: `USER`, `LIBRARY` or `FRAMEWORK`.

    >>> owner_of("/data/train.py"), owner_of("transformers/models/bert/modeling_bert.py")
    (0, 1)
    >>> owner_of("/opt/lib/python3.11/threading.py"), owner_of("threading.py"), owner_of("<string>")
    (2, 2, 2)
    """
    if file.startswith("<"):
        return USER if file.startswith(_NOTEBOOK) else FRAMEWORK
    if any(made in file for made in _GENERATED):
        return FRAMEWORK
    package, installed = _INSTALLED.subn("", file)
    first = re.split(r"[/\\]", package, maxsplit=1)[0]
    owners = _owners()
    if installed or not file.startswith(("/", "\\")):
        if first in owners["framework"]:
            return FRAMEWORK
        if installed or first in owners["library"]:
            return LIBRARY
    if _OF_PYTHON.match(file):
        return FRAMEWORK
    standard = first.removesuffix(".py") in sys.stdlib_module_names
    return FRAMEWORK if standard and function != _MAIN else USER


def module_path(around: str, name: str) -> str:
    """Return the path of a module that is called in another one, '' in none.

    torch.profiler numbers the modules of a class; `annotate` gives them whole paths.

    >>> module_path("GPT_0.Block_3", "Linear_14"), module_path("GPT", "GPT.h.3")
    ('GPT_0.Block_3.Linear_14', 'GPT.h.3')
    """
    return f"{around}.{name}" if around and _NUMBERED.fullmatch(name) else name


def native_frame(symbol: str, module: str) -> tuple[str, int]:
    """Return the text of a frame of a recorded call chain, and whose code it is.

    Frames of Python have their file in place of the shared object.

    >>> native_frame("Solver::step(float)", "/data/bin/solver")
    ('solver: Solver::step(float)', 0)
    >>> native_frame("0x7f12", "/usr/lib/libcuda.so.1")[1]
    2
    >>> native_frame("cuptiGetTimestamp", "/opt/nvidia/nsight-systems/libcupti.so.13.0")[1]
    2
    """
    if module.endswith(".py"):
        return frame_text(module, None, symbol), owner_of(module, symbol)
    name = re.split(r"[/\\]", module)[-1]
    unnamed = not symbol or symbol.startswith(("0x", "["))
    owners = _owners()
    foreign = unnamed or not name or name.startswith(tuple(owners["native"]))
    foreign = foreign or module.startswith(tuple(owners["system"]))
    return f"{name or '?'}: {symbol}", FRAMEWORK if foreign or _INSTALLED.match(module) else USER

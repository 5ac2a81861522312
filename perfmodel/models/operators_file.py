"""The file of a model of operators: JSON, versioned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.base.document import fitting, parse_json, pick, plain, read_table, to_json
from perfmodel.base.errors import ModelError
from perfmodel.base.escape import printable
from perfmodel.machines.machine import Machine
from perfmodel.models.operator_times import Baseline, Grid, as_lists, from_lists
from perfmodel.models.operators import Host, OperatorModel, Wire
from perfmodel.models.recorded import RecordedStep

FORMAT: Final = "perfmodel operators"
VERSION: Final = 1
_AGAIN: Final = "calibrate anew"
_LARGEST_LOG: Final = 100.0
"""Of sizes and ratios: a number of 64 bits has 44."""
_GRIDS: Final = ("gemms", "attention")


def is_operators(path: Path) -> bool:
    """Whether a file is of a model of operators."""
    data = read_table(path, parse_json, "a model that perfmodel calibrate wrote", _AGAIN)
    return isinstance(data, dict) and data.get("format") == FORMAT


def as_text(model: OperatorModel) -> str:
    """Return what a model's file holds; the same model gives the same bytes."""
    return to_json(document(model), indent=None) + "\n"


def document(model: OperatorModel) -> Any:
    """Return the model as what JSON holds."""
    machine = model.baseline.machine
    return plain({
        "format": FORMAT,
        "version": VERSION,
        **pick(model, "program gpu"),
        "symbols": symbols_of(model),
        "machine": pick(machine, "name source peak_flops_per_s bandwidth_bytes_per_s latency_s"),
        "gemms": [_grid(key, grid) for key, grid in sorted(model.baseline.gemms.items())],
        "attention": [_grid(key, grid) for key, grid in sorted(model.baseline.attention.items())],
        "factors": as_lists(model.factors),
        "host": {("several" if k else "one"): h for k, h in model.host.items()},
        "collectives": model.wires,
        **pick(model, "contention gap_s scale gpu_noise host_noise take"),
        "steps": [replace(step, tensors=()) for step in model.steps],  # of peaks alone
    })  # fmt: skip


def _grid(key: tuple[str, str], grid: Grid) -> dict[str, Any]:
    sizes = np.exp(grid.sizes).round().astype(int)
    return {"key": list(key), "sizes": sizes.tolist(),
            "seconds": [float(f"{s:.5g}") for s in np.exp(grid.seconds)]}  # fmt: skip


def symbols_of(model: OperatorModel) -> list[dict[str, Any]]:
    """Every operator of the program with its dimensions as products of symbols."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for structure in model.structures:
        for call, terms in zip(structure.step.calls, structure.terms, strict=True):
            shown = [
                "×".join(_options([t.text for t in options]) for options in size)
                for size in terms
                if size
            ]
            text = ", ".join(shown[:4]) + (f", … ({len(shown)})" if len(shown) > 4 else "")
            key = call.name, call.phase, text
            found.setdefault(key, {"name": call.name, "phase": call.phase, "sizes": text})
    return list(found.values())


def _options(texts: Sequence[str]) -> str:
    """One product, or all that are equal in the reports."""
    return texts[0] if len(texts) == 1 else f"({' or '.join(texts[:3])})"


def load(path: Path) -> OperatorModel:
    """Read a model.

    Raises
    ------
    ModelError
        If the file cannot be read, or is of another version.
    """
    where = printable(str(path))
    data = read_table(path, parse_json, "a model that perfmodel calibrate wrote", _AGAIN)
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise ModelError(
            f"{where}: expected {FORMAT} version {VERSION}; got {data.get('format')} version "
            f"{data.get('version')}; {_AGAIN}"
        )
    try:
        return _model(data)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelError(
            f"{where}: expected a model that perfmodel calibrate wrote; got one that lacks "
            f"something ({type(error).__name__}: {printable(str(error))[:200]}); {_AGAIN}"
        ) from error


def _model(data: Mapping[str, Any]) -> OperatorModel:
    given = data["machine"]
    peaks, bandwidths, latencies = (
        fitting(Mapping[str, float], given[name])
        for name in ("peak_flops_per_s", "bandwidth_bytes_per_s", "latency_s")
    )
    if 0 in (*peaks.values(), *bandwidths.values()):
        raise ValueError("expected ceilings above 0; got 0")
    name, source = (fitting(str, given[key]) for key in ("name", "source"))
    machine = Machine(name, source, peaks, bandwidths, latency_s=latencies)
    gemms, attention = ({tuple(g["key"]): _read_grid(g) for g in data[k]} for k in _GRIDS)
    steps = fitting(tuple[RecordedStep, ...], data["steps"])
    factors = from_lists(data["factors"])
    for step in steps:
        _check_step(step, steps[0])
    if not any(step.order for step in steps):
        raise ValueError("expected a step with the order of its calls; got none")
    for name, f in factors.items():
        if f.sizes.ndim != 2 or not f.sizes.size or f.factor.shape != f.sizes.shape[:1]:
            raise ValueError(f"expected a factor for all sizes of {name}; got others")
        if max(abs(f.sizes).max(), abs(f.factor).max()) > _LARGEST_LOG:
            raise ValueError(f"expected logarithms up to {_LARGEST_LOG} of {name}; got more")
    if max(data["gpu_noise"], data["host_noise"]) > _LARGEST_LOG:
        raise ValueError(f"expected noise up to {_LARGEST_LOG}; got more")
    if data["scale"] == 0:
        raise ValueError("expected a scale above 0; got 0")
    numbers = ("contention", "gap_s", "scale", "gpu_noise", "host_noise")
    return OperatorModel(
        program=fitting(str, data["program"]),
        gpu=fitting(str, data["gpu"]),
        steps=steps,
        baseline=Baseline(machine, gemms, attention),
        factors=factors,
        host={k == "several": fitting(Host, h) for k, h in data["host"].items()},
        wires=fitting(Mapping[str, Wire], data["collectives"]),
        take=fitting(tuple[str, ...], data["take"]),
        **{k: fitting(float, data[k]) for k in numbers},
    )


def _read_grid(data: Mapping[str, Any]) -> Grid:
    shapes = fitting(tuple[tuple[int, int, int], ...], data["sizes"])
    seconds = fitting(tuple[float, ...], data["seconds"])
    if not shapes or len(shapes) != len(seconds) or 0 in seconds or any(0 in s for s in shapes):
        raise ValueError("expected as many seconds as sizes, all above 0; got others")
    return Grid.of(shapes, seconds)


def _check_step(step: RecordedStep, first: RecordedStep) -> None:
    """Refuse a step whose parts do not belong together."""
    if max(step.order, default=0) >= max(len(step.calls), 1):
        raise ValueError(f"expected order below {len(step.calls)}; got {max(step.order)}")
    if {*step.symbols} != {*first.symbols}:
        raise ValueError(f"expected the symbols {[*first.symbols]}; got {[*step.symbols]}")
    for call in step.calls:
        if call.arguments > len(call.sizes) or 0 in (call.shape or ()):
            raise ValueError(f"expected sizes of all arguments of {call.name}; got fewer, or 0")

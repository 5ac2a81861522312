"""The file of a model of operators: JSON, versioned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.base.document import pick, plain, read_table, to_json
from perfmodel.base.errors import ModelError
from perfmodel.base.escape import printable
from perfmodel.machines.machine import Machine
from perfmodel.models.operator_times import Baseline, Grid, as_lists, from_lists
from perfmodel.models.operators import Host, OperatorModel, Wire
from perfmodel.models.recorded import RecordedCall, RecordedStep

FORMAT: Final = "perfmodel operators"
VERSION: Final = 1
_AGAIN: Final = "calibrate anew"


def is_operators(path: Path) -> bool:
    """Whether a file is of a model of operators."""
    data = read_table(path, json.loads, "a model that perfmodel calibrate wrote", _AGAIN)
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
        **pick(model, "contention gap_s scale gpu_noise host_noise take steps"),
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
    data = read_table(path, json.loads, "a model that perfmodel calibrate wrote", _AGAIN)
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise ModelError(
            f"{where}: expected {FORMAT} version {VERSION}; got {data.get('format')} version "
            f"{data.get('version')}; {_AGAIN}"
        )
    try:
        return _model(data)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelError(
            f"{where}: expected a model that perfmodel calibrate wrote; got one that lacks "
            f"something ({type(error).__name__}: {error}); {_AGAIN}"
        ) from error


def _model(data: Mapping[str, Any]) -> OperatorModel:
    given = data["machine"]
    machine = Machine(
        given["name"], given["source"], given["peak_flops_per_s"],
        given["bandwidth_bytes_per_s"], latency_s=given["latency_s"],
    )  # fmt: skip
    grids = [
        {tuple(g["key"]): Grid.of([tuple(s) for s in g["sizes"]], g["seconds"]) for g in data[k]}
        for k in ("gemms", "attention")
    ]
    return OperatorModel(
        program=data["program"],
        gpu=data["gpu"],
        steps=tuple(_step(s) for s in data["steps"]),
        baseline=Baseline(machine, grids[0], grids[1]),
        factors=from_lists(data["factors"]),
        host={k == "several": Host(**h) for k, h in data["host"].items()},
        wires={k: Wire(**w) for k, w in data["collectives"].items()},
        take=tuple(data["take"]),
        **{k: float(data[k]) for k in ("contention", "gap_s", "scale", "gpu_noise", "host_noise")},
    )


def _step(data: Mapping[str, Any]) -> RecordedStep:
    values = {f.name: data[f.name] for f in fields(RecordedStep)}
    values["calls"] = tuple(_call(c) for c in data["calls"])
    values["order"] = tuple(data["order"])
    return RecordedStep(**values)


def _call(data: Mapping[str, Any]) -> RecordedCall:
    values = {f.name: data[f.name] for f in fields(RecordedCall)}
    values["sizes"] = tuple(tuple(s) for s in data["sizes"])
    values["shape"] = tuple(data["shape"]) if data["shape"] else None
    return RecordedCall(**values)

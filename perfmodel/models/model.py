"""The calibrated model: terms, their evidence and noise; and its file, versioned and validated."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.base.errors import ModelError
from perfmodel.base.escape import escape_json, printable
from perfmodel.base.files import write_text
from perfmodel.models.terms import UNITS, USUAL_NOISE, Alone, Floats, Term

VERSION: Final = 3
"""Version of the file format; other versions are refused."""
Z90: Final = 1.6448536269514722
"""Half-width of a 90 % interval in standard deviations."""
FORMAT: Final = "perfmodel model"
_MOST_BYTES: Final = 20_000_000
_MOST_AMOUNTS: Final = 12


@dataclass(frozen=True)
class Model:
    """Terms by key, the launch-to-launch noise of a batch, and what was seen.

    Attributes
    ----------
    workload : str
        'mlp', or the name of a workload of the user's own.
    terms : mapping of str to Term
    batch_noise : mapping of str to float
        Standard deviation of log(measured / predicted) of batches, by what sets their pace; of
        launches that the coefficients were not fitted to.
    phase_noise : mapping of str to float
        The same by phase.
    seen : mapping of str to tuple of int
        Values of every symbol in the runs, ascending.
    machine : str
    runs : tuple of mapping
        The evidence: file, sizes, settings, measured and fitted seconds of every run.
    tracing_s : float or None
        What a batch takes longer while Nsight Systems records it; None where no run was timed
        without it.
    alone : Alone or None
        Microbenchmarks of the products that cuBLAS multiplies; None without them.
    """

    workload: str
    terms: Mapping[str, Term]
    batch_noise: Mapping[str, float]
    phase_noise: Mapping[str, float]
    seen: Mapping[str, tuple[int, ...]]
    machine: str
    runs: tuple[Mapping[str, object], ...]
    tracing_s: float | None = None
    alone: Alone | None = None

    def noise(self, pace: str) -> float:
        """Return the noise of batches of a pace; the largest known where that one is not known."""
        return self.batch_noise.get(pace, max(self.batch_noise.values(), default=USUAL_NOISE))


def document(model: Model) -> dict[str, Any]:
    """Return the model as what JSON holds."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "workload": model.workload,
        "machine": model.machine,
        "batch_noise": dict(model.batch_noise),
        "tracing_s": model.tracing_s,
        "phase_noise": dict(model.phase_noise),
        "seen": {name: list(values) for name, values in model.seen.items()},
        "terms": {key: _term(term) for key, term in model.terms.items()},
        "runs": [dict(run) for run in model.runs],
        "products_alone": None if model.alone is None else _alone(model.alone),
    }


def _alone(alone: Alone) -> dict[str, Any]:
    rows = [
        {"product": name, "dtype": dtype, "h_k_seconds": [list(row) for row in found]}
        for (name, dtype), found in alone.seconds.items()
    ]
    return {"source": alone.source, "kernel_s": alone.kernel_s, "rows": rows}


def _term(term: Term) -> dict[str, Any]:
    return {
        "amounts": list(term.amounts),
        "units": [UNITS[name] for name in term.amounts],
        "coefficients": term.coefficients.tolist(),
        "covariance": term.covariance.tolist(),
        "noise": term.noise,
        "largest": term.largest.tolist(),
        "space": term.space.tolist(),
        "runs": list(term.runs),
        "microbenchmarks": list(term.microbenchmarks),
    }


def as_text(model: Model) -> str:
    """Return what a model's file holds; the same model gives the same bytes."""
    return escape_json(json.dumps(document(model), indent=1, allow_nan=False)) + "\n"


def save(model: Model, path: Path) -> None:
    """Write the model."""
    write_text(path, as_text(model))


def load(path: Path) -> Model:
    """Read a model.

    Raises
    ------
    ModelError
        If the file cannot be read, is of another version, or a number in it makes no sense: names
        the key, what was expected and what was got.
    """
    where = printable(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        data = json.loads(content) if len(content) <= _MOST_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{where}: expected a model that perfmodel calibrate wrote; got none that can be read "
            f"({printable(str(error))[:100]}); calibrate anew"
        ) from None
    return parse(data, where)


def parse(data: Any, where: str) -> Model:
    """Return the model that a document holds, checked; see `load`."""
    top = _Reader(data, where)
    if top.get("format") != FORMAT:
        raise top.wrong("format", FORMAT, top.get("format"))
    if top.get("version") != VERSION:
        raise top.wrong("version", f"version {VERSION}", top.get("version"), "calibrate anew")
    terms = top.get("terms")
    if not isinstance(terms, dict) or not terms:
        raise top.wrong("terms", "at least one term", terms)
    seen = _Reader(top.get("seen"), f"{where}: seen")
    batch = _Reader(top.get("batch_noise"), f"{where}: batch_noise")
    noise = _Reader(top.get("phase_noise"), f"{where}: phase_noise")
    runs = top.get("runs")
    if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        raise top.wrong("runs", "a list of runs", runs)
    for run in runs:
        reader = _Reader(run, f"{where}: a run")
        reader.text("source")
        for key in ("batch_s", "fitted_s"):
            if not reader.number(key) > 0:
                raise reader.wrong(key, "seconds above 0", reader.get(key))
    return Model(
        workload=top.text("workload"),
        terms={key: _read_term(key, term, where) for key, term in terms.items()},
        batch_noise={name: batch.number(name) for name in batch.names()},
        phase_noise={name: noise.number(name) for name in noise.names()},
        seen={name: tuple(seen.whole(name)) for name in seen.names()},
        machine=top.text("machine"),
        runs=tuple(runs),
        tracing_s=None if top.get("tracing_s") is None else top.number("tracing_s"),
        alone=_read_alone(top.get("products_alone"), f"{where}: products_alone"),
    )


def _read_alone(data: Any, where: str) -> Alone | None:
    if data is None:
        return None
    reader = _Reader(data, where)
    rows = reader.get("rows")
    if not isinstance(rows, list) or not rows:
        raise reader.wrong("rows", "measured products", rows)
    seconds = {}
    for row in rows:
        each = _Reader(row, where)
        table = each.array("h_k_seconds", (None, 3))
        shapes = {(h, k) for h, k, _ in table.tolist()}
        full = len(shapes) == len({h for h, _ in shapes}) * len({k for _, k in shapes})
        if not len(table) or (table <= 0).any() or len(shapes) != len(table) or not full:
            raise each.wrong("h_k_seconds", "a grid of h, k and seconds, all above 0", row)
        seconds[each.text("product"), each.text("dtype")] = tuple(
            (int(h), int(k), float(s)) for h, k, s in table.tolist()
        )
    return Alone(reader.text("source"), seconds, reader.number("kernel_s"))


def _read_term(key: str, data: Any, where: str) -> Term:
    reader = _Reader(data, f"{where}: term {printable(key)!r}")
    amounts = reader.texts("amounts")
    count = len(amounts)
    unknown = [name for name in amounts if name not in UNITS]
    if not 1 <= count <= _MOST_AMOUNTS or unknown or len(set(amounts)) < count:
        raise reader.wrong("amounts", f"amounts among {', '.join(UNITS)}", amounts)
    if reader.get("units") != [UNITS[name] for name in amounts]:
        raise reader.wrong("units", [UNITS[name] for name in amounts], reader.get("units"))
    covariance = reader.array("covariance", (count, count), signed=True)
    if (np.diag(covariance) < 0).any():
        raise reader.wrong("covariance", "variances of at least 0", covariance.tolist())
    return Term(
        key=key,
        amounts=tuple(amounts),
        coefficients=reader.array("coefficients", (count,)),
        covariance=covariance,
        noise=reader.number("noise"),
        largest=reader.array("largest", (count,)),
        space=reader.array("space", (None, count), signed=True),
        runs=tuple(reader.texts("runs")),
        microbenchmarks=tuple(reader.texts("microbenchmarks")),
    )


class _Reader:
    """Takes keys of a JSON object, refusing what is not as expected."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise ModelError(
                f"{where}: expected a JSON object; got {type(data).__name__}; calibrate anew"
            )
        self._data: Mapping[str, Any] = data
        self._where = where

    def names(self) -> Sequence[str]:
        return list(self._data)

    def get(self, key: str) -> Any:
        return self._data.get(key)

    def wrong(self, key: str, expected: object, found: object, hint: str = "") -> ModelError:
        shown = printable(repr(found))
        return ModelError(
            f"{self._where}: key {printable(key)!r}: expected {expected}; got "
            f"{shown if len(shown) <= 80 else shown[:79] + '…'}; "
            f"{hint or 'calibrate anew: the file was changed or damaged'}"
        )

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "a text", value)
        return value

    def texts(self, key: str) -> list[str]:
        value = self.get(key)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.wrong(key, "a list of texts", value)
        return value

    def number(self, key: str) -> float:
        value = self.get(key)
        if not _is_number(value) or value < 0:
            raise self.wrong(key, "a finite number of at least 0", value)
        return float(value)

    def whole(self, key: str) -> list[int]:
        value = self.get(key)
        if not isinstance(value, list) or not value or not all(
            type(v) is int and v > 0 for v in value
        ):  # fmt: skip
            raise self.wrong(key, "positive whole numbers", value)
        return sorted(value)

    def array(self, key: str, shape: tuple[int | None, ...], *, signed: bool = False) -> Floats:
        value = self.get(key)
        rows = value if isinstance(value, list) else None
        flat = rows if rows is None or len(shape) == 1 else _flat(rows)
        if flat is None or not all(map(_is_number, flat)):
            raise self.wrong(key, f"finite numbers of shape {shape}", value)
        try:
            array = np.array(rows, float)
        except ValueError:
            raise self.wrong(key, f"numbers of shape {shape}", value) from None
        fits = array.ndim == len(shape) and all(
            expected in (None, found) for expected, found in zip(shape, array.shape, strict=True)
        )
        if not fits or (not signed and (array < 0).any()):
            raise self.wrong(key, f"numbers of shape {shape}, at least 0", value)
        return array


def _flat(rows: Sequence[Any]) -> list[Any] | None:
    if not all(isinstance(row, list) for row in rows):
        return None
    return [value for row in rows for value in row]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max

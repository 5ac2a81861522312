"""The calibrated model: terms, their evidence and noise; and its file, versioned and validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.base.document import Entries, parse_json, pick, plain, read_table, to_json
from perfmodel.base.escape import printable
from perfmodel.base.files import write_text
from perfmodel.studies.models.terms import HOST_KINDS, UNITS, USUAL_NOISE, Alone, Term

VERSION: Final = 4
"""Version of the file format; other versions are refused."""
FORMAT: Final = "perfmodel model"
_AGAIN: Final = "calibrate anew"
_MOST_AMOUNTS: Final = 12
_LARGEST_VARIANCE: Final = 1e100
"""Of a coefficient; an interval of larger ones overflows."""
_LARGEST_FACTOR: Final = 10.0
"""Of a host, as its logarithm."""


@dataclass(frozen=True)
class Model:
    """Terms by key, the launch-to-launch noise of a batch, and what was seen.

    Attributes
    ----------
    workload : str
        'mlp', or the name of a workload of the user's own.
    terms : mapping of str to Term
    batch_noise : mapping of str to float
        Standard deviation of log(measured / predicted) of batches, by what limits them; of
        launches that the coefficients were not fitted to.
    phase_noise : mapping of str to float
        The same by phase.
    seen : mapping of str to tuple of int
        Values of every symbol in the runs, ascending.
    machine : str
    runs : tuple of mapping
        The evidence: file, sizes, settings, measured and fitted seconds of every run.
    recording_s : mapping of str to float
        What Nsight Systems adds per kernel, by the side that it holds up: the 'host' that launches
        the kernel, the 'gpu' that runs it. A side is absent where too few runs were timed without
        Nsight Systems.
    alone : Alone or None
        Microbenchmarks of the products that cuBLAS multiplies; None without them.
    hosts : mapping of str to tuple of float
        Log factors of the hosts that it was calibrated on against their mean, which its terms are
        of (`perfmodel.studies.models.terms.HOST_KINDS`); empty where no host has a name.
    host_calls : mapping of str to float
        Host times of the calibration's machine file, in seconds; see `hosts.calls_of`.
    """

    workload: str
    terms: Mapping[str, Term]
    batch_noise: Mapping[str, float]
    phase_noise: Mapping[str, float]
    seen: Mapping[str, tuple[int, ...]]
    machine: str
    runs: tuple[Mapping[str, object], ...]
    recording_s: Mapping[str, float] = field(default_factory=dict)
    alone: Alone | None = None
    hosts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    host_calls: Mapping[str, float] = field(default_factory=dict)

    def noise(self, limit: str) -> float:
        """Return the noise of batches with a limit; the largest where that one is not known."""
        return self.batch_noise.get(limit, max(self.batch_noise.values(), default=USUAL_NOISE))


def document(model: Model) -> Any:
    """Return the model as what JSON holds."""
    alone = model.alone and {
        **pick(model.alone, "source kernel_s"),
        "rows": [
            {"gemm": name, "dtype": dtype, "h_k_seconds": rows}
            for (name, dtype), rows in model.alone.seconds.items()
        ],
    }
    what = "coefficients covariance noise largest space runs microbenchmarks"
    said = {
        "format": FORMAT,
        "version": VERSION,
        **pick(model, "workload machine batch_noise recording_s phase_noise seen"),
        "terms": {
            key: {
                "amounts": term.amounts,
                "units": [UNITS[name] for name in term.amounts],
                **pick(term, what),
            }
            for key, term in model.terms.items()
        },
        "runs": model.runs,
        "gemms_alone": alone,
        "hosts": model.hosts,
        "host_calls": model.host_calls,
    }
    return plain(said)


def as_text(model: Model) -> str:
    """Return what a model's file holds; the same model gives the same bytes."""
    return to_json(document(model)) + "\n"


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
    what = "a model that perfmodel study calibrate wrote"
    return parse(read_table(path, parse_json, what, _AGAIN), printable(str(path)))


def parse(data: Any, where: str) -> Model:
    """Return the model that a document holds, checked; see `load`."""
    top = Entries(data, where, _AGAIN)
    if top.get("format") != FORMAT:
        raise top.wrong("format", FORMAT)
    if top.get("version") != VERSION:
        raise top.wrong("version", f"version {VERSION}")
    terms = top.get("terms")
    if not isinstance(terms, dict) or not terms:
        raise top.wrong("terms", "at least one term")
    seen, batch, noise = map(top.table, ("seen", "batch_noise", "phase_noise"))
    runs = top.get("runs")
    if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        raise top.wrong("runs", "a list of runs")
    for run in runs:
        reader = Entries(run, f"{where}: a run", _AGAIN)
        reader.text("source")
        for key in ("batch_s", "fitted_s"):
            reader.number(key)
    return Model(
        workload=top.text("workload"),
        terms={key: _read_term(key, term, where) for key, term in terms.items()},
        batch_noise={name: batch.number(name, least=0) for name in batch},
        phase_noise={name: noise.number(name, least=0) for name in noise},
        seen={name: tuple(sorted(seen.wholes(name))) for name in seen},
        machine=top.text("machine"),
        runs=tuple(runs),
        recording_s=_read_numbers(top, "recording_s", least=0),
        alone=_read_alone(top.get("gemms_alone"), f"{where}: gemms_alone"),
        hosts=_read_hosts(top),
        host_calls=_read_numbers(top, "host_calls"),
    )


def _read_hosts(top: Entries) -> dict[str, tuple[float, ...]]:
    """Return the hosts of a file; models of before have none."""
    if "hosts" not in top:
        return {}
    hosts, found = top.table("hosts"), {}
    for name in hosts:
        factors = hosts.array(name, (len(HOST_KINDS),), signed=True)
        if np.abs(factors).max() > _LARGEST_FACTOR:
            raise hosts.wrong(name, f"logarithms of at most {_LARGEST_FACTOR:g}")
        found[name] = tuple(factors.tolist())
    return found


def _read_numbers(top: Entries, key: str, **limits: float) -> dict[str, float]:
    """Return the numbers of a table by name; models of before lack some tables."""
    if key not in top:
        return {}
    table = top.table(key)
    return {name: table.number(name, **limits) for name in table}


def _read_alone(data: Any, where: str) -> Alone | None:
    if data is None:
        return None
    reader = Entries(data, where, _AGAIN)
    rows = reader.get("rows")
    if not isinstance(rows, list) or not rows:
        raise reader.wrong("rows", "measured GEMMs")
    seconds = {}
    for row in rows:
        each = Entries(row, where, _AGAIN)
        table = each.array("h_k_seconds", (None, 3))
        shapes = {(h, k) for h, k, _ in table.tolist()}
        full = len(shapes) == len({h for h, _ in shapes}) * len({k for _, k in shapes})
        if not len(table) or (table <= 0).any() or len(shapes) != len(table) or not full:
            raise each.wrong("h_k_seconds", "a grid of h, k and seconds, all above 0")
        seconds[each.text("gemm"), each.text("dtype")] = tuple(
            (int(h), int(k), float(s)) for h, k, s in table.tolist()
        )
    return Alone(reader.text("source"), seconds, reader.number("kernel_s", least=0))


def _read_term(key: str, data: Any, where: str) -> Term:
    reader = Entries(data, f"{where}: term {printable(key)!r}", _AGAIN)
    amounts = reader.texts("amounts")
    count = len(amounts)
    unknown = [name for name in amounts if name not in UNITS]
    if not 1 <= count <= _MOST_AMOUNTS or unknown or len(set(amounts)) < count:
        raise reader.wrong("amounts", f"amounts among {', '.join(UNITS)}")
    if reader.get("units") != [UNITS[name] for name in amounts]:
        raise reader.wrong("units", [UNITS[name] for name in amounts])
    covariance = reader.array("covariance", (count, count), signed=True)
    if (np.diag(covariance) < 0).any() or (np.abs(covariance) > _LARGEST_VARIANCE).any():
        raise reader.wrong("covariance", f"variances from 0 to {_LARGEST_VARIANCE:g}")
    return Term(
        key=key,
        amounts=amounts,
        coefficients=reader.array("coefficients", (count,)),
        covariance=covariance,
        noise=reader.number("noise", least=0),
        largest=reader.array("largest", (count,)),
        space=reader.array("space", (None, count), signed=True),
        runs=reader.texts("runs"),
        microbenchmarks=reader.texts("microbenchmarks"),
    )

"""Configurations: what differs between the two sides besides the times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perfmodel.programs.identify import MARK_KEY, MARK_SYMBOLS, Identity
from perfmodel.readers.trace import Trace

_WORKLOAD: Final = {**{v: k for k, v in MARK_SYMBOLS.items()}, "dtype": "b"}
_NO_SETTINGS: Final = {MARK_KEY, "rank", "run_id", "versions", *MARK_SYMBOLS.values()}
_VERSIONS: Final = "versions."


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting with its values on either side; `workload` if it changes what is computed."""

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    workload: bool

    def __str__(self) -> str:
        sides = [" and ".join(s) if s else "not told" for s in (self.before, self.after)]
        return f"{self.name}: {sides[0]} -> {sides[1]}"


def settings(identity: Identity, traces: Sequence[Trace]) -> dict[str, str]:
    """Everything a run tells of itself, by name."""
    config = identity.config
    told = {f"{n} ({s})": str(identity.values[s]) for n, s in _symbols(identity)}
    told |= {k: _text(v) for k, v in config.items() if k not in _NO_SETTINGS}
    versions = config.get("versions")
    if isinstance(versions, Mapping):
        told |= {f"{_VERSIONS}{k}": _text(v) for k, v in versions.items()}
    gpus = Counter(name for _, name in {(g.id, g.name) for t in traces for g in t.gpus})
    told |= {"GPUs": ", ".join(f"{n} x {name}" for name, n in sorted(gpus.items()))} if gpus else {}
    return told | {"Nsight Systems": traces[0].product_version}


def _symbols(identity: Identity) -> Iterator[tuple[str, str]]:
    """Names of the workload's symbols that are known; bytes per element stand for the type."""
    for name, symbol in _WORKLOAD.items():
        if symbol in identity.values and name != "dtype":
            yield name, symbol
    if "dtype" not in identity.config and "b" in identity.values:
        yield "bytes per element", "b"


def differences(
    before: Iterable[Mapping[str, str]], after: Iterable[Mapping[str, str]]
) -> tuple[Difference, ...]:
    """Settings that are not the same on both sides; the workload's first."""
    sides = [list(before), list(after)]
    names = dict.fromkeys(name for side in sides for run in side for name in run)
    found = []
    for name in names:
        first, second = (
            tuple(dict.fromkeys(run[name] for run in side if name in run)) for side in sides
        )
        if set(first) != set(second):
            found.append(Difference(name, first, second, _changes_workload(name)))
    return tuple(sorted(found, key=lambda d: not d.workload))


def mixed(runs: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Settings in which the launches of one side differ, as text."""
    names = dict.fromkeys(name for run in runs for name in run)
    said = []
    for name in names:
        values = tuple(dict.fromkeys(run.get(name, "not told") for run in runs))
        if len(values) > 1 and name != "seed" and not name.startswith(_VERSIONS):
            said.append(f"{name}: {' and '.join(values)}")
    return tuple(said)


def _changes_workload(name: str) -> bool:
    """Whether a setting decides what is computed: D, H, C, B, p, the type."""
    plain = name.partition(" (")[0]
    return plain in (*_WORKLOAD, "bytes per element", "workload")


def _text(value: Any) -> str:
    return (
        {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    )

"""GPU busy by reports of the same settings as NVML's utilization: their own, or the ladder's."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import folders
from perfmodel.analysis.analyze import analyze
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.trace import KERNEL, rows
from perfmodel.timing.idle import BETWEEN, Idle, idle_of

PROFILES = folders.PROFILES
NOTHING: dict[str, Any] = {"data_on": "host", "transport": "host"}


@dataclass(frozen=True)
class Busy:
    """What the launches of one setting say, medians over them.

    Attributes
    ----------
    files : tuple of str
    busy_share : float
        Of the window of all batches.
    within_share : float
        Of the time inside batches: what the GPU does between epochs is left out.
    kernels_share : float
        The same of kernels alone, without copies.
    first : Idle
        Of the first launch.
    """

    files: tuple[str, ...]
    busy_share: float
    within_share: float
    kernels_share: float
    first: Idle


def settings_of(flags: list[str]) -> dict[str, Any]:
    """Return the flags of the trainer as the ladder's index has them."""
    found = dict(NOTHING)
    words = iter(flags)
    for word in words:
        name = word.removeprefix("--").replace("-", "_")
        found[name] = True if name == "graph" else next(words)
    return found


def busy_of(name: str, flags: list[str], ranks: int) -> Busy | None:
    """Read the setting's own report, or the ladder's launches of its flags; None without any.

    All are of H = 512, B = 3000.
    """
    paths = [PROFILES / "utilization" / f"{name}.sqlite.xz"]
    if not paths[0].exists():
        ladder, wanted = PROFILES / "ladder", settings_of(flags)
        index = json.loads((ladder / "index.json").read_text(encoding="utf-8"))
        same = [r for r in index if r["settings"] == wanted and f"-n {ranks} " in r["command"]]
        paths = [ladder / r["file"] for r in same]
    if not paths:
        return None
    all_of_it, kernels = zip(*(_read(path) for path in paths), strict=True)
    return Busy(
        tuple(str(path.relative_to(PROFILES.parent)) for path in paths),
        median(one.busy_share for one in all_of_it),
        median(map(_within, all_of_it)),
        median(map(_within, kernels)),
        all_of_it[0],
    )


def _read(path: Path) -> tuple[Idle, Idle]:
    run = analyze([read(path)], Options(values={})).fitted
    parts = tuple(
        (replace(t, ops=rows(t.ops, t.ops.kind == KERNEL)), a) for t, a in run.measured.parts
    )
    kernels = replace(run.measured, parts=parts)
    warmup, causes = run.batch.warmup, run.program.idle_causes
    return idle_of(run.measured, warmup, causes), idle_of(kernels, warmup, causes)


def _within(one: Idle) -> float:
    return one.busy_share / (1 - one.causes.get(BETWEEN, 0.0))

"""The launches that predictions are fitted to and judged by, and the design of the frozen ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfmodel.errors import ModelError
from perfmodel.measure import measure
from perfmodel.predict import Model, Observation, observe
from perfmodel.predict.parts import route
from perfmodel.readers import read

DESIGN = (
    *(("host", 2, h, b) for h, b in ((128, 1500), (256, 12000), (512, 3000), (1024, 6000),
                                    (2048, 12000), (4096, 3000))),
    ("host", 1, 512, 12000), ("host", 1, 2048, 3000), ("host", 4, 2048, 3000),
    ("pinned", 2, 512, 3000), ("pinned", 2, 2048, 12000),
)  # fmt: skip
"""(transport, p, H, B): 11 of the campaign's 44 profiles, float32, on 2 GPUs unless p is not 2."""


class Launches:
    """All launches of all indices: observations, times without Nsight Systems, and their folder."""

    def __init__(self, indices: Sequence[Path]) -> None:
        self.observations: list[Observation] = []
        self.folder: dict[str, str] = {}
        self.untraced: dict[str, float] = {}
        self.machine: dict[str, str] = {}
        for index in indices:
            for row in json.loads(index.read_text(encoding="utf-8")):
                run = measure(
                    [read(index.parent / row["file"])], "batch iteration", label=row["file"]
                )
                try:
                    self.observations.append(observe(run))
                except ModelError as error:
                    print(f"{row['file']}: left out: {error}", file=sys.stderr)
                    continue
                self.folder[row["file"]] = index.parent.name
                self.machine[row["file"]] = row["machine"]
                if row.get("batch_median_s_without_nsys"):
                    self.untraced[row["file"]] = row["batch_median_s_without_nsys"]

    def of(self, folder: str) -> list[Observation]:
        """The observations of one folder."""
        return [o for o in self.observations if self.folder[o.source] == folder]

    def designed(self) -> list[Observation]:
        """The runs that the model is frozen on: one launch of every case of the design."""
        found = []
        for transport, p, h, b in DESIGN:
            machine = "h200x2" if p == 2 else "h200x4"
            found += [
                o for o in self.of("campaign")
                if (o.case.settings["transport"], o.case.settings["sync"]) == (transport, "no")
                and (o.case.sizes["p"], o.case.sizes["H"], o.case.sizes["B"]) == (p, h, b)
                and o.case.sizes["b"] == 4 and self.machine[o.source] == machine
            ][:1]  # fmt: skip
        return found

    def measured(self, group: Sequence[Observation], model: Model) -> list[dict[str, Any]]:
        """Every launch of one configuration, in seconds as recorded."""
        rows = []
        for o in group:
            rows.append({"report": o.source, "recorded": True, "batch_s": o.batch_s})
            bare = self.untraced.get(o.source)
            if bare is not None:
                added = (model.tracing_s or 0.0) if route(o.case) == "blocking" else 0.0
                rows.append({"report": o.source, "recorded": False, "batch_s": bare + added})
        return rows


def grouped(observations: Sequence[Observation]) -> list[list[Observation]]:
    """Launches by configuration."""
    groups: dict[object, list[Observation]] = {}
    for o in observations:
        groups.setdefault(o.case.key, []).append(o)
    return list(groups.values())

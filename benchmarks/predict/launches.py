"""The launches that predictions are fitted to and judged by, and the design of the frozen ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import folders
from benchmarks.common.results import read as read_json
from perfmodel.base.errors import ModelError
from perfmodel.machines.measure.measurement import load
from perfmodel.readers import read
from perfmodel.studies.mlp import parts
from perfmodel.studies.mlp.case import Case, mlp_case
from perfmodel.studies.mlp.observe import observe
from perfmodel.studies.models.calibrate import calibrate
from perfmodel.studies.models.model import Model
from perfmodel.studies.models.terms import Alone, Microbenchmark, Observation
from perfmodel.timing.run import time_run
from profiles.visit import IMAGES

LAUNCHES = folders.PROFILES / "launches" / "launches.json"
FROZEN = folders.RESULTS / "predict_model.json"
FROZEN_BY = "ebe79f45ef8212a64abe33ad2e1c94b369c3be9e"
"""The commit that froze its terms and noise. Later ones renamed its keys, and added what recording
takes on the same launches."""

DESIGN = (
    "p2_host_H128_B12000", "p2_host_H512_B1500", "p2_host_H1024_B6000", "p2_host_H4096_B3000",
    "p2_pinned_H128_B3000", "p2_pinned_H2048_B12000", "p2_host-flat_pinned_H512_B12000",
    "p2_host-flat_device_H2048_B12000", "p2_host-flat_prefetch_H512_B3000",
    "p2_chunked_device_H512_B3000", "p2_chunked_device_H2048_B12000",
    "p2_nccl_device_H128_B3000", "p2_nccl_device_H4096_B12000", "p2_nccl_device_graph_H512_B3000",
    "p2_nccl_device_fused_tf32x3_graph_H128_B3000",
    "p2_nccl_device_fused_tf32x3_graph_H512_B12000",
    "p2_nccl_device_fused_tf32x3_graph_H2048_B12000",
    "p2_peer_device_fused_tf32x3_graph_H512_B3000",
    "p2_peer_device_fused_tf32x3_graph_H2048_B3000",
    "p4_host_H2048_B3000", "p4_nccl_device_H512_B3000",
    "p4_nccl_device_fused_tf32x3_graph_H2048_B3000",
    "p4_peer_device_fused_tf32x3_graph_H512_B12000",
    "p1_host_H512_B12000", "p1_host_H2048_B3000", "p1_pinned_H512_B3000",
    "p1_none_device_H2048_B12000", "p1_none_device_fused_tf32x3_graph_H512_B3000",
)  # fmt: skip
"""28 of the 114 configurations of profiles/launches: all of their launches, and no others."""


class Launches:
    """All launches: observations of recorded ones, times of bare ones, and microbenchmarks.

    Attributes
    ----------
    observations : list of Observation
        One per recorded launch; `source` is NAME#LAUNCH.
    bare : dict
        Seconds per batch without Nsight Systems by case: the median chunk of every such launch.
        Without the sizes whose chunks count an epoch's last, smaller batch as one of that size.
    untraced : dict
        The median of those by source, for what recording adds.
    alone : Alone or None
        cuBLAS's products as `perfmodel machine measure` timed them.
    micro : tuple of Microbenchmark
        Copies, all-reduces and launches as it timed them.
    """

    def __init__(self, file: Path = LAUNCHES, machine: Path | None = folders.MACHINE) -> None:
        rows = read_json(file)["launches"]
        self.observations: list[Observation] = []
        self.bare: dict[object, list[float]] = {}
        self.alone: Alone | None = None
        self.micro: tuple[Microbenchmark, ...] = ()
        if machine is not None:
            found = load(folders.plain(machine))
            self.alone = parts.gemms_alone(found, machine.name)
            self.micro = parts.microbenchmarks(found, machine.name)
        cases: dict[str, Case] = {}
        for row in rows:
            if row["recorded"] and "parts" in row:
                case = cases.setdefault(row["name"], mlp_case(row["sizes"], row["settings"]))
                self.observations.append(
                    Observation(f"{row['name']}#{row['launch']}", case, row["batch_s"],
                                row["parts"], row["phases"], row["batches"],
                                row.get("machine") or "")
                )  # fmt: skip
        for row in rows:
            if row["recorded"] or row["name"] not in cases:
                continue
            if IMAGES % cases[row["name"]].sizes["B"] == 0:
                key = cases[row["name"]].key
                self.bare.setdefault(key, []).append(float(np.median(row["batch_s"])))
        self.untraced = {
            o.source: float(np.median(self.bare[o.case.key]))
            for o in self.observations
            if o.case.key in self.bare
        }

    def calibrated(self, training: Sequence[Observation], **effort: Any) -> Model:
        """Calibrate on some of the launches, with the microbenchmarks."""
        return calibrate(
            training, machine="NVIDIA H200", untraced=self.untraced, alone=self.alone,
            micro=self.micro, **effort,
        )  # fmt: skip

    def designed(self) -> list[Observation]:
        """All launches of the configurations that the model is frozen on."""
        return [o for o in self.observations if o.source.split("#")[0] in DESIGN]


def of_all_hosts() -> list[Observation]:
    """Launches on every host that there are some of, but those of a blind campaign.

    On four GPUs and more a host's parts wait for each other; beside the first collection's, only
    what a GPU replays is taken of these, and nothing on eight.
    """
    found = list(Launches(machine=None).observations)
    for folder in ("fresh", "scale", "hosts"):
        file = folders.PROFILES / folder / "launches.json"
        if folders.there(file):
            found += Launches(file, None).observations
    for folder in ("campaign", "ladder"):
        for o in reports(folders.PROFILES / folder / "index.json"):
            host = o.source.partition("_")[0] if folder == "campaign" else ""
            found.append(replace(o, host=f"{folder} {host}".strip()))
    first = found[0].host
    return [
        o for o in found
        if o.case.sizes["p"] <= (2 if o.host != first and o.case.route != "replayed" else 4)
    ]  # fmt: skip


def reports(index: Path) -> list[Observation]:
    """Observations of the reports of an index; what cannot be observed is said and left out."""
    return observed([index.parent / row["file"] for row in read_json(index)])


def observed(files: Sequence[Path]) -> list[Observation]:
    """Observations of reports; what cannot be observed is said and left out."""
    found = []
    for file in files:
        run = time_run([read(file)], "batch iteration", label=file.name)
        try:
            found.append(observe(run))
        except ModelError as error:
            print(f"{file.name}: left out: {error}", file=sys.stderr)
    return found


def case_of(configuration: dict[str, Any], ranks: int) -> Case:
    """Return the case of a plan's configuration."""
    sizes = {"D": 784, "H": configuration["hidden_size"], "C": 10,
             "B": configuration["batch_size"], "p": ranks, "b": 4}  # fmt: skip
    return mlp_case(sizes, {
        k: "yes" if v is True else v for k, v in configuration.items()
        if k not in ("name", "hidden_size", "batch_size")
    })  # fmt: skip


def commit_of(path: Path) -> str | None:
    """The commit that last changed a file, None if it is not committed as it is."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["git", "-C", str(folders.ROOT), *words, "--", str(path)]
        return subprocess.run(command, capture_output=True, text=True)

    if not path.exists():
        path = folders.packed(path)
    clean = git("status", "--porcelain")
    if clean.returncode or clean.stdout.strip():
        return None
    return git("log", "-1", "--format=%H").stdout.strip() or None

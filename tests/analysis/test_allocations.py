"""Snapshots of PyTorch's allocator: the peak, what is alive at it, and files that do harm."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from perfmodel.analysis.allocations import BEFORE, Alive, peak_of
from perfmodel.base.errors import ReportError
from perfmodel.readers.allocator_snapshot import read_snapshot
from support.cli import perfmodel


def event(action: str, address: int, size: int, *frames: tuple[str, str, int]) -> dict[str, Any]:
    shown = [{"filename": f, "name": n, "line": k} for f, n, k in frames]
    return {"action": action, "addr": address, "size": size, "time_us": address, "frames": shown}


LAYER = (
    ("??", "at::empty", 0),
    ("/x/torch/nn/modules/linear.py", "forward", 12),
    ("/home/me/model.py", "forward", 7),
)


def snapshot(path: Path) -> Path:
    """100 bytes before the recording; 30 by a layer, 50 by nothing known; the peak is 180."""
    data = {
        "segments": [{
            "device": 0, "address": 1, "total_size": 512,
            "blocks": [
                {"address": 1, "size": 100, "state": "active_allocated"},
                {"address": 101, "size": 412, "state": "inactive"},
            ],
        }],
        "device_traces": [[
            event("alloc", 200, 30, *LAYER),
            event("alloc", 300, 50),
            event("free_requested", 300, 50),
            event("free_completed", 300, 50),
            event("free_completed", 200, 30),
        ]],
    }  # fmt: skip
    path.write_bytes(pickle.dumps(data))
    return path


def test_the_peak_and_what_is_alive(tmp_path: Path) -> None:
    (found,) = read_snapshot(snapshot(tmp_path / "s.pickle"))
    peak = peak_of(found)
    assert (peak.peak_bytes, peak.end_bytes, peak.reserved_bytes) == (180, 100, 512)
    assert peak.in_use_bytes.tolist() == [130, 180, 130, 100]
    assert peak.alive == (
        Alive(BEFORE, "", 1, 100),
        Alive("", "", 1, 50),
        Alive("model.py:7 forward", "linear", 1, 30),
    )
    assert sum(row.bytes for row in peak.alive) == peak.peak_bytes


def test_the_command_prints_it(tmp_path: Path) -> None:
    said = perfmodel("memory", str(snapshot(tmp_path / "s.pickle")), "--json")
    (gpu,) = json.loads(said.stdout)["gpus"]
    assert gpu["peak_bytes"] == 180
    assert [row["bytes"] for row in gpu["alive"]] == [100, 50, 30]


class Harm:
    """What would create a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("harmful", [True, False])
def test_other_files_are_refused_and_nothing_is_executed(tmp_path: Path, harmful: bool) -> None:
    made, path = tmp_path / "made", tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(Harm(made)) if harmful else pickle.dumps({"segments": []}))
    with pytest.raises(ReportError, match="expected a snapshot of PyTorch's allocator"):
        read_snapshot(path)
    assert not made.exists()

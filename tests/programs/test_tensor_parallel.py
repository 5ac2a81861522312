"""The recorded GPT of shared layers computes what the whole one does, on a share of the FLOPs."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys

import pytest

from profiles.programs import record
from support.folders import ROOT

RANKS = 2


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_shards_sum_to_the_whole_model() -> None:
    """Of 2 blocks each rank has half, of the head all: forward once and backward twice."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "support.tensor_parallel_ranks"], stdout=subprocess.PIPE,
            text=True, cwd=ROOT,
            env={**os.environ, **shared, "RANK": str(rank), "PYTHONPATH": paths},
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    for process in started:
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        found = json.loads(said.splitlines()[-1])
        whole, shard = found.pop("flops")
        assert max(found.values()) < 1e-5, found
        tokens, width, vocabulary = 48, 32, 50
        head = 3 * 2 * tokens * width * vocabulary
        blocks = 2 * 3 * 2 * tokens * 12 * width**2
        assert whole >= head + blocks, "and attention, where it is counted"
        assert shard - head == (whole - head) / RANKS


def test_ranks_of_a_recording_are_started_by_a_shell() -> None:
    """Every rank has its number, and all the same port; one rank is the program itself."""
    assert record.program(1, ["gpt"])[0] == sys.executable
    shell, flag, script = record.program(4, ["gpt", "--name", "train batch %d"])
    assert (shell, flag) == ("bash", "-c")
    assert "seq 0 3" in script
    assert "WORLD_SIZE=4" in script
    assert "'train batch %d'" in script
    assert "--tensor-parallel" in record.RECORDINGS["gpt_tensor4"][1]

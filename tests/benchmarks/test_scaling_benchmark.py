"""Scaling on eight GPUs: all-reduces by size, steps by number of GPUs, predicted communication."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common import folders, results
from benchmarks.scaling import all_reduce, communication, steps, sums
from support.trainer_runs import environment, mpirun_command
from trainer.backends.numpy import NumpyBackend
from trainer.mpi import Communicator


def run(ranks: int, seconds: dict[int, tuple[float, float, float]]) -> dict:
    """Return a launch: seconds of NCCL, NCCL and step, and peer by bytes."""
    return {"ranks": ranks, "versions": {"gpu": "NVIDIA H200"}, "rows": [
        {"kind": kind, "bytes": size, "calls": 16, "round_s": [s, s, s]}
        for size, each in seconds.items()
        for kind, s in zip((sums.NCCL, sums.BOTH, sums.PEER), each, strict=True)
    ]}  # fmt: skip


def test_the_crossover_lies_where_the_ratio_is_one() -> None:
    """By hand: ratios 0.5 at 4 kB and 2 at 16 kB cross halfway on the logarithms, at 8 kB."""
    record = {"runs": [run(8, {4096: (8e-6, 10e-6, 5e-6), 16384: (8e-6, 10e-6, 20e-6)})]}
    assert sums.crossover_bytes(sums.times(record)["H200", 8]) == pytest.approx(8192)
    assert "faster up to 0.0082 MB" in sums.text(record)
    always = {"runs": [run(2, {4096: (8e-6, 10e-6, 5e-6), 16384: (8e-6, 10e-6, 6e-6)})]}
    assert sums.crossover_bytes(sums.times(always)["H200", 2]) is None
    never = {"runs": [run(2, {4096: (8e-6, 10e-6, 15e-6), 16384: (8e-6, 10e-6, 16e-6)})]}
    assert sums.crossover_bytes(sums.times(never)["H200", 2]) == 0.0


def test_the_table_of_sums_has_bus_bandwidths_and_the_launches_range() -> None:
    """Bus bandwidth of 8 GPUs is 2 7/8 n/t: 1 MB in 7 µs is 250 GB/s."""
    of_one = {1_000_000: (7e-6, 10e-6, 14e-6)}
    record = {"runs": [run(8, of_one), run(8, {1_000_000: (7e-6, 10e-6, 16e-6)})]}
    line = sums.table(record).splitlines()[-1]
    assert line == (
        "| 8 x H200 | 1.00 MB | 7.00 µs | 10.0 µs | 15.0 µs | 1.50 (1.40 to 1.60) "
        "| 250 GB/s | 117 GB/s |"
    )


def test_a_wrong_sum_is_an_error() -> None:
    """One rank's sum is its own number."""
    sums_of_one = all_reduce.Sums(4096, NumpyBackend(), Communicator())
    ((name, call),) = sums_of_one.calls().items()
    sums_of_one.check(name, call)

    def doubles() -> None:
        sums_of_one.gradients *= 2

    with pytest.raises(SystemExit, match=r"expected sums of 1\.0; got others"):
        sums_of_one.check(name, doubles)


@pytest.mark.slow
@pytest.mark.mpi
def test_ranks_time_sums_and_keep_every_launch(tmp_path: Path) -> None:
    out = tmp_path / "sums.json"
    for _ in range(2):
        flags = ["--out", str(out), "--bytes", "4096", "65536", "--rounds", "3"]
        done = subprocess.run(
            mpirun_command(2, "-m", "benchmarks.scaling.all_reduce", *flags),
            capture_output=True, text=True, timeout=120, env=environment(),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    runs = json.loads(out.read_text())["runs"]
    assert [r["ranks"] for r in runs] == [2, 2]
    assert [(r["kind"], r["bytes"], len(r["round_s"])) for r in runs[1]["rows"]] == [
        ("host-flat", 4096, 3), ("host-flat", 65536, 3),
    ]  # fmt: skip
    assert str(tmp_path) not in out.read_text()


def test_steps_of_one_gpu_stand_for_those_that_need_more() -> None:
    """Two launches of 1 and 2 GPUs: speed-ups of the medians, 200/110 for peers over one GPU."""
    key = {"H": 512, "B": 3000, "dtype": "fp32", "kind": "rung", "valid": True, "run": "r"}
    rows = [
        {**key, "rung": rung, "p": p, "median_s": None, "round_s": None,
         "launches": [{"run": f"{n}", "valid": True, "median_s": s, "round_s": [s]}
                      for n, s in enumerate(seconds)]}
        for rung, p, seconds in (
            ("fused x3", 1, (2e-4, 2e-4)), ("fused x3", 2, (1.25e-4, 1.25e-4)),
            ("peer x3", 2, (1e-4, 1.2e-4)),
        )
    ]  # fmt: skip
    weak = [{**row, "B": 1500} for row in rows if row["p"] == 1]
    lines = steps.tables({"rows": [*rows, *weak]}).splitlines()
    assert "| B=3000 H=512 | fused x3 | 200 µs | 125 µs | 1.60 (1.60 to 1.60) | 80 % |" in lines[2]
    assert "| B=3000 H=512 | peer x3 | 200 µs | 110 µs | 1.82 (1.67 to 2.00) | 91 % |" in lines[3]
    assert "| H=512 B/p=1500 | peer x3 | 200 µs | 110 µs | 3.64 " in lines[-1]


def test_communication_is_that_of_the_frozen_phases() -> None:
    """By hand of p8_host_H512_B3000: 272.5 + 848.5 + 181.0 µs of 1,903."""
    said = results.read(folders.RESULTS / "predict_scale.json")
    launches = results.read(folders.PROFILES / "scale" / "launches.json")
    rows = communication.compare(said, launches)
    (host,) = [r for r in rows if (r.ranks, r.hidden, r.setting) == (8, 512, "host")]
    assert host.predicted_s == pytest.approx(1302e-6, rel=1e-3)
    assert host.predicted_share == pytest.approx(1302 / 1903, rel=1e-2)
    phases = [launch["phases"] for launch in launches["launches"]
              if launch["name"] == "p8_host_H512_B3000" and launch["recorded"]]  # fmt: skip
    whole = [sum(p[n] for n in communication.STAGED) for p in phases]
    assert host.measured_s == np.median(whole)
    assert len(rows) == 32
    assert {r.transport for r in rows} == {"host", "pinned", "nccl", "peer"}

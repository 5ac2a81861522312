"""Odd series of utilization: gaps, torn rows, GPUs that tell nothing, one sample, interrupts."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from test_utilization import BASE, Steady

from perfmodel.base.errors import SchemaError
from perfmodel.machines.gpu_samples import (
    COUNTERS,
    Reading,
    read_series,
    record_command,
    series_of,
    to_csv,
)
from perfmodel.render.plot.lines import broken
from support.cli import fails, perfmodel, succeeds

HEADER = ",".join(("time_s", "gpu", *COUNTERS))


@pytest.fixture
def series(tmp_path: Path) -> Path:
    """Two GPUs, the second of which tells nothing; no samples from 3 s to 30 s."""
    path = tmp_path / "s.csv"
    times = (1.0, 2.0, 3.0, 30.0, 31.0)
    path.write_text(to_csv(series_of([(t, r) for t in times for r in (Reading(0, t), Reading(1))])))
    return path


def test_gaps_are_said_and_not_drawn_over(series: Path) -> None:
    said = json.loads(succeeds("utilization", series, "--gpu", 0, "--json"))["warnings"]
    assert [s.partition(": means")[0] for s in said] == ["GPU 0: no samples from 3.0 s to 30.0 s"]
    mine = read_series(series).of(0)
    times, percent = broken(mine.time_s, mine.values["gpu_percent"], mine.gaps(0))
    assert times.tolist() == [1, 2, 3, 3, 30, 31]
    assert np.isnan(percent).tolist() == [False, False, False, True, False, False]
    with pytest.raises(SchemaError, match=r"none among those from 1\.0 s to 31\.0 s"):
        mine.window(10, 20)


def test_a_gpu_that_tells_nothing_is_not_one_that_idles(series: Path) -> None:
    found = json.loads(succeeds("utilization", series, "--gpu", 1, "--json"))
    assert [gpu["gpu"] for gpu in found["gpus"]] == [1]
    assert found["gpus"][0]["means"]["gpu_percent"] is None
    assert found["advice"] == []
    assert any(s.startswith("no utilization of GPU 1: ") for s in found["warnings"])
    assert "expected GPU 7; the series has 0, 1" in fails(4, "utilization", series, "--gpu", 7)


@pytest.mark.parametrize(
    ("row", "said"),
    [("0.2,0,5", "ends early"), ("nan,0,5,,,,,,", "'nan', not a finite"),
     ("-1,0,5,,,,,,", "'-1', not a finite"), ("1,0,inf,,,,,,", "'inf', not a finite")],
)  # fmt: skip
def test_torn_rows_and_odd_numbers_are_refused(tmp_path: Path, row: str, said: str) -> None:
    path = tmp_path / "s.csv"
    path.write_text(f"{HEADER}\n0.1,0,50,,,,,,\n{row}\n")
    with pytest.raises(SchemaError, match=f"expected rows of numbers; got .*{said}"):
        read_series(path)


def test_a_single_sample_is_drawn(tmp_path: Path) -> None:
    path, picture = tmp_path / "s.csv", tmp_path / "u.png"
    path.write_text(f"{HEADER}\n0.1,0,50,,,,,,\n")
    assert perfmodel("utilization", path, "-o", picture).exit_code == 0
    assert picture.stat().st_size > 10_000


def test_a_window_needs_a_series() -> None:
    result = perfmodel("utilization", "--report", BASE, "--window", "1:2")
    assert result.exit_code == 2
    assert "--window is of a series" in result.stderr


def test_an_interrupt_keeps_the_samples(interruptible: None) -> None:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.perf_counter()
    command = [sys.executable, "-c", "import time; time.sleep(30)"]
    series, code = record_command(command, Steady(), 0.02)
    assert code == 130
    assert len(series) > 2
    assert time.perf_counter() - began < 20


def test_a_command_that_a_signal_ended_has_a_shell_s_exit_code() -> None:
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert record_command([sys.executable, "-c", kill], Steady(), 0.02)[1] == 128 + signal.SIGTERM

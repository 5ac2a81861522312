"""Real ranks: equality with the sequential run, resuming, stopping, failing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from support.trainer_runs import environment, flags, mpirun_command, run_ranks, small
from trainer import checkpoint
from trainer.errors import TrainerError
from trainer.mpi import Communicator, connect

pytestmark = pytest.mark.mpi


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [slow(1), 2, slow(4)])
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 3e-6), slow("float64", 1e-14)])
@pytest.mark.parametrize("batch", [30, 31, 5])  # 100 images: even, uneven, a short last batch
def test_ranks_compute_what_one_computes(ranks, dtype, bound, batch, tmp_path):
    config = small(dtype=dtype, batch_size=batch, verify=bound, learning_rate=0.1)
    done = run_ranks(ranks, *flags(config), "--record", str(tmp_path / "run.json"))
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["ranks"] == ranks
    assert set(record["verify"]["max_relative_error"]) == {"W1", "b1", "W2", "b2"}
    assert record["verify"]["passed"]
    assert record["verify"]["precision_test"]["parallel"] == pytest.approx(
        record["verify"]["precision_test"]["sequential"], abs=0.03
    )


def test_a_last_batch_with_fewer_images_than_ranks_and_what_the_record_says(tmp_path):
    """Of the threads of a rank, and once why there is no graph."""
    path = tmp_path / "run.json"
    config = small(
        batch_size=33, train_size=100, epochs=1, verify=1e-5, graph=True
    )  # 33, 33, 33, 1
    done = run_ranks(2, *flags(config), "--record", str(path), OMP_NUM_THREADS="")
    assert done.returncode == 0, done.stderr
    record = json.loads(path.read_text())
    assert record["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)
    assert record["why_no_graph"] == "the backend numpy has no CUDA graphs"
    assert done.stderr.count("trainer:") == 1
    assert "--graph: not captured: the backend numpy has no CUDA graphs" in done.stderr


def test_verify_beyond_its_bound_explains_itself_and_fails():
    # a rate at which rounding explodes within the run, on a bound nothing can meet
    config = small(verify=1e-12, learning_rate=0.5, epochs=3)
    done = run_ranks(2, *flags(config))
    assert done.returncode == 7
    assert "expected <= 1e-12" in done.stderr
    assert "one unit in the last place" in done.stderr
    assert done.stderr.count("trainer:") == 1


@pytest.mark.slow
def test_resume_is_bit_identical_on_two_ranks(tmp_path):
    config = small(epochs=4)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for arguments in (
        [*flags(config), "--checkpoint", str(whole)],
        [*flags(config.with_(epochs=2)), "--checkpoint", str(parts)],
        [*flags(config), "--checkpoint", str(parts), "--resume"],
    ):
        done = run_ranks(2, *arguments)
        assert done.returncode == 0, done.stderr
    a, b = checkpoint.load(whole), checkpoint.load(parts)
    np.testing.assert_array_equal(a.parameters, b.parameters)
    assert [(e["loss"], e["precision_test"]) for e in a.history] == [
        (e["loss"], e["precision_test"]) for e in b.history
    ]


def children(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for found in lists for child in found.read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_ends_all_ranks(number, tmp_path):
    directory = tmp_path / "checkpoint"
    config = small(hidden_size=64, epochs=1_000_000, evaluate_every=0)
    process = subprocess.Popen(
        mpirun_command(2, "-m", "trainer", *flags(config), "--checkpoint", str(directory)),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while not (directory / checkpoint.FILE).exists():
            assert time.monotonic() < until, "no checkpoint after a minute"
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        if number == signal.SIGUSR1:  # which mpirun passes on
            process.send_signal(number)
        else:  # as srun does; mpirun would send SIGKILL a second later
            for child in children(process.pid):
                os.kill(child, number)
        _, errors = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
    assert "saved in" in errors, errors
    assert errors.count("trainer:") == 1
    assert process.returncode != 0
    state = checkpoint.load(directory)
    assert 0 < state.epoch < config.epochs
    done = run_ranks(
        2, *flags(config.with_(epochs=state.epoch + 1)), "--checkpoint", str(directory), "--resume"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_one_failing_rank_ends_all_with_one_message():
    done = subprocess.run(
        mpirun_command(3, "-m", "support.trainer_faulty", *flags(small(epochs=1000))),
        capture_output=True, text=True, timeout=60, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.count("trainer:") == 1, done.stderr
    assert "rank 1 of 3 failed" in done.stderr
    assert "the GPU fell off the bus" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--learning-rate", "-1"], 2, "expected a finite number > 0"),
        (["--batch-size", "1"], 2, "nearest valid size is 2"),
        (["--transport", "none"], 2, "expected one rank; got 2"),
        (["--data", "/dev/null/none"], 3, "expected train-images-idx3-ubyte"),
        (["--learning-rate", "1e38", "--regularization", "0"], 5, "epoch 1, batch"),
        (["--record", "/proc/no/run.json"], 2, "expected a directory /proc/no"),
        (["--unknown"], 2, "unrecognized arguments"),
    ],
)
def test_an_error_of_all_ranks_is_said_once(arguments, code, words):
    done = run_ranks(2, *flags(small()), *arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stderr.count("trainer:") == 1, done.stderr


def test_a_launcher_without_mpi4py_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    with pytest.raises(TrainerError, match="pip install mpi4py"):
        connect({"OMPI_COMM_WORLD_SIZE": "2"})


def test_srun_without_pmix_is_reported():
    with pytest.raises(TrainerError, match="--mpi=pmix"):
        connect({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"})


def test_alone_no_mpi_is_loaded():
    comm = connect({})
    assert (comm.rank, comm.size, comm.raw) == (0, 1, None)
    assert comm.broadcast_bytes(b"same") == b"same"
    with pytest.raises(OSError, match="gone"), Communicator().agreed():
        raise OSError("gone")

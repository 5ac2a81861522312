"""Model parallelism: ranks that share the hidden neurons train the network that one rank trains."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.trainer_runs import StopAt, flags, run_ranks, run_script, session, small
from trainer import checkpoint
from trainer import ranges as names
from trainer.checkpoint import State
from trainer.parameters import Tensors
from trainer.steps.model_parallel import HiddenSlices, share_of_hidden
from trainer.stop import StopRequest

MODEL = {"parallel": "model", "dtype": "float64", "hidden_size": 11}


class OneOf:
    """A rank of a communicator that exists in the mind; sums are kept for who adds them up."""

    def __init__(self, size: int, rank: int) -> None:
        self.size, self.rank = size, rank
        self.mine: np.ndarray | None = None

    def sum_in_place(self, values: np.ndarray) -> None:
        self.mine = values.copy()


# --- who holds what


@given(hidden=st.integers(1, 300), ranks=st.integers(1, 20))
def test_every_hidden_neuron_has_one_rank(hidden: int, ranks: int) -> None:
    shares = [share_of_hidden(hidden, ranks, rank) for rank in range(ranks)]
    assert [i for low, high in shares for i in range(low, high)] == list(range(hidden))
    sizes = [high - low for low, high in shares]
    assert max(sizes) - min(sizes) <= 1


@given(hidden=st.integers(1, 12), ranks=st.integers(1, 5), seed=st.integers(0, 9))
def test_slices_make_the_whole_again(hidden: int, ranks: int, seed: int) -> None:
    sizes = (5, hidden, 3)
    count = 5 * hidden + hidden + 3 * hidden + 3
    whole = np.random.default_rng(seed).standard_normal(count)
    comms = [OneOf(ranks, rank) for rank in range(ranks)]
    for comm in comms:
        slices = HiddenSlices(sizes, comm)
        own = slices.take(whole)
        assert own.size == (slices.high - slices.low) * (5 + 1 + 3) + 3
        slices.gather(own)
    assert np.array_equal(sum(comm.mine for comm in comms), whole)


def test_a_rank_holds_rows_of_w1_and_columns_of_w2() -> None:
    """By hand: D = 2, H = 3, C = 2 on two ranks; the second one has the last neuron alone."""
    whole = np.arange(2 * 3 + 3 + 2 * 3 + 2)
    own = Tensors.split(HiddenSlices((2, 3, 2), OneOf(2, 1)).take(whole), 2, 1, 2)
    assert own.W1.tolist() == [[4, 5]]
    assert own.b1.tolist() == [8]
    assert own.W2.tolist() == [[11], [14]]
    assert own.b2.tolist() == [15, 16]


# --- what they compute


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_compute_what_one_computes(ranks: int) -> None:
    """11 hidden neurons: no number of ranks divides them; the last batch has 7 of 31 images."""
    asked = [
        {"parallel": "model", "transport": transport, "dtype": dtype, "hidden_size": hidden,
         "batch_size": batch, "learning_rate": 0.1}
        for transport, dtype, hidden, batch in (
            ("host", "float32", 11, 31), ("host", "float64", 11, 31), ("pinned", "float64", 4, 30),
            ("host-flat", "float64", 11, 31), ("chunked", "float64", 11, 31),
        )
    ]  # fmt: skip
    # z2 of 10 x 5000 float64: several chunks
    asked.append({**asked[-1], "num_classes": 10, "batch_size": 5000, "train_size": 5100})
    for found in run_script(ranks, asked):
        assert found["error"] < (3e-6 if found["dtype"] == "float32" else 1e-13), found
        assert found["loss_error"] < (1e-6 if found["dtype"] == "float32" else 1e-13), found
        assert found["precision"] == found["wanted"], found
        assert found["alike"], found


@pytest.mark.parametrize("after", [1, 4, 6])
def test_one_rank_that_stops_and_resumes_is_the_sequential_run(after: int) -> None:
    config = small(**MODEL, epochs=3, learning_rate=0.3)
    whole = session(small(dtype="float64", hidden_size=11, epochs=3, learning_rate=0.3)).run()
    saved: list[State] = []
    stop = StopRequest()
    session(config, stop=stop, observer=StopAt(stop, after), save=saved.append).run()
    found = session(config, state=checkpoint.unpack(checkpoint.pack(saved[-1]))).run()
    assert np.array_equal(found.parameters, whole.parameters)
    assert [e["loss"] for e in found.epochs] == [e["loss"] for e in whole.epochs]


def test_its_only_sum_is_in_the_forward_pass() -> None:
    from support.trainer_runs import Recorder

    recorder = Recorder()
    session(small(**MODEL, evaluate_every=0), ranges=recorder).run()
    parents = {parent for name, parent in recorder.seen if name == names.ALLREDUCE}
    assert parents == {names.FORWARD}
    assert recorder.order.count(names.ALLREDUCE) == recorder.order.count(names.BATCH) == 8


# --- checkpoints


@pytest.mark.slow
@pytest.mark.mpi
def test_a_checkpoint_continues_bit_by_bit_or_says_why_not(tmp_path: Path) -> None:
    """The checkpoint holds the whole network: any ranks, parallel in any way, may go on with it."""
    config = small(**MODEL, epochs=2, learning_rate=0.1)
    begun, whole = str(tmp_path / "begun"), str(tmp_path / "whole")
    for arguments in (
        [*flags(config.with_(epochs=1)), "--checkpoint", begun],
        [*flags(config), "--checkpoint", whole],
    ):
        done = run_ranks(2, *arguments)
        assert done.returncode == 0, done.stderr
    start = (tmp_path / "begun" / checkpoint.FILE).read_bytes()
    again = ["--checkpoint", begun, "--resume"]
    for ranks, changes, says in (
        (2, {}, ""),
        (3, {}, "was 2 ranks with numpy, is 3 ranks with numpy: sums"),
        (2, {"parallel": "data"}, "--parallel was 'model', is 'data': sums"),
        (1, {"parallel": "data", "transport": "none"}, "is 1 rank with numpy; --parallel was"),
    ):
        (tmp_path / "begun" / checkpoint.FILE).write_bytes(start)
        done = run_ranks(ranks, *flags(config.with_(**changes, verify=1e-13)), *again)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("trainer:") == bool(says), done.stderr
        assert says in done.stderr
        a, b = (checkpoint.load(Path(place)) for place in (begun, whole))
        assert np.array_equal(a.parameters, b.parameters) or says
        assert [e["precision_test"] for e in a.history] == [e["precision_test"] for e in b.history]


@pytest.mark.slow
@pytest.mark.mpi
def test_the_record_says_how_it_was_parallel(tmp_path: Path) -> None:
    record = tmp_path / "run.json"
    done = run_ranks(2, *flags(small(**MODEL, verify=1e-13)), "--record", str(record))
    assert done.returncode == 0, done.stderr
    read = json.loads(record.read_text())
    assert (read["config"]["parallel"], read["ranks"]) == ("model", 2)
    assert read["verify"]["passed"]
    assert (
        read["verify"]["precision_test"]["parallel"]
        == (read["verify"]["precision_test"]["sequential"])
    )


# --- memory


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_batch_loop_allocates_nothing_on_any_rank(ranks: int) -> None:
    large = {
        "input_size": 100, "hidden_size": 256, "num_classes": 10, "batch_size": 4000,
        "train_size": 14000, "test_size": 10, "batches": 20,
    }  # fmt: skip
    asked = [
        {**large, "parallel": parallel, "transport": transport, "overlap": overlap}
        for parallel, transport, overlap in (
            ("data", "host", False), ("data", "host-flat", False), ("data", "chunked", True),
            ("model", "host-flat", False), ("model", "chunked", False),
        )
    ]  # fmt: skip
    for found in run_script(ranks, asked):
        # NumPy's ufuncs borrow 32 KB while they cast a scalar; the smallest matrix has 80 KB
        assert found["peak"] < 40_000, found

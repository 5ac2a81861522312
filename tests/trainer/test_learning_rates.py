"""Learning rates: scaled with the batch, warmed up, the same on one rank and many, resumable."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.convergence.sweeps import virtual_ranks
from support.trainer_device import Capturing
from support.trainer_runs import StopAt, flags, run_alone, run_ranks, run_script, session, small
from trainer import checkpoint
from trainer.backends.numpy import NumpyBackend
from trainer.checkpoint import State
from trainer.errors import ConfigError
from trainer.mpi import Communicator
from trainer.rates import LearningRate
from trainer.record import Run, config_mark
from trainer.stop import StopRequest
from trainer.transports.peer import PeerTransport

WARM: dict[str, Any] = {"warmup_epochs": 2, "scale_learning_rate": 10, "learning_rate": 0.1}


class Rates(NumpyBackend):
    """Keeps the rate of every descent of W1."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def descend(self, p: np.ndarray, g: np.ndarray, rate: float, decay: float) -> None:
        if p.ndim == 2 and p.shape[0] == 8:  # H: once a batch
            self.seen.append(rate)
        super().descend(p, g, rate, decay)


def seen(**changes: Any) -> list[float]:
    """Train; return the rate of every batch."""
    one = session(small(**changes))
    one.backend = backend = Rates()
    one.run()
    return backend.seen


def test_the_ramp_is_linear_by_batch_and_ends_at_the_peak() -> None:
    """4 batches an epoch, 2 epochs of warm-up: 1/8, 2/8 ... 8/8 of 0.1 x 30 / 10."""
    wanted = [0.3 * i / 8 for i in range(1, 9)] + [0.3] * 4
    assert seen(epochs=3, **WARM) == pytest.approx(wanted, rel=1e-15)
    assert seen(epochs=3, **WARM)[7:] == [0.1 * 30 / 10] * 5


def test_without_rules_the_rate_is_the_rate() -> None:
    assert seen(epochs=2, learning_rate=0.3) == [0.3] * 8
    assert small(learning_rate=0.3).peak_learning_rate == 0.3
    assert seen(epochs=1, learning_rate=0.2, scale_learning_rate=60) == [0.1] * 4


@given(
    peak=st.floats(1e-6, 10), batches=st.integers(1, 50), warmup=st.integers(0, 5),
    epoch=st.integers(0, 8), batch=st.integers(0, 49),
)  # fmt: skip
def test_rates_grow_to_the_peak_and_stay(
    peak: float, batches: int, warmup: int, epoch: int, batch: int
) -> None:
    rate = LearningRate(peak, batches, warmup)
    batch %= batches
    now, following = rate.at(epoch, batch), rate.at(epoch, batch + 1)
    assert 0 < now <= following <= peak
    assert (now == peak) == (epoch * batches + batch + 1 >= warmup * batches)


def test_timed_batches_go_through_the_warm_up_too() -> None:
    one = session(small(**WARM))
    one.backend = backend = Rates()
    one.prepare()
    one.run_batches(10)
    assert backend.seen == pytest.approx([0.3 * min(i, 8) / 8 for i in range(1, 11)])


@pytest.mark.parametrize("after", [1, 4, 6, 9])
@pytest.mark.parametrize("parallel", ["data", "model"])
def test_stopping_in_the_warm_up_and_resuming_is_bit_identical(after: int, parallel: str) -> None:
    config = small(epochs=3, parallel=parallel, **WARM)
    whole = session(config).run()
    saved: list[State] = []
    stop = StopRequest()
    session(config, stop=stop, observer=StopAt(stop, after), save=saved.append).run()
    state = checkpoint.unpack(checkpoint.pack(saved[-1]))
    assert np.array_equal(session(config, state=state).run().parameters, whole.parameters)


def test_a_checkpoint_keeps_to_its_rules_and_older_ones_had_none() -> None:
    saved = small(**WARM).as_dict()
    assert small(**{**WARM, "warmup_epochs": 3}).differences(saved) == [
        "--warmup-epochs was 2, is 3"
    ]
    older = small().as_dict()
    del older["warmup_epochs"], older["scale_learning_rate"]
    assert small().differences(older) == []
    assert small(warmup_epochs=1).differences(older) == ["--warmup-epochs was 0, is 1"]


@pytest.mark.slow
@pytest.mark.mpi
def test_two_ranks_train_as_one() -> None:
    asked = [
        {**WARM, "transport": transport, "parallel": parallel, "dtype": "float64", "epochs": 3}
        for transport, parallel in (("host", "data"), ("chunked", "data"), ("host", "model"))
    ]
    for found in run_script(2, asked):
        assert found["error"] < 1e-13, found
        assert found["alike"], found


def test_ranks_in_the_mind_warm_up_as_well() -> None:
    config = small(dtype="float64", epochs=3, **WARM)
    wanted = session(config).run().parameters
    found = virtual_ranks(config, session(config)._dataset, 2)[-1].parameters
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-13)


def test_the_peer_transport_steps_at_the_rate_of_the_batch() -> None:
    """Its kernel needs a GPU; what it is handed does not."""
    config = small(**WARM)
    rate, handed = LearningRate(config.peak_learning_rate, 4, config.warmup_epochs), []
    transport: Any = PeerTransport.__new__(PeerTransport)
    transport._parties = SimpleNamespace(
        update=SimpleNamespace(rate=rate, regularization=1e-4), message=SimpleNamespace(flat=None),
        ranges={name: nullcontext() for name in ("peer all-reduce and step",)},
    )  # fmt: skip
    transport._inbox = transport._flags = None
    transport._sum_and_step = lambda *given: handed.append(given[1])
    for batch in range(4):
        rate.turn_to(0, batch)
        transport.all_reduce()
    assert handed == [rate.at(0, batch) for batch in range(4)]
    assert handed[0] < handed[3]


# --- graphs


def graphs(**changes: Any) -> tuple[Any, Capturing]:
    one = session(small(transport="none", data_on="device", graph=True, epochs=3, **changes))
    one.backend = backend = Capturing()
    return one.run(), backend


def test_a_graph_is_not_captured_with_a_warm_up_but_with_a_scaled_rate() -> None:
    found, backend = graphs(**WARM)
    assert "--warmup-epochs gives every batch its own rate" in found.why_no_graph
    assert backend.captured == 0
    assert np.array_equal(found.parameters, session(small(epochs=3, **WARM)).run().parameters)
    scaled = {**WARM, "warmup_epochs": 0}
    found, backend = graphs(**scaled)
    assert found.why_no_graph is None
    assert backend.captured > 0
    assert np.array_equal(found.parameters, session(small(epochs=3, **scaled)).run().parameters)


# --- what is said


def test_record_and_mark_tell_the_rules(tmp_path: Path) -> None:
    record = tmp_path / "run.json"
    done = run_alone(*flags(small(**WARM)), "--record", str(record))
    assert done.returncode == 0, done.stderr
    said = json.loads(record.read_text())
    assert said["config"]["warmup_epochs"] == 2
    assert said["config"]["scale_learning_rate"] == 10
    assert said["peak_learning_rate"] == pytest.approx(0.3)
    mark = config_mark(Run(small(**WARM), Communicator(), NumpyBackend(), 1, "abc"))
    assert mark["peak_learning_rate"] == pytest.approx(0.3)
    assert mark["warmup_epochs"] == 2
    plain = config_mark(Run(small(), Communicator(), NumpyBackend(), 1, "abc"))
    assert not {"learning_rate", "warmup_epochs", "peak_learning_rate"} & set(plain)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"warmup_epochs": -1}, "--warmup-epochs: expected a whole number >= 0"),
        ({"scale_learning_rate": 0}, "--scale-learning-rate: expected a whole number >= 1"),
        ({"scale_learning_rate": 1, "learning_rate": 400.0}, "got 1.2; lower one"),
    ],
)
def test_rules_that_are_none_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        small(**changes)


@pytest.mark.slow
@pytest.mark.mpi
def test_the_command_line_of_two_ranks_verifies() -> None:
    done = run_ranks(2, *flags(small(dtype="float64", **WARM)), "--verify")
    assert done.returncode == 0, done.stderr

"""Batches that are timed before the run that a profiler records."""

from __future__ import annotations

import pytest

from trainer.backends.numpy import NumpyBackend
from trainer.config import Config
from trainer.data import load
from trainer.errors import ConfigError
from trainer.flags import parser
from trainer.mpi import Communicator
from trainer.unrecorded import begin_recording, time_first

SMALL = Config(
    hidden_size=8, batch_size=50, data="synthetic", train_size=200, test_size=50, backend="numpy"
)


def test_batches_are_timed_in_rounds_of_five() -> None:
    timed = time_first(SMALL, Communicator(), load(SMALL), NumpyBackend(), 11)
    assert timed["steps"] == 15
    assert 0 < timed["low_s"] <= timed["step_s"] <= timed["high_s"]


def test_the_mark_says_what_was_timed_and_what_a_range_costs() -> None:
    mark = begin_recording(Communicator(), {"step_s": 1.0})
    assert (mark["perfmodel_recorder"], mark["step_s"]) == (1, 1.0)
    assert len(mark["probe"]["range"]) == 2


def test_the_number_of_batches_is_a_whole_one() -> None:
    assert parser().parse_args(["--time-first", "25"]).time_first == 25
    with pytest.raises(ConfigError, match="expected a whole number"):
        parser().parse_args(["--time-first", "1x"])

"""`perfmodel predict --decoder`: language models as they are served."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.common.folders import PROGRAMS
from support.cli import perfmodel, succeeds
from support.public_recordings import small

MODEL = "--decoder", "qwen3-8b", "--machine", "mi300x"


def passes(*words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(succeeds("predict", *words, "--json"))["passes"]
    return found


def test_a_recorded_step_is_predicted_from_the_configuration() -> None:
    """32,785 cached tokens of 32 sequences: 1,024.5 each."""
    report = str(small("sglang_decode_mi300x.json.xz"))
    shapes = "--shapes", str(small("sglang_capture_mi300x.json.xz"))
    measured = json.loads(succeeds("analyze", report, *shapes, "--json"))["serving"]
    _, decode = passes(report, *shapes, *MODEL, "-B", "32", "--context", "1025")
    assert decode["floor_s"] == pytest.approx(measured["floor_s"], rel=0.01)
    assert decode["compute_s"] == pytest.approx(measured["compute_s"], rel=0.01)
    assert decode["floor_by"] == measured["floor_by"] == "memory"
    assert decode["expected_s"] == pytest.approx(measured["step_s"], rel=0.01)


def test_the_recording_of_hidden_steps_gives_what_they_reach() -> None:
    """The operators of this step are in a CUDA graph: its floor is that of the model's name."""
    report = str(small("sglang_decode_b300.json.xz"))
    model = "--decoder", "qwen3-30b-a3b"
    measured = json.loads(succeeds("analyze", report, *model, "--json"))["serving"]
    _, decode = passes(report, *model, "--machine", "b300", "-B", "16", "--context", "512")
    assert decode["floor_s"] == pytest.approx(measured["floor_s"], rel=0.01)
    assert decode["expected_s"] == pytest.approx(measured["step_s"], rel=0.01)


def test_larger_batches_move_the_same_weights() -> None:
    rows = [row for row in passes(*MODEL, "--sweep", "B=8:32") if row["phase"] == "decode"]
    assert [row["sequences"] for row in rows] == [8, 16, 32]
    first, second, third = (row["memory_s"] for row in rows)
    assert third - second == pytest.approx(2 * (second - first), rel=0.01)  # the KV cache
    assert third < 1.3 * first
    assert "expected_s" not in rows[0]


def test_a_model_that_does_not_fit() -> None:
    big = "--decoder", "llama-3.1-405b", "--machine", "h100"
    assert {row["fits"] for row in passes(*big)} == {"no"}
    assert {row["fits"] for row in passes(*big, "-p", "16")} == {"yes"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--decoder", "qwen3-8b"), "give --machine"),
        ((*MODEL, "--sweep", "H=1:2"), "expected B or context"),
        ((*MODEL, "-p", "3"), "expected GPUs that divide 32 heads"),
        ((str(PROGRAMS / "gpt_shapes.sqlite.xz"), *MODEL), "expected steps of an engine"),
    ],
)
def test_what_cannot_be_predicted(words: tuple[str, ...], said: str) -> None:
    run = perfmodel("predict", *words)
    assert run.exit_code != 0
    assert said in run.output

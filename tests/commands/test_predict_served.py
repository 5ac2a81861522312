"""`perfmodel predict --decoder`: language models as they are served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.folders import PROGRAMS
from support import build_serving
from support.cli import perfmodel, succeeds
from support.public_recordings import small

MODEL = "--decoder", "qwen3-8b", "--machine", "mi300x"


def passes(*words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(succeeds("predict", *words, "--json"))["passes"]
    return found


def test_a_step_is_predicted_from_the_configuration(tmp_path: Path) -> None:
    """19,232 cached tokens of 32 sequences: 601 each."""
    report = build_serving.write(tmp_path, "decode", build_serving.decode("sglang"))
    shapes = build_serving.write(tmp_path, "capture", build_serving.capture("sglang"))
    check_step(report, shapes, 601)


def test_a_recorded_step_is_predicted_from_the_configuration() -> None:
    """32,785 cached tokens of 32 sequences: 1,024.5 each."""
    check_step(small("sglang_decode_mi300x.json.xz"), small("sglang_capture_mi300x.json.xz"), 1025)


def check_step(report: Path, capture: Path, context: int) -> None:
    given = str(report), "--shapes", str(capture)
    measured = json.loads(succeeds("analyze", *given, "--json"))["serving"]
    _, decode = passes(*given, *MODEL, "-B", "32", "--context", str(context))
    assert decode["floor_s"] == pytest.approx(measured["floor_s"], rel=0.01)
    assert decode["compute_s"] == pytest.approx(measured["compute_s"], rel=0.01)
    assert decode["floor_by"] == measured["floor_by"] == "memory"
    assert decode["expected_s"] == pytest.approx(measured["step_s"], rel=0.01)


def test_hidden_steps_give_what_they_reach(tmp_path: Path) -> None:
    """The operators of this step are in a CUDA graph: its floor is that of the model's name."""
    report = build_serving.write(tmp_path, "decode", build_serving.decode("hidden"))
    check_hidden(report, sequences=32, context=513)


def test_the_recording_of_hidden_steps_gives_what_they_reach() -> None:
    check_hidden(small("sglang_decode_b300.json.xz"), sequences=16, context=512)


def check_hidden(report: Path, *, sequences: int, context: int) -> None:
    model = "--decoder", "qwen3-30b-a3b"
    measured = json.loads(succeeds("analyze", report, *model, "--json"))["serving"]
    batch = "-B", str(sequences), "--context", str(context)
    _, decode = passes(str(report), *model, "--machine", "b300", *batch)
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

"""`perfmodel predict` on reports of a PyTorch program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from perfmodel.models import one_report
from support.build_operators import FORWARD, operators_report
from support.cli import perfmodel

ROOT = Path()
DOCS = ROOT / "docs"
PROGRAMS = Path("profiles/programs")


@pytest.fixture
def no_largest_batch() -> Iterator[None]:
    """Leave out the search for the largest batch, most of what a prediction takes.

    Recordings are measured without it, so that they stay shared: no monkeypatch.
    """
    with mock.patch.object(one_report, "_largest", return_value=None):
        yield


def test_pytorch_needs_no_calibration() -> None:
    said = perfmodel("study", "calibrate", str(PROGRAMS / "gpt_shapes.sqlite.xz"))
    assert said.exit_code == 6
    assert "perfmodel predict REPORT... predicts from its reports" in " ".join(said.stderr.split())


@pytest.mark.usefixtures("no_largest_batch")
def test_two_reports_are_taken() -> None:
    reports = [str(PROGRAMS / f"{name}.sqlite.xz") for name in ("gpt_modules", "gpt_shapes")]
    said = perfmodel("predict", *reports, "--set", "batch=20", "--name", "8,12=batch", "--json")
    assert said.exit_code == 0, said.stderr
    found = json.loads(said.stdout)
    assert found["host"]["evidence"] == ["gpt_shapes.sqlite.xz"]
    assert found["source"] == "gpt_modules.sqlite.xz"
    roles = {role["name"]: role for role in found["roles"]}
    assert (roles["batch"]["value"], roles["batch"]["certainty"]) == (8, "given")


def test_one_report_predicts_as_the_contract_says() -> None:
    report = str(PROGRAMS / "gpt_shapes.sqlite.xz")
    said = perfmodel("predict", report, "--set", "batch=24", "-p", "2", "--json")
    assert said.exit_code == 0, said.stderr
    found = json.loads(said.stdout)
    assert {"step_s", "low_s", "high_s", "bound", "sizes", "roles", "peak_bytes"} <= found.keys()
    assert found["low_s"] < found["step_s"] < found["high_s"]
    assert found["sizes"]["batch"] == 24
    assert found["sizes"]["p"] == 2
    assert found["peak_bytes"] == sum(found["peak_bytes_by_kind"].values())
    assert found["largest_batch"] > 24
    assert found["samples_per_s"] == pytest.approx(2 * 24 / found["step_s"])
    assert found["tokens_per_s"] == pytest.approx(384 * found["samples_per_s"])
    flops = sum(row["flops"] for row in found["operators"])
    assert found["flops_per_s"] == pytest.approx(2 * flops / found["step_s"])
    roles = {role["name"]: role for role in found["roles"]}
    assert roles["batch"]["value"] == 12
    assert roles["batch"]["certainty"] == "sure"


@pytest.mark.slow
@pytest.mark.usefixtures("no_largest_batch")
def test_what_is_known_of_the_host_is_said() -> None:
    report = str(PROGRAMS / "gpt_shapes.sqlite.xz")
    timed = perfmodel("predict", report, "--timed", "0.0115", "--timed", "batch=6,n_layer=4:0.0092")
    assert (
        "times as long as the report says, by 11.5 ms at the report's sizes; 9.20 ms"
        in timed.stdout
    )
    other = str(PROGRAMS / "gpt_modules.sqlite.xz")
    found = json.loads(perfmodel("predict", report, "--anchor", other, "--json").stdout)["host"]
    by_report, in_general = found["evidence"]
    assert by_report == "gpt_modules.sqlite.xz"
    assert in_general.startswith("34.0 µs an operator on hosts in general")
    assert 1.2 < found["factor"] < 1.7


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--set", "layers=3"], "expected one of batch, seq"),
        (["--set", "d_model=1000"], "multiple of 64"),
        (["--name", "batch"], "expected N=ROLE"),
        (["--name", "31=batch"], "a number of the operators' sizes"),
        (["--name", "12,24=batch"], "one for each of the 1 reports"),
        (["--sweep", "n_layer=1:8"], "--sweep: of models; got a REPORT"),
        (["--transport", "nccl"], "No such option"),
        (["-o", "x.png"], ".png is of curves"),
        (["-B", "24"], "--batch-size: of models; got a REPORT; give its sizes by --set"),
        (["--context", "2048"], "--context: of --decoder; got a REPORT"),
        (["--tokens", "inf"], "is not in the range"),
        (["--tokens", "nan"], "--tokens"),
        (["--timed", "100"], "give seconds of one step"),
        (["--anchor", str(PROGRAMS / "gpt_shapes.sqlite.xz")], "got a REPORT, whose host is"),
        (["--name", "12=batch", "--name", "12=seq"], "expected one role of 12; got batch and seq"),
        (["--gpu", "v100"], "has a peak for; got bfloat16; give another one by --dtype"),
        (["--set", "n_layer=0"], "with N of 1 to 999999999; got 'n_layer=0'"),
        (["--set", "n_layer=1", "--set", "n_layer=2"], "--set n_layer: expected once"),
        (["--set", "n_layer=100000"], "expected n_layer of at most 2000"),
        (["--gpu", "h100", "--machine", "h200"], "got both"),
        (["--timed", "fast"], "expected SECONDS or NAME=N,...:SECONDS"),
        (["--timed", "-1"], "expected SECONDS or NAME=N,...:SECONDS"),
        (["--timed", "batch=96:0.02"], "a step that the host sets"),
        (["--timed", "depth=2:0.02"], "expected one of batch, seq"),
        (["--fsdp"], "expected ranks to share parameters"),
        (["--accumulate", "0"], "0 is not in the range"),
        (["--model", "model.json"], "which is now of 'perfmodel study predict'"),
    ],
)
def test_one_report_refuses_what_it_cannot_say(flags: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")
    flags = [str(tmp_path / f) if f == "model.json" else f for f in flags]
    found = perfmodel("predict", str(PROGRAMS / "gpt_shapes.sqlite.xz"), *flags)
    assert found.exit_code != 0
    assert said in " ".join(found.stderr.split())


@pytest.mark.usefixtures("no_largest_batch")
def test_data_types_have_the_names_that_people_use(tmp_path: Path) -> None:
    small = operators_report(tmp_path / "small.sqlite", FORWARD[:3])
    short, whole, other = (perfmodel("predict", small, "--dtype", name, "--json").stdout
                           for name in ("bf16", "bfloat16", "fp32"))  # fmt: skip
    assert short == whole != other
    report = str(PROGRAMS / "gpt_fp32_shapes.sqlite.xz")
    faster = json.loads(perfmodel("predict", report, "--dtype", "tf32", "--set", "batch=64",
                                  "--json").stdout)  # fmt: skip
    slower = json.loads(perfmodel("predict", report, "--set", "batch=64", "--json").stdout)
    assert faster["step_s"] < slower["step_s"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_largest_batch")
def test_convolutions_take_another_data_type() -> None:
    report = str(PROGRAMS / "resnet34_both.sqlite.xz")

    def convolutions(*flags: str) -> float:
        found = json.loads(perfmodel("predict", report, *flags, "--json").stdout)
        return float(found["gpu_s_by_kind"]["convolution"])

    here = convolutions()
    assert convolutions("--dtype", "fp16") == pytest.approx(here, rel=0.01)  # the same peak
    assert here < convolutions("--dtype", "tf32") < 2.1 * here
    assert convolutions("--dtype", "tf32") < convolutions("--dtype", "fp32") < 20 * here


@pytest.mark.slow
@pytest.mark.usefixtures("no_largest_batch")
def test_the_grid_of_a_named_gpu_is_taken() -> None:
    report = str(PROGRAMS / "gpt_shapes.sqlite.xz")
    by_gpu = perfmodel("predict", report, "--set", "batch=96", "--gpu", "h100", "--json")
    by_machine = perfmodel("predict", report, "--set", "batch=96", "--machine", "h100", "--json")
    assert json.loads(by_gpu.stdout) == json.loads(by_machine.stdout)
    here = perfmodel("predict", report, "--set", "batch=96", "--json")
    assert json.loads(by_gpu.stdout)["step_s"] > json.loads(here.stdout)["step_s"]


def _ms(text: str) -> float:
    return float(text.strip().removesuffix(" ms"))


def questions() -> list[tuple[str, list[str], list[float], float]]:
    """Rows of the page's table of questions: the options, what it predicts, what was measured."""
    page = (DOCS / "pytorch_predict.md").read_text(encoding="utf-8")
    found, before = [], ""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or not cells[3].endswith(" ms"):
            continue
        words = cells[1].replace("the same with", before).replace("`", "")
        before = words
        step, span = cells[2].split(" ms, ")
        low, high = span.split(" to ")
        found.append((cells[0], words.split(), [*map(_ms, (step, low, high))], _ms(cells[3])))
    return found


@pytest.mark.usefixtures("no_largest_batch")
@pytest.mark.parametrize("row", questions(), ids=lambda row: row[0])
def test_questions_have_the_answers_of_the_page_and_of_recordings(
    row: tuple[str, list[str], list[float], float],
) -> None:
    _, (report, *flags), said, measured = row
    answer = perfmodel("predict", str(PROGRAMS / report), *flags, "--json")
    assert answer.exit_code == 0, answer.stderr
    found = json.loads(answer.stdout)
    step, low, high = (1e3 * found[key] for key in ("step_s", "low_s", "high_s"))
    assert [step, low, high] == pytest.approx(said, rel=5e-3)
    assert low < measured < high


def test_measured_answers_are_those_of_the_results() -> None:
    assert len(questions()) >= 10
    known: set[float] = set()
    results = ROOT / "benchmarks" / "results"
    for path in (*results.glob("*/measured_*.json"), *results.glob("gpt/calibration_*.json")):
        for row in json.loads(path.read_text(encoding="utf-8")):
            times = row["step_s"] if isinstance(row["step_s"], list) else [row["step_s"]]
            known |= {round(1e3 * t, 1) for t in times}
    ranks = json.loads((results / "gpt" / "score_ranks.json").read_text(encoding="utf-8"))
    known |= {round(1e3 * row["measured_s"], 1) for row in ranks["steps"]}
    peaks = json.loads((results / "one" / "peaks_measured.json").read_text(encoding="utf-8"))
    known |= {round(1e3 * row["step_s"], 1) for row in peaks}
    for path in PROGRAMS.glob("*.truth.json"):
        truth = json.loads(path.read_text(encoding="utf-8"))
        known |= {round(1e3 * truth["step_s_bare"], 1)} if truth.get("step_s_bare") else set()
    for name, _, _, measured in questions():
        assert round(measured, 1) in known, name


@pytest.mark.usefixtures("no_largest_batch")
def test_accumulated_micro_batches_update_once() -> None:
    report = str(PROGRAMS / "gpt_shapes.sqlite.xz")

    def step(*flags: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            perfmodel("predict", report, "--set", "batch=96", *flags, "--json").stdout
        )
        return found

    once, four = step(), step("--accumulate", "4")
    assert once["step_s"] * 3.5 < four["step_s"] < once["step_s"] * 4
    assert four["samples_per_s"] == pytest.approx(4 * 96 / four["step_s"])
    flops = [sum(row["flops"] for row in one["operators"]) for one in (once, four)]
    assert flops[1] == pytest.approx(4 * flops[0])
    kinds = four["peak_bytes_by_kind"]
    assert kinds["gradients"] == kinds["parameters"]


@pytest.mark.usefixtures("no_largest_batch")
def test_shards_are_of_parameters_and_states() -> None:
    report = str(PROGRAMS / "gpt_shapes.sqlite.xz")
    whole, shared = (
        json.loads(perfmodel("predict", report, "-p", "4", *flags, "--json").stdout)
        for flags in ((), ("--fsdp", "--tokens", "1e9"))
    )
    for kind in ("parameters", "optimizer"):
        bytes_ = [one["peak_bytes_by_kind"][kind] for one in (whole, shared)]
        assert bytes_[1] == pytest.approx(bytes_[0] / 4, rel=1e-6)
    assert shared["peak_bytes"] < whole["peak_bytes"]
    assert shared["communication_s"] > whole["communication_s"] / 3
    assert shared["tokens_s"] == pytest.approx(1e9 / shared["tokens_per_s"])
    assert 0 < shared["mfu"] < 1

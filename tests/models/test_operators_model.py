"""Models of operators, calibrated on the shipped reports."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.machines.devices import named
from perfmodel.models.operator_times import Baseline
from perfmodel.models.operators import (
    OperatorModel,
    Wire,
    predict_operators,
)
from perfmodel.models.operators_calibrate import calibrate_operators
from perfmodel.models.operators_file import as_text, load
from perfmodel.models.recorded import RecordedStep
from perfmodel.models.structure import Run, grown, runs_of, structures
from perfmodel.programs import program_named
from perfmodel.programs.program import Options
from perfmodel.readers import read

PROGRAMS = Path("profiles/programs")
PYTORCH = program_named("pytorch").recorded_operators
assert PYTORCH is not None


def truth(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((PROGRAMS / f"{name}.truth.json").read_text())
    return content


def step(name: str) -> RecordedStep:
    said = truth(name)
    words = {"d_model": "width", "n_layer": "layers", "heads": "heads", "seq": "length",
             "batch": "batch", "vocab": "vocabulary"}  # fmt: skip
    sizes = {symbol: said[word] for symbol, word in words.items()}
    trace = read(PROGRAMS / f"{name}.sqlite.xz")
    return replace(PYTORCH.recorded_step(trace, Options(), sizes), bare_s=said["step_s_bare"])


@pytest.fixture(scope="module")
def steps() -> list[RecordedStep]:
    return [step("gpt_shapes"), step("gpt_modules")]


@pytest.fixture(scope="module")
def model(steps: list[RecordedStep]) -> OperatorModel:
    return calibrate_operators("pytorch", steps, Baseline.of(named("h200"), None), PYTORCH.call_at)


def test_work_of_a_call_is_that_of_its_own_sizes(steps: list[RecordedStep]) -> None:
    for call in steps[0].calls:
        work = PYTORCH.call_at(call, call.sizes)
        assert (work.flops, work.bytes, work.shape) == (call.flops, call.bytes, call.shape)


def test_grown_step_does_what_the_other_report_does(steps: list[RecordedStep]) -> None:
    one, other = structures(steps)
    assert one.depth == other.depth == "n_layer"
    for source, target, name in ((one, other, "gpt_modules"), (other, one, "gpt_shapes")):
        calls = source.calls_at(target.step.symbols)
        flops = sum(PYTORCH.call_at(call, sizes).flops for call, sizes in calls)
        assert flops == truth(name)["flop_counter_total"]
        assert gemms([c.name for c, _ in calls]) == gemms(
            [target.step.calls[i].name for i in target.step.order]
        )


def gemms(names: Sequence[str]) -> Counter[str]:
    return Counter(n for n in names if "mm" in n or "attention" in n)


def test_optimizer_has_the_parameters_of_the_other_report(steps: list[RecordedStep]) -> None:
    one, other = structures(steps)
    calls = one.calls_at(other.step.symbols)
    (sizes,) = [sizes for call, sizes in calls if "adamw" in call.name]
    elements = sum(a * b for a, b in (s for s in sizes if len(s) == 2)) + sum(
        s[0] for s in sizes if len(s) == 1
    )
    assert elements == 4 * truth("gpt_modules")["parameters"]


def test_calibrated_steps_are_met(model: OperatorModel, steps: list[RecordedStep]) -> None:
    for one in steps:
        found = predict_operators(model, one.symbols, PYTORCH.call_at)
        assert found.step_s == pytest.approx(one.bare_s, rel=0.02)
        assert found.bound == "host"
        assert sum(found.by_kind.values()) == pytest.approx(one.busy_s, rel=0.02)
        assert found.low_s < found.step_s < found.high_s


def test_more_layers_take_longer_by_the_same_each(model: OperatorModel) -> None:
    sizes = {**model.steps[0].symbols}
    busy = [
        sum(predict_operators(model, sizes | {"n_layer": n}, PYTORCH.call_at).by_kind.values())
        for n in (5, 6, 9)
    ]
    assert busy[2] - busy[1] == pytest.approx(3 * (busy[1] - busy[0]), rel=0.01)


def test_what_reports_cannot_tell_apart_is_asked_for(model: OperatorModel) -> None:
    sizes = {**model.steps[0].symbols, "d_model": 768}
    with pytest.raises(ModelError, match=r"ambiguous.*d_model = 768.*64 heads = 640"):
        predict_operators(model, sizes, PYTORCH.call_at)
    sizes.pop("vocab")
    with pytest.raises(ModelError, match=r"expected a value of each of batch.*got none of vocab"):
        predict_operators(model, sizes, PYTORCH.call_at)


def test_ranks_that_no_report_has_are_refused(model: OperatorModel) -> None:
    with pytest.raises(ModelError, match=r"reports of several ranks"):
        predict_operators(model, {**model.steps[0].symbols, "p": 2}, PYTORCH.call_at)


def test_file_gives_the_same_predictions(model: OperatorModel, tmp_path: Path) -> None:
    path = tmp_path / "gpt.json"
    path.write_text(as_text(model))
    again = load(path)
    assert as_text(again) == as_text(model)
    sizes = {**model.steps[0].symbols, "n_layer": 12}
    one, other = (predict_operators(m, sizes, PYTORCH.call_at) for m in (model, again))
    assert one.step_s == pytest.approx(other.step_s, rel=1e-3)


def test_faster_memory_shortens_what_memory_bounds(model: OperatorModel) -> None:
    sizes = model.steps[0].symbols
    h100 = Baseline.of(named("h100"), None)
    here = predict_operators(model, sizes, PYTORCH.call_at).by_kind["memory"]
    there = predict_operators(model, sizes, PYTORCH.call_at, h100).by_kind["memory"]
    wide = [named(n).bandwidth_bytes_per_s["hbm"] for n in ("h200", "h100")]
    assert 1 < there / here < wide[0] / wide[1]


def test_one_report_with_sizes_is_not_enough(steps: list[RecordedStep]) -> None:
    base = Baseline.of(named("h200"), None)
    with pytest.raises(ModelError, match=r"two or more reports"):
        calibrate_operators("pytorch", steps[:1], base, PYTORCH.call_at)


def test_runs_are_found_longest_first() -> None:
    tokens = list("xy" + "abcde" * 3 + "q" + "fghi" * 2)
    assert runs_of(tokens) == (Run(2, 5, 3), Run(18, 4, 2))
    assert grown(Run(0, 4, 2), 2) == [0, 1, 1, 1]
    assert grown(Run(0, 4, 3), -1) == [0, 2]


def test_buckets_are_those_that_a_report_of_eight_ranks_reduced(model: OperatorModel) -> None:
    # bytes of the all-reduces of a step of profiles/programs/gpt_ddp8, in their order
    reduced = [67108864, 33566720, *[33603584, 29392896, 37773312] * 4][:14]
    reduced[-1:] = [73420800]
    sizes = {"d_model": 1024, "n_layer": 8, "heads": 16, "seq": 512, "batch": 16, "vocab": 16384}
    ranked = replace(model, wires={"NCCL AllReduce": Wire(2e-5, 3e-12)})
    found = predict_operators(ranked, sizes | {"p": 8}, PYTORCH.call_at)
    sent = found.lanes.communication_s - len(reduced) * 2e-5 * 3
    assert sent == pytest.approx(2 * 7 / 8 * sum(reduced) * 3e-12, rel=1e-3)


def test_collectives_of_reports_without_sizes_are_timed() -> None:
    found = step("gpt_ddp")
    assert not found.order
    assert {c.name for c in found.calls} == {"NCCL AllReduce"}
    assert sorted(int(c.bytes) for c in found.calls) == [28348416, 28351488, 50331648, 51913728]
    assert all(1e-4 < c.gpu_s < 4e-4 for c in found.calls)

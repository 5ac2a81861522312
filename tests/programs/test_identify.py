"""Identification: configuration marks, sizes of messages, flags that override both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.analysis.result import RunAnalysis
from perfmodel.base.errors import WorkloadError
from perfmodel.programs.identify import from_mark, read_mark
from perfmodel.programs.mlp.identify import from_messages, precision
from perfmodel.readers import read
from support.build_report import ReportBuilder
from support.build_training import Training, analyzed, training_report

CONFIG: dict[str, Any] = {
    "workload": "mlp", "input_size": 784, "hidden_size": 512, "num_classes": 10,
    "batch_size": 3000, "ranks": 2, "dtype": "float32",
}  # fmt: skip
VALUES = {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 4}


def mark(**changes: Any) -> str:
    return json.dumps({"perfmodel_config": 1, **CONFIG, **changes})


def marked_report(folder: Path, text: str, training: Training | None = None) -> Path:
    return training_report(folder / "r.sqlite", training, mark=text)


def run_of(path: Path, **options: Any) -> RunAnalysis:
    return analyzed(path, **options).fitted


# --- the sizes of the messages


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    D=st.integers(2, 5000),
    H=st.integers(2, 5000),
    C=st.integers(2, 2000),
    share=st.integers(1, 10_000),
    p=st.integers(1, 64),
    b=st.sampled_from([2, 4, 8]),
)
def test_sizes_of_messages_are_solved_or_left_alone(
    D: int, H: int, C: int, share: int, p: int, b: int
) -> None:
    """Whatever the sizes, the answer is the truth or none: never another network."""
    training = Training(D=D, H=H, C=C, B=share * p, p=p, b=b)
    found = from_messages(training.gradients, training.inputs, p)
    truth = {"D": D, "H": H, "C": C, "B": share * p, "p": p, "b": b}
    assert found in (truth, None)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    D=st.integers(100, 5000),
    H=st.sampled_from([64, 128, 256, 512, 1024, 2048]),
    C=st.sampled_from([3, 5, 7, 11, 13, 47]),
    share=st.sampled_from([75, 125, 375, 1125]),
    p=st.integers(1, 8),
    b=st.sampled_from([2, 4, 8]),
)
def test_usual_sizes_are_solved(D: int, H: int, C: int, share: int, p: int, b: int) -> None:
    training = Training(D=D, H=H, C=C, B=share * p, p=p, b=b)
    truth = {"D": D, "H": H, "C": C, "B": share * p, "p": p, "b": b}
    assert from_messages(training.gradients, training.inputs, p) == truth


@pytest.mark.parametrize(
    ("gradients", "inputs", "ranks"),
    [
        ([], [], 2),
        ([1605632, 2048, 20480], [4704000], 2),  # three sizes only
        ([1605632, 2048, 20480, 40, 8], [4704000], 2),
        ([1605632, 2048, 20480, 44], [4704000], 2),  # no network has these
        ([1605632, 2048, 20480, 40], [4704001], 2),  # no batch has this
        ([1605632, 2048, 20480, 40], [4704000, 60004], 2),
        ([1605632, 2048, 20480, 40], [4704000], 0),
        ([0, 0, 0, 0], [0], 1),
    ],
)
def test_sizes_that_fit_nothing_tell_nothing(
    gradients: list[int], inputs: list[int], ranks: int
) -> None:
    assert from_messages(gradients, inputs, ranks) is None


def test_ambiguous_sizes_tell_nothing() -> None:
    """784-500-10 at B/p = 1500 sends what 39200-10-500 at B/p = 30 would; D = C has two alike."""
    one, other = Training(H=500), Training(D=39200, H=10, C=500, B=60)
    assert {*one.gradients} == {*other.gradients}
    assert {*one.inputs} == {*other.inputs}
    assert from_messages(one.gradients, one.inputs, 2) is None
    same = Training(D=10, H=512, C=10)
    assert from_messages(same.gradients, same.inputs, 2) is None


def test_without_inputs_the_batch_stays_unknown() -> None:
    assert from_messages([1605632, 2048, 20480, 40], [], 2) == {
        "D": 784, "H": 512, "C": 10, "b": 4, "p": 2,
    }  # fmt: skip


@pytest.mark.parametrize("b", [4, 8])
def test_a_report_without_a_mark_is_identified(tmp_path: Path, b: int) -> None:
    """B/p = H, so that images are as large as W1: they are told apart by how often they come."""
    training = Training(D=100, H=30, C=7, B=60, b=b)
    run = run_of(training_report(tmp_path / "r.sqlite", training))
    assert run.identity.values == {"D": 100, "H": 30, "C": 7, "B": 60, "p": 2, "b": b}
    assert run.identity.source == "the sizes of the report's messages"
    assert run.warnings == ()


# --- the mark


def test_a_mark_tells_everything(tmp_path: Path) -> None:
    run = run_of(marked_report(tmp_path, mark(transport="mpi")))
    assert run.identity.values == VALUES
    assert run.identity.source == "the report's configuration mark"
    assert run.identity.config["transport"] == "mpi"


def test_a_mark_is_found_among_others(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for i, text in enumerate(("hello", '{"a": 1}', "{not json", "[1]", mark(), mark(ranks=9))):
        thread.mark(text, 100 + i, registered=i % 2 == 0)
    thread.range("x", 0, 1)
    assert read_mark(read(report.write(tmp_path / "r.sqlite"))) == json.loads(mark())


@pytest.mark.parametrize(
    "text",
    [
        "", "{", '{"perfmodel_config": 1', '["perfmodel_config"]', '"perfmodel_config"',
        '{"config": "perfmodel_config"}', '{"perfmodel_config": 1}}', "{'perfmodel_config': 1}",
        '{"perfmodel_config": 1, "x": ' + "[" * 900 + "]" * 900 + "}",
        '{"perfmodel_config": 1, "x": ' + '{"a":' * 20_000 + "1" + "}" * 20_000 + "}",
        '{"perfmodel_config": 1, "x": ' + "9" * 10_000 + "}",
        json.dumps({"perfmodel_config": 1, "pad": "x" * 100_000}),
    ],
    ids=["empty", "brace", "cut", "list", "string", "key", "tail", "quotes", "lists", "objects",
         "digits", "long"],
)  # fmt: skip
def test_what_is_no_mark_is_ignored(tmp_path: Path, text: str) -> None:
    assert read_mark(read(marked_report(tmp_path, text, Training(pace=(1,))))) == {}


@pytest.mark.parametrize(
    "wrong", ["784", 784.0, True, None, -784, 0, 10**30, [784], {"a": 1}, float("nan"), ""]
)
def test_a_wrong_value_is_left_out_of_a_mark(wrong: object) -> None:
    assert from_mark(CONFIG | {"input_size": wrong}) == {
        k: v for k, v in VALUES.items() if k != "D"
    }


@pytest.mark.parametrize("dtype", ["float31", 4, None, ["float32"], {"x": 1}])
def test_an_unknown_data_type_is_left_out(dtype: object) -> None:
    assert "b" not in from_mark(CONFIG | {"dtype": dtype})


def test_what_a_mark_lacks_is_taken_from_the_messages(tmp_path: Path) -> None:
    run = run_of(marked_report(tmp_path, mark(input_size="many", batch_size=None)))
    assert run.identity.values == VALUES
    assert "mark and the sizes" in run.identity.source


def test_a_mark_that_does_not_suffice_is_said(tmp_path: Path) -> None:
    text = mark(batch_size=None)
    run = run_of(marked_report(tmp_path, text, Training(gpu=False, mpi=False, p=1)))
    assert run.workload.name == "unknown"
    assert any("a configuration mark without B; give: --batch-size B" in w for w in run.warnings)


def test_a_mark_may_say_nonsense_in_other_keys(tmp_path: Path) -> None:
    odd = {"run_id": {"a": [1]}, "parallel": "\x1b[31m", "lr": float("nan"), "\ud800": "\udfff"}
    document = analyzed(marked_report(tmp_path, mark(**odd)))
    assert document.fitted.identity.values == VALUES


# --- flags


def test_flags_override_the_mark_with_a_warning(tmp_path: Path) -> None:
    run = run_of(marked_report(tmp_path, mark()), values={"H": 256, "D": 784})
    assert run.identity.values == VALUES | {"H": 256}
    said = [w for w in run.warnings if "overrides" in w]
    assert len(said) == 1
    assert "H = 256 was given and overrides the report's own hidden_size = 512" in said[0]
    assert run.identity.source == "the report's configuration mark and the flags"


def test_flags_override_the_messages_with_a_warning(report: Path) -> None:
    run = run_of(report, values={"H": 256})
    assert run.identity.values["H"] == 256
    assert any("H = 256" in w and "hidden_size = 512" in w for w in run.warnings)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run of one batch."""
    return training_report(tmp_path_factory.mktemp("short") / "r.sqlite", Training(pace=(1,)))


def bytes_warnings(run: RunAnalysis) -> list[str]:
    return [w for w in run.warnings if "the formula gives" in w]


@pytest.mark.parametrize(
    ("values", "ranges"),
    [
        ({"H": 256}, ["cudaMemcpyDeviceToHost", "MPI_Allreduce", "cudaMemcpyHostToDevice"]),
        ({"B": 6000}, ["copying images host -> device"]),
        ({"H": 515}, []),  # 0.6 % more parameters
        ({"H": 520}, ["cudaMemcpyDeviceToHost", "MPI_Allreduce", "cudaMemcpyHostToDevice"]),
    ],
)
def test_flags_that_disagree_with_the_measured_bytes(
    report: Path, values: dict[str, int], ranges: list[str]
) -> None:
    run = run_of(report, values=values)
    said = bytes_warnings(run)
    assert len(said) == len(ranges)
    for name, warning in zip(ranges, said, strict=True):
        assert f"r: {name}: the formula gives" in warning
        assert "check D, H, C, B" in warning


def test_given_ranks_scale_the_batch_that_the_copies_tell(tmp_path: Path) -> None:
    """A rank's copies tell its share B/p; without MPI only the user knows p."""
    path = training_report(tmp_path / "r.sqlite", Training(mpi=False), ranks=[0])
    assert run_of(path).identity.values["B"] == 1500
    run = run_of(path, values={"p": 2})
    assert run.identity.values["B"] == 3000
    assert bytes_warnings(run) == []
    assert any("1 of p = 2 ranks are in the report" in w for w in run.warnings)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"B": 3001}, "expected B divisible by p"),
        ({"B": 1}, "expected p of at most B"),
        ({"B": 0}, "whole number from 1"),
        ({"p": 0}, "whole number from 1"),
        ({"p": "2"}, "whole number from 1"),
        ({"H": True}, "whole number from 1"),
        ({"D": 2**63}, "whole number from 1"),
        ({"Q": 4}, "has no symbol 'Q'; it has D, H, C, B, p, b; leave it out"),
    ],
)
def test_impossible_flags(short: Path, values: dict[str, Any], problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        analyzed(short, values=values)


def test_an_unknown_workload_says_which_flags_to_give(tmp_path: Path) -> None:
    path = training_report(tmp_path / "r.sqlite", Training(gpu=False, mpi=False, p=1))
    run = run_of(path)
    flags = "--input-size D --hidden-size H --num-classes C --batch-size B"
    assert any(w.endswith(f"give: {flags} (FLOPs, rates and the roofline are missing until then)")
               for w in run.warnings)  # fmt: skip
    with pytest.raises(WorkloadError, match="--hidden-size H"):
        analyzed(path, values={"D": 784})
    full = run_of(path, values={"D": 784, "H": 512, "C": 10, "B": 3000})
    assert full.identity.source == "the flags"
    assert full.rates["P_flops"] is not None


@pytest.mark.parametrize("build", [training_report])
def test_the_mark_of_a_model_parallel_run_takes_its_formulas(
    tmp_path: Path, build: Callable[..., Path]
) -> None:
    run = run_of(build(tmp_path / "r.sqlite", mark=mark(parallel="model")))
    assert run.workload.name == "MLP, model parallel"


# --- which peak


@pytest.mark.parametrize(
    ("width", "config", "seen", "expected"),
    [
        (4, {}, False, "float32"),
        (4, {}, True, "tf32_tensor"),  # cuBLAS's kernels say so
        (4, {"tf32": False}, False, "float32"),
        (4, {"tf32": True}, False, "tf32_tensor"),  # a kernel of our own, older mark
        (4, {"math": "ieee"}, True, "tf32_tensor"),  # CUPY_TF32=1 behind the trainer's back
        (4, {"math": "ieee"}, False, "float32"),
        (4, {"math": "tf32"}, False, "tf32_tensor"),
        (4, {"math": "tf32x3"}, True, "tf32x3_tensor"),
        (4, {"math": "tf32x3", "tf32_products": 3}, False, "tf32x3_tensor"),
        (4, {"math": "tf32x3", "tf32_products": 2}, False, "tf32x2_tensor"),
        (4, {"math": "tf32x3", "tf32_products": None}, False, "tf32x3_tensor"),
        (4, {"math": "tf32", "tf32_products": 1}, False, "tf32_tensor"),
        (4, {"math": "ieee", "tf32_products": 2}, False, "float32"),
        (4, {"math": ["?"]}, False, "float32"),
        (8, {"math": "tf32"}, True, "float64"),
        (2, {}, False, "float16_tensor"),
    ],
)
def test_the_peak_follows_the_mark_then_the_kernels(
    width: int, config: dict[str, object], seen: bool, expected: str
) -> None:
    assert precision(width, config, seen_tf32=seen) == expected

"""The command line: commands, options, what they print, help."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click
import pytest

from benchmarks.common.folders import BASE, ROOT
from perfmodel.cli import main
from perfmodel.commands.stats import REPORTS
from support.build_training import Training, training_report
from support.cli import fails, leaves, perfmodel, succeeds

EXAMPLE = ROOT / "perfmodel" / "workloads" / "examples" / "pytorch_mlp.toml"


# --- analyze


def test_analyze_says_what_ran_and_where_time_goes(report: Path) -> None:
    text = succeeds("analyze", "--section", "all", report)
    for said in (
        "2 ranks, 2 x NVIDIA H200", "D=784  H=512  C=10  B=3000  p=2  b=4",
        "5 per rank, median 1.000 ms", "1 warm-up step (8.00 ms) excluded",
        "Time per range, median step (5 steps, 2 ranks)", "  forward GEMM 1 ", "P_flops",
        "gpu_projection", "Copies per rank and step", "MPI collectives", "Smooth roof",
        "Findings, ranked by potential saving per step (savings overlap):",
    ):  # fmt: skip
        assert said in text
    assert "\x1b" not in text
    assert max(map(len, text.split("Findings")[0].splitlines())) <= 120 + 40


def test_quiet_prints_nothing_on_success(report: Path, bare: Path, tmp_path: Path) -> None:
    for path in (report, bare):
        result = perfmodel("analyze", path, "-q", "--no-plots", "-o", tmp_path / "out")
        assert (result.exit_code, result.output) == (0, "")
    assert (tmp_path / "out" / "analysis.json").is_file()


def test_json_is_all_there_is_on_standard_output(report: Path, bare: Path) -> None:
    assert json.loads(succeeds("analyze", report, "--json"))["label"] == "r"
    result = perfmodel("analyze", bare, "--json")
    assert json.loads(result.stdout)["rates"]["P_flops"] is None
    assert all(ln.startswith("perfmodel: warning: bare") for ln in result.stderr.splitlines())
    assert len(result.stderr.splitlines()) == 2
    quiet = perfmodel("analyze", bare, "--json", "-q")
    assert quiet.stderr == ""
    assert json.loads(quiet.stdout) == json.loads(result.stdout)


def test_json_equals_the_file(report: Path, tmp_path: Path) -> None:
    text = succeeds("analyze", report, "--json", "--no-plots", "-o", tmp_path)
    assert (tmp_path / "analysis.json").read_text(encoding="utf-8") == text


def test_outputs_are_listed(report: Path, tmp_path: Path) -> None:
    text = succeeds("analyze", report, "--no-plots", "-o", tmp_path / "out")
    listed = text.partition("\nWritten: ")[2].split()
    assert sorted(listed) == sorted(str(p) for p in (tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--counting", "full"], "full counting"),
        (["--warmup", "0"], "6 per rank, median 1.000 ms"),
        (["--warmup", "3"], "3 per rank"),
        (["--attribute", "time"], "Roofline fitted on r"),
        (["--fit", "r"], "Roofline fitted on r"),
        (["--fit", "0"], "Roofline fitted on r"),
        (["--dtype", "float32"], "b=4"),
        (["-D", "784", "-H", "512", "-C", "10", "-B", "3000", "-p", "2"], "(from the flags)"),
        (["--input-size", "784", "--hidden-size", "512"], "D=784  H=512"),
        (["--num-classes", "10", "--batch-size", "3000", "--ranks", "2"], "C=10  B=3000  p=2"),
        (["--set", "B=3000", "--set", "H=512"], "H=512  C=10  B=3000"),
        (["--workload", EXAMPLE, "-B", "3000"], "PyTorch DDP MLP, spec counting"),
        (["--batch-range", "forward", *["-D", "784", "-H", "512", "-C", "10", "-B", "3000"]],
         "median 100.0 µs"),
    ],
    ids=lambda v: " ".join(map(str, v)).replace(str(ROOT), "") if isinstance(v, list) else "",
)  # fmt: skip
def test_options_of_analyze(report: Path, options: Sequence[object], said: str) -> None:
    assert said in succeeds("analyze", "--section", "all", report, *options)


def test_the_contract_s_command(tmp_path: Path) -> None:
    options = "--input-size 784 --hidden-size 512 --num-classes 10 --batch-size 3000 --ranks 2"
    assert succeeds("analyze", BASE, *options.split(), "-o", tmp_path, "--no-plots", "-q") == ""
    assert json.loads((tmp_path / "analysis.json").read_text())["rates"]["P_mpi"]["value"] > 1e9


def test_several_reports_make_a_table_and_a_trend(tmp_path: Path) -> None:
    paths = [
        training_report(tmp_path / f"h{H}.sqlite", Training(H=H, B=600, pace=(1, 1)))
        for H in (64, 128)
    ]
    text = succeeds("analyze", "--section", "all", *paths, "--fit", "h128")
    assert "Runs  D=784  C=10  B=600  p=2  b=4" in text
    assert "H: intensity hardly changes with H" in text
    assert "Details of h128, which fits the roofline:" in text


def test_long_names_of_runs_are_whole_in_the_table(tmp_path: Path) -> None:
    """They are what --fit wants."""
    names = [f"h200x2_p2_host_float32_H512_B{600 * i}_of_the_first_campaign" for i in (1, 2)]
    paths = [
        training_report(tmp_path / f"{name}.sqlite", Training(B=600 * (i + 1), pace=(1, 1)))
        for i, name in enumerate(names)
    ]
    table = succeeds("analyze", "--section", "all", *paths).partition("Details of")[0]
    assert "…" not in table


def test_the_database_is_added_to(report: Path, tmp_path: Path) -> None:
    for _ in range(2):
        succeeds("analyze", report, "-q", "--db", tmp_path / "results.db")
    with closing(sqlite3.connect(tmp_path / "results.db")) as db:
        assert db.execute("SELECT count(*) FROM runs").fetchone() == (1,)


def test_warnings_go_to_standard_error(report: Path) -> None:
    result = perfmodel("analyze", "--section", "all", report, "-H", "256")
    assert "perfmodel: warning: r: H = 256 was given and overrides" in result.stderr
    assert "warning" not in result.stdout


# --- stats


def test_stats_writes_a_csv_a_summary(tmp_path: Path) -> None:
    names = ("mpi_event_sum", "nvtx_gpu_proj_sum", "cuda_gpu_kern_sum")
    options = [option for name in names for option in ("--report", name)]
    assert succeeds("stats", BASE, *options, "--format", "csv", "-o", tmp_path) == ""
    assert {path.stem for path in tmp_path.iterdir()} == set(names)
    for path in tmp_path.iterdir():
        golden = ROOT / "tests" / "golden" / "nsys_stats" / f"{BASE.stem}.{path.name}"
        assert path.read_bytes() == golden.read_bytes()


def test_stats_prints_all_that_the_report_has(report: Path, bare: Path) -> None:
    lines = succeeds("stats", report).splitlines()
    assert [ln for ln in lines if ln in REPORTS] == list(REPORTS)
    result = perfmodel("stats", bare)
    assert result.stderr == ""
    assert [ln for ln in result.stdout.splitlines() if ln in REPORTS] == ["nvtx_pushpop_sum"]


@pytest.mark.parametrize(
    ("fmt", "start"),
    [("text", "cuda_gpu_kern_sum\n"), ("csv", "Time (%),"), ("json", "{"), ("markdown", "**"),
     ("latex", "% needs")],
)  # fmt: skip
def test_formats_of_stats(report: Path, fmt: str, start: str) -> None:
    text = succeeds("stats", report, "--report", "cuda_gpu_kern_sum", "--format", fmt)
    assert text.startswith(start)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    if fmt == "json":
        assert json.loads(text)["rows"]


def test_a_statistic_that_is_missing_among_others_is_a_warning(bare: Path) -> None:
    names = ["--report", "cuda_gpu_kern_sum", "--report", "nvtx_pushpop_sum"]
    result = perfmodel("stats", bare, *names, "--format", "csv")
    assert result.exit_code == 0
    (warning,) = result.stderr.splitlines()
    assert "cuda_gpu_kern_sum expected CUDA kernels; got none; collect them with" in warning
    assert result.stdout.startswith("Time (%)")


# --- formulas


@pytest.mark.slow
def test_formulas(tmp_path: Path) -> None:
    text = succeeds("study", "formulas")
    assert "forward GEMM 1" in text
    assert "2*D*H" in text.replace(" ", "")
    assert r"\begin{align*}" in succeeds("study", "formulas", "--format", "latex")
    full = json.loads(succeeds("study", "formulas", "--format", "json", "--counting", "full"))
    assert full["counting"] == "full"
    assert "model parallel" in succeeds("study", "formulas", "--parallel", "model")
    assert "ncclAllReduce" in succeeds("study", "formulas", "--transport", "nccl")
    assert "MPI_Allreduce" not in succeeds("study", "formulas", "--transport", "none")
    wrong = fails(5, "study", "formulas", "--transport", "peer", "--parallel", "model")
    assert "take 'nccl'" in wrong
    assert "PyTorch" in succeeds(
        "study", "formulas", "--workload", EXAMPLE, "--set", "B=300", "-p", "2"
    )
    values = ["-D", "784", "-H", "512", "-C", "10", "-B", "3000", "-p", "2", "--dtype", "float32"]
    assert len(succeeds("study", "formulas", *values)) > len(text)
    assert "expected a value of D" in fails(5, "study", "formulas", "-B", "3000")


# --- help


@pytest.mark.parametrize("name", ["", *leaves()])
def test_help_lists_every_option_and_says_what_it_does(name: str) -> None:
    text = succeeds(*name.split(), "--help")
    assert text == succeeds(*name.split(), "-h")
    for parameter in {"": main, **leaves()}[name].params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{parameter.name} has no help"
            assert all(option in text for option in parameter.opts)


def test_help_documents_the_exit_codes() -> None:
    text = " ".join(succeeds("--help").split())
    for code in range(7):
        assert f" {code} " in text
    assert "perfmodel, version " in succeeds("--version")

"""Recorded results stay: programs without a GPU, or with fewer runs, write elsewhere or nothing."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import folders, gpus, results
from benchmarks.tta.__main__ import write as write_runs

GPU = "NVIDIA H200, 570.86"
WITHOUT = {
    "vecadd.lab": ("--millions", "1", "--runs", "1", "--profiled", "0"), "gemm": (),
    "gemm.hopper": (), "gemm.steps": ("--time",), "gemm.counters": (),
    "vecadd": ("--part", "time"), "layers": ("--part", "time"), "resnet": ("--part", "time"),
    "memory": (), "utilization": (), "convergence.verify_gpu": (), "cuda_aware": (),
}  # fmt: skip
TORCH = {
    "utilization.resnet": ("--net", "resnet18"), "tta.resnet": ("--name", "h200"),
    "memory.two_gpus": (),
}  # fmt: skip
REPORTS = (
    "vecadd.lab_report", "tta.resnet_report", "utilization.resnet_report", "scaling.ddp_report",
    "memory.two_gpus_report", "cuda_aware.report", "gemm.report", "tta.report", "memory.report",
    "utilization.report", "scaling", "scale", "idle",
)  # fmt: skip


def recorded(rows: int, gpu: str | None = GPU) -> dict[str, Any]:
    """Return results with so many rows."""
    return {"gpu": gpu, "rows": [{"run": number} for number in range(rows)]}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file of five recorded rows of a GPU, in a folder of recorded results."""
    monkeypatch.setattr(folders, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(folders, "BUILD", tmp_path / "build")
    path = tmp_path / "results" / "lab.json"
    assert results.write(path, recorded(5)) == path
    return path


@pytest.mark.parametrize("less", [recorded(4), recorded(9, "CPU"), recorded(9, None)])
def test_recorded_results_stay_where_others_have_less(
    less: dict[str, Any], kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aside = folders.BUILD / "lab.json"
    assert results.write(kept, less) == aside
    assert json.loads(kept.read_text(encoding="utf-8")) == recorded(5)
    assert results.read(kept) == json.loads(aside.read_text(encoding="utf-8")) == less
    assert f"mv {aside} {kept}" in capsys.readouterr().err
    results.write(kept, less)
    assert capsys.readouterr().err == ""


def test_results_replace_recorded_ones_when_they_are_as_many(kept: Path) -> None:
    """Row by row, as a program measures; what it has put aside is no more."""
    for rows in range(1, 6):
        at = results.write(kept, recorded(rows, "NVIDIA H200, 580.1"))
        assert (at == kept) == (rows == 5)
    assert results.read(kept)["gpu"] == "NVIDIA H200, 580.1"
    assert not (folders.BUILD / "lab.json").exists()


def test_parts_that_are_put_aside_are_all_kept(kept: Path) -> None:
    parts = {part: {"rows": [{"gpu": GPU}, {"gpu": GPU}]} for part in ("a", "b")}
    results.write(kept, {**recorded(5), **parts})
    for part in parts:
        results.store(kept, part, {"rows": [{"gpu": "CPU"}]})
    found = results.read(kept)
    assert [found[part]["rows"] for part in parts] == [[{"gpu": "CPU"}]] * 2


def test_another_gpu_does_not_replace_a_recorded_one(kept: Path) -> None:
    assert results.write(kept, recorded(5, "NVIDIA H100 80GB HBM3")) != kept


def test_two_processes_put_results_aside_in_files_of_their_own(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = []
    for rows in (3, 2):
        monkeypatch.setattr(results, "_ASIDE", {})  # as a process begins
        placed.append(results.write(kept, recorded(rows)))
    assert [path.name for path in placed] == ["lab.json", "lab-2.json"]
    found = [json.loads(path.read_text(encoding="utf-8")) for path in placed]
    assert found == [recorded(3), recorded(2)]


def test_fewer_samples_are_less() -> None:
    few, many = ({"rows": [{"samples": number}]} for number in (15, 150))
    assert results.lost(many, few) == "135 more samples"
    assert results.lost(few, many) == ""


def test_files_elsewhere_are_replaced(kept: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "mine.json"
    for rows in (5, 1):
        assert results.write(elsewhere, recorded(rows)) == elsewhere
    assert results.read(elsewhere) == recorded(1)


def test_the_records_of_trainings_stay_too(kept: Path) -> None:
    path = kept.with_name("base.json")
    runs = [{"versions": {"gpu": GPU}, "seed": seed} for seed in range(3)]
    write_runs(path, {"name": "base"}, runs)
    write_runs(path, {"name": "base"}, runs[:1])
    assert len(json.loads(path.read_text(encoding="utf-8"))["runs"]) == 3


def no_gpu() -> bool:
    """Return whether there is none."""
    return gpus.visible()[0] == 0


def ended(module: str, *words: str) -> int | str:
    """Run a benchmark in this process, as its name does; return what it exits with."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
        patch.setattr(sys, "argv", [module, *words])
        with pytest.raises(SystemExit) as ended_by:
            runpy.run_module(f"benchmarks.{module}", run_name="__main__")
    code: int | str = ended_by.value.code or 0
    return code


@pytest.mark.skipif(not no_gpu(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("module", [*WITHOUT, *TORCH])
def test_a_benchmark_without_a_gpu_ends_before_it_writes(module: str, tmp_path: Path) -> None:
    if module in TORCH:
        pytest.importorskip("torch")
    flag = "--output" if module == "convergence.verify_gpu" else "--out"
    out = () if module == "gemm.counters" else (flag, str(tmp_path / "o.json"))
    said = ended(module, *(WITHOUT | TORCH)[module], *out)
    assert isinstance(said, str)
    assert said.startswith("expected ")
    assert "; got none: the CUDA driver" in said
    assert "; run it where `nvidia-smi -L` lists " in said
    assert list(tmp_path.iterdir()) == []


def test_fewer_gpus_than_needed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that lists one GPU: what two are asked of."""

    class Driver:
        def cuInit(self, _: int) -> int:
            return 0

        def cuDeviceGetCount(self, count: Any) -> int:
            count._obj.value = 1
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver())
    gpus.require()
    with pytest.raises(SystemExit, match=r"expected 2 GPUs; got 1: .* lists 2"):
        gpus.require(2)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("vecadd.lab", ("--runs", "0")), ("vecadd.lab", ("--millions", "nan")),
        ("vecadd.lab", ("--millions", "-1")), ("memory.two_gpus", ("--batch", "0")),
        ("memory.two_gpus", ("--images", "none")),
    ],
)  # fmt: skip
def test_numbers_that_measure_nothing_are_refused(
    module: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(module, *words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"argument {words[0]}" in printed.err


@pytest.mark.parametrize(
    ("module", "words", "why"),
    [
        ("tta.resnet", ("--images", "100"), "at least a batch of 128; got 100"),
        ("tta.resnet", ("--batch", "0"), "argument --batch"),
        ("tta.resnet", ("--test-images", "0"), "argument --test-images"),
        ("tta.resnet", ("--epochs", "0"), "argument --epochs"),
        ("tta.resnet", ("--net", "nonsense"), "argument --net"),
        ("tta.resnet", ("--cpu",), "expected --out"),
        ("utilization.resnet", ("--images", "100"), "at least a batch of 128; got 100"),
        ("scaling.ddp_lab", ("--large", "0"), "argument --large"),
    ],
)
def test_trainings_without_a_batch_are_refused(
    module: str, words: tuple[str, ...], why: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip("torch")
    name = ("--name", "x") if module == "tta.resnet" else ()
    out = ("--out", str(tmp_path / "o")) if "ddp" in module else ()
    assert ended(module, *name, *words, *out) == 2
    assert list(tmp_path.iterdir()) == []
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("module", ["tta.resnet", "utilization.resnet", "scaling.ddp_lab"])
def test_without_torch_a_program_says_what_to_install(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "torch" else find(name, *a)
    )
    said = ended(module, "--help")
    assert isinstance(said, str)
    assert said.startswith("expected the module torch; got none; install it: pip")


@pytest.mark.parametrize(("option", "code"), [("--help", 0), ("--nonsense", 2)])
@pytest.mark.parametrize("module", REPORTS)
def test_a_report_shows_help_and_refuses_other_options(
    module: str, option: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = written()
    assert ended(module, option) == code
    assert ("usage:" in capsys.readouterr().out) == (code == 0)
    assert written() == before


def written() -> dict[Path, int]:
    """Return when pages and pictures were written."""
    return {path: path.stat().st_mtime_ns for path in folders.DOCS.rglob("*")}

"""What a new user and a hostile one would try: copies, other machines, thousands of ranks."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.folders import MACHINE, PROFILES, RESULTS, ROOT, unpacked
from perfmodel.analysis.sweeps import doublings
from perfmodel.base.errors import ModelError
from perfmodel.studies.mlp.case import mlp_case
from perfmodel.studies.models.model import Model, load
from perfmodel.studies.models.predict import epoch_s, interval, predict, scale
from perfmodel.studies.render.predict import rate, terms_table
from support.cli import fails, perfmodel, succeeds

LAUNCHES = PROFILES / "launches"
ONE = LAUNCHES / "p2_nccl_device_H128_B3000.sqlite.xz"
NCCL = {"transport": "nccl", "data_on": "device"}
DDP = PROFILES / "ddp"
WORKLOAD = ROOT / "perfmodel" / "workloads" / "examples" / "pytorch_mlp.toml"


@pytest.fixture(scope="module")
def frozen() -> Model:
    return load(RESULTS / "predict_model.json")


@given(st.floats(1e-9, 10), st.floats(0, 1e6), st.floats(0, 1e12))
def test_an_interval_holds_its_time_and_is_finite(s: float, noise: float, variance: float) -> None:
    low, high = interval(s, noise, variance)
    assert 0 <= low <= s <= high < float("inf")


def test_uncertainty_never_narrows_an_interval() -> None:
    found = [interval(1.0, 0.0, (0.1 * step) ** 2) for step in range(400)]
    assert all(a[0] >= b[0] and a[1] <= b[1] for a, b in pairwise(found))


def test_a_gap_s_interval_is_no_nonsense(tmp_path: Path) -> None:
    """Three runs and an empty kernel's time: 27 µs between 17 kernels, not all of NCCL's making."""
    reports = [ONE, LAUNCHES / "p2_nccl_device_H4096_B12000.sqlite.xz",
               LAUNCHES / "p4_nccl_device_H512_B3000.sqlite.xz"]  # fmt: skip
    path = tmp_path / "model.json"
    said = perfmodel("study", "calibrate", *reports, "-o", path, "--machine", MACHINE)
    assert "a report of such a run on one rank or without NCCL would separate them" in said.stderr
    model = load(path)
    sizes = {"D": 784, "H": 1024, "C": 10, "B": 6000, "p": 2, "b": 4}
    told = predict(model, mlp_case(sizes, NCCL))
    gaps = next(phase for phase in told.phases if phase.name == "gaps")
    assert 15e-6 < gaps.low_s < gaps.seconds < gaps.high_s < 50e-6
    rows = {(row[0], row[1]): row for row in terms_table(model).rows}
    factor = rows["large GEMMs [cublas, as alone]", "alone"]
    assert re.fullmatch(r"x 1\.0\d\d", str(factor[2]))
    ramp = rows["all-reduce [NCCL]", "ramp"]
    assert str(ramp[2]).endswith("s/B^0.5")
    host = predict(model, mlp_case({**sizes, "H": 128}, NCCL))
    assert {phase.bound for phase in host.phases} == {"host"}


def test_latencies_and_rates_both_run_from_low_to_high() -> None:
    assert rate("kernels", 2e-6) == "2.00 µs"
    assert rate("bytes", 1e-11) == "100 GB/s"
    assert rate("alone", 1.0) == "x 1.000"


def test_on_thousands_of_ranks_the_side_that_waits_widens_the_interval(frozen: Model) -> None:
    """No run tells NCCL's latency per rank: the host's time is no upper limit of the batch."""
    case = mlp_case({"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 4}, NCCL)
    points = scale(lambda at: predict(frozen, at), case, doublings(2, 4096), "weak")
    highs = [s.prediction.high_s for s in points]
    assert highs[0] == pytest.approx(1.25 * points[0].prediction.batch_s, rel=0.05)
    assert highs == sorted(highs)
    assert highs[-1] > 10 * points[-1].prediction.batch_s
    assert "p" in points[-1].prediction.extrapolated


def test_a_model_of_nothing_is_refused(frozen: Model) -> None:
    terms = {
        key: replace(term, coefficients=np.zeros_like(term.coefficients))
        for key, term in frozen.terms.items()
    }
    case = mlp_case({"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 4}, NCCL)
    with pytest.raises(ModelError, match="predicts 0 s; calibrate anew"):
        predict(replace(frozen, terms=terms), case)


def test_there_is_no_epoch_of_less_than_a_batch(frozen: Model) -> None:
    case = mlp_case({"D": 784, "H": 512, "C": 10, "B": 6000, "p": 2, "b": 4}, NCCL)
    said = predict(frozen, case)
    assert epoch_s(said, 60_000) == pytest.approx(10 * said.batch_s)
    assert epoch_s(said, 5999) is None
    flags = ("--model", RESULTS / "predict_model.json", "-H", 512, "-B", 6000, "-p", 2,
             "--transport", "nccl", "--data-on", "device", "--images", 100)  # fmt: skip
    shown = perfmodel("study", "predict", *flags)
    assert shown.exit_code == 0
    assert "no epoch" in shown.stderr
    assert json.loads(succeeds("study", "predict", *flags, "--json"))["epoch_s"] is None


def test_a_copy_of_a_report_counts_once(tmp_path: Path) -> None:
    copied = tmp_path / "another_name.sqlite.xz"
    copied.write_bytes(ONE.read_bytes())
    path = tmp_path / "model.json"
    said = perfmodel("study", "calibrate", ONE, copied, ONE, ONE, "-o", path)
    assert said.exit_code == 0
    assert "2 of the reports were given before and are left out" in said.stderr
    assert said.stderr.count("it counts once") == 1
    assert len(load(path).runs) == 1
    assert load(path).noise("GPU") == 0.08  # not the nothing that four copies differ by


def without_last_shape(text: str) -> str:
    begin = text.index('name = "forward 1"\ndtype = "float32"')
    end = text.index("[[products]]", begin)
    block = re.sub(r", [^,\]]*\]$", "]", text[begin:end], flags=re.MULTILINE)
    return text[:begin] + block + text[end:]


def of_another_width(text: str) -> str:
    begin = text.index('name = "forward 1"\ndtype = "float32"')
    end = text.index("[[products]]", begin)
    return text[:begin] + text[begin:end].replace("784", "100") + text[end:]


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (without_last_shape, "34 shapes for a grid of 35, of width 784"),
        (of_another_width, "35 shapes for a grid of 35, of width 100"),
        (lambda text: text.replace("NVIDIA H200", "NVIDIA A100"), "those of NVIDIA A100"),
        (lambda text: text.replace('gpus = ["NVIDIA H200"]', "gpus = []"), "those of a CPU"),
        (lambda text: text[:9000], "none that can be read"),
    ],
)
def test_other_microbenchmarks_are_refused(
    damage: Callable[[str], str], found: str, tmp_path: Path
) -> None:
    other = tmp_path / "machine.toml"
    other.write_text(damage(MACHINE.read_text(encoding="utf-8")), encoding="utf-8")
    said = fails(6, "study", "calibrate", ONE, "-o", tmp_path / "m.json", "--machine", other)
    assert found in said
    assert not (tmp_path / "m.json").exists()


def test_a_datasheet_has_no_microbenchmarks(tmp_path: Path) -> None:
    sheet = ROOT / "perfmodel" / "machines" / "devices" / "h200.toml"
    said = fails(6, "study", "calibrate", ONE, "-o", tmp_path / "m.json", "--machine", sheet)
    assert "got a datasheet" in said
    assert "perfmodel machine measure" in said


def test_the_first_format_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    text = (RESULTS / "predict_model.json").read_text(encoding="utf-8")
    old.write_text(text.replace('"version": 4', '"version": 1', 1), encoding="utf-8")
    said = fails(6, "study", "predict", "--model", old, "-H", 512, "-B", 3000, "-p", 2)
    assert "expected version 4; got 1; calibrate anew" in said


def test_a_foreign_program_is_not_taken_for_the_trainer(tmp_path: Path) -> None:
    """PyTorch's DDP sums by NCCL: asking it for --transport nccl would be nonsense."""
    report = DDP / "ddp_p2_H512_B3000.sqlite.xz"
    said = fails(6, "study", "calibrate", report, "-o", tmp_path / "m.json")
    assert "which needs no model: perfmodel predict REPORT" in said
    assert "--workload FILE.toml" in said
    assert "--transport" not in succeeds("whatif", report)


def test_a_model_that_cannot_tell_its_own_run_is_not_written(tmp_path: Path) -> None:
    """A report without kernels has no time of the products."""
    whole = PROFILES / "campaign" / "h200x2_p2_host_float32_H128_B1500.sqlite.xz"
    report, path = unpacked(whole, tmp_path / "bare.sqlite"), tmp_path / "model.json"
    with closing(sqlite3.connect(report)) as database, database:
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    assert "large GEMMs" in fails(6, "study", "calibrate", report, "-o", path)
    assert not path.exists()


def test_a_foreign_model_and_its_workload_belong_together(tmp_path: Path) -> None:
    path, other = tmp_path / "ddp.json", tmp_path / "other.toml"
    reports = [DDP / f"ddp_p2_{s}.sqlite.xz" for s in ("H256_B3000", "H4096_B6000", "H4096_B24000")]
    said = perfmodel("study", "calibrate", *reports, "--workload", WORKLOAD, "--attribute", "time",
                     "-o", path)  # fmt: skip
    assert said.exit_code == 0
    assert "if by the workload's formulas no sizes do, nothing is missing" in said.stderr
    sizes = ("-H", 4096, "-B", 12000, "-p", 2)
    asked = ("study", "predict", "--model", path, "--workload")
    answer = json.loads(succeeds(*asked, WORKLOAD, *sizes, "--json"))
    assert answer["low_s"] < 2255e-6 < answer["high_s"]  # measured
    other.write_text(WORKLOAD.read_text(encoding="utf-8").replace("PyTorch DDP MLP", "Mine"))
    assert "got 'Mine'" in fails(5, *asked, other, *sizes)
    frozen = RESULTS / "predict_model.json"
    assert "the trainer's MLP" in fails(
        5, "study", "predict", "--model", frozen, "--workload", WORKLOAD, *sizes
    )
    assert "say nothing of" in perfmodel(*asked, WORKLOAD, *sizes, "--transport", "nccl").stderr

"""The API for notebooks: what `import perfmodel` offers, data frames with units, pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import perfmodel
from benchmarks.common.folders import BASE, ROOT
from perfmodel.base.errors import PerfmodelError, ReportError, SchemaError, WorkloadError
from perfmodel.commands.stats import REPORTS
from perfmodel.workloads.spec import load
from support import build_kineto
from support.build_training import Training, training_report
from support.once import anew

FRAMES = ("ranges", "rates", "copies", "collectives", "ranks", "points", "runs", "findings")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> perfmodel.Report:
    return perfmodel.read(training_report(tmp_path_factory.mktemp("api") / "r.sqlite"))


@pytest.fixture(scope="module")
def results(report: perfmodel.Report) -> perfmodel.Results:
    return report.analyze()


def test_the_public_names() -> None:
    assert dir(perfmodel) == sorted(perfmodel.__all__)
    for name in perfmodel.__all__:
        assert getattr(perfmodel, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        perfmodel.nosuch  # noqa: B018


def test_no_module_is_called_as_a_public_name() -> None:
    """Importing it would put it in the place of the function."""
    modules = {path.stem for path in (ROOT / "perfmodel").iterdir()} - {"__init__"}
    assert not modules & {*perfmodel.__all__}


def test_a_report_describes_itself(report: perfmodel.Report) -> None:
    assert repr(report) == (
        "<Report r.sqlite: Nsight Systems 2024.2.3.38, 156 ranges, 192 GPU operations, "
        "48 MPI calls>"
    )


def test_statistics_are_frames(report: perfmodel.Report) -> None:
    for name in REPORTS:
        frame = report.stats(name)
        assert isinstance(frame, pd.DataFrame)
        assert len(frame)
    kernels = report.stats("cuda_gpu_kern_sum")
    assert kernels.columns[1] == "Total Time (ns)"
    assert kernels["Instances"].sum() == 2 * 6 * 6
    with pytest.raises(SchemaError, match="expected one of nvtx_gpu_proj_sum"):
        report.stats("nosuch")


def test_analyzing_a_report_a_path_or_a_name(report: perfmodel.Report) -> None:
    path = report.trace.source
    found = [perfmodel.analyze(x).rates for x in (report, path, str(path))]
    for other in found[1:]:
        pd.testing.assert_frame_equal(found[0], other)


def test_frames_have_raw_numbers_and_units_in_their_names(results: perfmodel.Results) -> None:
    for name in FRAMES:
        frame = getattr(results, name)
        assert isinstance(frame, pd.DataFrame), name
        assert len(frame), name
        assert frame.attrs["title"]
    ranges = results.ranges.set_index("range")
    assert ranges.loc["batch iteration", "host_s"] == 1e-3
    assert ranges.loc["forward GEMM 1", "flops"] == 2 * 784 * 512 * 1500
    assert pd.isna(ranges.loc["MPI_Allreduce", "gpu_busy_s"])
    assert results.rates.loc[0, ["name", "unit", "clock"]].tolist() == [
        "P_flops", "FLOP/s", "gpu_projection",
    ]  # fmt: skip
    assert results.points["intensity_flops_per_byte"].tolist() == pytest.approx(
        [374.5, 374.5], abs=0.1
    )
    savings = results.findings["saving_s"].dropna()
    assert savings.is_monotonic_decreasing
    numbers = results.ranges.select_dtypes("number").columns
    assert {"host_s", "gpu_projection_s", "gpu_busy_s", "flops", "pci_bytes"} <= set(numbers)


def test_options_are_those_of_the_command_line(report: perfmodel.Report) -> None:
    full = report.analyze(counting="full", warmup=0, H=512, B=3000)
    assert full.run.workload.counting == "full"
    assert full.run.batch.count == 6
    example = ROOT / "perfmodel" / "workloads" / "examples" / "pytorch_mlp.toml"
    own = report.analyze(workload=load(example), attribute="time", B=3000)
    assert own.run.workload.name == "PyTorch DDP MLP"
    assert any("'optimizer'" in w for w in own.warnings)
    assert report.analyze(batch_range="forward", D=7, H=5, C=3, B=4).run.batch.label == "forward"


@pytest.mark.parametrize(
    ("options", "kind", "problem"),
    [
        ({"attribute": "tiem"}, WorkloadError, "attribute='thread' or 'time'"),
        ({"counting": "twice"}, WorkloadError, "expected one of document, full"),
        ({"warmup": -1}, WorkloadError, "at least 0"),
        ({"warmup": 6}, SchemaError, "no finished step is left"),
        ({"hidden_size": 512}, WorkloadError, "no symbol 'hidden_size'; it has D, H, C, B, p, b"),
        ({"B": 3000.0}, WorkloadError, "whole number"),
        ({"p": "2"}, WorkloadError, "whole number"),
        ({"fit": "x"}, WorkloadError, "name one of the runs r"),
        ({"batch_range": "x"}, SchemaError, "expected ranges called 'x'"),
    ],
)
def test_wrong_options(
    report: perfmodel.Report, options: dict[str, Any], kind: type[PerfmodelError], problem: str
) -> None:
    with pytest.raises(kind, match=problem):
        report.analyze(**options)


def test_numpy_integers_are_integers(report: perfmodel.Report) -> None:
    results = report.analyze(B=np.int64(3000), warmup=np.int64(2))
    document = json.loads(json.dumps(results.to_dict()))
    assert document["workload"]["symbols"]["B"] == 3000
    assert document["batch"]["warmup"] == 2


def test_no_report_and_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="at least one report"):
        perfmodel.analyze()
    with pytest.raises(ReportError, match="check the path"):
        perfmodel.read(tmp_path / "missing.sqlite")


def test_several_reports(tmp_path: Path) -> None:
    paths = [
        training_report(tmp_path / f"h{H}.sqlite", Training(H=H, B=600, pace=(1, 1)))
        for H in (64, 128)
    ]
    results = perfmodel.analyze(*paths, fit="h128")
    assert results.run.label == "h128"
    assert results.runs["run"].tolist() == ["h64", "h128"]
    assert results.runs["H"].tolist() == [64, 128]
    assert results.runs["P_flops_flops_per_s"].iloc[1] == results.rates["value"].iloc[0]
    assert len(results.points) == 4


def test_warnings_are_told_once() -> None:
    results = perfmodel.analyze(BASE, H=600)
    assert len(set(results.warnings)) == len(results.warnings) > 0


def test_pictures_go_where_they_are_wanted(results: perfmodel.Results) -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert results.roofline(ax=left) is left
    assert results.breakdown(ax=right) is right
    assert left.get_xscale() == left.get_yscale() == "log"
    settings = dict(mpl.rcParams)
    alone = results.roofline()
    assert alone.figure is not figure
    assert dict(mpl.rcParams) == settings


def test_saving_and_the_dictionary(results: perfmodel.Results, tmp_path: Path) -> None:
    written = results.save(tmp_path / "out", plots=False)
    assert tmp_path / "out" / "analysis.json" in written
    assert results.to_dict()["schema_version"] == 3
    assert results.append_to(tmp_path / "results.db") == 1
    assert results.append_to(str(tmp_path / "results.db")) == 1


def test_an_analysis_does_not_change_what_was_read(report: perfmodel.Report) -> None:
    before = report.trace.ranges.start_ns.copy(), report.trace.ops.bytes.copy()
    with anew():
        first = report.analyze().to_dict()
        second = report.analyze().to_dict()
    assert first == second
    assert np.array_equal(before[0], report.trace.ranges.start_ns)
    assert np.array_equal(before[1], report.trace.ops.bytes)


class Profiler:
    """Writes a rank's part of a run where torch.profiler would write its own."""

    def __init__(self, run: perfmodel.Report, rank: int, ranks: int) -> None:
        self.document = build_kineto.document(run.trace, rank, rank, ranks)

    def export_chrome_trace(self, path: str) -> None:
        build_kineto.write(Path(path), self.document)


def test_a_trace_is_explained_when_it_is_ready(
    report: perfmodel.Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    perfmodel.on_trace_ready(show=shown.append)(Profiler(report, 0, 1))
    Profiler(report, 0, 1).export_chrome_trace(str(tmp_path / "rank0_0.json"))
    alone = perfmodel.analyze(tmp_path / "rank0_0.json")
    assert len(shown) == 1
    assert shown[0] == str(alone)
    assert f"{alone.run.batch.count} steps" in repr(alone)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (1, 0):  # the first rank is the last to write here
        monkeypatch.setenv("RANK", str(rank))
        perfmodel.on_trace_ready(tmp_path / "traces", show=shown.append)(Profiler(report, rank, 2))
    assert len(shown) == 2
    assert "2 ranks" in shown[1]
    assert {p.name for p in (tmp_path / "traces").iterdir()} == {
        "rank0_0.json.gz", "rank1_0.json.gz",
    }  # fmt: skip


def test_training_goes_on_where_a_trace_cannot_be_explained(tmp_path: Path) -> None:
    class Broken:
        def export_chrome_trace(self, path: str) -> None:
            Path(path).write_text("no trace")

    file = tmp_path / "file"
    file.write_text("")
    for folder in (None, file):
        with pytest.warns(UserWarning, match="the trace is not explained"):
            perfmodel.on_trace_ready(folder)(Broken())


def test_the_summary_and_the_timeline_show_themselves(
    report: perfmodel.Report, tmp_path: Path
) -> None:
    assert repr(report.summary) == str(report.results)
    assert report.summary._repr_html_().startswith("<pre>r · ")
    shown = report.timeline()
    frame = shown._repr_html_()
    assert frame.startswith("<iframe srcdoc=")
    assert 'sandbox="allow-scripts"' in frame
    assert frame.count("<iframe") == frame.count("</iframe>") == 1  # the page inside is escaped
    page = shown.save(tmp_path / "step.html").read_text(encoding="utf-8")
    assert page == shown.html
    assert 'id="timeline-data"' in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")

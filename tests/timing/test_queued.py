"""Reports of runs whose host only queues: what NCCL, kernels between GPUs and graphs show."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfmodel.analysis.result import RangeRow, RunAnalysis
from perfmodel.analysis.rows import comparable, machine_roof
from perfmodel.readers import read
from perfmodel.render import summary, tables
from perfmodel.render.analysis_json import analysis_document
from perfmodel.render.outputs import draw_breakdown, draw_roofline, write
from perfmodel.timing.cuda_graphs import shortened
from perfmodel.timing.run import batch_seconds, time_run
from support.build_queued import LAUNCH_US, NCCL_KERNEL, QueuedTraining, queued_report
from support.build_report import ReportBuilder
from support.build_training import Training, analyzed, shared_report

N_BYTES = 1_628_200
FLOPS = 2_439_168_000
PLAIN = QueuedTraining()
NCCL, PEER, GRAPH = "ncclAllReduce", "peer all-reduce and step", "CUDA graph"


def shared(training: QueuedTraining = PLAIN, name: str = "r") -> Path:
    return shared_report(training, name=name, mark=training.mark, version="2025.3.2")


def run_of(training: QueuedTraining, **options: object) -> RunAnalysis:
    return analyzed(shared(training), **options).fitted


def row(run: RunAnalysis, label: str) -> RangeRow:
    return next(r for r in run.ranges if r.label == label)


def misleading(run: RunAnalysis) -> list[str]:
    """Warnings of what is no fault of the run or the report."""
    bad = ("counts ranges", "cannot be fitted: a range", "check D, H", "no MPI call", "no range (")
    return [w for w in run.warnings if any(b in w for b in bad)]


def titles(run: RunAnalysis) -> list[str]:
    return [f.title for f in run.findings]


# --- batches that the host only queues --------------------------------------------------------


def test_a_batch_is_timed_until_the_gpu_is_done() -> None:
    """10 launches of 3 µs and 4 µs more on the host; kernels of 89 µs one after the other."""
    training = QueuedTraining()
    assert sum(us for _, _, us in training.launches(0)) == 89
    assert len(training.launches(0)) * LAUNCH_US + 4 == 34
    run = run_of(training)
    assert run.batch.median.value == pytest.approx(89e-6)
    assert row(run, "batch iteration").host_s == pytest.approx(89e-6)
    assert row(run, "forward").host_s == pytest.approx(12e-6)
    (said,) = run.warnings
    assert "the host queues a batch in 34.0 µs and does not wait until it is done, which" in said
    assert "which takes 89.0 µs" in said
    (point,) = run.points
    assert point.flops_per_s == pytest.approx(FLOPS / 89e-6)


def test_a_host_that_waits_is_timed_by_itself() -> None:
    run = analyzed(shared_report()).fitted
    assert run.batch.median.value == pytest.approx(1e-3)
    assert not any("queues" in w for w in run.warnings)


def test_successive_batches_do_not_overlap() -> None:
    """They add up to all the time but 1 µs, after the batch that compiled: the host's own."""
    training = QueuedTraining(skew_us=3)
    trace = read(shared(training))
    seconds = batch_seconds(time_run([trace], "batch iteration", label="r"))
    assert seconds.shape == (2, 12)
    spent = 1e-9 * (trace.ops.end_ns.max() - trace.ranges.start_ns.min()) - 1e-6
    assert seconds.sum(axis=1) == pytest.approx(spent)


def test_batches_without_gpu_work_take_what_the_host_takes() -> None:
    trace = read(shared_report(Training(gpu=False)))
    seconds = batch_seconds(time_run([trace], "batch iteration", label="r"))
    assert np.allclose(seconds, [[8e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3]] * 2)


# --- NCCL -------------------------------------------------------------------------------------


def test_nccl_is_timed_on_the_gpu_and_named_for_what_it_is() -> None:
    run = run_of(QueuedTraining(), counting="full")
    assert misleading(run) == []
    rate = run.rates["P_peer"]
    assert rate is not None
    assert (rate.clock, rate.ranges) == ("gpu_projection", (NCCL,))
    assert rate.value == pytest.approx(N_BYTES / 26e-6)
    assert run.rates["P_mpi"] is None
    assert run.rates["P_pci"] is None
    assert (row(run, NCCL).rate, row(run, NCCL).rate_unit) == (rate.value, "B/s")
    assert run.workload.name == "MLP, data parallel, NCCL"
    said = summary.result(analyzed(shared()), "all").render()
    assert "P_mpi" not in said
    assert "P_pci" not in said
    assert "P_peer: from GPU to GPU, over NVLink where there is one" in said
    assert "MPI collectives" not in said


def test_the_roof_has_the_one_link_and_the_model_its_time() -> None:
    """F / P_flops + Q / P_peer: 20 + 4 + 4 + 20 µs of products and 26 µs between the GPUs."""
    run = run_of(QueuedTraining())
    assert run.roofline is not None
    assert dict(run.roofline.shares) == {"peer": 1.0}
    (check,) = run.model
    assert check.predicted_s == pytest.approx((20 + 4 + 4 + 20 + 26) * 1e-6)
    assert check.measured_s == pytest.approx(89e-6)


def test_nccl_waits_inside_its_kernel() -> None:
    """Rank 1 is 4 µs earlier at the all-reduce, and leaves it with rank 0."""
    run = run_of(QueuedTraining(skew_us=4))
    (group,) = run.collectives
    assert (group.name, group.bytes, group.count) == ("NCCL AllReduce", N_BYTES, 1.0)
    assert [r.waiting_s for r in run.ranks] == pytest.approx([0.0, 4e-6])
    assert [r.collectives_s for r in run.ranks] == pytest.approx([26e-6, 30e-6])
    assert group.transfer_s == pytest.approx(26e-6)
    assert group.bus_bytes_per_s == pytest.approx(N_BYTES / 26e-6)
    found = next(f for f in run.findings if f.title == "ranks wait for each other")
    assert found.saving_s == pytest.approx(4e-6)
    assert "keep its GPU busy" in found.evidence
    assert "the GPU waits for the host" not in titles(run)


def test_nccl_beside_products_is_two_kernels_of_unknown_sizes() -> None:
    run = run_of(QueuedTraining(overlap=True))
    assert misleading(run) == []
    assert row(run, NCCL).per_batch == 2
    assert row(run, NCCL).gpu_projection_s == pytest.approx(36e-6)
    (group,) = run.collectives
    assert (group.bytes, group.count) == (None, 2.0)


def test_model_parallel_nccl_lies_in_forward() -> None:
    run = run_of(QueuedTraining(parallel="model"))
    assert misleading(run) == []
    assert row(run, NCCL).path[-2:] == ("forward", NCCL)
    (group,) = run.collectives
    assert group.bytes == 120_000


# --- one kernel between the GPUs ----------------------------------------------------------------


def test_a_kernel_that_reduces_and_steps() -> None:
    run = run_of(QueuedTraining("peer", gemm="fused"), counting="full")
    assert misleading(run) == []
    rate = run.rates["P_peer"]
    assert rate is not None
    assert rate.ranges == (PEER,)
    assert rate.value == pytest.approx(N_BYTES / 12e-6)
    assert [p[0] for p in run.products] == ["forward GEMM 1", "backward GEMM 1", "backward GEMM 3"]
    assert row(run, "forward").flops == pytest.approx(1_208_064_000 + 15_480_000)


@pytest.mark.parametrize(
    ("gemm", "math", "large", "small"),
    [
        ("cublas", "ieee", "float32", "float32"),
        ("cublas", "tf32", "tf32_tensor", "tf32_tensor"),
        ("thin", "tf32", "tf32_tensor", "float32"),
        ("fused", "tf32x3", "tf32x3_tensor", "float32"),
        ("hierarchical", "tf32x3", "tf32x3_tensor", "tf32x3_tensor"),
    ],
)
def test_products_are_held_against_the_peak_of_their_math(
    gemm: str, math: str, large: str, small: str
) -> None:
    run = run_of(QueuedTraining("peer", gemm=gemm, math=math))
    assert run.precision == large
    assert row(run, "forward GEMM 1").ceiling == large
    assert row(run, "backward GEMM 1").ceiling == small
    peak = {"float32": 67e12, "tf32_tensor": 494.7e12, "tf32x3_tensor": 164.9e12}[large]
    share = row(run, "forward GEMM 1").of_ceiling
    assert share == pytest.approx(1_204_224_000 / 20e-6 / peak)


# --- CUDA graphs --------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["nccl", "peer"])
@pytest.mark.parametrize("graph", ["node", "whole"])
def test_a_replay_is_a_batch_and_nothing_else(transport: str, graph: str) -> None:
    training = QueuedTraining(transport, graph=graph)
    run = run_of(training)
    assert misleading(run) == []
    assert (run.batch.warmup, run.batch.count) == (4, 8)  # one runs as it is, three are recorded
    spent = sum(us for _, _, us in training.launches(0)) * 1e-6
    assert run.batch.median.value == pytest.approx(spent)
    (point,) = run.points
    assert point.flops_per_s == pytest.approx(FLOPS / spent)
    assert point.intensity_flops_per_byte == FLOPS / (2 * N_BYTES)
    assert row(run, GRAPH).rate == pytest.approx(FLOPS / spent)
    labels = [r.label for r in run.ranges]
    assert not {"forward", "backward GEMM 3", "step"} & set(labels)
    assert set(run.rates.values()) == {None}
    assert run.roofline is None
    hidden = [w for w in run.warnings if "replays of a CUDA graph" in w]
    assert len(hidden) == 1
    assert ("--cuda-graph-trace=node" in hidden[0]) == (graph == "whole")


def test_kernels_of_a_graph_are_listed_below_it() -> None:
    run = run_of(QueuedTraining(graph="node"))
    at = [r.label for r in run.ranges].index(GRAPH)
    rows = run.ranges[at + 1 :]
    assert [r.path[:-1] for r in rows] == [run.ranges[at].path] * len(rows)
    assert [r.label for r in rows][:2] == ["gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"]
    assert rows[0].gpu_busy_s == pytest.approx(52e-6)
    assert rows[0].per_batch == 5
    assert sum(r.gpu_busy_s or 0 for r in rows) == pytest.approx(row(run, GRAPH).gpu_busy_s)
    assert {r.host_s for r in rows} == {None}
    (group,) = run.collectives
    assert group.transfer_s == pytest.approx(26e-6)


def test_a_graph_traced_as_a_whole_shows_no_kernel_and_no_collective() -> None:
    run = run_of(QueuedTraining(graph="whole"))
    assert run.ranges[-1].label == GRAPH
    assert run.collectives == ()
    assert [r.collectives_s for r in run.ranks] == [None, None]


def test_one_epoch_only_records() -> None:
    run = run_of(QueuedTraining(graph="node", batches=4))
    assert any("profile two epochs or more" in w for w in run.warnings)


@pytest.mark.slow
def test_a_graph_s_point_is_drawn_under_the_roof_of_a_run_without(tmp_path: Path) -> None:
    paths = [
        shared(training, name)
        for name, training in (("graph", QueuedTraining(graph="node")), ("plain", QueuedTraining()))
    ]
    analysis = analyzed(*paths)
    assert analysis.fitted.label == "plain"
    names = {p.name for p in write(analysis, tmp_path / "out")}
    assert {"roofline.png", "breakdown.png"} <= names
    assert {p.group for p in comparable(analysis)} == {"graph", "plain"}


@pytest.mark.slow
def test_a_graph_alone_is_drawn_below_the_machine_s_peaks(tmp_path: Path) -> None:
    """NVLink's 900 GB/s are both directions; so is the document's count, 'full' counts one."""
    path = shared(QueuedTraining(graph="node"), "g")
    for counting, bandwidth in (("document", 900e9), ("full", 450e9)):
        run = analyzed(path, counting=counting).fitted
        assert run.roofline is None
        roof = machine_roof(run)
        assert roof is not None
        assert roof.flops_per_s == 67e12
        assert dict(roof.links_bytes_per_s) == {"peer": bandwidth}
        for point in run.points:
            assert point.flops_per_s < float(roof.smooth(point.intensity_flops_per_byte))
    ax = draw_roofline(analyzed(path))
    assert ax.get_title(loc="left") == "g below NVIDIA H200 SXM: float32, NVLink"
    assert {"breakdown.png", "roofline.png"} <= {
        p.name for p in write(analyzed(path), tmp_path / "alone")
    }
    assert machine_roof(analyzed(shared_report(name="staged")).fitted) is None


# --- tables and JSON ----------------------------------------------------------------------------


def test_a_roof_without_a_run_s_link_is_not_over_its_point() -> None:
    """A roof of PCIe and MPI says nothing of NCCL."""
    staged = shared_report(name="staged")
    direct = shared(name="direct")
    analysis = analyzed(staged, direct)
    table = tables.points(analysis)
    heights = {r[0]: r[4] for r in table.rows}
    assert heights["staged"] is not None
    assert heights["direct"] is None
    assert "the drawn roof is not over its points" in table.notes[0]
    assert len(tables.points(analyzed(staged)).notes) == 1
    sweep = tables.sweep(analysis)
    assert sweep.columns[-1].key == "P_peer_bytes_per_s"
    assert [r[-1] for r in sweep.rows] == [None, pytest.approx(2 * N_BYTES / 26e-6)]


def test_no_picture_shows_a_point_against_a_roof_of_other_links_or_math() -> None:
    paths = [shared_report(name="staged")] + [
        shared(training, name)
        for name, training in (
            ("direct", QueuedTraining()),
            ("tensor", QueuedTraining(gemm="fused", math="tf32x3")),
        )
    ]
    runs = analyzed(*paths)
    for number, (fit, drawn) in enumerate((("staged", 2), ("direct", 1), ("tensor", 1))):
        analysis = replace(runs, fit=number)
        points = comparable(analysis)
        assert {p.group for p in points} == {fit}
        assert len(points) == drawn
        title = draw_roofline(analysis).get_title(loc="left").replace("\n", " ")
        assert title == f"Roofline of {fit}; 2 runs with other links or math left out"
        shown = analysis_document(analysis)["roofline"]["points"]
        heights = {p["group"]: p["roof_flops_per_s"] for p in shown}
        assert [g for g, height in heights.items() if height is not None] == [fit]


def test_two_tf32_products_have_a_ceiling_of_their_own(tmp_path: Path) -> None:
    training = QueuedTraining("peer", gemm="fused", math="tf32x3")
    mark = json.dumps({**json.loads(training.mark), "tf32_products": 2})
    run = analyzed(queued_report(tmp_path / "r.sqlite", training, mark=mark)).fitted
    assert run.precision == "tf32x2_tensor"
    assert row(run, "forward GEMM 1").of_ceiling == pytest.approx(
        row(run, "forward GEMM 1").flops / 20e-6 / (494.7e12 / 2)
    )
    assert row(run, "backward GEMM 1").ceiling == "float32"


def test_rows_say_what_goes_from_gpu_to_gpu_and_how_the_batch_is_timed() -> None:
    found = analysis_document(analyzed(shared()))
    between = {r["path"]: r["peer_bytes"] for r in found["ranges"]}
    assert between["batch iteration/backward/ncclAllReduce"] == 2 * N_BYTES
    assert between["batch iteration"] == between["batch iteration/backward"] == 2 * N_BYTES
    assert between["batch iteration/forward"] == 0
    assert found["batch"]["queued_s"] == pytest.approx(34e-6)
    ax = draw_breakdown(analyzed(shared()))
    legend = ax.get_legend()
    assert legend is not None
    assert legend.get_texts()[0].get_text() == "step: until done; ranges: host, queueing"
    waits = analyzed(shared_report(name="waits"))
    assert analysis_document(waits)["batch"]["queued_s"] is None


def test_keys_of_the_document_stay_and_new_ones_come_beside() -> None:
    old = analysis_document(analyzed(shared_report(name="old")))
    new = analysis_document(analyzed(shared(name="new")))
    assert set(old["rates"]) == {"P_flops", "P_pci", "P_mpi"}
    assert set(new["rates"]) == {"P_flops", "P_pci", "P_mpi", "P_peer"}
    assert new["workload"]["totals"]["peer_bytes"] == 2 * N_BYTES
    assert set(new["roofline"]["rates"]) == {"P_flops", "P_peer"}
    json.dumps(new, allow_nan=False)


def test_a_sparse_mark_is_enough(tmp_path: Path) -> None:
    """An older mark without data_on, gemm, math: images are copied, float32 multiplied."""
    training = replace(QueuedTraining(), transport="none", p=1)
    mark = json.loads(training.mark)
    for key in ("data_on", "gemm", "math", "overlap", "graph"):
        del mark[key]
    report = queued_report(tmp_path / "r.sqlite", training, mark=json.dumps(mark))
    run = analyzed(report, counting="full").fitted
    assert run.precision == "float32"
    assert "copying images host -> device" in run.workload.ranges


def test_nccl_s_own_range_inside_the_trainer_s_is_not_shown_again(tmp_path: Path) -> None:
    """NCCL marks its calls itself, in a domain of its own, under the same name."""
    report = ReportBuilder("2025.3.2")
    thread = report.thread(pid=1)
    for at in range(0, 400_000, 100_000):
        thread.range("batch iteration", at, at + 90_000)
        thread.range("ncclAllReduce", at + 10_000, at + 40_000)
        thread.range("ncclAllReduce", at + 12_000, at + 38_000, domain="NCCL")
        thread.kernel(NCCL_KERNEL, (at + 15_000, at + 18_000), (at + 20_000, at + 60_000))
    run = analyzed(report.write(tmp_path / "r.sqlite")).fitted
    assert [r.path for r in run.ranges] == [("batch iteration",), ("batch iteration", NCCL)]


@pytest.mark.parametrize(
    ("demangled", "short"),
    [
        ("output_layer", "output_layer"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x32_8x4_nt_align1>(T1::Params)",
         "cutlass::Kernel2"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, (bool)0>(P<int>)",
         "internal::gemvx::kernel"),
        ("void (anonymous namespace)::reduce<(int)4>(float *)", "reduce"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4",
         "sm80_xmma_gemm…tn_n_tilesize32x32x8"),
        ("", ""),
    ],
)  # fmt: skip
def test_kernels_are_called_by_their_plain_names(demangled: str, short: str) -> None:
    assert shortened(demangled) == short

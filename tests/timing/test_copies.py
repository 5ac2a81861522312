"""Traffic: copies by direction and memory kind, synchronizations, devices of the ranks."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.trace import BETWEEN_GPUS, Trace
from perfmodel.timing.copies import CopyGroup, devices, group_copies, pinned_rate, synchronizations
from perfmodel.timing.kernels import categorize, communicating, exchange_named
from perfmodel.timing.run import Run, time_run
from support.build_report import ReportBuilder
from support.build_training import Training, analyzed, training_report

BATCH = "batch iteration"


def measured(*paths: Path) -> Run:
    return time_run([read(p) for p in paths], BATCH, label="run")


def copies(run: Run, warmup: int, rank_batches: int) -> tuple[CopyGroup, ...]:
    return group_copies(run.parts, slice(warmup, 1 << 31), rank_batches)


def test_copies_are_grouped_by_direction_and_memory(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    thread.range(BATCH, 0, 1_000_000)
    for i, (kind, size, host) in enumerate(
        [
            ("h2d", 1_000, {"src": "pinned"}),
            ("h2d", 3_000, {"src": "pinned"}),
            ("h2d", 500, {}),
            ("d2h", 4_000, {"dst": "pinned"}),
            ("d2d", 9_000, {}),
            ("p2p", 7_000, {}),
        ]
    ):
        start = 1_000 + 100_000 * i
        thread.memcpy(kind, size, (start, start + 10), (start, start + 1_000 * (i + 1)), **host)
    found = {
        (g.direction, g.memory): g
        for g in copies(measured(report.write(tmp_path / "r.sqlite")), 0, 1)
    }
    pinned = found["Host-to-Device", "pinned"]
    assert (pinned.count, pinned.bytes, pinned.largest_bytes) == (2.0, 4_000.0, 3_000)
    assert pinned.seconds == pytest.approx(3e-6)
    assert pinned.bytes_per_s == pytest.approx(4_000 / 3e-6)
    assert found["Host-to-Device", "pageable"].bytes == 500
    assert found["Device-to-Host", "pinned"].bytes == 4_000
    assert found["Device-to-Device", "device"].bytes == 9_000
    assert found["Peer-to-Peer", "device"].bytes == 7_000
    assert len(found) == 5


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["h2d", "d2h", "d2d"]),
            st.sampled_from(["pageable", "pinned", "managed"]),
            st.integers(0, 10**9),
            st.integers(0, 5_000),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_groups_conserve_bytes_time_and_number(rows: list[tuple[str, str, int, int]]) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    thread.range(BATCH, 0, 10_000_000)
    for i, (kind, memory, size, took) in enumerate(rows):
        start = 10_000 * i + 1
        span = (start, start + took)
        thread.memcpy(kind, size, (start, start + 5), span, src=memory, dst=memory)
    with tempfile.TemporaryDirectory() as folder:
        groups = copies(measured(report.write(Path(folder) / "r.sqlite")), 0, 1)
    assert sum(g.bytes for g in groups) == sum(size for _, _, size, _ in rows)
    assert sum(g.count for g in groups) == len(rows)
    assert sum(g.seconds for g in groups) == pytest.approx(sum(t for *_, t in rows) * 1e-9)
    assert max(g.largest_bytes for g in groups) == max(size for _, _, size, _ in rows)
    assert list(groups) == sorted(groups, key=lambda g: -g.seconds)


def test_copies_of_a_training_are_those_of_a_batch(tmp_path: Path) -> None:
    training = Training(memory="pinned")
    run = measured(training_report(tmp_path / "r.sqlite", training))
    groups = {g.direction: g for g in copies(run, 1, 2 * 5)}
    assert groups["Device-to-Host"].bytes == sum(training.gradients)
    assert groups["Host-to-Device"].bytes == sum(training.gradients) + sum(training.inputs)
    assert groups["Host-to-Device"].count == 6.0
    assert {g.memory for g in groups.values()} == {"pinned"}


def test_copies_outside_batches_and_none_at_all(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    thread.memcpy("h2d", 10, (0, 10), (5, 20))
    thread.range(BATCH, 100, 200)
    assert copies(measured(report.write(tmp_path / "r.sqlite")), 0, 1) == ()


# --- synchronizations and devices


def test_synchronizations_inside_batches_are_counted(tmp_path: Path) -> None:
    report = ReportBuilder()
    for rank in (0, 1):
        thread = report.thread(pid=100 + rank, rank=rank)
        thread.synchronize(0, 50)
        for i in range(2):
            start = 1_000 + 10_000 * i
            thread.range(BATCH, start, start + 9_000)
            thread.synchronize(start + 10, start + 1_010)
            thread.synchronize(start + 2_000, start + 3_000, "cudaStreamSynchronize_v3020")
            thread.api("cudaMalloc_v3020", start + 4_000, start + 4_100)
            thread.kernel("cudaDeviceSynchronize lookalike", (start, start + 5), (start, start + 9))
    run = measured(report.write(tmp_path / "r.sqlite"))
    count, spent, name = synchronizations(run.traces, run.range_times, BATCH, 1)
    assert count == 2.0
    assert spent == pytest.approx(2_000e-9)
    assert name in ("cudaDeviceSynchronize", "cudaStreamSynchronize")  # equally long


def test_the_blocking_call_with_most_time_is_named(tmp_path: Path) -> None:
    """Not the longest one: that is one of 3 µs, beside 20 of 1 µs."""
    report = ReportBuilder()
    thread = report.thread(rank=0)
    thread.range(BATCH, 0, 100_000)
    thread.synchronize(1_000, 4_000, "cudaStreamSynchronize_v3020")
    for i in range(20):
        start = 10_000 + 2_000 * i
        thread.synchronize(start, start + 1_000, "cudaEventSynchronize_v3020")
    thread.kernel("k", (100, 200), (300, 900))
    run = measured(report.write(tmp_path / "r.sqlite"))
    count, spent, name = synchronizations(run.traces, run.range_times, BATCH, 0)
    assert (count, name) == (21.0, "cudaEventSynchronize")
    assert spent == pytest.approx(23e-6)


def test_the_rate_of_pinned_copies_is_recorded_or_the_link_s() -> None:
    def group(memory: str, rate: float, largest: int = 10**6) -> CopyGroup:
        return CopyGroup("Host-to-Device", memory, 1.0, 1e6, 1e6 / rate, rate, largest)

    recorded = [group("pageable", 60e9), group("pinned", 20e9), group("pinned", 90e9, 100)]
    assert pinned_rate(recorded, 32e9) == (20e9, True)
    assert pinned_rate(recorded[:1], 32e9) == (0.8 * 32e9, False)
    assert pinned_rate(recorded[2:], None) is None


def test_no_batch_after_the_warm_up_has_no_synchronization(tmp_path: Path) -> None:
    run = measured(training_report(tmp_path / "r.sqlite", Training(pace=(1,))))
    assert synchronizations(run.traces, run.range_times, BATCH, 5) == (0.0, 0.0, "")


def on_device_zero(path: Path, version: str, ordinals: dict[int, int]) -> Trace:
    """Two ranks that both see their GPU as device 0; `ordinals` says which GPU that is."""
    report = ReportBuilder(version)
    for rank in ordinals:
        thread = report.thread(pid=100 + rank, rank=rank)
        thread.range(BATCH, 0, 1_000)
        thread.kernel("k", (10, 20), (30, 40), device=0)
    if "TARGET_INFO_CUDA_DEVICE" in report.tables:
        summaries = report._summaries
        rows = [{"gpuId": g, "cudaId": 0, "pid": 100 + r} for r, g in ordinals.items()]
        report._summaries = lambda: summaries() | {"TARGET_INFO_CUDA_DEVICE": rows}  # type: ignore[method-assign]
    return read(report.write(path))


def test_cuda_visible_devices_is_seen_through(tmp_path: Path) -> None:
    trace = on_device_zero(tmp_path / "r.sqlite", "2025.3.2", {0: 0, 1: 1})
    assert devices(trace) == {0: 0, 1: 1}
    shared = on_device_zero(tmp_path / "s.sqlite", "2025.3.2", {0: 3, 1: 3})
    assert devices(shared) == {0: 3, 1: 3}


@pytest.mark.parametrize(("version", "gpus", "certain"), [
    ("2025.3.2", 2, True), ("2024.2.3", 1, True), ("2024.2.3", 2, False),
])  # fmt: skip
def test_ranks_share_a_gpu_only_where_the_report_can_tell(
    tmp_path: Path, version: str, gpus: int, certain: bool
) -> None:
    """Before 2025, device 0 of two ranks is one GPU, or one each by CUDA_VISIBLE_DEVICES."""
    report = ReportBuilder(version)
    for gpu in range(gpus):
        report.gpu(gpu)
    for rank in (0, 1):
        Training().run(report.thread(pid=1000 + rank, rank=rank), device=0)
    run = analyzed(report.write(tmp_path / "r.sqlite")).fitted
    shared = any("share GPU 0" in f.title for f in run.findings)
    staged = any("through the host" in f.title for f in run.findings)
    said = any("0, 1 each ran on their device 0" in w for w in run.warnings)
    assert (shared, staged, said) == (certain, not certain, not certain)


def test_without_a_device_table_the_ordinal_stands(tmp_path: Path) -> None:
    trace = on_device_zero(tmp_path / "r.sqlite", "2023.4.4", {0: 0, 1: 1})
    assert devices(trace) == {0: 0, 1: 0}


def test_a_rank_is_on_the_device_it_uses_most(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for i, device in enumerate((1, 7, 7, 2**31 - 1)):
        thread.kernel("k", (10 * i, 10 * i + 5), (10 * i, 10 * i + 5), device=device)
    assert devices(read(report.write(tmp_path / "r.sqlite"))) == {0: 7}


def test_copies_between_gpus_are_exchanges_with_their_size(tmp_path: Path) -> None:
    """Also an all-to-all by copies: communication where operations have a category, no copies."""
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for step in range(5):
        begin = 1_000_000 * step
        thread.range("step", begin, begin + 900_000)
        for i, (kind, size) in enumerate([("p2p", 7_000), ("h2d", 100)]):
            start = begin + 1_000 + 100_000 * i
            thread.memcpy(kind, size, (start, start + 10), (start + 100, start + 50_100))
    path = report.write(tmp_path / "r.sqlite")
    trace = read(path)
    code, names = categorize(trace.ops, trace.strings)
    peers = trace.ops.copy_kind == BETWEEN_GPUS
    assert {names[c] for c in code[peers].tolist()} == {"communication"}
    assert {names[c] for c in code[~peers].tolist()} == {"copy"}
    assert communicating(trace).tolist() == peers.tolist()
    assert exchange_named(trace, -1) == "CUDA peer copy"
    result = analyze_reports([path], Options()).fitted
    (lane,) = result.ranks
    assert lane.communication_s == pytest.approx(50e-6)
    assert lane.copies_s == pytest.approx(50e-6)
    (exchange,) = result.collectives
    assert (exchange.name, exchange.bytes) == ("CUDA peer copy", 7_000)

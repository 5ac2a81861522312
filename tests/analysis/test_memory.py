"""Memory: pools by hand, theory's numbers, allocations read and followed, the fit, the command."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.folders import PROFILES
from benchmarks.memory.__main__ import fit_memory, held_out
from perfmodel.analysis.memory import answer, timelines
from perfmodel.base.document import plain
from perfmodel.base.errors import ModelError, SchemaError
from perfmodel.programs.mlp.memory import (
    Allocation,
    allocations,
    device_block,
    footprint,
    pinned_block,
    training,
)
from perfmodel.readers import read
from perfmodel.readers.gpu import read_memory
from perfmodel.render.memory import document
from support.build_report import ReportBuilder
from support.build_thread import MEMORY, Thread
from support.build_training import Training, training_report
from support.cli import fails, perfmodel, succeeds

SIZES = ("-D", 784, "-H", 512, "-C", 10, "-B", 3000)


# --- allocators


@pytest.mark.parametrize(
    ("size", "device", "pinned"),
    [(1, 512, 512), (512, 512, 512), (513, 1024, 1024), (1025, 1536, 2048),
     (1_628_200, 1_628_672, 2_097_152), (188_160_000, 188_160_000, 268_435_456)],
)  # fmt: skip
def test_blocks(size: int, device: int, pinned: int) -> None:
    assert (device_block(size), pinned_block(size)) == (device, pinned)
    assert pinned_block(0) == 0


def block(size: int, *, stays: bool = True) -> Allocation:
    return Allocation("", "activations", "device", size, "", stays=stays)


def test_the_smallest_free_block_that_fits_is_split() -> None:
    given_back = [block(size, stays=False) for size in (8192, 2048, 4096)]
    found = footprint((*given_back, block(1000), block(1024), block(2000)))
    # all others are cut off the first one
    assert found.reserved_bytes == 8192
    assert found.peak_bytes == 8192
    assert found.held_bytes["device"] == 4096
    assert footprint((block(512, stays=False), block(513))).reserved_bytes == 512 + 1024


# --- theory


def case(images: int = 60_000, tests: int = 10_000, parallel: str = "data", **sizes: int) -> Any:
    usual = {"D": 784, "H": 512, "C": 10, "B": 3000}
    return training(usual | sizes, {"parallel": parallel}, images=images, test_images=tests)


def test_the_document_s_run_by_hand() -> None:
    """D=784, H=512, C=10, B=3000, p=2, b=4: n b = 1,628,200, and 4 x 20 batches x 1500 losses."""
    listed = {a.name: a for a in allocations(case(p=2))}
    assert listed["W1, b1, W2, b2"].bytes == listed["their gradients"].bytes == 1_628_200
    assert listed["images"].bytes == 4 * 784 * 1500 == 4_704_000
    assert listed["a1, d1"].bytes == 6_144_000
    assert listed["losses of an epoch"].bytes == 4 * 20 * 1500
    assert listed["none"].bytes == 0


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_parameters_shrink_only_with_the_model(ranks: int) -> None:
    def held(parallel: str) -> int:
        listed = allocations(case(p=ranks, parallel=parallel))
        return next(a.bytes or 0 for a in listed if a.use == "gradients")

    assert held("data") == 4 * 407_050
    assert held("model") == 4 * (512 // ranks * 795 + 10)


@given(st.integers(4, 4000), st.integers(1, 4096), st.integers(1, 4), st.sampled_from((4, 8)))
def test_sums_agree(batch: int, hidden: int, ranks: int, width: int) -> None:
    listed = allocations(case(8000, 1000, H=hidden, B=batch, p=ranks, b=width))
    found = footprint(listed)
    stays = [a for a in listed if a.stays and a.pooled and a.memory == "device"]
    assert found.apart_bytes == sum(a.bytes or 0 for a in listed if not a.pooled) == 67_240_960
    assert found.asked_bytes["device"] == sum(a.bytes or 0 for a in stays)
    assert 0 <= found.rounding_bytes < 512 * sum(a.count for a in stays)
    assert found.held_bytes["device"] <= found.peak_bytes <= found.reserved_bytes


# --- the table


def event(
    report: ReportBuilder, thread: Thread, at: int, size: int, address: int, *,
    frees: bool = False, kind: str = "device", **columns: int,
) -> None:  # fmt: skip
    row = {
        "start": at, "globalPid": thread.global_pid, "deviceId": 0, "address": address,
        "bytes": size, "memKind": MEMORY.index(kind), "memoryOperationType": int(frees),
    }  # fmt: skip
    report.insert("CUDA_GPU_MEMORY_USAGE_EVENTS", **row | columns)


def memory_report(path: Path, *, mark: bool = True, ranks: int = 2) -> Path:
    """Two ranks that allocate W and work, free work, and pin a buffer."""
    report = ReportBuilder("2025.3.2")
    report.gpu(0)
    config = {
        "perfmodel_config": 1, "input_size": 784, "hidden_size": 512, "num_classes": 10,
        "batch_size": 3000, "ranks": ranks, "dtype": "float32", "transport": "pinned",
        "data_on": "prefetch", "train_size": 24_000, "test_size": 5_000, "backend": "cupy",
    }  # fmt: skip
    for rank in range(ranks):
        thread = report.thread(pid=1000 + rank, rank=rank)
        if mark:
            thread.mark(json.dumps(config), 400)
        thread.range("set-up", 500, 2_000)
        event(report, thread, 1_000, 1_628_672, 0x1000)
        event(report, thread, 1_500, 6_000_000 + rank, 0x2000)
        event(report, thread, 1_600, 2_097_152, 0x9000, kind="pinned")
        event(report, thread, 2_500, 6_000_000 + rank, 0x2000, frees=True)
        event(report, thread, 2_600, 512, 0x2000)
        event(report, thread, 2_700, 777, 0x7777, frees=True)  # from before the recording
        event(report, thread, 2_800, 4096, 0x8000, kind="managed")
    return report.write(path)


def test_live_bytes_are_followed_by_address(tmp_path: Path) -> None:
    path = memory_report(tmp_path / "m.sqlite")
    events = read_memory(path)
    assert events is not None
    found = timelines(events, read(path))
    assert [(t.rank, t.kind) for t in found[:3]] == [(1, "device"), (0, "device"), (0, "pinned")]
    device = found[1]
    assert device.live_bytes.tolist() == [1_628_672, 7_628_672, 1_628_672, 1_629_184, 1_629_184]
    assert (device.peak_bytes, device.peak_ns, device.where) == (7_628_672, 1_500, "set-up")
    assert (device.allocations, device.releases, device.left_bytes) == (3, 2, 1_629_184)
    assert device.blocks.tolist() == [6_000_000, 1_628_672]


def test_a_report_without_the_table_has_no_memory(report: Path) -> None:
    assert read_memory(report) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE CUDA_GPU_MEMORY_USAGE_EVENTS SET bytes = -1", "negative sizes"),
        ("UPDATE CUDA_GPU_MEMORY_USAGE_EVENTS SET memoryOperationType = 9", "got 9"),
        ("ALTER TABLE CUDA_GPU_MEMORY_USAGE_EVENTS DROP COLUMN address", "no column address"),
    ],
)
def test_odd_tables_are_refused(tmp_path: Path, change: str, said: str) -> None:
    path = memory_report(tmp_path / "m.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute(change)
        db.commit()
    with pytest.raises(SchemaError, match=said):
        read_memory(path)


def test_unknown_kinds_are_called_so(tmp_path: Path) -> None:
    path = memory_report(tmp_path / "m.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE CUDA_GPU_MEMORY_USAGE_EVENTS SET memKind = 99 WHERE memKind = 4")
        db.commit()
    events = read_memory(path)
    assert events is not None
    assert {t.kind for t in timelines(events, read(path))} == {"device", "pinned", "unknown"}


# --- the model


def test_a_line_is_found_with_its_interval() -> None:
    """By hand: y = 100 + 10 x + (1, -1, -1, 1) / 2 at x = 1..4: slope 10, s = 1 / sqrt(2)."""
    model = fit_memory([1, 2, 3, 4], [110.5, 119.5, 129.5, 140.5])
    assert (model.constant_bytes, model.slope_bytes) == pytest.approx((100, 10))
    assert model.residual_bytes == pytest.approx(0.5**0.5)
    assert model.slope_half == pytest.approx(4.302653 * (0.5 / 5) ** 0.5, rel=1e-5)
    assert model.constant_half == pytest.approx(4.302653 * (0.5 * 1.5) ** 0.5, rel=1e-5)


def test_sizes_that_were_not_fitted_are_predicted() -> None:
    model = fit_memory([1, 2, 4, 8], [1e6 + 5e5 * x for x in (1, 2, 4, 8)])
    (found,) = held_out(model, [16], [9.9e6])
    assert found["predicted_bytes"] == pytest.approx(9e6)
    assert found["relative_error"] == pytest.approx(9 / 9.9 - 1)
    assert not found["covered"]


@pytest.mark.parametrize(("x", "y"), [([1, 2], [1, 2]), ([3, 3, 3], [1, 2, 3])])
def test_too_little_cannot_be_fitted(x: list[float], y: list[float]) -> None:
    with pytest.raises(ModelError, match="measure more sizes"):
        fit_memory(x, y)


# --- the command


def test_theory_alone() -> None:
    text = succeeds("memory", *SIZES, "-p", 2)
    assert "b D B'" in text
    assert "1.63 MB" in text
    assert "Measured" not in text


def test_theory_and_measurement_together(tmp_path: Path) -> None:
    path = memory_report(tmp_path / "m.sqlite")
    found = json.loads(succeeds("memory", path, "--json"))
    assert found["case"]["data_on"] == "prefetch"
    assert (found["case"]["images"], found["case"]["test_images"]) == (24_000, 5_000)
    seen = {a["name"]: a["seen"] for a in found["theory"]}
    assert seen["W1, b1, W2, b2"] == "yes"  # one block of n b was live at the peak,
    assert seen["their gradients"] == "no"  # not two
    assert found["peaks_by_memory_bytes"] == {
        "device": 2 * 7_628_672 + 1, "pinned": 2 * 2_097_152, "managed": 2 * 4096,
    }  # fmt: skip
    text = succeeds("memory", path)
    assert "Peaks of all processes by memory" in text
    assert "NVIDIA H200" in text


def test_a_picture_is_written(tmp_path: Path) -> None:
    path = memory_report(tmp_path / "m.sqlite")
    succeeds("memory", path, "-o", tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    assert "FILE.png" in perfmodel("memory", path, "-o", tmp_path / "memory.gif").stderr


def test_a_report_without_memory_says_how_to_collect_it(report: Path) -> None:
    result = perfmodel("memory", report)
    assert result.exit_code == 0
    assert "--cuda-memory-usage=true" in result.stderr
    assert "Theory" in result.stdout


def test_without_sizes_and_memory_there_is_no_answer(bare: Path) -> None:
    assert "--hidden-size" in fails(5, "memory", bare)


def test_a_foreign_report_shows_what_it_measured(tmp_path: Path) -> None:
    path = memory_report(tmp_path / "m.sqlite", mark=False)
    result = perfmodel("memory", path)
    assert result.exit_code == 0
    assert "Measured" in result.stdout
    assert "Theory, rank" not in result.stdout


def test_a_run_of_numpy_is_refused(tmp_path: Path) -> None:
    mark = '{"perfmodel_config":1,"backend":"numpy","input_size":784,"hidden_size":512,' \
        '"num_classes":10,"batch_size":3000,"ranks":2,"dtype":"float32"}'  # fmt: skip
    path = training_report(tmp_path / "n.sqlite", Training(gpu=False), mark=mark)
    assert "--backend cupy" in fails(5, "memory", path)


# --- real reports (profiles/README.md)

REAL = PROFILES / "memory"


@pytest.mark.parametrize(
    ("name", "device", "pinned", "found_blocks"),
    [("document", 137_122_304, 2_103_296, 13), ("prefetch", 146_650_624, 139_502_080, 19)],
)
def test_a_real_report_agrees_with_theory_to_the_byte(
    name: str, device: int, pinned: int, found_blocks: int
) -> None:
    found = answer(REAL / f"{name}.sqlite.xz", {}, {}, images=1, test_images=1)
    peaks = {t.kind: t.peak_bytes for t in found.measured or ()}
    assert (peaks["device"], peaks["pinned"]) == (device, pinned)
    assert found.theory_bytes("device") == device
    assert found.theory_bytes("pinned") == pytest.approx(pinned, abs=6144)  # buffers for results
    rows = plain(document(found))["theory"]
    assert {r["name"] for r in rows if r["seen"] == "no"} == {"z2", "ones"}
    assert sum(r["seen"] == "yes" for r in rows) == found_blocks


def test_the_index_names_the_reports() -> None:
    for row in json.loads((REAL / "index.json").read_text()):
        found = hashlib.sha256((REAL / row["file"]).read_bytes()).hexdigest()
        assert found == row["sha256"], row["file"]
        assert "--cuda-memory-usage=true" in row["command"]


@pytest.mark.parametrize("flag", ["--data-on", "--transport", "--gemm", "--math", "--parallel"])
def test_a_setting_that_the_trainer_does_not_have_is_refused(flag):
    sizes = ("-D", 784, "-H", 512, "-C", 10, "-B", 3000)
    refused = perfmodel("memory", *sizes, flag, "Device")
    assert refused.exit_code == 2
    assert f"Invalid value for '{flag}': 'Device' is not one of" in refused.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [(("-B", 3), "p=9, B=3"), (("-B", 9, "--parallel", "model"), "H=4")],
)
def test_ranks_without_work_are_refused(flags, said):
    found = fails(5, "memory", "-D", 784, "-H", 4, "-C", 10, "-p", 9, *flags)
    assert said in found

"""What notebooks are written with: views of a report, frames, models, and their pictures."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from studies import cme213
from writeup import (
    calibrated_model,
    errors,
    rates_table,
    records,
    series,
    shipped,
    three_rate_model,
    trained,
    verified,
    work_table,
)
from writeup.frames import draw_lines
from writeup.parity import Pair, pairs_of, parity
from writeup.profile import (
    TRANSFERS,
    Profile,
    batch_parts,
    clause,
    described,
    least_times,
    percent,
    projections,
    ratio,
    read_profile,
    total,
)

import perfmodel
from perfmodel.base.errors import ModelError, PerfmodelError
from perfmodel.programs.mlp.mlp import mlp
from perfmodel.render.plot import panels
from perfmodel.render.plot.bars import Dot, dots, stacks
from perfmodel.render.plot.lines import Series, lines
from perfmodel.render.plot.style import Measure

SYNC = "profiles/campaign/h200x2_p2_host_float32_H512_B3000_sync.sqlite.xz"


# --- the numbers of the CME 213 assignment


def test_the_throughputs_of_the_assignment_follow_from_its_medians() -> None:
    """Question 2.4, as printed to five and more digits, from Figure 11."""
    printed, found = cme213.study().rates, cme213.rates()
    assert found == pytest.approx(printed, rel=5e-5)


def test_the_ridge_of_the_assignment() -> None:
    """P_flops (1/P_pci + 1/P_mpi) / 2 = 1.6327e12 (1/1.272e10 + 1/7.9502e9) / 2."""
    assert cme213.roofline().ridge_flops_per_byte == pytest.approx(166.86, rel=1e-4)


def test_parts_of_a_batch_add_up() -> None:
    parts = batch_parts(cme213.study().host_s)
    assert sum(parts.values()) == pytest.approx(4.958e-3, rel=1e-12)
    assert parts["backward, GEMMs"] == pytest.approx(1.464611e-3, rel=1e-6)  # 2156 - 691.389 µs
    assert min(parts.values()) >= 0
    few = batch_parts({"batch iteration": 3.0, "forward": 1.0, "step": float("nan")})
    assert few == {"forward": 1.0, "between ranges": 2.0}


# --- views of a report


@pytest.fixture(scope="module")
def profile() -> Profile:
    return read_profile(shipped(SYNC))


def test_the_passes_lie_in_their_batch(profile: Profile) -> None:
    batch, passes = profile.batch(), profile.passes(ranks=[0])
    assert passes is not None
    assert passes.batch == batch.batch
    assert batch.start_ns < passes.start_ns < passes.end_ns < batch.end_ns
    assert {lane.rank for lane in passes.lanes} == {0}
    assert {lane.rank for lane in batch.lanes} == {0, 1}
    assert 0 < passes.bars < batch.bars
    assert passes.since == "the start of forward"


def test_training_lies_in_the_report(profile: Profile) -> None:
    whole, train = profile.whole(), profile.range("GPU parallel train", ranks=[1])
    assert train is not None
    assert whole.start_ns < train.start_ns < train.end_ns < whole.end_ns
    assert train.seconds == pytest.approx(0.2654, rel=0.01)  # nsys stats: 265,427,749 ns
    assert all(bar.own for lane in train.lanes for bar in lane.bars)
    assert all(b.end_ns > train.start_ns for lane in train.lanes for b in lane.bars)
    assert whole.longest_s("MPI_Init_thread") == pytest.approx(0.249, rel=0.1)
    assert whole.longest_s("no such call") is None
    ticks = train.draw(panels("double", 3.0)[0])
    assert ticks.get_xlabel() == (
        "Time since the start of GPU parallel train (ms); partly filled columns: share of the time"
    )


def test_a_range_that_a_report_does_not_have_is_none(profile: Profile) -> None:
    assert profile.passes(("sideward",)) is None
    assert profile.range("sideward") is None
    graph = read_profile(shipped("profiles/ladder/graph_1.sqlite.xz"))
    assert graph.passes() is None  # a CUDA graph has no ranges
    assert graph.batch().bars > 0


def test_a_report_is_described_by_what_it_has() -> None:
    results = perfmodel.analyze(shipped(SYNC))
    machine = "2 ranks on NVIDIA H200 SXM, D = 784, H = 512, C = 10, B = 3000, float32"
    assert described(results) == machine
    found = least_times(results)
    assert found["GEMMs"] == pytest.approx(2_439_168_000 / 67e12, rel=1e-3)
    assert sum(found.values()) == pytest.approx(162e-6, rel=0.01)
    cpu = perfmodel.read(shipped("tests/reports/cpu_2ranks_nsys2024.2.3.sqlite"))
    assert described(cpu.analyze()).startswith("2 ranks")
    assert least_times(cpu.analyze()) == {}
    assert projections(cpu) is None


def test_missing_numbers_leave_no_words() -> None:
    host_s = {"MPI_Allreduce": 2.0, "cudaMemcpyDeviceToHost": float("nan"), "step": 1.0}
    assert total(host_s, TRANSFERS) == 2.0
    assert total(host_s, ["forward"]) is None
    assert ratio(None, 2.0) is ratio(1.0, None) is ratio(1.0, 0.0) is percent(None) is None
    assert clause("{} of {}", percent(ratio(1.0, 4.0)), "it") == "25 % of it"
    assert clause("{} of {}", None, "it") == ""


# --- frames


def test_records_of_several_files_are_one_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyproject.toml", "profiles", "perfmodel"):
        (tmp_path / name).mkdir()
    (tmp_path / "b.csv").write_text("epoch,loss\n1,0.5\n")
    (tmp_path / "a.csv").write_text("epoch,loss\n1,0.75\n2,0.25\n")
    monkeypatch.chdir(tmp_path)
    found = records("*.csv")
    assert found["loss"].tolist() == [0.75, 0.25, 0.5]
    assert found["file"].tolist() == ["a", "a", "b"]
    with pytest.raises(PerfmodelError, match=r"benchmarks\.convergence"):
        records("c*.csv")


def test_lines_of_a_frame() -> None:
    frame = pd.DataFrame({"x": [2, 1, 1], "y": [4.0, 3.0, 5.0], "rate": [0.1, 0.1, 0.2]})
    found = series(frame, "x", "y", "rate", "rate {}")
    assert found == {"rate 0.1": Series([1, 2], [3.0, 4.0]), "rate 0.2": Series([1], [5.0])}
    with pytest.raises(ModelError, match="several at 1"):
        series(frame.assign(rate=1), "x", "y", "rate")


def test_columns_are_drawn_on_their_axes() -> None:
    rows = {"epoch": [1, 2, 1, 2], "loss": [2.0, 1.0, 3.0, 2.0], "rate": [0.1, 0.1, 0.2, 0.2]}
    (ax,) = panels("single")
    draw_lines(pd.DataFrame(rows), "epoch", "loss", "rate", ax, linear=True)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Epoch", "Loss")
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "log")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["0.1", "0.2"]


def test_what_was_verified_on_gpus_is_read() -> None:
    found = verified()
    assert found["passed"].all()
    assert set(found["dtype"]) == {"float32", "float64"}
    assert (found["error"] <= found["bound"]).all()
    assert (trained()["accuracy_test"] > 0.97).all()


# --- models


def test_the_three_rates_of_the_fitted_run_are_its_own() -> None:
    results = perfmodel.analyze(
        shipped("profiles/h200x2_2ranks_base_nsys2025.3.1.sqlite"),
        shipped("profiles/h200x2_2ranks_h2048_nsys2025.3.1.sqlite.xz"),
    )
    found = three_rate_model(results).set_index("H")
    assert found["three_rates_s"][512] == pytest.approx(816.8e-6, rel=1e-4)  # the README's table
    assert found["three_rates_s"][512] == found["own_s"][512]
    assert found["three_rates_s"][2048] == pytest.approx(4 * found["three_rates_s"][512], rel=1e-3)
    assert found["batch_s"][512] == pytest.approx(2.441e-3, rel=1e-3)
    assert (found["phases_s"] < found["batch_s"]).all()


def test_a_calibrated_model_says_what_it_has_not_seen() -> None:
    sizes = ((128, 1500), (512, 12000), (2048, 12000), (1024, 3000), (512, 3000))
    names = [f"h200x2_p2_host_float32_H{h}_B{b}" for h, b in sizes]
    paths = [shipped(f"profiles/campaign/{name}.sqlite.xz") for name in names]
    _, found = calibrated_model(paths, names[:-1])
    assert found["unseen"].tolist() == [False] * 4 + [True]
    assert (
        (found["low_s"] < found["calibrated_s"]) & (found["calibrated_s"] < found["high_s"])
    ).all()
    with pytest.raises(ModelError, match="'elsewhere'"):
        calibrated_model(paths, ["elsewhere"])


def test_errors_are_relative_to_what_was_measured() -> None:
    frame = pd.DataFrame({"model": [1.1, 0.8, 2.0], "run": [1.0, 1.0, 2.0]})
    found = errors(frame, "model", "run")
    assert found == pytest.approx(
        {"mean": -0.1 / 3, "mean_abs": 0.1, "median_abs": 0.1, "largest": 0.2}
    )
    with pytest.raises(ModelError, match="got none"):
        errors(frame[:0], "model", "run")


def test_work_is_counted_both_ways() -> None:
    found = work_table({"assignment": mlp("document"), "full": mlp("full")}, cme213.study().sizes)
    assert found.xs("assignment", level="counting")["flops"].sum() == 2_439_168_000
    assert found.loc[("full", "copying images host -> device"), "pci_bytes"] == 4_764_000


def test_rates_stand_beside_printed_ones() -> None:
    results = perfmodel.analyze(shipped("profiles/h200x2_2ranks_base_nsys2025.3.1.sqlite"))
    printed = cme213.study().rates
    found = rates_table(results, printed=printed, recomputed=cme213.rates())
    assert found["measured"].tolist() == pytest.approx([22.46e12, 10.27e9, 8.325e9], rel=1e-3)
    assert (found["low"] < found["measured"]).all()
    assert found["ratio"]["P_pci"] == pytest.approx(10.27 / 12.72, rel=1e-3)
    alone = perfmodel.analyze(shipped("profiles/memory/document.sqlite.xz"))
    with pytest.raises(ModelError, match="several ranks"):
        rates_table(alone, printed=printed, recomputed=printed)


# --- pictures


def test_lines_differ_in_grey() -> None:
    four = {f"line {i}": Series([1, 2], [1.0 + i, 2.0 + i]) for i in range(4)}
    ax = lines(four, Measure("epoch"), Measure("loss", scale="log"), references={"a bound": 2.5})
    drawn = [line for line in ax.lines if line.get_label().startswith("line")]
    assert len({(line.get_marker(), line.get_linestyle()) for line in drawn}) == 4
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [*four, "a bound"]


def test_a_reference_is_named_in_the_legend() -> None:
    rising = {"a": Series([1, 2], [0.0, 1.0])}
    ax = lines(rising, Measure("x"), Measure("y"), references={"r": 0.1})
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["a", "r"]


def test_lines_are_refused() -> None:
    with pytest.raises(ModelError, match="got none"):
        lines({}, Measure("epoch"), Measure("loss"))
    with pytest.raises(ModelError, match="'loss'"):
        lines({"a": Series([1], [0.0])}, Measure("epoch"), Measure("loss", scale="log"))


def test_stacks_fill_the_whole() -> None:
    ax = stacks({"a": {"x": 1.0, "y": 3.0}, "b": {"x": 2.0, "z": 0.5}})
    widths = [patch.get_width() for patch in ax.patches]
    assert widths == pytest.approx([25, 75, 80, 20])
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["x", "y", "z"]
    for wrong in ({}, {"a": {}}, {"a": {"x": -1.0, "y": 2.0}}):
        with pytest.raises(ModelError):
            stacks(wrong)


def test_parity_has_equal_axes() -> None:
    ax = parity(pairs_of({"ours": [(1e-3, 1.1e-3)], "theirs": [(2e-3, 1e-3)]}))
    assert ax.get_xlim() == ax.get_ylim()
    shown = [text.get_text() for text in ax.get_legend().get_texts()]
    assert shown == ["ours", "theirs", "a factor of 2", "within 10 %"]
    with pytest.raises(ModelError, match="positive"):
        parity(pairs_of({"ours": [(0.0, 1.0)]}))


def test_looks_follow_shape_and_hue() -> None:
    pairs = [Pair("1 GPU", "H = 1", 1e-3, 1.1e-3, 1e-3, 2e-3), Pair("2 GPUs", "H = 1", 2e-3, 2e-3)]
    ax = parity(pairs, within=(1.25,), ordered=True)
    shown = [text.get_text() for text in ax.get_legend().get_texts()]
    assert shown == ["1 GPU", "2 GPUs", "H = 1", "within 25 %"]
    drawn = [line for line in ax.lines if len(line.get_xdata()) == 1]
    assert [line.get_marker() for line in drawn] == ["o", "s"]
    assert len({line.get_color() for line in drawn}) == 1


def test_a_series_may_look_like_another() -> None:
    """One colour and one marker for what was measured and what was predicted of it."""
    timed = {"a": Series([1, 10], [1e-3, 1e-2]), "b": Series([1, 10], [1e-2, 1e-1])}
    timed["a, predicted"] = Series([1, 10], [2e-3, 2e-2], like="a", dash=":", hollow=True)
    ax = lines(timed, Measure("K", scale="log"), Measure("Time", "s", "log"))
    first, second, predicted = ax.lines
    assert first.get_color() == predicted.get_color() != second.get_color()
    assert first.get_marker() == predicted.get_marker() != second.get_marker()
    assert predicted.get_markerfacecolor() == "white"


def test_dots_stand_in_the_rows_given() -> None:
    seconds = Measure("Time of a batch", "s", "log")
    axes = [
        dots([Dot(row, "time", value)], seconds, names=["x", "y"], written="time",
             limits=("floor", {row: 1e-4}), levels={"rival": 2e-3})
        for row, value in (("x", 1e-3), ("y", 1e-2))
    ]  # fmt: skip
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["x", "y"]
    assert axes[0].get_ylim() == axes[1].get_ylim()
    assert [ax.texts[0].get_text() for ax in axes] == ["1.00 ms", "10.0 ms"]
    shown = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert shown == ["time", "floor", "rival"]
    with pytest.raises(ModelError, match="expected values to draw"):
        dots([], seconds)


def test_hollow_dots_are_explained() -> None:
    found = [
        Dot("a to b", "measured", 3.0, 1.0, 5.0),
        Dot("b to c", "measured", 1.0, -1.0, 2.0, True),
    ]
    ax = dots(found, Measure("Saved (%)"), hollow="within noise")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["measured", "within noise"]
    faces = [line.get_markerfacecolor() for line in ax.lines if line.get_marker() == "o"]
    assert [face == "white" for face in faces] == [False, True, False, True]

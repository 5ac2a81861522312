"""What the notebooks read: the ladder, its steps, parts of results, counters by phase, sides."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from writeup import shipped
from writeup.counters import (
    MARKER,
    between,
    phases_table,
    points,
    read_phases,
    read_steps,
    roofs,
)
from writeup.ladder import CHAIN, gain, gains_table, read_ladder
from writeup.layers import parts_of, read_forwards
from writeup.paleo import Measured, judge
from writeup.scaling import (
    ddp_table,
    efficiencies,
    ladder_speedups,
    published_speedups,
    speedups_table,
)
from writeup.shipped import read_part
from writeup.steps import agreements, read_profiled, steps
from writeup.tta import pairs_table, ratio_of, read_sides, sides_table
from writeup.vecadd import find as find_program
from writeup.vecadd import programs_table, read_programs

from perfmodel.base.errors import ModelError, ReportError
from perfmodel.base.table import Column, Table
from perfmodel.machines.devices import named
from perfmodel.readers.ncu import Launch
from perfmodel.studies.models.model import load
from perfmodel.studies.models.paleo import platform, step
from perfmodel.workloads.layers import total
from perfmodel.workloads.networks import network

ROW: dict[str, Any] = {
    "rung": "document", "H": 64, "B": 3200, "p": 1, "dtype": "fp32", "kind": "rung", "place": 0,
    "median_s": 4e-4, "launch_sd": 0.02, "valid": True, "run": "r",
    "floor_s": 1e-5, "peer": "torch graph", "peer_median_s": 1e-4,
}  # fmt: skip


def written(folder: Path, *rows: dict[str, Any], notes: list[Any] | None = None) -> Path:
    path = folder / "ladder.json"
    made: list[dict[str, Any]] = [{**ROW, **row} for row in rows]
    for row in made:
        row.setdefault("launches", [{"run": "r", "median_s": row["median_s"]}])
    path.write_text(json.dumps({"rows": made, "notes": notes or []}))
    return path


# --- the ladder


def test_a_gain_has_the_interval_of_another_launch(tmp_path: Path) -> None:
    """By hand: one launch, t(10) = 2.22814, each side's deviation 0.02, sqrt(1 + 1)."""
    path = written(tmp_path, {}, {"rung": "pinned", "median_s": 2e-4})
    found = read_ladder(path)
    said = gain(found.find("document", 1, 64, 3200), found.find("pinned", 1, 64, 3200))
    assert said.ratio == pytest.approx(2.0)
    assert said.high == pytest.approx(2 * math.exp(2.22814 * 0.04), rel=1e-4)
    assert said.low == pytest.approx(2 * math.exp(-2.22814 * 0.04), rel=1e-4)
    assert said.verdict == "faster"
    assert gain(None, said.after).verdict == "not timed"


def test_a_gain_is_taken_within_launches(tmp_path: Path) -> None:
    """A host twice as slow slows both; what another launch alone timed is not compared."""
    of_each = [{"run": name, "median_s": s} for name, s in (("a", 4e-4), ("b", 8e-4), ("c", 4e-4))]
    half = [{**each, "median_s": each["median_s"] / 2} for each in of_each]
    path = written(
        tmp_path, {"launches": of_each}, {"rung": "pinned", "launches": half},
        {"rung": "nccl", "launches": [{"run": "d", "median_s": 1e-4}]},
    )  # fmt: skip
    document, pinned, nccl = (
        read_ladder(path).find(name, 1, 64, 3200) for name in ("document", "pinned", "nccl")
    )
    said = gain(document, pinned)
    assert said.ratio == pytest.approx(2.0)
    assert said.low == pytest.approx(2.0)
    assert gain(document, nccl).verdict == "not timed"


def test_invalid_rows_count_for_nothing_and_notes_reach_their_rows(tmp_path: Path) -> None:
    note = {"text": "fixed since", "runs": ["r"], "rungs": ["pinned"], "H": [64]}
    path = written(
        tmp_path, {"place": 2, "rung": "resident"}, {"place": 1, "rung": "pinned"}, {},
        {"rung": "torch graph", "kind": "peer"}, {"rung": "nccl", "valid": False},
        {"rung": "peer", "median_s": None, "valid": True}, notes=[note],
    )  # fmt: skip
    found = read_ladder(path)
    assert [r.name for r in found.versions(1, 64, 3200)] == ["document", "pinned", "resident"]
    assert found.find("nccl", 1, 64, 3200) is None
    assert found.find("torch graph", 1, 64, 3200) is not None
    assert found.warnings(found.versions(1, 64, 3200)) == ("fixed since",)
    table = gains_table(found, 64, 3200, chain=("document", "pinned"), ranks=(1, 2))
    assert table.rows[1][:3] == ("pinned", 4e-4, "1.00 [0.91, 1.09] =")
    assert table.rows[1][3:] == (None, None)
    assert table.notes[1:] == ("to be timed again: fixed since",)
    with pytest.raises(ReportError, match="mpirun -n 4"):
        found.best(4, 64, 3200)


def test_what_is_no_ladder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in ("", "[]", '{"rows": [{}]}', "{}"):
        path.write_text(text)
        with pytest.raises(
            ReportError, match=r"x\.json: expected the results of benchmarks\.ladder"
        ):
            read_ladder(path)


# --- steps


def test_a_step_is_measured_by_launches_and_predicted_from_the_first_report() -> None:
    """docs/whatif.md: resident to nccl saved 534 of 859 µs, at most 722, predicted about 560."""
    profiled = read_profiled(shipped("profiles/ladder"), ("resident", "nccl"))
    (found,) = steps(profiled, load(shipped("benchmarks/results/predict_model.json")))
    assert found.verdict == "faster"
    assert found.saved_s == pytest.approx(539e-6, rel=0.02)
    assert found.predicted_s == pytest.approx(560e-6, rel=0.1)
    assert found.at_most_s == pytest.approx(722e-6, rel=0.02)
    assert found.held
    (alone,) = steps(profiled, None)
    assert (alone.predicted_s, alone.held) == (None, None)
    assert "expected a calibrated model" in alone.refused
    assert alone.at_most_s == found.at_most_s


def test_a_version_that_was_not_collected_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="expected launches of 'flying'; got document"):
        read_profiled(shipped("profiles/ladder"), ("flying",))
    with pytest.raises(ReportError, match=r"expected index\.json"):
        read_profiled(tmp_path)


def test_predictions_stand_beside_what_was_timed() -> None:
    found = read_ladder(shipped("benchmarks/results/ladder.json.xz"))
    model = load(shipped("benchmarks/results/predict_model.json"))
    settings = {"graph": {"transport": "nccl", "data_on": "device", "graph": "yes"}}
    rows = agreements(found, model, settings, [(512, 3000), (7, 7)], (2,))
    assert [r.name for r in rows] == ["graph"]
    assert abs(rows[0].error) < 0.15
    assert rows[0].low_s < rows[0].predicted_s < rows[0].high_s


# --- parts of results


def test_a_part_says_how_it_would_be_measured(tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    assert read_part(path, "time", "RUN").missing == (
        "layers, part 'time', is not measured yet: run RUN"
    )
    part = {"rows": [{"problem": "x"}], "problems": ["ended\nbadly"], "date": "2026-01-02T03"}
    path.write_text(json.dumps({"time": part}))
    assert "(tried 2026-01-02: ended): run RUN" in read_part(path, "time", "RUN").missing
    part |= {"rows": [{"a": 1}], "about": {"device": "GPU"}}
    path.write_text(json.dumps({"time": part}))
    found = read_part(path, "time", "RUN")
    assert (found.missing, found.device, found.date, bool(found)) == ("", "GPU", "2026-01-02", True)
    path.write_text("[1]")
    with pytest.raises(ReportError, match="run RUN"):
        read_part(path, "time", "RUN")


def test_launches_are_parted_at_the_markers() -> None:
    kernels = ("a", f"x::{MARKER}(long)", "b", "c", MARKER)
    launches = [Launch(name, (), {}) for name in kernels]
    assert [[x.kernel for x in part] for part in between(launches)] == [["b", "c"], []]


def test_resnet_steps_have_the_layers_work_and_phases_their_counters() -> None:
    """FLOPs and bytes of the forward pass on ten images: docs/resnet.md, The same by phase."""
    path = shipped("benchmarks/results/resnet.json")
    timed, part = read_steps(path)
    assert not part.missing
    assert timed[0].cost == total(network("resnet18"), 10)
    half = next(s for s in timed if s.math == "fp16")
    assert half.cost.moved_bytes < timed[0].cost.moved_bytes
    phases, _ = read_phases(path)
    forward = [p for p in phases if (p.net, p.math, p.phase) == ("resnet18", "fp32", "forward")]
    assert forward[0].counted.flops == pytest.approx(38.7e9, rel=0.01)
    assert forward[0].counted.bytes_of("dram") == pytest.approx(861e6, rel=0.01)
    row = dict(zip([c.key for c in phases_table(forward).columns], phases_table(forward).rows[0],
                   strict=True))  # fmt: skip
    assert row["ratio"] == pytest.approx(38.7 / 36.3, rel=0.01)
    kinds = {p.kind for p in points(timed[:1], forward)}
    assert kinds == {"bytes by the layers"}  # a step counts when all its phases do
    assert roofs(named("h200"), ["tf32"])[0].flops_per_s == 494.7e12


def test_paleo_is_judged_by_the_batch_that_it_was_not_fitted_to() -> None:
    """By hand: a step twice as long as at the peaks has PPP 1/2; others follow."""
    net, h200 = network("resnet18"), named("h200")
    peak_s = {b: step(net, platform(h200), b).training_s for b in (32, 128)}
    some = [Measured("resnet18", "float32", b, 2.0 * peak_s[b] + 1e-3 * (b == 32)) for b in peak_s]
    some += [Measured("resnet50", "float32", 32, 1.0)]
    found = judge(some, h200)
    assert [j.measured.batch for j in found] == [32, 128]  # resnet50 has no step that fits
    assert [j.ppp for j in found] == pytest.approx([0.5, 0.5])
    assert found[1].error == pytest.approx(0.0)
    assert found[0].predicted_s == pytest.approx(2 * peak_s[32])
    assert found[0].other_error is None


def test_the_parts_of_a_network_are_the_whole() -> None:
    conv, fc, rest = parts_of("vgg16", 2)
    assert conv + fc + rest == total(network("vgg16"), 2)
    assert fc.parameters == 123_642_856
    assert rest.macs == 0


def test_forward_passes_are_over_their_whole() -> None:
    passes, part = read_forwards(shipped("benchmarks/results/layers.json"))
    assert not part.missing
    assert all((f.over_whole("synchronized") or 0) > 1 for f in passes if f.batch == 1)


# --- scaling and time to accuracy


def test_speed_ups_are_over_one_gpu() -> None:
    """docs/scaling.md: of the published study 1.715 at 512 per GPU; the rungs' table."""
    assert published_speedups()["published, 512 per GPU"][4] == pytest.approx(1.715, abs=1e-3)
    found = read_ladder(shipped("benchmarks/results/ladder.json.xz"))
    said = ladder_speedups(found, ("document", "peer x3", "no such rung"), 2048, 12000)
    assert list(said) == ["document", "peer x3"]
    one, four = (found.find("document", p, 2048, 12000) for p in (1, 4))
    assert one is not None
    assert four is not None
    assert said["document"][4] == pytest.approx((one.median_s or 0) / (four.median_s or 1))
    assert [row[0] for row in speedups_table(said).rows] == ["document", "peer x3"]


def test_sides_say_who_reached_the_target() -> None:
    """docs/tta.md, the CPU's table."""
    folder = shipped("benchmarks/results/tta")
    sides = read_sides(folder, ("base", "large", "no such side"), 0.92)
    rows = sides_table(sides).rows
    assert [row[0] for row in rows] == ["base", "large"]
    assert rows[0][1:6] == (400, 0.5, 0, "5 of 5", "5.2 ± 0.4")
    assert rows[1][4:6] == ("0 of 5", None)
    assert pairs_table(sides, [("large", "base"), ("a", "base")]).rows[0][:2] == (
        "large / base", "p = 0.0079",
    )  # fmt: skip
    others = read_sides(folder, ("base", "rule"), 0.92)
    assert ratio_of(others, "rule", "base") == pytest.approx((1.22, 1.13, 1.33), abs=0.006)
    assert ratio_of(others, "rule", "base", over="time")[0] == pytest.approx(1.36, abs=0.006)
    with pytest.raises(ModelError, match="three runs or more of large and of base"):
        ratio_of(sides, "large", "base")


def test_two_gpus_are_set_against_one() -> None:
    """By hand: 10 images alone 10 ms, 20 alone 16 ms, 10 on each of two 12.5 ms."""
    cell = {"net": "resnet18", "math": "fp32", "batch": 10}
    rows = [
        {**cell, "mode": "alone", "total_s": 10e-3},
        {**cell, "mode": "ddp", "total_s": 12.5e-3},
        {**cell, "batch": 20, "mode": "alone", "total_s": 16e-3},
    ]
    (row,) = ddp_table({2: rows}).rows
    assert row[:6] == (2, "resnet18", "fp32", 10, 10e-3, 12.5e-3)
    assert row[6:] == pytest.approx((0.8, 1.28))
    assert ddp_table({2: rows[1:2]}).rows[0][6:] == (None, None)
    assert ddp_table({2: []}).rows == []
    found = efficiencies(ddp_table({2: rows}), 2)
    assert found["resnet18 fp32, H200"] == {10: pytest.approx(0.8)}
    assert found["published study"][512] == pytest.approx(1.656 / 2, abs=1e-3)


def test_programs_of_vector_addition_move_their_bytes() -> None:
    """docs/vecadd.md: at 100 million floats the full grid's kernel takes 474 µs, 2.53 TB/s."""
    programs, part = read_programs(shipped("benchmarks/results/vecadd.json"))
    assert not part.missing
    grid = find_program(programs, "explicit", "grid", 100_000_000)
    assert grid is not None
    assert grid.label == "GPU, copies: full grid"
    table = programs_table(programs, 100_000_000)
    row = next(r for r in table.rows if r[0] == grid.label)
    assert row[3] == pytest.approx(12e8 / (grid.kernel_s or 1))
    assert row[3] == pytest.approx(2.53e12, rel=0.3)
    loop = next(r for r in table.rows if r[0] == "CPU: loop in C++")
    assert loop[2:] == (None, None, None)
    assert find_program(programs, "host", "grid", 1) is None


# --- pictures and tables


def test_a_table_shows_itself_in_a_notebook() -> None:
    shown = Table("", (Column("s", "time", "si", "s"),), [(1e-3,)])._repr_markdown_()
    assert shown.splitlines() == ["| time |", "| --: |", "| 1.00 ms |"]


def test_the_chain_is_of_rungs_that_were_profiled() -> None:
    index = json.loads(shipped("profiles/ladder/index.json").read_text(encoding="utf-8"))
    assert set(CHAIN) <= {row["rung"] for row in index}

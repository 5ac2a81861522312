"""Products measured alone: looked up by shape, and what they do for a calibration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.folders import MACHINE, PROFILES
from perfmodel.base.errors import ModelError
from perfmodel.machines.measure.measurement import (
    MachineMeasurement,
    Products,
    Series,
    Spread,
)
from perfmodel.machines.measure.measurement import load as load_machine
from perfmodel.readers import read
from perfmodel.studies.mlp.case import mlp_case
from perfmodel.studies.mlp.observe import observe
from perfmodel.studies.mlp.parts import gemms_alone, knows, mlp_parts, part_alone
from perfmodel.studies.models.calibrate import calibrate
from perfmodel.studies.models.model import load, save
from perfmodel.studies.models.predict import predict
from perfmodel.studies.models.terms import Alone, Observation, interpolate
from perfmodel.timing.run import time_run

LAUNCHES = PROFILES / "launches"
SIZES = {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 4}
NCCL = {"transport": "nccl", "data_on": "device"}


@pytest.fixture(scope="module")
def alone() -> Alone:
    found = gemms_alone(load_machine(MACHINE), MACHINE.name)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def three() -> list[Observation]:
    names = (
        "p2_nccl_device_H128_B3000",
        "p2_nccl_device_H4096_B12000",
        "p4_nccl_device_H512_B3000",
    )
    paths = [LAUNCHES / f"{name}.sqlite.xz" for name in names]
    return [observe(time_run([read(p)], "batch iteration", label=p.name)) for p in paths]


def test_measured_shapes_are_returned_as_they_are(alone: Alone) -> None:
    rows = alone.seconds["forward 1", "float32"]
    assert len(rows) == 35
    for h, k, seconds in rows:
        assert interpolate(rows, h, k) == pytest.approx(seconds, rel=1e-9)


@given(st.floats(64, 4096), st.floats(750, 12000), st.floats(0.2, 1.5), st.floats(0.2, 1.5))
def test_a_power_law_is_interpolated_exactly(h: float, k: float, a: float, b: float) -> None:
    rows = [(x, y, 1e-6 * x**a * y**b) for x in (64, 512, 4096) for y in (750, 3000, 12000)]
    assert interpolate(rows, h, k) == pytest.approx(1e-6 * h**a * k**b, rel=1e-9)


def test_beyond_the_measured_shapes_time_neither_vanishes_nor_explodes(alone: Alone) -> None:
    rows = alone.seconds["forward 2", "float32"]
    least = interpolate(rows, 64, 750)
    assert interpolate(rows, 1, 4) == least
    assert interpolate(rows, 8192, 24000) == pytest.approx(4 * interpolate(rows, 4096, 12000))


def test_only_products_that_were_measured_are_looked_up(alone: Alone) -> None:
    assert knows(alone, mlp_case(SIZES, NCCL))
    assert knows(alone, mlp_case(SIZES, {**NCCL, "math": "tf32"}))
    for sizes, settings in (
        ({**SIZES, "D": 100}, NCCL),
        ({**SIZES, "b": 8}, NCCL),
        (SIZES, {**NCCL, "gemm": "fused"}),
    ):
        case = mlp_case(sizes, settings)
        assert not knows(alone, case)
        for part in mlp_parts(case):
            assert part_alone(part, case, alone) is part
    for settings in ({"gemm": "thin"}, {"gemm": "fused", "math": "tf32"}):
        case = mlp_case(SIZES, {**NCCL, **settings})
        parts = {part.name: part_alone(part, case, alone) is part for part in mlp_parts(case)}
        assert [name for name, as_it_is in parts.items() if not as_it_is] == ["large GEMMs"]


def test_the_network_s_products_take_what_they_take_alone(alone: Alone) -> None:
    """H=512, B'=1500: 78.9 µs under Nsight Systems, 80.2 µs alone with the gaps between."""
    part = next(p for p in mlp_parts(mlp_case(SIZES, NCCL)) if p.name == "large GEMMs")
    found = part_alone(part, mlp_case(SIZES, NCCL), alone)
    assert found.amounts["alone"] == pytest.approx(77.5e-6, rel=0.02)
    assert found.amounts["kernels"] == 2
    # of a rank's share: H/2 rows of all images take about the same
    halves = mlp_case(SIZES, {**NCCL, "parallel": "model"})
    part = next(p for p in mlp_parts(halves) if p.name == "large GEMMs")
    assert part_alone(part, halves, alone).amounts["alone"] == pytest.approx(70e-6, rel=0.1)


def own_kernels() -> MachineMeasurement:
    """A measurement of the fused kernels and the step, on top of the real one."""
    real = load_machine(MACHINE)
    shapes = {"fused forward 1": (0, 1, 784), "fused output": (10, 1, 0),
              "fused backward": (0, 1, 10), "fused backward 3": (0, 784, 1)}  # fmt: skip
    found = []
    for name, (m, n, k) in shapes.items():
        times = {}
        for h, b in ((256, 750), (256, 3000), (1024, 750), (1024, 3000)):
            big = n if name == "fused backward 3" else b
            if name == "fused output":
                shape = (m, b, h)
            else:
                shape = (h, big, b if name == "fused backward 3" else k)
            times[shape] = Spread(1e-10 * h * b, 0.0, 1.0, 3)
        found.append(Products.of(name, "tf32x3", "nn", times))
    steps = [
        Series.of("step", "device", "all", "device", p, {
            n: Spread(p * 1e-12 * n, 0.0, 1.0, 3) for n in (1000, 10_000_000)
        })
        for p in (1, 2)
    ]  # fmt: skip
    return replace(real, products=(*real.products, *found), series=(*real.series, *steps))


@pytest.mark.parametrize("transport", ["nccl", "peer"])
def test_the_fused_kernels_and_the_step_take_what_they_take_alone(transport: str) -> None:
    alone = gemms_alone(own_kernels(), "own.toml")
    assert alone is not None
    settings = {**NCCL, "transport": transport, "gemm": "fused", "math": "tf32x3", "graph": "yes"}
    case = mlp_case(SIZES, settings)
    found = {part.name: part for part in case.parts(alone)}
    twice = 2 * (1e-10 * 512 * 1500 - alone.kernel_s)
    for name in ("large GEMMs", "fused steps"):
        assert found[name].key == f"{name} [fused, as alone]"
        assert found[name].amounts["alone"] == pytest.approx(twice, rel=1e-6)
    ranks, group = (2, "peer") if transport == "peer" else (1, "32 bit")
    step = found["step in one kernel"]
    assert step.key == f"step in one kernel [{group}, as alone]"
    taken = ranks * 1e-12 * 4 * case.parameters
    assert step.amounts["alone"] == pytest.approx(max(taken - alone.kernel_s, 0.2 * taken))
    four = mlp_case({**SIZES, "p": 4}, settings)  # four peers were not measured
    as_it_is = transport == "peer"
    key = next(p.key for p in four.parts(alone) if p.name == "step in one kernel")
    assert (key == "step in one kernel [32 bit]") == as_it_is


def test_three_runs_predict_products_of_other_shapes(
    alone: Alone, three: list[Observation], tmp_path: Path
) -> None:
    model = calibrate(three, alone=alone)
    wide = model.terms["large GEMMs [cublas, as alone]"]
    assert wide.coefficients[0] == pytest.approx(1.0, abs=0.03)
    save(model, tmp_path / "model.json")
    again = load(tmp_path / "model.json")
    case = mlp_case({**SIZES, "H": 2048, "B": 12000}, NCCL)
    assert predict(again, case) == predict(model, case)
    said = {phase.name: phase.seconds for phase in predict(model, case).phases}
    assert said["large GEMMs"] == pytest.approx(833.5e-6, rel=0.02)
    assert said["all-reduce"] == pytest.approx(42.6e-6, rel=0.15)
    assert predict(model, case).batch_s == pytest.approx(1178e-6, rel=0.04)


def test_a_damaged_table_is_refused(alone: Alone, three: list[Observation], tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    save(calibrate(three, alone=alone), path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"kernel_s": 1', '"kernel_s": -1'), encoding="utf-8")
    with pytest.raises(ModelError, match=r"kernel_s.*at least 0"):
        load(path)
    path.write_text(text.replace('"h_k_seconds": [', '"h_k_seconds": [[64, 750, 1e-5],', 1))
    with pytest.raises(ModelError, match="a grid of h, k and seconds"):
        load(path)


def test_replayed_runs_share_what_they_compute() -> None:
    fused = {**NCCL, "graph": "yes", "gemm": "fused", "math": "tf32x3"}
    by_nccl, by_peer = (
        mlp_parts(mlp_case(SIZES, {**fused, "transport": t})) for t in ("nccl", "peer")
    )
    one = mlp_parts(mlp_case({**SIZES, "p": 1}, {**fused, "transport": "none"}))
    for name in ("large GEMMs", "fused steps", "step in one kernel", "gaps"):
        keys = {p.key for found in (by_nccl, by_peer, one) for p in found if p.name == name}
        assert len(keys) == 1, name
    n = (784 * 512 + 512 + 5120 + 10) * 4
    steps = [next(p for p in found if p.name == "step in one kernel").amounts
             for found in (by_nccl, by_peer, one)]  # fmt: skip
    assert [s["messages"] for s in steps] == [0, 1, 0]
    assert [s["bytes"] for s in steps] == pytest.approx([0, 4 / 3 * n, 0])
    sums = [any(p.key == "all-reduce [NCCL]" for p in found) for found in (by_nccl, by_peer, one)]
    assert sums == [True, False, False]

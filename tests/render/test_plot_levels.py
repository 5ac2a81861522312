"""The hierarchical roofline: what is drawn where, under which roof, and what is marked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from perfmodel.analysis.counters import METRICS, Placed, by_kernel, place
from perfmodel.base.errors import ModelError
from perfmodel.machines.machine import Machine
from perfmodel.readers.ncu import Launch
from perfmodel.render.plot.roofline import MOST, levels, short
from support.build_ncu import FFMA, L1, L2, READ, TF32, TIME, WRITE, Kernel, wide
from support.cli import perfmodel

TOY = Machine("toy", "by hand", {"float32": 1e12, "tf32_tensor": 1e13},
              {"hbm": 1e11, "l2": 1e12, "l1": 4e12})  # fmt: skip
SCALAR = {TIME: 1e-3, FFMA: 1e8, READ: 5e6, WRITE: 5e6, L2: 4e7, L1: 1e8}
TENSOR = {TIME: 1e-3, TF32: 4e9, READ: 1e7, WRITE: 1e7, L2: 1e8, L1: 2e8}


def placed(machine: Machine = TOY, **kernels: dict[str, float]) -> list[Placed]:
    zeros: dict[str, float | None] = dict.fromkeys(METRICS, 0.0)
    launches = [Launch(name, (), zeros | counts) for name, counts in kernels.items()]
    return [place(one, machine) for one in by_kernel(launches)]


def points(ax: Axes) -> list[tuple[float, float, str, str]]:
    """Intensity, rate, marker and filling of every point."""
    lines = [line for line in ax.lines if line.get_linestyle() == "None"]
    return [
        (line.get_xdata()[0], line.get_ydata()[0], line.get_marker(), line.get_fillstyle())
        for line in lines
    ]


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_a_kernel_has_a_point_per_level_at_one_height():
    found = points(levels(placed(gemm=SCALAR)))
    assert [p[:2] for p in found] == [(20.0, 2e11), (5.0, 2e11), (2.0, 2e11)]
    assert [p[3] for p in found] == ["full", "left", "none"]


def test_every_unit_has_its_own_roof_and_marker():
    ax = levels(placed(gemm=SCALAR, tensor=TENSOR))
    assert {"fp32, 1.00 TFLOP/s", "tensor tf32, 10.0 TFLOP/s"} <= set(texts(ax))
    assert len({p[2] for p in points(ax)}) == 2
    only = levels(placed(gemm=SCALAR))
    assert [t for t in texts(only) if "FLOP/s" in t] == ["fp32, 1.00 TFLOP/s"]  # no TF32 roof


def test_bandwidths_are_diagonals_and_missing_ones_are_named():
    lines = [line for line in levels(placed(gemm=SCALAR)).lines if line.get_linestyle() != "None"]
    slopes = [line.get_ydata()[0] / line.get_xdata()[0] for line in lines[:3]]
    assert sorted(slopes) == pytest.approx([1e11, 1e12, 4e12])
    bare = Machine("bare", "by hand", TOY.peak_flops_per_s, {"hbm": 1e11})
    assert {"L1, bandwidth unknown", "L2, bandwidth unknown"} <= set(
        texts(levels(placed(bare, gemm=SCALAR)))
    )


def test_size_tells_the_share_of_time():
    ax = levels(placed(long=SCALAR | {TIME: 3e-3}, short=SCALAR))
    sizes = [line.get_markersize() for line in ax.lines if line.get_linestyle() == "None"]
    assert sizes[0] > sizes[-1]
    assert {"long, 75 %", "short, 25 %"} <= set(texts(ax))


def test_what_is_above_a_ceiling_is_marked():
    fast = {TIME: 1e-5}
    ax = levels(placed(gemm=SCALAR, wrong=SCALAR | fast))
    assert "above a ceiling: cannot be" in texts(ax)
    assert sum(p[2] == "o" for p in points(ax)) == 3
    assert "above a ceiling: cannot be" not in texts(levels(placed(gemm=SCALAR)))


def test_the_rest_is_left_out_and_nothing_at_all_is_refused():
    many = {f"k{i}": SCALAR for i in range(MOST + 3)}
    assert len(points(levels(placed(**many)))) == 3 * MOST
    with pytest.raises(ModelError, match="got none that has all"):
        levels(placed(idle={TIME: 1.0}))


def test_everything_lies_within_the_axes():
    ax = levels(placed(gemm=SCALAR, tensor=TENSOR, slow=SCALAR | {FFMA: 1e3}))
    (x_low, x_high), (y_low, y_high) = ax.get_xlim(), ax.get_ylim()
    for x, y, *_ in points(ax):
        assert x_low < x < x_high
        assert y_low < y < y_high
    assert np.isfinite([x_low, x_high, y_low, y_high]).all()


@pytest.mark.parametrize(
    ("kernel", "name"),
    [("void cupy::k<float>(float *, int)", "cupy::k<float>"), ("gemm", "gemm"),
     ("(anonymous)", "(anonymous)"), ("x" * 90, "x" * 55 + "…"),
     ("void lt::reduce<(int)32, float>(P<T>)", "lt::reduce")],
)  # fmt: skip
def test_names_of_kernels_are_short(kernel, name):
    assert short(kernel) == name


def test_the_command_draws(tmp_path: Path):
    zeros = dict.fromkeys(METRICS, 0.0)
    table = tmp_path / "t.csv"
    kernels = [Kernel("gemm", zeros | SCALAR | {TIME: 1e6}), Kernel("memset", zeros | {TIME: 5.0})]
    table.write_text(wide(kernels))
    out = tmp_path / "roof.png"
    result = perfmodel("counters", table, "--machine", "h200", "-o", out)
    assert result.exit_code == 0, result.output
    assert out.stat().st_size > 20_000
    assert "not drawn, for want of FLOPs, time or bytes: memset" in result.stderr
    assert "give --machine" in perfmodel("counters", table, "-o", out).stderr
    other = perfmodel("counters", table, "--machine", "h200", "-o", tmp_path / "x.bmp")
    assert other.exit_code == 2

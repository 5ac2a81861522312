"""The grid of PyTorch's GEMMs and attention, as far as no GPU is needed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from perfmodel.base.errors import ModelError, PerfmodelError
from perfmodel.machines.machine import Machine
from perfmodel.machines.measure.gemm_grid import Timer, shape_of, shapes_of
from perfmodel.machines.measure.measurement import (
    Attention,
    MachineMeasurement,
    Products,
    Spread,
    load,
    save,
)
from support.cli import succeeds


def measured() -> MachineMeasurement:
    spread = Spread(2e-5, 1.9e-5, 2.1e-5, 3)
    return MachineMeasurement(
        Machine.of("NVIDIA H200", "measured", {}), ("NVIDIA H200",), ("a CPU",),
        "2026-01-01T00:00:00Z", "perfmodel machine measure", 1, 16, {},
        products=(Products.of("linear", "bfloat16", "tn", {(1024, 512, 2048): spread}),),
        attention=(Attention.of("backward", "bfloat16", {(96, 512, 64): spread}),),
    )  # fmt: skip


def test_layouts_are_those_of_a_layer_forward_and_backward() -> None:
    rows, inputs, outputs = 2048, 512, 1024
    x, weight, gradient = (rows, inputs), (outputs, inputs), (rows, outputs)
    assert shape_of("nt", rows, inputs, outputs) == (x[0], weight[0], x[1])
    assert shape_of("nn", rows, inputs, outputs) == (gradient[0], weight[1], gradient[1])
    assert shape_of("tn", rows, inputs, outputs) == (gradient[1], x[1], x[0])


def test_bfloat16_is_measured_most_finely() -> None:
    fine, coarse = shapes_of("bfloat16"), shapes_of("tf32")
    assert len(set(fine)) == len(fine) > 10 * len(coarse)
    assert max(n for _, _, n in fine) == 32768


def test_file_keeps_attention(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    save(measured(), path)
    assert load(path) == measured()


def test_attention_of_no_phase_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    save(measured(), path)
    path.write_text(path.read_text().replace('phase = "backward"', 'phase = "sideways"'))
    with pytest.raises(ModelError, match="phase"):
        load(path)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_grid_without_pytorch_says_what_to_install() -> None:
    with pytest.raises(PerfmodelError, match="expected the package torch"):
        Timer(0)


def test_machine_shows_attention(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    save(measured(), path)
    shown = succeeds("machine", "show", path)
    assert "Attention" in shown
    assert "backward" in shown
    content = json.loads(succeeds("machine", "show", path, "--json"))
    assert content["measured"]["attention"][0]["length"] == [512]

"""The file of a model of operators is checked completely when it is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.folders import RESULTS
from perfmodel.base.document import fitting, parse_json
from perfmodel.base.errors import ModelError
from perfmodel.models.operators_file import load
from support.cli import fails

SHIPPED = RESULTS / "gpt" / "model_eager.json"


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("host",), 1),
        (("host",), []),
        (("host", "one", "launch_s"), float("nan")),
        (("take",), 3),
        (("steps",), []),
        (("steps", 0, "order"), [10**6]),
        (("steps", 0, "order"), [-1]),
        (("steps", 0, "symbols"), {"p": 1}),
        (("steps", 0, "symbols", "batch"), 0),
        (("steps", 0, "symbols", "batch"), 2**70),
        (("steps", 0, "calls"), []),
        (("steps", 0, "calls", 0, "arguments"), 99),
        (("steps", 0, "calls", 0, "sizes"), [[1.5]]),
        (("steps", 0, "calls", 0, "gpu_s"), "1"),
        (("gemms", 0, "seconds", 0), 0),
        (("gemms", 0, "seconds", 0), -1.0),
        (("gemms", 0, "sizes", 0), [1, 2]),
        (("factors", 0, "factor"), []),
        (("factors", 0, "factor", 0), 1e300),
        (("machine", "bandwidth_bytes_per_s"), {"hbm": 0}),
        (("gpu_noise",), 1e300),
        (("gap_s",), float("inf")),
    ],
)
def test_a_damaged_model_is_refused(keys: tuple[Any, ...], value: object, tmp_path: Path) -> None:
    whole: Any = json.loads(SHIPPED.read_text())
    place = whole
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path = tmp_path / "model.json"
    path.write_text(json.dumps(whole))
    with pytest.raises(ModelError, match="expected"):
        load(path)
    if keys == ("host",):
        sizes = ("n_layer=2", "d_model=256", "heads=4", "batch=4", "seq=128", "vocab=4096")
        given = [word for size in sizes for word in ("--set", size)]
        assert "calibrate anew" in fails(6, "predict", "--model", path, *given)


def test_the_shipped_model_is_taken() -> None:
    assert load(SHIPPED).steps


@pytest.mark.parametrize("text", ["NaN", "[1e999]", "-Infinity", str(2**63), "9" * 5000])
def test_numbers_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"finite|64 bits"):
        parse_json(text)


def test_values_fit_their_types() -> None:
    assert fitting(tuple[int, str], [1, "a"]) == (1, "a")
    assert fitting(float | None, None) is None
    for hint, value in ((int, True), (str, 1), (tuple[int, ...], 1), (float, -1), (bool, 1)):
        with pytest.raises(ValueError, match="expected"):
            fitting(hint, value)

"""Measured machines as files: what is written is read again, and what makes no sense is refused."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.common.folders import MACHINE
from perfmodel.base.errors import ModelError
from perfmodel.machines.devices import named, shipped
from perfmodel.machines.machine import SECTIONS, Figure, Machine
from perfmodel.machines.measure.measurement import (
    CLOCKS,
    DIRECTIONS,
    DTYPES,
    KINDS,
    LAYOUTS,
    MEMORIES,
    MachineMeasurement,
    Products,
    Series,
    Spread,
    choose,
    load,
    parse,
    save,
)
from perfmodel.render.machines import rows
from support.measured_machine import MEASURED

positive = st.floats(1e-300, 1e300, exclude_min=True)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
counts = st.integers(1, 2**62)
spreads = st.tuples(positive, positive, positive).map(sorted)


@st.composite
def figures(draw: Callable[..., Any]) -> Figure:
    q1, value, q3 = draw(spreads)
    if draw(st.booleans()):
        return Figure(value, draw(texts))
    return Figure(value, draw(texts), q1, q3, draw(counts))


@st.composite
def series(draw: Callable[..., Any]) -> Series:
    sizes = sorted(draw(st.sets(counts, min_size=1, max_size=5)))
    found = {size: Spread(*_median_first(draw(spreads)), draw(counts)) for size in sizes}
    kinds = (draw(st.sampled_from(of)) for of in (KINDS, MEMORIES, DIRECTIONS, CLOCKS))
    return Series.of(*kinds, draw(counts), found)


@st.composite
def products(draw: Callable[..., Any]) -> Products:
    shapes = draw(st.sets(st.tuples(counts, counts, counts), min_size=1, max_size=4))
    found = {shape: Spread(*_median_first(draw(spreads)), draw(counts)) for shape in shapes}
    return Products.of(
        draw(texts), draw(st.sampled_from(DTYPES)), draw(st.sampled_from(LAYOUTS)), found
    )


def _median_first(values: list[float]) -> tuple[float, float, float]:
    q1, median, q3 = values
    return median, q1, q3


names = st.tuples(st.sampled_from(sorted(SECTIONS)), texts)
machines = st.builds(Machine.of, texts, texts, st.dictionaries(names, figures(), max_size=6))
measurements = st.builds(
    MachineMeasurement,
    machine=machines,
    gpus=st.lists(texts, max_size=2).map(tuple),
    cpus=st.lists(texts, max_size=2).map(tuple),
    date=texts,
    command=texts,
    ranks=counts,
    cores=counts,
    versions=st.dictionaries(texts, texts, max_size=3),
    series=st.lists(series(), max_size=3).map(tuple),
    products=st.lists(products(), max_size=3).map(tuple),
    elapsed_s=st.dictionaries(texts, st.floats(0, 1e6), max_size=3),
    warnings=st.lists(texts, max_size=2).map(tuple),
)


def in_order(found: MachineMeasurement) -> MachineMeasurement:
    """Put figures in the order of the file, which is by section."""
    order = list(SECTIONS)
    kept = dict(sorted(found.machine.figures.items(), key=lambda item: order.index(item[0][0])))
    return replace(found, machine=replace(found.machine, figures=kept))


@given(measurements)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read_again(tmp_path: Path, found: MachineMeasurement) -> None:
    path = tmp_path / "machine.toml"
    save(found, path)
    once = path.read_bytes()
    again = load(path)
    assert again == in_order(found)
    save(again, path)
    assert path.read_bytes() == once


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    save(MEASURED, tmp_path / "machine.toml")
    return tomllib.loads((tmp_path / "machine.toml").read_text())


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change: `value` at keys and positions such as 'series 0 median_s'; None removes."""

    def change(content: Any) -> None:
        *way, last = path.split()
        for step in way:
            content = content[int(step) if step.isdigit() else step]
        if value is None:
            del content[last]
        else:
            content[last] = value

    return change


DAMAGE = [
    (put("format", "perfmodel model"), "format.*perfmodel machine"),
    (put("format", None), "format.*no such key"),
    (put("version", 2), "version.*expected 1.*got 2"),
    (put("name", 3), "name.*a text"),
    (put("gpus", "NVIDIA H200"), "gpus.*list of texts"),
    (put("measured", None), "measured: expected a table"),
    (put("measured ranks", 0), "ranks.*whole number above 0"),
    (put("measured cores", 1.5), "cores.*whole number"),
    (put("measured elapsed_s copies", -1.0), "copies.*at least 0"),
    (put("peak_flops_per_s float32", -6e13), "float32.*above 0"),
    (put("peak_flops_per_s float32 value", -6e13), "float32: key 'value'.*above 0"),
    (put("peak_flops_per_s float32 value", 0), "value.*above 0"),
    (put("peak_flops_per_s float32 value", math.nan), "value.*finite"),
    (put("peak_flops_per_s float32 value", True), "value.*finite number"),
    (put("peak_flops_per_s float32 value", 7e13), "between its quartiles"),
    (put("peak_flops_per_s float32 q3", math.inf), "q3.*finite"),
    (put("peak_flops_per_s float32 repeats", 0), "repeats.*above 0"),
    (put("peak_flops_per_s float32 median", 1.0), "only the keys value, source"),
    (put("peak_flop_per_s", {}), "key 'peak_flop_per_s': expected only the keys format"),
    (put("peak_flops_per_s", 3), "peak_flops_per_s: expected a table"),
    (put("series", {}), "array of tables"),
    (put("series 0 kind", "teleport"), "series 1: key 'kind'.*one of copy"),
    (put("series 0 bytes", [4096, 4096, 8192]), "sizes that rise"),
    (put("series 0 bytes", [0, 4096, 8192]), "bytes.*above 0"),
    (put("series 0 bytes", []), "bytes.*numbers"),
    (put("series 0 median_s", [1e-5]), "median_s.*3 numbers"),
    (put("series 0 median_s", [1e-5, -1e-5, 1e-5]), "median_s.*above 0"),
    (put("series 0 q1_s", [1.0, 1.0, 1.0]), "between the quartiles"),
    (put("series 0 q3_s", None), "q3_s.*no such key"),
    (put("series 0 speed", 1), "only the keys kind"),
    (put("products 0 dtype", "int8"), "products 1: key 'dtype'.*one of float64"),
    (put("products 0 k", [1, 2]), "k.*1 numbers"),
    (put("products 0 layout", ["nn"]), "layout.*one of nn"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGE, ids=[said for _, said in DAMAGE])
def test_what_makes_no_sense_is_refused(
    content: dict[str, Any], damage: Callable[[dict[str, Any]], None], said: str
) -> None:
    assert parse(content, "m.toml") == MEASURED
    damage(content)
    with pytest.raises(ModelError, match=f"^m.toml.*{said}.*measure again"):
        parse(content, "m.toml")


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "text.toml").write_text("a = = b")
    for name in ("bytes.toml", "text.toml", "missing.toml", "."):
        with pytest.raises(ModelError, match="expected a TOML file that perfmodel machine measure"):
            load(tmp_path / name)


def test_a_figure_may_be_a_number_as_in_the_shipped_files(content: dict[str, Any]) -> None:
    content["capacity_bytes"] = {"l2": 62914560}
    found = parse(content, "m.toml").machine
    assert found.capacity_bytes == {"l2": 62914560.0}
    assert found.figures["capacity_bytes", "l2"] == Figure(62914560.0, "measured")


def test_a_file_of_the_form_of_the_shipped_ones_is_a_machine(tmp_path: Path) -> None:
    for name, machine in shipped():
        file = resources.files("perfmodel").joinpath("machines", "devices", f"{name}.toml")
        path = tmp_path / f"{name}.toml"
        path.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
        assert choose(str(path)) == (machine, None)
        assert choose(name) == (machine, None)


def test_a_file_that_is_no_machine_is_refused_by_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nsource = "me"\n[bandwith]\nhbm = 1e12\n')
    with pytest.raises(
        ModelError, match=r"mine\.toml: key 'bandwith': expected only the keys name"
    ):
        choose(str(path))
    path.write_text('name = "mine"\n')
    with pytest.raises(ModelError, match=r"mine\.toml: key 'source': expected a text; got no such"):
        choose(str(path))


def test_a_measured_file_is_chosen_with_its_measurement(tmp_path: Path) -> None:
    path = tmp_path / "measured"
    save(MEASURED, path)
    assert choose(str(path)) == (MEASURED.machine, MEASURED)


def test_the_measured_h200_is_below_its_datasheet_and_near_it():
    measurement = load(MACHINE)
    ratios = {
        (row.section, row.key): row.ratio
        for row in rows(measurement.machine, named("h200"))
        if row.ratio is not None and "pageable" not in row.key
    }
    assert len(ratios) > 15
    assert min(ratios.values()) > 0.65
    assert max(ratios.values()) <= 1.0
    assert {one.ranks for one in measurement.series} == {1, 4}

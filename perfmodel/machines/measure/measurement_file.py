"""A machine as a TOML file, measured or of the form of the shipped ones: written and read."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from perfmodel.base.errors import ModelError
from perfmodel.base.escape import printable
from perfmodel.base.files import write_text
from perfmodel.machines.machine import SECTIONS, Figure, Machine, named
from perfmodel.machines.measure.entries import Entries
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
)

FORMAT: Final = "perfmodel machine"
VERSION: Final = 1
_MOST_BYTES: Final = 20_000_000
_KEYS: Final = ("name", "gpus", "cpus", "source", *SECTIONS)
_MEASURED_KEYS: Final = ("format", "version", *_KEYS, "measured", "series", "products")


def choose(word: str) -> tuple[Machine, MachineMeasurement | None]:
    """Return the machine of a short name or of a file; with its measurement, if it is one.

    Parameters
    ----------
    word : str
        A name that `perfmodel.machines.machine.named` knows; or the path of a TOML file, of
        `perfmodel machine measure` or of the form of the shipped ones.

    Raises
    ------
    PerfmodelError
        If no machine has this name.
    ModelError
        If the file is none; see `load`.
    """
    path = Path(word)
    if path.suffix != ".toml" and not path.is_file():
        return named(word), None
    where, data = _content(path)
    if {"format", "measured"} & data.keys():
        measurement = parse(data, where)
        return measurement.machine, measurement
    return _published(data, where), None


def load(path: Path | str) -> MachineMeasurement:
    """Read a machine that `perfmodel machine measure` wrote.

    Raises
    ------
    ModelError
        If the file cannot be read, is of another version, or a number in it makes no sense: names
        the key, what was wanted and what was found.
    """
    where, data = _content(path)
    return parse(data, where)


def _content(path: Path | str) -> tuple[str, dict[str, Any]]:
    """Return the file's name as it is shown, and what it holds."""
    where = printable(str(path))
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES} bytes")
        return where, tomllib.loads(content.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{where}: wanted a TOML file that perfmodel machine measure wrote; found none that "
            f"can be read ({printable(str(error))[:100]}); measure again"
        ) from None


def parse(data: Mapping[str, Any], where: str) -> MachineMeasurement:
    """Return the measurement that a file's content is, checked; see `load`."""
    top = Entries(data, where)
    if not {"format", "measured"} & set(data) and any(section in data for section in SECTIONS):
        raise ModelError(
            f"{where}: wanted what perfmodel machine measure wrote; found a datasheet, which "
            f"measured nothing; run perfmodel machine measure on such a machine"
        )
    if top.get("format") != FORMAT:
        raise top.wrong("format", repr(FORMAT))
    if top.get("version") != VERSION:
        raise top.wrong("version", VERSION)
    top.only(_MEASURED_KEYS)
    measured = top.table("measured")
    source = top.text("source")
    versions = measured.table("versions")
    elapsed = measured.table("elapsed_s")
    return MachineMeasurement(
        machine=Machine.of(top.text("name"), source, _figures(top, source)),
        gpus=top.texts("gpus"),
        cpus=top.texts("cpus"),
        date=measured.text("date"),
        command=measured.text("command"),
        ranks=measured.whole("ranks"),
        cores=measured.whole("cores"),
        versions={key: versions.text(key) for key in versions},
        series=tuple(_series(entry) for entry in top.tables("series")),
        products=tuple(_products(entry) for entry in top.tables("products")),
        elapsed_s={key: elapsed.number(key, least=0.0) for key in elapsed},
        warnings=measured.texts("warnings"),
    )


def _published(data: Mapping[str, Any], where: str) -> Machine:
    """Return the machine of a file that has figures and sources, and no measurement."""
    top = Entries(data, where)
    top.only((*_KEYS, "note"))
    source = top.text("source")
    note = top.text("note") if "note" in data else ""
    return Machine.of(top.text("name"), source, _figures(top, source), note)


def _figures(top: Entries, source: str) -> dict[tuple[str, str], Figure]:
    """Return the figures of every section that there is."""
    return {
        (section, key): _figure(table, key, source)
        for section in SECTIONS
        if section in top
        for table in (top.table(section),)
        for key in table
    }


def _figure(section: Entries, key: str, source: str) -> Figure:
    if not isinstance(section.get(key), Mapping):
        return Figure(section.number(key), source)
    given = section.table(key)
    given.only([one.name for one in fields(Figure)])
    value = given.number("value")
    q1, q3 = (given.number(q) if given.get(q) is not None else None for q in ("q1", "q3"))
    if not (value if q1 is None else q1) <= value <= (value if q3 is None else q3):
        raise given.wrong("value", "a value between its quartiles q1 and q3")
    repeats = given.whole("repeats") if given.get("repeats") is not None else None
    said = given.text("source") if given.get("source") is not None else source
    return Figure(value, said, q1, q3, repeats)


def _series(entry: Entries) -> Series:
    entry.only([one.name for one in fields(Series)])
    sizes = entry.wholes("bytes")
    if sorted(set(sizes)) != list(sizes):
        raise entry.wrong("bytes", "sizes that rise")
    return Series(
        entry.choice("kind", KINDS),
        entry.choice("memory", MEMORIES),
        entry.choice("direction", DIRECTIONS),
        entry.choice("clock", CLOCKS),
        entry.whole("ranks"),
        sizes,
        *_spread(entry, len(sizes)),
        entry.whole("repeats"),
    )


def _products(entry: Entries) -> Products:
    entry.only([one.name for one in fields(Products)])
    m = entry.wholes("m")
    n, k = (entry.wholes(key, len(m)) for key in ("n", "k"))
    return Products(
        entry.text("name"),
        entry.choice("dtype", DTYPES),
        entry.choice("layout", LAYOUTS),
        m,
        n,
        k,
        *_spread(entry, len(m)),
        entry.whole("repeats"),
    )


def _spread(
    entry: Entries, count: int
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Return median, first and third quartile in seconds."""
    median, q1, q3 = (entry.numbers(key, count) for key in ("median_s", "q1_s", "q3_s"))
    if not all(low <= t <= high for low, t, high in zip(q1, median, q3, strict=True)):
        raise entry.wrong("median_s", "medians between the quartiles q1_s and q3_s")
    return median, q1, q3


def as_text(measurement: MachineMeasurement) -> str:
    """Return what a measurement's file holds; the same one gives the same bytes."""
    return "\n".join(_lines(measurement)) + "\n"


def save(measurement: MachineMeasurement, path: Path) -> None:
    """Write a measurement."""
    write_text(path, as_text(measurement))


def _lines(found: MachineMeasurement) -> Iterator[str]:
    yield f"format = {_value(FORMAT)}"
    yield f"version = {VERSION}"
    yield f"name = {_value(found.machine.name)}"
    yield f"gpus = {_value(found.gpus)}"
    yield f"cpus = {_value(found.cpus)}"
    yield f"source = {_value(found.machine.source)}"
    yield from _table("measured", {
        "date": found.date, "command": found.command, "ranks": found.ranks,
        "cores": found.cores, "warnings": found.warnings,
    })  # fmt: skip
    yield from _table("measured.versions", found.versions)
    yield from _table("measured.elapsed_s", found.elapsed_s)
    for section in SECTIONS:
        kept = {key: f for (of, key), f in found.machine.figures.items() if of == section}
        if kept:
            yield from _table(section, kept)
    for name, entries in (("series", found.series), ("products", found.products)):
        for entry in entries:
            yield f"\n[[{name}]]"
            for one in fields(entry):
                yield f"{one.name} = {_value(getattr(entry, one.name))}"


def _table(name: str, values: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n[{name}]"
    for key, value in values.items():
        yield f"{_key(key)} = {_value(value)}"


def _key(key: str) -> str:
    bare = key and key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        # JSON's strings are TOML's, but for DEL; surrogates cannot be written
        text = value.encode("utf-8", "replace").decode()
        return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Figure):
        given = {f.name: getattr(value, f.name) for f in fields(value)}
        kept = ", ".join(f"{k} = {_value(v)}" for k, v in given.items() if v is not None)
        return f"{{ {kept} }}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)

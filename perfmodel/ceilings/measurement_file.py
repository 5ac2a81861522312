"""A measured machine as a TOML file of the same form as the shipped ones: written and read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from perfmodel.ceilings.measurement import (
    MachineMeasurement,
)  # fmt: skip
from perfmodel.files import write_text
from perfmodel.machine import SECTIONS, Figure

FORMAT: Final = "perfmodel machine"
VERSION: Final = 1
_MOST_BYTES: Final = 20_000_000


def save(measurement: MachineMeasurement, path: Path) -> None:
    """Write a measurement; the same one gives the same bytes."""
    write_text(path, "\n".join(_lines(measurement)) + "\n")


def _lines(found: MachineMeasurement) -> Iterator[str]:
    yield f"format = {_value(FORMAT)}"
    yield f"version = {VERSION}"
    yield f"name = {_value(found.machine.name)}"
    yield f"gpus = {_value(found.devices)}"
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

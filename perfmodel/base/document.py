"""Results as plain data that JSON holds (missing is null, never NaN); tables of files, checked."""

from __future__ import annotations

import json
import math
import re
import sys
import tomllib
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin, get_type_hints

from perfmodel import __version__
from perfmodel.base.errors import ModelError
from perfmodel.base.escape import escape_json, printable
from perfmodel.base.files import read_whole

if TYPE_CHECKING:
    from perfmodel.base.arrays import Floats

LEFT_OUT: Final = {"left out where None": True}
"""Metadata of a field that JSON does not have where it is None."""
_MOST_BYTES: Final = 20_000_000
_MOST_PARTS: Final = 64
_LONGEST_WHOLE: Final = 20  # digits of 2**63, and a sign
_PARTS_AT_ONCE: Final = 1 << 16
_STRING: Final = re.compile(  # or a comment; one without an end goes to the end: no second try
    r'"""(?:[^\\]|\\.)*?(?:"""|\\?\Z)'
    r"|'''.*?(?:'''|\Z)"
    r'|"(?:[^"\\\n]|\\.)*\\?"?'
    r"|'[^'\n]*'?|#[^\n]*",
    re.DOTALL,
)
_LONG_NUMBER: Final = re.compile(r"(?<![\w-])[+-]?0[xob][0-9a-fA-F_]{200}")  # TOML's have 64 bits
_LONG_KEY: Final = re.compile(rf"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){{{_MOST_PARTS}}}")


@dataclass(frozen=True)
class Head:
    """What a document begins with.

    Attributes
    ----------
    schema_version : int
        Grows by one when a key changes its meaning or goes away; new keys do not change it.
    perfmodel_version : str
        Of the package that wrote it.
    """

    schema_version: int
    perfmodel_version: str = __version__


def to_json(value: Any, indent: int | None = 1) -> str:
    """Return a value as JSON that is harmless in a terminal; see `plain`."""
    return "".join(to_json_parts(value, indent))


def to_json_parts(value: Any, indent: int | None = 1) -> Iterator[str]:
    """Yield the parts of `to_json`: those of a large one take gigabytes."""
    parts = json.JSONEncoder(indent=indent, allow_nan=False).iterencode(plain(value))
    while part := "".join(islice(parts, _PARTS_AT_ONCE)):
        yield escape_json(part)


def plain(value: Any) -> Any:
    """Return plain Python data: data classes as dictionaries, infinity and NaN as None.

    `JSON_KEYS` of a data class maps attributes to keys: fields with another key, properties that
    are written, too, and fields without a key, which are not written. A field with `LEFT_OUT` is
    left out where it is None. A key of several parts has dots between them.
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {
            ".".join(map(str, k)) if isinstance(k, tuple) else str(k): plain(v)
            for k, v in value.items()
        }
    if is_dataclass(value):
        return {key: plain(v) for key, v in _members(value).items()}
    if isinstance(value, Iterable):
        return [plain(v) for v in value]
    return plain(value.item()) if hasattr(value, "item") else str(value)


def view(*parts: Any, **more: Any) -> dict[str, Any]:
    """Return the keys of data classes and mappings, and more, with their values as they are."""
    found: dict[str, Any] = {}
    for part in parts:
        found |= part if isinstance(part, Mapping) else _members(part)
    return found | more


def plain_view(*parts: Any, **more: Any) -> dict[str, Any]:
    """Return the keys of `view` with plain Python data."""
    return {key: plain(value) for key, value in view(*parts, **more).items()}


def _members(record: Any) -> dict[str, Any]:
    kind = type(record)
    members = ((key, getattr(record, name)) for name, key in json_keys(kind).items())
    absent = {f.name for f in fields(kind) if f.metadata == LEFT_OUT}
    return {key: value for key, value in members if value is not None or key not in absent}


def json_keys(kind: type[Any]) -> dict[str, str]:
    """Return the keys of a data class in JSON by the attributes that they hold."""
    keys = {f.name: f.name for f in fields(kind)} | dict(getattr(kind, "JSON_KEYS", {}))
    return {name: key for name, key in keys.items() if key}


def pick(item: object, names: str, **renamed: str) -> dict[str, Any]:
    """Return attributes of an object by name; `renamed` maps other keys to attributes.

    Examples
    --------
    >>> pick(1 + 2j, "real", imaginary="imag")
    {'real': 1.0, 'imaginary': 2.0}
    """
    wanted = {name: name for name in names.split()} | renamed
    return {key: attrgetter(name)(item) for key, name in wanted.items()}


def read_table(path: Path, parse: Callable[[str], Any], what: str, again: str) -> Any:
    """Read a file of at most 20 MB; `parse` is of its format, `what` it should be for errors.

    Raises
    ------
    ModelError
        If the file cannot be read or parsed.
    """
    try:
        return parse(read_whole(path, _MOST_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{printable(str(path))}: expected {what}; got none that can be read "
            f"({printable(str(error))[:100]}); {again}"
        ) from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML whose keys have at most 64 parts: tomllib takes 3.5 GB for one of 30,000.

    Numbers in another base than ten have at most 200 digits: Python prints none of 4,300.

    Raises
    ------
    ValueError
        If it is not TOML (`tomllib.TOMLDecodeError`), or a key or number is longer.
    """
    bare = _STRING.sub("s", text)
    if _LONG_KEY.search(bare):
        raise ValueError(f"a key of more than {_MOST_PARTS} parts")
    if _LONG_NUMBER.search(bare):
        raise ValueError("a number of more than 64 bits")
    return tomllib.loads(text)


def parse_json(text: str) -> Any:
    """Parse JSON whose numbers are finite and, where they are whole, have 64 bits.

    Raises
    ------
    ValueError
        If it is not JSON, or a number is not.
    RecursionError
        If it is nested too deeply.
    """
    return json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_finite)


def _whole(digits: str) -> int:
    if len(digits) > _LONGEST_WHOLE or abs(number := int(digits)) >= 1 << 63:
        raise ValueError(f"{digits[:30]} has more than 64 bits")
    return number


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:30]} is not finite")
    return number


def fitting(hint: Any, value: Any) -> Any:
    """Return a value of JSON as a type says: data classes, tuples, mappings, plain values.

    Numbers must be finite and at least 0; a mapping of whole numbers has them above 0.

    Raises
    ------
    ValueError
        If the value does not fit.

    Examples
    --------
    >>> fitting(tuple[tuple[int, ...], ...], [[1, 2], [3]])
    ((1, 2), (3,))
    """
    kinds, name = get_args(hint), getattr(hint, "__name__", str(hint))
    if hint is Any:
        return value
    if type(None) in kinds:
        return None if value is None else fitting(kinds[0], value)
    if is_dataclass(hint) and isinstance(value, Mapping):
        hints = get_type_hints(hint)
        have = {f.name for f in fields(hint)} & {*value}
        made: Any = hint
        return made(**{key: fitting(hints[key], value[key]) for key in have})
    if get_origin(hint) is tuple and isinstance(value, list):
        same = kinds[-1] is Ellipsis
        if same or len(kinds) == len(value):
            return tuple(fitting(kinds[0 if same else i], v) for i, v in enumerate(value))
    elif get_origin(hint) is abc.Mapping and isinstance(value, Mapping):
        if kinds[1] is not int or 0 not in value.values():
            return {key: fitting(kinds[1], one) for key, one in value.items()}
    elif (hint in (str, bool) and type(value) is hint) or (
        ((hint is int and type(value) is int) or (hint is float and _is_number(value)))
        and value >= 0
    ):
        return float(value) if hint is float else value
    raise ValueError(f"expected {name}; got {_shown(value)}")


class Entries:
    """Takes keys of a table of a file, TOML or JSON, refusing what is not as expected.

    Parameters
    ----------
    data : mapping
    where : str
        The file, and the table in it, for errors.
    again : str
        What to do with a file that was damaged.

    Raises
    ------
    ModelError
        By every method: names the file, the key, what was expected and what was got.
    """

    def __init__(self, data: Any, where: str, again: str) -> None:
        self._where, self._again = where, again
        if not isinstance(data, Mapping):
            raise ModelError(f"{where}: expected a table; got {_shown(data)}; {again}")
        self._data = data

    def get(self, key: str) -> Any:
        """Return the value as it is; None if there is none."""
        return self._data.get(key)

    def __iter__(self) -> Iterator[str]:
        """Give the keys there are."""
        return iter(self._data)

    def wrong(self, key: str, expected: object) -> ModelError:
        """Return the error that says what was expected of a key."""
        found = _shown(self.get(key)) if key in self._data else "no such key"
        return ModelError(
            f"{self._where}: key {printable(key)!r}: expected {expected}; got {found}; "
            f"{self._again}: the file was changed or damaged, or another version of perfmodel "
            "wrote it"
        )

    def only(self, keys: Iterable[str]) -> None:
        """Refuse a key that is not among these."""
        known = list(keys)
        for key in self._data:
            if key not in known:
                raise self.wrong(key, f"only the keys {', '.join(known)}")

    def table(self, key: str) -> Entries:
        """Return a table within."""
        return Entries(self.get(key), f"{self._where}: {printable(key)}", self._again)

    def tables(self, key: str) -> list[Entries]:
        """Return the tables of an array; none if the key is absent."""
        found = self.get(key)
        if found is None:
            return []
        if not isinstance(found, list):
            raise self.wrong(key, "an array of tables")
        return [
            Entries(e, f"{self._where}: {key} {i + 1}", self._again) for i, e in enumerate(found)
        ]

    def text(self, key: str) -> str:
        """Return a text."""
        value = self.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        """Return one of some texts."""
        value = self.get(key)
        if not isinstance(value, str) or value not in allowed:
            raise self.wrong(key, f"one of {', '.join(allowed)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts."""
        value = self.get(key)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.wrong(key, "a list of texts")
        return tuple(value)

    def number(self, key: str, *, least: float | None = None) -> float:
        """Return a finite number above 0, or of at least `least`."""
        value = self.get(key)
        if not _is_number(value) or (value <= 0 if least is None else value < least):
            above = "above 0" if least is None else f"of at least {least:g}"
            raise self.wrong(key, f"a finite number {above}")
        return float(value)

    def whole(self, key: str) -> int:
        """Return a whole number above 0."""
        value = self.get(key)
        if type(value) is not int or value <= 0:
            raise self.wrong(key, "a whole number above 0")
        return value

    def numbers(self, key: str, count: int | None = None, *kinds: type) -> tuple[Any, ...]:
        """Return numbers above 0, so many or any number of them, of these types."""
        value = self.get(key)
        given = value if isinstance(value, list) else []
        fits = (_is_number(v) and v > 0 and type(v) in (kinds or (int, float)) for v in given)
        if not given or len(given) != (count or len(given)) or not all(fits):
            raise self.wrong(key, f"{count or 'some'} numbers above 0")
        return tuple(given) if kinds else tuple(map(float, given))

    def wholes(self, key: str, count: int | None = None) -> tuple[int, ...]:
        """Return whole numbers above 0, so many or any number of them."""
        return self.numbers(key, count, int)

    def array(self, key: str, shape: tuple[int | None, ...], *, signed: bool = False) -> Floats:
        """Return finite numbers as an array of a shape, None of any length; not below 0."""
        import numpy as np

        value = self.get(key)
        rows: list[Any] = value if isinstance(value, list) else [None]
        if len(shape) > 1 and all(isinstance(row, list) for row in rows):
            rows = [number for row in rows for number in row]
        if not all(map(_is_number, rows)):
            raise self.wrong(key, f"finite numbers of shape {shape}")
        try:
            array = np.array(value, float)
        except ValueError:
            raise self.wrong(key, f"numbers of shape {shape}") from None
        fits = array.ndim == len(shape) and all(
            length in (None, found) for length, found in zip(shape, array.shape, strict=True)
        )
        if not fits or (not signed and (array < 0).any()):
            raise self.wrong(key, f"numbers of shape {shape}, at least 0")
        return array


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _shown(value: Any) -> str:
    shown = printable(repr(value))
    return shown if len(shown) <= 80 else shown[:79] + "…"

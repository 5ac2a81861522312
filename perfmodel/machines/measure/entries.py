"""A table of a TOML file whose values are checked as they are taken."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from perfmodel.base.errors import ModelError
from perfmodel.base.escape import printable


class Entries:
    """Takes keys of a table; a value that is not as wanted is refused by name.

    Raises
    ------
    ModelError
        By every method: names the file, the key, what was wanted and what was found.
    """

    def __init__(self, data: Any, where: str) -> None:
        self._where = where
        if not isinstance(data, Mapping):
            raise ModelError(f"{where}: wanted a table; found {_shown(data)}; measure again")
        self._data = data

    def get(self, key: str) -> Any:
        """Return the value as it is; None if there is none."""
        return self._data.get(key)

    def __iter__(self) -> Iterator[str]:
        """Give the keys there are."""
        return iter(self._data)

    def wrong(self, key: str, wanted: object) -> ModelError:
        """Return the error that says what was wanted of a key."""
        found = _shown(self.get(key)) if key in self._data else "no such key"
        return ModelError(
            f"{self._where}: key {printable(key)!r}: wanted {wanted}; found {found}; measure "
            "again: the file was changed or damaged, or another version of perfmodel wrote it"
        )

    def only(self, keys: Iterable[str]) -> None:
        """Refuse a key that is not among these."""
        known = list(keys)
        for key in self._data:
            if key not in known:
                raise self.wrong(key, f"only the keys {', '.join(known)}")

    def table(self, key: str) -> Entries:
        """Return a table within."""
        return Entries(self.get(key), f"{self._where}: {printable(key)}")

    def tables(self, key: str) -> list[Entries]:
        """Return the tables of an array; none if the key is absent."""
        found = self.get(key)
        if found is None:
            return []
        if not isinstance(found, list):
            raise self.wrong(key, "an array of tables")
        return [Entries(e, f"{self._where}: {key} {i + 1}") for i, e in enumerate(found)]

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
            wanted = "above 0" if least is None else f"of at least {least:g}"
            raise self.wrong(key, f"a finite number {wanted}")
        return float(value)

    def whole(self, key: str) -> int:
        """Return a whole number above 0."""
        value = self.get(key)
        if type(value) is not int or value <= 0:
            raise self.wrong(key, "a whole number above 0")
        return value

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """Return so many finite numbers above 0."""
        return tuple(float(v) for v in self._several(key, count, lambda v: _is_number(v) and v > 0))

    def wholes(self, key: str, count: int | None = None) -> tuple[int, ...]:
        """Return whole numbers above 0, so many or any number of them."""
        return tuple(self._several(key, count, lambda v: type(v) is int and v > 0))

    def _several(self, key: str, count: int | None, fits: Callable[[Any], bool]) -> list[Any]:
        value = self.get(key)
        right = isinstance(value, list) and value and len(value) == (count or len(value))
        if not right or not all(fits(v) for v in value):
            raise self.wrong(key, f"{count or 'some'} numbers above 0")
        return list(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _shown(value: Any) -> str:
    shown = printable(repr(value))
    return shown if len(shown) <= 80 else shown[:79] + "…"

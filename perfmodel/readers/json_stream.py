"""Reads a large JSON object whose bulk is one array, an element at a time."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, Final

from perfmodel.base.errors import ReportError

_BLOCK: Final = 1 << 20
_LARGEST: Final = 64 << 20
"""Characters of one element, of one value beside the array, or of blanks between two."""
_NEAR: Final = 32
"""An error nearer to the end of what was read may be the end's."""
_NOT_BLANK: Final = re.compile(r"[^ \t\n\r]")
_MOST_KEYS: Final = 10_000


class JsonStream:
    """A JSON object, or an array alone, of which the elements of one array are not kept.

    Numbers with a fraction or an exponent come as text, so that none is rounded.

    Parameters
    ----------
    stream : file
        Of bytes in UTF-8, UTF-16 or UTF-32; what is none of its encoding is replaced.
    path : Path
        What errors call the file.
    array : str
        Key of the array whose elements are yielded.
    keep : collection of str
        Other keys whose values are kept.

    Attributes
    ----------
    beside : dict
        Values of the other keys, None of those that are not kept; complete when all elements have
        been yielded.
    found : bool
        Whether the array was there.
    """

    def __init__(
        self, stream: IO[bytes], path: Path, array: str, keep: Collection[str] = ()
    ) -> None:
        self.beside: dict[str, Any] = {}
        self.found = False
        self._stream, self._path, self._array, self._keep = stream, path, array, keep
        self._decoder: codecs.IncrementalDecoder | None = None
        self._scan = json.JSONDecoder(parse_float=str).raw_decode
        self._text, self._at, self._before, self._ended = "", 0, 0, False

    def __iter__(self) -> Iterator[Any]:
        """Yield the elements of the array.

        Raises
        ------
        ReportError
            If the file is truncated, or is no JSON.
        """
        if self._next() == "[":
            self.found = True
            yield from self._elements()
        else:
            yield from self._members()
        if self._next(or_end=True):
            raise self._bad("the end of the file")

    @property
    def characters(self) -> int:
        """How many characters have been taken."""
        return self._before + self._at

    def _members(self) -> Iterator[Any]:
        self._take("{")
        while self._next() != "}":
            key = self._value()
            if not isinstance(key, str):
                raise self._bad("a key")
            self._take(":")
            if key == self._array and self._next() == "[":
                self.found = True
                yield from self._elements()
            else:
                value = self._value()
                self.beside[key] = value if key in self._keep else None
                if len(self.beside) > _MOST_KEYS:
                    raise self._bad(f"at most {_MOST_KEYS} keys")
            if self._next() == ",":
                self._at += 1
        self._at += 1

    def _elements(self) -> Iterator[Any]:
        self._take("[")
        while self._next() != "]":
            yield self._value()
            if self._next() == ",":
                self._at += 1
        self._at += 1

    def _take(self, expected: str) -> None:
        if self._next() != expected:
            raise self._bad(repr(expected))
        self._at += 1

    def _next(self, *, or_end: bool = False) -> str:
        """Return the next character that is no blank, without taking it."""
        blank = 0
        while True:
            if found := _NOT_BLANK.search(self._text, self._at):
                self._at = found.start()
                return found[0]
            blank += len(self._text) - self._at
            self._at = len(self._text)
            if blank > _LARGEST:
                raise self._bad("a value")
            if not self._more():
                if or_end:
                    return ""
                raise self._truncated()

    def _value(self) -> Any:
        """Take one value, reading on until it is whole."""
        self._next()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except RecursionError as error:
                raise self._bad("values nested less deeply") from error
            except json.JSONDecodeError as error:
                whole = error.pos < len(self._text) - _NEAR and "Unterminated" not in error.msg
                if whole or len(self._text) - self._at > _LARGEST:
                    self._at = error.pos
                    raise self._bad("JSON") from error
                if not self._more():
                    raise self._truncated() from error
                continue
            except ValueError as error:  # more digits than Python converts
                raise self._bad("numbers of 64 bits") from error
            if end < len(self._text) or self._ended:
                self._at = end
                return value
            self._more()  # a number may go on

    def _more(self) -> bool:
        """Read on; return whether there was more. What was taken is dropped."""
        if self._ended:
            return False
        left = len(self._text) - self._at
        try:
            block = self._stream.read(max(_BLOCK, left))
        except Exception as error:  # every library of compression has errors of its own
            raise ReportError(f"{self._path}: cannot be read ({error}); copy it again") from error
        self._ended = not block
        self._before += self._at
        if self._decoder is None:
            self._decoder = codecs.getincrementaldecoder(json.detect_encoding(block))("replace")
        self._text = self._text[self._at :] + self._decoder.decode(block, self._ended)
        self._at = 0
        return not self._ended or len(self._text) > left

    def _truncated(self) -> ReportError:
        return ReportError(
            f"{self._path}: the file is truncated: expected a whole JSON file; got one that ends "
            f"in a value that begins at character {self._before + self._at}; copy it again, or "
            f"record it again"
        )

    def _bad(self, expected: str) -> ReportError:
        got = self._text[self._at : self._at + 20]
        return ReportError(
            f"{self._path}: expected {expected} at character {self._before + self._at}; got "
            f"{got!r}; the file is damaged: copy it again, or record it again"
        )

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
_LONGEST_NAME: Final = 1 << 16
"""Characters of the longest name that is repaired wherever it lies; kernels have some thousand."""
_NOT_BLANK: Final = re.compile(r"[^ \t\n\r]")
_FLAW: Final = re.compile(
    r'"(?:[^"\\]+|\\.)*+"?|(?<![\w.])[-+]?(?:nan|inf(?:inity)?|n/a)(?![\w.])',
    re.DOTALL | re.IGNORECASE,
)
"""A text, whole or up to the end of what was read, or a number that JSON cannot write; Kineto of
early 2021 writes N/A (pytorch/kineto, pull request 133)."""
_NAME: Final = re.compile(
    r'("ph": "X", "cat": "[^"]*", "name": ")((?:(?!"ph": ).)*?)(?=", "pid": )'
)
"""An event's name in the order in which Kineto writes an event's keys, on one line."""
_IN_NAME: Final = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\|"')
"""A valid escape, a backslash that begins none, or a quotation mark that should have one."""
_BAD_ESCAPE: Final = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\(?!u[0-9a-fA-F]{0,3}\Z)')
"""A valid escape, or a backslash that begins none; one cut off at the end is neither."""
_MOST_KEYS: Final = 10_000


class JsonStream:
    """A JSON object, or an array alone, of which the elements of one array are not kept.

    Numbers with a fraction or an exponent come as text, so that none is rounded.

    Profilers write texts that are not valid JSON: Windows paths whose backslashes are not escaped,
    names with quotation marks (pytorch/pytorch, issue 146900), control characters, `nan` and `inf`
    of C. A backslash that begins no escape stands for itself, a control character too, and so does
    a quotation mark in an event's name; a number that is not finite becomes None.

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
    foreign : collection of str
        Keys that only files of other kinds have: reading ends before their value.

    Attributes
    ----------
    beside : dict
        Values of the other keys, None of those that are not kept; complete when all elements have
        been yielded.
    found : bool
        Whether the array was there.
    foreign : str or None
        The key of another kind of file at which reading ended.
    """

    def __init__(
        self,
        stream: IO[bytes],
        path: Path,
        array: str,
        keep: Collection[str] = (),
        foreign: Collection[str] = (),
    ) -> None:
        self.beside: dict[str, Any] = {}
        self.found = False
        self.foreign: str | None = None
        self._stream, self._path, self._array, self._keep = stream, path, array, keep
        self._foreign = foreign
        self._decoder: codecs.IncrementalDecoder | None = None
        self._scan = json.JSONDecoder(
            parse_float=str, parse_constant=lambda _: None, strict=False
        ).raw_decode
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
            if self.foreign is not None:
                return
        if self._next(or_end=True):
            raise self._bad("the end of the file")

    @property
    def characters(self) -> int:
        """Return the number of characters taken."""
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
                self.beside[key] = None
                if len(self.beside) > _MOST_KEYS:
                    raise self._bad(f"at most {_MOST_KEYS} keys")
                if key in self._foreign:
                    self.foreign = key
                    return
                if key in self._keep:
                    self.beside[key] = self._value()
                else:
                    self._skip()
            if self._next() == ",":
                self._at += 1
        self._at += 1

    def _skip(self) -> None:
        """Take a value; of an array, which may be large, one element at a time."""
        if self._next() == "[":
            for _ in self._elements():
                pass
        else:
            self._value()

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
                taken = error.pos - self._at  # reading on moves the text
                whole = error.pos < len(self._text) - _NEAR and "Unterminated" not in error.msg
                large = len(self._text) - self._at > _LARGEST
                whole = whole or large
                if (not whole and self._more()) or self._repair():
                    continue
                if not large and len(self._text) - error.pos < _LONGEST_NAME and self._more():
                    continue  # what ends a name to repair may not have been read
                if whole:
                    self._at += taken
                    raise self._bad("JSON") from error
                raise self._truncated() from error
            except ValueError as error:  # more digits than Python converts
                raise self._bad("numbers of 64 bits") from error
            if end < len(self._text) or self._ended:
                self._at = end
                return value
            self._more()  # a number may go on

    def _repair(self) -> bool:
        """Make valid JSON of texts and numbers in what was read; return whether that changed it.

        What is not taken yet begins outside of a text.
        """
        left = self._text[self._at :]
        repaired = _FLAW.sub(_repaired, _NAME.sub(_repaired_name, left))
        if repaired == left:
            return False
        self._before -= len(repaired) - len(left)  # characters of the file, not of the repair
        self._text = self._text[: self._at] + repaired
        return True

    def _more(self) -> bool:
        """Read on; return whether there was more. What was taken is dropped."""
        if self._ended:
            return False
        left = len(self._text) - self._at
        try:
            block = self._stream.read(max(_BLOCK, left))
        except ReportError:
            raise
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


def _repaired_name(name: re.Match[str]) -> str:
    """Return a name in which every quotation mark and every lone backslash has a backslash."""
    return name[1] + _IN_NAME.sub(lambda m: m[1] or f"\\{m[0]}", name[2])


def _repaired(flaw: re.Match[str]) -> str:
    """Return a text with every lone backslash doubled; `null` for a number that is not finite."""
    found = flaw[0]
    if not found.startswith('"'):
        return "null"
    return _BAD_ESCAPE.sub(lambda m: m[1] or "\\\\", found) if "\\" in found else found

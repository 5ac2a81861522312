"""Reads texts of PyTorch's operators without their numbers, by which every call has one of its own.

Of ``aten::mm, seq = 41, op_id = 37, sizes = [[96, 32], [32, 32]], input_op_ids = [(20,0), (0,-1)]``
the text ``aten::mm, seq = , op_id = , sizes = [[96, 32], [32, 32]], input_op_ids = [(,0), (0,-1)]``
is left, which all calls of one kind share, and the numbers 41, 37 and 20.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int32, Int64
from perfmodel.readers.pages import Bytes, Numbered, Texts, refuse, words

_SIZE: Final = r"\[(?:(?:0|[1-9][0-9]{0,18})(?:, ?(?:0|[1-9][0-9]{0,18}))*)?\]"
SIZES: Final = re.compile(rf"\[(?:{_SIZE}(?:, ?{_SIZE})*)?\]")
"""Sizes of an operator's arguments that can be read."""
_ID: Final = r"\((?:0|),-?[0-9]{1,9}\)"
_CUT: Final = re.compile(
    r"(?:(?!, (?:seq|op_id|sizes|types|input_op_ids) = )[^(])*(?P<seq>, seq = )?(?P<op>, op_id = )?"
    rf"(?:, sizes = {SIZES.pattern})?(?:, input_op_ids = \[(?P<ids>(?:{_ID}(?:, ?{_ID})*)?)\])?"
)
_EMPTY: Final = re.compile(r"= (?:,|$)|\(,")
_SEQ, _OP = (int.from_bytes(text, "big", signed=True) for text in (b", seq = ", b", op_id "))
_DIGITS: Final = 18
_EQUALS, _SPACE, _OPEN, _ZERO = b"= (0"


def places(text: str) -> int:
    """Count the places in a text from which numbers were cut; 0 where it is not of this form.

    >>> places("aten::mm, seq = , op_id = , input_op_ids = [(,0), (0,-1)]")
    3
    """
    found = _CUT.fullmatch(text) if _EMPTY.search(text) else None
    if found is None:
        return 0
    return sum(found[name] is not None for name in ("seq", "op")) + (found["ids"] or "").count("(,")


class OperatorTexts(Texts):
    """Distinct texts without the numbers of operators, and these numbers.

    A text that has other numbers than its form has places is taken as it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: list[int] = []
        self._numbers: list[Int64] = []

    def coded(self, data: Bytes, at: Int64, size: Int64) -> Int64:
        """Return the code of every text."""
        if len(at) == 0:
            return at
        start, end, value = _numbers(data)
        by_place = np.argsort(at)
        which = by_place[np.searchsorted(at[by_place], start, side="right") - 1]
        inside = np.flatnonzero((start >= at[which]) & (end <= at[which] + size[which]))
        if len(inside) == 0:
            return self._known(data, at, size)
        start, end, value, which = (a[inside] for a in (start, end, value, which))
        kept = np.diff(np.column_stack([start, end]).ravel(), prepend=0, append=len(data))
        between = np.repeat(np.arange(len(kept)) % 2 == 0, kept)
        removed = np.concatenate([[0], np.cumsum(end - start)])
        count = np.bincount(which, minlength=len(at))
        shorter = size - np.bincount(which, end - start, len(at)).astype(np.int64)
        code = self._known(
            data[between],
            at - removed[np.searchsorted(start, at)],
            shorter,
        )
        whole = np.flatnonzero(np.array(self._places)[code] != count)
        code[whole] = self._known(data, at[whole], size[whole])
        cut = np.flatnonzero(np.isin(which, whole, invert=True)) if len(whole) else slice(None)
        value = value[cut][np.argsort(which[cut], kind="stable")]
        small = value.max(initial=0) < 1 << 32
        self._numbers.append(value.astype(np.uint32) if small else value)
        return code

    def _known(self, data: Bytes, at: Int64, size: Int64) -> Int64:
        code = super().coded(data, at, size)
        more = [*islice(reversed(self.codes), len(self.codes) - len(self._places))]
        self._places += [places(text.decode("utf-8", "replace")) for text in reversed(more)]
        return code

    def numbered(self, codes: Int32) -> Numbered | None:
        """Return the numbers that were cut out; None if none were."""
        if not self._numbers:
            return None
        numbers = np.concatenate(self._numbers)
        held = np.array([*self._places, 0], np.int32 if len(numbers) < 1 << 31 else np.int64)[codes]
        first = np.cumsum(held, dtype=held.dtype)
        refuse(held.sum() != len(numbers), "texts as they are without their numbers")
        return np.subtract(first, held, out=first), numbers


def _numbers(data: Bytes) -> tuple[Int64, Int64, Int64]:
    """Find numbers behind ``, seq = ``, ``, op_id = `` and ``(``: begins, ends and values.

    Those of more digits than an integer holds, and those that begin with 0, are none.
    """
    equals = np.flatnonzero(data[8:-16] == _EQUALS) + 8
    equals = equals[data[equals + 1] == _SPACE]
    named = (words(data, equals - 6) == _SEQ) | (words(data, equals - 8) == _OP)
    start = np.concatenate([equals[named] + 2, np.flatnonzero(data[:-16] == _OPEN) + 1])
    digit = data[start].astype(np.int64) - _ZERO
    start = np.sort(start[(digit > 0) & (digit < 10)])
    end, value = start.copy(), np.zeros(len(start), np.int64)
    left = np.arange(len(start))
    for _ in range(_DIGITS + 1):
        digit = data[end[left]].astype(np.int64) - _ZERO
        more = (digit >= 0) & (digit < 10)
        left = left[more]
        if len(left) == 0:
            break
        value[left] = value[left] * 10 + digit[more]
        end[left] += 1
    fits = end - start <= _DIGITS
    return start[fits], end[fits], value[fits]

"""Names of PyTorch's operator ranges, parsed: operator, sequence number, sizes, inputs.

`torch.autograd.profiler.emit_nvtx(record_shapes=True)`, which `nsys profile
--pytorch=autograd-shapes-nvtx` calls, writes (torch/csrc/profiler/util.cpp, `getNvtxStr`)

    aten::mm, seq = 41, op_id = 37, sizes = [[96, 32], [32, 32]], input_op_ids = [(20,0), (0,-1)]

with only those parts that an operator has. A pair of `input_op_ids` is the `op_id` of the operator
that made an input and which of its outputs it is; `(0,-1)` where nothing recorded made it. A trace
of torch.profiler says behind the sizes what it has instead of these ids (`readers.kineto`):

    aten::mm, seq = 41, sizes = [[96, 32], [32, 32]], types = [float, float]
    aten::convolution_backward, sizes = [...], types = [...], needed = [False, True, False]
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int64
from perfmodel.readers.operator_texts import SIZES, places

Size = tuple[int, ...]
Sizes = tuple[Size, ...]

_ID: Final = r"\([0-9]{1,18},-?[0-9]{1,9}\)"
_IDS: Final = re.compile(rf"\[(?:{_ID}(?:, ?{_ID})*)?\]")
_LISTED: Final = re.compile(r"\[([^\[\]]*)\]")
_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_ONLY_NUMBERS: Final = str.maketrans("", "", "()[] ")


@dataclass(frozen=True, slots=True)
class OperatorNames:
    """Facts in the names of ranges, one row for each.

    Attributes
    ----------
    name : tuple of str
        Operator, function or range, without what follows.
    op_id, seq : int64, shape (n,)
        -1 where the name has none; -2 - i where it is the number i of those that were cut out.
    sizes : tuple
        Sizes of the arguments in order, () for what is no tensor (and for a tensor of no
        dimension); lists of tensors are flattened. None where the name holds none, or none that
        can be read.
    first : int64, shape (n + 1,)
        The inputs of row i are `first[i]` to `first[i + 1]` of the next two.
    input_op, input_output : int64, shape (inputs,)
        `op_id` of the operator that made an input (or -2 - i, too), and which output of it; -1 as
        output where nothing recorded made it.
    unread : int
        Names with sizes that cannot be read.
    types : tuple
        Types of the arguments as C++ names them, one for each of `sizes`; None where the name does
        not say them.
    needed : tuple
        Which results a backward is asked for; None where the name does not say it.
    """

    name: tuple[str, ...]
    op_id: Int64
    seq: Int64
    sizes: tuple[Sizes | None, ...]
    first: Int64
    input_op: Int64
    input_output: Int64
    unread: int
    types: tuple[tuple[str, ...] | None, ...]
    needed: tuple[tuple[bool, ...] | None, ...]

    def starting(self, *prefixes: str) -> Bool:
        """Return whether each name begins with one of some texts."""
        return np.array([name.startswith(prefixes) for name in self.name], np.bool_)


def parse(labels: Sequence[str], *, cut: bool = False) -> OperatorNames:
    """Parse the names of ranges; whatever is no operator's keeps its name and has nothing else.

    Time is linear in the text, whatever it holds: sizes nest two deep, numbers have at most 19
    digits, and all else is left unread.

    >>> found = parse(["aten::mm, seq = 4, op_id = 7, sizes = [[2, 3], [3, 5]]", "step 1"])
    >>> found.name, found.sizes
    (('aten::mm', 'step 1'), (((2, 3), (3, 5)), None))

    Where numbers were cut out (`readers.operator_texts`), their places are numbered.

    >>> found = parse(["aten::t, op_id = , sizes = [[2, 3]], input_op_ids = [(,0)]"], cut=True)
    >>> found.op_id.tolist(), found.input_op.tolist(), found.input_output.tolist()
    ([-2], [-3], [0])
    """
    names: list[str] = []
    op_id: list[int] = []
    seq: list[int] = []
    sizes: list[Sizes | None] = []
    types: list[tuple[str, ...] | None] = []
    needed: list[tuple[bool, ...] | None] = []
    inputs: list[str] = []
    counts: list[int] = []
    known: dict[str, Sizes | None] = {}
    unread = 0
    for label in labels:
        place = itertools.count(-2, -1) if cut and places(label) else None
        head, _, ids = label.partition(", input_op_ids = ")
        head, _, shown = head.partition(", sizes = ")
        shown, _, more = shown.partition(", types = ")
        head, numbered, number = head.partition(", op_id = ")
        name, ordered, sequence = head.partition(", seq = ")
        names.append(name)
        seq.append(next(place) if place and ordered else _number(sequence))
        op_id.append(next(place) if place and numbered else _number(number))
        if shown and shown not in known:
            known[shown] = _sizes(shown)
        found = known[shown] if shown else None
        sizes.append(found)
        kinds, asked = _listed(more) if more and found else (None, None)
        types.append(kinds if kinds is not None and len(kinds) == len(found or ()) else None)
        needed.append(None if asked is None else tuple(word == "True" for word in asked))
        unread += bool(shown) and found is None
        if place:
            begin, *parts = ids.split("(,")
            ids = begin + "".join(f"({next(place)},{part}" for part in parts)
        if ids and (place or _IDS.fullmatch(ids)):
            inputs.append(ids.translate(_ONLY_NUMBERS))
            counts.append(ids.count("("))
        else:
            counts.append(0)
    text = ",".join(part for part in inputs if part)
    numbers = np.fromstring(text, np.int64, sep=",") if text else np.empty(0, np.int64)
    return OperatorNames(
        tuple(names),
        np.array(op_id, np.int64),
        np.array(seq, np.int64),
        tuple(sizes),
        np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64),
        numbers[::2],
        numbers[1::2],
        unread,
        tuple(types),
        tuple(needed),
    )


def _number(text: str) -> int:
    return int(text) if _NUMBER.fullmatch(text) else -1


def _listed(text: str) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Words of the types' list, and of that of what is needed, if it follows."""
    types, _, needed = text.partition(", needed = ")
    found = (_LISTED.fullmatch(part) for part in (types, needed))
    first, second = (tuple(m[1].split(", ")) if m else None for m in found)
    return first, second


def _sizes(text: str) -> Sizes | None:
    if not SIZES.fullmatch(text):
        return None
    return tuple(map(tuple, json.loads(text)))

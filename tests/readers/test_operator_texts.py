"""Texts of PyTorch's operators are read without their numbers; with them they are as recorded."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.programs.pytorch.names import parse
from perfmodel.programs.pytorch.tree import Tree
from perfmodel.readers.operator_texts import OperatorTexts, places
from perfmodel.readers.pages import Numbered, PageFile, Texts, Unsupported

NUMBER = st.integers(0, 10**20)
SIZES = st.sampled_from(["[]", "[[2, 3], []]", "[[2,3]]", "[[1e3]]", "[[007]]"])
INPUT = st.tuples(NUMBER, st.integers(-1, 12)).map(lambda pair: f"({pair[0]},{pair[1]})")
INPUTS = st.lists(INPUT, max_size=4).map(lambda pairs: f"[{', '.join(pairs)}]")
OPERATOR = st.tuples(
    st.sampled_from(["aten::mm", "step", "f(12, 3)", "a, op_id = 3", "", "x (5,0)"]),
    *(
        st.none() | kind.map(lambda value, word=word: f", {word} = {value}")
        for word, kind in (
            ("seq", NUMBER), ("op_id", NUMBER), ("sizes", SIZES), ("input_op_ids", INPUTS),
        )
    ),
).map(lambda parts: "".join(part for part in parts if part))  # fmt: skip


def read(texts: list[str | None], kind: type[Texts]) -> tuple[list[str | None], Numbered | None]:
    """Write texts into a table and read them."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE t (s TEXT)")
            db.executemany("INSERT INTO t VALUES (?)", [(text,) for text in texts])
            db.commit()
        with PageFile(path) as pages:
            codes, strings, numbers = pages.read_text(2, 0, kind)
    return [strings[c] if c >= 0 else None for c in codes.tolist()], numbers


@pytest.mark.slow
@given(st.lists(st.none() | OPERATOR | st.text(st.characters(codec="utf-8"), max_size=9)))
@settings(max_examples=200, deadline=None)
def test_names_say_the_same_without_their_numbers(texts: list[str | None]) -> None:
    found, numbered = read(texts, OperatorTexts)
    assert [text is None for text in found] == [text is None for text in texts]
    first, numbers = numbered or (None, None)
    known = [i for i, text in enumerate(texts) if text is not None]
    whole = parse([texts[i] or "" for i in known])
    short = parse([found[i] or "" for i in known], cut=numbers is not None)
    at = np.array(known, np.int64)
    none = np.zeros(len(at), np.int64)
    label = np.arange(len(at))
    tree = Tree(label, none, none, None, None if first is None else first[at], numbers)
    assert short.name == whole.name
    assert short.sizes == whole.sizes
    assert short.unread == whole.unread
    assert short.first.tolist() == whole.first.tolist()
    assert short.input_output.tolist() == whole.input_output.tolist()
    assert tree.numbered(short.op_id).tolist() == whole.op_id.tolist()
    assert tree.numbered(short.seq).tolist() == whole.seq.tolist()
    of = np.repeat(label, np.diff(short.first))
    assert tree.numbered(short.input_op, of).tolist() == whole.input_op.tolist()


def test_calls_of_one_kind_share_a_text() -> None:
    texts = [
        f"aten::mm, seq = {i}, op_id = {i + 9}, sizes = [[2, 3], [3, 5]], "
        f"input_op_ids = [({i + 8},0), (0,-1)]"
        for i in range(1, 3000)
    ]
    found, numbered = read([*texts, None, "step 7"], OperatorTexts)
    text = "aten::mm, seq = , op_id = , sizes = [[2, 3], [3, 5]], input_op_ids = [(,0), (0,-1)]"
    assert found == [text] * 2999 + [None, "step 7"]
    assert places(text) == 3
    assert numbered is not None
    assert numbered[0].tolist() == [*range(0, 8997, 3), 8997, 8997]
    assert numbered[1].reshape(-1, 3).tolist() == [[i, i + 9, i + 8] for i in range(1, 3000)]


def test_a_text_that_has_no_number_where_others_have_one_is_refused() -> None:
    with pytest.raises(Unsupported, match="texts as they are without their numbers"):
        read(["aten::t, op_id = 5", "aten::t, op_id = "], OperatorTexts)

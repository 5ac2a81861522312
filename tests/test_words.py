"""The words of pages, messages, docstrings, comments and names are those of docs/glossary.md."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from benchmarks.common.folders import ROOT

RETIRED: Final = {
    r"the document('s)?\b(?! (of|with|that|holds))": "the CME 213 assignment",
    r"mend(s|ed|ing)?\b": "fix",
    r"(un)?told\b": "predicted, inferred, known, given",
    r"witness(es)?\b": "example",
    r"in vain\b": "needlessly",
    r"whose word\b": "",
    r"speaks\b": "is reported when",
    r"paces?\b": "speed; what limits the batch",
    r"rungs?\b": "optimization step",
    r"cautions?\b": "warning",
    r"(?<!memory )traffic\b": "copies, bytes; memory traffic",
    r"wanted\b": "expected",
    r"on paper\b": "by formula",
    r"test precision\b": "test accuracy",
    r"(matrix|large|small|thin|wide|split|TF32) products?\b": "GEMM",
    r"[\d.]+ us\b": "µs",
    r"[\d.]+%": "5 %, with a space",
}
"""Words that are not used any more, as regular expressions, each with what is said instead."""

PAGES: Final = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md",
    *(page for folder in ("benchmarks", "docs", "notebooks", "profiles")
      for page in sorted((ROOT / folder).glob("*.md"))),
]  # fmt: skip
MODULES: Final = [
    path for folder in ("perfmodel", "trainer") for path in sorted((ROOT / folder).rglob("*.py"))
]
RETIRED_NAMES: Final = {
    "pace", "paces", "paced", "rung", "rungs", "told", "untold", "witness", "witnesses", "mend",
    "mended", "caution", "cautions", "traffic",
}  # fmt: skip
WORDS: Final = re.compile("|".join(rf"(?<![\w-]){word}" for word in RETIRED), re.IGNORECASE)


def written(page: Path) -> Iterator[tuple[int, str]]:
    """Lines of a page but for code and output, without what stands between backticks."""
    fence = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            fence = not fence
        if not (fence or line.startswith(("```", "    ", "<!--"))):
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", " ", line)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Messages, titles, help, docstrings and comments of a module; no code between backticks."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and " " in text.strip():
            yield node.lineno, re.sub(r"`[^`]*`|\|[^|\n]*\|", " ", text)
    for token in _tokens(source):
        if token.type == tokenize.COMMENT:
            yield token.start[0], re.sub(r"`[^`]*`", " ", token.string)


def _tokens(source: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(source).readline)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_has_a_retired_word(page: Path) -> None:
    found = [f"{page.name}:{n}: {m[0]}" for n, line in written(page) for m in WORDS.finditer(line)]
    assert found == []


def test_no_message_docstring_or_comment_has_a_retired_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{n}: {m[0]!r} in {text[max(0, m.start() - 60) : m.end() + 60]!r}"
        for path in MODULES
        for n, text in texts(path)
        for m in WORDS.finditer(text)
    ]
    assert found == []


def test_no_name_is_a_retired_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}"
        for path in MODULES
        for token in _tokens(path.read_text(encoding="utf-8"))
        if token.type == tokenize.NAME and RETIRED_NAMES & set(token.string.lower().split("_"))
    ]
    assert found == []


def test_retired_words_are_found() -> None:
    for text in ("By the document's counting.", "12 us", "Mending it saves 5%.", "is untold"):
        assert WORDS.search(text), text
    for text in ("recommended", "memory traffic", "12 µs", "5 %", "the documentation", "spaces"):
        assert not WORDS.search(text), text

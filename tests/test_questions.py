"""docs/questions.md: every place that it names is there, and every numbered item has one."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from support.folders import ROOT

PAGE = ROOT / "docs" / "questions.md"
LINK = re.compile(r"\[[^]]*\]\(([^)#\s]*)(?:#([^)\s]+))?\)(?: \"([^\"]+)\")?")


def rows() -> list[tuple[str, str, str, str]]:
    """Return section, what is asked, where it is answered and the results of every row."""
    found, section = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and cells[0] != "asked":
            assert len(cells) == 3, line
            found.append((section, *cells))
    return found


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    return frozenset(plain)


@cache
def headings(notebook: Path) -> frozenset[str]:
    """Return the headings of a notebook's cells."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    lines = (line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"])
    return frozenset(line.lstrip("# ").strip() for line in lines if line.startswith("#"))


@pytest.mark.parametrize(("section", "asked", "answered", "results"), rows())
def test_the_places_of_an_answer_exist(
    section: str, asked: str, answered: str, results: str
) -> None:
    places = LINK.findall(answered)
    assert places, "expected a link to a page or a notebook"
    for target, anchor, quoted in places:
        path = (PAGE.parent / target).resolve()
        assert path.exists(), target
        if path.suffix == ".ipynb":
            assert quoted in headings(path), f"{target}: {quoted!r}"
        elif anchor:
            assert anchor in anchors(path), f"{target}#{anchor}"
    raw = re.findall(r"`([^`]+)`", results)
    assert raw, "expected the raw results"
    for name in raw:
        assert (ROOT / name).exists(), name


NUMBERED = {
    "CME 213, final project": [
        *(f"Figure {n}" for n in range(1, 15)), *(f"Question 1.{n}" for n in range(1, 5)),
        *(f"Question 2.{n}" for n in range(1, 7)), *(f"Optional {n}" for n in range(1, 5)),
    ],
    "CME 213, handout of part I": [
        "Figure 1", "Figures 2 to 4", "Figure 5", "Section 4.1", "Section 4.2", "Section 4.3",
    ],
    "HPML lab 4: DistributedDataParallel": [
        "Question 1, tables 1 to 3", "Question 2", "Question 3.1, tables 4 to 6",
        "Question 3.2, table 7", "Question 4.1", "Question 4.2", "Question 5", "Question 6",
        "Question 7",
    ],
    "HPML lab 5, part A": [f"Problem {p}.{q}" for p in (1, 2, 3) for q in range(1, 5)],
    "The ResNet study": ["Table of memory", "Table of FLOP", "Table of time", "Rooflines"],
}  # fmt: skip
"""What the documents number, by section of the page."""


@pytest.mark.parametrize("section", NUMBERED)
def test_everything_that_a_document_numbers_has_a_row(section: str) -> None:
    asked = [row[1] for row in rows() if row[0] == section]
    left_out = [
        name for name in NUMBERED[section] if not any(re.match(rf"{name}\b", one) for one in asked)
    ]
    assert left_out == []

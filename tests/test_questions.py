"""docs/questions.md: every place that it names is there, and every numbered item has one.

Every number of its short answers stands in a section of a page that the row links to, or in what
the notebook prints (checked by tests/notebooks/test_notebooks.py, which runs them).
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from benchmarks.common import results
from benchmarks.common.folders import RESULTS, ROOT

PAGE = ROOT / "docs" / "questions.md"
LINK = re.compile(r"\[[^]]*\]\(([^)#\s]*)(?:#([^)\s]+))?\)(?: \"([^\"]+)\")?")


def rows() -> list[tuple[str, str, str, str, str]]:
    """Return section, what is asked, the answer, where it stands and the results of every row."""
    found, section = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and cells[0] != "asked":
            assert len(cells) == 4, line
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


@cache
def section_of(page: Path, anchor: str) -> str:
    """Return a heading of a page and what stands below it, up to the next of its level."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found: list[str] = []
    level, fenced = 0, False
    for line in lines:
        fenced ^= line.startswith("```")
        heading = None if fenced else re.match(r"(#+) (.+)$", line)
        if heading and level and len(heading[1]) <= level:
            break
        if heading and re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-") == anchor:
            level = len(heading[1])
        if level:
            found.append(line)
    return "\n".join(found)


def not_in(text: str, answer: str) -> list[str]:
    """Return the numbers of an answer that a text does not have."""
    numbers = re.findall(r"\d+(?:[.,]\d+)*(?:e-?\d+)?", answer)
    return [n for n in numbers if not re.search(rf"(?<![\d.,]){re.escape(n)}(?![.,]?\d)", text)]


def pages_of(answered: str) -> str:
    """Return the sections of pages that a row links to, with the tables beside them."""
    places = [
        ((PAGE.parent / target).resolve(), anchor) for target, anchor, _ in LINK.findall(answered)
    ]
    text = "\n".join(
        section_of(path, anchor) if anchor else path.read_text(encoding="utf-8")
        for path, anchor in places if path.suffix == ".md"
    )  # fmt: skip
    beside = re.findall(r"\]\((data/[\w/-]+\.csv)\)", text)
    return "\n".join([text, *((PAGE.parent / name).read_text(encoding="utf-8") for name in beside)])


@pytest.mark.parametrize(
    ("asked", "answer", "answered"),
    [(asked, answer, where) for _, asked, answer, where, _ in rows() if ".ipynb" not in where],
)
def test_numbers_of_an_answer_stand_where_it_links_to(
    asked: str, answer: str, answered: str
) -> None:
    assert not_in(f"{asked}\n{pages_of(answered)}", answer) == []


def ddp_lab(name: str, part: str) -> list[dict[str, Any]]:
    """Return rows of a part of the DDP lab, by its raw file."""
    found = results.read(RESULTS / f"ddp_lab_{name}.json")["rows"]
    return [row for row in found if row["part"] == part]


def trained(name: str, setting: str, where: str) -> str:
    """Return the mean accuracy of a large batch after its last epoch."""
    found = [row for row in ddp_lab(name, "large") if row["setting"] == setting]
    return f"{fmean(fmean(np.atleast_1d({**r['curve'][-1], **r}[where])) for r in found):.3f}"


def keeps_the_accuracy() -> list[str]:
    """Training and test accuracy of the same runs, then two real GPUs."""
    pairs = [(trained("emulated", name, "train_accuracy"), trained("emulated", name,
              "test_accuracy")) for name in ("base", "long warm-up")]  # fmt: skip
    (train, test), (train_16, test_16) = pairs
    return [
        f"the training accuracy is {train} ", f"and {train_16} at 16 times",
        f"the test accuracy falls from {test} to {test_16}",
        f"the small batch has {trained('1', 'reference', 'test_accuracy')}",
        f"({trained('2', 'rule', 'train_accuracy')}, one run)",
    ]  # fmt: skip


def longer_by_ddp() -> list[str]:
    """Steps of 512 and of 128 images a GPU on two GPUs."""
    found = {(r["batch"], r["variant"]): r["step_s"] for r in ddp_lab("2", "steps")}
    more = {b: 100 * (found[b, "all"] / found[b, "alone"] - 1) for b in (128, 512)}
    return [
        f"512 a GPU {more[512]:.1f} % longer",
        f"of 128 {more[128]:.0f} % ({1e3 * found[128, 'alone']:.2f} to "
        f"{1e3 * found[128, 'all']:.1f} ms)",
    ]  # fmt: skip


def efficiencies() -> list[str]:
    """Two GPUs on the lab's images: the largest and the least that the page has."""
    page = (ROOT / "docs" / "ddp.md").read_text(encoding="utf-8")
    own = page.partition("own epochs -->")[2].partition("<!-- end of own epochs")[0]
    found = re.findall(r"^\| \d+ \|.*\| ([\d.]+) % \|", own, re.MULTILINE)
    return ["{} and {} % at 32, 128 and 512".format(", ".join(found[:2]), found[2])]


def on_a_k80() -> list[str]:
    """The last column of reasons first; FLOP over the board's peak named as too short."""
    page = (ROOT / "docs" / "layers_timed.md").read_text(encoding="utf-8")
    rows_of = page.partition("--document: reasons -->")[2].partition("<!-- end of reasons")[0]
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in rows_of.splitlines()]
    found = {(c[0], c[2]): c for c in cells if len(c) == 9}
    nets = ("vgg16", "googlenet", "resnet50")
    said = []
    for kind in ("single", "double"):
        a, b, c = (found[net, kind][7].removesuffix(" ms") for net in nets)
        said.append(f"{a}, {b} and {c} ms in {kind}")
    return [*said, "no K80 was measured"]


RAW = {
    "Question 2: weak": efficiencies, "Question 3.1, tables": longer_by_ddp,
    "Question 4.2": keeps_the_accuracy, "Problem 1.4": on_a_k80,
}  # fmt: skip
"""What an answer must say, by the rows that it is about: good numbers and bad ones alike."""


@pytest.mark.parametrize("asked", RAW)
def test_an_answer_says_what_its_own_rows_have(asked: str) -> None:
    answer = next(row[2] for row in rows() if row[1].startswith(asked))
    assert [said for said in RAW[asked]() if said not in answer] == []


@pytest.mark.parametrize(("section", "asked", "answer", "answered", "results"), rows())
def test_the_places_of_an_answer_exist(
    section: str, asked: str, answer: str, answered: str, results: str
) -> None:
    assert answer.endswith(".")
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
    "The ResNet study": ["Table of memory", "Table of FLOP", "Table of time", "Rooflines",
                         *(f"Hypothesis {n}" for n in range(1, 6))],
}  # fmt: skip
"""What the documents number, by section of the page."""


@pytest.mark.parametrize("section", NUMBERED)
def test_everything_that_a_document_numbers_has_a_row(section: str) -> None:
    asked = [row[1] for row in rows() if row[0] == section]
    left_out = [
        name for name in NUMBERED[section] if not any(re.match(rf"{name}\b", one) for one in asked)
    ]
    assert left_out == []

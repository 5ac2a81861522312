"""Reads HTML pages as a browser does, and builds the report whose names try to be code."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

from perfmodel.studies.models.model import Model
from perfmodel.studies.page import page
from support.build_report import ReportBuilder
from support.build_training import analyzed

TRICKS: Final = (
    "<script>window.hit='script'</script>",
    '"><img src=x onerror="window.hit=\'img\'">',
    "'><svg onload=window.hit='svg'>",
    "</style><script>window.hit='style'</script>",
    "</title></desc></svg><script>window.hit='title'</script>",
    "</script><script>window.hit='end'</script>",
    "]]><script>window.hit='cdata'</script><![CDATA[",
    "--><script>window.hit='comment'</script><!--",
    "${window.hit='template'}`+window.hit+`{{7*7}}{% raw %}{{ self }}",
    "&lt;b&gt;&#x3c;script&#x3e;&amp;",
    "javascript:window.hit='link'",
    "\x1b[31m\x00\u202e\u2028\ufffe\ud800 $x_1$ \\n",
)
"""Names that are code in some part of a page: text, attribute, style, picture, script, template."""

VOID: Final = ("meta", "link", "br", "hr", "img", "input")


@dataclass
class Element:
    """One element with its attributes, the text directly in it, and the elements around it."""

    tag: str
    attributes: dict[str, str | None]
    above: tuple[str, ...]
    text: str = ""


@dataclass
class Page(HTMLParser):
    """Elements of a page in their order; raises where they do not nest."""

    text: str
    elements: list[Element] = field(default_factory=list)
    _open: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.text)
        self.close()
        assert not self._open, f"never closed: {[e.tag for e in self._open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs), tuple(e.tag for e in self._open))
        assert len(attrs) == len(element.attributes), f"an attribute is there twice: {attrs}"
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attrs), tuple(e.tag for e in self._open)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        """Text of an option belongs to what it stands in."""
        around = [e for e in self._open if e.attributes.get("class") != "flag"]
        if around:
            around[-1].text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data[:60]!r}")

    def all(self, *tags: str) -> list[Element]:
        return [e for e in self.elements if e.tag in tags]

    @property
    def words(self) -> str:
        """All text that a reader or a screen reader gets."""
        return " ".join(e.text for e in self.elements if e.tag not in ("style", "script"))


def hostile_report(folder: Path) -> Path:
    """Write a report in which everything that has a name is called one of `TRICKS`.

    Even its file: all but a slash, which no file can have in its name.
    """
    report = ReportBuilder("2025.3.2")
    report.gpu(0, name=TRICKS[0])
    report.diagnostic(TRICKS[1])
    report.diagnostic(_storable(" ".join(TRICKS)))
    thread = report.thread(pid=100, rank=0)
    for row in report.rows["PROCESSES"]:
        row["name"] = TRICKS[2]
    config: dict[str, Any] = dict(zip("abcdefghijkl", TRICKS, strict=True))
    config |= {"perfmodel_config": 1, "run_id": TRICKS[3], "transport": TRICKS[0]}
    config |= {"workload": "mlp", "backend": TRICKS[1], "gemm": TRICKS[7]}
    config |= {TRICKS[4]: {TRICKS[5]: [TRICKS[6]]}}
    thread.mark(json.dumps(config), 500)
    step = 100_000
    for batch in range(4):
        start = 2_000_000 * batch + 1_000
        thread.range("batch iteration", start, start + 1_900_000)
        for i, trick in enumerate(TRICKS):
            at = start + 1_000 + i * step
            named = _storable(trick)
            thread.range(named, at, at + step - 1_000, domain=named)
            thread.kernel(named, (at + 10, at + 20), (at + 30, at + 60_000))
            thread.kernel(f"ncclDevKernel_{named}", (at + 21, at + 29), (at + 60_001, at + 61_000))
            thread.mpi(f"MPI_{named}", at + 70_000, at + 90_000, 8)
    return report.write(folder / f"{TRICKS[1]}.sqlite")


def _storable(name: str) -> str:
    """SQLite holds no lone surrogate, and a text ends at NUL."""
    return name.replace("\ud800", "").replace("\x00", "")


def page_of(*reports: Path, model: Model | None = None, **options: Any) -> Page:
    """Analyze reports and parse their page; `values` and other fields of `Options` are options."""
    return Page(page(analyzed(*reports, **options), model))

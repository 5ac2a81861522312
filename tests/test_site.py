"""The documentation is a site: it builds without a warning, and every page is in its navigation."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.common.folders import ROOT
from support.browser import chromium

pytestmark = pytest.mark.slow

pytest.importorskip("sphinx")

PAGES = sorted(
    page.relative_to(ROOT)
    for folder in ("", "docs/", "profiles/", "notebooks/")
    for page in ROOT.glob(f"{folder}*.md")
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a link or an anchor that leads nowhere is a warning, and so an error."""
    out = tmp_path_factory.mktemp("site")
    options = ["-q", "-W", "--keep-going", "-c", "docs", "-d", str(out / "trees")]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, ".", str(out / "html")],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_every_page_is_in_the_navigation() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {(ROOT / "docs" / link).resolve() for link in re.findall(r"\]\((\S+?\.md)\)", index)}
    left_out = {str(page) for page in PAGES if (ROOT / page).resolve() not in listed}
    assert left_out == {"docs/index.md"}, "add a line to docs/index.md"


def test_all_pages_are_built(site: Path) -> None:
    assert all((site / page.with_suffix(".html")).is_file() for page in PAGES)
    assert "url=docs/index.html" in (site / "index.html").read_text(encoding="utf-8")


def test_notebooks_are_pages(site: Path) -> None:
    for notebook in ROOT.glob("notebooks/*.ipynb"):
        text = (site / "notebooks" / f"{notebook.stem}.html").read_text(encoding="utf-8")
        assert "<h1>" in text
        assert "import" in text
        prose = re.sub(r"<pre>.*?</pre>", "", text.partition("<article")[2], flags=re.DOTALL)
        assert "$" not in prose.partition("</article>")[0], "a formula that is not drawn"


def test_the_site_needs_no_network(site: Path) -> None:
    """No script, style, font or picture comes from another host."""
    loaded = re.compile(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*\"")
    for page in PAGES:
        text = (site / page.with_suffix(".html")).read_text(encoding="utf-8")
        assert loaded.findall(text) == [], page


def test_formulas_are_drawn_by_the_browser(site: Path) -> None:
    formulas = (site / "docs" / "model.html").read_text(encoding="utf-8").count("<math ")
    page = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
    assert formulas == page.count("```math") > 0


@pytest.mark.browser
@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("why is my GPU idle", "docs/symptoms.html#why-is-my-gpu-idle"),
        ("straggler", "docs/symptoms.html"),
    ],
)
def test_search_finds_the_symptom_first(site: Path, query: str, page: str) -> None:
    found = "return [...document.querySelectorAll('#search-results li a')].map(a => a.href)"
    with chromium() as browser:
        address = (site / "search.html").as_uri()
        browser.ask("url", {"url": f"{address}?q={query.replace(' ', '+')}"})
        for _ in range(100):
            if links := browser.script(found):
                break
            time.sleep(0.1)
        assert links[0].startswith((site / page).as_uri().replace("%23", "#"))

"""The HTML report in headless Chromium: nothing runs but its script, nothing loads, tables sort."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.folders import BASE, PROGRAMS, ROOT
from perfmodel.analysis.analyze import analyze
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.render.html.live import pack
from perfmodel.studies.page import page
from perfmodel.timing.timeline import Bar, Lane, Window
from support.accessibility import problems
from support.browser import Browser, chromium
from support.html_pages import hostile_report

pytestmark = [pytest.mark.browser, pytest.mark.slow]
TAB, ENTER, RIGHT = "\ue004", "\ue007", "\ue014"

COLUMN = """
const table = document.querySelector("#time table"), at = arguments[0];
const rows = [...table.tBodies[0].rows].map(row => row.cells[at].textContent);
return [table.tHead.rows[0].cells[at].getAttribute("aria-sort"), rows];
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    eight = PROGRAMS / "gpt_ddp8.sqlite.xz"
    reports = {"base": BASE, "hostile": hostile_report(folder), "eight": eight}
    for name, report in reports.items():
        made = page(analyze([read(report)], Options({})))
        (folder / f"{name}.html").write_text(made, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in reports}


@pytest.mark.parametrize("name", ["base", "hostile"])
def test_nothing_loads_and_nothing_complains(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    browser.sized(1280, 900)
    browser.open(pages[name])
    assert browser.script("return document.querySelectorAll('h2').length") == 10
    assert browser.script("return window.hit") is None, "a name ran as a script"
    assert browser.script("return document.scripts.length") == 1
    assert browser.script("return document.images.length") == 0
    assert browser.messages() == []
    assert browser.requests() == [pages[name].resolve().as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["base", "hostile", "eight"])
def test_who_uses_a_screen_reader_or_sees_little_can_read_it(
    browser: Browser, pages: dict[str, Path], name: str, scheme: str
) -> None:
    browser.sized(1280, 900, scheme=scheme)
    opened(browser, pages[name])
    assert problems(browser) == []


def test_the_checks_find_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><html lang=en><title>t</title><h1>a</h1><h3>b</h3><button></button>"
        "<p style='color: #aaa'>pale</p>",
        encoding="utf-8",
    )
    browser.open(bad)
    assert problems(browser) == [
        "a button without a name", "a heading of level 3 below one of 1", "2.32: P pale",
    ]  # fmt: skip


# --- the timeline


def opened(browser: Browser, page: Path) -> None:
    """Open a page and wait until its timeline is drawn."""
    browser.open(page)
    for _ in range(100):
        if browser.script("return Boolean(window.timeline)"):
            return
        time.sleep(0.05)
    raise AssertionError("no timeline was drawn")


def view(browser: Browser) -> tuple[float, float]:
    first, last = browser.script("return timeline.view()")
    return first, last


def test_keys_zoom_pan_and_search(browser: Browser, pages: dict[str, Path]) -> None:
    browser.sized(1280, 900)
    opened(browser, pages["base"])
    whole = view(browser)
    browser.script("document.querySelector('.area canvas').focus()")
    browser.press("+")
    closer = view(browser)
    assert closer[1] - closer[0] == pytest.approx((whole[1] - whole[0]) / 1.5)
    browser.press(RIGHT)
    later = view(browser)
    assert later[0] > closer[0]
    assert later[1] - later[0] == pytest.approx(closer[1] - closer[0])
    browser.press("0")
    assert view(browser) == whole
    browser.press("/")
    for letter in "mpi_allr":
        browser.press(letter)
    said = "return document.querySelector('output').textContent"
    count = int(browser.script(said).split()[0])
    assert count >= 4
    browser.press(ENTER)
    assert browser.script(said).startswith(f"1 of {count}: MPI_Allreduce; ")
    one = view(browser)
    assert one[1] - one[0] < whole[1] - whole[0]


def test_a_finding_and_a_row_lead_to_their_place(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["base"])
    whole = view(browser)
    said = "return document.querySelector('output').textContent"
    browser.script("document.querySelector('a[data-find]').click()")
    wanted = browser.script("return document.querySelector('a[data-find]').dataset.find")
    assert f": {wanted}; " in browser.script(said)
    gap = 'document.querySelector(\'#idle tr[data-find="synchronization"][data-rank="1"] .place\')'
    browser.script(f"{gap}.click()")
    assert re.search(r"^\d+ of \d+: synchronization; .*rank 1, GPU idle$", browser.script(said))
    first, last = view(browser)
    assert last - first < (whole[1] - whole[0]) / 2


def test_tables_are_searched(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["base"])
    browser.script(
        "const field = document.querySelector('#time input.rows'); field.value = 'gemm 1';"
        "field.dispatchEvent(new Event('input'))"
    )
    shown = browser.script(
        "return [...document.querySelector('#time table').tBodies[0].rows]"
        ".filter(row => !row.hidden).map(row => row.cells[0].textContent)"
    )
    assert shown == ["forward GEMM 1", "backward GEMM 1"]


def test_a_hundred_thousand_operations_stay_smooth(browser: Browser, tmp_path: Path) -> None:
    """A frame of all of them takes less than a tenth of a second on a slow machine."""
    bars = tuple(Bar("kernel", f"k{i % 50}", 900 * i, 900 * i + 800, True, 0) for i in range(10**5))
    packed = pack(
        [Lane(0, "kernel", name="kernels", bars=bars)], Window(range(1), 0, 9 * 10**7, {}), {}
    )
    assert len(packed) < 600_000
    script = "".join(
        (ROOT / "perfmodel/render/html" / name).read_text(encoding="utf-8")
        for name in ("sort.js", "timeline.js")
    )
    made = tmp_path / "many.html"
    made.write_text(
        f"<!doctype html><div id=timeline-live></div><div id=timeline-data hidden>{packed}</div>"
        f"<style>:root {{ --t-kernel: #0072b2 }}</style><script>{script}</script>",
        encoding="utf-8",
    )
    opened(browser, made)
    frames = [browser.script("return timeline.timed()") for _ in range(5)]
    assert sorted(frames)[2] < 100


def test_the_policy_stops_what_would_run_all_the_same(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    """A page into which somebody wrote a script by hand: the second wall holds alone."""
    text = pages["base"].read_text(encoding="utf-8")
    evil = (
        "<script>window.hit = 1</script><img src=x onerror='window.hit = 2'>"
        "<a id=evil href='javascript:window.hit = 3'>x</a>"
        "<style>main { display: none }</style><p style='color: red' onclick='window.hit = 4'>x</p>"
    )
    broken = tmp_path / "broken.html"
    broken.write_text(text.replace("<main>", f"<main>{evil}"), encoding="utf-8")
    browser.open(broken)
    browser.script("document.querySelector('#evil').click()")
    browser.script("document.querySelector('p[onclick]').click()")
    assert browser.script("return window.hit") is None
    assert (
        browser.script("return getComputedStyle(document.querySelector('main')).display") != "none"
    )
    assert sum("Content Security Policy" in said for said in browser.messages()) >= 5
    browser.requests()


def column(browser: Browser, at: int) -> tuple[str | None, list[str]]:
    turn, texts = browser.script(COLUMN, at)
    return turn, texts


def test_a_click_sorts_and_the_third_one_restores(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["base"])
    click = "document.querySelector('#time th:nth-child(3) button').click()"
    turn, was = column(browser, 2)
    assert turn is None
    browser.script(click)
    turn, falling = column(browser, 2)
    assert turn == "descending"
    assert falling[:3] == ["2.44 ms", "1.23 ms", "616 µs"]
    browser.script(click)
    turn, rising = column(browser, 2)
    assert turn == "ascending"
    assert rising == falling[::-1]
    browser.script(click)
    assert column(browser, 2) == (None, was)


def test_keys_sort_too_and_unknown_values_stay_last(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["base"])
    browser.script("document.querySelector('#time th:nth-child(4) button').focus()")
    browser.press(TAB)
    browser.press(ENTER)
    turn, falling = column(browser, 4)
    assert turn == "descending"
    assert falling[0] == "359 µs"
    assert falling[-1] == "–"
    browser.press(ENTER)
    turn, rising = column(browser, 4)
    assert (turn, rising[-1]) == ("ascending", "–")
    assert rising[0] == "3.81 µs"
    browser.script("document.querySelector('#time th button').click()")
    turn, names = column(browser, 0)
    assert (turn, names[0]) == ("ascending", "backward")
    assert column(browser, 4)[0] is None


def test_without_the_script_tables_stand_without_buttons(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(pages["base"])
        found = browser.script("return [document.querySelectorAll('button').length, "
                               "document.querySelectorAll('td').length]")  # fmt: skip
        assert found[0] == 0
        assert found[1] > 200
    finally:
        browser.devtools("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("width", [1280, 800, 400])
@pytest.mark.parametrize("name", ["base", "hostile"])
def test_nothing_is_wider_than_the_screen(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    browser.sized(width, 900)
    browser.open(pages[name])
    assert browser.script("return document.documentElement.scrollWidth") == width


CUES = """
const boxes = [...document.querySelectorAll(".scroll")].filter((box) => box.offsetParent);
return boxes.map((box) => [box.scrollWidth > box.clientWidth + 1, box.classList.contains("more")]);
"""


def test_what_scrolls_sideways_says_so(browser: Browser, pages: dict[str, Path]) -> None:
    for width in (400, 1280):
        browser.sized(width, 900)
        browser.open(pages["base"])
        found = browser.script(CUES)
        assert all(scrolls == said for scrolls, said in found)
        assert sum(scrolls for scrolls, _ in found) >= (5 if width == 400 else 0)


COLORS = """
const style = (query, key) => getComputedStyle(document.querySelector(query))[key];
return [style("#timeline", "backgroundColor"), style("figure .g-kernel path", "fill"),
        style("#roofline figure svg text", "fill"), style(".still", "display")];
"""


def test_pictures_follow_the_theme(browser: Browser, pages: dict[str, Path]) -> None:
    found: dict[str, Any] = {}
    for scheme in ("light", "dark"):
        browser.sized(1280, 900, scheme=scheme)
        opened(browser, pages["base"])
        found[scheme] = browser.script(COLORS)
    browser.sized(1280, 900, scheme="dark", media="print")
    found["print"] = browser.script(COLORS)
    assert found["light"][:3] == ["rgb(255, 255, 255)", "rgb(0, 114, 178)", "rgb(34, 34, 34)"]
    assert found["dark"][:3] == ["rgb(22, 28, 35)", "rgb(0, 196, 255)", "rgb(230, 235, 241)"]
    assert found["print"][:3] == found["light"][:3]
    assert (found["light"][3], found["print"][3]) == ("none", "block"), "the picture is printed"


def test_it_prints_and_can_be_photographed(browser: Browser, pages: dict[str, Path]) -> None:
    browser.sized(1280, 900)
    browser.open(pages["base"])
    printed = browser.printed()
    assert printed.startswith(b"%PDF-")
    assert 20_000 < len(printed) < 2_000_000
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) <= 8
    picture = browser.screenshot(whole=False)
    assert struct.unpack(">II", picture[16:24]) == (1280, 900)

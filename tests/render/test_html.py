"""The HTML report: self-contained, sound, the same numbers as the analysis, harmless names."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from matplotlib.colors import to_hex

from benchmarks.common.folders import BASE, PROFILES, PROGRAMS, ROOT
from perfmodel import api
from perfmodel.analysis.steps import kernels_of_steps
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.render.first_screen import LETTERS
from perfmodel.render.html import parts, pictures
from perfmodel.render.html.blocks import LONGEST, MOST_ROWS, cut, grid
from perfmodel.render.html.pictures import inline
from perfmodel.render.plot.bars import idle
from perfmodel.render.plot.style import CAUSE_COLORS
from perfmodel.render.plot.timeline import COLORS
from perfmodel.studies.models.model import load as load_model
from perfmodel.timing.host_timeline import CAUSE_NAMES, CAUSES
from perfmodel.timing.step_facts import IdleCause
from perfmodel.timing.timeline import HOST, select, window_of
from perfmodel.workloads.spec import load
from support.build_report import ReportBuilder
from support.build_training import Training, analyzed, training_report
from support.cli import fails, harmless, perfmodel, succeeds
from support.colors import too_close
from support.html_pages import TRICKS, Page, hostile_report, page_of
from support.small_model import few_draws, small_model

DOCUMENT = PROFILES / "ladder" / "document_1.sqlite.xz"
LATE = PROGRAMS / "straggler_p2_b32.sqlite.xz"
CPU = ROOT / "tests" / "reports"

TAGS = {
    "html", "head", "meta", "title", "style", "body", "a", "header", "p", "h1", "h2", "h3", "dl",
    "div", "dt", "dd", "nav", "ol", "ul", "li", "main", "section", "article", "span", "table",
    "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "footer", "script",
    "details", "summary",
    "svg", "g", "rect", "path", "use", "defs", "clippath", "text", "tspan", "desc",
}  # fmt: skip
"""Every element that a page may have: what embeds, loads, submits or redirects is not there."""


@pytest.fixture(scope="module")
def base() -> Page:
    return page_of(BASE)


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory) -> Page:
    with few_draws():
        return page_of(DOCUMENT, model=load_model(small_model(tmp_path_factory.mktemp("model"))))


@pytest.fixture(scope="module")
def late() -> Page:
    """One of two ranks comes late to every step."""
    return page_of(LATE)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(hostile_report(tmp_path_factory.mktemp("hostile")))


@pytest.fixture(scope="module")
def without_gpu() -> Page:
    return page_of(CPU / "cpu_rank0of2_nsys2023.4.4.sqlite")


@pytest.fixture
def undrawn() -> Iterator[None]:
    """Leave out pictures of steps, most of what a page takes, where only its words are read."""
    nothing = dict.fromkeys(("timeline", "idle"), lambda *_: iter(()))
    with mock.patch.multiple(pictures, **nothing):
        yield


@pytest.fixture(params=["base", "modelled", "hostile", "without_gpu"])
def page(request: pytest.FixtureRequest) -> Page:
    found: Page = request.getfixturevalue(request.param)
    return found


def sha(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# --- every page


@pytest.mark.slow
def test_it_loads_nothing(page: Page) -> None:
    assert {e.tag for e in page.elements} <= TAGS
    for element in page.elements:
        for name, value in element.attributes.items():
            assert not name.startswith("on")
            assert name not in ("src", "srcset", "style", "action", "formaction", "srcdoc", "ping")
            if name in ("href", "xlink:href"):
                assert re.fullmatch(r"#[a-z0-9-]+", value or "")
            for target in re.findall(r"url\(([^)]*)\)", value or ""):
                assert re.fullmatch(r"#[a-z]+-[a-z0-9]+", target)
    (style,) = page.all("style")
    (script,) = page.all("script")
    for text in (style.text, script.text):
        assert not re.search(r"https?:|//[a-z]|url\(|@import|@font-face|fetch\(|XMLHttp", text)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)


@pytest.mark.slow
def test_its_policy_allows_its_own_style_and_script_only(page: Page) -> None:
    (policy,) = [e for e in page.all("meta") if "http-equiv" in e.attributes]
    (style,), (script,) = page.all("style"), page.all("script")
    assert policy.attributes["http-equiv"] == "Content-Security-Policy"
    assert (policy.attributes["content"] or "").split("; ") == [
        "default-src 'none'", f"style-src 'sha256-{sha(style.text)}'",
        f"script-src 'sha256-{sha(script.text)}'", "base-uri 'none'", "form-action 'none'",
    ]  # fmt: skip
    sheet = (ROOT / "perfmodel/render/html/style.css").read_text(encoding="utf-8")
    colors = style.text.removeprefix(sheet)
    assert all(f"--t-{kind}: var(--c-{c[1:].lower()}," in colors for kind, c in COLORS.items())
    parts = [(ROOT / "perfmodel/render/html" / name).read_text(encoding="utf-8")
             for name in ("sort.js", "timeline.js")]  # fmt: skip
    assert script.text == "".join(parts)


def test_ids_are_there_once_and_what_is_named_is_there(page: Page) -> None:
    ids = Counter(e.attributes["id"] for e in page.elements if "id" in e.attributes)
    assert set(ids.values()) == {1}
    for element in page.elements:
        named = (element.attributes.get("aria-labelledby") or "").split()
        for key, value in element.attributes.items():
            named += re.findall(r"url\(#([^)]+)\)", value or "")
            named += [(value or "")[1:]] if key == "href" else []
        assert set(named) <= set(ids)


def test_it_is_built_for_screen_readers(page: Page) -> None:
    levels = [int(e.tag[1]) for e in page.all("h1", "h2", "h3")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert page.all("html")[0].attributes["lang"] == "en"
    assert len(page.all("main")) == len(page.all("nav")) == len(page.all("title")[:1]) == 1
    tables = page.all("table")
    assert len(page.all("caption")) == len(tables) > 3
    for head in page.all("th"):
        wanted = "col" if "thead" in head.above else "row"
        assert head.attributes["scope"] == wanted
    for picture in page.all("svg"):
        said = picture.attributes.get("role") == "img" and "aria-labelledby" in picture.attributes
        assert said != (picture.attributes.get("aria-hidden") == "true")
    for region in page.elements:
        if "tabindex" in region.attributes:
            assert region.attributes["role"] == "group"
            assert region.attributes["aria-label"]


def test_the_summary_is_first_and_small(page: Page) -> None:
    titles = [e.text for e in page.all("h2")]
    idle = ["Why the GPU idles"] if "No GPU operation was recorded" not in page.words else []
    assert titles == [
        "Summary", "Time by range and kernel", "Timeline of one step", *idle, "Roofline", "Model",
        "What if", "Findings and warnings",
        *(["Configuration and machine"] if idle else []), "Provenance",
    ]  # fmt: skip
    links = [e.text for e in page.all("a") if "nav" in e.above]
    assert links == titles
    assert len(page.text.encode()) < 400_000
    assert harmless(page.text.replace("\t", ""))


# --- names


def test_names_that_are_code_are_only_words(hostile: Page) -> None:
    """The parser finds our own elements alone (`test_it_loads_nothing`), and the names as text."""
    for trick in TRICKS[:11]:
        assert trick.split("{{")[0] in hostile.words
    assert r"\x1b[31m" in hostile.words
    assert r"\u202e" in hostile.words
    assert "{{7*7}}" in hostile.words  # no template ran on what a report says


def test_names_reach_every_part_of_the_page(hostile: Page) -> None:
    trick = TRICKS[0]
    places = [(*e.above[-1:], e.tag) for e in hostile.elements if trick in e.text]
    for place in (("tr", "th"), ("tr", "td"), ("ul", "li"), ("g", "text")):
        found = place in places or any(
            "script" in e.text and e.above[-1:] == place[:1] for e in hostile.all(place[1])
        )
        assert found, place
    assert any(TRICKS[1] in (e.text) for e in hostile.all("h1", "title"))
    assert trick in timeline_of(hostile)["names"]


# --- numbers


def timeline_of(page: Page) -> dict[str, Any]:
    """What the script draws the timeline from."""
    (held,) = [e for e in page.elements if e.attributes.get("id") == "timeline-data"]
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(held.text)))
    return found


def cells(page: Page, caption: str) -> list[list[str]]:
    """Texts of the rows of the table whose caption begins so."""
    at = next(
        i for i, e in enumerate(page.elements)
        if e.tag == "span" and e.above[-1] == "caption" and e.text.startswith(caption)
    )  # fmt: skip
    rows: list[list[str]] = []
    for element in page.elements[at:]:
        if element.tag == "table":
            break
        if element.tag == "tr":
            rows.append([])
        if element.tag in ("th", "td"):
            rows[-1].append(element.text)
    return rows


def test_it_says_what_the_analysis_says(base: Page) -> None:
    run = analyzed(BASE).fitted
    ranges = cells(base, "Time per range, median step (38 steps, 2 ranks)")
    assert [row[0] for row in ranges[1:]] == [row.label for row in run.ranges]
    assert ranges[1][2:5] == ["2.44 ms", "1.93 ms", "359 µs"]
    rates = cells(base, "Effective throughputs and the machine's ceilings")
    assert rates[1] == [
        "P_flops", "computing", "22.46 TFLOP/s", "21.8 to 22.8 TFLOP/s", "21.9 to 23.0 TFLOP/s",
        "projection (host 8.77 TFLOP/s, busy 26.1 TFLOP/s)", "67.0 TFLOP/s, float32 peak", "34 %",
    ]  # fmt: skip
    assert cells(base, "Predicted against measured")[1] == [
        "batch iteration", "816.8 µs", "2.441 ms", "-67 %",
    ]  # fmt: skip
    assert [row[0] for row in cells(base, "Terms of the model")[1:]] == [
        "P_flops",
        "P_pci",
        "P_mpi",
    ]
    assert run.summary.verdict.text in base.words
    assert "The GPU waits for the host: in the summary." in base.words
    assert "saves at most 1.37 ms (64 %) of a step" in base.words
    assert cells(base, "Reports")[1][:2] == [BASE.name, "Nsight Systems 2025.3.2.0"]
    formulas = cells(base, "FLOPs and bytes per rank and step")
    assert ["forward GEMM 1", "FLOPs", "2 · B' · D · H", "1.20 GFLOP"] in formulas


def test_numbers_are_sorted_by_their_values() -> None:
    columns = (Column("n", "Name"), Column("s", "Time", "si", "s"), Column("p", "Of", "percent"))
    rows = [("a", 2e-3, 0.5), ("b", 3e-6, None), ("c", None, -0.1), ("d", float("nan"), 2.0)]
    made = grid(Table("t", columns, rows, levels=[0, 1, 1, 9]))
    assert [row[1].sort for row in made.rows] == ["0.002", "3e-06", "", ""]
    assert [row[1].text for row in made.rows] == ["2.00 ms", "3.00 µs", "–", "–"]
    assert [row[2].bar for row in made.rows] == [0.5, None, 0.0, 1.0]
    assert [row[0].level for row in made.rows] == [0, 1, 1, 9]
    assert made.named == 0


def test_values_of_several_units_are_sorted_by_their_numbers(base: Page) -> None:
    """Every cell that shows a number but a row's name has one to sort by."""
    for element in base.all("td"):
        if re.match(r"-?\d[\d.,]* ?([kMGTnum]?(FLOP|B|s)(/s)?|%)$", element.text):
            assert "data-sort" in element.attributes, element.text


def test_the_parts_of_a_batch_fill_it() -> None:
    for path in (BASE, PROFILES / "ladder" / "graph_1.sqlite.xz"):
        run = analyzed(path).fitted
        found = list(parts(run))
        assert sum(p.share for p in found) == pytest.approx(1.0, abs=0.006)
        assert all(a.begin + a.share == pytest.approx(b.begin) for a, b in pairwise(found))
        assert sum(p.seconds for p in found) == pytest.approx(run.batch.median.value, rel=0.006)
    assert found[-1].name == "the GPU is idle"


def test_the_timeline_has_every_bar_with_name_time_and_what_is_known(base: Page) -> None:
    held = timeline_of(base)
    fitted = analyzed(BASE).fitted
    run = fitted.measured
    batch = fitted.run_steps.drawn
    window = window_of(run, range(batch, batch + 1))
    lanes = select(run, window, around=False)
    assert held["length"] == window.end_ns - window.start_ns
    assert [(one["rank"], one["lane"]) for one in held["lanes"]] == [
        (lane.rank, lane.name) for lane in lanes
    ]
    for packed, lane in zip(held["lanes"], lanes, strict=True):
        at, spans = window.start_ns, []
        for gap, long in zip(packed["gap"], packed["long"], strict=True):
            spans.append((at + gap, at + gap + long))
            at += gap + long
        assert spans == [(b.start_ns, b.end_ns) for b in lane.bars]
        assert [held["names"][i] for i in packed["name"]] == [cut(b.name) for b in lane.bars]
    texts = [held["texts"][i] for one in held["lanes"] for i in one.get("text", ())]
    assert sum("size: 1.61 MB" in text for text in texts) >= 2
    assert any("call: cudaStreamSynchronize" in text or "call: cu" in text for text in texts)


@pytest.mark.slow
def test_the_timeline_says_which_module_and_line_launched_a_kernel() -> None:
    page = page_of(PROGRAMS / "gpt_modules.sqlite.xz")
    assert any("module: Transformer" in text for text in timeline_of(page)["texts"])


def test_findings_and_rows_lead_to_the_timeline(base: Page) -> None:
    names = set(timeline_of(base)["names"])
    rows = [e.attributes["data-find"] for e in base.all("tr") if "data-find" in e.attributes]
    links = [e.attributes["data-find"] for e in base.all("a") if "data-find" in e.attributes]
    assert {"synchronization", "launch-bound", "forward", "backward"} <= names & {*rows}
    assert links
    assert {*links} <= names


def test_findings_have_their_evidence(late: Page) -> None:
    """The formula with its inputs; the events are printed by the command that the caption names."""
    run = analyzed(LATE).fitted
    closed = [e.text for e in late.all("summary")]
    for one in run.findings:
        (said,) = (text for text in closed if text.startswith(f"Evidence of {one.kind}: "))
        assert f"perfmodel analyze REPORT --evidence {one.kind} prints the events" in said
    printed = json.loads(succeeds("analyze", LATE, "--evidence", "straggler", "--json"))
    shown = cells(late, f"Evidence of straggler: {printed['formula']}")
    assert [row[0] for row in shown[1:]] == [one["path"] for one in printed["inputs"]]


def test_the_summary_is_the_first_screen(late: Page) -> None:
    """The same verdict, bars, fixes and caveats as in the terminal, and no fact about files."""
    said = analyzed(LATE).fitted.summary
    top = late.words.partition("Medians over ranks and steps")[0]
    assert said.verdict.text in top
    for bar in said.bars:
        assert f"rank {bar.rank}" in top
    widths: dict[str, float] = defaultdict(float)
    for part in late.all("rect"):
        kind = part.attributes.get("class") or ""
        if kind.startswith("s-") and "ul" in part.above:
            widths[kind] += float(part.attributes["width"] or 0)
    longest = max(bar.step_s for bar in said.bars)
    assert widths["s-waiting"] == pytest.approx(
        sum(100 * bar.waiting_s / longest for bar in said.bars), abs=0.01
    )
    assert "rank 1 in 'forward'" in top
    assert f"step then {si(said.fixes[0].step_s or 0.0, 's')} (estimate)" in top
    boxes = [e for e in late.all("div") if e.attributes.get("class") in ("first", "next")]
    assert len(boxes) == len(said.fixes)
    assert "Nsight Systems" not in top


def test_tables_are_complete(base: Page) -> None:
    run = analyzed(BASE).fitted
    assert run.steps is not None
    every = {k.name for k in kernels_of_steps(run.measured.steps, run.steps.window)}
    assert len(every) > len(run.steps.kernels)
    assert len(cells(base, "Largest kernels")) == 1 + len(every)
    assert not re.search(r"more with --out|more rows are left out", base.words)


@pytest.mark.slow
def test_eight_ranks_are_less_than_two_megabytes() -> None:
    assert len(page_of(PROGRAMS / "gpt_fsdp8.sqlite.xz").text.encode()) < 2_000_000


def test_details_are_closed_and_options_stay_whole(modelled: Page) -> None:
    closed = [e.text for e in modelled.all("summary")]
    for title in ("Largest kernels", "Symbols", "FLOPs and bytes", "Throughput of every",
                  "Configuration", "GPUs", "Ceilings of"):  # fmt: skip
        assert any(text.startswith(title) for text in closed), title
    assert all("open" not in e.attributes for e in modelled.all("details"))
    assert '<span class="flag">--transport</span> nccl' in modelled.text
    assert not re.search(r'(?<!class="flag">)--[a-z]+-[a-z]+', "".join(
        re.findall(r"<(?:li|p|td|th)[^>]*>(.*?)</(?:li|p|td|th)>", modelled.text)))  # fmt: skip


# --- with a model, several reports, less than usual


def test_a_calibrated_model_predicts_and_ranks(modelled: Page) -> None:
    assert "saves 1.10 ms a step (53 %)" in modelled.words
    assert "Profile the trainer with --transport nccl" in modelled.words
    assert cells(modelled, "Savings of changes, of a step of 2.096 ms")[1][0] == "nccl"
    assert cells(modelled, "Predicted batch")[-1][0] == "batch"
    assert re.search(r"It predicts .* inside the interval", modelled.words)


@pytest.mark.slow
def test_without_a_model_savings_are_bounds(base: Page) -> None:
    assert cells(base, "Savings of changes, of a step of")[0][0] == "Change"  # no mark
    bounded = page_of(PROFILES / "ladder" / "nccl_1.sqlite.xz")
    first = cells(bounded, "Savings of changes, of a step of")[1]
    assert first[1] == "≤"
    assert "give what perfmodel study calibrate wrote with --model" in bounded.words


def test_what_is_missing_is_said_with_how_to_collect_it(without_gpu: Page) -> None:
    words = without_gpu.words
    for said in (
        "No GPU operation was recorded", "profile it with nsys profile --trace=nvtx,cuda,mpi",
        "FLOPs and bytes are not known", "No roofline can be drawn", "with --workload",
        "1 of p = 2 ranks are in the report",
    ):  # fmt: skip
        assert said in words, said
    assert "0 s" not in [row[3] for row in cells(without_gpu, "Time per range, median step")]
    assert len([e for e in without_gpu.all("svg") if e.attributes.get("role") == "img"]) == 1


@pytest.mark.usefixtures("undrawn")
def test_links_without_a_throughput_are_named_with_the_ranges_they_lack(tmp_path: Path) -> None:
    report = ReportBuilder()
    report.gpu()
    thread = report.thread()
    for at in range(1000, 60_000, 10_000):
        thread.range("step", at, at + 9000)
        thread.range("work", at + 100, at + 5000)
        thread.kernel("gemm", (at + 200, at + 300), (at + 400, at + 4000))
        thread.synchronize(at + 500, at + 4500)
    workload = tmp_path / "w.toml"
    workload.write_text("""
name = "two ranges"
source = "this test"
batch_range = "step"

[symbols]
n = { meaning = "size", unit = "elements", default = 1000 }

[ranges.work]
flops = "2*n"

[ranges.copy]
pci = "8*n"
""")
    absent = page_of(report.write(tmp_path / "r.sqlite"), workload=load(workload))
    assert "The workload's 'copy' is not in the steps: put NVTX ranges there." in absent.words
    for at in range(1000, 60_000, 10_000):
        thread.range("copy", at + 6000, at + 7000)
    untimed = page_of(report.write(tmp_path / "r.sqlite"), workload=load(workload))
    assert "No link's throughput could be fitted: P_pci cannot be" in untimed.words
    assert "missing or untimed: 'copy' is without a GPU operation. Put the" in untimed.words


@pytest.mark.usefixtures("undrawn")
def test_an_exchange_of_messages_needs_no_collectives_and_no_kernels() -> None:
    text = page_of(PROGRAMS / "halo.sqlite.xz").text
    assert "Messages between ranks" in text
    assert "No collective was recorded" not in text
    assert "kernel category" not in text


def test_reports_of_the_ranks_of_one_run_make_one_page() -> None:
    both = page_of(*sorted(CPU.glob("cpu_rank?of2*.sqlite")))
    assert len(cells(both, "Reports")) == 3
    assert "of 2 ranks" in both.words


def test_every_cause_of_idle_time_has_its_bar_and_its_longest_gaps(base: Page) -> None:
    head, *rows = cells(base, "Longest gaps of each cause")
    assert head[:5] == ["Rank", "Cause of idle time", "Gap", "Step", "Into the step"]
    found = analyzed(BASE).fitted.steps
    assert found is not None
    both = [[str(one.rank), CAUSE_NAMES[one.cause]] for one in found.facts.idle]
    assert len(both) > 8
    gaps = [[str(one.rank), CAUSE_NAMES[one.cause]] for one in found.facts.idle for _ in one.gaps]
    assert [row[:2] for row in rows] == gaps
    assert [row[:2] for row in cells(base, "Why the GPU idles")[1:]] == both
    titles = {e.text for e in base.all("title")}
    assert "Idle time of the GPUs in a median step, by cause" in titles


@pytest.mark.slow
def test_idle_bars_are_named_from_2_to_512_ranks() -> None:
    for ranks in (2, 64, 512):
        causes = [IdleCause(r, CAUSES[r % 8], 1e-3, 1.0, ()) for r in range(ranks)]
        ax = idle(causes)
        ax.figure.canvas.figure.draw_without_rendering()
        names = [tick.get_window_extent() for tick in ax.get_yticklabels()]
        assert 2 <= len(names) <= 64
        assert not any(a.overlaps(b) for a, b in pairwise(names))
        assert ax.figure.canvas.figure.get_figheight() < 10
        assert {to_hex(p.get_facecolor()).upper() for p in ax.patches} <= {*CAUSE_COLORS.values()}


@pytest.mark.slow
def test_reports_of_several_runs_share_one_roof() -> None:
    two = page_of(BASE, PROFILES / "h200x2_2ranks_h2048_nsys2025.3.1.sqlite.xz")
    assert [e.text for e in two.all("h2")][:2] == ["Summary", "All runs"]
    assert len(cells(two, "Runs")) == 3
    assert len(cells(two, "Measured points")) == 5
    names = [row[0] for row in cells(two, "Reports")[1:]]
    assert names == [BASE.name, "h200x2_2ranks_h2048_nsys2025.3.1.sqlite.xz"]


@pytest.mark.slow
def test_a_pytorch_report_is_as_useful(tmp_path: Path) -> None:
    mlp = ROOT / "perfmodel/workloads/examples/pytorch_mlp.toml"
    ddp = {s: PROFILES / "ddp" / f"ddp_p2_{s}.sqlite.xz"
           for s in ("H512_B3000", "H256_B3000", "H4096_B6000", "H4096_B24000")}  # fmt: skip
    model = tmp_path / "model.json"
    others = list(ddp.values())[1:]
    succeeds("study", "calibrate", *others, "--workload", mlp, "--attribute", "time", "-o", model)
    page = page_of(
        ddp["H512_B3000"], by_time=True, workload=load(mlp), model=load_model(model)
    )  # fmt: skip
    assert "It predicts" in page.words
    assert cells(page, "Effective throughputs and the machine's ceilings")[1][0] == "P_flops"
    assert len([e for e in page.all("svg") if e.attributes.get("role") == "img"]) == 3
    assert "NCCL" in page.words
    assert cells(page, "Savings of changes, of a step of")[0][0] == "Change"


@pytest.mark.usefixtures("undrawn")
def test_operations_of_other_threads_count_as_busy_without_a_flag() -> None:
    words = page_of(PROFILES / "ddp" / "ddp_p2_H1024_B24000.sqlite.xz").words
    lead = words.partition("Time by range and kernel")[0]
    assert "operations in no range" not in words
    assert "at least" not in lead


@pytest.mark.slow
def test_a_batch_too_crowded_for_a_page_says_where_to_look(tmp_path: Path) -> None:
    path = tmp_path / "crowded.sqlite"
    training_report(path, Training(p=9))
    page = page_of(path)
    assert "1 more ranks are not drawn" in page.words
    assert "perfmodel timeline -o FILE.json" in page.words


# --- bytes


@pytest.mark.slow
def test_the_same_report_gives_the_same_bytes(tmp_path: Path, base: Page) -> None:
    """In another process, whatever order its sets have."""
    out = tmp_path / "again.html"
    command = [sys.executable, "-m", "perfmodel", "report", str(BASE), "-q", "-o", str(out)]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=environment, check=True, timeout=120)
    assert out.read_text(encoding="utf-8") == base.text
    assert str(ROOT) not in base.text


def test_the_command_and_a_notebook_write_the_same_file(tmp_path: Path, bare: Path) -> None:
    out = tmp_path / "r.html"
    assert succeeds("report", bare, "-o", out).strip() == f"Written: {out}"
    made = out.read_text(encoding="utf-8")
    assert succeeds("report", bare, "-q", "-o", "-") == made
    written = api.analyze(bare).save_html(tmp_path / "again.html")
    assert written.read_text(encoding="utf-8") == made


def test_what_cannot_be_written_or_read_is_refused(tmp_path: Path, bare: Path) -> None:
    assert "FILE.html" in perfmodel("report", bare, "-o", tmp_path / "r.pdf").stderr
    assert "no folder" in fails(1, "report", bare, "-o", tmp_path / "none" / "r.html")
    fails(3, "report", tmp_path / "none.sqlite", "-o", tmp_path / "r.html")


def test_templates_and_assets_are_in_the_package() -> None:
    names = {p.name for p in (ROOT / "perfmodel" / "render" / "html").iterdir()}
    assert {"page.html.j2", "style.css", "sort.js", "timeline.js"} <= names


# --- pictures


SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
    'width="9pt" height="9pt" viewBox="0 0 9 9"><metadata/><defs><style>*{}</style>'
    '<clipPath id="p1"><rect/></clipPath></defs><g id="kernel others">'
    '<path d="M 1.23456 2&#10;L 3 4" clip-path="url(#p1)" style="fill: #0072b2; stroke-width: 2"/>'
    '</g><g id="text_1"><text style="font-family: x; fill: none">\ufffe&lt;</text></g>'
    '<use xlink:href="#p1"/></svg>'
)


def test_pictures_become_part_of_a_page() -> None:
    made = inline(SVG, "a", "<t>", "d")
    assert made == (
        '<svg viewBox="0 0 9 9" role="img" aria-labelledby="a-t a-d"><title id="a-t">&lt;t&gt;'
        '</title><desc id="a-d">d</desc><defs><clipPath id="a-p1"><rect /></clipPath></defs>'
        '<g class="g-kernel g-others"><path d="M 1.23 2 L 3 4" clip-path="url(#a-p1)" '
        'fill="var(--c-0072b2,#0072b2)" stroke-width="2" /></g>'
        '<g><text fill="none">\ufffd&lt;</text></g><use href="#a-p1" /></svg>'
    )


# --- colours


def luminance(color: str) -> float:
    parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours (WCAG 2.2)."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_letters_can_be_read(dark: bool) -> None:
    """Contrast AA: 4.5 for text, 3 for bars and lines that mean something."""
    style = (ROOT / "perfmodel/render/html/style.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colors: dict[str, str] = {}
    for block in blocks[: 1 + dark]:
        colors |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    for ink in ("ink", "soft", "accent", "good"):
        for paper in ("page", "paper", "faint", "first"):
            assert contrast(colors[ink], colors[paper]) >= 4.5, (ink, paper)
    assert contrast(colors["warn-ink"], colors["warn"]) >= 4.5
    for kind, color in ((k, c) for k, c in colors.items() if k.startswith("t-")):
        letters = "#000000" if luminance(color) > 0.18 else "#ffffff"  # as timeline.js chooses
        assert contrast(color, letters) >= 4.5, kind
    assert contrast(colors["meter"], colors["track"]) >= 3
    for bar in ("projection", "busy", "p0", "p1", "p2", "meter"):
        assert contrast(colors[bar], colors["paper"]) >= 3, bar


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_parts_of_a_step_are_told_apart(dark: bool) -> None:
    style = (ROOT / "perfmodel/render/html/style.css").read_text(encoding="utf-8")
    block = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[dark]
    parts = dict(re.findall(r"--s-([\w-]+): (#[0-9a-f]{6})", block))
    assert parts.keys() == LETTERS.keys()
    assert too_close(*parts.values()) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_colours_of_the_timeline_are_told_apart(dark: bool) -> None:
    """In light they are the pictures' own; in both no two that can touch are alike."""
    style = (ROOT / "perfmodel/render/html/style.css").read_text(encoding="utf-8")
    block = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[dark]
    paper = dict(re.findall(r"--(paper): (#[0-9a-f]{6})", block))["paper"]
    kinds = {kind: color.lower() for kind, color in COLORS.items()}
    if dark:
        recolored = dict(re.findall(r"--c-([0-9a-f]{6}): (#[0-9a-f]{6})", block))
        kinds = {kind: recolored[color[1:]] for kind, color in kinds.items()}
    assert too_close(paper, *(c for kind, c in kinds.items() if kind not in HOST)) == []
    assert too_close(*(kinds[kind] for kind in HOST)) == []


# --- odd reports


@pytest.mark.slow
def test_long_names_and_many_ranges_stay_readable(tmp_path: Path) -> None:
    report = ReportBuilder()
    report.gpu(0)
    thread = report.thread(rank=0)
    for start in range(0, 90_000_000, 30_000_000):
        thread.range("batch iteration", start, start + 29_900_000)
        for i in range(5200):
            at = start + 5_000 * i
            thread.range(f"{'x' * 3000} {i}", at, at + 4_500)
            thread.kernel("k" * 9000, (at + 10, at + 20), (at + 30, at + 2_500))
    page = page_of(report.write(tmp_path / "long.sqlite"))
    assert len(cells(page, "Time per range, median step")) == 1 + MOST_ROWS
    assert "3,201 more rows are left out" in page.words
    assert max(len(e.text) for e in page.all("th", "td")) == LONGEST
    assert len(page.text) < 4_000_000


def test_batches_of_no_length_are_no_division_by_zero(tmp_path: Path) -> None:
    report = ReportBuilder()
    report.gpu(0)
    thread = report.thread(rank=0)
    for at in range(10, 5000, 1000):
        thread.range("batch iteration", at, at)
        thread.kernel("kernel", (at, at), (at + 10, at + 20))
    assert page_of(report.write(tmp_path / "zero.sqlite")).all("h1")[0].text == "zero"
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for at in range(10, 5000, 1000):
        thread.range("batch iteration", at, at)
    assert page_of(report.write(tmp_path / "none.sqlite")).all("h1")[0].text == "none"


@pytest.mark.usefixtures("undrawn")
def test_batches_of_another_name_have_a_page_too(tmp_path: Path) -> None:
    path = training_report(tmp_path / "r.sqlite", Training(label="my step"))
    page = page_of(path, batch_label="my step")
    assert cells(page, "Time per range, median step")[1][0] == "my step"
    assert cells(page, "Savings of changes, of a step of")[0][0] == "Change"

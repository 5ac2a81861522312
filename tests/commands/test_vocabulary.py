"""No output about another program has the words of perfmodel's own trainer and its MLP."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from benchmarks.common.folders import PROGRAMS, ROOT
from support.cli import perfmodel
from support.public_recordings import small

MODEL = ROOT / "benchmarks" / "results" / "predict_model.json"
REPORTS = {
    "PyTorch": PROGRAMS / "gpt_ddp.sqlite.xz",
    "torch.profiler": PROGRAMS / "gpt_both_rank0.json.xz",
    "JAX": PROGRAMS / "jax_gpt.sqlite.xz",
    "MPI": PROGRAMS / "halo.sqlite.xz",
    "CuPy": PROGRAMS / "cupy_cg.sqlite.xz",
}
WORDS = re.compile(
    r"D, H, C|python -m trainer|\btrainer\b|\b[DHCB] ?= ?\d|batch iteration|the ladder|MNIST"
    r"|configuration mark|cannot be ranked|hidden.size|--transport|CME 213"
)
BATCH = re.compile(r"(median|per|a|no|of the|all|every) batch(es)?\b")
"""A step is called nothing else."""

COMMANDS = (
    ["analyze"], ["analyze", "--json"], ["analyze", "--format", "markdown"], ["whatif"],
    ["whatif", "--json"], ["whatif", "--model", str(MODEL)], ["memory"], ["study", "splits"],
    ["timeline"], ["compare", "{report}"], ["study", "scaling"], ["study", "tta"],
    ["study", "calibrate"],
)  # fmt: skip


def words_of(page: str) -> str:
    """The text of an HTML page."""
    text = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", text))


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("PyTorch", "torch.profiler") else ())
        for name in (*REPORTS, "public")
    ],
)
def test_no_output_about_another_program_speaks_of_the_trainer(
    program: str, tmp_path: Path
) -> None:
    report = REPORTS.get(program) or small("training_mi250.json.xz")
    said = {}
    for words in COMMANDS:
        given = [word.format(report=report) for word in words]
        at = 2 if given[0] == "study" else 1
        result = perfmodel(*given[:at], report, *given[at:])
        said[" ".join(words)] = result.stdout + result.stderr
    page = tmp_path / "page.html"
    perfmodel("report", report, "-o", page)
    said["report"] = words_of(page.read_text(encoding="utf-8"))
    found = {
        words: sorted({match[0] for pattern in (WORDS, BATCH) for match in pattern.finditer(text)})
        for words, text in said.items()
    }
    assert {words: matches for words, matches in found.items() if matches} == {}


def test_a_page_has_no_section_that_does_not_apply(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    perfmodel("report", REPORTS["MPI"], "-o", page)
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", page.read_text(encoding="utf-8"), re.DOTALL)
    assert "What if" in " ".join(titles)
    assert not {"Roofline", "Model", "Configuration and machine"} & {t.strip() for t in titles}

"""Refreshes outputs on pages: first screens, demo.md of `make demo`, cli.md of `--help`, pictures.

    python docs/refresh.py            # everything
    python docs/refresh.py screens    # first screens only

The test of the documentation fails when the texts are not what the commands print.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import architecture
import cli_reference

from benchmarks.common import pictures

ROOT = Path(__file__).resolve().parent.parent
REPORT = "profiles/h200x2_2ranks_base_nsys2025.3.1.sqlite"
CAMPAIGN = "profiles/campaign/h200x2_p2_host_float32_H{}_B{}.sqlite.xz"
TUTORIAL = [CAMPAIGN.format(h, b) for b in (3000, 12000) for h in (512, 2048)]
SIZES = "profiles/campaign/h200x2_p2_host_float32_H*_B*0.sqlite.xz"
DOCUMENT, MODEL = "profiles/ladder/document_1.sqlite.xz", "benchmarks/results/predict_model.json"
COUNTERS = [
    *(f"tests/golden/ncu/h200_{name}.csv.xz"
      for name in ("cublas", "cublas_tf32", "hierarchical", "fused_tf32x3")),
    "--range", "forward GEMM 1", "--range", "backward GEMM 3",
    "--machine", "benchmarks/results/machine_h200x4.toml",
]  # fmt: skip
SCREENS = ("README.md", "docs/quickstart.md", "docs/mpi.md", "docs/symptoms.md", "docs/serving.md")
"""Pages that show whole first screens: of every `perfmodel analyze REPORT` above a text block."""
SCREEN = re.compile(
    r"(^perfmodel analyze (\S+(?: --(?:shapes|decoder) \S+)*)\n```\n\n```text\n).*?(?=^```)",
    re.M | re.S,
)
BEGIN, END = "<!-- output of make demo -->\n```text\n", "```\n<!-- end of output -->"


def analyze(out: Path, *reports: str) -> str:
    """Analyze shipped reports; return what that prints but for the written files."""
    return run("analyze", *reports, "-o", str(out)).partition("\nWritten: ")[0]


def run(*arguments: str) -> str:
    """Run perfmodel in the repository; return what it prints."""
    command = [sys.executable, "-m", "perfmodel", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip


def with_screens(page: str) -> str:
    """Return a page with the first screens that `perfmodel analyze` prints now.

    Those of other projects' recordings stay where PERFMODEL_PUBLIC names no folder of them.
    """
    public = Path(os.environ.get("PERFMODEL_PUBLIC", os.devnull)) / "small"

    def screen(found: re.Match[str]) -> str:
        places = ((public / word, word) for word in found[2].split())
        words = [str(path) if path.exists() else word for path, word in places]
        return found[1] + run("analyze", *words) if (ROOT / words[0]).exists() else found[0]

    return SCREEN.sub(screen, page)


def demo(out: Path) -> str:
    """Run the main job on the shipped report; return what it prints but for the written files."""
    return analyze(out, REPORT)


def shown(page: str) -> str:
    """Return the text that a page shows as the output of `make demo`."""
    return page.partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Write the outputs into their pages and the pictures into docs/images."""
    for name in SCREENS:
        text = (ROOT / name).read_text(encoding="utf-8")
        (ROOT / name).write_text(with_screens(text), encoding="utf-8")
    if sys.argv[1:] == ["screens"]:
        return
    page, images = ROOT / "docs" / "demo.md", ROOT / "docs" / "images"
    cli_reference.PAGE.write_text(cli_reference.reference(), encoding="utf-8")
    architecture.PICTURE.write_text(architecture.draw(), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        text = demo(out)
        for name in ("roofline.png", "breakdown.png"):
            shutil.copy(out / name, images / name)
        analyze(out, *TUTORIAL)
        shutil.copy(out / "roofline.png", images / "tutorial.png")
        first = str(ROOT / CAMPAIGN.format(512, 3000))
        others = sorted({str(path) for path in ROOT.glob(SIZES)} - {first})
        analyze(out, first, *others)
        for name in ("roofline.png", "roofline_phases.png"):
            shutil.copy(out / name, images / f"campaign_{name}")
        analyze(out, str(ROOT / "profiles" / "programs" / "gpt_shapes.sqlite.xz"))
        shutil.copy(out / "operators.png", images / "operators.png")
        run("whatif", DOCUMENT, "--model", MODEL, "-o", str(out))
        shutil.copy(out / "whatif.png", images / "whatif.png")
    run("timeline", REPORT, "-o", str(images / "timeline.png"))
    late = "profiles/programs/gpt_straggler8.sqlite.xz"
    run("timeline", late, "-o", str(images / "timeline_8_ranks.png"))
    item = "profiles/programs/item_b32.sqlite.xz"
    run("timeline", item, "--batch", "2", "--api", "-o", str(images / "idle.png"))
    run("counters", *COUNTERS, "-o", str(images / "counters.png"))
    pictures.main()
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(before + BEGIN + text + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()

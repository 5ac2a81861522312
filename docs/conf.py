"""Sphinx's configuration: the Markdown pages of this repository as a site (`make docs`).

The pages are those that GitHub shows, at the same paths, so that every link between them holds in
both places. The navigation is what docs/index.md lists. The notebooks are pages, too, with the
figures and tables of the last `make figures`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from docutils.nodes import Element, SkipNode
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))
import device_list

project = "perfmodel"
author = "The perfmodel developers"
root_doc = "docs/index"
include_patterns = [
    "*.md", "docs/*.md", "profiles/*.md", "notebooks/*.md", "notebooks/*.ipynb",
    "notebooks/data/*.md",
    "benchmarks/diagnosis/README.md", "benchmarks/fresh_campaign.md",
]  # fmt: skip
exclude_patterns = [".*", "out", "dist", "build", "tests", "**/__pycache__"]

extensions = ["myst_parser"]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
myst_heading_anchors = 4
myst_fence_as_directive = ["math"]
highlight_language = "none"  # an indented block is no program
pygments_style = "tango"
smartquotes = False  # names and commands stay as they are written

html_theme = "furo"
html_title = "perfmodel"
html_math_renderer = "mathml"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "search.js")
html_copy_source = False
html_use_index = False
html_show_copyright = False
html_theme_options = {"top_of_page_buttons": []}

linkcheck_timeout = 20
linkcheck_retries = 2


def navigation(index: str) -> str:
    """Return a hidden table of contents for every heading of the index that lists pages."""
    trees = []
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        caption = section.partition("\n")[0]
        links = re.findall(r"^- \[([^]]+)\]\(([^)#]+)\.md\)", section, re.MULTILINE)
        pages = [f"{words.replace('`', '')} <{page}>" for words, page in links]
        trees += ["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""]
    return "\n".join(["", "", *trees])


def notebook(text: str) -> str:
    """Return the cells of a notebook as Markdown, with the outputs of one that was run."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            source = re.sub(r"\$\$(.+?)\$\$", r"\n```{math}\n\1\n```\n", source, flags=re.DOTALL)
            parts.append(re.sub(r"\$([^$]+)\$", r"{math}`\1`", source))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if html := "".join(data.get("text/html", "")):
                parts.append(f"````{{raw}} html\n{html}\n````")
            elif latex := "".join(data.get("text/latex", "")):
                formula = latex.strip("$").removeprefix("\\displaystyle")
                parts.append(f"```{{math}}\n{formula}\n```")
            elif plain := "".join(output.get("text", data.get("text/plain", ""))):
                parts.append(f"````text\n{plain.rstrip()}\n````")
    return "\n\n".join(parts)


def _for_the_site(app: Sphinx, page: str, source: list[str]) -> None:
    if source[0].startswith("{"):
        run = Path(app.srcdir, "out", f"{page}.ipynb")
        source[0] = notebook(run.read_text(encoding="utf-8") if run.exists() else source[0])
    if page == "notebooks/README":
        names = sorted(path.stem for path in Path(app.srcdir, "notebooks").glob("*.ipynb"))
        source[0] += "\n".join(["", "```{toctree}", ":hidden:", "", *names, "```", ""])
    if page == "docs/devices":
        source[0] = device_list.page()
    if page == app.config.root_doc:
        source[0] += navigation(source[0])
    # the title instead of a file's name, where it is no possessive
    source[0] = re.sub(r"\[[\w./]+\.md\](\([^)]+\))(?!'s)", r"[]\1", source[0])


def _write_mathml(translator: Any, node: Element) -> None:
    """Write a formula as MathML, which browsers draw without scripts or network."""
    block = node.tagname == "math_block"
    formula = tex2mathml(node.astext(), as_block=block)
    translator.body.append(f'<div class="math">{formula}</div>' if block else formula)
    raise SkipNode


def _forward_to_index(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        page = f'<meta http-equiv="refresh" content="0; url={app.config.root_doc}.html">\n'
        Path(app.outdir, "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the navigation, formulas as MathML, and a first page at the top."""
    app.connect("source-read", _for_the_site)
    app.connect("build-finished", _forward_to_index)
    app.add_html_math_renderer("mathml", (_write_mathml, None), (_write_mathml, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

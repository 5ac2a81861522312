"""Draws the packages of perfmodel and their imports as docs/images/architecture.svg.

    python docs/architecture.py

A package's text is the docstring of its `__init__.py`. An import that follows from others is not
drawn. The test of the documentation fails when the committed picture is not what this draws.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
WIDTH, BOX_WIDTH, BOX_HEIGHT, GAP, MARGIN = 880, 278, 66, 34, 12
LETTERS = 42
"""Of a line in a box."""


def imports(source: Path) -> dict[str, set[str]]:
    """Return the top-level parts of a package, each with those that its modules import."""
    found: dict[str, set[str]] = {}
    for path in sorted(source.rglob("*.py")):
        part = path.relative_to(source).parts[0].removesuffix(".py")
        if part.startswith("_"):
            continue
        names = set(_imported(ast.parse(path.read_text(encoding="utf-8"))))
        found.setdefault(part, set()).update(names - {part})
    return {part: names & found.keys() for part, names in found.items()}


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            first, _, rest = name.partition(".")
            if first == "perfmodel" and rest:
                yield rest.partition(".")[0]


def below(part: str, edges: Mapping[str, set[str]]) -> set[str]:
    """Return all that a part imports, directly or through others."""
    return {found for one in edges[part] for found in {one, *below(one, edges)}}


def reduced(edges: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """Return the imports that do not follow from others."""
    return {
        part: sorted(n for n in names if not any(n in below(m, edges) for m in names - {n}))
        for part, names in edges.items()
    }


def rows(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the parts in rows, each above all that it imports; the base comes last."""
    height: dict[str, int] = {}

    def level(part: str) -> int:
        if part not in height:
            height[part] = 1 + max((level(n) for n in edges[part]), default=-1)
        return height[part]

    found: list[list[str]] = [[] for _ in range(1 + max(map(level, edges)))]
    for part in edges:
        found[level(part)].append(part)
    return found[::-1]


def purpose(part: str) -> tuple[str, str]:
    """Return the heading and the text of a part's box, from its docstring."""
    package = ROOT / "perfmodel" / part
    path = package / "__init__.py" if package.is_dir() else package.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    said = docstring.split("\n\n")[0].replace("\n", " ").replace("`", "").rstrip(".")
    said = said.removeprefix(f"{part.capitalize()}: ")
    return (f"{part}/" if package.is_dir() else f"{part}.py"), said[:1].upper() + said[1:]


def ordered(row: Sequence[str], edges: Mapping[str, list[str]], above: Sequence[str]) -> list[str]:
    """Return a row's parts in the order of what imports them in the row above."""

    def place(part: str) -> tuple[float, str]:
        known = [i for i, one in enumerate(above) if part in edges[one]]
        return (sum(known) / len(known) if known else 0.0), part

    return sorted(row, key=place)


def draw() -> str:
    """Return the picture as SVG."""
    edges = imports(ROOT / "perfmodel")
    arrows = reduced(edges)
    levels = rows(edges)
    for i in range(1, len(levels)):
        levels[i] = ordered(levels[i], arrows, levels[i - 1])
    place = {
        part: (WIDTH * (2 * j + 1) / (2 * len(row)), MARGIN + i * (BOX_HEIGHT + GAP))
        for i, row in enumerate(levels)
        for j, part in enumerate(row)
    }
    height = 2 * MARGIN + len(levels) * (BOX_HEIGHT + GAP) - GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="Helvetica, Arial, sans-serif">',
        "<title>The packages of perfmodel: an arrow points from one to what it imports</title>",
        '<defs><marker id="to" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#555"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        *(_arrow(place[a], place[b]) for a, names in arrows.items() for b in names),
        *(line for part in place for line in _box(part, *place[part])),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = start, end
    bottom = y1 + BOX_HEIGHT
    near = max(-0.3 * BOX_WIDTH, min(0.3 * BOX_WIDTH, 0.35 * (x2 - x1)))
    return (
        f'<line x1="{x1 + near:.0f}" y1="{bottom}" x2="{x2 - near:.0f}" y2="{y2 - 1}" '
        'stroke="#555" stroke-width="1.4" marker-end="url(#to)"/>'
    )


def _box(part: str, x: float, y: float) -> Iterator[str]:
    heading, said = purpose(part)
    fill = "#e8f0f8" if heading.endswith("/") else "#f4f4f4"
    left = x - BOX_WIDTH / 2
    yield (
        f'<rect x="{left:.0f}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" '
        f'fill="{fill}" stroke="#3b6ea5"/>'
    )
    yield (
        f'<text x="{x:.0f}" y="{y + 20}" text-anchor="middle" font-size="15" '
        f'font-weight="bold" fill="#111">{escape(heading)}</text>'
    )
    for i, line in enumerate(textwrap.wrap(said, LETTERS)):
        yield (
            f'<text x="{x:.0f}" y="{y + 38 + 15 * i}" text-anchor="middle" font-size="12" '
            f'fill="#333">{escape(line)}</text>'
        )


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")

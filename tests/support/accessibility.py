"""What Chromium says of a page's accessibility: names and headings of its tree, and contrast."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from support.browser import Browser

_NAMED: Final = (
    "link", "button", "image", "img", "searchbox", "textbox", "table", "application",
    "Canvas", "navigation", "heading", "graphics-document",
)  # fmt: skip
"""Roles that are useless without a name."""

CONTRAST: Final = """
const parse = (text) => {
  const parts = (text.match(/[\\d.]+/g) ?? []).map(Number);
  return parts.length < 3 ? null : [...parts.slice(0, 3), parts[3] ?? 1];
};
const light = (color) => {
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = color.map((c) => linear(c / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let one = element; one; one = one.parentElement) {
    const color = parse(getComputedStyle(one).backgroundColor);
    if (color && color[3] === 1) return color;
  }
  return [255, 255, 255, 1];
};
const found = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const element = walk.currentNode.parentElement, box = element.getBoundingClientRect();
  const text = walk.currentNode.textContent.trim();
  if (!text || element.closest("svg, script, [hidden], .unseen")) continue;
  if (!box.width || !box.height) continue;
  const style = getComputedStyle(element), size = parseFloat(style.fontSize);
  const big = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  const [a, b] = [light(parse(style.color)), light(behind(element))].sort((x, y) => x - y);
  const ratio = (b + 0.05) / (a + 0.05);
  if (ratio < (big ? 3 : 4.5)) {
    found.push(`${ratio.toFixed(2)}: ${element.tagName} ${text.slice(0, 40)}`);
  }
}
return found;
"""
"""Texts of a page whose contrast is below AA of WCAG 2.2, 4.5 or 3 of large ones."""


def problems(browser: Browser) -> list[str]:
    """Return what is wrong with the page that is open: names, headings, contrast."""
    browser.devtools("Accessibility.enable")
    nodes = browser.devtools("Accessibility.getFullAXTree")["nodes"]
    seen = [node for node in nodes if not node.get("ignored")]
    found = [
        f"a {_role(node)} without a name" for node in seen
        if _role(node) in _NAMED and not node.get("name", {}).get("value")
    ]  # fmt: skip
    levels = [_level(node) for node in seen if _role(node) == "heading"]
    if levels.count(1) != 1:
        found.append(f"{levels.count(1)} headings of the first level")
    found += [f"a heading of level {b} below one of {a}" for a, b in pairwise(levels) if b > a + 1]
    return [*found, *browser.script(CONTRAST)]


def _role(node: dict[str, Any]) -> str:
    return str(node.get("role", {}).get("value", ""))


def _level(node: dict[str, Any]) -> int:
    return next(int(p["value"]["value"]) for p in node["properties"] if p["name"] == "level")

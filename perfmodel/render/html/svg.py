"""Makes matplotlib's SVG a part of a page: no inline styles, no ids that collide, two themes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from xml.etree import ElementTree as ET

_NAMESPACE: Final = "{http://www.w3.org/2000/svg}"
_LINK: Final = "{http://www.w3.org/1999/xlink}href"
_NO_CHARACTERS: Final = re.compile("[\ufffe\uffff]")
_COLOR: Final = re.compile(r"#[0-9a-f]{6}")
_LONG_NUMBER: Final = re.compile(r"-?\d+\.\d{3,}")
_DROPPED: Final = ("metadata", "style")
_FONT: Final = "font-family"


def inline(
    svg: str, prefix: str, title: str, description: str, tips: Mapping[str, Sequence[str]]
) -> str:
    """Return the `<svg>` element of a picture, ready to stand in a page.

    What would be styles become attributes, which a policy that allows no inline styles lets pass.
    A colour ``#abcdef`` becomes ``var(--c-abcdef, #abcdef)``: the page's style sheet can give it
    another value in the dark. Groups that the figure named get that name as their class.

    Parameters
    ----------
    svg : str
        Of `perfmodel.render.plot.svg_text`.
    prefix : str
        Put before every id; one per picture of a page.
    title, description : str
        For who cannot see it.
    tips : mapping of str to sequence of str
        Names of the bars of a group, in the order in which they were drawn, by the group's name.
    """
    root = ET.fromstring(_NO_CHARACTERS.sub("\ufffd", svg))
    for element in list(root.iter()):
        element.tag = element.tag.removeprefix(_NAMESPACE)
        for child in list(element):
            if child.tag.removeprefix(_NAMESPACE) in _DROPPED:
                element.remove(child)
    used = {target for e in root.iter() for target in _targets(e)}
    for element in root.iter():
        _name_bars(element, tips)
        _rewrite(element, prefix, used)
        element.text = (element.text or "").strip() or None
        element.tail = None
    _drop_paper(root)
    _describe(root, prefix, title, description)
    return ET.tostring(root, encoding="unicode", short_empty_elements=True)


def _targets(element: ET.Element) -> Iterator[str]:
    """Yield the ids that an element refers to."""
    if _LINK in element.attrib:
        yield element.attrib[_LINK].removeprefix("#")
    for value in (element.get("clip-path"), element.get("style")):
        yield from re.findall(r"url\(#([^)]+)\)", value or "")


def _name_bars(group: ET.Element, tips: Mapping[str, Sequence[str]]) -> None:
    """Give the bars of a group their names, if every bar has one."""
    names = tips.get(group.get("id", "")) if group.tag == "g" else None
    bars = [child for child in group if child.tag in ("path", "use")]
    for bar, name in zip(bars, names or (), strict=False):
        if len(bars) == len(names or ()):
            ET.SubElement(bar, "title").text = name


def _rewrite(element: ET.Element, prefix: str, used: set[str]) -> None:
    """Turn styles into attributes, ids into classes or prefixed ones, links into prefixed ones."""
    attributes = dict(element.attrib)
    name = attributes.pop("id", None)
    for item in attributes.pop("style", "").split(";"):
        key, colon, value = (part.strip() for part in item.partition(":"))
        if colon and key != _FONT:
            attributes[key] = value
    if _LINK in attributes:
        attributes["href"] = f"#{prefix}-{attributes.pop(_LINK).removeprefix('#')}"
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if name in used:
        attributes["id"] = f"{prefix}-{name}"
    elif name and not re.search(r"_\d+$", name):
        attributes["class"] = " ".join(f"g-{word}" for word in re.findall(r"[a-z0-9]+", name))
    element.attrib.clear()
    for key, value in attributes.items():
        if key in ("fill", "stroke"):
            value = _COLOR.sub(lambda m: f"var(--c-{m[0][1:]},{m[0]})", value)
        elif key in ("d", "x", "y", "transform", "width", "height"):
            value = " ".join(_LONG_NUMBER.sub(_rounded, value).split())
        element.set(key, value.replace("url(#", f"url(#{prefix}-"))


def _rounded(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")


def _drop_paper(root: ET.Element) -> None:
    """Remove the white rectangles behind the figure and its axes: the page is the paper."""
    white = "var(--c-ffffff,#ffffff)"
    for group in root.iter("g"):
        for child in list(group):
            shapes = list(child)
            if child.tag == "g" and len(shapes) == 1 and shapes[0].get("fill") == white:
                alone = "stroke" not in shapes[0].attrib and shapes[0].tag == "path"
                if alone and shapes[0].get("d", "").count("L") == 3:
                    group.remove(child)


def _describe(root: ET.Element, prefix: str, title: str, description: str) -> None:
    box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib |= {"viewBox": box, "role": "img", "aria-labelledby": f"{prefix}-t {prefix}-d"}
    for at, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ET.Element(tag, {"id": f"{prefix}-{tag[0]}"})
        element.text = text
        root.insert(at, element)

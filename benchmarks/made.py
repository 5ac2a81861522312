"""Puts what a benchmark made between two markers of a document, and leaves the rest alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def put(page: Path, script: str, made: str, name: str = "") -> None:
    """Replace what stands between the markers of `script`, or of its part `name`, in a page.

    Raises
    ------
    SystemExit
        If the page has no such markers.
    """
    begin, end = markers(script, name)
    text = page.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        raise SystemExit(f"{page}: wanted the lines {begin} and {end}; found none; put them back")
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n\n{made.strip()}\n\n{end}{after}", encoding="utf-8")


def put_parts(page: Path, script: str, parts: Mapping[str, str]) -> None:
    """Replace every part of a page by its name, and say so."""
    for name, made in parts.items():
        put(page, script, made, name)
    print(f"docs/{page.name}: {', '.join(parts)}")


def section(page: Path, script: str, name: str = "") -> str:
    """Return what stands between the markers."""
    begin, end = markers(script, name)
    return page.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0].strip()


def markers(script: str, name: str = "") -> tuple[str, str]:
    """Return the lines before and behind what a script makes."""
    if name:
        return f"<!-- made by {script}: {name} -->", f"<!-- end of {name} -->"
    return f"<!-- made by {script}: do not edit -->", f"<!-- end of what {script} made -->"

"""Puts what a benchmark made between two markers of a document, and leaves the rest alone."""

from __future__ import annotations

from pathlib import Path


def put(page: Path, script: str, made: str) -> None:
    """Replace what stands between the markers of `script` in a page.

    Raises
    ------
    SystemExit
        If the page has no such markers.
    """
    begin, end = markers(script)
    text = page.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        raise SystemExit(f"{page}: wanted the lines {begin} and {end}; found none; put them back")
    before, after = text.partition(begin)[0], text.partition(end)[2]
    page.write_text(f"{before}{begin}\n\n{made.strip()}\n\n{end}{after}", encoding="utf-8")


def markers(script: str) -> tuple[str, str]:
    """Return the lines before and behind what a script makes."""
    return f"<!-- made by {script}: do not edit -->", f"<!-- end of what {script} made -->"

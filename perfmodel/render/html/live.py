"""The timeline that a page's script draws: all bars of a step, packed as text."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from perfmodel.base.escape import printable
from perfmodel.base.units import si
from perfmodel.render.html.blocks import cut
from perfmodel.timing.timeline import NAMES, Bar, Lane, Window

_LEVEL: Final = 9
"""Of zlib, whose stream the browser opens."""


@dataclass
class _Texts:
    """Distinct texts, and the number of each; number 0 is the empty text."""

    number: dict[str, int] = field(default_factory=lambda: {"": 0})

    def of(self, text: str) -> int:
        return self.number.setdefault(text, len(self.number))


def pack(lanes: Sequence[Lane], window: Window, words: Mapping[str, str]) -> str:
    """Return all bars of some lanes as base64 of deflated JSON.

    The document has the window's length in ns, the texts, the kinds of bars with their names, and
    for every lane its rank and name, and by bar: ns from the end of the one before to its start
    (of the first, from the window's start), ns that it takes, kind, name, details, whether it
    belongs to the step, ns that it waits for other ranks. Columns that are 0 throughout are absent.

    Parameters
    ----------
    lanes : sequence of Lane
    window : Window
    words : mapping of str to str
        What kinds are called.
    """
    texts, names = _Texts(), _Texts()
    kinds = list(dict.fromkeys(bar.kind for lane in lanes for bar in lane.bars))
    packed = [_lane(lane, window, kinds, names, texts) for lane in lanes]
    document = {
        "length": window.end_ns - window.start_ns, "lanes": packed,
        "kinds": [[kind, words.get(kind, NAMES.get(kind, kind))] for kind in kinds],
        "names": list(names.number), "texts": list(texts.number),
    }  # fmt: skip
    text = json.dumps(document, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8"), _LEVEL)).decode("ascii")


def _lane(
    lane: Lane, window: Window, kinds: Sequence[str], names: _Texts, texts: _Texts
) -> dict[str, Any]:
    gaps, before = [], window.start_ns
    for bar in lane.bars:
        gaps.append(bar.start_ns - before)
        before = bar.end_ns
    columns = {
        "gap": gaps,
        "long": [bar.end_ns - bar.start_ns for bar in lane.bars],
        "kind": [kinds.index(bar.kind) for bar in lane.bars],
        "name": [names.of(cut(printable(bar.name))) for bar in lane.bars],
        "text": [texts.of(_details(bar)) for bar in lane.bars],
        "other": [int(not bar.own) for bar in lane.bars],
        "waits": [bar.waits_ns for bar in lane.bars],
    }
    found: dict[str, Any] = {"rank": lane.rank, "lane": lane.name}
    return found | {key: values for key, values in columns.items() if any(values)}


def _details(bar: Bar) -> str:
    """Return the facts of a bar besides its name and its time, a line each."""
    size = [] if bar.size_bytes is None else [f"size: {si(bar.size_bytes, 'B')}"]
    stream = [] if bar.stream is None else [f"stream: {bar.stream}"]
    known = [f"{key}: {cut(printable(str(value)))}" for key, value in bar.details]
    return "\n".join([*size, *known, *stream])

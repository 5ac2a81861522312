"""Writes the results of benchmarks.whatif into docs/whatif.md, between its marks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common import folders
from benchmarks.common.pages import percent, put, table, written_in

PAGE = folders.DOCS / "whatif.md"
SCRIPT = "benchmarks.whatif --document"
written = written_in(Path(__file__).with_name("text.md"))
MODELS = ("frozen", "held out", "other launches")


def write(result: dict[str, Any]) -> None:
    """Replace what lies between the marks."""
    put(PAGE, SCRIPT, made(result))


def made(result: dict[str, Any]) -> str:
    """Return the generated part of the page."""
    ladder, campaign = result["ladder"], result["campaign"]
    blocks = (
        _bounds(result),
        _models(result),
        table(["change", "before, µs", "after", "saved", "at most", *MODELS],
              [_row(r, MODELS) for r in ladder]),
        "On the campaign, per as many images; calibration: whether the frozen model has seen one "
        "of the two configurations.",
        table(["change", "before, µs", "after", "saved", "at most", "frozen", "calibration"],
              [[*_row(r, ("frozen",)), "one of them" if r["seen"] else "none"] for r in campaign]),
    )  # fmt: skip
    return "\n\n".join(block.strip() for block in blocks) + "\n"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.0f}"


def _row(r: dict[str, Any], models: tuple[str, ...]) -> list[str]:
    at_most = _us(r["at_most_s"])
    if r["exceeds_s"] > 0:
        said = "noise" if r["holds"] else "wrong"
        at_most += f" ({said}: exceeded by {_us(r['exceeds_s'])})"
    return [
        r["pair"], _us(r["before_s"]), _us(r["after_s"]), _us(r["measured_s"]), at_most,
        *(_prediction(r["models"][m]) for m in models),
    ]  # fmt: skip


def _prediction(m: dict[str, Any]) -> str:
    if "refused" in m:
        return "refused"
    span = f"{_us(m['next_low_s'])} to {_us(m['next_high_s'])}"
    return f"{_us(m['saving_s'])} ({span}; after {100 * m['error']:+.0f} %)"


def _bounds(r: dict[str, Any]) -> str:
    b, noise = r["summary"]["bounds"], r["launch_noise"]
    rows = [*r["ladder"], *r["campaign"]]
    gains = [x["measured_s"] / x["at_most_s"] for x in rows if x["measured_s"] > 0]
    gain = percent(sorted(gains)[len(gains) // 2])
    return written("bounds", **b, gain=gain, **{k: percent(v) for k, v in noise.items()})


def _models(r: dict[str, Any]) -> str:
    s = r["summary"]
    kinds = [
        ("frozen", s["ladder"]["frozen"],
         "the ladder: of another machine and collection than the calibration"),
        ("held out", s["ladder"]["held out"],
         "the ladder, all other steps in the calibration, the one after the change not"),
        ("other launches", s["ladder"]["other launches"],
         "the ladder, other launches of both steps in the calibration"),
        ("frozen", s["campaign"],
         "the campaign: of other machines and an older collection than the calibration"),
    ]  # fmt: skip
    lines = [
        [name, where, f"{k['told']} of {k['pairs']}", percent(k["mean_error"]),
         percent(k["largest_error"]), percent(k["mean_alone"]), percent(k["mean_gap"]),
         f"{k['right_sign']} of {k['told']}", percent(k["inside"])]
        for name, k, where in kinds
    ]  # fmt: skip
    head = ["model", "judged on", "predicted", "mean error", "largest", "alone",
            "mean error of the saving", "right sign", "inside"]  # fmt: skip
    return written("predictions", table=table(head, lines))

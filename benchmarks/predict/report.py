"""Writes the results of benchmarks.predict into docs/predict.md, between its marks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import folders
from benchmarks.common.pages import percent, put, table, written_in
from benchmarks.predict.score import QUIET, best_rival, median_error, settings_at_one_size, summary

PAGE = folders.DOCS / "predict.md"
SCRIPT = "benchmarks.predict --document"
written = written_in(Path(__file__).with_name("text.md"))
CLOSE = 0.3
"""Pairs of settings that differ by less are hard to rank."""


def write(result: dict[str, Any]) -> None:
    """Replace what lies between the marks."""
    put(PAGE, SCRIPT, made(result))


def made(result: dict[str, Any]) -> str:
    """Return the generated part of the page."""
    blocks = [
        _frozen(result), _targets(result), _ranking(result), _routes(result),
        _rivals(result), _overhead(result), _foreign(result),
    ]  # fmt: skip
    return "\n\n".join(block.strip() for block in blocks) + "\n"


def _frozen(r: dict[str, Any]) -> str:
    s, floor, frozen, q = r["summary"], r["noise_floor"], r["frozen"], r["quiet"]
    return written(
        "frozen", configurations=frozen["configurations"], of=frozen["of"],
        commit=frozen["commit"] or "not yet made", predicted=s["configurations"] - s["refused"],
        refused=s["refused"], launches=floor["launches"], floor=percent(s["floor_mean"]),
        sd=", ".join(f"{name} {percent(value)}" for name, value in floor["launch_sd"].items()),
        mean=percent(s["mean"]), low=percent(s["mean_low"]), high=percent(s["mean_high"]),
        times=s["times_floor"], quiet=percent(QUIET), q=q["configurations"] - q["refused"],
        q_mean=percent(q["mean"]), q_low=percent(q["mean_low"]), q_high=percent(q["mean_high"]),
        q_max=percent(q["max"]), q_times=q["mean"] / _quiet_floor(r),
    )  # fmt: skip


def _known(r: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in r["rows"] if row["predicted_s"] is not None]


def _quiet_floor(r: dict[str, Any]) -> float:
    """What the launches of the quiet rows leave by their own spread: they were chosen by it."""
    rows = [row for row in _known(r) if (row["launch_sd"] or 1.0) < QUIET]
    left = [row["launch_sd"] * median_error(len(row["measured"])) for row in rows]
    return float(np.mean(left))


def _overhead(r: dict[str, Any]) -> str:
    rows = []
    for name, found in r["overhead"].items():
        low, high = found["share_q1_q3"]
        rows.append(
            [name, str(found["configurations"]), f"{1e6 * found['added_s']:.1f} µs",
             percent(found["share"]), f"{percent(low)} to {percent(high)}"]
        )  # fmt: skip
    head = ["a batch under Nsight Systems", "configurations", "longer by", "", "half of them"]
    return f"{table(head, rows).strip()}\n\n{unrecorded(r['without_recording'])}"


def unrecorded(found: dict[str, Any]) -> str:
    """Return the table of errors against batches without Nsight Systems."""
    rows = [
        [route, str(each["configurations"]),
         *(percent(each[name]["mean"]) for name in ("with", "without")),
         percent(each["without"]["bias"], signed=True),
         *(percent(each[name]["max"]) for name in ("with", "without"))]
        for route, each in found.items()
    ]  # fmt: skip
    head = ["unseen, against batches without Nsight Systems", "configurations",
            "mean error of the recorded batch predicted", "of the batch without recording",
            "bias", "largest error of the recorded batch predicted",
            "of the batch without recording"]  # fmt: skip
    return table(head, rows)


def _foreign(r: dict[str, Any]) -> str:
    f = r["foreign"]
    return (
        f"PyTorch DDP, half of its sizes unseen: mean {percent(f['mean'])}; every size left out "
        f"once {percent(f['leave_one_out_mean'])}; one launch each."
    )


def _targets(r: dict[str, Any]) -> str:
    s, t = r["summary"], r["targets"]
    worst = max(s["phases"].items(), key=lambda item: item[1])
    q = r["quiet"]
    beyond = r["studies"]["one step beyond"]["all"]["summary"]
    rows = [
        ("mean absolute error", s["mean"], t["mean"]),
        ("its upper 95 % bound", s["mean_high"], t["mean_high"]),
        ("90th percentile", s["p90"], t["p90"]),
        ("largest error", s["max"], t["max"]),
        (f"worst phase ({worst[0]})", worst[1], t["phase"]),
        ("one step beyond the grid, mean", beyond["mean"], t["beyond"]),
    ]
    # the floor is one of means: only means are multiples of it
    floors = {0: s["floor_mean"], 1: s["floor_mean"], 5: beyond["floor_mean"]}
    lines = [
        [name, percent(found), f"≤ {percent(wanted)}", "yes" if found <= wanted else "no",
         f"{found / floors[i]:.1f}" if i in floors else ""]
        for i, (name, found, wanted) in enumerate(rows)
    ]  # fmt: skip
    low, high = t["coverage"]
    inside = "yes" if low <= s["coverage"] <= high else "no"
    lines.append(["launches inside 90 % intervals", percent(s["coverage"]),
                  f"{percent(low)} to {percent(high)}", inside, ""])  # fmt: skip
    share = r["ranking"]["share"]
    right = "yes" if share is not None and share >= t["ranking"] else "no"
    lines.append([f"faster of two settings named ({r['ranking']['pairs']} pairs, both unseen)",
                  percent(share), f"≥ {percent(t['ranking'])}", right, ""])  # fmt: skip
    for name, key, target in (("mean", "mean", "mean"), ("90th percentile", "p90", "p90"),
                              ("largest error", "max", "max")):  # fmt: skip
        met = "yes" if q[key] <= t[target] else "no"
        times = f"{q[key] / _quiet_floor(r):.1f}" if key == "mean" else ""
        where = f"{name}, where launches agree to {percent(QUIET)}"
        lines.append([where, percent(q[key]), f"≤ {percent(t[target])}", met, times])
    return table(["on unseen configurations", "found", "target", "met", "times the floor"], lines)


def _ranking(r: dict[str, Any]) -> str:
    """How hard the pairs are: how many are close, and what a rival makes of the same pairs."""
    rows, pairs = _known(r), settings_at_one_size(r["rows"])
    close = [
        (a, b) for a, b in pairs
        if abs(math.log(a["measured_s"] / b["measured_s"])) < math.log(1 + CLOSE)
    ]  # fmt: skip
    ours, near = _right(pairs, "predicted_s"), _right(close, "predicted_s")
    others = {name: _right(pairs, name) for name in rows[0]["rivals_s"]}
    best = max(others, key=lambda name: others[name])
    return written(
        "ranking", pairs=len(pairs), close=len(close), share=100 * CLOSE, near=near, ours=ours,
        best=best, others=others[best],
    )  # fmt: skip


def _right(pairs: list[tuple[dict[str, Any], dict[str, Any]]], by: str) -> int:
    """Count the pairs whose order a model, or a rival of that name, predicts."""

    def said(row: dict[str, Any]) -> float:
        return float(row[by] if by in row else row["rivals_s"][by])

    return sum(
        (said(a) < said(b)) == (a["measured_s"] < b["measured_s"]) for a, b in pairs
    )  # fmt: skip


def _routes(r: dict[str, Any]) -> str:
    """The averages above hide that three kinds of batches are predicted differently well."""
    lines = []
    sd = r["noise_floor"]["launch_sd"]
    for name in sd:
        rows = [row for row in _known(r) if row["route"] == name]
        s = summary(rows, sd)
        lines.append(
            [name, str(len(rows)), percent(s["mean"]), percent(s["bias"], signed=True),
             f"{s['times_floor']:.1f}", percent(s["coverage"]), best_rival(s)]
        )  # fmt: skip
    head = ["unseen, by how a batch runs", "predicted", "mean", "bias", "times the floor",
            "inside 90 %", "best rival"]  # fmt: skip
    return table(head, lines)


def _rivals(r: dict[str, Any]) -> str:
    s = r["summary"]
    names = {
        "document": "the assignment's three rates, fitted at one run",
        "paleo": "PALEO: datasheet peaks times one scalar",
        "roofline": "hard roofline at the best rates reached",
        "boosted trees": "boosted trees on log times",
    }
    rows = [["this model", percent(s["mean"]), percent(s["max"])]]
    rows += [
        [names[name], percent(found["mean"]), percent(found["max"])]
        for name, found in s["rivals"].items()
    ]
    return table(["on the same points, calibrated on the same runs", "mean", "max"], rows)

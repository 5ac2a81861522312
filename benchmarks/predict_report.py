"""Writes the results of benchmarks/predict.py into docs/predict.md, between its marks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).resolve().parent.parent / "docs" / "predict.md"
BEGIN = "<!-- made by benchmarks/predict.py --document: do not edit -->"
END = "<!-- end of what benchmarks/predict.py made -->"


def write(result: dict[str, Any]) -> None:
    """Replace what lies between the marks."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n\n" + made(result) + "\n" + END + after, encoding="utf-8")


def made(result: dict[str, Any]) -> str:
    """Return the generated part of the page."""
    blocks = [
        _frozen(result),
        _designs(result),
        _targets(result),
        _rivals(result),
        _studies(result),
        _rows(result),
    ]
    return "\n\n".join(blocks) + "\n"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _frozen(r: dict[str, Any]) -> str:
    s, floor = r["summary"], r["noise_floor"]
    told = s["configurations"] - s["refused"]
    commit = r["frozen"]["commit"]
    return (
        f"Frozen on {len(r['frozen']['runs'])} runs (commit {commit or 'not yet made'}); "
        f"{told} unseen configurations predicted, {s['refused']} refused because no run of the "
        f"calibration has one of their terms. Launches of one configuration differ by "
        f"{_percent(floor['launch_sd'])} (one standard deviation, {floor['configurations']} "
        f"configurations launched more than once): a model that knew every true median would "
        f"still miss these measurements by {_percent(s['floor_mean'])} on average. Ours misses "
        f"them by {_percent(s['mean'])} (95 % interval {_percent(s['mean_low'])} to "
        f"{_percent(s['mean_high'])}), {s['times_floor']:.2f} times that floor."
    )


def _designs(r: dict[str, Any]) -> str:
    d, mean = r["other_designs"], r["summary"]["mean"]
    low, middle, high = (_percent(d["quantiles"][q]) for q in ("0.05", "0.5", "0.95"))
    floor = r["summary"]["floor_mean"]
    better = float(np.mean([mean < found["mean"] for found in d["drawn"]]))
    return (
        f"That is one choice of runs, and a lucky one. The terms were chosen with the whole "
        f"campaign in sight: only the coefficients have not seen the runs that are predicted. "
        f"{d['designs']} other designs, drawn at random with as many runs of each transport and "
        f"number of ranks, miss by {middle} in the median ({low} to {high}, 5th to 95th "
        f"percentile; {d['mean'] / floor:.1f} times the floor on average), and ours does better "
        f"than {100 * better:.0f} % of them; {_percent(d['coverage'])} of launches lie inside "
        f"their 90 % intervals, their largest errors are {_percent(d['max'])} on average, and the "
        f"best rival misses by {_percent(d['best_rival'])}. Expect the median, not our "
        f"{_percent(mean)}."
    )


def _targets(r: dict[str, Any]) -> str:
    s, t = r["summary"], r["targets"]
    worst = max(s["phases"].items(), key=lambda item: item[1])
    beyond = r["studies"]["one step beyond"]["all"]["summary"]
    rows = [
        ("mean absolute error", s["mean"], t["mean"]),
        ("its upper 95 % bound", s["mean_high"], t["mean_high"]),
        ("90th percentile", s["p90"], t["p90"]),
        ("largest error", s["max"], t["max"]),
        (f"worst phase ({worst[0]})", worst[1], t["phase"]),
        ("one step beyond the grid, mean", beyond["mean"], t["beyond"]),
    ]
    lines = [
        [name, _percent(found), f"≤ {_percent(wanted)}", "yes" if found <= wanted else "no",
         f"{found / s['floor_mean']:.1f}"]
        for name, found, wanted in rows
    ]  # fmt: skip
    low, high = t["coverage"]
    inside = "yes" if low <= s["coverage"] <= high else "no"
    lines.append(["launches inside 90 % intervals", _percent(s["coverage"]),
                  f"{_percent(low)} to {_percent(high)}", inside, ""])  # fmt: skip
    share = r["ranking"]["share"]
    right = "yes" if share is not None and share >= t["ranking"] else "no"
    lines.append([f"faster of two settings named ({r['ranking']['pairs']} pairs)", _percent(share),
                  f"≥ {_percent(t['ranking'])}", right, ""])  # fmt: skip
    return _table(["on unseen configurations", "found", "target", "met", "times the floor"], lines)


def _rivals(r: dict[str, Any]) -> str:
    s = r["summary"]
    names = {
        "document": "the document's three rates, fitted at one run",
        "paleo": "PALEO: datasheet peaks times one scalar",
        "roofline": "hard roofline at the best rates reached",
        "boosted trees": "boosted trees on log times",
    }
    rows = [["this model", _percent(s["mean"]), _percent(s["max"])]]
    rows += [
        [names[name], _percent(found["mean"]), _percent(found["max"])]
        for name, found in s["rivals"].items()
    ]
    return _table(["on the same points, calibrated on the same runs", "mean", "max"], rows)


def _studies(r: dict[str, Any]) -> str:
    rows = []
    for name, parts in r["studies"].items():
        for part, found in parts.items():
            s = found["summary"]
            shown = "all" if part == "all" else part
            if "mean" not in s:
                rows.append([name, shown, str(s["configurations"]), str(s["refused"]), *["–"] * 5])
                continue
            best = min(s["rivals"].items(), key=lambda item: item[1]["mean"])
            rows.append(
                [name, shown, str(s["configurations"]), str(s["refused"]), _percent(s["mean"]),
                 _percent(s["max"]), f"{s['times_floor']:.1f}", _percent(s["coverage"]),
                 f"{best[0]} {_percent(best[1]['mean'])}"]
            )  # fmt: skip
    head = ["study", "left out", "configurations", "refused", "mean", "max", "times the floor",
            "inside 90 %", "best rival"]  # fmt: skip
    return _table(head, rows)


def _rows(r: dict[str, Any]) -> str:
    rows = []
    for row in r["rows"]:
        if row["predicted_s"] is None:
            continue
        us = [f"{1e6 * row[k]:.0f}" for k in ("predicted_s", "low_s", "high_s", "measured_s")]
        rows.append(
            [row["case"], us[0], f"{us[1]} to {us[2]}", us[3], str(len(row["measured"])),
             f"{100 * row['error']:+.1f} %"]
        )  # fmt: skip
    head = ["configuration", "predicted, µs", "90 %", "measured, µs", "launches", "error"]
    return _table(head, rows)

"""Scores frozen models on configurations that were collected after them, on other hosts.

    python -m benchmarks.predict.fresh               # writes results/predict_fresh.json
    python -m benchmarks.predict.fresh --document    # the tables of docs/predict.md
    python -m benchmarks.predict.fresh --freeze      # before: results/predict_blind*.json
    python -m benchmarks.predict.fresh --blind       # after: scores profiles/blind by them
    python -m benchmarks.predict.fresh --hosts       # every host by the others: predict_hosts.json

The first campaign has the model of one host; what was visited before is not scored: it tells how
much faster or slower these hosts are. The second has the model of all hosts until then, predictions
that a commit froze before anything was measured, and for every host reports to correct by: one
configuration (H=1024 B=3000, gradients through the host) once, and what machine measure wrote.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import folders, results
from benchmarks.common.pages import percent, put, table
from benchmarks.predict.launches import (
    FROZEN,
    FROZEN_BY,
    Launches,
    case_of,
    commit_of,
    observed,
    of_all_hosts,
)
from benchmarks.predict.report import PAGE, unrecorded
from benchmarks.predict.score import (
    LAUNCH_SPREAD,
    QUIET,
    best_rival,
    noise_floor,
    predict_rows,
    quiet,
    ranking,
    summary,
    without_recording,
)
from perfmodel.base.errors import ModelError
from perfmodel.machines.measure.measurement import load as load_machine
from perfmodel.studies.models.calibrate import grouped
from perfmodel.studies.models.hosts import Host, by_calls, by_report, calls_of, unknown
from perfmodel.studies.models.model import Model, as_text, load
from perfmodel.studies.models.predict import predict
from perfmodel.studies.models.terms import Observation
from profiles.plans import BLIND, configurations

FRESH = folders.PROFILES / "fresh" / "launches.json"
OUT = folders.RESULTS / "predict_fresh.json"
SCRIPT = "benchmarks.predict.fresh --document"


def known_before(
    fresh: list[Observation], before: list[Observation], bare: tuple[dict[Any, Any], dict[Any, Any]]
) -> list[dict[str, Any]]:
    """Compare the configurations that both collections have, recorded and bare."""
    old = {group[0].case.key: group for group in grouped(before)}
    found = []
    for group in grouped(fresh):
        key, case = group[0].case.key, group[0].case
        if key not in old:
            continue
        now, then = (float(np.median([o.batch_s for o in g])) for g in (group, old[key]))
        row = {"case": case.label, "measured_s": now, "before_s": then, "ratio": now / then}
        if key in bare[0] and key in bare[1]:
            now, then = (float(np.median(times[key])) for times in bare)
            row |= {"bare_s": now, "bare_before_s": then}
        found.append(row)
    return found


def score() -> dict[str, Any]:
    """Predict every fresh configuration with the frozen model."""
    model = load(FROZEN)
    before, fresh = Launches(machine=folders.MACHINE), Launches(FRESH, None)
    used = {str(run["source"]) for run in model.runs}
    training = [o for o in before.observations if o.source in used]
    visited = {o.case.key for o in before.observations}
    rows = predict_rows(
        model, training, [o for o in fresh.observations if o.case.key not in visited],
        bare=fresh.bare,
    )  # fmt: skip
    sd = noise_floor(fresh.observations)["launch_sd"]
    routes = {}
    for route in sd:
        routes[route] = summary([row for row in rows if row["route"] == route], sd)
    for gemm in ("cublas", "fused"):
        routes[f"replayed, {gemm}"] = summary(of_gemm(rows, gemm), sd)
    beyond = [row for row in rows if row.get("extrapolated")]
    collected = results.read(FRESH)
    return {
        "collected": collected["collected"], "versions": collected["versions"],
        "noise_floor": noise_floor(fresh.observations), "summary": summary(rows, sd),
        "quiet": summary(quiet(rows), sd), "routes": routes, "beyond": summary(beyond, sd),
        "ranking": ranking(rows), "without_recording": without_recording(rows),
        "known_before": known_before(
            fresh.observations, before.observations, (fresh.bare, before.bare)
        ),
        "rows": rows,
    }  # fmt: skip


def made(result: dict[str, Any]) -> str:
    """Return the fresh campaign's part of the page."""
    s, floor = result["summary"], result["noise_floor"]["launch_sd"]
    host = {row["case"]: row["ratio"] - 1 for row in result["known_before"]}
    known = ", ".join(f"{case} {100 * ratio:+.1f} %" for case, ratio in host.items())
    said = (
        f"Frozen by commit {result['frozen']['commit']}, {s['configurations']} configurations, "
        f"{s['refused']} refused. These hosts are not the calibration's: what both collections "
        f"have took longer by {known} (the median launch). Nothing was corrected for that."
    )
    lines = []
    for name, each in [*result["routes"].items(), ("quiet", result["quiet"]), ("all", s)]:
        shown = f"launches agree to {100 * QUIET:.0f} %" if name == "quiet" else name
        differ = floor.get(name.partition(",")[0])
        lines.append(
            [shown, str(each["configurations"]), percent(each["mean"]),
             percent(each["bias"], signed=True), percent(each["p90"]), percent(each["max"]),
             f"{each['times_floor']:.1f}", percent(each["coverage"]), percent(differ),
             best_rival(each)]
        )  # fmt: skip
    head = ["fresh, by how a batch runs", "configurations", "mean", "bias", "90th percentile",
            "max", "times the floor", "inside 90 %", "launches differ by",
            "best rival"]  # fmt: skip
    ranks = result["ranking"]
    order = (
        f"Of {ranks['pairs']} pairs of settings at one size the faster one is named in "
        f"{ranks['right']}."
    )
    blocks = (said, table(head, lines), order, unrecorded(result["without_recording"]))
    return "\n\n".join(block.strip() for block in blocks) + "\n"


BLIND_MODEL = folders.RESULTS / "predict_blind_model.json"
BLIND_OUT = folders.RESULTS / "predict_blind.json"
BLIND_MACHINE = folders.RESULTS / "machine_h200x2.toml"
BLIND_MACHINE_HOST = "h200x2_hosts"
"""Its name in profiles/hosts/launches.json."""
BLIND_MEASURED = folders.PROFILES / "blind"
"""A folder a host; in it, for every group of configurations that one process group visited,
NAME.json (its launches), NAME_anchor.sqlite.xz and NAME.toml (machine measure's host times)."""
TARGETS = {"replayed": 0.025, "blocking": 0.06, "queued": 0.06, "all": 0.04}
"""Mean errors with an anchor."""
HOSTS_OUT = folders.RESULTS / "predict_hosts.json"
ANCHORS = 25
"""Reports of a host and route that are tried as its one report."""
HOW_KNOWN = ("nothing", "one report", "machine file", "both")
Hosts = dict[str, Host]


def freeze() -> None:
    """Fit the model to all launches until now, and write what it says of the blind plan."""
    machine = Launches(machine=BLIND_MACHINE)
    training = of_all_hosts()
    model = machine.calibrated(
        training, host_calls=calls_of(load_machine(folders.plain(BLIND_MACHINE))),
        calls_of_host=BLIND_MACHINE_HOST, left_out=114,
    )  # fmt: skip
    folders.put(BLIND_MODEL, as_text(model))
    rows = []
    for ranks in BLIND:
        for each in configurations(ranks, BLIND):
            case = case_of(each, ranks)
            said = predict(model, case, unknown())
            rows.append({
                "name": each["name"], "case": case.label, "predicted_s": said.batch_s,
                "low_s": said.low_s, "high_s": said.high_s,
                "phases": {p.name: p.seconds for p in said.phases},
            })  # fmt: skip
    results.write(BLIND_OUT, {
        "trained_on": len(training), "hosts": {k: list(v) for k, v in model.hosts.items()},
        "noise": dict(model.batch_noise), "predictions": rows,
    })  # fmt: skip


def known_of(model: Model, file: Path) -> Hosts:
    """Return what may be known of the host of a group of launches, by how it is known."""
    found = {"nothing": unknown()}
    [anchor] = observed([file.with_name(f"{file.stem}_anchor.sqlite.xz")])
    found["one report"] = by_report(unknown(), model, anchor)
    calls = calls_of(load_machine(file.with_suffix(".toml")))
    found["machine file"] = by_calls(unknown(), model.host_calls, calls, file.stem)
    found["both"] = by_report(found["machine file"], model, anchor)
    return found


def score_blind() -> dict[str, Any]:
    """Hold the frozen predictions against what was measured; the model is read as committed."""
    model, frozen = load(folders.plain(BLIND_MODEL)), results.read(BLIND_OUT)
    said = {row["case"]: row["predicted_s"] for row in frozen["predictions"]}
    training = of_all_hosts()
    seen = {o.case.key for o in training}  # three of the plan, once, in the oldest collection
    rows = []
    for file in folders.each(BLIND_MEASURED, "*/*.json"):
        unseen = [o for o in Launches(file, None).observations if o.case.key not in seen]
        for how, host in known_of(model, file).items():
            known = training if how == "nothing" else ()
            for row in predict_rows(model, known, unseen, host):
                if how == "nothing":  # nothing was fitted again
                    assert math.isclose(row["predicted_s"], said[row["case"]], rel_tol=1e-9)
                rows.append(row | {
                    "host": file.parent.name, "known": how, "odd": is_odd(row["sizes"]),
                    "factors": host.factors.tolist(),
                })  # fmt: skip
    return {k: frozen[k] for k in ("trained_on", "hosts", "noise", "predictions")} | {
        "commit": frozen.get("commit") or commit_of(BLIND_OUT), "rows": rows,
        "summary": summaries(rows),
    }  # fmt: skip


def is_odd(sizes: dict[str, int]) -> bool:
    """Whether a size is none that other collections have: a multiple of 100, no power of two."""
    return sizes["H"] % 100 == 0


def summaries(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Summarize by host, by how it is known and by how a batch runs."""
    found = []
    for host in (*dict.fromkeys(r["host"] for r in rows), "all hosts"):
        for how in dict.fromkeys(r["known"] for r in rows):
            mine = [r for r in rows if r["known"] == how and host in (r["host"], "all hosts")]
            parts = {route: [r for r in mine if r["route"] == route] for route in TARGETS}
            parts |= {
                "all": mine, "odd sizes": [r for r in mine if r["odd"]],
                "replayed, cublas": of_gemm(mine, "cublas"),
                "replayed, fused": of_gemm(mine, "fused"),
            }  # fmt: skip
            for name, some in parts.items():
                found.append({
                    "host": host, "known": how, "which": name, **summary(some, LAUNCH_SPREAD),
                    "ranking": ranking(some) if name == "all" and host != "all hosts" else None,
                })  # fmt: skip
    return found


def of_gemm(rows: list[dict[str, Any]], gemm: str) -> list[dict[str, Any]]:
    """Return the rows of CUDA graphs with these GEMMs."""
    return [r for r in rows if (r["route"], r["settings"]["gemm"]) == ("replayed", gemm)]


def leave_hosts_out() -> list[dict[str, Any]]:
    """Predict every host by a model of the other hosts, without and with one report of it.

    A host's reports of queued and of blocking batches are the anchor in turns, `ANCHORS` of each;
    the configuration of the anchor itself is not scored then. The noise is that of the frozen
    model, which no host changes by much.
    """
    machine, noise = Launches(machine=BLIND_MACHINE), load(folders.plain(BLIND_MODEL)).batch_noise
    every, rows = [*of_all_hosts(), *of_blind_hosts()], []
    for left in dict.fromkeys(o.host for o in every):
        own, others = ([o for o in every if (o.host == left) is mine] for mine in (True, False))
        model = replace(machine.calibrated(others, resamples=0, left_out=0), batch_noise=noise)
        scores: dict[str, list[Scores]] = {KNOWN[0]: [_scored(model, own, unknown())]}
        for how, route in zip(KNOWN[1:], ANCHORED, strict=True):
            anchors = [o for o in own if o.case.route == route]
            for anchor in anchors[:: -(-len(anchors) // ANCHORS) or 1]:
                try:
                    host = by_report(unknown(), model, anchor)
                except ModelError:  # of settings that no other host has
                    continue
                rest = [o for o in own if o.case.key != anchor.case.key]
                scores.setdefault(how, []).append(_scored(model, rest, host))
        rows.append({"host": left, "known": {
            how: {
                route: np.mean(found, axis=0).tolist() for route in TARGETS
                if (found := [each[route] for each in tried if route in each])
            } for how, tried in scores.items()
        }})  # fmt: skip
    return rows


KNOWN = ("nothing", "a queued report", "a blocking report")
"""Kinds of knowledge of a host that was left out."""
ANCHORED = ("queued", "blocking")
"""Routes of these reports."""
Scores = dict[str, tuple[float, float, float, float]]
"""By how a batch runs: configurations, their mean error, the share of launches inside intervals,
and the half-width of these as a logarithm."""


def of_blind_hosts() -> list[Observation]:
    """Launches of the blind campaign, by host."""
    return [
        replace(o, host=file.parent.name)
        for file in folders.each(BLIND_MEASURED, "*/*.json")
        for o in Launches(file, None).observations
    ]


def _scored(model: Model, launches: list[Observation], host: Host) -> Scores:
    found: dict[str, list[tuple[float, float, float]]] = {}
    for group in grouped(launches):
        try:
            said = predict(model, group[0].case, host)
        except ModelError:
            continue
        error = abs(said.batch_s / float(np.median([o.batch_s for o in group])) - 1)
        inside = np.mean([said.low_s <= o.batch_s <= said.high_s for o in group])
        width = math.log(said.high_s / said.low_s) / 2
        found.setdefault(group[0].case.route, []).append((error, float(inside), width))
    return {
        route: (len(each), *np.mean(each, axis=0).tolist()) for route, each in found.items()
    }  # fmt: skip


def mean_of_hosts(rows: list[dict[str, Any]], how: str, route: str) -> tuple[float, float, float]:
    """Return mean error, share inside, and half-width, the mean of the hosts that were anchored.

    Hosts with no report of a kind are left out for all kinds, so that these can be compared.
    """
    told = [row["known"][how][route] for row in rows
            if all(route in row["known"].get(each, {}) for each in KNOWN)]  # fmt: skip
    mean, inside, width = np.mean(told, axis=0)[1:].tolist()
    return mean, inside, math.expm1(width)


def made_of_hosts(rows: list[dict[str, Any]]) -> str:
    """Return the page's tables of hosts that were left out: by how a batch runs, and by host."""
    classes = []
    for route in ("replayed", *ANCHORED):
        found = [mean_of_hosts(rows, how, route) for how in KNOWN]
        classes.append([route, *(percent(each[i]) for i in range(3) for each in found)])
    head = ["mean of hosts left out", *(
        f"{what}, {how}" for what in ("error", "inside 90 %", "half-width") for how in KNOWN
    )]  # fmt: skip
    columns = [(KNOWN[0], "replayed"), *((how, route) for route in ANCHORED for how in KNOWN)]
    errors = [
        [row["known"].get(how, {}).get(route, (0, None))[1] for how, route in columns]
        for row in rows
    ]
    lines = [
        [row["host"], str(sum(int(each[0]) for each in row["known"][KNOWN[0]].values())),
         *(percent(error) for error in mine)]
        for row, mine in zip(rows, errors, strict=True)
    ]  # fmt: skip
    means = [np.mean([e for e in each if e is not None]) for each in zip(*errors, strict=True)]
    lines.append(["mean", "", *map(percent, means)])
    hosts = ["host left out", "configurations", *(f"{route}, {how}" for how, route in columns)]
    return f"{table(head, classes).strip()}\n\n{table(hosts, lines)}"


def made_blind(result: dict[str, Any]) -> str:
    """Return the page's first table, found against target, and how the campaign was made."""
    every = result["summary"]
    hosts = [h for h in dict.fromkeys(r["host"] for r in every) if h != "all hosts"]

    def of(known: str, which: str, host: str = "all hosts") -> dict[str, Any]:
        return next(r for r in every if (r["host"], r["known"], r["which"]) == (host, known, which))

    lines = []

    def add(
        what: str, key: str, which: str, target: float | None, known: str = "one report"
    ) -> None:
        found = [of(how, which)[key] for how in HOW_KNOWN]
        met = found[HOW_KNOWN.index(known)] <= target if target is not None else None
        lines.append([what, *map(percent, found), *_target(target, known, met)])

    add("replayed, mean", "mean", "replayed", 0.025)
    add("replayed, largest", "max", "replayed", 0.08)
    add("blocking, mean", "mean", "blocking", 0.06)
    add("queued, mean", "mean", "queued", 0.06)
    add("all, mean", "mean", "all", 0.04)
    add("all, mean, of an unknown host", "mean", "all", 0.08, "nothing")
    add("sizes that are multiples of 100, mean", "mean", "odd sizes", None)
    add("all, largest", "max", "all", None)
    phases = [_of_phases(of(how, "all")) for how in HOW_KNOWN]
    lines.append(["phases, mean", *map(percent, phases),
                  *_target(0.08, "one report", phases[1] <= 0.08)])  # fmt: skip
    for host in hosts:
        inside = [of(how, "all", host)["coverage"] for how in HOW_KNOWN]
        met = all(0.85 <= share <= 0.95 for share in inside[:2])
        lines.append([f"launches inside 90 %, {host}", *map(percent, inside),
                      "85.0 % to 95.0 %, both", "yes" if met else "no"])  # fmt: skip
    orders = [of("nothing", "all", host)["ranking"] for host in hosts]
    pairs, right = (sum(order[key] for order in orders) for key in ("pairs", "right"))
    head = ["blind, on other hosts", *(f"known: {how}" for how in HOW_KNOWN), "target", "met"]
    each = ", ".join(f"{of('nothing', 'all', h)['configurations']} on {h}" for h in hosts)
    said = (
        f"Fitted to {result['trained_on']} launches on {len(result['hosts'])} hosts with H200s and "
        f"frozen by commit {result['commit']}; then configurations that none of these launches had "
        f"visited, five launches each: {each}. Of {pairs} pairs of settings at one size the faster "
        f"one is named in {right}."
    )
    return "\n\n".join((table(head, lines).strip(), said)) + "\n"


def _target(target: float | None, known: str, met: bool | None) -> tuple[str, str]:
    """Return the last two columns: the target with what may be known for it, and whether met."""
    if target is None:
        return "–", "–"
    return f"≤ {percent(target)}, {known}", "yes" if met else "no"


def _of_phases(found: dict[str, Any]) -> float:
    return float(np.mean(list(found["phases"].values())))


def made_by_host(result: dict[str, Any]) -> str:
    """Return the page's table by host and by how a batch runs, without and with a report."""
    rows = {(r["host"], r["known"], r["which"]): r for r in result["summary"]}
    lines = []
    for host, known, which in rows:
        first, then = (rows[host, how, which] for how in HOW_KNOWN[:2])
        if host == "all hosts" or known != HOW_KNOWN[0] or not first["configurations"]:
            continue
        lines.append(
            [host, which, str(first["configurations"]), percent(first["mean"]),
             percent(first["bias"], signed=True), percent(then["mean"]),
             percent(then["bias"], signed=True), percent(then["max"]),
             f"{then['times_floor']:.1f}", percent(first["coverage"]), percent(then["coverage"])]
        )  # fmt: skip
    head = ["host", "which", "configurations", "mean, nothing known", "bias", "mean, one report",
            "bias", "max", "times the floor", "inside 90 %, nothing known",
            "inside 90 %, one report"]  # fmt: skip
    return table(head, lines)


def document() -> None:
    """Write the tables of the page."""
    put(PAGE, SCRIPT, made(results.read(OUT)))
    blind = results.read(BLIND_OUT)
    if "summary" in blind:
        put(PAGE, SCRIPT, made_blind(blind), "found against target")
        put(PAGE, SCRIPT, made_by_host(blind), "by host")
    if HOSTS_OUT.exists():
        put(PAGE, SCRIPT, made_of_hosts(results.read(HOSTS_OUT)), "hosts left out")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    chosen = parser.add_mutually_exclusive_group()
    for name in ("document", "freeze", "hosts", "blind"):
        chosen.add_argument(f"--{name}", action="store_true")
    given = parser.parse_args()
    if given.document:
        document()
    elif given.freeze:
        freeze()
    elif given.hosts:
        results.write(HOSTS_OUT, leave_hosts_out())
    elif given.blind:
        result = score_blind()
        results.write(BLIND_OUT, result)
        for row in result["summary"]:
            if row["configurations"]:
                print(f"{row['host']:>12} {row['known']:>12} {row['which']:>16} "
                      f"{row['configurations']:4d} mean {100 * row['mean']:5.1f} "
                      f"bias {100 * row['bias']:+6.1f} max {100 * row['max']:5.1f} "
                      f"inside {100 * row['coverage']:4.0f} %")  # fmt: skip
    else:
        first_campaign()


def first_campaign() -> None:
    """Score the first campaign, and print what was found of every configuration."""
    result = {"frozen": {"model": FROZEN.name, "commit": FROZEN_BY}, **score()}
    results.write(OUT, result)
    for row in result["rows"]:
        said = row.get("error")
        shown = "refused" if said is None else f"{100 * said:+6.1f} %"
        spread = row["launch_sd"] if row["launch_sd"] is not None else math.nan
        print(f"{shown:>9}  launches differ by {100 * spread:5.1f} %  {row['case']}")
    for row in result["known_before"]:
        print(f"{100 * (row['ratio'] - 1):+6.1f} % against the calibration's host: {row['case']}")


if __name__ == "__main__":
    main()

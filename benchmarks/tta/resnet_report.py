"""Writes what docs/tta.md shows of the ResNet-50, from benchmarks/results/tta_resnet/*.json.

python -m benchmarks.tta.resnet_report
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from benchmarks.common import folders
from benchmarks.common.arguments import report
from benchmarks.common.pages import markdown, put
from benchmarks.common.results import read as read_json
from benchmarks.tta.report import cv, mean
from perfmodel.models.spread import Spread, equal_cv, spread
from perfmodel.render.plot import save
from perfmodel.studies.analysis.tta import Compared, Side, compare, side
from perfmodel.studies.render.tta import picture

RESULTS: Final = folders.RESULTS / "tta_resnet"
PAGE: Final = folders.DOCS / "tta.md"
SCRIPT: Final = "benchmarks.tta.resnet_report"
TARGET: Final = 0.92
MACHINES: Final = ("h200", "h100")
TARGETS: Final = (0.85, 0.9, 0.92, 0.94, 0.95)
"""Accuracies that were asked for afterwards, of the same runs."""


def machines() -> dict[str, tuple[dict[str, Any], Side]]:
    """Return what was measured of each machine, and its runs."""
    paths = {name: RESULTS / f"{name}.json" for name in MACHINES}
    return {name: (read_json(path), side([path], TARGET)) for name, path in paths.items()}


def others(read: dict[str, Any], key: str) -> Spread | None:
    """Return the spread of the accuracies on the images of another source."""
    found = [run["other_source"][key] for run in read["runs"]]
    return spread([value for value in found if value is not None])


def page(found: dict[str, tuple[dict[str, Any], Side]]) -> str:
    """Return what stands between the marks."""
    picture = "![Test accuracy over time, a line for every run](images/tta_resnet.png)"
    return "\n\n".join([
        summary(found), by_run(found), by_target(found), against(found), picture,
    ])  # fmt: skip


def summary(found: dict[str, tuple[dict[str, Any], Side]]) -> str:
    """Return a row a machine."""
    columns = (
        "GPU; runs; reach 0.92; time to it, evaluated, s (± s); CV of it (95 %); "
        "time, interpolated, s (± s); CV of it (95 %); epochs to it, evaluated (± s); "
        "epochs, interpolated (± s); CV of it (95 %); test accuracy, last (± s); "
        "of 50 others, at 0.92 (± s); "
        "of 50 others, last (± s)"
    )
    rows, said = [], []
    for read, one in found.values():
        s, runs = one.spreads, len(one.runs)
        rows.append(
            (read["device"], str(runs), str(runs - one.censored), mean(s["time_s"], 2),
             cv(s["time_s"]), mean(s["time_between_s"], 2), cv(s["time_between_s"]),
             mean(s["epoch"], 1), mean(s["epochs_between"], 2), cv(s["epochs_between"]),
             mean(s["accuracy_final"], 4), mean(others(read, "accuracy_at_target"), 3),
             mean(others(read, "accuracy_final"), 3))
        )  # fmt: skip
        first = read["runs"][0]
        said.append(f"{read['device']}, torch {first['versions']['torch']}, {read['date']}: "
                    f"`{read['command']}`.")  # fmt: skip
    return f"{' '.join(said)}\n\n{markdown(columns, rows)}"


def by_run(found: dict[str, tuple[dict[str, Any], Side]]) -> str:
    """Return a row a run."""
    columns = (
        "GPU; seed=int; epochs to 0.92=int; time to it=s; epochs, interpolated=float.2; "
        "time, interpolated=s; an epoch=s; "
        "test accuracy, last=float.4; of 50 others, at 0.92=percent.0; of 50 others, last=percent.0"
    )
    rows = []
    for read, one in found.values():
        for record, run in zip(read["runs"], one.runs, strict=True):
            moment, wild = run.moment, record["other_source"]
            rows.append(
                (read["device"], record["config"]["seed"],
                 moment.epoch if moment.reached else None,
                 moment.time_s if moment.reached else None,
                 moment.epochs_between if moment.reached else None,
                 moment.time_between_s if moment.reached else None,
                 moment.time_s / moment.epoch, run.accuracy_final, wild["accuracy_at_target"],
                 wild["accuracy_final"])
            )  # fmt: skip
    return markdown(columns, rows)


def by_target(found: dict[str, tuple[dict[str, Any], Side]]) -> str:
    """Return how the coefficient of variation depends on the accuracy that is asked for."""
    rows = []
    for name, (read, _) in found.items():
        for target in TARGETS:
            one = side([RESULTS / f"{name}.json"], target)
            s, reached = one.spreads, len(one.runs) - one.censored
            rows.append(
                (read["device"], f"{target:g}", f"{reached} of {len(one.runs)}",
                 mean(s["epochs_between"], 2), cv(s["time_between_s"]), cv(s["epochs_between"]))
            )  # fmt: skip
    columns = (
        "GPU; target; reach it; epochs, interpolated (± s); CV of time, interpolated (95 %); "
        "CV of epochs, interpolated (95 %)"
    )
    return f"The same runs, to other accuracies:\n\n{markdown(columns, rows)}"


def against(found: dict[str, tuple[dict[str, Any], Side]]) -> str:
    """Return the tests of one machine against the other."""
    (first, a), (second, b) = found.values()
    rows = []
    for target in TARGETS:
        sides = [side([RESULTS / f"{name}.json"], target) for name in reversed(MACHINES)]
        for name, title in (("time_between_s", "time"), ("epochs_between", "epochs")):
            values = [[m.value for m in one.moments(name) if m.reached] for one in sides]
            test = equal_cv(*values)
            if test is not None and (title == "time" or target == TARGET):
                rows.append(
                    (f"{title} to {target:g}", test.ratio, test.z, test.p_miller,
                     test.p_permutation)
                )  # fmt: skip
    table = markdown(
        "CV of=text; ratio of the CVs=float.2; z (Miller)=float.2; p (Miller)=float.3; "
        "p (permutations)=float.3", rows,
    )  # fmt: skip
    tested = {c.quantity: c for c in compare(b, a)}
    lines = [
        f"{second['device']} over {first['device']}, interpolated: time "
        f"{effect(tested['time_between_s'])}, epochs "
        f"{effect(tested['epochs_between'])}, last accuracy minus the other's "
        f"{effect(tested['accuracy_final'], '+.4f')}."
    ]
    return f"{table}\n\n{' '.join(lines)}"


def effect(one: Compared, form: str = ".3f") -> str:
    """Write a ratio or difference with its interval and p."""
    if one.effect is None:
        return f"not comparable, p = {one.p:.2g}" if one.p is not None else "not comparable"
    e = one.effect
    return f"{e.value:{form}} ({e.low:{form}} to {e.high:{form}}; p = {e.p:.2g})"


def main() -> None:
    report(__doc__)
    found = machines()
    put(PAGE, SCRIPT, page(found))
    sides = [
        replace(one, name=read["device"].replace("NVIDIA ", "")) for read, one in found.values()
    ]
    save(picture(sides, TARGET), folders.IMAGES, "tta_resnet", ("png",))


if __name__ == "__main__":
    main()

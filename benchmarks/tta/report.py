"""Writes the tables and the picture of docs/tta.md from benchmarks/results/tta/*.json.

python -m benchmarks.tta.report
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common import folders, results
from benchmarks.common.arguments import report
from benchmarks.common.pages import put, table
from benchmarks.common.results import called
from benchmarks.tta.__main__ import CONFIGURATIONS
from perfmodel.models.spread import Spread
from perfmodel.render.plot import save
from perfmodel.render.plot.studies import AccuracyCurve, time_to_accuracy
from perfmodel.studies.analysis.tta import Compared, Side, compare, side

RESULTS = folders.RESULTS
PAGE = folders.DOCS / "tta.md"
SCRIPT = "benchmarks.tta.report"
TARGET = 0.92
PAIRS = (("large", "base"), ("scaled", "base"), ("rule", "base"), ("rule", "scaled"),
         ("raw_large", "raw_base"), ("raw_rule", "raw_base"),
         ("raw_rule", "raw_large"))  # fmt: skip
SHOWN_EPOCHS = (1, 5, 10, 20)


def read(folder: Path) -> dict[str, Side]:
    """Return all configurations that were measured on a machine."""
    return {path.stem: side([path], TARGET) for path in files(folder)}


def files(folder: Path) -> list[Path]:
    """Return the results of a machine, which may lack configurations, in their order."""
    return [path for name in CONFIGURATIONS if (path := folder / f"{name}.json").exists()]


def rule_of(one: Side) -> str:
    """Write the learning rate of a configuration."""
    s = one.runs[0].training.settings
    rate, size, of = s["learning_rate"], s["batch_size"], s["scale_learning_rate"]
    warm = f", {s['warmup_epochs']} epoch of warm-up" if s["warmup_epochs"] else ""
    scaled = f"{rate:g} x {size} / {of} = {rate * size / of:g}" if of else f"{rate:g}"
    return f"{scaled}{warm}"


def cv(found: Spread | None) -> str:
    """Write a coefficient of variation with its interval."""
    if found is None or found.cv is None or found.cv_low is None:
        return "–"
    upper = "" if found.cv_high is None else f" to {100 * found.cv_high:.1f}"
    return f"{100 * found.cv:.1f} % ({100 * found.cv_low:.1f}{upper} %)"


def mean(found: Spread | None, digits: int) -> str:
    """Write a mean with its standard deviation."""
    if found is None or found.std is None:
        return "–"
    return f"{found.mean:.{digits}f} ± {found.std:.{digits}f}"


def sides_table(sides: dict[str, Side]) -> str:
    """Write a row for every configuration."""
    rows = []
    for name, one in sides.items():
        s, settings = one.spreads, one.runs[0].training.settings
        reached = len(one.runs) - one.censored
        rows.append([
            f"`{name}`", f"{settings['pixels']}", f"{settings['batch_size']}", rule_of(one),
            f"{reached} of {len(one.runs)}", mean(s["epoch"], 1), mean(s["epochs_between"], 2),
            cv(s["epochs_between"]), mean(s["time_s"], 3), mean(s["time_between_s"], 3),
            cv(s["time_between_s"]), mean(s["accuracy_final"], 4),
            mean(s["accuracy_gap"], 4),
        ])  # fmt: skip
    head = ["configuration", "pixels", "B", "learning rate", f"runs that reach {TARGET:g}",
            "epochs to it, evaluated (± s)", "epochs, interpolated (± s)", "CV of it (95 %)",
            "time to it, evaluated, s (± s)", "time, interpolated, s (± s)", "CV of it (95 %)",
            "test accuracy, last (± s)", "train less test"]  # fmt: skip
    return table(head, rows)


def pairs_table(sides: dict[str, Side]) -> str:
    """Write a row for every comparison."""
    rows = []
    for after, before in PAIRS:
        if after in sides and before in sides:
            time, epochs, last = compare(sides[after], sides[before])
            shown = (effect(epochs, ".2f"), effect(time, ".2f"), effect(last, "+.4f"))
            rows.append([f"`{after}` / `{before}`", *shown])
    head = ["against", "epochs, interpolated, ratio", "time, interpolated, ratio",
            "test accuracy, difference"]  # fmt: skip
    return table(head, rows)


def effect(one: Compared, form: str) -> str:
    """Write a ratio or difference with its interval, and p of the test that was made."""
    p = "" if one.p is None else f"; p = {one.p:.2g}"
    if one.effect is None:
        return f"–{p}"
    e = one.effect
    return f"{e.value:{form}} ({e.low:{form}} to {e.high:{form}}){p}"


def epochs_table(sides: dict[str, Side]) -> str:
    """Write least and most test accuracy after some epochs."""
    rows = []
    for name, one in sides.items():
        cells = []
        for number in SHOWN_EPOCHS:
            seen = [e.precision for r in one.runs for e in r.training.evaluated
                    if e.epoch == number and e.precision is not None]  # fmt: skip
            cells.append(f"{min(seen):.3f} to {max(seen):.3f}" if seen else "–")
        rows.append([f"`{name}`", *cells])
    return table(["test accuracy after epoch", *map(str, SHOWN_EPOCHS)], rows)


def about(folder: Path) -> dict[str, Any]:
    """Return what a configuration's file says of how it was made."""
    all_of_them = [results.read(path) for path in files(folder)]
    found = all_of_them[0]
    commands = dict.fromkeys(f"`{called(one['command'])}`" for one in all_of_them)
    versions = found["runs"][0]["versions"]
    listed = [f"{k} {versions[k]}" for k in ("python", "numpy", "cupy", "blas") if versions.get(k)]
    return {**found, "commands": ", ".join(commands), "versions": ", ".join(listed)}


def machine(folder: Path, title: str) -> str:
    """Write a machine's part."""
    sides = read(folder)
    a, first = about(folder), next(iter(sides.values())).runs[0].training
    said = (
        f"### {title}\n\n{a['device']}, {a['date']}: {a['commands']} ({a['versions']}; "
        f"H = {first.settings['hidden_size']}, {first.settings['dtype']}, MNIST).\n\n"
    )
    return said + "\n".join((sides_table(sides), pairs_table(sides), epochs_table(sides)))


def picture(sides: dict[str, Side]) -> Any:
    """Draw the configurations with pixels 0..1 over epochs, which no other program slows down."""
    curves = [
        AccuracyCurve(
            name, [e.epoch for e in run.training.evaluated],
            [e.precision for e in run.training.evaluated if e.precision is not None],
            run.moment.epochs_between, run.moment.reached,
        )
        for name, one in sides.items() if not name.startswith("raw") for run in one.runs
    ]  # fmt: skip
    return time_to_accuracy(curves, TARGET, label="Epochs")


def page() -> str:
    """Return what stands between the marks of the page."""
    parts = [machine(RESULTS / "tta", "On a CPU"), machine(RESULTS / "tta_cupy", "On a GPU")]
    picture = "![Test accuracy over epochs, a line for every run](images/tta.png)\n"
    return "\n".join([*parts, picture])


def main() -> None:
    report(__doc__)
    put(PAGE, SCRIPT, page())
    save(picture(read(RESULTS / "tta")), folders.IMAGES, "tta", ("png",))


if __name__ == "__main__":
    main()

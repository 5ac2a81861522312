"""The run records of notebooks/data are what `python -m benchmarks.convergence` writes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.common.folders import ROOT, content, each
from benchmarks.convergence.__main__ import PARTS
from benchmarks.convergence.sweeps import _milestone

DATA = ROOT / "notebooks" / "data"
FILES = {name: part for parts in PARTS.values() for name, part in parts.items()}


def flags(words: list[str]) -> dict[str, list[str]]:
    """Return the values of every option; of one that is given twice, the last."""
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            found[last := word] = []
        else:
            found[last].append(word)
    return found


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(content(path).splitlines()))


def test_every_file_has_its_part_of_the_script() -> None:
    assert {path.stem for path in each(DATA, "*.csv")} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_file_holds_what_its_part_asks_for(name: str) -> None:
    ranks, (study, *words) = FILES[name]
    asked, found = flags(words), rows(DATA / f"{name}.csv")
    rates = {float(row["learning_rate"]) for row in found}
    assert rates == set(map(float, asked["--learning-rates"]))
    sizes = {row["hidden_size"] for row in found}
    assert sizes == set(asked.get("--hidden-sizes", ["512"]))
    assert {row["batch_size"] for row in found} == set(asked.get("--batch-size", ["3000"]))
    if study == "convergence":
        assert {row["seed"] for row in found} == set(asked.get("--seeds", ["1"]))
    last = int(asked["--epochs"][0])
    epochs = {int(row["epoch"]) for row in found}
    thin = "--thin" in asked
    assert epochs == {e for e in range(1, last + 1) if not thin or _milestone(e, last)}
    if study == "parallel":
        assert {row["ranks"] for row in found} == {str(ranks)}
    if study != "discrepancy":
        assert {row["backend"] for row in found} == set(asked.get("--backend", ["numpy"]))

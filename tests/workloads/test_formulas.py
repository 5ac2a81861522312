"""Printed formulas and sensitivities: golden lines, LaTeX that compiles, numbers that agree."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import WorkloadError
from perfmodel.programs.mlp.mlp import mlp
from perfmodel.workloads import Expression, Symbol, Work, Workload
from perfmodel.workloads.formulas import Sensitivity, formulas, sensitivities, tidy

DOCUMENT = {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 4}
WORKLOADS = [mlp(c, k) for c in ("document", "full") for k in ("data", "model")]


def workload(row: dict[str, str], name: str = "r") -> Workload:
    symbols = {s: Symbol(s) for s in ("x", "y", "hidden_size")}
    return Workload("w", "spec", "a test", "batch", symbols, {name: Work.parse(row, symbols, {})})


# --- text -----------------------------------------------------------------------------------


def test_text_prints_the_documents_formulas() -> None:
    lines = formulas(mlp("document"), "text", DOCUMENT).splitlines()
    for line in (
        "  D = 784: input size [elements per image]",
        "  B' = B/p = 1,500: images of one rank",
        "  n = C*H + C + D*H + H = 407,050: parameters",
        "  FLOPs                  2*B'*D*H = 1,204,224,000",
        "  FLOPs                  4*B'*H*(C + D) = 2,439,168,000",
        "  PCIe bytes             2*b*n = 3,256,400",
        "  MPI bytes              4*b*n*(p - 1)/p = 3,256,400",
        "  AI = 2*B'*H*p*(C + D)/(b*n*(3*p - 2)) = 374.519",
        "  B: AI rises for all values; elasticity 1",
        "  H: AI nearly flat, rises; elasticity C/(C*H + C + D*H + H) = 2.46e-05",
        "  p: AI falls for all values; elasticity -3*p/(3*p - 2) = -1.5",
    ):
        assert line in lines


def test_text_without_values_has_formulas_only() -> None:
    text = formulas(mlp("document"))
    assert "  B' = B/p: images of one rank\n" in text
    assert "  C: AI depends on the values; elasticity" in text
    assert "1,500" not in text


def test_text_of_a_workload_without_bytes_or_flops() -> None:
    assert "not defined: no FLOPs, or no bytes moved" in formulas(workload({"flops": "x"}))
    assert "not defined" in formulas(workload({"pci": "x"}))
    alone = {**DOCUMENT, "p": 1}
    load = mlp("document")
    only = Workload("w", "spec", "", "", load.symbols, {"r": load.total(["MPI_Allreduce"])})
    assert "not defined" in formulas(only, "text", alone)


def test_wrong_formats_and_values_are_refused() -> None:
    with pytest.raises(
        WorkloadError, match="expected one of text, latex, json, csv, jsonl, markdown; got 'html'"
    ):
        formulas(mlp(), "html")  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match="take B=3003"):
        formulas(mlp(), "text", {**DOCUMENT, "p": 7})


def test_names_are_made_printable() -> None:
    load = workload({"flops": "x", "pci": "y"}, "evil\x1b[31m\u202e")
    assert "evil\\x1b[31m\\u202e" in formulas(load, "text")
    assert "\x1b" not in formulas(load, "json") + formulas(load, "latex")


# --- JSON -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("load", WORKLOADS, ids=lambda w: f"{w.name}, {w.counting}")
def test_json_holds_every_formula_and_number(load: Workload) -> None:
    content = json.loads(formulas(load, "json", DOCUMENT))
    counts, total = load.evaluate(DOCUMENT), load.total().subs(DOCUMENT)
    assert list(content["ranges"]) == list(load.ranges)
    for name, row in content["ranges"].items():
        for key, entry in row.items():
            assert entry["value"] == getattr(counts[name], key)
            assert entry["text"]
            assert entry["latex"]
    assert content["arithmetic_intensity"]["value"] == pytest.approx(total.arithmetic_intensity)
    assert content["symbols"].keys() == load.symbols.keys() | load.derived.keys()
    assert content["elasticities"].keys() == load.symbols.keys()


# --- sensitivities --------------------------------------------------------------------------


@cache
def at_the_document(which: int) -> dict[str, Sensitivity]:
    """Return the sensitivities of one of `WORKLOADS`, which take a while."""
    return sensitivities(WORKLOADS[which], DOCUMENT)


def test_document_intensity_rises_with_b_is_flat_in_h_and_falls_with_p() -> None:
    """Question 2.6: with n = HD + H + CH + C, AI = B H (D+C) / (n b (3p - 2)/2)."""
    found = at_the_document(0)
    assert [(s, found[s].sign) for s in "BHDpb"] == [
        ("B", 1), ("H", 1), ("D", 1), ("p", -1), ("b", -1),
    ]  # fmt: skip
    assert found["C"].sign is None  # rises where H > D
    assert found["B"].value == 1
    assert found["H"].value == pytest.approx(10 / 407_050)
    assert found["D"].value == pytest.approx(784 * 522 / (794 * 407_050))
    assert found["C"].value == pytest.approx(10 * (512 - 784) / (794 * 407_050))
    assert (found["p"].value, found["b"].value) == (-1.5, -1)


@pytest.mark.parametrize(
    "which", [0, -1], ids=lambda i: f"{WORKLOADS[i].name}, {WORKLOADS[i].counting}"
)
def test_elasticities_agree_with_differences(which: int) -> None:
    intensity = WORKLOADS[which].total().arithmetic_intensity()
    for name, sensitivity in at_the_document(which).items():
        step = 1e-6 * DOCUMENT[name]
        ends = [intensity.evaluate({**DOCUMENT, name: DOCUMENT[name] + h}) for h in (-step, step)]
        slope = (ends[1] - ends[0]) / (2 * step)
        expected = slope * DOCUMENT[name] / intensity.evaluate(DOCUMENT)
        assert sensitivity.value == pytest.approx(expected, abs=1e-7)
        if sensitivity.sign is not None:
            assert (sensitivity.value > 0) - (sensitivity.value < 0) == sensitivity.sign


@given(st.tuples(*[st.integers(1, 60)] * 5))
def test_signs_hold_everywhere(sizes: tuple[int, ...]) -> None:
    d, h, c, k, p = sizes
    values = {"D": d, "H": h, "C": c, "B": k * p, "p": p, "b": 4}
    for name, found in at_the_document(-1).items():
        if found.sign is not None:
            at = {Symbol(s).sympy(): value for s, value in values.items()}
            assert found.elasticity.xreplace(at) * found.sign >= 0, name


def test_steps_and_corners_have_no_elasticity() -> None:
    found = sensitivities(workload({"flops": "ceil(x/y) * hidden_size", "pci": "max(x, 64)"}))
    assert found["x"].elasticity is None
    assert found["hidden_size"].elasticity == 1
    text = formulas(workload({"flops": "ceil(x/y)", "pci": "max(x, 64)"}), "text")
    assert "x: AI not smooth (ceil, floor, max or min)" in text
    assert "hidden_size: AI stays for all values; elasticity 0" in text


def test_logarithms_and_roots_are_differentiated() -> None:
    at = {"x": 8, "y": 2, "hidden_size": 1}
    found = sensitivities(workload({"flops": "x*log2(x)", "pci": "sqrt(x)*y"}), at)
    assert found["x"].value == pytest.approx(1 + 1 / (3 * 0.6931471805599453) - 0.5)
    assert found["y"].value == -1


@pytest.mark.parametrize(
    ("row", "said"),
    [({"flops": "x"}, "got no such bytes"), ({"mpi": "x"}, "expected FLOPs in workload 'w'")],
)
def test_no_intensity_no_sensitivity(row: dict[str, str], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        sensitivities(workload(row))


def test_large_formulas_are_printed_unfactored_and_quickly() -> None:
    names = [f"x{i}" for i in range(24)]
    symbols = {name: Symbol(name) for name in names}
    product = "*".join(f"({a} + {b} + 1)" for a, b in zip(names[::2], names[1::2], strict=True))
    rows = {"flops": product, "pci": "(x1 + x2)**64 - x3**60 + x1**64", "mpi": "x1/(x2 + x3)"}
    load = Workload("w", "spec", "", "", symbols, {"r": Work.parse(rows, symbols, {})})
    assert "(x0 + x1 + 1)*(x10 + x11 + 1)" in formulas(load)


def test_tidy_factors() -> None:
    x, y = (Symbol(name).sympy() for name in "xy")
    assert str(tidy(2 * x * y + 2 * x)) == "2*x*(y + 1)"
    assert str(tidy(x**2 + y)) == "x**2 + y"


def test_derived_symbols_give_their_definition() -> None:
    assert str(mlp().derived["Bp"].sympy()) == "B/p"


# --- LaTeX ----------------------------------------------------------------------------------


def test_latex_uses_the_papers_symbols() -> None:
    latex = formulas(mlp("document"), "latex")
    assert r"B' &= \frac{B}{p}" in latex
    assert r"F &= 4 B' H \left(C + D\right)" in latex
    assert r"\paragraph{copying images host -\textgreater{} device}" in latex


@pytest.mark.slow
def test_latex_compiles(tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex")
    names = ["alpha", "x_1", "a__b", "hidden_size", "hat", "xdot", "beta_", "Q", "n2", "lam_x_y"]
    symbols = {name: Symbol(name) for name in names}
    squares = " + ".join(f"{name}**2" for name in names)
    rows = {"flops": f"({squares})/3 + log2(alpha)", "pci": "ceil(Q/n2) + max(Q, 3) + sqrt(x_1)"}
    ugly = Workload(
        "100 % _&#{}$",
        "spec",
        "s",
        "b",
        symbols,
        {"a_b & 50 % \\ ^~ {x} $": Work.parse(rows, symbols, {})},
    )
    body = "\n\n".join(
        [formulas(ugly, "latex"), *(formulas(load, "latex", DOCUMENT) for load in WORKLOADS)]
    )
    source = (
        rf"\documentclass{{article}}\usepackage{{amsmath}}\begin{{document}}{body}\end{{document}}"
    )
    (tmp_path / "formulas.tex").write_text(source)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "formulas.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize(
    "formula",
    [
        "max(D, 1/0)",
        "min(0/0, D)",
        "D / (1 - 1)",
        "max(D, sqrt(0 - 4))",
        "log2(0) + D",
        "D*sqrt(-1)",
    ],
)
def test_a_formula_without_a_value_is_refused_in_print(formula: str) -> None:
    with pytest.raises(WorkloadError, match="expected a formula with a finite value; got"):
        Expression.parse(formula, ["D"]).sympy()

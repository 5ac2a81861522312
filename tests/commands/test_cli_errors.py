"""The command line: exit codes, errors of one line, names that mean harm."""

from __future__ import annotations

import csv
import io
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfmodel.render import outputs
from support.cli import EVIL, evil_report, fails, harmless, perfmodel, succeeds


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return evil_report(tmp_path_factory.mktemp("report") / "evil.sqlite")


def test_exit_code_1_an_output_cannot_be_written(report: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    said = fails(1, "analyze", report, "--no-plots", "-o", tmp_path / "file")
    assert "a file of that name; choose another path" in said
    assert "got an Nsight Systems report" in fails(1, "analyze", report, "--db", report)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch"], ["analyze"], ["analyze", "r", "--nosuch"], ["analyze", "r", "-B", "0"],
        ["analyze", "r", "-B", "many"], ["analyze", "r", "--set", "B"],
        ["analyze", "r", "--set", "B=-1"], ["analyze", "r", "--set", "B=²"],
        ["analyze", "r", "--set", "=3"], ["analyze", "r", "--set", "B=" + "9" * 5000],
        ["analyze", "r", "--warmup", "-1"], ["analyze", "r", "--counting", "twice"],
        ["stats"], ["stats", "r", "-j", "0"], ["stats", "r", "--report", "nvtxsum"],
        ["study", "formulas", "--format", "html"],
    ],
    ids=lambda a: " ".join(a)[:40],
)  # fmt: skip
def test_exit_code_2_wrong_usage(arguments: list[str]) -> None:
    result = perfmodel(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage: perfmodel" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["analyze", "stats"])
def test_exit_code_3_the_report_cannot_be_read(command: str, report: Path, tmp_path: Path) -> None:
    assert "check the path" in fails(3, command, tmp_path / "missing.sqlite")
    assert "name the files inside it" in fails(3, command, tmp_path)
    (tmp_path / "half.sqlite").write_bytes(report.read_bytes()[:50_000])
    assert "truncated" in fails(3, command, tmp_path / "half.sqlite")
    (tmp_path / "text.sqlite").write_text("nothing of the kind")
    assert "nsys export -q true -t sqlite" in fails(3, command, tmp_path / "text.sqlite")
    (tmp_path / f"a\x1b[31m\nb{'x' * 100}.sqlite").write_text("")
    fails(3, command, tmp_path / f"a\x1b[31m\nb{'x' * 100}.sqlite")


def test_exit_code_3_a_raw_report_without_nsys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "r.nsys-rep").write_bytes(b"raw")
    assert "run: nsys export" in fails(3, "analyze", tmp_path / "r.nsys-rep")


def test_exit_code_4_the_report_lacks_what_is_needed(
    bare: Path, evil: Path, tmp_path: Path
) -> None:
    assert "cuda_api_sum expected" in fails(4, "stats", bare, "--report", "cuda_api_sum")
    said = fails(4, "analyze", bare, "--batch-range", EVIL)
    assert "got 'batch iteration'" in said
    fails(4, "analyze", evil, "--batch-range", "nosuch")
    fails(4, "analyze", bare, "--warmup", "9" * 30)
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as db:
        db.execute("CREATE TABLE songs (title)")
    assert "expected an Nsight Systems export" in fails(4, "analyze", tmp_path / "other.sqlite")


def test_exit_code_5_the_workload_is_impossible(report: Path, bare: Path, tmp_path: Path) -> None:
    assert "expected B divisible by p" in fails(5, "analyze", report, "-B", "3001")
    assert "has no symbol 'Q'" in fails(5, "analyze", report, "--set", "Q=1")
    assert "give: --hidden-size H" in fails(
        5, "analyze", bare, *["-D", "784", "-C", "10", "-B", "100"]
    )
    assert "expected --fit to name one of the runs r" in fails(5, "analyze", report, "--fit", "s")
    assert "check the path" in fails(5, "analyze", report, "--workload", tmp_path / "no.toml")
    (tmp_path / "w.toml").write_text(
        "[symbols]\n[ranges.forward]\nflops = \"__import__('os').system('true')\"\n"
    )
    fails(5, "analyze", report, "--workload", tmp_path / "w.toml")
    fails(5, "study", "formulas", "--workload", tmp_path / "w.toml")


def test_exit_code_6_no_roofline_can_be_fitted(report: Path, bare: Path) -> None:
    said = fails(6, "analyze", report, bare, "--fit", "bare")
    assert "expected a roofline fitted on bare; got no P_flops" in said


def test_an_error_writes_nothing(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(5, "analyze", report, "-B", "3001", "-o", tmp_path / "out", "--db", tmp_path / "r.db")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / ".perfmodel-x.tmp" / "y"))

    monkeypatch.setattr(outputs, "_draw", full)
    fails(1, "analyze", report, "-o", tmp_path / "out", "--db", tmp_path / "r.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fmt", ["text", "json", "markdown", "latex"])
def test_hostile_names_are_harmless_in_statistics(evil: Path, fmt: str) -> None:
    result = perfmodel("stats", evil, "--format", fmt)
    assert result.exit_code == 0
    assert harmless(result.output)
    assert "evil" in result.stdout


def test_hostile_names_are_the_same_in_csv(evil: Path) -> None:
    """The CSV is data, equal to that of nsys: it reads back as it was."""
    result = perfmodel("stats", evil, "--report", "nvtx_pushpop_sum", "--format", "csv")
    text = result.stdout_bytes.decode("utf-8")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert {row["Range"] for row in rows} == {"batch iteration", EVIL}


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_hostile_names_are_harmless_in_an_analysis(evil: Path, options: list[str]) -> None:
    result = perfmodel("analyze", evil, *options)
    assert result.exit_code == 0
    assert harmless(result.output)
    assert "evil" in result.stdout


def test_unicode_paths(report: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(report, tmp_path / "naïve Übung 訓練.sqlite"))
    text = succeeds("analyze", "--section", "all", path, "-o", tmp_path / "für 訓練", "--no-plots")
    assert "naïve Übung 訓練.sqlite" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("study", "layers", "gpt2", EVIL),
        ("analyze", f"--{EVIL}"),
        ("study", "layers", "gpt2", "-B", EVIL),
    ],
)
def test_wrong_usage_is_quoted_harmlessly(arguments: tuple[str, ...]) -> None:
    result = perfmodel(*arguments)
    assert result.exit_code == 2
    assert harmless(result.stderr)
    assert "evil" in result.stderr

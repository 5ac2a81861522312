"""Options: the same everywhere, by click's own objects; what `-o` and `--format` write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import click
import pytest

from benchmarks.common.folders import BASE, MACHINE
from perfmodel.cli import COMMANDS, GROUPS
from perfmodel.commands import _options
from perfmodel.programs.mlp.settings import SETTINGS
from support.cli import commands, leaves, perfmodel, succeeds


def options() -> list[tuple[str, click.Option]]:
    return [
        (name, option)
        for name, command in leaves().items()
        for option in command.params
        if isinstance(option, click.Option)
    ]


def having(flag: str) -> dict[str, click.Option]:
    return {
        name: option for name, option in options() if flag in (*option.opts, *option.secondary_opts)
    }


WITHOUT_RESULT: Final = {"report", "share", "mcp", "completion"}
"""They write a page, a report and a script."""

READS_REPORTS: Final = {
    "analyze", "report", "timeline", "stats", "memory", "utilization", "compare",
    "study scaling", "study calibrate", "whatif", "study splits",
}  # fmt: skip
STEPS: Final = READS_REPORTS - {"stats", "memory"}
"""Commands that look at steps."""


@pytest.mark.parametrize("flag", ["--format", "--json", "--out"])
def test_every_command_with_a_result_takes_the_same_three(flag: str) -> None:
    found = having(flag)
    extra = {"report", "share"} if flag == "--out" else set()
    assert set(found) == set(leaves()) - WITHOUT_RESULT | extra
    for name, option in found.items():
        assert not option.required, name
        if flag == "--format":
            assert isinstance(option.type, click.Choice)
            assert (tuple(option.type.choices), option.default) == (_options.FORMATS, "text")
        if flag == "--out":
            assert isinstance(option.type, _options.Out), name
            assert option.opts == ["--out", "-o"], name


def test_no_file_is_written_unasked() -> None:
    assert [
        name
        for name, option in options()
        if isinstance(option.default, Path) and isinstance(option.type, click.Path)
    ] == []


def test_quiet_is_everywhere() -> None:
    assert set(having("-q")) == set(leaves()) - {"completion"}
    assert set(having("--quiet")) >= READS_REPORTS


def test_a_flag_means_one_thing() -> None:
    """The same type, values, short form and number of values wherever it is.

    `--section` names the tables of its command.
    """
    seen: dict[str, tuple[str, Any]] = {}
    for name, option in options():
        choices = None if "--section" in option.opts else getattr(option.type, "choices", None)
        kind = (
            type(option.type).__name__, choices, sorted(option.opts), option.multiple,
            option.is_flag,
        )  # fmt: skip
        for flag in option.opts:
            if flag in ("--format", "--report", "--dtype", "--model", "--gpu"):
                continue
            first, known = seen.setdefault(flag, (name, kind))
            assert known == kind, f"{flag} of {first} and {name}"


@pytest.mark.parametrize("flag", ["-D", "-H", "-C", "-B", "-p"])
def test_sizes_are_called_alike(flag: str) -> None:
    long = {"-D": "--input-size", "-H": "--hidden-size", "-C": "--num-classes",
            "-B": "--batch-size", "-p": "--ranks"}[flag]  # fmt: skip
    of_sizes = {"analyze", "report", "study calibrate", "predict", "study predict", "memory",
                "study splits", "counters", "study formulas"}  # fmt: skip
    assert of_sizes <= set(having(flag))
    assert set(having(flag)) == set(having(long)) <= of_sizes | {"study layers"}


def test_what_reads_steps_says_which_they_are() -> None:
    assert set(having("--batch-range")) >= STEPS
    assert set(having("--warmup")) >= STEPS - {"study calibrate"}
    assert set(having("--machine")) == {
        "analyze", "report", "whatif", "counters", "study layers", "study scaling",
        "study calibrate", "predict", "study predict",
    }  # fmt: skip
    assert set(having("--workload")) == {
        "analyze", "report", "study calibrate", "study predict", "study formulas", "counters",
    }  # fmt: skip


def test_settings_of_the_trainer_have_the_same_choices() -> None:
    for setting, values in SETTINGS.items():
        for name, option in having(f"--{setting.replace('_', '-')}").items():
            if not option.is_flag:
                assert isinstance(option.type, click.Choice)
                assert tuple(option.type.choices) == values, name
    assert set(having("--transport")) == {"study formulas", "memory", "study predict"}


def test_help_lists_every_command_in_a_group_with_its_whole_summary() -> None:
    said = succeeds("--help")
    assert [title for title in GROUPS if f"{title}:" in said] == list(GROUPS)
    for name in COMMANDS:
        summary = commands()[name].get_short_help_str(200)
        assert not summary.endswith("...")
        assert f"{name} " in said
        assert summary in said, "takes more than a line"


# --- what is written


def test_several_tables_are_no_csv_but_a_file_each(report: Path, tmp_path: Path) -> None:
    refused = perfmodel("study", "splits", BASE, "--format", "csv")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "expected one table in CSV; got 2: " in refused.stderr
    assert "give -o FOLDER for a file each" in refused.stderr
    assert succeeds("study", "splits", BASE, "--format", "csv", "-o", tmp_path / "out") == ""
    assert len(list((tmp_path / "out").glob("*.csv"))) == 2
    assert "B,launches" not in succeeds("compare", BASE, BASE, "--format", "csv")  # one table


@pytest.mark.parametrize(
    ("name", "fmt"),
    [("a.csv", "csv"), ("a.json", "json"), ("a.jsonl", "jsonl"), ("a.md", "markdown"),
     ("a.tex", "latex"), ("a.txt", "text")],
)  # fmt: skip
def test_the_suffix_says_what_a_file_holds(name: str, fmt: str, tmp_path: Path) -> None:
    said = succeeds("machine", "list", "-o", tmp_path / name)
    assert said.endswith(f"Written: {tmp_path / name}\n")
    written = (tmp_path / name).read_text(encoding="utf-8")
    assert written == succeeds("machine", "list", "--format", fmt)
    assert succeeds("machine", "list", "-q", "-o", tmp_path / name) == ""


def test_a_folder_has_a_file_a_table_and_the_figure(tmp_path: Path) -> None:
    succeeds("memory", "-D", 784, "-H", 64, "-C", 10, "-B", 100, "-p", 1, "-o", tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".png"}


def test_a_folder_lacks_a_figure_that_has_nothing_to_show(tmp_path: Path) -> None:
    result = perfmodel("utilization", "--report", BASE, "-o", tmp_path)
    assert result.exit_code == 0
    if not list(tmp_path.glob("*.png")):
        assert "no figure: " in result.stderr
    assert list(tmp_path.glob("*.csv"))


def test_a_name_that_nothing_fits_is_refused_before_anything_is_read() -> None:
    for words in (("stats", "none.sqlite", "-o", "a.png"), ("memory", "-o", "a.gif")):
        refused = perfmodel(*words)
        assert refused.exit_code == 2
        assert "got 'a." in refused.stderr


def test_a_report_names_the_file_that_it_writes_unasked(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert perfmodel("report", bare, "-q").exit_code == 2
    assert list(tmp_path.iterdir()) == []
    assert succeeds("report", bare).strip() == "Written: report.html"


def test_quiet_leaves_out_warnings_and_text_everywhere(tmp_path: Path) -> None:
    for words in (("stats", BASE), ("compare", BASE, BASE), ("timeline", BASE), ("whatif", BASE)):
        result = perfmodel(*words, "-q")
        assert (result.exit_code, result.output) == (0, "")


def test_another_machine_than_the_report_s_is_a_warning() -> None:
    assert (
        "the ceilings are those of NVIDIA V100"
        in perfmodel("analyze", "--section", "all", BASE, "--machine", "v100").stderr
    )
    assert (
        "ceilings" not in perfmodel("analyze", "--section", "all", BASE, "--machine", "h200").stderr
    )


def test_a_measured_machine_s_ceilings_count(tmp_path: Path) -> None:
    found = [
        json.loads(succeeds("analyze", BASE, "--machine", name, "--json"))
        for name in ("h200", MACHINE)
    ]
    assert found[0] == json.loads(succeeds("analyze", BASE, "--json"))
    shares = [
        {row["path"]: row["of_ceiling"] for row in one["ranges"] if row["ceiling"] == "float32"}
        for one in found
    ]
    peaks = [one["machine"]["peak_flops_per_s"]["float32"] for one in found]
    for label, share in shares[0].items():
        assert shares[1][label] == pytest.approx(share * peaks[0] / peaks[1])
    copies = [row["of_ceiling"] for row in found[1]["ranges"] if row["ceiling"] == "pcie"]
    assert copies
    assert all(0 < share < 1.1 for share in copies)

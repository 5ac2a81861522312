from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from benchmarks.common.folders import ROOT
from perfmodel.base.escape import printable
from perfmodel.base.table import FORMATS, Column, Table, render, to_frame, wrapped

COLUMNS = (
    Column("range", "Range"),
    Column("host_s", "Host", "si", "s"),
    Column("instances", "Instances", "int"),
    Column("share", "Share", "percent"),
    Column("time_ms", "Time", "float", "ms", digits=2),
)
BATCH = Table(
    "Time per range, median step",
    COLUMNS,
    [
        ("batch iteration", 4.958e-3, 1234567, 1.0, 12345.678),
        ("forward", 698.573e-6, 40, 0.1409, 0.7),
        ("forward GEMM 1", None, None, None, None),
    ],
    notes=("4 warm-up steps excluded",),
    levels=(0, 1, 2),
)
EVIL = "[red]x[/red] \x1b[31m|a`b`*c*_d_<e>\r\nnext\x9b5m\u202e$f$ & 5% \\ #~^{}"
texts = st.text(max_size=20)
values = st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), texts)


def one(value: object, kind: str = "text", fmt: str = "table", **more: object) -> str:
    column = Column("k", "K", kind, **more)  # type: ignore[arg-type]
    return render(Table("", (column,), [(value,)]), fmt)  # type: ignore[arg-type]


def read_csv(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_text_golden() -> None:
    assert render(BATCH).splitlines() == [
        "Time per range, median step",
        "Range                  Host  Instances    Share  Time (ms)",
        "──────────────────────────────────────────────────────────",
        "batch iteration     4.96 ms  1,234,567  100.0 %  12,345.68",
        "  forward            699 µs         40   14.1 %       0.70",
        "    forward GEMM 1        –          –        –          –",
        "note: 4 warm-up steps excluded",
    ]


def test_csv_golden() -> None:
    assert render(BATCH, "csv") == (
        "level,range,host_s,instances,share,time_ms\n"
        "0,batch iteration,0.004958,1234567,1.0,12345.678\n"
        "1,forward,0.000698573,40,0.1409,0.7\n"
        "2,forward GEMM 1,,,,\n"
    )


def test_json_golden() -> None:
    document = json.loads(render(BATCH, "json"))
    assert document["title"] == "Time per range, median step"
    assert document["notes"] == ["4 warm-up steps excluded"]
    assert document["rows"][1] == {
        "level": 1, "range": "forward", "host_s": 698.573e-6, "instances": 40,
        "share": 0.1409, "time_ms": 0.7,
    }  # fmt: skip
    assert document["rows"][2]["host_s"] is None


def test_markdown_golden() -> None:
    assert render(BATCH, "markdown") == (
        "**Time per range, median step**\n\n"
        "| Range | Host | Instances | Share | Time (ms) |\n"
        "| :-- | --: | --: | --: | --: |\n"
        "| batch iteration | 4.96 ms | 1,234,567 | 100.0 % | 12,345.68 |\n"
        "| \u2003forward | 699 µs | 40 | 14.1 % | 0.70 |\n"
        "| \u2003\u2003forward GEMM 1 | – | – | – | – |\n\n"
        "Note: 4 warm-up steps excluded\n"
    )


def test_latex_golden() -> None:
    lines = render(BATCH, "latex").splitlines()
    assert lines[4:11] == [
        r"\par\smallskip",
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"Range & Host & Instances & Share & Time (ms) \\",
        r"\midrule",
        r"batch iteration & 4.96 ms & 1,234,567 & 100.0 \% & 12,345.68 \\",
        r"\hspace*{1em}forward & 699 $\mu$s & 40 & 14.1 \% & 0.70 \\",
    ]


@pytest.mark.parametrize("kind", ["text", "int", "float", "si", "percent"])
@pytest.mark.parametrize("missing", [None, float("nan"), np.float64("nan")])
def test_missing_is_never_zero(kind: str, missing: object) -> None:
    assert one(missing, kind, "table").splitlines()[-1].strip() == "–"
    assert one(missing, kind, "markdown").splitlines()[-1] == "| – |"
    assert r"-- \\" in one(missing, kind, "latex")
    assert read_csv(one(missing, kind, "csv")) == [["k"], [""]]
    assert json.loads(one(missing, kind, "json"))["rows"] == [{"k": None}]


@pytest.mark.parametrize(
    ("kind", "more", "value", "shown"),
    [
        ("si", {"unit": "FLOP/s"}, 1.632697e12, "1.63 TFLOP/s"),
        ("si", {"unit": "s", "digits": 6}, 470.879e-6, "470.879 µs"),
        ("si", {"unit": "B"}, np.int64(3_256_400), "3.26 MB"),
        ("percent", {}, 0.4357, "43.6 %"),
        ("percent", {"unit": "%", "digits": 0}, 34.6, "35 %"),
        ("int", {}, np.int32(1200), "1,200"),
        ("float", {}, np.float32(0.5), "0.5"),
        ("float", {"digits": 1}, 450779.2, "450,779.2"),
        ("si", {"unit": "s"}, "not fitted", "not fitted"),
        ("text", {}, 12, "12"),
    ],
)
def test_shown_values(kind: str, more: dict[str, object], value: object, shown: str) -> None:
    assert one(value, kind, **more).splitlines()[-1].strip() == shown


def test_numpy_numbers_are_plain_in_csv_and_json() -> None:
    row = (np.float64(0.1), np.int64(2**53 + 1), np.bool_(True), np.float32(0.5))
    table = Table("", tuple(Column(k, k, "float") for k in "abcd"), [row])
    assert render(table, "csv") == "a,b,c,d\n0.1,9007199254740993,True,0.5\n"
    assert json.loads(render(table, "json"))["rows"] == [
        {"a": 0.1, "b": 9007199254740993, "c": True, "d": 0.5}
    ]


def test_infinity_is_valid_json() -> None:
    assert json.loads(one(float("inf"), "float", "json"))["rows"] == [{"k": None}]
    assert one(float("inf"), "float", "csv") == "k\ninf\n"


@given(st.lists(st.tuples(values, values, texts), max_size=8), st.tuples(texts, texts, texts))
def test_csv_round_trip(rows: list[tuple[object, ...]], keys: tuple[str, str, str]) -> None:
    distinct = [f"{i}{key}" for i, key in enumerate(keys)]
    table = Table("", tuple(Column(k, "") for k in distinct), rows)
    text = render(table, "csv")
    wanted = [["" if v is None else str(v) for v in row] for row in rows]
    assert read_csv(text) == [distinct, *wanted]


@given(st.lists(st.tuples(values, values), max_size=8))
def test_json_round_trip(rows: list[tuple[object, ...]]) -> None:
    table = Table("", (Column("a", ""), Column("b", "")), rows)
    back = json.loads(render(table, "json"))["rows"]
    infinite = (float("inf"), float("-inf"))
    wanted = [{k: None if v in infinite else v for k, v in zip("ab", r, strict=True)} for r in rows]
    assert back == wanted


@given(st.text(alphabet='ab,"\n ;', max_size=10))
def test_csv_is_what_the_csv_module_writes(text: str) -> None:
    sink = io.StringIO()
    csv.writer(sink, lineterminator="\n").writerows([["k", "x"], [text, 1]])
    table = Table("", (Column("k", ""), Column("x", "")), [(text, 1)])
    assert render(table, "csv") == sink.getvalue()


@given(st.text(), st.text(alphabet="\x00\x1b[]31mredx/\\|`_*$<&\n\r\t\u202e\u2028\x9b\ud800:"))
def test_no_name_can_do_harm(name: str, more: str) -> None:
    table = Table(name, (Column("k", more), Column("j", name)), [(name, more)], notes=(more,))
    for fmt in ("table", "markdown", "latex", "json"):
        text = render(table, fmt, width=60)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]", text)
        text.encode("utf-8")
    assert len(render(table, "markdown").split("\n\n")[-2].splitlines()) == 3
    render(table, "csv").encode("utf-8")


def test_evil_name_in_every_format() -> None:
    text = one(EVIL)
    assert r"[red]x[/red] \x1b[31m|a`b`*c*_d_<e> next\x9b5m\u202e$f$" in text
    assert "\x1b" not in render(Table("t", (Column("k", "K"),), [(EVIL,)]), "table")
    cell = one(EVIL, fmt="markdown").splitlines()[-1]
    assert cell.startswith(r"| \[red\]x\[/red\] \\x1b\[31m\|a\`b\`\*c\*\_d\_\<e> next")
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", cell)) == 2, "only the two borders are bare"
    latex = one(EVIL, fmt="latex")
    assert r"\$f\$ \& 5\% \textbackslash{} \#\textasciitilde{}\textasciicircum{}\{\}" in latex
    assert read_csv(one(EVIL, fmt="csv"))[1] == [EVIL]
    assert json.loads(one(EVIL, fmt="json"))["rows"] == [{"k": EVIL}]


def test_printable_keeps_ordinary_text() -> None:
    assert printable("copying images host → device, 50 µs – 日本") == (
        "copying images host → device, 50 µs – 日本"
    )


def test_color_is_only_styling() -> None:
    plain, colored = render(BATCH, width=80), render(BATCH, width=80, color=True)
    assert "\x1b[1m" in colored
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_numbers_are_never_cut(width: int) -> None:
    name = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(T1::Params)"
    table = Table("", COLUMNS, [(name, 4.958e-3, 1234567, 1.0, 12345.678)])
    text = render(table, width=width)
    assert "4.96 ms  1,234,567  100.0 %  12,345.68" in text
    assert max(map(len, text.splitlines())) <= max(width, 16 + 2 + 39)
    letters = "".join(line[: -39 or None] if i == 2 else line for i, line in enumerate(
        text.splitlines()[2:], 2))  # fmt: skip
    assert re.sub(r"\s", "", name) in re.sub(r"\s", "", letters), "a name wraps, it is not cut"


def test_column_that_does_not_wrap_ends_in_an_ellipsis() -> None:
    table = Table("", (Column("k", "Name", wrap=False),), [("n" * 50,)])
    assert render(table, width=30).splitlines()[-1] == "n" * 29 + "…"
    assert render(table).splitlines()[-1] == "n" * 50


def test_no_rows_and_no_title() -> None:
    table = Table("", COLUMNS, [])
    assert render(table, "csv") == "range,host_s,instances,share,time_ms\n"
    for fmt in FORMATS:
        said = render(table, fmt)
        assert said.endswith("\n") or fmt == "jsonl"  # no row, no line


def test_of_attributes_and_functions() -> None:
    columns = (
        Column("real", "Real", "float"),
        Column("imaginary", "Imaginary", "float", of="imag"),
        Column("type", "Type", of="__class__.__name__"),
        Column("size", "Size", "float", of=abs),
    )
    table = Table.of("t", [3 + 4j, complex(np.nan, 0)], columns, ["a note"])
    assert render(table, "csv") == "real,imaginary,type,size\n3.0,4.0,complex,5.0\n,0.0,complex,\n"
    assert table.notes == ("a note",)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="table, csv, json, jsonl, markdown, latex"):
        render(BATCH, "html")


def test_frame() -> None:
    frame = to_frame(BATCH)
    assert list(frame.columns) == ["level", "range", "host_s", "instances", "share", "time_ms"]
    assert frame["host_s"].isna().tolist() == [False, False, True]
    assert frame["instances"].dtype == "Int64"
    assert frame["instances"].tolist()[:2] == [1234567, 40]
    assert frame.attrs["title"] == BATCH.title


def test_import_is_cheap() -> None:
    code = (
        "import sys, perfmodel.base.table as t; heavy = {'rich', 'pandas', 'matplotlib'};"
        "early = heavy & set(sys.modules);"
        "t.render(t.Table('', (t.Column('k', 'K'),), [(1,)]), 'csv');"
        "print(sorted(early | heavy & set(sys.modules)))"
    )
    root = ROOT
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles(tmp_path: Path) -> None:
    ascii_row = ("".join(map(chr, range(32, 127))), None, None, None, None)
    evil = Table(EVIL, COLUMNS, [(EVIL, 1.0, 2, 0.5, 1.5), ascii_row], notes=(EVIL,))
    body = render(BATCH, "latex") + render(evil, "latex")
    (tmp_path / "t.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n"
        + body + "\\end{document}\n"
    )  # fmt: skip
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]


def test_columns_continue_below_the_names_where_a_line_would_wrap() -> None:
    columns = (Column("rank", "Rank", "int"), Column("name", "Name"), *(
        Column(f"c{i}", f"Column {i}", "float", digits=2) for i in range(9)
    ))  # fmt: skip
    rows = [(r, f"range {r}", *(100.0 * r + i for i in range(9))) for r in range(3)]
    table = Table("Title", columns, rows, ("a note of some words " * 6,))
    wide, narrow = render(table, width=200, fold=True), render(table, width=60, fold=True)
    assert wide == render(table, width=200)
    lines = narrow.splitlines()
    assert max(map(len, lines)) <= 60
    assert sum(line.startswith("Rank  Name") for line in lines) == 3
    assert lines.count("Title") == 1
    for value in ("0.00", "101.00", "208.00"):
        assert narrow.count(f" {value}") == 1
    assert "Rank  Name" in render(table, width=60).splitlines()[1]


@given(st.text(max_size=300), st.integers(20, 120))
def test_broken_lines_fit_and_lose_no_word(text: str, width: int) -> None:
    line = printable(text)
    parts = wrapped(line, width)
    assert all(cell_len(part) <= width for part in parts)
    assert "".join("".join(parts).split()) == "".join(line.split())


def test_further_lines_are_below_what_follows_the_name() -> None:
    assert wrapped("steps      two of them, and many more words that follow", 40) == [
        "steps      two of them, and many more", "           words that follow",
    ]  # fmt: skip

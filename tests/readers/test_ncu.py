"""The reader of Nsight Compute's tables: forms, units, notations, ranges, passes, what is torn."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.folders import TESTS
from perfmodel.analysis.counters import by_kernel
from perfmodel.base.errors import PerfmodelError, ReportError, SchemaError
from perfmodel.readers import ncu
from perfmodel.readers.ncu import merge, parse, read_counters
from support.build_ncu import (
    AFTER,
    BEFORE,
    FADD,
    FFMA,
    L1,
    L2,
    READ,
    TF32,
    TIME,
    WRITE,
    Kernel,
    long,
    stack,
    wide,
)  # fmt: skip

GEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn, 0>(Params)"
COUNTS = {TIME: 62_048.0, READ: 11_056_384.0, WRITE: 6_144_000.0, FFMA: 1_208_975_360.0}
TWO = (
    Kernel(GEMM, COUNTS, ("batch iteration", "forward", "forward GEMM 1")),
    Kernel("sigmoid(float *)", {**COUNTS, FFMA: 4_608_000.0}, ("batch iteration", "forward")),
)


@pytest.mark.parametrize("form", [wide, long])
@pytest.mark.parametrize("notation", ["en", "de", "C", "fr"])
def test_both_forms_in_all_notations_say_the_same(form, notation):
    launches = parse(BEFORE + form(TWO, notation) + AFTER).launches
    assert [one.kernel for one in launches] == [GEMM, "sigmoid(float *)"]
    assert launches[0].metrics == pytest.approx({**COUNTS, TIME: 62.048e-6})
    assert launches[0].ranges == ("batch iteration", "forward", "forward GEMM 1")
    assert launches[1].metrics[FFMA] == 4_608_000
    assert launches[0].compute_capability == "9.0"
    assert launches[0].grid == "(12, 24, 1)"


def counts(smallest: int, largest: int):
    amounts = st.one_of(
        st.integers(smallest, largest).map(float),
        st.integers(smallest, 100 * largest).map(lambda n: n / 100),
    )
    return st.fixed_dictionaries(
        {TIME: amounts, READ: amounts, WRITE: st.none() | amounts, TF32: amounts}
    )


@given(
    kernels=st.lists(counts(0, 10**12), min_size=1, max_size=4),
    notation=st.sampled_from(["en", "C"]),
)
def test_what_is_written_is_read(kernels, notation):
    """Any table without a comma for decimals; those are told by a cell (below)."""
    written = [Kernel(f"k{i}(int)", c) for i, c in enumerate(kernels)]
    for form in (wide, long):
        read = parse(BEFORE + form(written, notation) + AFTER).launches
        for one, kernel in zip(read, kernels, strict=True):
            assert one.metrics[READ] == pytest.approx(kernel[READ])
            assert one.metrics[WRITE] == pytest.approx(kernel[WRITE])
            assert one.metrics[TIME] == pytest.approx(kernel[TIME] * 1e-9)
            assert one.metrics[TF32] == pytest.approx(kernel[TF32])


@pytest.mark.parametrize(
    ("cells", "mark"),
    [
        (["1,024", "38.016"], "."), (["1.024", "65,77"], ","), (["27.595.520"], ","),
        (["1,208,975,360"], "."), (["117.344"], "."), (["0,125"], ","), (["1.5e-05"], "."),
        (["1’024,5"], ","), (["n/a", "NVIDIA H200", "(1, 1, 1)"], "."), (["12,34 (1; 2)"], ","),
    ],
)  # fmt: skip
def test_the_decimal_mark_is_told_by_the_table(cells, mark):
    assert ncu.decimal_mark(cells, "t") == mark


def test_two_notations_in_one_table_are_refused():
    with pytest.raises(ReportError, match=r"got '1.5' and '2,5'; export again with LC_ALL=C"):
        ncu.decimal_mark(["1.5", "2,5"], "t.csv")


@pytest.mark.parametrize(
    ("unit", "factor"),
    [
        ("byte", 1), ("Kbyte", 1e3), ("Mbyte", 1e6), ("Gbyte", 1e9), ("MB", 1e6), ("KiB", 1024),
        ("Mibyte", 2**20), ("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1), ("second", 1),
        ("nsecond", 1e-9), ("usecond", 1e-6), ("msecond", 1e-3), ("inst", 1), ("", 1),
        ("Gbyte/second", 1e9), ("%", 1), ("wavefront", 1), ("Qfurlong", None),
    ],
)  # fmt: skip
def test_units(unit, factor):
    assert ncu.scale(unit) == factor


def test_prefixes_of_units_are_of_every_column_or_row():
    units = {TIME: "us", READ: "Mbyte", WRITE: "Kbyte"}
    kernel = Kernel("k", {TIME: 62.05, READ: 11.06, WRITE: 2.5}, units=units)
    for form in (wide, long):
        found = parse(form([kernel])).launches[0].metrics
        assert found == pytest.approx({TIME: 62.05e-6, READ: 11.06e6, WRITE: 2500.0})


def test_a_time_without_a_unit_is_missing_and_not_in_seconds():
    head, _, row = wide([Kernel("k", {TIME: 62_048.0, READ: 3.0, FFMA: 1.0})]).splitlines()
    read = parse(f"{head}\n{row}\n")  # a table that lost its row of units
    assert read.launches[0].metrics == {TIME: None, READ: None, FFMA: 1.0}
    assert len(read.warnings) == 2
    assert f"the unit '' of {TIME} is unknown" in read.warnings[0]


def test_an_unknown_unit_is_missing_with_a_warning():
    read = parse(wide([Kernel("k", {READ: 3.0, FFMA: 1.0}, units={READ: "Qfurlong"})]))
    assert read.launches[0].metrics == {READ: None, FFMA: 1.0}
    assert "'Qfurlong' of dram__bytes_read.sum is unknown" in read.warnings[0]


def test_what_ncu_could_not_count_is_none_not_zero():
    metrics = parse(wide([Kernel("k", {READ: None, FFMA: 0.0})])).launches[0].metrics
    assert metrics == {READ: None, FFMA: 0.0}


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("", ()), (stack(["a", "b c"]), ("a", "b c")),
        ('1  "<default domain>:module:model.layers.0:none:none:none:none:none:none" ',
         ("module:model.layers.0",)),
        ('9  "mine:forward:none:none:ARGB:4278190335:REGISTERED:forward"', ("forward",)),
        ('9  "mine:a:b:none:none:ARGB:1:ASCII:a:b"', ("a:b",)),
        ('"4:<default domain>:stage:none:none:none:none:none:none"', ("stage",)),
        ('9  "d::none:none:none:none:REGISTERED:late"', ("late",)),
        ('9  "d:say ""hi"":none:none:none:none:none:none"', ('say ""hi""',)),
    ],
)  # fmt: skip
def test_names_of_ranges(cell, names):
    assert ncu.nvtx_ranges(cell) == names


def test_renamed_kernels_are_inside_their_range():
    """--print-nvtx-rename kernel puts the range before the name, instead of columns."""
    name = "forward/void at::elementwise<(int)128>(a / b)"
    one = parse(wide([Kernel(name, COUNTS)], nvtx=False)).launches[0]
    assert one.ranges == ("forward",)
    assert one.kernel == "void at::elementwise<(int)128>(a / b)"


def test_the_program_may_print_amid_the_table():
    lines = wide(TWO).splitlines(keepends=True)
    torn = lines[-1][:60] + "\n"
    noisy = [*lines[:3], 'epoch "1, loss\n', "7,8\n", '"said"\n', torn, *lines[3:]]
    read = parse("".join(noisy))
    assert len(read.launches) == 2
    assert read.warnings == (
        "ncu's output: 1 rows of ncu's table lack some of its columns: left out; keep the "
        "program's output apart with ncu --log-file FILE",
    )


def test_rows_of_rules_and_short_rows_of_the_details_page():
    header, first, *rest = long([Kernel("k", COUNTS)]).splitlines()
    header += ',"Rule Name","Rule Type"'
    rule = ",".join([*first.split(",")[:0], *['"0"', '"77"'], *['""'] * 15, '"Bound"', '"OPT"'])
    text = "\n".join([header, first + ",", *[r + ',"",""' for r in rest], rule])
    assert parse(text).launches[0].metrics == pytest.approx({**COUNTS, TIME: 62.048e-6})


def test_passes_are_put_together_and_runs_are_not(tmp_path: Path):
    for name, kernels in {
        "flops.csv": [Kernel("a", {TIME: 1e3, FFMA: 5.0}), Kernel("b", {TIME: 2e3, FFMA: None})],
        "bytes.csv": [Kernel("a", {TIME: 9e3, READ: 7.0}), Kernel("b", {TIME: 9e3, READ: 8.0})],
        "again.csv": [Kernel("a", {TIME: 1e3, FFMA: 6.0})],
    }.items():
        (tmp_path / name).write_text(wide(kernels))
    read = read_counters([tmp_path / n for n in ("flops.csv", "bytes.csv", "again.csv")])
    a, b, again = read.launches
    assert a.metrics == {TIME: pytest.approx(1e-6), FFMA: 5.0, READ: 7.0}
    assert b.metrics == {TIME: pytest.approx(2e-6), FFMA: None, READ: 8.0}
    assert again.source == "again.csv"
    assert read.warnings == ()


def test_runs_in_files_of_one_name_are_told_apart(tmp_path: Path):
    paths = [tmp_path / folder / "run" / "x.csv" for folder in ("a", "b")]
    for n, path in enumerate(paths):
        path.parent.mkdir(parents=True)
        path.write_text(wide([Kernel("k", {FFMA: n + 1.0})]))
    found = by_kernel(read_counters(paths).launches)
    assert {one.source: one.flops for one in found} == {"a/run/x.csv": 2.0, "b/run/x.csv": 4.0}
    with pytest.raises(ReportError, match="expected every file once; got it twice"):
        read_counters([paths[0], tmp_path / "b" / ".." / "a" / "run" / "x.csv"])


def test_passes_of_other_launches_are_said():
    one = parse(wide([Kernel("a", {FFMA: 5.0})]), "x.csv")
    other = parse(wide([Kernel("b", {READ: 5.0})]), "y.csv")
    assert len(merge([one, other]).launches) == 2
    assert (
        "y.csv: other metrics than in x.csv, and other launches" in merge([one, other]).warnings[0]
    )


def test_tables_of_one_file_one_after_the_other():
    text = wide([Kernel("a", {FFMA: 5.0})]) + BEFORE + long([Kernel("a", {READ: 7.0})])
    assert parse(text).launches[0].metrics == {FFMA: 5.0, READ: 7.0}


def test_files_of_windows(tmp_path: Path):
    text = wide(TWO).replace("\n", "\r\n")
    for name, encoding in (("a.csv", "utf-16"), ("b.csv", "utf-8-sig")):
        (tmp_path / name).write_bytes(text.encode(encoding))
        assert read_counters([tmp_path / name]).launches[0].metrics[FFMA] == 1_208_975_360


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "got nothing; run ncu with --csv"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("==WARNING== No kernels were profiled.\n", "check --nvtx-include"),
        ("Usage: thing\n", "got 'Usage: thing'"),
    ],
)
def test_text_without_a_table_is_refused(text, words):
    with pytest.raises(ReportError, match="whose header begins") as caught:
        parse(text, "t.csv")
    assert str(caught.value).startswith("t.csv: expected the CSV table of ncu")
    assert words in str(caught.value)


HEADERS = ['"ID","Kernel Name","Metric Name"', '"ID","Kernel Name","a__b.sum"', "ID,Kernel Name",
           '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"']  # fmt: skip
CELLS = ["0", "", "k(int)", "1,5", "1.5", "1.234,5", "(1)", '"', "a__b.sum", "Mbyte", "\0", "²"]


@given(
    st.sampled_from(HEADERS),
    st.lists(st.lists(st.sampled_from(CELLS) | st.text(max_size=4), max_size=6), max_size=6),
)
def test_whatever_is_below_a_header_is_read_or_refused(header, rows):
    lines = [",".join(f'"{cell}"' for cell in row) for row in rows]
    text = "\n".join([header, *lines])
    try:
        found = parse(text).launches
    except PerfmodelError as error:
        found = error.args
    assert found


def test_a_table_of_the_programs_own_is_no_table():
    own = "ID,score\n1,2\n"
    assert len(parse(own + wide(TWO) + own).launches) == 2
    with pytest.raises(ReportError, match="got '1,2'"):
        parse(own)


def test_a_table_without_launches_is_refused():
    with pytest.raises(SchemaError, match="got a table without any"):
        parse("".join(wide(TWO).splitlines(keepends=True)[:2]))


def test_reports_need_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    report = tmp_path / "r.ncu-rep"
    report.write_bytes(b"NVR\0")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReportError, match=r"run: ncu --import r.ncu-rep --csv --page raw > r.csv"):
        read_counters([report])
    stub = tmp_path / "ncu"
    table = tmp_path / "table"
    table.write_text(wide(TWO))
    stub.write_text(f'#!/bin/sh\n[ "$1 $3 $4 $5" = "--import --csv --page raw" ] && read -r x; '
                    f'while read -r l; do echo "$l"; done < {table}\n')  # fmt: skip
    stub.chmod(0o755)
    assert read_counters([report]).launches[0].kernel == GEMM
    stub.write_text("#!/bin/sh\necho '==ERROR== newer report' >&2; exit 1\n")
    with pytest.raises(ReportError, match=r"newer report.*at least as new"):
        read_counters([report])


def test_l1_and_l2_of_the_golden_kernel_are_the_documents():
    path = TESTS / "golden" / "ncu" / "h200_forward_gemm_1.csv"
    (one,) = read_counters([path]).launches
    assert one.metrics == {READ: 11_056_384, L2: 143.5e6, L1: 156.9e6, FFMA: 1_208_975_360}
    assert one.ranges == ("batch iteration", "forward", "forward GEMM 1")
    assert FADD not in one.metrics


DETAILS = """\
==PROF== Connected to process 77
"ID","Process ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value","Rule Name"
"0","77","saxpy(int)","(4096, 1, 1)","SM Frequency","Ghz","1.52",""
"0","77","saxpy(int)","(4096, 1, 1)","Elapsed Cycles","cycle","8,571",""
"0","77","saxpy(int)","(4096, 1, 1)","Duration","us","5.62",""
"0","77","saxpy(int)","(4096, 1, 1)","","","","SOLBottleneck"
"""
WIDE_DETAILS = """"ID","Kernel Name","Grid Size","Duration [ns]"
"0","saxpy(int)","(4096, 1, 1)","5620"
"""


@pytest.mark.parametrize("text", [DETAILS, WIDE_DETAILS])
def test_the_page_of_details_has_the_duration(text):
    (launch,) = parse(text).launches
    assert launch.metrics[ncu.TIME] == pytest.approx(5.62e-6)

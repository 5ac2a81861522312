"""Counters summed and set against ceilings: the sources' published numbers, by hand, properties."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from benchmarks.common import results
from benchmarks.common.folders import MACHINE, RESULTS, ROOT, TESTS
from perfmodel.analysis.counters import (
    METRICS,
    Counted,
    by_kernel,
    by_range,
    command,
    device_of,
    inside,
    place,
)
from perfmodel.base.errors import SchemaError
from perfmodel.machines.devices import named
from perfmodel.machines.machine import Machine
from perfmodel.machines.measure.measurement import save
from perfmodel.readers.ncu import Launch, parse
from support.build_ncu import FADD, FFMA, L1, L2, READ, TF32, TIME, WRITE, Kernel, wide
from support.cli import EVIL, fails, harmless, perfmodel, succeeds
from support.measured_machine import MEASURED

GOLDEN = TESTS / "golden" / "ncu" / "h200_forward_gemm_1.csv"
H, D, B = 512, 784, 3000


def one(counts: dict[str, float | None], kernel: str = "k", ranges: tuple[str, ...] = ()) -> Launch:
    return Launch(kernel, ranges, counts)


def counted(**counts: float | None) -> Counted:
    names = {"time": TIME, "read": READ, "write": WRITE, "l2": L2, "l1": L1, "ffma": FFMA,
             "fadd": FADD, "tf32": TF32}  # fmt: skip
    return Counted.of("k", "kernel", [one({names[k]: v for k, v in counts.items()})])


# --- published numbers


STUDY = [  # seeds: ResNet study, table of rooflines: time, bytes, FLOPs, FLOP/byte, GFLOPS
    (0.202907231, 1086870000, 23851649316, 21.94526421, 117.5495284),
    (0.211992785, 3651000000, 71858381540, 19.68183554, 338.9661659),
    (0.223984715, 639520000, 2843954468, 4.447014117, 12.69709171),
    (0.229978666, 2787000000, 4014655508, 1.440493544, 17.45664317),
]


@pytest.mark.parametrize(("time_s", "moved", "flops", "intensity", "gflops"), STUDY)
def test_the_resnet_studys_columns_follow_from_its_counters(
    time_s, moved, flops, intensity, gflops
):
    found = counted(time=time_s, read=moved, write=0.0, ffma=flops / 2)
    assert found.flops == flops
    assert found.intensity("dram") == pytest.approx(intensity, rel=1e-9)
    assert found.flops_per_s == pytest.approx(gflops * 1e9, rel=1e-9)


def test_the_resnet_studys_v100_points_are_right_of_the_ridge_and_far_below_the_roof():
    """It calls them memory bound: at 15.7 TFLOP/s and 900 GB/s the ridge is 17.44 FLOP/byte."""
    for row in STUDY[:2]:
        found = place(counted(time=row[0], read=row[1], write=0.0, ffma=row[2] / 2),
                      named("v100"))  # fmt: skip
        assert found.ceilings_flops_per_s["dram"] > found.ceilings_flops_per_s["compute"]
        assert (found.bound, found.unit) == ("compute", "fp32")
        assert found.share_of_roof < 0.022


def test_the_documents_kernel_multiplies_a_little_more_than_asked():
    """1,208,975,360 FFMA, 1.0039 times D H B': tiles that stick out of the matrix."""
    found = json.loads(succeeds("counters", GOLDEN, "--json", "--machine", "h200"))
    (gemm,) = found["ranges"]
    assert gemm["name"] == "forward GEMM 1"
    assert gemm["flops"] == 2 * 1_208_975_360
    assert gemm["flops"] / (2 * D * H * B) == pytest.approx(1.0039, abs=5e-5)
    assert gemm["flops_by_type"]["fp32"] == gemm["flops"]
    assert gemm["flops_by_type"]["tensor tf32"] is None
    assert gemm["bytes"] == {"l1": 156.9e6, "l2": 143.5e6, "dram": None}
    assert gemm["dram_read_bytes"] == 11_056_384
    assert gemm["intensity_flops_per_byte"]["l2"] == pytest.approx(2 * 1_208_975_360 / 143.5e6)
    assert (gemm["time_s"], gemm["flops_per_s"], gemm["share_of_roof"]) == (None, None, None)
    assert gemm["unit"] == "fp32"
    assert gemm["peak_flops_per_s"] == 67e12
    assert any("tensor cores were not counted" in w for w in found["warnings"])
    assert any("op_{dadd,dmul,dfma,fadd,fmul,hadd,hmul,hfma}" in w for w in found["warnings"])


def test_no_product_that_an_h200_counted_is_above_its_peak_or_dram():
    rows = results.read(RESULTS / "gemm_counters.json")["rows"]
    assert len(rows) > 50
    for row in rows:
        found = place(
            counted(time=row["time_s"], read=row["dram_bytes"], write=0.0, l2=row["l2_bytes"],
                    fadd=row["scalar_flops"], tf32=row["tensor_flops"]),
            named("h200"),
        )  # fmt: skip
        assert found.above == ()
        assert found.unit == ("fp32" if row["dtype"] == "float32" else "tensor tf32")
        assert 0 < found.share_of_roof < 0.8  # cuBLAS's TF32 at 4096 comes to 79 %


# --- sums


def test_a_multiply_add_is_two_operations_and_a_tensor_operation_is_one():
    found = counted(ffma=100.0, fadd=5.0, tf32=1000.0)
    assert found.flops_by_unit["fp32"] == 205
    assert found.flops_by_unit["tensor tf32"] == 1000
    assert found.flops == 1205
    assert found.flops_by_unit["fp64"] is None


def test_a_part_of_a_sum_is_no_sum():
    launches = [one({FFMA: 1.0, READ: 5.0, WRITE: 2.0}), one({FFMA: 2.0, READ: 6.0, WRITE: None})]
    found = Counted.of("k", "kernel", launches)
    assert found.bytes_of("dram") is None
    assert found.counts[READ] == 11
    assert found.flops == 6
    assert WRITE in found.uncounted


def test_other_names_of_the_same_counts():
    names = {FFMA.replace("smsp__", "sm__"): 3.0, "lts__t_sectors.sum": 2.0}
    found = Counted.of("k", "kernel", [one(names)])
    assert found.flops == 6
    assert found.bytes_of("l2") == 64


def test_hits_of_l2():
    sectors = {"lts__t_sectors_lookup_hit.sum": 3.0, "lts__t_sectors_lookup_miss.sum": 1.0}
    assert Counted.of("k", "kernel", [one(sectors)]).l2_hit_share == 0.75
    assert counted().l2_hit_share is None


def test_a_range_has_the_work_of_its_own_kernels_only():
    launches = (
        one({TIME: 3.0}, "gemm", ("batch", "forward", "GEMM")),
        one({TIME: 1.0}, "bias", ("batch", "forward")),
        one({TIME: 9.0}, "gemm", ("setup",)), one({TIME: 0.5}, "gemm"),
    )  # fmt: skip
    assert [(c.name, c.time_s) for c in by_range(launches)] == [
        ("setup", 9.0), ("GEMM", 3.0), ("forward", 1.0), ("(no range)", 0.5)
    ]  # fmt: skip
    assert [(c.name, c.launches) for c in by_kernel(launches)] == [("gemm", 3), ("bias", 1)]
    assert [x.kernel for x in inside(launches, ["forward"])] == ["gemm", "bias"]
    with pytest.raises(SchemaError, match="got ranges batch, forward, GEMM, setup; take one"):
        inside(launches, ["nowhere"])


# --- roofs


TOY = Machine("toy", "by hand", {"float32": 100.0, "tf32_tensor": 1000.0},
              {"hbm": 10.0, "l2": 50.0})  # fmt: skip


def test_a_roof_by_hand():
    """80 FLOP of fp32, 4 bytes of DRAM, 20 of L2, 2 s: 40 FLOP/s; DRAM allows 200, L2 200."""
    found = place(counted(time=2.0, read=3.0, write=1.0, l2=20.0, l1=80.0, ffma=40.0), TOY)
    assert found.ceilings_flops_per_s == {"compute": 100.0, "dram": 200.0, "l2": 200.0}
    assert (found.bound, found.roof_flops_per_s, found.share_of_roof) == ("compute", 100.0, 0.4)
    assert (found.unit, found.unit_share, found.mixed, found.above) == ("fp32", 1.0, False, ())


def test_precision_is_part_of_the_ceiling():
    """An fp32 kernel is not compared with TF32's roof, nor a TF32 kernel with fp32's."""
    scalar = place(counted(time=1.0, ffma=45.0), TOY)
    tensor = place(counted(time=1.0, fadd=30.0, tf32=900.0), TOY)
    assert (scalar.peak_flops_per_s, scalar.share_of_roof) == (100.0, 0.9)
    assert (tensor.unit, tensor.peak_flops_per_s, tensor.mixed) == ("tensor tf32", 1000.0, False)
    mixed = place(counted(time=1.0, fadd=80.0, tf32=120.0), TOY)
    assert (mixed.unit, mixed.mixed) == ("tensor tf32", True)


def test_a_count_below_zero_was_not_counted():
    found = counted(time=-1.0, read=20.0, write=-5.0, ffma=3.0)
    assert (found.time_s, found.bytes_of("dram"), found.flops) == (None, None, 6.0)
    assert {TIME, WRITE} <= set(found.uncounted)


def test_a_unit_without_a_peak_has_no_roof():
    half = Counted.of("k", "kernel", [one({FFMA.replace("ffma", "hfma"): 5.0, TIME: 1.0})])
    found = place(half, TOY)
    assert (found.unit, found.peak_flops_per_s, found.roof_flops_per_s) == ("fp16", None, None)


def test_half_numbers_multiplied_in_a_kernel_that_ends_in_fp32_are_operations():
    """All half instructions are HFMA2, as where constants are loaded, but there are more."""
    counts = dict.fromkeys(METRICS, 0.0) | {FFMA.replace("ffma", "hfma"): 5000.0, FFMA: 10.0}
    hgemm = Counted.of("hgemm", "kernel", [one(counts)])
    assert (hgemm.flops_of("fp16"), hgemm.flops_of("fp32")) == (10_000.0, 20.0)


def test_what_is_above_a_ceiling_is_said():
    found = place(counted(time=1.0, read=20.0, write=0.0, ffma=60.0), TOY)
    assert found.above == ("120 % of the peak of fp32", "200 % of the bandwidth of DRAM")
    assert found.share_of_roof == 2.0  # 120 FLOP of 20 bytes: 6 FLOP/byte at 10 bytes/s


def test_nothing_computed_has_no_point():
    found = place(counted(time=1.0, read=5.0, write=1.0, ffma=0.0), TOY)
    assert (found.unit, found.roof_flops_per_s) == (None, None)


def test_the_highest_bandwidth_of_a_level_is_its_ceiling():
    links = {"hbm": 10.0, "l2": 30.0, "l2_read": 40.0, "l1": 90.0}
    found = place(counted(time=1.0, ffma=1.0), Machine("m", "by hand", {}, links))
    assert found.bandwidths_bytes_per_s == {"l1": 90.0, "l2": 40.0, "dram": 10.0}


# --- the command


def test_the_command_to_collect_is_printed():
    said = succeeds("counters", "--command", "--range", "batch iteration", "--", "python", "-m",
                    "trainer", "--hidden-size", 64)  # fmt: skip
    words = shlex.split(said)
    assert words[-5:] == ["python", "-m", "trainer", "--hidden-size", "64"]
    assert words[words.index("--nvtx-include") + 1] == "batch iteration/"
    assert words[words.index("--metrics") + 1].split(",") == list(METRICS)
    assert set(words) >= {"ncu", "--nvtx", "--csv", "raw", "base", "none"}


def test_letters_that_ncus_filters_take_are_escaped():
    words = command(["x"], ranges=["a/b@c"], sectors=True)
    assert words[words.index("--nvtx-include") + 1] == "a\\/b\\@c/"
    assert words[-2].endswith("lookup_miss.sum")


def test_text_says_time_unit_and_roof(tmp_path):
    full = dict.fromkeys(METRICS, 0.0) | {
        TIME: 62e3, READ: 11e6, WRITE: 6e6, L2: 143.5e6, L1: 156.9e6, FFMA: 1_208_975_360.0,
    }  # fmt: skip
    file = tmp_path / "all.csv"
    file.write_text(wide([Kernel("sgemm", full, ("forward",)), Kernel("bias", full)]))
    result = perfmodel("counters", file, "--machine", "h200", "--by", "kernel")
    assert "39.0 TFLOP/s" in result.stdout
    assert "2.418 GFLOP  fp32" in result.stdout
    assert "compute    58.2 %" in result.stdout
    assert "not counted" not in result.stderr
    assert "no bandwidth of L2: no line for it; run perfmodel machine measure" in result.stderr
    assert "no bandwidth of L1: no line for it" in result.stderr
    document = json.loads(succeeds("counters", file, "--json", "--range", "forward"))
    assert [r["name"] for r in document["ranges"]] == ["forward"]
    assert "machine" not in document


def test_the_machine_is_the_devices_where_the_table_names_it():
    table = wide([Kernel("k", {FFMA: 5.0})]).splitlines()
    rows = [f'{table[0]},"device__attribute_display_name"', f'{table[1]},""',
            f'{table[2]},"NVIDIA H200"']  # fmt: skip
    launches = parse("\n".join(rows)).launches
    assert launches[0].device == "NVIDIA H200"
    assert device_of(launches).name == "NVIDIA H200 SXM"
    assert device_of((*launches, one({}))) is None


def test_a_machine_is_a_name_or_a_file(tmp_path):
    shipped = ROOT / "perfmodel" / "machines" / "devices" / "h200.toml"
    by_file = json.loads(succeeds("counters", GOLDEN, "--machine", shipped, "--json"))
    by_name = json.loads(succeeds("counters", GOLDEN, "--machine", "H200", "--json"))
    assert by_file["machine"] == by_name["machine"]
    damaged = tmp_path / "m.toml"
    damaged.write_text("name = 3")
    assert "expected" in fails(6, "counters", GOLDEN, "--machine", damaged)
    assert "got 'b999'" in fails(1, "counters", GOLDEN, "--machine", "b999")


def test_ceilings_of_another_machine_than_was_counted_are_said(tmp_path):
    counted = GOLDEN.with_name("h200_cublas.csv.xz")
    cpu, own = tmp_path / "cpu.toml", tmp_path / "own.toml"
    save(replace(MEASURED, gpus=()), cpu)
    own.write_text('name = "H200 at 1.2 GHz"\nsource = "me"\n[peak_flops_per_s]\nfloat32 = 40e12\n')
    for machine in ("v100", cpu):
        said = json.loads(succeeds("counters", counted, "--machine", machine, "--json"))["warnings"]
        assert said[0].startswith("counted on NVIDIA H200, but the ceilings are those of ")
    for machine in ("h200", own, MACHINE):
        said = json.loads(succeeds("counters", counted, "--machine", machine, "--json"))["warnings"]
        assert not any("counted on" in sentence for sentence in said)


def test_names_of_kernels_and_ranges_are_harmless(tmp_path):
    table = tmp_path / "t.csv"
    counts = dict.fromkeys(METRICS, 1.0)
    name = EVIL.replace("\r\n", " ")  # a line of a table is a line of the file
    table.write_text(wide([Kernel(name, counts, (name,))]))
    for by in ("kernel", "range"):
        picture = tmp_path / f"{by}.png"
        result = perfmodel("counters", table, "--machine", "h200", "--by", by, "-o", picture)
        assert result.exit_code == 0
        assert harmless(result.stdout)
        assert "$x_1$" in result.stdout
        assert harmless(succeeds("counters", table, "--by", by, "--json"))


def test_wrong_usage():
    assert perfmodel("counters").exit_code == 2
    assert "cannot be read" in fails(3, "counters", "/dev/null/none.csv")

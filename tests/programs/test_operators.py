"""FLOPs and bytes of PyTorch's operators: by hand, against FlopCounterMode and against counters."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import time
import warnings
from contextlib import closing
from dataclasses import replace
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import perfmodel
from benchmarks.common.folders import MACHINE, PROGRAMS, unpacked
from perfmodel.analysis.analyze import analyze, analyze_reports
from perfmodel.analysis.operators import StepWork, _medians
from perfmodel.analysis.result import RunAnalysis
from perfmodel.base.document import plain
from perfmodel.base.errors import SchemaError, WorkloadError
from perfmodel.base.kernels import kernel, kernel_types
from perfmodel.cli import main
from perfmodel.machines.devices import named
from perfmodel.machines.measure.measurement import choose
from perfmodel.programs.program import Options
from perfmodel.programs.pytorch import operator_times
from perfmodel.programs.pytorch.calls import Kernels, find_calls
from perfmodel.programs.pytorch.counters import counted_calls
from perfmodel.programs.pytorch.names import parse
from perfmodel.programs.pytorch.operator_times import _of_one_origin
from perfmodel.programs.pytorch.operators import Call, OperatorWork
from perfmodel.programs.pytorch.program import PYTORCH_PROGRAM
from perfmodel.programs.pytorch.tree import Tree
from perfmodel.programs.pytorch.triton import Types, buffers
from perfmodel.programs.pytorch.two_recordings import _pairs
from perfmodel.readers.ncu import read_counters
from perfmodel.readers.nsys import read_sqlite
from perfmodel.readers.trace import KERNEL, MEMCPY
from perfmodel.render.operators import work_document, work_lines
from perfmodel.render.summary import what_ran
from perfmodel.timing.operator_times import OperatorKey, OperatorTimes
from perfmodel.timing.step_report import report_steps
from support.build_report import ReportBuilder
from support.cpu_time import assert_linear
from support.once import run_of

OTHERS = Path(os.environ.get("PROGRAM_REPORTS", os.devnull)) / "programs"
"""A folder with more recordings and their truth, which are too large for this repository."""


def analyzed(folder: Path, name: str) -> RunAnalysis:
    packed = folder / f"{name}.sqlite.xz"
    if not packed.is_file():
        pytest.skip(f"no {packed.name}: set PROGRAM_REPORTS to the folder that has it")
    return run_of(packed)


def work_in(folder: Path, name: str) -> StepWork:
    work = analyzed(folder, name).work
    assert work is not None
    return work


def truth(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.truth.json").read_text())
    return found


# --- names


def test_a_name_says_all_that_was_recorded() -> None:
    found = parse(
        [
            "aten::addmm, seq = 41, op_id = 37, sizes = [[96], [32, 32], [32, 96], [], []], "
            "input_op_ids = [(20,0), (33,2), (5,0), (0,-1), (0,-1)]",
            "autograd::engine::evaluate_function: AddmmBackward0, op_id = 270",
            "step 3",
        ]
    )
    assert found.name == (
        "aten::addmm", "autograd::engine::evaluate_function: AddmmBackward0", "step 3",
    )  # fmt: skip
    assert found.seq.tolist() == [41, -1, -1]
    assert found.op_id.tolist() == [37, 270, -1]
    assert found.sizes == (((96,), (32, 32), (32, 96), (), ()), None, None)
    assert found.first.tolist() == [0, 5, 5, 5]
    assert found.input_op.tolist() == [20, 33, 5, 0, 0]
    assert found.input_output.tolist() == [0, 2, 0, -1, -1]
    assert found.unread == 0


@pytest.mark.parametrize(
    "sizes",
    [
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        "[[-1, 3]]",
        "[[٣, 4]]",
        f"[[{'9' * 100_000}]]",
        "[[1, 2], [3",
        "[[1, 2]] and more",
        "[[[2, 3]], [4]]",
        "[[1e3]]",
    ],
    ids=lambda s: s[:20],
)
def test_sizes_that_cannot_be_read_are_left_unread(sizes: str) -> None:
    found = parse([f"aten::mm, op_id = 1, sizes = {sizes}, input_op_ids = [(1,0)]"])
    assert found.sizes == (None,)
    assert found.unread == 1


@pytest.mark.parametrize("sizes", ["[", "[9", "[1, ", "[]", "9"])
def test_sizes_are_read_in_linear_time(sizes: str) -> None:
    assert_linear(lambda n: parse([f"aten::mm, op_id = 1, sizes = {sizes * n}"]), 25_000)


SAID = r"[a-z:]+(, (seq|op_id|sizes|input_op_ids) = [\[\]\(\)0-9, -]{0,30}){0,4}"


@given(st.lists(st.text(max_size=60) | st.from_regex(SAID)))
def test_any_text_can_be_a_name(labels: list[str]) -> None:
    found = parse(labels)
    assert len(found.name) == len(found.sizes) == len(found.op_id) == len(labels)
    assert found.first[-1] == len(found.input_op) == len(found.input_output)


@pytest.mark.slow
def test_many_names_are_parsed_in_linear_time() -> None:
    """50,000 distinct names take 0.25 s on one core of a laptop."""
    labels = [
        f"aten::mm, seq = {i}, op_id = {i}, sizes = [[{i}, 768], [768, 3072]], "
        f"input_op_ids = [({i},0), ({i},1)]"
        for i in range(50_000)
    ]
    assert_linear(lambda n: parse(labels[:n]), 5000, times=10)


# --- what a call is given


def test_a_convolution_that_grows_its_input_is_no_transposed_one(tmp_path: Path) -> None:
    """Its forward's range says so: the sizes of its backward fit both."""
    builder = ReportBuilder("2025.3.2")
    thread = builder.thread()
    builder.gpu()
    kernel = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc"
    for step in range(3):
        at = 1000 * step
        thread.range(f"step {step}", at, at + 900)
        for name, begin in (
            ("aten::convolution, seq = 5, op_id = 2, sizes = [[2, 8, 10, 10], [8, 8, 1, 1]]", 10),
            ("aten::cudnn_convolution, op_id = 4, sizes = [[2, 8, 10, 10], [8, 8, 1, 1]]", 20),
        ):
            thread.range(name, at + begin, at + 110 - begin)
        thread.kernel(kernel, (at + 30, at + 40), (at + 50, at + 90))
        for name, begin in (
            ("autograd::engine::evaluate_function: ConvolutionBackward0, op_id = 8", 210),
            ("ConvolutionBackward0, seq = 5, op_id = 9, sizes = [[2, 8, 12, 12]]", 220),
            ("aten::convolution_backward, op_id = 10, sizes = "
             "[[2, 8, 12, 12], [2, 8, 10, 10], [8, 8, 1, 1]]", 230),
        ):  # fmt: skip
            thread.range(name, at + begin, at + 700 - begin)
        thread.kernel(kernel, (at + 240, at + 250), (at + 300, at + 400))
    run = analyze([read_sqlite(builder.write(tmp_path / "r.sqlite"))], Options()).fitted
    assert run.work is not None
    assert run.work.flops == 3 * 2 * 2 * 12 * 12 * 8 * 8


@pytest.mark.parametrize(
    ("kernels", "gradients"),
    [(["dgrad"], 1), (["dgrad", "wgrad"], 2), (["fprop", "wgrad"], 2), (["dgrad", "fprop"], 2)],
)
def test_a_backward_of_which_only_the_inputs_gradient_ran_has_one(
    kernels: list[str], gradients: int, tmp_path: Path
) -> None:
    """torch.func asks for the gradients of input and weight in two calls."""
    builder = ReportBuilder("2025.3.2")
    thread = builder.thread()
    builder.gpu()
    for step in range(3):
        at = 1000 * step
        thread.range(f"step {step}", at, at + 900)
        sizes = "[[2, 16, 8, 8], [2, 8, 10, 10], [16, 8, 3, 3]]"
        thread.range(f"aten::convolution_backward, op_id = 1, sizes = {sizes}", at + 10, at + 800)
        for i, ran in enumerate(["nchwToNhwcKernel", *(f"sm90_xmma_{k}_gemm" for k in kernels)]):
            begin = at + 100 * (i + 1)
            thread.kernel(ran, (begin, begin + 10), (begin + 20, begin + 90))
    run = analyze([read_sqlite(builder.write(tmp_path / "r.sqlite"))], Options()).fitted
    assert run.work is not None
    assert run.work.flops == gradients * 2 * 2 * 8 * 8 * 16 * 8 * 3 * 3


def test_clipping_gradients_is_the_optimizers(tmp_path: Path) -> None:
    """It runs in no range, between the backward and the optimizer's step; the loss before both.

    What autograd's thread launches in no range, as DistributedDataParallel does, is the backward's.
    """
    builder = ReportBuilder("2025.3.2")
    main, autograd = builder.thread(), builder.thread(tid=101)
    builder.gpu()
    for step in range(3):
        at = 1000 * step
        main.range(f"step {step}", at, at + 900)
        for i, (thread, around, name) in enumerate((
            (main, "Optimizer.zero_grad#SGD.zero_grad", "aten::zero_"),
            (main, "", "aten::mul"),
            (autograd, "autograd::engine::evaluate_function: MulBackward0, op_id = 8",
             "aten::mul_"),
            (autograd, "", "aten::copy_"),
            (main, "", "aten::_foreach_norm"),
            (main, "Optimizer.step#SGD.step", "aten::_foreach_add_"),
        )):  # fmt: skip
            begin = at + 10 + 100 * i
            if around:
                thread.range(around, begin, begin + 90)
            thread.range(f"{name}, op_id = {i}, sizes = [[64], []]", begin + 10, begin + 80)
            thread.kernel("k", (begin + 20, begin + 30), (begin + 40, begin + 90))
    run = analyze([read_sqlite(builder.write(tmp_path / "r.sqlite"))], Options()).fitted
    assert run.work is not None
    assert {r.name: r.phase for r in run.work.operators} == {
        "aten::zero_": "optimizer", "aten::mul": "forward", "aten::mul_": "backward",
        "aten::copy_": "backward", "aten::_foreach_norm": "optimizer",
        "aten::_foreach_add_": "optimizer",
    }  # fmt: skip


def test_a_mask_that_indexes_is_known_by_what_finds_its_elements(tmp_path: Path) -> None:
    """x[mask] of 100 rows of 8 floats, 55 of which are true, and x[index] of 100 rows."""
    builder = ReportBuilder("2025.3.2")
    thread = builder.thread()
    builder.gpu()
    index = (
        "aten::index, seq = 1, op_id = {}, sizes = [[100, 8], [100]], input_op_ids = [(0,-1), {}]"
    )
    for step in range(3):
        at = 10_000 * step
        thread.range(f"step {step}", at, at + 9000)
        thread.range(index.format(2, "(0,-1)"), at + 10, at + 900)
        thread.range("aten::nonzero, op_id = 4, sizes = [[100]]", at + 20, at + 200)
        thread.range("aten::select, op_id = 6, sizes = [[55, 1], [], []], "
                     "input_op_ids = [(4,0), (0,-1), (0,-1)]", at + 300, at + 400)  # fmt: skip
        thread.range(index.format(8, "(0,-1)"), at + 1010, at + 1900)
        for begin, name in ((30, "nonzero"), (500, "index<float>"), (1500, "index<float>")):
            kernel = f"void at::native::{name}"
            thread.kernel(kernel, (at + begin, at + begin + 10), (at + begin + 20, at + begin + 90))
    run = analyze([read_sqlite(builder.write(tmp_path / "r.sqlite"))], Options()).fitted
    assert run.work is not None
    found = {r.name: (r.count, r.bytes) for r in run.work.operators}
    distinct = 63 * 8  # of 100 rows, drawn 100 times
    assert found == {
        "aten::nonzero": (1, 2 * 100 + 8 * 55),
        "aten::index": (2, (440 * 8 + 8 * 55) + (distinct * 4 + 8 * 100 + 800 * 4)),
    }


def test_an_attention_counts_as_a_whole_and_what_it_calls_by_itself(tmp_path: Path) -> None:
    """The same kernel below PyTorch's attention, and called by a library."""
    builder = ReportBuilder("2025.3.2")
    thread = builder.thread()
    builder.gpu()
    sizes = ", ".join(["[2, 4, 16, 8]"] * 3)
    whole = f"aten::_scaled_dot_product_flash_attention, op_id = 1, sizes = [{sizes}]"
    sizes = ", ".join(["[2, 16, 4, 8]"] * 3)
    inner = f"aten::_flash_attention_forward, op_id = {{}}, sizes = [{sizes}, [], []]"
    for step in range(3):
        at = 10_000 * step
        thread.range(f"step {step}", at, at + 9000)
        thread.range(whole, at + 10, at + 900)
        thread.range(inner.format(2), at + 20, at + 800)
        thread.range(inner.format(3), at + 1020, at + 1800)
        thread.range(
            "torchvision::nms, op_id = 4, sizes = [[30, 4], [30], []]", at + 2000, at + 2900
        )
        for begin, name in ((30, "flash_fwd_kernel"), (1030, "flash_fwd_kernel"), (2030, "nms")):
            thread.kernel(name, (at + begin, at + begin + 10), (at + begin + 20, at + begin + 90))
    run = analyze([read_sqlite(builder.write(tmp_path / "r.sqlite"))], Options()).fitted
    assert run.work is not None
    flops = 2 * 2 * 4 * 16 * 16 * 16
    assert {r.name: r.flops for r in run.work.operators} == {
        "aten::_scaled_dot_product_flash_attention": flops,
        "aten::_flash_attention_forward": flops,
        "torchvision::nms": None,
    }
    assert any("torchvision::nms" in w and "without a formula" in w for w in run.warnings)


EMBED = "aten::embedding, seq = {s}, op_id = {o}, sizes = [[64, 8], [4]]"
EVALUATED = "autograd::engine::evaluate_function: EmbeddingBackward0, op_id = {o}"
STEP_AND_AVERAGE = (
    ("", "aten::div, op_id = {o}, sizes = [[64], []]", "other"),  # an input that is prepared
    ("", "aten::native_layer_norm, op_id = {o}, sizes = [[4, 8], [], [8], [8]]", "forward"),
    ("", "aten::sub, op_id = {o}, sizes = [[4, 8], [4, 8]]", "forward"),
    ("", "aten::mm, op_id = {o}, sizes = [[4, 8], [8, 8]]", "forward"),  # of a teacher
    ("", "aten::relu, op_id = {o}, sizes = [[4, 8]]", "forward"),
    ("", EMBED, "forward"),
    ("", "aten::arange, op_id = {o}, sizes = [[], []]", "forward"),
    (EVALUATED, "EmbeddingBackward0, seq = {s}, op_id = {o}, sizes = [[4, 8]]", "backward"),
    ("", "aten::_amp_foreach_non_finite_check_and_unscale_, op_id = {o}, sizes = [[64]]",
     "optimizer"),
    ("", "aten::_foreach_norm, op_id = {o}, sizes = [[64, 8]]", "optimizer"),
    ("Optimizer.step#SGD.step", "aten::_foreach_add_, op_id = {o}, sizes = [[64, 8]]", "optimizer"),
    ("", "aten::_amp_update_scale_, op_id = {o}, sizes = [[], []]", "optimizer"),
    ("", "aten::_foreach_lerp_, op_id = {o}, sizes = [[64, 8], [64, 8]]", "other"),
    ("", "aten::lerp_, seq = {n}, op_id = {o}, sizes = [[64, 8], [64, 8]]", "other"),  # with grad
    ("Optimizer.zero_grad#SGD.zero_grad", "aten::zero_, op_id = {o}, sizes = [[64, 8]]",
     "optimizer"),
    ("", "aten::mul_, op_id = {o}, sizes = [[64, 8], []]", "other"),
)  # fmt: skip


@pytest.mark.parametrize("functions", [True, False])
def test_averages_of_parameters_are_of_no_phase(functions: bool, tmp_path: Path) -> None:
    """Without functions of autograd nothing says where a forward pass begins."""
    builder = ReportBuilder("2025.3.2")
    main, autograd = builder.thread(), builder.thread(100, 101)
    builder.gpu()
    op = 0
    for step in range(4):
        at = 100_000 * step
        main.range(f"step {step}", at, at + 90_000)
        for i, (around, name, _) in enumerate(STEP_AND_AVERAGE):
            begin, op = at + 10 + 100 * i, op + 2
            thread = autograd if around == EVALUATED else main
            if around:
                thread.range(around.format(o=op), begin, begin + 90)
            text = name if functions else name.replace(", seq = {s}", "")
            thread.range(text.format(s=step, n=step + 1, o=op + 1), begin + 10, begin + 80)
            thread.kernel("k", (begin + 20, begin + 30), (begin + 40, begin + 90))
    run = analyze([read_sqlite(builder.write(tmp_path / "r.sqlite"))], Options()).fitted
    assert run.work is not None
    expected = {
        name.split(",")[0]: "forward" if phase == "other" and not functions else phase
        for _, name, phase in STEP_AND_AVERAGE
    }
    assert {r.name: r.phase for r in run.work.operators} == expected
    others = [row for row in run.work.phases if row.phase == "other"]
    assert bool(others) == functions
    assert sum(r.gpu_s for r in run.work.phases[:-1]) == pytest.approx(run.work.phases[-1].gpu_s)


def test_a_gpu_that_is_not_listed_is_estimated(
    tmp_path: Path,
) -> None:
    builder = ReportBuilder("2025.3.2")
    thread = builder.thread()
    builder.gpu(name="NVIDIA of another planet", memoryBandwidth=0)
    for step in range(3):
        at = 100_000 * step
        thread.range(f"step {step}", at, at + 90_000)
        thread.range("aten::mm, op_id = 1, sizes = [[1024, 512], [512, 256]]", at + 10, at + 900)
        kernel = "nvjet_sm90_tst_128x192_64x5_1x4_h_bz_coopB_TNN"
        thread.kernel(kernel, (at + 30, at + 40), (at + 1000, at + 11_000))
    trace = read_sqlite(builder.write(tmp_path / "r.sqlite"))
    run = analyze([trace], Options()).fitted
    assert run.work is not None
    assert run.work.flops == 2 * 1024 * 512 * 256
    assert run.work.mfu is not None
    assert run.work.mfu.basis == "estimate"
    assert [w for w in run.warnings if "NVIDIA of another planet is not among the devices" in w]
    assert "BF16 dense, estimate; " in "\n".join(work_lines(run.work))
    found = analyze([trace], Options(machine=named("v100"))).fitted
    assert found.work is not None
    assert found.work.mfu is None
    assert [w for w in found.warnings if "no peak of bfloat16_tensor is known of NVIDIA V100" in w]


def test_mfu_is_of_the_data_sheet_and_ceilings_of_what_was_measured() -> None:
    """The H200's best bf16 GEMM reached 783 TFLOP/s, 79 % of its data sheet's peak."""
    report = PROGRAMS / "gpt_modules.sqlite.xz"
    machine = choose(str(MACHINE))[0]
    measured, own = (perfmodel.analyze(report, machine=m).run for m in (machine, None))
    assert measured.work is not None
    assert own.work is not None
    assert own.work.mfu is not None
    assert measured.work.mfu == own.work.mfu
    assert own.work.mfu.peak_flops_per_s == 989.4e12
    assert own.work.mfu.basis == "data sheet"
    assert "% of 989 TFLOP/s, BF16 dense, data sheet; " in "\n".join(work_lines(measured.work))
    assert "ceilings   measured on NVIDIA H200; MFU" in "\n".join(what_ran(measured))
    slowest = [
        max((r for r in run.work.operators if r.bound == "compute"), key=lambda r: r.flops or 0)
        for run in (measured, own) if run.work
    ]  # fmt: skip
    ratio = (slowest[1].of_ceiling or 0) / (slowest[0].of_ceiling or 1)
    assert ratio == pytest.approx(783 / 989.4, rel=0.01)


def test_mfu_of_float32_is_of_tf32_which_the_program_could_use() -> None:
    work = perfmodel.analyze(PROGRAMS / "gpt_fp32_shapes.sqlite.xz").run.work
    assert work is not None
    mfu = work.mfu
    assert mfu is not None
    assert (mfu.unit, mfu.ran_unit) == ("tf32_tensor", "float32")
    assert (mfu.peak_flops_per_s, mfu.ran_peak_flops_per_s) == (494.7e12, 67e12)
    (line,) = (text for text in work_lines(work) if text.startswith("MFU"))
    assert "% of 495 TFLOP/s, TF32 dense, data sheet; " in line
    share = 100 * mfu.of_step * 494.7 / 67
    assert line.endswith(f"; it ran on FP32: {share:.1f} % of 67.0 TFLOP/s")


def test_gemms_of_a_type_that_nothing_says_are_warned_of(tmp_path: Path) -> None:
    builder = ReportBuilder("2025.3.2")
    thread = builder.thread()
    builder.gpu()
    for step in range(3):
        at = 100_000 * step
        thread.range(f"step {step}", at, at + 90_000)
        thread.range("aten::mm, op_id = 1, sizes = [[1024, 512], [512, 256]]", at + 10, at + 900)
        thread.kernel("matmul_of_mine", (at + 30, at + 40), (at + 1000, at + 11_000))
    trace = read_sqlite(builder.write(tmp_path / "r.sqlite"))
    silent = analyze([trace], Options()).fitted
    assert [w for w in silent.warnings if "give it by --dtype" in w]
    assert not [f for f in silent.findings if f.kind == "low_precision_unused"]
    given_type = analyze([trace], Options(dtype="float16")).fitted
    assert given_type.work is not None
    (row,) = given_type.work.operators
    assert (row.dtype, row.dtype_from, row.unit) == ("float16", "given", "float16_tensor")
    assert not [w for w in given_type.warnings if "--dtype" in w]
    for dtype, shown, unit in (("tf32", "float32", "tf32_tensor"),
                               ("float8", "float8", "float8_tensor")):  # fmt: skip
        other = analyze([trace], Options(dtype=dtype)).fitted.work
        assert other is not None
        assert (other.operators[0].dtype, other.operators[0].unit) == (shown, unit)


@pytest.mark.parametrize("sizes", ["[]", "[[1, 2, 3]]", "[[]]"])
def test_a_convolution_without_a_weight_is_not_counted(sizes: str) -> None:
    name = f"aten::cudnn_convolution, op_id = 1, sizes = {sizes}"
    assert calls_of([(name, -1)], [0]) == [("aten::cudnn_convolution", None)]


def test_a_backward_of_a_convolution_that_names_one_argument_is_not_counted() -> None:
    names = ["aten::convolution_backward, op_id = 1, sizes = [[2, 3, 8, 8]]"]
    names.append("aten::mm, op_id = 2, sizes = [[3, 4], [4, 5]], input_op_ids = [(1,0), (1,1)]")
    found = calls_of([(name, -1) for name in names], [0, 1])
    assert found == [("aten::convolution_backward", None), ("aten::mm", 120)]


def test_copies_of_impossible_sizes_are_bounded() -> None:
    names = parse(["aten::copy_, op_id = 1, sizes = [[4], [4]]"])
    tree = Tree(np.arange(1), np.full(1, -1), np.arange(1))
    kernels = Kernels(
        np.zeros(9, np.int64), np.full(9, -1, np.int32), np.full(9, MEMCPY, np.int8),
        np.full(9, 1000), np.full(9, 2**61), [],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(find_calls(names, tree, kernels).calls) == 1


# --- types


@pytest.mark.parametrize(
    ("kernel", "dtype", "unit"),
    [
        ("nvjet_sm90_tst_128x192_64x5_1x4_h_bz_coopB_bias_TNN", "bfloat16", "bfloat16_tensor"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_tn_align1>(T1::Params)",
         "float32", "float32"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4",
         "float32", "float32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", "float32", "tf32_tensor"),
        ("sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64",
         "bfloat16", "bfloat16_tensor"),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", "float16",
         "float16_tensor"),
        ("ampere_sgemm_128x64_nn", "float32", "float32"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, "
         "float, (bool)0>(int, T2, const T1 *)", "bfloat16", "float32"),
        ("void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *)", None,
         ""),
    ],
)  # fmt: skip
def test_a_kernels_name_says_its_type(kernel: str, dtype: str | None, unit: str) -> None:
    found = kernel_types(kernel)
    assert (found.dtype, found.unit) == (dtype, unit)


PRODUCTS_RAN = json.loads((PROGRAMS / "kernel_names.json").read_text())["kernels"]


@pytest.mark.parametrize("ran", PRODUCTS_RAN)
def test_kernels_of_products_say_the_types_that_ran(ran: str) -> None:
    """What cuBLAS ran of products of known types on an H200."""
    names = [name for name in PRODUCTS_RAN[ran] if kernel(name).multiplies]
    assert len(names) >= 2
    factors, _, result = ran.partition(" -> torch.")
    wanted = "float8" if factors.startswith("float8") else factors.replace("tf32", "float32")
    plain = {"float32": "float32", "complex64": "float32"}.get(factors)
    for name in names:
        found = kernel_types(name)
        assert found.dtype == wanted
        assert found.unit == plain or (plain is None and found.unit.endswith("_tensor"))
        assert (found.result or "") == (result if result else {"int8": "int32"}.get(ran, ""))


def test_a_cast_reads_one_type_and_writes_another() -> None:
    found = kernel_types(
        "void at::native::vectorized_elementwise_kernel<(int)8, at::native::bfloat16_copy_kernel_"
        "cuda(at::TensorIteratorBase &)::[lambda(float) (instance 1)], std::array<char *, "
        "(unsigned long)2>>(int, T2, T3)"
    )
    assert (found.source, found.dtype) == ("float32", "bfloat16")


# --- kernels of torch.compile

PRODUCTS = Types(
    of_product={(8, 4): "bfloat16", (4, 4): "bfloat16", (90, 4): "bfloat16"},
    of_numel={32: "bfloat16", 16: "bfloat16", 360: "bfloat16"},
    parameter="float32",
)
"""Of 8 tokens of width 4, with weights of 4 x 4 and a table of 90 words."""


@pytest.mark.parametrize(
    ("name", "phase", "sizes", "read", "written"),
    [
        ("poi_fused__to_copy_1", "forward", [(4, 4), (4, 4)], [64, 0], [0, 32]),
        ("poi_fused__to_copy_1", "backward", [(4, 4), (4, 4)], [32, 0], [0, 64]),
        ("poi_fused__to_copy_view_2", "backward", [(2, 4, 4), (8, 4)], [128, 0], [0, 64]),
        ("poi_fused_gelu_view_3", "forward", [(8, 4), (2, 4, 4), ()], [64, 0, 0], [0, 64, 0]),
        ("poi_fused_gelu_backward_4", "backward", [(2, 4, 4), (8, 4)], [64, 64], [64, 0]),
        ("red_fused_sum_5", "backward", [(8, 4), (1, 4)], [64, 0], [0, 8]),
        ("per_fused__to_copy_add_native_layer_norm_6", "forward",
         [(2, 4, 4), (8, 4), (4,), (4,), (2, 4, 4), (2, 4, 4), (2, 4, 1)],
         [128, 64, 16, 16, 0, 0, 0], [0, 0, 0, 0, 128, 64, 32]),
        ("per_fused__to_copy_add_native_layer_norm_7", "forward",
         [(2, 4, 4), (8, 4), (4,), (4,), (2, 4, 4), (2, 4, 1)],
         [128, 64, 16, 16, 0, 0], [128, 0, 0, 0, 64, 32]),
        ("per_fused__to_copy_embedding_native_layer_norm_8", "forward",
         [(2, 4, 1), (2, 4), (90, 4), (4,), (4,), (2, 4, 4), (2, 4, 4)],
         [32, 32, 8 * 4 * 4, 16, 16, 0, 0], [0, 0, 0, 0, 0, 128, 64]),
        ("per_fused__to_copy_native_layer_norm_backward_9", "backward",
         [(8, 4), (4,), (2, 4, 4), (2, 4, 1), (2, 4, 4), (48,)],
         [64, 16, 128, 32, 0, 0], [0, 0, 0, 0, 128, 192]),
        ("per_fused__to_copy_add_native_layer_norm_backward_10", "backward",
         [(2, 4, 4), (8, 4), (4,), (2, 4, 4), (2, 4, 1), (48,)],
         [128, 64, 16, 128, 32, 0], [128, 0, 0, 0, 0, 192]),
        ("per_fused_add_embedding_dense_backward_12", "backward",
         [(2, 4, 4), (2, 4), (90, 4)], [128, 32, 8 * 4 * 4], [0, 0, 8 * 4 * 4]),
        ("poi_fused_relu_11", "forward", [(5, 5), (5, 5)], [100, 0], [0, 100]),
        ("poi_fused_copy_13", "forward", [(6,), (90, 4), (6, 4)], [12, 6 * 4 * 2, 0], [0, 0, 48]),
    ],
    ids=lambda v: v if isinstance(v, str) and v.startswith(("p", "r")) else "",
)  # fmt: skip
def test_a_fused_kernel_reads_and_writes_its_buffers_once(
    name: str,
    phase: str,
    sizes: list[tuple[int, ...]],
    read: list[int],
    written: list[int],
) -> None:
    """Bytes by hand; of 90 words 8 tokens name 8 on average (7.7)."""
    found = buffers(f"triton_{name}", tuple(sizes), phase, PRODUCTS)
    assert (list(found.read), list(found.written)) == (read, written)


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=4).map(tuple), min_size=1, max_size=9),
    st.sampled_from(["forward", "backward"]),
    st.sampled_from(["norm", "_to_copy", "embedding", "norm__to_copy_embedding", "add_backward"]),
)
def test_any_sizes_of_a_fused_kernel_are_taken(
    sizes: list[tuple[int, ...]], phase: str, name: str
) -> None:
    if any(sizes):
        found = buffers(f"triton_poi_fused_{name}_1", tuple(sizes), phase, PRODUCTS)
        assert len(found.read) == len(found.written) == len(sizes)
        assert min(*found.read, *found.written, 0) == 0


# --- which operator launched what


def work_by_call(
    ranges: list[tuple[str, int]], launches: list[int]
) -> list[tuple[str, OperatorWork | None]]:
    """Calls of ranges, each a label and its parent, that launch a GEMM each."""
    names = parse([label for label, _ in ranges])
    count = len(launches)
    tree = Tree(
        np.arange(len(ranges)),
        np.array([parent for _, parent in ranges], np.int64),
        np.arange(len(ranges)),
    )
    kernels = Kernels(
        np.array(launches, np.int64), np.zeros(count, np.int32), np.full(count, KERNEL, np.int8),
        np.full(count, 1000), np.zeros(count, np.int64), ["nvjet_sm90_tst_64x64"],
    )  # fmt: skip
    found = find_calls(names, tree, kernels)
    return [(c.name, c.work) for c in found.calls]


def calls_of(ranges: list[tuple[str, int]], launches: list[int]) -> list[tuple[str, int | None]]:
    """FLOPs of them."""
    return [(name, work.flops if work else None) for name, work in work_by_call(ranges, launches)]


MM = "aten::mm, op_id = {}, sizes = [[2, 3], [3, 5]]"


def test_the_innermost_operator_counts() -> None:
    """Under autocast a product may lie in another of the same name."""
    assert calls_of([(MM.format(1), -1), (MM.format(2), 0)], [1]) == [("aten::mm", 60)]


def test_a_consumer_says_along_which_axis_a_fourier_transform_halves() -> None:
    ranges = [
        ("aten::_fft_r2c, op_id = 2, sizes = [[64, 1024, 8], [], [], []]", -1),
        ("aten::mul, op_id = 3, sizes = [[64, 513, 8], []], input_op_ids = [(2,0), (0,-1)]", -1),
    ]
    (_, work), _ = work_by_call(ranges, [0, 1])
    assert work is not None
    assert (work.read_bytes, work.write_bytes) == (64 * 1024 * 8 * 2, 64 * 513 * 8 * 4)


@pytest.mark.parametrize("name", ["amax", "linalg_vector_norm", "logsumexp", "sum"])
def test_a_consumer_says_the_size_of_what_is_reduced(name: str) -> None:
    ranges = [
        (f"aten::{name}, op_id = 2, sizes = [[64, 8], [], []]", -1),
        ("aten::mul, op_id = 3, sizes = [[64, 1], []], input_op_ids = [(2,0), (0,-1)]", -1),
    ]
    (_, work), _ = work_by_call(ranges, [0, 1])
    assert work is not None
    assert work[:4] == (0, 64 * 8 * 2, 64 * 2, None)


def test_an_operator_around_a_counted_one_has_no_flops_of_its_own() -> None:
    found = calls_of([(MM.format(1), -1), (MM.format(2), 0)], [0, 1])
    assert found == [("aten::mm", 0), ("aten::mm", 60)]


def test_a_part_without_formula_belongs_to_the_operator_around_it() -> None:
    inner = "aten::_cudnn_part, op_id = 2, sizes = [[2, 3]]"
    assert calls_of([(MM.format(1), -1), (inner, 0)], [1]) == [("aten::mm", 60)]


def test_an_unknown_operator_is_listed_and_not_guessed() -> None:
    name = "aten::unique_dim"
    assert calls_of([(f"{name}, op_id = 1, sizes = [[9]]", -1)], [0]) == [(name, None)]


def seconds_of(operators: int) -> float:
    """Processor time to parse and count operators with names of their own, four in a module."""
    ranges: list[tuple[str, int]] = []
    for i in range(operators // 4):
        module = len(ranges)
        ids = f"input_op_ids = [({4 * i},0), (0,-1)]"
        ranges.append((f"nn.Module: Net.{i % 1000}", -1))
        ranges.append((f"aten::linear, seq = {i}, op_id = {4 * i + 1}, sizes = [[8, 9]]", module))
        ranges += [
            (f"aten::mm, op_id = {4 * i + k}, sizes = [[8, 9], [9, 64]], {ids}", module + 1)
            for k in (2, 3, 4)
        ]
    start = time.process_time()
    launches = [i for i, (label, _) in enumerate(ranges) if label.startswith("aten::mm")]
    found = calls_of(ranges, launches)
    assert found == [("aten::mm", 2 * 8 * 9 * 64)] * len(launches)
    return time.process_time() - start


@pytest.mark.slow
def test_time_grows_with_the_number_of_operators() -> None:
    """784,000 ranges with 132,000 GPU operations (300 steps of a GPT) took 14 s in all."""
    few, many = min(seconds_of(25_000) for _ in range(3)), seconds_of(200_000)
    assert many < 8 * 2.5 * few
    assert many < 30


def test_medians_count_steps_without_an_operator_as_nothing() -> None:
    """Two lanes of four steps: 1, 2, 3, 5 FLOPs and 0, 0, 7, 9 have medians of 2.5 and 3.5."""
    key = OperatorKey("aten::mm", "forward", "float32", "kernel", "float32", "", True, False)
    other = replace(key, name="aten::add")
    rows = [(0, 0, 1, 1), (0, 0, 2, 2), (0, 0, 3, 3), (0, 0, 4, 5), (0, 1, 3, 7), (0, 1, 4, 9),
            (1, 0, 1, 4), (1, 0, 0, 99)]  # fmt: skip
    which, lane, step, flops = (np.array(column) for column in zip(*rows, strict=True))
    ones = np.ones(len(rows), np.int64)
    times = OperatorTimes(
        (key, other), which, lane, step, ones, ones, flops, ones, ones, ones, ones, lanes=2
    )
    found = _medians(times, range(1, 5), lambda k: k)
    assert found[key][2] == 2.5 + 3.5
    assert other not in found  # in one step of four


def test_what_says_a_type_does_not_divide_calls() -> None:
    """Of one operator's calls, some name what made their inputs, and some do not."""
    key = OperatorKey("aten::mm", "forward", "bfloat16", "inputs", "bfloat16_tensor", "", True,
                      False)  # fmt: skip
    unsaid = replace(key, origin="default")
    other = replace(unsaid, dtype="float32")
    keys = [key, unsaid, other]
    assert _of_one_origin(keys, np.array([1, 3, 1])) == [unsaid, unsaid, other]
    assert _of_one_origin(keys, np.array([4, 3, 1])) == [key, key, other]


@pytest.mark.slow
def test_a_deep_nest_of_operators_is_followed() -> None:
    many = 100_000
    deep = [("step", -1), *((f"aten::view, op_id = {i}, sizes = [[4]]", i) for i in range(many))]
    deep.append((MM.format(9), len(deep) - 1))
    start = time.process_time()
    assert calls_of(deep, [len(deep) - 1]) == [("aten::mm", 60)]
    products = [(MM.format(i), i - 1) for i in range(many)]
    assert calls_of(products, list(range(many)))[-2:] == [("aten::mm", 0), ("aten::mm", 60)]
    assert time.process_time() - start < 30


# --- against FlopCounterMode

EXACT = [
    "gpt_shapes", "llama_heads_shapes", "bert_shapes", "resnet34_shapes", "gpt_modules",
    "gpt_fp32_shapes", "gpt_compiled_shapes",
]  # fmt: skip
EXACT_ELSEWHERE = ["gpt2_ddp", "gpt2_compiled", "gpt_small", "conv32", "resnet50_ddp"]
HOLDERS = [*((PROGRAMS, n) for n in EXACT), *((OTHERS, n) for n in EXACT_ELSEWHERE)]


@pytest.mark.parametrize(("folder", "name"), HOLDERS, ids=[n for _, n in HOLDERS])
def test_flops_of_a_step_equal_flop_counter_modes(folder: Path, name: str) -> None:
    work = work_in(folder, name)
    assert work.flops == truth(folder, name)["flop_counter_total"]
    assert work.modelled >= 0.95
    by_counter = {k.removeprefix("aten."): v for k, v in
                  truth(folder, name)["flop_counter_by_op"].items()}  # fmt: skip
    mine: dict[str, float] = {}
    for row in work.by_sizes:
        if row.flops:
            key = row.name.removeprefix("aten::").replace("cudnn_convolution", "convolution")
            mine[key] = mine.get(key, 0) + row.flops
    assert mine == by_counter


def test_grouped_convolutions_backward_is_counted_too_high_by_the_counter() -> None:
    """Weights' gradients of a convolution in g groups: the counter has g times what is needed.

    flop_counter.conv_backward_flop takes the input for [in, N, ...] where [in / g, N, ...] is
    multiplied. ConvNeXt's depthwise convolutions have as many groups as channels.
    """
    work = work_in(PROGRAMS, "convnext_shapes")
    known = truth(PROGRAMS, "convnext_shapes")["flop_counter_by_op"]
    mine: dict[str, float] = {}
    too_high = 0.0
    for row in work.by_sizes:
        mine[row.name] = mine.get(row.name, 0) + (row.flops or 0)
        if row.name != "aten::convolution_backward":
            continue
        _dy, x, w = ([int(n) for n in size.split("×")] for size in row.sizes.split(", ")[:3])
        groups = x[1] // w[1]
        too_high += (groups - 1) * (row.flops or 0) / 2 if groups > 1 else 0
    assert mine["aten::mm"] == known["aten.mm"]
    assert mine["aten::addmm"] == known["aten.addmm"]
    assert mine["aten::cudnn_convolution"] == known["aten.convolution"]
    backward = mine["aten::convolution_backward"]
    assert backward + too_high == known["aten.convolution_backward"]
    assert work.modelled >= 0.95


def test_grouped_queries_are_counted_where_the_counter_refuses() -> None:
    """4 layers, width 768, 12 heads of queries over 4 of keys, 8 x 512 tokens, 16000 words."""
    c = truth(PROGRAMS, "llama_shapes")
    assert c["flop_counter_total"] is None
    tokens, width, inner = 8 * 512, 768, (8 * 768 // 3 + 63) // 64 * 64
    weights = 2 * width * width + width * 2 * 4 * 64 + 3 * width * inner
    products = 2 * tokens * (4 * weights + width * 16000)
    scores = 4 * 2 * 8 * 12 * 512 * 512 * 64
    work = work_in(PROGRAMS, "llama_shapes")
    assert work.flops == 3 * products + (2 + 5) * scores


def test_causal_attention_is_counted_without_what_the_mask_hides() -> None:
    """5 layers, 12 x 10 heads of 64 numbers, 384 tokens; forward 4, backward 10 a number and score.

    The scores of a causal mask are the lower triangle: 384 * 385 / 2.
    """
    packed = PROGRAMS / "gpt_shapes.sqlite.xz"
    full = work_in(PROGRAMS, "gpt_shapes")
    causal = perfmodel.analyze(packed, attention="causal").run.work
    assert causal is not None
    heads = 5 * 12 * 10 * 64
    assert (full.attention, causal.attention) == ("full", "causal")
    assert full.flops - causal.flops == 14 * heads * (384 * 384 - 384 * 385 // 2)
    assert full.bytes == causal.bytes
    done = CliRunner().invoke(
        main, ["analyze", "--section", "all", str(packed), "--attention", "causal"]
    )
    assert "causal attention: half of the scores" in done.output
    with pytest.raises(WorkloadError, match="'full' or 'causal'"):
        perfmodel.analyze(packed, attention="masked")


# --- against counters of Nsight Compute, which empties the caches before every kernel


COUNTED = ["llama_ncu", "resnet50_ncu", "gpt_small_ncu", "gpt_compiled_ncu"]


class Counted(NamedTuple):
    call: Call
    kernels: int
    dram_read_bytes: float
    dram_write_bytes: float
    l2_bytes: float


@cache
def counted(name: str) -> tuple[Counted, ...]:
    folder = PROGRAMS if (PROGRAMS / f"{name}.csv.xz").is_file() else OTHERS
    if not (folder / f"{name}.csv.xz").is_file():
        pytest.skip(f"no {name}.csv.xz: set PROGRAM_REPORTS to the folder that has it")
    found = counted_calls(read_counters([folder / f"{name}.csv.xz"]).launches)
    columns = (getattr(found, f) for f in ("calls", *Counted._fields[1:]))
    return tuple(Counted(*row) for row in zip(*columns, strict=True))


@pytest.mark.parametrize("name", COUNTED[:3])
def test_bytes_are_those_that_dram_moved(name: str) -> None:
    large = [one for one in counted(name) if one.dram_read_bytes > 4e6]
    errors = [_error(one) for one in large]
    assert len(large) > 100
    assert np.mean(np.array(errors) <= 0.05) >= 0.9
    assert np.median(errors) <= 0.02


@pytest.mark.parametrize("name", COUNTED)
def test_what_is_written_is_what_reaches_dram_and_what_stays_in_l2(name: str) -> None:
    """A kernel leaves results in L2: their share of its bytes of 60 MiB, at most half of it.

    What is left of the formulas' bytes is what DRAM moved, within 10 % of every operator that
    writes over 200 MB, but for a product that reads a factor twice.
    """
    l2 = 60 << 20  # of an H200
    errors = {}
    for one in counted(name):
        if one.dram_write_bytes < 200e6 or not one.call.work:
            continue
        read, written = one.call.work.read_bytes, one.call.work.write_bytes
        stays = one.kernels * min(0.5, written / (read + written)) * l2
        moved = one.dram_read_bytes + one.dram_write_bytes
        errors[one.call.name] = (read + written - stays) / moved - 1
    assert errors
    if name == "gpt_compiled_ncu":
        assert errors.pop("aten::mm") == pytest.approx(-0.143, abs=0.005)
    assert max(map(abs, errors.values())) <= 0.06
    assert np.median(np.abs(list(errors.values()))) <= (0.06 if len(errors) == 1 else 0.02)


def test_fused_kernels_of_a_compiled_program_move_their_buffers_once() -> None:
    """Nine of ten within 5 %, but for a scatter into the embedding's gradient."""
    large = [one for one in counted("gpt_compiled_ncu") if one.dram_read_bytes > 4e6]
    assert np.median([_error(one) for one in large]) <= 0.02
    assert np.mean([_error(one) <= 0.05 for one in large]) >= 0.89  # products read factors twice
    fused = [one for one in large if one.call.name.startswith("triton_")]
    assert len(fused) > 80
    far = [one.call.name for one in fused if _error(one) > 0.05]
    assert len(far) == 1
    assert "embedding_dense_backward" in far[0]
    assert np.median([_error(one) for one in fused]) <= 0.002


def _error(one: Counted) -> float:
    return abs(one.call.work.read_bytes / one.dram_read_bytes - 1) if one.call.work else 1.0


@pytest.mark.slow
def test_counters_stand_beside_the_formulas(tmp_path: Path) -> None:
    """Bytes of DRAM and L2 by operator, and the roof of L2 of a machine that was measured."""
    report, table = (PROGRAMS / f"gpt_compiled_{n}" for n in ("shapes.sqlite.xz", "ncu.csv.xz"))
    machine = choose(str(MACHINE))[0]
    work = perfmodel.analyze(report, counters=table, machine=machine).run.work
    assert work is not None
    (product,) = (r for r in work.operators if (r.name, r.phase) == ("aten::mm", "forward"))
    (launch,) = (
        x for x in counted("gpt_compiled_ncu")
        if (x.call.name, x.call.phase) == ("aten::mm", "forward")
    )  # fmt: skip
    assert product.dram_bytes == launch.dram_read_bytes + launch.dram_write_bytes
    assert product.l2_bytes == launch.l2_bytes
    assert product.l2_intensity == pytest.approx(product.flops / launch.l2_bytes)
    assert product.of_l2 == pytest.approx(launch.l2_bytes / 7.07e12 / product.gpu_s, rel=2e-3)
    known = sum(r.gpu_s for r in work.operators if r.dram_bytes is not None)
    assert known > 0.99 * sum(r.gpu_s for r in work.operators if r.flops is not None)
    words = ["analyze", str(report), "--counters", str(table), "--machine", str(MACHINE)]
    tables = ["--section", "all"]
    done = CliRunner().invoke(main, [*words, *tables, "-o", str(tmp_path)])
    assert done.exit_code == 0
    assert "Bytes that Nsight Compute counted of a step" in done.output
    assert "no bandwidth of L2" not in done.output
    assert "hollow, dashed: L2" in (tmp_path / "operators.svg").read_text()
    without = CliRunner().invoke(main, [*words[:4], *tables])
    assert "no bandwidth of L2 is known" in without.output


def test_counters_of_another_program_are_warned_of() -> None:
    found = perfmodel.analyze(
        PROGRAMS / "bert_shapes.sqlite.xz", counters=PROGRAMS / "llama_ncu.csv.xz"
    )
    assert any("the counters hold operators of" in warning for warning in found.warnings)
    unused = perfmodel.analyze(
        PROGRAMS / "gpt_modules_timing.sqlite.xz", counters=PROGRAMS / "llama_ncu.csv.xz"
    )
    assert any("counters are not used" in warning for warning in unused.warnings)
    table = Path(__file__).parents[1] / "golden" / "ncu" / "h200_forward_gemm_1.csv"
    with pytest.raises(SchemaError, match="ranges that name operators' sizes"):
        perfmodel.analyze(PROGRAMS / "bert_shapes.sqlite.xz", counters=table)


def test_bytes_that_fusing_saves_are_those_that_were_written_just_before() -> None:
    """A GPT of 5 layers of width 640, 12 x 384 tokens: sums of residuals, norms, casts, losses."""
    rows = {(r.name, r.phase): r for r in work_in(PROGRAMS, "gpt_shapes").operators}
    tokens = 12 * 384 * 640
    norm = rows["aten::native_layer_norm", "forward"]
    assert norm.fusible_bytes == 11 * tokens * 4  # of the sums before; not its weights
    cross_entropy = rows["aten::_log_softmax", "forward"]
    assert cross_entropy.fusible_bytes == cross_entropy.read_bytes  # a cast wrote it
    assert rows["aten::gelu", "forward"].fusible_bytes == 0  # a product wrote it
    assert rows["aten::_fused_adamw_", "optimizer"].fusible_bytes == 0
    assert rows["aten::addmm", "forward"].fusible_bytes == 0
    assert all((r.fusible_bytes or 0) <= (r.read_bytes or 0) for r in rows.values())


def test_inputs_that_are_still_in_l2_are_bytes_that_memory_need_not_move() -> None:
    """An H200's L2 holds 62,914,560 bytes; what is read beyond comes from memory in any case."""
    rows = work_in(PROGRAMS, "gpt_shapes").by_sizes
    (optimizer,) = (r for r in rows if r.name == "aten::_fused_adamw_")
    assert optimizer.cached_bytes == optimizer.bytes - 62_914_560
    small = [r for r in rows if r.read_bytes and r.read_bytes < 62_914_560 * r.count]
    assert len(small) > 20
    for row in small:
        assert row.cached_bytes == row.write_bytes
    for row in rows:
        too_short = bool(row.read_bytes) and row.gpu_s < row.bytes / 4.8e12
        assert (row.inputs_from == "l2") == too_short
    copies = work_in(PROGRAMS, "resnet34_shapes").by_sizes
    assert any(row.inputs_from == "l2" for row in copies)


# --- what is shown


def test_a_row_says_what_bounds_it() -> None:
    run = analyzed(PROGRAMS, "gpt_shapes")
    work = work_in(PROGRAMS, "gpt_shapes")
    rows = {(r.name, r.phase): r for r in work.operators}
    product = rows["aten::mm", "backward"]
    assert (product.dtype, product.unit, product.bound) == (
        "bfloat16", "bfloat16_tensor", "compute",
    )  # fmt: skip
    assert product.of_ceiling is not None
    assert 0.5 < product.of_ceiling < 0.6
    optimizer = rows["aten::_fused_adamw_", "optimizer"]
    assert optimizer.bound == "memory"
    assert optimizer.bytes == 28 * truth(PROGRAMS, "gpt_shapes")["parameters"]
    assert run.steps is not None
    busy = run.steps.ranks[0].gpu_busy_s
    assert busy is not None
    assert sum(r.gpu_s for r in work.operators) == pytest.approx(busy, rel=0.02)
    assert sum(r.share for r in work.operators) == pytest.approx(1)
    assert sum(r.flops or 0 for r in work.operators) == work.flops


def test_phases_sum_up_to_the_step() -> None:
    """Products of a GPT have twice the FLOPs backward, attention 2.5 times."""
    work = work_in(PROGRAMS, "gpt_shapes")
    rows = {row.phase: row for row in work.phases}
    assert list(rows) == ["forward", "backward", "optimizer", "step"]
    step = rows.pop("step")
    for name in ("gpu_s", "share", "flops", "bytes"):
        assert sum(getattr(row, name) for row in rows.values()) == pytest.approx(
            getattr(step, name)
        )
    assert (step.flops, step.bytes) == (work.flops, work.bytes)
    assert step.share == pytest.approx(1)
    scores = 22_649_241_600
    assert rows["backward"].flops == 2 * (rows["forward"].flops - scores) + 2.5 * scores
    assert rows["optimizer"].flops == 0
    assert rows["optimizer"].of_ceiling == pytest.approx(
        rows["optimizer"].bytes / 4.8e12 / rows["optimizer"].gpu_s, rel=1e-2
    )


def test_a_report_of_46_000_ranges_is_parsed_and_counted_in_two_seconds() -> None:
    report = OTHERS / "gpt2_ddp.sqlite.xz"
    if not report.is_file():
        pytest.skip("no gpt2_ddp.sqlite.xz: set PROGRAM_REPORTS to the folder that has it")
    trace = perfmodel.read(report).trace
    assert len(trace.ranges) > 46_000
    shown, found = PYTORCH_PROGRAM.steps(trace, Options())
    steps = report_steps(shown, found)
    start = time.process_time()
    assert PYTORCH_PROGRAM.operators(trace, steps, Options()) is not None
    assert time.process_time() - start < 2


def test_utilization_is_flops_over_the_dense_peak() -> None:
    run, work = analyzed(PROGRAMS, "gpt_shapes"), work_in(PROGRAMS, "gpt_shapes")
    assert work.mfu is not None
    assert work.mfu.unit == "bfloat16_tensor"
    assert work.mfu.of_step == pytest.approx(work.flops / run.ledger.step_s / 989.4e12)
    assert work.mfu.of_busy > work.mfu.of_step


def test_waiting_for_another_rank_is_no_communication_that_utilization_leaves_out() -> None:
    """Rank 0 of gpt_fsdp waits 65 of 71 ms inside NCCL for rank 1, which does so for 0.5 ms."""
    run, work = analyzed(OTHERS, "gpt_fsdp"), work_in(OTHERS, "gpt_fsdp")
    assert run.steps is not None
    assert work.mfu is not None
    slow = run.steps.ranks[1]
    alone = slow.whole_s - slow.part_s("communication") - slow.part_s("waiting")
    assert alone > 0.98 * slow.whole_s
    alone -= run.ledger.recorded_s - run.ledger.step_s
    found = work.mfu.without_exposed_communication
    assert found == pytest.approx(work.flops / alone / 989.4e12)


def test_much_time_without_a_formula_is_warned_of(tmp_path: Path) -> None:
    """mm without its sizes: a fifth of the computing time of gpt_shapes."""
    report = unpacked(PROGRAMS / "gpt_shapes.sqlite.xz", tmp_path)
    with closing(sqlite3.connect(report)) as db, db:
        db.execute(
            "UPDATE NVTX_EVENTS SET text = substr(text, 1, instr(text, ', sizes') - 1)"
            " WHERE text LIKE 'aten::mm,%sizes%'"
        )
    run = analyze([read_sqlite(report)], Options()).fitted
    assert run.work is not None
    assert 0.7 < run.work.modelled < 0.85
    assert [
        w for w in run.warnings if "most aten::mm (21 %): FLOPs, bytes and MFU are too low" in w
    ]
    assert not [w for w in analyzed(PROGRAMS, "gpt_shapes").warnings if "too low" in w]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("1000000000000000000", "times the FLOPs that the GPU can do"),
        ("-640", "operators cannot be read: not counted"),
    ],
)
def test_impossible_sizes_are_warned_of(written: str, said: str, tmp_path: Path) -> None:
    report = unpacked(PROGRAMS / "gpt_shapes.sqlite.xz", tmp_path)
    with closing(sqlite3.connect(report)) as file:
        file.execute(f"UPDATE NVTX_EVENTS SET text = replace(text, '640', '{written}')")
        file.commit()
    run = analyze([read_sqlite(report)], Options()).fitted
    assert any(said in warning for warning in run.warnings)


def test_the_document_has_exact_flops() -> None:
    document = plain(work_document(analyzed(PROGRAMS, "resnet34_shapes")))
    assert document["work"]["flops_per_step"] == 532_640_563_200
    assert document["work"]["from"] == "shapes"
    wanted = {
        "name", "phase", "count", "flops", "bytes", "gpu_s", "dtype", "unit", "intensity", "bound",
        "of_ceiling",
    }  # fmt: skip
    assert wanted <= set(document["operators"][0])
    assert json.loads(json.dumps(document))["mfu"]["unit"] == "bfloat16_tensor"


@pytest.mark.slow
def test_tables_and_reports_show_the_operators(tmp_path: Path) -> None:
    packed = PROGRAMS / "resnet34_shapes.sqlite.xz"
    frame = perfmodel.analyze(packed).operators
    assert frame["flops"].sum() == truth(PROGRAMS, "resnet34_shapes")["flop_counter_total"]
    assert set(frame["phase"]) == {"forward", "backward", "optimizer"}
    done = CliRunner().invoke(
        main, ["analyze", "--section", "all", str(packed), "-o", str(tmp_path / "out")]
    )
    assert done.exit_code == 0
    assert "532.6 GFLOP" in done.output
    assert (tmp_path / "out" / "operators.png").read_bytes().startswith(b"\x89PNG")
    page = tmp_path / "report.html"
    assert CliRunner().invoke(main, ["report", str(packed), "-o", str(page)]).exit_code == 0
    assert "Operators of a median step" in page.read_text(encoding="utf-8")


# --- two recordings of one program


def without_sizes(packed: Path, target: Path) -> Path:
    """The same recording without the ranges of operators, as one made without sizes."""
    unpacked(packed, target)
    with closing(sqlite3.connect(target)) as file:
        file.execute(
            "DELETE FROM NVTX_EVENTS WHERE coalesce(text, (SELECT value FROM StringIds "
            "WHERE id = textId)) LIKE '%op_id = %'"
        )
        file.commit()
    return target


def test_sizes_come_from_another_recording(tmp_path: Path) -> None:
    packed = PROGRAMS / "gpt_shapes.sqlite.xz"
    timing = without_sizes(packed, tmp_path / "timing.sqlite")
    without = analyze([read_sqlite(timing)], Options()).fitted
    assert without.work is None
    assert any("--pytorch=autograd-shapes-nvtx" in warning for warning in without.warnings)
    found = analyze([read_sqlite(timing)], Options(shapes=packed)).fitted.work
    own = work_in(PROGRAMS, "gpt_shapes")
    assert found is not None
    assert found.flops == own.flops
    assert found.modelled == pytest.approx(own.modelled)
    expected = {(r.name, r.phase, r.sizes): (r.count, r.bytes, r.gpu_s) for r in own.by_sizes}
    mine = {(r.name, r.phase, r.sizes): (r.count, r.bytes, r.gpu_s) for r in found.by_sizes}
    assert mine == expected


def test_two_recordings_of_one_program_are_one_analysis() -> None:
    """A GPT of 4 layers, recorded once with sizes and once without, which takes half as long."""
    timing, shapes = (PROGRAMS / f"{n}.sqlite.xz" for n in ("gpt_modules_timing", "gpt_modules"))
    found = perfmodel.analyze(timing, shapes=shapes).run
    own = analyzed(PROGRAMS, "gpt_modules")
    assert found.work is not None
    assert own.work is not None
    assert (
        found.work.flops == own.work.flops == truth(PROGRAMS, "gpt_modules")["flop_counter_total"]
    )
    assert found.work.modelled > 0.99
    assert own.batch.median.value > 2 * found.batch.median.value
    bare = truth(PROGRAMS, "gpt_modules_timing")["step_s_bare"]
    assert bare < found.batch.median.value < 2 * bare
    kernels = [sum(r.gpu_s for r in work.operators) for work in (found.work, own.work)]
    assert kernels[0] == pytest.approx(kernels[1], rel=0.03)
    assert found.work.mfu is not None
    assert found.work.mfu.of_step == pytest.approx(
        found.work.flops / found.ledger.step_s / 989.4e12
    )
    assert {m.name for m in found.work.modules} == {m.name for m in own.work.modules}


def test_a_kernel_more_shifts_no_operator(tmp_path: Path) -> None:
    packed = PROGRAMS / "gpt_shapes.sqlite.xz"
    timing = without_sizes(packed, tmp_path / "timing.sqlite")
    with closing(sqlite3.connect(timing)) as file:  # of 441 operations of a step, one is another
        name = "(SELECT max(demangledName) FROM CUPTI_ACTIVITY_KIND_KERNEL)"
        file.execute(
            f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = {name} WHERE rowid = "
            "(SELECT rowid FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start LIMIT 1 OFFSET 600)"
        )
        file.commit()
    found = analyze([read_sqlite(timing)], Options(shapes=packed, warmup=0)).fitted.work
    assert found is not None
    assert found.modelled > 0.99
    assert found.flops >= 0.97 * work_in(PROGRAMS, "gpt_shapes").flops


def test_recordings_of_two_programs_are_refused(tmp_path: Path) -> None:
    timing = without_sizes(PROGRAMS / "gpt_shapes.sqlite.xz", tmp_path / "timing.sqlite")
    with pytest.raises(SchemaError, match="% of the kernels differ"):
        analyze([read_sqlite(timing)], Options(shapes=PROGRAMS / "bert_shapes.sqlite.xz"))
    with pytest.raises(SchemaError, match="expected ranges that name operators' sizes"):
        analyze([read_sqlite(timing)], Options(shapes=timing))


@pytest.mark.parametrize(
    "sizes", ["[[007]]", "[[1][2]]", "[[1],[2],]", "[[1] [2]]", "[[٤]]", "[[-1]]", "[" * 100_000]
)
def test_sizes_that_pytorch_does_not_write_are_left_unread(sizes: str) -> None:
    assert parse([f"aten::mm, op_id = 1, sizes = {sizes}"]).sizes == (None,)


@pytest.mark.parametrize("ids", ["[(1,2)(3,4)]", "[(1,2),]", "[(1,2) (3,4)]", "[(٣,0)]"])
def test_inputs_that_pytorch_does_not_write_are_left_out(ids: str) -> None:
    found = parse([f"aten::mm, op_id = 1, sizes = [[2]], input_op_ids = {ids}"])
    assert found.first.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("part", "end"), [("cudnn", ""), ("cudnn_generatedgemm", ""), ("sm80_xmma_", "ffma")]
)
def test_the_name_of_a_kernel_is_read_in_linear_time(part: str, end: str) -> None:
    numbers = count()

    def read_names(size: int) -> None:
        name = f"{part * size}{end}_{next(numbers)}"  # never seen before
        kernel_types(name)
        kernel(name)

    assert_linear(read_names, 2000)


@given(st.lists(st.sampled_from("abc"), max_size=9), st.lists(st.sampled_from("abc"), max_size=9))
def test_a_longest_common_part_of_two_steps_is_matched(theirs: list[str], ours: list[str]) -> None:
    longest = [[0] * (len(ours) + 1) for _ in range(len(theirs) + 1)]
    for i, one in enumerate(theirs):
        for j, other in enumerate(ours):
            kept = max(longest[i][j + 1], longest[i + 1][j])
            longest[i + 1][j + 1] = longest[i][j] + 1 if one == other else kept
    pairs = _pairs(theirs, ours)
    assert len(pairs) == longest[-1][-1]
    assert all(theirs[i] == ours[j] for i, j in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))


def test_steps_of_unrelated_programs_are_compared_fast() -> None:
    """Few differences are looked for: a sequence eight times as long takes no longer."""
    draw = random.Random(5)
    theirs, ours = (draw.choices("abcde", k=50_000) for _ in range(2))
    seconds = []
    for n in (6250, 50_000):
        begin = time.process_time()
        assert len(_pairs(theirs[:n], ours[:n])) < 50
        seconds.append(time.process_time() - begin)
    assert seconds[1] < 3 * seconds[0]


@pytest.mark.parametrize("name", ["gpt_shapes.sqlite.xz", "lstm_shapes.sqlite.xz"])
def test_operators_found_step_by_step_are_those_of_the_whole(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large processes are looked at in windows of steps: here of one step each."""
    whole = run_of(PROGRAMS / name).work
    monkeypatch.setattr(operator_times, "_RANGES", 1)
    copy = Path(shutil.copy(PROGRAMS / name, tmp_path))  # nothing of it is known from before
    assert analyze_reports([copy], Options()).fitted.work == whole

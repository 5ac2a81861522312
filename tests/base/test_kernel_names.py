"""Kernels by their names: names.tsv was labelled by hand from sources, issues and recordings."""

from __future__ import annotations

import csv
import random
import re
import shutil
import tomllib
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from benchmarks.common.folders import TESTS
from perfmodel.base import kernels as module
from perfmodel.base.kernels import (
    PRODUCTS,
    UNKNOWN,
    categories,
    kernel,
)
from perfmodel.base.kernels.types import ITEM_BYTES
from support.cpu_time import assert_linear

with (TESTS / "golden" / "kernels" / "names.tsv").open(encoding="utf-8", newline="") as file:
    ROWS = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
NAMES = [row["name"] for row in ROWS]


def all_families() -> list[module.Family]:
    return [family for listed in module._registry().families.values() for family in listed]


def own_name(name: str) -> str:
    return module._NUMBERS.sub("0", module._parts(name)[0])


def test_names_say_what_kernels_do() -> None:
    """Columns that are empty are not compared: bare names of sources say no library."""
    wrong = {}
    for row in ROWS:
        found, labels = kernel(row["name"]), {key: value for key, value in row.items() if value}
        said = {key: getattr(found, key) or "" for key in labels}
        if said != labels:
            wrong[row["name"]] = said
    assert not wrong


def test_every_library_and_every_category_has_a_row() -> None:
    libraries = {family.library for family in all_families() if family.library}
    assert libraries - {row["library"] for row in ROWS} == set()
    only_operations = {"memset", "graph"}  # of copies, sets and graphs, which have no kernel
    named = {kind.name for kind in categories()} - only_operations
    assert named - {row["category"] for row in ROWS} == set()


def test_entries_use_categories_and_units_that_exist() -> None:
    known = {kind.name for kind in categories()}
    for family in all_families():
        assert {family.category or UNKNOWN, *family.never} <= known, family.pattern
        assert family.unit in (None, "tensor", "vector", "copy"), family.pattern
        assert re.compile(family.reads or "")


def test_no_two_patterns_are_equally_good_and_disagree() -> None:
    """The order of files and entries decides nothing."""
    said: dict[tuple[object, ...], set[str | None]] = {}
    for family in all_families():
        key = family.pieces, family.said, family.namespaces
        said.setdefault(key, set()).add(family.category)
    assert [key for key, kinds in said.items() if len(kinds - {None}) > 1] == []
    for name in NAMES:
        best = [family for family, _ in module._matches(own_name(name)) if family.category]
        equal = {family.category for family in best if family.letters == best[0].letters}
        assert len(equal) <= 1, (name, [family.pattern for family in best])


FOLDER = Path(module.__file__).parent
FILES = sorted(path.name for path in (FOLDER / "families").iterdir())


def forget() -> None:
    """Forget all that was read of the data files."""
    for known in vars(module).values():
        if hasattr(known, "cache_clear"):
            known.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_without_a_file_only_its_own_kernels_are_lost(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: (kernel(name).category, kernel(name).library) for name in NAMES}
    written = tomllib.loads((FOLDER / "families" / file).read_text(encoding="utf-8"))
    own = {entry.get("library", written.get("library")) for entry in written["kernel"]}
    shutil.copytree(FOLDER, tmp_path / "kernels")
    (tmp_path / "kernels" / "families" / file).unlink()
    monkeypatch.setattr(module, "files", lambda package: tmp_path / "kernels")
    forget()
    try:
        after = {name: (kernel(name).category, kernel(name).library) for name in NAMES}
    finally:
        forget()  # what the smaller folder says
    lost = {name for name in NAMES if after[name] != before[name]}
    assert {before[name][1] for name in lost} & own, "no row of names.tsv needs this file"
    recategorized = {name for name in lost if after[name][0] != before[name][0]}
    assert {before[name][1] for name in recategorized} <= own


def test_words_end_where_names_end_them() -> None:
    assert kernel("void fbgemm_gpu::permute_2D_data_kernel<true, long>(int)").category == "copy"
    assert kernel("stabilize_lambda").category == UNKNOWN  # no LAMB
    assert kernel("adamant_step").category == UNKNOWN
    assert kernel("reshape_and_cache_flash_kernel").category == "gather and scatter"
    assert kernel("FlashAttnFwdSm90").operation == kernel("flash_attn_fwd_sm100").operation


def test_a_kernel_that_nobody_knows_is_unknown() -> None:
    assert kernel("void mine::run<flash::FlashAttnFwdSm90<int>>(int)").category == "attention"
    for name in ("", "kernel", "void foo::bar<int>(int*)", "my_kernel", "::", "_Z", "_ZN3foo", "("):
        found = kernel(name)
        assert (found.category, found.operation, found.library) == (UNKNOWN, "", None)
        assert found.unit == ""
    assert kernel("void foo::bar<int>(int*)").short == "bar"


def test_carriers_are_told_by_what_they_carry() -> None:
    def within(functor: str) -> str:
        return kernel(f"void at::native::vectorized_elementwise_kernel<4, {functor}>(int)").short

    assert within("at::native::CUDAFunctor_add<c10::Half>") == "add half"
    assert within("at::native::FillFunctor<long>") == "fill long"
    assert within("at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)") == "gelu"
    assert within("user::Strange<float>") == "element-wise float"


def test_mangled_names_are_read() -> None:
    name = "_ZN2ck16tensor_operation6device12_GLOBAL__N_128kernel_grouped_conv_bwd_dataINS_5TupleIJ"
    assert kernel(name).operation == "convolution dgrad"
    assert kernel("_ZN6cudapy8__main__4addB2v1B").library == "Numba"


def test_units_and_types() -> None:
    assert kernel("ampere_sgemm_128x64_nn").unit == "vector"
    assert kernel("nvjet_sm90_hsh_128x64_64x8_1x2_h_bz_TNT").unit == "tensor"
    assert kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)").unit == "copy"
    for name in NAMES:
        types = kernel(name).types
        assert {types.dtype, types.source} <= {*ITEM_BYTES, None}
        if not kernel(name).multiplies:
            assert not types.unit.endswith("_tensor")


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("nvjet_sm100_ootst_128x128_256x7_4x1_2cta_v_bx_Avec16UE4M3_Bvec16UE4M3_TNT", "float4"),
        ("cutlass3x_sm100_bstensorop_s256x192x64gemm_block_scaled_ue4m3xf4_ue4m3xf4_f32", "float4"),
        ("bmm_E4m3_E2m1E2m1_Fp32_t128x8x512u2_s5_sm100f", "float4"),
        ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_sm100f", "float8"),
        ("bmm_Bfloat16_MxE2m1Bfloat16_Fp32_t128x8x128_sm100f", "bfloat16"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128", "float8"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "bfloat16"),
        ("_gemm_afp4wfp4_kernel", "float4"),
        ("aiter::f4gemm_bf16_per1x32Fp4_BpreShuffle_256x256", "float4"),
        ("Cijk_Alik_Bljk_F8BS_BH_Bias_SAB_SCD_UserArgs_MT128x128x128_MI16x16x1", "float8"),
        ("Cijk_Alik_Bljk_F4BS_BH_Bias_UserArgs_MT128x128x128_MI16x16x1", "float4"),
        ("Cijk_Alik_Bljk_I8II_BH_Bias_UserArgs_MT128x128x128_MI16x16x1", "int8"),
        ("sm80_xmma_gemm_i8i32_i8i32_i32_tn_n_tilesize64x64x64_stage3", "int8"),
        ("_w8a8_block_int8_matmul", "int8"),
    ],
)
def test_products_of_few_bits(name: str, unit: str) -> None:
    """The unit runs two types at the rate of the wider one."""
    assert kernel(name).types.unit == f"{unit}_tensor"


def test_products_are_categories() -> None:
    assert set(PRODUCTS) <= {kind.name for kind in categories()}
    ranks = Counter(kind.rank for kind in categories())
    assert max(ranks.values()) == 1


@pytest.mark.slow
def test_many_names_take_linear_time() -> None:
    """A million take ten seconds on an idle machine."""
    chosen = random.Random(7).choices(NAMES, k=200_000)
    numbers = count()

    def read_names(size: int) -> None:
        for name in chosen[:size]:
            kernel(f"{name}_{next(numbers)}")  # never seen before

    assert_linear(read_names, 20_000, times=10)


@pytest.mark.parametrize("part", ["a", "A_", "gemm_", "::", "<", "cudnn_", "_ZN9", "1x"])
def test_long_names_take_linear_time(part: str) -> None:
    numbers = count()

    def read_name(size: int) -> None:
        assert kernel(f"{part * size}{next(numbers)}").category  # never seen before

    assert_linear(read_name, 6250)

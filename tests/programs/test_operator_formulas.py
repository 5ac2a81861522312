"""Formulas of PyTorch's operators: each worked by hand, and none that fails on any sizes."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest

from perfmodel.programs.pytorch.calls import Kernels, find_calls
from perfmodel.programs.pytorch.names import Size, Sizes, parse
from perfmodel.programs.pytorch.operators import (
    FORMULAS,
    NONZERO,
    Call,
    Formula,
    FormulaError,
    OperatorWork,
    distinct_rows,
    formula,
    formula_of,
    work_of,
)
from perfmodel.programs.pytorch.tree import Tree
from perfmodel.readers.trace import KERNEL

TOKENS = ((2, 16, 4, 8), (2, 12, 2, 8), (2, 12, 2, 8))
"""Queries, keys and values of flash-attn: [B, S, H, D]."""

WORKED: list[tuple[str, Sizes, dict[str, Any], tuple[int, int, int]]] = [
    ("aten::mm", ((2, 3), (3, 5)), {}, (60, 42, 20)),
    ("aten::addmm", ((5,), (2, 3), (3, 5), (), ()), {}, (60, 52, 20)),
    ("aten::bmm", ((4, 2, 3), (4, 3, 5)), {}, (240, 168, 80)),
    ("aten::baddbmm", ((4, 2, 5), (4, 2, 3), (4, 3, 5), (), ()), {}, (240, 248, 80)),
    ("aten::linear", ((7, 2, 3), (5, 3), (5,)), {}, (420, 124, 140)),
    ("aten::mv", ((4, 3), (3,)), {}, (24, 30, 8)),
    ("aten::dot", ((7,), (7,)), {}, (14, 28, 2)),
    ("aten::_scaled_mm", ((16, 32), (32, 8), (), ()), {}, (8192, 1536, 256)),
    ("aten::_scaled_mm", ((16, 16), (16, 8)), {"dtype": "float4", "item": 1}, (8192, 384, 128)),
    ("aten::_grouped_mm", ((10, 3), (4, 3, 5), (4,)), {}, (300, 180, 100)),
    ("aten::_grouped_mm", ((6, 10), (10, 5), (4,)), {}, (600, 220, 240)),
    ("aten::_grouped_mm", ((4, 6, 3), (3, 10), (4,)), {}, (360, 204, 120)),
    ("aten::_scaled_grouped_mm", ((6, 10), (10, 5), (24,), (20,), (4,)), {}, (600, 220, 240)),
    # LSTM, 3 steps of 2 rows, 4 in, 5 out: 2 * 6 rows * 4 gates * 5 * (4 + 5)
    ("aten::_cudnn_rnn",
     ((3, 2, 4), (20, 4), (20, 5), (20,), (20,), (), (220,), (1, 2, 5), (1, 2, 5), ()), {},
     (2160, 528, 60)),
    ("aten::_cudnn_rnn_backward",
     ((6, 4), (20, 4), (20, 5), (20,), (20,), (), (220,), (1, 2, 5), (1, 2, 5), (6, 5), (6, 5)),
     {}, (4320, 648, 408)),
    # 2 rows of 4 gates of 5: the gates' sums twice, the state, two biases; two states and the gates
    ("aten::_thnn_fused_lstm_cell", ((2, 20), (2, 20), (2, 5), (20,), (20,)), {},
     (0, (40 + 40 + 10 + 20 + 20) * 2, (10 + 10 + 40) * 2)),
    ("aten::_thnn_fused_gru_cell", ((2, 15), (2, 15), (2, 5), (15,), (15,)), {},
     (0, (30 + 30 + 10 + 15 + 15) * 2, (10 + 5 * 10) * 2)),
    # one image, 2 channels of 4 x 4 to 3 of 2 x 2, filter 3 x 3: 2 * 4 * 9 * 2 * 3
    ("aten::cudnn_convolution", ((1, 2, 4, 4), (3, 2, 3, 3), ()),
     {"out": (1, 3, 2, 2)}, (432, 172, 24)),
    # depthwise: every output channel looks at one input channel
    ("aten::cudnn_convolution", ((1, 6, 4, 4), (6, 1, 3, 3), ()),
     {"out": (1, 6, 4, 4)}, (1728, 300, 192)),
    # a stride of 2 and a filter of one point: a quarter of the input
    ("aten::cudnn_convolution", ((1, 8, 4, 4), (8, 8, 1, 1)),
     {"out": (1, 8, 2, 2)}, (512, 192, 64)),
    ("aten::cudnn_convolution_transpose", ((1, 4, 2, 2), (4, 3, 2, 2), ()),
     {"out": (1, 3, 4, 4)}, (384, 128, 96)),
    ("aten::convolution_backward", ((1, 3, 2, 2), (1, 2, 4, 4), (3, 2, 3, 3), ()),
     {}, (864, 220, 172)),
    ("aten::convolution_backward", ((1, 3, 2, 2), (1, 2, 4, 4), (3, 2, 3, 3), ()),
     {"needed": (False, True)}, (432, 88, 108)),
    ("aten::convolution_backward", ((1, 3, 4, 4), (1, 4, 2, 2), (4, 3, 2, 2), ()),
     {}, (768, 320, 128)),
    # padded, so that the result is larger than the input: 2 * 2 * 16 * 3 * 3
    ("aten::convolution_backward", ((1, 3, 4, 4), (1, 3, 2, 2), (3, 3, 1, 1), ()),
     {"transposed": False}, (576, 234, 42)),
    # 2 B H Sq Sk (D + Dv) with 4 heads of queries over 2 of keys
    ("aten::_scaled_dot_product_flash_attention",
     ((1, 4, 8, 16), (1, 2, 6, 16), (1, 2, 6, 16), ()), {}, (12288, 1792, 1152)),
    # the same of [B, H, S, D] and of [B, S, H, D]: the scales have 4 heads
    ("sage_fwd_*", ((1, 4, 8, 16), (1, 2, 6, 16), (1, 2, 6, 16), (), (1, 4, 1)), {},
     (12288, 1792, 1152)),
    ("sage_fwd_*", ((1, 8, 4, 16), (1, 6, 2, 16), (1, 6, 2, 16), (), (1, 4, 1)), {},
     (12288, 1792, 1152)),
    ("aten::_scaled_dot_product_flash_attention_backward",
     ((1, 2, 8, 16), (1, 2, 8, 16), (1, 2, 8, 16), (1, 2, 8, 16)), {}, (20480, 3136, 1536)),
    ("aten::native_layer_norm", ((4, 8), (), (8,), (8,), ()), {}, (0, 96, 96)),
    ("aten::native_layer_norm_backward",
     ((4, 8), (4, 8), (), (4, 1), (4, 1), (8,), (8,), ()), {}, (0, 304, 96)),
    ("aten::_fused_rms_norm", ((4, 8), (), (8,), ()), {}, (0, 80, 64 + 4 * 4)),
    ("aten::native_batch_norm", ((2, 3, 4, 4), (3,), (3,)), {}, (0, 384, 192)),
    ("aten::native_batch_norm", ((2, 3, 4, 4), (3,), (3,)), {"kernels": "transform_input"},
     (0, 192, 192)),
    ("aten::native_batch_norm", ((2, 3, 4, 4), (3,), (3,)),
     {"kernels": "statistics|transform_input"}, (0, 384, 192)),
    ("aten::cudnn_batch_norm_backward", ((2, 3, 4, 4), (2, 3, 4, 4), (3,)), {}, (0, 768, 192)),
    ("aten::batch_norm_elemt", ((2, 3, 4, 4), (3,), (3,), (3,), (3,), ()), {}, (0, 192, 192)),
    ("aten::batch_norm_backward_reduce", ((2, 3, 4, 4), (2, 3, 4, 4), (3,), (3,), (3,)), {},
     (0, 384, 4 * 3 * 4)),
    ("aten::native_group_norm", ((2, 4, 8), (4,), (4,)), {}, (0, 256, 128)),
    ("aten::native_group_norm_backward", ((2, 4, 8), (2, 4, 8), (2, 2), (2, 2), (4,)), {},
     (0, 512, 128)),
    ("aten::_log_softmax", ((4, 10), (), ()), {}, (0, 80, 80)),
    ("aten::_log_softmax_backward_data", ((4, 10), (4, 10)), {}, (0, 160, 80)),
    # 4 rows: a sector of 32 bytes and a class of 8 each; the loss and the sum of weights
    ("aten::nll_loss_forward", ((4, 10), (4,), (), (), ()), {}, (0, 160, 4)),
    ("aten::nll_loss_backward", ((), (4, 10), (4,), (), (), (), ()), {}, (0, 160, 128)),
    ("aten::mse_loss", ((4, 8), (4, 8), ()), {}, (0, 128, 64)),
    ("aten::add", ((2, 3, 4), (3, 4), ()), {}, (0, 72, 48)),
    ("aten::mul_", ((2, 3), ()), {}, (0, 12, 12)),
    ("aten::gelu_backward", ((2, 3), (2, 3), ()), {}, (0, 24, 12)),
    ("aten::native_dropout", ((10,), (), ()), {}, (0, 20, 30)),
    ("aten::copy_", ((2, 3), (2, 3), ()), {}, (0, 12, 12)),
    ("aten::fill_", ((10,), ()), {}, (0, 0, 20)),
    ("aten::cat", ((2, 3), (2, 3), ()), {}, (0, 24, 24)),
    ("aten::_chunk_cat", ((2, 3), (2, 5), (), (), (2, 8)), {}, (0, 32, 32)),
    ("aten::split_with_sizes_copy", ((4, 6), (), (), (4, 2), (4, 4)), {}, (0, 48, 48)),
    ("aten::max_pool2d_with_indices", ((1, 2, 4, 4), (), ()), {"out": (1, 2, 2, 2)},
     (0, 64, 8 * (2 + 8))),
    ("aten::max_pool2d_with_indices_backward", ((1, 2, 2, 2), (1, 2, 4, 4), ()), {},
     (0, 8 * (2 + 8), 64)),
    ("aten::avg_pool2d_backward", ((1, 2, 2, 2), (1, 2, 4, 4), ()), {}, (0, 16, 64)),
    # 6 indices of 5 rows name 5 (1 - (4/5)^6) = 3.7 of them on average
    ("aten::embedding", ((5, 3), (6,), ()), {}, (0, 4 * 6 + 8 * 6, 36)),
    ("aten::embedding", ((5, 3), (6, 3), ()), {"kernels": "vectorized_gather"},
     (0, 4 * 6 + 8 * 6, 36)),
    ("aten::gather", ((5, 8), (), (5, 2), ()), {}, (0, 10 * (8 + 2), 20)),
    ("aten::gather", ((5, 3), (), (6, 3), ()), {"kernels": "vectorized_gather"},
     (0, 4 * 6 + 8 * 6, 36)),
    ("aten::embedding_dense_backward", ((6, 3), (6,), ()), {"out": (5, 3)}, (0, 36 + 48, 4 * 6)),
    ("aten::embedding_dense_backward", ((6, 3), (6,), ()),
     {"out": (5, 3), "kernels": "sum_and_scatter"}, (0, 36 + 48 + 48, 4 * 6 + 48)),
    # 6 rows of 3 named by 6 indices of 5 rows: 4 distinct ones on average
    ("aten::index", ((5, 3), (6,)), {}, (0, 4 * 3 * 2 + 8 * 6, 18 * 2)),
    ("aten::index", ((4, 5, 3), (), (6,)), {}, (0, 4 * 12 * 2 + 48, 6 * 12 * 2)),
    ("aten::index", ((4, 5, 3), (6, 1), (2,)), {}, (0, 9 * 3 * 2 + 8 * 8, 12 * 3 * 2)),
    # a mask of 4 x 5, of which 7 are true: their places have two numbers each
    ("aten::index", ((4, 5, 3), (4, 5)), {"out": (7, 3)}, (0, 42 + 8 * 14, 42)),
    # x[:, i, j]: the dimension that is taken whole is not recorded, the result's size says it
    ("aten::index", ((8, 5, 5), (6,), (6,)), {"out": (8, 6)}, (0, 5 * 8 * 2 + 96, 48 * 2)),
    ("aten::_index_put_impl_", ((8, 5, 5), (6,), (6,), (8, 6), (), ()), {},
     (0, 48 * 2 + 96, 5 * 8 * 2)),
    ("aten::isneginf", ((10,),), {}, (0, 20, 10)),
    ("aten::_local_scalar_dense", ((),), {}, (0, 2, 2)),
    ("aten::index_put_", ((5, 3), (6,), (6, 3), ()), {}, (0, 36 + 48, 24)),
    ("aten::_index_put_impl_", ((5, 3), (6,), (6, 3), (), ()),
     {"kernels": "indexing_backward"},
     (0, 36 + 48 + 24, 24)),
    ("aten::index_add_", ((5, 3), (), (6,), (6, 3), ()), {}, (0, 48 + 36 + 24, 24)),
    ("aten::index_copy_", ((5, 3), (), (6,), (6, 3)), {}, (0, 48 + 36, 24)),
    ("aten::nonzero", ((10,),), {"out": (7, 1)}, (0, 40, 56)),
    ("aten::nonzero", ((10,),), {"out": (7, 1), "masks": ((10,),)}, (0, 20, 56)),
    # masks: of 100 rows 55, by the aten::nonzero inside or by the result
    *(("aten::index", ((100, 8), *index), more, (0, 440 * 2 + 8 * 55, 440 * 2))
      for index, more in ((((100,),), {"masks": ((100,),), "true": 55}),
                          (((),), {"masks": ((100,),), "true": 55}),
                          (((100,),), {"out": (55, 8)}))),
    ("aten::index", ((4, 100, 8), (), (100,)), {"masks": ((100,),), "true": 55},
     (0, 4 * 440 * 2 + 8 * 55, 4 * 440 * 2)),
    ("aten::index", ((100, 8), (100, 8)), {"masks": ((100, 8),), "true": 440},
     (0, 440 * 2 + 16 * 440, 440 * 2)),
    ("aten::_index_put_impl_", ((100, 8), (100,), (55, 8), (), ()), {"masks": ((100,),)},
     (0, 440 * 2 + 8 * 55, 440 * 2)),
    # 2 4 16 12 = 1536 scores of 8 numbers; 16 queries of 4 heads, 12 keys and values of 2
    *((name, (*TOKENS, *more), {}, (2 * 1536 * 16, 3584, 2 * 4 * 16 * (8 * 2 + 4)))
      for name, more in (("flash_attn::_flash_attn_forward", ((), ())),
                         ("flashattn::_flash_attn_forward", ()), ("FlashAttnFunc", ()),
                         ("flash_attn_3::fwd", ((), ())), ("aiter::fmha_v3_fwd", ()),
                         ("xformers_flash::flash_fwd", ()),
                         ("xformers::efficient_attention_forward_cutlass", ((), ())),
                         ("aten::_efficient_attention_forward", ((), (), ())),
                         ("aten::_flash_attention_forward", ((), ())))),
    *((name, (TOKENS[0], *TOKENS, TOKENS[0], (2, 4, 16)), {},
       (2 * 1536 * 5 * 8, 3 * 2048 + 3584 + 4 * 128, 3584))
      for name in ("flash_attn::_flash_attn_backward", "xformers_flash::flash_bwd",
                   "flash_attn_3::bwd", "aten::_flash_attention_backward")),
    ("xformers_flash::flash_bwd", ((), TOKENS[0], *TOKENS, TOKENS[0]), {},
     (2 * 1536 * 5 * 8, 3 * 2048 + 3584 + 4 * 128, 3584)),
    ("flash_attn::_flash_attn_backward", (TOKENS[0], *TOKENS),
     {"kernels": "convert_dq"},
     (2 * 1536 * 5 * 8, 3 * 2048 + 3584 + 4 * 128 + 8 * 1024, 3584 + 4 * 1024)),
    ("torchvision::roi_align", ((2, 8, 10, 10), (30, 5), ()), {"out": (30, 8, 7, 7)},
     (0, (1600 + 150) * 2, 30 * 8 * 49 * 2)),
    ("torchvision::_roi_align_backward", ((30, 8, 7, 7), (30, 5), ()),
     {"out": (2, 8, 10, 10)}, (0, (30 * 8 * 49 + 150 + 1600) * 2, 3200)),
    ("aten::scatter_", ((5, 8), (), (5, 1), ()), {}, (0, 40, 10)),
    ("aten::scatter_add_", ((5, 8), (), (5, 2), (5, 2)), {}, (0, 80 + 20 + 20, 20)),
    ("aten::sort", ((4, 100), (), ()), {}, (0, 800, 400 * 10)),
    ("aten::topk", ((4, 100), (), ()), {"out": (4, 8)}, (0, 800, 32 * 10)),
    ("aten::_embedding_bag", ((5, 3), (6,), (2,), (), (), (), ()), {},
     (0, 4 * 6 + 8 * 8, 2 * 3 * 2 + 8 * 8)),
    ("aten::_embedding_bag", ((5, 3), (6,), (3,), (), (), (), ()), {"out": (2, 3)},
     (0, 4 * 6 + 8 * 9, 2 * 3 * 2 + 8 * 8)),
    ("aten::_embedding_bag_dense_backward", ((2, 3), (6,), (6,), (2,), ()),
     {"out": (5, 3)}, (0, 12 + 96, 4 * 6)),
    ("aten::sum", ((8, 4), (), ()), {"out": (1, 4)}, (0, 64, 8)),
    ("aten::cumsum", ((8, 4), (), ()), {}, (0, 64, 64)),
    ("aten::histc", ((10,), (), ()), {}, (0, 20, 0)),
    ("aten::_fused_adamw_", ((5,), (5,), (5,), (5,), (), ()), {"depth": 4}, (0, 40, 30)),
    ("aten::_foreach_add_", ((5,), (6,), (5,), (6,), ()), {"depth": 2}, (0, 44, 22)),
    ("aten::_foreach_mul", ((5,), (6,), ()), {"depth": 2}, (0, 22, 22)),
    ("aten::_foreach_norm", ((5,), (6,), ()), {"depth": 1}, (0, 22, 2 * 4)),
    ("aten::_foreach_zero_", ((5,), (6,)), {"depth": 1}, (0, 0, 22)),
    ("aten::_foreach_copy_", ((5,), (6,), (5,), (6,), ()), {"depth": 2}, (0, 22, 22)),
    ("aten::_amp_foreach_non_finite_check_and_unscale_", ((5,), (6,), (), ()), {},
     (0, 22, 22)),
    ("aten::glu", ((4, 8), ()), {}, (0, 64, 32)),
    ("aten::batch_norm_stats", ((2, 3, 4, 4), ()), {}, (0, 192, 24)),
    ("aten::batch_norm_backward_elemt", ((2, 3, 4, 4), (2, 3, 4, 4), (3,), (3,)), {},
     (0, 384, 192)),
    # 2 x 8 reals, 2 x 5 complex numbers; transforms of two axes run one kernel or two
    ("aten::_fft_c2c", ((2, 8), (), (), ()), {"kernels": "fft"}, (0, 64, 64)),
    ("aten::_fft_c2c", ((2, 8), (), (), ()), {"kernels": "fft|fft"},
     (0, 128, 128)),
    ("aten::_fft_r2c", ((2, 8), (), (), ()), {}, (0, 32, 40)),
    ("aten::_fft_r2c", ((2, 8), (), (), ()), {"kernels": "fft|fft"},
     (0, 72, 80)),
    ("aten::_fft_c2r", ((2, 5), (), (), ()), {"kernels": "fft|fft"},
     (0, 80, 72)),
    ("aten::upsample_nearest2d_backward", ((1, 3, 4, 4), (), ()), {"out": (1, 3, 2, 2)},
     (0, 96, 24)),
    ("aten::_fft_r2c", ((64, 1024, 8), (), (), ()), {"out": (64, 513, 8)},
     (0, 64 * 1024 * 8 * 2, 64 * 513 * 8 * 4)),
    ("aten::_fft_r2c", ((2, 8), (), (), ()), {"out": (2, 8)}, (0, 32, 64)),
    ("aten::_fft_r2c", ((2, 8), (), (), ()), {"out": (7,)}, (0, 32, 40)),
    ("aten::_fft_c2r", ((64, 513, 8), (), (), ()), {"out": (64, 1024, 8)},
     (0, 64 * 513 * 8 * 4, 64 * 1024 * 8 * 2)),
    ("aten::_fft_c2r", ((2, 5), (), (), ()), {"out": (2, 9)}, (0, 40, 36)),
    *((f"aten::_fft_{kind}", ((4, 0), (), (), ()), {}, (0, 0, 0))
      for kind in ("r2c", "c2c", "c2r")),
    ("aten::index", ((5, 3), (0,)), {"out": (0, 3)}, (0, 0, 0)),
    ("aten::index", ((5, 0), (4,)), {"out": (4, 0)}, (0, 32, 0)),
    ("aten::index", ((5, 3), (5, 3)), {"out": (0,)}, (0, 0, 0)),
    ("aten::index_put_", ((5, 3), (0,), (0, 3)), {}, (0, 0, 0)),
    ("aten::index_add_", ((5, 3), (), (0,), (0, 3), ()), {}, (0, 0, 0)),
    ("aten::index_add_", ((5, 0), (), (6,), (6, 0), ()), {}, (0, 48, 0)),
    # 256 queries in float32: the sums are written, read, and written as their type
    ("aten::_scaled_dot_product_flash_attention_backward",
     ((1, 2, 8, 16), (1, 2, 8, 16), (1, 2, 8, 16), (1, 2, 8, 16)), {"kernels": "convert_dq"},
     (20480, 3136 + 8 * 256, 1536 + 4 * 256)),
    # grouped queries of cuDNN: gradients of 4 heads' keys and values of 12 rows, in and out
    ("aten::_scaled_dot_product_cudnn_attention_backward",
     ((1, 4, 8, 16), (1, 4, 8, 16), (1, 2, 12, 16), (1, 2, 12, 16)),
     {"kernels": "fmha_reduce_head"},
     (2 * 4 * 8 * 12 * 5 * 16, 3 * 1024 + 1024 + 2 * 768 + 4 * 32 + 4 * 12 * 32 * 2,
      1024 + 2 * 768 + 4 * 12 * 32 * 2)),
    ("nccl:all_reduce", ((10,),), {}, (0, 20, 20)),
    ("triton_poi_fused_add_0", ((4,), (4,)), {"moved": (8, 4)}, (0, 8, 4)),
]  # fmt: skip
"""Operators, sizes of their arguments, what else is known, and by hand: FLOPs, bytes read, written.

Every element has 2 bytes, indices have 8. A new formula needs a row.
"""


OWN = {name: known for name, known in FORMULAS.items() if not isinstance(known.count, partial)}
"""Without those of serving/operators.toml, which `test_serving` works by hand."""


def count(name: str, *sizes: Size, item: int = 2, **more: Any) -> OperatorWork | None:
    return work_of(Call(name, sizes, tuple([item] * len(sizes)), item, **more))


@pytest.mark.parametrize(("name", "sizes", "more", "expected"), WORKED, ids=[w[0] for w in WORKED])
def test_a_call_is_counted_as_by_hand(
    name: str, sizes: Sizes, more: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    work = count(name, *sizes, **more)
    assert work is not None
    assert work[:3] == expected


def test_every_formula_is_worked_by_hand() -> None:
    """A formula needs a row of `WORKED`; names that share a function need one together."""
    worked = {formula_of(name).count for name, *_ in WORKED}
    lacking = {known.count: name for name, known in OWN.items() if known.count not in worked}
    lacking.pop(None, None)
    assert not lacking, f"give WORKED a call of {', '.join(lacking.values())}"


def test_what_is_registered_is_what_formulas_use() -> None:
    """FLOPs are of products alone; every other fact that a formula takes has a row with it."""
    products = {formula_of(name).count for name, *_, (flops, _, _) in WORKED if flops}
    kernels: dict[Any, set[str]] = {}
    results = set()
    for name, _, more, _ in WORKED:
        known = formula_of(name)
        words = more.get("kernels", "").split("|")
        kernels.setdefault(known.count, set()).update(word for word in words if word)
        if "out" in more:
            results.add(known.count)
        if "masks" in more:
            assert known.masks or name == NONZERO
    for name, known in OWN.items():
        if known.count is not None:
            assert bool(known.product) == (known.count in products), f"{name}: product= and FLOPs"
            asks = known.output_from == "consumers" and known.product != "gradients"
            assert asks == (known.count in results), f"{name}: output_from= and a row with out"
            seen = kernels.get(known.count, set())
            assert set(known.by_kernels) == seen, f"{name}: by_kernels= and rows with kernels"


def test_a_shape_is_of_one_gemm_or_of_attention() -> None:
    for name, sizes, more, _ in WORKED:
        work = count(name, *sizes, **more)
        assert work is not None
        assert (work.shape is not None) == (formula_of(name).product in ("gemm", "attention"))
    product = count("aten::addmm", (5,), (2, 3), (3, 5))
    assert product is not None
    assert product.shape == (2, 5, 3)
    attention = count("FlashAttnFunc", *TOKENS)
    assert attention is not None
    assert attention.shape == (2 * 4, 16, 8)


def test_a_formula_that_fails_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMULAS, "mine::op", Formula(lambda call: OperatorWork(1 // 0, 0, 0)))
    with pytest.raises(FormulaError) as found:
        count("mine::op", (2, 3), ())
    assert "mine::op: expected" in str(found.value)
    assert "the sizes [[2, 3], []]; got ZeroDivisionError" in str(found.value)
    assert isinstance(found.value.__cause__, ZeroDivisionError)


def test_an_operator_is_registered_once() -> None:
    with pytest.raises(ValueError, match="aten::mm twice"):
        formula("aten::mm")(lambda call: OperatorWork(0, 0, 0))
    with pytest.raises(TypeError, match="flops_of"):
        formula("mine::op", flops_of=3)(lambda call: OperatorWork(0, 0, 0))


def test_no_sizes_make_a_formula_fail() -> None:
    """Whatever the label of a range says, the program goes on."""
    draw = random.Random(5)
    words = sorted({word for known in FORMULAS.values() for word in known.by_kernels})
    for name, sizes, more, _ in 150 * WORKED:
        few: list[Size] = [*sizes, (), *(_drawn(draw) for _ in range(2))]
        changed = [draw.choice(few) if draw.random() < 0.3 else size for size in sizes]
        given = {
            "out": draw.choice(few), "needed": draw.choice(((True, True), (False, True))),
            "depth": draw.randrange(6), "transposed": draw.choice((None, True, False)),
            "kernels": "|".join(draw.choices(words, k=2)), "causal": draw.random() < 0.5,
            "masks": tuple(draw.choices(few, k=draw.randrange(3))), "true": draw.choice((0, 1, 99)),
        }  # fmt: skip
        given = {key: value for key, value in given.items() if draw.random() < 0.3}
        work = count(name, *changed[: draw.randrange(12)], **{**more, **given})
        assert work is None or min(work[:3]) >= 0


def _drawn(draw: random.Random) -> Size:
    return tuple(draw.choices((0, 1, 2, 8, 10**18), k=draw.randrange(6)))


def test_products_run_on_tensor_cores_where_no_kernel_says_otherwise() -> None:
    labels = [f"{name}, op_id = {i}, sizes = [[8, 8], [8, 8]]" for i, name in enumerate(FORMULAS)]
    at = np.arange(len(labels))
    kernels = Kernels(
        at, np.zeros(len(at), np.int32), np.full(len(at), KERNEL, np.int8), at, at, ["mine"]
    )
    found = find_calls(parse(labels), Tree(at, np.full(len(at), -1), at), kernels, "float16")
    assert [call.name for call in found.calls] == list(FORMULAS)
    for call in found.calls:
        product = formula_of(call.name).product
        assert call.unit == ("float16_tensor" if product else "float32"), call.name


def test_a_template_of_a_gemm_that_torch_compile_tuned_is_unknown() -> None:
    sizes = ((256,), (1024, 512), (512, 256), (1024, 256))
    assert count("triton_poi_fused_add_0", *sizes, moved=(8, 4))[:4] == (0, 8, 4, None)
    assert count("triton_tem_fused_addmm_0", *sizes, moved=(8, 4)) is None


def test_sizes_that_fit_no_formula_are_not_counted() -> None:
    assert count("aten::mm", (2, 3), (4, 5)) is None
    assert count("aten::mm", (2, 3)) is None
    assert count("aten::cudnn_convolution", (1, 2, 4, 4), (3, 2, 3, 3)) is None  # no result known
    assert count("aten::no_such_operator", (2, 3)) is None
    assert count("aten::topk", (4, 100), ()) is None  # k is in no size
    assert count("aten::index", (4, 5, 3), (4, 5)) is None  # a mask, or 20 indices
    assert count("aten::index", (4, 0), (4, 0), out=(1, 0)) is not None
    assert count("flash_attn::_flash_attn_varlen_forward", *[(9, 4, 8)] * 3, (4,), (4,)) is None
    assert count("xformers_flash::flash_fwd", *[(9, 4, 8)] * 3, (4,), (4,)) is None
    assert count("aten::_efficient_attention_forward", *TOKENS, (), (4,), (4,)) is None
    assert count("xformers::efficient_attention_forward_cutlass", *TOKENS, (), (4,)) is None
    assert count("torchvision::nms", (30, 4), (30,), ()) is None
    assert count("torchvision::roi_align", (2, 8, 10, 10), (30, 5)) is None
    assert count("torch_scatter::scatter_max", (30, 8), (30, 8)) is None
    assert count("aten::index", (4, 5), (4,), masks=((4,),)) is None  # how much of it is true
    assert count("aten::index", (4, 5), (4,), (4,), masks=((4,), (4,)), true=2) is None
    assert count("aten::index", (4,), (2,), (2,)) is None
    assert count("aten::index_put_", (5, 3), ()) is None


@pytest.mark.parametrize("name", ["aten::mv", "aten::addmv", "aten::embedding", "aten::mm"])
@pytest.mark.parametrize("sizes", [(), ((),), ((1,),), ((1, 2, 3),) * 3])
def test_too_few_sizes_are_not_counted(name: str, sizes: tuple[tuple[int, ...], ...]) -> None:
    assert count(name, *sizes) is None or sizes[1:]


def test_sizes_of_any_length_are_counted_exactly() -> None:
    huge = 10**18
    found = count("aten::mm", (huge, huge), (huge, huge))
    assert found is not None
    assert found.flops == 2 * 10**54


def test_rows_that_draws_name_are_counted_on_average() -> None:
    drawn = np.random.default_rng(0).integers(0, 1000, (400, 700))
    mean = np.mean([len(np.unique(row)) for row in drawn])
    assert distinct_rows(1000, 700) == pytest.approx(mean, rel=0.01)
    assert distinct_rows(1, 5) == 1
    assert distinct_rows(10**18, 10**6) == 10**6


def test_cross_attention_is_never_taken_for_causal() -> None:
    q, k = (2, 8, 100, 64), (2, 8, 128, 64)
    name = "aten::_scaled_dot_product_flash_attention"
    masked, whole = (count(name, q, k, k, causal=causal) for causal in (True, False))
    assert masked == whole

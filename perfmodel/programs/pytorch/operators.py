"""FLOPs and bytes of ATen's operators by the sizes of their arguments, one function for each.

FLOPs are those of GEMMs, 2 for a multiply-add, as torch.utils.flop_counter counts them: matrix
multiplications, convolutions and attention; of all else they are 0. Bytes are compulsory: every
element that an operator must read or write once, or once for every pass that PyTorch's kernels make
over it, with nothing left in a cache before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Final

from perfmodel.programs.pytorch.names import Size, Sizes


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator.

    Attributes
    ----------
    name : str
    sizes : tuple of tuple of int
        Of every argument, lists flattened; () for what is no tensor.
    items : tuple of int
        Bytes of an element of every argument.
    item : int
        Bytes of an element of the result.
    out : tuple of int or None
        Size of the result, where what consumes it or its backward says.
    needed : tuple of bool
        Of a backward: whether the first gradient is asked for, and the second.
    transposed : bool or None
        Of a convolution's backward: whether its forward is transposed; None where nothing says it.
    depth : int
        Lists of tensors that the kernel of a foreach or fused operator takes.
    kernels : str
        Names of its kernels, joined.
    causal : bool
        Whether an attention of as many queries as keys is counted as masked.
    moved : tuple of int or None
        Bytes that a kernel of torch.compile reads, and writes.
    buffers : tuple of int
        Of every argument of such a kernel the bytes that it reads and writes.
    masks : tuple of tuple of int
        Sizes of the indices that are masks, by the `aten::nonzero` inside; of that one its own.
    true : int or None
        How many elements of them are true, where what consumes the `aten::nonzero` says.
    """

    name: str
    sizes: Sizes
    items: tuple[int, ...]
    item: int
    out: Size | None = None
    needed: tuple[bool, bool] = (True, True)
    transposed: bool | None = None
    depth: int = 0
    kernels: str = ""
    causal: bool = False
    moved: tuple[int, int] | None = None
    buffers: tuple[int, ...] = ()
    masks: Sizes = ()
    true: int | None = None

    def read(self, *which: int) -> int:
        """Bytes of some arguments, each once."""
        return sum(numel(self.sizes[i]) * self.items[i] for i in which if i < len(self.sizes))

    def everything(self) -> int:
        """Bytes of all arguments, each once."""
        return self.read(*range(len(self.sizes)))


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """What an operator must do: FLOPs of its GEMMs, and bytes to and from memory."""

    flops: int
    read_bytes: int
    write_bytes: int


Formula = Callable[[Call], OperatorWork]
_FORMULAS: Final[dict[str, Formula]] = {}


class FormulaError(Exception):
    """The sizes are not those that a formula is for."""


def formula(*names: str) -> Callable[[Formula], Formula]:
    """Register a function as the formula of operators."""

    def register(function: Formula) -> Formula:
        for name in names:
            _FORMULAS[name] = function
        return function

    return register


def formula_of(name: str) -> Formula | None:
    """The formula of an operator, None if it has none."""
    return _FORMULAS.get(name) or (fused if name.startswith("triton_") else None)


@lru_cache(maxsize=65536)
def work_of(call: Call) -> OperatorWork | None:
    """Count one call; None if no formula is for it."""
    function = formula_of(call.name)
    if function is None:
        return None
    try:
        return function(call)
    except (FormulaError, IndexError, ValueError, ArithmeticError, StopIteration):
        return None


def numel(size: Size) -> int:
    """Elements of a tensor; 0 for what is none (and of a tensor of no dimension)."""
    return prod(size) if size else 0


def broadcast(*sizes: Size) -> Size:
    """Size of an element-wise result.

    >>> broadcast((8, 1, 3), (4, 1), ())
    (8, 4, 3)
    """
    out = [1] * max((len(s) for s in sizes), default=0)
    for size in sizes:
        for i in range(1, len(size) + 1):
            if size[-i] != 1:
                out[-i] = size[-i]
    return tuple(out) if any(sizes) else ()


# --- GEMMs


def mm_flops(m: int, k: int, n: int) -> int:
    """2 M K N: K multiply-adds for every element (flop_counter.mm_flop)."""
    return 2 * m * k * n


@formula("aten::mm", "aten::_int_mm")
def mm(call: Call) -> OperatorWork:
    """[M, K] x [K, N]: 2 M K N (flop_counter.mm_flop); reads both, writes M N."""
    (m, k), (k2, n) = call.sizes[:2]
    _equal(k, k2)
    return OperatorWork(mm_flops(m, k, n), call.read(0, 1), m * n * call.item)


@formula("aten::addmm", "aten::_addmm_activation", "aten::addmm_")
def addmm(call: Call) -> OperatorWork:
    """A GEMM as `mm` of the last two, and what is added (flop_counter.addmm_flop)."""
    (m, k), (k2, n) = call.sizes[1:3]
    _equal(k, k2)
    return OperatorWork(mm_flops(m, k, n), call.read(0, 1, 2), m * n * call.item)


@formula("aten::_scaled_mm", "aten::_scaled_mm_v2")
def scaled_mm(call: Call) -> OperatorWork:
    """As `mm`, of float8 (flop_counter._scaled_mm_flop); scales are small."""
    return mm(call)


@formula("aten::bmm")
def bmm(call: Call) -> OperatorWork:
    """B GEMMs [M, K] x [K, N]: 2 B M K N (flop_counter.bmm_flop)."""
    (b, m, k), (b2, k2, n) = call.sizes[:2]
    _equal((b, k), (b2, k2))
    return OperatorWork(b * mm_flops(m, k, n), call.read(0, 1), b * m * n * call.item)


@formula("aten::baddbmm", "aten::baddbmm_")
def baddbmm(call: Call) -> OperatorWork:
    """As `bmm` of the last two, and what is added (flop_counter.baddbmm_flop)."""
    (b, m, k), (b2, k2, n) = call.sizes[1:3]
    _equal((b, k), (b2, k2))
    return OperatorWork(b * mm_flops(m, k, n), call.read(0, 1, 2), b * m * n * call.item)


@formula("aten::linear")
def linear(call: Call) -> OperatorWork:
    """[..., K] x [N, K]^T: 2 K N for every row; counts where no GEMM inside does."""
    x, (n, k) = call.sizes[:2]
    _equal(x[-1], k)
    rows = prod(x[:-1])
    return OperatorWork(mm_flops(rows, k, n), call.read(0, 1, 2), rows * n * call.item)


@formula("aten::mv", "aten::addmv")
def mv(call: Call) -> OperatorWork:
    """[M, K] x [K]: 2 M K."""
    at = next(i for i, s in enumerate(call.sizes) if len(s) == 2)
    m, k = call.sizes[at]
    return OperatorWork(2 * m * k, call.everything(), m * call.item)


@formula("aten::dot", "aten::vdot")
def dot(call: Call) -> OperatorWork:
    """[K] x [K]: 2 K."""
    return OperatorWork(2 * numel(call.sizes[0]), call.read(0, 1), call.item)


@formula("aten::_grouped_mm", "aten::_scaled_grouped_mm")
def grouped_mm(call: Call) -> OperatorWork:
    """GEMMs of groups that share an axis: every row is in one group, so the count is one's.

    [T, K] x [G, K, N] is 2 T K N; [G, M, K] x [K, T] is 2 M K T; [M, T] x [T, N], whose groups
    part the inner axis, makes G GEMMs of 2 M N T in all, one for each end of a group;
    [G, M, K] x [G, K, N] is `bmm`
    (torch/_meta_registrations.py, `_meta_grouped_mm_common`).
    """
    a, b = call.sizes[:2]
    if len(a) == 3 and len(b) == 3:
        return bmm(call)
    k, m = a[-1], a[-2]
    n = b[-1]
    ends = call.sizes[4 if "scaled" in call.name else 2]  # behind two scales
    groups = ends[0] if len(a) == len(b) == 2 else 1
    return OperatorWork(mm_flops(m, k, n), call.read(0, 1), groups * m * n * call.item)


# --- recurrent layers


@formula("aten::_cudnn_rnn", "aten::miopen_rnn", "aten::_cudnn_rnn_backward",
         "aten::miopen_rnn_backward")  # fmt: skip
def rnn(call: Call) -> OperatorWork:
    """2 FLOPs a weight of the matrices for every row of the input: [T, B, in] or packed [rows, in].

    Every gate multiplies the input and the state of the step before (S. Hochreiter, J. Schmidhuber,
    Long Short-Term Memory, 1997); of two directions and several layers each has its matrices, which
    stand between input and first state. The backward makes two GEMMs of each: of the gradient of
    what went in, and of the weights. Reads its arguments, writes the states of every layer, or the
    gradients of input and weights (FlopCounterMode counts nothing).
    """
    x, *rest = call.sizes
    state = next(i for i, size in enumerate(rest) if len(size) == 3)
    weights = sum(numel(size) for size in rest[:state] if len(size) == 2)
    if len(x) not in (2, 3) or not weights:
        raise FormulaError
    rows = prod(x[:-1])
    flops = 2 * rows * weights
    flat = next((i for i, size in enumerate(rest[:state]) if numel(size) > weights), None)
    read = call.everything() - (call.read(flat + 1) if flat is not None else 0)  # weights again
    if "backward" in call.name:
        return OperatorWork(2 * flops, read, (numel(x) + weights) * call.item)
    return OperatorWork(flops, read, rows * rest[state][0] * rest[state][2] * call.item)


@formula("aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_gru_cell")
def recurrent_cell(call: Call) -> OperatorWork:
    """Reads the gates' sums and the state; writes the new state (of LSTM two) and the gates."""
    gates, state = call.sizes[0], call.sizes[2]
    written = 2 * numel(state) + numel(gates) if "lstm" in call.name else 6 * numel(state)
    return OperatorWork(0, call.everything(), written * call.item)


# --- convolutions


def conv_flops(spatial: Size, batch: int, weight: Size) -> int:
    """2 N prod(spatial) prod(weight): for every place a multiply-add for every weight.

    `spatial` is the result's, or of a transposed convolution the input's; the weight is
    [out, in / groups, ...], so that groups are in it (flop_counter.conv_flop_count).
    """
    return 2 * batch * prod(spatial) * prod(weight)


@formula(
    "aten::cudnn_convolution", "aten::cudnn_convolution_relu", "aten::_conv_depthwise2d",
    "aten::conv_depthwise3d", "aten::miopen_convolution", "aten::miopen_depthwise_convolution",
    "aten::convolution_overrideable", "aten::_slow_conv2d_forward", "aten::slow_conv3d_forward",
    "aten::slow_conv_dilated2d", "aten::slow_conv_dilated3d", "aten::convolution",
)  # fmt: skip
def convolution(call: Call) -> OperatorWork:
    """`conv_flops` of the result, whose size its backward or its consumer says."""
    x, w = call.sizes[:2]
    if call.out is None or not is_convolved(call.out, x, w):
        raise FormulaError
    flops = conv_flops(call.out[2:], x[0], w)
    read = conv_input(x, w, call.out) * call.items[0] + call.read(1)
    return OperatorWork(flops, read, numel(call.out) * call.item)


@formula("aten::cudnn_convolution_transpose", "aten::miopen_convolution_transpose",
         "aten::slow_conv_transpose2d", "aten::slow_conv_transpose3d")  # fmt: skip
def convolution_transpose(call: Call) -> OperatorWork:
    """`conv_flops` of the input (flop_counter.conv_flop_count, transposed)."""
    x, w = call.sizes[:2]
    written = numel(call.out) * call.item if call.out else 0
    return OperatorWork(conv_flops(x[2:], x[0], w), call.read(0, 1), written)


@formula("aten::convolution_backward")
def convolution_backward(call: Call) -> OperatorWork:
    """The forward's FLOPs for each gradient that is asked for: of the input, of the weight.

    flop_counter.conv_backward_flop counts the weight's too high by the number of groups: it takes
    the transposed input for [in, N, ...], not for [in / groups, N, ...]. Each gradient reads the
    gradient of the result and its other factor.
    """
    dy, x, w = call.sizes[:3]
    transposed = is_transposed(dy, x, w, call.transposed)
    if dy[0] != x[0] or not (transposed or is_convolved(dy, x, w)):
        raise FormulaError
    once = conv_flops((x if transposed else dy)[2:], x[0], w)
    small, large = (x, dy) if transposed else (dy, x)
    touched = conv_input(large, w, small) * call.items[0 if transposed else 1]
    grad, read, written = (touched if transposed else call.read(0)), 0, 0
    if call.needed[0]:
        read += grad + call.read(2)
        written += numel(x) * call.item
    if call.needed[1]:
        read += grad + (call.read(1) if transposed else touched)
        written += numel(w) * call.item
    return OperatorWork(once * sum(call.needed), read, written)


def conv_input(x: Size, w: Size, out: Size) -> int:
    """Elements of an input that a convolution looks at: a stride may pass over some.

    Along an axis it looks at as many as filter times result, and at most at all.

    >>> conv_input((1, 8, 56, 56), (16, 8, 1, 1), (1, 16, 28, 28))
    6272
    """
    seen = (min(size, k * n) for size, k, n in zip(x[2:], w[2:], out[2:], strict=True))
    return prod(x[:2]) * prod(seen)


def is_convolved(out: Size, x: Size, w: Size) -> bool:
    """Whether a size can be that of a convolution of an input with a weight."""
    return (
        len(out) == len(x) == len(w) >= 3
        and out[0] == x[0]
        and out[1] == w[0]
        and w[1] > 0
        and x[1] % w[1] == 0
    )


def is_transposed(dy: Size, x: Size, w: Size, said: bool | None = None) -> bool:
    """Whether a backward is of a transposed convolution: its weight is [in, out / groups, ...].

    Where the sizes allow both, the forward says it, or else a result larger than the input.
    """
    forward = is_convolved(dy, x, w)
    turned = is_convolved(x, dy, w)
    if forward and turned and said is not None:
        return said
    return turned and (not forward or prod(dy[2:]) > prod(x[2:]))


# --- attention


def scores(q: Size, k: Size, *, causal: bool) -> int:
    """B H Sq Sk scores; of S queries and S keys under a causal mask B H S (S + 1) / 2.

    flop_counter.sdpa_flop_count, which counts causal attention whole. With grouped queries H is the
    queries'. A mask between different numbers of queries and keys is not taken for causal.
    """
    b, h, sq, d = q
    _equal((b, d), (k[0], k[3]))
    return b * h * (sq * (sq + 1) // 2 if causal and sq == k[2] else sq * k[2])


@formula(
    "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
)  # fmt: skip
def attention(call: Call) -> OperatorWork:
    """2 (D + Dv) a score: the score itself and its product with the values.

    Reads queries, keys, values, writes the result and 4 bytes a row.
    """
    q, k, v = call.sizes[:3]
    written = prod(q[:3]) * (v[3] * call.item + 4)
    flops = 2 * scores(q, k, causal=call.causal) * (q[3] + v[3])
    return OperatorWork(flops, call.read(0, 1, 2), written)


@formula(
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_scaled_dot_product_fused_attention_overrideable_backward",
)
def attention_backward(call: Call) -> OperatorWork:
    """2 (3 D + 2 Dv) a score: the score again, and four gradients (sdpa_backward_flop_count).

    The arguments are the result's gradient, queries, keys, values. Reads these, the result and
    4 bytes a row; the sum of gradient times result, which every back end takes first, reads the
    gradient and the result; writes three gradients. Back ends that add the queries' gradient up in
    float32 read and write that too, and cuDNN's, of grouped queries, gradients of every head.
    """
    q, k, v = call.sizes[1:4]
    b, h, _, d = q
    flops = 2 * scores(q, k, causal=call.causal) * (3 * d + 2 * v[3])
    read = 3 * call.read(0) + call.read(1, 2, 3) + 4 * prod(q[:3])
    written = call.read(1, 2, 3)
    if "convert_dq" in call.kernels:
        read, written = read + 8 * numel(q), written + 4 * numel(q)
    if "fmha_reduce_head" in call.kernels:
        heads = b * h * k[2] * (d + v[3]) * call.items[2]
        read, written = read + heads, written + heads
    return OperatorWork(flops, read, written)


ATTENTION: Final = "aten::_scaled_dot_product_"
WRAPPED: Final = (
    "aten::_flash_attention_forward", "aten::_flash_attention_backward",
    "aten::_efficient_attention_forward", "aten::_efficient_attention_backward",
)  # fmt: skip
"""Operators that those of scaled_dot_product_attention call, and other libraries by themselves."""
_STARTS: Final = {
    "aten::_flash_attention_forward": (3,), "aten::_flash_attention_backward": (6,),
    "aten::_efficient_attention_forward": (4,), "aten::_efficient_attention_backward": (6,),
    "xformers::efficient_attention_forward_cutlass": (3, 4), "xformers_flash::flash_fwd": (3,),
    "xformers::efficient_attention_backward_cutlass": (5, 6), "xformers_flash::flash_bwd": (7,),
}  # fmt: skip
"""Which arguments, of this or that version, say where sequences of several lengths start."""
TOKENS_FIRST: Final = (*WRAPPED, "flash_attn", "flashattn::", "FlashAttnFunc", "xformers")
"""Beginnings of the names of attentions of [B, S, H, D]."""
_BACKWARD: Final = ("_backward", "_backward_cutlass", "bwd")


def heads_first(name: str, sizes: Sizes) -> Sizes:
    """Sizes [B, H, S, D] of an attention's queries, keys and values.

    Operators of flash-attn and xFormers take [B, S, H, D]. Of sequences of several lengths, which
    lie one behind the other, the sizes do not say the lengths.

    Raises
    ------
    FormulaError
        If they are no such sizes.
    """
    first = _gradient(sizes) + 1 if name.endswith(_BACKWARD) else 0
    found = sizes[first : first + 3]
    starts = any(len(sizes[i]) == 1 and sizes[i] != (0,) for i in _STARTS.get(name, ())
                 if i < len(sizes))  # fmt: skip
    if len(found) < 3 or any(len(s) != 4 for s in found) or starts:
        raise FormulaError
    if not name.startswith(TOKENS_FIRST):
        return found
    return tuple((b, h, s, d) for b, s, h, d in found)


@formula(
    *WRAPPED[::2], "flash_attn::_flash_attn_forward", "flashattn::_flash_attn_forward",
    "FlashAttnFunc", "flash_attn_3::_flash_attn_forward", "flash_attn_3::fwd",
    "xformers_flash::flash_fwd", "xformers::efficient_attention_forward_cutlass",
)  # fmt: skip
def flash_attention(call: Call) -> OperatorWork:
    """As `attention`, of queries, keys and values [B, S, H, D] (flash_attn_interface.py).

    T. Dao, FlashAttention-2 (2023), counts 4 S² D H of a forward pass, as D = Dv gives.
    """
    return attention(replace(call, sizes=heads_first(call.name, call.sizes)))


@formula(
    *WRAPPED[1::2], "flash_attn::_flash_attn_backward", "flashattn::_flash_attn_backward",
    "flash_attn_3::_flash_attn_backward", "flash_attn_3::bwd", "xformers_flash::flash_bwd",
    "xformers::efficient_attention_backward_cutlass",
)  # fmt: skip
def flash_attention_backward(call: Call) -> OperatorWork:
    """As `attention_backward`, of [B, S, H, D]: 2.5 times the forward's FLOPs (Dao, 2023)."""
    found = heads_first(call.name, call.sizes)
    at = _gradient(call.sizes)
    return attention_backward(
        replace(call, sizes=(call.sizes[at], *found), items=call.items[at : at + 4])
    )


def _gradient(sizes: Sizes) -> int:
    """Place of the result's gradient in an attention's backward: of the first tensor."""
    return next((i for i, size in enumerate(sizes) if size), 0)


# --- normalization


@formula("aten::native_layer_norm", "aten::_fused_rms_norm", "aten::_fused_rms_norm_")
def layer_norm(call: Call) -> OperatorWork:
    """Reads the input and its weights once, writes the result and statistics of every row."""
    x = call.sizes[0]
    weights = [i for i in range(1, len(call.sizes)) if call.sizes[i]]
    inner = max((numel(call.sizes[i]) for i in weights), default=x[-1])
    stats = (1 if "rms" in call.name else 2) * 4 * (numel(x) // max(inner, 1))
    return OperatorWork(0, call.read(0, *weights), numel(x) * call.item + stats)


@formula("aten::native_layer_norm_backward", "aten::_fused_rms_norm_backward")
def layer_norm_backward(call: Call) -> OperatorWork:
    """Two kernels, of the input's gradient and the weights', each reads gradient and input."""
    rest = call.everything() - call.read(0, 1)
    weights = sum(numel(s) for s in call.sizes[2:] if len(s) == 1) * call.item
    return OperatorWork(0, 2 * call.read(0, 1) + rest, call.read(1) + weights)


@formula("aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::_batch_norm_with_update",
         "aten::_native_batch_norm_legit")  # fmt: skip
def batch_norm(call: Call) -> OperatorWork:
    """Statistics of the whole batch come first: two passes in training, one with fixed ones."""
    fixed = "transform_input" in call.kernels and "statistics" not in call.kernels
    once = call.read(0)
    return OperatorWork(0, once * (1 if fixed else 2), numel(call.sizes[0]) * call.item)


@formula("aten::native_batch_norm_backward", "aten::cudnn_batch_norm_backward",
         "aten::batch_norm_backward")  # fmt: skip
def batch_norm_backward(call: Call) -> OperatorWork:
    """Two passes, each over gradient and input: their sums, then the input's gradient."""
    return OperatorWork(0, 2 * call.read(0, 1), numel(call.sizes[1]) * call.item)


@formula("aten::batch_norm_stats")
def batch_norm_stats(call: Call) -> OperatorWork:
    """Of a batch norm over ranks the first pass: reads the input, writes moments in float32."""
    return OperatorWork(0, call.read(0), 2 * 4 * call.sizes[0][1])


@formula("aten::batch_norm_elemt")
def batch_norm_elemt(call: Call) -> OperatorWork:
    """Of a batch norm over ranks the second pass: reads the input, writes the result."""
    return OperatorWork(0, call.read(0), numel(call.sizes[0]) * call.item)


@formula("aten::batch_norm_backward_reduce")
def batch_norm_backward_reduce(call: Call) -> OperatorWork:
    """Sums over gradient and input: reads both, writes 4 numbers of float32 a channel."""
    return OperatorWork(0, call.read(0, 1), 4 * 4 * call.sizes[1][1])


@formula("aten::batch_norm_backward_elemt")
def batch_norm_backward_elemt(call: Call) -> OperatorWork:
    """Reads gradient and input, writes the input's gradient."""
    return OperatorWork(0, call.read(0, 1), numel(call.sizes[1]) * call.item)


@formula("aten::native_group_norm")
def group_norm(call: Call) -> OperatorWork:
    """Two passes over the input: moments of every group, then the result."""
    return OperatorWork(0, 2 * call.read(0), numel(call.sizes[0]) * call.item)


@formula("aten::native_group_norm_backward")
def group_norm_backward(call: Call) -> OperatorWork:
    """Two passes, each over gradient and input."""
    return OperatorWork(0, 2 * call.read(0, 1), numel(call.sizes[1]) * call.item)


# --- Fourier transforms


@formula("aten::_fft_r2c", "aten::_fft_c2c", "aten::_fft_c2r")
def fourier(call: Call) -> OperatorWork:
    """Every kernel of cuFFT reads its input once and writes as much, complex numbers of two reals.

    Transforms of reals have n/2 + 1 complex numbers for every n reals along one axis, which the
    size of the result says, else the last; the first kernel reads the reals, or the last writes
    them. FLOPs are none, as for all but products (the library chooses how to compute).
    """
    x = call.sizes[0]
    passes = max(sum("fft" in name for name in call.kernels.split("|")), 1)
    count, last = numel(x), x[-1]
    if not count:
        return OperatorWork(0, 0, 0)
    if call.name == "aten::_fft_c2c":
        once = 2 * count * call.item
        return OperatorWork(0, passes * once, passes * once)
    made = numel(call.out) if call.out else 0
    if call.name == "aten::_fft_r2c":
        numbers = [count // n * (n // 2 + 1) for n in x] + [count]  # or both halves along an axis
        made = made if made in numbers else count // last * (last // 2 + 1)
        reals, half = count * call.item, 2 * made * call.item
        return OperatorWork(0, reals + (passes - 1) * half, passes * half)
    numbers = [count // n * length for n in x for length in (2 * n - 2, 2 * n - 1)]
    made = made if made in numbers else count // last * 2 * (last - 1)
    reals, half = made * call.item, 2 * count * call.item
    return OperatorWork(0, passes * half, (passes - 1) * half + reals)


# --- softmax and losses


@formula("aten::_softmax", "aten::_log_softmax")
def softmax(call: Call) -> OperatorWork:
    """A row is read once: it stays in registers, shared memory or L2."""
    return OperatorWork(0, call.read(0), numel(call.sizes[0]) * call.item)


@formula("aten::_softmax_backward_data", "aten::_log_softmax_backward_data")
def softmax_backward(call: Call) -> OperatorWork:
    """Reads the gradient and the result, writes the input's gradient."""
    return OperatorWork(0, call.read(0, 1), numel(call.sizes[1]) * call.item)


_SECTOR: Final = 32
"""Bytes that one access to memory moves at least (CUDA Programming Guide, device memory)."""


@formula("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll_loss(call: Call) -> OperatorWork:
    """One element a row, which moves a sector, and the row's class."""
    rows = numel(call.sizes[1])
    return OperatorWork(0, rows * (_SECTOR + 8), 2 * call.item)


@formula("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_loss_backward(call: Call) -> OperatorWork:
    """One element a row; the zeros around it are another operator's."""
    rows = numel(call.sizes[2])
    return OperatorWork(0, rows * (_SECTOR + 8), rows * _SECTOR)


@formula("aten::mse_loss", "aten::binary_cross_entropy_with_logits", "aten::smooth_l1_loss",
         "aten::mse_loss_backward", "aten::binary_cross_entropy", "aten::huber_loss",
         "aten::huber_loss_backward", "aten::smooth_l1_loss_backward",
         "aten::binary_cross_entropy_backward")  # fmt: skip
def loss(call: Call) -> OperatorWork:
    """Element-wise; what sums it up is another operator, or reads no more."""
    return elementwise(call)


# --- element-wise

_UNARY_AND_BINARY: Final = (
    "abs", "add", "sub", "rsub", "mul", "div", "pow", "exp", "exp2", "expm1", "log", "log2",
    "log10", "log1p", "sqrt", "rsqrt", "neg", "sin", "cos", "tan", "tanh", "sigmoid", "silu",
    "mish", "gelu", "relu", "relu6", "elu", "celu", "selu", "softplus", "leaky_relu", "hardtanh",
    "hardswish", "hardsigmoid", "log_sigmoid_forward", "threshold", "clamp", "clamp_min",
    "clamp_max", "where", "masked_fill", "lerp", "addcmul", "addcdiv", "maximum", "minimum",
    "square", "sign", "erf", "erfc", "floor", "ceil", "round", "trunc", "remainder", "fmod",
    "reciprocal", "atan2", "floor_divide", "true_divide", "nan_to_num", "bitwise_and",
    "bitwise_or", "bitwise_xor", "__and__", "__or__", "silu_backward", "gelu_backward",
    "threshold_backward", "tanh_backward", "sigmoid_backward", "hardswish_backward",
    "hardtanh_backward", "hardsigmoid_backward", "elu_backward", "leaky_relu_backward",
    "softplus_backward", "mish_backward", "glu_backward", "native_dropout_backward", "tril",
    "triu", "flip", "roll", "constant_pad_nd", "repeat", "_prelu_kernel", "_prelu_kernel_backward",
    "logit", "sgn", "frac", "xlogy", "hypot", "copysign",
)  # fmt: skip
_LOGICAL: Final = (
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor",
    "bitwise_not", "isnan", "isinf", "isfinite", "isin", "isneginf", "isposinf", "signbit",
)  # fmt: skip


@formula(*(f"aten::{n}{end}" for n in _UNARY_AND_BINARY for end in ("", "_")))
def elementwise(call: Call) -> OperatorWork:
    """Reads every operand once (a broadcast one as small as it is), writes the result.

    An operator whose name ends in an underscore writes its first operand.
    """
    inplace = call.name.endswith("_") and not call.name.endswith("__")
    out = call.sizes[0] if inplace else broadcast(*call.sizes)
    return OperatorWork(0, call.everything(), max(numel(out), 1) * call.item)


@formula("aten::glu")
def glu(call: Call) -> OperatorWork:
    """Reads the input, of which one half gates the other; writes half as much."""
    return OperatorWork(0, call.read(0), numel(call.sizes[0]) // 2 * call.item)


@formula(*(f"aten::{n}{end}" for n in _LOGICAL for end in ("", "_")))
def comparison(call: Call) -> OperatorWork:
    """As `elementwise`; the result has a byte an element."""
    return OperatorWork(0, call.everything(), numel(broadcast(*call.sizes)))


@formula("aten::copy_")
def copy(call: Call) -> OperatorWork:
    """Reads the second argument, writes the first, each in its own type."""
    return OperatorWork(0, call.read(1), max(call.read(0), call.item))


@formula("aten::_local_scalar_dense")
def item(call: Call) -> OperatorWork:
    """Copies one element to the host."""
    return OperatorWork(0, call.item, call.item)


@formula("aten::fill_", "aten::zero_", "aten::arange", "aten::random_", "aten::bernoulli_",
         "aten::normal_", "aten::uniform_", "aten::exponential_", "aten::eye", "aten::linspace",
         "aten::randperm")  # fmt: skip
def fill(call: Call) -> OperatorWork:
    """Writes all elements, and reads none."""
    written = max((numel(s) for s in call.sizes), default=0)
    return OperatorWork(0, 0, max(written, 1) * call.item)


@formula("aten::native_dropout", "aten::_fused_dropout")
def dropout(call: Call) -> OperatorWork:
    """Reads the input; writes the result and a mask of a byte an element."""
    return OperatorWork(0, call.read(0), numel(call.sizes[0]) * (call.item + 1))


@formula("aten::cat", "aten::stack", "aten::_cat")
def cat(call: Call) -> OperatorWork:
    """Reads and writes every part once."""
    return OperatorWork(0, call.everything(), sum(map(numel, call.sizes)) * call.item)


@formula("aten::_chunk_cat")
def chunk_cat(call: Call) -> OperatorWork:
    """Reads every part, writes the last argument."""
    read = call.everything() - call.read(len(call.sizes) - 1)
    return OperatorWork(0, read, call.read(len(call.sizes) - 1))


@formula("aten::split_with_sizes_copy")
def split_copy(call: Call) -> OperatorWork:
    """Reads the first argument, writes as much in parts."""
    return OperatorWork(0, call.read(0), call.read(0))


# --- reductions and pooling


_REDUCTIONS: Final = (
    "sum", "mean", "amax", "amin", "max", "min", "std", "var", "var_mean", "std_mean", "prod",
    "norm", "linalg_vector_norm", "logsumexp", "argmax", "argmin", "any", "all", "cumsum",
    "cumprod", "count_nonzero", "nansum", "mean_out",
)  # fmt: skip


@formula(*(f"aten::{n}" for n in _REDUCTIONS))
def reduction(call: Call) -> OperatorWork:
    """Reads the input once; writes the result, whose size its consumer says, or one element."""
    x = call.sizes[0]
    if "cum" in call.name:
        return OperatorWork(0, call.read(0), numel(x) * call.item)
    written = numel(call.out) if call.out and numel(call.out) <= numel(x) else 1
    return OperatorWork(0, call.read(0), written * call.item)


@formula("aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices")
def max_pool(call: Call) -> OperatorWork:
    """Reads the input; writes the result and the place of every maximum, 8 bytes."""
    if call.out is None or call.out[:2] != call.sizes[0][:2]:
        raise FormulaError
    return OperatorWork(0, call.read(0), numel(call.out) * (call.item + 8))


@formula("aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward")
def max_pool_backward(call: Call) -> OperatorWork:
    """Reads the gradient and the places of maxima, 8 bytes; writes the input's gradient."""
    read = call.read(0) + 8 * numel(call.sizes[0])
    return OperatorWork(0, read, numel(call.sizes[1]) * call.item)


@formula("aten::avg_pool2d", "aten::_adaptive_avg_pool2d", "aten::avg_pool3d",
         "aten::_adaptive_avg_pool3d",
         *(f"aten::upsample_{how}{end}"
           for how in ("nearest1d", "nearest2d", "nearest3d", "bilinear2d", "bicubic2d",
                       "trilinear3d")
           for end in ("", "_backward")))  # fmt: skip
def pool(call: Call) -> OperatorWork:
    """Reads the input, writes the result, whose size its consumer says.

    Likewise the backward of an interpolation, of whose arguments only the gradient is a tensor.
    """
    if call.out is None or call.out[:2] != call.sizes[0][:2]:
        raise FormulaError
    return OperatorWork(0, call.read(0), numel(call.out) * call.item)


@formula("aten::avg_pool2d_backward", "aten::_adaptive_avg_pool2d_backward",
         "aten::avg_pool3d_backward", "aten::_adaptive_avg_pool3d_backward")  # fmt: skip
def pool_backward(call: Call) -> OperatorWork:
    """Reads the gradient, writes the input's."""
    return OperatorWork(0, call.read(0), numel(call.sizes[1]) * call.item)


@formula("torchvision::roi_align")
def roi_align(call: Call) -> OperatorWork:
    """Reads the features and the boxes; writes the result, whose size its consumer says.

    Boxes of a detector overlap and cover the image, so that every feature counts once
    (torchvision/csrc/ops/cuda/roi_align_kernel.cu interpolates several times between four).
    """
    x, boxes = call.sizes[:2]
    if call.out is None or len(call.out) != 4 or call.out[:2] != (boxes[0], x[1]):
        raise FormulaError
    return OperatorWork(0, call.read(0, 1), numel(call.out) * call.item)


@formula("torchvision::_roi_align_backward")
def roi_align_backward(call: Call) -> OperatorWork:
    """Reads the result's gradient and the boxes, adds to every feature's gradient."""
    if call.out is None or len(call.out) != 4 or call.out[1] != call.sizes[0][1]:
        raise FormulaError
    made = numel(call.out) * call.item
    return OperatorWork(0, call.read(0, 1) + made, made)


# --- embeddings and indices


def distinct_rows(rows: int, draws: int) -> int:
    """Rows that draws from a table name at least once on average, each as likely: V(1-(1-1/V)^N).

    >>> distinct_rows(8192, 8192)
    5179
    """
    if rows <= 1:
        return min(rows, draws)
    return round(-rows * math.expm1(draws * math.log1p(-1 / rows)))


@formula("aten::embedding", "aten::index_select", "aten::gather")
def embedding(call: Call) -> OperatorWork:
    """Reads every row that is named once, and the indices; writes a row for every index.

    An index that `aten::embedding` widened to rows is read once for each row.
    """
    table = call.sizes[0]
    index = next(s for s in call.sizes[1:] if s)
    width = prod(table[1:])
    widened = "vectorized_gather" in call.kernels and len(index) > 1
    if call.name == "aten::gather" and not widened:
        return OperatorWork(0, numel(index) * (8 + call.item), numel(index) * call.item)
    draws = prod(index[:-1]) if widened else numel(index)
    read = distinct_rows(table[0], draws) * width * call.items[0] + 8 * draws
    return OperatorWork(0, read, draws * width * call.item)


@formula("aten::embedding_dense_backward")
def embedding_backward(call: Call) -> OperatorWork:
    """Reads the gradient and the indices, writes a row of float32 for every distinct index.

    These sums are read again and added to the result (aten/src/ATen/native/cuda/
    EmbeddingBackwardKernel.cu; for few indices one kernel adds to the result at once).
    """
    grad, index = call.sizes[:2]
    rows = call.out[0] if call.out and len(call.out) == 2 else numel(index)
    distinct = distinct_rows(rows, numel(index)) * grad[-1]
    sums = 4 * distinct if "sum_and_scatter" in call.kernels else 0
    read = call.read(0) + 8 * numel(index) + sums
    return OperatorWork(0, read, distinct * call.item + sums)


def _indexed(call: Call, last: int | None, result: Size | None) -> tuple[int, int, int]:
    """Elements that indices choose, distinct ones of them, and bytes of the indices.

    The arguments between the first and `last` are the indices; those of dimensions that are taken
    whole are not recorded, or (), so that the size of the `result` says more. A trace of
    torch.profiler names none of them.
    """
    x, indices = call.sizes[0], call.sizes[1:last]
    given = [size for size in indices if size]
    if not x or not (given or call.masks) or len(indices) > len(x):
        raise FormulaError
    mask = _mask(call, given, result)
    if mask is not None:
        return _masked(call, mask, result)
    if not prod(x) or (result and not prod(result)):
        return 0, 0, 8 * sum(map(numel, given))
    draws = numel(broadcast(*given))
    rows = prod(x[i] for i, size in enumerate(indices) if size)
    width = prod(x) // rows if rows else 0
    if result and draws and numel(result) % draws == 0 and prod(x) % (numel(result) // draws) == 0:
        width = numel(result) // draws
        rows = prod(x) // width if width else 0
    return draws * width, distinct_rows(rows, draws) * width, 8 * sum(map(numel, given))


def _mask(call: Call, given: list[Size], result: Size | None) -> Size | None:
    """The index, if it is a mask: PyTorch finds its true elements by an `aten::nonzero` inside.

    Without that a mask of several dimensions is known by its size, which is that of the first ones
    of what it indexes. One of a single dimension has the size of as many indices, whose result has
    as many rows: a result of fewer is a mask's.
    """
    if call.masks:
        if len(call.masks) > 1 or any(size != call.masks[0] for size in given):
            raise FormulaError
        return call.masks[0]
    x, index = call.sizes[0], given[0]
    if len(given) > 1 or len(call.sizes[1]) == 0 or index != x[: len(index)]:
        return None
    fewer = result is not None and len(result) == len(x) and result[1:] == x[1:]
    return index if len(index) > 1 or (fewer and result != x) else None


def _masked(call: Call, mask: Size, result: Size | None) -> tuple[int, int, int]:
    """What `_indexed` returns for a mask: of each true element its place along every dimension."""
    x, places = call.sizes[0], prod(mask)
    width = prod(x) // places if places else 0
    true = call.true
    if true is None and result and width and numel(result) % width == 0:
        true = numel(result) // width
    if true is None and result and not prod(result):
        true = 0
    if true is None or true > places or (places and prod(x) % places):
        raise FormulaError
    return true * width, true * width, 8 * len(mask) * true


@formula("aten::index")
def index(call: Call) -> OperatorWork:
    """Reads the indices and every element that they name once; writes an element for every one."""
    chosen, distinct, indices = _indexed(call, None, call.out)
    return OperatorWork(0, distinct * call.items[0] + indices, chosen * call.item)


@formula("aten::index_put_", "aten::_index_put_impl_")
def index_put(call: Call) -> OperatorWork:
    """Reads values and indices, writes the elements that they name; sums are read first, too."""
    values = max(i for i, size in enumerate(call.sizes) if size)
    given = call.sizes[values]  # of one element for all, which says nothing
    chosen, distinct, indices = _indexed(call, values, given if numel(given) > 1 else None)
    sums = distinct * call.item if "indexing_backward" in call.kernels else 0
    read = min(call.read(values), chosen * call.items[values]) + indices + sums
    return OperatorWork(0, read, distinct * call.item)


@formula("aten::scatter", "aten::scatter_", "aten::scatter_add", "aten::scatter_add_",
         "aten::scatter_reduce", "aten::scatter_reduce_")  # fmt: skip
def scatter(call: Call) -> OperatorWork:
    """Reads indices and values, writes an element for each; sums are read first, too.

    The copy of the input that a new result begins with is an operator of its own.
    """
    tensors = [i for i, size in enumerate(call.sizes) if size]
    if len(tensors) not in (2, 3) or tensors[0] != 0:
        raise FormulaError
    count = numel(call.sizes[tensors[1]])
    values = count * call.items[tensors[2]] if len(tensors) == 3 else 0
    sums = count * call.item if "_add" in call.name or "_reduce" in call.name else 0
    return OperatorWork(0, 8 * count + values + sums, count * call.item)


@formula("aten::index_add", "aten::index_add_", "aten::index_copy", "aten::index_copy_",
         "aten::index_reduce", "aten::index_reduce_")  # fmt: skip
def index_add(call: Call) -> OperatorWork:
    """Reads indices and values, writes every row that they name; sums are read first, too.

    The copy of the input that a new result begins with is an operator of its own.
    """
    at, values = [i for i, size in enumerate(call.sizes) if size][1:3]
    x, index, source = call.sizes[0], call.sizes[at], call.sizes[values]
    if not x or len(index) != 1 or len(source) != len(x):
        raise FormulaError
    if not numel(source):
        return OperatorWork(0, 8 * index[0], 0)
    if numel(source) % index[0]:
        raise FormulaError
    width = numel(source) // index[0]
    rows = max(numel(x) // width, 1)
    named = distinct_rows(rows, index[0]) * width * call.item
    sums = 0 if "_copy" in call.name else named
    return OperatorWork(0, 8 * index[0] + call.read(values) + sums, named)


@formula("aten::nonzero")
def nonzero(call: Call) -> OperatorWork:
    """Reads the input to count and again to choose; writes 8 bytes an axis for what is chosen.

    How much is chosen its consumer says. A mask has a byte for every element.
    """
    written = 8 * numel(call.out) if call.out else 0
    return OperatorWork(0, 2 * (numel(call.sizes[0]) if call.masks else call.read(0)), written)


@formula("aten::histc", "aten::bincount", "aten::_histogramdd_from_bin_cts")
def histogram(call: Call) -> OperatorWork:
    """Reads the values; bins are few."""
    return OperatorWork(0, call.read(0), 0)


@formula("aten::sort", "aten::argsort")
def sort(call: Call) -> OperatorWork:
    """Reads the input; writes it in order, and the place of every element, 8 bytes."""
    count = numel(call.sizes[0])
    return OperatorWork(0, call.read(0), count * (call.item + 8))


@formula("aten::topk")
def topk(call: Call) -> OperatorWork:
    """Reads the input; writes as many values as their consumer says, and the place of each."""
    if call.out is None or numel(call.out) > numel(call.sizes[0]):
        raise FormulaError
    return OperatorWork(0, call.read(0), numel(call.out) * (call.item + 8))


@formula("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(call: Call) -> OperatorWork:
    """Reads every row that is named once, indices, offsets and weights of the samples.

    Writes a row for every bag, the bag of every index and the size of every bag, 8 bytes each
    (aten/src/ATen/native/cuda/EmbeddingBag.cu).
    """
    table, indices, offsets = call.sizes[:3]
    if len(table) != 2 or len(indices) != 1 or len(offsets) != 1:
        raise FormulaError
    named = distinct_rows(table[0], indices[0]) * table[1] * call.items[0]
    weights = call.read(6)
    bags = call.out[0] if call.out and call.out[1:] == table[1:] else offsets[0]
    return OperatorWork(
        0, named + 8 * (indices[0] + offsets[0]) + weights,
        bags * table[1] * call.item + 8 * (indices[0] + bags),
    )  # fmt: skip


@formula("aten::_embedding_bag_dense_backward")
def embedding_bag_backward(call: Call) -> OperatorWork:
    """Reads the gradient, indices and their bags; writes a row for every distinct index."""
    grad, indices = call.sizes[:2]
    if len(grad) != 2 or len(indices) != 1:
        raise FormulaError
    rows = call.out[0] if call.out and len(call.out) == 2 else indices[0]
    distinct = distinct_rows(rows, indices[0]) * grad[1]
    return OperatorWork(0, call.read(0) + 16 * indices[0], distinct * call.item)


# --- optimizers and lists of tensors


@formula("aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_")
def fused_optimizer(call: Call) -> OperatorWork:
    """Reads all its lists (parameters, gradients, moments); writes all but the gradients.

    Of Adam 4 lists, 16 bytes in and 12 out for a parameter of float32 (torch/optim/adam.py).
    """
    lists = call.depth or 4
    read = call.everything()
    return OperatorWork(0, read, read * (lists - 1) // lists)


_FOREACH: Final = (
    "add", "sub", "mul", "div", "neg", "abs", "sqrt", "rsqrt", "exp", "log", "reciprocal", "sign",
    "addcmul", "addcdiv", "lerp", "pow", "maximum", "minimum", "clamp_min", "clamp_max", "zero",
    "copy", "norm",
)  # fmt: skip


@formula(*(f"aten::_foreach_{n}{end}" for n in _FOREACH for end in ("", "_")))
def foreach(call: Call) -> OperatorWork:
    """Reads its lists of tensors, writes one: the first in place, or a new one."""
    sizes, inplace = call.sizes, call.name.endswith("_")
    total = call.everything()
    if call.name == "aten::_foreach_norm":
        return OperatorWork(0, total, 4 * len(sizes))
    if call.name == "aten::_foreach_zero_":
        return OperatorWork(0, 0, total)
    lists = max(call.depth - (not inplace), 1)
    if call.name == "aten::_foreach_copy_":
        half = sum(1 for s in sizes if s) // 2
        return OperatorWork(0, call.read(*range(half, 2 * half)), call.read(*range(half)))
    return OperatorWork(0, total, total // lists)


@formula("aten::_amp_foreach_non_finite_check_and_unscale_")
def unscale(call: Call) -> OperatorWork:
    """Of a gradient scaler: reads every gradient, and writes it (torch/amp/grad_scaler.py)."""
    return OperatorWork(0, call.everything(), call.everything())


# --- communication


@formula("nccl:all_reduce", "nccl:reduce", "nccl:broadcast", "nccl:all_to_all", "nccl:send",
         "nccl:recv", "nccl:_all_gather_base", "nccl:all_gather", "nccl:_reduce_scatter_base",
         "nccl:reduce_scatter", "nccl:coalesced")  # fmt: skip
def collective(call: Call) -> OperatorWork:
    """Reads and writes the message in this GPU's memory once; what the links move is NCCL's."""
    return OperatorWork(0, call.everything(), call.everything())


# --- torch.compile


def fused(call: Call) -> OperatorWork:
    """A kernel that torch.compile made of several operators: every buffer is moved once.

    Which are read, written or both and their types: `perfmodel.programs.pytorch.triton`. FLOPs of
    what is fused are not counted: templates of GEMMs (`triton_tem_...`) are unknown.
    """
    if "_tem_" in call.name or call.moved is None or not any(call.sizes):
        raise FormulaError
    return OperatorWork(0, *call.moved)


def _equal(one: object, other: object) -> None:
    if one != other:
        raise FormulaError

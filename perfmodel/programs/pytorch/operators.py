"""ATen's operators: FLOPs and bytes by the sizes of arguments, and other facts.

Every fact of an operator is said once, where `formula` registers it. FLOPs are those of GEMMs, 2
for a multiply-add, as torch.utils.flop_counter counts them: matrix multiplications, convolutions
and attention; of all else they are 0. Bytes are compulsory: every element that an operator must
read or write once, or once for every pass that PyTorch's kernels make over it, with nothing left in
a cache before.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.escape import printable
from perfmodel.base.units import sizes_text
from perfmodel.programs.pytorch.names import Size, Sizes
from perfmodel.timing.operator_times import Phase

if TYPE_CHECKING:
    from perfmodel.timing.engine_steps import EngineStep
    from perfmodel.workloads.decoder import Decoder

Origin = Literal["kernel", "inputs", "default", "given", ""]
Product = Literal["gemm", "attention", "convolution", "transposed", "gradients", "other", ""]


class SizesError(Exception):
    """The recorded sizes do not say what a formula needs, or are not those that it is for."""


class FormulaError(PerfmodelError):
    """A formula fails on sizes that it takes: a fault of the formula."""


class OperatorWork(NamedTuple):
    """The work of an operator: FLOPs of its GEMMs, and bytes to and from memory.

    `shape` is (m, n, k) of one GEMM, (batch times heads, queries, numbers of a head) of attention;
    None of all else. Of what it reads and writes `weight_bytes` are a model's weights, and
    `cache_bytes` are of a KV cache, where the operator is of an engine that serves the model.
    """

    flops: int
    read_bytes: int
    write_bytes: int
    shape: tuple[int, int, int] | None = None
    weight_bytes: int = 0
    cache_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Inference:
    """Facts of a serving engine's call that are not in its sizes.

    Attributes
    ----------
    step : EngineStep
        What the engine's step computes.
    model : Decoder or None
        The model, where the sizes of operators are those of a known one.
    shards : int
        GPUs that share each layer.
    layer : int or None
        Which layer the call is of.
    """

    step: EngineStep
    model: Decoder | None = None
    shards: int = 1
    layer: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator: what it was given, and what it must do.

    Attributes
    ----------
    name : str
    sizes : tuple of tuple of int
        Of every argument, lists flattened; () for what is no tensor. Empty where none is recorded.
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
        Those of `Formula.by_kernels` that are in the names of its kernels, joined.
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
    phase, module : str
        Of the step; and the module that called it, '' outside of all.
    dtype, origin : str
        Type of its longest kernel or of its inputs, and which of them says it.
    unit : str
        The machine's peak for its arithmetic.
    inference : Inference or None
        Tokens and model, of a call in the step of an engine that serves one.
    work : OperatorWork or None
        What its formula counts; None without a formula, or where the sizes do not say it.
    fusible_bytes : int
        Those that it reads of what an operator without products wrote in the same phase: a kernel
        that did both would not read them.
    """

    name: str
    sizes: Sizes
    items: tuple[int, ...] = ()
    item: int = 0
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
    phase: Phase = "forward"
    module: str = ""
    dtype: str = ""
    origin: Origin = ""
    unit: str = ""
    inference: Inference | None = None
    work: OperatorWork | None = None
    fusible_bytes: int = 0

    def size(self, place: int, dimensions: int | None = None, *, least: int = 0) -> Size:
        """Size of an argument of so many dimensions, or of at least so many.

        Raises
        ------
        SizesError
            If the recording has no such argument there.
        """
        found = self.sizes[place] if place < len(self.sizes) else None
        if found is None or len(found) < least or dimensions not in (None, len(found)):
            raise SizesError
        return found

    def read(self, *which: int) -> int:
        """Bytes of some arguments, each once; 0 of those that are not recorded."""
        return sum(numel(self.sizes[i]) * self.items[i] for i in which if i < len(self.sizes))

    def everything(self) -> int:
        """Bytes of all arguments, each once."""
        return self.read(*range(len(self.sizes)))

    @property
    def in_place(self) -> bool:
        """Whether it writes its first argument: its name ends in one underscore."""
        return self.name.endswith("_") and not self.name.endswith("__")

    @property
    def shown(self) -> str:
        """Sizes in print; of many tensors the first ones."""
        return sizes_text(self.sizes)

    @property
    def described(self) -> tuple[tuple[str, str | int], ...]:
        """Operator, sizes, FLOPs and bytes by formula, of all that the call launched."""
        said: tuple[tuple[str, str | int], ...] = (("operator", self.name), ("sizes", self.shown))
        if self.work is None:
            return said
        work = {
            "flops": self.work.flops,
            "operator_bytes": self.work.read_bytes + self.work.write_bytes,
        }
        return (*said, *((key, count) for key, count in work.items() if count))


@dataclass(frozen=True, slots=True)
class Formula:
    """The formula of operators, and other facts of them.

    Attributes
    ----------
    count : callable or None
        Counts a call; None of operators that others inside them do the work of.
    product : str
        What it multiplies, '' if nothing, so that it has no FLOPs: one 'gemm', an 'attention', a
        'convolution' (or a 'transposed' one, or the 'gradients' of one), or 'other'. Where no
        kernel's name says otherwise, it runs on tensor cores.
    argument_types, output_types : mapping of int to str
        Of arguments and outputs, by place, that are not of the type that it computes with.
    output_from : {'arguments', 'consumers'}
        What says the size of the result that `count` needs: the arguments alone, or what consumes
        it or its backward (`Call.out`; of a convolution's gradients which are needed).
    by_kernels : tuple of str
        Words in the names of its kernels that decide what `count` returns (`Call.kernels`).
    sequences : tuple of int
        Places of the arguments that say, in this or that version of a library, where sequences of
        several lengths begin.
    masks : bool
        Whether an `aten::nonzero` inside it finds the true elements of an index (`Call.masks`).
    whole : bool
        Whether products inside it are parts of it.
    layer : bool
        Whether it is of a layer, so that a forward pass has begun (as with products).
    parameters : bool
        Whether its tensors are parameters, gradients or moments, so that their type is known.
    by_step : bool
        Whether `count` needs `Call.inference`.
    phase : str
        Phase of a step where no range around it says one; '' if it may be of any.
    """

    count: Callable[[Call], OperatorWork] | None = None
    product: Product = ""
    argument_types: Mapping[int, str] = field(default_factory=dict)
    output_types: Mapping[int, str] = field(default_factory=dict)
    output_from: Literal["arguments", "consumers"] = "arguments"
    by_kernels: tuple[str, ...] = ()
    sequences: tuple[int, ...] = ()
    masks: bool = False
    whole: bool = False
    layer: bool = False
    parameters: bool = False
    by_step: bool = False
    phase: Phase | Literal[""] = ""


FORMULAS: Final[dict[str, Formula]] = {}
"""By the name of an operator."""
COPY: Final = "aten::copy_"
NONZERO: Final = "aten::nonzero"
FUSED: Final = "triton_"
"""Prefix of the kernels of torch.compile; the formula of all is under this."""
_UNKNOWN: Final = Formula()
_LINE: Final = re.compile(r"(?<=[a-z])_[0-9]{1,6}$")
"""Line of the source that a profiler writes behind a name; `*` in place of it in `FORMULAS`."""
_SHOWN: Final = 8
"""Sizes in an error: those of a list of parameters may be thousands."""
_Count = Callable[[Call], OperatorWork]


def register(names: tuple[str, ...], known: Formula) -> None:
    """Say what is known of operators.

    Raises
    ------
    ValueError
        If something is known of one already.
    """
    for name in names:
        if name in FORMULAS:
            raise ValueError(f"expected every operator once; got {name} twice; leave one out")
        FORMULAS[name] = known


def formula(*names: str, **facts: Any) -> Callable[[_Count], _Count]:
    """Register a function as what counts operators, with other facts of `Formula`."""

    def registered(count: _Count) -> _Count:
        register(names, Formula(count, **facts))
        return count

    return registered


def formula_of(name: str) -> Formula:
    """What is known of an operator; nothing of others.

    >>> formula_of("aten::mm").product, formula_of("aten::view").count
    ('gemm', None)
    """
    found = FORMULAS.get(FUSED if name.startswith(FUSED) else name)
    return found or FORMULAS.get(_LINE.sub("_*", name), _UNKNOWN)


def work_of(call: Call) -> OperatorWork | None:
    """Count one call; None if no formula is for it, or the sizes do not say what that needs.

    Raises
    ------
    FormulaError
        If the formula fails in any other way than by a `SizesError`.
    """
    count = formula_of(call.name).count
    if count is None:
        return None
    try:
        return count(call)
    except SizesError:
        return None
    except Exception as error:
        raise FormulaError(
            f"{printable(call.name)}: expected a formula that takes the sizes "
            f"{[*map(list, call.sizes[:_SHOWN])]}; got {type(error).__name__}: {error}; correct "
            f"{count.__name__} in {__name__}"
        ) from error


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


@formula("aten::mm", "aten::_int_mm", "aten::_scaled_mm", "aten::_scaled_mm_v2", product="gemm")
def mm(call: Call) -> OperatorWork:
    """[M, K] x [K, N]: 2 M K N (flop_counter.mm_flop, _scaled_mm_flop); reads both, writes M N.

    The scales of float8 are small. An element of 4 bits is two of K.
    """
    (m, k), (k2, n) = call.size(0, 2), call.size(1, 2)
    _equal(k, k2)
    k *= 1 + (call.dtype == "float4")
    return OperatorWork(mm_flops(m, k, n), call.read(0, 1), m * n * call.item, (m, n, k))


@formula("aten::addmm", "aten::_addmm_activation", "aten::addmm_", product="gemm")
def addmm(call: Call) -> OperatorWork:
    """A GEMM as `mm` of the last two, and what is added (flop_counter.addmm_flop)."""
    (m, k), (k2, n) = call.size(1, 2), call.size(2, 2)
    _equal(k, k2)
    return OperatorWork(mm_flops(m, k, n), call.read(0, 1, 2), m * n * call.item, (m, n, k))


@formula("aten::bmm", product="other")
def bmm(call: Call) -> OperatorWork:
    """B GEMMs [M, K] x [K, N]: 2 B M K N (flop_counter.bmm_flop)."""
    (b, m, k), (b2, k2, n) = call.size(0, 3), call.size(1, 3)
    _equal((b, k), (b2, k2))
    return OperatorWork(b * mm_flops(m, k, n), call.read(0, 1), b * m * n * call.item)


@formula("aten::baddbmm", "aten::baddbmm_", product="other")
def baddbmm(call: Call) -> OperatorWork:
    """As `bmm` of the last two, and what is added (flop_counter.baddbmm_flop)."""
    (b, m, k), (b2, k2, n) = call.size(1, 3), call.size(2, 3)
    _equal((b, k), (b2, k2))
    return OperatorWork(b * mm_flops(m, k, n), call.read(0, 1, 2), b * m * n * call.item)


@formula("aten::linear", product="other")
def linear(call: Call) -> OperatorWork:
    """[..., K] x [N, K]^T: 2 K N for every row; counts where no GEMM inside does."""
    x, (n, k) = call.size(0, least=1), call.size(1, 2)
    _equal(x[-1], k)
    rows = prod(x[:-1])
    return OperatorWork(mm_flops(rows, k, n), call.read(0, 1, 2), rows * n * call.item)


@formula("aten::mv", "aten::addmv", product="other")
def mv(call: Call) -> OperatorWork:
    """[M, K] x [K]: 2 M K."""
    m, k = _first(call, 2)
    return OperatorWork(2 * m * k, call.everything(), m * call.item)


@formula("aten::dot", "aten::vdot", product="other")
def dot(call: Call) -> OperatorWork:
    """[K] x [K]: 2 K."""
    return OperatorWork(2 * numel(call.size(0)), call.read(0, 1), call.item)


@formula("aten::_grouped_mm", product="other")
def grouped_mm(call: Call) -> OperatorWork:
    """GEMMs of groups that share an axis: every row is in one group, so the count is one's.

    [T, K] x [G, K, N] is 2 T K N; [G, M, K] x [K, T] is 2 M K T; [M, T] x [T, N], whose groups
    part the inner axis, makes G GEMMs of 2 M N T in all, one for each end of a group;
    [G, M, K] x [G, K, N] is `bmm`
    (torch/_meta_registrations.py, `_meta_grouped_mm_common`).
    """
    return _grouped_mm(call, ends=2)


@formula("aten::_scaled_grouped_mm", product="other")
def scaled_grouped_mm(call: Call) -> OperatorWork:
    """As `grouped_mm`, of float8; two scales stand before the ends of the groups."""
    return _grouped_mm(call, ends=4)


def _grouped_mm(call: Call, ends: int) -> OperatorWork:
    a, b = call.size(0, least=2), call.size(1, least=2)
    if len(a) == 3 and len(b) == 3:
        return bmm(call)
    if len(a) > 3 or len(b) > 3:
        raise SizesError
    k, m = a[-1], a[-2]
    n = b[-1]
    groups = call.size(ends, 1)[0] if len(a) == len(b) == 2 else 1
    return OperatorWork(mm_flops(m, k, n), call.read(0, 1), groups * m * n * call.item)


# --- recurrent layers


@formula("aten::_cudnn_rnn", "aten::miopen_rnn", product="other")
def rnn(call: Call) -> OperatorWork:
    """2 FLOPs a weight of the matrices for every row of the input: [T, B, in] or packed [rows, in].

    Every gate multiplies the input and the state of the step before (S. Hochreiter, J. Schmidhuber,
    Long Short-Term Memory, 1997); of two directions and several layers each has its matrices, which
    stand between input and first state. Reads its arguments, writes the states of every layer
    (FlopCounterMode counts nothing).
    """
    rows, weights, read = _recurrent(call)
    state = _first(call, 3, after=1)
    written = rows * state[0] * state[2] * call.item
    return OperatorWork(2 * rows * weights, read, written)


@formula("aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward", product="other")
def rnn_backward(call: Call) -> OperatorWork:
    """Two GEMMs of each of `rnn`: of the gradient of what went in, and of the weights.

    Reads its arguments, writes the gradients of input and weights.
    """
    rows, weights, read = _recurrent(call)
    return OperatorWork(4 * rows * weights, read, (numel(call.size(0)) + weights) * call.item)


def _recurrent(call: Call) -> tuple[int, int, int]:
    """Rows of the input, elements of the matrices, and bytes that are read.

    cuDNN takes all weights as one flat argument, too, which is not read again.
    """
    x, state = call.size(0, least=2), _first(call, 3, after=1)
    matrices = call.sizes[1 : call.sizes.index(state, 1)]
    weights = sum(numel(size) for size in matrices if len(size) == 2)
    if len(x) > 3 or not weights:
        raise SizesError
    flat = next((i for i, size in enumerate(matrices, 1) if numel(size) > weights), None)
    read = call.everything() - (call.read(flat) if flat is not None else 0)
    return prod(x[:-1]), weights, read


@formula("aten::_thnn_fused_lstm_cell")
def lstm_cell(call: Call) -> OperatorWork:
    """Reads the gates' sums and the state; writes two new states and the gates."""
    written = 2 * numel(call.size(2)) + numel(call.size(0))
    return OperatorWork(0, call.everything(), written * call.item)


@formula("aten::_thnn_fused_gru_cell")
def gru_cell(call: Call) -> OperatorWork:
    """Reads the gates' sums and the state; writes the new state and five numbers for each."""
    return OperatorWork(0, call.everything(), 6 * numel(call.size(2)) * call.item)


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
    product="convolution", output_from="consumers",
)  # fmt: skip
def convolution(call: Call) -> OperatorWork:
    """`conv_flops` of the result, whose size its backward or its consumer says."""
    x, w = call.size(0), call.size(1)
    if call.out is None or not is_convolved(call.out, x, w):
        raise SizesError
    flops = conv_flops(call.out[2:], x[0], w)
    read = conv_input(x, w, call.out) * call.items[0] + call.read(1)
    return OperatorWork(flops, read, numel(call.out) * call.item)


@formula("aten::cudnn_convolution_transpose", "aten::miopen_convolution_transpose",
         "aten::slow_conv_transpose2d", "aten::slow_conv_transpose3d",
         product="transposed", output_from="consumers")  # fmt: skip
def convolution_transpose(call: Call) -> OperatorWork:
    """`conv_flops` of the input (flop_counter.conv_flop_count, transposed)."""
    x, w = call.size(0, least=3), call.size(1, least=3)
    written = numel(call.out) * call.item if call.out else 0
    return OperatorWork(conv_flops(x[2:], x[0], w), call.read(0, 1), written)


@formula("aten::convolution_backward", product="gradients", output_from="consumers")
def convolution_backward(call: Call) -> OperatorWork:
    """The forward's FLOPs for each gradient that is asked for: of the input, of the weight.

    flop_counter.conv_backward_flop counts the weight's too high by the number of groups: it takes
    the transposed input for [in, N, ...], not for [in / groups, N, ...]. Each gradient reads the
    gradient of the result and its other factor.
    """
    dy, x, w = call.size(0), call.size(1), call.size(2)
    transposed = is_transposed(dy, x, w, call.transposed)
    if not (transposed or is_convolved(dy, x, w)):
        raise SizesError
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
    product="attention", whole=True,
)  # fmt: skip
def attention(call: Call) -> OperatorWork:
    """2 (D + Dv) a score: the score itself and its product with the values.

    Reads queries, keys, values, writes the result and 4 bytes a row.
    """
    (b, h, s, d), k, v = (call.size(i, 4) for i in range(3))
    written = b * h * s * (v[3] * call.item + 4)
    flops = 2 * scores((b, h, s, d), k, causal=call.causal) * (d + v[3])
    return OperatorWork(flops, call.read(0, 1, 2), written, (b * h, s, d))


@formula(
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_scaled_dot_product_fused_attention_overrideable_backward",
    product="attention", whole=True, by_kernels=("convert_dq", "fmha_reduce_head"),
)  # fmt: skip
def attention_backward(call: Call) -> OperatorWork:
    """2 (3 D + 2 Dv) a score: the score again, and four gradients (sdpa_backward_flop_count).

    The arguments are the result's gradient, queries, keys, values. Reads these, the result and
    4 bytes a row; the sum of gradient times result, which every back end takes first, reads the
    gradient and the result; writes three gradients. Back ends that add the queries' gradient up in
    float32 read and write that too, and cuDNN's, of grouped queries, gradients of every head.
    """
    q, k, v = (call.size(i, 4) for i in (1, 2, 3))
    b, h, s, d = q
    flops = 2 * scores(q, k, causal=call.causal) * (3 * d + 2 * v[3])
    read = 3 * call.read(0) + call.read(1, 2, 3) + 4 * b * h * s
    written = call.read(1, 2, 3)
    if "convert_dq" in call.kernels:
        read, written = read + 8 * numel(q), written + 4 * numel(q)
    if "fmha_reduce_head" in call.kernels:
        heads = b * h * k[2] * (d + v[3]) * call.items[2]
        read, written = read + heads, written + heads
    return OperatorWork(flops, read, written, (b * h, s, d))


@formula("aten::_flash_attention_forward", product="attention", sequences=(3,))
@formula("aten::_efficient_attention_forward", product="attention", sequences=(4,))
@formula("xformers_flash::flash_fwd", product="attention", sequences=(3,))
@formula("xformers::efficient_attention_forward_cutlass", product="attention", sequences=(3, 4))
@formula("flash_attn::_flash_attn_forward", "flashattn::_flash_attn_forward", "FlashAttnFunc",
         "flash_attn_3::_flash_attn_forward", "flash_attn_3::fwd", "aiter::mha_fwd",
         "aiter::fmha_v3_fwd", product="attention")  # fmt: skip
def flash_attention(call: Call) -> OperatorWork:
    """As `attention`, of queries, keys and values [B, S, H, D] (flash_attn_interface.py).

    T. Dao, FlashAttention-2 (2023), counts 4 S² D H of a forward pass, as D = Dv gives.
    """
    return attention(replace(call, sizes=_heads_first(call, 0)))


@formula("sage_fwd_*", product="attention")
def sage_attention(call: Call) -> OperatorWork:
    """As `attention`: AITER's kernel of SageAttention, which torch.compile calls by its own name.

    Queries, keys and values are of 8 bits, [B, H, S, D] or [B, S, H, D]; the queries' scales
    [B, H, blocks] say which (ROCm/aiter, aiter/ops/triton/attention/fav3_sage.py: sage_fwd).
    """
    heads, query = call.size(4, 3)[1], call.size(0, 4)
    if query[1] == heads:
        return attention(call)
    if query[2] != heads:
        raise SizesError
    return attention(replace(call, sizes=_heads_first(call, 0)))


@formula("aten::_flash_attention_backward", "aten::_efficient_attention_backward",
         product="attention", sequences=(6,), by_kernels=("convert_dq",))  # fmt: skip
@formula("xformers_flash::flash_bwd", product="attention", sequences=(7,),
         by_kernels=("convert_dq",))  # fmt: skip
@formula("xformers::efficient_attention_backward_cutlass", product="attention", sequences=(5, 6),
         by_kernels=("convert_dq",))  # fmt: skip
@formula("flash_attn::_flash_attn_backward", "flashattn::_flash_attn_backward",
         "flash_attn_3::_flash_attn_backward", "flash_attn_3::bwd", product="attention",
         by_kernels=("convert_dq",))  # fmt: skip
def flash_attention_backward(call: Call) -> OperatorWork:
    """As `attention_backward`, of [B, S, H, D]: 2.5 times the forward's FLOPs (Dao, 2023)."""
    at = next((i for i, size in enumerate(call.sizes) if size), 0)  # the result's gradient
    found = _heads_first(call, at + 1)
    return attention_backward(
        replace(call, sizes=(call.sizes[at], *found), items=call.items[at : at + 4])
    )


def _heads_first(call: Call, first: int) -> Sizes:
    """Sizes [B, H, S, D] of queries, keys and values that are [B, S, H, D].

    Of sequences of several lengths, which lie one behind the other, the sizes do not say the
    lengths.
    """
    begins = [call.sizes[i] for i in formula_of(call.name).sequences if i < len(call.sizes)]
    if any(len(size) == 1 and size != (0,) for size in begins):
        raise SizesError
    found = (call.size(i, 4) for i in range(first, first + 3))
    return tuple((b, h, s, d) for b, s, h, d in found)


# --- normalization


register(("aten::rms_norm", "aten::dropout"), Formula(layer=True))  # others inside do the work


@formula("aten::native_layer_norm", layer=True, output_types={1: "float32", 2: "float32"})
def layer_norm(call: Call) -> OperatorWork:
    """Reads the input and its weights once, writes the result and two statistics of every row."""
    return _layer_norm(call, statistics=2)


@formula("aten::_fused_rms_norm", "aten::_fused_rms_norm_", layer=True,
         output_types={1: "float32"})  # fmt: skip
def rms_norm(call: Call) -> OperatorWork:
    """As `layer_norm`, with one statistic of every row."""
    return _layer_norm(call, statistics=1)


def _layer_norm(call: Call, statistics: int) -> OperatorWork:
    x = call.size(0, least=1)
    weights = [i for i in range(1, len(call.sizes)) if call.sizes[i]]
    inner = max((numel(call.sizes[i]) for i in weights), default=x[-1])
    rows = numel(x) // max(inner, 1)
    return OperatorWork(0, call.read(0, *weights), numel(x) * call.item + statistics * 4 * rows)


@formula("aten::native_layer_norm_backward", "aten::_fused_rms_norm_backward")
def layer_norm_backward(call: Call) -> OperatorWork:
    """Two kernels, of the input's gradient and the weights', each reads gradient and input."""
    rest = call.everything() - call.read(0, 1)
    weights = sum(numel(s) for s in call.sizes[2:] if len(s) == 1) * call.item
    return OperatorWork(0, 2 * call.read(0, 1) + rest, call.read(1) + weights)


@formula("aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::_batch_norm_with_update",
         "aten::_native_batch_norm_legit", layer=True, by_kernels=("transform_input", "statistics"),
         output_types={1: "float32", 2: "float32"})  # fmt: skip
def batch_norm(call: Call) -> OperatorWork:
    """Statistics of the whole batch come first: two passes in training, one with fixed ones."""
    fixed = "transform_input" in call.kernels and "statistics" not in call.kernels
    once = call.read(0)
    return OperatorWork(0, once * (1 if fixed else 2), numel(call.size(0)) * call.item)


@formula("aten::native_batch_norm_backward", "aten::cudnn_batch_norm_backward",
         "aten::batch_norm_backward", "aten::native_group_norm_backward")  # fmt: skip
def batch_norm_backward(call: Call) -> OperatorWork:
    """Two passes, each over gradient and input: their sums, then the input's gradient."""
    return OperatorWork(0, 2 * call.read(0, 1), numel(call.size(1)) * call.item)


@formula("aten::batch_norm_stats", layer=True)
def batch_norm_stats(call: Call) -> OperatorWork:
    """Of a batch norm over ranks the first pass: reads the input, writes moments in float32."""
    return OperatorWork(0, call.read(0), 2 * 4 * call.size(0, least=2)[1])


@formula("aten::batch_norm_elemt")
def batch_norm_elemt(call: Call) -> OperatorWork:
    """Of a batch norm over ranks the second pass: reads the input, writes the result."""
    return OperatorWork(0, call.read(0), numel(call.size(0)) * call.item)


@formula("aten::batch_norm_backward_reduce")
def batch_norm_backward_reduce(call: Call) -> OperatorWork:
    """Sums over gradient and input: reads both, writes 4 numbers of float32 a channel."""
    return OperatorWork(0, call.read(0, 1), 4 * 4 * call.size(1, least=2)[1])


@formula("aten::batch_norm_backward_elemt")
def batch_norm_backward_elemt(call: Call) -> OperatorWork:
    """Reads gradient and input, writes the input's gradient."""
    return OperatorWork(0, call.read(0, 1), numel(call.size(1)) * call.item)


@formula("aten::native_group_norm", layer=True)
def group_norm(call: Call) -> OperatorWork:
    """Two passes over the input: moments of every group, then the result."""
    return OperatorWork(0, 2 * call.read(0), numel(call.size(0)) * call.item)


# --- Fourier transforms: FLOPs are none, as for all but products (the library chooses how)


@formula("aten::_fft_c2c", by_kernels=("fft",))
def fourier(call: Call) -> OperatorWork:
    """Every kernel of cuFFT reads its input once and writes as much, complex numbers of 2 reals."""
    once = 2 * numel(call.size(0)) * call.item
    return OperatorWork(0, _passes(call) * once, _passes(call) * once)


@formula("aten::_fft_r2c", output_from="consumers", by_kernels=("fft",))
def fourier_of_reals(call: Call) -> OperatorWork:
    """As `fourier`, but the first kernel reads reals.

    There are n/2 + 1 complex numbers for every n reals along one axis, which the size of the result
    says, else the last.
    """
    x = call.size(0, least=1)
    count, made = numel(x), numel(call.out or ())
    if not count:
        return OperatorWork(0, 0, 0)
    numbers = [count // n * (n // 2 + 1) for n in x] + [count]  # or both halves along an axis
    made = made if made in numbers else numbers[len(x) - 1]
    half = 2 * made * call.item
    return OperatorWork(0, count * call.item + (_passes(call) - 1) * half, _passes(call) * half)


@formula("aten::_fft_c2r", output_from="consumers", by_kernels=("fft",))
def fourier_to_reals(call: Call) -> OperatorWork:
    """As `fourier_of_reals`, backwards: the last kernel writes reals."""
    x = call.size(0, least=1)
    count, made = numel(x), numel(call.out or ())
    if not count:
        return OperatorWork(0, 0, 0)
    numbers = [count // n * length for n in x for length in (2 * n - 2, 2 * n - 1)]
    made = made if made in numbers else count // x[-1] * 2 * (x[-1] - 1)
    half = 2 * count * call.item
    return OperatorWork(0, _passes(call) * half, (_passes(call) - 1) * half + made * call.item)


def _passes(call: Call) -> int:
    """Kernels of cuFFT."""
    return max(call.kernels.count("fft"), 1)


# --- softmax and losses


@formula("aten::_softmax", "aten::_log_softmax")
def softmax(call: Call) -> OperatorWork:
    """A row is read once: it stays in registers, shared memory or L2."""
    return OperatorWork(0, call.read(0), numel(call.size(0)) * call.item)


@formula("aten::_softmax_backward_data", "aten::_log_softmax_backward_data")
def softmax_backward(call: Call) -> OperatorWork:
    """Reads the gradient and the result, writes the input's gradient."""
    return OperatorWork(0, call.read(0, 1), numel(call.size(1)) * call.item)


_SECTOR: Final = 32
"""Bytes that one access to memory moves at least (CUDA Programming Guide, device memory)."""


@formula("aten::nll_loss_forward", "aten::nll_loss2d_forward", argument_types={1: "int64"})
def nll_loss(call: Call) -> OperatorWork:
    """One element a row, which moves a sector, and the row's class."""
    rows = numel(call.size(1))
    return OperatorWork(0, rows * (_SECTOR + 8), 2 * call.item)


@formula("aten::nll_loss_backward", "aten::nll_loss2d_backward", argument_types={2: "int64"})
def nll_loss_backward(call: Call) -> OperatorWork:
    """One element a row; the zeros around it are another operator's."""
    rows = numel(call.size(2))
    return OperatorWork(0, rows * (_SECTOR + 8), rows * _SECTOR)


# --- element-wise

_UNARY_AND_BINARY: Final = (
    "abs", "add", "sub", "rsub", "mul", "div", "pow", "exp", "exp2", "expm1", "log", "log2",
    "log10", "log1p", "sqrt", "rsqrt", "neg", "sin", "cos", "tan", "tanh", "sigmoid", "silu",
    "mish", "gelu", "relu", "relu6", "elu", "celu", "selu", "softplus", "leaky_relu", "hardtanh",
    "hardswish", "hardsigmoid", "log_sigmoid_forward", "threshold", "clamp", "clamp_min",
    "clamp_max", "lerp", "addcmul", "addcdiv", "maximum", "minimum",
    "square", "sign", "erf", "erfc", "floor", "ceil", "round", "trunc", "remainder", "fmod",
    "reciprocal", "atan2", "floor_divide", "true_divide", "nan_to_num", "bitwise_and",
    "bitwise_or", "bitwise_xor", "__and__", "__or__", "silu_backward", "gelu_backward",
    "threshold_backward", "tanh_backward", "sigmoid_backward", "hardswish_backward",
    "hardtanh_backward", "hardsigmoid_backward", "elu_backward", "leaky_relu_backward",
    "softplus_backward", "mish_backward", "glu_backward", "triu", "flip", "roll",
    "constant_pad_nd", "repeat", "_prelu_kernel", "_prelu_kernel_backward", "logit", "sgn",
    "frac", "xlogy", "hypot", "copysign",
)  # fmt: skip
_LOGICAL: Final = (
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor",
    "bitwise_not", "isnan", "isinf", "isfinite", "isin", "isneginf", "isposinf", "signbit",
)  # fmt: skip


@formula(*(f"aten::{n}{end}" for n in _UNARY_AND_BINARY for end in ("", "_")))
@formula("aten::where", argument_types={0: "bool"})
@formula("aten::masked_fill", "aten::masked_fill_", "aten::native_dropout_backward",
         argument_types={1: "bool"})  # fmt: skip
@formula("aten::tril", "aten::tril_", output_types={0: "bool"})  # of a causal mask
@formula("aten::mse_loss", "aten::binary_cross_entropy_with_logits", "aten::smooth_l1_loss",
         "aten::mse_loss_backward", "aten::binary_cross_entropy", "aten::huber_loss",
         "aten::huber_loss_backward", "aten::smooth_l1_loss_backward",
         "aten::binary_cross_entropy_backward")  # fmt: skip
def elementwise(call: Call) -> OperatorWork:
    """Reads every operand once (a broadcast one as small as it is), writes the result.

    An operator whose name ends in an underscore writes its first operand. What sums a loss up is
    another operator, or reads no more.
    """
    out = call.size(0) if call.in_place else broadcast(*call.sizes)
    return OperatorWork(0, call.everything(), max(numel(out), 1) * call.item)


@formula("aten::glu")
def glu(call: Call) -> OperatorWork:
    """Reads the input, of which one half gates the other; writes half as much."""
    return OperatorWork(0, call.read(0), numel(call.size(0)) // 2 * call.item)


@formula(*(f"aten::{n}_" for n in _LOGICAL))
@formula(*(f"aten::{n}" for n in _LOGICAL), output_types={0: "bool"})
def comparison(call: Call) -> OperatorWork:
    """As `elementwise`; the result has a byte an element."""
    return OperatorWork(0, call.everything(), numel(broadcast(*call.sizes)))


@formula(COPY)
def copy(call: Call) -> OperatorWork:
    """Reads the second argument, writes the first, each in its own type."""
    return OperatorWork(0, call.read(1), max(call.read(0), call.item))


@formula("aten::_local_scalar_dense")
def item(call: Call) -> OperatorWork:
    """Copies one element to the host."""
    return OperatorWork(0, call.item, call.item)


@formula("aten::fill_", "aten::zero_", "aten::random_", "aten::bernoulli_", "aten::normal_",
         "aten::uniform_", "aten::exponential_", "aten::eye", "aten::linspace",
         "aten::randperm")  # fmt: skip
@formula("aten::arange", output_types={0: "int64"})
def fill(call: Call) -> OperatorWork:
    """Writes all elements, and reads none."""
    written = max((numel(s) for s in call.sizes), default=0)
    return OperatorWork(0, 0, max(written, 1) * call.item)


@formula("aten::native_dropout", "aten::_fused_dropout", layer=True, output_types={1: "bool"})
def dropout(call: Call) -> OperatorWork:
    """Reads the input; writes the result and a mask of a byte an element."""
    return OperatorWork(0, call.read(0), numel(call.size(0)) * (call.item + 1))


@formula("aten::cat", "aten::stack", "aten::_cat")
def cat(call: Call) -> OperatorWork:
    """Reads and writes every part once."""
    return OperatorWork(0, call.everything(), sum(map(numel, call.sizes)) * call.item)


@formula("aten::_chunk_cat")
def chunk_cat(call: Call) -> OperatorWork:
    """Reads every part, writes the last argument."""
    places = range(len(call.sizes))
    return OperatorWork(0, call.read(*places[:-1]), call.read(*places[-1:]))


@formula("aten::split_with_sizes_copy")
def split_copy(call: Call) -> OperatorWork:
    """Reads the first argument, writes as much in parts."""
    return OperatorWork(0, call.read(0), call.read(0))


# --- reductions and pooling


_REDUCTIONS: Final = (
    "sum", "mean", "amax", "amin", "max", "min", "std", "var", "var_mean", "std_mean", "prod",
    "norm", "linalg_vector_norm", "logsumexp", "argmax", "argmin", "any", "all", "count_nonzero",
    "nansum", "mean_out",
)  # fmt: skip


@formula(*(f"aten::{n}" for n in _REDUCTIONS), output_from="consumers")
def reduction(call: Call) -> OperatorWork:
    """Reads the input once; writes the result, whose size its consumer says, or one element."""
    x = call.size(0)
    written = numel(call.out) if call.out and numel(call.out) <= numel(x) else 1
    return OperatorWork(0, call.read(0), written * call.item)


@formula("aten::cumsum", "aten::cumprod")
def cumulative(call: Call) -> OperatorWork:
    """Reads the input, writes as much."""
    return OperatorWork(0, call.read(0), numel(call.size(0)) * call.item)


@formula("aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices",
         output_from="consumers", output_types={1: "int64"})  # fmt: skip
def max_pool(call: Call) -> OperatorWork:
    """Reads the input; writes the result and the place of every maximum, 8 bytes."""
    if call.out is None or call.out[:2] != call.size(0)[:2]:
        raise SizesError
    return OperatorWork(0, call.read(0), numel(call.out) * (call.item + 8))


@formula("aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward",
         argument_types={7: "int64"})  # fmt: skip
def max_pool_backward(call: Call) -> OperatorWork:
    """Reads the gradient and the places of maxima, 8 bytes; writes the input's gradient."""
    read = call.read(0) + 8 * numel(call.size(0))
    return OperatorWork(0, read, numel(call.size(1)) * call.item)


@formula("aten::avg_pool2d", "aten::_adaptive_avg_pool2d", "aten::avg_pool3d",
         "aten::_adaptive_avg_pool3d",
         *(f"aten::upsample_{how}{end}"
           for how in ("nearest1d", "nearest2d", "nearest3d", "bilinear2d", "bicubic2d",
                       "trilinear3d")
           for end in ("", "_backward")), output_from="consumers")  # fmt: skip
def pool(call: Call) -> OperatorWork:
    """Reads the input, writes the result, whose size its consumer says.

    Likewise the backward of an interpolation, of whose arguments only the gradient is a tensor.
    """
    if call.out is None or call.out[:2] != call.size(0)[:2]:
        raise SizesError
    return OperatorWork(0, call.read(0), numel(call.out) * call.item)


@formula("aten::avg_pool2d_backward", "aten::_adaptive_avg_pool2d_backward",
         "aten::avg_pool3d_backward", "aten::_adaptive_avg_pool3d_backward")  # fmt: skip
def pool_backward(call: Call) -> OperatorWork:
    """Reads the gradient, writes the input's."""
    return OperatorWork(0, call.read(0), numel(call.size(1)) * call.item)


@formula("torchvision::roi_align", output_from="consumers")
def roi_align(call: Call) -> OperatorWork:
    """Reads the features and the boxes; writes the result, whose size its consumer says.

    Boxes of a detector overlap and cover the image, so that every feature counts once
    (torchvision/csrc/ops/cuda/roi_align_kernel.cu interpolates several times between four).
    """
    x, boxes = call.size(0, 4), call.size(1, 2)
    if call.out is None or len(call.out) != 4 or call.out[:2] != (boxes[0], x[1]):
        raise SizesError
    return OperatorWork(0, call.read(0, 1), numel(call.out) * call.item)


@formula("torchvision::_roi_align_backward", output_from="consumers")
def roi_align_backward(call: Call) -> OperatorWork:
    """Reads the result's gradient and the boxes, adds to every feature's gradient."""
    if call.out is None or len(call.out) != 4 or call.out[1] != call.size(0, 4)[1]:
        raise SizesError
    made = numel(call.out) * call.item
    return OperatorWork(0, call.read(0, 1) + made, made)


# --- embeddings and indices


_WIDENED: Final = ("vectorized_gather",)
"""A kernel that takes whole rows of an index that was widened to them."""

_MOST: Final = 2**63 - 1
"""Elements of a tensor at most: PyTorch counts them in 64 bits."""


def distinct_rows(rows: int, draws: int) -> int:
    """Rows that draws from a table name at least once on average, each as likely: V(1-(1-1/V)^N).

    >>> distinct_rows(8192, 8192)
    5179
    """
    if rows <= 1 or max(rows, draws) > _MOST:
        return min(rows, draws)
    return round(-rows * math.expm1(draws * math.log1p(-1 / rows)))


@formula("aten::embedding", argument_types={1: "int64"}, layer=True, by_kernels=_WIDENED)
@formula("aten::index_select", argument_types={2: "int64"}, by_kernels=_WIDENED)
def embedding(call: Call) -> OperatorWork:
    """Reads every row that is named once, and the indices; writes a row for every index.

    An index that `aten::embedding` widened to rows is read once for each row.
    """
    table, index = call.size(0, least=1), _first(call, after=1)
    width = prod(table[1:])
    widened = bool(call.kernels) and len(index) > 1
    draws = prod(index[:-1]) if widened else numel(index)
    read = distinct_rows(table[0], draws) * width * call.items[0] + 8 * draws
    return OperatorWork(0, read, draws * width * call.item)


@formula("aten::gather", argument_types={2: "int64"}, by_kernels=_WIDENED)
def gather(call: Call) -> OperatorWork:
    """Reads an element and an index for each index, unless the indices name whole rows."""
    index = _first(call, after=1)
    if call.kernels and len(index) > 1:
        return embedding(call)
    return OperatorWork(0, numel(index) * (8 + call.item), numel(index) * call.item)


@formula("aten::embedding_dense_backward", argument_types={1: "int64"}, output_from="consumers",
         by_kernels=("sum_and_scatter",))  # fmt: skip
def embedding_backward(call: Call) -> OperatorWork:
    """Reads the gradient and the indices, writes a row of float32 for every distinct index.

    These sums are read again and added to the result (aten/src/ATen/native/cuda/
    EmbeddingBackwardKernel.cu; for few indices one kernel adds to the result at once).
    """
    grad, index = call.size(0, least=1), call.size(1)
    rows = call.out[0] if call.out and len(call.out) == 2 else numel(index)
    distinct = distinct_rows(rows, numel(index)) * grad[-1]
    sums = 4 * distinct if call.kernels else 0
    read = call.read(0) + 8 * numel(index) + sums
    return OperatorWork(0, read, distinct * call.item + sums)


def _indexed(call: Call, last: int | None, result: Size | None) -> tuple[int, int, int]:
    """Elements that indices choose, distinct ones of them, and bytes of the indices.

    The arguments between the first and `last` are the indices; those of dimensions that are taken
    whole are not recorded, or (), so that the size of the `result` says more. A trace of
    torch.profiler names none of them.
    """
    x, indices = call.size(0), call.sizes[1:last]
    given = [size for size in indices if size]
    if not x or not (given or call.masks) or len(indices) > len(x):
        raise SizesError
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
            raise SizesError
        return call.masks[0]
    x, index = call.sizes[0], given[0]
    if len(given) > 1 or len(call.sizes[1]) == 0 or index != x[: len(index)]:
        return None
    fewer = result is not None and len(result) == len(x) and result[1:] == x[1:]
    return index if len(index) > 1 or (fewer and result != x) else None


def _masked(call: Call, mask: Size, result: Size | None) -> tuple[int, int, int]:
    """Return `_indexed`'s result for a mask: each true element's place along every dimension."""
    x, places = call.sizes[0], prod(mask)
    width = prod(x) // places if places else 0
    true = call.true
    if true is None and result and width and numel(result) % width == 0:
        true = numel(result) // width
    if true is None and result and not prod(result):
        true = 0
    if true is None or true > places or (places and prod(x) % places):
        raise SizesError
    return true * width, true * width, 8 * len(mask) * true


@formula("aten::index", output_from="consumers", masks=True)
def index(call: Call) -> OperatorWork:
    """Reads the indices and every element that they name once; writes an element for every one."""
    chosen, distinct, indices = _indexed(call, None, call.out)
    return OperatorWork(0, distinct * call.items[0] + indices, chosen * call.item)


@formula("aten::index_put_", "aten::_index_put_impl_", masks=True,
         by_kernels=("indexing_backward",))  # fmt: skip
def index_put(call: Call) -> OperatorWork:
    """Reads values and indices, writes the elements that they name; sums are read first, too."""
    values = max((i for i, size in enumerate(call.sizes) if size), default=0)
    given = call.size(values)  # of one element for all, which says nothing
    chosen, distinct, indices = _indexed(call, values, given if numel(given) > 1 else None)
    sums = distinct * call.item if call.kernels else 0
    read = min(call.read(values), chosen * call.items[values]) + indices + sums
    return OperatorWork(0, read, distinct * call.item)


@formula("aten::scatter", "aten::scatter_", argument_types={2: "int64"})
def scatter(call: Call) -> OperatorWork:
    """Reads indices and values, writes an element for each.

    The copy of the input that a new result begins with is an operator of its own.
    """
    count, values = _scattered(call)
    return OperatorWork(0, 8 * count + values, count * call.item)


@formula("aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce", "aten::scatter_reduce_",
         argument_types={2: "int64"})  # fmt: skip
def scatter_sum(call: Call) -> OperatorWork:
    """As `scatter`, and reads what the sums begin with."""
    count, values = _scattered(call)
    return OperatorWork(0, 8 * count + values + count * call.item, count * call.item)


def _scattered(call: Call) -> tuple[int, int]:
    """Elements that are written, and bytes of their values, which may be one number."""
    tensors = [i for i, size in enumerate(call.sizes) if size]
    if len(tensors) not in (2, 3) or tensors[0] != 0:
        raise SizesError
    count = numel(call.sizes[tensors[1]])
    return count, count * call.items[tensors[2]] if len(tensors) == 3 else 0


@formula("aten::index_add", "aten::index_add_", "aten::index_reduce", "aten::index_reduce_",
         argument_types={2: "int64"})  # fmt: skip
def index_add(call: Call) -> OperatorWork:
    """As `index_copy`, and reads what the sums begin with."""
    indices, values, named = _rows_named(call)
    return OperatorWork(0, indices + values + named, named)


@formula("aten::index_copy", "aten::index_copy_", argument_types={2: "int64"})
def index_copy(call: Call) -> OperatorWork:
    """Reads indices and values, writes every row that they name.

    The copy of the input that a new result begins with is an operator of its own.
    """
    indices, values, named = _rows_named(call)
    return OperatorWork(0, indices + values, named)


def _rows_named(call: Call) -> tuple[int, int, int]:
    """Bytes of indices, of a row of values for each, and of the distinct rows that they name."""
    tensors = [i for i, size in enumerate(call.sizes) if size]
    if len(tensors) < 3 or tensors[0] != 0:
        raise SizesError
    at, values = tensors[1:3]
    x, index, source = call.sizes[0], call.size(at, 1), call.size(values, len(call.sizes[0]))
    if not numel(source):
        return 8 * index[0], 0, 0
    if not index[0] or numel(source) % index[0]:
        raise SizesError
    width = numel(source) // index[0]
    rows = max(numel(x) // width, 1)
    return 8 * index[0], call.read(values), distinct_rows(rows, index[0]) * width * call.item


@formula(NONZERO, output_from="consumers")
def nonzero(call: Call) -> OperatorWork:
    """Reads the input to count and again to choose; writes 8 bytes an axis for what is chosen.

    How much is chosen its consumer says. A mask has a byte for every element.
    """
    written = 8 * numel(call.out) if call.out else 0
    return OperatorWork(0, 2 * (numel(call.size(0)) if call.masks else call.read(0)), written)


@formula("aten::histc", "aten::bincount", "aten::_histogramdd_from_bin_cts")
def histogram(call: Call) -> OperatorWork:
    """Reads the values; bins are few."""
    return OperatorWork(0, call.read(0), 0)


@formula("aten::sort", "aten::argsort")
def sort(call: Call) -> OperatorWork:
    """Reads the input; writes it in order, and the place of every element, 8 bytes."""
    count = numel(call.size(0))
    return OperatorWork(0, call.read(0), count * (call.item + 8))


@formula("aten::topk", output_from="consumers")
def topk(call: Call) -> OperatorWork:
    """Reads the input; writes as many values as their consumer says, and the place of each."""
    if call.out is None or numel(call.out) > numel(call.size(0)):
        raise SizesError
    return OperatorWork(0, call.read(0), numel(call.out) * (call.item + 8))


@formula("aten::_embedding_bag", "aten::_embedding_bag_forward_only", output_from="consumers",
         layer=True)  # fmt: skip
def embedding_bag(call: Call) -> OperatorWork:
    """Reads every row that is named once, indices, offsets and weights of the samples.

    Writes a row for every bag, the bag of every index and the size of every bag, 8 bytes each
    (aten/src/ATen/native/cuda/EmbeddingBag.cu).
    """
    table, indices, offsets = call.size(0, 2), call.size(1, 1), call.size(2, 1)
    named = distinct_rows(table[0], indices[0]) * table[1] * call.items[0]
    weights = call.read(6)
    bags = call.out[0] if call.out and call.out[1:] == table[1:] else offsets[0]
    return OperatorWork(
        0, named + 8 * (indices[0] + offsets[0]) + weights,
        bags * table[1] * call.item + 8 * (indices[0] + bags),
    )  # fmt: skip


@formula("aten::_embedding_bag_dense_backward", output_from="consumers")
def embedding_bag_backward(call: Call) -> OperatorWork:
    """Reads the gradient, indices and their bags; writes a row for every distinct index."""
    grad, indices = call.size(0, 2), call.size(1, 1)
    rows = call.out[0] if call.out and len(call.out) == 2 else indices[0]
    distinct = distinct_rows(rows, indices[0]) * grad[1]
    return OperatorWork(0, call.read(0) + 16 * indices[0], distinct * call.item)


# --- optimizers and lists of tensors


@formula("aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_",
         parameters=True)  # fmt: skip
def fused_optimizer(call: Call) -> OperatorWork:
    """Reads all its lists (parameters, gradients, moments); writes all but the gradients.

    Of Adam 4 lists, 16 bytes in and 12 out for a parameter of float32 (torch/optim/adam.py).
    """
    lists = call.depth or 4
    read = call.everything()
    return OperatorWork(0, read, read * (lists - 1) // lists)


_FOREACH: Final = (
    "add", "sub", "mul", "div", "neg", "abs", "sqrt", "rsqrt", "exp", "log", "reciprocal", "sign",
    "addcmul", "addcdiv", "lerp", "pow", "maximum", "minimum", "clamp_min", "clamp_max",
)  # fmt: skip


@formula(*(f"aten::_foreach_{n}{end}" for n in _FOREACH for end in ("", "_")), parameters=True)
@formula("aten::_foreach_copy", parameters=True)
def foreach(call: Call) -> OperatorWork:
    """Reads its lists of tensors, writes one: the first in place, or a new one."""
    total = call.everything()
    lists = max(call.depth - (not call.in_place), 1)
    return OperatorWork(0, total, total // lists)


@formula("aten::_foreach_norm", parameters=True)
def foreach_norm(call: Call) -> OperatorWork:
    """Reads a list of tensors, writes a number of float32 for each."""
    return OperatorWork(0, call.everything(), 4 * sum(1 for size in call.sizes if size))


@formula("aten::_foreach_zero", "aten::_foreach_zero_", parameters=True)
def foreach_zero(call: Call) -> OperatorWork:
    """Writes a list of tensors."""
    return OperatorWork(0, 0, call.everything())


@formula("aten::_foreach_copy_", parameters=True)
def foreach_copy(call: Call) -> OperatorWork:
    """Reads the second list of tensors, writes the first, each in its own type."""
    half = sum(1 for s in call.sizes if s) // 2
    return OperatorWork(0, call.read(*range(half, 2 * half)), call.read(*range(half)))


register(("aten::_amp_update_scale_",), Formula(phase="optimizer"))


@formula("aten::_amp_foreach_non_finite_check_and_unscale_", parameters=True, phase="optimizer")
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


@formula(FUSED)
def fused(call: Call) -> OperatorWork:
    """A kernel that torch.compile made of several operators: every buffer is moved once.

    Which are read, written or both and their types: `perfmodel.programs.pytorch.triton`. FLOPs of
    what is fused are not counted: templates of GEMMs (`triton_tem_...`) are unknown.
    """
    if "_tem_" in call.name or call.moved is None or not any(call.sizes):
        raise SizesError
    return OperatorWork(0, *call.moved)


def _equal(one: object, other: object) -> None:
    if one != other:
        raise SizesError


def _first(call: Call, dimensions: int | None = None, *, after: int = 0) -> Size:
    """Size of the first tensor of so many dimensions (of any but 0) from a place on."""
    for size in call.sizes[after:]:
        if size and dimensions in (None, len(size)):
            return size
    raise SizesError

"""Names of kernels as libraries and frameworks give them."""

from __future__ import annotations

import random
from typing import Final

_N: Final = "at::native::"
_A: Final = "at::native::<unnamed>::"


def gemms(rng: random.Random, library: str) -> tuple[str, str, str]:
    """Return the names of a matrix product at small, usual and large sizes."""
    layout = rng.choice(["TNT", "TNN", "NNT", "NTN", "NTT", "NNN"])
    tiles = sorted(
        rng.sample([(64, 64), (64, 128), (128, 128), (128, 192), (128, 256), (256, 128)], 3)
    )
    if library == "nvjet":
        small, usual, large = (
            f"nvjet_sm90_tst_{m}x{n}_64x{rng.randint(3, 8)}_{rng.choice(['1x2_h', '2x1_v'])}"
            f"_bz_{rng.choice(['', 'coopA_', 'splitK_'])}{layout}"
            for m, n in tiles
        )
    elif library == "ampere":
        end = layout[:2].lower()
        small, usual, large = (
            f"ampere_{rng.choice(['sgemm', 'bf16_s16816gemm_bf16'])}_{m}x{n}_{end}"
            for m, n in tiles
        )
    else:
        small, usual, large = (
            f"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_{m}x{n}_32x"
            f"{rng.randint(3, 6)}_{layout[:2].lower()}_align8>(T1::Params)"
            for m, n in tiles
        )
    return small, usual, large


def convolutions(rng: random.Random, which: str) -> str:
    """Return the name of a convolution; `which` is fprop, dgrad or wgrad."""
    tile = rng.choice(["64x64x64", "128x128x32", "128x64x32", "256x64x32", "64x256x32"])
    return (
        f"sm90_xmma_{which}_implicit_gemm_{rng.choice(['', 'indexed_'])}"
        f"f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize{tile}_warpgroupsize1x1x1_g1_execute_segment_k_"
        f"{rng.choice(['on', 'off'])}_kernel__5x_cudnn"
    )


def elementwise(functor: str, arguments: int = 2, vector: int = 4) -> str:
    """Return the name of an element-wise kernel of PyTorch."""
    return (
        f"void {_N}vectorized_elementwise_kernel<(int){vector}, {_N}{functor}, "
        f"std::array<char *, (unsigned long){arguments}>>(int, T2, T3)"
    )


def _lambda(function: str) -> str:
    return f"{function}(at::TensorIteratorBase &)::[lambda() (instance 1)]"


ADD: Final = elementwise("CUDAFunctor_add<float>", 3)
FILL: Final = elementwise("FillFunctor<float>", 1)
SCALE: Final = elementwise(
    f"AUnaryFunctor<float, float, float, {_N}binary_internal::MulFunctor<float>>"
)
CAST: Final = elementwise(_lambda("bfloat16_copy_kernel_cuda"))
NORMAL: Final = (
    f"void {_A}distribution_elementwise_grid_stride_kernel<float, (int)4, {_N}templates::cuda::"
    "normal_and_transform<float, float>>(long, at::PhiloxCudaState, T3, T4)"
)
UNIFORM: Final = NORMAL.replace("normal", "uniform")
ACTIVATIONS: Final = tuple(
    elementwise(_lambda(function))
    for function in ("GeluCUDAKernelImpl", "silu_kernel", "launch_clamp_scalar", "tanh_kernel_cuda")
)
ACTIVATIONS_BACKWARD: Final = tuple(
    elementwise(_lambda(function), 3)
    for function in (
        "GeluBackwardCUDAKernelImpl", "silu_backward_kernel", "threshold_kernel_impl",
        "tanh_backward_kernel_cuda",
    )
)  # fmt: skip
POINTWISE: Final = (
    ADD,
    SCALE,
    CAST,
    elementwise(f"BinaryFunctor<float, float, float, {_N}binary_internal::MulFunctor<float>>", 3),
    f"void {_N}elementwise_kernel<(int)128, (int)2, void {_N}gpu_kernel_impl_nocast<{_N}"
    "direct_copy_kernel_cuda>(int, T3)",
    f"void {_N}elementwise_kernel<(int)128, (int)4, void {_N}gpu_kernel_impl_nocast<{_N}"
    "CUDAFunctor_add<c10::BFloat16>>(int, T3)",
    f"void {_A}CatArrayBatchedCopy<{_A}OpaqueType<(unsigned int)2>, unsigned int, (int)4, (int)64>",
    f"void {_N}fused_dropout_kernel_vec<float, float, unsigned int, (int)1, (int)4, (bool)1>",
    f"void {_N}vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *, int, long)",
    f"void {_N}index_elementwise_kernel<(int)128, (int)4>(long, T3)",
)
NORM: Final = (
    f"void {_A}vectorized_layer_norm_kernel<float, float, (bool)0>(int, T2, const T1 *)",
    f"void {_A}RowwiseMomentsCUDAKernel<float>(long, T1, const T1 *, T1 *, T1 *)",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, (int)512, (bool)1>(T1)",
)
NORM_BACKWARD: Final = (
    f"void {_A}layer_norm_grad_input_kernel_vectorized<float, float, (bool)0>(const T1 *)",
    f"void {_A}GammaBetaBackwardCUDAKernelTemplate<float, float, (unsigned int)32>(long, long)",
    "void cudnn::bn_bw_1C11_singleread<float, (int)512, (bool)1, (int)1, (int)2>(T1)",
)
SUM: Final = (
    f"void {_N}reduce_kernel<(int)128, (int)4, {_N}ReduceOp<float, {_N}func_wrapper_t<float, "
    f"{_N}sum_functor<float, float, float>>, unsigned int, float, (int)4, (int)4>>(T3)"
)
MEAN: Final = (
    f"void {_N}reduce_kernel<(int)512, (int)1, {_N}ReduceOp<float, {_N}MeanOps<float, float, "
    "float, float>, unsigned int, float, (int)4, (int)4>>(T3)"
)
ARGMAX: Final = (
    f"void {_N}reduce_kernel<(int)512, (int)1, {_N}ReduceOp<float, {_N}ArgMaxOps<float>, "
    "unsigned int, long, (int)4, (int)4>>(T3)"
)
TOPK: Final = f"void {_N}sbtopk::gatherTopK<float, unsigned int, (int)2, (bool)0>(T1)"
SORT: Final = (
    "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<long, int>(T4 *)"
)
SCATTER: Final = f"void {_N}_scatter_gather_elementwise_kernel<(int)128, (int)8>(int, T3)"
SOFTMAX: Final = (
    f"void {_A}softmax_warp_forward<float, float, float, (int)10, (bool)0, (bool)0>(T2 *)"
)
SOFTMAX_BACKWARD: Final = SOFTMAX.replace("forward", "backward")
ATTENTION: Final = (
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_kernel0_0",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "
    "cutlass::bfloat16_t>, false, true, false>(pytorch_flash::Flash_fwd_params)",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)",
)
ATTENTION_BACKWARD: Final = (
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_kernel0_0",
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, "
    "128, 128, 8>>(pytorch_flash::Flash_bwd_params)",
    "fmha_cutlassB_f32_aligned_64x64_k64_sm80(PyTorchMemEffAttention::Params)",
)
DECODE_ATTENTION: Final = (
    "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>, true>(Params)",
    "void vllm::paged_attention_v1_kernel<__nv_bfloat16, __nv_bfloat16, (int)128, (int)16>",
    "BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2, 16, 8>",
)
LOSS: Final = (
    f"void {_A}cunn_SoftMaxForward<(int)4, float, float, float, {_A}LogSoftMaxForwardEpilogue>",
    f"void {_A}nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(T1 *, T1 *)",
)
LOSS_BACKWARD: Final = (
    f"void {_A}nll_loss_backward_reduce_cuda_kernel_2d<float, long>(T1 *, const T1 *)",
    f"void {_A}cunn_SoftMaxBackward<(int)4, float, float, float, {_A}LogSoftMaxBackwardEpilogue>",
)
SQUARE_LOSS: Final = (elementwise(_lambda("mse_kernel_cuda"), 3), MEAN)
SQUARE_LOSS_BACKWARD: Final = (elementwise(_lambda("mse_backward_cuda_kernel"), 3),)
EMBEDDING: Final = f"void {_A}vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *, int)"
EMBEDDING_BACKWARD: Final = (
    f"void {_A}embedding_backward_feature_kernel<float, float, long>(const T3 *, const T1 *)"
)
ALL_REDUCE: Final = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
)
SEND_RECEIVE: Final = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"


def multi_tensor(functor: str, lists: int) -> str:
    """Return the name of a kernel that goes through lists of tensors."""
    return (
        f"void {_A}multi_tensor_apply_kernel<{_A}TensorListMetadata<(int){lists}>, "
        f"{_A}{functor}>(T1, T2, T3...)"
    )


FUSED_OPTIMIZERS: Final = (
    multi_tensor("FusedAdamMathFunctor<float, (int)4, (at::native::ADAM_MODE)1, (bool)0>", 4),
    multi_tensor("FusedSgdMathFunctor<float, (int)3, (bool)0, (bool)0>", 3),
    multi_tensor("AdamFunctor<float, float, int>", 4),
    multi_tensor("LAMBStage1Functor<float, float, float>", 4),
)
FOREACH_OPTIMIZERS: Final = (
    (
        multi_tensor("BinaryOpScalarFunctor<float, (int)1, (int)1, (int)0>, std::plus<float>", 1),
        multi_tensor("TernaryOpScalarFunctor<float, (int)2, (int)2>, LerpFunctor<float>", 2),
        multi_tensor("BinaryOpScalarFunctor<float, (int)1, (int)1>, std::multiplies<float>", 1),
        multi_tensor("PointwiseOpScalarFunctor<float, (int)3>, std::multiplies<float>", 3),
        multi_tensor("UnaryOpFunctor<float, (int)2, (int)1, (int)1>, at::native::Sqrt<float>", 2),
        multi_tensor("BinaryOpScalarListFunctor<float, (int)1>, std::divides<float>", 1),
        multi_tensor("PointwiseOpListFunctor<float, (int)3>, std::divides<float>", 3),
    ),
    (
        multi_tensor("BinaryOpScalarFunctor<float, (int)1, (int)1>, std::multiplies<float>", 1),
        multi_tensor("BinaryOpListAlphaFunctor<float, (int)2, (int)2>, std::plus<float>", 2),
        multi_tensor("BinaryOpListAlphaFunctor<float, (int)2, (int)2>, std::plus<float>", 2),
    ),
)
OWN_OPTIMIZERS: Final = (
    "void adamw_kernel<float>(float *, float const *, float *, float *, long, float, float)",
    "sgd_momentum_update(float *, float const *, float *, float, float, int)",
    "void apex_fused_adam_kernel<float>(float *, float const *, float *, float *, long)",
)
LOOPED_OPTIMIZERS: Final = (
    (
        elementwise(_lambda("lerp_scalar_kernel"), 3),
        SCALE,
        elementwise(_lambda("addcmul_cuda_scalar_kernel"), 4),
        elementwise(_lambda("sqrt_kernel_cuda")),
        SCALE.replace("MulFunctor", "DivFunctor"),
        elementwise(_lambda("addcdiv_cuda_kernel"), 4),
    ),
    (SCALE, ADD, ADD),
    (ADD,),
)
"""Kernels of an optimizer for each parameter: Adam, SGD with momentum, SGD."""
UNKNOWN_OPTIMIZERS: Final = (
    ("triton_poi_fused_add_div_lerp_mul_sqrt_{}",),
    ("loop_add_multiply_fusion_{}",),
    ("void k_apply<float, (int)256>(float *, float const *, float *, long)",),
    ("axpy_kernel(int, float, float const *, float *)",),
    ("kernel_v{}", "kernel_w{}"),
    ("void saxpby_batched<float>(T1 *, T1 *, T1, T1, int)", "void rescale<float>(T1 *, T1, int)"),
)
CLIP: Final = (
    multi_tensor("LpNormFunctor<float, (NormType)1, float, (int)1, (int)1, (int)0>", 1),
    f"void {_A}lpnorm_cleanup<float, (NormType)1, float, float>(const T3 *, T4 *, int)",
    multi_tensor("BinaryOpScalarTensorFunctor<float, (int)1, (int)1>, std::multiplies<float>", 1),
)
UNSCALE: Final = multi_tensor("NonFiniteCheckAndUnscale<float>", 1)
SCALE_UPDATE: Final = f"{_A}amp_update_scale_cuda_kernel(float *, int *, const float *)"


def compiled(rng: random.Random, number: int) -> str:
    """Return the name of a kernel that a compiler made."""
    kind = rng.choice(["poi", "per", "red"])
    work = rng.choice(["add", "native_layer_norm", "gelu_view", "clone_view", "mul_sum", "relu"])
    return f"triton_{kind}_fused_{work}_{number}"


def fusion(rng: random.Random, number: int) -> str:
    """Return the name of a kernel of XLA."""
    kind = rng.choice(
        ["loop_add_fusion", "input_reduce_fusion", "loop_multiply_fusion", "wrapped_transpose"]
    )
    return f"{kind}_{number}"


def own(rng: random.Random, number: int) -> str:
    """Return the name of a kernel of a program without a framework."""
    work = rng.choice(["bias_relu", "transpose", "scale_rows", "normalize", "add", "gate", "mix"])
    return f"void {work}_k{number}<float, (int)128>(float *, float const *, int)"

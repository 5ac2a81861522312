"""A tiny report of two ranks of a PyTorch program: operators, NCCL payloads, MPI point to point."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from perfmodel.programs.pytorch.annotate import MODULE
from support.build_report import ReportBuilder

FORWARD: Final = (
    ("aten::linear, seq = {s}, op_id = {o}, sizes = [[64, 32], [96, 32], [96]], "
     "input_op_ids = [(0,-1), (0,-1), (0,-1)]", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"),
    ("aten::cudnn_convolution, seq = {s}, op_id = {o}, sizes = [[2, 3, 8, 8], [4, 3, 3, 3], []]",
     "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc"),
    ("aten::_scaled_dot_product_flash_attention, seq = {s}, op_id = {o}, sizes = [[2, 4, 16, 8], "
     "[2, 4, 16, 8], [2, 4, 16, 8]]", "void pytorch_flash::flash_fwd_kernel<bfloat16>"),
    ("triton_red_fused_gelu_sum_7, op_id = {o}, sizes = [[8, 64, 96], [1, 96, 64], [], []], "
     "input_op_ids = [({p},0), ({p},0), (0,-1), (0,-1)]", "triton_red_fused_gelu_sum_7"),
    ("aten::max_pool2d_with_indices, op_id = {o}, sizes = [[2, 4, 8, 8]], "
     "input_op_ids = [({p},0)]", "void at::native::max_pool_forward_nchw<float>"),
    ("aten::embedding, op_id = {o}, sizes = [[1000, 64], [2, 16]]",
     "void at::native::vectorized_gather_kernel<16, long>"),
)  # fmt: skip
THUNKS: Final = (
    ("Thunk:#name=jit(f)/jvp()/dot_general,hlo_op=gemm_fusion_dot.178#", "gemm_fusion_dot_178"),
    ("Thunk:#name=jit(f)/transpose(jvp())/add,hlo_op=loop_add_fusion.3#", "loop_add_fusion_3"),
)
BACKWARD: Final = (
    ("aten::convolution_backward, op_id = {o}, sizes = [[2, 4, 6, 6], [2, 3, 8, 8], [4, 3, 3, 3]]",
     "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32"),
    ("aten::mm, op_id = {o}, sizes = [[64, 96], [96, 32]], input_op_ids = [({p},0), (0,-1)]",
     "nvjet_sm90_tst_128x192_64x5_1x4_h_bz_coopB_NTN"),
)  # fmt: skip
OPTIMIZER: Final = (
    "aten::_fused_adamw_, op_id = {o}, sizes = [[96, 32], [96], [96, 32], [96], [96, 32], [96]]",
    "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, float>",
)
PAYLOAD: Final = (
    '{"NCCL communicator ID":741632126823164949,"Message size [bytes]":16777216,'
    '"Reduction operation":"Sum"}'
)
STEPS: Final = 4


def operators_report(path: Path, forward: tuple[tuple[str, str], ...] = FORWARD) -> Path:
    """Write the report; every step has the operators above, an all-reduce and two messages."""
    report = ReportBuilder("2025.3.2")
    for rank in range(2):
        report.gpu(rank)
        pid = 100 + rank
        main, engine = report.thread(pid, rank=rank), report.thread(pid, pid + 50)
        at, op = 1_000_000, 1
        for step in range(STEPS):
            begin, seq = at, 10 * step
            main_ranges = []
            for thread, calls, phase in ((main, forward, ""), (engine, BACKWARD, "backward")):
                for label, kernel in calls:
                    seq += 1
                    text = label.format(o=op, p=op - 1, s=seq)
                    domain = "TSL" if label.startswith("Thunk") else None
                    inner = at + 100
                    if phase:
                        name = (
                            f"autograd::engine::evaluate_function: MmBackward0, op_id = {op + 500}"
                        )
                        thread.range(name, at, at + 4000)
                        thread.range(f"MmBackward0, seq = {seq - 9}, op_id = {op + 900}", at + 10,
                                     at + 3900)  # fmt: skip
                    thread.range(text, inner, at + 3800, domain=domain)
                    thread.kernel(kernel, (at + 200, at + 900), (at + 2000, at + 4000 + 7 * op),
                                  device=rank)  # fmt: skip
                    op, at = op + 1, at + 5000
                if not phase:
                    main_ranges.append((begin, at))
            main.range(f"{MODULE}GPT.h.0.mlp", *main_ranges[0])
            engine.range("ncclAllReduce", at, at + 900, domain="NCCL", jsonText=PAYLOAD)
            engine.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)",
                          (at + 100, at + 800), (at + 1000 + 50 * rank, at + 4000), device=rank,
                          stream=9)  # fmt: skip
            main.mpi("MPI_Send", at + 1000, at + 1400, 4096, "p2p", remoteRank=1 - rank, tag=step)
            main.mpi("MPI_Recv", at + 1500, at + 2400, 4096, "p2p", remoteRank=1 - rank, tag=step)
            at += 5000
            main.range("Optimizer.step#AdamW.step", at, at + 4000)
            main.range(OPTIMIZER[0].format(o=op), at + 10, at + 3900)
            main.kernel(OPTIMIZER[1], (at + 20, at + 800), (at + 2000, at + 5000), device=rank)
            op, at = op + 1, at + 6000
            main.range(f"step {step}", begin - 10, at)
            at += 1000
    return report.write(path)

"""What to call in PyTorch against each loss."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.programs.findings import Actions


@dataclass(frozen=True, slots=True)
class PyTorchActions(Actions):
    """See `perfmodel.programs.findings.Actions`."""

    def launch_less(self, *, synchronizes: bool) -> str:
        """Compile, capture in a CUDA graph, or give each launch more work."""
        return (
            "launch less: torch.compile(model, mode='reduce-overhead') captures CUDA graphs; or "
            "torch.cuda.make_graphed_callables, or a larger batch per GPU"
        )

    def wait_less(self, call: str) -> str:
        """Read values later."""
        return (
            "call .item(), .cpu(), .tolist() and print on tensors of the GPU less often: sum the "
            "values up in a tensor and read it every n steps; compare and clip on the GPU"
        )

    def allocate_less(self) -> str:
        """Let the caching allocator keep its memory."""
        return (
            "drop torch.cuda.empty_cache() from the step; where memory is short or fragmented, set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )

    def compute_less(self, where: str) -> str:
        """Load data in other processes, a few batches ahead."""
        return (
            f"if the host's work{where} is data loading: DataLoader(num_workers=8, "
            f"pin_memory=True, persistent_workers=True, prefetch_factor=4); if it is Python: "
            f"torch.compile, or do it every n steps"
        )

    def pin(self, direction: str) -> str:
        """Copy from page-locked memory, without waiting."""
        if direction == "Device-to-Host":
            return "copy into a tensor with pin_memory=True by .copy_(source, non_blocking=True)"
        return (
            "DataLoader(pin_memory=True) or tensor.pin_memory() once, then "
            ".to(device, non_blocking=True), of the next batch while this one computes"
        )

    def join_messages(self, *, many: bool) -> str:
        """Let DDP's buckets overlap with the backward."""
        if many:
            return (
                "reduce gradients in buckets during the backward: "
                "DistributedDataParallel(bucket_cap_mb=25, gradient_as_bucket_view=True) in place "
                "of an all-reduce per parameter; gradient accumulation under no_sync()"
            )
        return (
            "more overlap with the backward: a smaller bucket_cap_mb of DistributedDataParallel "
            "(FSDP: backward_prefetch, forward_prefetch); gradient accumulation under no_sync()"
        )

    def help_rank(self, rank: int) -> str:
        """Find what a rank does beyond the others."""
        return (
            f"look at what rank {rank} does beyond the others (data loading, logging, "
            f"checkpoints, another GPU clock), and give every rank the same work, such as by "
            f"DistributedSampler"
        )

    def lower_precision(self) -> str:
        """Use tensor cores."""
        return (
            "torch.set_float32_matmul_precision('high') for TF32, or "
            "torch.autocast('cuda', dtype=torch.bfloat16)"
        )

    def fuse_attention(self) -> str:
        """Use the fused attention kernels."""
        return "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=...)"

    def fuse_small(self, where: str) -> str:
        """Fuse the optimizer, or compile."""
        return (
            "of an optimizer: fused=True (or foreach=True) in torch.optim; of other element-wise "
            "operations: torch.compile"
        )

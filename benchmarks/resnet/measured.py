"""The tables of what benchmarks.resnet measured, beside what the layers say."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.common.pages import markdown
from benchmarks.common.results import called
from perfmodel.machines.machine import Machine
from perfmodel.workloads.layers import Cost, total, training_bytes
from perfmodel.workloads.networks import resnet

PEAKS: Final = {
    "fp32": "float32", "tf32": "tf32_tensor", "bf16": "float16_tensor", "fp16": "float16_tensor",
}  # fmt: skip
"""The ceiling of each math's products; bf16 has fp16's."""

NETWORK: Final = ("network", "images=int", "math")
HOW: Final = {
    "time": "--part time",
    "counters": "--part counters",
    "tuned": "--part tuned",
    "ddp2": "--part ddp2",
    "ddp4": "--part ddp4",
}


def measured(result: dict[str, Any], counts: list[dict[str, Any]], ceilings: Machine | None) -> str:
    """Return all tables; what is missing says how to measure it."""
    blocks = [_torch(result), _times(result, "time", ceilings), _cold(result)]
    blocks += [_memory(result), _counters(result, counts), _phases(result, counts)]
    blocks += [_times(result, "tuned", ceilings), _ddp(result)]
    blocks += [
        f"Not measured yet: `{part}`{_why(result, part)}. On a machine with the GPUs: `python -m "
        f"benchmarks.resnet {flags}`."
        for part, flags in HOW.items() if not result.get(part, {}).get("rows")
    ]  # fmt: skip
    return "\n\n".join(block for block in blocks if block)


def _why(result: dict[str, Any], part: str) -> str:
    """Say how a part ended that has no rows."""
    if part not in result:
        return ""
    said = ", ".join(p.splitlines()[0] for p in result[part]["problems"]) or "no rows"
    return f" (tried {result[part]['date'][:10]}: {said})"


def step(result: dict[str, Any], part: str, row: dict[str, Any], batch: int | None = None) -> Cost:
    """Return what the layers say a row's training step costs."""
    image = result[part]["about"].get("image", 224)
    return total(resnet(row["net"], image), batch or row["batch"])


def with_times(result: dict[str, Any], counts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the counted cells with the time of the same step without a profiler, and all FLOPs."""
    times = {_key(r): r.get("total_s") for r in result.get("time", {}).get("rows", ())}
    found = []
    for row in counts:
        parts = [row[k] for k in ("scalar_flops", "half_flops", "tensor_flops")]
        known = [p for p in parts if p is not None]
        whole = sum(known) if row["scalar_flops"] is not None else None
        found.append({**row, "flops": whole, "total_s": times.get(_key(row))})
    return found


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["net"], row["batch"], row["math"]


def _heading(result: dict[str, Any], part: str, text: str) -> str:
    about = result[part]["about"]
    ends = [p.strip().splitlines()[-1] for p in result[part]["problems"]]  # before: its progress
    stopped = "".join(f" It ended early: {end}." for end in ends)
    return (
        f"{text} {about['device']}, torch {about['torch']}, cuDNN {about['cudnn']}, "
        f"{result[part]['date'][:10]}; `{called(result[part]['command'])}`.{stopped}"
    )


def _torch(result: dict[str, Any]) -> str:
    if "theory" not in result:
        return ""
    said = []
    for r in result["theory"]["rows"]:
        net = resnet(r["net"], r["image"])
        held = training_bytes(net, 1) - 12 * total(net).parameters
        ours = total(net)
        found = (r["parameters"], r["forward_flops"], r["backward_flops"])
        same = found == (ours.parameters, ours.forward_flops, ours.backward_flops)
        said.append(
            f"{r['net']} {r['parameters']:,} parameters, {r['forward_flops']:,} FLOPs forward and "
            f"{r['backward_flops']:,} backward, {'as' if same else 'not as'} the layers say; it "
            f"saves {r['saved_bytes'] / 1e6:.2f} MB for the backward pass, the layers say "
            f"{held / 1e6:.2f} MB"
        )
    return f"torch {result['theory']['about']['torch']} counts, for one image: {'; '.join(said)}."


def _times(result: dict[str, Any], part: str, ceilings: Machine | None) -> str:
    if part not in result:
        return ""
    columns = (
        *NETWORK, "step=s", "forward=s", "backward=s", "SGD=s", "images/s=float.0",
        "FLOPs of the layers per s=FLOP/s", "of the peak=percent", "host busy=percent.0",
    )  # fmt: skip
    rows: list[tuple[Any, ...]] = []
    for r in result[part]["rows"]:
        if r.get("total_s") is None:
            continue
        rate = step(result, part, r).flops / r["total_s"]
        peak = ceilings.peak_flops_per_s.get(PEAKS[r["math"]]) if ceilings else None
        rows.append(
            (*_key(r), r["total_s"], r["forward_s"], r["backward_s"], r["step_s"],
             r["batch"] / r["total_s"], rate, rate / peak if peak else None,
             r["host_s"] / r["total_s"])
        )  # fmt: skip
    text = {
        "time": "**Time of a training step**, without a profiler; medians of interleaved repeats; "
        "cuDNN's heuristics choose the algorithms (cudnn.benchmark off), NCHW.",
        "tuned": "**The same with cudnn.benchmark on and channels last**: cuDNN tries every "
        "algorithm.",
    }[part]
    return f"{_heading(result, part, text)}\n\n{markdown(columns, rows)}"


def _cold(result: dict[str, Any]) -> str:
    rows = [r for r in result.get("time", {}).get("rows", ()) if r.get("total_s")]
    first = {r["net"]: r for r in reversed(rows)}  # the first cell of each process
    said = [
        f"{r['net']} {1e3 * r['first_step_s']:.0f} ms, later {1e3 * r['total_s']:.1f} ms"
        for r in reversed(first.values())
    ]
    return (
        f"The first step of a process, on {rows[0]['batch']} images as in the study, loads "
        f"libraries and chooses algorithms: {'; '.join(said)}. The study's "
        f"ten images took 203 to 230 ms."
        if said else ""
    )  # fmt: skip


def _memory(result: dict[str, Any]) -> str:
    rows = []
    for r in result.get("time", {}).get("rows", ()):
        if r["math"] != "fp32" or "allocated_bytes" not in r:
            continue
        net = resnet(r["net"], result["time"]["about"].get("image", 224))
        weights, held = 4 * total(net).parameters, training_bytes(net, r["batch"])
        rows.append(
            (r["net"], r["batch"], weights, held, r["allocated_bytes"], r["reserved_bytes"],
             r["device_bytes"], r["device_bytes"] / weights)
        )  # fmt: skip
    columns = (
        *NETWORK[:2], "weights=B", "the layers say=B", "allocated=B", "reserved=B",
        "in use on the GPU=B", "in use / weights=float.0",
    )  # fmt: skip
    text = "**Memory of an fp32 step**: weights are what the study calls theoretical."
    return f"{text}\n\n{markdown(columns, rows)}" if rows else ""


def _counters(result: dict[str, Any], counts: list[dict[str, Any]]) -> str:
    if not counts:
        return ""
    columns = (
        *NETWORK, "kernels=int", "layers: FLOPs=FLOP", "FADD FMUL FFMA=FLOP", "tensor cores=FLOP",
        "FADD FMUL FFMA / layers=percent", "counted / layers=percent", "layers: bytes=B", "DRAM=B",
        "DRAM / layers=percent", "L2=B", "L1=B", "FLOP/byte=float.1", "kernels' time=s",
        "step, no ncu=s", "step under ncu=s",
    )  # fmt: skip
    rows: list[tuple[Any, ...]] = []
    for r in with_times(result, counts):
        if r["phase"] != "all":
            continue
        model = step(result, "counters", r)
        rows.append(
            (*_key(r), r["kernels"], model.flops, r["scalar_flops"], r["tensor_flops"],
             _over(r["scalar_flops"], model.flops), _over(r["flops"], model.flops),
             model.moved_bytes, r["dram_bytes"], _over(r["dram_bytes"], model.moved_bytes),
             r["l2_bytes"], r["l1_bytes"], _over(r["flops"], r["dram_bytes"]),
             r["kernel_time_s"], r["total_s"], r["profiled_step_s"])
        )  # fmt: skip
    text = (
        "**What Nsight Compute counted of one step**: kernel replay, caches flushed before each "
        "kernel, clocks not locked."
    )
    return f"{_heading(result, 'counters', text)}\n\n{markdown(columns, rows)}"


def _phases(result: dict[str, Any], counts: list[dict[str, Any]]) -> str:
    rows: list[tuple[Any, ...]] = []
    for r in with_times(result, counts):
        if r["phase"] == "all":
            continue
        m = step(result, "counters", r)
        flops = {"forward": m.forward_flops, "backward": m.backward_flops, "step": None}
        moved = {"forward": m.forward_bytes, "backward": m.backward_bytes, "step": m.update_bytes}
        rows.append(
            (*_key(r), r["phase"], r["kernels"], flops[r["phase"]], r["flops"], moved[r["phase"]],
             r["dram_bytes"], r["kernel_time_s"])
        )  # fmt: skip
    columns = (
        *NETWORK, "phase", "kernels=int", "layers: FLOPs=FLOP", "counted=FLOP", "layers: bytes=B",
        "DRAM=B", "kernels' time=s",
    )  # fmt: skip
    return f"The same by phase.\n\n{markdown(columns, rows)}" if rows else ""


def _over(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _ddp(result: dict[str, Any]) -> str:
    blocks = [_of_gpus(result, ranks) for ranks in (2, 4) if f"ddp{ranks}" in result]
    return "\n\n".join(blocks)


def _of_gpus(result: dict[str, Any], ranks: int) -> str:
    part = f"ddp{ranks}"
    times = {(*_key(r), r["mode"]): r.get("total_s") for r in result[part]["rows"]}
    rows: list[tuple[Any, ...]] = []
    for (net, batch, math, mode), together in times.items():
        if mode != "ddp" or together is None:
            continue
        alone, whole = (times.get((net, b, math, "alone")) for b in (batch, ranks * batch))
        exposed = None if alone is None else together - alone
        rows.append(
            (net, batch, math, alone, together, exposed, _over(alone, together),
             _over(whole, together))
        )  # fmt: skip
    columns = (
        NETWORK[0], "images per GPU=int", NETWORK[2], "alone=s", f"{ranks} GPUs=s", "longer by=s",
        "efficiency, every GPU its images=percent", "speed-up, the same images=float.2",
    )  # fmt: skip
    text = (
        f"**{ranks} GPUs** (DistributedDataParallel over NCCL, rank 0): the step alone and "
        "together, in turn. The speed-up compares with one GPU on as many images as all have."
    )
    return f"{_heading(result, part, text)}\n\n{markdown(columns, rows)}"

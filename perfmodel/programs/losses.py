"""What the steps of any program lose, by why its GPUs idle, the kernels it runs and its ranks.

Savings are those of a replay of the steps, see `perfmodel.timing.critical_path`; of kernels that
another kernel could replace, at most what the step would take less if no kernel took any time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from perfmodel.base.kernels import kernel, kernel_types
from perfmodel.base.units import percent, si
from perfmodel.programs.findings import (
    Actions,
    Facts,
    Finding,
    OperatorRow,
    late_messages,
    shared_gpus,
    too_few,
    waiting_ranks,
    worth,
)
from perfmodel.timing.collectives import NCCL
from perfmodel.timing.nccl import PASSES

if TYPE_CHECKING:
    from perfmodel.timing.late_ranks import LateRank
    from perfmodel.timing.step_facts import StepFacts

_LOG: Final = re.compile(r"log_?softmax", re.I)
"""What a kernel for both says in its template arguments where it computes a loss's logarithm."""
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_OF_NETWORK: Final = re.compile(r"\b(forward|backward|parallel|softmax|loss|aten|nn)\b")
"""Words of ranges that a network's own work is in, whatever else they are called."""
_WITHOUT_TENSOR_CORES: Final = {
    "float32": ("FP32 units", "tf32_tensor", "TF32's"),
    "float64": ("FP64 units", "float64_tensor", "FP64's"),
}
"""By type: the unit that multiplies without tensor cores, and the peak of those."""
_HOST_WORK: Final = (
    ("step_less", re.compile(r"\boptim(iz\w+)?\b")),
    ("load_ahead", re.compile(
        r"\b(data(sets?)?|\w*loaders?|load(s|ing)?(?! balanc)|(pre)?fetch(er|ing)?|inputs|"
        r"input(?= pipeline|$)|augment(ations?|ing)?|next(?= (batch|item|sample)|$))\b"
    )),
    ("write_less", re.compile(
        r"\b(check ?point(s|ing)?(?! (function|sequential|wrapper))|sav(es?|er|ing)|"
        r"val(id(ate|ation)?)?|eval(uate|uation)?|logg(er|ing)|log(?= (metrics?|scalars?|stats)|$)|"
        r"print(ing)?|metrics?)\b"
    )),
)  # fmt: skip
"""What the host does, by the words of the range that it is in."""
_OF_PEAK: Final = 0.8
"""Share of a unit's dense peak that large GEMMs reach: 0.76 to 0.80 (docs/machines.md)."""
_OF_HBM: Final = 0.85
"""Share of the memory's bandwidth that a triad reaches (docs/machines.md)."""
_MUCH: Final = 0.05
"""Products on FP32 units with this share of the computing time are said, whatever they save."""
_SLICE_S, _NEAR = 2.5e-3, 0.1
"""Time slice of a process on an H200 (docs/findings.md); a GPU of another kind has another."""
_NAMED: Final = 3
_MANY_MESSAGES: Final = 20
_PARTS: Final = 0.1
"""Gradients are not summed in the forward pass: more than this share there is of layers' parts."""
_MOST: Final = 0.5
"""Share of the time in messages from which advice on those of one kind is worth following."""
_LATE: Final = 0.03


def find_losses(facts: Facts, steps: StepFacts, actions: Actions) -> Iterator[Finding]:
    """Find what the steps lose."""
    yield from shared_gpus(facts)
    yield from _interrupted(facts, steps)
    late = _straggler(steps)
    yield from _late_rank(facts, steps, actions)
    yield from _long_steps(steps, actions)
    yield from _small_kernels(facts, steps, actions)
    yield from _launches(facts, steps, actions)
    yield from _host(facts, steps, late, actions)
    yield from _communication(facts, steps, actions)
    yield from _precision(facts, steps, actions)
    yield from _attention(steps, actions)
    yield from _memory(facts, steps, actions)
    yield from _gemms(facts, steps, actions)
    yield from late_messages(facts, actions)
    if facts.waiting is not None:
        yield from waiting_ranks(facts, actions)


def _interrupted(facts: Facts, steps: StepFacts) -> Iterator[Finding]:
    """GPUs on which a process that was not recorded takes turns."""
    known = {rank for ranks in facts.shared_gpus.values() for rank in ranks}
    for one in steps.interrupted:
        if one.rank not in known:
            uses = "uses" if abs(one.each_s - _SLICE_S) <= _NEAR * _SLICE_S else "may use"
            yield Finding(
                "shared_gpu",
                f"another process {uses} the GPU of rank {one.rank}",
                one.seconds,
                f"{one.count:.1f} kernels per step take {si(one.each_s, 's')} longer than the same "
                f"kernels of other steps, whatever they do: a time slice of another process, "
                f"which has its turn meanwhile",
                "find the other process (nvidia-smi), and give each program a GPU of its own "
                "(CUDA_VISIBLE_DEVICES)",
            )


def _straggler(steps: StepFacts) -> LateRank | None:
    """Return the rank that the others wait for, if a step would be shorter without."""
    if steps.straggler_saving_s < _LATE * steps.step_s:
        return None
    return steps.last_rank()


def _late_rank(facts: Facts, steps: StepFacts, actions: Actions) -> Iterator[Finding]:
    late = steps.last_rank() if facts.gpu_waiting else None
    if late is None or max(late.late_s, steps.straggler_saving_s) < _LATE * steps.step_s:
        return
    more = f"; what it does more of than the others: {late.doing}" if late.doing else ""
    if steps.straggler_saving_s < _LATE * steps.step_s:
        more += "; it lags by a constant amount, so that removing the lag saves little"
    waits = max((facts.gpu_waiting.waiting_s or (0.0,)) if facts.gpu_waiting else (0.0,))
    yield Finding(
        "straggler",
        f"the other ranks wait for rank {late.rank}",
        steps.straggler_saving_s,
        f"up to {si(waits, 's')} per step inside NCCL's kernels; rank {late.rank} comes last to "
        f"{percent(late.share_last)} of the collectives, "
        f"together {si(late.late_s, 's')} after the rank before it{too_few(late)}{more}",
        actions.advise("help_stage" if _only_messages(steps) else "help_rank", rank=late.rank),
    )


_WHILE: Final = {
    "launch_bound": "while the host launches",
    "blocking_sync": "while the host waits for the GPU, and after it",
    "allocation": "while the host allocates or frees memory",
    "host_compute": "while the host is outside CUDA",
    "pageable_copy": "while the host copies from pageable memory",
}


def _long_steps(steps: StepFacts, actions: Actions) -> Iterator[Finding]:
    """Steps in which the GPU idles much longer than in the median one."""
    long = steps.long
    if long is None or long.cause not in _WHILE:  # their GPU does more: a warning says what
        return
    where = f" in '{long.gap.range}'" if long.gap and long.gap.range else ""
    gap = f"; the longest gap is {si(long.gap.seconds, 's')}{where}" if long.gap else ""
    which = f"{long.count} of {long.steps} steps"
    paused = long.paused == long.count
    take = f"{long.count} take {si(long.longer_s, 's')} more than the median one"
    later = f"after {long.count} the next one begins {si(long.longer_s, 's')} later"
    yield Finding(
        long.cause,
        f"other work follows {which}" if paused else f"{which} take much longer than the others",
        long.saving_s,
        f"the median step takes {si(long.median_s, 's')}, the mean one {si(long.mean_s, 's')}: "
        f"{later if paused else take}, in the mean; per "
        f"step of all the GPU idles {si(long.saving_s, 's')} more {_WHILE[long.cause]}{gap}",
        _against(long.cause, where, long.gap.call if long.gap else "", actions),
        of_mean=True,
    )


def _against(cause: str, where: str, call: str, actions: Actions) -> str:
    """What to do against a cause of idle time."""
    if cause == "launch_bound":
        return actions.launch_less(synchronizes=False)
    if cause == "pageable_copy":
        return actions.pin("Host-to-Device")
    what = {"blocking_sync": "wait_less", "host_compute": _host_work(where)}
    return actions.advise(
        what.get(cause, "allocate_less"), where=where, call=call or "a blocking call"
    )


def _host_work(name: str) -> str:
    """What to do against the host's work in a range, by its whole words: `DataLoader` has two."""
    words = " ".join(_WORD.findall(name)).lower()
    if _OF_NETWORK.search(words):
        return "compute_less"
    return next((what for what, named in _HOST_WORK if named.search(words)), "compute_less")


def _slowed(facts: Facts) -> str:
    """Say where times of the host are too long."""
    if not facts.sizes_recorded:
        return ""
    return "; recording sizes slows the host down"


def _small_kernels(facts: Facts, steps: StepFacts, actions: Actions) -> Iterator[Finding]:
    for small in steps.small:
        where = f" of '{small.range}'" if small.range else ""
        yield Finding(
            "many_small_kernels",
            f"{small.count:.0f} small kernels{where}",
            small.saving_s,
            f"kernels under {si(small.under_s, 's', 2)}, {si(small.gpu_s, 's')} of GPU time per "
            f"step, which the host takes {si(small.host_s, 's')} to launch{_slowed(facts)}",
            actions.advise("fuse_small", where=where),
        )


def _launches(facts: Facts, steps: StepFacts, actions: Actions) -> Iterator[Finding]:
    idle = steps.idle_s("launch_bound")
    known = sum(small.saving_s for small in steps.small)
    count = max(round(facts.gpu_ops), 1)
    yield Finding(
        "launch_bound",
        "the GPU waits for launches",
        min(steps.saved_s("launch_bound"), idle) - known,
        f"the GPU idles {si(idle, 's')} per step with an empty queue while the host launches "
        f"{count} operation{'s' * (count != 1)}, one every {si(facts.batch.value / count, 's')}"
        f"{_slowed(facts)}",
        actions.launch_less(synchronizes=False),
    )


def _host(
    facts: Facts, steps: StepFacts, late: LateRank | None, actions: Actions
) -> Iterator[Finding]:
    """What the host does while the GPU idles, and copies that keep it busy."""
    titles = {
        "blocking_sync": "the host waits for the GPU, which then waits for the host",
        "host_compute": "the GPU waits for the host's own work",
        "allocation": "the host allocates and frees GPU memory in every step",
        "pageable_copy": "copies from pageable memory",
    }
    for kind, title in titles.items():
        idle, gap = steps.idle_s(kind), steps.longest(kind)
        call = gap.call if gap else ""
        where = f" in '{gap.range}'" if gap and gap.range else ""
        most = steps.saved_s(kind)
        if kind == "host_compute":
            most = min(most, idle)
        elif kind != "pageable_copy":
            most = min(most, steps.most_idle_s())
        if late is not None and late.doing.startswith(kind):
            most -= steps.straggler_saving_s
        longest = f"; the longest gap is {si(gap.seconds, 's')}{where}" if gap else ""
        said = {
            "blocking_sync": f"{_waits(facts, call)} per step; "
            f"the GPU idles {si(idle, 's')} right after them{longest}",
            "host_compute": f"the GPU idles {si(idle, 's')} per step while the host is outside "
            f"CUDA{longest}{_slowed(facts)}",
            "allocation": f"the GPU idles {si(idle, 's')} per step in {call or 'cudaMalloc'}"
            f"{longest}",
            "pageable_copy": _copies(facts),
        }[kind]
        mostly = steps.mostly_in(kind)
        within = f" in '{mostly}'" if mostly else ""
        yield Finding(kind, title, most, said, _against(kind, within, call, actions))


def _waits(facts: Facts, call: str) -> str:
    """Count what waits for the GPU: blocking calls, and copies to the host."""
    copies = [g for g in facts.copies if g.direction == "Device-to-Host"]
    count, seconds = sum(g.count for g in copies), sum(g.seconds for g in copies)
    found = []
    if round(facts.synchronizations) or not round(count):
        said, plural = f", {call}" if call else "", "s" * (round(facts.synchronizations) != 1)
        found.append(
            f"{facts.synchronizations:.0f} blocking call{plural} "
            f"({si(facts.synchronize_s, 's')} inside them{said})"
        )
    if round(count):
        said = "1 copy" if round(count) == 1 else f"{count:.0f} copies"
        found.append(f"{said} to the host ({si(seconds, 's')} on the GPU)")
    return " and ".join(found)


def _copies(facts: Facts) -> str:
    """Describe the copies from pageable memory."""
    groups = [g for g in facts.copies if g.memory == "pageable" and g.direction == "Host-to-Device"]
    size, seconds = sum(g.bytes for g in groups), sum(g.seconds for g in groups)
    if not seconds:
        return "copies from pageable memory"
    return (
        f"{si(size, 'B')} per step at {si(size / seconds, 'B/s')}, {si(seconds, 's')} in which "
        f"the host waits, too"
    )


def _only_messages(steps: StepFacts) -> bool:
    """Whether NCCL only sends and receives, as between the stages of a pipeline."""
    return bool(steps.messages) and all(n.endswith("SendRecv") for n, _, _ in steps.messages)


def _waiting_for_messages(facts: Facts, steps: StepFacts, actions: Actions) -> Finding:
    """Without waiting a step takes as long as the rank that waits least."""
    waits = (facts.gpu_waiting.waiting_s if facts.gpu_waiting else None) or (0.0,)
    return Finding(
        "exposed_communication",
        "ranks wait for each other's messages",
        max(steps.bucket_saving_s, min(waits)),
        f"{steps.collectives:.0f} kernels of ncclSend and ncclRecv per step, up to "
        f"{si(steps.exposed_s, 's')} beside no computing; every rank waits in them for "
        f"{si(min(waits), 's')} to {si(max(waits), 's')}, as stages of a pipeline (its bubble) and "
        f"ranks with experts do",
        actions.advise("fill_stages"),
    )


def _communication(facts: Facts, steps: StepFacts, actions: Actions) -> Iterator[Finding]:
    if not steps.collectives:
        return
    if _only_messages(steps):
        yield _waiting_for_messages(facts, steps, actions)
        return
    many = steps.collectives >= _MANY_MESSAGES
    nccl = all(name.startswith(NCCL) for name, *_ in steps.messages)
    whose = "NCCL" if nccl else "communication"
    alone = (
        ""
        if steps.stragglers
        else "; how much of that is waiting for other ranks is unknown: analyze the reports of all "
        "ranks together"
    )
    where = [f"{si(seconds, 's')} in '{name}'" for name, seconds in steps.exposed_in[:3] if name]
    said = f" ({', '.join(where)})" if where else ""
    yield Finding(
        "exposed_communication",
        "communication is not hidden behind computing",
        steps.bucket_saving_s,
        f"{steps.collectives:.0f} {whose} kernels per step, {si(steps.exposed_s, 's')} of them "
        f"beside no computing{said}"
        f"{f'; each costs a launch and {whose} latency' if many else ''}{alone}",
        actions.advise(_against_messages(steps, many=many)),
    )


def _against_messages(steps: StepFacts, *, many: bool) -> str:
    """What helps, by what is sent and the pass that sends it.

    Ranks that share layers sum their parts in the forward pass, too; gradients are summed in the
    backward pass or right after it; parameters that ranks share are gathered, and their gradients
    summed to shares in the backward pass alone. All else, such as an evaluation's, has no advice
    of its own.
    """

    def share(operation: str, *passes: str) -> float:
        return sum(s for n, p, s in steps.messages if n.endswith(operation) and p in passes)

    late = "backward", "after"
    if share("AllReduce", "forward") + share("ReduceScatter", "forward") > _PARTS:
        return "share_less"
    gathered, summed = share("AllGather", "forward", *late), share("ReduceScatter", *late)
    if gathered > _PARTS and summed > 0 and gathered + summed + share("AllReduce", *late) > _MOST:
        return "gather_ahead"
    others = share("AllReduce", "") + sum(
        share(name, *PASSES) for name in ("AllGather", "ReduceScatter")
    )
    if share("AllReduce", *late) > _MOST and others <= _PARTS:  # broadcasts may be beside them
        return "join_messages" if many else "overlap_messages"
    return "hide_messages"


def _precision(facts: Facts, steps: StepFacts, actions: Actions) -> Iterator[Finding]:
    """Products in single precision without tensor cores, by their operators or kernels."""
    plain = [
        o for o in facts.operators
        if o.of_tensor_ceiling and o.dtype in _WITHOUT_TENSOR_CORES and o.bound != "latency"
    ]  # fmt: skip
    if plain:
        found = _without_tensor_cores(facts, steps, plain, actions)
        if sum(o.share for o in plain) >= _MUCH or worth(found, facts):
            yield found
        return
    slow = [
        k for k in steps.kernels
        if k.category in ("GEMM", "convolution") and kernel_types(k.name).unit == "float32"
        and kernel_types(k.name).dtype == "float32"
    ]  # fmt: skip
    peaks = facts.machine.peak_flops_per_s if facts.machine else {}
    if not slow or not {"float32", "tf32_tensor"} <= peaks.keys():
        return
    seconds = sum(k.seconds for k in slow)
    share = 1.0 - peaks["float32"] / peaks["tf32_tensor"]
    found = Finding(
        "low_precision_unused",
        "GEMMs run without tensor cores",
        min(seconds * share, steps.saved_s("kernel")),
        f"{sum(k.count for k in slow):.0f} FP32 kernels per step take {si(seconds, 's')}; their "
        f"peak is {si(peaks['float32'], 'FLOP/s')}, that of TF32 "
        f"{si(peaks['tf32_tensor'], 'FLOP/s')}",
        actions.advise("lower_precision"),
    )
    if sum(k.share for k in slow) >= _MUCH or worth(found, facts):
        yield found


def _without_tensor_cores(
    facts: Facts, steps: StepFacts, plain: Sequence[OperatorRow], actions: Actions
) -> Finding:
    """Tensor cores take the same multiple of their least time, it is assumed, as the unit does."""
    seconds = sum(o.gpu_s for o in plain)
    faster = sum(o.gpu_s * (1.0 - o.tensor_s / o.least_s) for o in plain)
    peaks = facts.machine.peak_flops_per_s if facts.machine else {}
    unit = max(plain, key=lambda o: o.gpu_s).unit
    saving_s, limited = _limited(faster, facts, steps)
    name, tensor, whose = _WITHOUT_TENSOR_CORES[unit]
    return Finding(
        "low_precision_unused",
        "GEMMs run without tensor cores",
        saving_s,
        f"{sum(o.count for o in plain):.0f} GEMMs on {name} take {si(seconds, 's')} per step: "
        f"{percent(sum(o.least_s for o in plain) / seconds)} of their ceiling "
        f"({si(peaks[unit], 'FLOP/s')}), "
        f"{percent(sum(o.tensor_s for o in plain) / seconds)} of {whose} on tensor cores "
        f"({si(peaks[tensor], 'FLOP/s')}){limited}",
        actions.advise("lower_precision"),
    )


def _memory(facts: Facts, steps: StepFacts, actions: Actions) -> Iterator[Finding]:
    """Operators that the memory's bandwidth bounds, and what they take more than it."""
    bound = [o for o in facts.operators if o.bound == "memory" and not o.flops]
    if not bound:
        return
    saving_s, limited = _limited(sum(map(_recoverable_s, bound)), facts, steps)
    twice = sum(o.fusible_bytes or 0.0 for o in bound)
    seconds, moved = sum(o.gpu_s for o in bound), sum(o.bytes or 0.0 for o in bound)
    slow = sorted(bound, key=_recoverable_s, reverse=True)[:_NAMED]
    named = ", ".join(
        f"{o.name} ({o.phase}) {si(o.gpu_s, 's')} at {percent(o.least_s / o.gpu_s)}" for o in slow
    )
    yield Finding(
        "memory_bound",
        "operators are limited by the GPU's memory",
        saving_s,
        f"operators without GEMMs take {si(seconds, 's')} per step, "
        f"{percent(sum(o.share for o in bound))} of the computing time, to move {si(moved, 'B')}: "
        f"{si(moved / seconds, 'B/s')}; most is lost by {named} of the bandwidth. {si(twice, 'B')} "
        f"are read of what such an operator wrote just before: saved if these were fused, and the "
        f"rest took {percent(_OF_HBM)} of the bandwidth{limited}",
        actions.advise("move_less"),
    )


def _gemms(facts: Facts, steps: StepFacts, actions: Actions) -> Iterator[Finding]:
    """GEMMs and attention against the lower of the roofs of their unit and of memory."""
    slow = [o for o in facts.operators if o.flops and o.bound != "latency"]
    for o in sorted(slow, key=_recoverable_s, reverse=True)[:_NAMED]:
        flops = o.flops or 0.0
        saving_s, limited = _limited(_recoverable_s(o), facts, steps)
        yield Finding(
            "kernel_below_ceiling",
            f"{o.name} ({o.phase}) runs at {percent(o.least_s / o.gpu_s)} of its ceiling",
            saving_s,
            f"{o.count:.0f} calls per step take {si(o.gpu_s, 's')} for {si(flops, 'FLOP')} "
            f"({si(flops / o.gpu_s, 'FLOP/s')}); peak and bandwidth allow {si(o.least_s, 's')}, of "
            f"which large GEMMs reach {percent(_reachable(o))}{limited}",
            actions.advise("raise_rate"),
        )


def _limited(gpu_s: float, facts: Facts, steps: StepFacts) -> tuple[float, str]:
    """What a step takes less where its kernels take so much less, and why that is less."""
    most_s = steps.saved_s("kernel")
    if gpu_s <= most_s:
        return gpu_s, ""
    slowed = " (recording sizes slows it down)" if facts.sizes_recorded else ""
    return (
        most_s,
        f"; the GPU would save {si(gpu_s, 's')}, but then the host limits the step{slowed}",
    )


def _reachable(o: OperatorRow) -> float:
    return _OF_PEAK if o.bound == "compute" else _OF_HBM


def _recoverable_s(o: OperatorRow) -> float:
    """What an operator takes more than at the share of its ceiling that can be reached.

    Where memory bounds it, without the bytes that fusing saves.
    """
    fused = (o.fusible_bytes or 0.0) / o.bytes if o.bound == "memory" and o.bytes else 0.0
    return max(o.gpu_s - (1.0 - fused) * o.least_s / _reachable(o), 0.0)


def _attention(steps: StepFacts, actions: Actions) -> Iterator[Finding]:
    """Softmax of a matrix of scores several times a step, and kernels that take as long."""
    scores = [
        k for k in steps.kernels
        if kernel(k.name).operation.startswith("softmax") and not _LOG.search(k.name)
        and k.count >= 2
    ]  # fmt: skip
    if not scores or any(k.category == "attention" for k in steps.kernels):
        return
    least = min(k.median_s for k in scores) / 3
    beside = [
        k for k in steps.kernels
        if k.category in ("element-wise", "copy") and k.median_s >= least
        and k.count >= min(s.count for s in scores)
    ]  # fmt: skip
    seconds = sum(k.seconds for k in [*scores, *beside])
    yield Finding(
        "unfused_attention",
        "attention is computed with a matrix of scores in memory",
        min(seconds, steps.saved_s("kernel")),
        f"{sum(k.count for k in scores):.0f} softmax kernels over scores and the element-wise "
        f"kernels as large take {si(seconds, 's')} per step; no fused attention kernel runs",
        actions.advise("fuse_attention"),
    )

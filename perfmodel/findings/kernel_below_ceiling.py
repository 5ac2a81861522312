"""GEMMs and attention that take longer than peak and bandwidth allow."""

from collections.abc import Sequence

from perfmodel.base.kernels import PRODUCTS
from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, StepFacts, percent, si
from perfmodel.findings._kernels import LARGEST, limited, reachable, recoverable_s
from perfmodel.programs.facts import GemmTime, OperatorRow

KIND = Kind(
    key="kernel_below_ceiling",
    change="an operator runs at its ceiling",
    remedy="At its ceiling",
    part="compute",
    several=True,
    shortens_kernels=True,
    kernels=PRODUCTS,
    precedence=8,
    grounds={
        "formula": "time of the products minus their time at 80 % of the unit's dense peak (85 % "
        "of the bandwidth)",
        "inputs": ["summary.step_s", "operators[].gpu_s", "gemms[].rate.value"],
        "table": "operations",
        "where": {"category": ["GEMM", "convolution", "attention"], "counted": True},
        "by": "seconds",
    },
)


@KIND.rule(needs=("steps", "operators"))
def gemms(
    facts: Facts, actions: Actions, steps: StepFacts, rows: Sequence[OperatorRow]
) -> Findings:
    """GEMMs and attention against the lower of the roofs of their unit and of memory."""
    slow = [o for o in rows if o.flops and o.bound != "latency"]
    for o in sorted(slow, key=recoverable_s, reverse=True)[:LARGEST]:
        flops = o.flops or 0.0
        saving_s, by_host = limited(recoverable_s(o), facts, steps)
        yield Finding(
            KIND.key,
            f"{o.name} ({o.phase}) runs at {percent(o.least_s / o.gpu_s)} of its ceiling",
            saving_s,
            f"{o.count:.0f} calls per step take {si(o.gpu_s, 's')} for {si(flops, 'FLOP')} "
            f"({si(flops / o.gpu_s, 'FLOP/s')}); peak and bandwidth allow {si(o.least_s, 's')}, of "
            f"which large GEMMs reach {percent(reachable(o))}{by_host}",
            actions.advise("raise_rate"),
            gpu_s=recoverable_s(o),
            subject=f"{o.name} ({o.phase})",
            line=facts.lines.get((o.name, o.phase)),
        )


@KIND.rule(needs=("gemms",))
def slow_products(facts: Facts, actions: Actions, gemms: Sequence[GemmTime]) -> Findings:
    """Products against the ceilings of the machine."""
    for gemm in gemms:
        if gemm.bound_s is None:
            continue
        yield Finding(
            KIND.key,
            f"{gemm.label} runs at {percent(gemm.bound_s / gemm.seconds)} of its ceiling",
            gemm.seconds - gemm.bound_s,
            f"{si(gemm.flops, 'FLOP')} in {si(gemm.seconds, 's')} = "
            f"{si(gemm.flops / gemm.seconds, 'FLOP/s')}; the machine's ceilings allow "
            f"{si(gemm.bound_s, 's')}",
            actions.multiply(),
            subject=gemm.label,
        )

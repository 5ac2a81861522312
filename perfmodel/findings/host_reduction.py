"""Gradients that are reduced through the memory of the host."""

from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, share_of_recorded, si
from perfmodel.findings._ranks import over_nvlink
from perfmodel.programs.facts import HostReduction

KIND = Kind(
    key="host_reduction",
    change="gradients are reduced between the GPUs",
    remedy="Reduce on the GPUs:",
    grounds={
        "formula": "time of the reduction through the host with its copies, less that between GPUs",
        "inputs": ["summary.step_s", "collectives[].seconds", "copies[].seconds"],
        "table": "exchanges",
        "where": {"counted": True},
        "by": "seconds",
    },
)


@KIND.rule(needs=("host_reduction",), unless=("shared_gpus",))
def through_host(facts: Facts, actions: Actions, reduced: HostReduction) -> Findings:
    """Gradients staged through host memory, against an all-reduce between the GPUs."""
    direct = over_nvlink(facts, reduced.bytes)
    if direct is None or facts.ranks < 2:
        return
    way = (
        "MPI_Allreduce, in which the MPI library copies the gradients to the host, sums them there "
        "and copies them back,"
        if reduced.by_library
        else "copying out, reducing and copying back"
    )
    yield Finding(
        KIND.key,
        "gradients are reduced through the host",
        reduced.seconds - direct,
        f"{way} takes {share_of_recorded(facts, reduced.seconds)}; "
        f"{si(reduced.bytes, 'B')} over NVLink needs {si(direct, 's')} plus latency",
        actions.reduce_on_gpus(facts.ranks),
    )

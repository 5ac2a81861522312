"""Pages of unified memory that move between host and GPU while kernels wait for them."""

from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, StepFacts, si

KIND = Kind(
    key="page_migration",
    change="no pages move between host and GPU",
    remedy="Prefetch the pages:",
    limits="{title} for {share} of each step",  # beside kernels, which wait: no part of a step
    several=True,
    shortens_kernels=True,
    grounds={
        "formula": "time in which pages of unified memory migrate",
        "inputs": ["summary.step_s", "copies[].seconds"],
        "table": "operations",
        "where": {
            "copy": [
                "Unified Host-to-Device",
                "Unified Device-to-Host",
                "Unified Device-to-Device",
            ]
        },
        "by": "seconds",
    },
)


@KIND.rule(needs=("steps",))
def migrated_pages(facts: Facts, actions: Actions, steps: StepFacts) -> Findings:
    """Migrations of all pages per step."""
    moved = steps.unified
    if moved is None:
        return
    both = moved.to_gpu_bytes > 0 and moved.to_host_bytes > 0
    size = moved.to_gpu_bytes + moved.to_host_bytes
    rate = f" at {si(size / moved.seconds, 'B/s')}" if size and moved.seconds else ""
    back = moved.later_bytes
    later = f"; {si(back, 'B')} more move to the host after the last step" if back else ""
    yield Finding(
        KIND.key,
        "pages of unified memory move between host and GPU",
        moved.seconds,
        f"{moved.count:.0f} migrations per step move {si(moved.to_gpu_bytes, 'B')} to the GPU and "
        f"{si(moved.to_host_bytes, 'B')} to the host{rate}, in "
        f"{si(moved.seconds, 's')} of {si(steps.step_s or facts.batch.value, 's')}{later}",
        actions.advise("share_pages" if both else "prefetch_pages"),
    )

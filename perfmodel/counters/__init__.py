"""Hardware counters: what Nsight Compute counts of kernels and ranges, against their ceilings."""

from perfmodel.counters.counted import OUTSIDE, Counted, by_kernel, by_range, inside
from perfmodel.counters.metrics import METRICS, command
from perfmodel.readers.ncu import DEVICE

__all__ = ["DEVICE", "METRICS", "OUTSIDE", "Counted", "by_kernel", "by_range", "command", "inside"]

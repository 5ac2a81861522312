"""What several launches say together, and the interval of another one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from perfmodel.models.launches import another, limits

LAUNCH_SD: Final = {"replayed": 0.005, "queued": 0.18, "GEMMs": 0.002, "NCCL": 0.0175}
"""Standard deviation of the logarithm of medians between launches that studies of one or two
launches assume: of batches that replay CUDA graphs or that the host queues, of GEMMs, of NCCL."""


def ratio_over(ratios: Sequence[float], sd: float) -> dict[str, float]:
    """Return the median of launches' ratios, and where another launch's lies with 95 %.

    `sd` is assumed of the ratio's logarithm where there are one or two launches.
    """
    mean, width = another([math.log(ratio) for ratio in ratios], sd)
    low, high = limits(math.exp(mean), width)
    return {
        "ratio": statistics.median(ratios), "ratio_low": low, "ratio_high": high,
        "ratio_confidence": 0.95,
    }  # fmt: skip

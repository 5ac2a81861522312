"""The trainer as trainer_counters.py profiles it: with ranges that Nsight Compute sees.

    python -m benchmarks.gemm.profiled_trainer nvtx|cupy FLAGS...

nvtx >= 0.2.13 asks whether a tool listens, and records nothing for one that does not answer
(trainer/ranges.py); then CuPy's ranges, which do not ask, take the place of nvtx's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import nvtx

from trainer import ranges


def cupy_ranges(synchronize: Callable[[], None] | None = None) -> ranges.Ranges:
    """All ranges of the trainer, pushed and popped by CuPy."""
    from cupy.cuda.nvtx import RangePop, RangePush

    return {
        name: ranges._Range(
            RangePush, (name,), RangePop, (), synchronize if name in ranges.SYNCHRONIZED else None
        )
        for name in ranges.PARENT
    }


if __name__ == "__main__":
    wanted = sys.argv.pop(1)
    if wanted == "cupy" or type(nvtx.get_domain(None)).__name__ == "DummyDomain":
        print("ranges are CuPy's", flush=True)
        ranges.make_ranges = cupy_ranges
    from trainer.__main__ import main

    sys.exit(main())

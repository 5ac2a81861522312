"""From a raw Nsight Systems report to a validated performance model.

>>> import perfmodel
>>> report = perfmodel.read("report.sqlite")  # doctest: +SKIP
>>> report.stats("nvtx_gpu_proj_sum")  # doctest: +SKIP
>>> analysis = report.analyze(H=512, B=3000)  # doctest: +SKIP
>>> analysis.ranges, analysis.roofline()  # doctest: +SKIP
"""

from __future__ import annotations

__version__ = "0.2.0"  # the only place: docs/release.md

__all__ = [
    "Compared", "RecordSteps", "Report", "Results", "__version__", "analyze", "annotate", "compare",
    "on_trace_ready", "read",
]  # fmt: skip

TYPE_CHECKING = False  # type checkers take it for true; importing typing takes 9 ms
if TYPE_CHECKING:
    from typing import Any

    from perfmodel.api import Compared, Report, Results, analyze, compare, on_trace_ready, read
    from perfmodel.programs.pytorch.annotate import annotate
    from perfmodel.programs.pytorch.record import RecordSteps


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used, so that `import perfmodel` is cheap."""
    if name == "RecordSteps":
        from perfmodel.programs.pytorch.record import RecordSteps

        return RecordSteps
    if name == "annotate":  # for programs to be profiled, which need nothing else
        from perfmodel.programs.pytorch.annotate import annotate

        return annotate
    if name in __all__:
        from perfmodel import api

        return getattr(api, name)
    raise AttributeError(f"module 'perfmodel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

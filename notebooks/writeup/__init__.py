"""What the notebooks are written with: shipped files as tidy frames, and figures with captions."""

from writeup.export import Exported, answer, export
from writeup.frames import draw_lines, records, series, trained, verified
from writeup.models import (
    calibrated_model,
    errors,
    rates_table,
    roofs_meet,
    shares_of_roof,
    three_rate_model,
    work_table,
)
from writeup.shipped import repository, shipped

__all__ = [
    "Exported",
    "answer",
    "calibrated_model",
    "draw_lines",
    "errors",
    "export",
    "rates_table",
    "records",
    "repository",
    "roofs_meet",
    "series",
    "shares_of_roof",
    "shipped",
    "three_rate_model",
    "trained",
    "verified",
    "work_table",
]

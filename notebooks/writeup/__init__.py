"""What the notebooks are written with: shipped files as tidy frames, and figures with captions."""

from writeup.export import Exported, export
from writeup.frames import records, series, trained, verified
from writeup.models import calibrated_model, document_model, errors
from writeup.places import repository, shipped
from writeup.work import rates_table, work_table

__all__ = [
    "Exported",
    "calibrated_model",
    "document_model",
    "errors",
    "export",
    "rates_table",
    "records",
    "repository",
    "series",
    "shipped",
    "trained",
    "verified",
    "work_table",
]

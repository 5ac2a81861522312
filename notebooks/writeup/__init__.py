"""What the notebooks are written with: shipped files as tidy frames, and figures with captions."""

from writeup.export import Exported, export
from writeup.frames import batch_parts, records, series, trained, verified
from writeup.models import calibrated_model, document_model, errors
from writeup.places import repository, shipped
from writeup.views import View, batch_view, range_view, whole_view
from writeup.work import rates_table, work_table

__all__ = [
    "Exported",
    "View",
    "batch_parts",
    "batch_view",
    "calibrated_model",
    "document_model",
    "errors",
    "export",
    "range_view",
    "rates_table",
    "records",
    "repository",
    "series",
    "shipped",
    "trained",
    "verified",
    "whole_view",
    "work_table",
]

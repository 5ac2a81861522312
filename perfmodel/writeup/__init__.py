"""What the notebooks are written with: shipped files as tidy frames, and figures with captions."""

from perfmodel.writeup.export import Exported, export
from perfmodel.writeup.frames import batch_parts, records, series, trained, verified
from perfmodel.writeup.models import calibrated_model, document_model, errors
from perfmodel.writeup.places import repository, shipped
from perfmodel.writeup.views import View, batch_view, range_view, whole_view
from perfmodel.writeup.work import rates_table, work_table

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

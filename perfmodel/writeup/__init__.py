"""What the notebooks are written with: shipped files as tidy frames, and figures with captions."""

from perfmodel.writeup.export import Exported, export
from perfmodel.writeup.frames import batch_parts, records, series
from perfmodel.writeup.models import calibrated_model, document_model
from perfmodel.writeup.places import repository, shipped
from perfmodel.writeup.views import View, batch_view, range_view, whole_view

__all__ = [
    "Exported",
    "View",
    "batch_parts",
    "batch_view",
    "calibrated_model",
    "document_model",
    "export",
    "range_view",
    "records",
    "repository",
    "series",
    "shipped",
    "whole_view",
]

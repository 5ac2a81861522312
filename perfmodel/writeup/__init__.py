"""What the notebooks are written with: shipped files as tidy frames, and figures with captions."""

from perfmodel.writeup.export import Exported, export
from perfmodel.writeup.places import repository, shipped
from perfmodel.writeup.views import View, batch_view, range_view, whole_view

__all__ = [
    "Exported",
    "View",
    "batch_view",
    "export",
    "range_view",
    "repository",
    "shipped",
    "whole_view",
]

"""From a raw Nsight Systems report to a validated performance model."""

from __future__ import annotations

__version__ = "0.1.0"

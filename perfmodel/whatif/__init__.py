"""What if: the changes that one report offers, ranked by what they would save."""

from __future__ import annotations

from perfmodel.whatif.ask import ask
from perfmodel.whatif.changes import CHANGES, Change, offers
from perfmodel.whatif.effect import Effect, effect
from perfmodel.whatif.evidence import Evidence, draws, evidence
from perfmodel.whatif.floors import Floor, least
from perfmodel.whatif.result import Later, Saving, Step, WhatIf
from perfmodel.whatif.savings import Judge

__all__ = [
    "CHANGES", "Change", "Effect", "Evidence", "Floor", "Judge", "Later", "Saving", "Step",
    "WhatIf", "ask", "draws", "effect", "evidence", "least", "offers",
]  # fmt: skip

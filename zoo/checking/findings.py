"""Findings of the checks, with severity and advice."""

from __future__ import annotations

from typing import NamedTuple

BROKEN = "BROKEN"
LOOK = "look"
FINE = "fine"


class Finding(NamedTuple):
    """One line of the report."""

    level: str  #: :data:`BROKEN`: repair before training; :data:`LOOK`: may be intended; :data:`FINE`
    check: str  #: subject of the check
    says: str  #: result
    advice: str = ""  #: remedy, or empty

    def line(self) -> str:
        """Format the finding for the report."""
        return f"{self.level:<7} {self.check:<14} {self.says}" + (f"\n{'':>23}-> {self.advice}" if self.advice else "")

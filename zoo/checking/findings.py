"""A finding: what one check saw, how bad it is, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple

BROKEN = "BROKEN"
LOOK = "look"
FINE = "fine"


class Finding(NamedTuple):
    """One line of the report."""

    level: str  #: :data:`BROKEN`: mend it before training; :data:`LOOK`: may be meant; :data:`FINE`
    check: str  #: what was looked at
    says: str  #: what was seen
    advice: str = ""  #: what to change; empty where nothing is to be done

    def line(self) -> str:
        """As the report shows it."""
        return f"{self.level:<7} {self.check:<14} {self.says}" + (f"\n{'':>23}-> {self.advice}" if self.advice else "")

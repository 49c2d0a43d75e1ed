"""The account of an import: every value that is read is stored in a table, or refused for a reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

Reading = tuple[str, str]
"""A value's name in its form, and its text."""

SAME: Final = "says the same as another value of its field"
OTHER: Final = "another value of its field was taken"
NEW: Final = "a name that this version does not know"
NO_UUID: Final = "its GPU has no UUID here, so nothing tells which GPU it is: add uuid to --query-gpu; -q without -d"
NO_TIME: Final = "its capture's time cannot be read"
_MOST_NAMES: Final = 200


@dataclass(slots=True)
class Ledger:
    """What became of every value: stored by table, refused by reason. ``read`` is the sum of both."""

    stored: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    new_names: Counter[str] = field(default_factory=Counter)
    sections: Counter[str] = field(default_factory=Counter)
    """Lines that are of none of the three forms, by the title that they stand under."""
    captures: Counter[str] = field(default_factory=Counter)
    """How many captures of which form and schema."""
    notes: dict[str, None] = field(default_factory=dict)
    """What a person should know of the file, in the order met."""

    @property
    def read(self) -> int:
        """Values in the file."""
        return self.stored.total() + self.refused.total()

    def refuse(self, reason: str, count: int = 1) -> None:
        """Count values that are not stored."""
        if count:
            self.refused[reason] += count

    def new(self, name: str, count: int = 1) -> None:
        """Count a value that only a newer nvidia-smi has, under its name."""
        self.refused[NEW] += count
        if name in self.new_names or len(self.new_names) < _MOST_NAMES:
            self.new_names[name] += count

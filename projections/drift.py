"""How a live schema differs from the one that it should be, object by object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """One object that is not as it should be; None where it is not there at all."""

    name: str
    expected: str | None
    found: str | None

    @property
    def what(self) -> str:
        """In two words."""
        if self.expected is None:
            return "not expected"
        return "missing" if self.found is None else "different"


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> tuple[Difference, ...]:
    """All differences, by name."""
    names = sorted({*expected, *found})
    return tuple(
        Difference(name, expected.get(name), found.get(name)) for name in names if expected.get(name) != found.get(name)
    )


def summary(differences: Sequence[Difference]) -> str:
    """The first differences in one line."""
    named = ", ".join(f"{item.name} ({item.what})" for item in differences[:NAMED])
    more = len(differences) - NAMED
    return f"{named} and {more} more" if more > 0 else named

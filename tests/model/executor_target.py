"""A target database as it is committed, and what the log must not say of it."""

from __future__ import annotations

from typing import Final, TypeAlias

from journal.identities import Fingerprint
from projections.units import BackfillUnit, SchemaUnit
from tests.factories import print_of
from tests.model.executor_world import BATCHES, NOTHING, ExecutorWorld, What

TORN: Final = -1  # instead of a token: some of the statements of a schema unit ran, others did not
FOREIGN: Final = -2  # the token of a witness or cursor that is left from an earlier plan
_NEITHER: Final = print_of("a schema that is neither")

# What is committed of a unit. Of a schema unit: the token of the attempt that did it, which is also its witness. Of a
# backfill: the cursor's token and position, and how many batches took effect.
Done: TypeAlias = int | tuple[int, int, int]
# The fence that was raised, and the units in their order.
Target: TypeAlias = tuple[int, tuple[Done, ...]]


class TargetView:
    """What a target shows of the migration of one world."""

    def __init__(self, world: ExecutorWorld) -> None:
        self.world = world
        self.untouched: Target = (1, tuple(map(_untouched, world.units)))

    def live(self, target: Target) -> Fingerprint:
        """`Database.observe`: each schema unit leads on from where the one before it led."""
        live = self.world.source
        for unit, done in zip(self.world.units, target[1], strict=True):
            if isinstance(unit, SchemaUnit) and done:
                live = _NEITHER if done == TORN and unit.source != unit.target else unit.target
        return live

    def is_done(self, unit: int, target: Target) -> bool:
        """Whether all of a unit took effect."""
        match self.world.units[unit], target[1][unit]:
            case BackfillUnit(), (_, position, ran):
                return position == ran == BATCHES
            case SchemaUnit() as schema, int(token):
                return schema.is_formal or token > 0
        raise AssertionError("a unit is one or the other")

    def is_complete(self, target: Target) -> bool:
        """Whether all of the migration took effect."""
        return all(self.is_done(unit, target) for unit in range(len(self.world.units)))

    def contradiction(self, log: int, event: int, target: Target) -> str | None:
        """How an event that comes to count behind a log differs from the target as it is then."""
        _, what, unit, _ = self.world.written[event]
        done = target[1][unit]
        missing = (what is What.COMMITTED and not self.is_done(unit, target)) or (
            what is What.CONCLUDED and not self.is_complete(target)
        )
        if missing:
            return f"{self.world.name(event)} is admitted, but the target has not all of it"
        if what is What.ABORTED:
            attempt = self.world.logs[log].units[unit].tokens[-1]
            # Batches of an aborted attempt stay; what is aborted is the attempt to come to the end.
            if done == attempt or (isinstance(done, tuple) and self.is_done(unit, target)):
                return f"{self.world.name(event)} is admitted, but that attempt has committed"
        return None


def _untouched(unit: SchemaUnit | BackfillUnit) -> Done:
    """Nothing took effect; an earlier plan, since undone, left its cursor at the end."""
    return (FOREIGN, BATCHES, 0) if isinstance(unit, BackfillUnit) else NOTHING

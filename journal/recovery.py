"""What to do with one unit after a crash: two tables, total over (last event, observation).

Failure model. The process that ran the unit is gone, or is fenced off; its last durable event is known, and so may be
what the target looks like now. Relied on: that the last event is the last one admitted, and that the observation was
made under the current fence. Not relied on: any memory of the run, its exit status, or a log file.

The tables are seed 000's, cell by cell. They fail closed: what is not proven is for an operator. Equal source and
target semantics prove nothing about an unknown commit; an incomplete backfill that was begun cannot prove that none of
its batches committed. The tables are never edited to make something pass.

A target that can do it leaves a witness in the very transaction of a unit. Once no older holder can commit there any
more (the target fence was raised), the witness proves what became of the unit: `weigh` turns a doubtful last event into
a definite one before the table is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from journal.identities import Fingerprint
from journal.vocabulary import IN_DOUBT, BackfillCompletion, Direction, GroupEventKind


class RecoveryDecision(Enum):
    """What may be done with the unit under the current fence."""

    EXECUTE_NORMALLY = "execute_normally"
    REPAIR_CHECKPOINT = "repair_checkpoint"
    REQUIRES_EXPLICIT_RECOVERY = "requires_explicit_recovery"


class Witness(Enum):
    """What the target itself proves of a unit's last attempt, looked at after its fence was raised."""

    PRESENT = "present"
    ABSENT = "absent"
    NONE = "none"  # this unit leaves none


class SchemaRelation(Enum):
    """How the live semantics relate to the unit's source and target, where these differ or (BOTH) are equal."""

    SOURCE = "source"
    TARGET = "target"
    BOTH = "both"
    NEITHER = "neither"
    UNAVAILABLE = "unavailable"


class BackfillRelation(Enum):
    """What was observed of the backfill's postcondition."""

    UNAVAILABLE = "unavailable"
    INCOMPLETE = "incomplete"
    COMPLETE = "complete"
    COMPLETE_OF_ANOTHER = "complete_of_another"


@dataclass(frozen=True, slots=True)
class BackfillObservation:
    """A fresh look at a backfill's postcondition: not available, incomplete, or complete with its evidence."""

    available: bool
    completion: BackfillCompletion | None = None


LastEvent: TypeAlias = GroupEventKind | None

_E = RecoveryDecision.EXECUTE_NORMALLY
_R = RecoveryDecision.REPAIR_CHECKPOINT
_O = RecoveryDecision.REQUIRES_EXPLICIT_RECOVERY

_NONE = None
_BEFORE = GroupEventKind.BEFORE_COMMIT
_COMMITTED = GroupEventKind.COMMITTED
_UNKNOWN = GroupEventKind.COMMIT_OUTCOME_UNKNOWN
_ABORTED = GroupEventKind.DEFINITELY_ABORTED
_FORMAL = GroupEventKind.FORMAL_ONLY_ADVANCED

_S = SchemaRelation
# fmt: off
GROUP_DISTINCT: Final[Mapping[tuple[LastEvent, SchemaRelation], RecoveryDecision]] = {
    (_NONE, _S.SOURCE): _E,
    (_NONE, _S.TARGET): _O,
    (_NONE, _S.NEITHER): _O,
    (_NONE, _S.UNAVAILABLE): _O,
    (_BEFORE, _S.SOURCE): _E,
    (_BEFORE, _S.TARGET): _R,
    (_BEFORE, _S.NEITHER): _O,
    (_BEFORE, _S.UNAVAILABLE): _O,
    (_COMMITTED, _S.SOURCE): _O,
    (_COMMITTED, _S.TARGET): _R,
    (_COMMITTED, _S.NEITHER): _O,
    (_COMMITTED, _S.UNAVAILABLE): _O,
    (_UNKNOWN, _S.SOURCE): _E,
    (_UNKNOWN, _S.TARGET): _R,
    (_UNKNOWN, _S.NEITHER): _O,
    (_UNKNOWN, _S.UNAVAILABLE): _O,
    (_ABORTED, _S.SOURCE): _E,
    (_ABORTED, _S.TARGET): _O,
    (_ABORTED, _S.NEITHER): _O,
    (_ABORTED, _S.UNAVAILABLE): _O,
    (_FORMAL, _S.SOURCE): _O,
    (_FORMAL, _S.TARGET): _O,
    (_FORMAL, _S.NEITHER): _O,
    (_FORMAL, _S.UNAVAILABLE): _O,
}
GROUP_EQUAL: Final[Mapping[tuple[LastEvent, SchemaRelation], RecoveryDecision]] = {
    (_NONE, _S.BOTH): _E,
    (_NONE, _S.NEITHER): _O,
    (_NONE, _S.UNAVAILABLE): _O,
    (_BEFORE, _S.BOTH): _O,
    (_BEFORE, _S.NEITHER): _O,
    (_BEFORE, _S.UNAVAILABLE): _O,
    (_COMMITTED, _S.BOTH): _R,
    (_COMMITTED, _S.NEITHER): _O,
    (_COMMITTED, _S.UNAVAILABLE): _O,
    (_UNKNOWN, _S.BOTH): _O,
    (_UNKNOWN, _S.NEITHER): _O,
    (_UNKNOWN, _S.UNAVAILABLE): _O,
    (_ABORTED, _S.BOTH): _E,
    (_ABORTED, _S.NEITHER): _O,
    (_ABORTED, _S.UNAVAILABLE): _O,
    (_FORMAL, _S.BOTH): _R,
    (_FORMAL, _S.NEITHER): _O,
    (_FORMAL, _S.UNAVAILABLE): _O,
}
_B = BackfillRelation
BACKFILL: Final[Mapping[tuple[LastEvent, BackfillRelation], RecoveryDecision]] = {
    (_NONE, _B.UNAVAILABLE): _O,
    (_NONE, _B.INCOMPLETE): _E,
    (_NONE, _B.COMPLETE): _E,
    (_NONE, _B.COMPLETE_OF_ANOTHER): _E,
    (_BEFORE, _B.UNAVAILABLE): _O,
    (_BEFORE, _B.INCOMPLETE): _O,
    (_BEFORE, _B.COMPLETE): _R,
    (_BEFORE, _B.COMPLETE_OF_ANOTHER): _O,
    (_COMMITTED, _B.UNAVAILABLE): _O,
    (_COMMITTED, _B.INCOMPLETE): _O,
    (_COMMITTED, _B.COMPLETE): _R,
    (_COMMITTED, _B.COMPLETE_OF_ANOTHER): _O,
    (_UNKNOWN, _B.UNAVAILABLE): _O,
    (_UNKNOWN, _B.INCOMPLETE): _O,
    (_UNKNOWN, _B.COMPLETE): _R,
    (_UNKNOWN, _B.COMPLETE_OF_ANOTHER): _O,
    (_ABORTED, _B.UNAVAILABLE): _O,
    (_ABORTED, _B.INCOMPLETE): _E,
    (_ABORTED, _B.COMPLETE): _O,
    (_ABORTED, _B.COMPLETE_OF_ANOTHER): _O,
    (_FORMAL, _B.UNAVAILABLE): _O,
    (_FORMAL, _B.INCOMPLETE): _O,
    (_FORMAL, _B.COMPLETE): _O,
    (_FORMAL, _B.COMPLETE_OF_ANOTHER): _O,
}

# fmt: on


def weigh(last: LastEvent, witness: Witness) -> LastEvent:
    """The last event as the witness makes it definite: a doubtful one becomes committed or definitely aborted."""
    if last not in IN_DOUBT or witness is Witness.NONE:
        return last
    return _COMMITTED if witness is Witness.PRESENT else _ABORTED


def decide_group_recovery(
    last: LastEvent, observed: Fingerprint | None, *, source: Fingerprint, target: Fingerprint
) -> RecoveryDecision:
    """Decide for a group or rollback step. `observed` is the live semantics, None when they cannot be trusted or read."""
    relation = schema_relation(observed, source=source, target=target)
    return (GROUP_EQUAL if source == target else GROUP_DISTINCT)[last, relation]


def decide_backfill_recovery(
    last: LastEvent, observation: BackfillObservation, *, plan: Fingerprint, direction: Direction
) -> RecoveryDecision:
    """Decide for a backfill. Completion counts as proof only for the expected program and direction."""
    return BACKFILL[last, _backfill_relation(observation, plan, direction)]


def schema_relation(observed: Fingerprint | None, *, source: Fingerprint, target: Fingerprint) -> SchemaRelation:
    """How live semantics relate to a unit's source and target; None: they cannot be trusted or read."""
    if observed is None:
        return SchemaRelation.UNAVAILABLE
    if observed == source:
        return SchemaRelation.BOTH if source == target else SchemaRelation.SOURCE
    return SchemaRelation.TARGET if observed == target else SchemaRelation.NEITHER


def _backfill_relation(observation: BackfillObservation, plan: Fingerprint, direction: Direction) -> BackfillRelation:
    if not observation.available:
        return BackfillRelation.UNAVAILABLE
    completion = observation.completion
    if completion is None:
        return BackfillRelation.INCOMPLETE
    if (completion.plan_fingerprint, completion.direction) == (plan, direction):
        return BackfillRelation.COMPLETE
    return BackfillRelation.COMPLETE_OF_ANOTHER

"""Construction of records: seed 000's rules one by one, and in its order when several are broken at once.

Each constructor has a list of rules in stages. A rule names its code and a way to break it in an otherwise good case.
Every rule is broken alone, and together with every rule of every later stage: the earlier one's code must come out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from journal.errors import Code, IntegrityError, InvalidContractError, JournalError, ResourceLimitError
from journal.identities import HolderId, Scope, Sequence
from journal.migrations.manifest import (
    BackfillStep,
    ManagedState,
    RollbackOperation,
    RollbackOperationKind,
    SchemaStep,
    VerifiedManifest,
    verify_manifest,
    verify_rollback,
)
from journal.migrations.plan import verify_plan, verify_rollback_plan
from journal.records import (
    AppliedRecord,
    BackfillCheckpointRecord,
    BackfillEventRecord,
    GroupEventRecord,
    ImportedMigration,
    JournalEntry,
    LeaseAcquiredRecord,
    LeaseReleasedRecord,
    LedgerImportedRecord,
    MigrationLease,
    PlanAbandonedRecord,
    PlanRecord,
    RecoveryAttestedRecord,
    RollbackPlanRecord,
    RollbackStepEventRecord,
    RolledBackRecord,
    ScopeCreatedRecord,
    unit_of,
)
from journal.vocabulary import (
    MAX_REASON_BYTES,
    BackfillCompletion,
    BackfillCounts,
    CommitCertainty,
    Direction,
    GroupEventKind,
    UnitKind,
)
from tests.factories import (
    LOWERING,
    PROFILE,
    SCOPE,
    chain_of,
    digest_of,
    group_record,
    lease_of,
    manifest_of,
    plan_record,
    print_of,
    rollback_plan_record,
    state_of,
    step_record,
)

ELSEWHERE = Scope("elsewhere")
BEFORE = GroupEventKind.BEFORE_COMMIT
COMMITTED = GroupEventKind.COMMITTED
UNKNOWN = GroupEventKind.COMMIT_OUTCOME_UNKNOWN
ABORTED = GroupEventKind.DEFINITELY_ABORTED
FORMAL = GroupEventKind.FORMAL_ONLY_ADVANCED
COUNTS = BackfillCounts(matched=5, changed=3, skipped=2, transaction_groups=2)

Case = SimpleNamespace


class Rule(NamedTuple):
    """One rule of a constructor: its place in the order, what breaking it is called, how, and the code that says so."""

    stage: int
    name: str
    code: Code
    break_: Callable[[Case], None]


class Constructor(NamedTuple):
    """A constructor, a case that it accepts, and its rules."""

    case: Callable[[], Case]
    build: Callable[[Case], Any]
    rules: list[Rule]


def sets(**values: Any) -> Callable[[Case], None]:
    """Break a rule by giving other arguments."""
    return lambda case: vars(case).update(values)


def foreign_lease(case: Case) -> None:
    case.lease = lease_of(scope=ELSEWHERE)


# --- plans --------------------------------------------------------------------------------------------------------------


def plan_case() -> Case:
    first, second, third = chain_of(3)
    plan = verify_plan(applied=[first], planned=[second, third])
    return Case(lease=lease_of(), plan=plan, applied=list(plan.applied), live=second.source)


def build_plan(case: Case) -> PlanRecord:
    return PlanRecord.from_verified_plan(case.lease, case.plan, case.applied, case.live)


def empty_plan(case: Case) -> None:
    case.plan = replace(case.plan, manifests=())


def last_planned(**changes: Any) -> Callable[[Case], None]:
    def apply(case: Case) -> None:
        *others, last = case.plan.manifests
        case.plan = replace(case.plan, manifests=(*others, replace(last, **changes)))

    return apply


def rollback_plan_case() -> Case:
    first, second, third = chain_of(3)
    rollbacks = [verify_rollback(manifest) for manifest in (third, second)]
    plan = verify_rollback_plan(applied=[first, second, third], rollbacks=rollbacks)
    return Case(lease=lease_of(), plan=plan, applied=list(plan.applied), live=third.target)


def build_rollback_plan(case: Case) -> RollbackPlanRecord:
    return RollbackPlanRecord.from_verified_rollback_plan(case.lease, case.plan, case.applied, case.live)


def empty_rollback_plan(case: Case) -> None:
    case.plan = replace(case.plan, rollbacks=())


def last_rolled_back(**changes: Any) -> Callable[[Case], None]:
    def apply(case: Case) -> None:
        *others, last = case.plan.rollbacks
        changed = replace(last, manifest=replace(last.manifest, **changes))
        case.plan = replace(case.plan, rollbacks=(*others, changed))

    return apply


def basis_rules(empty: Callable[[Case], None]) -> list[Rule]:
    """What both kinds of plan check before the profiles."""
    ids = [manifest.id for manifest in chain_of(4)]
    return [
        Rule(1, "no migration", Code.EMPTY_PLAN, empty),
        Rule(2, "ledger grown", Code.STALE_APPLIED_SET, sets(applied=ids)),
        Rule(2, "ledger shrunk", Code.STALE_APPLIED_SET, sets(applied=[])),
        Rule(2, "ledger replaced", Code.STALE_APPLIED_SET, sets(applied=[manifest_of(9).id])),
        Rule(3, "live state moved", Code.STALE_SOURCE_STATE, sets(live=state_of("moved"))),
        Rule(3, "live declared moved", Code.STALE_SOURCE_STATE, lambda case: live(case, declared=print_of("x"))),
        Rule(3, "live semantics moved", Code.STALE_SOURCE_STATE, lambda case: live(case, semantics=print_of("x"))),
        Rule(3, "live of another scope", Code.STALE_SOURCE_STATE, lambda case: live(case, scope=ELSEWHERE)),
        Rule(4, "foreign lease", Code.SCOPE_MISMATCH, foreign_lease),
    ]


def live(case: Case, **changes: Any) -> None:
    case.live = replace(case.live, **changes)


MISMATCH = Code.PLAN_BINDING_MISMATCH
FAR = state_of("far", ELSEWHERE)
PLAN = Constructor(
    plan_case,
    build_plan,
    [
        *basis_rules(empty_plan),
        Rule(4, "target elsewhere", Code.SCOPE_MISMATCH, last_planned(target=FAR)),
        Rule(5, "another semantic profile", MISMATCH, last_planned(semantic_profile=print_of("x"))),
        Rule(5, "another lowering profile", MISMATCH, last_planned(lowering_profile=print_of("x"))),
        Rule(5, "a manifest elsewhere", MISMATCH, last_planned(source=FAR)),
    ],
)
ROLLBACK_PLAN = Constructor(
    rollback_plan_case,
    build_rollback_plan,
    [
        *basis_rules(empty_rollback_plan),
        Rule(4, "restored state elsewhere", Code.SCOPE_MISMATCH, last_rolled_back(source=FAR)),
        Rule(5, "another semantic profile", MISMATCH, last_rolled_back(semantic_profile=print_of("x"))),
        Rule(5, "another lowering profile", MISMATCH, last_rolled_back(lowering_profile=print_of("x"))),
    ],
)


# --- groups and rollback steps ------------------------------------------------------------------------------------------


def group_case() -> Case:
    manifest = manifest_of(1, assertions=1)
    return Case(lease=lease_of(), manifest=manifest, group=manifest.groups[0], kind=BEFORE, observed=None)


def build_group(case: Case) -> GroupEventRecord:
    return GroupEventRecord.new(case.lease, case.manifest, case.group, case.kind, case.observed)


def group(**changes: Any) -> Callable[[Case], None]:
    """Change the supplied group alone, so that it is no longer the manifest's."""

    def apply(case: Case) -> None:
        case.group = replace(case.group, **changes)

    return apply


def own_group(**changes: Any) -> Callable[[Case], None]:
    """Change the group in the manifest, too, so that it stays the manifest's."""

    def apply(case: Case) -> None:
        case.group = replace(case.group, **changes)
        case.manifest = replace(case.manifest, groups=(case.group,))

    return apply


def not_lowered(case: Case) -> None:
    steps = (replace(step, statements=None) if isinstance(step, SchemaStep) else step for step in case.manifest.steps)
    case.manifest = replace(case.manifest, steps=tuple(steps))


def commit_rules(stage: int, not_the_target: ManagedState) -> list[Rule]:
    """What groups and rollback steps require of kind and observation; one case breaks one of them."""
    seen = print_of("seen")
    return [
        Rule(stage, "committed, nothing seen", Code.COMMIT_EVIDENCE_MISMATCH, sets(kind=COMMITTED, observed=None)),
        Rule(stage, "committed, else seen", Code.COMMIT_EVIDENCE_MISMATCH, sets(kind=COMMITTED, observed=seen)),
        Rule(
            stage,
            "committed, the source seen",
            Code.COMMIT_EVIDENCE_MISMATCH,
            sets(kind=COMMITTED, observed=not_the_target.semantics),
        ),
        Rule(stage, "not formal", Code.INVALID_FORMAL_ADVANCE, sets(kind=FORMAL, observed=None)),
        Rule(stage, "formal, something seen", Code.INVALID_FORMAL_ADVANCE, sets(kind=FORMAL, observed=seen)),
        *(
            Rule(stage, f"{kind.value}, something seen", Code.UNEXPECTED_OBSERVATION, sets(kind=kind, observed=seen))
            for kind in (BEFORE, UNKNOWN, ABORTED)
        ),
    ]


POSITION = Code.GROUP_POSITION_MISMATCH
GROUP = Constructor(
    group_case,
    build_group,
    [
        Rule(1, "ordinal behind the last", Code.FOREIGN_GROUP, group(ordinal=1)),
        Rule(1, "ordinal below the first", Code.FOREIGN_GROUP, group(ordinal=-1)),
        Rule(1, "another end", Code.FOREIGN_GROUP, group(end_step_index=17)),
        Rule(1, "another start", Code.FOREIGN_GROUP, group(first_step_index=17)),
        Rule(2, "delta behind the last step", POSITION, own_group(schema_delta_step_index=2)),
        Rule(2, "delta below the first step", POSITION, own_group(schema_delta_step_index=-1)),
        Rule(2, "delta is an assertion", POSITION, own_group(schema_delta_step_index=0)),
        Rule(3, "not lowered", Code.GROUP_LOWERING_MISSING, not_lowered),
        Rule(4, "foreign lease", Code.SCOPE_MISMATCH, foreign_lease),
        *commit_rules(5, state_of("1")),
        Rule(6, "start below 0", Code.POSITION_LIMIT, own_group(first_step_index=-1)),
        Rule(6, "end past u32", Code.POSITION_LIMIT, own_group(end_step_index=2**32)),
    ],
)


def step_case() -> Case:
    rollback = verify_rollback(manifest_of(1, assertions=1, backfill=True))
    return Case(lease=lease_of(), rollback=rollback, ordinal=0, kind=BEFORE, observed=None)


def build_step(case: Case) -> RollbackStepEventRecord:
    return RollbackStepEventRecord.new(case.lease, case.rollback, case.ordinal, case.kind, case.observed)


STEP = Constructor(
    step_case,
    build_step,
    [
        Rule(1, "behind the last step", Code.ROLLBACK_STEP_POSITION, sets(ordinal=1)),
        Rule(1, "below the first step", Code.ROLLBACK_STEP_POSITION, sets(ordinal=-1)),
        Rule(1, "far behind", Code.ROLLBACK_STEP_POSITION, sets(ordinal=2**32)),
        Rule(2, "foreign lease", Code.SCOPE_MISMATCH, foreign_lease),
        *commit_rules(3, state_of("2")),
    ],
)


# --- backfills ----------------------------------------------------------------------------------------------------------


def completion_of(name: str = "backfill 1", direction: Direction = Direction.FORWARD) -> BackfillCompletion:
    return BackfillCompletion(print_of(name), direction, COUNTS)


def backfill_case() -> Case:
    manifest = manifest_of(1, assertions=1, backfill=True)
    return Case(lease=lease_of(), manifest=manifest, index=2, kind=BEFORE, completion=None, counts=COUNTS)


def build_backfill(case: Case) -> BackfillEventRecord:
    return BackfillEventRecord.new_apply(case.lease, case.manifest, case.index, case.kind, case.completion)


def build_checkpoint(case: Case) -> BackfillCheckpointRecord:
    return BackfillCheckpointRecord.new_apply(case.lease, case.manifest, case.index, case.counts)


def reverse_case() -> Case:
    rollback = verify_rollback(manifest_of(1, assertions=1, backfill=True))
    return Case(lease=lease_of(), rollback=rollback, index=0, kind=BEFORE, completion=None, counts=COUNTS)


def build_reverse(case: Case) -> BackfillEventRecord:
    return BackfillEventRecord.new_rollback(case.lease, case.rollback, case.index, case.kind, case.completion)


def build_reverse_checkpoint(case: Case) -> BackfillCheckpointRecord:
    return BackfillCheckpointRecord.new_rollback(case.lease, case.rollback, case.index, case.counts)


def misplaced_operation(case: Case) -> None:
    """An operation that claims to undo a backfill where the manifest has a schema step."""
    case.index = 0
    operation = RollbackOperation(RollbackOperationKind.BACKFILL, 1, 0)
    case.rollback = replace(case.rollback, operations=(operation,))


def completion_rules(stage: int, direction: Direction) -> list[Rule]:
    other = Direction.REVERSE if direction is Direction.FORWARD else Direction.FORWARD
    good = completion_of(direction=direction)
    wrong = Code.BACKFILL_COMPLETION_MISMATCH
    return [
        Rule(stage, "committed without proof", wrong, sets(kind=COMMITTED, completion=None)),
        Rule(
            stage,
            "committed with another program's proof",
            wrong,
            sets(kind=COMMITTED, completion=completion_of("else", direction)),
        ),
        Rule(
            stage,
            "committed with the other direction's proof",
            wrong,
            sets(kind=COMMITTED, completion=completion_of(direction=other)),
        ),
        Rule(stage, "formal", Code.BACKFILL_FORMAL_ADVANCE, sets(kind=FORMAL, completion=None)),
        Rule(stage, "formal with proof", Code.BACKFILL_FORMAL_ADVANCE, sets(kind=FORMAL, completion=good)),
        *(
            Rule(
                stage,
                f"{kind.value} with proof",
                Code.UNEXPECTED_BACKFILL_COMPLETION,
                sets(kind=kind, completion=good),
            )
            for kind in (BEFORE, UNKNOWN, ABORTED)
        ),
    ]


def place_rules(*indices: int) -> list[Rule]:
    return [
        Rule(1, "foreign lease", Code.SCOPE_MISMATCH, foreign_lease),
        *(Rule(2, f"at {index}", Code.BACKFILL_STEP_POSITION, sets(index=index)) for index in indices),
    ]


MISPLACED = Rule(2, "no backfill there", Code.BACKFILL_STEP_POSITION, misplaced_operation)
BACKFILL = Constructor(
    backfill_case, build_backfill, [*place_rules(-1, 0, 1, 3, 2**32), *completion_rules(3, Direction.FORWARD)]
)
REVERSE = Constructor(
    reverse_case, build_reverse, [*place_rules(-1, 1, 2, 2**32), MISPLACED, *completion_rules(3, Direction.REVERSE)]
)
CHECKPOINT = Constructor(backfill_case, build_checkpoint, place_rules(-1, 0, 1, 3, 2**32))
REVERSE_CHECKPOINT = Constructor(reverse_case, build_reverse_checkpoint, [*place_rules(-1, 1, 2, 2**32), MISPLACED])


# --- the ledger, attestations -------------------------------------------------------------------------------------------


def applied_case() -> Case:
    return Case(lease=lease_of(), manifest=manifest_of(1))


def build_applied(case: Case) -> AppliedRecord:
    return AppliedRecord.from_verified_manifest(case.lease, case.manifest)


def build_rolled_back(case: Case) -> RolledBackRecord:
    return RolledBackRecord.from_verified_rollback(case.lease, replace(ROLLBACK_OF_1, manifest=case.manifest))


ROLLBACK_OF_1 = verify_rollback(manifest_of(1))


def changed_manifest(**changes: Any) -> Callable[[Case], None]:
    def apply(case: Case) -> None:
        case.manifest = replace(case.manifest, **changes)

    return apply


LEDGER_RULES = [
    Rule(1, "foreign lease", Code.SCOPE_MISMATCH, foreign_lease),
    Rule(1, "source elsewhere", Code.SCOPE_MISMATCH, changed_manifest(source=FAR)),
    Rule(1, "target elsewhere", Code.SCOPE_MISMATCH, changed_manifest(target=FAR)),
]
APPLIED = Constructor(applied_case, build_applied, LEDGER_RULES)
ROLLED_BACK = Constructor(applied_case, build_rolled_back, LEDGER_RULES)

BAD_TEXTS = [
    "",
    "  ",
    "\u00a0",
    "two\nlines",
    "tab\there",
    "bell\x07",
    "\ud800",
    "\u202e",
    "x" * (MAX_REASON_BYTES + 1),
]


def text_rules(stage: int) -> list[Rule]:
    return [
        Rule(stage, f"{name} {text[:9]!a}", Code.INVALID_TEXT, sets(**{name: text}))
        for name in ("operator", "reason")
        for text in BAD_TEXTS
    ]


def import_case() -> Case:
    manifests = chain_of(2)
    return Case(lease=lease_of(), manifests=manifests, live=manifests[-1].target, operator="ada", reason="adopted")


def build_import(case: Case) -> LedgerImportedRecord:
    return LedgerImportedRecord.from_verified_manifests(
        case.lease, case.manifests, case.live, operator=case.operator, reason=case.reason
    )


def first_imported(**changes: Any) -> Callable[[Case], None]:
    def apply(case: Case) -> None:
        first, *others = case.manifests
        case.manifests = [replace(first, **changes), *others]

    return apply


IMPORT = Constructor(
    import_case,
    build_import,
    [
        Rule(1, "no migration", Code.EMPTY_IMPORT, sets(manifests=[])),
        *text_rules(2),
        Rule(3, "live state is another", Code.STALE_SOURCE_STATE, sets(live=state_of("moved"))),
        Rule(4, "foreign lease", Code.SCOPE_MISMATCH, foreign_lease),
        Rule(5, "another semantic profile", MISMATCH, first_imported(semantic_profile=print_of("x"))),
        Rule(5, "another lowering profile", MISMATCH, first_imported(lowering_profile=print_of("x"))),
        Rule(5, "a manifest elsewhere", MISMATCH, first_imported(source=FAR)),
    ],
)


def attest_case() -> Case:
    event = group_record(lease_of(), manifest_of(1), UNKNOWN)
    return Case(lease=lease_of(fence=2), event=event, outcome=COMMITTED, operator="ada", reason="looked at it")


def build_attest(case: Case) -> RecoveryAttestedRecord:
    return RecoveryAttestedRecord.new(
        case.lease, case.event, case.outcome, observed=None, operator=case.operator, reason=case.reason
    )


ATTEST = Constructor(
    attest_case,
    build_attest,
    [
        *(
            Rule(1, f"attests {kind.value}", Code.UNEXPECTED_OBSERVATION, sets(outcome=kind))
            for kind in (BEFORE, UNKNOWN, FORMAL)
        ),
        *text_rules(2),
        Rule(3, "foreign lease", Code.SCOPE_MISMATCH, foreign_lease),
    ],
)


def abandon_case() -> Case:
    plan = JournalEntry(Sequence(7), plan_record(lease_of(), [manifest_of(1)]))
    return Case(lease=lease_of(fence=2), plan=plan, operator="ada", reason="not wanted")


def build_abandon(case: Case) -> PlanAbandonedRecord:
    return PlanAbandonedRecord.new(case.lease, case.plan, operator=case.operator, reason=case.reason)


ABANDON = Constructor(
    abandon_case,
    build_abandon,
    [*text_rules(1), Rule(2, "foreign lease", Code.SCOPE_MISMATCH, foreign_lease)],
)

CONSTRUCTORS = {
    "plan": PLAN,
    "group": GROUP,
    "backfill": BACKFILL,
    "reverse backfill": REVERSE,
    "checkpoint": CHECKPOINT,
    "reverse checkpoint": REVERSE_CHECKPOINT,
    "applied": APPLIED,
    "rollback plan": ROLLBACK_PLAN,
    "rollback step": STEP,
    "rolled back": ROLLED_BACK,
    "import": IMPORT,
    "attestation": ATTEST,
    "abandonment": ABANDON,
}
ALONE = [
    pytest.param(name, rule, id=f"{name}: {rule.name}")
    for name, constructor in CONSTRUCTORS.items()
    for rule in constructor.rules
]
TOGETHER = [
    pytest.param(name, first, second, id=f"{name}: {first.name} & {second.name}")
    for name, constructor in CONSTRUCTORS.items()
    for first in constructor.rules
    for second in constructor.rules
    if first.stage < second.stage
]


def refusal(name: str, *broken: Rule) -> JournalError:
    """The error for a good case in which these rules are broken."""
    constructor = CONSTRUCTORS[name]
    case = constructor.case()
    for rule in sorted(broken, key=lambda rule: rule.stage, reverse=True):
        rule.break_(case)
    with pytest.raises(JournalError) as caught:
        constructor.build(case)
    return caught.value


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_good_evidence_makes_a_record(name):
    constructor = CONSTRUCTORS[name]
    case = constructor.case()
    record = constructor.build(case)
    assert (record.scope, record.fence) == (case.lease.scope, case.lease.fence)


@pytest.mark.parametrize(("name", "rule"), ALONE)
def test_every_rule_refuses_with_its_code(name, rule):
    assert refusal(name, rule).code is rule.code


@pytest.mark.parametrize(("name", "first", "second"), TOGETHER)
def test_of_two_broken_rules_the_earlier_one_speaks(name, first, second):
    assert refusal(name, first, second).code is first.code


CATEGORIES = {
    Code.EMPTY_PLAN: InvalidContractError,
    Code.EMPTY_IMPORT: InvalidContractError,
    Code.INVALID_FORMAL_ADVANCE: InvalidContractError,
    Code.UNEXPECTED_OBSERVATION: InvalidContractError,
    Code.BACKFILL_FORMAL_ADVANCE: InvalidContractError,
    Code.UNEXPECTED_BACKFILL_COMPLETION: InvalidContractError,
    Code.INVALID_TEXT: InvalidContractError,
    Code.POSITION_LIMIT: ResourceLimitError,
}


@pytest.mark.parametrize(("name", "rule"), ALONE)
def test_every_refusal_is_of_the_seeds_category(name, rule):
    assert type(refusal(name, rule)) is CATEGORIES.get(rule.code, IntegrityError)


# --- what is left open in the tables above ------------------------------------------------------------------------------


def formal_manifest(
    *, assertions: int = 0, statements: int | None = 0, reverse_statements: int = 0, equal: bool = True
) -> VerifiedManifest:
    """A migration that changes what is declared and, unless asked to, nothing else."""
    source = state_of("formal")
    target = replace(source, declared=print_of("declared anew"))
    if not equal:
        target = state_of("changed")
    shell = manifest_of(1, assertions=assertions)
    delta = SchemaStep(digest_of("formal"), source, target, statements, reverse_statements)
    return verify_manifest(
        id=shell.id,
        source=source,
        target=target,
        steps=[*shell.steps[:-1], delta],
        semantic_profile=PROFILE,
        lowering_profile=LOWERING,
    )


def advance(manifest: VerifiedManifest) -> GroupEventRecord:
    return GroupEventRecord.new(lease_of(), manifest, manifest.groups[0], FORMAL)


def advance_back(manifest: VerifiedManifest) -> RollbackStepEventRecord:
    return RollbackStepEventRecord.new(lease_of(), verify_rollback(manifest), 0, FORMAL)


def test_a_group_that_changes_nothing_advances_formally():
    assert advance(formal_manifest()).kind is FORMAL
    assert advance(formal_manifest(reverse_statements=3)).observed_target is None


@pytest.mark.parametrize("blemish", [{"assertions": 1}, {"statements": 1}, {"equal": False}])
def test_a_group_with_an_assertion_a_statement_or_another_meaning_does_not_advance_formally(blemish):
    with pytest.raises(InvalidContractError) as caught:
        advance(formal_manifest(**blemish))
    assert caught.value.code is Code.INVALID_FORMAL_ADVANCE


def test_a_reverse_step_that_changes_nothing_advances_formally_whatever_the_forward_step_did():
    assert advance_back(formal_manifest()).kind is FORMAL
    assert advance_back(formal_manifest(assertions=1, statements=4)).kind is FORMAL


@pytest.mark.parametrize("blemish", [{"reverse_statements": 1}, {"equal": False}])
def test_a_reverse_step_with_a_statement_or_another_meaning_does_not_advance_formally(blemish):
    with pytest.raises(InvalidContractError) as caught:
        advance_back(formal_manifest(**blemish))
    assert caught.value.code is Code.INVALID_FORMAL_ADVANCE


def test_the_order_of_the_observed_ledger_counts():
    first, second, third = chain_of(3)
    plan = verify_plan(applied=[first, second], planned=[third])
    with pytest.raises(IntegrityError) as caught:
        PlanRecord.from_verified_plan(lease_of(), plan, plan.applied[::-1], third.source)
    assert caught.value.code is Code.STALE_APPLIED_SET


def test_a_reason_may_be_as_long_as_its_limit_in_bytes():
    case = abandon_case()
    case.operator, case.reason = "ä" * (MAX_REASON_BYTES // 2), "x" * MAX_REASON_BYTES
    assert build_abandon(case).reason == case.reason
    case.operator += "ä"
    with pytest.raises(InvalidContractError):
        build_abandon(case)


# --- counts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "counts", [(0, 0, 0, 1), (5, 3, 2, 2), (5, 5, 0, 1), (5, 0, 5, 2**32 - 1), (2**63 - 1, 2**63 - 1, 0, 1)]
)
def test_counts_that_add_up_are_accepted(counts):
    built = BackfillCounts(*counts)
    assert (built.matched, built.changed, built.skipped, built.transaction_groups) == counts


@pytest.mark.parametrize(
    ("counts", "code"),
    [
        ((0, 0, 0, 0), Code.BACKFILL_ZERO_TRANSACTION_GROUPS),
        ((5, 3, 1, 0), Code.BACKFILL_ZERO_TRANSACTION_GROUPS),  # before the counts that do not add up
        ((-1, -1, 0, 0), Code.BACKFILL_ZERO_TRANSACTION_GROUPS),
        ((5, 3, 1, 1), Code.BACKFILL_COUNT_MISMATCH),
        ((5, 3, 3, 1), Code.BACKFILL_COUNT_MISMATCH),
        ((-1, 0, 0, 1), Code.BACKFILL_COUNT_MISMATCH),
        ((0, 1, -1, 1), Code.POSITION_LIMIT),
        ((0, -1, 1, 1), Code.POSITION_LIMIT),
        ((0, 0, 0, -1), Code.POSITION_LIMIT),
        ((0, 0, 0, 2**32), Code.POSITION_LIMIT),
        ((2**63, 2**63, 0, 1), Code.POSITION_LIMIT),
    ],
)
def test_counts_that_contradict_each_other_are_refused(counts, code):
    with pytest.raises(JournalError) as caught:
        BackfillCounts(*counts)
    assert caught.value.code is code


def test_certainty_about_a_failed_commit_becomes_the_event_that_says_it():
    assert {certainty: certainty.event_kind for certainty in CommitCertainty} == {
        CommitCertainty.DEFINITELY_ABORTED: ABORTED,
        CommitCertainty.UNKNOWN: UNKNOWN,
    }


# --- what a record says -------------------------------------------------------------------------------------------------


def values(record: object) -> dict[str, Any]:
    assert is_dataclass(record)
    return {field.name: getattr(record, field.name) for field in fields(record)}


def test_a_plan_record_says_what_was_planned():
    first, second, third = chain_of(3)
    assert values(plan_record(lease_of(fence=4), [second, third], [first])) == {
        "scope": SCOPE,
        "fence": 4,
        "source_declared": second.source.declared,
        "target_declared": third.target.declared,
        "source_semantics": second.source.semantics,
        "target_semantics": third.target.semantics,
        "semantic_profile": PROFILE,
        "lowering_profile": LOWERING,
        "observed_live_source": second.source.semantics,
        "source_applied": (first.id,),
        "source_frontier": (first.id,),
        "target_frontier": (third.id,),
        "migration_ids": (second.id, third.id),
        "manifest_digests": (second.digest, third.digest),
        "manifest_plan_fingerprints": (second.plan_fingerprint, third.plan_fingerprint),
    }


def test_a_rollback_plan_record_says_what_is_retired_and_what_stays():
    first, second, third = chain_of(3)
    assert values(rollback_plan_record(lease_of(fence=4), [third, second], [first, second, third])) == {
        "scope": SCOPE,
        "fence": 4,
        "source_declared": third.target.declared,
        "target_declared": second.source.declared,
        "source_semantics": third.target.semantics,
        "target_semantics": second.source.semantics,
        "semantic_profile": PROFILE,
        "lowering_profile": LOWERING,
        "observed_live_source": third.target.semantics,
        "source_applied": (first.id, second.id, third.id),
        "remaining_applied": (first.id,),
        "rollback_ids": (third.id, second.id),
        "manifest_digests": (third.digest, second.digest),
        "manifest_plan_fingerprints": (third.plan_fingerprint, second.plan_fingerprint),
    }


def test_a_group_event_says_where_the_group_is_and_what_was_seen():
    manifest = manifest_of(1, assertions=2)
    assert values(group_record(lease_of(fence=4), manifest, COMMITTED)) == {
        "scope": SCOPE,
        "fence": 4,
        "manifest_digest": manifest.digest,
        "migration_id": manifest.id,
        "group_ordinal": 0,
        "first_step_index": 0,
        "schema_delta_step_index": 2,
        "end_step_index": 3,
        "kind": COMMITTED,
        "observed_target": manifest.target.semantics,
    }


def test_a_rollback_step_event_carries_the_restored_semantics():
    manifest = manifest_of(1)
    assert values(step_record(lease_of(fence=4), manifest, COMMITTED)) == {
        "scope": SCOPE,
        "fence": 4,
        "manifest_digest": manifest.digest,
        "migration_id": manifest.id,
        "step_ordinal": 0,
        "kind": COMMITTED,
        "observed_target": manifest.source.semantics,
    }


def test_a_forward_backfill_event_counts_steps_and_a_reverse_one_operations():
    manifest = manifest_of(1, assertions=1, backfill=True)
    common = {
        "scope": SCOPE,
        "fence": 4,
        "manifest_digest": manifest.digest,
        "plan_fingerprint": print_of("backfill 1"),
        "migration_id": manifest.id,
        "manifest_step_index": 2,
        "kind": COMMITTED,
    }
    lease = lease_of(fence=4)
    forward = BackfillEventRecord.new_apply(lease, manifest, 2, COMMITTED, completion_of())
    assert values(forward) == {
        **common,
        "operation_ordinal": 2,
        "direction": Direction.FORWARD,
        "completion": completion_of(),
    }
    proof = completion_of(direction=Direction.REVERSE)
    reverse = BackfillEventRecord.new_rollback(lease, verify_rollback(manifest), 0, COMMITTED, proof)
    assert values(reverse) == {**common, "operation_ordinal": 0, "direction": Direction.REVERSE, "completion": proof}


def test_a_checkpoint_carries_the_counts_so_far():
    record = build_checkpoint(backfill_case())
    assert (record.matched, record.changed, record.skipped, record.transaction_groups) == (5, 3, 2, 2)
    assert (record.operation_ordinal, record.direction) == (2, Direction.FORWARD)
    reverse = build_reverse_checkpoint(reverse_case())
    assert (reverse.operation_ordinal, reverse.direction) == (0, Direction.REVERSE)


def test_a_retirement_has_the_states_of_its_application_swapped():
    lease, manifest = lease_of(), manifest_of(1)
    applied = AppliedRecord.from_verified_manifest(lease, manifest)
    retired = RolledBackRecord.from_verified_rollback(lease, verify_rollback(manifest))
    assert values(applied) == {
        "scope": SCOPE,
        "fence": 1,
        "manifest_digest": manifest.digest,
        "source_declared": manifest.source.declared,
        "target_declared": manifest.target.declared,
        "source_semantics": manifest.source.semantics,
        "target_semantics": manifest.target.semantics,
        "migration_id": manifest.id,
    }
    assert values(retired) == {
        **values(applied),
        "source_declared": manifest.target.declared,
        "target_declared": manifest.source.declared,
        "source_semantics": manifest.target.semantics,
        "target_semantics": manifest.source.semantics,
    }


def test_an_import_names_every_migration_with_its_states_in_the_order_given():
    case = import_case()
    record = build_import(case)
    assert record.observed_live == case.live.semantics
    assert [values(migration) for migration in record.migrations] == [
        {
            "manifest_digest": manifest.digest,
            "source_declared": manifest.source.declared,
            "target_declared": manifest.target.declared,
            "source_semantics": manifest.source.semantics,
            "target_semantics": manifest.target.semantics,
            "migration_id": manifest.id,
        }
        for manifest in case.manifests
    ]


def test_an_attestation_names_the_unit_of_the_event():
    lease = lease_of()
    manifest = manifest_of(1, backfill=True)
    rollback = verify_rollback(manifest)
    cases = [
        (group_record(lease, manifest, BEFORE), (UnitKind.GROUP, 0, Direction.FORWARD)),
        (BackfillEventRecord.new_apply(lease, manifest, 1, BEFORE), (UnitKind.BACKFILL, 1, Direction.FORWARD)),
        (BackfillEventRecord.new_rollback(lease, rollback, 0, BEFORE), (UnitKind.BACKFILL, 0, Direction.REVERSE)),
        (step_record(lease, manifest, BEFORE), (UnitKind.ROLLBACK_STEP, 0, Direction.REVERSE)),
    ]
    for event, unit in cases:
        assert unit_of(event) == unit
        record = RecoveryAttestedRecord.new(lease, event, ABORTED, observed=None, operator="ada", reason="seen")
        assert (record.unit, record.ordinal, record.direction) == unit
        assert (record.manifest_digest, record.migration_id, record.outcome) == (manifest.digest, manifest.id, ABORTED)


def test_an_abandonment_names_the_plan_and_its_direction():
    lease, manifest = lease_of(), manifest_of(1)
    forward = build_abandon(abandon_case())
    assert (forward.plan_sequence, forward.direction) == (7, Direction.FORWARD)
    plan = JournalEntry(Sequence(9), rollback_plan_record(lease, [manifest], [manifest]))
    reverse = PlanAbandonedRecord.new(lease, plan, operator="ada", reason="not wanted")
    assert (reverse.plan_sequence, reverse.direction) == (9, Direction.REVERSE)


# --- records as values --------------------------------------------------------------------------------------------------

HEADLESS: dict[str, Callable[[], Any]] = {
    "genesis": lambda: ScopeCreatedRecord.new(authenticated=False),
    "lease acquired": lambda: LeaseAcquiredRecord.new(HolderId("owner"), 30),
    "lease released": lambda: LeaseReleasedRecord.new(HolderId("owner")),
    "imported migration": lambda: build_import(import_case()).migrations[0],
}
SAMPLES: dict[str, Callable[[], Any]] = {
    **HEADLESS,
    **{name: lambda c=constructor: c.build(c.case()) for name, constructor in CONSTRUCTORS.items()},
}


def test_every_record_class_is_sampled_here():
    classes = {type(sample()) for sample in SAMPLES.values()}
    assert classes == {
        ScopeCreatedRecord,
        LeaseAcquiredRecord,
        LeaseReleasedRecord,
        PlanRecord,
        GroupEventRecord,
        BackfillEventRecord,
        BackfillCheckpointRecord,
        AppliedRecord,
        RollbackPlanRecord,
        RollbackStepEventRecord,
        RolledBackRecord,
        LedgerImportedRecord,
        ImportedMigration,
        RecoveryAttestedRecord,
        PlanAbandonedRecord,
    }


@pytest.mark.parametrize("name", SAMPLES)
def test_calling_a_record_class_is_refused(name):
    sample = SAMPLES[name]()
    for call in (type(sample), lambda: type(sample)(**values(sample)), lambda: replace(sample)):
        with pytest.raises(TypeError, match=r"verified evidence"):
            call()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_record_cannot_be_changed(name):
    sample = SAMPLES[name]()
    for field, value in values(sample).items():
        with pytest.raises(FrozenInstanceError):
            setattr(sample, field, value)
        with pytest.raises(FrozenInstanceError):
            delattr(sample, field)
        assert not isinstance(value, list | dict | set)
    assert not hasattr(sample, "__dict__")


@pytest.mark.parametrize("name", SAMPLES)
def test_records_of_the_same_evidence_are_equal(name):
    left, right = SAMPLES[name](), SAMPLES[name]()
    assert left is not right
    assert left == right
    assert hash(left) == hash(right)
    assert repr(left) == repr(right)


def test_records_under_different_fences_differ():
    manifest = manifest_of(1)
    left, right = (AppliedRecord.from_verified_manifest(lease_of(fence=fence), manifest) for fence in (1, 2))
    assert left != right


def test_records_of_different_classes_with_the_same_values_differ():
    manifest = formal_manifest()
    assert replace(manifest, target=manifest.source).source == manifest.source
    still = replace(manifest, target=manifest.source)
    applied = AppliedRecord.from_verified_manifest(lease_of(), still)
    retired = RolledBackRecord.from_verified_rollback(lease_of(), replace(ROLLBACK_OF_1, manifest=still))
    assert values(applied) == values(retired)
    assert applied != retired


def test_an_entry_is_a_record_with_its_sequence():
    record = AppliedRecord.from_verified_manifest(lease_of(), manifest_of(1))
    entry = JournalEntry(Sequence(3), record)
    assert (entry.sequence, entry.record) == (3, record)
    assert entry == JournalEntry(Sequence(3), record)
    assert entry != JournalEntry(Sequence(4), record)
    with pytest.raises(AttributeError):
        entry.sequence = Sequence(5)  # type: ignore[misc]


def test_a_lease_as_a_value_is_all_that_a_record_needs():
    lease = MigrationLease(SCOPE, HolderId("owner"), lease_of(fence=9).fence, lease_of().lease_id)
    assert AppliedRecord.from_verified_manifest(lease, manifest_of(1)).fence == 9


def test_a_backfill_without_a_reverse_has_its_forward_events_all_the_same():
    shell = manifest_of(1)
    manifest = verify_manifest(
        id=shell.id,
        source=shell.source,
        target=shell.target,
        steps=[*shell.steps, BackfillStep(print_of("one way"))],
        semantic_profile=PROFILE,
        lowering_profile=LOWERING,
    )
    assert BackfillEventRecord.new_apply(lease_of(), manifest, 1, BEFORE).plan_fingerprint == print_of("one way")

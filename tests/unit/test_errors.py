"""The error tree: what each class is below, which class each code has, and what a message shows."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from journal import errors
from journal.codec import Key
from journal.errors import (
    Code,
    CommitFailedError,
    FencedError,
    ForgedError,
    HistoryLostError,
    IntegrityError,
    InvalidContractError,
    JournalError,
    LeaseContendedError,
    LeaseLostError,
    OperationCancelledError,
    OutcomeUnknownError,
    ResourceLimitError,
    TargetError,
    UnavailableError,
    UnknownEventError,
    failure,
)

# DESIGN section 12, with the one branch that the journal adds: a lease that ran out is a service that did not answer.
TREE: dict[type[JournalError], type[Exception]] = {
    JournalError: Exception,
    InvalidContractError: JournalError,
    IntegrityError: JournalError,
    FencedError: IntegrityError,
    UnknownEventError: IntegrityError,
    HistoryLostError: IntegrityError,
    ForgedError: IntegrityError,
    LeaseContendedError: JournalError,
    ResourceLimitError: JournalError,
    OperationCancelledError: JournalError,
    UnavailableError: JournalError,
    LeaseLostError: UnavailableError,
    OutcomeUnknownError: JournalError,
    TargetError: JournalError,
    CommitFailedError: TargetError,
}

# What the caller does next decides the class. Whatever is not named here contradicts other evidence.
CLASSES: dict[type[JournalError], set[str]] = {
    InvalidContractError: {
        "migration_execution_plan_already_open",
        "migration_execution_no_open_plan",
        "migration_execution_empty_plan",
        "migration_execution_empty_import",
        "migration_execution_invalid_formal_advance",
        "migration_execution_unexpected_observation",
        "migration_execution_backfill_formal_advance",
        "migration_execution_unexpected_backfill_completion",
        "migration_backfill_zero_transaction_groups",
        "migration_backfill_count_mismatch",
        "migration_execution_invalid_holder",
        "migration_execution_zero_fence",
        "migration_execution_zero_sequence",
        "journal_invalid_scope",
        "journal_invalid_migration_id",
        "journal_invalid_digest",
        "journal_invalid_text",
        "journal_invalid_manifest",
        "journal_irreversible",
        "journal_invalid_settings",
        "journal_invalid_key",
        "journal_unknown_scope",
        "journal_not_yet_created",
        "journal_foreign_lease",
        "journal_closed",
        "journal_foreign_loop",
        "journal_forked",
        "journal_missing_file",
        "journal_read_only",
        "journal_scope_awaited",
        "journal_not_moved",
        "journal_not_permitted",
        "journal_invalid_folder",
        "journal_invalid_graph",
        "journal_unknown_migration",
        "journal_out_of_order",
        "journal_plan_differs",
        "journal_reverse_differs",
        "journal_nothing_in_doubt",
        "journal_invalid_step_plan",
        "journal_attestation_contradicted",
        "journal_statement_refused",
        "journal_backfill_key",
        "journal_missing_target",
    },
    FencedError: {
        "stale_parent",
        "fence_not_monotonic",
        "migration_execution_stale_fence",
        "journal_scope_moved",
        "journal_target_fenced",
    },
    UnknownEventError: {"journal_unknown_event", "journal_format_too_new"},
    HistoryLostError: {"journal_history_lost"},
    ForgedError: {"forged", "journal_key_required", "journal_key_unexpected"},
    LeaseContendedError: {"migration_execution_lease_contended"},
    ResourceLimitError: {
        "migration_execution_fence_exhausted",
        "migration_execution_sequence_exhausted",
        "migration_execution_position_limit",
        "migration_execution_deadline_exceeded",
        "journal_limit_exceeded",
        "journal_event_too_large",
    },
    OperationCancelledError: {"migration_execution_cancelled"},
    UnavailableError: {
        "journal_not_written",
        "journal_lease_in_doubt",
        "journal_leases_unavailable",
        "journal_storage_full",
        "journal_storage_busy",
        "journal_storage_failed",
        "journal_target_busy",
        "journal_target_unavailable",
    },
    TargetError: {
        "journal_statement_failed",
        "journal_assertion_failed",
        "journal_verify_failed",
        "journal_backfill_rows",
        "journal_references_broken",
        "journal_unexpected_result",
    },
    CommitFailedError: {"journal_commit_failed"},
    LeaseLostError: {"journal_lease_lost"},
    OutcomeUnknownError: {"journal_outcome_unknown"},
}

# Every code that seed 000 names, in its spelling.
SEED_CODES = [
    "migration_execution_cancelled",
    "migration_execution_deadline_exceeded",
    "migration_execution_zero_fence",
    "migration_execution_fence_exhausted",
    "migration_execution_invalid_holder",
    "migration_backfill_zero_transaction_groups",
    "migration_backfill_count_mismatch",
    "migration_execution_zero_sequence",
    "migration_execution_invalid_open_plan",
    "migration_execution_empty_plan",
    "migration_execution_stale_applied_set",
    "migration_execution_stale_source_state",
    "migration_execution_scope_mismatch",
    "migration_execution_plan_binding_mismatch",
    "migration_execution_foreign_group",
    "migration_execution_group_position_mismatch",
    "migration_execution_group_lowering_missing",
    "migration_execution_commit_evidence_mismatch",
    "migration_execution_invalid_formal_advance",
    "migration_execution_unexpected_observation",
    "migration_execution_backfill_step_position",
    "migration_execution_backfill_completion_mismatch",
    "migration_execution_backfill_formal_advance",
    "migration_execution_unexpected_backfill_completion",
    "migration_execution_rollback_step_position",
    "migration_execution_unmatched_retirement",
    "migration_execution_position_limit",
    "migration_execution_stale_fence",
    "migration_execution_sequence_exhausted",
    "migration_execution_lease_contended",
    "migration_execution_plan_already_open",
    "migration_execution_no_open_plan",
    "migration_execution_foreign_event",
    "migration_execution_applied_identity_conflict",
    "migration_execution_foreign_applied_record",
    "migration_execution_retirement_conflict",
]


def classes_of_the_module() -> Iterator[type[JournalError]]:
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, JournalError):
            yield value


def expected_class(code: Code) -> type[JournalError]:
    return next((cls for cls, codes in CLASSES.items() if code.value in codes), IntegrityError)


def test_the_tree_is_the_published_one():
    assert {cls: cls.__base__ for cls in classes_of_the_module()} == TREE


def test_every_code_has_the_class_that_says_what_to_do_next():
    details = {"holder": "owner", "expires_at": 0.0}
    actual = {code.value: type(failure(code, "message", **details)).__name__ for code in Code}
    assert actual == {code.value: expected_class(code).__name__ for code in Code}


def test_every_code_that_is_given_a_class_here_exists():
    named = [code for codes in CLASSES.values() for code in codes]
    assert set(named) <= {code.value for code in Code}
    assert len(named) == len(set(named))


def test_every_error_carries_its_code_message_and_details():
    for code in Code:
        error = failure(code, "what happened", holder="owner", expires_at=1.5, extra=7)
        assert (error.code, error.message, error.details["extra"]) == (code, "what happened", 7)


def test_codes_are_unique_in_value_and_none_is_an_alias():
    assert len({code.value for code in Code}) == len(Code) == len(Code.__members__)


def test_codes_are_stable_words():
    assert [code for code in Code if not re.fullmatch(r"[a-z]+(_[a-z]+)*", code.value)] == []


def test_every_code_of_seed_000_is_there_in_its_spelling():
    assert set(SEED_CODES) <= {code.value for code in Code}


def test_an_error_shows_its_message_and_its_code():
    assert str(failure(Code.ZERO_FENCE, "fences start at 1")) == "fences start at 1 [migration_execution_zero_fence]"
    for code in Code:
        assert str(failure(code, "message", holder="owner", expires_at=0.0)) == f"message [{code.value}]"


def test_details_are_for_machines_and_do_not_appear_in_the_text():
    error = failure(Code.INVALID_KEY, "the key is malformed", given="hunter2")
    assert "hunter2" not in str(error)
    assert "hunter2" not in repr(error)


@pytest.mark.parametrize("text", ["5ec2e7" * 10, "5ec2e7" * 11, "not hex, but 5ec2e7 all the same"])
def test_a_refused_key_is_not_repeated_anywhere(text):
    with pytest.raises(InvalidContractError) as caught:
        Key.parse(text)
    assert caught.value.code is Code.INVALID_KEY
    shown = f"{caught.value!s}{caught.value!r}{caught.value.details!r}"
    assert "5ec2e7" not in shown
    chain = (caught.value.__cause__, caught.value.__context__)
    assert not any("5ec2e7" in str(error) for error in chain)


def test_a_key_does_not_show_its_secret():
    key = Key(bytes.fromhex("5ec2e7" * 10 + "0000"))
    assert "5ec2e7" not in f"{key!r}{key!s}"


def test_contention_says_who_holds_the_lease_and_until_when():
    error = LeaseContendedError("leased", holder="owner-a", expires_at=1_764_500_000.5, scope="orders")
    assert (error.holder, error.expires_at) == ("owner-a", 1_764_500_000.5)
    assert error.code is Code.LEASE_CONTENDED
    assert error.details == {"holder": "owner-a", "expires_at": 1_764_500_000.5, "scope": "orders"}


def test_an_unknown_outcome_carries_the_receipt_that_will_learn_it():
    receipt = object()
    error = OutcomeUnknownError("sent", receipt=receipt)
    assert error.receipt is receipt
    assert error.code is Code.OUTCOME_UNKNOWN


def test_only_an_unavailable_service_is_retried_and_a_fenced_writer_never_is():
    assert not issubclass(FencedError, UnavailableError)
    assert not issubclass(OutcomeUnknownError, UnavailableError)
    assert issubclass(FencedError, IntegrityError)

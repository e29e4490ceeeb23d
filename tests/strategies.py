"""Hypothesis strategies for identities, records of every type, and the headers that carry them.

Records are built past their constructors, with any value of each field's type, because a log may hold what another
writer made: the codec must carry all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_type_hints

from hypothesis import settings, strategies as st

from journal.codec import RECORD_TYPES
from journal.identities import (
    Digest,
    Fence,
    Fingerprint,
    HolderId,
    Incarnation,
    LeaseId,
    MigrationId,
    Place,
    Scope,
    Sequence,
)
from journal.records import ImportedMigration, Record, restore
from journal.vocabulary import BackfillCompletion, BackfillCounts, Direction, GroupEventKind, UnitKind

# The same examples in every run, on machines of any speed, and nothing kept between runs.
DETERMINISTIC: Final = settings(derandomize=True, deadline=None, database=None)

_SHIFTS: Final = (6, 7, 13, 14, 20, 27, 31, 32, 34, 41, 48, 55, 62)
_EDGES: Final = sorted(
    {0, -1, 63, -64, 64, -65, 2**63 - 1, -(2**63), *(2**s for s in _SHIFTS), *(-(2**s) for s in _SHIFTS)}
)

longs = st.sampled_from(_EDGES) | st.integers(-(2**63), 2**63 - 1)
counts = st.integers(0, 200) | st.integers(0, 2**31)
fences = st.integers(1, 300) | st.integers(1, 2**63 - 1)
texts = st.text(max_size=40) | st.builds(
    lambda text, times: text * times, st.text(min_size=1, max_size=4), st.integers(1, 3000)
)
bytes16 = st.binary(min_size=16, max_size=16)
bytes32 = st.binary(min_size=32, max_size=32)

_app = st.from_regex(r"[a-z][a-z0-9_-]{0,20}", fullmatch=True)
_name = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True) | st.integers(1, 255).map(
    lambda length: "n" * length
)
migration_ids = st.builds(MigrationId, _app, _name)
scopes = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True).map(Scope)
holders = st.from_regex(r"[A-Za-z0-9._-]{1,128}", fullmatch=True).map(HolderId)


@st.composite
def backfill_counts(draw: st.DrawFn) -> BackfillCounts:
    """Counts that agree with each other."""
    changed, skipped = draw(counts), draw(counts)
    return BackfillCounts(changed + skipped, changed, skipped, draw(st.integers(1, 2**32 - 1)))


def _tuples(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    few = st.lists(items, max_size=4)
    many = st.builds(lambda item, times: [item] * times, items, st.integers(60, 200))
    return (few | many).map(tuple)


_imported = st.fixed_dictionaries(
    {
        "manifest_digest": bytes32.map(Digest),
        "source_declared": bytes32.map(Fingerprint),
        "target_declared": bytes32.map(Fingerprint),
        "source_semantics": bytes32.map(Fingerprint),
        "target_semantics": bytes32.map(Fingerprint),
        "migration_id": migration_ids,
    }
).map(lambda values: restore(ImportedMigration, values))

# One strategy a field type; a record with a field of another type fails here, by name.
_BY_TYPE: Final[Mapping[Any, st.SearchStrategy[Any]]] = {
    bool: st.booleans(),
    int: longs,
    str: texts,
    Scope: scopes,
    Fence: fences.map(Fence),
    Sequence: st.integers(1, 2**63 - 1).map(Sequence),
    HolderId: holders,
    Place: bytes16.map(Place),
    Digest: bytes32.map(Digest),
    Fingerprint: bytes32.map(Fingerprint),
    Fingerprint | None: st.none() | bytes32.map(Fingerprint),
    MigrationId: migration_ids,
    tuple[MigrationId, ...]: _tuples(migration_ids),
    tuple[Digest, ...]: _tuples(bytes32.map(Digest)),
    tuple[Fingerprint, ...]: _tuples(bytes32.map(Fingerprint)),
    tuple[ImportedMigration, ...]: _tuples(_imported),
    GroupEventKind: st.sampled_from(GroupEventKind),
    Direction: st.sampled_from(Direction),
    UnitKind: st.sampled_from(UnitKind),
    BackfillCompletion | None: st.none()
    | st.builds(BackfillCompletion, bytes32.map(Fingerprint), st.sampled_from(Direction), backfill_counts()),
}


def records_of(cls: type[Record]) -> st.SearchStrategy[Record]:
    """Records of one type with any values."""
    fields = {name: _BY_TYPE[type_] for name, type_ in get_type_hints(cls).items()}
    return st.fixed_dictionaries(fields).map(lambda values: restore(cls, values))


records = st.sampled_from(list(RECORD_TYPES.values())).flatmap(records_of)

headers = st.fixed_dictionaries(
    {
        "scope": scopes,
        "incarnation": bytes16.map(Incarnation),
        "lease_id": bytes16.map(LeaseId),
        "parent": bytes32,
        "fence": fences,
        "recorded_at": longs,
        "event_id": bytes16,
    }
)

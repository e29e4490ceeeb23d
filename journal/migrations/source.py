"""One migration as its author wrote it: statements, directives, and the digests that identify them.

`files` reads these from a folder; they say nothing yet of what they do to a schema. A digest covers the texts of the
statements and what the directives say, never the path, the encoding mark, line endings or comments between statements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias, assert_never

from journal.identities import Digest, Fingerprint, MigrationId, digest, fingerprint
from journal.migrations.manifest import (
    BackfillStep,
    assertion_content,
    backfill_content,
    manifest_digest,
    schema_content,
)

ASSERTION_DOMAIN: Final = "fenced-journal 2026-12 assertion v1"
SCHEMA_DOMAIN: Final = "fenced-journal 2026-12 schema step v1"
BACKFILL_DOMAIN: Final = "fenced-journal 2026-12 backfill v1"


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement as it is executed: its text without the final semicolon, and its line in the file, from 1.

    Line endings in the text are LF.
    """

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class AssertionSource:
    """A query that must give one true value before the schema step that follows may run."""

    description: str
    query: Statement
    line: int

    @property
    def digest(self) -> Digest:
        """Identity of the query; the description is for people and not part of it."""
        return digest(ASSERTION_DOMAIN, self.query.text.encode())


@dataclass(frozen=True)
class SchemaSource:
    """Statements that change the schema, and their reverse (None: there is none, so it cannot be rolled back).

    Not `transactional`: each statement commits by itself, because it cannot run in a transaction.
    """

    statements: tuple[Statement, ...]
    reverse: tuple[Statement, ...] | None
    transactional: bool
    line: int

    @cached_property
    def digest(self) -> Digest:
        """Identity of both directions and of how they are executed."""
        return digest(
            SCHEMA_DOMAIN,
            b"transactional" if self.transactional else b"off",
            *_program(self.statements),
            b"irreversible" if self.reverse is None else b"reverse",
            *_program(self.reverse or ()),
        )


@dataclass(frozen=True, slots=True)
class BackfillSource:
    """One statement that is run over the rows of `table` in batches of `batch` rows, in the order of `key`.

    It speaks of a batch as the rows whose key is above `:after` and up to `:upto`; for a key of several columns the
    parameters are `:after_<column>` and `:upto_<column>`. `verify` must give one true value when all batches are done;
    its `:upto` is the last key of all. `reverse` undoes the statement in the same way.
    """

    table: str
    key: tuple[str, ...]
    batch: int
    statement: Statement
    verify: Statement | None
    reverse: Statement | None
    line: int

    @property
    def fingerprint(self) -> Fingerprint:
        """Identity of the whole program."""
        texts = [self.table, *self.key, *(item.text for item in (self.statement, self.verify, self.reverse) if item)]
        shape = f"{len(self.key)} {self.batch} {self.verify is not None} {self.reverse is not None}"
        return fingerprint(BACKFILL_DOMAIN, shape.encode(), *(text.encode() for text in texts))


StepSource: TypeAlias = AssertionSource | SchemaSource | BackfillSource


@dataclass(frozen=True)
class MigrationSource:
    """One migration: its identity, what it needs before it, its steps in order; `path` is for messages alone."""

    id: MigrationId
    dependencies: tuple[MigrationId, ...]
    steps: tuple[StepSource, ...]
    path: str

    @cached_property
    def digest(self) -> Digest:
        """The digest that the manifest of this migration has, whatever schema it meets."""
        return manifest_digest(self.id, self.dependencies, map(_content, self.steps))


def _program(statements: Iterable[Statement]) -> list[bytes]:
    texts = [statement.text.encode() for statement in statements]
    return [len(texts).to_bytes(8, "little"), *texts]


def _content(step: StepSource) -> bytes:
    match step:
        case AssertionSource():
            return assertion_content(step.digest)
        case SchemaSource():
            return schema_content(step.digest)
        case BackfillSource():
            return backfill_content(BackfillStep(step.fingerprint, reversible=step.reverse is not None))
        case _:
            assert_never(step)

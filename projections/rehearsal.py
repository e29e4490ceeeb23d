"""Migrations replayed on a shadow database: what each step makes of the schema, before anything is done to the target.

Every migration of a ledger and of a plan is replayed in that order on an empty database of the target's kind. That
gives the source and target state of every group, lowers every step to what the target will execute, and finds what
cannot work (syntax, unknown functions and modules, statements that would be without effect) while nothing has been
touched. Assertions and backfills are compiled, not run: they speak of rows, and a shadow has none.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, TypeVar, assert_never

from journal.errors import Code, JournalError, failure
from journal.identities import Fingerprint, Scope, fingerprint
from journal.migrations.manifest import (
    AssertionStep,
    BackfillStep,
    ManagedState,
    SchemaStep,
    Step,
    VerifiedManifest,
    verify_manifest,
)
from journal.migrations.source import (
    AssertionSource,
    BackfillSource,
    MigrationSource,
    SchemaSource,
    Statement,
    StepSource,
)
from journal.ports import BackfillProgram, Database, Program, Shadow
from projections.drift import Difference, differences, summary

DECLARED_DOMAIN: Final = "fenced-journal 2026-12 declared state v1"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PreparedSchema:
    """A schema step with its programs; `reverse` is None when it has none."""

    source: SchemaSource
    forward: Program
    reverse: Program | None


@dataclass(frozen=True, slots=True)
class PreparedBackfill:
    """A backfill with its programs. `key_problem` says why its table cannot be gone through by its key, if it cannot."""

    source: BackfillSource
    forward: BackfillProgram
    reverse: BackfillProgram | None
    key_problem: str | None


PreparedStep: TypeAlias = AssertionSource | PreparedSchema | PreparedBackfill


@dataclass(frozen=True, slots=True)
class Prepared:
    """One migration, ready to be executed: its evidence and, step by step, its programs."""

    source: MigrationSource
    manifest: VerifiedManifest
    steps: tuple[PreparedStep, ...]


class Rehearsal:
    """Replays migrations for one scope, and keeps what it learnt for the next question about the same beginning."""

    def __init__(self, scope: Scope, database: Database) -> None:
        self._scope = scope
        self._database = database
        self._shadow: Shadow | None = None
        self._prepared: list[Prepared] = []
        self._origin: ManagedState | None = None
        self._declared = fingerprint(DECLARED_DOMAIN)

    async def prepare(self, sources: Sequence[MigrationSource]) -> tuple[Prepared, ...]:
        """Replay `sources` in order from an empty database.

        Raises, with file and line of the statement:
            TargetError: `journal_statement_failed`. InvalidContractError: `journal_statement_refused`.
        """
        if not self._begins(sources):
            await self.close()
        replay = _Replay(await self._opened())
        try:
            replayed = [(source, await replay.steps(source)) for source in sources[len(self._prepared) :]]
            semantics = iter(await replay.finish())
        except JournalError:
            await self.close()  # the shadow has more than is known here
            raise
        for source, steps in replayed:
            self._prepared.append(self._bind(source, steps, semantics))
        return tuple(self._prepared[: len(sources)])

    def state_after(self, prepared: Sequence[Prepared]) -> ManagedState:
        """The state in which these migrations leave an empty database; they must come from `prepare`."""
        if prepared:
            return prepared[-1].manifest.target
        assert self._origin is not None
        return self._origin

    async def describe(self, sources: Sequence[MigrationSource]) -> Mapping[str, str]:
        """The schema that these migrations make, object by object."""
        async with self._scratch() as scratch:
            await scratch.prepare(sources)
            return await (await scratch._opened()).describe()  # noqa: SLF001  (one of our own)

    async def check_reverses(self, sources: Sequence[MigrationSource], count: int) -> None:
        """Undo the last `count` of `sources` on a shadow: each step must lead back to where it came from.

        Ends at a schema step without a reverse: behind that no rollback comes.

        Raises:
            InvalidContractError: `journal_reverse_differs`, with the objects that differ.
        """
        async with self._scratch() as scratch:
            prepared = await scratch.prepare(sources)
            shadow = await scratch._opened()  # noqa: SLF001  (one of our own)
            for place in reversed(range(len(prepared) - count, len(prepared))):
                for index in reversed(range(len(prepared[place].steps))):
                    step = prepared[place].steps[index]
                    if not isinstance(step, PreparedSchema):
                        continue
                    if step.reverse is None:
                        return
                    statements = step.source.reverse or ()
                    found = await _located(sources[place], statements, shadow.run(step.reverse))
                    evidence = prepared[place].manifest.steps[index]
                    if isinstance(evidence, SchemaStep) and found != evidence.source.semantics:
                        before = [*sources[:place], truncated(sources[place], index)]
                        difference = differences(await self.describe(before), await shadow.describe())
                        raise _reverse_differs(sources[place], step.source, difference)

    async def close(self) -> None:
        """Drop the shadow and everything that was learnt."""
        shadow, self._shadow = self._shadow, None
        self._prepared, self._declared, self._origin = [], fingerprint(DECLARED_DOMAIN), None
        if shadow is not None:
            await shadow.close()

    @asynccontextmanager
    async def _scratch(self) -> AsyncGenerator[Rehearsal, None]:
        scratch = Rehearsal(self._scope, self._database)
        try:
            yield scratch
        finally:
            await scratch.close()

    def _begins(self, sources: Sequence[MigrationSource]) -> bool:
        """Whether what was replayed is how `sources` begins, or the other way round."""
        pairs = zip(self._prepared, sources, strict=False)
        return all(known.source is source or known.source == source for known, source in pairs)

    async def _opened(self) -> Shadow:
        if self._shadow is None:
            self._shadow = await self._database.shadow()
            semantics = await self._shadow.observe()
            self._origin = ManagedState(self._scope, self._declared, semantics)
        return self._shadow

    def _bind(
        self, source: MigrationSource, prepared: Sequence[PreparedStep], semantics: Iterator[Fingerprint]
    ) -> Prepared:
        """Bind a migration's steps together; `semantics` has what each schema step left, one after the other."""
        before = state = self.state_after(self._prepared)
        steps: list[Step] = []
        for step in prepared:
            match step:
                case AssertionSource():
                    steps.append(AssertionStep(step.digest))
                case PreparedSchema(step_source, forward, reverse):
                    self._declared = fingerprint(DECLARED_DOMAIN, self._declared, step_source.digest)
                    after = ManagedState(self._scope, self._declared, next(semantics))
                    back = None if reverse is None else len(reverse.statements)
                    steps.append(SchemaStep(step_source.digest, state, after, len(forward.statements), back))
                    state = after
                case PreparedBackfill(step_source):
                    reversible = step_source.reverse is not None
                    steps.append(BackfillStep(step_source.fingerprint, reversible=reversible))
                case _:
                    assert_never(step)
        manifest = verify_manifest(
            id=source.id,
            source=before,
            target=state,
            steps=steps,
            semantic_profile=self._database.semantic_profile,
            lowering_profile=self._database.lowering_profile,
            dependencies=source.dependencies,
        )
        return Prepared(source, manifest, tuple(prepared))


class _Replay:
    """Steps on their way through a shadow.

    A program that was lowered waits until something has to be asked of the schema that it makes; then all that wait are
    run in one call.
    """

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow
        self._waiting: list[tuple[MigrationSource, PreparedSchema]] = []
        self._semantics: list[Fingerprint] = []

    async def steps(self, source: MigrationSource) -> list[PreparedStep]:
        """Prepare the steps of the next migration."""
        try:
            return [await self._prepare(source, step) for step in source.steps]
        except JournalError:
            await self.finish()  # what fails before it is told first
            raise

    async def finish(self) -> Sequence[Fingerprint]:
        """Run what waits, and give what each schema step of all migrations left."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            try:
                self._semantics += await self._shadow.run_all([step.forward for _, step in waiting])
            except JournalError as error:
                source, failed = waiting[error.details.pop("program", 0)]
                raise located(error, source.path, failed.source.statements) from (error.__cause__ or error)
        return self._semantics

    async def _prepare(self, source: MigrationSource, step: StepSource) -> PreparedStep:
        match step:
            case SchemaSource():
                ready = await _lower(self._shadow, source, step)
                self._waiting.append((source, ready))
                return ready
            case AssertionSource():
                await self.finish()
                await _located(source, [step.query], self._shadow.check_query(step.query.text))
                return step
            case BackfillSource():
                await self.finish()
                return await _compile(self._shadow, source, step)
            case _:
                assert_never(step)


def truncated(source: MigrationSource, count: int) -> MigrationSource:
    """The migration up to its first `count` steps, assertions at their end left out."""
    steps = source.steps[:count]
    while steps and isinstance(steps[-1], AssertionSource):
        steps = steps[:-1]
    return replace(source, steps=steps)


async def stale(
    database: Database, rehearsal: Rehearsal, sources: Sequence[MigrationSource], advice: str
) -> JournalError:
    """The error for a live schema that is not what `sources` make, with the objects that differ and what to do."""
    found = differences(await rehearsal.describe(sources), await database.describe())
    counted = "1 migration makes" if len(sources) == 1 else f"{len(sources)} migrations make"
    return failure(
        Code.STALE_SOURCE_STATE,
        f"the live schema is not what {counted}: {summary(found)}; {advice}",
        objects=[item.name for item in found],
    )


def _reverse_differs(source: MigrationSource, step: SchemaSource, found: Sequence[Difference]) -> JournalError:
    return failure(
        Code.REVERSE_DIFFERS,
        f"{source.path}:{step.line}: the reverse of this schema step does not lead back to the schema before it: "
        f"{summary(found)}; leave this migration applied, and undo it in a new one",
        file=source.path,
        line=step.line,
        objects=[item.name for item in found],
    )


async def _lower(shadow: Shadow, source: MigrationSource, step: SchemaSource) -> PreparedSchema:
    async def lower(statements: Sequence[Statement]) -> Program:
        texts = [statement.text for statement in statements]
        return await _located(source, statements, shadow.lower(texts, transactional=step.transactional))

    return PreparedSchema(
        step, await lower(step.statements), None if step.reverse is None else await lower(step.reverse)
    )


async def _compile(shadow: Shadow, source: MigrationSource, step: BackfillSource) -> PreparedBackfill:
    verify = None if step.verify is None else step.verify.text
    forward = BackfillProgram(step.table, step.key, step.batch, step.statement.text, verify)
    problem = await _located(source, [step.statement], shadow.key_problem(forward))
    await _located(source, [step.statement], shadow.check_backfill(forward))
    if step.verify is not None:
        await _located(source, [step.verify], shadow.check_query(step.verify.text, forward))
    reverse = None
    if step.reverse is not None:
        reverse = BackfillProgram(step.table, step.key, step.batch, step.reverse.text)
        await _located(source, [step.reverse], shadow.check_backfill(reverse))
    return PreparedBackfill(step, forward, reverse, problem)


async def _located(source: MigrationSource, statements: Sequence[Statement], work: Awaitable[T]) -> T:
    """Await what was asked of a database about these statements; an error says where in the files it is."""
    try:
        return await work
    except JournalError as error:
        raise located(error, source.path, statements) from (error.__cause__ or error)


def located(error: JournalError, path: str, statements: Sequence[Statement]) -> JournalError:
    """The error with the file and line of the statement that it speaks of, if it speaks of one."""
    if "line" in error.details or error.code not in _OF_STATEMENTS or not statements:
        return error
    number = error.details.get("statement")
    statement = statements[number - 1 if isinstance(number, int) and 0 < number <= len(statements) else 0]
    details = {**error.details, "file": path, "line": statement.line}
    return failure(error.code, f"{path}:{statement.line}: {error.message}", **details)


_OF_STATEMENTS: Final = frozenset(
    {Code.STATEMENT_FAILED, Code.STATEMENT_REFUSED, Code.BACKFILL_KEY, Code.BACKFILL_ROWS}
)

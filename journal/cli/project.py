"""What a command finds before it does anything: settings, files, scope, and what counts there.

Looking changes nothing and needs no lease. A log or a scope that does not exist yet is an empty ledger, so that a plan
can be seen before anything was made. Only what looking takes is imported here: a command that finds nothing to do is
over before the rest would have been.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from journal.addresses import FileAddress
from journal.admission import ScopeState
from journal.cli.operate_views import write_note
from journal.errors import Code, InvalidContractError, JournalError, failure
from journal.identities import MigrationId, Scope
from journal.state import empty_state
from journal.whereabouts import check_here
from projections.ledger import ledger_of

if TYPE_CHECKING:
    from journal.journal import Journal
    from journal.migrations.files import Folder
    from journal.migrations.source import MigrationSource
    from journal.ports import Grant
    from journal.settings import Settings

_NAMED_SCOPES: Final = 20


@dataclass(frozen=True, slots=True)
class Project:
    """One look. `state` is empty when the log or the scope is not there yet."""

    settings: Settings
    scope: Scope
    state: ScopeState
    folder: Folder

    @property
    def sources(self) -> tuple[MigrationSource, ...]:
        """The migrations of the folder."""
        return self.folder.migrations

    def resolve(self, text: str | None) -> MigrationId | None:
        """The migration that an operator means. Raises `journal_unknown_migration`."""
        if text is None:
            return None
        from journal.migrations.planner import resolve_id  # noqa: PLC0415

        return resolve_id(text, [source.id for source in self.sources], self.settings.app_label)

    def missing(self, target: MigrationId | None, *, allow_out_of_order: bool) -> list[MigrationId]:
        """What an apply would plan anew, were no plan open. Raises as `plan_apply`."""
        from journal.migrations.planner import check_files, plan_apply  # noqa: PLC0415

        ordered = check_files(self.sources)
        plan = plan_apply(ordered, ledger_of(self.state), target, allow_out_of_order=allow_out_of_order)
        return [source.id for source in plan.planned]

    def retired(self, to: MigrationId | None, steps: int | None) -> list[MigrationId]:
        """What a rollback would take off, were no plan open. Raises as `plan_rollback`."""
        from journal.migrations.planner import check_files, plan_rollback  # noqa: PLC0415

        plan = plan_rollback(check_files(self.sources), ledger_of(self.state), to=to, steps=steps)
        return [source.id for source in plan.retired]


async def look(settings: Settings, *, needs_database: bool = True, needs_files: bool = True) -> Project:
    """Read the files and what counts; refuses a scope that does not live in this log.

    `needs_database`: refuse settings that name no usable target. Without `needs_files` files that cannot be read are
    none; for commands that work without them, and say more with them.
    """
    from journal.migrations.files import Folder, read_folder  # noqa: PLC0415

    if needs_database:
        settings.database_file  # noqa: B018  (it raises)
    try:
        folder = read_folder(settings.dir, settings.app_label)
    except InvalidContractError as error:
        if needs_files:
            raise
        write_note(f"journal: going on without the files of the migrations: {_in_one_line(error)}")
        folder = Folder((), ())
    scope, state = await state_of(settings)
    check_here(state)
    return Project(settings, scope, state, folder)


async def state_of(settings: Settings) -> tuple[Scope, ScopeState]:
    """The scope that is meant and what counts there."""
    from journal.bootstrap import open_journal  # noqa: PLC0415
    from journal.settings import DEFAULT_SCOPE  # noqa: PLC0415

    if not _has_log(settings):
        scope = settings.scope or Scope(DEFAULT_SCOPE)
        return scope, empty_state(scope)
    async with open_journal(settings, read_only=True) as opened:
        scopes = await opened.scopes()
        scope = named_scope(scopes, settings) or Scope(DEFAULT_SCOPE)
        return scope, await _state_or_nothing(opened, scope) if scope in scopes else empty_state(scope)


async def _state_or_nothing(journal: Journal, scope: Scope) -> ScopeState:
    """What counts; nothing, in a scope whose maker died before it could write its first event."""
    try:
        return await journal.state(scope)
    except JournalError as error:
        if error.details.get("is_empty") is True:
            return empty_state(scope)
        raise


def check_target(settings: Settings, state: ScopeState) -> None:
    """Refuse a target that is not there although something was applied to it. Raises `journal_missing_target`."""
    path = settings.database_file
    if state.active and not path.exists():
        raise failure(
            Code.MISSING_TARGET,
            f"there is no database {path}, although migrations are applied: check the path",
            path=str(path),
        )


def _in_one_line(error: JournalError) -> str:
    first, *rest = error.message.split("\n")
    more = f" and {len(rest) - 1} more" if len(rest) > 1 else ""
    return f"{first} {rest[0].strip()}{more}" if rest else first


def _has_log(settings: Settings) -> bool:
    """Whether there may be a log; what it is says whoever opens it."""
    address = settings.log_at
    return not isinstance(address, FileAddress) or os.path.lexists(address.path)


def named_scope(scopes: Sequence[Scope], settings: Settings) -> Scope | None:
    """The scope that was named, or the only one of the log; None when there is none."""
    if settings.scope is not None:
        return settings.scope
    if len(scopes) > 1:
        more = f" and {len(scopes) - _NAMED_SCOPES} more" if len(scopes) > _NAMED_SCOPES else ""
        raise click.UsageError(f"say which scope with --scope: {', '.join(scopes[:_NAMED_SCOPES])}{more}")
    return scopes[0] if scopes else None


async def only_scope(opened: Journal, settings: Settings) -> Scope:
    """The scope that a command which only reads is about. Raises `journal_unknown_scope` when there is none."""
    scope = named_scope([] if settings.scope else await opened.scopes(), settings)
    if scope is None:
        raise failure(Code.UNKNOWN_SCOPE, f"there is no scope in {settings.log_at} yet", log=str(settings.log_at))
    return scope


# --- for those who only want to know ----------------------------------------------------------------------------------


async def survey(settings: Settings) -> tuple[ScopeState, Grant | None]:
    """What counts, and the lease as the store has it. Without any scope: nothing yet, if there are migrations to come.

    Raises `journal_missing_file` and `journal_unknown_scope` as reading does.
    """
    from journal.bootstrap import open_journal  # noqa: PLC0415
    from journal.settings import DEFAULT_SCOPE  # noqa: PLC0415

    nothing = empty_state(settings.scope or Scope(DEFAULT_SCOPE))
    has_folder = settings.dir.is_dir()
    if has_folder and not _has_log(settings):
        return nothing, None
    async with open_journal(settings, read_only=True) as opened:
        if has_folder and not await opened.scopes():
            return nothing, None
        scope = await only_scope(opened, settings)
        return await _state_or_nothing(opened, scope), await opened.lease_in_store(scope)


def pending_of(settings: Settings, state: ScopeState) -> tuple[list[MigrationSource] | None, str | None]:
    """The files that are not in the ledger, in order; or, in one line, why they are not known. Both None: no folder."""
    if not settings.dir.is_dir():
        return None, None
    from journal.migrations.files import read_folder  # noqa: PLC0415
    from journal.migrations.planner import check_files  # noqa: PLC0415

    try:
        ordered = check_files(read_folder(settings.dir, settings.app_label).migrations)
    except JournalError as error:
        return None, _in_one_line(error)
    return [source for source in ordered if str(source.id) not in state.active], None

"""`journal doctor`: everything that the journal relies on, one line each, with what to do where it is not good.

Nothing is made or changed, and no lease is taken. Whatever does not answer is a line, too; each part has a deadline of
its own, so that a cluster that answers slowly keeps nobody for long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import click

from journal.cli import options, output
from journal.cli.exits import Exit
from journal.errors import Code, JournalError
from journal.identities import Scope
from journal.ports import Finding, Level

if TYPE_CHECKING:
    from journal.bootstrap import ExaminedDatabase
    from journal.journal import Journal
    from journal.settings import Settings
    from projections.examination import Target

_PART_SECONDS: Final = 60.0
_SCOPES_SECONDS: Final = 300.0
_NAMED: Final = 20
_STYLES: Final = {Level.WARNING: "yellow", Level.PROBLEM: "red", Level.HISTORY: "bold red"}


@click.command()
@options.SCOPE
@options.DATABASE
@options.general
def doctor() -> int:
    """Check what the journal relies on: log, lease store, clocks, keys, schemas, the target. Changes nothing.

    One line each, with what to do where it is not good. Every scope of the log is read from its start, or the one that is
    named. The exit code is 6 when history is lost or could be, 1 when there is another problem; warnings are none.

    With --json: {"log", "leases", "ok", "findings": [{"check", "level", "message", "remedy"}]}; a level is "good",
    "warning", "problem" or "history".
    """
    settings, as_json = options.settings(), options.wants_json()

    async def run() -> int:
        found: list[Finding] = []
        async with aclosing(_examined(settings)) as parts:
            async for part in parts:
                found += part
                if not as_json:
                    _write(part)
        if as_json:
            output.write_json(_document(settings, found))
        return verdict(found)

    return asyncio.run(run())


def verdict(found: Sequence[Finding]) -> Exit:
    """The exit code."""
    levels = {finding.level for finding in found}
    if Level.HISTORY in levels:
        return Exit.INTEGRITY
    return Exit.FAILED if Level.PROBLEM in levels else Exit.DONE


def _write(found: Sequence[Finding]) -> None:
    for finding in found:
        text = f"{finding.level.value:<8} {finding.check}: {finding.message}"
        if finding.level is not Level.GOOD and finding.remedy:
            text += f"; do: {finding.remedy}"
        output.write_line(output.printable(text.replace("\n", " ")), style=_STYLES.get(finding.level))


def _document(settings: Settings, found: Sequence[Finding]) -> dict[str, Any]:
    leases = settings.leases_at
    return {
        "log": str(settings.log_at),
        "leases": None if leases is None else str(leases),
        "ok": verdict(found) is Exit.DONE,
        "findings": [
            {"check": item.check, "level": item.level.value, "message": item.message, "remedy": item.remedy}
            for item in found
        ],
    }


# --- the parts --------------------------------------------------------------------------------------------------------


async def _examined(settings: Settings) -> AsyncGenerator[list[Finding], None]:
    """Everything, part by part. Raises `journal_invalid_settings` for what can be nothing."""
    from journal.bootstrap import open_database, open_journal, open_leases, open_log  # noqa: PLC0415
    from journal.settings import DEFAULT_SCOPE  # noqa: PLC0415

    database = None if settings.database is None else open_database(settings, read_only=True)
    log, leases = open_log(settings, read_only=True), open_leases(settings, read_only=True)
    async with open_journal(settings, read_only=True) as journal:
        try:
            known = await _scopes_of(journal)
            scopes = [scope for scope in known or () if settings.scope in (None, scope)]
            yield await _within("log", log.examine(scopes))
            yield await _within("lease store", leases.examine(scopes))
            yield [_NO_TARGET] if database is None else await _within("target", database.examine(scopes))
            if known is not None and not scopes:
                yield await _within("scope", _missing(settings.scope or Scope(DEFAULT_SCOPE), known, database))
            give_up = time.monotonic() + _SCOPES_SECONDS
            for number, scope in enumerate(scopes):
                if time.monotonic() > give_up:
                    yield [_too_many(len(scopes) - number)]
                    break
                yield await _within(f"scope {scope}", _scope(journal, database, scope, is_only=len(scopes) == 1))
        finally:
            for part in (log, leases, database):
                if part is not None:
                    await part.close()


_NO_TARGET: Final = Finding("target", Level.GOOD, "none is named, so none was looked at")


async def _scopes_of(journal: Journal) -> Sequence[Scope] | None:
    """The scopes of the log; None when that cannot be told, which its own examination says."""
    try:
        return await journal.scopes()
    except JournalError as error:
        return () if error.code is Code.MISSING_FILE else None


async def _missing(
    scope: Scope, known: Sequence[Scope], database: ExaminedDatabase | None
) -> AsyncGenerator[Finding, None]:
    """A scope that the log does not have: nobody has begun it, unless the target knows better."""
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    has = f"; it has {', '.join(known[:_NAMED])}{more}" if known else ""
    yield Finding(
        f"scope {scope}",
        Level.WARNING,
        f"the log does not have it yet{has}",
        "`journal apply` makes it, unless its name is wrong",
    )
    target = None if database is None else await _target(database, scope, is_only=False)
    if target is not None and target.raised is not None:
        yield Finding(
            f"scope {scope} target",
            Level.HISTORY,
            f"it has seen fence {target.raised.fence} of this scope: its log is lost, or another one is named",
            "correct the log setting, or put the log back; without it, adopt the database with `journal import`",
        )


def _too_many(left: int) -> Finding:
    message = f"{left} were not read: those before took {_SCOPES_SECONDS:g} s"
    return Finding("scopes", Level.WARNING, message, "name one with --scope")


async def _within(what: str, findings: AsyncGenerator[Finding, None]) -> list[Finding]:
    """What one part finds until its deadline."""
    found: list[Finding] = []
    try:
        async with asyncio.timeout(_PART_SECONDS), aclosing(findings):
            async for finding in findings:
                found.append(finding)  # noqa: PERF401  (what was found before the deadline is kept)
    except TimeoutError:
        message = f"it could not be checked to its end within {_PART_SECONDS:g} s"
        found.append(Finding(what, Level.WARNING, message, "look at fewer scopes, with --scope"))
    return found


async def _scope(
    journal: Journal, database: ExaminedDatabase | None, scope: Scope, *, is_only: bool
) -> AsyncGenerator[Finding, None]:
    from projections.examination import examine_scope  # noqa: PLC0415

    target = None if database is None else await _target(database, scope, is_only=is_only)
    for finding in await examine_scope(journal, scope, target):
        yield finding


async def _target(database: ExaminedDatabase, scope: Scope, *, is_only: bool) -> Target | None:
    """What the target knows of a scope. Of several scopes most have a target of their own, and are nothing to this one."""
    from projections.examination import look_at  # noqa: PLC0415

    try:
        raised = await database.raised(scope)
        return await look_at(database, raised, scope) if raised is not None or is_only else None
    except JournalError:
        return None  # its own examination has told

"""The command with its subcommands; here are those that only read, the operators' are in `operate`.

These open the log's file for reading alone, never make it, and need no lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import click

from journal.cli import doctor, operate, options, output
from journal.cli.exits import Exit
from journal.errors import Code, failure
from journal.identities import Digest, Scope

if TYPE_CHECKING:
    from journal.journal import Journal
    from journal.settings import Settings

_PAUSE: Final = 64


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415

        click.echo(f"journal {version('fenced-journal')}")
        context.exit()


@click.group(
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Settings come from options, then JOURNAL_* variables, then journal.toml. Exit codes: 0 done, 1 failed, "
    "2 usage, 3 another holder has the lease, 4 an operator has to decide, 5 pending or differs, 6 integrity. With "
    '--json an error is {"error": {"code", "message", "details"}} on stdout, beside its line on stderr. A run that a '
    "signal stopped ends with 130 or 143.",
)
@options.SCOPE
@options.general
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version and exit."
)
def journal() -> None:
    """Migrate a database, and keep a history of it that can be trusted: what counts, what happened, who did it."""


for _command in (*operate.COMMANDS, doctor.doctor):
    journal.add_command(_command)


# --- opening ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[Journal, None]:
    from journal.bootstrap import open_journal  # noqa: PLC0415

    async with open_journal(settings, read_only=True) as opened:
        yield opened


def _on_scope(work: Callable[[Journal, Scope], Awaitable[int]]) -> int:
    """Run `work` on an open journal and the scope that it is about; gives the exit code."""
    settings = options.settings()

    async def opened() -> int:
        from journal.cli.project import only_scope  # noqa: PLC0415

        async with _opened(settings) as journal_:
            return await work(journal_, await only_scope(journal_, settings))

    return asyncio.run(opened())


# --- commands ---------------------------------------------------------------------------------------------------------


@journal.command()
@options.general
def scopes() -> int:
    """List the scopes of the log.

    With --json: {"log", "scopes": [{"scope"}]}.
    """
    settings, as_json = options.settings(), options.wants_json()

    async def run() -> int:
        async with _opened(settings) as opened:
            names = await opened.scopes()
        if as_json:
            output.write_json({"log": str(settings.log_at), "scopes": [{"scope": str(name)} for name in names]})
        else:
            for name in names:
                output.write_line(name)
        return Exit.DONE

    return asyncio.run(run())


@journal.command()
@options.SCOPE
@options.APP
@options.general
@click.option("--exit-code", is_flag=True, help="Exit with 5 while a plan is open or migrations are pending.")
def status(exit_code: bool) -> int:
    """Show what counts: the active ledger, the open plan with its units, the lease, and files that are not applied.

    With --json: {"scope", "incarnation", "authenticated", "position", "sequence", "fence", "head", "admitted", "void",
    "ledger": [...], "plan": {...} or null, "lease": {...} or null, "lives_here", "moved": {...} or null,
    "pending": [...] or null, "pending_problem"}.
    """
    settings, as_json = options.settings(), options.wants_json()

    async def run() -> int:
        from journal.cli import operate_views, views  # noqa: PLC0415
        from journal.cli.project import pending_of, survey  # noqa: PLC0415
        from projections.ledger import view  # noqa: PLC0415

        state, grant = await survey(settings)
        pending, problem = pending_of(settings, state)
        seen = view(state, grant)
        if as_json:
            files = operate_views.pending_document(pending, problem)
            output.write_json({**views.status_document(seen, time.time()), **files})
        else:
            views.write_status(seen, time.time())
            operate_views.write_pending(pending, problem)
        return Exit.PENDING if exit_code and (seen.plan is not None or pending) else Exit.DONE

    return asyncio.run(run())


@journal.command()
@options.SCOPE
@options.general
@click.option("--void", "only_void", is_flag=True, help="Only events that do not count.")
@click.option("--after", type=click.IntRange(min=0), metavar="POSITION", help="Only events behind this position.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N events.")
def history(only_void: bool, after: int | None, limit: int | None) -> int:
    """Show every event with its verdict, in the order of the log.

    A void event is in the log and has no effect; its reason says which rule it broke first. Each verdict follows from
    all events before it, so the log is read from its start whatever is asked for.

    With --json, one line an event: {"position", "sequence", "recorded_at", "verdict", "reason", "explanation", "fence",
    "holder", "lease_id", "type", "migration", "kind", "summary", "event_id", "hash"}.
    """
    as_json = options.wants_json()

    async def run(opened: Journal, scope: Scope) -> int:
        from contextlib import aclosing  # noqa: PLC0415

        from journal.cli import views  # noqa: PLC0415
        from projections.ledger import timeline  # noqa: PLC0415

        shown = 0
        async with aclosing(timeline(opened, scope)) as rows:
            async for row in rows:
                if not row.position % _PAUSE:
                    await asyncio.sleep(0)  # where an interrupt takes effect
                if (after is not None and row.position <= after) or (only_void and row.admitted):
                    continue
                if as_json:
                    output.write_json(views.event_document(row))
                else:
                    views.write_event(row, first=not shown)
                shown += 1
                if shown == limit:
                    break
        return Exit.DONE

    return _on_scope(run)


@journal.command()
@options.SCOPE
@options.general
def leases() -> int:
    """Show the leases as the lease store has them, of every scope or of the one that is named.

    An expired lease keeps nobody out: the next holder takes its place with a greater fence.

    With --json: {"leases": [{"scope", "holder", "fence", "lease_id", "expires_at", "remaining_seconds", "expired"}]}.
    """
    settings, as_json = options.settings(), options.wants_json()

    async def run() -> int:
        from journal.cli import views  # noqa: PLC0415
        from projections.ledger import store_lease_view  # noqa: PLC0415

        async with _opened(settings) as opened:
            known = await opened.scopes()
            if settings.scope is not None and settings.scope not in known:
                raise failure(Code.UNKNOWN_SCOPE, f"there is no scope {settings.scope} in {settings.log_at}")
            wanted = known if settings.scope is None else [settings.scope]
            grants = [grant for scope in wanted if (grant := await opened.lease_in_store(scope)) is not None]
        found = [(grant.scope, store_lease_view(grant)) for grant in grants]
        if as_json:
            output.write_json({"leases": [views.lease_row(*pair, time.time()) for pair in found]})
        else:
            views.write_leases(found, time.time())
        return Exit.DONE

    return asyncio.run(run())


@journal.command()
@options.migrations
@click.option("--head", metavar="HEX", help="Also check that this head, printed by an earlier verify, is in the chain.")
@click.option("--migrations", is_flag=True, help="Also compare the ledger with the files and with the live schema.")
def verify(head: str | None, migrations: bool) -> int:
    """Check the scope from its start: the chain, the MACs (with a key), the records' rules.

    Says where and why it breaks, and exits with 6 when it does. Void events are no break. That the last events were cut
    off is seen with --head alone: keep the head that a verify printed.

    With --migrations, files that were edited or are gone, those that are pending, and objects of the live schema that
    are not as the ledger says are named, too; the exit code is 5 when there is any.

    With --json: {"scope", "ok", "incarnation", "keyed", "events", "admitted", "void": {reason: count}, "position",
    "head", "head_found", "complete", "findings": [{"position", "code", "breaks", "what", "advice"}]}, and with
    --migrations "migrations": {"agrees", "compared", "open", "in_doubt", "live", "expected", "edited", "pending",
    "drift": [{"object", "what", "expected", "found"}]}, null when the chain is broken.
    """
    as_json = options.wants_json()
    expected = None if head is None else Digest.parse(head)

    async def run(opened: Journal, scope: Scope) -> int:
        from journal.cli import views  # noqa: PLC0415
        from projections import audit  # noqa: PLC0415

        result = await audit.verify(opened, scope, head=expected)
        if migrations:
            from journal.cli.preview import show_verification  # noqa: PLC0415

            return await show_verification(options.settings(), opened, result, as_json=as_json)
        if as_json:
            output.write_json(views.verification_document(result))
        else:
            views.write_verification(result)
        return Exit.DONE if result.ok else Exit.INTEGRITY

    return _on_scope(run)

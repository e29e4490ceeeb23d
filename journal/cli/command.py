"""The commands themselves: options, what is asked of the journal, what is shown.

All of them only read. They open the log's file for reading alone, never make it, and need no lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from journal.cli import output
from journal.cli.exits import Exit
from journal.errors import Code, failure
from journal.identities import Digest, Scope

if TYPE_CHECKING:
    from journal.journal import Journal
    from journal.settings import Settings

_NAMED_SCOPES: Final = 20
_PAUSE: Final = 64

Function = TypeVar("Function", bound=Callable[..., Any])


# --- options ----------------------------------------------------------------------------------------------------------


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Options may stand before or behind the command's name; the last one counts."""
    options: dict[str, Any] = context.ensure_object(dict)
    if value is not None:
        options[parameter.name] = value


def _option(*names: str, **attributes: Any) -> Callable[[Function], Function]:
    return click.option(*names, callback=_keep, expose_value=False, **attributes)


_SCOPE = _option("--scope", metavar="NAME", help="Scope to read; by default the only one in the log. [JOURNAL_SCOPE]")
_GENERAL: Final = (
    _option("--json", "as_json", is_flag=True, default=None, help="Print JSON instead of text."),
    _option(
        "--dir",
        type=click.Path(path_type=Path),
        help="Folder of the migrations; journal.toml and, by default, journal.db lie beside it, in its parent folder. "
        "By default migrations, so these are in the current folder. [JOURNAL_DIR]",
    ),
    _option("--log", metavar="URL", help="Log, as sqlite:///file; by default journal.db. [JOURNAL_LOG]"),
    _option("--leases", metavar="URL", help="Lease store; by default in the log's file. [JOURNAL_LEASES]"),
    _option(
        "--key-file",
        type=click.Path(path_type=Path),
        help="File with the key (64 hex digits) of authenticated scopes. The key itself: only by JOURNAL_KEY. "
        "[JOURNAL_KEY_FILE]",
    ),
    _option(
        "--previous-key-file",
        type=click.Path(path_type=Path),
        help="File with the keys before it, one a line: what was written under them is still believed. "
        "[JOURNAL_PREVIOUS_KEY_FILE]",
    ),
    _option(
        "--max-event-bytes",
        type=int,
        metavar="N",
        help="Largest event that is read; 16 MiB by default. [JOURNAL_MAX_EVENT_BYTES]",
    ),
)


def _options(function: Function) -> Function:
    for option in reversed(_GENERAL):
        function = option(function)
    return function


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
    '--json an error is {"error": {"code", "message", "details"}} on stdout, beside its line on stderr.',
)
@_SCOPE
@_options
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version and exit."
)
def journal() -> None:
    """Look into the fenced migration journal: what counts, what happened, and whether it can be trusted."""


# --- opening ----------------------------------------------------------------------------------------------------------


def _load_settings(context: click.Context) -> Settings:
    from journal.settings import load_settings  # noqa: PLC0415

    return load_settings(**{name: value for name, value in context.obj.items() if name != "as_json"})


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[Journal, None]:
    from journal.bootstrap import open_journal  # noqa: PLC0415

    async with open_journal(settings, read_only=True) as opened:
        yield opened


async def _only_scope(opened: Journal, settings: Settings) -> Scope:
    """The scope that was named, or the only one that there is."""
    if settings.scope is not None:
        return settings.scope
    scopes = await opened.scopes()
    if not scopes:
        raise failure(Code.UNKNOWN_SCOPE, f"there is no scope in {settings.log_file} yet", log=str(settings.log_file))
    if len(scopes) > 1:
        more = f" and {len(scopes) - _NAMED_SCOPES} more" if len(scopes) > _NAMED_SCOPES else ""
        raise click.UsageError(f"say which scope with --scope: {', '.join(scopes[:_NAMED_SCOPES])}{more}")
    return scopes[0]


def _on_scope(work: Callable[[Journal, Scope], Awaitable[int]]) -> int:
    """Run `work` on an open journal and the scope that it is about; gives the exit code."""
    settings = _load_settings(click.get_current_context())

    async def opened() -> int:
        async with _opened(settings) as journal_:
            return await work(journal_, await _only_scope(journal_, settings))

    return asyncio.run(opened())


def _as_json() -> bool:
    return bool(click.get_current_context().obj.get("as_json"))


# --- commands ---------------------------------------------------------------------------------------------------------


@journal.command()
@_options
def scopes() -> int:
    """List the scopes of the log.

    With --json: {"log", "scopes": [{"scope"}]}.
    """
    settings, as_json = _load_settings(click.get_current_context()), _as_json()

    async def run() -> int:
        async with _opened(settings) as opened:
            names = await opened.scopes()
        if as_json:
            output.write_json({"log": str(settings.log_file), "scopes": [{"scope": str(name)} for name in names]})
        else:
            for name in names:
                output.write_line(name)
        return Exit.DONE

    return asyncio.run(run())


@journal.command()
@_SCOPE
@_options
@click.option("--exit-code", is_flag=True, help="Exit with 5 while a plan is open.")
def status(exit_code: bool) -> int:
    """Show what counts: the active ledger, the open plan with its units, and the lease.

    With --json: {"scope", "incarnation", "authenticated", "position", "sequence", "fence", "head", "admitted", "void",
    "ledger": [...], "plan": {...} or null, "lease": {...} or null}.
    """
    as_json = _as_json()

    async def run(opened: Journal, scope: Scope) -> int:
        from journal.cli import views  # noqa: PLC0415
        from projections.ledger import view  # noqa: PLC0415

        seen = view(await opened.state(scope), await opened.lease_in_store(scope))
        if as_json:
            output.write_json(views.status_document(seen, time.time()))
        else:
            views.write_status(seen, time.time())
        return Exit.PENDING if exit_code and seen.plan is not None else Exit.DONE

    return _on_scope(run)


@journal.command()
@_SCOPE
@_options
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
    as_json = _as_json()

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
@_SCOPE
@_options
def leases() -> int:
    """Show the leases as the lease store has them, of every scope or of the one that is named.

    An expired lease keeps nobody out: the next holder takes its place with a greater fence.

    With --json: {"leases": [{"scope", "holder", "fence", "lease_id", "expires_at", "remaining_seconds", "expired"}]}.
    """
    settings, as_json = _load_settings(click.get_current_context()), _as_json()

    async def run() -> int:
        from journal.cli import views  # noqa: PLC0415
        from projections.ledger import store_lease_view  # noqa: PLC0415

        async with _opened(settings) as opened:
            known = await opened.scopes()
            if settings.scope is not None and settings.scope not in known:
                raise failure(Code.UNKNOWN_SCOPE, f"there is no scope {settings.scope} in {settings.log_file}")
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
@_SCOPE
@_options
@click.option("--head", metavar="HEX", help="Also check that this head, printed by an earlier verify, is in the chain.")
def verify(head: str | None) -> int:
    """Check the scope from its start: the chain, the MACs (with a key), the records' rules.

    Says where and why it breaks, and exits with 6 when it does. Void events are no break. That the last events were cut
    off is seen with --head alone: keep the head that a verify printed.

    With --json: {"scope", "ok", "incarnation", "keyed", "events", "admitted", "void": {reason: count}, "position",
    "head", "head_found", "complete", "findings": [{"position", "code", "breaks", "what", "advice"}]}.
    """
    as_json = _as_json()
    expected = None if head is None else Digest.parse(head)

    async def run(opened: Journal, scope: Scope) -> int:
        from journal.cli import views  # noqa: PLC0415
        from projections import audit  # noqa: PLC0415

        result = await audit.verify(opened, scope, head=expected)
        if as_json:
            output.write_json(views.verification_document(result))
        else:
            views.write_verification(result)
        return Exit.DONE if result.ok else Exit.INTEGRITY

    return _on_scope(run)

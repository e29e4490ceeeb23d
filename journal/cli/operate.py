"""The operators' commands: their options, and what these mean together. What they do is in `run` and `preview`.

Those that write look first and take the lease only when there is something to do.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from journal.cli import options, output
from journal.cli.exits import Exit
from journal.errors import Code, failure
from journal.identities import MAX_HOLDER_BYTES, HolderId

if TYPE_CHECKING:
    from journal.cli.interrupts import Interrupts
    from journal.cli.preview import Wish
    from journal.cli.project import Project
    from journal.cli.run import Claim, Task
    from journal.identities import MigrationId
    from journal.settings import Settings
    from projections.operations import Attestation

_TO: Final = click.option("--to", metavar="ID", help="Last migration that is meant: 0003_x, app/0003_x, or 0003.")
_OUT_OF_ORDER: Final = click.option(
    "--allow-out-of-order", is_flag=True, help="Also apply migrations that come before applied ones."
)
_STEPS: Final = click.option(
    "--steps", type=click.IntRange(min=1), metavar="N", help="How many migrations to roll back, the last ones."
)
_DRY_RUN: Final = click.option("--dry-run", is_flag=True, help="Show what would run, as `journal plan` does.")


# --- making and looking -----------------------------------------------------------------------------------------------


@click.command()
@options.general
@click.argument("name")
def new(name: str) -> int:
    """Make the file of the next migration, and print its path.

    With --json: {"path"}.
    """
    from journal.migrations.files import new_migration  # noqa: PLC0415

    path = new_migration(options.settings().dir, name)
    if options.wants_json():
        output.write_json({"path": str(path)})
    else:
        output.write_line(output.printable(str(path)))
    return Exit.DONE


@click.command()
@options.migrations
@_TO
@_STEPS
@_OUT_OF_ORDER
@click.option("--rollback", is_flag=True, help="What a rollback would do, instead of an apply.")
@click.option("--exit-code", is_flag=True, help="Exit with 5 when something would run.")
def plan(to: str | None, steps: int | None, allow_out_of_order: bool, rollback: bool, exit_code: bool) -> int:
    """Show what would run, statement by statement, and what it would meet. Changes nothing, needs no lease.

    Each schema step comes with the fingerprints of the schema before and after it. When the live schema is not the one
    to start from, what differs is named, and the exit code is the one that the run would end with.

    With --json: {"scope", "direction", "open", "live", "expected", "migrations": [{"migration", "digest", "file",
    "units"}], "drift": [{"object", "what", "expected", "found"}], "reverse_problems", "ignored": [{"name", "why"}],
    "error": {...} or null}.
    """
    if not rollback and steps is not None:
        raise click.UsageError("--steps goes with --rollback")
    settings, as_json = options.settings(), options.wants_json()

    async def work(_: Interrupts) -> int:
        from journal.cli.preview import show_plan  # noqa: PLC0415
        from journal.cli.project import look  # noqa: PLC0415

        project = await look(settings)
        wish = _backward(project, to, steps) if rollback else _forward(project, to, allow_out_of_order)
        return await show_plan(project, wish, as_json=as_json, pending_code=exit_code)

    return _run(work)


# --- applying and rolling back ----------------------------------------------------------------------------------------


@click.command()
@options.migrations
@options.claim
@_TO
@_OUT_OF_ORDER
@_DRY_RUN
def apply(to: str | None, allow_out_of_order: bool, dry_run: bool, **claim: Any) -> int:
    """Apply what is missing: everything, or what --to needs and it. Running it again is how it recovers.

    An open plan is carried on first, whoever opened it. An interrupt stops at the next safe boundary, a second one at
    once; either way the next run goes on from there.

    With --json: {"outcome": "applied", "up_to_date", "retry_safe", "requires_explicit_recovery" or "failed", "scope",
    "direction", "migrations", "position", "error", "recovered", "waited_for", "done_by", "seconds"}.
    """
    settings, as_json = options.settings(), options.wants_json()

    async def work(interrupts: Interrupts) -> int:
        from journal.cli.project import look  # noqa: PLC0415

        project = await look(settings)
        target = project.resolve(to)
        plan = project.state.plan
        missing = [] if plan is not None else project.missing(target, allow_out_of_order=allow_out_of_order)
        if plan is None and not missing and not dry_run:
            return _up_to_date(project, as_json=as_json)
        wish = _forward(project, to, allow_out_of_order)
        if dry_run:
            from journal.cli.preview import show_plan  # noqa: PLC0415

            return await show_plan(project, wish, as_json=as_json, pending_code=False)
        from journal.cli.run import execute  # noqa: PLC0415

        return await execute(_task(project, interrupts, claim, as_json=as_json), wish, missing or _members(project))

    return _run(work)


def _up_to_date(project: Project, *, as_json: bool) -> int:
    """Say so, after the cheapest look at the target that there is."""
    from journal.cli.project import check_target  # noqa: PLC0415

    check_target(project.settings, project.state)
    if as_json:
        from journal.cli.operate_views import run_document  # noqa: PLC0415
        from journal.cli.report import Report  # noqa: PLC0415
        from journal.vocabulary import Direction  # noqa: PLC0415
        from projections.outcome import UpToDate  # noqa: PLC0415

        output.write_json(run_document(Report(project.scope, Direction.FORWARD, UpToDate(), 0)))
    else:
        output.write_line("up to date")
    return Exit.DONE


@click.command()
@options.migrations
@options.claim
@_TO
@_STEPS
@_DRY_RUN
def rollback(to: str | None, steps: int | None, dry_run: bool, **claim: Any) -> int:
    """Roll back everything that was applied after --to, or the last --steps migrations.

    The last applied is undone first, its steps last to first; refused before any effect when one of them has no
    reverse. An open rollback is finished first; for that neither option is needed.

    With --json: as `journal apply`.
    """
    settings, as_json = options.settings(), options.wants_json()

    async def work(interrupts: Interrupts) -> int:
        from journal.cli.project import look  # noqa: PLC0415

        project = await look(settings)
        wish = _backward(project, to, steps)
        if dry_run:
            from journal.cli.preview import show_plan  # noqa: PLC0415

            return await show_plan(project, wish, as_json=as_json, pending_code=False)
        from journal.cli.run import execute  # noqa: PLC0415

        expected = _members(project) if project.state.plan is not None else project.retired(wish.to, wish.steps)
        return await execute(_task(project, interrupts, claim, as_json=as_json), wish, expected)

    return _run(work)


# --- deciding ---------------------------------------------------------------------------------------------------------


@click.command()
@options.migrations
@options.claim
@options.attestation
@click.argument("unit", nargs=-1)
@click.option("--committed", is_flag=True, help="Attest that it was committed.")
@click.option("--aborted", is_flag=True, help="Attest that it was not, and never will be.")
def resolve(
    unit: tuple[str, ...],
    committed: bool,
    aborted: bool,
    reason: str | None,
    operator: str | None,
    **claim: Any,
) -> int:
    """Show every unit in doubt: what the journal believes, what the database shows. Attest the outcome of one.

    Without --committed or --aborted nothing is changed; the exit code is 0 when nothing is in doubt, 5 when running
    again settles all of it by itself, 4 when an operator has to decide. With one of them the lease and the target's
    fence are taken first, so that nobody else can still commit; then all is looked at again, and the statement is
    recorded, unless the evidence contradicts it. UNIT is as it is shown, and needed only when several are in doubt.

    With --json: {"scope", "in_doubt": [...], "attested": {...} or null}.
    """
    if committed and aborted:
        raise click.UsageError("--committed and --aborted exclude each other")
    attests = committed or aborted
    attestation = _attestation(reason, operator) if attests else None
    settings, as_json = options.settings(), options.wants_json()

    async def work(interrupts: Interrupts) -> int:
        from journal.cli.project import look  # noqa: PLC0415
        from journal.vocabulary import GroupEventKind  # noqa: PLC0415

        project = await look(settings, needs_files=False)
        if attestation is None:
            from journal.cli.preview import show_doubts  # noqa: PLC0415

            return await show_doubts(project, as_json=as_json)
        from journal.cli.run import attest, chosen  # noqa: PLC0415

        name = " ".join(unit) or None
        if project.state.plan is None:
            chosen([], name, settings.app_label)
        outcome = GroupEventKind.COMMITTED if committed else GroupEventKind.DEFINITELY_ABORTED
        return await attest(_task(project, interrupts, claim, as_json=as_json), name, outcome, attestation)

    return _run(work)


@click.command()
@options.migrations
@options.claim
@options.attestation
def abandon(reason: str | None, operator: str | None, **claim: Any) -> int:
    """Give up the open plan; refused while a unit of it is in doubt.

    What it finished stays applied (or rolled back). What is half done is shown with the statements that would undo it:
    that is left to you.

    With --json: {"scope", "direction", "plan_sequence", "done": [...], "half_done": [...], "operator", "reason"}.
    """
    attestation = _attestation(reason, operator)
    settings, as_json = options.settings(), options.wants_json()

    async def work(interrupts: Interrupts) -> int:
        from journal.cli.project import look  # noqa: PLC0415

        project = await look(settings, needs_database=False, needs_files=False)
        if project.state.plan is None:
            raise failure(Code.NO_OPEN_PLAN, f"no plan is open in scope {project.scope}: there is nothing to abandon")
        from journal.cli import run  # noqa: PLC0415

        return await run.abandon(_task(project, interrupts, claim, as_json=as_json), attestation)

    return _run(work)


@click.command("import")
@options.migrations
@options.claim
@options.attestation
@_TO
@click.option("--prepare", is_flag=True, help="Make this log a place for a scope that lives elsewhere; print its name.")
@click.option("--archive", metavar="FILE", help="Bring in a scope that `journal export` wrote; - is standard input.")
@click.option("--copy", is_flag=True, help="With --archive: only to be read, nobody can write to it.")
@click.option(
    "--restore",
    is_flag=True,
    help="The scope lives in this log from now on, wherever it lived; for what is lost. If it lives on elsewhere after "
    "all, there are two histories of one target.",
)
def adopt(
    to: str | None,
    reason: str | None,
    operator: str | None,
    prepare: bool,
    archive: str | None,
    copy: bool,
    restore: bool,
    **claim: Any,
) -> int:
    """Adopt a database that has a history; or bring in a scope whose history another log has.

    Without --archive, --prepare and --restore: record migrations as applied that the database has already, everything or
    what --to needs and it. Executes nothing; refused unless the live schema is exactly what these migrations make.

    A scope is carried to another log in three steps: --prepare there prints a place, `journal export --move --place`
    where it lives moves it to that place, --archive there finishes. Each can be run again after whatever ended it. The
    archive is verified before anything is written; it counts at the place it was moved to, and nowhere else.

    With --json: {"outcome": "imported" or "up_to_date", "scope", "migrations"}; with --prepare {"outcome", "scope",
    "place"}; with --archive or --restore {"outcome": "arrived" or "copied", "scope", "found", "written", "sequence",
    "head", "lives_here"}.
    """
    if prepare or archive is not None or copy or restore:
        _check_carrying(archive, to, claim, prepare=prepare, copy=copy, restore=restore)
        if not restore and not (reason is None and operator is None):
            raise click.UsageError("--reason and --operator go with --restore, or with adopting a database")
        return _carry_in(archive, _attestation(reason, operator) if restore else None, prepare=prepare, copy=copy)
    attestation = _attestation(reason, operator)
    settings, as_json = options.settings(), options.wants_json()

    async def work(interrupts: Interrupts) -> int:
        from journal.cli.project import look  # noqa: PLC0415

        project = await look(settings)
        target = project.resolve(to)
        missing = project.missing(target, allow_out_of_order=True)
        from journal.cli import run  # noqa: PLC0415

        task = _task(project, interrupts, claim, as_json=as_json)
        if project.state.plan is None and not missing:
            run.tell_adopted(project, [], as_json=as_json)
            return Exit.DONE
        return await run.adopt(task, target, attestation)

    return _run(work)


def _check_carrying(
    archive: str | None, to: str | None, claim: dict[str, Any], *, prepare: bool, copy: bool, restore: bool
) -> None:
    """Refuse options that belong to adopting a database, and those that exclude each other."""
    given = [f"--{name.replace('_', '-')}" for name, value in {"to": to, **claim}.items() if value is not None]
    given += [f"--{name}" for name in ("database", "app") if name in click.get_current_context().obj]
    if given:
        raise click.UsageError(f"{', '.join(given)}: only for adopting a database, no lease or target is needed here")
    if prepare and (archive is not None or copy or restore):
        raise click.UsageError("--prepare stands alone: the archive comes when the scope was moved")
    if copy and (archive is None or restore):
        raise click.UsageError("--copy goes with --archive, and excludes --restore")


def _carry_in(archive: str | None, attestation: Attestation | None, *, prepare: bool, copy: bool) -> int:
    settings, as_json = options.settings(), options.wants_json()

    async def work(_: Interrupts) -> int:
        from journal.cli import carry  # noqa: PLC0415

        if prepare:
            return await carry.prepare(settings, as_json=as_json)
        if archive is not None:
            return await carry.bring(settings, archive, copy=copy, attestation=attestation, as_json=as_json)
        assert attestation is not None
        return await carry.restore(settings, attestation, as_json=as_json)

    return _run(work)


# --- carrying away ----------------------------------------------------------------------------------------------------


@click.command()
@options.SCOPE
@options.general
@options.claim
@options.attestation
@click.argument("file")
@click.option("--move", is_flag=True, help="Move the scope: it lives at --place afterwards, and no longer here.")
@click.option("--place", metavar="HEX", help="Place that `journal import --prepare` printed where the scope goes.")
@click.option("--destination", metavar="TEXT", help="Where that is, for people; it is kept in the history.")
def export(
    file: str,
    move: bool,
    place: str | None,
    destination: str | None,
    reason: str | None,
    operator: str | None,
    **claim: Any,
) -> int:
    """Write the whole log of a scope to FILE (- is standard output), each event with its verdict, exactly as it is.

    That is a copy, for auditors and backups, made at any time without a lease. With --move the lease is taken, so a
    writer that still runs comes to its end first or is waited for; from then on nothing counts in this log, and the scope
    goes on where the archive is imported with `journal import --archive`: at --place, and nowhere else. Run again, the
    same command writes the archive again.

    With --json: {"outcome": "copied", "moved" or "moved_before", "scope", "file", "events", "counting", "sequence",
    "head", "place", "destination"}.
    """
    texts = {"place": place, "destination": destination, "reason": reason, "operator": operator, **claim}
    given = [f"--{name.replace('_', '-')}" for name, value in texts.items() if value is not None]
    settings, as_json = options.settings(), options.wants_json()
    if file == "-" and as_json:
        raise click.UsageError("with - stdout is the archive: leave --json out")
    if not move:
        if given:
            raise click.UsageError(f"{', '.join(given)}: only with --move")
        return _run(lambda _: _export(settings, file, as_json=as_json))
    if place is None or destination is None:
        raise click.UsageError(
            "--move needs --place and --destination: `journal import --prepare` there prints the place"
        )
    return _move(file, place, destination, _attestation(reason, operator), claim)


async def _export(settings: Settings, file: str, *, as_json: bool) -> int:
    from journal.cli import carry  # noqa: PLC0415

    return await carry.export(settings, file, as_json=as_json)


def _move(file: str, place: str, destination: str, attestation: Attestation, claim: dict[str, Any]) -> int:
    from journal.identities import Place  # noqa: PLC0415

    target, settings, as_json = Place.parse(place), options.settings(), options.wants_json()

    async def work(interrupts: Interrupts) -> int:
        from journal.cli import carry  # noqa: PLC0415
        from journal.cli.project import Project, state_of  # noqa: PLC0415
        from journal.migrations.files import Folder  # noqa: PLC0415

        project = Project(settings, *await state_of(settings), Folder((), ()))
        task = _task(project, interrupts, claim, as_json=as_json)
        return await carry.move(task, file, carry.Departure(target, destination, attestation))

    return _run(work)


COMMANDS: Final = (new, plan, apply, rollback, resolve, abandon, adopt, export)


# --- what the options mean --------------------------------------------------------------------------------------------


def _run(work: Callable[[Interrupts], Coroutine[Any, Any, int]]) -> int:
    """Run a command under the rules for signals; a cancellation ends as one error."""
    import asyncio  # noqa: PLC0415

    from journal.cli.interrupts import Interrupts  # noqa: PLC0415
    from journal.errors import OperationCancelledError  # noqa: PLC0415

    interrupts = Interrupts()
    try:
        return interrupts.run(work)
    except (asyncio.CancelledError, OperationCancelledError) as error:
        message = f"stopped by {interrupts.name} before it was done"
        raise failure(Code.CANCELLED, message, signal=interrupts.name) from error


def _forward(project: Project, to: str | None, allow_out_of_order: bool) -> Wish:
    from journal.cli.preview import Wish  # noqa: PLC0415
    from journal.vocabulary import Direction  # noqa: PLC0415

    return Wish(Direction.FORWARD, project.resolve(to), allow_out_of_order=allow_out_of_order)


def _backward(project: Project, to: str | None, steps: int | None) -> Wish:
    from journal.cli.preview import Wish  # noqa: PLC0415
    from journal.vocabulary import Direction  # noqa: PLC0415

    if to is not None and steps is not None:
        raise click.UsageError("--to and --steps exclude each other")
    if to is None and steps is None and project.state.plan is None:
        raise click.UsageError("say how far to roll back: with --to ID, or with --steps N")
    return Wish(Direction.REVERSE, project.resolve(to), steps)


def _members(project: Project) -> list[MigrationId]:
    """What the open plan has still to do."""
    from journal.identities import MigrationId  # noqa: PLC0415

    plan = project.state.plan
    return [] if plan is None else [MigrationId.parse(id) for id in plan.members.values() if id in plan.remaining]


def _task(project: Project, interrupts: Interrupts, claim: dict[str, Any], *, as_json: bool) -> Task:
    from journal.cli.run import Task  # noqa: PLC0415

    interrupts.begin()
    return Task(project, _claim(**claim), interrupts, as_json)


def _claim(holder: str | None, lock_timeout: timedelta | None, ttl: timedelta | None) -> Claim:
    from journal.cli.run import Claim  # noqa: PLC0415
    from journal.journal import DEFAULT_TTL  # noqa: PLC0415

    return Claim(HolderId(default_holder() if holder is None else holder), lock_timeout, ttl or DEFAULT_TTL)


def default_holder() -> str:
    """User, host and process, made to fit the rule for holders."""
    ending = f"-{os.getpid()}"
    label = re.sub(r"[^A-Za-z0-9._-]", "_", f"{_user()}-{socket.gethostname()}", flags=re.ASCII)
    return label[: MAX_HOLDER_BYTES - len(ending)] + ending


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return f"uid-{os.getuid()}"


def _attestation(reason: str | None, operator: str | None) -> Attestation:
    from projections.operations import Attestation  # noqa: PLC0415

    if reason is None:
        raise click.UsageError("say why with --reason: it is kept in the history")
    return Attestation(_user() if operator is None else operator, reason)

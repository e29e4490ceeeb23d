"""Carrying a scope to another log, and back: `journal export`, and what `journal import` does with archives."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from journal.cli import operate_views, options, output
from journal.cli.exits import Exit
from journal.errors import Code, JournalError, failure

if TYPE_CHECKING:
    from journal.carriage import Carriage
    from journal.cli.run import Task
    from journal.identities import Place, Scope
    from journal.journal import Journal
    from journal.settings import Settings
    from journal.state import ScopeState
    from projections.archive import Archive, Heading
    from projections.carry import Brought
    from projections.operations import Attestation

STREAM: Final = "-"
_PAUSE_SECONDS: Final = 2.0


# --- out --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a scope is moved to: the place that its new log printed, and words for people."""

    place: Place
    destination: str
    attestation: Attestation


async def export(settings: Settings, file: str, *, as_json: bool) -> int:
    """Write an archive of what is in the log, without a lease."""
    from journal.bootstrap import open_journal  # noqa: PLC0415
    from journal.cli.project import only_scope  # noqa: PLC0415

    with _replaced(file) as target:
        async with open_journal(settings, read_only=True) as opened:
            scope = await only_scope(opened, settings)
            await _check_known(opened, scope)
            heading, state = await _pack(opened.carriage(scope), target)
    _tell_packed(heading, state, file, has_moved_now=False, as_json=as_json)
    return Exit.DONE


async def move(task: Task, file: str, departure: Departure) -> int:
    """Move the scope under its lease, unless it was moved there before, and write the archive."""
    from journal.bootstrap import open_journal  # noqa: PLC0415

    settings, scope = task.project.settings, task.project.scope
    with _replaced(file) as target:
        has_moved_now = await _depart(task, departure)
        async with open_journal(settings, read_only=True) as opened:
            heading, state = await _pack(opened.carriage(scope), target)
    _tell_packed(heading, state, file, has_moved_now=has_moved_now, as_json=task.as_json)
    return Exit.DONE


async def _depart(task: Task, departure: Departure) -> bool:
    """Whether it was this call that moved the scope to the place; false when it was moved there before."""
    from journal.whereabouts import check_here  # noqa: PLC0415
    from projections import carry  # noqa: PLC0415

    if _has_moved(task.project.state, departure.place):
        return False
    check_here(task.project.state)
    try:
        async with task.held() as (journal, lease):
            task.control.check()
            await carry.move(journal, lease, departure.place, departure.destination, departure.attestation)
    except JournalError as error:
        if error.code is Code.SCOPE_MOVED and error.details.get("place") == str(departure.place):
            return False  # by another export, while this one waited
        raise
    return True


def _has_moved(state: ScopeState, place: Place) -> bool:
    return state.moved is not None and state.moved.place == place


async def _pack(carriage: Carriage, target: BinaryIO) -> tuple[Heading, ScopeState]:
    from projections.carry import pack  # noqa: PLC0415

    with _progress("exported") as tell:
        heading = await pack(carriage, target, tell)
    return heading, await carriage.state()


@contextmanager
def _replaced(file: str) -> Generator[BinaryIO, None, None]:
    """What is written here is the file as soon as all of it is written, and durable; `-` is stdout."""
    if file == STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(file)
    try:
        if path.exists() and not _is_archive(path):
            raise failure(Code.FOREIGN_FILE, f"{path} exists and is no archive: name another file", file=file)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(descriptor, "wb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        Path(name).replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            Path(name).unlink()


def _unwritable(path: Path, error: OSError) -> JournalError:
    code = Code.MISSING_FILE if isinstance(error, FileNotFoundError) else Code.STORAGE_FAILED
    return failure(code, f"{path} cannot be written: {error.strerror or error}", file=str(path))


def _is_archive(path: Path) -> bool:
    from projections.archive import FORMAT  # noqa: PLC0415

    with path.open("rb") as file:
        return f'"{FORMAT}"'.encode() in file.read(64)


async def _check_known(opened: Journal, scope: Scope) -> None:
    if scope not in await opened.scopes():
        raise failure(Code.UNKNOWN_SCOPE, f"there is no scope {scope} in this log", scope=str(scope))


def _tell_packed(heading: Heading, state: ScopeState, file: str, *, has_moved_now: bool, as_json: bool) -> None:
    moved = state.moved if heading.moved_to is not None else None
    outcome = "moved" if has_moved_now else "copied" if moved is None else "moved_before"
    if as_json:
        output.write_json(
            {
                "outcome": outcome,
                "scope": heading.scope,
                "file": file,
                "events": heading.events,
                "counting": heading.counting,
                "sequence": heading.sequence,
                "head": heading.head,
                "place": heading.moved_to,
                "destination": None if moved is None else moved.destination,
            }
        )
        return
    what = f"scope {heading.scope}, {heading.events} events, head {heading.head}"
    if moved is None:
        text = f"exported {what}: a copy, the scope lives where it was"
    else:
        verb = "moved" if has_moved_now else "exported"
        text = (
            f"{verb} {what}: it goes to {moved.destination}, place {heading.moved_to}; finish there with `journal import "
            "--archive`"
        )
    if file == STREAM:
        operate_views.write_note(text)  # stdout is the archive
    else:
        output.write_line(output.printable(text))


# --- in ---------------------------------------------------------------------------------------------------------------


async def prepare(settings: Settings, *, as_json: bool) -> int:
    """Make the log a place for the scope, and print its name."""
    from journal.bootstrap import open_journal  # noqa: PLC0415
    from journal.cli.project import named_scope  # noqa: PLC0415
    from journal.identities import Scope  # noqa: PLC0415
    from journal.settings import DEFAULT_SCOPE  # noqa: PLC0415

    async with open_journal(settings, create=True) as opened:
        scope = settings.scope or named_scope(await opened.scopes(), settings) or Scope(DEFAULT_SCOPE)
        place = await opened.carriage(scope).await_scope()
    if as_json:
        output.write_json({"outcome": "prepared", "scope": scope, "place": place})
    else:
        operate_views.write_note(f"journal: this log awaits scope {scope}; move it here with")
        operate_views.write_note(
            f"journal:   journal export FILE --move --place {place} --destination TEXT --reason TEXT"
        )
        output.write_line(str(place))
    return Exit.DONE


async def bring(settings: Settings, file: str, *, copy: bool, attestation: Attestation | None, as_json: bool) -> int:
    """Import an archive: finish a move, or with `copy` to be read, or with an attestation to restore the scope from it."""
    from journal.bootstrap import open_journal  # noqa: PLC0415
    from projections import carry  # noqa: PLC0415

    manner = carry.Manner.COPY if copy else carry.Manner.ARRIVE if attestation is None else carry.Manner.RESTORE
    with _read(file) as archive:
        async with open_journal(settings, create=manner is not carry.Manner.ARRIVE) as opened:
            carriage = opened.carriage(settings.scope or archive.heading.scope)
            with _progress("imported") as tell:
                brought = await carry.bring(carriage, archive, manner, attestation, tell)
    _tell_brought(brought, as_json=as_json)
    return Exit.DONE


async def restore(settings: Settings, attestation: Attestation, *, as_json: bool) -> int:
    """Let the scope live in this log again, with the history that is here."""
    from journal.bootstrap import open_journal  # noqa: PLC0415
    from journal.cli.project import only_scope  # noqa: PLC0415
    from projections.carry import Brought  # noqa: PLC0415

    async with open_journal(settings) as opened:
        scope = await only_scope(opened, settings)
        await _check_known(opened, scope)
        carriage = opened.carriage(scope)
        before = await carriage.state()
        await carriage.restore(operator=attestation.operator, reason=attestation.reason)
        _tell_brought(Brought(before.admitted, 0, await carriage.state()), as_json=as_json)
    return Exit.DONE


@contextmanager
def _read(file: str) -> Generator[Archive, None, None]:
    """The archive in a file; a stream is stored first, because it is read more than once."""
    from projections.archive import Archive  # noqa: PLC0415

    try:
        with contextlib.ExitStack() as stack:
            source = sys.stdin.buffer if file == STREAM else stack.enter_context(Path(file).open("rb"))
            if file == STREAM or not source.seekable():
                spool = stack.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(source, spool)
                source = spool
            yield Archive(source, "standard input" if file == STREAM else file)
    except OSError as error:
        code = Code.MISSING_FILE if isinstance(error, FileNotFoundError) else Code.STORAGE_FAILED
        raise failure(code, f"{file} cannot be read: {error.strerror or error}", file=file) from error


def _tell_brought(brought: Brought, *, as_json: bool) -> None:
    state = brought.state
    if as_json:
        output.write_json(
            {
                "outcome": "copied" if state.away else "arrived",
                "scope": state.scope,
                "found": brought.found,
                "written": brought.written,
                "sequence": state.sequence,
                "head": state.head,
                "lives_here": not state.away,
            }
        )
        return
    where = "a copy to be read, nobody can write to it" if state.away else "it lives in this log now"
    output.write_line(
        f"scope {state.scope}: {brought.written} events written, {brought.found} were there, head {state.head.hex()}; {where}"
    )


# --- how far it is ----------------------------------------------------------------------------------------------------


@contextmanager
def _progress(verb: str) -> Generator[Any, None, None]:
    """Tells on stderr, now and then, how many events of how many are done, how fast, and how long it takes yet."""
    began = told = 0.0
    first = 0

    def tell(done: int, total: int) -> None:
        nonlocal began, told, first
        now = time.monotonic()
        if not began:
            began = told = now
            first = done
        if now - told < _PAUSE_SECONDS or options.wants_json():
            return
        told = now
        rate = (done - first) / (now - began)
        left = f", {output.duration((total - done) / rate)} left" if rate else ""
        operate_views.write_note(f"journal: {verb} {done} of {total} events, {rate:.0f}/s{left}")

    yield tell

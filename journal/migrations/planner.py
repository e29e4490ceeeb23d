"""What the files and the active ledger say together: what would be applied, what would be rolled back, what is wrong.

No schema is known here yet: the plans name migrations in order, and `plan` verifies them once their manifests exist.
The ledger is the evidence, so a file that disagrees with it is refused; nothing is guessed. One thing is not taken for
a disagreement. A migration depends by default on the file before it, and its digest covers what it depends on; a file
that slides in between two others (two branches were merged) therefore changes the digest of the one behind it,
although nobody touched that. When the recorded digest is that of the same file behind the file that was before it when
it was applied, the file is taken as it was recorded, and the one that slid in is what it is: out of order.

Everything takes time linear in the number of migrations, sorting aside, and hashes applied ones only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from journal.errors import Code, failure
from journal.identities import Digest, MigrationId
from journal.migrations.graph import ancestors, dependents, hint, lines_of, nearest, number_of, order
from journal.migrations.source import AssertionSource, MigrationSource


@dataclass(frozen=True, slots=True)
class Known:
    """One entry of the active ledger: a migration and the digest that it had when it was applied."""

    id: MigrationId
    digest: Digest


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """What to apply: `applied` in the order of the ledger, `planned` in the order of execution."""

    applied: tuple[MigrationSource, ...]
    planned: tuple[MigrationSource, ...]


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """What to roll back: `applied` in the order of the ledger, `retired` in the order of execution.

    `retired` is always an end of the ledger, last first, because each migration starts from the state in which the one
    before it left the target.
    """

    applied: tuple[MigrationSource, ...]
    retired: tuple[MigrationSource, ...]


def check_files(sources: Sequence[MigrationSource]) -> tuple[MigrationSource, ...]:
    """The migrations in graph order.

    Raises:
        InvalidContractError: `journal_invalid_graph`: two files of one id; whatever `graph.order` refuses.
    """
    files: dict[MigrationId, MigrationSource] = {}
    problems: list[str] = []
    for source in sources:
        if source.id in files:
            problems.append(f"{source.id} is both in {files[source.id].path} and in {source.path}")
        files.setdefault(source.id, source)
    if problems:
        raise failure(Code.INVALID_GRAPH, f"one id is one migration:{lines_of(problems)}", problems=problems)
    return _ordered(files)


def check_ledger(
    ordered: Sequence[MigrationSource], ledger: Sequence[Known], *, allow_out_of_order: bool
) -> tuple[MigrationSource, ...]:
    """Check files in graph order (`check_files`) against a ledger, in the order in which its migrations entered it.

    Returns the migrations as the ledger has them, in the same order: the same, but for one behind a file that slid in.

    Raises:
        IntegrityError: `journal_ledger_ahead`: the ledger has migrations without a file. `journal_migration_edited`:
            files are not what was applied. `migration_execution_plan_binding_mismatch`: the ledger has a hole, or one
            migration twice.
        InvalidContractError: `journal_out_of_order`: a migration that is not applied comes before one that is.
    """
    match = _match(ordered, ledger)
    if not allow_out_of_order:
        _check_in_order(match, set(match.files).difference(match.applied))
    return tuple(match.files.values())


def plan_apply(
    ordered: Sequence[MigrationSource],
    ledger: Sequence[Known],
    target: MigrationId | None,
    *,
    allow_out_of_order: bool = False,
) -> ApplyPlan:
    """What is missing of `target` and all that it needs, or (no target) of everything.

    Raises what `check_ledger` raises, where only what would be applied can be out of order, and
    `journal_unknown_migration` for a target that is in no file.
    """
    match = _match(ordered, ledger)
    wanted: Iterable[MigrationId] = match.files
    if target is not None:
        wanted = ancestors(_graph(match.files), [target])
    missing = set(wanted).difference(match.applied)
    if not allow_out_of_order:
        _check_in_order(match, missing)
    return ApplyPlan(
        applied=tuple(match.applied.values()),
        planned=tuple(source for source in match.files.values() if source.id in missing),
    )


def plan_rollback(
    ordered: Sequence[MigrationSource],
    ledger: Sequence[Known],
    *,
    to: MigrationId | None = None,
    steps: int | None = None,
) -> RollbackPlan:
    """Everything that entered the ledger after `to`, or the last `steps` migrations of it.

    Raises what `check_ledger` raises (but nothing is out of order here), and

        InvalidContractError: `journal_unknown_migration`: `to` is not applied, or `steps` is not 1 to the number of
            applied migrations; exactly one of both must be given. `journal_irreversible`: steps without a reverse.
        IntegrityError: `migration_execution_plan_binding_mismatch`: one that stays depends on one that would go.
    """
    match = _match(ordered, ledger)
    applied = tuple(match.applied.values())
    retired = applied[_kept(match, to, steps) :][::-1]
    _check_severable(match.applied, retired)
    _check_reversible(retired)
    return RollbackPlan(applied, retired)


def resolve_id(text: str, ids: Sequence[MigrationId], app: str) -> MigrationId:
    """The migration that an operator means by `app/name`, by a name of `app`, or by a number that only one has.

    Raises:
        InvalidContractError: `journal_unknown_migration`, with the `candidates` that may be meant.
    """
    label, slash, name = text.rpartition("/")
    label = label if slash else app
    own = [id for id in ids if id.app == label]
    for id in own:
        if id.name == name:
            return id
    found = [id for id in own if name.isascii() and name.isdigit() and number_of(id.name) == number_of(name)]
    if len(found) == 1:
        return found[0]
    near = nearest(name, ids)
    candidates = sorted(found or ([near] if near else []))
    meant = f": did you mean {' or '.join(map(str, candidates[:5]))}?" if candidates else _extent(ids)
    problem = f"{text!r:.150} names {len(found)} migrations" if found else f"there is no migration {text!r:.150}"
    raise failure(
        Code.UNKNOWN_MIGRATION, f"{problem}{meant}", migration=text, candidates=[str(id) for id in candidates]
    )


# --- files against the ledger -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Match:
    """Files and ledger that agree: `files` in the order of the files, `applied` in the order of the ledger."""

    files: dict[MigrationId, MigrationSource]
    applied: dict[MigrationId, MigrationSource]


def _match(ordered: Sequence[MigrationSource], ledger: Sequence[Known]) -> _Match:
    files = {source.id: source for source in ordered}
    _check_known(files, ledger)
    files |= _moved(files, ledger)  # each keeps its place: what slid in before it still stands before it
    applied = {known.id: files[known.id] for known in ledger}
    _check_closed(applied)
    return _Match(files, applied)


def _graph(sources: Mapping[MigrationId, MigrationSource]) -> dict[MigrationId, tuple[MigrationId, ...]]:
    return {id: source.dependencies for id, source in sources.items()}


def _ordered(files: Mapping[MigrationId, MigrationSource]) -> tuple[MigrationSource, ...]:
    return tuple(files[id] for id in order(_graph(files)))


def _check_known(files: Mapping[MigrationId, MigrationSource], ledger: Sequence[Known]) -> None:
    missing = [str(known.id) for known in ledger if known.id not in files]
    if missing:
        raise failure(
            Code.LEDGER_AHEAD,
            "the ledger has migrations that the files lack: use the files of the version that applied them:"
            f"{lines_of(missing)}",
            migrations=missing,
        )
    twice = [str(id) for id, count in Counter(known.id for known in ledger).items() if count > 1]
    if twice:
        raise failure(
            Code.PLAN_BINDING_MISMATCH, f"the ledger has migrations twice:{lines_of(twice)}", migrations=twice
        )


def _moved(files: Mapping[MigrationId, MigrationSource], ledger: Sequence[Known]) -> dict[MigrationId, MigrationSource]:
    """Applied migrations behind a file that slid in, as they were recorded. Raises `journal_migration_edited`."""
    differing = {known: found for known in ledger if (found := files[known.id].digest) != known.digest}
    if not differing:
        return {}
    before_now = _before(sorted(files, key=_file_order))
    before_then = _before([known.id for known in ledger])
    moved: dict[MigrationId, MigrationSource] = {}
    edited: list[tuple[Known, Digest]] = []
    for known, found in differing.items():
        source = files[known.id]
        recorded = replace(source, dependencies=before_then[known.id])
        if source.dependencies == before_now[known.id] and recorded.digest == known.digest:
            moved[known.id] = recorded
        else:
            edited.append((known, found))
    if edited:
        raise _edited(files, edited)
    return moved


def _file_order(id: MigrationId) -> tuple[str, int, str, str]:
    """Where the file of a migration stands in its folder: 10000 comes after 9999."""
    number = number_of(id.name) or ""
    return id.app, len(number), number, id.name


def _before(ids: Iterable[MigrationId]) -> dict[MigrationId, tuple[MigrationId, ...]]:
    """For each id the last file of its app before it, of those that stand before it in `ids` too; empty for the first."""
    ids = list(ids)
    below: dict[MigrationId, MigrationId | None] = dict.fromkeys(ids)
    above: dict[MigrationId, MigrationId | None] = dict.fromkeys(ids)
    for left, right in pairwise(sorted(ids, key=_file_order)):
        above[left], below[right] = right, left
    found: dict[MigrationId, tuple[MigrationId, ...]] = {}
    for id in reversed(ids):  # taken out of the linked list last to first, so the neighbours left stand before it
        under, over = below[id], above[id]
        found[id] = (under,) if under is not None and under.app == id.app else ()
        if under is not None:
            above[under] = over
        if over is not None:
            below[over] = under
    return found


def _edited(files: Mapping[MigrationId, MigrationSource], edited: Sequence[tuple[Known, Digest]]) -> Exception:
    details = [
        {
            "migration": str(known.id),
            "file": files[known.id].path,
            "recorded": str(known.digest),
            "found": str(found),
        }
        for known, found in edited
    ]
    lines = [
        f"{entry['migration']} ({entry['file']}): recorded {entry['recorded']}, the file has {entry['found']}"
        for entry in details
    ]
    return failure(
        Code.MIGRATION_EDITED,
        f"applied migrations were edited: restore the files, and put the change into a new migration:{lines_of(lines)}",
        migrations=details,
    )


def _check_closed(applied: Mapping[MigrationId, MigrationSource]) -> None:
    holes = [
        f"{source.id} is applied, but {need}, on which it depends, is not"
        for source in applied.values()
        for need in source.dependencies
        if need not in applied
    ]
    if holes:
        raise failure(
            Code.PLAN_BINDING_MISMATCH,
            f"the ledger has holes: look into its history before anything is run:{lines_of(holes)}",
            problems=holes,
        )


def _check_in_order(match: _Match, missing: set[MigrationId]) -> None:
    late = list(_late(match, missing))
    if not late:
        return
    late.reverse()
    details = [
        {"migration": str(source.id), "file": source.path, "before": str(after.id), "applied_after": count}
        for source, after, count in late
    ]
    lines = [
        f"{source.id} ({source.path}) comes before {after.id}{f' and {count - 1} more' if count > 1 else ''}"
        for source, after, count in late
    ]
    raise failure(
        Code.OUT_OF_ORDER,
        "migrations that come later are applied already: run with --allow-out-of-order if they do not depend on one "
        f"another's order, or renumber:{lines_of(lines)}",
        migrations=details,
    )


def _late(match: _Match, missing: set[MigrationId]) -> Iterator[tuple[MigrationSource, MigrationSource, int]]:
    """Missing migrations that come before applied ones, last first: with the next applied one, and how many there are."""
    after: MigrationSource | None = None
    count = 0
    for source in reversed(match.files.values()):
        if source.id in match.applied:
            after, count = source, count + 1
        elif after is not None and source.id in missing:
            yield source, after, count


# --- rolling back -----------------------------------------------------------------------------------------------------


def _kept(match: _Match, to: MigrationId | None, steps: int | None) -> int:
    """How many migrations of the ledger stay."""
    applied = len(match.applied)
    if (to is None) == (steps is None):
        raise failure(Code.UNKNOWN_MIGRATION, "say either which migration to roll back to, or how many to roll back")
    if to is not None:
        if to not in match.applied:
            known = "is not applied" if to in match.files else "is in no file"
            raise failure(
                Code.UNKNOWN_MIGRATION,
                f"{to} {known}{hint(to.name, list(match.applied))}",
                migration=str(to),
            )
        return list(match.applied).index(to) + 1
    if steps is None or not 1 <= steps <= applied:
        count = f"{applied} migrations are applied" if applied != 1 else "1 migration is applied"
        raise failure(
            Code.UNKNOWN_MIGRATION, f"{steps} migrations cannot be rolled back: {count}", steps=steps, applied=applied
        )
    return applied - steps


def _check_severable(applied: Mapping[MigrationId, MigrationSource], retired: Iterable[MigrationSource]) -> None:
    gone = {source.id for source in retired}
    stay = dependents(_graph(applied), gone) - gone
    tied = [
        f"{id} stays, but depends on {need}"
        for id, source in applied.items()
        if id in stay
        for need in source.dependencies
        if need in gone
    ]
    if tied:
        raise failure(
            Code.PLAN_BINDING_MISMATCH,
            f"migrations that others depend on cannot be rolled back: roll back further:{lines_of(tied)}",
            problems=tied,
        )


def _check_reversible(retired: Iterable[MigrationSource]) -> None:
    details: list[dict[str, Any]] = [
        {"migration": str(source.id), "file": source.path, "line": step.line, "step": index}
        for source in retired
        for index, step in enumerate(source.steps)
        if not isinstance(step, AssertionSource) and step.reverse is None
    ]
    if details:
        lines = [
            f"{step['migration']}, step {step['step']} ({step['file']}:{step['line']}) has no reverse"
            for step in details
        ]
        raise failure(
            Code.IRREVERSIBLE,
            f"nothing was rolled back: restore a backup, or undo it in a new migration:{lines_of(lines)}",
            steps=details,
        )


def _extent(ids: Sequence[MigrationId]) -> str:
    return f"; the last of {len(ids)} is {max(ids)}" if ids else "; there are no migrations"

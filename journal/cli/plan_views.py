"""Plans, differences and doubts as JSON documents, whose keys are stable, and as text.

Texts that come from files or from a database are somebody else's: what is not printable is escaped. Text is shortened
where it is long, JSON never.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, assert_never

from journal.cli.operate_views import error_document
from journal.cli.output import printable, write_line
from journal.cli.project import Project
from journal.errors import JournalError
from journal.identities import Fingerprint, Scope
from journal.migrations.source import Statement
from journal.records import RecoveryAttestedRecord
from journal.recovery import SchemaRelation, Witness
from journal.state import Unit
from journal.vocabulary import DONE, IN_DOUBT, Direction, GroupEventKind, UnitKind
from projections.comparison import Comparison
from projections.doubts import Doubt
from projections.drift import Difference
from projections.preview import Preview
from projections.units import BackfillUnit, SchemaUnit, Work, WorkUnit

_SHORT: Final = 12  # hex digits of a fingerprint
_LINES: Final = 20  # of one statement
_WIDTH: Final = 200  # characters of one line


# --- texts ------------------------------------------------------------------------------------------------------------


def excerpt(text: str) -> list[str]:
    """The lines of a statement as people get to see them."""
    lines = text.split("\n")
    shown = [printable(line if len(line) <= _WIDTH else f"{line[:_WIDTH]}...") for line in lines[:_LINES]]
    more = len(lines) - _LINES
    return [*shown, f"... and {more} more lines"] if more > 0 else shown


def write_statement(file: str, statement: Statement, indent: str = "      ") -> None:
    """A statement and where it stands."""
    first, *rest = excerpt(statement.text)
    where = f"{printable(file)}:{statement.line}"
    write_line(f"{indent}{where}  {first}")
    for line in rest:
        write_line(f"{indent}{' ' * len(where)}  {line}")


def _short(fingerprint: Fingerprint) -> str:
    return str(fingerprint)[:_SHORT]


# --- plan -------------------------------------------------------------------------------------------------------------


def plan_document(
    project: Project, direction: Direction, preview: Preview, error: JournalError | None
) -> dict[str, Any]:
    """`journal plan --json`."""
    return {
        "scope": project.scope,
        "direction": direction,
        "open": preview.is_open,
        "live": preview.live,
        "expected": preview.expected,
        "migrations": [_work_document(project, work) for work in preview.works],
        "drift": [_difference_document(item) for item in preview.drift],
        "reverse_problems": list(preview.reverse_problems),
        "ignored": [{"name": item.name, "why": item.why} for item in project.folder.ignored],
        "error": error_document(error),
    }


def _work_document(project: Project, work: Work) -> dict[str, Any]:
    source = work.prepared.source
    return {
        "migration": str(source.id),
        "digest": work.prepared.manifest.digest,
        "file": source.path,
        "units": [_unit_document(unit, _known(project, unit)) for unit in work.units],
    }


def _unit_document(unit: WorkUnit, known: Unit | None) -> dict[str, Any]:
    position = unit.position
    document = {
        "unit": position.unit,
        "ordinal": position.ordinal,
        "step": position.step_index,
        "line": position.line,
        "state": None if known is None else known.kind,
        "in_doubt": known is not None and known.kind in IN_DOUBT,
        "done": known is not None and known.kind in DONE,
    }
    match unit:
        case SchemaUnit():
            return document | _schema_document(unit)
        case BackfillUnit():
            return document | _backfill_document(unit)
        case _:
            assert_never(unit)


def _schema_document(unit: SchemaUnit) -> dict[str, Any]:
    return {
        "source": unit.source,
        "target": unit.target,
        "transactional": unit.program.transactional,
        "assertions": [
            {"description": item.description, "line": item.line, "query": item.query.text} for item in unit.assertions
        ],
        "statements": [{"line": item.line, "text": item.text} for item in unit.statements],
    }


def _backfill_document(unit: BackfillUnit) -> dict[str, Any]:
    verify = unit.verify
    return {
        "fingerprint": unit.fingerprint,
        "table": unit.program.table,
        "key": list(unit.program.key),
        "batch": unit.program.batch,
        "statements": [{"line": unit.statement.line, "text": unit.statement.text}],
        "verify": None if verify is None else {"line": verify.line, "text": verify.text},
    }


def _known(project: Project, unit: WorkUnit) -> Unit | None:
    plan = project.state.plan
    return None if plan is None else plan.units.get(unit.key)


def write_plan(project: Project, direction: Direction, preview: Preview) -> None:
    """`journal plan` for people."""
    write_line(_headline(project, direction, preview), style="bold")
    for work in preview.works:
        write_line()
        write_line(str(work.prepared.source.id), style="bold")
        for unit in work.units:
            _write_unit(unit, _known(project, unit))
    notes = [
        *(f"drift: {item.name} ({item.what})" for item in preview.drift),
        *(f"warning: this could not be rolled back: {problem}" for problem in preview.reverse_problems),
        *(f"ignored: {item.name} ({item.why})" for item in project.folder.ignored),
    ]
    if notes:
        write_line()
    for note in notes:
        write_line(printable(note), style="yellow")


def _headline(project: Project, direction: Direction, preview: Preview) -> str:
    name = f"scope {project.scope}"
    if not preview.works:
        return f"{name}: {'up to date' if direction is Direction.FORWARD else 'nothing to roll back'}"
    number = len(preview.works)
    what = f"{number} migration{'' if number == 1 else 's'}"
    verb = "apply" if direction is Direction.FORWARD else "roll back"
    return f"{name}: {what} to {verb}{', the rest of the open plan' if preview.is_open else ''}"


def _write_unit(unit: WorkUnit, known: Unit | None) -> None:
    match unit:
        case SchemaUnit():
            _write_schema(unit, known)
        case BackfillUnit():
            _write_backfill(unit, known)
        case _:
            assert_never(unit)


def _write_schema(unit: SchemaUnit, known: Unit | None) -> None:
    file = unit.position.file
    notes = [f"{_short(unit.source)} -> {_short(unit.target)}"]
    if not unit.program.transactional:
        notes.append("each statement by itself")
    if unit.is_formal:
        notes.append("no effect")
    write_line(f"  {_title(unit)}  {', '.join(notes)}{_mark(known)}")
    for assertion in unit.assertions:
        write_line(printable(f"      {file}:{assertion.line}  assert {assertion.description}"))
    for statement in unit.statements:
        write_statement(file, statement)


def _write_backfill(unit: BackfillUnit, known: Unit | None) -> None:
    program, file = unit.program, unit.position.file
    about = f"table={program.table} key={','.join(program.key)} batch={program.batch}"
    write_line(printable(f"  {_title(unit)}  {about}{_mark(known)}"))
    write_statement(file, unit.statement)
    if unit.verify is not None:
        write_line(printable(f"      {file}:{unit.verify.line}  verify"))
        write_statement(file, unit.verify)


def _title(unit: WorkUnit) -> str:
    position = unit.position
    return f"step {position.step_index}, {position.unit.value.replace('_', ' ')}"


def _mark(known: Unit | None) -> str:
    if known is None:
        return ""
    if known.kind in DONE:
        return "  [done]"
    return f"  [in doubt: {known.kind.value}]" if known.kind in IN_DOUBT else f"  [begun: {known.kind.value}]"


# --- differences ------------------------------------------------------------------------------------------------------


def _difference_document(item: Difference) -> dict[str, Any]:
    return {"object": item.name, "what": item.what, "expected": item.expected, "found": item.found}


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """The part of `journal verify --json` about migrations."""
    return {
        "agrees": comparison.agrees,
        "compared": comparison.compared,
        "open": comparison.is_open,
        "in_doubt": comparison.in_doubt,
        "live": comparison.live,
        "expected": comparison.expected if comparison.compared else None,
        "edited": [
            {"migration": str(item.id), "recorded": item.recorded, "found": item.found, "file": item.path}
            for item in comparison.edited
        ],
        "pending": [str(id) for id in comparison.pending],
        "drift": [_difference_document(item) for item in comparison.drift],
    }


def write_comparison(comparison: Comparison) -> None:
    """The same for people."""
    for edited in comparison.edited:
        if edited.found is None:
            line = f"missing: {edited.id} has no file; recorded {edited.recorded}"
        else:
            line = f"edited: {edited.id} ({edited.path}): recorded {edited.recorded}, the file has {edited.found}"
        write_line(printable(line), style="red")
    for item in comparison.drift:
        write_line(printable(f"drift: {item.name} ({item.what})"), style="red")
        for title, text in (("expected", item.expected), ("found", item.found)):
            for line in [] if text is None else excerpt(text):
                write_line(f"  {title:<8}  {line}")
    for id in comparison.pending:
        write_line(f"pending: {id}", style="yellow")
    if comparison.is_open:
        doubt = ", with a unit in doubt" if comparison.in_doubt else ""
        write_line(f"open: a plan is not finished{doubt}; see `journal status`", style="yellow")
    write_line(_verdict(comparison), style="bold green" if comparison.agrees else "bold yellow")


def _verdict(comparison: Comparison) -> str:
    if comparison.agrees:
        return "ledger, files and live schema agree"
    if not comparison.compared:
        return "ledger and files differ; the live schema was not compared, as its files are not there"
    if comparison.drift:
        return "the live schema is not what the ledger says"
    return "ledger and live schema agree; not everything is applied"


# --- doubts -----------------------------------------------------------------------------------------------------------

_WITNESSES: Final[Mapping[Witness, str]] = {
    Witness.PRESENT: "its bookkeeping shows that it committed",
    Witness.ABSENT: "its bookkeeping shows no commit of it",
    Witness.NONE: "it leaves no trace in the bookkeeping",
}
_RELATIONS: Final[Mapping[SchemaRelation | None, str]] = {
    SchemaRelation.SOURCE: "the live schema is the one before it",
    SchemaRelation.TARGET: "the live schema is the one after it",
    SchemaRelation.BOTH: "the live schema is the one before it and after it, which are equal",
    SchemaRelation.NEITHER: "the live schema is neither the one before nor the one after it",
    SchemaRelation.UNAVAILABLE: "the live schema cannot be read",
    None: "what the schema was before and after it is not known",
}


def doubts_document(
    scope: Scope, doubts: Sequence[Doubt], holders: Mapping[int, str], attested: RecoveryAttestedRecord | None
) -> dict[str, Any]:
    """`journal resolve --json`."""
    return {
        "scope": scope,
        "in_doubt": [_doubt_document(doubt, holders) for doubt in doubts],
        "attested": None
        if attested is None
        else {
            "migration": attested.migration_id,
            "outcome": attested.outcome,
            "operator": attested.operator,
            "reason": attested.reason,
            "fence": attested.fence,
        },
    }


def _doubt_document(doubt: Doubt, holders: Mapping[int, str]) -> dict[str, Any]:
    cursor = doubt.cursor
    return {
        "name": doubt.name,
        "migration": str(doubt.migration),
        "unit": doubt.unit,
        "ordinal": doubt.ordinal,
        "direction": doubt.direction,
        "last": doubt.last,
        "fence": doubt.fence,
        "holder": holders.get(doubt.fence),
        "witness": doubt.witness,
        "relation": doubt.relation,
        "live": doubt.live,
        "cursor": None
        if cursor is None
        else {
            "rows": cursor.rows,
            "matched": cursor.matched,
            "changed": cursor.changed,
            "skipped": cursor.skipped,
            "transaction_groups": cursor.transaction_groups,
            "done": cursor.done,
        },
        "settled_by_running": doubt.settled_by_running,
        "against_committed": doubt.contradicts(GroupEventKind.COMMITTED),
        "against_aborted": doubt.contradicts(GroupEventKind.DEFINITELY_ABORTED),
    }


def write_doubts(doubts: Sequence[Doubt], holders: Mapping[int, str]) -> None:
    """`journal resolve` for people."""
    if not doubts:
        write_line("nothing is in doubt")
    for doubt in doubts:
        write_line(doubt.name, style="bold")
        for title, text in _doubt_facts(doubt, holders):
            write_line(f"  {title:<9} {text}")


def _doubt_facts(doubt: Doubt, holders: Mapping[int, str]) -> Iterable[tuple[str, str]]:
    who = f", {holders[doubt.fence]}" if doubt.fence in holders else ""
    yield "journal", f"{doubt.last.value}, begun under fence {doubt.fence}{who}"
    yield "database", _WITNESSES[doubt.witness]
    if doubt.unit is UnitKind.BACKFILL:
        cursor = doubt.cursor
        yield "", "no cursor" if cursor is None else f"cursor at {cursor.matched} of {cursor.rows} rows"
    else:
        yield "", _RELATIONS[doubt.relation]
    if doubt.settled_by_running:
        yield "next", "run again: it settles this by itself"
        return
    yield "next", "an operator has to decide: --committed or --aborted, with --reason"
    for option, kind in (("--committed", GroupEventKind.COMMITTED), ("--aborted", GroupEventKind.DEFINITELY_ABORTED)):
        against = doubt.contradicts(kind)
        if against is not None:
            yield "", f"against {option}: {against}"

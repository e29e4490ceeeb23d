"""The projections' views as JSON documents, whose keys are stable, and as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from journal.cli.output import NONE, align, duration, instant, printable, write_line, write_table
from journal.errors import Code
from journal.explanations import EXPLANATIONS
from journal.identities import Scope
from projections.ledger import LeaseView, MoveView, PlanView, ScopeView, TimelineRow, UnitRow, describe_counts

if TYPE_CHECKING:
    from projections.audit import Finding, Verification

# --- status -----------------------------------------------------------------------------------------------------------


def status_document(view: ScopeView, now: float) -> dict[str, Any]:
    """`journal status --json`."""
    return {
        "scope": view.scope,
        "incarnation": view.incarnation,
        "authenticated": view.authenticated,
        "position": view.position,
        "sequence": view.sequence,
        "fence": view.fence,
        "head": view.head,
        "admitted": view.admitted,
        "void": view.voids,
        "ledger": [
            {
                "migration": row.migration,
                "digest": row.digest,
                "sequence": row.sequence,
                "fence": row.fence,
                "recorded_at": instant(row.recorded_at),
                "imported": row.imported,
            }
            for row in view.ledger
        ],
        "plan": None if view.plan is None else _plan_document(view.plan),
        "lease": None if view.lease is None else _lease_document(view.lease, now),
        "lives_here": not view.away,
        "moved": None if view.moved is None else _move_document(view.moved),
    }


def _move_document(move: MoveView) -> dict[str, Any]:
    return {
        "place": move.place,
        "destination": move.destination,
        "operator": move.operator,
        "reason": move.reason,
        "fence": move.fence,
        "recorded_at": instant(move.recorded_at),
    }


def _plan_document(plan: PlanView) -> dict[str, Any]:
    return {
        "direction": plan.direction,
        "sequence": plan.sequence,
        "fence": plan.fence,
        "recorded_at": instant(plan.recorded_at),
        "migrations": [
            {
                "migration": row.migration,
                "digest": row.digest,
                "done": row.done,
                "units": [_unit_document(unit) for unit in row.units],
            }
            for row in plan.migrations
        ],
    }


def _unit_document(unit: UnitRow) -> dict[str, Any]:
    counts = unit.counts
    return {
        "unit": unit.unit,
        "ordinal": unit.ordinal,
        "direction": unit.direction,
        "state": unit.state,
        "in_doubt": unit.in_doubt,
        "fence": unit.fence,
        "counts": None if counts is None else {name: getattr(counts, name) for name in type(counts).__slots__},
    }


def _lease_document(lease: LeaseView, now: float) -> dict[str, Any]:
    return {
        "holder": lease.holder,
        "fence": lease.fence,
        "lease_id": lease.lease_id,
        "acquired_at": instant(lease.acquired_at),
        "ttl_seconds": lease.ttl_seconds,
        "in_log": lease.in_log,
        "in_store": lease.in_store,
        **_ending(lease, now),
    }


def _ending(lease: LeaseView, now: float) -> dict[str, Any]:
    return {
        "expires_at": None if lease.expires_at is None else instant(int(lease.expires_at * 1_000_000)),
        "remaining_seconds": lease.remaining_seconds(now),
        "expired": lease.expired(now),
    }


def write_status(view: ScopeView, now: float) -> None:
    """`journal status` for people."""
    write_line(f"scope {view.scope}", style="bold")
    facts = (
        ("head", str(view.head)),
        ("position", f"{NONE if view.position is None else view.position}, sequence {view.sequence}"),
        ("events", f"{view.admitted} admitted, {view.voids} void"),
        ("lease", _lease_text(view.lease, now)),
        ("plan", _plan_text(view.plan)),
        ("applied", str(len(view.ledger))),
    )
    for name, value in facts:
        write_line(f"  {name:<9} {value}")
    if view.away:
        write_line(f"  {'lives':<9} {_whereabouts_text(view.moved)}", style="yellow")
    if view.plan is not None:
        write_line()
        _write_plan(view.plan)
    if view.ledger:
        write_line()
        rows = [
            (row.sequence, row.migration, _seconds(row.recorded_at), "imported" if row.imported else None, row.digest)
            for row in view.ledger
        ]
        write_table(("SEQ", "APPLIED", "AT (UTC)", "NOTE", "DIGEST"), rows)


def _lease_text(lease: LeaseView | None, now: float) -> str:
    if lease is None:
        return "free"
    who = f"{lease.holder}, fence {lease.fence}"
    remaining = lease.remaining_seconds(now)
    if remaining is None:
        return f"{who}, not in the lease store: the scope can be taken"
    if lease.expired(now):
        return f"{who}, expired: the scope can be taken"
    note = "" if lease.in_log else " (not yet in the log)"
    return f"{who}, for another {duration(remaining)} unless renewed{note}"


def _whereabouts_text(moved: MoveView | None) -> str:
    if moved is None:
        return "elsewhere: this is a copy, nobody writes to it"
    return printable(
        f"elsewhere: moved to {moved.destination} at {_seconds(moved.recorded_at)} by {moved.operator}: {moved.reason}; "
        "nothing that is written here counts"
    )


def _plan_text(plan: PlanView | None) -> str:
    if plan is None:
        return "none open"
    verb = "apply" if plan.direction.value == "forward" else "roll back"
    doubt = sum(unit.in_doubt for unit in plan.units)
    text = f"open since {_seconds(plan.recorded_at)}: {verb}, {plan.done} of {len(plan.migrations)} done"
    return text + (f", {doubt} in doubt" if doubt else "")


def _write_plan(plan: PlanView) -> None:
    rows: list[tuple[object, ...]] = []
    for migration in plan.migrations:
        state = "done" if migration.done else "begun" if migration.units else "to do"
        rows.append((migration.migration, None, state, None, None))
        rows.extend(
            (
                "",
                f"{unit.unit.value.replace('_', ' ')} {unit.ordinal}",
                f"{unit.state.value}{' (in doubt)' if unit.in_doubt else ''}",
                str(unit.fence),
                None if unit.counts is None else describe_counts(unit.counts),
            )
            for unit in migration.units
        )
    write_table(("MIGRATION", "UNIT", "STATE", "FENCE", "PROGRESS"), rows)


def _seconds(micros: int | None) -> str | None:
    text = instant(micros)
    return None if text is None else f"{text[:10]} {text[11:19]}"


# --- history ----------------------------------------------------------------------------------------------------------

_COLUMNS: Final = (
    # title, width, to the right; wider cells push the rest of their line, as a stream cannot know them all
    ("POSITION", 8, True),
    ("SEQ", 5, True),
    ("RECORDED (UTC)", 19, False),
    ("FENCE", 5, True),
    ("HOLDER", 14, False),
    ("EVENT", 18, False),
    ("VERDICT", 8, False),
    ("WHAT", 0, False),
)
_TITLES, _WIDTHS, _RIGHT = zip(*_COLUMNS, strict=True)


def event_document(row: TimelineRow) -> dict[str, Any]:
    """One line of `journal history --json`."""
    return {
        "position": row.position,
        "sequence": row.sequence,
        "recorded_at": instant(row.recorded_at),
        "verdict": "admitted" if row.admitted else "void",
        "reason": row.reason,
        "explanation": None if row.reason is None else _explain(row.reason),
        "fence": row.fence,
        "holder": row.holder,
        "lease_id": row.lease_id,
        "type": row.type,
        "migration": row.migration,
        "kind": row.kind,
        "summary": row.summary,
        "event_id": row.event_id,
        "hash": row.hash,
    }


def write_event(row: TimelineRow, *, first: bool) -> None:
    """One line of `journal history` for people; the first brings the titles."""
    if first:
        write_line(align(_TITLES, _WIDTHS, _RIGHT), style="bold")
    what = row.summary if row.reason is None else f"{row.summary} | {row.reason}: {_explain(row.reason)}"
    cells = (
        row.position,
        row.sequence,
        _seconds(row.recorded_at),
        row.fence,
        row.holder,
        row.type,
        "admitted" if row.admitted else "void",
        what,
    )
    texts = [NONE if cell is None else printable(str(cell)) for cell in cells]
    write_line(align(texts, _WIDTHS, _RIGHT), style=None if row.admitted else "red")


def _explain(reason: Code) -> str:
    return EXPLANATIONS.get(reason, reason.value)


# --- leases -----------------------------------------------------------------------------------------------------------


def lease_row(scope: Scope, lease: LeaseView, now: float) -> dict[str, Any]:
    """One lease of `journal leases --json`."""
    return {
        "scope": scope,
        "holder": lease.holder,
        "fence": lease.fence,
        "lease_id": lease.lease_id,
        **_ending(lease, now),
    }


def write_leases(leases: Sequence[tuple[Scope, LeaseView]], now: float) -> None:
    """`journal leases` for people."""
    if not leases:
        write_line("no scope is leased")
        return
    rows = [(scope, lease.holder, int(lease.fence), _remaining(lease, now)) for scope, lease in leases]
    write_table(("SCOPE", "HOLDER", "FENCE", "REMAINING"), rows)


def _remaining(lease: LeaseView, now: float) -> str:
    remaining = lease.remaining_seconds(now)
    return "expired" if not remaining else duration(remaining)


# --- verify -----------------------------------------------------------------------------------------------------------


def verification_document(result: Verification) -> dict[str, Any]:
    """`journal verify --json`."""
    return {
        "scope": result.scope,
        "ok": result.ok,
        "incarnation": result.incarnation,
        "keyed": result.keyed,
        "events": result.events,
        "admitted": result.admitted,
        "void": dict(result.voids),
        "position": result.position,
        "head": result.head,
        "head_found": result.head_found,
        "complete": result.complete,
        "findings": [
            {
                "position": finding.position,
                "code": finding.code,
                "breaks": finding.breaks,
                "what": finding.what,
                "advice": finding.advice,
            }
            for finding in result.findings
        ],
    }


def write_verification(result: Verification) -> None:
    """`journal verify` for people."""
    for finding in result.findings:
        write_line(_finding_text(finding), style="red" if finding.breaks else "yellow")
    verdict = "holds from its start" if result.ok else "IS BROKEN"
    write_line(f"scope {result.scope} {verdict}", style="bold green" if result.ok else "bold red")
    write_line(f"  events    {result.events}: {result.admitted} admitted, {sum(result.voids.values())} void")
    for reason, count in result.voids.items():
        write_line(f"            {count} void: {reason}, {_explain(reason)}")
    write_line(f"  MACs      {'checked' if result.keyed else 'none: without a key the chain alone was checked'}")
    if result.head_found is not None:
        write_line(f"  given     the head that was given is {'' if result.head_found else 'NOT '}in the chain")
    write_line(f"  head      {result.head}")


def _finding_text(finding: Finding) -> str:
    where = "" if finding.position is None else f"position {finding.position}: "
    level = "broken" if finding.breaks else "note"
    return printable(f"{level}: {where}{finding.what} [{finding.code}]; {finding.advice}")

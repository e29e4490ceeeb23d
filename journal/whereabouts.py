"""Whether a scope lives in this log: what a writer is told when it does not."""

from __future__ import annotations

from journal.errors import Code, JournalError, failure
from journal.state import ScopeState


def check_here(state: ScopeState) -> None:
    """Refuse to write to a scope that does not live in this log.

    Raises:
        FencedError: `journal_scope_moved`: it was moved to another log.
        InvalidContractError: `journal_scope_awaited`: the log holds a copy, which is not complete or only to be read.
    """
    error = absence(state)
    if error is not None:
        raise error


def absence(state: ScopeState) -> JournalError | None:
    """Why the scope is not written here; None when it lives here."""
    moved = state.moved
    if not state.away:
        return None
    if moved is not None and moved.place not in state.places:
        return failure(
            Code.SCOPE_MOVED,
            f"scope {state.scope} was moved to {moved.destination} by {moved.operator} ({moved.reason}): nothing that is "
            "written to this log counts any more. Go on with the log that it was moved to; if it has not arrived there, "
            "`journal export` here and `journal import --archive` there carry it on",
            scope=state.scope,
            destination=moved.destination,
            place=moved.place.hex(),
        )
    return failure(
        Code.SCOPE_AWAITED,
        f"scope {state.scope} does not live in this log: {_what_is_here(state)}",
        scope=state.scope,
        places=[place.hex() for place in state.places],
    )


def _what_is_here(state: ScopeState) -> str:
    names = " or ".join(place.hex() for place in state.places)
    if state.incarnation is None:
        return (
            f"it is awaited here; move it to place {names} with `journal export` where it lives, and finish with "
            "`journal import --archive`"
        )
    if state.moved is not None:
        return "it was moved here and has not arrived: finish with `journal import --archive`, the same archive again"
    if state.places:
        return "this is a copy that is not complete, or only to be read; a move is finished with `journal import --archive`"
    return "this is a copy of a part of its history, from before it was moved again"

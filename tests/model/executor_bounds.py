"""The executor's protocol in every interleaving: what may happen, what must hold, and how far it is explored.

What may happen:

* Two executors at a time, and so many runs altogether. Each takes a lease, raises the target's fence, reads the log, opens
  a plan or finds one open, and brings unit after unit to its end: looks at the witness or cursor, at the live schema,
  decides, records what was aborted, begins a transaction, appends `before_commit`, commits, records that, concludes. Each
  stops for ever between any two of these, or goes on after any time; what it had open is then rolled back, or kept.
* A lease store that may have forgotten everything whenever it is asked, and gives a fence that another has.
* A log in which an event arrives at any time, or never, also when its writer is long gone.
* A commit that succeeds, that fails for certain, or that gives no answer, whether it succeeded or not.
* A target with one writer at a time, or with several; in its bookkeeping what an earlier plan left there: a witness, and a
  cursor that is at its end. Statements outside a transaction fail before the first, between two, or give no answer.

What must hold:

* no schema unit and no batch takes effect twice;
* when `committed` counts the target has all of the unit, when `definitely_aborted` counts that attempt has not committed,
  and it never does; when the conclusion counts, or a run reports success, the target has all of the migration;
* no run says that an operator is needed, where all units leave a witness or a cursor;
* no unit that leaves one is begun again before the log says what became of its attempt before;
* whenever all executors have stopped, a fresh run that nobody disturbs brings the migration to its end, by itself.

Not modelled: leases that are given back (`tests.model.protocol` has them), several migrations in one plan, statements and
assertions that fail in a transaction (which then stops, nothing being recorded), operators, changes to the target by others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tests.model.executor_world import Step

# Parts of the executor's protocol that can be left out.
OMISSIONS: Final = {
    "target fence": "a transaction begins without checking the target's fence",
    "raise": "the target's fence is raised with the first commit, not before looking",
    "witness": "nobody looks at the witness or cursor: what is in doubt stays in doubt",
    "witness seen": "the witness or cursor is not found although it is there",
    "token": "a witness or cursor is believed whoever left it",
    "await": "the commit does not wait until before_commit is admitted",
    "aborted": "a unit is executed again without recording that its attempt before was aborted",
    "ask again": "an operator is called without asking the log who holds the lease now",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """What is explored: a migration, forward or back, and how many runs there are, at most two of them at a time.

    `several_writers`: the target takes several transactions at a time, and raising the fence waits for those that have
    checked an older one; otherwise each waits until the one before is over. `checkpoints`: an executor may report the
    progress of a backfill. `pauses_outside`: statements outside a transaction may begin long after the fence was checked.
    `leaves_out` is one of `OMISSIONS`; `judges_history`: the log must say what became of each attempt. `steps` bounds the
    length of a run, None explores all of them.
    """

    name: str
    migration: tuple[Step, ...]
    rolls_back: bool = False
    runs: int = 3
    several_writers: bool = False
    checkpoints: bool = False
    pauses_outside: bool = False
    leaves_out: str | None = None
    judges_history: bool = True
    steps: int | None = None

    @property
    def may_need_operator(self) -> bool:
        """Whether something of it leaves no witness."""
        return Step.OUTSIDE in self.migration or Step.OUTSIDE_EQUAL in self.migration


GROUP: Final = Bound("a group", (Step.DISTINCT,))
HIDDEN: Final = Bound("a group that the schema does not show", (Step.EQUAL,))
BACKFILL: Final = Bound("a backfill", (Step.BACKFILL,), checkpoints=True)
UNDONE: Final = Bound("a group and a backfill are rolled back", (Step.DISTINCT, Step.BACKFILL), rolls_back=True)


def with_several_writers(bound: Bound) -> Bound:
    """The same over a target that takes several transactions at a time."""
    return replace(bound, name=f"{bound.name}, several writers", several_writers=True)


TESTED: Final = (
    GROUP,
    HIDDEN,
    BACKFILL,
    Bound("a group outside a transaction", (Step.OUTSIDE,)),
    Bound("a group outside a transaction that the schema does not show", (Step.OUTSIDE_EQUAL,)),
    Bound("a group that changes nothing and one that the schema does not show", (Step.FORMAL, Step.EQUAL)),
    Bound("a group and a backfill", (Step.DISTINCT, Step.BACKFILL)),
    UNDONE,
    with_several_writers(HIDDEN),
    replace(with_several_writers(BACKFILL), checkpoints=False),
)

DEEP: Final = (
    *(replace(bound, name=f"{bound.name}, four runs", runs=4) for bound in TESTED),
    Bound("a group and a hidden one, then a backfill", (Step.DISTINCT, Step.EQUAL, Step.BACKFILL), checkpoints=True),
    replace(HIDDEN, name=f"{HIDDEN.name}, five runs", runs=5),
)

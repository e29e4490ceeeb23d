"""What is told of a run: once what lasts, now and then how far a long backfill is."""

from __future__ import annotations

import pytest

from journal.cli.progress import BackfillLines, Heard, recovered, shown
from journal.identities import EventId, MigrationId
from journal.ports import BackfillCursor
from journal.vocabulary import Direction, UnitKind
from projections.outcome import (
    BackfillAdvanced,
    MigrationFinished,
    MigrationStarted,
    PlanGivenUp,
    PlanStarted,
    UnitAction,
    UnitDoubted,
    UnitFinished,
    UnitPosition,
)

ID = MigrationId("main", "0002_y")
GROUP = UnitPosition(ID, UnitKind.GROUP, 0, Direction.FORWARD, 1, "migrations/0002_y.sql", 3)
BACKFILL = UnitPosition(ID, UnitKind.BACKFILL, 2, Direction.FORWARD, 2, "migrations/0002_y.sql", 8)


def batch(matched: int, rows: int = 1_000) -> BackfillAdvanced:
    return BackfillAdvanced(BACKFILL, BackfillCursor(EventId.random(), rows, matched, matched, 0, 1, done=False))


def test_a_long_backfill_has_a_line_every_five_seconds_with_rate_and_rest() -> None:
    now, lines = [100.0], list[str]()
    tell = BackfillLines(lambda: now[0], lines.append)
    tell(MigrationStarted(ID, Direction.FORWARD, 1, 1))
    for second in range(1, 12):
        now[0] = 100.0 + second
        tell(batch(50 * second))
    assert lines == [
        "main/0002_y step 2: 250 of 1000 rows, 50 rows/s, 15.0 s left\n",
        "main/0002_y step 2: 500 of 1000 rows, 50 rows/s, 10.0 s left\n",
    ]


def test_a_short_backfill_has_no_line_and_a_new_one_has_a_pace_of_its_own() -> None:
    now, lines = [0.0], list[str]()
    tell = BackfillLines(lambda: now[0], lines.append)
    tell(batch(10))
    now[0] = 4.0
    tell(UnitFinished(BACKFILL, UnitAction.EXECUTED))
    now[0] = 8.0
    tell(batch(900))
    now[0] = 10.0
    tell(batch(2_000))
    assert lines == ["main/0002_y step 2: 2000 of 2000 rows, 550 rows/s, 0.0 s left\n"]


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (UnitFinished(GROUP, UnitAction.REPAIRED), "main/0002_y step 1: had committed, its record was repaired"),
        (UnitDoubted(GROUP, committed=False), "main/0002_y step 1: had not committed, is run again"),
        (
            UnitDoubted(BACKFILL, committed=False),
            "main/0002_y step 2: had not come to its end, goes on behind its last batch",
        ),
        (UnitDoubted(GROUP, committed=True), None),
        (UnitFinished(GROUP, UnitAction.EXECUTED), None),
    ],
)
def test_a_unit_that_was_in_doubt_is_told_once(event: UnitDoubted | UnitFinished, said: str | None) -> None:
    found = recovered(event)
    assert (None if found is None else str(found)) == said


def test_what_lasts_has_a_line_each_and_is_kept_for_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    heard = Heard()
    with shown(heard, as_json=False) as observe:
        observe(PlanStarted(Direction.FORWARD, (ID,), resumed=True))
        observe(UnitFinished(GROUP, UnitAction.REPAIRED))
        observe(batch(5))
        observe(MigrationFinished(ID, Direction.FORWARD))
        observe(PlanGivenUp("nothing of it is half done"))
    assert capsys.readouterr().out.splitlines() == [
        "an open plan to apply 1 migration is carried on",
        "main/0002_y step 1: had committed, its record was repaired",
        "applied main/0002_y",
        "the open plan was given up: nothing of it is half done",
    ]
    assert (heard.finished, heard.position, len(heard.recovered)) == ([ID], BACKFILL, 1)


def test_for_a_program_nothing_is_said_on_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    heard = Heard()
    with shown(heard, as_json=True) as observe:
        observe(MigrationFinished(ID, Direction.REVERSE))
    assert capsys.readouterr() == ("", "")
    assert heard.finished == [ID]

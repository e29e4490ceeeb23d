"""A scope is carried between real logs: whole, once, and by whoever comes after one that died on the way."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest

from journal.carriage import Carriage
from journal.codec import Codec
from journal.errors import (
    Code,
    FencedError,
    ForgedError,
    IntegrityError,
    InvalidContractError,
    JournalError,
    OutcomeUnknownError,
    UnavailableError,
    failure,
)
from journal.identities import HolderId, Place, Position, Scope
from journal.journal import Journal
from journal.lease import Lease
from journal.leases.sqlite import SQLiteLeases
from journal.log.kafka import KafkaLog
from journal.log.sqlite import SQLiteLog
from journal.ports import Log, Outgoing
from journal.records import BackfillCheckpointRecord
from journal.state import ScopeState
from journal.vocabulary import BackfillCounts, GroupEventKind
from projections.archive import Archive, Heading
from projections.audit import verify
from projections.carry import Brought, Manner, bring, move, pack
from projections.ledger import timeline
from projections.operations import Attestation
from tests.factories import SCOPE, Writer, backfill_record, chain_of, group_record, manifest_of, plan_record
from tests.faults import (
    Call,
    DeadError,
    Fault,
    FaultyLog,
    Fuse,
    StoppingLog,
    lose_answer,
    lose_call,
    passed_on,
    refuse,
    twice,
)
from tests.services import KafkaService
from tests.unit.test_authentication import FIRST, keyed

ANN, BOB, MOVER = HolderId("ann"), HolderId("bob"), HolderId("mover")
SAID = Attestation("Ada", "to the cluster")


class Open(Protocol):
    """Opens a journal on the log of this name, each like one of another process."""

    def __call__(self, name: str, *, wrap_log: Callable[[Log], Log] = ..., codec: Codec | None = None) -> Journal: ...


@pytest.fixture(params=["sqlite", "kafka"])
async def at(request: pytest.FixtureRequest, tmp_path: Path, fresh_prefix: str) -> AsyncIterator[Open]:
    """Logs of their own by name; on Kafka all but those called old or source, so that a scope goes there and back."""
    opened: list[Journal] = []

    def log_of(name: str) -> Log:
        if request.param == "sqlite" or name.startswith(("old", "source")):
            return SQLiteLog(tmp_path / f"{name}.db", poll=timedelta(milliseconds=10))
        kafka: KafkaService = request.getfixturevalue("kafka")
        return KafkaLog(kafka.servers, prefix=f"{fresh_prefix}-{name}", replication=kafka.replication)

    def make(name: str, *, wrap_log: Callable[[Log], Log] = lambda log: log, codec: Codec | None = None) -> Journal:
        leases = SQLiteLeases(tmp_path / f"{name}-leases.db")
        opened.append(Journal(wrap_log(log_of(name)), leases, codec=codec, append_timeout=timedelta(seconds=20)))
        return opened[-1]

    yield make
    for journal in opened:
        with suppress(JournalError):
            await journal.close()


@pytest.fixture
async def old(at: Open) -> AsyncIterator[Journal]:
    """Where the scope lives: with a plan applied and another one open, with a unit in doubt."""
    journal = at("old")
    await fill(journal)
    return journal


async def fill(journal: Journal) -> None:
    await journal.create(SCOPE)
    async with journal.lease(SCOPE, ANN) as lease:
        one, two = chain_of(2)
        await journal.begin_plan(lease, plan_record(lease, [one, two]))
        await journal.record_group_event(lease, group_record(lease, one, GroupEventKind.BEFORE_COMMIT))


async def packed(journal: Journal) -> Archive:
    file = io.BytesIO()
    await pack(journal.carriage(SCOPE), file)
    return Archive(file, "the archive")


async def moved(journal: Journal, place: Place) -> Archive:
    async with journal.lease(SCOPE, MOVER) as lease:
        await move(journal, lease, place, "there", SAID)
    return await packed(journal)


async def carried(source: Journal, target: Journal) -> Brought:
    place = await target.carriage(SCOPE).await_scope()
    return await bring(target.carriage(SCOPE), await moved(source, place), Manner.ARRIVE)


async def refusal(bringing: object) -> JournalError:
    with pytest.raises(JournalError) as caught:
        await bringing  # type: ignore[misc]
    return caught.value


async def size(journal: Journal) -> int:
    carriage = journal.carriage(SCOPE)
    return sum([1 async for _ in carriage.events(ScopeState(SCOPE))]) if await carriage.exists() else 0


async def applied(journal: Journal, holder: HolderId = BOB) -> None:
    """Somebody takes the lease and goes on with the open plan."""
    async with journal.lease(SCOPE, holder) as lease:
        (one, *_) = chain_of(2)
        await journal.record_group_event(lease, group_record(lease, one, GroupEventKind.COMMITTED))


# --- there and back ---------------------------------------------------------------------------------------------------


async def test_a_scope_goes_on_in_the_other_log_where_it_was_when_it_was_moved(at: Open, old: Journal):
    new = at("new")
    brought = await carried(old, new)

    left, here = await old.state(SCOPE), await new.state(SCOPE)
    assert brought.written == left.admitted
    assert here.incarnation == left.incarnation
    assert (here.sequence, here.admitted) == (left.sequence + 1, left.admitted + 1)
    assert here.plan is not None
    assert here.open_plan() == left.open_plan()
    await applied(new)
    assert (await new.state(SCOPE)).fence == left.fence + 1


async def test_in_the_old_log_nobody_gets_a_lease_any_more_and_is_told_why(at: Open, old: Journal):
    await carried(old, at("new"))
    for journal in (old, at("old")):
        with pytest.raises(FencedError, match="was moved to there by Ada") as caught:
            await journal.acquire(SCOPE, BOB)
        assert caught.value.code is Code.SCOPE_MOVED
    assert await old.lease_in_store(SCOPE) is None


async def test_a_scope_comes_back_with_all_that_happened_elsewhere(at: Open, old: Journal):
    new = at("new")
    await carried(old, new)
    await applied(new)

    brought = await carried(new, old)

    here = await old.state(SCOPE)
    assert here.carried() == brought.state.carried()
    assert brought.found == here.admitted - brought.written - 1
    assert not here.away
    assert (await new.state(SCOPE)).away
    async with old.lease(SCOPE, ANN) as lease:
        assert lease.fence > (await new.state(SCOPE)).fence
    assert (await verify(old, SCOPE)).ok
    assert (await verify(new, SCOPE)).ok


async def test_a_scope_can_be_carried_to_and_fro_for_ever(at: Open, old: Journal):
    logs = [old, at("new"), at("third")]
    for turn in range(6):
        await carried(logs[turn % 3], logs[(turn + 1) % 3])
        lived = [not (await log.state(SCOPE)).away for log in logs[: max(2, min(3, turn + 2))]]
        assert lived.count(True) == 1
    for log in logs:
        assert (await verify(log, SCOPE)).ok


async def test_the_state_in_the_new_log_is_that_of_the_old_one_before_it_arrives(at: Open, old: Journal):
    new = at("new")
    place = await new.carriage(SCOPE).await_scope()
    archive = await moved(old, place)
    left = (await old.state(SCOPE)).carried()
    await bring(new.carriage(SCOPE), archive, Manner.ARRIVE)

    states = [ScopeState(SCOPE)]
    async with aclosing(new.replay(SCOPE, state=states[0])) as events:
        async for _ in events:
            states.append(states[0].copy())
    assert left in [state.carried() for state in states[1:]]


async def filled_with_many(journal: Journal) -> None:
    await journal.create(SCOPE)
    manifest = manifest_of(1, backfill=True)
    async with journal.lease(SCOPE, ANN) as lease:
        await journal.begin_plan(lease, plan_record(lease, [manifest]))
        await journal.record_backfill_event(lease, backfill_record(lease, manifest, GroupEventKind.BEFORE_COMMIT))
        await journal.record_all(lease, [checkpoint(lease, number) for number in range(1, 2_400)])


async def test_a_history_that_needs_many_appends_arrives_whole(at: Open):
    old, new = at("old"), at("new")
    await filled_with_many(old)
    told: list[tuple[int, int]] = []
    place = await new.carriage(SCOPE).await_scope()
    archive = await moved(old, place)
    brought = await bring(new.carriage(SCOPE), archive, Manner.ARRIVE, tell=lambda *pair: told.append(pair))
    assert brought.written == archive.heading.counting > 2_400
    assert told == sorted(told)
    assert told[-1] == (brought.written, brought.written)


def checkpoint(lease: Lease, number: int) -> BackfillCheckpointRecord:
    counts = BackfillCounts(number, number, 0, number)
    return BackfillCheckpointRecord.new_apply(lease, manifest_of(1, backfill=True), 1, counts)


async def test_an_authenticated_scope_keeps_its_macs(at: Open):
    old, new = at("old", codec=keyed(FIRST)), at("new", codec=keyed(FIRST))
    await fill(old)
    await carried(old, new)
    assert (await verify(new, SCOPE)).keyed
    await applied(new)
    with pytest.raises(ForgedError):
        await at("new").state(SCOPE)


# --- while the last writer still runs ---------------------------------------------------------------------------------


async def test_a_move_waits_for_the_last_writer_and_holds_all_that_it_wrote(at: Open, old: Journal):
    new, mover = at("new"), at("old")
    place = await new.carriage(SCOPE).await_scope()
    writer = await old.acquire(SCOPE, ANN)
    waiting = asyncio.create_task(moved(mover, place))
    (one, two) = chain_of(2)
    await old.record_group_event(writer, group_record(writer, one, GroupEventKind.COMMITTED))
    assert not waiting.done()
    await old.release(writer)

    await bring(new.carriage(SCOPE), await waiting, Manner.ARRIVE)

    async with new.lease(SCOPE, BOB) as lease:
        await new.record_group_event(lease, group_record(lease, two, GroupEventKind.BEFORE_COMMIT))
    plan = (await new.state(SCOPE)).open_plan()
    assert plan is not None
    assert [entry.record.kind.value for entry in plan.events] == ["before_commit", "committed", "before_commit"]


async def test_what_the_last_writer_sends_after_it_was_overtaken_is_nowhere_in_the_history(at: Open, old: Journal):
    new, mover = at("new"), at("old")
    place = await new.carriage(SCOPE).await_scope()
    writer = await old.acquire(SCOPE, ANN)
    await old._lease_store.release(writer.grant)  # it ran out, and the writer has not noticed
    archive = await moved(mover, place)
    (one, *_) = chain_of(2)
    with pytest.raises(FencedError):
        await old.record_group_event(writer, group_record(writer, one, GroupEventKind.COMMITTED))

    await bring(new.carriage(SCOPE), archive, Manner.ARRIVE)

    assert (await packed(new)).heading.counting == archive.heading.counting + 1
    assert (await new.state(SCOPE)).voids == 0


async def test_void_events_behind_a_move_are_kept_for_auditors_and_do_not_stand_in_the_way_back(at: Open, old: Journal):
    new = at("new")
    await carried(old, new)
    late = Writer()
    late.acquire()
    await old.carriage(SCOPE).append([Outgoing(late.data[1]), Outgoing(b"rubbish")])
    await applied(new)

    await carried(new, old)

    reasons = [row.reason async for row in timeline(old, SCOPE) if row.reason is not None]
    assert reasons == [Code.FOREIGN_SCOPE, Code.UNDECODABLE]
    assert (await old.state(SCOPE)).carried() != (await new.state(SCOPE)).carried(), "it arrived here"
    assert not (await old.state(SCOPE)).away


async def test_a_move_whose_answer_is_lost_is_found_by_the_next_look(at: Open, old: Journal):
    place = await at("new").carriage(SCOPE).await_scope()
    journal = at("old", wrap_log=Losing)
    lease = await journal.acquire(SCOPE, MOVER)
    losing: Losing = journal._log  # type: ignore[assignment]
    losing.on_append.append(losing.lose)
    with pytest.raises(OutcomeUnknownError):
        async with asyncio.timeout(60):
            await move(journal, lease, place, "there", SAID)
    state = await old.state(SCOPE)
    assert state.moved is not None
    assert state.moved.place == place


class Losing(FaultyLog):
    """A log whose reads of the newest events are lost as long as it stalls."""

    async def lose(self, call: Call) -> None:
        await call()
        self.stall()
        raise OutcomeUnknownError("the acknowledgement was lost")

    async def end(self, scope: Scope) -> Position | None:
        if not self._flowing.is_set():
            raise failure(Code.STORAGE_BUSY, "it does not answer")
        return await super().end(scope)


async def test_a_scope_is_not_moved_to_the_log_where_it_is(at: Open, old: Journal):
    new = at("new")
    await carried(old, new)
    place = await old.carriage(SCOPE).await_scope()
    await bring(old.carriage(SCOPE), await moved(new, place), Manner.ARRIVE)
    with pytest.raises(InvalidContractError) as caught:
        await old.carriage(SCOPE).await_scope()
    assert caught.value.code is Code.NOT_MOVED


# --- cut off, again, and at once --------------------------------------------------------------------------------------


async def test_an_import_that_dies_anywhere_leaves_a_scope_that_nobody_writes_and_the_next_one_finishes_it(at: Open):
    old = at("old")
    await fill(old)
    number, died = 0, True
    while died:
        for after in (False, True):
            name = f"new-{number}-{after}"
            place = await at(name).carriage(SCOPE).await_scope()
            archive = await moved_copy(at, old, place, name)
            fuse = Fuse(number, after=after)
            died = await dies(at(name, wrap_log=lambda log, fuse=fuse: StoppingLog(log, fuse)), archive)
            await finished_by_the_next(at, name, archive)
        number += 1
    assert number > 4


async def moved_copy(at: Open, old: Journal, place: Place, name: str) -> Archive:
    """The archive of a scope of its own, which is moved to this place."""
    source = at(f"source-of-{name}")
    await fill(source)
    return await moved(source, place)


async def dies(journal: Journal, archive: Archive) -> bool:
    """Whether the import died on the way."""
    try:
        await bring(journal.carriage(SCOPE), archive, Manner.ARRIVE)
    except DeadError:
        return True
    return False


async def finished_by_the_next(at: Open, name: str, archive: Archive) -> None:
    before = await at(name).carriage(SCOPE).state()
    if before.away:
        error = await refusal(at(name).acquire(SCOPE, BOB))
        assert error.code is Code.SCOPE_AWAITED
    await bring(at(name).carriage(SCOPE), archive, Manner.ARRIVE)
    after = await at(name).state(SCOPE)
    assert (after.away, after.admitted, after.places) == (False, archive.heading.counting + 1, ())


async def test_an_archive_that_is_imported_twice_is_there_once(at: Open, old: Journal):
    new = at("new")
    place = await new.carriage(SCOPE).await_scope()
    archive = await moved(old, place)
    await bring(new.carriage(SCOPE), archive, Manner.ARRIVE)
    events = await size(new)
    again = await bring(new.carriage(SCOPE), archive, Manner.ARRIVE)
    assert (again.written, again.found) == (0, archive.heading.counting)
    await applied(new)
    assert (await bring(at("new").carriage(SCOPE), archive, Manner.ARRIVE)).written == 0
    assert await size(new) == events + 3


async def test_two_imports_at_once_give_one_history(at: Open, old: Journal):
    place = await at("new").carriage(SCOPE).await_scope()
    archives = [await moved(old, place), await packed(old)]
    both = [bring(at("new").carriage(SCOPE), archive, Manner.ARRIVE) for archive in archives]
    await asyncio.gather(*both)
    state = await at("new").state(SCOPE)
    assert (state.admitted, state.away) == (archives[0].heading.counting + 1, False)
    assert (await verify(at("new"), SCOPE)).ok


@pytest.mark.parametrize(
    "faults",
    [
        [lose_answer()],
        [lose_call()],
        [twice()],
        [refuse(UnavailableError(Code.STORAGE_BUSY, "busy"))],
        [lose_call(), lose_answer(), refuse(UnavailableError(Code.STORAGE_BUSY, "busy"))],
    ],
)
async def test_an_import_gets_past_what_a_log_does_to_its_appends(at: Open, old: Journal, faults: list):
    new = at("new", wrap_log=FaultyLog)
    place = await new.carriage(SCOPE).await_scope()
    archive = await moved(old, place)
    new._log.on_append += faults  # type: ignore[attr-defined]
    await bring(new.carriage(SCOPE), archive, Manner.ARRIVE)
    state = await new.state(SCOPE)
    assert (state.admitted, state.away) == (archive.heading.counting + 1, False)


class Overtaking(FaultyLog):
    """A log whose second append is not there before the third."""

    def __init__(self, inner: Log) -> None:
        super().__init__(inner)
        self._calls = 0
        self._third = asyncio.Event()

    async def append(self, scope: Scope, events: Sequence[Outgoing]) -> None:
        self._calls += 1
        number = self._calls
        if number == 2:
            await self._third.wait()
        await self.inner.append(scope, events)
        if number == 3:
            self._third.set()


async def test_an_import_whose_appends_overtake_each_other_sends_again_what_did_not_count(at: Open):
    old, new = at("old"), at("new", wrap_log=Overtaking)
    await filled_with_many(old)
    place = await new.carriage(SCOPE).await_scope()
    archive = await moved(old, place)
    await bring(new.carriage(SCOPE), archive, Manner.ARRIVE)
    state = await new.state(SCOPE)
    assert (state.admitted, state.away) == (archive.heading.counting + 1, False)
    assert state.voids > 0
    assert (await verify(new, SCOPE)).ok


@pytest.mark.parametrize("fault", [lose_call(), refuse(UnavailableError(Code.STORAGE_BUSY, "busy"))])
async def test_an_arrival_that_the_log_does_not_take_is_made_up_for_by_the_next_import(
    at: Open, old: Journal, fault: Fault
):
    new = at("new", wrap_log=FaultyLog)
    place = await new.carriage(SCOPE).await_scope()
    archive = await moved(old, place)
    new._log.on_append += [passed_on, *[fault] * 5]  # type: ignore[attr-defined]
    error = await refusal(bring(new.carriage(SCOPE), archive, Manner.ARRIVE))
    assert error.code in (Code.OUTCOME_UNKNOWN, Code.STORAGE_BUSY)
    assert (await refusal(new.acquire(SCOPE, BOB))).code is Code.SCOPE_AWAITED
    assert (await bring(new.carriage(SCOPE), archive, Manner.ARRIVE)).written == 0
    assert not (await new.state(SCOPE)).away


async def test_an_export_can_be_repeated_and_gives_the_same_archive(at: Open, old: Journal):
    place = await at("new").carriage(SCOPE).await_scope()
    first, second = await moved(old, place), await packed(at("old"))
    assert list(first.events()) == list(second.events())
    assert first.heading == second.heading


# --- what is refused, and that nothing is written ---------------------------------------------------------------------


async def refused(journal: Journal, archive: Archive, manner: Manner = Manner.ARRIVE) -> JournalError:
    before = await size(journal)
    error = await refusal(bring(journal.carriage(SCOPE), archive, manner))
    assert await size(journal) == before
    return error


async def test_an_archive_of_a_move_counts_at_its_place_only(at: Open, old: Journal):
    place = await at("new").carriage(SCOPE).await_scope()
    await at("other").carriage(SCOPE).await_scope()
    archive = await moved(old, place)
    error = await refused(at("other"), archive)
    assert error.code is Code.FOREIGN_ARCHIVE
    assert str(place) in error.message
    assert "not that place" in error.message


async def test_a_log_that_was_not_prepared_is_no_place(at: Open, old: Journal):
    place = await at("new").carriage(SCOPE).await_scope()
    error = await refused(at("other"), await moved(old, place))
    assert error.code is Code.FOREIGN_ARCHIVE
    assert await at("other").scopes() == []


async def test_a_copy_is_not_imported_as_a_move(at: Open, old: Journal):
    await at("new").carriage(SCOPE).await_scope()
    error = await refused(at("new"), await packed(old))
    assert error.code is Code.FOREIGN_ARCHIVE
    assert "lives on where it was exported" in error.message


@pytest.mark.parametrize("manner", Manner)
async def test_a_scope_of_the_same_name_and_another_incarnation_is_left_alone(at: Open, old: Journal, manner: Manner):
    await at("new").create(SCOPE)
    error = await refused(at("new"), await packed(old), manner)
    assert error.code is Code.FOREIGN_ARCHIVE
    assert "another scope of that name" in error.message


async def test_a_log_where_the_scope_lives_on_behind_the_archive_has_all_of_it(at: Open, old: Journal):
    archive = await packed(old)
    await applied(old)
    for manner in Manner:
        assert (await bring(old.carriage(SCOPE), archive, manner)).written == 0


async def test_histories_that_parted_are_not_mixed(at: Open, old: Journal):
    await bring(at("copy").carriage(SCOPE), await packed(old), Manner.RESTORE, SAID)
    await applied(at("copy"))
    await applied(old)
    for one, other in ((old, "copy"), (at("copy"), "old")):
        error = await refused(at(other), await packed(one))
        assert error.code is Code.FOREIGN_ARCHIVE
        assert "the histories differ" in error.message


async def test_an_older_archive_is_refused_where_a_newer_one_is_half_way(at: Open, old: Journal):
    new = at("new")
    await carried(old, new)
    older = await packed(new)
    await applied(new)
    await bring(at("copy").carriage(SCOPE), await packed(new), Manner.COPY)
    error = await refused(at("copy"), older, Manner.COPY)
    assert "it is older" in error.message


async def test_an_altered_archive_changes_nothing(at: Open, old: Journal):
    place = await at("new").carriage(SCOPE).await_scope()
    archive = await moved(old, place)
    archive._file.seek(0)
    content = bytearray(archive._file.read())
    content[len(content) // 2] ^= 1
    error = await refused(at("new"), Archive(io.BytesIO(content), "altered"))
    assert isinstance(error, IntegrityError)
    assert error.details["line"] > 1


async def test_an_archive_for_another_scope_is_refused(at: Open, old: Journal):
    carriage: Carriage = at("new").carriage(Scope("another"))
    error = await refusal(bring(carriage, await packed(old), Manner.COPY))
    assert error.code is Code.FOREIGN_ARCHIVE


async def test_a_log_with_foreign_bytes_awaits_nothing(at: Open):
    log = at("new")._log
    await log.create(SCOPE)
    await log.append(SCOPE, [Outgoing(b"rubbish")])
    error = await refusal(at("new").carriage(SCOPE).await_scope())
    assert error.code is Code.NO_GENESIS


async def test_a_log_that_awaits_its_scope_has_none_yet(at: Open, old: Journal):
    new = at("new")
    place = await new.carriage(SCOPE).await_scope()
    assert await at("new").carriage(SCOPE).await_scope() == place
    for doing in (new.create(SCOPE), new.acquire(SCOPE, ANN), new.state(SCOPE)):
        error = await refusal(doing)
        assert error.code is Code.SCOPE_AWAITED
        assert str(place) in error.message


async def test_nothing_is_packed_of_a_log_that_awaits_its_scope(at: Open):
    await at("new").carriage(SCOPE).await_scope()
    assert (await refusal(packed(at("new")))).code is Code.NO_GENESIS


# --- copies and restorations ------------------------------------------------------------------------------------------


async def test_a_copy_is_read_and_verified_and_never_written(at: Open, old: Journal):
    copy = at("copy")
    await bring(copy.carriage(SCOPE), await packed(old), Manner.COPY)
    await applied(old)
    await bring(copy.carriage(SCOPE), await packed(old), Manner.COPY)
    assert (await copy.state(SCOPE)).carried() == (await old.state(SCOPE)).carried()
    assert (await verify(copy, SCOPE)).ok
    assert (await refusal(copy.acquire(SCOPE, ANN))).code is Code.SCOPE_AWAITED
    await applied_again(old)


async def applied_again(journal: Journal) -> None:
    async with journal.lease(SCOPE, BOB) as lease:
        assert lease.fence


async def test_a_scope_whose_log_is_lost_is_restored_from_a_copy(at: Open, old: Journal):
    archive = await packed(old)
    await bring(at("copy").carriage(SCOPE), archive, Manner.RESTORE, SAID)
    await bring(at("copy").carriage(SCOPE), archive, Manner.RESTORE, SAID)
    await applied(at("copy"))
    rows = [row.summary async for row in timeline(at("copy"), SCOPE) if row.type == "ScopeRestored"]
    assert len(rows) == 1
    assert "Ada: to the cluster" in rows[0]


async def test_a_move_to_a_place_that_is_lost_is_taken_back(at: Open, old: Journal):
    place = await at("lost").carriage(SCOPE).await_scope()
    await moved(old, place)
    assert (await refusal(old.acquire(SCOPE, ANN))).code is Code.SCOPE_MOVED
    for _ in range(2):
        await at("old").carriage(SCOPE).restore(operator="Ada", reason="the cluster is gone")
    await applied(at("old"))


async def test_nothing_is_restored_where_nothing_is(at: Open):
    await at("new").carriage(SCOPE).await_scope()
    error = await refusal(at("new").carriage(SCOPE).restore(operator="Ada", reason="why not"))
    assert error.code is Code.NO_GENESIS


async def test_the_heading_of_an_archive_is_that_of_the_log(at: Open, old: Journal):
    assert (await packed(old)).heading == Heading.of(await old.state(SCOPE), await size(old))

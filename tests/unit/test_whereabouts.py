"""Where a scope lives: moves, places, arrivals and restorations, as the fold decides them in any log."""

from __future__ import annotations

import pytest
from hypothesis import given

from journal.admission import Admitted, ScopeState, Void, empty_state, fold
from journal.errors import Code, FencedError, ForgedError, InvalidContractError, JournalError
from journal.events import NO_LEASE, NO_PARENT, Event, EventType
from journal.identities import LeaseId, Place, Scope
from journal.records import (
    LeaseAcquiredRecord,
    LeaseReleasedRecord,
    MigrationLease,
    Record,
    ScopeArrivedRecord,
    ScopeAwaitedRecord,
    ScopeCreatedRecord,
    ScopeMovedRecord,
    ScopeRestoredRecord,
)
from journal.vocabulary import GroupEventKind
from journal.whereabouts import absence, check_here
from tests.factories import SCOPE, Writer, altered, chain_of, group_record, lease_of, plan_record
from tests.stories import plots, tell
from tests.strategies import DETERMINISTIC
from tests.unit.test_authentication import FIRST, SECOND, keyed

HERE, THERE, ELSEWHERE = Place(b"h" * 16), Place(b"t" * 16), Place(b"e" * 16)
SAID = {"operator": "Ada", "reason": "to the cluster"}


class Scene(Writer):
    """A log with one plan applied, and what can be said of where its scope lives."""

    def __init__(self) -> None:
        super().__init__()
        self.lease = self.acquire("ann")
        self.apply(self.lease, chain_of(1))

    def move(self, place: Place = THERE, lease: MigrationLease | None = None) -> None:
        lease = lease or self.lease
        assert self.write(moved(lease, place), lease) == Admitted(self.state.sequence)

    def arrive(self, place: Place = THERE) -> Admitted | Void:
        assert self.state.moved is not None
        lease_id, fence = self.state.moved.lease_id, self.state.moved.fence
        return self.write(ScopeArrivedRecord.new(place), lease_id=lease_id, fence=fence)

    def awaited(self, place: Place = HERE) -> Admitted | Void:
        return self.write(ScopeAwaitedRecord.new(place), lease_id=NO_LEASE, fence=0)

    def restore(self, place: Place = HERE, *, fence: int | None = None) -> Admitted | Void:
        fence = self.state.fence + 1 if fence is None else fence
        return self.write(ScopeRestoredRecord.new(place, **SAID), lease_id=LeaseId(b"r" * 16), fence=fence)

    def chain(self) -> list[bytes]:
        """What would be carried to another log."""
        events = zip(self.data, self.read(), self.verdicts, strict=True)
        return [
            data
            for data, event, verdict in events
            if isinstance(verdict, Admitted) and isinstance(event, Event) and event.type is not EventType.SCOPE_AWAITED
        ]


class Copy(Writer):
    """A log that awaits a scope under some places and gets events of its history."""

    def __init__(self, *places: Place) -> None:
        super().__init__()
        self.state = empty_state(SCOPE)
        self.data, self.macs, self.verdicts = [], [], []
        for place in places:
            self.awaited(place)

    def awaited(self, place: Place, incarnation: bytes = bytes(16)) -> Admitted | Void:
        record = ScopeAwaitedRecord.new(place)
        return self.append(self.encode(record, lease_id=NO_LEASE, fence=0, parent=NO_PARENT, incarnation=incarnation))

    def take(self, chain: list[bytes]) -> None:
        for data in chain:
            assert isinstance(self.append(data), Admitted)


def moved(lease: MigrationLease, place: Place = THERE, **changes: object) -> ScopeMovedRecord:
    return altered(ScopeMovedRecord.new(lease, place, destination="the cluster", **SAID), **changes)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def code_of(error: JournalError | None) -> Code | None:
    return None if error is None else error.code


# --- moving -----------------------------------------------------------------------------------------------------------


def test_a_scope_lives_where_it_was_created(scene: Scene):
    check_here(scene.state)
    assert (scene.state.away, scene.state.moved, scene.state.places) == (False, None, ())


def test_a_move_is_a_record_of_the_history_and_ends_the_lease(scene: Scene):
    before = scene.state.sequence
    scene.move()
    assert scene.state.sequence == before + 1
    assert (scene.state.lease, scene.state.lease_id) == (None, None)


def everything(lease: MigrationLease, fence: int) -> list[tuple[Record, bytes, int]]:
    """What anybody might write behind a move: record, lease id and fence."""
    ours = (lease.lease_id, lease.fence)
    return [
        (LeaseAcquiredRecord.new(lease.holder, 1), LeaseId(b"n" * 16), fence + 1),
        (LeaseAcquiredRecord.new(lease.holder, 1), LeaseId(b"n" * 16), fence),
        (LeaseReleasedRecord.new(lease.holder), *ours),
        (plan_record(lease, chain_of(2)[1:], chain_of(1)), *ours),
        (group_record(lease, chain_of(1)[0], GroupEventKind.BEFORE_COMMIT), *ours),
        (moved(lease, ELSEWHERE), *ours),
        (plan_record(lease, chain_of(2)[1:], chain_of(1)), LeaseId(b"n" * 16), fence + 1),
        (ScopeArrivedRecord.new(THERE), LeaseId(b"n" * 16), fence),
        (ScopeArrivedRecord.new(THERE), lease.lease_id, fence + 1),
    ]


@pytest.mark.parametrize("number", range(9))
def test_behind_a_move_nothing_counts(scene: Scene, number: int):
    scene.move()
    record, lease_id, fence = everything(scene.lease, scene.lease.fence)[number]
    reason = Code.FENCE_NOT_MONOTONIC if number == 1 else Code.SCOPE_MOVED
    before = scene.state.carried()
    assert scene.write(record, lease_id=lease_id, fence=fence) == Void(reason)
    assert scene.state.carried() == before


def test_a_late_event_of_the_last_writer_is_void_by_its_fence_before_a_move_and_by_its_parent_behind_it(scene: Scene):
    last = scene.lease
    late = plan_record(last, chain_of(2)[1:], chain_of(1))
    early = scene.encode(late, lease_id=last.lease_id, fence=last.fence)
    mover = scene.acquire("mover")
    assert scene.write(late, last) == Void(Code.STALE_FENCE)
    scene.move(lease=mover)
    assert scene.append(early) == Void(Code.STALE_PARENT)
    assert scene.write(late, last) == Void(Code.SCOPE_MOVED)


def test_an_event_that_came_before_the_move_makes_the_move_void(scene: Scene):
    mover = scene.acquire("mover")
    late = scene.encode(moved(mover), lease_id=mover.lease_id, fence=mover.fence)
    scene.acquire("next")
    assert scene.append(late) == Void(Code.STALE_PARENT)
    assert scene.write(moved(mover), mover) == Void(Code.STALE_FENCE)
    check_here(scene.state)


@pytest.mark.parametrize("changes", [{"destination": ""}, {"operator": "\n"}, {"reason": "r" * 4097}])
def test_a_move_says_where_who_and_why(scene: Scene, changes: dict[str, str]):
    assert scene.write(moved(scene.lease, **changes), scene.lease) == Void(Code.INVALID_TEXT)
    with pytest.raises(InvalidContractError) as caught:
        ScopeMovedRecord.new(scene.lease, THERE, **({"destination": "there", **SAID} | changes))
    assert caught.value.code is Code.INVALID_TEXT


def test_a_scope_moves_with_its_open_plan_and_a_unit_in_doubt(scene: Scene):
    scene.write(plan_record(scene.lease, chain_of(2)[1:], chain_of(1)), scene.lease)
    scene.write(group_record(scene.lease, chain_of(2)[1], GroupEventKind.BEFORE_COMMIT), scene.lease)
    scene.move()
    copy = Copy(THERE)
    copy.take(scene.chain())
    assert copy.state.carried() == scene.state.carried()
    assert copy.state.plan is not None
    assert len(copy.state.plan.units) == 1


def test_the_writer_of_a_moved_scope_is_told_where_it_went(scene: Scene):
    scene.move()
    with pytest.raises(FencedError, match="was moved to the cluster by Ada") as caught:
        check_here(scene.state)
    assert caught.value.code is Code.SCOPE_MOVED
    assert caught.value.details["place"] == str(THERE)


# --- arriving ---------------------------------------------------------------------------------------------------------


def test_a_scope_arrives_at_the_place_that_the_move_names_and_goes_on_there(scene: Scene):
    scene.move()
    copy = Copy(THERE)
    copy.take(scene.chain())
    assert code_of(absence(copy.state)) is Code.SCOPE_AWAITED
    before = copy.state.carried()
    assert before == scene.state.carried()

    copy.take([scene.encode(ScopeArrivedRecord.new(THERE), lease_id=scene.lease.lease_id, fence=scene.lease.fence)])

    check_here(copy.state)
    assert copy.state.places == ()
    lease = copy.acquire("bob")
    copy.apply(lease, chain_of(2)[1:], chain_of(1))
    assert list(copy.state.active) == [str(manifest.id) for manifest in chain_of(2)]


def test_in_a_log_that_is_not_the_place_an_arrival_is_history_and_nobody_lives_there(scene: Scene):
    scene.move()
    assert scene.arrive() == Admitted(scene.state.sequence)
    for places in ((), (ELSEWHERE,), (HERE, ELSEWHERE)):
        copy = Copy(*places) if places else scene
        if places:
            copy.take(scene.chain())
        assert copy.state.away
        assert code_of(absence(copy.state)) is Code.SCOPE_AWAITED
        assert copy.state.carried() == scene.state.carried()


def test_an_arrival_names_the_place_of_the_move(scene: Scene):
    scene.move()
    assert scene.arrive(ELSEWHERE) == Void(Code.NOT_MOVED)


def test_nothing_arrives_that_was_not_moved(scene: Scene):
    assert scene.write(ScopeArrivedRecord.new(THERE), scene.lease) == Void(Code.NOT_MOVED)


def test_of_two_arrivals_one_counts(scene: Scene):
    scene.move()
    copy = Copy(THERE)
    copy.take(scene.chain())
    moved_by = scene.lease
    first, second = (
        copy.encode(ScopeArrivedRecord.new(THERE), lease_id=moved_by.lease_id, fence=moved_by.fence, recorded_at=number)
        for number in range(2)
    )
    assert copy.append(first) == Admitted(copy.state.sequence)
    assert copy.append(second) == Void(Code.STALE_PARENT)
    check_here(copy.state)


def test_the_lease_of_the_move_is_over_when_the_scope_arrived(scene: Scene):
    scene.move()
    copy = Copy(THERE)
    copy.take([*scene.chain()])
    lease = scene.lease
    copy.take([copy.encode(ScopeArrivedRecord.new(THERE), lease_id=lease.lease_id, fence=lease.fence)])
    assert copy.write(plan_record(lease, chain_of(2)[1:], chain_of(1)), lease) == Void(Code.STALE_FENCE)
    again = lease_of("ann", lease.fence, lease_id=LeaseId(b"n" * 16))
    assert copy.write(LeaseAcquiredRecord.new(again.holder, 1), again) == Void(Code.FENCE_NOT_MONOTONIC)


def test_a_part_of_a_history_is_known_to_be_one_wherever_it_was_cut_off(scene: Scene):
    scene.move()
    chain = scene.chain()
    for length in range(len(chain) + 1):
        copy = Copy(THERE)
        copy.take(chain[:length])
        assert code_of(absence(copy.state)) is Code.SCOPE_AWAITED


def test_a_scope_comes_back_to_its_first_log(scene: Scene):
    scene.move()
    late = scene.encode(LeaseReleasedRecord.new(scene.lease.holder), lease_id=scene.lease.lease_id, fence=1)
    assert scene.append(late) == Void(Code.SCOPE_MOVED)
    there = Copy(THERE)
    there.take(scene.chain())
    mover = scene.lease
    there.take([there.encode(ScopeArrivedRecord.new(THERE), lease_id=mover.lease_id, fence=mover.fence)])
    lease = there.acquire("bob")
    there.apply(lease, chain_of(2)[1:], chain_of(1))
    assert scene.awaited(HERE) == Admitted(None)
    there.write(moved(lease, HERE), lease)
    whole = [data for data in there.data[1:] if data not in scene.data]

    for data in whole:
        assert isinstance(scene.append(data), Admitted)
        assert scene.state.away
    assert scene.state.carried() == there.state.carried()
    assert code_of(absence(there.state)) is Code.SCOPE_MOVED
    assert code_of(absence(scene.state)) is Code.SCOPE_AWAITED

    assert scene.arrive(HERE) == Admitted(scene.state.sequence)
    check_here(scene.state)
    assert scene.acquire("cid").fence == lease.fence + 1


# --- awaiting ---------------------------------------------------------------------------------------------------------


def test_a_log_that_awaits_its_scope_has_nothing_else_yet():
    copy = Copy(HERE, THERE)
    assert copy.verdicts == [Admitted(None), Admitted(None)]
    assert copy.state.places == (HERE, THERE)
    assert (copy.state.incarnation, copy.state.admitted, copy.state.head) == (None, 0, NO_PARENT)


def test_what_awaits_a_scope_stands_beside_the_chain(scene: Scene):
    scene.move()
    before = scene.state.carried()
    assert scene.awaited() == Admitted(None)
    assert scene.awaited() == Admitted(None), "a second copy says nothing new"
    assert scene.state.places == (HERE,)
    assert scene.state.carried() == before


def test_a_log_in_which_the_scope_lives_awaits_nothing(scene: Scene):
    assert scene.awaited() == Void(Code.NOT_MOVED)
    assert scene.state.places == ()


@pytest.mark.parametrize("changes", [{"fence": 1}, {"lease_id": LeaseId(b"x" * 16)}])
def test_what_awaits_a_scope_has_no_lease(scene: Scene, changes: dict[str, object]):
    scene.move()
    header = {"lease_id": NO_LEASE, "fence": 0} | changes
    assert scene.write(ScopeAwaitedRecord.new(HERE), **header) == Void(Code.FOREIGN_SCOPE)
    copy = Copy()
    data = copy.encode(ScopeAwaitedRecord.new(HERE), **header, parent=NO_PARENT)
    assert copy.append(data) == Void(Code.FOREIGN_SCOPE)
    assert scene.state.places == copy.state.places == ()


def test_what_awaits_a_scope_follows_the_head(scene: Scene):
    scene.move()
    record = ScopeAwaitedRecord.new(HERE)
    other = scene.encode(record, lease_id=NO_LEASE, fence=0, parent=b"x" * 32)
    assert scene.append(other) == Void(Code.STALE_PARENT)
    copy = Copy()
    assert copy.append(other) == Void(Code.FOREIGN_SCOPE)
    assert scene.state.places == copy.state.places == ()


def test_a_late_copy_of_what_awaited_a_scope_says_nothing(scene: Scene):
    refused = scene.encode(ScopeAwaitedRecord.new(ELSEWHERE), lease_id=NO_LEASE, fence=0)
    assert scene.append(refused) == Void(Code.NOT_MOVED)
    scene.move()
    awaited = scene.encode(ScopeAwaitedRecord.new(HERE), lease_id=NO_LEASE, fence=0)
    assert scene.append(awaited) == Admitted(None)
    assert scene.restore() == Admitted(scene.state.sequence)
    lease = scene.acquire("bob")
    scene.move(HERE, lease)
    for late in (refused, awaited):
        assert scene.append(late) == Void(Code.STALE_PARENT)
    assert scene.state.places == ()
    assert code_of(absence(scene.state)) is Code.SCOPE_MOVED


def test_a_genesis_comes_first_or_in_a_log_that_awaits_it(scene: Scene):
    rubbish = Copy()
    rubbish.append(b"rubbish")
    assert rubbish.append(scene.data[0]) == Void(Code.FOREIGN_SCOPE)
    assert rubbish.awaited(HERE) == Void(Code.FOREIGN_SCOPE)
    copy = Copy(HERE)
    copy.append(b"rubbish")
    assert copy.append(scene.data[0]) == Admitted(None)
    assert copy.append(scene.data[0]) == Void(Code.STALE_PARENT)


def test_a_scope_that_is_created_where_another_one_is_awaited_does_not_live_there():
    copy = Copy(HERE)
    genesis = copy.encode(ScopeCreatedRecord.new(authenticated=False), lease_id=NO_LEASE, fence=0, parent=NO_PARENT)
    copy.take([genesis])
    assert code_of(absence(copy.state)) is Code.SCOPE_AWAITED


def test_what_awaits_another_scope_is_foreign(scene: Scene):
    copy = Copy()
    record = ScopeAwaitedRecord.new(HERE)
    foreign = copy.encode(record, lease_id=NO_LEASE, fence=0, parent=NO_PARENT, scope=Scope("other"))
    assert copy.append(foreign) == Void(Code.FOREIGN_SCOPE)


def test_with_a_key_what_awaits_a_scope_must_be_authentic():
    authentic, forged = keyed(FIRST), keyed(SECOND)
    writer = Copy(HERE)
    data = writer.data[0]
    state = fold(empty_state(SCOPE), [authentic.read(0, data, authentic.authenticate(data))])
    assert state.places == (HERE,)
    with pytest.raises(ForgedError):
        fold(empty_state(SCOPE), [authentic.read(0, data, forged.authenticate(data))])


# --- restoring --------------------------------------------------------------------------------------------------------


def test_an_operator_restores_a_scope_whose_new_log_is_lost(scene: Scene):
    scene.move()
    scene.awaited()
    assert scene.restore() == Admitted(scene.state.sequence)
    check_here(scene.state)
    assert scene.write(LeaseReleasedRecord.new(scene.lease.holder), scene.lease) == Void(Code.STALE_FENCE)
    assert scene.acquire("bob").fence == scene.lease.fence + 2


def test_a_copy_is_restored_where_its_log_is_lost(scene: Scene):
    copy = Copy(ELSEWHERE)
    copy.take(scene.chain())
    assert scene.state.lease is not None
    copy.take([scene.encode(ScopeRestoredRecord.new(ELSEWHERE, **SAID), lease_id=b"r" * 16, fence=9)])
    check_here(copy.state)
    assert copy.write(plan_record(scene.lease, chain_of(2)[1:], chain_of(1)), scene.lease) == Void(Code.STALE_FENCE)


def test_a_restoration_says_nothing_of_other_logs(scene: Scene):
    scene.move()
    scene.awaited()
    scene.restore()
    copy = Copy(THERE)
    copy.take(scene.chain())
    assert copy.state.away
    assert copy.state.carried() == scene.state.carried()


@pytest.mark.parametrize("fence", [0, 1])
def test_a_restoration_needs_a_fence_above_all(scene: Scene, fence: int):
    scene.move()
    scene.awaited()
    assert scene.restore(fence=fence) == Void(Code.FENCE_NOT_MONOTONIC)


def test_a_restoration_says_who_and_why(scene: Scene):
    scene.move()
    record = altered(ScopeRestoredRecord.new(HERE, **SAID), reason="")
    assert scene.write(record, lease_id=LeaseId(b"r" * 16), fence=9) == Void(Code.INVALID_TEXT)
    with pytest.raises(InvalidContractError):
        ScopeRestoredRecord.new(HERE, operator="Ada", reason="")


# --- any history ------------------------------------------------------------------------------------------------------


@DETERMINISTIC
@given(plots)
def test_every_log_that_holds_a_chain_agrees_on_all_of_it(plot: list[tuple[int, int]]):
    story = tell(plot)
    events = zip(story.data, story.read(), story.verdicts, strict=True)
    chain = [
        (data, verdict)
        for data, event, verdict in events
        if isinstance(verdict, Admitted) and isinstance(event, Event) and event.type is not EventType.SCOPE_AWAITED
    ]
    for places in ((HERE,), (Place(b"\0" * 16), Place(b"\1" * 16))):
        copy = Copy(*places)
        assert [copy.append(data) for data, _ in chain] == [verdict for _, verdict in chain]
        assert copy.state.carried() == story.state.carried()


@DETERMINISTIC
@given(plots)
def test_what_is_said_of_a_scope_that_is_away_is_said_of_no_other(plot: list[tuple[int, int]]):
    state: ScopeState = tell(plot).state
    assert (absence(state) is not None) == state.away
    assert state.moved is None or state.away

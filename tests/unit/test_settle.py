"""What a writer may be told about events of its own, situation by situation."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest

from journal.admission import Admitted, Pending, ScopeState, Verdict, Void, empty_state, settle, step
from journal.codec import Codec
from journal.errors import Code
from journal.events import Event
from journal.vocabulary import GroupEventKind
from tests.factories import SCOPE, Writer, chain_of, group_record, plan_record

HEAD: Final = b"h" * 32
PAST: Final = b"p" * 32  # was the head once
FIRST: Final = b"1" * 32  # the writer's own event, on a head that it had read
SECOND: Final = b"2" * 32  # its next one, behind the first
FENCE: Final = 5
STALE: Final = Void(Code.STALE_PARENT)


def state(fence: int = FENCE, head: bytes = HEAD) -> ScopeState:
    found = empty_state(SCOPE)
    found.head, found.fence = head, fence
    return found


def first(verdict: Verdict | None, *, parent: bytes = HEAD, fence: int = FENCE) -> Pending:
    return Pending(FIRST, parent, fence, rooted=True, verdict=verdict)


def second(verdict: Verdict | None, *, rooted: bool = False) -> Pending:
    return Pending(SECOND, FIRST, FENCE, rooted=rooted, verdict=verdict)


# --- one event whose parent was read as a head --------------------------------------------------------------------------

ROOTED: Final[list[tuple[str, Pending, int, Verdict | None]]] = [
    ("not seen, its parent is the head", first(None), FENCE, None),
    ("a copy came before its parent was the head", first(STALE), FENCE, None),
    ("not seen, the head has moved on", first(None, parent=PAST), FENCE, STALE),
    ("seen behind the head", first(STALE, parent=PAST), FENCE, STALE),
    ("not seen, a greater fence is admitted", first(None, parent=PAST), FENCE + 1, Void(Code.STALE_FENCE)),
    ("a copy was stale, a greater fence is admitted", first(STALE, parent=PAST), FENCE + 1, STALE),
    ("a new lease that is not seen", first(None, fence=FENCE + 1), FENCE, None),
    ("a new lease whose head has moved on", first(None, parent=PAST, fence=FENCE + 1), FENCE, STALE),
    ("a new lease with a fence that another one took", first(None, parent=PAST, fence=FENCE), FENCE, STALE),
    ("admitted", first(Admitted(7), parent=PAST), FENCE, Admitted(7)),
    ("admitted long ago", first(Admitted(7), parent=PAST), FENCE + 9, Admitted(7)),
    ("a lease event that was admitted", first(Admitted(None), parent=PAST), FENCE, Admitted(None)),
]


@pytest.mark.parametrize(("pending", "fence", "answer"), [row[1:] for row in ROOTED], ids=[row[0] for row in ROOTED])
def test_one_event_is_settled(pending: Pending, fence: int, answer: Verdict | None):
    assert settle(state(fence), [pending]) == [answer]


OTHER_CODES: Final = [code for code in Code if code is not Code.STALE_PARENT]


def test_a_void_by_any_other_rule_is_final():
    for code, parent, fence, rooted in product(OTHER_CODES, (HEAD, PAST, FIRST), (FENCE, FENCE + 1), (True, False)):
        pending = Pending(SECOND, parent, FENCE, rooted, Void(code))
        assert settle(state(fence), [pending]) == [Void(code)]


# --- an event behind another one of its writer ----------------------------------------------------------------------------

MOVED_ON: Final = first(None, parent=PAST)
COUNTS: Final = first(Admitted(1), parent=PAST)
BEHIND: Final[list[tuple[str, Pending, Pending, bytes, Verdict | None]]] = [
    ("nothing seen", first(None), second(None), HEAD, None),
    ("the second came first", first(None), second(STALE), HEAD, None),
    ("the first was stale once", first(STALE), second(STALE), HEAD, None),
    ("the first is void for ever", MOVED_ON, second(None), HEAD, STALE),
    ("the first is void for ever, the second came", MOVED_ON, second(STALE), HEAD, STALE),
    ("the first broke a rule", first(Void(Code.NO_OPEN_PLAN)), second(None), HEAD, STALE),
    ("the first broke a rule, the second came", first(Void(Code.FORGED)), second(STALE), HEAD, STALE),
    ("the first is the head", COUNTS, second(None), FIRST, None),
    ("the first is the head, the second came before it", COUNTS, second(STALE), FIRST, None),
    ("another followed the first", COUNTS, second(None), HEAD, STALE),
    ("another followed the first, the second came before it", COUNTS, second(STALE), HEAD, STALE),
    ("both are admitted", COUNTS, second(Admitted(2)), SECOND, Admitted(2)),
]


@pytest.mark.parametrize(
    ("before", "pending", "head", "answer"), [row[1:] for row in BEHIND], ids=[row[0] for row in BEHIND]
)
def test_an_event_behind_another_is_settled(before: Pending, pending: Pending, head: bytes, answer: Verdict | None):
    assert settle(state(head=head), [before, pending])[1] == answer


def test_an_event_is_behind_its_parent_and_not_behind_the_one_before_it_in_the_list():
    stranger = Pending(b"s" * 32, PAST, FENCE, rooted=True)
    assert settle(state(), [first(None), stranger, second(None)]) == [None, STALE, None]
    assert settle(state(head=FIRST), [COUNTS, stranger, second(None)]) == [Admitted(1), STALE, None]


def chain_behind(start: Pending, verdicts: list[Verdict | None]) -> list[Pending]:
    chain = [start]
    for number, verdict in enumerate(verdicts):
        chain.append(Pending(bytes([number]) * 32, chain[-1].hash, FENCE, rooted=False, verdict=verdict))
    return chain


def test_a_chain_falls_with_its_first_event():
    assert settle(state(), chain_behind(MOVED_ON, [None] * 5)) == [STALE] * 6


def test_a_chain_falls_behind_the_event_that_broke_a_rule_and_not_before_it():
    broke = Void(Code.INVALID_EVENT_TRANSITION)
    assert settle(state(), chain_behind(COUNTS, [broke, None, STALE])) == [Admitted(1), broke, STALE, STALE]


def test_a_chain_whose_start_is_not_known_is_not_settled():
    assert settle(state(), [second(STALE)]) == [None]


def test_an_event_whose_parent_was_settled_and_admitted_before_is_rooted():
    assert settle(state(head=FIRST), [second(STALE, rooted=True)]) == [None]
    assert settle(state(), [second(STALE, rooted=True)]) == [STALE]


def test_a_greater_fence_settles_everything():
    answers = settle(state(FENCE + 1), chain_behind(first(None), [None, STALE, None]))
    assert all(isinstance(answer, Void) for answer in answers)
    assert answers[0] == Void(Code.STALE_FENCE)


def test_an_empty_chain_has_no_answers():
    assert settle(state(), []) == []


def test_settling_changes_nothing():
    here = state()
    before = here.canonical()
    chain = chain_behind(first(STALE), [STALE])
    settle(here, chain)
    assert here.canonical() == before
    assert chain == chain_behind(first(STALE), [STALE])


# --- what copies say ------------------------------------------------------------------------------------------------------

FINAL: Final = [Admitted(1), Admitted(None), Void(Code.NO_OPEN_PLAN), Void(Code.STALE_FENCE)]


@pytest.mark.parametrize("verdict", FINAL, ids=str)
def test_a_copy_behind_a_final_verdict_says_nothing_new(verdict: Verdict):
    pending = first(None)
    for said in (verdict, STALE, Void(Code.STALE_FENCE)):
        pending.note(said)
        assert pending.verdict == verdict


@pytest.mark.parametrize("verdict", FINAL, ids=str)
def test_a_copy_that_came_too_early_is_forgotten_for_a_final_verdict(verdict: Verdict):
    pending = first(None)
    pending.note(STALE)
    assert pending.verdict == STALE
    pending.note(verdict)
    assert pending.verdict == verdict


# --- against real logs ----------------------------------------------------------------------------------------------------


class Sender:
    """Two events of one writer in flight: `first` on a head that was read, `second` behind it."""

    def __init__(self) -> None:
        self.codec = Codec()
        self.writer = Writer()
        self.lease = self.writer.acquire()
        self.state = self.writer.state.copy()
        manifest = chain_of(1)[0]
        self.writer.write(plan_record(self.lease, [manifest]), self.lease)
        self.writer.write(group_record(self.lease, manifest, GroupEventKind.BEFORE_COMMIT), self.lease)
        self.first, self.second = (self.event(data) for data in self.writer.data[-2:])
        self.chain = [
            Pending(self.first.hash, self.first.parent, self.lease.fence, rooted=True),
            Pending(self.second.hash, self.second.parent, self.lease.fence, rooted=False),
        ]

    def event(self, data: bytes) -> Event:
        event = self.codec.read(99, data)
        assert isinstance(event, Event)
        return event

    def arrives(self, *events: Event) -> list[Verdict | None]:
        for event in events:
            verdict = step(self.state, event)
            for pending, own in zip(self.chain, (self.first, self.second), strict=True):
                if own is event:
                    pending.note(verdict)
        return settle(self.state, self.chain)

    def successor(self) -> Event:
        """The next holder's acquisition on the head that this state has now."""
        other = Writer()
        other.state = self.state.copy()
        other.acquire("next")
        return self.event(other.data[-1])


def test_two_events_that_arrive_in_order_are_told_at_once():
    sender = Sender()
    assert sender.arrives(sender.first) == [Admitted(1), None]
    assert sender.arrives(sender.second) == [Admitted(1), Admitted(2)]


def test_a_second_event_that_arrives_first_is_in_doubt_until_it_arrives_again():
    sender = Sender()
    assert sender.arrives(sender.second) == [None, None]
    assert sender.arrives(sender.first) == [Admitted(1), None]
    assert sender.arrives(sender.second) == [Admitted(1), Admitted(2)]


def test_a_second_event_that_never_arrives_again_is_settled_by_a_fresh_fence():
    sender = Sender()
    sender.arrives(sender.second, sender.first)
    answers = sender.arrives(sender.successor())
    assert answers == [Admitted(1), STALE]
    assert sender.arrives(sender.second) == answers


def test_events_that_never_arrived_are_void_once_a_fresh_fence_is_admitted_and_stay_so():
    sender = Sender()
    answers = sender.arrives(sender.successor())
    assert answers == [Void(Code.STALE_FENCE), STALE]
    late = sender.state.canonical()
    assert [isinstance(step(sender.state, event), Void) for event in (sender.first, sender.second)] == [True, True]
    sender.state.voids, sender.state.position = 0, 99
    assert sender.state.canonical() == late


def test_another_writer_on_the_same_head_settles_both():
    sender = Sender()
    rival = Writer()
    rival.state = sender.state.copy()
    rival.write(plan_record(sender.lease, [chain_of(2)[0]]), sender.lease)
    rival.data[-1] = rival.data[-1][:26] + b"r" * 16 + rival.data[-1][42:]
    assert sender.arrives(sender.event(rival.data[-1])) == [STALE, STALE]

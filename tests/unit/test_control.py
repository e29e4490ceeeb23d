"""Cancellation, the one absolute deadline, and limits that only tighten."""

from __future__ import annotations

import asyncio
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, strategies as st

from journal.control import (
    MAX_BACKFILL_OBSERVATIONS,
    MAX_TRANSACTION_GROUPS,
    Cancellation,
    Control,
    ResourceLimits,
)
from journal.errors import Code, JournalError, OperationCancelledError, ResourceLimitError

PATIENCE = 10.0


class FakeClock:
    """Time as a value."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def refusal(call: Callable[[], Any]) -> JournalError:
    with pytest.raises(JournalError) as caught:
        call()
    return caught.value


# --- cancellation -------------------------------------------------------------------------------------------------------


async def waiting(cancellation: Cancellation, count: int = 1) -> list[asyncio.Task[None]]:
    """Tasks that wait for cancellation and have begun to."""
    tasks = [asyncio.create_task(cancellation.cancelled()) for _ in range(count)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    return tasks


async def all_of(tasks: list[asyncio.Task[None]]) -> None:
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*tasks)


async def test_cancelling_wakes_everyone_that_waits():
    cancellation = Cancellation()
    tasks = await waiting(cancellation, 3)
    assert not cancellation.is_cancelled
    cancellation.cancel()
    assert cancellation.is_cancelled
    await all_of(tasks)


async def test_whoever_comes_after_the_cancellation_does_not_wait():
    cancellation = Cancellation()
    cancellation.cancel()
    await all_of([asyncio.create_task(cancellation.cancelled())])
    waiter = cancellation.cancelled()
    with pytest.raises(StopIteration):
        waiter.send(None)  # returns at its first step: it did not even yield to the loop


async def test_cancelling_twice_changes_nothing():
    cancellation = Cancellation()
    tasks = await waiting(cancellation)
    cancellation.cancel()
    cancellation.cancel()
    await all_of(tasks)
    cancellation.cancel()
    assert cancellation.is_cancelled


async def test_cancelling_from_another_thread_wakes_the_waiters():
    cancellation = Cancellation()
    tasks = await waiting(cancellation, 2)
    thread = threading.Thread(target=cancellation.cancel)
    thread.start()
    await all_of(tasks)
    thread.join(PATIENCE)


async def test_cancelling_from_a_signal_handler_wakes_the_waiters():
    cancellation = Cancellation()
    tasks = await waiting(cancellation, 2)
    before = signal.signal(signal.SIGUSR1, lambda *_: cancellation.cancel())
    try:
        signal.raise_signal(signal.SIGUSR1)
        await all_of(tasks)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_wakes_a_loop_that_is_asleep():
    cancellation = Cancellation()
    asleep, selector = recording_selector()
    main = threading.main_thread().ident
    assert main is not None

    def kill() -> None:
        if asleep.wait(PATIENCE):
            signal.pthread_kill(main, signal.SIGUSR1)

    async def wait() -> None:
        # Not signal.signal: a handler that runs just before the loop blocks would not be seen until something wakes it.
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, cancellation.cancel)
        thread.start()
        await cancellation.cancelled()

    thread = threading.Thread(target=kill)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(wait())
    thread.join(PATIENCE)
    assert cancellation.is_cancelled


def recording_selector() -> tuple[threading.Event, selectors.BaseSelector]:
    """A selector, and an event that is set once its loop blocks with nothing to wake it but an event from outside."""
    asleep = threading.Event()

    class Recording(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            timeouts.append(timeout)
            if timeout is None:
                asleep.set()
            return super().select(timeout)

    timeouts: list[float | None] = []
    selector = Recording()
    selector.timeouts = timeouts  # type: ignore[attr-defined]
    return asleep, selector


def test_nobody_polls_while_waiting():
    cancellation = Cancellation()
    asleep, selector = recording_selector()

    def cancel() -> None:
        if asleep.wait(PATIENCE):
            cancellation.cancel()

    thread = threading.Thread(target=cancel)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        thread.start()
        runner.run(cancellation.cancelled())
        timeouts = list(selector.timeouts)  # type: ignore[attr-defined]
    thread.join(PATIENCE)
    # A timer or a busy loop would show as timeouts between nothing and for ever.
    assert set(timeouts) <= {None, 0}
    assert timeouts.count(None) == 1
    assert len(timeouts) < 10


def test_waiters_of_several_loops_are_all_woken():
    cancellation = Cancellation()
    ready = threading.Barrier(4, timeout=PATIENCE)
    woken: list[int] = []

    async def wait(number: int) -> None:
        tasks = await waiting(cancellation, 2)
        await asyncio.to_thread(ready.wait)
        await all_of(tasks)
        woken.append(number)

    threads = [threading.Thread(target=lambda n=number: asyncio.run(wait(n))) for number in range(3)]
    for thread in threads:
        thread.start()
    ready.wait()
    cancellation.cancel()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(woken) == [0, 1, 2]


async def test_a_waiter_that_gives_up_does_not_disturb_the_others():
    cancellation = Cancellation()
    first, second = await waiting(cancellation, 2)
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    cancellation.cancel()
    await all_of([second])


async def test_a_waiter_that_gives_up_in_the_same_instant_is_harmless():
    cancellation = Cancellation()
    first, second = await waiting(cancellation, 2)
    cancellation.cancel()
    first.cancel()
    await asyncio.wait([first])
    await all_of([second])


async def test_waiters_that_gave_up_are_forgotten():
    cancellation = Cancellation()
    for task in await waiting(cancellation, 100):
        task.cancel()
        await asyncio.wait([task])
    assert cancellation._waiters == set()


async def test_a_loop_that_was_closed_while_waiting_does_not_keep_others_from_being_woken():
    cancellation = Cancellation()
    abandoned: list[Any] = []

    def abandon() -> None:
        loop = asyncio.new_event_loop()
        coroutine = cancellation.cancelled()
        loop.call_soon(lambda: abandoned.append(coroutine.send(None)))
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()
        abandoned.append(coroutine)

    await asyncio.to_thread(abandon)
    tasks = await waiting(cancellation)
    cancellation.cancel()
    await all_of(tasks)
    abandoned[-1].close()


def test_a_second_signal_that_arrives_while_the_first_is_cancelling_does_not_hang():
    """Two presses of Ctrl-C: the second handler runs on the same thread, between any two lines of the first."""
    lines = lines_of_cancel()
    assert lines
    for number in range(len(lines)):
        done = threading.Event()
        thread = threading.Thread(target=cancel_and_again_at, args=(number, done), daemon=True)
        thread.start()
        assert done.wait(PATIENCE), f"hangs when cancelled again at {lines[number]}"


def lines_of_cancel() -> list[str]:
    lines: list[str] = []
    trace(Cancellation().cancel, lambda frame: lines.append(f"{frame.f_code.co_name}:{frame.f_lineno}"))
    return lines


def cancel_and_again_at(number: int, done: threading.Event) -> None:
    cancellation = Cancellation()
    seen = iter(range(10**6))

    def again(_: FrameType) -> None:
        if next(seen) == number:
            cancellation.cancel()

    trace(cancellation.cancel, again)
    if cancellation.is_cancelled:
        done.set()


def trace(call: Callable[[], None], on_line: Callable[[FrameType], None]) -> None:
    """Run `call`, telling `on_line` of every line of Python that it runs, itself untraced."""

    def tracer(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            sys.settrace(None)
            on_line(frame)
            sys.settrace(tracer)
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        call()
    finally:
        sys.settrace(before)


# --- control ------------------------------------------------------------------------------------------------------------


def test_a_control_without_bounds_never_refuses():
    control = Control()
    control.check()
    assert control.remaining() is None
    assert control.limits == ResourceLimits()


def test_the_deadline_is_one_absolute_reading_of_the_clock():
    clock = FakeClock(100.0)
    control = Control(deadline=107.5, clock=clock)
    control.check()
    assert control.remaining() == 7.5
    clock.now = 107.0
    control.check()
    assert control.remaining() == 0.5


def test_the_deadline_itself_is_already_too_late():
    clock = FakeClock(107.5)
    error = refusal(Control(deadline=107.5, clock=clock).check)
    assert (type(error), error.code) == (ResourceLimitError, Code.DEADLINE_EXCEEDED)


def test_nothing_remains_behind_the_deadline():
    clock = FakeClock(200.0)
    control = Control(deadline=107.5, clock=clock)
    assert control.remaining() == 0.0
    assert refusal(control.check).code is Code.DEADLINE_EXCEEDED


def test_a_deadline_of_zero_is_a_deadline():
    assert refusal(Control(deadline=0.0, clock=FakeClock(0.0)).check).code is Code.DEADLINE_EXCEEDED


def test_a_cancelled_control_refuses_the_next_effect():
    control = Control()
    control.cancellation.cancel()
    error = refusal(control.check)
    assert (type(error), error.code) == (OperationCancelledError, Code.CANCELLED)


def test_cancellation_is_looked_at_before_the_deadline():
    control = Control(deadline=1.0, clock=FakeClock(2.0))
    assert refusal(control.check).code is Code.DEADLINE_EXCEEDED
    control.cancellation.cancel()
    assert refusal(control.check).code is Code.CANCELLED


def test_every_control_has_a_cancellation_of_its_own_unless_it_is_given_one():
    assert Control().cancellation is not Control().cancellation
    shared = Cancellation()
    assert Control(shared).cancellation is shared


def test_within_counts_from_now_on_the_monotonic_clock():
    cancellation = Cancellation()
    before = time.monotonic()
    control = Control.within(timedelta(hours=1), cancellation)
    after = time.monotonic()
    assert control.deadline is not None
    assert before + 3600 <= control.deadline <= after + 3600
    assert control.cancellation is cancellation
    assert refusal(Control.within(timedelta(0)).check).code is Code.DEADLINE_EXCEEDED


def test_a_control_cannot_be_extended():
    control = Control(deadline=1.0)
    with pytest.raises(FrozenInstanceError):
        control.deadline = 2.0  # type: ignore[misc]


async def test_sleeping_ends_early_when_cancelled():
    control = Control()
    task = asyncio.create_task(control.sleep(3_600))
    await asyncio.sleep(0)
    control.cancellation.cancel()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(OperationCancelledError):
            await task


async def test_sleeping_never_outlasts_the_deadline():
    control = Control(deadline=5.0, clock=FakeClock(5.0))
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ResourceLimitError) as caught:
            await control.sleep(3_600)
    assert caught.value.code is Code.DEADLINE_EXCEEDED


async def test_a_cancelled_sleep_says_cancelled_even_when_the_deadline_has_passed():
    control = Control(deadline=5.0, clock=FakeClock(6.0))
    control.cancellation.cancel()
    with pytest.raises(OperationCancelledError):
        await control.sleep(1)


async def test_sleeping_to_the_end_leaves_the_control_as_it_was():
    control = Control(deadline=5.0, clock=FakeClock(1.0))
    await control.sleep(0)
    await control.sleep(0.001)
    control.check()
    assert control.cancellation._waiters == set()


# --- limits -------------------------------------------------------------------------------------------------------------


def test_the_ceilings_are_the_shared_ones():
    assert (MAX_TRANSACTION_GROUPS, MAX_BACKFILL_OBSERVATIONS) == (65_536, 65_536)
    assert ResourceLimits() == ResourceLimits(65_536, 65_536)


@given(st.integers(0, 2**64), st.integers(0, 2**64))
def test_tightening_never_loosens(groups, observations):
    limits = ResourceLimits.tightened(groups, observations)
    assert limits.transaction_groups == min(groups, 65_536)
    assert limits.backfill_observations == min(observations, 65_536)


@pytest.mark.parametrize("wanted", [(65_537, 0), (0, 65_537), (-1, 0), (0, -1)])
def test_limits_outside_their_range_are_refused(wanted):
    error = refusal(lambda: ResourceLimits(*wanted))
    assert (type(error), error.code) == (ResourceLimitError, Code.LIMIT_EXCEEDED)


@pytest.mark.parametrize("wanted", [(-1, 5), (5, -1)])
def test_tightening_below_nothing_is_refused(wanted):
    assert refusal(lambda: ResourceLimits.tightened(*wanted)).code is Code.LIMIT_EXCEEDED


def test_limits_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        ResourceLimits().transaction_groups = 1  # type: ignore[misc]

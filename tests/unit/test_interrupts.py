"""What the first, the second and the third signal do to a command."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from journal.cli.interrupts import Interrupts

FOREVER = 3_600


async def until_told(interrupts: Interrupts, *, count: int) -> None:
    """Send a signal to this process, as often as that, and let the loop act on each."""
    for _ in range(count):
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def test_a_command_that_only_looks_is_cancelled_by_the_first_signal(capsys: pytest.CaptureFixture[str]) -> None:
    async def look(interrupts: Interrupts) -> None:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(FOREVER)

    interrupts = Interrupts()
    with pytest.raises(asyncio.CancelledError):
        interrupts.run(look)
    assert (interrupts.exit_code, interrupts.name, interrupts.at_once) == (143, "SIGTERM", True)
    assert capsys.readouterr().err == ""


def test_a_command_that_changes_something_is_asked_to_stop_by_the_first_signal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def change(interrupts: Interrupts) -> str:
        interrupts.begin()
        signal.raise_signal(signal.SIGINT)
        await interrupts.cancellation.cancelled()
        await asyncio.sleep(0)
        return "stopped where it may"

    interrupts = Interrupts()
    assert interrupts.run(change) == "stopped where it may"
    assert (interrupts.exit_code, interrupts.at_once) == (130, False)
    assert capsys.readouterr().err == ("journal: SIGINT: stopping at the next safe boundary; again to stop at once\n")


def test_the_second_signal_cancels_what_runs() -> None:
    async def change(interrupts: Interrupts) -> None:
        interrupts.begin()
        await until_told(interrupts, count=2)
        await asyncio.sleep(FOREVER)

    interrupts = Interrupts()
    with pytest.raises(asyncio.CancelledError):
        interrupts.run(change)
    assert interrupts.at_once


def test_what_gives_back_at_the_end_is_not_cancelled() -> None:
    async def change(interrupts: Interrupts) -> str:
        interrupts.begin()
        interrupts.finish()
        await until_told(interrupts, count=2)
        return "given back"

    assert Interrupts().run(change) == "given back"


def test_the_third_signal_ends_the_process_where_it_is() -> None:
    script = """
import signal, time
from journal.cli.interrupts import Interrupts
async def change(interrupts):
    interrupts.begin()
    for _ in range(3):
        signal.raise_signal(signal.SIGINT)
    raise AssertionError("still here")
Interrupts().run(change)
"""
    result = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")


def test_afterwards_signals_do_what_they_did_before() -> None:
    async def nothing(_: Interrupts) -> None:
        assert signal.getsignal(signal.SIGTERM) not in before

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    Interrupts().run(nothing)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before

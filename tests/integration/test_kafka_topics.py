"""What a Kafka topic must be like before the journal trusts it, and what is noticed when it is not the same any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest

from journal.errors import Code, HistoryLostError, IntegrityError, InvalidContractError, JournalError, UnavailableError
from journal.identities import Position, Scope
from journal.log.kafka import KafkaLog
from journal.ports import Level, Outgoing, StoredEvent
from tests.foreign_kafka import SAFE, Foreigner, foreigner
from tests.services.kafka import KafkaService, kafka_nodes

SCOPE = Scope("orders")
OpenLog = Callable[..., KafkaLog]


@pytest.fixture
async def open_log(kafka: KafkaService, fresh_prefix: str) -> AsyncIterator[OpenLog]:
    """Opens logs on one prefix, each like one of another process; closes them at the end."""
    opened: list[KafkaLog] = []

    def make(servers: Sequence[str] | None = None, **options: Any) -> KafkaLog:
        opened.append(KafkaLog(servers or kafka.servers, **{"prefix": fresh_prefix, "replication": 1, **options}))
        return opened[-1]

    yield make
    for log in opened:
        await log.close()


@pytest.fixture
async def log(open_log: OpenLog) -> KafkaLog:
    return open_log()


@pytest.fixture
async def other(kafka: KafkaService) -> AsyncIterator[Foreigner]:
    async with foreigner(kafka.servers) as other:
        yield other


@pytest.fixture(scope="module")
def creating_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaService]:
    """A broker that makes every topic that it is asked for."""
    with kafka_nodes(1, tmp_path_factory.mktemp("kafka"), **{"auto.create.topics.enable": "true"}) as service:
        yield service


@pytest.fixture
def topic(fresh_prefix: str) -> str:
    return f"{fresh_prefix}.{SCOPE}"


def numbered(count: int) -> list[Outgoing]:
    return [Outgoing(b"%d" % number) for number in range(count)]


async def read(log: KafkaLog, after: Position | None = None) -> list[StoredEvent]:
    async with aclosing(log.read(SCOPE, after=after)) as batches:
        return [event async for batch in batches for event in batch]


async def values(log: KafkaLog) -> list[bytes]:
    return [event.data for event in await read(log)]


async def written(log: KafkaLog, count: int) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(count))


# --- making -----------------------------------------------------------------------------------------------------------


async def test_a_new_topic_has_every_setting_that_keeps_history_whatever_the_broker_would_do(
    log: KafkaLog, other: Foreigner, topic: str
) -> None:
    await log.create(SCOPE)
    theirs = f"{topic}-of-others"
    await other.make(theirs, {})
    ours, left_to_the_broker = [await log._topics._settings(name) for name in (topic, theirs)]
    assert left_to_the_broker["retention.ms"] == str(7 * 24 * 60 * 60 * 1000)
    assert {name: ours[name] for name in SAFE if name != "max.message.bytes"} == {
        name: value for name, value in SAFE.items() if name != "max.message.bytes"
    }
    assert int(ours["max.message.bytes"]) > 16 * 2**20
    assert ours["compression.type"] == "uncompressed"


async def test_what_the_admin_call_answers_for_a_topic_is_an_error_that_says_what_to_do(open_log: OpenLog) -> None:
    with pytest.raises(UnavailableError, match=r"needs 99 brokers.*replication=1"):
        await open_log(replication=99).create(SCOPE)
    assert list(await open_log().scopes()) == []


async def test_a_broker_that_refuses_a_setting_is_quoted(open_log: OpenLog) -> None:
    log = open_log(max_event_bytes=2**31 - 2**16)  # one more than the setting can be
    with pytest.raises(JournalError, match=r"max\.message\.bytes"):
        await log.create(SCOPE)
    assert list(await log.scopes()) == []


async def test_a_log_that_may_not_make_topics_takes_one_that_is_there_and_makes_none(open_log: OpenLog) -> None:
    with pytest.raises(InvalidContractError) as caught:
        await open_log(create=False).create(SCOPE)
    assert caught.value.code is Code.UNKNOWN_SCOPE
    await open_log().create(SCOPE)
    careful = open_log(create=False)
    await careful.create(SCOPE)
    await careful.append(SCOPE, numbered(1))
    assert await values(careful) == [b"0"]


async def test_a_log_that_only_reads_makes_and_writes_nothing(open_log: OpenLog) -> None:
    await written(open_log(), 2)
    reader = open_log(read_only=True)
    for refused in (lambda: reader.create(Scope("another")), lambda: reader.append(SCOPE, numbered(1))):
        with pytest.raises(InvalidContractError) as caught:
            await refused()
        assert caught.value.code is Code.READ_ONLY
    assert await values(reader) == [b"0", b"1"]
    assert list(await reader.scopes()) == [SCOPE]


async def test_a_thousand_scopes_made_at_once_share_the_calls_that_make_them(open_log: OpenLog) -> None:
    log = open_log(timeout=timedelta(seconds=30))
    scopes = [Scope(f"scope-{number:04}") for number in range(300)]
    await asyncio.gather(*(log.create(scope) for scope in scopes))
    await asyncio.gather(*(log.append(scope, numbered(1)) for scope in scopes))
    assert list(await open_log().scopes()) == scopes


# --- refusing ---------------------------------------------------------------------------------------------------------

UNSAFE = {
    "cleanup_policy": "compact",
    "retention_ms": "604800000",
    "retention_bytes": "1000000",
    "unclean_leader_election_enable": "true",
}


@pytest.mark.parametrize("setting", UNSAFE)
async def test_a_topic_that_could_lose_history_is_refused_by_the_name_of_its_setting(
    log: KafkaLog, open_log: OpenLog, other: Foreigner, topic: str, setting: str
) -> None:
    await written(log, 2)
    await other.set(topic, **{setting: UNSAFE[setting]})
    name = setting.replace("_", ".")
    fresh = open_log()
    for refused in (lambda: fresh.create(SCOPE), lambda: fresh.append(SCOPE, numbered(1))):
        with pytest.raises(IntegrityError, match=rf"{name} is {UNSAFE[setting]} and must be") as caught:
            await refused()
        assert caught.value.code is Code.UNSAFE_LOG
    findings = [finding async for finding in fresh.examine([SCOPE])]
    assert any(finding.level is Level.HISTORY and name in finding.message for finding in findings)
    assert await values(fresh) == [b"0", b"1"]  # what is there can still be read

    await other.set(topic)
    await fresh.append(SCOPE, [Outgoing(b"2")])
    assert await values(fresh) == [b"0", b"1", b"2"]


async def test_all_that_is_wrong_with_a_topic_is_said_at_once(log: KafkaLog, other: Foreigner, topic: str) -> None:
    await other.make(topic, {"cleanup.policy": "compact,delete"}, partitions=3)
    with pytest.raises(IntegrityError, match=r"cleanup.*retention\.ms is 604800000.*3 partitions") as caught:
        await log.create(SCOPE)
    assert caught.value.code is Code.UNSAFE_LOG


async def test_too_few_replicas_are_refused(log: KafkaLog, open_log: OpenLog) -> None:
    await log.create(SCOPE)
    with pytest.raises(IntegrityError, match=r"min\.insync\.replicas is 1 and must be 2.*replication factor is 1"):
        await open_log(replication=3).append(SCOPE, numbered(1))


async def test_another_producers_topic_under_the_prefix_is_no_scope(
    log: KafkaLog, other: Foreigner, fresh_prefix: str
) -> None:
    await log.create(SCOPE)
    await other.make(f"{fresh_prefix}.-not a scope-".replace(" ", "_"), {})
    await other.make(f"{fresh_prefix}x.{SCOPE}", {})
    assert list(await log.scopes()) == [SCOPE]


# --- looking makes nothing --------------------------------------------------------------------------------------------


async def test_nothing_makes_a_topic_by_looking_at_it_on_a_broker_that_would(
    creating_kafka: KafkaService, open_log: OpenLog, topic: str
) -> None:
    service = creating_kafka
    log = open_log(service.servers)
    looks: list[Callable[[], Any]] = [
        lambda: log.end(SCOPE),
        lambda: log.append(SCOPE, numbered(1)),
        lambda: anext(log.read(SCOPE, after=None)),
        lambda: anext(log.tail(SCOPE, after=None)),
        lambda: open_log(service.servers, create=False).create(SCOPE),
    ]
    for look in looks:
        with pytest.raises(InvalidContractError) as caught:
            await look()
        assert caught.value.code is Code.UNKNOWN_SCOPE
    assert [finding.level async for finding in log.examine([SCOPE])][-1] is Level.PROBLEM
    assert list(await log.scopes()) == []


async def test_who_follows_or_writes_a_deleted_topic_does_not_make_it_again(
    creating_kafka: KafkaService, open_log: OpenLog, topic: str
) -> None:
    service = creating_kafka
    log = open_log(service.servers)
    await written(log, 2)
    async with foreigner(service.servers) as other, aclosing(log.tail(SCOPE, after=None)) as tail:
        assert [event.data for event in await anext(tail)] == [b"0", b"1"]
        waiting = asyncio.ensure_future(anext(tail))
        await other.delete(topic)
        with pytest.raises(JournalError):
            await log.append(SCOPE, numbered(1))
        with pytest.raises(HistoryLostError, match="not there any more"):
            await asyncio.wait_for(waiting, 20)
        with pytest.raises(HistoryLostError, match="not there any more"):
            await log.end(SCOPE)
        with pytest.raises(HistoryLostError, match="not there any more"):
            await log.create(SCOPE)
        assert topic not in await other.admin.list_topics()


# --- the topic is not what it was -------------------------------------------------------------------------------------

AGAIN = {"empty": 0, "shorter": 2, "as long": 4, "longer": 9}
SAID = "made again|truncated|another event|ends before|ends at|not have the offset"


@pytest.mark.parametrize("length", AGAIN.values(), ids=AGAIN)
async def test_a_topic_that_was_made_again_is_noticed_by_every_call(
    open_log: OpenLog, other: Foreigner, topic: str, length: int
) -> None:
    log = open_log()
    await written(log, 4)
    last = await log.end(SCOPE)
    await other.make_again(topic, *(b"new %d" % number for number in range(length)))
    calls: dict[str, Callable[[], Any]] = {
        "create": lambda: log.create(SCOPE),
        "end": lambda: log.end(SCOPE),
        "read": lambda: read(log),
        "read on": lambda: read(log, after=last),
        "tail": lambda: anext(log.tail(SCOPE, after=None)),
        "tail on": lambda: anext(log.tail(SCOPE, after=last)),
    }
    for call in calls.values():
        with pytest.raises(HistoryLostError, match="made again"):
            await call()


@pytest.mark.parametrize("length", AGAIN.values(), ids=AGAIN)
async def test_a_topic_that_was_made_again_is_noticed_by_a_tail_that_runs(
    open_log: OpenLog, other: Foreigner, topic: str, length: int
) -> None:
    log = open_log()
    await written(log, 4)
    async with aclosing(log.tail(SCOPE, after=None)) as tail:
        assert len(await anext(tail)) == 4
        waiting = asyncio.ensure_future(follow(tail))
        await other.make_again(topic, *(b"new %d" % number for number in range(length)))
        with pytest.raises(HistoryLostError, match=SAID):
            await asyncio.wait_for(waiting, 20)


async def follow(tail: Any) -> None:
    async for _ in tail:
        pass


@pytest.mark.parametrize("length", AGAIN.values(), ids=AGAIN)
async def test_who_read_a_position_elsewhere_is_told_when_nothing_at_all_is_there(
    open_log: OpenLog, other: Foreigner, topic: str, length: int
) -> None:
    await written(open_log(), 4)
    await other.make_again(topic, *(b"new %d" % number for number in range(length)))
    fresh = open_log()
    if length < 4:
        with pytest.raises(HistoryLostError, match="ends before offset 3"):
            await read(fresh, after=Position(3))
        with pytest.raises(HistoryLostError, match="ends before offset 3"):
            await anext(fresh.tail(SCOPE, after=Position(3)))
    else:  # a log that never saw the old topic: admission tells, by the incarnation of the scope
        assert len(await read(fresh, after=Position(3))) == length - 4


async def test_first_events_that_were_deleted_stop_everything(
    log: KafkaLog, open_log: OpenLog, other: Foreigner, topic: str
) -> None:
    await written(log, 6)
    await other.cut(topic, 2)
    for one in (log, open_log()):
        calls: list[Callable[[], Any]] = [
            lambda one=one: one.end(SCOPE),
            lambda one=one: read(one),
            lambda one=one: read(one, after=Position(4)),
            lambda one=one: anext(one.tail(SCOPE, after=Position(4))),
        ]
        for call in calls:
            with pytest.raises(HistoryLostError, match="starts at offset 2: its first events were deleted"):
                await call()
    findings = [finding async for finding in log.examine([SCOPE])]
    assert [finding.level for finding in findings if finding.check.startswith("history")] == [Level.HISTORY]


async def test_first_events_that_are_deleted_under_a_tail_stop_it(log: KafkaLog, other: Foreigner, topic: str) -> None:
    await written(log, 6)
    async with aclosing(log.tail(SCOPE, after=None)) as tail:
        assert len(await anext(tail)) == 6
        waiting = asyncio.ensure_future(anext(tail))
        await other.cut(topic, 2)
        with pytest.raises(HistoryLostError, match="starts at offset 2"):
            await asyncio.wait_for(waiting, 20)


async def test_everything_deleted_at_once_is_not_an_empty_log(log: KafkaLog, other: Foreigner, topic: str) -> None:
    await written(log, 3)
    await other.cut(topic, -1)
    with pytest.raises(HistoryLostError, match="starts at offset 3"):
        await log.end(SCOPE)

"""A journal on three nodes, RF 3: the leader of its topic moves, dies, stands still; a majority is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from journal.errors import UnavailableError
from journal.identities import Scope
from tests.desk import LONG, SHORT, SLACK_SECONDS, Desk, desk_at, stream, until
from tests.factories import SCOPE
from tests.foreign_kafka import foreigner
from tests.places import Cluster
from tests.services import RedisService
from tests.services.kafka import KafkaNode, KafkaService
from tests.services.proxy import Proxy
from tests.storm.storm import Storm


@pytest.fixture
async def desk(
    kafka_cluster: KafkaService,
    proxied_cluster: Mapping[int, Proxy],
    fresh_prefix: str,
    journal_file: Path,
    caplog: pytest.LogCaptureFixture,
) -> AsyncIterator[Desk]:
    """Before three nodes, each through a proxy of its own."""
    through = [passing.address for passing in proxied_cluster.values()]
    async with desk_at(fresh_prefix, journal_file, kafka_cluster.servers, through, caplog) as made:
        yield made


async def leader_of(desk: Desk, cluster: KafkaService, *silent: KafkaNode) -> KafkaNode:
    """The node that leads the topic of the desk's scope, as those say that are not silent."""
    async with foreigner([node.address for node in cluster.nodes if node not in silent]) as stranger:
        number = await stranger.leader(f"{desk.prefix}.{SCOPE}")
    (leader,) = (node for node in cluster.nodes if node.number == number)
    return leader


async def test_no_append_is_in_doubt_while_the_leader_moves(desk: Desk, kafka_cluster: KafkaService) -> None:
    """The leader is ended in good order, twice, and comes back in between."""
    writer = await desk.open()
    enough = asyncio.Event()
    streaming = asyncio.ensure_future(stream(writer, lambda: not enough.is_set()))
    for _ in range(2):
        await until(lambda before=writer.number: writer.number > before + 200)
        leader = await leader_of(desk, kafka_cluster)
        await asyncio.to_thread(leader.terminate)
        await until(lambda before=writer.number: writer.number > before + 200)
        assert await leader_of(desk, kafka_cluster) is not leader
        await asyncio.to_thread(kafka_cluster.revive)
    enough.set()
    await streaming
    assert writer.account.counted.keys() == set(range(1, writer.number + 1))
    await desk.check()


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_leader_that_is_gone_under_a_stream_of_appends_takes_nothing_that_was_confirmed(
    desk: Desk, kafka_cluster: KafkaService, how: str
) -> None:
    """Killed, or standing still with its connections open, until others lead; then it comes back."""
    writer = await desk.open(SHORT)
    streaming = asyncio.ensure_future(stream(writer))
    await until(lambda: writer.number > 200)
    leader = await leader_of(desk, kafka_cluster)
    await asyncio.to_thread(getattr(leader, how))
    await streaming
    assert writer.account.unknown or writer.account.unwritten
    await writer.recover()
    await writer.write(20)
    assert not writer.account.unknown
    assert not writer.account.unwritten & {writer.number}, "two nodes are enough"
    await asyncio.to_thread(kafka_cluster.revive)
    await writer.write(20)
    await desk.check()


async def test_a_leader_killed_between_append_and_answer_gets_its_caller_a_verdict_from_its_successor(
    desk: Desk, kafka_cluster: KafkaService, proxied_cluster: Mapping[int, Proxy]
) -> None:
    writer = await desk.open()
    leader = await leader_of(desk, kafka_cluster)
    way = proxied_cluster[leader.number]
    written = await desk.written()
    way.hold_answers()
    writing = asyncio.ensure_future(writer.write())
    await written()
    await asyncio.to_thread(leader.kill)
    await way.cut()
    way.release()
    await writing
    assert writer.account.counted.keys() == {1}
    await desk.check()


@pytest.mark.parametrize("arrives", ["before the others lead", "when others lead"])
async def test_what_reaches_a_leader_that_stands_still_counts_once_or_not_at_all(
    desk: Desk, kafka_cluster: KafkaService, arrives: str
) -> None:
    """It has been sent an append that it has not read, is taken for dead, and goes on."""
    writer = await desk.open(LONG if arrives == "before the others lead" else SHORT)
    leader = await leader_of(desk, kafka_cluster)
    await asyncio.to_thread(leader.stop)
    writing = asyncio.ensure_future(writer.write(3))
    if arrives == "when others lead":
        await writing
        assert writer.account.unknown.keys() | writer.account.unwritten == {1, 2, 3}
        await writer.recover()
        assert await leader_of(desk, kafka_cluster, leader) is not leader
    await asyncio.to_thread(leader.go_on)
    await writing
    await desk.check()
    if arrives == "before the others lead":
        assert {1, 2, 3} <= writer.account.counted.keys()


async def test_without_a_majority_appends_and_closing_end_in_time_and_what_was_unknown_is_settled_later(
    desk: Desk, kafka_cluster: KafkaService
) -> None:
    writer = await desk.open(SHORT)
    await writer.write()
    leader = await leader_of(desk, kafka_cluster)
    others = [node for node in kafka_cluster.nodes if node is not leader]
    for node in others:
        await asyncio.to_thread(node.kill)
    began = time.monotonic()
    await writer.write(3)
    assert time.monotonic() - began < SHORT.total_seconds() + SLACK_SECONDS
    assert writer.account.unknown.keys() | writer.account.unwritten == {2, 3, 4}

    other = desk.journal(desk.servers, SHORT)
    began = time.monotonic()
    with pytest.raises(UnavailableError):
        await other.create(Scope("another"))
    await other.close()
    assert time.monotonic() - began < 2 * (SHORT.total_seconds() + SLACK_SECONDS)

    await asyncio.to_thread(kafka_cluster.revive)
    await desk.check()


async def test_one_node_of_three_is_not_missed(desk: Desk, kafka_cluster: KafkaService) -> None:
    """One that does not lead: what it has not written is not waited for once it is taken for dead."""
    writer = await desk.open()
    leader = await leader_of(desk, kafka_cluster)
    follower = next(node for node in kafka_cluster.nodes if node is not leader)
    await asyncio.to_thread(follower.kill)
    for _ in range(10):
        await writer.write(5)
    assert len(writer.account.counted) == 50
    other = desk.journal([follower.address, *desk.known], timedelta(seconds=5))
    await other.state(SCOPE)
    await desk.check()


async def test_in_a_storm_nothing_is_lost_and_everybody_agrees(
    kafka_cluster: KafkaService, redis_server: RedisService, fresh_prefix: str
) -> None:
    """A short one; `make storm` has 200 scopes for a minute."""
    place = Cluster(kafka_cluster.servers, redis_server.url, fresh_prefix, kafka_cluster.replication)
    outcome = await Storm(scopes=12, processes=2, seconds=6).run(place, kafka_cluster, print)
    assert not outcome.contradictions, outcome.contradictions
    assert outcome.restarts
    assert outcome.told["counted"] > 100

"""The services that the tests run against do what the tests rely on, seen through the bare clients."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaConnectionError
from redis.asyncio import Redis

from tests.services import KafkaService, RedisService, SecureKafka, containers, programs
from tests.services.processes import is_listening
from tests.services.programs import MissingProgramError
from tests.services.proxy import Proxy

ROOT = Path(__file__).parents[2]


async def make_topic(servers: list[str], topic: str, replication: int = 1) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 1, replication)])
    finally:
        await admin.close()


async def read_back(servers: list[str], topic: str, count: int) -> list[bytes]:
    partition = TopicPartition(topic, 0)
    values: list[bytes] = []
    async with AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        async with asyncio.timeout(20):
            while len(values) < count:
                records = (await consumer.getmany(partition, timeout_ms=200)).get(partition, [])
                values += [record.value for record in records]
    return values


async def test_what_is_sent_to_kafka_is_read_back(kafka: KafkaService, fresh_prefix: str) -> None:
    servers = list(kafka.servers)
    await make_topic(servers, fresh_prefix)
    async with AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
        await producer.send_and_wait(fresh_prefix, b"one")
    assert await read_back(servers, fresh_prefix, 1) == [b"one"]


async def test_redis_keeps_what_it_is_told(redis_server: RedisService, fresh_prefix: str) -> None:
    async with Redis.from_url(redis_server.url) as client:
        await client.set(fresh_prefix, "value")
        assert await client.get(fresh_prefix) == b"value"


async def test_a_node_that_was_killed_has_its_events_when_it_is_started_again(
    own_kafka: KafkaService, fresh_prefix: str
) -> None:
    servers, node = list(own_kafka.servers), own_kafka.nodes[0]
    await make_topic(servers, fresh_prefix)
    async with AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
        await producer.send_and_wait(fresh_prefix, b"kept")
    node.kill()
    assert not is_listening(node.ports["PLAIN"])
    await asyncio.to_thread(node.start)
    assert await read_back(servers, fresh_prefix, 1) == [b"kept"]


async def test_what_a_proxy_holds_arrives_when_it_is_released(
    own_kafka: KafkaService, proxied_kafka: Proxy, fresh_prefix: str
) -> None:
    await make_topic(list(own_kafka.servers), fresh_prefix)
    async with AIOKafkaProducer(bootstrap_servers=proxied_kafka.address) as producer:
        await producer.send_and_wait(fresh_prefix, b"first")
        proxied_kafka.hold_requests()
        sending = await producer.send(fresh_prefix, b"second")
        async with asyncio.timeout(10):
            await proxied_kafka.requests.held.wait()
        assert not sending.done()
        proxied_kafka.release()
        async with asyncio.timeout(10):
            await sending
    assert await read_back(list(own_kafka.servers), fresh_prefix, 2) == [b"first", b"second"]


async def test_a_cut_connection_is_cut_and_a_proxy_that_refuses_lets_nobody_in(proxied_kafka: Proxy) -> None:
    reader, writer = await asyncio.open_connection(*proxied_kafka.address.split(":"))
    await asyncio.sleep(0)
    proxied_kafka.refuses = True
    async with asyncio.timeout(10):
        await proxied_kafka.cut()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
    writer.close()
    producer = AIOKafkaProducer(bootstrap_servers=proxied_kafka.address, request_timeout_ms=2_000)
    with pytest.raises(KafkaConnectionError):
        await producer.start()
    await producer.stop()


async def test_a_user_logs_in_over_tls_and_may_do_what_acls_say(
    secure_kafka: SecureKafka, own_kafka: KafkaService, fresh_prefix: str
) -> None:
    await make_topic(list(own_kafka.servers), fresh_prefix)
    secure_kafka.acl(
        *("--add", "--allow-principal", "User:writer", "--operation", "Write", "--operation", "Describe"),
        *("--topic", fresh_prefix),
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=secure_kafka.tls,
        security_protocol="SASL_SSL",
        ssl_context=ssl.create_default_context(cafile=secure_kafka.ca_file),
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="writer",
        sasl_plain_password=secure_kafka.passwords["writer"],
    )
    async with producer:
        await producer.send_and_wait(fresh_prefix, b"allowed")
    assert await read_back(list(own_kafka.servers), fresh_prefix, 1) == [b"allowed"]


async def test_three_nodes_go_on_without_one(kafka_cluster: KafkaService, fresh_prefix: str) -> None:
    servers = list(kafka_cluster.servers)
    await make_topic(servers, fresh_prefix, replication=3)
    kafka_cluster.nodes[0].kill()
    async with asyncio.timeout(60), AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer:
        await producer.send_and_wait(fresh_prefix, b"by two")
    assert await read_back(servers[1:], fresh_prefix, 1) == [b"by two"]


STARTER = """
import sys, time
from pathlib import Path
from tests.services.processes import ServiceProcess
process = ServiceProcess([sys.executable, "-c", "import time; time.sleep(60)"], Path(sys.argv[1]), lambda: True)
process.launch()
print(process._process.pid, flush=True)
time.sleep(60)
"""


def test_services_end_with_the_run_even_when_it_is_killed(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path / "log")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    service = Path("/proc") / starter.stdout.readline().strip()
    assert service.exists()
    starter.kill()
    starter.communicate()
    until = time.monotonic() + 10
    while service.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not service.exists()


def test_a_program_that_is_missing_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(MissingProgramError, match=r"apt-get install redis-server.*FENCED_JOURNAL_TEST_REDIS"):
        programs.program("redis-server")


def test_the_containers_are_those_of_the_compose_file() -> None:
    assert containers.image("kafka").startswith("apache/kafka:")
    assert containers.image("redis").startswith("redis:")

"""The services that the tests run against do what the tests rely on, seen through the bare clients."""

from __future__ import annotations

import asyncio
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError
from redis.asyncio import Redis

from tests.services import KafkaService, RedisService, SecureKafka, containers, programs, start_kafka, start_redis
from tests.services.kafka import nodes_seen_at
from tests.services.processes import ServiceProcess, is_listening
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


def login(kafka: SecureKafka, user: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": kafka.tls,
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=kafka.ca_file),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": user,
        "sasl_plain_password": kafka.passwords[user],
    }


async def test_a_user_logs_in_over_tls_and_may_do_what_acls_say(
    secure_kafka: SecureKafka, own_kafka: KafkaService, fresh_prefix: str
) -> None:
    await make_topic(list(own_kafka.servers), fresh_prefix)
    secure_kafka.acl(
        *("--add", "--allow-principal", "User:writer", "--operation", "Write", "--operation", "Describe"),
        *("--topic", fresh_prefix),
    )
    async with AIOKafkaProducer(**login(secure_kafka, "writer")) as producer:
        await producer.send_and_wait(fresh_prefix, b"allowed")
    assert await read_back(list(own_kafka.servers), fresh_prefix, 1) == [b"allowed"]
    async with AIOKafkaProducer(**login(secure_kafka, "nobody")) as producer:
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait(fresh_prefix, b"refused")


async def test_a_wrong_password_is_refused_without_tls_too(secure_kafka: SecureKafka) -> None:
    right = {
        **login(secure_kafka, "auditor"),
        "security_protocol": "SASL_PLAINTEXT",
        "bootstrap_servers": secure_kafka.plain,
    }
    async with AIOKafkaProducer(**right):
        pass
    producer = AIOKafkaProducer(**{**right, "sasl_plain_password": "wrong"})
    with pytest.raises(KafkaConnectionError):
        await producer.start()
    await producer.stop()


async def test_three_nodes_go_on_without_one(kafka_cluster: KafkaService, fresh_prefix: str) -> None:
    servers = list(kafka_cluster.servers)
    await make_topic(servers, fresh_prefix, replication=3)
    kafka_cluster.nodes[0].kill()
    async with asyncio.timeout(60), AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer:
        await producer.send_and_wait(fresh_prefix, b"by two")
    assert await read_back(servers[1:], fresh_prefix, 1) == [b"by two"]


def test_a_cluster_is_whole_again_after_any_fault(kafka_cluster: KafkaService) -> None:
    killed, stopped, ended = kafka_cluster.nodes
    ended.terminate()
    killed.kill()
    stopped.stop()
    assert not killed.runs
    assert not ended.runs
    kafka_cluster.revive()
    assert [nodes_seen_at(node.address) for node in kafka_cluster.nodes] == [3, 3, 3]


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


def test_a_service_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    failing = "import sys; sys.exit('the port is taken')"
    process = ServiceProcess([sys.executable, "-c", failing], tmp_path / "log", lambda: False)
    with pytest.raises(AssertionError, match="the port is taken"):
        process.start()


def test_programs_that_are_missing_are_named_with_their_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(
        MissingProgramError, match=r"java and mvn .*apt-get install default-jre-headless maven.*TEST_KAFKA"
    ):
        programs.programs("java", "mvn")


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Puts a `docker` in the path that is the shell script given."""

    def put(script: str) -> None:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        (tmp_path / "docker").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        containers.engine_answers.cache_clear()

    yield put
    containers.engine_answers.cache_clear()


def test_containers_are_for_where_an_engine_answers(docker: Callable[[str], None]) -> None:
    docker("exit 1")
    assert not containers.engine_answers()
    docker("exit 0")
    assert containers.engine_answers()


def test_addresses_in_the_environment_come_before_containers_and_processes(
    monkeypatch: pytest.MonkeyPatch, docker: Callable[[str], None]
) -> None:
    docker("exit 0")
    monkeypatch.setenv("FENCED_JOURNAL_TEST_KAFKA", "one:9092,two:9092")
    monkeypatch.setenv("FENCED_JOURNAL_TEST_REDIS", "redis://user:secret@three:6379")
    with start_kafka() as kafka, start_redis() as redis:
        assert kafka.servers == ("one:9092", "two:9092")
        assert redis.url == "redis://user:secret@three:6379"
        assert "secret" not in redis.how


@pytest.mark.parametrize("service", ["kafka", "redis"])
def test_a_service_of_the_compose_file_is_at_loopback_healthy_and_kept(service: str) -> None:
    said = containers.described(service)
    ports = re.findall(r"^    ports:\n((?:      - .*\n)+)", said, re.MULTILINE)
    assert len(ports) == 1
    assert all(line.startswith('      - "127.0.0.1:') for line in ports[0].splitlines())
    assert re.search(r"^    healthcheck:\n      test: \[\"CMD\", ", said, re.MULTILINE)
    assert re.search(rf"^    volumes:\n      - {service}:/", said, re.MULTILINE)
    assert re.search(rf"^volumes:\n(?:  .*\n)*  {service}:$", containers.COMPOSE.read_text("utf-8"), re.MULTILINE)


def test_the_images_of_the_compose_file_have_versions() -> None:
    assert re.fullmatch(r"apache/kafka:4\.[0-9.]+", containers.image("kafka"))
    assert re.fullmatch(r"redis:[0-9.]+", containers.image("redis"))


def test_redis_of_the_compose_file_keeps_every_key_and_writes_it_down() -> None:
    command = '["redis-server", "--appendonly", "yes", "--maxmemory-policy", "noeviction"]'
    assert f"    command: {command}\n" in containers.described("redis")


def test_kafka_of_the_compose_file_makes_no_topic_that_was_only_asked_for() -> None:
    assert containers.environment("kafka")["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"

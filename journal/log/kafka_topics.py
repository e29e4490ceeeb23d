"""Topics as the journal needs them: made with every setting said, and verified before anything is written.

A topic left to a broker's defaults forgets after seven days, and nobody notices until a replay is needed. So what keeps
history is set explicitly, and a topic of which it is not true is refused by the name of the setting. Answers of admin
calls are inspected topic by topic: aiokafka raises nothing for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    BrokerResponseError,
    InvalidReplicationFactorError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)

from journal.errors import Code, JournalError, failure
from journal.identities import Scope
from journal.log.kafka_client import is_dead, tame
from journal.log.kafka_cluster import RETRY_SECONDS, KafkaCluster
from journal.log.kafka_directory import Directory
from journal.tasks import read_error, start

OVERHEAD_BYTES: Final = 64 * 1024  # of a record and its batch around an event, by far
_MAX_TOPIC_NAME: Final = 249
_NO_LIMIT: Final = "-1"


@dataclass(frozen=True, slots=True)
class Rules:
    """What every topic must be like."""

    prefix: str
    replication: int
    max_event_bytes: int

    @property
    def min_in_sync(self) -> int:
        """Replicas that must have an event before it is acknowledged: a majority."""
        return self.replication // 2 + 1

    def topic(self, scope: Scope) -> str:
        """Name of a scope's topic. Raises `journal_invalid_scope` when Kafka could not have one of this length."""
        name = f"{self.prefix}.{scope}"
        if len(name) > _MAX_TOPIC_NAME:
            raise failure(
                Code.INVALID_SCOPE, f"topic {name} would be longer than the {_MAX_TOPIC_NAME} characters of Kafka"
            )
        return name

    def scope(self, topic: str) -> Scope | None:
        """The scope of a topic; None for a topic that is not the journal's."""
        name = topic.removeprefix(f"{self.prefix}.")
        if name == topic:
            return None
        try:
            return Scope(name)
        except JournalError:
            return None  # somebody else's topic under our prefix

    def new(self, topic: str) -> NewTopic:
        """The topic as it is made."""
        settings = {
            "cleanup.policy": "delete",
            "retention.ms": _NO_LIMIT,
            "retention.bytes": _NO_LIMIT,
            "unclean.leader.election.enable": "false",
            "min.insync.replicas": str(self.min_in_sync),
            "max.message.bytes": str(self.max_event_bytes + OVERHEAD_BYTES),
            # What somebody else writes compressed is kept plain, so that every reader can read it, and none has to
            # unpack a little into very much.
            "compression.type": "uncompressed",
        }
        return NewTopic(topic, 1, self.replication, topic_configs=settings)

    def faults(self, topic: Topic) -> list[str]:
        """What could lose history, or confirm what is not kept; each names the setting, its value and the right one."""
        wanted = (
            ("cleanup.policy", topic.settings.get("cleanup.policy") == "delete", "delete"),
            ("retention.ms", topic.settings.get("retention.ms") == _NO_LIMIT, _NO_LIMIT),
            ("retention.bytes", topic.settings.get("retention.bytes") == _NO_LIMIT, _NO_LIMIT),
            (
                "unclean.leader.election.enable",
                topic.settings.get("unclean.leader.election.enable") == "false",
                "false",
            ),
            ("min.insync.replicas", topic.number("min.insync.replicas") >= self.min_in_sync, f"{self.min_in_sync}"),
        )
        faults = [
            f"{name} is {topic.settings.get(name, 'unknown')} and must be {right}"
            for name, is_right, right in wanted
            if not is_right
        ]
        if topic.partitions != 1:
            faults.append(f"it has {topic.partitions} partitions and must have 1")
        if topic.replicas < self.replication:
            faults.append(
                f"its replication factor is {topic.replicas} and must be {self.replication} (replication=N says another)"
            )
        return faults


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster has it."""

    name: str
    partitions: int
    replicas: int
    in_sync: int
    settings: Mapping[str, str]

    def number(self, setting: str) -> int:
        """A numeric setting; -1 when it is not known."""
        value = self.settings.get(setting, "")
        return int(value) if value.isdigit() else -1

    @property
    def max_event_bytes(self) -> int:
        """Largest event that the topic takes."""
        return self.number("max.message.bytes") - OVERHEAD_BYTES


class Topics:
    """The admin's side of a log: which topics there are, how they are set, making one."""

    def __init__(self, cluster: KafkaCluster, directory: Directory, rules: Rules) -> None:
        self.rules = rules
        self._cluster = cluster
        self._directory = directory
        self._admin: AIOKafkaAdminClient | None = None
        self._starting = asyncio.Lock()
        self._wanted: dict[str, asyncio.Future[None]] = {}  # topics that are to be made
        self._making: asyncio.Task[None] | None = None

    async def names(self) -> list[str]:
        """Every topic of the cluster."""
        admin = await self._client()
        names: list[str] = await self._cluster.call("list the topics", admin.list_topics())
        return names

    def unknown(self, scope: Scope) -> JournalError:
        """The error that says that there is no such scope."""
        topic = self.rules.topic(scope)
        return failure(
            Code.UNKNOWN_SCOPE, f"there is no scope {scope} in this log (no topic {topic})", scope=str(scope)
        )

    async def create(self, scope: Scope) -> None:
        """Make the topic unless there is one, and wait until it has a leader.

        Raises:
            HistoryLostError: there was one.
            InvalidContractError: `journal_not_permitted`.
            UnavailableError: the cluster does not answer, or has too few brokers.
        """
        name = self.rules.topic(scope)
        if await self._directory.look(name) is not None:
            return
        if name not in self._wanted:
            self._wanted[name] = asyncio.get_running_loop().create_future()
            self._wanted[name].add_done_callback(read_error)
        if self._making is None:
            self._making = start(self._make_wanted(), "create topics")
        await asyncio.shield(self._wanted[name])
        await self._await_leader(name)

    async def _make_wanted(self) -> None:
        """Make what waits to be made, together: one request takes a controller tens of milliseconds, whatever is in it."""
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, {}
                try:
                    refused: Mapping[str, Exception] = await self._make(list(wanted))
                except Exception as error:  # noqa: BLE001  (whatever it is: nobody may be left waiting)
                    refused = dict.fromkeys(wanted, error)
                for name, made in wanted.items():
                    if name in refused:
                        made.set_exception(refused[name])
                    else:
                        made.set_result(None)
        finally:
            self._making = None

    async def _make(self, names: Sequence[str]) -> dict[str, JournalError]:
        """Make topics; gives the error of each that could not be made."""
        admin = await self._client()
        asking = admin.create_topics([self.rules.new(name) for name in names])
        made: Any = await self._cluster.call(f"create topic {', '.join(names):.200}", asking)
        return {
            name: self._refused(name, error, message[0] if message else None)
            for name, code, *message in made.topic_errors
            if code and (error := for_code(code)) is not TopicAlreadyExistsError
        }

    def _refused(self, topic: str, error: type[BrokerResponseError], message: str | None) -> JournalError:
        if error is InvalidReplicationFactorError:
            return failure(
                Code.STORAGE_FAILED,
                f"topic {topic} needs {self.rules.replication} brokers: {message or error.__name__}; start them, or say "
                "replication=1 for a log that may be lost with its one broker",
            )
        known = self._cluster.meaning(f"create topic {topic}", error(topic))
        return failure(known.code, f"{known.message}{f' ({message})' if message else ''}", topic=topic)

    async def _await_leader(self, name: str) -> None:
        deadline = time.monotonic() + self._cluster.timeout
        while (listed := await self._directory.look(name)) is None or listed.leader is None:
            if time.monotonic() > deadline:
                raise failure(
                    Code.STORAGE_FAILED, f"topic {name} was made, but has no leader yet: try again", topic=name
                )
            await asyncio.sleep(RETRY_SECONDS / 5)

    async def describe(self, scope: Scope) -> Topic | None:
        """The topic of a scope; None when there is none.

        Raises:
            InvalidContractError: `journal_not_permitted`: its settings may not be read.
        """
        name = self.rules.topic(scope)
        listed = await self._directory.look(name)
        if listed is None:
            return None
        return Topic(name, listed.partitions, listed.replicas, listed.in_sync, await self._settings(name))

    async def _settings(self, name: str) -> dict[str, str]:
        """What is set for a topic that is there: any broker is asked, and may not have heard of a new one yet."""
        doing = f"read the settings of topic {name}"
        deadline = time.monotonic() + self._cluster.timeout
        while True:
            settings, error = await self._ask_settings(name, doing)
            if error is None:
                return settings
            if not isinstance(error, UnknownTopicOrPartitionError) or time.monotonic() > deadline:
                raise self._cluster.meaning(doing, error)
            await asyncio.sleep(RETRY_SECONDS / 5)

    async def _ask_settings(self, name: str, doing: str) -> tuple[dict[str, str], BrokerResponseError | None]:
        admin = await self._client()
        asking = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
        answers: list[Any] = await self._cluster.call(doing, asking)
        settings: dict[str, str] = {}
        for answer in answers:
            for code, message, _, _, entries in answer.resources:
                if code:
                    return {}, for_code(code)(message or name)
                settings.update({entry[0]: entry[1] for entry in entries if entry[1] is not None})
        return settings, None

    async def verify(self, scope: Scope) -> Topic:
        """The topic, if everything that keeps its history is set.

        Raises:
            InvalidContractError: `journal_unknown_scope`, `journal_not_permitted`.
            IntegrityError: `journal_unsafe_log`: says which settings are wrong.
        """
        topic = await self.describe(scope)
        if topic is None:
            raise self.unknown(scope)
        if faults := self.rules.faults(topic):
            raise failure(
                Code.UNSAFE_LOG,
                f"topic {topic.name} could lose history: {'; '.join(faults)}. Correct it (kafka-configs --alter), then "
                "run journal doctor",
                topic=topic.name,
                faults=faults,
            )
        return topic

    async def _client(self) -> AIOKafkaAdminClient:
        async with self._starting:
            if self._admin is not None and is_dead(self._admin._client):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                self.close()
            if self._admin is None:
                admin = AIOKafkaAdminClient(**self._cluster.options())
                tame(admin._client, self._cluster.options())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                await self._cluster.start(admin.start, admin.close)
                self._admin = admin
        return self._admin

    def close(self) -> None:
        """Stop the client in the background."""
        if self._admin is not None:
            self._cluster.stop(self._admin.close)
            self._admin = None

"""Apache Kafka in KRaft mode from its published jars: one node with every kind of listener, or three for faults.

Listeners of a node: PLAIN (nobody logs in: the super user), PROXIED (the same, advertised under the port of a proxy, so
that a client which comes through the proxy stays on it), SECURE (SCRAM without TLS), TLS (SCRAM over TLS), MUTUAL (TLS
with a certificate of the client, who is a super user then), CONTROLLER.
"""

from __future__ import annotations

import re
import secrets
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.certificates import Authority
from tests.services.processes import ServiceProcess, free_port
from tests.services.programs import HERE, kafka_jars, program

VERSION = re.findall(r"<version>([0-9.]+)</version>", (HERE / "pom.xml").read_text("utf-8"))[1]
USERS = ("writer", "worker", "auditor", "nobody")
_WHOLE_SECONDS = 60
_ACL_COMMAND = "org.apache.kafka.tools.AclCommand"


@dataclass(frozen=True)
class SecureKafka:
    """The secured listeners of a node, and who may log in there (by SCRAM-SHA-512). Nobody has a right at first."""

    tls: str
    plain: str
    mutual: str
    ca_file: Path
    other_ca_file: Path
    certificate: tuple[Path, Path]  # and key, of a client
    other_certificate: tuple[Path, Path]  # from somebody whom the node does not know
    passwords: Mapping[str, str]
    admin: str  # PLAIN listener, where ACLs are made

    def acl(self, *arguments: str) -> str:
        """Run Kafka's `AclCommand`, such as `--add --allow-principal User:writer --operation Write --topic x`."""
        classpath = f"{kafka_jars()}/*"
        done = subprocess.run(
            [
                *(program("java"), "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={HERE / 'log4j2.yaml'}"),
                *("-cp", classpath, _ACL_COMMAND, "--bootstrap-server", self.admin, *arguments),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


class KafkaNode:
    """One node: broker and controller in one process."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.folder = folder
        self.ports = {
            name: free_port() for name in ("PLAIN", "PROXIED", "SECURE", "TLS", "MUTUAL", "CONTROLLER", "PROXY")
        }
        self.directory_id = _random_id()
        self._process = ServiceProcess(self._command(), folder / "kafka.log", self._answers)

    @property
    def address(self) -> str:
        """`host:port` of the PLAIN listener."""
        return self.at("PLAIN")

    def at(self, listener: str) -> str:
        """`host:port` of a listener."""
        return f"127.0.0.1:{self.ports[listener]}"

    @property
    def runs(self) -> bool:
        """Whether its process is there."""
        return self._process.runs

    def launch(self) -> None:
        """Start it without waiting."""
        self._process.launch()

    def wait_until_it_answers(self) -> None:
        """Return once it answers requests; its log is in the error when it does not."""
        self._process.wait_until_it_answers()

    def start(self) -> None:
        """Start it again on what it left behind, and wait until it answers requests."""
        self._process.start()

    def kill(self) -> None:
        """SIGKILL: as a power failure."""
        self._process.kill()

    def terminate(self) -> None:
        """SIGTERM: a clean end, which takes about a second."""
        self._process.terminate()

    def stop(self) -> None:
        """SIGSTOP: it stands still, connections and all."""
        self._process.stop()

    def go_on(self) -> None:
        """SIGCONT."""
        self._process.go_on()

    def log_end(self) -> str:
        """The last of what it logged."""
        return self._process.log_end()

    def _answers(self) -> bool:
        return nodes_seen_at(self.address) > 0

    def _command(self) -> list[str]:
        return [
            *(program("java"), "-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            f"-Dlog4j2.configurationFile={HERE / 'log4j2.yaml'}",
            *("-cp", f"{kafka_jars()}/*", "kafka.Kafka", str(self.folder / "server.properties")),
        ]


@dataclass
class KafkaService:
    """A Kafka cluster for tests."""

    servers: tuple[str, ...]
    replication: int
    how: str
    nodes: Sequence[KafkaNode] = field(default_factory=tuple)
    secure: SecureKafka | None = None

    def revive(self) -> None:
        """Have every node run again, whatever a test did to it, and be known to all the others."""
        for node in self.nodes:
            node.go_on()
        for node in [node for node in self.nodes if not node.runs]:
            node.launch()
        for node in self.nodes:
            node.wait_until_it_answers()
        self._wait_until_it_is_whole()

    def _wait_until_it_is_whole(self) -> None:
        until = time.monotonic() + _WHOLE_SECONDS
        while (seen := [nodes_seen_at(server) for server in self.servers]) != [len(self.nodes)] * len(self.nodes):
            if time.monotonic() > until:
                logs = "\n".join(f"node {node.number}:\n{node.log_end()}" for node in self.nodes)
                raise AssertionError(f"the nodes of the cluster see {seen} nodes\n{logs}")
            time.sleep(0.02)


def nodes_seen_at(server: str) -> int:
    """How many running nodes a node knows; 0 when it does not answer."""
    metadata_of_no_topic = struct.pack(
        ">ihhihi", 14, 3, 1, 0, -1, 0
    )  # length, request and version, 0, no name, 0 topics
    try:
        host, port = server.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.sendall(metadata_of_no_topic)
            answer = connection.recv(12, socket.MSG_WAITALL)
    except OSError:
        return 0
    return int.from_bytes(answer[8:12])  # behind the length and the request's 0


@contextmanager
def kafka_nodes(count: int, folder: Path, **settings: str) -> Iterator[KafkaService]:
    """A cluster of `count` nodes as processes of this machine; `settings` are added to those of every node."""
    authority = Authority(folder / "certificates", "tests")
    other = Authority(folder / "other", "other")
    passwords = {user: secrets.token_hex(16) for user in USERS}
    nodes = [KafkaNode(number, folder / f"node-{number}") for number in range(1, count + 1)]
    for node in nodes:
        _configure(node, nodes, authority, settings)
    _format(nodes, passwords)
    try:
        secure = SecureKafka(
            tls=nodes[0].at("TLS"),
            plain=nodes[0].at("SECURE"),
            mutual=nodes[0].at("MUTUAL"),
            ca_file=authority.ca_file,
            other_ca_file=other.ca_file,
            certificate=authority.server("client"),
            other_certificate=other.server("client"),
            passwords=passwords,
            admin=nodes[0].address,
        )
        service = KafkaService(
            tuple(node.address for node in nodes),
            count,
            f"Apache Kafka {VERSION} (local process{'es' if count > 1 else ''}, {count} node{'s' if count > 1 else ''})",
            nodes,
            secure,
        )
        service.revive()
        yield service
    finally:
        for node in nodes:
            node.kill()


def _random_id() -> str:
    """16 random bytes as Kafka writes them; one that begins with a dash would be taken for an option."""
    while (drawn := secrets.token_urlsafe(16)).startswith("-"):
        pass
    return drawn


def _configure(node: KafkaNode, nodes: Sequence[KafkaNode], authority: Authority, settings: Mapping[str, str]) -> None:
    node.folder.mkdir(parents=True)
    certificate, key = authority.server(f"node-{node.number}")
    keystore = node.folder / "keystore.pem"
    keystore.write_bytes(key.read_bytes() + certificate.read_bytes())
    in_sync = len(nodes) // 2 + 1
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    listeners = ("PLAIN", "PROXIED", "SECURE", "TLS", "MUTUAL")
    advertised = {name: node.at(name) for name in listeners} | {"PROXIED": node.at("PROXY")}
    values = {
        "process.roles": "broker,controller",
        "node.id": str(node.number),
        "controller.quorum.bootstrap.servers": ",".join(other.at("CONTROLLER") for other in nodes),
        "listeners": ",".join(f"{name}://{node.at(name)}" for name in (*listeners, "CONTROLLER")),
        "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised.items()),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAIN",
        "listener.security.protocol.map": (
            "CONTROLLER:PLAINTEXT,PLAIN:PLAINTEXT,PROXIED:PLAINTEXT,SECURE:SASL_PLAINTEXT,TLS:SASL_SSL,MUTUAL:SSL"
        ),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": login,
        "listener.name.tls.scram-sha-512.sasl.jaas.config": login,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.truststore.type": "PEM",
        "listener.name.mutual.ssl.truststore.location": str(authority.ca_file),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:CN=client",
        "log.dirs": str(node.folder / "data"),
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": str(len(nodes)),
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.replication.factor": str(len(nodes)),
        "transaction.state.log.min.isr": str(in_sync),
        "transaction.state.log.num.partitions": "3",
        "group.initial.rebalance.delay.ms": "0",
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "1000",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "log.cleaner.enable": "false",
        **settings,
    }
    text = "".join(f"{name}={value}\n" for name, value in values.items())
    (node.folder / "server.properties").write_text(text, "utf-8")


def _format(nodes: Sequence[KafkaNode], passwords: Mapping[str, str]) -> None:
    """Format every node's folder, all of them at once."""
    cluster_id = _random_id()
    scram = [
        argument
        for user, password in passwords.items()
        for argument in ("--add-scram", f"SCRAM-SHA-512=[name={user},password={password}]")
    ]
    directories = ",".join(f"{node.number}@{node.at('CONTROLLER')}:{node.directory_id}" for node in nodes)
    formatting = [
        subprocess.Popen(
            [
                *(program("java"), "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_jars()}/*", "kafka.tools.StorageTool"),
                *("format", "-t", cluster_id, "-c", str(node.folder / "server.properties")),
                *("--initial-controllers", directories, *scram),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in nodes
    ]
    for process in formatting:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output

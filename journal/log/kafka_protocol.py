"""What aiokafka's part of Kafka's protocol lacks: asking for a topic with its id, in words of aiokafka's own.

Source: https://kafka.apache.org/protocol#The_Messages_Metadata (version 12).
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

_NO_ID: Final = bytes(16)


class Uuid(AbstractType[bytes]):  # type: ignore[misc]
    """Sixteen bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """See `AbstractType`."""
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """See `AbstractType`."""
        return data.read(16)


class TopicResponseV12(Response):  # type: ignore[misc]
    """Metadata response v12 (Kafka 3.1 and later)."""

    API_KEY = 3  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    API_VERSION = 12  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class TopicRequestV12(RequestStruct):  # type: ignore[misc]
    """Metadata request v12."""

    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 12
    RESPONSE_TYPE = TopicResponseV12
    SCHEMA = Schema(
        ("topics", CompactArray(("id", Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicRequest(Request[TopicRequestV12]):  # type: ignore[misc]
    """Asks for one topic by name, and never makes it."""

    API_KEY = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[TopicRequestV12]) -> TopicRequestV12:
        """See `Request`."""
        return request_struct_class([(_NO_ID, self._topic, {})], False, False, {})

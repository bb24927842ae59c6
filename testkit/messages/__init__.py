"""Messages that kafka-python does not have, as its classes, from Kafka 4.3's own definitions beside this file."""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage

_HERE = "testkit.messages"


class ShareFetchRequest(ApiMessage, load_json=_HERE):
    """KIP-932."""


class ShareFetchResponse(ApiMessage, load_json=_HERE):
    """KIP-932."""


class ShareAcknowledgeRequest(ApiMessage, load_json=_HERE):
    """KIP-932."""


class ShareAcknowledgeResponse(ApiMessage, load_json=_HERE):
    """KIP-932."""

"""Classes for messages that kafka-python lacks, or has only in older versions.

They are made from Kafka 4.4's own definitions, which are beside this file.
"""

from __future__ import annotations

from kafka.protocol.admin import groups
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import api_versions
from kafka.protocol.producer import transaction

_HERE = "testkit.messages"


class ShareFetchRequest(ApiMessage, load_json=_HERE):
    """KIP-932."""


class ShareFetchResponse(ApiMessage, load_json=_HERE):
    """KIP-932."""


class ShareAcknowledgeRequest(ApiMessage, load_json=_HERE):
    """KIP-932."""


class ShareAcknowledgeResponse(ApiMessage, load_json=_HERE):
    """KIP-932."""


class StreamsGroupHeartbeatRequest(ApiMessage, load_json=_HERE):
    """KIP-1071."""


class StreamsGroupHeartbeatResponse(ApiMessage, load_json=_HERE):
    """KIP-1071."""


class StreamsGroupDescribeRequest(ApiMessage, load_json=_HERE):
    """KIP-1071."""


class StreamsGroupDescribeResponse(ApiMessage, load_json=_HERE):
    """KIP-1071."""


class StreamsGroupTopologyDescriptionUpdateRequest(ApiMessage, load_json=_HERE):
    """KIP-1331."""


class StreamsGroupTopologyDescriptionUpdateResponse(ApiMessage, load_json=_HERE):
    """KIP-1331."""


class ApiVersionsRequest(api_versions.ApiVersionsRequest, load_json=_HERE):
    """With version 5 (KIP-1242)."""


class ApiVersionsResponse(api_versions.ApiVersionsResponse, load_json=_HERE):
    """With version 5 (KIP-1242)."""


class DeleteGroupsRequest(groups.DeleteGroupsRequest, load_json=_HERE):
    """With version 3."""


class DeleteGroupsResponse(groups.DeleteGroupsResponse, load_json=_HERE):
    """With version 3."""


class TxnOffsetCommitRequest(transaction.TxnOffsetCommitRequest, load_json=_HERE):
    """With version 6 (KIP-1319)."""


class TxnOffsetCommitResponse(transaction.TxnOffsetCommitResponse, load_json=_HERE):
    """With version 6 (KIP-1319)."""

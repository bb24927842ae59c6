"""ApiVersions on a connection: what the broker offers, cut to what may pass here."""

from struct import pack

import pytest

from config.sections.quota_admin import Authorize
from testkit import wire
from testkit.conversation import Conversation
from testkit.frames import unknown_api_versions, unknown_api_versions_reply
from testkit.golden import golden


@pytest.mark.parametrize("version", range(5))
def test_a_real_brokers_offer_is_cut_to_what_may_pass(version: int) -> None:
    request = golden("api_versions", version, "request")
    c = Conversation().client_sends(request).upstream_sees(request)
    c.upstream_answers(golden("api_versions", version))
    ours = {a.api_key: a for a in wire.decode_response("ApiVersions", version, c.take_client()).api_keys}
    kafkas = {
        a.api_key: a for a in wire.decode_response("ApiVersions", version, golden("api_versions", version)).api_keys
    }
    assert (ours[1].min_version, ours[1].max_version) == (kafkas[1].min_version, 18)
    assert (ours[0].min_version, ours[0].max_version) == (0, kafkas[0].max_version)
    assert not {83, 84, 85, 86, 87} & set(ours)
    assert all(a.max_version <= kafkas[key].max_version for key, a in ours.items())


def test_a_broker_older_than_the_version_asked_answers_in_v0_and_is_understood() -> None:
    c = Conversation().client_sends(wire.request("ApiVersions", 4, client_software_name="a"))
    c.upstream_answers(wire.framed(pack(">ihihhhhhh", 1, 35, 2, 18, 0, 3, 84, 0, 0)))
    c.client_sees(wire.framed(pack(">ihihhh", 1, 35, 1, 18, 0, 3)))


@pytest.mark.parametrize(("authorize", "offered"), [(Authorize.DENY, {18, 48, 49}), (Authorize.ASK_CLUSTER, {18})])
def test_the_quota_api_is_offered_unless_the_broker_is_needed_for_it(authorize: Authorize, offered: set[int]) -> None:
    c = Conversation(authorize=authorize).client_sends(wire.request("ApiVersions", 2))
    keys = [{"api_key": 18, "min_version": 0, "max_version": 3}]
    c.upstream_answers(wire.response("ApiVersions", 2, api_keys=keys))
    assert {a.api_key for a in wire.decode_response("ApiVersions", 2, c.take_client()).api_keys} == offered


def test_a_version_that_nobody_knows_never_reaches_the_broker() -> None:
    c = Conversation().client_sends(unknown_api_versions(3)).upstream_sees()
    c.client_sees(unknown_api_versions_reply(3))

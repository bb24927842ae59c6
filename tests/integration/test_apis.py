"""What is offered, compared with the message definitions of the broker's own jars."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.api_keys import ApiKey, ThrottlePlace, describe, newest_version, offered
from testkit import apis, messages

pytestmark = pytest.mark.integration


def test_the_page_of_apis_is_what_the_definitions_and_the_routes_say() -> None:
    assert apis.PAGE.read_text() == apis.page(), "run: python -m testkit.apis"


def test_e01_nothing_that_is_relayed_unseen_has_a_field_for_a_brokers_address() -> None:
    found = {path for name, version in apis.relayed_unseen() for path in apis.address_fields(name, version)}
    assert found == apis.NOT_A_BROKERS.keys()
    # The search finds what it should, where answers are rewritten.
    assert list(apis.address_fields("Fetch", 16)) == ["Fetch.NodeEndpoints"]
    assert list(apis.address_fields("Fetch", 15)) == []


def test_a13_no_version_is_offered_that_the_definitions_do_not_have() -> None:
    for key, _, versions in apis.apis():
        if offered(key) and versions != "none":
            newest = int(versions.split("-")[-1])
            assert newest_version(key) == (3 if key is ApiKey.ADD_PARTITIONS_TO_TXN else newest)


def test_c10_throttle_time_is_where_the_definitions_have_it() -> None:
    """In every version on offer, those of share groups and streams groups among them."""
    places = {
        ThrottlePlace.NOWHERE: None,
        ThrottlePlace.FIRST: 0,
        ThrottlePlace.AFTER_ERROR_CODE: 1,
        ThrottlePlace.AFTER_RESPONSES: 1,
        ThrottlePlace.AFTER_API_KEYS: 2,
    }
    for key, name, versions in apis.apis():
        for version in apis.versions_of(versions) if offered(key) else ():
            api, fields = describe(key, version), apis.field_names(name, version)
            place = fields.index("ThrottleTimeMs") if "ThrottleTimeMs" in fields else None
            last = len(fields) - 1
            assert place == places.get(api.throttle_place, last), f"{name} v{version}"
            assert api.flexible == apis.is_flexible(name, version)


def test_definitions_that_are_kept_here_are_kafkas() -> None:
    (folder,) = messages.__path__
    kept = list(Path(folder).glob("*.json"))
    assert len(kept) == 16
    assert all(path.read_text() == apis.raw_definition(path.stem) for path in kept)

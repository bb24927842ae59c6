"""The settings of a connection, in a file that may hold passwords."""

import re
from pathlib import Path

import pytest

from quota_client.client import QuotaClientError
from quota_client.properties import read_properties


def test_connection_properties_are_read_with_their_types_and_no_fault_repeats_them(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "# how\nsecurity.protocol = SSL\nssl_check_hostname=false\nrequest_timeout_ms=500\n\n"
        "sasl_plain_username=a=b\nsasl_plain_password=12345\n"
    )
    assert read_properties(file) == {
        "security_protocol": "SSL", "ssl_check_hostname": False, "request_timeout_ms": 500,
        "sasl_plain_username": "a=b", "sasl_plain_password": "12345",
    }  # fmt: skip


@pytest.mark.parametrize(("text", "fault"), [
    ("my secret", "line 1: expected name=value"), ("\nc2VjcmV0=", "line 2: unknown name; known: api_version, "),
    ("ssl.truststore.location=secret", "unknown name ssl.truststore.location, of Java's clients; give ssl_cafile, a"),
    ('sasl.jaas.config=x password="secret";', "give sasl_plain_username and sasl_plain_password"),
    ("bootstrap.servers=secret", "give --bootstrap to the command"),
    ("ssl.provider.x.y.z=secret", "line 1: unknown name ssl.provider.x.y.z; known: api_version, "),
    ("sasl.plain.pasword=secret", "line 1: unknown sasl_plain_pasword; did you mean sasl_plain_password?"),
])  # fmt: skip
def test_fault_of_a_connection_property_names_its_line_and_no_value(text: str, fault: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"{text}\n")
    with pytest.raises(QuotaClientError, match=re.escape(fault)) as caught:
        read_properties(file)
    assert not {"secret", "c2VjcmV0"} & set(re.findall(r"\w+", str(caught.value)))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert read_properties(None) == {}
    with pytest.raises(QuotaClientError, match=r"none\.properties: cannot be read"):
        read_properties(tmp_path / "none.properties")

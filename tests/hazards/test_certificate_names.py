"""Clients of a TLS listener are who their certificate says, in Kafka's letters (hazard H20)."""

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from testkit.certificates import CLIENT
from testkit.raw_client import until
from testkit.tls import Pki, TlsClient, handshakes, tls_gateway

WIDE = x509.Name(
    [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example, Inc."),
        x509.NameAttribute(NameOID.COMMON_NAME, "Zoë", _ASN1Type.BMPString),
    ]
)


@pytest.mark.parametrize(
    ("keys", "user"),
    [
        ({}, r"CN=Zoë,O=Example\, Inc."),
        ({"certificate_texts": "utf8"}, "CN=\\00Z\\00o\\00\ufffd,O=Example\\, Inc."),
        ({"principal_mapping_rules": r"RULE:^CN=([^,]+),O=Example.*$/$1/U"}, "ZOË"),
    ],
    ids=["by kind", "all as UTF-8", "mapped"],
)
async def test_h20_user_is_the_subject_in_kafkas_letters(keys: dict[str, str], user: str, tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    own = pki.authority.issue("zoe", WIDE, usage=CLIENT)
    async with (
        tls_gateway(pki.mutual(**keys)) as (_, running),
        await TlsClient.connect(running.port, pki.trusting(own)),
    ):
        await until(lambda: handshakes(running, "TLSv1.3") == 1)
        assert running.channels[0].session.user == user

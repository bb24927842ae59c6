"""The gateway's own login: what it sends, when it believes the broker, and that no error shows the password."""

import base64
import hashlib
import hmac
import threading
from pathlib import Path

import pytest

from config.sections.upstream import UpstreamSasl
from gateway.upstream.login import BrokerLogin, LoginFailed, read_password
from protocol.api_keys import ApiKey, describe
from protocol.errors import ProtocolError
from protocol.sasl import Mechanism, read_auth_bytes, read_mechanism
from protocol.scram import ScramClient
from testkit.sasl import handshake, token_reply

SECRET = "canary-of-ours"


class Broker:
    """Answers one login, with SHA-256.

    Attributes:
        asked: mechanism of the handshake.
        messages: of the client.
    """

    def __init__(self, *, handshake_error: int = 0, error: int = 0, knows: str = SECRET) -> None:
        self.asked: Mechanism | None = None
        self.messages: list[bytes] = []
        self._handshake_error = handshake_error
        self._error = error
        self._knows = knows

    async def __call__(self, frame: bytes) -> bytes:
        if int.from_bytes(frame[4:6], "big") == ApiKey.SASL_HANDSHAKE:
            self.asked = read_mechanism(frame, describe(ApiKey.SASL_HANDSHAKE, 1))
            return handshake(self.asked, 1, error_code=self._handshake_error)[1]
        self.messages.append(read_auth_bytes(frame, describe(ApiKey.SASL_AUTHENTICATE, 1)))
        if self._error:
            return token_reply(1, error_code=self._error)
        return token_reply(1, b"" if self.asked is Mechanism.PLAIN else self._scram())

    def _scram(self) -> bytes:
        bare = self.messages[0].removeprefix(b"n,,")
        challenge = bare.split(b"r=")[1] + b"more"
        first = b"r=" + challenge + b",s=" + base64.b64encode(b"salt") + b",i=4096"
        if len(self.messages) == 1:
            return first
        salted = hashlib.pbkdf2_hmac("sha256", self._knows.encode(), b"salt", 4096)
        signed = b",".join((bare, first, self.messages[1].rpartition(b",p=")[0]))
        return b"v=" + base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256"))


def login(folder: Path, mechanism: Mechanism = Mechanism.PLAIN, text: str = SECRET + "\n") -> BrokerLogin:
    file = folder / "password"
    file.write_text(text, encoding="utf-8")
    return BrokerLogin(mechanism, "gw", file, "tests")


async def test_plain_login_sends_name_and_password_also_a_new_one(tmp_path: Path) -> None:
    broker = Broker()
    await login(tmp_path).log_in(broker)
    assert broker.asked is Mechanism.PLAIN
    assert broker.messages == [b"\0gw\0" + SECRET.encode()]
    ours = login(tmp_path)
    ours.password_file.write_text("another", encoding="utf-8")
    broker = Broker()
    await ours.log_in(broker)
    assert broker.messages == [b"\0gw\0another"]
    with pytest.raises(LoginFailed, match="PLAIN"):
        await login(tmp_path).log_in(Broker(handshake_error=33))


async def test_hashing_that_a_broker_asks_for_does_not_hold_up_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    final = ScramClient.final

    def noted(scram: ScramClient, server_first: bytes) -> bytes:
        threads.append(threading.get_ident())
        return final(scram, server_first)

    monkeypatch.setattr(ScramClient, "final", noted)
    await login(tmp_path, Mechanism.SCRAM_SHA_256).log_in(Broker())
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_scram_login_proves_and_has_it_proven_with_a_nonce_of_its_own(tmp_path: Path) -> None:
    broker = Broker()
    await login(tmp_path, Mechanism.SCRAM_SHA_256).log_in(broker)
    assert len(broker.messages) == 2
    assert not any(SECRET.encode() in message for message in broker.messages)
    first, second = Broker(), Broker()
    for broker in (first, second):
        await login(tmp_path, Mechanism.SCRAM_SHA_256).log_in(broker)
    assert first.messages[0] != second.messages[0]
    with pytest.raises(ProtocolError):
        await login(tmp_path, Mechanism.SCRAM_SHA_256).log_in(Broker(knows="something else"))


@pytest.mark.parametrize("mechanism", [Mechanism.PLAIN, Mechanism.SCRAM_SHA_256])
async def test_refusal_is_told_without_the_password(tmp_path: Path, mechanism: Mechanism) -> None:
    with pytest.raises(LoginFailed) as caught:
        await login(tmp_path, mechanism).log_in(Broker(error=58))
    assert "Authentication failed" in str(caught.value)
    assert SECRET not in repr(caught.value)


@pytest.mark.parametrize("text", ["", "\n", "a\0b"])
def test_password_that_can_not_be_one_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(LoginFailed):
        read_password(login(tmp_path, text=text).password_file)


def test_login_is_what_section_and_password_file_say(tmp_path: Path) -> None:
    with pytest.raises(LoginFailed, match="nowhere"):
        read_password(tmp_path / "nowhere")
    (tmp_path / "binary").write_bytes(SECRET.encode() + b"\xff")
    with pytest.raises(LoginFailed, match="binary") as caught:
        read_password(tmp_path / "binary")
    assert caught.value.__cause__ is None
    assert SECRET not in str(caught.value)
    assert read_password(login(tmp_path, text=" a b \r\n").password_file) == " a b "
    section = UpstreamSasl(mechanism="SCRAM-SHA-512", username="gw", password_file="/p")
    assert BrokerLogin.of(section, client_id="c") == BrokerLogin(Mechanism.SCRAM_SHA_512, "gw", Path("/p"), "c")
    assert BrokerLogin.of(None, client_id="c") is None

"""The gateway's own login: what it sends, when it believes the broker, and that no error shows the password."""

import base64
import hashlib
import hmac
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
import structlog

from config.sections.upstream import UpstreamSasl
from gateway.upstream.login import BrokerLogin, LoginFailed
from gateway.upstream.secret_file import SecretFault, read_secret_text
from protocol.api_keys import ApiKey, describe
from protocol.errors import ProtocolError
from protocol.sasl import Mechanism, read_auth_bytes, read_mechanism
from protocol.scram import ScramClient
from testkit.sasl import handshake, token_reply
from testkit.secure_kafka import unsecured_token

SECRET = "canary-of-ours"


class Broker:
    """Answers one login, with SHA-256.

    Attributes:
        asked: mechanism of the handshake.
        messages: of the client.
    """

    def __init__(
        self, *, handshake_error: int = 0, error: int = 0, knows: str = SECRET, oauth_error: bytes = b""
    ) -> None:
        self.asked: Mechanism | None = None
        self.messages: list[bytes] = []
        self._handshake_error = handshake_error
        self._error = error
        self._knows = knows
        self._oauth_error = oauth_error

    async def __call__(self, frame: bytes) -> bytes:
        if int.from_bytes(frame[4:6], "big") == ApiKey.SASL_HANDSHAKE:
            self.asked = read_mechanism(frame, describe(ApiKey.SASL_HANDSHAKE, 1))
            return handshake(self.asked, 1, error_code=self._handshake_error)[1]
        self.messages.append(read_auth_bytes(frame, describe(ApiKey.SASL_AUTHENTICATE, 1)))
        if self._error:
            return token_reply(1, error_code=self._error)
        if self.asked is Mechanism.OAUTHBEARER and self._oauth_error and len(self.messages) > 1:
            return token_reply(1, error_code=58)
        if self.asked is Mechanism.OAUTHBEARER:
            return token_reply(1, self._oauth_error)
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
    file = folder / "secret"
    file.write_text(text, encoding="utf-8")
    user = (
        {"token_file": str(file)}
        if mechanism is Mechanism.OAUTHBEARER
        else {"username": "gw", "password_file": str(file)}
    )
    section = UpstreamSasl.model_validate({"mechanism": mechanism.value, **user})
    return BrokerLogin(section, upstream="upstream", path="upstream", client_id="tests")


async def test_plain_login_sends_name_and_password_also_a_new_one(tmp_path: Path) -> None:
    broker = Broker()
    await login(tmp_path).log_in(broker)
    assert broker.asked is Mechanism.PLAIN
    assert broker.messages == [b"\0gw\0" + SECRET.encode()]
    ours = login(tmp_path)
    (tmp_path / "secret").write_text("another", encoding="utf-8")
    assert ours.reload(only_if_changed=True, by="tests")
    assert (ours.refreshes, ours.failures, ours.last_refresh_failed) == (1, 0, False)
    broker = Broker()
    await ours.log_in(broker)
    assert broker.messages == [b"\0gw\0another"]
    with pytest.raises(LoginFailed, match="PLAIN"):
        await login(tmp_path).log_in(Broker(handshake_error=33))


async def test_token_of_a_file_is_sent_as_rfc_7628_says_until_it_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = unsecured_token("gw", lifetime_s=60)
    ours = login(tmp_path, Mechanism.OAUTHBEARER, token + "\n")
    broker = Broker()
    await ours.log_in(broker)
    assert broker.asked is Mechanism.OAUTHBEARER
    assert broker.messages == [f"n,,\x01auth=Bearer {token}\x01\x01".encode()]
    later = unsecured_token("gw", lifetime_s=3600)
    (tmp_path / "secret").write_text(later, encoding="utf-8")
    assert ours.reload(only_if_changed=True, by="tests")
    assert ours.token().text == later
    (tmp_path / "secret").write_text(unsecured_token("gw", lifetime_s=-5), encoding="utf-8")
    assert not ours.reload(only_if_changed=True, by="tests")
    assert ours.last_refresh_failed
    assert ours.token().text == later
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 4000)
    with pytest.raises(LoginFailed, match="expired") as caught:
        await ours.log_in(Broker())
    assert later not in str(caught.value)
    assert ours.expires_s() is None


async def test_broker_that_gives_a_reason_for_refusing_a_token_gets_the_answer_that_ends_the_exchange(
    tmp_path: Path,
) -> None:
    ours = login(tmp_path, Mechanism.OAUTHBEARER, unsecured_token("gw"))
    broker = Broker(oauth_error=b'{"status":"invalid_token"}')
    with pytest.raises(LoginFailed, match="Authentication failed"):
        await ours.log_in(broker)
    assert broker.messages[1:] == [b"\x01"]


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
    # A broker that repeats a part of it.
    with pytest.raises(LoginFailed) as caught:
        await login(tmp_path, mechanism, "Authentication of our own").log_in(Broker(error=58))
    assert str(caught.value) == "login as gw: error 58"


@pytest.mark.parametrize("text", ["", "\n", "a\0b", "x" * (64 * 1024 + 1)])
async def test_password_that_can_not_be_one_is_refused(tmp_path: Path, text: str) -> None:
    ours = login(tmp_path, text=text)
    assert ours.last_refresh_failed
    with pytest.raises(LoginFailed, match=r"upstream\.sasl\.password_file: .*secret"):
        await ours.log_in(Broker())


@pytest.mark.parametrize("text", ["a\x01b", "a b", "a\nb", "", "=a", "\u00e4", "a" * 40_000])
def test_text_that_can_not_be_a_token_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    ours = login(tmp_path, Mechanism.OAUTHBEARER, text)
    with pytest.raises(LoginFailed) as caught:
        ours.token()
    assert not text or text not in str(caught.value)


def make(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "1 GB":
        path.touch()
        os.truncate(path, 1_000_000_000)
    elif kind == "not UTF-8":
        path.write_bytes(SECRET.encode() + b"\xff")
    elif kind == "empty":
        path.touch()


@pytest.mark.parametrize("kind", ["fifo", "folder", "1 GB", "not UTF-8", "empty", "gone"])
async def test_file_that_can_not_be_used_leaves_the_secret_in_force(tmp_path: Path, kind: str) -> None:
    ours = login(tmp_path)
    make(tmp_path / "secret", kind)
    with structlog.testing.capture_logs() as logged:
        assert not ours.reload(only_if_changed=True, by="tests")
        # What is still wrong is not logged again.
        assert not ours.reload(only_if_changed=True, by="tests")
    assert [each["event"] for each in logged] == ["login_secret_not_reloaded"]
    assert SECRET not in str(logged)
    assert (ours.failures, ours.last_refresh_failed) == (1, True)
    broker = Broker()
    await ours.log_in(broker)
    assert broker.messages == [b"\0gw\0" + SECRET.encode()]
    # And the first file that can be used again ends the fault.
    shutil.rmtree(tmp_path / "secret") if kind == "folder" else (tmp_path / "secret").unlink(missing_ok=True)
    (tmp_path / "secret").write_text("again", encoding="utf-8")
    assert ours.reload(only_if_changed=True, by="tests")
    assert not ours.last_refresh_failed
    assert ours.password() == "again"


def test_text_of_a_secret_file_has_no_line_end_and_its_faults_show_nothing(tmp_path: Path) -> None:
    with pytest.raises(SecretFault, match="nowhere"):
        read_secret_text(str(tmp_path / "nowhere"))
    (tmp_path / "binary").write_bytes(SECRET.encode() + b"\xff")
    with pytest.raises(SecretFault, match="binary") as caught:
        read_secret_text(str(tmp_path / "binary"))
    assert caught.value.__cause__ is None
    assert SECRET not in str(caught.value)
    (tmp_path / "good").write_text(" a b \r\n", encoding="utf-8")
    assert read_secret_text(str(tmp_path / "good")) == " a b "
    assert BrokerLogin.of(None, upstream="u", path="u", client_id="c") is None

"""Contexts are made of files, and made again when the files change."""

import os
import shutil
import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from structlog.testing import capture_logs

import gateway.tls.contexts
from config import ConfigError
from config.sections.listeners import ListenerTls
from config.sections.upstream import UpstreamTls
from gateway.tls.contexts import TlsFileFault, TlsIdentity, client_context, reload_all, server_context
from testkit.packages import require_package
from testkit.tls import Pki


def listener(pki: Pki, **more: str) -> ListenerTls:
    keys = {"certificate": str(pki.server.certificate), "key": str(pki.server.key)}
    return ListenerTls.model_validate(keys | more)


def test_a_listener_speaks_at_least_tls_1_2_without_compression_and_renegotiation(pki: Pki) -> None:
    context = server_context(listener(pki)).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.verify_mode is ssl.CERT_NONE
    strict = server_context(listener(pki, minimum_version="TLSv1.3")).context
    assert strict.minimum_version is ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(("client_auth", "mode"), [("requested", ssl.CERT_OPTIONAL), ("required", ssl.CERT_REQUIRED)])
def test_client_certificates_are_asked_for_and_never_resumed(
    pki: Pki, client_auth: str, mode: ssl.VerifyMode
) -> None:
    section = listener(pki, client_auth=client_auth, client_ca=str(pki.authority.certificate))
    context = server_context(section).context
    assert context.verify_mode is mode
    assert context.num_tickets == 0


def test_brokers_are_verified_unless_told_otherwise(pki: Pki) -> None:
    context = client_context(UpstreamTls()).context
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    blind = client_context(UpstreamTls(verify=False)).context
    assert blind.verify_mode is ssl.CERT_NONE


def test_a_certificate_with_a_name_that_only_openssl_reads_is_used(tmp_path: Path) -> None:
    # ediPartyName: the library has no class for it.
    edi_party = x509.UnrecognizedExtension(
        x509.SubjectAlternativeName.oid, bytes.fromhex("30 09 a5 07 a1 05 0c 03") + b"edi"
    )
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "edi")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1)
    builder = builder.not_valid_before(datetime(2024, 1, 1, tzinfo=UTC)).not_valid_after(
        datetime(2124, 1, 1, tzinfo=UTC)
    )
    made = builder.add_extension(edi_party, critical=False).sign(key, hashes.SHA256())
    certificate, key_file = tmp_path / "edi.crt", tmp_path / "edi.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    files = {"certificate": str(certificate), "key": str(key_file)}
    assert server_context(ListenerTls.model_validate(files)).hosts == frozenset()
    assert client_context(UpstreamTls.model_validate(files)).expires_s is not None


def test_the_end_of_validity_is_known(pki: Pki) -> None:
    expires_s = server_context(listener(pki)).expires_s
    assert expires_s is not None
    assert 9 * 86_400 < expires_s - pki.server.certificate.stat().st_mtime < 11 * 86_400
    assert client_context(UpstreamTls()).expires_s is None


def encrypted(pki: Pki, folder: Path) -> Path:
    key = folder / "secret.key"
    command = f"ec -in {pki.server.key} -aes256 -passout pass:canary-of-a-key -out {key}"
    subprocess.run([require_package("openssl"), *command.split()], check=True, capture_output=True)
    return key


def test_the_password_of_a_key_is_in_a_file(pki: Pki, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("canary-of-a-key\n")
    keys = {"key": str(encrypted(pki, tmp_path)), "key_password_file": str(password)}
    assert server_context(listener(pki, **keys)).expires_s
    password.write_text("wrong\n")
    with pytest.raises(TlsFileFault) as caught:
        server_context(listener(pki, **keys))
    assert caught.value.key == "key"
    assert "canary" not in str(caught.value)


def test_a_key_with_a_password_does_not_prompt_for_it(pki: Pki, tmp_path: Path) -> None:
    with pytest.raises(TlsFileFault, match="key: "):
        server_context(listener(pki, key=str(encrypted(pki, tmp_path))))


def test_what_is_wrong_with_a_file_is_told_with_its_key_and_path(pki: Pki, tmp_path: Path) -> None:
    other = pki.authority.issue("other", "other")
    junk = tmp_path / "junk.pem"
    junk.write_text("nothing of the kind")
    ca = str(pki.authority.certificate)
    cases = [
        ({"certificate": "/nowhere.crt"}, 'certificate: "/nowhere.crt" cannot be read: No such file'),
        ({"certificate": str(junk)}, f'certificate: "{junk}" holds no PEM certificate'),
        ({"key": str(junk)}, f'key: "{junk}" cannot be used'),
        ({"key": str(other.key)}, f'key: "{other.key}" does not belong to'),
        ({"client_auth": "required", "client_ca": str(junk)}, f'client_ca: "{junk}" holds no PEM certificate'),
        (
            {"client_auth": "required", "client_ca": ca, "client_crl": str(junk)},
            f'client_crl: "{junk}" holds no PEM revocation list',
        ),
        ({"ciphers": "NO-SUCH-CIPHER"}, 'ciphers: "NO-SUCH-CIPHER" names no cipher'),
        ({"key_password_file": str(tmp_path)}, "key_password_file: "),
    ]
    for keys, text in cases:
        with pytest.raises(TlsFileFault) as caught:
            server_context(listener(pki, **keys))
        assert str(caught.value).startswith(text)


def test_a_gateway_does_not_start_with_a_bad_file(pki: Pki) -> None:
    with pytest.raises(ConfigError, match=r"listeners\.0\.tls\.key: "):
        TlsIdentity("listeners.0.tls", listener(pki, key="/nowhere.key"))


class Files:
    """A certificate that is exchanged."""

    def __init__(self, pki: Pki, folder: Path) -> None:
        self.pki = pki
        self.certificate, self.key = folder / "own.crt", folder / "own.key"
        self.put("server")
        section = ListenerTls(certificate=str(self.certificate), key=str(self.key))
        self.identity = TlsIdentity("listeners.0.tls", section)

    def put(self, name: str, *, key: bool = True) -> None:
        pair = self.pki.authority.issue(name, name, hosts=("localhost",))
        shutil.copy(pair.certificate, self.certificate)
        if key:
            shutil.copy(pair.key, self.key)

    def look(self) -> bool:
        return reload_all([self.identity], only_if_changed=True, by="test")


def test_h21_changed_files_make_a_new_context(pki: Pki, tmp_path: Path) -> None:
    files = Files(pki, tmp_path)
    before = files.identity.context
    assert files.look()
    assert files.identity.context is before, "nothing has changed"
    files.put("newer")
    assert files.look()
    assert files.identity.context is not before
    assert (files.identity.reloads, files.identity.failed_reloads) == (1, 0)


def test_h21_a_bad_pair_keeps_the_old_one_until_it_is_whole(pki: Pki, tmp_path: Path) -> None:
    files = Files(pki, tmp_path)
    before = files.identity.context
    files.put("half", key=False)
    assert not files.look()
    assert files.identity.context is before
    assert files.identity.last_reload_failed
    assert not files.look()
    assert files.identity.failed_reloads == 1, "tried, and not complained of, again and again"
    files.put("whole")
    assert files.look()
    assert files.identity.context is not before
    assert not files.identity.last_reload_failed


def test_h21_files_that_could_not_be_read_once_are_read_again_though_they_look_the_same(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(pki, tmp_path)
    before = files.identity.context
    files.put("newer")
    faults = ["Stale file handle", "Stale file handle", "Input/output error"]
    read = gateway.tls.contexts._read

    def broken(key: str, path: str) -> bytes:
        raise TlsFileFault(key, faults[0])

    monkeypatch.setattr("gateway.tls.contexts._read", broken)
    with capture_logs() as lines:
        while faults:
            assert not files.look()
            faults.pop(0)
    assert [line["fault"] for line in lines] == ["certificate: Stale file handle", "certificate: Input/output error"]
    monkeypatch.setattr("gateway.tls.contexts._read", read)
    assert files.look()
    assert files.identity.context is not before
    assert not files.identity.last_reload_failed


def test_h21_a_change_that_only_the_time_of_change_shows_is_one(pki: Pki, tmp_path: Path) -> None:
    files = Files(pki, tmp_path)
    was = files.key.stat()
    files.key.chmod(0o640)
    assert files.key.stat().st_mtime_ns == was.st_mtime_ns
    assert files.look()
    assert files.identity.reloads == 1


def of_version_9(pem: bytes) -> bytes:
    """A certificate whose field of the version is damaged."""
    der = ssl.PEM_cert_to_DER_cert(pem.decode())
    assert der.count(b"\xa0\x03\x02\x01\x02") == 1
    return ssl.DER_cert_to_PEM_cert(der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x09")).encode()


def test_h21_a_certificate_of_a_damaged_version_is_a_bad_one(pki: Pki, tmp_path: Path) -> None:
    files = Files(pki, tmp_path)
    before = files.identity.context
    files.certificate.write_bytes(of_version_9(files.certificate.read_bytes()))
    assert not files.look()
    assert files.identity.context is before
    assert files.identity.last_reload_failed
    with pytest.raises(ConfigError, match=r"listeners\.0\.tls\.certificate: .* holds no PEM certificate"):
        TlsIdentity("listeners.0.tls", listener(pki, certificate=str(files.certificate)))


def test_h21_an_unexpected_error_keeps_the_old_one_and_does_not_stop_the_others(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    odd, other = Files(pki, tmp_path / "a"), Files(pki, tmp_path / "b")
    odd.put("odd")
    other.put("newer")
    monkeypatch.setattr(odd.identity, "_load", lambda: {}["of a library"])
    with capture_logs() as lines:
        for _ in range(2):
            assert not reload_all([odd.identity, other.identity], only_if_changed=True, by="test")
    assert odd.identity.last_reload_failed
    assert other.identity.reloads == 1
    assert [line.get("fault") for line in lines] == ["KeyError", None]


def test_h21_a_link_that_leads_elsewhere_is_a_change(pki: Pki, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder, name in ((first, "first"), (second, "second")):
        folder.mkdir()
        pair = pki.authority.issue(name, name)
        shutil.copy(pair.certificate, folder / "tls.crt")
        shutil.copy(pair.key, folder / "tls.key")
    link = tmp_path / "current"
    link.symlink_to(first)
    identity = TlsIdentity(
        "listeners.0.tls", ListenerTls(certificate=str(link / "tls.crt"), key=str(link / "tls.key"))
    )
    new = tmp_path / "new"
    new.symlink_to(second)
    os.replace(new, link)
    assert identity.reload(only_if_changed=True, by="test")
    assert identity.reloads == 1

"""Commands that show a key to the admin port, over TLS."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.admin_port import AdminPortError, AdminUrl, ask
from testkit.admin_commands import sluice
from testkit.certificates import CLIENT
from testkit.gateway import RunningGateway, running_gateway
from testkit.raw_client import HOST
from testkit.secrets import CANARY, secrets_in
from testkit.tls import Pki

TOKEN = f"{CANARY}the-token-of-a-pipeline"
OTHER = f"{CANARY}another-token-altogether"
KEYS = [
    {"name": "reader", "roles": ["read"], "token": TOKEN},
    {"name": "operators", "roles": ["read", "operate"], "certificate": "CN=operators"},
]

Command = Callable[..., Any]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command beside the gateway; what it prints has no token."""

    async def run(
        running: RunningGateway, *argv: str, scheme: str = "https", **environment: str
    ) -> tuple[int, str, str]:
        for name in ("TOKEN", "TOKEN_FILE", "CA", "CERTIFICATE", "KEY"):
            monkeypatch.delenv(f"SLUICE_ADMIN_{name}", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code, out, err = await sluice(running, capsys, *argv, scheme=scheme)
        assert secrets_in(f"{out}{err}".encode()) == []
        return code, out, err

    return run


async def test_token_and_authority_come_from_files_or_the_environment(command: Command, tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    ca = str(pki.authority.certificate)
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n{OTHER}\n")
    async with running_gateway(9, admin={"tls": pki.mutual("requested")["tls"], "keys": KEYS}) as running:
        enforced = (0, "enforce\n", "")
        assert await command(running, "enforcement", "--admin-ca", ca, "--admin-token-file", str(file)) == enforced
        assert await command(running, "enforcement", SLUICE_ADMIN_TOKEN=TOKEN, SLUICE_ADMIN_CA=ca) == enforced
        given = {"SLUICE_ADMIN_CA": ca, "SLUICE_ADMIN_TOKEN_FILE": str(file)}
        assert await command(running, "enforcement", **given) == enforced
        # What is given counts more than the environment, and the token itself more than a file.
        assert (await command(running, "enforcement", **given, SLUICE_ADMIN_TOKEN=OTHER))[0] == 1
        option = ("--admin-token-file", str(file))
        assert (
            await command(running, "enforcement", *option, SLUICE_ADMIN_CA=ca, SLUICE_ADMIN_TOKEN=OTHER) == enforced
        )
        assert (await command(running, "quotas", "history", **given))[0] == 0
        assert (await command(running, "why", "--client-id", "a", **given))[0] == 0

        code, _, err = await command(running, "enforcement", "off", **given)
        assert (code, err) == (
            1,
            "sluice: refused: the key reader does not have the role operate, or not by password\n",
        )
        own = pki.authority.issue("own", "operators", usage=CLIENT)
        certified = ("--admin-certificate", str(own.both))
        assert (await command(running, "reload", *certified, SLUICE_ADMIN_CA=ca))[2].startswith(
            "sluice: not reloaded: this"
        )


@pytest.mark.parametrize(
    ("argv", "environment", "text"),
    [
        (["quotas"], {}, "refused: needs a key"),
        (["quotas"], {"SLUICE_ADMIN_TOKEN": OTHER}, "refused: the token is not one of admin.keys; give a token in"),
        (["top"], {"SLUICE_ADMIN_TOKEN": OTHER}, "refused: the token is not one of admin.keys"),
        (["quotas"], {"SLUICE_ADMIN_TOKEN": ""}, "the token in SLUICE_ADMIN_TOKEN is empty"),
        (["quotas"], {"SLUICE_ADMIN_TOKEN": f"{OTHER}\r\nX: y"}, "the token in SLUICE_ADMIN_TOKEN is empty or has"),
        (["quotas"], {"SLUICE_ADMIN_TOKEN_FILE": "/none"}, "--admin-token-file: /none: No such file or directory"),
    ],
)
async def test_what_is_wrong_with_a_key_is_one_line(
    command: Command, argv: list[str], environment: dict[str, str], text: str
) -> None:
    async with running_gateway(9, admin={"keys": KEYS[:1]}) as running:
        code, out, err = await command(running, *argv, scheme="http", **environment)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert text in err


async def test_what_is_wrong_with_a_certificate_is_one_line(command: Command, tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    async with running_gateway(9, admin={"tls": pki.keys()["tls"]}) as running:
        for argv, scheme, text in (
            ((), "https", "; --admin-ca names its authority"),
            (("--admin-ca", "/none"), "https", "--admin-ca, --admin-certificate or --admin-key: "),
            (("--admin-certificate", str(pki.authority.certificate)), "https", "--admin-ca, --admin-cert"),
            ((), "http", f"{HOST}:{running.gateway.admin.port}"),
        ):
            code, _, err = await command(running, "quotas", *argv, scheme=scheme)
            assert (code, err.count("\n")) == (1, 1), err
            assert text in err


def test_url_is_shown_without_the_token() -> None:
    files = dict.fromkeys(("token_file", "ca", "certificate", "key"))
    url = AdminUrl("http://127.0.0.1:1", files, TOKEN)
    assert secrets_in(f"{url} {url!r}".encode()) == []
    with pytest.raises(AdminPortError) as caught:
        ask(url, "/quotas")
    assert secrets_in(str(caught.value).encode()) == []

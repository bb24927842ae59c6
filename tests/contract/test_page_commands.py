"""Commands and files on tutorial and how-to pages: each is run or says why not, and each is valid as it stands."""

import contextlib
import io
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from config import Config
from config.clusters import read_clusters
from gateway.cli.main import make_parser
from pipeline import cli as pipeline_cli
from pipeline.capacity.claims import read_claims
from pipeline.teams.prices import read_prices
from quotas.groups_file import read_teams
from testkit import page_shell
from testkit.metrics_page import families
from testkit.packages import require_package
from testkit.page_commands import DOCS, PAGES, ROOT, Block, blocks, inline_commands, programs, session

# What a block can be, apart from commands and what they print.
FILES = {"toml", "yaml", "ini", "properties", "haproxy", "python", "promql", "text"}
BLOCKS = [block for page in PAGES for block in blocks(page)]
OTHER_FILES: dict[str | None, Callable[[str], object]] = {
    "claims.toml": read_claims,
    "groups.toml": read_teams,
    "prices.toml": read_prices,
}
"""Titles of TOML that is no configuration of the gateway, and what reads it."""
MINIMAL = ROOT / "config" / "examples" / "minimal.toml"
WRAPPERS = ("sudo", "docker", "kubectl")
PROGRAMS = ("sluice", "sluice-pipeline", "make")
_INCOMPLETE = "the following arguments are required"
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def of_language(language: str) -> list[Block]:
    """All blocks of a language."""
    return [block for block in BLOCKS if block.language == language]


def fault(words: list[str], *, whole: bool = True) -> str | None:
    """Why one of our programs would not take these arguments.

    Args:
        words: a program and its arguments, perhaps with another program (sudo, docker exec) before it.
        whole: False: a sentence names the command and may leave out what it requires.
    """
    starts = (at for at, word in enumerate(words) if word.startswith("/") or word in PROGRAMS)
    at = next((at for at in starts if Path(words[at]).name in PROGRAMS and words[at - 1 : at] != ["-u"]), None)
    if at is None or (at > 0 and words[0] not in WRAPPERS):
        return None
    program, arguments = Path(words[at]).name, words[at + 1 :]
    if program == "make":
        unknown = [word for word in arguments if not re.search(r"=|^-", word) and word not in TARGETS]
        return f"make has no target {unknown}" if unknown else None
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            if program == "sluice":
                make_parser().parse_args(arguments)
            else:
                job, *rest = arguments
                pipeline_cli.make_parser(job).parse_args(rest)
    except (SystemExit, KeyError) as exc:
        if isinstance(exc, SystemExit) and (not exc.code or (not whole and _INCOMPLETE in said.getvalue())):
            return None
        return said.getvalue().strip() or str(exc)
    return None


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Tables key by key; everything else as `over` says."""
    both = {key: merged(base[key], value) for key, value in over.items() if isinstance(base.get(key), dict)}
    return base | over | both


def test_there_are_pages_with_commands() -> None:
    assert sum(block.language == "console" for block in BLOCKS) > 10
    assert {page.parent.name for page in PAGES if session(page)} == {"tutorial", "how-to"}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_each_block_is_of_a_known_kind_and_says_why_no_test_runs_it(block: Block) -> None:
    assert block.language in FILES | {"console"}
    if block.language == "console":
        assert block.commands()
        # Without a comment tests/integration/test_page_sessions.py runs it.
        assert block in session(block.page) or block.not_run
        assert block.ready_text is None or len(block.commands()) == 1


@pytest.mark.parametrize("block", of_language("console"), ids=lambda block: block.place)
def test_our_programs_take_the_arguments_of_each_command(block: Block) -> None:
    faults = [fault(words) for command in block.commands() for words in programs(command.text)]
    assert [each for each in faults if each] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_our_programs_take_the_arguments_of_commands_in_sentences(page: Path) -> None:
    faults = [fault(words, whole=False) for text in inline_commands(page) for words in programs(text)]
    assert [each for each in faults if each] == []


@pytest.mark.parametrize("block", of_language("toml"), ids=lambda block: block.place)
def test_each_piece_of_configuration_loads(block: Block) -> None:
    tables = tomllib.loads(block.text)
    if block.title in OTHER_FILES:
        OTHER_FILES[block.title](block.text)
    elif "clusters" in tables:
        read_clusters(tables)
    else:
        Config.model_validate(merged(tomllib.loads(MINIMAL.read_text()), tables))


@pytest.mark.parametrize("block", of_language("yaml"), ids=lambda block: block.place)
def test_each_piece_of_yaml_is_yaml(block: Block) -> None:
    assert all(document for document in yaml.safe_load_all(block.text))


@pytest.mark.parametrize("block", of_language("haproxy"), ids=lambda block: block.place)
def test_haproxy_accepts_each_piece_of_its_configuration(block: Block, tmp_path: Path) -> None:
    times = "defaults\n    timeout connect 5s\n    timeout client 60s\n    timeout server 60s\n\n"
    (tmp_path / "haproxy.cfg").write_text(times + block.text)
    command = [require_package("haproxy"), "-c", "-f", str(tmp_path / "haproxy.cfg")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", of_language("promql"), ids=lambda block: block.place)
def test_prometheus_accepts_each_expression(block: Block, tmp_path: Path) -> None:
    rules = {"groups": [{"name": "page", "rules": [{"record": "page", "expr": block.text}]}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    command = [require_package("prometheus", "promtool"), "check", "rules", str(tmp_path / "rules.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_each_series_on_a_page_exists(page: Path) -> None:
    named = set(re.findall(r"\bgateway_[a-z_]+[a-z]\b", page.read_text(encoding="utf-8")))
    series = {name for family in families() for name in (family.name, *family.series)}
    named.discard("gateway_id")  # a key of [usage]
    # A pattern of grep names the beginning of some.
    assert [name for name in sorted(named - series) if not any(each.startswith(f"{name}_") for each in series)] == []


def test_a_command_that_is_not_valid_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Type `sluice why --who bob`:\n\n<!-- not run: needs a cluster -->\n```console\n"
        "$ sudo -u sluice /opt/sluice/bin/sluice quotas export > q.yaml && sluice-pipeline compact --oops /x | head\n"
        "$ make nothing ARGS=1\nprinted\n```\n\n```console\n$ ls \\\n  -l\ntotal 0\n```\n"
    )
    not_run, run = blocks(page)
    found = [words for command in not_run.commands() for words in programs(command.text)]
    assert [fault(words) for words in found] == [
        None,
        "sluice-pipeline compact: the following arguments are required: --out (see sluice-pipeline compact --help)",
        None,
        "make has no target ['nothing']",
    ]
    assert [fault(words, whole=False) for text in inline_commands(page) for words in programs(text)] == [
        "sluice: unrecognized arguments: --who bob (see sluice --help)"
    ]
    assert (not_run.not_run, run.not_run) == ("needs a cluster", None)
    assert session(page) == [run]
    assert [(each.text, each.output) for each in run.commands()] == [("ls \\\n  -l", ("total 0",))]


@pytest.mark.slow
def test_a_command_that_does_not_end_is_ended_with_what_it_started_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_shell, "COMMAND_S", 1.0)
    shell = page_shell.Shell(tmp_path)
    with pytest.raises(pytest.fail.Exception, match="sleep 1000 & wait: no end within 1 s\nbegun"):
        shell.output("echo begun; sleep 1000 & wait")
    shell.close()

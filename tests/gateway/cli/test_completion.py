"""Completion in real shells, of both programs."""

import io
import os
import pty
import select
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from gateway.cli.main import main
from pipeline.cli import main as pipeline_main

FOLDER = Path(sys.executable).parent
CASES = [
    ("sluice check-con", {"check-config"}),
    ("sluice check-config --st", {"--strict"}),
    ("sluice quotas hist", {"history"}),
    ("sluice serve --config sluice.t", {"sluice.toml"}),
    ("sluice-pipeline inges", {"ingest"}),
    ("sluice-pipeline prune --ou", {"--out"}),
]
BASH = """
set -e
source {script}
function=$(complete -p {program} | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
COMP_WORDS=({line})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
COMP_LINE="{line}" COMP_POINT=${{#COMP_LINE}}
$function
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what both programs print, under the names that zsh looks for."""
    found = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        (found / shell).mkdir()
        for program, run in (("sluice", main), ("sluice-pipeline", pipeline_main)):
            text = io.StringIO()
            with redirect_stdout(text):
                assert run(["completion", shell]) == 0
            (found / shell / f"_{program}").write_text(text.getvalue())
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a file; both programs are found."""
    (tmp_path / "sluice.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{FOLDER}:{os.environ['PATH']}")
    return tmp_path


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"no {shell}")


def said(*command: str) -> set[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return {line.partition("\t")[0].strip() for line in done.stdout.splitlines()}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("line", "completed"), CASES)
def test_bash(line: str, completed: set[str], scripts: Path) -> None:
    program = line.partition(" ")[0]
    text = BASH.format(program=program, script=scripts / "bash" / f"_{program}", line=line)
    assert said("bash", "--norc", "-c", text) == completed


@needs("fish")
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("line", "completed"), CASES)
def test_fish(line: str, completed: set[str], scripts: Path) -> None:
    script = scripts / "fish" / f"_{line.partition(' ')[0]}"
    assert said("fish", "-c", f"source {script}; complete -C '{line}'") == completed


@pytest.mark.slow
@needs("zsh")
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("line", "completed"), CASES)
def test_zsh(line: str, completed: set[str], scripts: Path) -> None:
    start = f"PS1=ready; fpath=({scripts}/zsh $fpath); autoload -Uz compinit; compinit -u -d {scripts}/zcompdump\n"
    terminal, end = pty.openpty()
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"],
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(end)
    try:
        os.write(terminal, f"{start}{line}\t".encode())
        (word,) = completed
        shown = b""
        while f"{line.rpartition(' ')[0]} {word}" not in shown.decode(errors="replace"):
            assert select.select([terminal], [], [], 60)[0], shown
            shown += os.read(terminal, 4096)
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)


def test_a_shell_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["completion", "tcsh"])
    assert caught.value.code == 2
    assert "(choose from 'bash', 'zsh', 'fish')" in capsys.readouterr().err

"""The examples for schedulers run the jobs in order, continue where they may, and end with the code of a failure."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
import yaml

from pipeline import cli
from pipeline.errors import Exit
from testkit.packages import require_package

FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "pipeline"
SCRIPT: Final = FOLDER / "hourly.sh"
STUB: Final = """#!/bin/sh
echo "$@" >> {calls}
eval "exit \\${{CODE_$1:-0}}"
"""


def run_script(folder: Path, more: Mapping[str, str] = {}, /, **codes: int) -> tuple[int, list[str]]:
    """The script's exit code, and the jobs that it ran, with more variables and these exit codes of jobs."""
    calls = folder / "calls"
    calls.write_text("")
    program = folder / "sluice-pipeline"
    program.write_text(STUB.format(calls=calls))
    program.chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLUICE_SOURCE": "files:/in",
        "SLUICE_OUT": "/out",
        "SLUICE_METRICS": "/metrics.prom",
        **more,
        **{f"CODE_{job}": str(code) for job, code in codes.items()},
    }
    done = subprocess.run(["/bin/sh", str(SCRIPT)], env=environment, timeout=60, check=False)
    return done.returncode, calls.read_text().splitlines()


def jobs(calls: list[str]) -> str:
    return " ".join(call.split()[0] for call in calls)


ALL_BUT_STATUS: Final = "ingest compact recommend prune"
ALL: Final = f"{ALL_BUT_STATUS} status"


@pytest.mark.parametrize(
    ("codes", "ran", "code"),
    [
        ({}, ALL, 0),
        ({"ingest": Exit.NOTHING_TO_DO}, ALL, 0),
        ({"compact": Exit.NOTHING_TO_DO}, "ingest compact status", 0),
        ({"compact": Exit.NOT_YET_COMPLETE}, "ingest compact status", 0),
        ({"recommend": Exit.NOT_YET_COMPLETE}, ALL, 0),
        ({"prune": Exit.NOTHING_TO_DO}, ALL, 0),
        ({"ingest": Exit.FAILED}, "ingest status", 1),
        ({"ingest": Exit.REFUSED}, "ingest status", 5),
        ({"compact": Exit.FAILED}, "ingest compact status", 1),
        ({"recommend": Exit.REFUSED}, "ingest compact recommend status", 5),
        ({"status": Exit.FAILED}, ALL, 0),
    ],
)
def test_the_script_continues_after_what_is_no_failure_and_always_writes_metrics(
    tmp_path: Path, codes: dict[str, int], ran: str, code: int
) -> None:
    found, calls = run_script(tmp_path, **codes)

    assert (found, jobs(calls)) == (code, ran)
    assert not any("plan" in call for call in calls)


@pytest.mark.parametrize(
    ("codes", "ran", "code"),
    [
        ({}, f"{ALL_BUT_STATUS} plan status", 0),
        ({"plan": Exit.NOTHING_TO_DO}, f"{ALL_BUT_STATUS} plan status", 0),
        ({"plan": Exit.REFUSED}, f"{ALL_BUT_STATUS} plan status", 5),
        ({"recommend": Exit.NOT_YET_COMPLETE}, ALL, 0),
        ({"compact": Exit.NOTHING_TO_DO}, "ingest compact status", 0),
    ],
)
def test_the_script_applies_the_plan_that_it_has_made_if_it_is_given_an_address(
    tmp_path: Path, codes: dict[str, int], ran: str, code: int
) -> None:
    where = {"SLUICE_APPLY_TO": "gateway:9092", "SLUICE_APPLY_CONFIG": "/etc/sluice/our client.properties"}
    found, calls = run_script(tmp_path, where, **codes)

    assert (found, jobs(calls)) == (code, ran)
    for call in calls:
        if call.startswith("plan"):
            (made,) = (each for each in calls if each.startswith("recommend"))
            plan = re.fullmatch(r"recommend --out /out --plan (/out/results/plan/run=[\dT-]+Z/plan\.json)", made)
            assert plan is not None
            assert call == (
                f"plan apply {plan[1]} --unattended --bootstrap gateway:9092 "
                "--client-config /etc/sluice/our client.properties"
            )


def assert_jobs_take(commands: list[str]) -> None:
    for words in map(str.split, commands):
        cli.make_parser(words[0]).parse_args(words[1:])


def test_our_jobs_take_the_arguments_of_the_script(tmp_path: Path) -> None:
    assert_jobs_take(run_script(tmp_path)[1])
    assert_jobs_take(run_script(tmp_path, {"SLUICE_APPLY_TO": "gateway:9092"})[1])


def test_systemd_accepts_the_service_and_the_timer_and_no_misspelt_key(tmp_path: Path) -> None:
    analyze = require_package("systemd", "systemd-analyze")
    units = tmp_path / "usr/lib/systemd/system"
    own = Path("/usr/lib/systemd/system")
    if own.is_dir():
        shutil.copytree(own, units, symlinks=True)
    units.mkdir(parents=True, exist_ok=True)
    (tmp_path / "bin").mkdir(exist_ok=True)
    shutil.copy("/bin/true", tmp_path / "bin" / "sh")

    def verify() -> str:
        words = [analyze, "verify", "--man=no", f"--root={tmp_path}", "sluice-pipeline.timer"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout + done.stderr

    for name in ("sluice-pipeline.service", "sluice-pipeline.timer"):
        shutil.copy(FOLDER / name, units)
    assert verify() == ""
    timer = units / "sluice-pipeline.timer"
    timer.write_text(timer.read_text().replace("OnCalendar=", "OnCalender="))
    assert "OnCalender" in verify()


def test_the_service_and_the_cron_job_run_the_script_with_its_variables() -> None:
    wanted = set(re.findall(r"\$\{?(SLUICE_\w+):\?", SCRIPT.read_text()))
    assert wanted == {"SLUICE_SOURCE", "SLUICE_OUT"}
    service = (FOLDER / "sluice-pipeline.service").read_text()
    assert "ExecStart=/bin/sh /etc/sluice/hourly.sh\n" in service
    assert all(name in service for name in wanted)
    job = yaml.safe_load((FOLDER / "cronjob.yaml").read_text())
    spec = job["spec"]["jobTemplate"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"] == ["/bin/sh", "/etc/sluice/hourly.sh"]
    assert wanted <= {each["name"] for each in container["env"]}
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounted == {"scripts": "/etc/sluice", "data": "/data"}
    assert {each["name"] for each in spec["template"]["spec"]["volumes"]} == mounted.keys()
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert rule["onExitCodes"]["values"] == [Exit.WRONG_ARGUMENTS, Exit.REFUSED]
    # Kubernetes takes a policy only for pods that are not restarted in place.
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


class Operator:
    """Stands for an operator of Airflow, which the project does not install; it was tried with Airflow 3.0."""

    all: list["Operator"] = []

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.next: Operator | None = None
        self.teardown = False
        self.all.append(self)

    def __rshift__(self, other: "Operator") -> "Operator":
        self.next = other
        return other

    def as_teardown(self) -> "Operator":
        self.teardown = True
        return self


class Dag:
    """Stands for a DAG."""

    def __init__(self, name: str, **options: Any) -> None:
        self.options = options

    def __enter__(self) -> "Dag":
        return self

    def __exit__(self, *raised: object) -> None:
        """The tasks are known."""


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Operator]:
    """The tasks of the DAG."""
    Operator.all = []
    names = {"airflow.sdk": {"DAG": Dag}, "airflow.providers.standard.operators.bash": {"BashOperator": Operator}}
    for name, contents in names.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        for each, value in contents.items():
            setattr(sys.modules[name], each, value)
    runpy.run_path(str(FOLDER / "airflow_dag.py"))
    return Operator.all


def test_the_dag_runs_the_same_jobs_and_skips_what_is_no_failure(tasks: list[Operator]) -> None:
    assert " ".join(task.options["task_id"] for task in tasks) == ALL
    assert [task.next for task in tasks] == [*tasks[1:], None]
    assert [task.teardown for task in tasks] == [False] * 4 + [True]
    for task in tasks:
        assert task.options["skip_on_exit_code"] == [Exit.NOTHING_TO_DO, Exit.NOT_YET_COMPLETE]
    # Without new records there may still be a day to compact.
    assert tasks[1].options["trigger_rule"] == "none_failed"
    assert_jobs_take([task.options["bash_command"].removeprefix("sluice-pipeline ") for task in tasks])
